"""Retry budgets: how many retries a provider may get from the whole fleet, and which of them. Pure arithmetic.

A retry counts in every scope that it belongs to: its provider, operation, account, failure class and intent. In a
window that slides over two buckets,

    N = firsts + firsts of the bucket before x (1 - elapsed)    first attempts
    R = spent + spent in the bucket before x (1 - elapsed)      the cost of retries

it is granted iff `R + cost <= share(priority) x max(floor, ratio x N)` in all scopes, and the intent has retries left.
Then all scopes are debited, else none. If almost nothing is spent (R < 1), one retry fits whatever it costs: otherwise
a re-send after a timeout, which costs 4, could never fit into the little that an outage leaves.

The floor is a number of retries. While a retry fits into the floors of all its scopes, it costs 1. If five attempts in
a row failed at the provider, the floors are cut to a twenty-fifth until an attempt succeeds. So a healthy provider has
each of its few lost responses retried, and a provider that is down gets hardly more than its first attempts.

The ratio of each scope follows how often attempts succeeded of late. It falls at once and rises slowly. While nothing
is known, it is the policy's ratio. The provider's scope counts every attempt. The other scopes count their own retries,
and borrow a few of the provider's attempts. So a few retries that failed by chance do not close a scope, and a scope
learns of an outage before its first retry has shown anything.

The trust of a scope, from 0 to 1, is how far its ratio has risen above the policy's. Beyond the floor, a retry that all
its scopes trust costs 1. A retry after a timeout keeps its cost, because a slow provider may be overloaded. The five
failed attempts in a row also take all trust, and set every ratio to its least. So the budget reacts to an outage within
its first second, and chance seldom looks like one.

Times are whole milliseconds of the store's clock. `limits/lua/budget.lua` is the same arithmetic, line by line, in the
same order of operations. One suite tests both with the same sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from paywitness.core import policy_defaults
from paywitness.core.call import Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.record import record
from paywitness.core.result import Classification, Effect, ResultClass

# If retries do not help, they are cut to this part of first attempts (or to the floor). It is also the policy's
# default: a ratio starts at its least.
RATIO_LEAST = policy_defaults.BUDGET_RATIO
INTENT_MS = 86_400_000  # an intent's retries are counted for a day, because most providers remember a key for that long

# More than the share _USELESS of attempts must have succeeded before the ratio rises above its least. At 35% it reaches
# the ceiling. To a provider that fails every second call at random, a second try is better than giving up. And of a few
# dozen attempts, fewer than 40% may have succeeded by chance.
_USELESS, _SPAN = 0.15, 0.2
_PRIOR = 3.0  # attempts that a scope is taken to have seen before its first
# Attempts that a scope borrows from its provider's scope at most, so that its own retries soon outweigh them.
_LENT = 5.0
# The half-life of the attempts counted, if there are many. The last few fade more slowly, or too little would be left.
_HALF_LIFE_MS = 500
# With fewer attempts, chance would close a scope whose provider fails every second call.
_KNOWN_LEAST, _LAST_HALF_LIFE_MS = 20.0, 10_000
_RISE, _RISE_MS, _RISES_MAX = 2.0, 500, 20
_RISE_FROM = 0.01  # a ratio of zero would never rise
# Failures in a row. By chance a retry meets them once in 16 times if every second call fails, and once in 256 if every
# fourth does.
_SHAKEN_BY = 5
# The part of the floors that is left then. A floor of 100 in ten seconds becomes 4, so that one call a second becomes
# at most 1.5 requests a second.
_SHAKEN_FLOOR = 0.04
_SHAKEN_FLOOR_LEAST = 1.0  # but one retry a window, unless the policy's floor is less

COST_UNAMBIGUOUS, COST_EXPLICIT, COST_AMBIGUOUS = 1, 2, 4
# In failed attempts. A slow provider is usually overloaded, and every retry adds to its load.
WEIGHT_OF_A_TIMEOUT = 4
SHARES = {Priority.HIGH: 1.0, Priority.MEDIUM: 0.8, Priority.LOW: 0.5}


class BudgetScope(StrEnum):
    PROVIDER = "provider"
    OPERATION = "operation"
    ACCOUNT = "account"
    FAILURE_CLASS = "failure_class"
    INTENT = "intent"


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """`floor`: retries that always fit into a window of the whole fleet, unless the provider is down. `ratio`: the part
    of first attempts that may be retried while nothing is known."""

    floor: float
    ratio: float = policy_defaults.BUDGET_RATIO
    ceiling: float = policy_defaults.BUDGET_CEILING

    @property
    def least(self) -> float:
        return min(RATIO_LEAST, self.ratio)


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """A provider's budgets, as its policy gives them."""

    window_s: float = policy_defaults.BUDGET_WINDOW_S
    provider: ScopeRule = ScopeRule(policy_defaults.BUDGET_PROVIDER_FLOOR)
    operation: ScopeRule = ScopeRule(policy_defaults.BUDGET_OPERATION_FLOOR)
    account: ScopeRule = ScopeRule(policy_defaults.BUDGET_ACCOUNT_FLOOR)
    failure_class: ScopeRule = ScopeRule(policy_defaults.BUDGET_FAILURE_CLASS_FLOOR)
    per_intent: int = policy_defaults.BUDGET_PER_INTENT

    @property
    def window_ms(self) -> int:
        return round(self.window_s * 1000)

    @property
    def for_inquiries(self) -> BudgetRules:
        """The rules for inquiries: ten times the floors, twice the ceiling. An inquiry is safe and cheap, and an
        unknown outcome waits for it."""
        provider, operation, account, failure_class = (
            replace(rule, floor=rule.floor * 10, ceiling=rule.ceiling * 2)
            for rule in (self.provider, self.operation, self.account, self.failure_class)
        )
        return BudgetRules(self.window_s, provider, operation, account, failure_class, self.per_intent)


