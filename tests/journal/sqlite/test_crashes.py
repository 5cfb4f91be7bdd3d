"""What the embedded journal holds after the worst: kill -9, a full disk, a failing one. Real processes, real files."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock, asking, doubting, owned, succeeding

_STREAM = """
import asyncio, os, sys
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock, owned, succeeding

async def main():
    journal = await SqliteJournal.open(sys.argv[1], clock=HandClock())

    async def caller(name):
        for number in range(1_000_000):
            operation = await owned(journal, f"{name}-{number}", id=f"op_{name}_{number}")
            os.write(1, f"claimed {operation.id}\\n".encode())
            if number % 2:
                operation = await journal.record(succeeding(operation))
                os.write(1, f"recorded {operation.id}\\n".encode())

    await asyncio.gather(*(caller(f"caller-{number}") for number in range(32)))

asyncio.run(main())
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lines", [10, 500, 3000])
async def test_after_kill_9_everything_that_was_acknowledged_is_there(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "journal.db"
    told = await asyncio.to_thread(_killed_after, path, lines)
    journal = await SqliteJournal.open(path, clock=HandClock())  # the lock died with its holder
    for line in told:
        verb, operation_id = line.split()
        operation = await journal.read(operation_id)
        assert operation is not None, line
        assert verb == "claimed" or operation.state is State.SUCCEEDED, line
        assert operation.state is not State.SENDING or operation.lease is not None
        assert len(await journal.history(operation_id)) == operation.version
    await _no_holder_is_left(journal)
    await journal.close()
    assert _integrity(path) == "ok"


def _killed_after(path: Path, lines: int) -> list[str]:
    """What a process had been told, and passed on, when it was killed in the midst of it."""
    command = [sys.executable, "-c", _STREAM, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(keepends=True)
    assert child.returncode == -signal.SIGKILL
    return [line for line in told + rest if line.endswith("\n")]


async def _no_holder_is_left(journal: SqliteJournal) -> None:
    while await journal.expire_leases(all_of_earlier_holders=True):
        pass
    assert await journal.find_operations(OperationQuery(states=frozenset({State.SENDING}))) == ()


def _integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return str(found)


class TestFullDisk:
    @pytest.fixture
    async def journal(self, tmp_path: Path, clock: HandClock) -> AsyncIterator[SqliteJournal]:
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        yield journal
        await journal.close()

    async def test_nothing_is_owned_until_there_is_room_again(self, journal: SqliteJournal) -> None:
        known = await owned(journal, "known")
        connection = journal._writer._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        refused = await self.fill(journal)
        assert "the disk is full" in str(refused)
        assert (await journal.claim(asking("known"))).verdict is ClaimVerdict.IN_FLIGHT  # reading needs no room
        connection.execute("PRAGMA max_page_count = 1000000").fetchall()
        assert (await journal.claim(asking("after"))).verdict is ClaimVerdict.OWNED
        assert (await journal.record(doubting(known))).version == 2
        assert await journal.healthy()

    async def fill(self, journal: SqliteJournal) -> JournalUnavailable:
        for number in range(1000):
            try:
                await owned(journal, f"filler-{number}")
            except JournalUnavailable as error:
                return error
        pytest.fail("the disk never filled")


_LIMITED = """
import asyncio, resource, sys
from paywitness.core.errors import JournalUnavailable
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock, asking, owned, succeeding

async def main():
    journal = await SqliteJournal.open(sys.argv[1], clock=HandClock())
    await owned(journal, "known")
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    acknowledged = []
    try:
        for number in range(1000):
            acknowledged.append((await owned(journal, f"key-{number}")).id)
    except JournalUnavailable as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # not even a small write has room
    print("healthy", await journal.healthy())
    together = await asyncio.gather(*(journal.claim(asking(f"many-{n}")) for n in range(20)), return_exceptions=True)
    print("refused", sum(isinstance(result, JournalUnavailable) for result in together))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("healthy", await journal.healthy())
    acknowledged.append((await owned(journal, "after")).id)
    for operation_id in acknowledged:
        assert await journal.read(operation_id) is not None, operation_id
    await journal.close()
    print("acknowledged", len(acknowledged))

asyncio.run(main())
"""


def test_a_disk_that_fails_in_the_midst_of_a_write_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow: a short write at any place, then an error."""
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", _LIMITED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told, unhealthy, refused, healthy, acknowledged = done.stdout.splitlines()
    assert "the disk failed" in told
    assert (unhealthy, refused, healthy) == ("healthy False", "refused 20", "healthy True")
    assert int(acknowledged.split()[1]) > 5
    assert _integrity(path) == "ok"


class TestErasure:
    """A stored request that was erased is gone from the disk too, once the log has been cut."""

    CANARY = b"canary-of-a-stored-request"

    @pytest.fixture
    async def journal(self, tmp_path: Path, clock: HandClock) -> AsyncIterator[SqliteJournal]:
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        yield journal
        await journal.close()

    async def test_at_the_end_of_an_operation(self, journal: SqliteJournal, tmp_path: Path) -> None:
        claims = [asking(f"key-{number}", sealed_request=self.CANARY * 300) for number in range(20)]
        operations = [(await journal.claim(claim)).operation for claim in claims]
        await asyncio.to_thread(journal._writer.on_idle)
        assert _found(self.CANARY, tmp_path) > 0
        for operation in operations:
            assert operation is not None
            await journal.record(succeeding(operation))
        await asyncio.to_thread(journal._writer.on_idle)
        assert _found(self.CANARY, tmp_path) == 0

    async def test_when_it_is_said(self, journal: SqliteJournal, tmp_path: Path) -> None:
        claim = await journal.claim(asking(sealed_request=self.CANARY * 3))
        assert claim.operation is not None
        await journal.record(doubting(claim.operation, erase_request=True))
        await asyncio.to_thread(journal._writer.on_idle)
        assert _found(self.CANARY, tmp_path) == 0

    async def test_a_writer_at_rest_cuts_its_log_by_itself(self, journal: SqliteJournal, tmp_path: Path) -> None:
        await owned(journal)
        log = tmp_path / "journal.db-wal"
        assert _size(log) > 0
        await asyncio.to_thread(_wait_until_empty, log)
        assert _integrity(tmp_path / "journal.db") == "ok"


_LOOK = """
import pathlib, sys
files = pathlib.Path(sys.argv[2]).iterdir()
print(sum(file.read_bytes().count(sys.argv[1].encode()) for file in files))
"""


def _found(canary: bytes, directory: Path) -> int:
    """How often it is in the files, as another process sees them: our closing them would drop SQLite's locks."""
    command = [sys.executable, "-c", _LOOK, canary.decode(), str(directory)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def _wait_until_empty(path: Path) -> None:
    while _size(path) > 0:  # bounded by the test's own time limit
        time.sleep(0.05)


def _size(path: Path) -> int:
    return path.stat().st_size
