"""Guards: which operations keep another one off, for how long, and what becomes of its key. Every state that can be."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from paywitness.core.claim import AliasKind, judge_guard
from paywitness.core.guard import (
    GIVEN_BACK_BY_TAKER,
    TAKEOVER_WITHIN_S,
    GuardHold,
    hold_of,
    indexed_guard,
    is_duplicate_success,
)
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Guard, GuardKind, Lease, Operation, RepeatPaymentRule, State
from paywitness.core.payment_claims import IntentHold
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass
from tests.core.samples import operation

NOW = 10_000.0
OPEN = {State.PREPARED, State.SENDING, State.BACKOFF, State.UNKNOWN, State.REQUIRES_REVIEW}


def guarded(kind: GuardKind = GuardKind.INTENT, **changes: Any) -> Operation:
    again = {name: changes.pop(name) for name in ("after_success", "during_action") if name in changes}
    guard = Guard(kind, "g" * 32, "order-1", **again)
    plain = {"id": "op_first", "key": "first" * 12, "guard": guard, "ended_at": NOW - 10.0}
    return operation(**{**plain, **changes})


def fresh(**changes: Any) -> Operation:
    return guarded(**{"id": "op_second", "key": "second" * 10, "ended_at": None, **changes})


@pytest.mark.parametrize(("state", "kind"), list(product(State, GuardKind)))
def test_what_is_open_holds_its_guard_and_doubt_never_ages_out_of_it(state: State, kind: GuardKind) -> None:
    holder = guarded(kind, state=state, updated_at=0.0)
    pending = kind is GuardKind.INTENT and state is State.PENDING
    held = hold_of(holder, NOW + 365 * 86_400)
    assert (held is GuardHold.OPEN) == (state in OPEN or pending)


@pytest.mark.parametrize("again", RepeatPaymentRule)
def test_a_paid_intent_holds_as_its_policy_says(again: RepeatPaymentRule) -> None:
    paid = guarded(state=State.SUCCEEDED, after_success=again)
    assert (hold_of(paid, NOW) is GuardHold.PAID) == (again is RepeatPaymentRule.BLOCK)
    assert (indexed_guard(paid) is not None) == (again is not RepeatPaymentRule.ALLOW)
    given_back = paid.changed(result_class=ResultClass.REVERSED)
    assert (hold_of(given_back, NOW) is GuardHold.GIVEN_BACK) == (again is RepeatPaymentRule.BLOCK)
    assert (indexed_guard(given_back) is not None) == (again is not RepeatPaymentRule.ALLOW)
    returned = paid.changed(result_class=ResultClass.RETURNED)
    assert (hold_of(returned, NOW), indexed_guard(returned)) == (None, None)


@pytest.mark.parametrize("again", RepeatPaymentRule)
def test_a_customer_who_must_act_holds_the_intent_only_where_the_policy_says_so(again: RepeatPaymentRule) -> None:
    acting = guarded(state=State.REQUIRES_ACTION, during_action=again)
    assert (hold_of(acting, NOW) is GuardHold.OPEN) == (again is RepeatPaymentRule.BLOCK)


@pytest.mark.parametrize(("state", "kind"), list(product(State, GuardKind)))
def test_whatever_holds_can_be_found_by_its_guard(state: State, kind: GuardKind) -> None:
    for unheard, again in product((False, True), RepeatPaymentRule):
        holder = guarded(kind, state=state, undelivered=unheard, after_success=again, during_action=again)
        if hold_of(holder, NOW) is not None:
            assert indexed_guard(holder) == "g" * 32


def test_an_answer_that_reached_nobody_is_held_for_a_day() -> None:
    unheard = guarded(GuardKind.FINGERPRINT, state=State.SUCCEEDED, undelivered=True, ended_at=NOW)
    assert hold_of(unheard, NOW + TAKEOVER_WITHIN_S - 1) is GuardHold.UNDELIVERED
    assert hold_of(unheard, NOW + TAKEOVER_WITHIN_S) is None


def test_an_equal_call_joins_an_open_intent() -> None:
    for state in OPEN | {State.PENDING}:
        judged = judge_guard([guarded(state=state)], fresh(), NOW)
        assert (judged.alias, judged.holder and judged.holder.id) == (AliasKind.JOINED, "op_first")


def test_another_body_under_an_open_guard_is_refused() -> None:
    for kind in GuardKind:
        judged = judge_guard([guarded(kind, state=State.UNKNOWN)], fresh(kind=kind, fingerprint="x" * 64), NOW)
        assert judged.alias is AliasKind.REFUSED


@pytest.mark.parametrize("kind", [GuardKind.TARGET, GuardKind.FINGERPRINT])
def test_equal_calls_on_one_target_are_refused_while_the_first_is_open_and_pass_afterwards(kind: GuardKind) -> None:
    assert judge_guard([guarded(kind, state=State.SENDING)], fresh(kind=kind), NOW).alias is AliasKind.REFUSED
    assert judge_guard([guarded(kind, state=State.SUCCEEDED)], fresh(kind=kind), NOW).holder is None
    assert judge_guard([guarded(kind, state=State.FAILED)], fresh(kind=kind), NOW).holder is None


@pytest.mark.parametrize("kind", GuardKind)
def test_an_unheard_answer_is_taken_by_an_equal_call_and_by_no_other(kind: GuardKind) -> None:
    unheard = guarded(kind, state=State.SUCCEEDED, undelivered=True, ended_at=NOW)
    assert judge_guard([unheard], fresh(kind=kind), NOW).alias is AliasKind.TAKEN
    assert judge_guard([unheard], fresh(kind=kind, fingerprint="x" * 64), NOW).holder is None


@pytest.mark.parametrize("kind", [GuardKind.TARGET, GuardKind.FINGERPRINT])
def test_without_an_intent_nobody_takes_a_reply_that_may_have_been_delivered(kind: GuardKind) -> None:
    """Taken, the next movement of a caller that was told is lost; sent, that of a caller that was not is made twice."""
    unsure = guarded(kind, state=State.SUCCEEDED, undelivered=True, delivery_unknown=True, ended_at=NOW)
    assert judge_guard([unsure], fresh(kind=kind), NOW).alias is AliasKind.REFUSED
    assert judge_guard([unsure], fresh(kind=kind, fingerprint="x" * 64), NOW).holder is None
    assert judge_guard([unsure], fresh(kind=kind, distinct="the second part"), NOW).holder is None
    forgotten = guarded(kind, state=State.SUCCEEDED, undelivered=True, ended_at=NOW)  # by a journal that went back
    assert judge_guard([forgotten], fresh(kind=kind), NOW, deliveries_known=False).alias is AliasKind.REFUSED
    left = forgotten.changed(takeover=GIVEN_BACK_BY_TAKER)  # by one that took it
    assert judge_guard([left], fresh(kind=kind), NOW).alias is AliasKind.REFUSED
    void = unsure.changed(kind=OperationKind.VOID)
    assert judge_guard([void], fresh(kind=kind), NOW).alias is AliasKind.TAKEN


def test_an_intent_names_the_purchase_so_its_reply_is_taken_whoever_was_told() -> None:
    unsure = guarded(state=State.SUCCEEDED, undelivered=True, delivery_unknown=True, ended_at=NOW)
    assert judge_guard([unsure], fresh(), NOW).alias is AliasKind.TAKEN


def test_a_paid_intent_that_blocks_is_replayed_to_an_equal_call_and_refused_to_another() -> None:
    paid = guarded(state=State.SUCCEEDED, after_success=RepeatPaymentRule.BLOCK)
    assert judge_guard([paid], fresh(), NOW).alias is AliasKind.JOINED
    assert judge_guard([paid], fresh(fingerprint="x" * 64), NOW).alias is AliasKind.REFUSED


def test_saying_that_it_is_meant_twice_lifts_every_guard_but_an_open_intent() -> None:
    again = fresh(distinct="two of them")
    assert judge_guard([guarded(state=State.UNKNOWN)], again, NOW).holder is not None
    assert (
        judge_guard([guarded(state=State.SUCCEEDED, after_success=RepeatPaymentRule.BLOCK)], again, NOW).holder is None
    )
    for kind in (GuardKind.TARGET, GuardKind.FINGERPRINT):
        holder = guarded(kind, state=State.UNKNOWN)
        assert judge_guard([holder], fresh(kind=kind, distinct="two"), NOW).holder is None


def test_the_same_key_is_not_kept_off_by_itself() -> None:
    assert judge_guard([guarded(state=State.UNKNOWN, key="second" * 10)], fresh(), NOW).holder is None


@pytest.mark.parametrize("other", [{"provider": "other"}, {"account": "o" * 32}, {"operation": "other"}])
def test_across_providers_and_accounts_an_open_intent_refuses_and_is_never_joined(other: dict[str, Any]) -> None:
    elsewhere = guarded(state=State.UNKNOWN, **other)
    assert judge_guard([elsewhere], fresh(), NOW).alias is AliasKind.REFUSED


@pytest.mark.parametrize("again", RepeatPaymentRule)
def test_a_second_success_of_an_intent_contradicts_the_first_unless_it_is_allowed(again: RepeatPaymentRule) -> None:
    first = guarded(state=State.SUCCEEDED, after_success=again)
    second = fresh(state=State.SUCCEEDED, after_success=again)
    assert is_duplicate_success(first, second) == (again is not RepeatPaymentRule.ALLOW)
    assert not is_duplicate_success(first, second.changed(distinct="meant twice"))
    assert not is_duplicate_success(first.changed(result_class=ResultClass.REVERSED), second)
    assert not is_duplicate_success(first, first)
    assert not is_duplicate_success(first, second.changed(kind=OperationKind.REFUND))


@pytest.mark.parametrize(
    ("fingerprint", "holder", "refused"),
    [
        ("same", {"attempt_under_way": True, "lease": Lease("token", NOW + 5)}, True),
        ("same", {"incident": IncidentKind.ANOTHER_AMOUNT}, True),
        ("same", {"state": State.UNKNOWN}, False),  # the balance judges it: it is reserved
        ("other", {"attempt_under_way": True, "lease": Lease("token", NOW + 5)}, False),
    ],
)
def test_a_movement_that_ended_and_is_still_being_answered_keeps_an_equal_one_off(
    fingerprint: str, holder: dict[str, Any], *, refused: bool
) -> None:
    """An event had ended a refund whose sidecar was killed. Until its lease ran out nobody knew that nobody was told,
    and an equal call under a fresh key refunded once more."""
    moving = guarded(GuardKind.TARGET, payment="op_0").changed(kind=OperationKind.REFUND)
    first = moving.changed(**{"state": State.SUCCEEDED, "fingerprint": "same", **holder})
    second = moving.changed(id="op_second", key="second" * 10, fingerprint=fingerprint)
    judged = judge_guard([first], second, NOW)
    assert (judged.alias is AliasKind.REFUSED) is refused


def test_a_payment_that_lags_behind_its_operation_frees_nothing() -> None:
    """After a store came back without its last writes: the operation was put back as paid, its payment was not."""
    paid = guarded(state=State.SUCCEEDED, after_success=RepeatPaymentRule.BLOCK, payment="op_1")
    call = fresh(fingerprint="x" * 64)
    assert judge_guard([paid], call, NOW, payment_holds={paid.id: IntentHold.FREE}).alias is AliasKind.REFUSED
    assert judge_guard([paid], call, NOW, payment_holds={paid.id: IntentHold.REFUNDED}).holder is None
    elsewhere = guarded(state=State.FAILED, payment="op_1", paid_elsewhere=True)
    assert judge_guard([elsewhere], call, NOW, payment_holds={elsewhere.id: IntentHold.FREE}).holder is None


def test_a_call_equal_to_a_refunded_payment_is_told_of_the_payment_that_stands_since() -> None:
    """An order was paid, refunded and paid again with another body. A late duplicate of the first call was told only
    that the order had been given back, and to say Paywitness-Distinct if it is meant to be paid again."""
    paid = guarded(state=State.SUCCEEDED, after_success=RepeatPaymentRule.BLOCK, payment="op_first")
    again = paid.changed(id="op_again", key="again" * 12, fingerprint="x" * 64, payment="op_again")
    holds = {paid.id: IntentHold.REFUNDED, again.id: IntentHold.PAID}
    alone = judge_guard([paid], fresh(), NOW, payment_holds=holds)
    assert (alone.holder, alone.alias, alone.refunded) == (paid, AliasKind.REFUSED, True)
    for holders in ([paid, again], [again, paid]):
        judged = judge_guard(holders, fresh(), NOW, payment_holds=holds)
        assert (judged.holder, judged.refunded, judged.repeats_refunded) == (again, False, True)
    equal = again.changed(fingerprint=paid.fingerprint)
    assert judge_guard([paid, equal], fresh(), NOW, payment_holds=holds).alias is AliasKind.JOINED


def test_the_step_that_paid_is_named_before_the_one_whose_customer_had_to_act() -> None:
    created = guarded(state=State.REQUIRES_ACTION, after_success=RepeatPaymentRule.BLOCK, payment="op_first")
    confirmed = created.changed(id="op_confirm", key="confirm" * 9, state=State.SUCCEEDED, operation="confirm")
    holds = {created.id: IntentHold.PAID, confirmed.id: IntentHold.PAID}
    call = fresh(fingerprint="x" * 64)
    assert judge_guard([created, confirmed], call, NOW, payment_holds=holds).holder == confirmed
    assert judge_guard([created], call, NOW, payment_holds=holds).holder == created


@pytest.mark.parametrize("fingerprint", ["same", "other"])
def test_a_refund_that_came_back_keeps_no_other_refund_off_whatever_its_incident(fingerprint: str) -> None:
    """The purchase was paid again meanwhile, so the customer is owed the money: the way out is another refund. An equal
    one was told that the refund had been "paid and given back"."""
    moving = guarded(GuardKind.TARGET, payment="op_0").changed(kind=OperationKind.REFUND, fingerprint="same")
    bounced = moving.changed(
        state=State.SUCCEEDED, result_class=ResultClass.RETURNED, incident=IncidentKind.DUPLICATE_SUCCESS
    )
    call = moving.changed(id="op_second", key="second" * 10, fingerprint=fingerprint)
    assert judge_guard([bounced], call, NOW).holder is None
