"""The file of the embedded journal: whose it is, who may open it, and what is told when it cannot be used."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable, JournalUnusable
from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind
from paywitness.journal.base import OperationQuery
from paywitness.journal.sqlite import reader, retention, rows, schema
from paywitness.journal.sqlite import reader as webhook_events
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.journal.sqlite.reader import listing_queries
from tests.journal.samples import DOUBTS, HandClock, asking, owned, succeeding


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "journal.db"


@pytest.fixture
async def journal(path: Path, clock: HandClock) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(path, clock=clock)
    yield journal
    await journal.close()


def left_behind(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestMaking:
    async def test_file_log_and_lock_are_their_owners_alone(self, journal: SqliteJournal, path: Path) -> None:
        await owned(journal)
        assert mode_of(path.parent) == 0o700
        names = {"journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock", "journal.db.mark"}
        assert {file.name: mode_of(file) for file in path.parent.iterdir()} == dict.fromkeys(names, 0o600)

    async def test_an_older_file_that_others_may_read_is_closed_to_them(self, path: Path, clock: HandClock) -> None:
        left_behind(path, b"", mode=0o644)
        await (await SqliteJournal.open(path, clock=clock)).close()
        assert mode_of(path) == 0o600

    async def test_every_commit_reaches_the_disk(self, journal: SqliteJournal) -> None:
        connection = journal._writer._connection
        pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}

    async def test_after_the_end_the_file_alone_is_left(self, path: Path, clock: HandClock) -> None:
        journal = await SqliteJournal.open(path, clock=clock)
        await owned(journal)
        await journal.close()
        assert {file.name for file in path.parent.iterdir()} == {"journal.db", "journal.db.lock", "journal.db.mark"}


class TestLock:
    async def test_this_process_cannot_open_it_twice(
        self, journal: SqliteJournal, path: Path, clock: HandClock
    ) -> None:
        with pytest.raises(JournalUnusable, match="open in this process already"):
            await SqliteJournal.open(path, clock=clock)
        assert await journal.healthy()

    async def test_nor_by_a_link_to_it(
        self, journal: SqliteJournal, path: Path, clock: HandClock, tmp_path: Path
    ) -> None:
        (tmp_path / "link.db").symlink_to(path)
        with pytest.raises(JournalUnusable, match="open in this process already"):
            await SqliteJournal.open(tmp_path / "link.db", clock=clock)

    async def test_another_process_is_told_who_holds_it_and_what_to_do(
        self, journal: SqliteJournal, path: Path
    ) -> None:
        told = _open_elsewhere(path)
        assert f"held by process {os.getpid()}" in told
        assert "stop that one, or give this one a journal of its own" in told

    async def test_once_closed_another_process_may_have_it(self, path: Path, clock: HandClock) -> None:
        journal = await SqliteJournal.open(path, clock=clock)
        await journal.close()
        assert _open_elsewhere(path) == "opened"

    async def test_a_lock_file_left_behind_holds_nobody_up(self, path: Path, clock: HandClock) -> None:
        left_behind(path.with_name("journal.db.lock"), b"99999\n")
        journal = await SqliteJournal.open(path, clock=clock)
        assert path.with_name("journal.db.lock").read_text() == f"{os.getpid()}\n"
        await journal.close()

    async def test_a_failed_open_holds_nothing(self, path: Path, clock: HandClock) -> None:
        left_behind(path, b"no database" * 1000)
        for _ in range(2):
            with pytest.raises(JournalUnusable, match="not a SQLite database"):
                await SqliteJournal.open(path, clock=clock)
        left_behind(path, b"")
        await (await SqliteJournal.open(path, clock=clock)).close()


_OPEN = """
import asyncio, sys
from paywitness.core.errors import JournalUnusable
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.journal.samples import HandClock

async def main():
    try:
        journal = await SqliteJournal.open(sys.argv[1], clock=HandClock())
    except JournalUnusable as error:
        print(error)
    else:
        await journal.close()
        print("opened")

