"""Journals of earlier releases, read by today's code before anything goes on: every row reads, says what the earlier
release said of it, and would be written with the same text again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from paywitness.admin.shapes import operation_row, timeline_entry
from paywitness.clock import SystemClock
from paywitness.core.operation import HistoryEntry, Operation
from paywitness.journal.base import Journal
from paywitness.journal.encoding import (
    COLUMNS,
    READ_COLUMNS,
    entry_from_text,
    entry_to_text,
    fixed_values,
    mutable_values,
    operation_from_row,
)
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.redis.rows import (
    RedisRow,
    alias_to_text,
    insert_args,
    parse_alias,
    parse_entry,
    parse_row,
    parse_tombstone,
    tombstone_to_text,
)
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.journal.sqlite.rows import SqliteRows
from paywitness.journal.sqlite.schema import MIGRATIONS, migrate
from paywitness.journal.transitions import OperationWrite
from paywitness.redis.url import parse_redis_url
from tests.journal.earlier.fixture import Fixture, advised_since, as_described_then, fixtures
from tests.journal.redis_server import RedisServer

sqlite_fixtures = pytest.mark.parametrize("fixture", fixtures("sqlite"), ids=lambda fixture: fixture.name)
# Members of an operation that the earlier release did not show.
_SHOWN_SINCE = {
    *("payment", "account", "priority", "customer", "action_expired", "other_payment"),
    *("fallback_from", "fallback_reason"),
}
PREFIX = parse_redis_url("redis://127.0.0.1").prefix
redis_fixtures = pytest.mark.parametrize("fixture", fixtures("redis"), ids=lambda fixture: fixture.name)


def test_there_is_a_fixture_for_each_journal() -> None:
    assert {fixture.journal for fixture in fixtures()} == {"sqlite", "redis"}


# --- SQLite


@pytest.fixture
def connection(tmp_path: Path, fixture: Fixture) -> Iterator[sqlite3.Connection]:
    fixture.unpack(tmp_path)
    connection = sqlite3.connect(tmp_path / "journal.db")
    yield connection
    connection.close()


@sqlite_fixtures
def test_the_migration_gives_the_tables_of_today_and_keeps_every_row(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    connection.isolation_level = None
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    before = connection.execute("SELECT * FROM operations ORDER BY number").fetchall()
    migrate(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    after = connection.execute("SELECT * FROM operations ORDER BY number").fetchall()
    assert after == [(*row, None) for row in before]  # `payment`, which has come since
    assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (
        0,
    )  # the numbers of its payments are unknown
    today = sqlite3.connect(":memory:")
    for statements in MIGRATIONS:
        for statement in statements:
            today.execute(statement)
    query = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    assert connection.execute(query).fetchall() == today.execute(query).fetchall()
    today.close()


@sqlite_fixtures
def test_every_row_of_sqlite_reads_and_is_written_with_the_same_text(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None
    migrate(connection)
    ids = [row[0] for row in connection.execute("SELECT id FROM operations")]
    assert len(ids) > 10
    for operation_id in ids:
        read = connection.execute(f"SELECT {', '.join(READ_COLUMNS)} FROM operations WHERE id = ?", (operation_id,))
        operation = operation_from_row(read.fetchone())
        stored = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM operations WHERE id = ?", (operation_id,))
        assert (*fixed_values(operation), *mutable_values(operation)) == stored.fetchone()
    changes = connection.execute("SELECT at, version, entry, told FROM changes").fetchall()
    for at, version, text, told in changes:
        entry = entry_from_text(at, version, text)
        assert (entry_to_text(entry), entry.announcement is not None) == (text, told == 1)


@sqlite_fixtures
def test_every_alias_and_tombstone_of_sqlite_reads(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None
    migrate(connection)
    rows = SqliteRows(connection.cursor())
    aliases = connection.execute("SELECT key, client_key, operation_id, kind, at FROM aliases").fetchall()
    assert {kind for _, _, _, kind, _ in aliases} == {"joined", "refused", "taken"}
    for key, *stored in aliases:
        alias = rows.alias(key)
        assert alias is not None
        assert [alias.client_key, alias.operation_id, alias.kind.value, alias.at] == stored
    tombstones = connection.execute(
        "SELECT key, operation_id, client_key, outcome, ended_at FROM tombstones"
    ).fetchall()
    assert len(tombstones) == 2
    for key, *stored in tombstones:
        tombstone = rows.tombstone(key)
        assert tombstone is not None
        found = [tombstone.operation_id, tombstone.client_key, tombstone.outcome.value, tombstone.ended_at]
        assert found == stored


# --- Redis


def _commands(log: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file, which is plain RESP."""
    position = 0

    def line() -> bytes:
        nonlocal position
        end = log.index(b"\r\n", position)
        found, position = log[position:end], end + 2
        return found

    while position < len(log):
        words = []
        for _ in range(int(line()[1:])):
            length = int(line()[1:])
            words.append(log[position : position + length])
            position += length + 2
        yield words