@record
class AttemptOrigin:
    """The provider, operation and account of an attempt, as budgets count it."""

    provider: str
    operation: str
    account: str
    rules: BudgetRules = BudgetRules()
    # Inquiries have budgets of their own, so that unknown outcomes are resolved while writes may not be retried.
    group: CallGroup = CallGroup.WRITE


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """A retry that was decided on, and now requests a grant."""

    origin: AttemptOrigin
    failure_class: ResultClass  # of the attempt before the retry
    cost: int = COST_UNAMBIGUOUS
    priority: Priority = Priority.HIGH
    intent: str | None = None  # a hash: the guard's value, never the intent in clear
    repeatable: bool = True  # keyed at a provider that dedupes, or a safe read: sent twice, it has one effect

    @property
    def share(self) -> float:
        return SHARES[self.priority]

    @property
    def cost_least(self) -> int:
        """The cost if its scopes trust it."""
        return self.cost if self.failure_class in _TIMEOUTS else min(self.cost, COST_UNAMBIGUOUS)


def cost_of(classification: Classification) -> int:
    """The cost of a retry after this result. The less is known of the attempt before it, the higher the cost."""
    result_class = classification.result_class
    if result_class is ResultClass.RATE_LIMITED or classification.effect is Effect.NONE:
        return COST_UNAMBIGUOUS
    if classification.lost or result_class in _AMBIGUOUS:
        return COST_AMBIGUOUS
    return COST_EXPLICIT


_TIMEOUTS = frozenset({ResultClass.NETWORK_READ_TIMEOUT, ResultClass.PROVIDER_TIMEOUT})
_AMBIGUOUS = _TIMEOUTS | {ResultClass.UNKNOWN_OUTCOME}


class BudgetLine(NamedTuple):
    """One scope of a request: its name within the provider and group, and its rule. An intent's floor is its cap."""

    scope: BudgetScope
    name: str
    rule: ScopeRule
    window_ms: int


class BudgetCounts(NamedTuple):
    """The events in one scope since the last report. `spent` is negative if retries were refunded."""

    firsts: int = 0
    spent: int = 0
    helped: int = 0  # attempts that succeeded. The provider's scope counts all attempts, other scopes their retries
    vain: int = 0  # attempts that did not succeed
    # The cost beyond 1 of each of the callers' own repeats. It is spent as far as the scope is not trusted.
    doubted: int = 0
    failed: int = 0  # attempts at the provider that failed, each once; `vain` counts a timeout as several

    def plus(self, other: BudgetCounts) -> BudgetCounts:
        return BudgetCounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def tightening(self) -> BudgetCounts:
        """The part that makes a budget smaller. It is safe to report twice if it is not known whether the store got
        it."""
        return BudgetCounts(spent=max(0, self.spent), vain=self.vain, doubted=self.doubted, failed=self.failed)


