"""Retry budgets: the interface, and the budgets of one sidecar alone. The arithmetic is `core/budget.py`.

First attempts and results are only counted here, without I/O, and told to the store in batches: twice a second, and
with the next retry that asks in the same scopes. So a store that is slow or gone costs a call that succeeds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.budget import (
    NOTHING,
    Counts,
    Line,
    Origin,
    RetryAsk,
    Scope,
    ScopeRule,
    Tally,
    Weighed,
    is_over,
    lines_asked,
    lines_of,
    repeated,
    weigh,
)
from proxy.core.circuit import Group

FLUSH_S = 0.5
EXHAUSTED = "budget_exhausted"
STORE_GONE = "limits_unavailable"

_OPEN_GRANTS_MAX = 100_000  # a grant that nobody ends is forgotten, oldest first
_TALLIES_MAX, _INTENTS_MAX = 100_000, 50_000  # accounts and intents are as many as a caller sends
_FORGET_MS = 60_000

Home = tuple[str, Group]  # a provider and a group: what is told to the store in one call
Named = tuple[Scope, str]


@dataclass(frozen=True, slots=True)
class Grant:
    """A retry that may be sent, debited already. Ends once: by `refund`, `succeeded` or `failed`."""

    id: str
    ask: RetryAsk
    cost: int  # what was debited
    remaining: float  # in the tightest of its scopes, after it
    fleet: bool  # granted by the fleet's store; else by this sidecar alone


@dataclass(frozen=True, slots=True)
class Refusal:
    """A retry that must not be sent. Nothing was debited."""

    scope: Scope  # the one that will refuse the longest
    wait_s: float  # when it would fit, if nothing else happened
    remaining: float  # in that scope
    fleet: bool
    because: str = EXHAUSTED


class Budgets(Protocol):
    """What the engine asks before a retry, and tells after every attempt. Never raises because a store is gone."""

    @property
    def fleet(self) -> bool:
        """Whether they are the fleet's now; else this sidecar's own."""
        ...

    async def acquire(self, ask: RetryAsk) -> Grant | Refusal:
        """Debit the retry in all of its scopes, or in none. Ask at the decision, before the wait."""
        ...

    async def refund(self, grant: Grant) -> None:
        """The retry was never sent: give it back. A second time, or after a result, it does nothing."""
        ...

    def count_first(self, origin: Origin) -> None:
        """A first attempt is sent. No I/O; never refused."""
        ...

    def count_repeat(self, origin: Origin, cost: int) -> None:
        """A caller's own repeat is sent, which asks nobody: it is spent like a retry, and is no first attempt."""
        ...

    def count_result(self, provider: str, group: Group, *, well: bool, weight: int = 1) -> None:
        """An attempt has ended, a first one or another: whether the provider did its part. No I/O."""
        ...

    def succeeded(self, grant: Grant) -> None:
        """The retry helped: its answer settled the operation, whatever it said. No I/O."""
        ...

    def failed(self, grant: Grant) -> None:
        """The retry failed as the attempt before it did, or in another way. No I/O."""
        ...

    async def flush(self) -> None:
        """Tell the store what was counted. Twice a second."""
        ...

    def remaining(self, provider: str, group: Group = Group.WRITE) -> dict[Scope, float]:
        """What is left, as last seen; of scopes that are many, in the tightest. Empty where nothing was counted yet."""
        ...


