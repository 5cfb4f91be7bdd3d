"""The arithmetic of retry budgets, by itself: what fits, what it costs, how the ratio moves, how long to wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.budget import (
    INTENT_MS,
    NOTHING,
    BudgetRules,
    Counts,
    Line,
    Origin,
    RetryAsk,
    Scope,
    ScopeRule,
    Tally,
    Weighed,
    cost_of,
    is_over,
    lines_asked,
    weigh,
)
from proxy.core.call import Priority
from proxy.core.reading import Classification, Reading

WINDOW_MS = 10_000
WIDE = ScopeRule(1e9)


def line(floor: float = 10, ratio: float = 0.05, ceiling: float = 1.0, scope: Scope = Scope.PROVIDER) -> Line:
    return Line(scope, "", ScopeRule(floor, ratio, ceiling), WINDOW_MS)


class One:
    """A provider's scope alone, and its clock."""

    def __init__(self, only: Line) -> None:
        self.only = only
        self.tally: Tally | None = None
        self.now_ms = 0

    def count(self, counts: Counts = NOTHING) -> Tally:
        (self.tally,) = weigh([self.only], [self.tally], [counts], 0, 1.0, self.now_ms).tallies
        return self.tally

    def ask(self, cost: int = 1, share: float = 1.0) -> Weighed:
        weighed = weigh([self.only], [self.tally], [NOTHING], cost, share, self.now_ms)
        (self.tally,) = weighed.tallies
        return weighed

    def grants(self, cost: int = 1, share: float = 1.0) -> int:
        """How many in a row until one is refused."""
        granted = 0
        while self.ask(cost, share).granted:
            granted += 1
        return granted


@pytest.mark.parametrize(("cost", "granted"), [(1, 10), (2, 5), (4, 2)])
def test_a_quiet_provider_has_its_floor(cost: int, granted: int) -> None:
    assert One(line(floor=10)).grants(cost) == granted


def test_a_busy_provider_has_its_ratio_of_first_attempts_and_no_floor_on_top() -> None:
    one = One(line(floor=10, ratio=0.05))
    one.count(Counts(firsts=1_000))
    assert one.grants() == 50


@pytest.mark.parametrize(("priority", "granted"), [(Priority.HIGH, 10), (Priority.MEDIUM, 8), (Priority.LOW, 5)])
def test_each_priority_has_its_share(priority: Priority, granted: int) -> None:
    ask = RetryAsk(Origin("acme", "charge", "main"), Reading.RATE_LIMITED, priority=priority)
    assert One(line(floor=10)).grants(share=ask.share) == granted


def test_what_low_priority_may_not_have_is_left_for_high() -> None:
    one = One(line(floor=10))
    assert (one.grants(share=0.5), one.grants(share=0.8), one.grants(share=1.0)) == (5, 3, 2)


def test_one_retry_fits_into_an_untouched_floor_whatever_it_costs() -> None:
    one = One(line(floor=3))
    assert one.grants(cost=4) == 1
    one.now_ms = 2 * WINDOW_MS
    assert one.grants(cost=4) == 1


@pytest.mark.parametrize("cost", [1, 2, 4])
def test_a_floor_of_nothing_lets_nothing_through(cost: int) -> None:
    assert One(line(floor=0, ratio=0.0, ceiling=0.0)).grants(cost) == 0


def test_the_window_slides() -> None:
    one = One(line(floor=10))
    assert one.grants() == 10
    one.now_ms = 9_999
    assert one.grants() == 0
    one.now_ms = 15_000  # half of the ten has gone
    assert one.grants() == 5
    one.now_ms = 40_000
    assert one.grants() == 10


@pytest.mark.parametrize("spent", [1, 3, 10])
@pytest.mark.parametrize("asked_at_ms", [0, 4_000, 9_999, 13_000, 19_000])
def test_after_the_wait_it_fits_and_not_long_before(asked_at_ms: int, spent: int) -> None:
    one = One(line(floor=10))
    one.count(Counts(spent=10))
    one.now_ms = asked_at_ms
    one.count(Counts(spent=spent))
    refused = one.ask()
    if refused.granted:
        return
    one.now_ms = asked_at_ms + refused.wait_ms - 20
    assert not one.ask().granted
    one.now_ms = asked_at_ms + refused.wait_ms + 1
    assert one.ask().granted