NO_BUDGET_COUNTS = BudgetCounts()


def caller_repeat_counts(cost: int) -> BudgetCounts:
    """The counts that a caller's own repeat of this cost adds."""
    return BudgetCounts(spent=1, doubted=cost - 1)


class BudgetTally(NamedTuple):
    """The stored state of a scope: two buckets and its ratio. An intent has a count and an end instead of the
    buckets."""

    bucket: int  # of an intent: when its count ends
    firsts: int = 0
    firsts_before: int = 0
    spent: int = 0
    spent_before: int = 0
    helped: float = 0.0  # attempts that succeeded, and that did not, fading
    vain: float = 0.0
    judged_ms: int = 0  # when they last faded
    ratio: float = 0.0
    ratio_ms: int = 0  # when the ratio last fell or rose
    in_a_row: int = 0  # of the provider's scope: attempts that failed since the last report of one that succeeded


class BudgetDecision(NamedTuple):
    granted: bool
    limiting: int  # index of the line that refuses for the longest time; -1 if none refuses
    wait_ms: int
    cost: int  # the debit if the retry was granted: the cost that was requested, or less if its scopes trust it
    left: tuple[float, ...]  # of each line, for high priority, after the debit
    tallies: tuple[BudgetTally, ...]


def lines_of(origin: AttemptOrigin) -> tuple[BudgetLine, ...]:
    """The scopes that count first attempts. The provider's is always the first: a failure class is measured against its
    first attempts."""
    rules, window_ms = origin.rules, origin.rules.window_ms
    return (
        BudgetLine(BudgetScope.PROVIDER, "", rules.provider, window_ms),
        BudgetLine(BudgetScope.OPERATION, origin.operation, rules.operation, window_ms),
        BudgetLine(BudgetScope.ACCOUNT, origin.account, rules.account, window_ms),
    )


def lines_of_retry(request: RetryRequest) -> tuple[BudgetLine, ...]:
    """All the scopes in which a retry counts."""
    rules = request.origin.rules
    lines = (
        *lines_of(request.origin),
        BudgetLine(BudgetScope.FAILURE_CLASS, str(request.failure_class), rules.failure_class, rules.window_ms),
    )
    if request.intent is None:
        return lines
    return (*lines, BudgetLine(BudgetScope.INTENT, request.intent, ScopeRule(rules.per_intent), INTENT_MS))


def evaluate_budget(
    lines: Sequence[BudgetLine],
    tallies: Sequence[BudgetTally | None],
    counts: Sequence[BudgetCounts],
    cost: int,
    share: float,
    now_ms: int,
    *,
    cost_least: int = COST_UNAMBIGUOUS,
) -> BudgetDecision:
    """Add the counts to each scope. Then, if there is a cost, grant it in all scopes or in none."""
    updated: list[BudgetTally] = []
    for line, tally, count in zip(lines, tallies, counts, strict=True):
        if line.scope is BudgetScope.INTENT:
            updated.append(_counted_intent(tally, line, count, now_ms))
        else:
            counted = _counted(tally, line, count, now_ms)
            updated.append(_with_adapted_ratio(counted, updated[0] if updated else None, line.rule, now_ms))
    shaken = updated[0].in_a_row >= _SHAKEN_BY  # the first is the provider's
    held = _without_trust(lines, updated) if shaken else updated
    rooms = [_room_of(line, tally, held[0], now_ms, shaken=shaken) for line, tally in zip(lines, held, strict=True)]
    cost_least = min(cost, cost_least)
    if cost > COST_UNAMBIGUOUS and not shaken and all(room.spent + 1 <= share * room.floor for room in rooms):
        cost = COST_UNAMBIGUOUS
    else:
        cost = _trusted_cost(cost, cost_least, lines, held)
    limiting, wait_ms, left = -1, 0, []
    for index, (line, tally, room) in enumerate(zip(lines, held, rooms, strict=True)):
        left.append(room.most - room.spent)
        if line.scope is BudgetScope.INTENT:
            refused = room.spent + 1 > room.most
            until_ms = max(tally.bucket - now_ms, 1)
        else:
            limit = share * room.most
            refused = room.spent + cost > limit and not (room.spent < 1 and limit >= 1)
            until_ms = _wait_ms(tally, line.window_ms, limit, cost, room.late)
        if cost > 0 and refused and until_ms > wait_ms:
            limiting, wait_ms = index, until_ms
    if cost == 0 or limiting >= 0:
        return BudgetDecision(False, limiting, wait_ms, cost, tuple(left), tuple(updated))
    debits = [1 if line.scope is BudgetScope.INTENT else cost for line in lines]
    return BudgetDecision(
        True,
        -1,
        0,
        cost,
        tuple(room - debit for room, debit in zip(left, debits, strict=True)),
        tuple(tally._replace(spent=tally.spent + debit) for tally, debit in zip(updated, debits, strict=True)),
    )


