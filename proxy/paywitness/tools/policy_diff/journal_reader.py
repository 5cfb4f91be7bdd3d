"""A journal opened for reading: its operations page by page, newest first, and the stored messages of each.

It writes nothing and takes no lock. A sidecar may use the journal at the same time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from paywitness.core.errors import JournalUnusable, SettingsError, UnreadableSecret
from paywitness.core.evidence import Response
from paywitness.core.operation import HistoryEntry, Operation
from paywitness.engine.calls.stored_messages import StoredRequest, open_request, open_response
from paywitness.journal.base import OperationQuery, PolicyRevision
from paywitness.journal.sqlite.file import unfit
from paywitness.journal.sqlite.reader import SqliteReader
from paywitness.journal.sqlite.schema import APPLICATION_ID
from paywitness.option_defaults import ENCRYPTION_KEYS, Settings
from paywitness.secrets import Vault, read_ring
from paywitness.tools.doctor.secret_checks import find_secret

_PAGE = 200
_CALL_TIMEOUT_S = 10.0  # no payment waits for this, so it may take longer than for a call
_READ_TIMEOUT_S = 5.0
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class JournalQueries(Protocol):
    """The reads that a diff needs. Every method may raise JournalUnavailable."""

    async def find_operations(self, listing: OperationQuery) -> tuple[Operation, ...]: ...

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]: ...

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]: ...

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None: ...


@dataclass(frozen=True, slots=True)
class ReadOnlyJournal:
    queries: JournalQueries
    vault: Vault | None  # None: no key to decrypt stored messages

    async def operations(self, most: int) -> AsyncIterator[Operation]:
        """The newest operations, at most `most` of them."""
        before: str | None = None
        yielded = 0
        while yielded < most:
            page = await self.queries.find_operations(OperationQuery(limit=min(_PAGE, most - yielded), before=before))
            for operation in page:
                yield operation
            yielded += len(page)
            if not page:
                return
            before = page[-1].id

    async def stored_messages(self, operation: Operation) -> tuple[StoredRequest | None, Response | None, bool]:
        """The request and the response, if they are stored and can be decrypted; and whether decryption failed."""
        sealed_request, sealed_response = await self.queries.sealed(operation.id)
        if self.vault is None:
            return None, None, sealed_request is not None or sealed_response is not None
        try:
            request = open_request(self.vault, sealed_request, operation.id) if sealed_request is not None else None
            response = open_response(self.vault, sealed_response, operation.id) if sealed_response else None
        except UnreadableSecret:
            return None, None, True
        return request, response, False


@asynccontextmanager
async def open_read_only(url: str, environment: Mapping[str, str]) -> AsyncIterator[ReadOnlyJournal]:
    """The journal at this address, for reading. Raises SettingsError, JournalUnusable or JournalUnavailable."""
    settings = Settings(policies=Path(), journal=url)
    path = settings.journal_path
    vault = _vault(path, environment)
    if path is None:
        async with _redis_queries(url) as queries:
            yield ReadOnlyJournal(queries, vault)
        return
    reader = _open_sqlite(path)
    try:
        yield ReadOnlyJournal(_SqliteQueries(reader, path), vault)
    finally:
        reader.close()


def _vault(path: Path | None, environment: Mapping[str, str]) -> Vault | None:
    """A vault with the keys that a sidecar would find. It creates none."""
    key_file = path.with_name(f"{path.name}.keys") if path is not None else None
    try:
        found = find_secret(ENCRYPTION_KEYS, key_file, environment)
    except OSError as error:
        raise SettingsError(f"{key_file} cannot be read: {error.strerror}") from None
    return Vault(b"", read_ring(found.text), _never_seals) if found is not None else None


def _never_seals() -> bytes:
    raise AssertionError("a journal opened for reading is never written")


# --- SQLite


class _ReadOnlySqliteReader(SqliteReader):
    """Reads a file that perhaps no sidecar has open. Without a log beside it, it reads the file as it is and makes no
    log."""

    def __init__(self, path: Path) -> None:
        how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        self._connection = sqlite3.connect(
            f"{path.as_uri()}?{how}", uri=True, timeout=_READ_TIMEOUT_S, isolation_level=None
        )

    @property
    def application_id(self) -> int:
        return int(self._connection.execute("PRAGMA application_id").fetchone()[0])


def _open_sqlite(path: Path) -> _ReadOnlySqliteReader:
    path = Path(os.path.realpath(path))  # a link to a journal means that journal
    if not path.is_file():
        raise SettingsError(f"there is no journal at {path}")
    try:
        reader = _ReadOnlySqliteReader(path)
        if reader.application_id != APPLICATION_ID:
            reader.close()
            raise JournalUnusable(f"{path} is a foreign database")
    except sqlite3.Error as error:
        raise unfit(error, path) from error
    return reader


@dataclass(frozen=True, slots=True)
class _SqliteQueries:
    """Runs in the caller's thread: no other task waits meanwhile."""

    reader: SqliteReader
    path: Path

    async def find_operations(self, listing: OperationQuery) -> tuple[Operation, ...]:
        return self._query(self.reader.find_operations, listing)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        return self._query(self.reader.history, operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self._query(self.reader.sealed, operation_id)

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None:
        return self._query(self.reader.revision, (provider, revision))

    def _query(self, method: Callable[[Argument], Result], argument: Argument) -> Result:
        try:
            return method(argument)
        except sqlite3.Error as error:
            raise unfit(error, self.path) from error


# --- Redis


@asynccontextmanager
async def _redis_queries(url: str) -> AsyncIterator[JournalQueries]:
    # the import takes a tenth of a second, so only those who need it pay
    from paywitness.journal.redis.reader import RedisReader
    from paywitness.journal.redis.scripts import pipeline_options
    from paywitness.redis.pipeline import RedisPipeline
    from paywitness.redis.url import parse_redis_url

    address = parse_redis_url(url)
    pipeline = RedisPipeline("policy-diff", address, pipeline_options(_CALL_TIMEOUT_S))
    try:
        yield RedisReader(pipeline, address.prefix)
    finally:
        await pipeline.close()