asyncio.run(main())
"""


def _open_elsewhere(path: Path) -> str:
    command = [sys.executable, "-c", _OPEN, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


class TestUnfit:
    async def test_a_directory_is_not_a_journal(self, tmp_path: Path, clock: HandClock) -> None:
        with pytest.raises(JournalUnusable, match="is not a file"):
            await SqliteJournal.open(tmp_path, clock=clock)

    async def test_a_place_where_nothing_can_be_made(self, tmp_path: Path, clock: HandClock) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(JournalUnusable, match="cannot be made"):
            await SqliteJournal.open(tmp_path / "file" / "journal.db", clock=clock)

    async def test_somebody_elses_database_is_left_alone(self, tmp_path: Path, clock: HandClock) -> None:
        path = tmp_path / "theirs.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
        connection.close()
        with pytest.raises(JournalUnusable, match="not a journal"):
            await SqliteJournal.open(path, clock=clock)
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
        connection.close()

    async def test_a_newer_journal_is_refused(self, path: Path, clock: HandClock) -> None:
        await (await SqliteJournal.open(path, clock=clock)).close()
        _alter(path, "PRAGMA user_version = 7")
        with pytest.raises(
            JournalUnusable, match=r"written by a newer paywitness \(its version 7, this one knows up to 5"
        ):
            await SqliteJournal.open(path, clock=clock)

    async def test_a_damaged_first_page_is_told_at_the_start(self, path: Path, clock: HandClock) -> None:
        await _filled(path, clock)
        _damage(path, page=0, at=100)
        with pytest.raises(JournalUnusable, match="damaged"):
            await SqliteJournal.open(path, clock=clock)

    async def test_damage_further_in_is_told_when_it_is_met_and_nothing_is_owned(
        self, path: Path, clock: HandClock
    ) -> None:
        """An unreadable index must never look like a key that is not there."""
        await _filled(path, clock)
        _damage(path, page=_page_of_index(path, "sqlite_autoindex_operations_2"), at=0)
        journal = await SqliteJournal.open(path, clock=clock)
        with pytest.raises(JournalUnavailable, match="the file is damaged"):
            await journal.claim(asking("key-3"))
        await journal.close()


async def _filled(path: Path, clock: HandClock) -> None:
    journal = await SqliteJournal.open(path, clock=clock)
    for number in range(30):
        await journal.record(succeeding(await owned(journal, f"key-{number}")))
    await journal.close()


def _page_of_index(path: Path, name: str) -> int:
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    connection.close()
    return int(page) - 1


def _damage(path: Path, *, page: int, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(page * 4096 + at)
        file.write(b"\xff" * 64)


def _alter(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()


class TestMigrations:
    async def test_an_older_file_is_moved_on_and_keeps_what_it_holds(self, path: Path, clock: HandClock) -> None:
        await _filled(path, clock)
        connection = sqlite3.connect(path, isolation_level=None)
        newer = (*schema.MIGRATIONS, ("ALTER TABLE operations ADD COLUMN colour TEXT",))
        schema.migrate(connection, newer)
        assert connection.execute("PRAGMA user_version").fetchone() == (6,)
        assert connection.execute("SELECT count(*), count(colour) FROM operations").fetchone() == (30, 0)
        connection.close()

    async def test_a_file_of_the_first_version_is_guarded_after_it_is_opened(
        self, path: Path, clock: HandClock
    ) -> None:
        guard = Guard(GuardKind.INTENT, "intent", "order-7")
        states = {"op_1": "unknown", "op_2": "failed", "op_3": "succeeded", "op_4": "sending"}
        _first_version(path, states, guard)
        journal = await SqliteJournal.open(path, clock=clock)
        assert [
            operation.id for operation in await journal.find_operations(OperationQuery(subject="order-7"))
        ] == sorted(states, reverse=True)
        kept = await journal.find_operations(OperationQuery(guard="intent"))
        assert [operation.id for operation in kept] == ["op_4", "op_3", "op_1"]
        assert [operation.id for operation in await journal.find_operations(OperationQuery(stamp="op_0"))] == sorted(
            states, reverse=True
        )
        assert {operation.guard for operation in kept} == {guard}
        claim = await journal.claim(asking("another", guard=guard, fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.GUARDED, kept[-1])
        claim = await journal.claim(asking("key of op_1"))
        assert claim.verdict is ClaimVerdict.IN_DOUBT
        assert claim.operation is not None
        assert (await journal.record(succeeding(claim.operation))).incident == "duplicate_success"
        assert [row.operation.id for row in await journal.announcements(0, limit=10)] == [
            "op_1"
        ]  # the earlier told nothing
        assert [entry.note for entry in await journal.history("op_1")] == ["by hand", "op_3 paid the same intent"]
        await journal.close()

    async def test_a_migration_that_fails_leaves_the_file_as_it_was(self, path: Path, clock: HandClock) -> None:
        await _filled(path, clock)
        connection = sqlite3.connect(path, isolation_level=None)
        bad = (*schema.MIGRATIONS, ("ALTER TABLE operations ADD COLUMN colour TEXT", "no statement"))
        with pytest.raises(sqlite3.OperationalError):
            schema.migrate(connection, bad)
        connection.close()
        journal = await SqliteJournal.open(path, clock=clock)
        assert (await journal.claim(asking("key-3"))).verdict is ClaimVerdict.REPLAY
        await journal.close()


def _first_version(path: Path, states: dict[str, str], guard: Guard) -> None:
    """A file as the first version left it: rows by hand, for it knew none of today's fields."""
    left_behind(path, b"")
    connection = sqlite3.connect(path, isolation_level=None)
    schema.migrate(connection, schema.MIGRATIONS[:1])
    identity = {
        "kind": "authorization",
        "account": "account-1",
        "key_source": "generated",
        "names_purchase": False,
        "fingerprint": "fingerprint-1",
        "ignore": [],
        "request_hash": "hash",
        "credential": "credential-1",
        "upstream": "http://127.0.0.1:8702",
        "stamp": "op_0",
        "guard": [guard.kind, guard.value, guard.label],
    }
    for operation_id, state in states.items():
        standing = {"revision": "r1", "attempts": 1, **({"doubt": [1]} if state == "unknown" else {})}
        connection.execute(
            "INSERT INTO operations (id, key, generation, provider, operation, client_key, created_at, identity, "
            "state, version, updated_at, standing) "
            "VALUES (?, ?, 1, 'acme', 'authorization', 'client', 1.0, ?, ?, 1, 1.0, ?)",
            (operation_id, f"key of {operation_id}", json.dumps(identity), state, json.dumps(standing)),
        )
        entry = json.dumps({"source": "caller", "events": [], "state": state, "note": "by hand"})
        connection.execute(
            "INSERT INTO changes (operation_id, version, at, entry) VALUES (?, 1, 1.0, ?)", (operation_id, entry)
        )
    connection.close()


