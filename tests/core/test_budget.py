"""The arithmetic of retry budgets, by itself: what fits, what it costs, how the ratio moves, how long to wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.budget import (
    INTENT_MS,
    NO_BUDGET_COUNTS,
    AttemptOrigin,
    BudgetCounts,
    BudgetDecision,
    BudgetLine,
    BudgetRules,
    BudgetScope,
    BudgetTally,
    RetryRequest,
    ScopeRule,
    caller_repeat_counts,
    cost_of,
    evaluate_budget,
    is_expired,
    lines_of_retry,
)
from paywitness.core.call import Priority
from paywitness.core.result import Classification, ResultClass

WINDOW_MS = 10_000
WIDE = ScopeRule(1e9)


def line(
    floor: float = 10, ratio: float = 0.05, ceiling: float = 1.0, scope: BudgetScope = BudgetScope.PROVIDER
) -> BudgetLine:
    return BudgetLine(scope, "", ScopeRule(floor, ratio, ceiling), WINDOW_MS)


class One:
    """A provider's scope alone, and its clock."""

    def __init__(self, only: BudgetLine) -> None:
        self.only = only
        self.tally: BudgetTally | None = None
        self.now_ms = 0

    def count(self, counts: BudgetCounts = NO_BUDGET_COUNTS) -> BudgetTally:
        (self.tally,) = evaluate_budget([self.only], [self.tally], [counts], 0, 1.0, self.now_ms).tallies
        return self.tally

    def ask(self, cost: int = 1, share: float = 1.0) -> BudgetDecision:
        weighed = evaluate_budget([self.only], [self.tally], [NO_BUDGET_COUNTS], cost, share, self.now_ms)
        (self.tally,) = weighed.tallies
        return weighed

    def grants(self, cost: int = 1, share: float = 1.0) -> int:
        """How many in a row until one is refused."""
        granted = 0
        while self.ask(cost, share).granted:
            granted += 1
        return granted


SHAKEN = BudgetCounts(vain=5, failed=5)


def shaken(only: BudgetLine) -> One:
    """A provider of which nothing is known but five attempts that all failed."""
    one = One(only)
    one.count(SHAKEN)
    return one


@pytest.mark.parametrize("cost", [1, 2, 4])
def test_a_quiet_provider_has_its_floor_of_retries_whatever_they_cost(cost: int) -> None:
    one = One(line(floor=10))
    assert (one.grants(cost), one.ask(cost).cost) == (10, cost)


@pytest.mark.parametrize(("cost", "granted"), [(1, 4), (2, 2), (4, 1)])
def test_five_failed_attempts_in_a_row_leave_a_twenty_fifth_of_the_floor_at_full_cost(cost: int, granted: int) -> None:
    one = shaken(line(floor=100))
    assert one.grants(cost) == granted
    one.count(BudgetCounts(helped=1))
    assert one.grants(cost) == 100 - granted * cost


def test_a_small_floor_leaves_one_retry_a_window_in_an_outage() -> None:
    assert shaken(line(floor=10)).grants() == 1
    assert shaken(line(floor=0.5)).grants() == 0


def test_four_failed_attempts_in_a_row_are_no_outage_however_late_they_were() -> None:
    one = One(line(floor=10))
    one.count(BudgetCounts(vain=16, failed=4))
    assert one.grants(cost=4) == 10


def test_a_busy_provider_has_its_ratio_of_first_attempts_and_no_floor_on_top() -> None:
    one = One(line(floor=10, ratio=0.05))
    one.count(BudgetCounts(firsts=1_000))
    assert one.grants() == 50


def _trusted() -> One:
    """After half a minute in which everything helped."""
    one = One(line(floor=10, ratio=0.05))
    for _ in range(60):
        one.now_ms += 500
        one.count(BudgetCounts(firsts=10, helped=10))
    return one