def test_a_clock_that_goes_back_grants_nothing_twice() -> None:
    one = One(line(floor=10))
    one.now_ms = 25_000
    assert one.grants() == 10
    one.now_ms = 3_000
    assert one.grants() == 0


def test_a_refund_is_taken_from_this_bucket_and_then_from_the_one_before() -> None:
    one = One(line(floor=10))
    one.count(Counts(spent=6))
    one.now_ms = WINDOW_MS
    one.count(Counts(spent=2))
    tally = one.count(Counts(spent=-4))
    assert (tally.spent, tally.spent_before) == (0, 4)
    tally = one.count(Counts(spent=-100))
    assert (tally.spent, tally.spent_before) == (0, 0)


# --- the ratio


def test_with_nothing_known_the_ratio_is_the_policys() -> None:
    for ratio in (0.0, 0.02, 0.05, 0.3):
        one = One(line(ratio=ratio))
        for one.now_ms in range(0, 60_000, 500):
            assert one.count(Counts(firsts=1)).ratio == pytest.approx(ratio)


def test_retries_that_help_raise_the_ratio_by_half_every_half_second_up_to_the_ceiling() -> None:
    one = One(line(ratio=0.05, ceiling=0.8))
    seen = []
    for one.now_ms in range(0, 6_000, 500):
        seen.append(one.count(Counts(helped=20)).ratio)
    assert seen[:4] == pytest.approx([0.05, 0.075, 0.1125, 0.16875])
    assert seen[-1] == pytest.approx(0.8)


def test_retries_that_do_not_help_cut_the_ratio_at_once() -> None:
    one = One(line(ratio=0.05))
    for one.now_ms in range(0, 8_000, 500):
        one.count(Counts(helped=10))
    assert one.count().ratio == 1.0
    assert one.count(Counts(vain=800)).ratio == 0.05


def test_a_bad_start_cuts_the_ratio_below_the_policys() -> None:
    one = One(line(ratio=0.3))
    assert one.count(Counts(vain=3)).ratio == 0.05


@pytest.mark.parametrize(("helped", "ratio"), [(0, 0.05), (15, 0.05), (40, 0.5), (60, 1.0), (100, 1.0)])
def test_the_ratio_follows_how_many_of_a_hundred_retries_help(helped: int, ratio: float) -> None:
    one = One(line(ratio=0.05))
    for one.now_ms in range(0, 9_900, 100):
        tally = one.count(Counts(helped=helped, vain=100 - helped))
    assert tally.ratio == pytest.approx(ratio, abs=0.01)


def test_the_ratio_never_leaves_its_bounds() -> None:
    @given(
        st.floats(0, 2),
        st.floats(0, 2),
        st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 50), st.integers(0, 50))),
    )
    def bounded(ratio: float, ceiling: float, steps: list[tuple[int, int, int]]) -> None:
        ratio = min(ratio, ceiling)
        one = One(line(ratio=ratio, ceiling=ceiling))
        for later_ms, helped, vain in steps:
            one.now_ms += later_ms
            found = one.count(Counts(helped=helped, vain=vain)).ratio
            assert min(0.05, ratio) <= found + 1e-12
            assert found <= ceiling + 1e-12

    bounded()


# --- several scopes


def asked(*, intent: str | None = "i1", **rules: Any) -> tuple[Line, ...]:
    origin = Origin("acme", "charge", "main", BudgetRules(**rules))
    return lines_asked(RetryAsk(origin, Reading.RATE_LIMITED, intent=intent))


