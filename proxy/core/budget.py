"""Retry budgets: how many retries a provider may see from the whole fleet, and which of them. Pure arithmetic.

A retry is weighed in every scope it belongs to: its provider, operation, account, failure class and intent. In a
window that slides over two buckets,

    N = firsts + firsts of the bucket before x (1 - elapsed)    first attempts
    R = spent + spent in the bucket before x (1 - elapsed)      the cost of retries

it is granted iff `R + cost <= share(priority) x max(floor, ratio x N)` in all scopes, and the intent has retries left;
then all are debited, else none. One retry of any cost fits where as good as nothing is spent (R < 1): else a re-send
after a timeout, at 4, could never fit into an account's floor of 3.

The ratio of each scope follows how often its retries helped: it falls at once and rises slowly. Times are whole
milliseconds of whichever clock the store has. `limits/lua/budget.lua` is the same arithmetic, line by line, in the same
order of operations; one suite holds both against the same sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from proxy.core.call import Priority
from proxy.core.circuit import Group
from proxy.core.frozen import frozen
from proxy.core.reading import Classification, Effect, Reading

RATIO_LEAST = 0.05  # retries that do not help are cut to this part of first attempts (or to the floor)
INTENT_MS = 86_400_000  # an intent's retries are counted for a day, which is how long most providers know a key

# So many of the retries judged must help before the ratio rises above its least; at 60% it is the ceiling. With a line
# up to 100%, random failures of 25%, of which 75% of retries help, would be held just under what they need.
_USELESS, _SPAN = 0.2, 0.4
_HALF_LIFE_MS = 1_000  # of what is known of retries
_KNOWN_LEAST = 20.0  # of them the last ones count however long ago; a scope left alone for two windows starts anew
_PRIOR = 1.0  # judged retries that a scope is taken to have seen before its first
_RISE, _RISE_MS, _RISES_MAX = 1.5, 500, 20
_RISE_FROM = 0.01  # a ratio of nothing would stay nothing

COST_UNAMBIGUOUS, COST_EXPLICIT, COST_AMBIGUOUS = 1, 2, 4
SHARES = {Priority.HIGH: 1.0, Priority.MEDIUM: 0.8, Priority.LOW: 0.5}


class Scope(StrEnum):
    PROVIDER = "provider"
    OPERATION = "operation"
    ACCOUNT = "account"
    FAILURE_CLASS = "failure_class"
    INTENT = "intent"


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """`floor`: cost that always fits into a window, fleet-wide. `ratio`: of first attempts, where nothing is known."""

    floor: float
    ratio: float = RATIO_LEAST
    ceiling: float = 1.0

    @property
    def least(self) -> float:
        return min(RATIO_LEAST, self.ratio)


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """A provider's budgets, as its policy gives them."""

    window_s: float = 10.0
    provider: ScopeRule = ScopeRule(10)
    operation: ScopeRule = ScopeRule(5)
    account: ScopeRule = ScopeRule(3)
    failure_class: ScopeRule = ScopeRule(5)
    per_intent: int = 3

    @property
    def window_ms(self) -> int:
        return round(self.window_s * 1000)

    @property
    def of_inquiries(self) -> BudgetRules:
        """Asking is safe and cheap, and what is in doubt waits for it: ten times the floors, twice the ceiling."""
        provider, operation, account, failure_class = (
            replace(rule, floor=rule.floor * 10, ceiling=rule.ceiling * 2)
            for rule in (self.provider, self.operation, self.account, self.failure_class)
        )
        return BudgetRules(self.window_s, provider, operation, account, failure_class, self.per_intent)


@frozen
class Origin:
    """Where an attempt comes from, as budgets count it."""

    provider: str
    operation: str
    account: str
    rules: BudgetRules = BudgetRules()
    group: Group = Group.WRITE  # inquiries have budgets of their own: doubt is resolved while writes may not be retried


@dataclass(frozen=True, slots=True)
class RetryAsk:
    """A retry that has been decided on, and asks for its allowance."""

    origin: Origin
    failure_class: Reading  # of the attempt before it
    cost: int = COST_UNAMBIGUOUS
    priority: Priority = Priority.HIGH
    intent: str | None = None  # its hash: the guard's value, never the intent in clear
    repeatable: bool = True  # keyed at a provider that dedupes, or a safe read: twice is once

    @property
    def share(self) -> float:
        return SHARES[self.priority]