def test_five_in_vain_in_a_row_leave_what_an_untrusted_provider_has_until_one_helps() -> None:
    before, down, back = _trusted(), _trusted(), _trusted()
    before.count(BudgetCounts(vain=4, failed=4))
    down.count(BudgetCounts(vain=4, failed=4))
    down.count(BudgetCounts(vain=1, failed=1))
    back.count(SHAKEN)
    back.count(BudgetCounts(helped=1))
    firsts = 210  # of the window: ten every half second
    assert before.grants(cost=4) == back.grants(cost=4) == firsts  # at 1 each
    assert down.grants(cost=4) == 2  # a twentieth of the first attempts, at 4 each


def test_a_scope_that_saw_failures_alone_is_not_taken_for_an_outage_of_its_provider() -> None:
    provider, account = line(floor=1_000), line(floor=1_000, scope=BudgetScope.ACCOUNT)
    told = evaluate_budget(
        [provider, account], [None, None], [BudgetCounts(helped=20), BudgetCounts(vain=9, failed=9)], 0, 1.0, 0
    ).tallies
    weighed = evaluate_budget([provider, account], told, [NO_BUDGET_COUNTS, NO_BUDGET_COUNTS], 4, 1.0, 0)
    assert (weighed.granted, told[0].in_a_row, told[1].in_a_row) == (True, 0, 9)


@pytest.mark.parametrize(("priority", "granted"), [(Priority.HIGH, 10), (Priority.MEDIUM, 8), (Priority.LOW, 5)])
def test_each_priority_has_its_share(priority: Priority, granted: int) -> None:
    ask = RetryRequest(AttemptOrigin("acme", "charge", "main"), ResultClass.RATE_LIMITED, priority=priority)
    assert One(line(floor=10)).grants(share=ask.share) == granted


def test_what_low_priority_may_not_have_is_left_for_high() -> None:
    one = One(line(floor=10))
    assert (one.grants(share=0.5), one.grants(share=0.8), one.grants(share=1.0)) == (5, 3, 2)


def test_in_an_outage_one_retry_fits_into_an_untouched_floor_whatever_it_costs() -> None:
    one = shaken(line(floor=30))
    assert one.grants(cost=4) == 1
    one.now_ms = 2 * WINDOW_MS
    one.count(SHAKEN)
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
    one.count(BudgetCounts(spent=10))
    one.now_ms = asked_at_ms
    one.count(BudgetCounts(spent=spent))
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
    one.count(BudgetCounts(spent=6))
    one.now_ms = WINDOW_MS
    one.count(BudgetCounts(spent=2))
    tally = one.count(BudgetCounts(spent=-4))
    assert (tally.spent, tally.spent_before) == (0, 4)
    tally = one.count(BudgetCounts(spent=-100))
    assert (tally.spent, tally.spent_before) == (0, 0)


# --- the ratio


def test_with_nothing_known_the_ratio_is_the_policys() -> None:
    for ratio in (0.0, 0.02, 0.05, 0.3):
        one = One(line(ratio=ratio))
        for one.now_ms in range(0, 60_000, 500):
            assert one.count(BudgetCounts(firsts=1)).ratio == pytest.approx(ratio)


