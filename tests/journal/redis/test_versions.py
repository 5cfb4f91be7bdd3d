"""Two versions of paywitness over one journal, as during a rollout: what the other one wrote is read, and never makes a
claim or a sweep fail. What cannot be understood is read as the most careful thing that it can be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.operation import GuardKind, Operation, RepeatPaymentRule, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from paywitness.redis.pipeline import LuaScript, RedisPipeline
from tests.journal.redis_server import RedisServer
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    read,
    succeeding,
    telling,
    touching,
)


@pytest.fixture
async def journal(redis_url: str, clock: HandClock) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(redis_url, clock=clock)
    yield journal
    await journal.close()


class Shelf:
    """An operation's hash, to be written in as another version would."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self._server = server
        self._prefix = url.split("prefix=")[1] + "{j}:"

    def edit(self, operation: Operation, field: str, edit: Callable[[list[Any], dict[str, Any]], None]) -> None:
        """`f` and `m` are a list, and on the next line a mapping; an entry is time, number and a mapping."""
        key = f"{self._prefix}o:{operation.id}"
        text = self._server.ask("HGET", key, field).split(b"\r\n", 1)[1][:-2].decode()
        if field.startswith("e"):
            at, seq, rest = text.split(" ", 2)
            mapping = json.loads(rest)
            edit([], mapping)
            text = f"{at} {seq} {json.dumps(mapping)}"
        else:
            first, rest = text.split("\n", 1)
            values, mapping = json.loads(first), json.loads(rest)
            edit(values, mapping)
            text = f"{json.dumps(values)}\n{json.dumps(mapping)}"
        assert self._server.ask("HSET", key, field, text) == b":0\r\n"

    def ask(self, *command: str) -> bytes:
        name, key, *rest = command
        return self._server.ask(name, self._prefix + key, *rest)


@pytest.fixture
def shelf(redis_server: RedisServer, redis_url: str) -> Shelf:
    return Shelf(redis_server, redis_url)


def _more(values: list[Any], mapping: dict[str, Any]) -> None:
    """What a later version adds."""
    values.extend(["a later column", 7])
    mapping["a_later_field"] = {"of": ["any", "kind"]}


async def test_what_a_later_version_adds_is_passed_over(journal: RedisJournal, shelf: Shelf, clock: HandClock) -> None:
    doubted = await journal.record(doubting(await owned(journal, guard=intent())))
    due = await journal.record(replace(touching(doubted), operation=doubted.changed(due_at=clock.now())))
    paid = await owned(journal, "key-2")
    paid = await journal.record(telling(paid, succeeding(paid)))
    for operation in (due, paid):
        shelf.edit(operation, "f", _more)
        shelf.edit(operation, "m", _more)
        for version in range(1, operation.version + 1):
            shelf.edit(operation, f"e{version}", _more)
    assert await read(journal, due) == due
    assert await journal.find_operations(OperationQuery()) == (paid, due)
    assert len(await journal.history(due.id)) == 3
    assert (await journal.claim(asking("key-2"))).verdict is ClaimVerdict.REPLAY
    assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_DOUBT
    assert (await journal.claim(asking("key-3", guard=intent()))).verdict is ClaimVerdict.IN_DOUBT
    assert len(await journal.announcements(0, limit=10)) == 1
    (held,) = await journal.take_due("resolver", LEASE_S, limit=10)
    assert held.id == due.id
    clock.move(LEASE_S + 1)
    assert [operation.id for operation in await journal.expire_leases()] == [due.id]
    assert (await journal.record(succeeding(await read(journal, due)))).state is State.SUCCEEDED
    clock.move(1000)
    assert await journal.retire(retention_s=10, tombstone_s=10_000, limit=10) > 0


async def test_what_an_earlier_version_did_not_write_is_empty(journal: RedisJournal, shelf: Shelf) -> None:
    operation = await journal.record(
        doubting(await owned(journal, guard=intent(after_success=RepeatPaymentRule.BLOCK)))
    )

    def earlier_identity(_: list[Any], mapping: dict[str, Any]) -> None:
        mapping["guard"] = mapping["guard"][:3]
        for name in ("stamp", "request_hash"):
            del mapping[name]

    def earlier_standing(_: list[Any], mapping: dict[str, Any]) -> None:
        for name in mapping.keys() - {"revision", "doubt", "attempts"}:
            del mapping[name]

    def earlier_entry(_: list[Any], mapping: dict[str, Any]) -> None:
        for name in mapping.keys() - {"source", "events", "state"}:
            del mapping[name]

    shelf.edit(operation, "f", earlier_identity)
    shelf.edit(operation, "m", earlier_standing)
    shelf.edit(operation, "e2", earlier_entry)
    found = await read(journal, operation)
    assert (found.state, found.stamp, found.request_hash, found.result_class) == (State.UNKNOWN, "", "", None)
    assert found.guard is not None
    assert found.guard.after_success is RepeatPaymentRule.FLAG
    assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_DOUBT
    assert len(await journal.history(operation.id)) == 2
    assert (await journal.record(succeeding(found))).state is State.SUCCEEDED


