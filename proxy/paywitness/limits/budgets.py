"""Retry budgets: the interface, and the budgets of one sidecar alone. The arithmetic is `core/budget.py`.

First attempts and results are only counted here, without I/O. The store gets the counts in batches: twice a second, and
with the next retry in the same scopes. So a slow or unavailable store does not delay a call that succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paywitness.clock import Clock
from paywitness.core.budget import (
    NO_BUDGET_COUNTS,
    WEIGHT_OF_A_TIMEOUT,
    AttemptOrigin,
    BudgetCounts,
    BudgetDecision,
    BudgetLine,
    BudgetScope,
    BudgetTally,
    RetryRequest,
    ScopeRule,
    caller_repeat_counts,
    evaluate_budget,
    is_expired,
    lines_of,
    lines_of_retry,
)
from paywitness.core.circuit import CallGroup
from paywitness.core.provider_health import Health, HealthSample
from paywitness.randomness import Randomness

FLUSH_S = 0.5
EXHAUSTED = "budget_exhausted"
STORE_UNAVAILABLE = "limits_unavailable"

_OPEN_GRANTS_MAX = 100_000  # beyond this the oldest grant that nobody has ended is forgotten
_TALLIES_MAX, _INTENTS_MAX = 100_000, 50_000  # callers may send any number of accounts and intents
_DROP_STALE_EVERY_MS = 60_000
_FLOOR_PART_LEAST = 1.0  # retries in a window that a sidecar without the shared limits has, however many peers it has

ProviderGroup = tuple[str, CallGroup]  # a provider and a group: the store gets their counts in one call
ScopeKey = tuple[BudgetScope, str]
KnownPeers = dict[str, int]  # by provider: how many sidecars reported about it last, this one included


@dataclass(frozen=True, slots=True)
class Grant:
    """A retry that may be sent, debited already. Ends once: by `refund`, `succeeded` or `failed`."""

    id: str
    ask: RetryRequest
    cost: int  # the units that were debited
    remaining: float  # the units left in the tightest of its scopes
    fleet: bool  # granted by the fleet's store; otherwise by this sidecar alone


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """A retry that must not be sent. Nothing was debited."""

    scope: BudgetScope  # the one that will refuse the longest
    wait_s: float  # until the retry would fit, if nothing else happens
    remaining: float  # the units left in that scope
    fleet: bool
    because: str = EXHAUSTED


class Budgets(Protocol):
    """The retry budgets. The engine calls them before a retry and after every attempt. Never raises if a store is
    unavailable."""

    @property
    def fleet(self) -> bool:
        """Whether the fleet's budgets are in use now. False: this sidecar's own are."""
        ...

    async def acquire(self, ask: RetryRequest) -> Grant | BudgetRefusal:
        """Debit the retry in all of its scopes, or in none. Call it at the decision, before the wait."""
        ...

    async def refund(self, grant: Grant) -> None:
        """The retry was never sent: give it back. A second time, or after a result, it does nothing."""
        ...

    def count_first_attempt(self, origin: AttemptOrigin) -> None:
        """A first attempt is sent. No I/O; never refused."""
        ...

    def count_caller_retry(self, origin: AttemptOrigin, cost: int) -> None:
        """A caller's own duplicate is sent. It needs no grant. It is debited like a retry, and is no first attempt."""
        ...

    def count_result(self, provider: str, group: CallGroup, *, well: bool, weight: int = 1) -> None:
        """An attempt has ended, a first one or a retry. `well`: whether the provider worked. No I/O."""
        ...

    def succeeded(self, grant: Grant) -> None:
        """The retry helped: its response settled the operation, with whatever outcome. No I/O."""
        ...

    def failed(self, grant: Grant) -> None:
        """The retry failed as the attempt before it did, or in another way. No I/O."""
        ...

    async def flush(self) -> None:
        """Send the counts to the store. Called twice a second."""
        ...

    def remaining(self, provider: str, group: CallGroup = CallGroup.WRITE) -> dict[BudgetScope, float]:
        """The units left in each kind of scope, as last seen. If a kind has several scopes, in the tightest. Empty if
        nothing was counted yet."""
        ...


