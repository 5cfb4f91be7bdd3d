"""Outcomes: every change that tells something, once and in order, whoever writes at the same time; and cursors."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from paywitness.core.consequences import fallback_announcement
from paywitness.core.errors import StaleWrite
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import AnnouncementKind, FallbackLink, Operation
from paywitness.core.result import ResultClass
from paywitness.journal.base import AnnouncementRow, Journal, OperationChange
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    declining,
    doubting,
    falling_back,
    holding,
    intent,
    owned,
    read,
    succeeding,
    telling,
    touching,
)


def acting(operation: Operation) -> OperationChange:
    after = advance(operation, Event.ACTION_SEEN, 1, result_class=ResultClass.REQUIRES_ACTION)
    return OperationChange(after.changed(lease=None, action_since_at=operation.updated_at, due_at=5.0), ())


async def everything(journal: Journal, limit: int = 1000) -> list[AnnouncementRow]:
    rows: list[AnnouncementRow] = []
    while found := await journal.announcements(rows[-1].seq if rows else 0, limit=limit):
        assert len(found) <= limit
        rows.extend(found)
    return rows


def words(rows: list[AnnouncementRow]) -> list[tuple[AnnouncementKind, ...]]:
    return [row.entry.announcement.kinds for row in rows if row.entry.announcement is not None]


async def test_only_what_tells_something_is_told(store: Store) -> None:
    journal = store.journal
    first, second = await owned(journal, "key-1"), await owned(journal, "key-2")
    doubted = await journal.record(telling(first, doubting(first)))
    await journal.record(touching(second))
    held = await journal.record(holding(doubted, "resolver"))
    ended = await journal.record(telling(held, succeeding(held)))
    rows = await everything(await store.reopen())
    assert words(rows) == [(AnnouncementKind.DOUBT_OPENED,), (AnnouncementKind.RESOLVED, AnnouncementKind.ENDED)]
    assert [row.operation for row in rows] == [ended, ended]  # what it is; how it stood then is in the entry
    history = await store.journal.history(first.id)
    assert [row.entry for row in rows] == [history[1], history[3]]


async def test_what_the_journal_itself_finds_out_is_told(journal: Journal, clock: HandClock) -> None:
    operation = await owned(journal)
    clock.move(LEASE_S)
    await journal.expire_leases()
    (row,) = await everything(journal)
    assert row.operation == await read(journal, operation)
    assert words([row]) == [(AnnouncementKind.DOUBT_OPENED,)]


async def test_page_by_page_nothing_is_left_out(journal: Journal) -> None:
    for number in range(10):
        operation = await owned(journal, f"key-{number}")
        await journal.record(telling(operation, declining(operation)))
    assert await everything(journal, limit=3) == await everything(journal)
    assert len(await everything(journal)) == 10
    assert await journal.announcements(await last_seq(journal), limit=5) == ()


async def last_seq(journal: Journal) -> int:
    return (await everything(journal))[-1].seq


async def test_a_reader_among_writers_misses_nothing_and_sees_nothing_twice(journal: Journal) -> None:
    """What is read once is never preceded by something that appears later."""
    told: list[str] = []
    done = asyncio.Event()

    async def write(number: int) -> None:
        for count in range(10):
            operation = await owned(journal, f"key-{number}-{count}")
            ended = await journal.record(telling(operation, succeeding(operation)))
            told.append(ended.id)

    async def follow() -> list[AnnouncementRow]:
        rows: list[AnnouncementRow] = []
        while True:
            last = done.is_set()
            found = await journal.announcements(rows[-1].seq if rows else 0, limit=7)
            rows.extend(found)
            if last and not found:
                return rows
            await asyncio.sleep(0)

    following = asyncio.ensure_future(follow())
    await asyncio.gather(*(write(number) for number in range(20)))
    done.set()
    rows = await following
    assert sorted(row.operation.id for row in rows) == sorted(told)
    assert all(one.seq < other.seq for one, other in pairwise(rows))


async def test_a_reader_starts_at_nothing_and_goes_on_where_it_was(store: Store) -> None:
    journal = store.journal
    assert await journal.take_cursor("sink", "one", LEASE_S) == 0
    await journal.move_cursor("sink", 7)
    await journal.move_cursor("other", 3)
    await journal.move_cursor("sink", 9)
    journal = await store.reopen()
    assert [await journal.take_cursor(name, "one", LEASE_S) for name in ("sink", "other")] == [9, 3]


async def test_what_is_waited_for_and_that_it_is_over_is_told_once(store: Store) -> None:
    journal = store.journal
    first = await owned(journal)
    asked = await journal.record(telling(first, acting(first)))
    expired = OperationChange(asked.changed(action_expired=True, because="action_expired"), ())
    over = await journal.record(telling(asked, expired))
    with pytest.raises(StaleWrite):
        await journal.record(telling(asked, expired))  # another sidecar, over the version that it had read
    again = await journal.record(telling(over, OperationChange(over.changed(checks_done=3), ())))
    rows = await everything(await store.reopen())
    assert words(rows) == [(AnnouncementKind.REQUIRES_ACTION,), (AnnouncementKind.ACTION_EXPIRED,)]
    assert (again.action_expired, again.action_since_at) == (True, first.updated_at)


async def test_a_fallback_is_told_in_the_step_that_makes_it_and_once(store: Store) -> None:
    journal = store.journal
    first = await owned(journal, guard=intent())
    change, request = falling_back(first)
    link = FallbackLink("acme_eu", request.fresh.id, "network_connect_failure")
    change = replace(change, announcement=fallback_announcement(first, change.operation, link))
    await journal.fall_back(change, request)
    await journal.fall_back(change, request)  # its reply was lost
    rows = await everything(await store.reopen())
    assert words(rows) == [(AnnouncementKind.FALLBACK,)]
    assert rows[0].entry.announcement is not None
    assert rows[0].entry.announcement.fallback == link
    assert rows[0].operation.id == first.id