def _hashes(log: bytes) -> dict[str, dict[str, bytes]]:
    """The hashes of the log, by their keys without the prefix."""
    hashes: dict[str, dict[str, bytes]] = {}
    for command, *words in _commands(log):
        if command == b"HMSET":
            key, *pairs = words
            fields = {name.decode(): value for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
            hashes.setdefault(key.decode().removeprefix(PREFIX), {}).update(fields)
    return hashes


def _row(key: str, fields: dict[str, bytes]) -> RedisRow:
    return parse_row([key.removeprefix("o:").encode(), *(fields.get(name) for name in "nvtufms")])


def _entries(fields: dict[str, bytes]) -> list[tuple[HistoryEntry, str]]:
    """The history, each entry with its stored text."""
    count = int(fields["v"])
    texts = [fields[f"e{version}"] for version in range(1, count + 1)]
    return [(parse_entry(version, text), text.decode().split(" ", 2)[2]) for version, text in enumerate(texts, 1)]


@redis_fixtures
def test_every_row_of_redis_reads_and_is_written_with_the_same_text(fixture: Fixture, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    hashes = _hashes((tmp_path / "appendonly.aof").read_bytes())
    operations = {key: fields for key, fields in hashes.items() if key.startswith("o:")}
    assert len(operations) > 10
    for key, fields in operations.items():
        operation, entries = _row(key, fields).operation, _entries(fields)
        for entry, text in entries:
            assert entry_to_text(entry) == text
        assert _stored_again(operation, entries[-1][0]) == _stored(fields)


def _stored(fields: dict[str, bytes]) -> tuple[object, ...]:
    """What is stored of an operation. Redis writes times with six decimals: they are compared as numbers."""
    fixed, identity = fields["f"].decode().split("\n", 1)
    mutable, standing = fields["m"].decode().split("\n", 1)
    return json.loads(fixed), identity, json.loads(mutable), standing, fields["x"]


def _stored_again(operation: Operation, entry: HistoryEntry) -> tuple[object, ...]:
    arguments = [
        argument if isinstance(argument, bytes) else str(argument).encode()
        for argument in insert_args(OperationWrite(operation, entry), None, 0.0)
    ]
    mutable, standing = arguments[7].split(b"\n", 1)
    fixed, identity = arguments[19].split(b"\n", 1)
    fixed, mutable = b",".join((arguments[18], fixed)), b",".join((*arguments[4:7], mutable))
    return json.loads(b"[" + fixed), identity.decode(), json.loads(b"[" + mutable), standing.decode(), arguments[12]


@redis_fixtures
def test_every_alias_and_tombstone_of_redis_reads_and_is_written_with_the_same_text(
    fixture: Fixture, tmp_path: Path
) -> None:
    fixture.unpack(tmp_path)
    keys = _hashes((tmp_path / "appendonly.aof").read_bytes())["keys"]
    aliases = {key[1:]: text for key, text in keys.items() if key.startswith("a")}
    assert {parse_alias(key, text).kind.value for key, text in aliases.items()} == {"joined", "refused", "taken"}
    for key, text in aliases.items():
        assert alias_to_text(parse_alias(key, text)) == text
    tombstones = {key[1:]: text for key, text in keys.items() if key.startswith("t")}
    assert len(tombstones) == 2
    for key, text in tombstones.items():
        assert tombstone_to_text(parse_tombstone(key, text)) == text.decode().split(" ", 1)[1]


# --- both


async def _open(fixture: Fixture, folder: Path, redis: RedisServer) -> Journal:
    if fixture.journal == "sqlite":
        return await SqliteJournal.open(folder / "journal.db", clock=SystemClock())
    redis.folder.mkdir()
    (folder / "appendonly.aof").rename(redis.folder / "appendonly.aof")
    redis.start()
    return await RedisJournal.open(redis.url)


@pytest.mark.parametrize("fixture", fixtures(), ids=lambda fixture: fixture.name)
async def test_every_operation_reads_as_the_earlier_release_described_it(fixture: Fixture, tmp_path: Path) -> None:
    earlier = fixture.unpack(tmp_path)
    redis = RedisServer(tmp_path / "redis")
    journal = await _open(fixture, tmp_path, redis)
    try:
        for described in earlier.operations:
            operation = await journal.read(described["id"])
            assert operation is not None
            # No policy book is at hand here, and it alone knows links and what an operator may do.
            row = operation_row(operation, None)
            compared = row.keys() - {"dashboard", "proposal"} - _SHOWN_SINCE
            expected = described | advised_since(described)
            assert {name: row[name] for name in compared} == {name: expected[name] for name in compared}
            history = await journal.history(operation.id)
            assert [as_described_then(timeline_entry(entry)) for entry in history] == described["timeline"]
    finally:
        await journal.close()
        redis.stop()