def budget_listener(budgets: Budgets) -> Callable[[str, CallGroup, HealthSample], None]:
    """A listener that gives the budgets the same health samples as the circuits. They show whether retries help now."""

    def heard(provider: str, group: CallGroup, sample: HealthSample) -> None:
        late = sample.health is Health.UNKNOWN and sample.overload
        weight = WEIGHT_OF_A_TIMEOUT if late else 1
        budgets.count_result(provider, group, well=sample.health is Health.OK, weight=weight)

    return heard


class PendingCounts:
    """The counts since the last flush to the store."""

    def __init__(self) -> None:
        self._groups: dict[ProviderGroup, dict[ScopeKey, tuple[BudgetLine, BudgetCounts]]] = {}
        self._providers: dict[ProviderGroup, BudgetLine] = {}
        self._firsts: dict[tuple[str, str, str, str], tuple[AttemptOrigin, int]] = {}
        # how many attempts ended well, how many did not, and the weight of the latter
        self._results: dict[ProviderGroup, tuple[int, int, int]] = {}

    def add_first_attempt(self, origin: AttemptOrigin) -> None:
        """Count a first attempt. A clean call counts nothing else. It is spread over its scopes when they are taken."""
        name = (origin.provider, origin.group, origin.operation, origin.account)
        _, count = self._firsts.get(name, (origin, 0))
        self._firsts[name] = (origin, count + 1)

    def add_result(self, provider: str, group: CallGroup, *, well: bool, weight: int = 1) -> None:
        helped, failed, vain = self._results.get((provider, group), (0, 0, 0))
        self._results[provider, group] = (
            (helped + weight, failed, vain) if well else (helped, failed + 1, vain + weight)
        )

    def _spread_over_scopes(self) -> None:
        firsts, self._firsts = self._firsts, {}
        for origin, count in firsts.values():
            self.add(provider_group_of(origin), lines_of(origin), BudgetCounts(firsts=count))
        results, self._results = self._results, {}
        for group_key, (helped, failed, vain) in results.items():
            if group_key in self._providers:  # otherwise nothing was ever sent to it, and it has no scope to count in
                counts = BudgetCounts(helped=helped, vain=vain, failed=failed)
                self.add(group_key, (self._providers[group_key],), counts)

    def add(self, group_key: ProviderGroup, lines: Iterable[BudgetLine], counts: BudgetCounts) -> None:
        found = self._groups.setdefault(group_key, {})
        for line in lines:
            before = found.get((line.scope, line.name))
            found[line.scope, line.name] = (line, counts if before is None else before[1].plus(counts))
            if line.scope is BudgetScope.PROVIDER:
                self._providers[group_key] = line

    def add_debit(self, grant: Grant, sign: int) -> None:
        """Count a retry that was granted elsewhere (1), or refunded (-1)."""
        group_key = provider_group_of(grant.ask.origin)
        for line in lines_of_retry(grant.ask):
            self.add(
                group_key, (line,), BudgetCounts(spent=sign if line.scope is BudgetScope.INTENT else sign * grant.cost)
            )

    def take(self, group_key: ProviderGroup, lines: Sequence[BudgetLine]) -> list[BudgetCounts]:
        """Take the counts of these scopes. They are no longer pending."""
        self._spread_over_scopes()
        found = self._groups.get(group_key, {})
        return [found.pop((line.scope, line.name), (line, NO_BUDGET_COUNTS))[1] for line in lines]

    def take_all(self) -> dict[ProviderGroup, list[tuple[BudgetLine, BudgetCounts]]]:
        """Take all counts. They are no longer pending. The first scope of each provider and group is the provider's."""
        self._spread_over_scopes()
        homes, self._groups = self._groups, {}
        taken = {}
        for group_key, found in homes.items():
            if found:
                provider = found.pop((BudgetScope.PROVIDER, ""), (self._providers[group_key], NO_BUDGET_COUNTS))
                taken[group_key] = [provider, *found.values()]
        return taken