class _Room(NamedTuple):
    """The room that a scope has for retries in the present window, and how much of it is spent."""

    floor: float
    most: float  # the floor, or the ratio times first attempts
    spent: float
    late: float  # the part of the earlier bucket that the window still covers


def _room_of(line: BudgetLine, tally: BudgetTally, provider: BudgetTally, now_ms: int, *, shaken: bool) -> _Room:
    floor = line.rule.floor
    if line.scope is BudgetScope.INTENT:
        return _Room(math.inf, floor, tally.spent, 0.0)
    # A first attempt has no failure class yet. So a class is measured against all first attempts of the provider.
    firsts_of = provider if line.scope is BudgetScope.FAILURE_CLASS else tally
    late = 1 - _elapsed(tally, line.window_ms, now_ms)
    late_of_firsts = 1 - _elapsed(firsts_of, line.window_ms, now_ms)
    firsts = firsts_of.firsts + firsts_of.firsts_before * late_of_firsts
    spent = tally.spent + tally.spent_before * late
    if shaken:
        floor = min(floor, max(floor * _SHAKEN_FLOOR, _SHAKEN_FLOOR_LEAST))
    return _Room(floor, max(floor, tally.ratio * firsts), spent, late)


def is_expired(tally: BudgetTally, line: BudgetLine, now_ms: int) -> bool:
    """Whether the tally can be dropped without any effect."""
    if line.scope is BudgetScope.INTENT:
        return now_ms >= tally.bucket
    return now_ms // line.window_ms > tally.bucket + 1


def _counted_intent(tally: BudgetTally | None, line: BudgetLine, counts: BudgetCounts, now_ms: int) -> BudgetTally:
    if tally is None or now_ms >= tally.bucket:
        tally = BudgetTally(now_ms + line.window_ms)
    return tally._replace(spent=max(0, tally.spent + counts.spent))


def _counted(tally: BudgetTally | None, line: BudgetLine, counts: BudgetCounts, now_ms: int) -> BudgetTally:
    """The tally moved to the present bucket, with the counts added. If the clock went back, it stays in its bucket."""
    bucket = now_ms // line.window_ms
    if tally is None or bucket > tally.bucket + 1:
        tally = BudgetTally(bucket, judged_ms=now_ms, ratio=line.rule.ratio, ratio_ms=now_ms)
    elif bucket == tally.bucket + 1:
        tally = tally._replace(bucket=bucket, firsts=0, firsts_before=tally.firsts, spent=0, spent_before=tally.spent)
    doubted = math.floor(counts.doubted * (1 - _trust(tally, line.rule)) + 0.5)
    spent, before = tally.spent + counts.spent + doubted, tally.spent_before
    if spent < 0:  # a refund of a grant from the earlier bucket
        spent, before = 0, max(0, before + spent)
    fade = _fade(tally, now_ms)
    return BudgetTally(
        tally.bucket,
        tally.firsts + counts.firsts,
        tally.firsts_before,
        spent,
        before,
        tally.helped * fade + counts.helped,
        tally.vain * fade + counts.vain,
        now_ms,
        tally.ratio,
        tally.ratio_ms,
        0 if counts.helped else tally.in_a_row + counts.failed,
    )


