"""A real redis-server as a child process on a free port. A missing one fails the tests: it does not skip them."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.ports import free_port


class RedisServer:
    """Nothing is kept: what stops forgets everything, scripts included."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_port()
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed: apt-get install redis-server"
        for _ in range(5):
            self._launch(binary)
            if self.wait_until_it_answers():
                return
            self.stop()
            self.port = free_port()  # another test's server was given the same one a moment earlier
        raise AssertionError((self._directory / "redis.log").read_text())

    def _launch(self, binary: str) -> None:
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._directory), "--logfile", str(self._directory / "redis.log"), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_it_answers(self) -> bool:
        """Whether it is ours that does."""
        until = time.monotonic() + 20
        while True:
            try:
                with Redis(port=self.port, socket_timeout=1) as client:
                    found = client.info("server")["process_id"]
                return self._process is None or found == self._process.pid
            except (RedisError, OSError):
                assert time.monotonic() < until, (self._directory / "redis.log").read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """At once, as a machine that goes away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def call(self, *command: str) -> object:
        with Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*command)
