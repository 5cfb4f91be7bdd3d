"""Small differences that decide about money: each was once overlooked by all other tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.advice import advice_for
from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.consequences import WriteContext, consequences
from paywitness.core.decide import DecisionContext, may_resend
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.guard import hold_of
from paywitness.core.identity import Identity, fingerprint_of, identify
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind, Operation, RepeatPaymentRule, State
from paywitness.core.payment import Movement, MovementStatus, Payment, ShownBalance
from paywitness.core.payment_changes import _with_totals
from paywitness.core.payment_claims import IntentHold, LimitCheck, LimitVerdict, hold_of_payment
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind
from paywitness.core.reply import limit_reply, replay_response
from paywitness.core.result import Advice, Effect, ResultClass
from tests.core.samples import SECRET, call, contract, operation, policy, read

NOW = 2_000.0


def identified(body: object, under: Policy) -> Identity:
    asked = call(json.dumps(body).encode())
    return identify(asked, under, decode(asked.body, under.encoding), {}, SECRET, lambda: "generated")


# --- which operation a call is


@pytest.mark.parametrize(
    ("first", "second"),
    [("a=&b=1", "b=1"), ("a", ""), ("a=1&a=2", "a=2"), ("a=1&a=2", "a=1"), ("a=1&a=1", "a=1")],
)
def test_blank_and_repeated_query_parameters_count(first: str, second: str) -> None:
    prints = {fingerprint_of(call(query=query), {}, (), SECRET) for query in (first, second)}
    assert len(prints) == 2


@pytest.mark.parametrize("key", ["KEY", "Key"])
def test_keys_in_another_case_are_other_operations(key: str) -> None:
    def named(text: str) -> str:
        asked = call(b"{}", ("Idempotency-Key", text))
        return identify(asked, policy(), {}, {}, SECRET, lambda: "generated").key

    assert named(key) != named("key")


def test_a_part_of_a_reference_guards_no_payout() -> None:
    places = [FieldRef(FieldKind.BODY, name) for name in ("batch", "item")]
    under = policy(kind=OperationKind.PAYOUT, target=places[0], target_also=(places[1],))
    whole, part = identified({"batch": "b", "item": "1"}, under).guard, identified({"batch": "b"}, under).guard
    assert whole is not None
    assert part is not None
    assert (whole.kind, part.kind) == (GuardKind.TARGET, GuardKind.FINGERPRINT)


def test_order_numbers_that_differ_late_are_two_orders() -> None:
    under = policy(intent=lambda tree: tree["order"])
    values = []
    for end in "ab":
        guard = identified({"order": "9" * 300 + end}, under).guard
        assert guard is not None
        assert guard.kind is GuardKind.INTENT
        values.append(guard.value)
    assert len(set(values)) == 2


def test_a_payout_that_came_back_keeps_its_reference_no_longer() -> None:
    guard = Guard(GuardKind.TARGET, "g", "ref", RepeatPaymentRule.BLOCK)
    paid = operation(kind=OperationKind.PAYOUT, state=State.SUCCEEDED, guard=guard, effect=Effect.DONE)
    assert hold_of(paid.changed(result_class=ResultClass.SUCCEEDED), NOW) is not None
    assert hold_of(paid.changed(result_class=ResultClass.RETURNED), NOW) is None


# --- what a change implies


def doubtful(**changes: object) -> Operation:
    plain = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=1, effect=Effect.POSSIBLE)
    return plain.changed(**changes)


def test_misses_of_the_attempts_before_say_nothing_of_a_re_send() -> None:
    before = doubtful(misses=2, first_miss_at=NOW - 10)
    resent = before.changed(attempts=2, doubt=frozenset({1, 2}), attempt_under_way=True)
    after = consequences(before, resent, WriteContext(NOW, sends_under="token")).operation
    assert (after.misses, after.first_miss_at) == (0, None)
    looked = consequences(before, before.changed(misses=3), WriteContext(NOW)).operation
    assert looked.misses == 3


def test_the_quiet_period_is_that_of_the_last_byte_that_can_leave() -> None:
    before = doubtful(no_bytes_after_at=NOW)
    ended = [consequences(before, before, WriteContext(NOW, no_bytes_after_at=NOW + later)) for later in (-50.0, 50.0)]
    assert [one.operation.no_bytes_after_at for one in ended] == [NOW, NOW + 50.0]


def test_a_key_is_not_released_while_an_attempt_under_it_is_in_doubt() -> None:
    denied = doubtful(state=State.FAILED, effect=Effect.NONE, result_class=ResultClass.RATE_LIMITED)
    for doubt, released in ((frozenset[int](), True), (frozenset({1}), False)):
        after = consequences(doubtful(), denied.changed(doubt=doubt), WriteContext(NOW)).operation
        assert after.key_released is released


@pytest.mark.parametrize(
    ("standing", "settled", "ends"),
    [
        (doubtful(), True, True),
        (doubtful(), False, False),
        (operation(state=State.REQUIRES_REVIEW, attempts=1, effect=Effect.NONE), True, False),
    ],
    ids=["settled", "not settled", "it was accepted once"],
)
def test_only_what_is_in_doubt_and_has_settled_turns_out_absent(standing: Operation, settled: bool, ends: bool) -> None:
    absent = read(ResultClass.ABSENT)
    after, event = conclude_external(standing, EvidenceSource.INQUIRY, absent, contract(), settled=settled)
    assert (event is not None, after.state is State.FAILED) == (ends, ends)


def test_an_event_from_before_the_decline_says_nothing_against_it() -> None:
    declined = operation(
        state=State.FAILED, attempts=1, effect=Effect.NONE, result_class=ResultClass.ISSUER_HARD_DECLINE
    )
    after, event = conclude_external(
        declined, EvidenceSource.WEBHOOK, read(ResultClass.PENDING), contract(), settled=True
    )
    assert (event, after.incident, after.state) == (None, None, State.FAILED)


@pytest.mark.parametrize(
    "hindrance",
    [{"cancel_sent": True}, {"result_class": ResultClass.ISSUER_HARD_DECLINE}],
    ids=["cancelled", "declined"],
)
def test_what_was_cancelled_or_declined_once_is_not_sent_again(hindrance: dict[str, Any]) -> None:
    unknown = DecisionContext(
        kind=OperationKind.SALE,
        state=State.UNKNOWN,
        contract=contract(),
        result_class=ResultClass.NETWORK_READ_TIMEOUT,
        effect=Effect.POSSIBLE,
        tries=1,
        tries_max=3,
        first_send_age_s=1.0,
        delay_s=0.5,
        time_left_s=10.0,
        background=False,
        resend_for_s=60.0,
    )
    assert may_resend(unknown)
    assert not may_resend(replace(unknown, **hindrance))


# --- payments


def paid(**changes: object) -> Payment:
    plain = Payment("op_1", "acme", "a", currency="EUR", authorised=100, captured=100, refunded=0, voided=0, disputed=0)
    return replace(plain, paid=True, created=True, **changes)  # type: ignore[arg-type]


def test_a_payment_that_was_given_back_and_is_disputed_keeps_its_intent() -> None:
    refunded = paid(refunded=100, given_back=True, final=True)
    assert hold_of_payment(refunded) is IntentHold.REFUNDED
    assert hold_of_payment(replace(refunded, disputed=100)) is IntentHold.PAID


def test_a_negative_movement_makes_no_room() -> None:
    moves = tuple(Movement(f"op_{number}", OperationKind.REFUND, amount) for number, amount in enumerate((60, -50)))
    assert paid(movements=moves).reserved_at_most(OperationKind.REFUND) == 60


def test_a_total_is_not_taken_over_while_a_refund_that_it_may_hold_is_open() -> None:
    open_refund = Movement("op_2", OperationKind.REFUND, 40, MovementStatus.RESERVED)
    shown = ShownBalance(currency="EUR", refunded=40)
    assert _with_totals(paid(movements=(open_refund,)), shown).refunded == 0
    assert _with_totals(paid(), shown).refunded == 40


def test_a_number_that_is_unknown_stays_unknown_while_a_total_may_or_may_not_hold_what_is_open() -> None:
    # A number below zero made room for a movement that nobody had made, and the open one could never be proven then.
    capture = Movement("op_2", OperationKind.CAPTURE, 40, MovementStatus.RESERVED)
    unknown = paid(captured=None, movements=(capture,))
    for total in (0, 40):
        assert _with_totals(unknown, ShownBalance(currency="EUR", captured=total, capturable=100 - total)) == unknown
    refund = Movement("op_2", OperationKind.REFUND, 40, MovementStatus.RESERVED)
    assert _with_totals(paid(refunded=None, movements=(refund,)), ShownBalance(refunded=0)).refunded is None


# --- what callers are told


def test_whoever_has_an_open_incident_does_not_pay_again() -> None:
    failed = operation(state=State.FAILED, result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
    assert advice_for(failed) is Advice.TRY_AGAIN_LATER
    assert advice_for(failed.changed(incident=IncidentKind.SUCCESS_AFTER_FAILURE)) is Advice.DO_NOT_PAY_AGAIN


def test_nothing_is_left_of_what_was_overdrawn() -> None:
    check = LimitCheck(LimitVerdict.EXCEEDS, -500)
    body = limit_reply(OperationKind.REFUND, paid(), check, None).body.decode()
    assert str(Money(0, "EUR")) in body
    assert "-5.00" not in body


def test_the_object_of_a_payment_that_was_given_back_is_not_replayed_as_a_success() -> None:
    made = operation(state=State.SUCCEEDED, effect=Effect.DONE)
    for result_class, told in ((ResultClass.SUCCEEDED, True), (ResultClass.REVERSED, False)):
        found = replay_response(
            made.changed(result_class=result_class), lambda tree: tree, {"status": "paid"}, Encoding.JSON
        )
        assert (found is not None) is told
