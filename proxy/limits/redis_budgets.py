"""The fleet's retry budgets, on Redis: one script, one round trip, all scopes or none.

A local shadow counts everything beside them, so that it is warm when Redis is gone: then each sidecar has its part of
the floors and the ratio of its own first attempts, and what is ambiguous and not repeatable is refused. All keys of a
provider share a hash tag, so that they stand in one slot of a Redis Cluster.

What was counted and not confirmed is told again only where it makes the budget smaller; what makes it larger (first
attempts, successes, refunds) is told once at most. Either way an error makes the fleet retry less, never more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.budget import (
    COST_AMBIGUOUS,
    Counts,
    Line,
    Origin,
    RetryAsk,
    Scope,
    ScopeRule,
    Weighed,
    lines_asked,
    lines_of,
    repeated,
)
from proxy.core.circuit import Group
from proxy.core.errors import StoreUnavailable
from proxy.limits.budgets import (
    STORE_GONE,
    Grant,
    Home,
    LocalBudgets,
    OpenGrants,
    Pending,
    Refusal,
    Seen,
    alone,
    helped_lines,
    home_of,
    terms_of,
    verdict,
)
from proxy.limits.scripts import Argument, Runs, Script

BUDGET = Script.named("budget")
_PEERS_MS = 60_000  # a sidecar that used the provider in the last minute counts as one
_LINES_MAX = 200  # scopes in one call: about two milliseconds of Redis
_AMBIGUOUS_ALONE_MAX = 1  # retries of an intent after ambiguity, while nobody else can be heard
_KINDS = {Scope.FAILURE_CLASS: "class", Scope.INTENT: "intent"}


class RedisBudgets:
    def __init__(
        self,
        scripts: Runs,
        clock: Clock,
        chance: Chance,
        prefix: str = "paywitness",
        *,
        moved_ms: Callable[[], int] | None = None,
    ) -> None:
        """`moved_ms` stands in for the server's TIME where a test moves it."""
        self._scripts = scripts
        self._clock = clock
        self._chance = chance
        self._prefix = prefix
        self._moved_ms = moved_ms
        self._sidecar = chance.token()
        self._shadow = LocalBudgets(clock, chance)
        self._pending = Pending()
        self._open = OpenGrants()
        self._seen = Seen()
        self._peers: dict[str, int] = {}
        self._told_mono = clock.mono()

    @property
    def fleet(self) -> bool:
        return self._scripts.available

    async def acquire(self, ask: RetryAsk) -> Grant | Refusal:
        home, lines = home_of(ask.origin), lines_asked(ask)
        if not self._scripts.available:
            return self._acquire_alone(ask, lines)
        counts = self._pending.take(home, lines)
        try:
            weighed = await self._weigh(home, lines, counts, ask)
        except StoreUnavailable:
            self._put_back(home, lines, counts)
            return self._acquire_alone(ask, lines)
        found = verdict(weighed, lines, ask, self._chance, fleet=True)
        if isinstance(found, Grant):
            self._open.open(found)
            self._shadow.adopt(found)
        return found

    def _acquire_alone(self, ask: RetryAsk, lines: Sequence[Line]) -> Grant | Refusal:
        """Redis is gone: this sidecar's part of the budget. The fleet hears of it later."""
        ambiguous = ask.cost >= COST_AMBIGUOUS
        if ambiguous and not ask.repeatable:
            return Refusal(Scope.PROVIDER, ask.origin.rules.window_s, 0.0, fleet=False, because=STORE_GONE)
        part = alone(lines, self.peers(ask.origin.provider))
        if ambiguous:
            part = [_held_to_one(line) for line in part]
        found = self._shadow.acquire_alone(ask, part)
        if isinstance(found, Grant):
            self._open.open(found)
            self._pending.add_debit(found, 1)
        return found

    async def refund(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add_debit(grant, -1)
            await self._shadow.refund(grant)

    def count_first(self, origin: Origin) -> None:
        self._pending.add_first(origin)
        self._shadow.count_first(origin)

    def count_repeat(self, origin: Origin, cost: int) -> None:
        self._pending.add(home_of(origin), lines_of(origin), repeated(cost))
        self._shadow.count_repeat(origin, cost)

    def count_result(self, provider: str, group: Group, *, well: bool, weight: int = 1) -> None:
        self._pending.add_result((provider, group), *((weight, 0) if well else (0, weight)))
        self._shadow.count_result(provider, group, well=well, weight=weight)

    def succeeded(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(home_of(grant.ask.origin), helped_lines(grant.ask), Counts(helped=1))
            self._shadow.succeeded(grant)

    def failed(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(home_of(grant.ask.origin), helped_lines(grant.ask), Counts(vain=1))
            self._shadow.failed(grant)

    async def flush(self) -> None:
        await self._shadow.flush()
        taken = self._pending.take_all()
        await asyncio.gather(*(self._tell(home, told) for home, told in taken.items()))

    def remaining(self, provider: str, group: Group = Group.WRITE) -> dict[Scope, float]:
        """The fleet's, as last seen; this sidecar's own part while Redis is gone."""
        if not self._scripts.available:
            return self._shadow.remaining(provider, group)
        return self._seen.remaining((provider, group), self._now_ms())

    def peers(self, provider: str) -> int:
        """How many sidecars used the provider of late, this one included, as last heard."""
        return max(1, self._peers.get(provider, 1))

    async def _tell(self, home: Home, told: Sequence[tuple[Line, Counts]]) -> None:
        """All that was counted, in calls of bounded size. The provider's counts go with the first."""
        provider, *others = told
        for start in range(0, max(1, len(others)), _LINES_MAX):
            head = provider if start == 0 else (provider[0], Counts())
            part = [head, *others[start : start + _LINES_MAX]]
            lines, counts = [line for line, _ in part], [count for _, count in part]
            try:
                await self._weigh(home, lines, counts)
            except StoreUnavailable:
                self._put_back(home, lines, counts)

    def _put_back(self, home: Home, lines: Sequence[Line], counts: Sequence[Counts]) -> None:
        """For the next time; but what is older than a window would be counted in a window it does not belong to."""
        if self._clock.mono() - self._told_mono > lines[0].window_ms / 1000:
            return
        for line, count in zip(lines, counts, strict=True):
            if any(tightening := count.tightening):
                self._pending.add(home, (line,), tightening)

    async def _weigh(
        self, home: Home, lines: Sequence[Line], counts: Sequence[Counts], ask: RetryAsk | None = None
    ) -> Weighed:
        keys, arguments = self._call(home, lines, counts, ask)
        reply: list[Any] = await self._scripts.run(BUDGET, keys, arguments)
        granted, limiting, wait_ms, debit, peers, *left = reply
        self._told_mono = self._clock.mono()
        self._peers[home[0]] = int(peers)
        weighed = Weighed(bool(granted), int(limiting), int(wait_ms), int(debit), tuple(map(float, left)), ())
        self._seen.note(home, lines, weighed.left, self._now_ms())
        return weighed

    def _call(
        self, home: Home, lines: Sequence[Line], counts: Sequence[Counts], ask: RetryAsk | None
    ) -> tuple[list[str], list[Argument]]:
        """The script's KEYS and ARGV, in the order that its head tells."""
        keys = [f"{self._prefix}:budget:{{{home[0]}}}:peers", *(self._key(home, line) for line in lines)]
        now = self._moved_ms() if self._moved_ms is not None else ""
        arguments: list[Argument] = [now, self._sidecar, _PEERS_MS, *terms_of(ask)]
        for line, count in zip(lines, counts, strict=True):
            kind, rule = _KINDS.get(line.scope, "own"), line.rule
            terms = f"{kind} {line.window_ms} {rule.floor} {rule.ratio} {rule.ceiling} {rule.least}"
            arguments.append(f"{terms} {' '.join(map(str, count))}")
        return keys, arguments

    def _key(self, home: Home, line: Line) -> str:
        name = line.name
        if line.scope is Scope.ACCOUNT:  # what a caller calls an account may be anything
            name = hashlib.sha256(name.encode()).hexdigest()[:20]
        return f"{self._prefix}:budget:{{{home[0]}}}:tally:{home[1]}:{line.scope}:{name}"

    def _now_ms(self) -> int:
        return int(self._clock.mono() * 1000)


def _held_to_one(line: Line) -> Line:
    if line.scope is not Scope.INTENT:
        return line
    return line._replace(rule=ScopeRule(min(line.rule.floor, _AMBIGUOUS_ALONE_MAX)))