class Pending:
    """What happened since the store was last told."""

    def __init__(self) -> None:
        self._homes: dict[Home, dict[Named, tuple[Line, Counts]]] = {}
        self._providers: dict[Home, Line] = {}
        self._firsts: dict[tuple[str, str, str, str], tuple[Origin, int]] = {}
        self._results: dict[Home, tuple[int, int]] = {}  # attempts that ended well, and that did not

    def add_first(self, origin: Origin) -> None:
        """A first attempt: all that a clean call tells a budget. Spread over its scopes when they are taken."""
        name = (origin.provider, origin.group, origin.operation, origin.account)
        _, count = self._firsts.get(name, (origin, 0))
        self._firsts[name] = (origin, count + 1)

    def add_result(self, home: Home, helped: int, vain: int) -> None:
        before = self._results.get(home, (0, 0))
        self._results[home] = (before[0] + helped, before[1] + vain)

    def _spread(self) -> None:
        firsts, self._firsts = self._firsts, {}
        for origin, count in firsts.values():
            self.add(home_of(origin), lines_of(origin), Counts(firsts=count))
        results, self._results = self._results, {}
        for home, (helped, vain) in results.items():
            if home in self._providers:  # else nothing was ever sent to it, and it has no scope to count in
                self.add(home, (self._providers[home],), Counts(helped=helped, vain=vain))

    def add(self, home: Home, lines: Iterable[Line], counts: Counts) -> None:
        found = self._homes.setdefault(home, {})
        for line in lines:
            before = found.get((line.scope, line.name))
            found[line.scope, line.name] = (line, counts if before is None else before[1].plus(counts))
            if line.scope is Scope.PROVIDER:
                self._providers[home] = line

    def add_debit(self, grant: Grant, sign: int) -> None:
        """A retry that was granted elsewhere (1), or refunded (-1)."""
        home = home_of(grant.ask.origin)
        for line in lines_asked(grant.ask):
            self.add(home, (line,), Counts(spent=sign if line.scope is Scope.INTENT else sign * grant.cost))

    def take(self, home: Home, lines: Sequence[Line]) -> list[Counts]:
        """The counts of these scopes, no longer pending."""
        self._spread()
        found = self._homes.get(home, {})
        return [found.pop((line.scope, line.name), (line, NOTHING))[1] for line in lines]

    def take_all(self) -> dict[Home, list[tuple[Line, Counts]]]:
        """Everything, no longer pending. Each home's first scope is its provider's."""
        self._spread()
        homes, self._homes = self._homes, {}
        taken = {}
        for home, found in homes.items():
            if found:
                provider = found.pop((Scope.PROVIDER, ""), (self._providers[home], NOTHING))
                taken[home] = [provider, *found.values()]
        return taken


class Tallies:
    """What each scope remembers. Shared by several budgets it is a fleet's, as in the simulator."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[Home, Named], tuple[Line, Tally]] = {}
        self._intents: dict[tuple[Home, Named], tuple[Line, Tally]] = {}
        self._forget_at_ms = 0

    def weigh(
        self, home: Home, lines: Sequence[Line], counts: Sequence[Counts], now_ms: int, ask: RetryAsk | None = None
    ) -> Weighed:
        """Count; and where a retry asks, grant it or not."""
        cost, share, cost_least = terms_of(ask)
        found = [self._of(line).get((home, (line.scope, line.name))) for line in lines]
        kept = [pair and pair[1] for pair in found]
        weighed = weigh(lines, kept, counts, cost, share, now_ms, cost_least=cost_least)
        for line, tally in zip(lines, weighed.tallies, strict=True):
            self._keep(home, line, tally)
        self._forget(now_ms)
        return weighed

    def _of(self, line: Line) -> dict[tuple[Home, Named], tuple[Line, Tally]]:
        return self._intents if line.scope is Scope.INTENT else self._scopes

    def _keep(self, home: Home, line: Line, tally: Tally) -> None:
        kept, name = self._of(line), (home, (line.scope, line.name))
        kept.pop(name, None)  # to the end: what was not asked for the longest goes first
        if line.scope is not Scope.INTENT or tally.spent:
            kept[name] = (line, tally)
        while len(kept) > (_INTENTS_MAX if line.scope is Scope.INTENT else _TALLIES_MAX):
            del kept[next(iter(kept))]

    def _forget(self, now_ms: int) -> None:
        """Let go, every minute, of what no longer matters. Intents go by their number alone: they live for a day."""
        if now_ms < self._forget_at_ms:
            return
        self._forget_at_ms = now_ms + _FORGET_MS
        over = [name for name, (line, tally) in self._scopes.items() if is_over(tally, line, now_ms)]
        for name in over:
            del self._scopes[name]


class OpenGrants:
    """Which grants have not ended yet: each ends once."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def open(self, grant: Grant) -> Grant:
        self._ids[grant.id] = None
        if len(self._ids) > _OPEN_GRANTS_MAX:
            del self._ids[next(iter(self._ids))]
        return grant

    def end(self, grant: Grant) -> bool:
        """Whether this ended it."""
        if grant.id not in self._ids:
            return False
        del self._ids[grant.id]
        return True


