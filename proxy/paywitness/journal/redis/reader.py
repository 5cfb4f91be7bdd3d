"""Look-ups and lists of the Redis journal, on a pipeline of their own, so that no list holds up a claim.

A list reads the part of the index that names the fewest operations. Each source gives ids, newest first. The reader
reads those operations and keeps the ones that match the query.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

from paywitness.core.operation import DoubtCount, HistoryEntry, Operation, State
from paywitness.journal.base import AnnouncementRow, LedgerRow, OperationQuery, PolicyRevision
from paywitness.journal.encoding import enum_or_safest
from paywitness.journal.redis import scripts
from paywitness.journal.redis.rows import index_term, parse_entry, parse_ledger_row, parse_row
from paywitness.journal.transitions import HISTORY_MAX, LISTING_MAX, matches_query
from paywitness.redis.connection import Argument
from paywitness.redis.pipeline import LuaScript, RedisPipeline

_PAGE_SIZE = 200
# How many of the newest operations a list reads if no index fits: a list by amount, by provider, or of the succeeded.
_SCANNED_MAX = 200_000
_ROW_FIELDS = ("n", "v", "t", "u", "f", "m", "s")

_IndexSource = tuple[str, bytes]  # a letter of the index, and the term


class RedisReader:
    """The methods of a `Journal` that only read."""

    def __init__(self, pipeline: RedisPipeline, prefix: str) -> None:
        self._read_pipeline = pipeline
        self._prefix = prefix

    def key(self, name: str) -> str:
        return self._prefix + name

    def _look_up(self, script: LuaScript, *arguments: Argument) -> Awaitable[Any]:
        return self._read_pipeline.run(script, (self._prefix,), arguments)

    async def read(self, operation_id: str) -> Operation | None:
        values = await self._read_pipeline.execute("HMGET", self.key(f"o:{operation_id}"), *_ROW_FIELDS)
        return None if values[0] is None else parse_row([operation_id.encode(), *values]).operation

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        request, response = await self._read_pipeline.execute("HMGET", self.key(f"o:{operation_id}"), "q", "r")
        return request, response

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        entries = await self._look_up(scripts.HISTORY, operation_id, str(HISTORY_MAX))
        return tuple(parse_entry(version, text) for version, text in enumerate(entries, 1) if text is not None)

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        found = await self._look_up(scripts.LEDGER_ROWS, *keys)
        return tuple(None if values is None else parse_ledger_row(values) for values in found)

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        changes = await self._look_up(scripts.ANNOUNCEMENTS, str(after), str(limit))
        return tuple(
            AnnouncementRow(int(seq), parse_row(values).operation, parse_entry(int(version), entry))
            for seq, values, version, entry in changes
        )

    async def accepts_credential(self, account: str, credential: str) -> bool:
        return bool(await self._read_pipeline.execute("HEXISTS", self.key("credentials"), f"{account}\0{credential}"))

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        found = await self._look_up(scripts.NEWEST_CREDENTIALS, account, str(limit))
        return tuple((credential.decode(), sealed) for credential, sealed in found)

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None:
        text = await self._read_pipeline.execute("HGET", self.key("revisions"), f"{provider}\0{revision}")
        return None if text is None else _parse_revision(provider, revision, text)

    async def latest_revision(self, provider: str) -> PolicyRevision | None:
        found = await self._look_up(scripts.LATEST_REVISION, provider)
        return None if found is None else _parse_revision(provider, found[0].decode(), found[1])

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        doubts: dict[bytes, bytes] = {}
        position = b"0"
        while True:  # HSCAN may return a field twice, but leaves none out
            position, found = await self._read_pipeline.execute("HSCAN", self.key("doubts"), position, "COUNT", 1_000)
            doubts.update(zip(found[::2], found[1::2], strict=True))
            if position == b"0":
                break
        groups: dict[tuple[str, str, str, str], list[tuple[int, float]]] = defaultdict(list)
        for text in doubts.values():
            provider, operation, currency, state, minor_units, created_at, *_ = json.loads(text)
            groups[(provider, operation, currency, state)].append((minor_units, created_at))
        return tuple(
            DoubtCount(
                provider=provider,
                operation=operation,
                currency=currency,
                state=enum_or_safest(State, state, State.REQUIRES_REVIEW),
                count=len(found),
                minor_units=sum(amount for amount, _ in found),
                oldest_at=min(created_at for _, created_at in found),
            )
            for (provider, operation, currency, state), found in sorted(groups.items())
        )

    # Lists.

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]:
        limit = max(1, min(query.limit, LISTING_MAX))
        listed: dict[str, Operation] = {}
        for source in index_sources(query):
            found = 0
            async for operation in self._read_all(self._ids(source, query)):
                if matches_query(operation, query) and _matches_key(operation, source, query):
                    listed[operation.id] = operation
                    found += 1
                    if found >= limit:
                        break
        newest_first = sorted(listed.values(), key=lambda operation: operation.id, reverse=True)
        return tuple(newest_first[:limit])

    async def _read_all(self, pages: AsyncIterator[list[str]]) -> AsyncIterator[Operation]:
        async for ids in pages:
            for values in await self._look_up(scripts.ROWS, *ids):
                yield parse_row(values).operation

    async def _ids(self, source: _IndexSource, query: OperationQuery) -> AsyncIterator[list[str]]:
        """The ids that a source names, newest first, a page at a time."""
        index, term = source
        if index == "id":
            yield [term.decode("utf-8", "surrogatepass")]
        elif index == "leases":  # an operation that is being sent always has a lease
            members = await self._read_pipeline.execute("ZRANGE", self.key("leases"), 0, -1)
            for page in _pages(sorted((member[13:].decode() for member in members), reverse=True)):
                yield page
        elif index in "gk":  # not in the order of ids; only a few
            low, high = term + b"\0", term + b"\0\xff"
            members = await self._read_pipeline.execute("ZRANGEBYLEX", self.key(f"x:{index}"), b"[" + low, b"[" + high)
            for page in _pages(sorted({_id_of_member(member) for member in members}, reverse=True)):
                yield page
        else:
            async for page in self._pages_in_order(index, term, query.before):
                yield page

    async def _pages_in_order(self, index: str, term: bytes, before: str | None) -> AsyncIterator[list[str]]:
        top = b"[" + term + b"\0\xff" if before is None else b"(" + term + b"\0" + before.encode()
        for _ in range(_SCANNED_MAX // _PAGE_SIZE):
            asked: tuple[Argument | int, ...] = (top, b"[" + term + b"\0", "LIMIT", 0, _PAGE_SIZE)
            members = await self._read_pipeline.execute("ZREVRANGEBYLEX", self.key(f"x:{index}"), *asked)
            if not members:
                return
            yield [_id_of_member(member) for member in members]
            top = b"(" + members[-1]


def _pages(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), _PAGE_SIZE):
        yield ids[first : first + _PAGE_SIZE]


def _id_of_member(member: bytes) -> str:
    return member.rsplit(b"\0", 1)[1].decode()


def index_sources(query: OperationQuery) -> list[_IndexSource]:
    """The parts of the index that together name every operation to list, and as few others as possible."""
    if query.stamp is not None:
        return [("id", query.stamp.encode("utf-8", "surrogatepass")), ("m", index_term(query.stamp))]
    if query.key is not None:
        return [(index, index_term(query.key)) for index in "cpk"]
    if query.payment is not None:
        return [("id", query.payment.encode("utf-8", "surrogatepass")), ("y", index_term(query.payment))]
    for index, value in (("r", query.reference), ("g", query.guard), ("j", query.subject)):
        if value is not None:
            return [(index, index_term(value))]
    if query.incidents_only:
        return [("!", b"")]
    if not query.states or State.SUCCEEDED in query.states:
        return [("i", b"")]
    return [
        ("leases", b"") if state is State.SENDING else ("s", state.value.encode()) for state in sorted(query.states)
    ]


def _matches_key(operation: Operation, source: _IndexSource, query: OperationQuery) -> bool:
    """Whether the operation itself has the key in the query, if there is one. An operation that was found by an alias
    always matches, because the alias has another key."""
    index, _ = source
    return query.key is None or index == "k" or query.key in {operation.client_key, operation.provider_key}


def _parse_revision(provider: str, revision: str, text: bytes) -> PolicyRevision:
    kept_at, content = text.split(b" ", 1)
    return PolicyRevision(provider, revision, content.decode(), float(kept_at))
