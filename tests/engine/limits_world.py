"""A world with the shipped limits: a clock that the test moves, and books kept of every place, probe and grant."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from paywitness.clock import Clock, SystemClock
from paywitness.core.budget import RetryRequest
from paywitness.core.circuit import PROBES_MAX, CallGroup, CircuitState
from paywitness.core.reply import Reply
from paywitness.engine.policy_reload import reload_event
from paywitness.journal.base import OperationQuery
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import BudgetRefusal, Grant, LocalBudgets, budget_listener
from paywitness.limits.circuits import CircuitCommand, CurrentRules, LocalCircuits
from paywitness.limits.factory import Limits
from paywitness.randomness import Randomness
from paywitness_sandbox.server import Sandbox
from tests.engine import world as room
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world

ONE_TRY = (
    ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 1}"),
    ("rate_limited: {attempts: 4, base: 1s, cap: 20s}", "rate_limited: {attempts: 1}"),
    (
        "network_connect_failure: {attempts: 4, base: 200ms, cap: 2s}",
        "network_connect_failure: {attempts: 1}",
    ),
)
FAST = (
    ("default: {attempts: 3, backoff: full, base: 100ms, cap: 5s}", "default: {attempts: 3, base: 10ms, cap: 20ms}"),
    (
        "network_connect_failure: {attempts: 4, base: 200ms, cap: 2s}",
        "network_connect_failure: {attempts: 5, base: 10ms, cap: 20ms}",
    ),
)
# Retries that nothing but the number of tries or the intent's own cap keeps back.
ROOM = (
    (
        "  provider: {floor: 100, ratio: 5%, ceiling: 100%} ",
        "  provider: {floor: 1000}\n  operation: {floor: 1000}\n  account: {floor: 1000}\n"
        "  failure_class: {floor: 1000} ",
    ),
)
NEVER_OPEN = (("  minimum: 20 ", "  minimum: 100000 "),)


class MovedClock(SystemClock):
    """The machine's clocks, some way ahead."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def mono(self) -> float:
        return super().mono() + self.ahead_s

    def boot(self) -> float:
        return super().boot() + self.ahead_s


class BookkeptBudgets(LocalBudgets):
    """The local budgets, with a note of how each grant ended."""

    def __init__(self, clock: Clock, chance: Randomness) -> None:
        super().__init__(clock, chance)
        self.asked: list[RetryRequest] = []
        self.ends: dict[str, list[str]] = {}

    async def acquire(self, ask: RetryRequest) -> Grant | BudgetRefusal:
        self.asked.append(ask)
        found = await super().acquire(ask)
        if isinstance(found, Grant):
            self.ends[found.id] = []
        return found

    async def refund(self, grant: Grant) -> None:
        self.ends[grant.id].append("refunded")
        await super().refund(grant)

    def succeeded(self, grant: Grant) -> None:
        self.ends[grant.id].append("succeeded")
        super().succeeded(grant)

    def failed(self, grant: Grant) -> None:
        self.ends[grant.id].append("failed")
        super().failed(grant)

    def ended(self) -> Counter[str]:
        """How often grants ended in which way. One that did not end, or did so twice, is told as that."""
        return Counter("+".join(ends) or "never" for ends in self.ends.values())


def bookkept_limits(book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
    budgets = BookkeptBudgets(clock, chance)
    return Limits(LocalCircuits(book, clock, chance, budget_listener(budgets)), budgets, Admission(clock, chance))


OpenLimits = Callable[[CurrentRules, Clock, Randomness], Limits]


@asynccontextmanager
async def limited_world(
    sandbox: Sandbox, *edits: tuple[str, str], limits: OpenLimits = bookkept_limits, **options: Any
) -> AsyncIterator[World]:
    """A world with the policy's limits. When it closes, nothing may be held any more: no place, no probe, no grant."""
    with patch.object(room, "local_limits", limits):
        world = await make_world(sandbox, *edits, clock=options.pop("clock", MovedClock()), limited=True, **options)
    world.engine.telemetry.emit(reload_event(world.engine.book))  # as a start does: names become labels
    try:
        yield world
    finally:
        await close(world)
    assert_nothing_is_held(world)


def assert_nothing_is_held(world: World) -> None:
    held = [(crowd.in_flight, crowd.waiting) for crowd in world.parts.limits.admission.stats()]
    assert set(held) <= {(0, 0)}
    budgets = world.parts.limits.budgets
    if isinstance(budgets, BookkeptBudgets):
        assert set(budgets.ended()) <= {"refunded", "succeeded", "failed"}


async def free_probes(world: World, group: CallGroup = CallGroup.WRITE) -> int:
    """How many probes could be had now."""
    circuits = world.parts.limits.circuits
    taken = [await circuits.take_probe("acme", group, 5.0, repeatable=True) for _ in range(PROBES_MAX + 1)]
    for probe in taken:
        if probe is not None:
            await circuits.end_probe(probe, None)
    return sum(probe is not None for probe in taken)


def ended_grants(world: World) -> Counter[str]:
    budgets = world.parts.limits.budgets
    assert isinstance(budgets, BookkeptBudgets)
    return budgets.ended()


def move(world: World, seconds: float) -> None:
    assert isinstance(world.clock, MovedClock)
    world.clock.ahead_s += seconds


def state_of(world: World, group: CallGroup = CallGroup.WRITE, provider: str = "acme") -> CircuitState:
    found = {(one.provider, one.group): one.state for one in world.parts.limits.circuits.statuses()}
    return found.get((provider, group), CircuitState.CLOSED)


async def fail(world: World, times: int, *, fault: str = "error_503", name: str = "ill") -> list[Reply]:
    """So many calls of their own, all of which meet the fault."""
    return [await world.charge(f"{name}-{n}", order=f"{name}-{n}", fault=f"{fault}*") for n in range(times)]


async def judged(world: World) -> None:
    """What was counted is looked at, which happens every 200 ms."""
    move(world, 0.21)
    await world.parts.limits_sync.sync()


async def open_circuit(world: World) -> None:
    await fail(world, 25)
    await judged(world)
    assert state_of(world) is CircuitState.OPEN


async def half_open_circuit(world: World) -> None:
    await open_circuit(world)
    move(world, 1.3)  # a second, jittered by a fifth
    assert state_of(world) is CircuitState.HALF_OPEN


async def force(world: World, state: CircuitState | None, *providers: str, group: CallGroup = CallGroup.WRITE) -> None:
    for provider in providers or ("acme",):
        await world.parts.limits.circuits.force(
            provider, group, CircuitCommand(state, "a test", "to see what follows", 600.0)
        )


def limited_by(reply: Reply) -> str:
    return (header(reply, "Paywitness-Limited-By") or "").partition(";")[0]


def members(reply: Reply) -> dict[str, Any]:
    found = json.loads(reply.body).get("limited_by")
    assert isinstance(found, dict), "the answer has no member limited_by"
    return found


def counted(world: World, name: str, **labels: str) -> float:
    return world.engine.telemetry.metrics.registry.get_sample_value(name, labels) or 0.0


def posts(world: World) -> list[str | None]:
    """The keys of all payments that reached the provider, in order."""
    return [arrival.key for arrival in world.arrivals if arrival.method == "POST"]


async def keys_in_journal(world: World) -> set[str]:
    return {operation.client_key for operation in await world.journal.find_operations(OperationQuery(limit=500))}


async def together(*calls: Awaitable[Reply]) -> list[Reply]:
    return list(await asyncio.gather(*calls))