async def test_words_of_a_later_version_are_read_as_the_most_careful(journal: RedisJournal, shelf: Shelf) -> None:
    operation = await owned(journal, guard=intent())
    operation = await journal.record(telling(operation, doubting(operation)))

    def later_identity(_: list[Any], mapping: dict[str, Any]) -> None:
        mapping["kind"] = "subscription"
        mapping["guard"] = ["basket", *mapping["guard"][1:3], "ask", "ask", "a sixth"]

    def later_standing(_: list[Any], mapping: dict[str, Any]) -> None:
        mapping["reading"], mapping["effect"] = "half_paid", "partial"

    def later_entry(_: list[Any], mapping: dict[str, Any]) -> None:
        mapping["events"] = ["an_event_of_later"]
        mapping["state"] = "frozen"
        mapping["told"] = [["thawed", "doubt_opened"], "half", "half_paid", None, None, "a sixth"]

    shelf.edit(operation, "f", later_identity)
    shelf.edit(operation, "m", later_standing)
    shelf.edit(operation, "e2", later_entry)
    found = await read(journal, operation)
    assert found.guard is not None
    assert (found.kind, found.result_class, found.effect) == (
        OperationKind.SALE,
        ResultClass.UNKNOWN_OUTCOME,
        Effect.POSSIBLE,
    )
    assert (found.guard.kind, found.guard.after_success, found.guard.during_action) == (
        GuardKind.INTENT,
        RepeatPaymentRule.BLOCK,
        RepeatPaymentRule.BLOCK,
    )
    (_, entry) = await journal.history(operation.id)
    assert (entry.events, entry.state) == (("an_event_of_later",), State.REQUIRES_REVIEW)
    (row,) = await journal.announcements(0, limit=10)
    assert row.entry.announcement is not None
    assert (row.entry.announcement.kinds, row.entry.announcement.outcome) == (("doubt_opened",), "unknown")
    assert (await journal.claim(asking("key-2", guard=intent()))).verdict is ClaimVerdict.IN_DOUBT
    assert len(await journal.doubt_counts()) == 1


def _frozen(values: list[Any], _: dict[str, Any]) -> None:
    values[3] = "frozen"


async def test_a_state_of_a_later_version_keeps_its_key_and_is_left_to_that_version(
    journal: RedisJournal, shelf: Shelf, clock: HandClock
) -> None:
    held = await owned(journal, "held", guard=intent("a"))
    due = [
        await journal.record(replace(doubting(operation), operation=_due(doubting(operation), clock.now())))
        for operation in [await owned(journal, f"due-{number}", guard=intent(f"b-{number}")) for number in range(6)]
    ]
    for operation in (held, *due[:5]):
        shelf.edit(operation, "m", _frozen)
    clock.move(LEASE_S * 2)
    assert await journal.expire_leases() == ()
    # Five are longer due than the one that can be understood, and do not hide it.
    assert [taken.id for taken in await journal.take_due("resolver", LEASE_S, limit=2)] == [due[5].id]
    assert (await journal.claim(asking("held"))).verdict is ClaimVerdict.IN_FLIGHT
    assert (await journal.claim(asking("due-0"))).verdict is ClaimVerdict.IN_DOUBT
    assert (await journal.claim(asking("another", guard=intent("a")))).verdict is ClaimVerdict.IN_FLIGHT
    assert (await journal.claim(asking("yet another", guard=intent("b-0")))).verdict is ClaimVerdict.IN_DOUBT
    assert len(await journal.find_operations(OperationQuery())) == 7
    clock.move(1_000_000)
    assert await journal.retire(retention_s=10, tombstone_s=10, limit=100) == 0
    found = shelf.ask("HGET", f"o:{held.id}", "m")
    assert b'"frozen"' in found
    assert (await read(journal, held)).version == 1


def _due(change: OperationChange, at: float) -> Operation:
    return change.operation.changed(due_at=at)


async def test_scripts_of_two_versions_work_on_the_same_keys(
    journal: RedisJournal, redis_url: str, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each runs its own, by the hash of its text: neither is taken for the other's."""
    other = await RedisJournal.open(redis_url, clock=clock)
    asked: set[str] = set()
    run = RedisPipeline.run

    async def run_other(lane: RedisPipeline, script: LuaScript, *arguments: Any, **how: Any) -> Any:
        if lane in (other._write_pipeline, other._read_pipeline):
            text = f"-- of the next version\n{script.text}"
            script = LuaScript.of(script.name, text)
            asked.add(script.name)
        return await run(lane, script, *arguments, **how)

    monkeypatch.setattr(RedisPipeline, "run", run_other)
    mine, theirs = await owned(journal, "mine", guard=intent()), await owned(other, "theirs")
    assert (await other.claim(asking("mine"))).verdict is ClaimVerdict.IN_FLIGHT
    assert (await journal.claim(asking("theirs"))).verdict is ClaimVerdict.IN_FLIGHT
    await other.record(doubting(mine))
    await journal.record(declining(theirs, released=True))
    assert (await owned(other, "theirs")).generation == 2
    assert (await other.claim(asking("joins", guard=intent()))).verdict is ClaimVerdict.IN_DOUBT
    clock.move(LEASE_S + 1)
    assert len(await journal.expire_leases()) == 1
    assert await other.find_operations(OperationQuery()) == await journal.find_operations(OperationQuery())
    assert asked >= {"claim", "record", "commit", "rows"}
    await other.close()