def _fade(tally: BudgetTally, now_ms: int) -> float:
    """The part of the counted attempts that is left after the time since. The last few attempts fade more slowly. They
    must fade too: otherwise an outage that is over would count for ever against a scope that may hardly retry."""
    later_ms = max(0, now_ms - tally.judged_ms)
    kept = min(1.0, _KNOWN_LEAST / max(tally.helped + tally.vain, 1.0))
    faded: float = max(0.5 ** (later_ms / _HALF_LIFE_MS), kept * 0.5 ** (later_ms / _LAST_HALF_LIFE_MS))
    return faded


def _elapsed(tally: BudgetTally, window_ms: int, now_ms: int) -> float:
    return min(max((now_ms - tally.bucket * window_ms) / window_ms, 0.0), 1.0)


def _with_adapted_ratio(tally: BudgetTally, provider: BudgetTally | None, rule: ScopeRule, now_ms: int) -> BudgetTally:
    """The tally with the ratio that the counted attempts call for: it falls at once, and doubles every half second."""
    target = _target(tally, provider, rule)
    ratio, since_ms = tally.ratio, tally.ratio_ms
    if target <= ratio or now_ms < since_ms:
        return tally._replace(ratio=min(ratio, target), ratio_ms=now_ms)
    rises = (now_ms - since_ms) // _RISE_MS
    for _ in range(min(rises, _RISES_MAX)):
        ratio = max(ratio, _RISE_FROM) * _RISE
    return tally._replace(ratio=min(ratio, target), ratio_ms=since_ms + rises * _RISE_MS)


def _target(tally: BudgetTally, provider: BudgetTally | None, rule: ScopeRule) -> float:
    """The ratio that the counted attempts call for. `provider` is the tally of the provider's scope, from which the
    others borrow; None for that scope itself."""
    if rule.ceiling <= 0:
        return 0.0
    prior = _USELESS + _SPAN * rule.ratio / rule.ceiling  # before any attempt the target is the policy's ratio
    helped, known = tally.helped + _PRIOR * prior, tally.helped + tally.vain + _PRIOR
    if provider is not None:
        lent = _LENT / max(provider.helped + provider.vain, _LENT)
        helped, known = helped + lent * provider.helped, known + lent * (provider.helped + provider.vain)
    return min(max(rule.ceiling * (helped / known - _USELESS) / _SPAN, rule.least), rule.ceiling)


def _trust(tally: BudgetTally, rule: ScopeRule) -> float:
    """How far the ratio has risen from its start, as a part of the way to the ceiling."""
    if rule.ceiling <= rule.ratio:
        return 0.0
    return min(max((tally.ratio - rule.ratio) / (rule.ceiling - rule.ratio), 0.0), 1.0)


def _without_trust(lines: Sequence[BudgetLine], updated: Sequence[BudgetTally]) -> list[BudgetTally]:
    """The tallies with the least ratios, which apply while no attempt at the provider succeeds. The stored tallies keep
    their ratios for the time after."""
    return [tally._replace(ratio=min(tally.ratio, line.rule.least)) for line, tally in zip(lines, updated, strict=True)]


def _trusted_cost(cost: int, least: int, lines: Sequence[BudgetLine], updated: Sequence[BudgetTally]) -> int:
    """The cost by the trust of the scope that trusts least. It is a whole number, so that a refund leaves no
    remainder."""
    trust = min(
        (
            _trust(tally, line.rule)
            for line, tally in zip(lines, updated, strict=True)
            if line.scope is not BudgetScope.INTENT
        ),
        default=0.0,
    )
    return math.floor(cost - (cost - least) * trust + 0.5)


def _wait_ms(tally: BudgetTally, window_ms: int, limit: float, cost: int, late: float) -> int:
    """How long until the cost would fit, if nothing else happened. It is two windows if it would never fit, and at
    least a millisecond."""
    if limit < 1:
        return 2 * window_ms
    room = limit - cost if limit > cost else 0.999  # the spent cost must come down to this
    if tally.spent <= room and tally.spent_before > 0:
        wait = (late - (room - tally.spent) / tally.spent_before) * window_ms
    elif tally.spent <= room:
        wait = 0.0
    else:
        wait = (late + 1 - room / tally.spent) * window_ms
    return max(1, math.ceil(wait))