def test_the_scopes_of_a_retry() -> None:
    assert [(found.scope, found.name) for found in asked()] == [
        (Scope.PROVIDER, ""),
        (Scope.OPERATION, "charge"),
        (Scope.ACCOUNT, "main"),
        (Scope.FAILURE_CLASS, "rate_limited"),
        (Scope.INTENT, "i1"),
    ]
    assert [found.scope for found in asked(intent=None)][-1] is Scope.FAILURE_CLASS


@pytest.mark.parametrize("tight", ["provider", "operation", "account", "failure_class"])
def test_what_one_scope_refuses_is_debited_in_none(tight: str) -> None:
    wide = dict.fromkeys(("provider", "operation", "account", "failure_class"), WIDE)
    rules: dict[str, Any] = wide | {tight: ScopeRule(1)}
    lines = asked(**rules)
    first = weigh(lines, [None] * 5, [NOTHING] * 5, 1, 1.0, 0)
    second = weigh(lines, first.tallies, [NOTHING] * 5, 1, 1.0, 0)
    assert first.granted
    assert not second.granted
    assert lines[second.limiting].scope == tight
    assert second.left[second.limiting] == 0
    assert second.tallies == first.tallies


def test_an_intent_has_so_many_retries_a_day() -> None:
    lines = asked(provider=WIDE, operation=WIDE, account=WIDE, failure_class=WIDE, per_intent=2)
    tallies: tuple[Tally | None, ...] = (None,) * 5
    granted = []
    for now_ms in (0, 3_600_000, 7_200_000, INTENT_MS, INTENT_MS + 1):
        weighed = weigh(lines, tallies, [NOTHING] * 5, 4, 1.0, now_ms)
        tallies = weighed.tallies
        granted.append(weighed.granted)
        if not weighed.granted:
            assert lines[weighed.limiting].scope is Scope.INTENT
            assert now_ms + weighed.wait_ms == INTENT_MS
    assert granted == [True, True, False, True, True]


def test_the_scope_that_refuses_the_longest_is_told() -> None:
    lines = asked(provider=ScopeRule(0, 0, 0), per_intent=0)
    weighed = weigh(lines, [None] * 5, [NOTHING] * 5, 1, 1.0, 0)
    assert lines[weighed.limiting].scope is Scope.INTENT
    assert weighed.wait_ms == INTENT_MS


def test_a_class_is_held_against_all_first_attempts_of_the_provider() -> None:
    lines = asked(intent=None, operation=WIDE, account=WIDE)
    counts = [Counts(firsts=1_000), NOTHING, NOTHING, NOTHING]
    weighed = weigh(lines, [None] * 4, counts, 1, 1.0, 0)
    assert [weighed.left[0], weighed.left[3]] == [49, 49]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_over_may_be_forgotten(then_ms: int, later_ms: int) -> None:
    only = line()
    (tally,) = weigh([only], [None], [Counts(5, 5, 5, 5)], 0, 1.0, then_ms).tallies
    now_ms = then_ms + later_ms
    remembered = weigh([only], [tally], [NOTHING], 1, 1.0, now_ms)
    if is_over(tally, only, now_ms):
        assert remembered == weigh([only], [None], [NOTHING], 1, 1.0, now_ms)


# --- the cost


@pytest.mark.parametrize(
    ("reading", "lost", "cost"),
    [
        (Reading.NETWORK_CONNECT_FAILURE, True, 1),
        (Reading.RATE_LIMITED, False, 1),
        (Reading.TEMPORARY_PROVIDER_ERROR, False, 2),
        (Reading.IDEMPOTENCY_IN_FLIGHT, False, 2),
        (Reading.TEMPORARY_PROVIDER_ERROR, True, 4),
        (Reading.NETWORK_READ_TIMEOUT, True, 4),
        (Reading.PROVIDER_TIMEOUT, False, 4),
        (Reading.UNKNOWN_OUTCOME, True, 4),
    ],
)
def test_the_less_is_known_the_more_a_retry_costs(reading: Reading, lost: bool, cost: int) -> None:
    assert cost_of(Classification.of(reading, "rule", lost=lost)) == cost