def cost_of(classification: Classification) -> int:
    """What a retry after this costs: the less is known of the attempt before it, the more."""
    reading = classification.reading
    if reading is Reading.RATE_LIMITED or classification.effect is Effect.NONE:
        return COST_UNAMBIGUOUS
    if classification.lost or reading in _AMBIGUOUS:
        return COST_AMBIGUOUS
    return COST_EXPLICIT


_AMBIGUOUS = frozenset({Reading.NETWORK_READ_TIMEOUT, Reading.PROVIDER_TIMEOUT, Reading.UNKNOWN_OUTCOME})


class Line(NamedTuple):
    """One scope of a request: its name within the provider and group, and its rule. An intent's floor is its cap."""

    scope: Scope
    name: str
    rule: ScopeRule
    window_ms: int


class Counts(NamedTuple):
    """What happened in one scope since it was last told. `spent` is negative where retries were refunded."""

    firsts: int = 0
    spent: int = 0
    helped: int = 0  # retries that succeeded
    vain: int = 0  # retries that did not

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.firsts + other.firsts, self.spent + other.spent, self.helped + other.helped, self.vain + other.vain
        )

    @property
    def tightening(self) -> Counts:
        """The part that makes a budget smaller: safe to tell twice, where it is not known whether it was heard."""
        return Counts(spent=max(0, self.spent), vain=self.vain)


NOTHING = Counts()


class Tally(NamedTuple):
    """What a scope remembers: two buckets, and its ratio. An intent has a count and an end instead of the buckets."""

    bucket: int  # for an intent: when its count is over
    firsts: int = 0
    firsts_before: int = 0
    spent: int = 0
    spent_before: int = 0
    helped: float = 0.0  # retries that did, and that did not, fading
    vain: float = 0.0
    judged_ms: int = 0  # when they last faded
    ratio: float = 0.0
    ratio_ms: int = 0  # when the ratio last fell or rose


class Weighed(NamedTuple):
    granted: bool
    limiting: int  # index of the line that will refuse the longest; -1 where none does
    wait_ms: int
    left: tuple[float, ...]  # of each line, for high priority, after what was granted
    tallies: tuple[Tally, ...]


def lines_of(origin: Origin) -> tuple[Line, ...]:
    """The scopes that count first attempts. The first is always the provider's: a class is held against its firsts."""
    rules, window_ms = origin.rules, origin.rules.window_ms
    return (
        Line(Scope.PROVIDER, "", rules.provider, window_ms),
        Line(Scope.OPERATION, origin.operation, rules.operation, window_ms),
        Line(Scope.ACCOUNT, origin.account, rules.account, window_ms),
    )


def lines_asked(ask: RetryAsk) -> tuple[Line, ...]:
    """All the scopes that a retry is weighed in."""
    rules = ask.origin.rules
    lines = (
        *lines_of(ask.origin),
        Line(Scope.FAILURE_CLASS, str(ask.failure_class), rules.failure_class, rules.window_ms),
    )
    if ask.intent is None:
        return lines
    return (*lines, Line(Scope.INTENT, ask.intent, ScopeRule(rules.per_intent), INTENT_MS))


def weigh(
    lines: Sequence[Line],
    tallies: Sequence[Tally | None],
    counts: Sequence[Counts],
    cost: int,
    share: float,
    now_ms: int,
) -> Weighed:
    """Count what happened in each scope; then, where a cost is asked, grant it in all of them or in none."""
    told = [
        _counted_intent(tally, line, count, now_ms)
        if line.scope is Scope.INTENT
        else _adapted(_counted(tally, line, count, now_ms), line, now_ms)
        for line, tally, count in zip(lines, tallies, counts, strict=True)
    ]
    limiting, wait_ms, left = -1, 0, []
    for index, (line, tally) in enumerate(zip(lines, told, strict=True)):
        if line.scope is Scope.INTENT:
            left.append(line.rule.floor - tally.spent)
            refused = tally.spent + 1 > line.rule.floor
            until_ms = max(tally.bucket - now_ms, 1)
        else:
            # What failed has no class when it is first tried: a class is held against all of the provider's firsts.
            firsts_of = told[0] if line.scope is Scope.FAILURE_CLASS else tally
            late = 1 - _elapsed(tally, line.window_ms, now_ms)
            late_of_firsts = 1 - _elapsed(firsts_of, line.window_ms, now_ms)
            firsts = firsts_of.firsts + firsts_of.firsts_before * late_of_firsts
            spent = tally.spent + tally.spent_before * late
            most = max(line.rule.floor, tally.ratio * firsts)
            limit = share * most
            left.append(most - spent)
            refused = spent + cost > limit and not (spent < 1 and limit >= 1)
            until_ms = _wait_ms(tally, line.window_ms, limit, cost, late)
        if cost > 0 and refused and until_ms > wait_ms:
            limiting, wait_ms = index, until_ms
    if cost == 0 or limiting >= 0:
        return Weighed(False, limiting, wait_ms, tuple(left), tuple(told))
    debits = [1 if line.scope is Scope.INTENT else cost for line in lines]
    return Weighed(
        True,
        -1,
        0,
        tuple(room - debit for room, debit in zip(left, debits, strict=True)),
        tuple(tally._replace(spent=tally.spent + debit) for tally, debit in zip(told, debits, strict=True)),
    )


