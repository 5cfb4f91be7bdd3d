"""A journal, only looked at: its operations page by page, newest first, and what is kept of each.

Nothing is written and no lock is taken; a sidecar may be at work on it meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from proxy.core.errors import JournalUnfit, SettingsError, UnreadableSecret
from proxy.core.evidence import Response
from proxy.core.operation import HistoryEntry, Operation
from proxy.engine.keeping import KeptRequest, open_request, open_response
from proxy.journal.base import Listing, Revision
from proxy.journal.sqlite_file import unfit
from proxy.journal.sqlite_reads import Reader
from proxy.journal.sqlite_schema import APPLICATION_ID
from proxy.settings import ENCRYPTION_KEYS, Settings
from proxy.vault import Vault, read_ring
from proxy.workbench.doctor_secrets import secret_of

_PAGE = 200
_CALL_TIMEOUT_S = 10.0  # nobody is paid by this: it may wait longer than a call
_READ_TIMEOUT_S = 5.0
Asked = TypeVar("Asked")
Told = TypeVar("Told")


class Records(Protocol):
    """What is asked of a journal here. Every method may raise JournalUnavailable."""

    async def listing(self, listing: Listing) -> tuple[Operation, ...]: ...

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]: ...

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]: ...

    async def revision(self, provider: str, revision: str) -> Revision | None: ...


@dataclass(frozen=True, slots=True)
class Recorded:
    records: Records
    vault: Vault | None  # None: there is no key to open anything with

    async def operations(self, most: int) -> AsyncIterator[Operation]:
        """Newest first, at most so many."""
        before: str | None = None
        told = 0
        while told < most:
            page = await self.records.listing(Listing(limit=min(_PAGE, most - told), before=before))
            for operation in page:
                yield operation
            told += len(page)
            if not page:
                return
            before = page[-1].id

    async def kept(self, operation: Operation) -> tuple[KeptRequest | None, Response | None, bool]:
        """The request and the answer, where they are kept and can be opened; and whether something could not be."""
        sealed_request, sealed_response = await self.records.sealed(operation.id)
        if self.vault is None:
            return None, None, sealed_request is not None or sealed_response is not None
        try:
            request = open_request(self.vault, sealed_request, operation.id) if sealed_request is not None else None
            response = open_response(self.vault, sealed_response, operation.id) if sealed_response else None
        except UnreadableSecret:
            return None, None, True
        return request, response, False


@asynccontextmanager
async def recorded_at(url: str, environment: Mapping[str, str]) -> AsyncIterator[Recorded]:
    """The journal at this address, for reading. Raises SettingsError, JournalUnfit or JournalUnavailable."""
    settings = Settings(policies=Path(), journal=url)
    path = settings.journal_path
    vault = _vault(path, environment)
    if path is None:
        async with _in_redis(url) as records:
            yield Recorded(records, vault)
        return
    reader = _opened(path)
    try:
        yield Recorded(_InSqlite(reader, path), vault)
    finally:
        reader.finish()


def _vault(path: Path | None, environment: Mapping[str, str]) -> Vault | None:
    """The keys that open what is kept: as a sidecar finds them, but none is made."""
    beside = path.with_name(f"{path.name}.keys") if path is not None else None
    try:
        found = secret_of(ENCRYPTION_KEYS, beside, environment)
    except OSError as error:
        raise SettingsError(f"{beside} cannot be read: {error.strerror}") from None
    return Vault(b"", read_ring(found.text), _seals_nothing) if found is not None else None


def _seals_nothing() -> bytes:
    raise AssertionError("a journal that is only looked at is not written to")


# --- the embedded one


class _RestingReader(Reader):
    """Reads a file that perhaps no sidecar has open: without a log beside it, as it stands, and no log is made."""

    def __init__(self, path: Path) -> None:
        how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        self._connection = sqlite3.connect(
            f"{path.as_uri()}?{how}", uri=True, timeout=_READ_TIMEOUT_S, isolation_level=None
        )

    @property
    def application_id(self) -> int:
        return int(self._connection.execute("PRAGMA application_id").fetchone()[0])


def _opened(path: Path) -> _RestingReader:
    path = Path(os.path.realpath(path))  # a link to a journal is that journal
    if not path.is_file():
        raise SettingsError(f"there is no journal at {path}")
    try:
        reader = _RestingReader(path)
        if reader.application_id != APPLICATION_ID:
            reader.finish()
            raise JournalUnfit(f"{path} is somebody else's database")
    except sqlite3.Error as error:
        raise unfit(error, path) from error
    return reader


@dataclass(frozen=True, slots=True)
class _InSqlite:
    """In the thread of its caller: there is nobody else to wait for it."""

    reader: Reader
    path: Path

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        return self._asked(self.reader.listing, listing)

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        return self._asked(self.reader.history, operation_id)

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self._asked(self.reader.sealed, operation_id)

    async def revision(self, provider: str, revision: str) -> Revision | None:
        return self._asked(self.reader.revision, (provider, revision))

    def _asked(self, method: Callable[[Asked], Told], asked: Asked) -> Told:
        try:
            return method(asked)
        except sqlite3.Error as error:
            raise unfit(error, self.path) from error


# --- the fleet's


@asynccontextmanager
async def _in_redis(url: str) -> AsyncIterator[Records]:
    from proxy.journal.redis_lane import Lane  # a tenth of a second, which only those pay who need it
    from proxy.journal.redis_reads import Reader as RedisReader
    from proxy.journal.redis_url import place_of

    place = place_of(url)
    lane = Lane("policy-diff", place, call_timeout_s=_CALL_TIMEOUT_S)
    try:
        yield RedisReader(lane, place.prefix)
    finally:
        await lane.close()
