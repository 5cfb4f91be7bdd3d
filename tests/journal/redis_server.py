"""A real redis-server for the tests: a child process on a free port, with its files in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from paywitness.redis.connection import pack_command
from tests.ports import free_port

_START_TIMEOUT_S = 20.0


class RedisServer:
    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.tls_port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, on the same port as before if it ran before."""
        program = shutil.which("redis-server")
        assert program, "redis-server is missing: sudo apt-get install redis-server (`make test` does it as root)"
        self.folder.mkdir(exist_ok=True)
        for _ in range(5):
            port = self.port or free_port()
            command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
            options = ["--appendonly", "yes", "--save", "", "--logfile", "redis.log", *self._options]
            self._process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
            if self._answers(port):
                self.port = port
                return
            self.kill()
        raise AssertionError(f"redis-server does not start: {(self.folder / 'redis.log').read_text()[-2000:]}")

    def start_with_tls(self) -> None:
        """With a second port that speaks TLS and asks no certificate of its clients."""
        self.tls_port = free_port()
        self._options = (*self._options, "--tls-port", str(self.tls_port), "--tls-auth-clients", "no")
        self.start()

    def start_sentinel(self, service: str, primary_port: int) -> None:
        """A sentinel that watches a primary, and alone decides."""
        program = shutil.which("redis-server")
        assert program
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"logfile {self.folder / 'sentinel.log'}",
            f"sentinel monitor {service} 127.0.0.1 {primary_port} 1",
            f"sentinel down-after-milliseconds {service} 500",
            f"sentinel failover-timeout {service} 3000",
        )
        configuration = self.folder / "sentinel.conf"
        configuration.write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen([program, str(configuration), "--sentinel"], stdout=subprocess.DEVNULL)
        assert self._answers(self.port), "the sentinel does not start"

    def _answers(self, port: int) -> bool:
        until = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            with suppress(OSError):
                answer = self._asked(port, "PING")
                if answer == b"-NOAUTH Authentication required.\r\n":
                    return True
                # Another test's server may have been given the same free port a moment earlier.
                ours = f"process_id:{self._process.pid}\r\n".encode()
                if answer == b"+PONG\r\n" and ours in self._asked(port, "INFO", "server"):
                    return True
            time.sleep(0.01)
        return False

    def ask(self, *command: str) -> bytes:
        """One command, and the raw answer."""
        return self._asked(self.port, *command)

    def _asked(self, port: int, *command: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(pack_command(command))
            answer = connection.recv(65536)
            if answer.startswith(b"$"):
                length, _, _ = answer[1:].partition(b"\r\n")
                while len(answer) < int(length):
                    answer += connection.recv(65536)
            return answer

    def info(self, section: str) -> dict[str, str]:
        lines = self.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        os.kill(self.process_id, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:  # a disk that is busy with other tests
                self._process.kill()
                self._process.wait()
            self._process = None