class ScopeTallies:
    """The tally of each scope. If several budgets share one, it is a fleet's, as in the simulator."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[ProviderGroup, ScopeKey], tuple[BudgetLine, BudgetTally]] = {}
        self._intents: dict[tuple[ProviderGroup, ScopeKey], tuple[BudgetLine, BudgetTally]] = {}
        self._drop_stale_at_ms = 0

    def evaluate(
        self,
        group_key: ProviderGroup,
        lines: Sequence[BudgetLine],
        counts: Sequence[BudgetCounts],
        now_ms: int,
        ask: RetryRequest | None = None,
    ) -> BudgetDecision:
        """Count. If there is a retry, grant or refuse it."""
        cost, share, cost_least = cost_terms(ask)
        found = [self._table_of(line).get((group_key, (line.scope, line.name))) for line in lines]
        kept = [pair and pair[1] for pair in found]
        decision = evaluate_budget(lines, kept, counts, cost, share, now_ms, cost_least=cost_least)
        for line, tally in zip(lines, decision.tallies, strict=True):
            self._keep(group_key, line, tally)
        self._drop_stale(now_ms)
        return decision

    def _table_of(self, line: BudgetLine) -> dict[tuple[ProviderGroup, ScopeKey], tuple[BudgetLine, BudgetTally]]:
        return self._intents if line.scope is BudgetScope.INTENT else self._scopes

    def _keep(self, group_key: ProviderGroup, line: BudgetLine, tally: BudgetTally) -> None:
        kept, name = self._table_of(line), (group_key, (line.scope, line.name))
        kept.pop(name, None)  # move it to the end: the tally that was not used the longest is dropped first
        if line.scope is not BudgetScope.INTENT or tally.spent:
            kept[name] = (line, tally)
        while len(kept) > (_INTENTS_MAX if line.scope is BudgetScope.INTENT else _TALLIES_MAX):
            del kept[next(iter(kept))]

    def _drop_stale(self, now_ms: int) -> None:
        """Drop expired tallies, once a minute. Intents live for a day, so only their number bounds them."""
        if now_ms < self._drop_stale_at_ms:
            return
        self._drop_stale_at_ms = now_ms + _DROP_STALE_EVERY_MS
        over = [name for name, (line, tally) in self._scopes.items() if is_expired(tally, line, now_ms)]
        for name in over:
            del self._scopes[name]


class OpenGrants:
    """The grants that have not ended yet. Each ends once."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def open(self, grant: Grant) -> Grant:
        self._ids[grant.id] = None
        if len(self._ids) > _OPEN_GRANTS_MAX:
            del self._ids[next(iter(self._ids))]
        return grant

    def end(self, grant: Grant) -> bool:
        """End the grant. False if it had ended before."""
        if grant.id not in self._ids:
            return False
        del self._ids[grant.id]
        return True


class RemainingBudget:
    """The units left when a scope was last evaluated, for metrics and the admin interface."""

    def __init__(self) -> None:
        self._groups: dict[ProviderGroup, dict[ScopeKey, tuple[BudgetLine, float, int]]] = {}

    def update(self, group_key: ProviderGroup, lines: Sequence[BudgetLine], left: Sequence[float], now_ms: int) -> None:
        found = self._groups.setdefault(group_key, {})
        for line, room in zip(lines, left, strict=True):
            if line.scope is not BudgetScope.INTENT:
                found[line.scope, line.name] = (line, room, now_ms)

    def remaining(self, group_key: ProviderGroup, now_ms: int) -> dict[BudgetScope, float]:
        """The units left in the tightest scope of each kind. A scope that was last seen two windows ago is full again:
        it has its floor."""
        lowest: dict[BudgetScope, float] = {}
        found = self._groups.get(group_key, {})
        for name, (line, room, seen_ms) in list(found.items()):
            old = now_ms - seen_ms > 2 * line.window_ms
            if old and line.scope is not BudgetScope.PROVIDER:
                del found[name]
            left = line.rule.floor if old else room
            lowest[line.scope] = min(left, lowest.get(line.scope, left))
        return lowest


def cost_terms(ask: RetryRequest | None) -> tuple[int, float, int]:
    """Cost, share and least cost of a retry. Without a retry the cost is 0."""
    return (ask.cost, ask.share, ask.cost_least) if ask is not None else (0, 1.0, 0)


def provider_group_of(origin: AttemptOrigin) -> ProviderGroup:
    return origin.provider, origin.group


