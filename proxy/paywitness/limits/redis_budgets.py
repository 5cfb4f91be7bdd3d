"""The fleet's retry budgets, on Redis: one script, one round trip, all scopes or none.

A local copy counts everything beside them, so that it is warm when Redis is unavailable. Then each sidecar has its part
of the floors and the ratio of its own first attempts, and a retry that is ambiguous and not repeatable is refused. All
keys of a provider share a hash tag, so that they are in one slot of a Redis Cluster.

Counts that Redis did not confirm are sent again only if they make the budget smaller. Counts that make it larger (first
attempts, successes, refunds) are sent once at most. Either way an error makes the fleet retry less, never more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paywitness.clock import Clock
from paywitness.core.budget import (
    COST_AMBIGUOUS,
    AttemptOrigin,
    BudgetCounts,
    BudgetDecision,
    BudgetLine,
    BudgetScope,
    RetryRequest,
    ScopeRule,
    caller_repeat_counts,
    lines_of,
    lines_of_retry,
)
from paywitness.core.circuit import CallGroup
from paywitness.core.errors import StoreUnavailable
from paywitness.limits.budgets import (
    STORE_UNAVAILABLE,
    BudgetRefusal,
    Grant,
    KnownPeers,
    LocalBudgets,
    OpenGrants,
    PendingCounts,
    ProviderGroup,
    RemainingBudget,
    adaptive_lines,
    cost_terms,
    grant_or_refusal,
    provider_group_of,
    split_between_peers,
)
from paywitness.limits.redis_scripts import Argument, ScriptRunner
from paywitness.randomness import Randomness
from paywitness.redis.pipeline import LuaScript

BUDGET = LuaScript.load(Path(__file__).parent / "lua", "budget")
_LINES_MAX = 200  # scopes in one call: about two milliseconds of Redis
_AMBIGUOUS_LOCAL_MAX = 1  # retries of an intent after ambiguity, while the other sidecars cannot be reached
_KINDS = {BudgetScope.FAILURE_CLASS: "class", BudgetScope.INTENT: "intent"}


class RedisBudgets:
    def __init__(
        self,
        scripts: ScriptRunner,
        clock: Clock,
        chance: Randomness,
        prefix: str,
        known_peers: KnownPeers,
        *,
        server_time_ms: Callable[[], int] | None = None,
    ) -> None:
        """The fleet's circuits keep `known_peers`. `server_time_ms` replaces the server's TIME in a test that moves the
        clock."""
        self._scripts = scripts
        self._clock = clock
        self._chance = chance
        self._prefix = prefix
        self._server_time_ms = server_time_ms
        self._local = LocalBudgets(clock, chance)
        self._pending = PendingCounts()
        self._open = OpenGrants()
        self._remaining = RemainingBudget()
        self._known_peers = known_peers
        self._synced_mono = clock.mono()

    @property
    def fleet(self) -> bool:
        return self._scripts.available

    async def acquire(self, ask: RetryRequest) -> Grant | BudgetRefusal:
        group_key, lines = provider_group_of(ask.origin), lines_of_retry(ask)
        if not self._scripts.available:
            return self._acquire_locally(ask, lines)
        counts = self._pending.take(group_key, lines)
        try:
            decision = await self._evaluate(group_key, lines, counts, ask)
        except StoreUnavailable:
            self._requeue(group_key, lines, counts)
            return self._acquire_locally(ask, lines)
        found = grant_or_refusal(decision, lines, ask, self._chance, fleet=True)
        if isinstance(found, Grant):
            self._open.open(found)
            self._local.adopt_grant(found)
        return found

    def _acquire_locally(self, ask: RetryRequest, lines: Sequence[BudgetLine]) -> Grant | BudgetRefusal:
        """Redis is unavailable: use this sidecar's part of the budget. The fleet gets the counts later."""
        ambiguous = ask.cost >= COST_AMBIGUOUS
        if ambiguous and not ask.repeatable:
            return BudgetRefusal(
                BudgetScope.PROVIDER, ask.origin.rules.window_s, 0.0, fleet=False, because=STORE_UNAVAILABLE
            )
        part = split_between_peers(lines, self._known_peers.get(ask.origin.provider))
        if ambiguous:
            part = [_capped_to_one(line) for line in part]
        found = self._local.acquire_in_scopes(ask, part)
        if isinstance(found, Grant):
            self._open.open(found)
            self._pending.add_debit(found, 1)
        return found

    async def refund(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add_debit(grant, -1)
            await self._local.refund(grant)

    def count_first_attempt(self, origin: AttemptOrigin) -> None:
        self._pending.add_first_attempt(origin)
        self._local.count_first_attempt(origin)

    def count_caller_retry(self, origin: AttemptOrigin, cost: int) -> None:
        self._pending.add(provider_group_of(origin), lines_of(origin), caller_repeat_counts(cost))
        self._local.count_caller_retry(origin, cost)

    def count_result(self, provider: str, group: CallGroup, *, well: bool, weight: int = 1) -> None:
        self._pending.add_result(provider, group, well=well, weight=weight)
        self._local.count_result(provider, group, well=well, weight=weight)

    def succeeded(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(provider_group_of(grant.ask.origin), adaptive_lines(grant.ask), BudgetCounts(helped=1))
            self._local.succeeded(grant)

    def failed(self, grant: Grant) -> None:
        if self._open.end(grant):
            self._pending.add(provider_group_of(grant.ask.origin), adaptive_lines(grant.ask), BudgetCounts(vain=1))
            self._local.failed(grant)

    async def flush(self) -> None:
        await self._local.flush()
        taken = self._pending.take_all()
        await asyncio.gather(*(self._send_counts(group_key, counted) for group_key, counted in taken.items()))

    def remaining(self, provider: str, group: CallGroup = CallGroup.WRITE) -> dict[BudgetScope, float]:
        """The fleet's units left, as last seen. While Redis is unavailable, those of this sidecar's own part."""
        if not self._scripts.available:
            return self._local.remaining(provider, group)
        return self._remaining.remaining((provider, group), self._now_ms())

    async def _send_counts(self, group_key: ProviderGroup, counted: Sequence[tuple[BudgetLine, BudgetCounts]]) -> None:
        """Send all counts, in calls of bounded size. The provider's counts go with the first call."""
        provider, *others = counted
        for start in range(0, max(1, len(others)), _LINES_MAX):
            head = provider if start == 0 else (provider[0], BudgetCounts())
            part = [head, *others[start : start + _LINES_MAX]]
            lines, counts = [line for line, _ in part], [count for _, count in part]
            try:
                await self._evaluate(group_key, lines, counts)
            except StoreUnavailable:
                self._requeue(group_key, lines, counts)

    def _requeue(self, group_key: ProviderGroup, lines: Sequence[BudgetLine], counts: Sequence[BudgetCounts]) -> None:
        """Keep the counts for the next flush. Counts older than a window are dropped, because they would be counted in
        a window they do not belong to."""
        if self._clock.mono() - self._synced_mono > lines[0].window_ms / 1000:
            return
        for line, count in zip(lines, counts, strict=True):
            if any(tightening := count.tightening):
                self._pending.add(group_key, (line,), tightening)

    async def _evaluate(
        self,
        group_key: ProviderGroup,
        lines: Sequence[BudgetLine],
        counts: Sequence[BudgetCounts],
        ask: RetryRequest | None = None,
    ) -> BudgetDecision:
        keys, arguments = self._script_arguments(group_key, lines, counts, ask)
        reply: list[Any] = await self._scripts.run(BUDGET, keys, arguments)
        granted, limiting, wait_ms, debit, *left = reply
        self._synced_mono = self._clock.mono()
        decision = BudgetDecision(bool(granted), int(limiting), int(wait_ms), int(debit), tuple(map(float, left)), ())
        self._remaining.update(group_key, lines, decision.left, self._now_ms())
        return decision

    def _script_arguments(
        self,
        group_key: ProviderGroup,
        lines: Sequence[BudgetLine],
        counts: Sequence[BudgetCounts],
        ask: RetryRequest | None,
    ) -> tuple[list[str], list[Argument]]:
        """The script's KEYS and ARGV, in the order that the script's first lines give."""
        keys = [self._key(group_key, line) for line in lines]
        now = self._server_time_ms() if self._server_time_ms is not None else ""
        arguments: list[Argument] = [now, *cost_terms(ask)]
        for line, count in zip(lines, counts, strict=True):
            kind, rule = _KINDS.get(line.scope, "own"), line.rule
            terms = f"{kind} {line.window_ms} {rule.floor} {rule.ratio} {rule.ceiling} {rule.least}"
            arguments.append(f"{terms} {' '.join(map(str, count))}")
        return keys, arguments

    def _key(self, group_key: ProviderGroup, line: BudgetLine) -> str:
        name = line.name
        if line.scope is BudgetScope.ACCOUNT:  # the name of an account may be anything that a caller sent
            name = hashlib.sha256(name.encode()).hexdigest()[:20]
        # The key `tally` of a scope is the earlier release's, which counts a timeout as four failed attempts in a row.
        # The units that an intent has used mean the same in both.
        kind = "tally" if line.scope is BudgetScope.INTENT else "tally2"
        return f"{self._prefix}:budget:{{{group_key[0]}}}:{kind}:{group_key[1]}:{line.scope}:{name}"

    def _now_ms(self) -> int:
        return int(self._clock.mono() * 1000)


def _capped_to_one(line: BudgetLine) -> BudgetLine:
    if line.scope is not BudgetScope.INTENT:
        return line
    return line._replace(rule=ScopeRule(min(line.rule.floor, _AMBIGUOUS_LOCAL_MAX)))