class TestQueryPlans:
    """What is asked for often, or of a full journal, follows an index."""

    @pytest.mark.parametrize(
        ("listing", "index"),
        [
            (OperationQuery(key="x"), "by_client_key"),
            (OperationQuery(key="x"), "by_provider_key"),
            (OperationQuery(key="x", states=DOUBTS), "by_client_key"),
            (OperationQuery(reference="x"), "by_reference"),
            (OperationQuery(reference="x", provider="acme"), "by_reference"),
            (OperationQuery(key="x"), "aliases_by_client_key"),
            (OperationQuery(stamp="x"), "by_stamp"),
            (OperationQuery(guard="x"), "guards"),
            (OperationQuery(guard="x", states=DOUBTS), "guards"),
            (OperationQuery(subject="x"), "by_subject"),
            (OperationQuery(subject="x", states=DOUBTS, money=Money(1, "EUR")), "by_subject"),
            (OperationQuery(incidents_only=True), "incidents"),
            (OperationQuery(incidents_only=True, before="x"), "incidents"),
            (OperationQuery(states=DOUBTS), "by_state"),
            (OperationQuery(states=DOUBTS, before="x", provider="acme"), "by_state"),
        ],
    )
    async def test_listings(self, path: Path, clock: HandClock, listing: OperationQuery, index: str) -> None:
        await _filled(path, clock)
        connection = sqlite3.connect(path)
        for query, arguments in listing_queries(listing):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (*arguments, 50))]
            assert any(index in step for step in plan), plan
            assert not any(step == "SCAN operations" for step in plan), plan
        connection.close()

    @pytest.mark.parametrize(
        ("query", "arguments", "indexes"),
        [
            (rows._GUARDED, 2, {"guards"}),
            (rows._NEXT_PROVIDER_DUE, 1, {"due"}),
            (rows._DUE_OF_PROVIDER, 3, {"due"}),
            (reader._ANNOUNCEMENTS, 2, {"telling", "sqlite_autoindex_operations_1"}),
            (webhook_events._DUE, 2, {"notices_due"}),
            (webhook_events._TO_RELAY, 2, {"notices_to_relay"}),
            (retention._SCAN, 3, {"INTEGER PRIMARY KEY"}),
            (retention._LAST_SEQ, 1, {"sqlite_autoindex_changes_1"}),
            (retention._PURGE_TOMBSTONES, 2, {"tombstones_by_age"}),
            (retention._PURGE_WEBHOOK_EVENTS, 2, {"notices_done"}),
        ],
    )
    async def test_look_ups(self, path: Path, clock: HandClock, query: str, arguments: int, indexes: set[str]) -> None:
        await _filled(path, clock)
        connection = sqlite3.connect(path)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (1,) * arguments)]
        connection.close()
        assert all(any(index in step for step in plan) for index in indexes), plan
        scans = [step for step in plan if step.startswith("SCAN") and "USING" not in step]
        assert not scans, plan
        assert not any("TEMP B-TREE FOR ORDER BY" in step for step in plan), plan
