"""Look-ups and lists of the Redis journal, on a lane of their own, so that no list holds up a claim.

A list follows the index that names the fewest: each source gives ids, newest first, and what is read of them is kept
where it is asked for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

from proxy.core.operation import HistoryEntry, Operation, State
from proxy.journal import redis_scripts
from proxy.journal.base import DoubtCount, Listing, OutcomeRow, Revision
from proxy.journal.encoding import word_in
from proxy.journal.redis_connection import Argument
from proxy.journal.redis_lane import Lane
from proxy.journal.redis_sheets import entry_in, row_of, word_of
from proxy.journal.steps import HISTORY_MAX, LISTING_MAX, is_listed

_READ_AT_ONCE = 200
_LOOKED_AT_MAX = 200_000  # of the newest, for what no index names: an amount, a provider, what succeeded
_ROW = ("n", "v", "t", "u", "f", "m", "s")

_Source = tuple[str, bytes]  # a letter of the index, and the word


class Reader:
    def __init__(self, lane: Lane, prefix: str) -> None:
        self._lane = lane
        self._prefix = prefix

    def key(self, name: str) -> str:
        return self._prefix + name

    async def read(self, operation_id: str) -> Operation | None:
        values = await self._lane.ask("HMGET", self.key(f"o:{operation_id}"), *_ROW)
        return None if values[0] is None else row_of([operation_id.encode(), *values]).operation

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        request, response = await self._lane.ask("HMGET", self.key(f"o:{operation_id}"), "q", "r")
        return request, response

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        entries = await self._lane.run(redis_scripts.HISTORY, operation_id, str(HISTORY_MAX))
        return tuple(entry_in(version, text) for version, text in enumerate(entries, 1) if text is not None)

    async def outcomes(self, after: int, limit: int) -> tuple[OutcomeRow, ...]:
        told = await self._lane.run(redis_scripts.OUTCOMES, str(after), str(limit))
        return tuple(
            OutcomeRow(int(seq), row_of(values).operation, entry_in(int(version), entry))
            for seq, values, version, entry in told
        )

    async def cursor(self, name: str) -> int:
        return int(await self._lane.ask("HGET", self.key("cursors"), name) or 0)

    async def newest_credential(self, account: str) -> tuple[str, bytes] | None:
        found = await self._lane.run(redis_scripts.NEWEST_CREDENTIAL, account)
        return None if found is None else (found[0].decode(), found[1])

    async def revision(self, provider: str, revision: str) -> Revision | None:
        text = await self._lane.ask("HGET", self.key("revisions"), f"{provider}\0{revision}")
        return None if text is None else _revision_in(provider, revision, text)

    async def latest_revision(self, provider: str) -> Revision | None:
        found = await self._lane.run(redis_scripts.LATEST_REVISION, provider)
        return None if found is None else _revision_in(provider, found[0].decode(), found[1])

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        doubts: dict[bytes, bytes] = {}
        position = b"0"
        while True:  # a field may be told twice, never left out
            position, found = await self._lane.ask("HSCAN", self.key("doubts"), position, "COUNT", 1_000)
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
                state=word_in(State, state, State.REQUIRES_REVIEW),
                count=len(found),
                minor_units=sum(amount for amount, _ in found),
                oldest_at=min(created_at for _, created_at in found),
            )
            for (provider, operation, currency, state), found in sorted(groups.items())
        )

    # Lists.

    async def listing(self, listing: Listing) -> tuple[Operation, ...]:
        limit = max(1, min(listing.limit, LISTING_MAX))
        listed: dict[str, Operation] = {}
        for source in sources_of(listing):
            found = 0
            async for operation in self._read_all(self._ids(source, listing)):
                if is_listed(operation, listing) and _bears(operation, source, listing):
                    listed[operation.id] = operation
                    found += 1
                    if found >= limit:
                        break
        newest_first = sorted(listed.values(), key=lambda operation: operation.id, reverse=True)
        return tuple(newest_first[:limit])

    async def _read_all(self, pages: AsyncIterator[list[str]]) -> AsyncIterator[Operation]:
        async for ids in pages:
            for values in await self._lane.run(redis_scripts.ROWS, *ids):
                yield row_of(values).operation

    async def _ids(self, source: _Source, listing: Listing) -> AsyncIterator[list[str]]:
        """The ids that a source names, newest first, a page at a time."""
        letter, word = source
        if letter == "id":
            yield [word.decode("utf-8", "surrogatepass")]
        elif letter == "leases":  # what is being sent is always held
            members = await self._lane.ask("ZRANGE", self.key("leases"), 0, -1)
            for page in _pages(sorted((member[13:].decode() for member in members), reverse=True)):
                yield page
        elif letter in "gk":  # not in the order of ids; few
            low, high = word + b"\0", word + b"\0\xff"
            members = await self._lane.ask("ZRANGEBYLEX", self.key(f"x:{letter}"), b"[" + low, b"[" + high)
            for page in _pages(sorted({_id_in(member) for member in members}, reverse=True)):
                yield page
        else:
            async for page in self._in_order(letter, word, listing.before):
                yield page

    async def _in_order(self, letter: str, word: bytes, before: str | None) -> AsyncIterator[list[str]]:
        top = b"[" + word + b"\0\xff" if before is None else b"(" + word + b"\0" + before.encode()
        for _ in range(_LOOKED_AT_MAX // _READ_AT_ONCE):
            asked: tuple[Argument | int, ...] = (top, b"[" + word + b"\0", "LIMIT", 0, _READ_AT_ONCE)
            members = await self._lane.ask("ZREVRANGEBYLEX", self.key(f"x:{letter}"), *asked)
            if not members:
                return
            yield [_id_in(member) for member in members]
            top = b"(" + members[-1]


def _pages(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), _READ_AT_ONCE):
        yield ids[first : first + _READ_AT_ONCE]


def _id_in(member: bytes) -> str:
    return member.rsplit(b"\0", 1)[1].decode()


def sources_of(listing: Listing) -> list[_Source]:
    """Which parts of the index together name everything that is listed: those that name the fewest."""
    if listing.stamp is not None:
        return [("id", listing.stamp.encode("utf-8", "surrogatepass")), ("m", word_of(listing.stamp))]
    if listing.key is not None:
        return [(letter, word_of(listing.key)) for letter in "cpk"]
    for letter, value in (("r", listing.reference), ("g", listing.guard), ("j", listing.subject)):
        if value is not None:
            return [(letter, word_of(value))]
    if listing.incidents_only:
        return [("!", b"")]
    if not listing.states or State.SUCCEEDED in listing.states:
        return [("i", b"")]
    return [
        ("leases", b"") if state is State.SENDING else ("s", state.value.encode()) for state in sorted(listing.states)
    ]


def _bears(operation: Operation, source: _Source, listing: Listing) -> bool:
    """Whether it is asked for by its own key, where a key is asked for: an alias names it by another's."""
    letter, _ = source
    return listing.key is None or letter == "k" or listing.key in {operation.client_key, operation.provider_key}


def _revision_in(provider: str, revision: str, text: bytes) -> Revision:
    kept_at, content = text.split(b" ", 1)
    return Revision(provider, revision, content.decode(), float(kept_at))
