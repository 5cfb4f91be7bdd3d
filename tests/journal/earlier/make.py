"""Make a fixture: run the real sidecar of an earlier release, and keep the journals that it leaves.

    python -m tests.journal.earlier.make CHECKOUT NAME

CHECKOUT is a checkout of the earlier code. The fixture's files go to the folder NAME beside this file. README.md says
what they hold.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import signal
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.e2e.sidecar import Answer, wait_until
from tests.journal.earlier import scenario
from tests.journal.earlier.processes import REDIS_SECRETS, Code, Proxy, Receiver, Sandbox
from tests.journal.redis_server import RedisServer

HERE = Path(__file__).parent
RETENTION_S = 60.0  # the shortest that the sidecar takes
EVENTS_ACCEPTED = 6  # the rest waits in the outbox
NEW_REVISION = ("schedule: [12h,", "schedule: [11h,")
SQLITE_FILES = ("journal.db", "journal.db.identity", "journal.db.keys")
Unavailable = Callable[[], AbstractContextManager[None]]


def _retire_old(proxy: Proxy) -> scenario.Answers:
    proxy.start()
    answers = scenario.old(proxy)
    proxy.stop()
    time.sleep(RETENTION_S + 1)
    proxy.start("--retention", "1m")
    wait_until(lambda: not proxy.operations(), "the end of retention")
    proxy.stop()
    return answers


def _change_policies(proxy: Proxy) -> None:
    before = proxy.admin("/v1/policies").body
    proxy.write_policies(NEW_REVISION)
    assert proxy.process is not None
    proxy.process.send_signal(signal.SIGHUP)
    wait_until(lambda: proxy.admin("/v1/policies").body != before, "the new revision")


def _play(proxy: Proxy, sandbox: Sandbox, unavailable: Unavailable) -> dict:
    """Everything that the fixture holds; what the earlier code itself says of it."""
    proxy.write_policies()
    answers = _retire_old(proxy)
    receiver = Receiver(EVENTS_ACCEPTED).start()
    proxy.start("--events", receiver.url)
    scenario.send_webhooks(proxy, sandbox)
    answers["first-revision"] = proxy.charge("first-revision")
    _change_policies(proxy)
    answers |= scenario.ended(proxy, sandbox)
    answers |= scenario.still_open(proxy, sandbox)
    wait_until(lambda: len(receiver.accepted) == EVENTS_ACCEPTED, "the events")
    scenario.in_flight(proxy, sandbox)
    operations = [proxy.operation(listed["id"]) for listed in proxy.operations()]
    outcomes = proxy.admin("/v1/outcomes?limit=500").json
    with unavailable():
        wait_until(lambda: any(file.name.isdigit() for file in (proxy.folder / "spool").iterdir()), "the spooling")
        proxy.kill()
    receiver.stop()
    return {
        "answers": {key: _described(answer) for key, answer in answers.items()},
        "operations": operations,
        "outcomes": outcomes,
        "events_accepted": receiver.accepted,
    }


def _described(answer: Answer) -> dict:
    ours = {name: value for name, value in answer.headers.items() if name.startswith("Paywitness-")}
    return {"status_code": answer.status_code, "headers": ours, "body": answer.body.decode()}


def _pack(archive: Path, folder: Path, expected: dict) -> None:
    """The folder's files, and what the earlier code says of them."""
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            about = tarfile.TarInfo(str(file.relative_to(folder)))  # nothing of this machine: no user, no time
            about.size, about.mode = file.stat().st_size, 0o600
            with file.open("rb") as content:
                tar.addfile(about, content)
    archive.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def make_sqlite(code: Code, folder: Path, archive: Path) -> None:
    home, kept = folder / "home", folder / "kept"
    home.mkdir()
    journal = home / "journal.db"

    @contextmanager
    def unavailable() -> Iterator[None]:
        """Another program holds the file."""
        connection = sqlite3.connect(journal, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    sandbox = Sandbox(folder, code).start()
    proxy = Proxy(home, sandbox, "sqlite:///journal.db", code)
    try:
        expected = _play(proxy, sandbox, unavailable)
    finally:
        proxy.kill()
        sandbox.kill()
    kept.mkdir()
    for name in SQLITE_FILES:
        shutil.copy(home / name, kept)
    shutil.copytree(home / "spool", kept / "spool")
    _pack(archive, kept, expected)


def make_redis(code: Code, folder: Path, archive: Path) -> None:
    home, kept = folder / "home", folder / "kept"
    home.mkdir()
    redis = RedisServer(folder / "redis", "--aof-use-rdb-preamble", "no")
    redis.start()

    @contextmanager
    def unavailable() -> Iterator[None]:
        redis.kill()
        yield
        redis.start()

    sandbox = Sandbox(folder, code).start()
    proxy = Proxy(home, sandbox, redis.url, code, REDIS_SECRETS)
    try:
        expected = _play(proxy, sandbox, unavailable)
        redis.ask("BGREWRITEAOF")
        wait_until(lambda: redis.info("persistence")["aof_rewrite_in_progress"] == "0", "the rewrite of the log")
        (log,) = (redis.folder / "appendonlydir").glob("*.base.aof")
        kept.mkdir()
        shutil.copy(log, kept / "appendonly.aof")
    finally:
        proxy.kill()
        sandbox.kill()
        redis.stop()
    shutil.copytree(home / "spool", kept / "spool")
    _pack(archive, kept, expected)


def main(checkout: str, name: str) -> None:
    target = HERE / name
    target.mkdir(exist_ok=True)
    code = Code(Path(checkout).resolve())
    for journal, make in (("sqlite", make_sqlite), ("redis", make_redis)):
        with tempfile.TemporaryDirectory() as folder:
            make(code, Path(folder), target / f"{journal}.tar.gz")


if __name__ == "__main__":
    main(*sys.argv[1:])