def test_retries_that_help_double_the_ratio_every_half_second_up_to_the_ceiling() -> None:
    one = One(line(ratio=0.05, ceiling=0.8))
    seen = []
    for one.now_ms in range(0, 6_000, 500):
        seen.append(one.count(BudgetCounts(helped=20)).ratio)
    assert seen[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert seen[-1] == pytest.approx(0.8)


def test_retries_that_do_not_help_cut_the_ratio_at_once() -> None:
    one = One(line(ratio=0.05))
    for one.now_ms in range(0, 8_000, 500):
        one.count(BudgetCounts(helped=10))
    assert one.count().ratio == 1.0
    assert one.count(BudgetCounts(vain=800)).ratio == 0.05


def test_a_bad_start_cuts_the_ratio_below_the_policys() -> None:
    one = One(line(ratio=0.3))
    assert one.count(BudgetCounts(vain=3)).ratio == 0.05


@pytest.mark.parametrize(("helped", "ratio"), [(0, 0.05), (15, 0.05), (25, 0.5), (35, 1.0), (100, 1.0)])
def test_the_ratio_follows_how_many_of_a_hundred_retries_help(helped: int, ratio: float) -> None:
    one = One(line(ratio=0.05))
    for one.now_ms in range(0, 9_900, 100):
        tally = one.count(BudgetCounts(helped=helped, vain=100 - helped))
    assert tally.ratio == pytest.approx(ratio, abs=0.02)


def test_what_is_known_of_many_is_soon_forgotten_and_the_last_few_not_for_a_while() -> None:
    one = One(line())
    one.count(BudgetCounts(vain=1_000))
    one.now_ms = 2_000
    assert one.count().vain == pytest.approx(62.5)  # a sixteenth
    one.now_ms = 9_000
    assert one.count().vain == pytest.approx(20 * 0.5**0.7)


# --- trust


def trusted(line: BudgetLine) -> One:
    """A scope whose attempts all help, and whose ratio has risen to its ceiling."""
    one = One(line)
    for one.now_ms in range(0, 8_000, 500):
        one.count(BudgetCounts(helped=10))
    return one


@pytest.mark.parametrize("cost", [1, 2, 4])
def test_beyond_the_floor_every_retry_of_a_trusted_scope_costs_one(cost: int) -> None:
    one = trusted(line(floor=10))
    one.count(BudgetCounts(firsts=100))
    assert one.grants(cost) == 100


def test_with_nothing_known_there_is_no_trust() -> None:
    """However high the policy's ratio is."""
    one = One(line(floor=0, ratio=0.5))
    one.count(BudgetCounts(firsts=20))
    assert (one.ask(4).cost, one.grants(4)) == (4, 1)


def test_trust_grows_with_the_ratio() -> None:
    one = One(line(floor=0, ratio=0.2, ceiling=1.0))
    costs, left = [], []
    one.count(BudgetCounts(firsts=100))
    for one.now_ms in range(0, 3_000, 500):
        one.count(BudgetCounts(helped=50))
        weighed = evaluate_budget([one.only], [one.tally], [NO_BUDGET_COUNTS], 4, 1.0, one.now_ms)
        costs.append(weighed.cost)
        left.append(weighed.left[0] + weighed.cost)
    assert costs == [4, 3, 2, 1, 1, 1]
    assert left == pytest.approx([20, 40, 80, 100, 100, 100])


def test_a_callers_repeats_cost_one_each_where_they_are_trusted() -> None:
    known, unknown = trusted(line(floor=10)), One(line(floor=10))
    for one in (known, unknown):
        for _ in range(2):
            one.count(caller_repeat_counts(4))
    assert (known.grants(), unknown.grants()) == (8, 2)


@pytest.mark.parametrize(
    ("reading", "cost", "least"),
    [
        (ResultClass.UNKNOWN_OUTCOME, 4, 1),
        (ResultClass.TEMPORARY_PROVIDER_ERROR, 2, 1),
        (ResultClass.RATE_LIMITED, 1, 1),
        (ResultClass.NETWORK_READ_TIMEOUT, 4, 4),
        (ResultClass.PROVIDER_TIMEOUT, 4, 4),
    ],
)
def test_beyond_the_floor_a_retry_after_a_timeout_is_never_cheaper(reading: ResultClass, cost: int, least: int) -> None:
    """A provider that answers late may have too much to do, however well the other calls fare."""
    ask = RetryRequest(AttemptOrigin("acme", "charge", "main"), reading, cost)
    one = trusted(line(floor=0))
    assert ask.cost_least == least
    assert (
        evaluate_budget(
            [one.only], [one.tally], [NO_BUDGET_COUNTS], cost, 1.0, one.now_ms, cost_least=ask.cost_least
        ).cost
        == least
    )


def test_trust_that_is_lost_leaves_the_least_ratio_and_the_full_cost() -> None:
    one = trusted(line(floor=0))
    one.count(BudgetCounts(firsts=200, vain=800))
    assert (one.ask(4).cost, one.grants(4)) == (4, 1)


def test_a_ratio_that_cannot_rise_is_never_trusted() -> None:
    assert trusted(line(floor=0, ratio=1.0, ceiling=1.0)).ask(4).cost == 4


def test_a_retry_costs_what_the_scope_says_that_trusts_it_least() -> None:
    lines = asked(intent="i1", **dict.fromkeys(("provider", "operation", "account", "failure_class"), ScopeRule(0)))
    counts = [
        BudgetCounts(firsts=1_000, helped=1_000),
        BudgetCounts(helped=1_000),
        BudgetCounts(helped=1_000),
        BudgetCounts(vain=1_000),
    ]
    tallies: tuple[BudgetTally | None, ...] = (None,) * 5
    for now_ms in range(0, 8_000, 500):
        tallies = evaluate_budget(lines, tallies, [*counts, NO_BUDGET_COUNTS], 0, 1.0, now_ms).tallies
    assert evaluate_budget(lines, tallies, [NO_BUDGET_COUNTS] * 5, 4, 1.0, now_ms).cost == 4
    assert evaluate_budget(lines[:3], tallies[:3], [NO_BUDGET_COUNTS] * 3, 4, 1.0, now_ms).cost == 1


# --- what a scope takes from its provider's


class Account:
    """An account, and its provider, which shows the same every half second."""

    def __init__(self, provider: BudgetCounts) -> None:
        self.provider = provider
        self.lines = (line(ratio=0.2), line(ratio=0.2, scope=BudgetScope.ACCOUNT))
        self.tallies: tuple[BudgetTally | None, ...] = (None, None)
        self.now_ms = 0

    def ratio_after(self, seconds: int, own: BudgetCounts = NO_BUDGET_COUNTS) -> float:
        """When so much time has passed, and then this has happened to it."""
        for step in range(2 * seconds):
            counts = [self.provider, own if step == 2 * seconds - 1 else NO_BUDGET_COUNTS]
            self.tallies = evaluate_budget(self.lines, self.tallies, counts, 0, 1.0, self.now_ms + 500 * step).tallies
        self.now_ms += 1000 * seconds
        assert self.tallies[1] is not None
        return self.tallies[1].ratio


def test_a_scope_that_knows_nothing_goes_by_its_provider() -> None:
    assert Account(BudgetCounts(helped=75, vain=25)).ratio_after(8) == 1.0
    assert Account(BudgetCounts(vain=100)).ratio_after(8) == 0.05


def test_a_few_retries_that_failed_by_chance_do_not_shut_a_scope() -> None:
    assert Account(BudgetCounts(helped=75, vain=25)).ratio_after(8, BudgetCounts(vain=2)) == 1.0


def test_a_scope_whose_own_retries_are_in_vain_is_cut_however_well_its_provider_is() -> None:
    assert Account(BudgetCounts(helped=100)).ratio_after(8, BudgetCounts(vain=40)) == 0.05


def test_an_outage_that_is_over_does_not_count_for_ever() -> None:
    """A scope that is cut hardly retries: nothing of its own would ever tell it better."""
    account = Account(BudgetCounts(helped=100))
    assert account.ratio_after(8, BudgetCounts(vain=40)) == 0.05
    assert account.ratio_after(30) == 1.0


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
            found = one.count(BudgetCounts(helped=helped, vain=vain)).ratio
            assert min(0.05, ratio) <= found + 1e-12
            assert found <= ceiling + 1e-12

    bounded()


# --- several scopes


def asked(*, intent: str | None = "i1", **rules: Any) -> tuple[BudgetLine, ...]:
    origin = AttemptOrigin("acme", "charge", "main", BudgetRules(**rules))
    return lines_of_retry(RetryRequest(origin, ResultClass.RATE_LIMITED, intent=intent))


def test_the_scopes_of_a_retry() -> None:
    assert [(found.scope, found.name) for found in asked()] == [
        (BudgetScope.PROVIDER, ""),
        (BudgetScope.OPERATION, "charge"),
        (BudgetScope.ACCOUNT, "main"),
        (BudgetScope.FAILURE_CLASS, "rate_limited"),
        (BudgetScope.INTENT, "i1"),
    ]
    assert [found.scope for found in asked(intent=None)][-1] is BudgetScope.FAILURE_CLASS


@pytest.mark.parametrize("tight", ["provider", "operation", "account", "failure_class"])
def test_what_one_scope_refuses_is_debited_in_none(tight: str) -> None:
    wide = dict.fromkeys(("provider", "operation", "account", "failure_class"), WIDE)
    rules: dict[str, Any] = wide | {tight: ScopeRule(1)}
    lines = asked(**rules)
    first = evaluate_budget(lines, [None] * 5, [NO_BUDGET_COUNTS] * 5, 1, 1.0, 0)
    second = evaluate_budget(lines, first.tallies, [NO_BUDGET_COUNTS] * 5, 1, 1.0, 0)
    assert first.granted
    assert not second.granted
    assert lines[second.limiting].scope == tight
    assert second.left[second.limiting] == 0
    assert second.tallies == first.tallies


def test_an_intent_has_so_many_retries_a_day() -> None:
    lines = asked(provider=WIDE, operation=WIDE, account=WIDE, failure_class=WIDE, per_intent=2)
    tallies: tuple[BudgetTally | None, ...] = (None,) * 5
    granted = []
    for now_ms in (0, 3_600_000, 7_200_000, INTENT_MS, INTENT_MS + 1):
        weighed = evaluate_budget(lines, tallies, [NO_BUDGET_COUNTS] * 5, 4, 1.0, now_ms)
        tallies = weighed.tallies
        granted.append(weighed.granted)
        if not weighed.granted:
            assert lines[weighed.limiting].scope is BudgetScope.INTENT
            assert now_ms + weighed.wait_ms == INTENT_MS
    assert granted == [True, True, False, True, True]


def test_the_scope_that_refuses_the_longest_is_told() -> None:
    lines = asked(provider=ScopeRule(0, 0, 0), per_intent=0)
    weighed = evaluate_budget(lines, [None] * 5, [NO_BUDGET_COUNTS] * 5, 1, 1.0, 0)
    assert lines[weighed.limiting].scope is BudgetScope.INTENT
    assert weighed.wait_ms == INTENT_MS


def test_a_class_is_held_against_all_first_attempts_of_the_provider() -> None:
    lines = asked(intent=None, provider=ScopeRule(10), operation=WIDE, account=WIDE)
    counts = [BudgetCounts(firsts=1_000), NO_BUDGET_COUNTS, NO_BUDGET_COUNTS, NO_BUDGET_COUNTS]
    weighed = evaluate_budget(lines, [None] * 4, counts, 1, 1.0, 0)
    assert [weighed.left[0], weighed.left[3]] == [49, 49]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_over_may_be_forgotten(then_ms: int, later_ms: int) -> None:
    only = line()
    (tally,) = evaluate_budget([only], [None], [BudgetCounts(5, 5, 5, 5)], 0, 1.0, then_ms).tallies
    now_ms = then_ms + later_ms
    remembered = evaluate_budget([only], [tally], [NO_BUDGET_COUNTS], 1, 1.0, now_ms)
    if is_expired(tally, only, now_ms):
        assert remembered == evaluate_budget([only], [None], [NO_BUDGET_COUNTS], 1, 1.0, now_ms)


# --- the cost


@pytest.mark.parametrize(
    ("reading", "lost", "cost"),
    [
        (ResultClass.NETWORK_CONNECT_FAILURE, True, 1),
        (ResultClass.RATE_LIMITED, False, 1),
        (ResultClass.TEMPORARY_PROVIDER_ERROR, False, 2),
        (ResultClass.IDEMPOTENCY_IN_FLIGHT, False, 2),
        (ResultClass.TEMPORARY_PROVIDER_ERROR, True, 4),
        (ResultClass.NETWORK_READ_TIMEOUT, True, 4),
        (ResultClass.PROVIDER_TIMEOUT, False, 4),
        (ResultClass.UNKNOWN_OUTCOME, True, 4),
    ],
)
def test_the_less_is_known_the_more_a_retry_costs(reading: ResultClass, lost: bool, cost: int) -> None:
    assert cost_of(Classification.of(reading, "rule", lost=lost)) == cost