class Seen:
    """What was left when a scope was last weighed, for metrics and the admin interface."""

    def __init__(self) -> None:
        self._homes: dict[Home, dict[Named, tuple[Line, float, int]]] = {}

    def note(self, home: Home, lines: Sequence[Line], left: Sequence[float], now_ms: int) -> None:
        found = self._homes.setdefault(home, {})
        for line, room in zip(lines, left, strict=True):
            if line.scope is not Scope.INTENT:
                found[line.scope, line.name] = (line, room, now_ms)

    def remaining(self, home: Home, now_ms: int) -> dict[Scope, float]:
        """In the tightest of each scope. What was last seen two windows ago is whole again: its floor."""
        lowest: dict[Scope, float] = {}
        found = self._homes.get(home, {})
        for name, (line, room, seen_ms) in list(found.items()):
            old = now_ms - seen_ms > 2 * line.window_ms
            if old and line.scope is not Scope.PROVIDER:
                del found[name]
            left = line.rule.floor if old else room
            lowest[line.scope] = min(left, lowest.get(line.scope, left))
        return lowest


def terms_of(ask: RetryAsk | None) -> tuple[int, float, int]:
    """Cost, share and least cost; of a cost of nothing where nobody asks."""
    return (ask.cost, ask.share, ask.cost_least) if ask is not None else (0, 1.0, 0)


def home_of(origin: Origin) -> Home:
    return origin.provider, origin.group


def helped_lines(ask: RetryAsk) -> list[Line]:
    """The scopes whose ratio follows how retries fare: all but the intent's."""
    return [line for line in lines_asked(ask) if line.scope is not Scope.INTENT]


def alone(lines: Iterable[Line], peers: int) -> list[Line]:
    """The same scopes for one of several sidecars that cannot hear each other: a floor each of its own part."""
    return [
        line
        if line.scope is Scope.INTENT or peers <= 1
        else line._replace(rule=replace(line.rule, floor=_part(line.rule, peers)))
        for line in lines
    ]


def _part(rule: ScopeRule, peers: int) -> float:
    return min(rule.floor, max(1.0, rule.floor / peers))


def verdict(weighed: Weighed, lines: Sequence[Line], ask: RetryAsk, chance: Chance, *, fleet: bool) -> Grant | Refusal:
    if weighed.granted:
        return Grant(chance.token(), ask, weighed.cost, min(weighed.left), fleet)
    scope = lines[weighed.limiting].scope
    return Refusal(scope, weighed.wait_ms / 1000, weighed.left[weighed.limiting], fleet)


class LocalBudgets:
    """The budgets of one sidecar. Also the warm shadow beside a fleet's."""

    def __init__(self, clock: Clock, chance: Chance, tallies: Tallies | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self._tallies = tallies if tallies is not None else Tallies()
        self._pending = Pending()
        self._open = OpenGrants()
        self._seen = Seen()

    @property
    def fleet(self) -> bool:
        return False

    async def acquire(self, ask: RetryAsk) -> Grant | Refusal:
        return self.acquire_alone(ask, lines_asked(ask))

    def acquire_alone(self, ask: RetryAsk, lines: Sequence[Line]) -> Grant | Refusal:
        """Weighed in these scopes, here and now."""
        home, now_ms = home_of(ask.origin), self._now_ms()
        counts = self._pending.take(home, lines)
        weighed = self._tallies.weigh(home, lines, counts, now_ms, ask)
        self._seen.note(home, lines, weighed.left, now_ms)
        found = verdict(weighed, lines, ask, self._chance, fleet=False)
        return self._open.open(found) if isinstance(found, Grant) else found

    async def refund(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add_debit(grant, -1)

    def count_first(self, origin: Origin) -> None:
        self._pending.add_first(origin)

    def count_repeat(self, origin: Origin, cost: int) -> None:
        self._pending.add(home_of(origin), lines_of(origin), repeated(cost))

    def count_result(self, provider: str, group: Group, *, well: bool, weight: int = 1) -> None:
        self._pending.add_result((provider, group), *((weight, 0) if well else (0, weight)))

    def succeeded(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(home_of(grant.ask.origin), helped_lines(grant.ask), Counts(helped=1))

    def failed(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(home_of(grant.ask.origin), helped_lines(grant.ask), Counts(vain=1))

    def adopt(self, grant: Grant) -> None:
        """A retry that the fleet's store granted: spent here too, so that this budget is warm when it is needed."""
        self._pending.add_debit(grant, 1)
        self._open.open(grant)

    async def flush(self) -> None:
        now_ms = self._now_ms()
        for home, told in self._pending.take_all().items():
            lines, counts = [line for line, _ in told], [count for _, count in told]
            weighed = self._tallies.weigh(home, lines, counts, now_ms)
            self._seen.note(home, lines, weighed.left, now_ms)

    def remaining(self, provider: str, group: Group = Group.WRITE) -> dict[Scope, float]:
        return self._seen.remaining((provider, group), self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.mono() * 1000)