def is_over(tally: Tally, line: Line, now_ms: int) -> bool:
    """Whether forgetting it changes nothing."""
    if line.scope is Scope.INTENT:
        return now_ms >= tally.bucket
    return now_ms // line.window_ms > tally.bucket + 1


def _counted_intent(tally: Tally | None, line: Line, counts: Counts, now_ms: int) -> Tally:
    if tally is None or now_ms >= tally.bucket:
        tally = Tally(now_ms + line.window_ms)
    return tally._replace(spent=max(0, tally.spent + counts.spent))


def _counted(tally: Tally | None, line: Line, counts: Counts, now_ms: int) -> Tally:
    """Turned to the bucket of now, with the counts added. A clock that went back stays in the bucket it had reached."""
    bucket = now_ms // line.window_ms
    if tally is None or bucket > tally.bucket + 1:
        tally = Tally(bucket, judged_ms=now_ms, ratio=line.rule.ratio, ratio_ms=now_ms)
    elif bucket == tally.bucket + 1:
        tally = tally._replace(bucket=bucket, firsts=0, firsts_before=tally.firsts, spent=0, spent_before=tally.spent)
    spent, before = tally.spent + counts.spent, tally.spent_before
    if spent < 0:  # a refund of what was granted in the bucket before
        spent, before = 0, max(0, before + spent)
    fade = _fade(tally, now_ms)
    return Tally(
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
    )


def _fade(tally: Tally, now_ms: int) -> float:
    """What is left of the knowledge of then. The last few judged retries stay: to forget is not to know better."""
    known = tally.helped + tally.vain
    if known <= _KNOWN_LEAST:
        return 1.0
    faded: float = 0.5 ** (max(0, now_ms - tally.judged_ms) / _HALF_LIFE_MS)
    return max(faded, _KNOWN_LEAST / known)


def _elapsed(tally: Tally, window_ms: int, now_ms: int) -> float:
    return min(max((now_ms - tally.bucket * window_ms) / window_ms, 0.0), 1.0)


def _adapted(tally: Tally, line: Line, now_ms: int) -> Tally:
    """The ratio after what is known of how retries fared: down at once, up by half every half second."""
    target = _target(tally, line.rule)
    ratio, since_ms = tally.ratio, tally.ratio_ms
    if target <= ratio or now_ms < since_ms:
        return tally._replace(ratio=min(ratio, target), ratio_ms=now_ms)
    rises = (now_ms - since_ms) // _RISE_MS
    for _ in range(min(rises, _RISES_MAX)):
        ratio = max(ratio, _RISE_FROM) * _RISE
    return tally._replace(ratio=min(ratio, target), ratio_ms=since_ms + rises * _RISE_MS)


def _target(tally: Tally, rule: ScopeRule) -> float:
    if rule.ceiling <= 0:
        return 0.0
    prior = _USELESS + _SPAN * rule.ratio / rule.ceiling  # with nothing judged the target is the policy's ratio
    helps = (tally.helped + _PRIOR * prior) / (tally.helped + tally.vain + _PRIOR)
    return min(max(rule.ceiling * (helps - _USELESS) / _SPAN, rule.least), rule.ceiling)


def _wait_ms(tally: Tally, window_ms: int, limit: float, cost: int, late: float) -> int:
    """When it would fit if nothing else happened; two windows where it never would. At least a millisecond."""
    if limit < 1:
        return 2 * window_ms
    room = limit - cost if limit > cost else 0.999  # what is spent must come down to this
    if tally.spent <= room and tally.spent_before > 0:
        wait = (late - (room - tally.spent) / tally.spent_before) * window_ms
    elif tally.spent <= room:
        wait = 0.0
    else:
        wait = (late + 1 - room / tally.spent) * window_ms
    return max(1, math.ceil(wait))