def adaptive_lines(ask: RetryRequest) -> list[BudgetLine]:
    """The scopes whose ratio follows how retries fare: all but the intent's."""
    return [line for line in lines_of_retry(ask) if line.scope is not BudgetScope.INTENT]


def split_between_peers(lines: Iterable[BudgetLine], peers: int | None) -> list[BudgetLine]:
    """The same scopes for one of several sidecars that do not reach each other: each has its part of the floor. A
    sidecar that does not know how many peers there are has the smallest part."""
    return [
        line
        if line.scope is BudgetScope.INTENT
        else line._replace(rule=replace(line.rule, floor=_floor_share(line.rule, peers)))
        for line in lines
    ]


def _floor_share(rule: ScopeRule, peers: int | None) -> float:
    part = 0.0 if peers is None else rule.floor / max(1, peers)
    return min(rule.floor, max(_FLOOR_PART_LEAST, part))


def grant_or_refusal(
    decision: BudgetDecision, lines: Sequence[BudgetLine], ask: RetryRequest, chance: Randomness, *, fleet: bool
) -> Grant | BudgetRefusal:
    if decision.granted:
        return Grant(chance.token(), ask, decision.cost, min(decision.left), fleet)
    scope = lines[decision.limiting].scope
    return BudgetRefusal(scope, decision.wait_ms / 1000, decision.left[decision.limiting], fleet)


class LocalBudgets:
    """The budgets of one sidecar. Also the local copy that is kept warm beside a fleet's."""

    def __init__(self, clock: Clock, chance: Randomness, tallies: ScopeTallies | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self._tallies = tallies if tallies is not None else ScopeTallies()
        self._pending = PendingCounts()
        self._open = OpenGrants()
        self._remaining = RemainingBudget()

    @property
    def fleet(self) -> bool:
        return False

    async def acquire(self, ask: RetryRequest) -> Grant | BudgetRefusal:
        return self.acquire_in_scopes(ask, lines_of_retry(ask))

    def acquire_in_scopes(self, ask: RetryRequest, lines: Sequence[BudgetLine]) -> Grant | BudgetRefusal:
        """Evaluate the retry in these scopes, at once."""
        group_key, now_ms = provider_group_of(ask.origin), self._now_ms()
        counts = self._pending.take(group_key, lines)
        decision = self._tallies.evaluate(group_key, lines, counts, now_ms, ask)
        self._remaining.update(group_key, lines, decision.left, now_ms)
        found = grant_or_refusal(decision, lines, ask, self._chance, fleet=False)
        return self._open.open(found) if isinstance(found, Grant) else found

    async def refund(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add_debit(grant, -1)

    def count_first_attempt(self, origin: AttemptOrigin) -> None:
        self._pending.add_first_attempt(origin)

    def count_caller_retry(self, origin: AttemptOrigin, cost: int) -> None:
        self._pending.add(provider_group_of(origin), lines_of(origin), caller_repeat_counts(cost))

    def count_result(self, provider: str, group: CallGroup, *, well: bool, weight: int = 1) -> None:
        self._pending.add_result(provider, group, well=well, weight=weight)

    def succeeded(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(provider_group_of(grant.ask.origin), adaptive_lines(grant.ask), BudgetCounts(helped=1))

    def failed(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(provider_group_of(grant.ask.origin), adaptive_lines(grant.ask), BudgetCounts(vain=1))

    def adopt_grant(self, grant: Grant) -> None:
        """Debit a retry that the fleet's store granted here too, so that this budget is warm when it is needed."""
        self._pending.add_debit(grant, 1)
        self._open.open(grant)

    async def flush(self) -> None:
        now_ms = self._now_ms()
        for group_key, counted in self._pending.take_all().items():
            lines, counts = [line for line, _ in counted], [count for _, count in counted]
            decision = self._tallies.evaluate(group_key, lines, counts, now_ms)
            self._remaining.update(group_key, lines, decision.left, now_ms)

    def remaining(self, provider: str, group: CallGroup = CallGroup.WRITE) -> dict[BudgetScope, float]:
        return self._remaining.remaining((provider, group), self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.mono() * 1000)
