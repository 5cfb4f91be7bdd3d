"""The balance of a payment: what evidence posts, what is reserved, what the limits allow, and what frees an intent.

The traces of the design are named by what they would have cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Operation, State
from paywitness.core.payment import (
    FOLLOW_UPS,
    MovementStatus,
    PaidElsewhere,
    Payment,
    PaymentName,
    ShownBalance,
    name_key,
)
from paywitness.core.payment_changes import adopted, after_change, has_new_totals, reconciled, touches_payment
from paywitness.core.payment_claims import (
    IntentHold,
    LimitVerdict,
    PaymentClaim,
    PaymentVerdict,
    check_limit,
    hold_of_payment,
    judge_movement,
    with_money,
    with_reservation,
)
from paywitness.core.payment_evidence import proves_movement
from paywitness.core.payment_rules import IncrementMeaning, LimitMode, Overcapture
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from tests.core.samples import operation as some_operation

Kind = OperationKind
ENFORCED = PaymentClaim(PaymentName("ch_1", "n:1"), limits=LimitMode.ENFORCE)
_numbers = itertools.count(1)


def operation(kind: Kind, amount: int | None = None, state: State = State.SENDING, **changes: Any) -> Operation:
    number = next(_numbers)
    money = None if amount is None else Money(amount, "EUR")
    changes = {"fingerprint": f"fingerprint-{number}", "key": f"key-{number}", "payment": "op_1", **changes}
    return some_operation(id=f"op_x{number}", kind=kind, money=money, state=state, **changes)


def ended(
    started: Operation, state: State = State.SUCCEEDED, reading: ResultClass = ResultClass.SUCCEEDED
) -> Operation:
    effect = Effect.DONE if state is State.SUCCEEDED else Effect.NONE
    return started.changed(state=state, result_class=reading, effect=effect)


def payment(authorised: int | None = 100, *, captures: bool | None = True, **changes: Any) -> Payment:
    """A payment that was made through us."""
    empty = Payment("op_1", "acme", "account-1")
    made = ended(operation(Kind.SALE, authorised))
    change = after_change(empty, made, ShownBalance((PaymentName("ch_1", "n:1"),), creates=True, captures=captures))
    return replace(change.payment, **changes)


def moved(before: Payment, kind: Kind, amount: int | None, **shown: Any) -> Payment:
    """The payment after a movement that succeeded."""
    started = operation(kind, amount)
    reserved = with_reservation(before, started, ENFORCED)
    return after_change(reserved, ended(started), ShownBalance(**shown)).payment


def judged(before: Payment, fresh: Operation, *others: Operation, claim: PaymentClaim = ENFORCED) -> PaymentVerdict:
    return judge_movement(before, fresh, claim, {other.id: other for other in others}).verdict


def reserving(before: Payment, *others: Operation) -> Payment:
    for other in others:
        before = with_reservation(before, other, ENFORCED)
    return before


def totals(**numbers: Any) -> ShownBalance:
    return ShownBalance(**numbers)


# --- Numbers


def test_the_success_that_makes_a_payment_makes_all_numbers_known() -> None:
    """N13: no response shows them, and a limit was never checked."""
    made = payment(100)
    assert (made.authorised, made.captured, made.refunded, made.voided, made.disputed) == (100, 100, 0, 0, 0)
    assert payment(100, captures=False).captured == 0


def test_without_captures_what_was_captured_is_unknown_and_no_refund_is_refused() -> None:
    """P5 A: an authorization that the provider captures by itself. Zero by default refused every refund."""
    made = payment(100, captures=None)
    assert made.captured is None
    assert check_limit(made, Kind.REFUND, Money(100, "EUR")).verdict is LimitVerdict.UNKNOWN
    assert judged(made, operation(Kind.REFUND, 100)) is PaymentVerdict.PASS


def test_a_payment_that_nobody_saw_being_made_has_no_known_number() -> None:
    """P5 B: confirmed in the browser. Every capture and refund passes, and is counted."""
    unseen = Payment("op_1", "acme", "account-1", ("pi_1",))
    assert (unseen.authorised, unseen.captured, unseen.refunded) == (None, None, None)
    for kind in (Kind.CAPTURE, Kind.REFUND):
        assert check_limit(unseen, kind, Money(1, "EUR")).verdict is LimitVerdict.UNKNOWN


def test_a_success_that_shows_a_smaller_amount_authorises_that_amount() -> None:
    """P39: a partial authorization."""
    made = ended(operation(Kind.AUTHORIZATION, 100))
    change = after_change(Payment("op_1", "acme", "a"), made, ShownBalance(captures=False, moved=60))
    assert change.payment.authorised == 60


def test_an_effect_is_posted_once_for_all_steps_of_a_payment() -> None:
    """P4: a sale whose event comes after its confirm succeeded. Two postings would have refunded the only payment."""
    first = after_change(Payment("op_1", "acme", "a"), ended(operation(Kind.SALE, 100)), ShownBalance(captures=True))
    second = after_change(first.payment, ended(operation(Kind.SALE, 100)), ShownBalance(captures=True))
    assert first.posting is not None
    assert (first.posting.key, first.posting.minor_units) == ("op_1:payment", 100)
    assert second.posting is None
    assert second.payment.captured == 100


@pytest.mark.parametrize(
    ("captures", "movements"),
    [
        (True, ((Kind.REFUND, 40),)),
        (True, ((Kind.REFUND, 40), (Kind.REFUND, 60))),
        (True, ((Kind.REVERSAL, None),)),
        (False, ((Kind.CAPTURE, 60),)),
        (False, ((Kind.CAPTURE, 60), (Kind.REFUND, 60))),
        (False, ((Kind.CAPTURE, 60), (Kind.VOID, None))),
        (False, ((Kind.VOID, None),)),
        (False, ((Kind.REVERSAL, None),)),
    ],
)
def test_a_success_that_movements_overtook_leaves_the_numbers_as_if_it_had_been_seen_first(
    captures: bool, movements: tuple[tuple[Kind, int | None], ...]
) -> None:
    """The record of the payment lay in the spool of a sidecar without a journal. Another one refunded a half of it, and
    that half was forgotten: a refund of all of it seemed to be one of a half."""
    sale, shown = ended(operation(Kind.SALE, 100)), ShownBalance(captures=captures)
    in_order = after_change(Payment("op_1", "acme", "a", currency="EUR"), sale, shown).payment
    overtaken = Payment("op_1", "acme", "a", currency="EUR")
    for kind, amount in movements:
        started = operation(kind, amount)
        in_order = after_change(reserving(in_order, started), ended(started), ShownBalance()).payment
        overtaken = after_change(reserving(overtaken, started), ended(started), ShownBalance()).payment
    overtaken = after_change(overtaken, sale, shown).payment

    def numbers(of: Payment) -> tuple[object, ...]:
        known = (of.authorised, of.captured, of.refunded, of.voided, of.disputed)
        return *known, of.given_back, of.final, of.capturable, hold_of_payment(of)

    assert numbers(overtaken) == numbers(in_order)


def test_totals_that_the_object_shows_only_grow_what_is_known() -> None:
    made = payment(100, captures=False)
    sale = ended(operation(Kind.AUTHORIZATION, 100))
    totals = ShownBalance(captured=60, refunded=10)
    seen = after_change(after_change(made, sale, totals).payment, sale, totals).payment
    assert (seen.captured, seen.refunded) == (60, 10)
    older = after_change(seen, sale, ShownBalance(captured=0, refunded=0)).payment
    assert (older.captured, older.refunded) == (60, 10)
    other_currency = after_change(seen, sale, ShownBalance(captured=90, currency="USD")).payment
    assert other_currency.captured == 60


@pytest.mark.parametrize("kind", [Kind.CAPTURE, Kind.REFUND])
@pytest.mark.parametrize("first", [False, True])
def test_a_total_that_counts_an_open_movement_does_not_count_it_twice(kind: Kind, *, first: bool) -> None:
    """The response to one capture showed the total with another, whose outcome was unknown. When that one was found,
    its amount was added once more: as much of the remainder was lost for ever."""
    before = payment(100, captures=False, captured=0 if kind is Kind.CAPTURE else 90)
    lost, seen = operation(kind, 30, State.UNKNOWN), operation(kind, 20)
    for started in (lost, seen):
        before = with_reservation(before, started, ENFORCED)
    totals = ShownBalance(captured=50) if kind is Kind.CAPTURE else ShownBalance(refunded=50)
    for started in (lost, seen) if first else (seen, lost):
        before = after_change(before, ended(started), totals if started is seen else ShownBalance()).payment
    assert (before.captured, before.refunded) == ((50, 0) if kind is Kind.CAPTURE else (90, 50))


def test_a_refund_that_is_posted_before_the_capture_it_counts_on_is_no_negative_remainder() -> None:
    capture, refund = operation(Kind.CAPTURE, 30, State.UNKNOWN), operation(Kind.REFUND, 30)
    before = reserving(payment(100, captures=False), capture)
    assert judged(before, refund, capture) is PaymentVerdict.PASS
    change = after_change(with_reservation(before, refund, ENFORCED), ended(refund), ShownBalance())
    assert (change.negative, change.payment.refunded) == (False, 30)
    again = operation(Kind.REFUND, 1)
    over = after_change(with_reservation(change.payment, again, ENFORCED), ended(again), ShownBalance())
    assert over.negative


def test_a_total_that_may_hold_an_open_movement_is_not_counted_twice() -> None:
    """The object of a sale shows what a capture has captured whose own response was lost."""
    started = operation(Kind.CAPTURE, 60)
    before = reserving(payment(100, captures=False), started)
    sale = ended(operation(Kind.AUTHORIZATION, 100))
    seen = after_change(before, sale, ShownBalance(captured=60)).payment
    after = after_change(seen, ended(started), ShownBalance(captured=60))
    assert (after.payment.captured, after.negative) == (60, False)


def test_a_refund_in_another_currency_makes_what_was_refunded_unknown() -> None:
    started = operation(Kind.REFUND).changed(money=Money(500, "USD"))
    after = after_change(reserving(payment(100), started), ended(started), ShownBalance())
    assert (after.payment.refunded, after.negative) == (None, False)


def test_what_somebody_else_moved_is_posted_once_a_movement_a_change() -> None:
    made, sale = payment(100, captures=False), ended(operation(Kind.AUTHORIZATION, 100))
    totals = ShownBalance(captured=60, refunded=10)
    first = after_change(made, sale, totals)
    second = after_change(first.payment, sale.changed(version=sale.version + 1), totals)
    third = after_change(second.payment, sale.changed(version=sale.version + 2), totals)
    assert [(change.elsewhere, change.posting is None) for change in (first, second, third)] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    postings = [change.posting for change in (first, second) if change.posting is not None]
    assert [(posting.kind, posting.minor_units, posting.of) for posting in postings] == [
        ("capture", 60, "op_1"),
        ("refund", 10, "op_1"),
    ]
    assert postings[0].key != postings[1].key
    assert (first.payment.refunded, second.payment.refunded) == (0, 10)
    unknown = replace(made, captured=None)
    assert after_change(unknown, sale, ShownBalance(captured=60)).posting is None
    worked_out = after_change(made, sale, ShownBalance(capturable=40))
    assert (worked_out.payment.captured, worked_out.posting) == (60, None)


def test_a_total_from_before_a_refund_came_back_does_not_free_the_intent() -> None:
    """The event of the refund comes late, after the refund has failed."""
    sale, refund = ended(operation(Kind.SALE, 100)), operation(Kind.REFUND, 100)
    refunded = after_change(with_reservation(payment(100), refund, ENFORCED), ended(refund), ShownBalance()).payment
    assert hold_of_payment(refunded) is IntentHold.REFUNDED
    came_back = after_change(refunded, ended(refund, reading=ResultClass.RETURNED), ShownBalance()).payment
    late = after_change(came_back, sale, ShownBalance(refunded=100)).payment
    assert (late.refunded, hold_of_payment(late)) == (0, IntentHold.PAID)
    others = moved(came_back, Kind.REFUND, 40)  # of ours, after that
    assert after_change(others, sale, ShownBalance(refunded=100)).payment.refunded == 40
    larger = replace(came_back, authorised=300, captured=300)
    assert after_change(larger, sale, ShownBalance(refunded=150)).payment.refunded == 150  # more than came back


def test_a_total_from_before_a_pending_refund_failed_does_not_free_the_intent() -> None:
    """The provider accepted a refund of everything, and its total held it. The refund failed, and the event of the
    total came after that: the order counted as refunded, and could be paid twice."""
    sale, refund = ended(operation(Kind.SALE, 100)), operation(Kind.REFUND, 100, State.PENDING, reference="re_1")
    before = reserving(payment(100), refund)
    failed = ended(refund, State.FAILED, ResultClass.ISSUER_HARD_DECLINE)
    released = after_change(before, failed, ShownBalance()).payment
    assert (released.reserved(), released.refunded) == ((), 0)
    late = after_change(released, sale, ShownBalance(refunded=100)).payment
    assert (late.refunded, hold_of_payment(late)) == (0, IntentHold.PAID)
    succeeded = failed.changed(incident=IncidentKind.SUCCESS_AFTER_FAILURE)
    after_all = after_change(late, succeeded, ShownBalance())
    assert (after_all.payment.refunded, after_all.posting is not None) == (100, True)
    again = after_change(after_all.payment, succeeded, ShownBalance())
    assert (again.payment.refunded, again.posting) == (100, None)


@pytest.mark.parametrize("kind", [Kind.CAPTURE, Kind.REFUND])
def test_a_total_beyond_all_that_is_open_shows_what_somebody_else_moved(kind: Kind) -> None:
    """A dashboard refunded the rest while a refund of ours was pending. The total was dropped, and the order stayed
    paid for ever."""
    sale, pending = ended(operation(Kind.SALE, 100)), operation(kind, 30, State.PENDING)
    before = reserving(payment(100, captures=kind is Kind.REFUND), pending)
    totals = ShownBalance(refunded=100) if kind is Kind.REFUND else ShownBalance(captured=100)
    seen = after_change(before, sale, totals)
    assert (seen.elsewhere, seen.posting.minor_units if seen.posting is not None else None) == (True, 70)
    after = after_change(seen.payment, ended(pending), ShownBalance()).payment
    assert (after.refunded if kind is Kind.REFUND else after.captured) == 100


def test_a_debit_that_was_returned_and_is_tried_again_is_paid_again() -> None:
    first = ended(operation(Kind.SALE, 100))
    made = after_change(Payment("op_1", "acme", "a"), first, ShownBalance(captures=True))
    returned = after_change(made.payment, first.changed(result_class=ResultClass.RETURNED), ShownBalance())
    assert hold_of_payment(returned.payment) is IntentHold.REFUNDED
    again = after_change(returned.payment, ended(operation(Kind.SALE, 100)), ShownBalance(captures=True))
    assert hold_of_payment(again.payment) is IntentHold.PAID
    keys = [change.posting.key for change in (made, returned, again) if change.posting]
    assert len(set(keys)) == 3
    assert returned.posting is not None
    assert returned.posting.reverses == keys[0]


def test_an_object_that_nobody_has_paid_shows_no_totals() -> None:
    created = after_change(Payment("op_1", "acme", "a"), ended(operation(Kind.NONE)), ShownBalance(authorised=100))
    assert (created.payment.authorised, created.payment.paid) == (None, False)


# --- Limits


@pytest.mark.parametrize("captured", range(5))
@pytest.mark.parametrize("reserved", range(5))
@pytest.mark.parametrize("wanted", range(1, 6))
def test_a_capture_is_held_against_what_is_left_for_all_small_numbers(
    captured: int, reserved: int, wanted: int
) -> None:
    before = payment(4, captures=False, captured=captured)
    if reserved:
        before = reserving(before, operation(Kind.CAPTURE, reserved, State.UNKNOWN))
    verdict = check_limit(before, Kind.CAPTURE, Money(wanted, "EUR")).verdict
    if wanted <= 4 - captured - reserved:
        assert verdict is LimitVerdict.FITS
    elif wanted <= 4 - captured:
        assert verdict is LimitVerdict.RESERVED
    else:
        assert verdict is LimitVerdict.EXCEEDS


@pytest.mark.parametrize("refunded", range(4))
@pytest.mark.parametrize("disputed", range(3))
@pytest.mark.parametrize("unresolved", range(3))
@pytest.mark.parametrize("reserved", range(3))
@pytest.mark.parametrize("wanted", range(1, 5))
def test_a_refund_is_held_against_what_was_captured_for_all_small_numbers(
    refunded: int, disputed: int, unresolved: int, reserved: int, wanted: int
) -> None:
    before = payment(6, captures=False, captured=3, refunded=refunded, disputed=disputed)
    if unresolved:
        before = reserving(before, operation(Kind.CAPTURE, unresolved, State.UNKNOWN))
    if reserved:
        before = reserving(before, operation(Kind.REFUND, reserved, State.UNKNOWN))
    verdict = check_limit(before, Kind.REFUND, Money(wanted, "EUR")).verdict
    left = 3 + unresolved - refunded - disputed
    expected = (
        LimitVerdict.FITS
        if wanted <= left - reserved
        else LimitVerdict.RESERVED
        if wanted <= left
        else LimitVerdict.EXCEEDS
    )
    assert verdict is expected


def test_reservations_of_the_other_direction_do_not_compete() -> None:
    """P5 E: one `reserved` for both directions refused a good refund, or a good capture for days."""
    before = payment(100, captures=False, captured=60)
    in_flight = reserving(before, operation(Kind.CAPTURE, 40))
    assert check_limit(in_flight, Kind.REFUND, Money(60, "EUR")).verdict is LimitVerdict.FITS
    unknown = reserving(before, operation(Kind.REFUND, 60, State.UNKNOWN))
    assert check_limit(unknown, Kind.CAPTURE, Money(40, "EUR")).verdict is LimitVerdict.FITS


@pytest.mark.parametrize("kind", [Kind.CAPTURE, Kind.REFUND])
def test_an_open_movement_of_a_negative_amount_makes_no_room_for_another(kind: Kind) -> None:
    """A capture of -50 whose outcome is unknown let one of 120 of 100 be sent."""
    opened = operation(kind, -50, State.UNKNOWN)
    before = reserving(payment(100, captures=kind is Kind.REFUND), opened)
    assert check_limit(before, kind, Money(101, "EUR")).verdict is LimitVerdict.EXCEEDS
    assert check_limit(before, kind, Money(100, "EUR")).verdict is LimitVerdict.FITS
    refused = operation(kind, 100)
    change = after_change(reserving(before, refused), ended(refused, State.FAILED, ResultClass.FAILED), ShownBalance())
    assert not change.negative


def test_another_currency_than_the_payments_is_not_held_against_it() -> None:
    assert check_limit(payment(100), Kind.REFUND, Money(500, "USD")).verdict is LimitVerdict.UNKNOWN


@pytest.mark.parametrize("mode", LimitMode)
def test_only_enforce_refuses(mode: LimitMode) -> None:
    claim = replace(ENFORCED, limits=mode)
    verdict = judged(payment(100), operation(Kind.REFUND, 101), claim=claim)
    assert verdict is (PaymentVerdict.EXCEEDS if mode is LimitMode.ENFORCE else PaymentVerdict.PASS)


def test_unresolved_increments_count_for_captures() -> None:
    before = payment(100, captures=False)
    raised = reserving(before, operation(Kind.INCREMENT, 150))
    assert check_limit(raised, Kind.CAPTURE, Money(150, "EUR")).verdict is LimitVerdict.FITS
    assert moved(before, Kind.INCREMENT, 150).authorised == 150
    by_difference = replace(ENFORCED, increment_means=IncrementMeaning.DIFFERENCE)
    started = operation(Kind.INCREMENT, 50)
    shown = ShownBalance(increment_means=IncrementMeaning.DIFFERENCE)
    assert (
        after_change(with_reservation(before, started, by_difference), ended(started), shown).payment.authorised == 150
    )


def test_a_call_that_names_no_amount_takes_what_is_left_in_the_currency_of_its_payment() -> None:
    before = moved(payment(100), Kind.REFUND, 30)
    full = with_money(before, operation(Kind.REFUND), replace(ENFORCED, takes_remainder=True))
    assert (full.money, full.takes_remainder) == (Money(70, "EUR"), True)
    assert full.expected_payment.money is None  # what the provider gives back is its to say
    named = with_money(before, operation(Kind.REFUND), replace(ENFORCED, amount="25"))
    assert (named.money, named.takes_remainder) == (Money(25, "EUR"), False)
    unknown = with_money(
        replace(before, captured=None), operation(Kind.REFUND), replace(ENFORCED, takes_remainder=True)
    )
    assert unknown.money is None


def test_an_amount_that_was_named_before_its_payment_was_known_is_posted_as_named() -> None:
    """The currency is that of the payment, which another sidecar had not recorded yet. The amount was forgotten."""
    unseen, claim = Payment("op_2", "acme", "a", ("ch_1",)), replace(ENFORCED, amount=40)
    started = with_money(unseen, operation(Kind.REFUND), claim)
    assert started.money is None
    known = replace(with_reservation(unseen, started, claim), currency="EUR", captured=100, refunded=0)
    assert after_change(known, ended(started), ShownBalance()).payment.refunded == 40


@pytest.mark.parametrize(("kind", "number"), [(Kind.CAPTURE, "captured"), (Kind.REFUND, "refunded")])
def test_an_amount_that_cannot_be_read_holds_all_that_is_left_and_is_not_taken_for_all_of_it(
    kind: Kind, number: str
) -> None:
    """A refund of "10.5" minor units counted as a refund of everything, and freed the intent."""
    before = payment(100, captures=kind is Kind.REFUND)
    started = with_money(before, operation(kind), replace(ENFORCED, amount=10.5))
    reserved = with_reservation(before, started, replace(ENFORCED, amount=10.5))
    assert check_limit(reserved, kind, Money(1, "EUR")).verdict is LimitVerdict.RESERVED
    after = after_change(reserved, ended(started), ShownBalance()).payment
    assert getattr(after, number) is None
    assert hold_of_payment(after) is IntentHold.PAID
    shown = after_change(reserved, ended(started), ShownBalance(moved=10)).payment
    assert getattr(shown, number) == 10
    without = with_money(before, operation(kind), ENFORCED)  # a policy that knows no amount: it moves everything
    all_of_it = after_change(with_reservation(before, without, ENFORCED), ended(without), ShownBalance()).payment
    assert getattr(all_of_it, number) == 100


# --- Serialisation


SERIALISED = (Kind.CAPTURE, Kind.VOID, Kind.INCREMENT, Kind.REVERSAL)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SERIALISED, repeat=2)))
@pytest.mark.parametrize("state", [State.PREPARED, State.SENDING, State.BACKOFF])
def test_not_two_in_flight_whatever_their_names(first: Kind, second: Kind, state: State) -> None:
    holder = operation(first, 10, state)
    before = reserving(payment(100, captures=False), holder)
    assert judged(before, operation(second, 20), holder) is PaymentVerdict.BUSY


def test_a_void_beside_a_capture_in_doubt_is_refused_and_the_other_way_round() -> None:
    for first, second in ((Kind.CAPTURE, Kind.VOID), (Kind.VOID, Kind.CAPTURE)):
        holder = operation(first, 10, State.UNKNOWN)
        before = reserving(payment(100, captures=False), holder)
        assert judged(before, operation(second, 20), holder) is PaymentVerdict.OPEN


def test_a_reversal_passes_beside_a_capture_in_doubt() -> None:
    holder = operation(Kind.CAPTURE, 10, State.UNKNOWN)
    before = reserving(payment(100, captures=False), holder)
    assert judged(before, operation(Kind.REVERSAL), holder) is PaymentVerdict.PASS


@pytest.mark.parametrize("kind", [Kind.CAPTURE, Kind.REFUND])
@pytest.mark.parametrize("state", [State.UNKNOWN, State.PENDING, State.REQUIRES_REVIEW])
def test_an_open_movement_holds_its_amount_and_not_the_payment(kind: Kind, state: State) -> None:
    """P19: a refund of 10 in review blocked every other refund. N1: an equal retry under a fresh key refunded twice."""
    holder = operation(kind, 30, state)
    before = reserving(payment(100, captures=kind is Kind.REFUND), holder)
    assert judged(before, operation(kind, 20), holder) is PaymentVerdict.PASS
    assert judged(before, operation(kind, 30), holder) is PaymentVerdict.OPEN
    assert judged(before, operation(kind, 20, fingerprint=holder.fingerprint), holder) is PaymentVerdict.OPEN
    meant_twice = operation(kind, 30, distinct="two parcels")
    assert judged(before, meant_twice, holder) is PaymentVerdict.PASS
    same_call = operation(kind, 30, distinct="two parcels", fingerprint=holder.fingerprint)
    assert judged(before, same_call, holder) is PaymentVerdict.OPEN


def test_two_refunds_of_everything_that_is_left_are_equal() -> None:
    holder = operation(Kind.REFUND, None, State.UNKNOWN)
    before = reserving(payment(100, captures=None), holder)
    assert judged(before, operation(Kind.REFUND), holder) is PaymentVerdict.OPEN


def test_an_own_earlier_generation_keeps_nothing_off() -> None:
    holder = operation(Kind.CAPTURE, 30, State.UNKNOWN)
    before = reserving(payment(100, captures=False), holder)
    assert judged(before, operation(Kind.CAPTURE, 30, key=holder.key), holder) is PaymentVerdict.PASS


def test_what_an_expired_lease_ended_reserves_no_longer() -> None:
    dead, paid = operation(Kind.CAPTURE, 30), operation(Kind.CAPTURE, 20)
    before = reserving(payment(100, captures=False), dead, paid)
    known = {dead.id: ended(dead, State.FAILED, ResultClass.NETWORK_CONNECT_FAILURE), paid.id: ended(paid)}
    after = reconciled(before, known)
    assert (after.captured, after.reserved()) == (20, ())
    unknown = reconciled(before, {dead.id: dead.changed(state=State.UNKNOWN, doubt=frozenset({1}))})
    assert unknown.unanswered
    assert [movement.operation_id for movement in unknown.reserved()] == [dead.id]  # the other was retired


# --- What a movement makes of the numbers


def test_an_end_without_effect_releases_its_reservation() -> None:
    started = operation(Kind.REFUND, 30)
    before = reserving(payment(100), started)
    change = after_change(before, ended(started, State.FAILED, ResultClass.VALIDATION_ERROR), ShownBalance())
    assert (change.payment.reserved(), change.payment.refunded, change.posting) == ((), 0, None)


def test_a_success_after_failure_is_posted_all_the_same() -> None:
    started = operation(Kind.REFUND, 30)
    before = reserving(payment(100), started)
    failed = ended(started, State.FAILED, ResultClass.ABSENT)
    released = after_change(before, failed, ShownBalance()).payment
    late = after_change(released, failed.changed(incident=IncidentKind.SUCCESS_AFTER_FAILURE), ShownBalance())
    assert late.payment.refunded == 30
    assert late.posting is not None


@pytest.mark.parametrize("kind", [Kind.REFUND, Kind.CAPTURE])
def test_what_the_provider_takes_back_opens_the_remainder_again(kind: Kind) -> None:
    """P15: a refund that failed days later could never be made again."""
    started = operation(kind, 30)
    before = payment(100, captures=kind is Kind.REFUND)
    posted = after_change(reserving(before, started), ended(started), ShownBalance()).payment
    change = after_change(posted, ended(started, reading=ResultClass.RETURNED), ShownBalance())
    number = change.payment.refunded if kind is Kind.REFUND else change.payment.captured
    assert number == 0
    assert change.posting is not None
    assert (change.posting.key, change.posting.reverses) == (f"{started.id}:returned", started.id)
    again = after_change(change.payment, ended(started, reading=ResultClass.RETURNED), ShownBalance())
    assert (again.payment, again.posting) == (change.payment, None)


def test_more_than_the_payment_had_is_posted_and_is_negative() -> None:
    """Limits bind claims, never evidence."""
    started = operation(Kind.REFUND, 130)
    change = after_change(reserving(payment(100), started), ended(started), ShownBalance())
    assert change.payment.refunded == 130
    assert change.negative


def test_what_counts_on_an_open_movement_is_not_negative() -> None:
    """A refund may count on a capture that is not resolved yet, a capture on an increment."""
    capture, refund = operation(Kind.CAPTURE, 60), operation(Kind.REFUND, 60)
    before = reserving(payment(100, captures=False), capture, refund)
    assert not after_change(before, ended(refund), ShownBalance()).negative
    increment, larger = operation(Kind.INCREMENT, 150), operation(Kind.CAPTURE, 150)
    before = reserving(payment(100, captures=False), increment, larger)
    assert not after_change(before, ended(larger), ShownBalance()).negative


def test_what_counted_on_a_movement_that_never_was_is_negative() -> None:
    capture, refund = operation(Kind.CAPTURE, 60), operation(Kind.REFUND, 60)
    before = reserving(payment(100, captures=False), capture, refund)
    refunded = after_change(before, ended(refund), ShownBalance()).payment
    assert after_change(refunded, ended(capture, State.FAILED, ResultClass.ABSENT), ShownBalance()).negative


@pytest.mark.parametrize(("kind", "number"), [(Kind.CAPTURE, "captured"), (Kind.REFUND, "refunded")])
def test_already_done_by_somebody_else_makes_the_number_unknown_until_an_object_shows_it(
    kind: Kind, number: str
) -> None:
    started = operation(kind, 60)
    before = reserving(payment(100, captures=kind is Kind.REFUND), started)
    refused = ended(started, State.FAILED, ResultClass.ALREADY_DONE)
    after = after_change(before, refused, ShownBalance()).payment
    assert getattr(after, number) is None
    assert after.movement_of(started.id) is None
    paid = ended(operation(Kind.SALE, 100))
    assert getattr(after_change(after, paid, totals(**{number: 60})).payment, number) == 60


@pytest.mark.parametrize(("kind", "number"), [(Kind.CAPTURE, "captured"), (Kind.REFUND, "refunded")])
def test_already_done_that_our_own_numbers_say_too_makes_nothing_unknown(kind: Kind, number: str) -> None:
    """A refund of what was refunded in full. A replica that lags then showed less, and the order stayed held."""
    before = moved(payment(100, captures=kind is Kind.REFUND), kind, 100)
    started = operation(kind, 60)
    refused = ended(started, State.FAILED, ResultClass.ALREADY_DONE)
    assert getattr(after_change(reserving(before, started), refused, ShownBalance()).payment, number) == 100


@pytest.mark.parametrize(("kind", "number"), [(Kind.CAPTURE, "captured"), (Kind.REFUND, "refunded")])
def test_already_done_that_an_open_movement_says_too_makes_nothing_unknown(kind: Kind, number: str) -> None:
    """A refund of the rest was pending. The next one was refused, and the order stayed held after both had ended."""
    pending, started = operation(kind, 40), operation(kind, 30)
    before = reserving(moved(payment(100, captures=kind is Kind.REFUND), kind, 60), pending, started)
    refused = ended(started, State.FAILED, ResultClass.ALREADY_DONE)
    after = after_change(before, refused, ShownBalance()).payment
    assert getattr(after, number) == 60
    assert getattr(after_change(after, ended(pending), ShownBalance()).payment, number) == 100


def test_a_total_that_is_less_than_our_own_movements_is_out_of_date() -> None:
    paid = ended(operation(Kind.SALE, 100))
    before = replace(moved(moved(payment(100), Kind.REFUND, 40), Kind.REFUND, 30), refunded=None)
    assert after_change(before, paid, totals(refunded=40)).payment.refunded is None
    assert after_change(before, paid, totals(refunded=75)).payment.refunded == 75


@pytest.mark.parametrize("last", [Kind.VOID, Kind.CAPTURE])
def test_nothing_is_left_to_capture_after_a_void_or_a_final_capture(last: Kind) -> None:
    before = payment(100, captures=False)
    after = moved(before, last, 60, final=True) if last is Kind.CAPTURE else moved(before, last, None)
    assert after.capturable == 0
    assert judged(after, operation(Kind.CAPTURE, 1)) is PaymentVerdict.EXCEEDS


# --- What objects show that say nothing new of their operation


@pytest.mark.parametrize(("kind", "number"), [(Kind.CAPTURE, "captured"), (Kind.REFUND, "refunded")])
def test_an_object_that_movements_share_proves_one_only_if_its_total_has_grown_by_it(kind: Kind, number: str) -> None:
    before = moved(payment(100, captures=kind is Kind.REFUND), kind, 40)
    started, beside = operation(kind, 30), operation(kind, 20)

    def proof(total: int, *others: Operation) -> bool | None:
        return proves_movement(started, reserving(before, started, *others), totals(**{number: total}))

    assert [proof(40), proof(69), proof(70)] == [False, False, True]
    # 75 may be 40 + 30 and more of somebody else's: with another one open, only the sum of both proves this one.
    assert [proof(69, beside), proof(75, beside), proof(90, beside)] == [False, None, True]


def test_a_total_that_only_one_sum_of_open_movements_makes_says_which_have_moved() -> None:
    """Two captures of one authorization were open, each in the other's way, and a person had to look at both."""
    before = payment(200, captures=False)
    first, second, third = operation(Kind.CAPTURE, 60), operation(Kind.CAPTURE, 50), operation(Kind.CAPTURE, 10)

    def proofs(total: int, *opened: Operation) -> list[bool | None]:
        reserved = reserving(before, *opened)
        return [proves_movement(each, reserved, ShownBalance(captured=total)) for each in opened]

    assert proofs(60, first, second) == [True, False]
    assert proofs(110, first, second) == [True, True]
    assert proofs(60, first, second, third) == [None, None, None]  # the first alone, or the two others
    assert proofs(70, first, second, third) == [True, False, True]
    assert proofs(60, first, operation(Kind.CAPTURE, 60)) == [None, None]


def test_without_a_known_total_the_reading_of_the_object_counts() -> None:
    started = operation(Kind.CAPTURE, 30)
    assert proves_movement(started, None, ShownBalance(captured=10))
    assert proves_movement(started, reserving(payment(100, captures=False), started), ShownBalance())
    unknown = reserving(payment(100, captures=None), started)
    proofs = [proves_movement(started, unknown, ShownBalance(captured=total)) for total in (10, 30, 60)]
    assert proofs == [False, True, None]  # less cannot hold it, more may hold another one instead


def test_an_unknown_total_proves_nothing_that_movements_of_ours_explain() -> None:
    """A second capture of the same amount was told as done, by the total that the first one had made."""
    started = operation(Kind.CAPTURE, 30)
    unknown = reserving(replace(moved(payment(100, captures=False), Kind.CAPTURE, 30), captured=None), started)
    proofs = [proves_movement(started, unknown, ShownBalance(captured=total)) for total in (30, 60, 70)]
    assert proofs == [False, True, None]


def test_totals_of_a_payment_that_succeeded_are_new_once() -> None:
    paid, before, shown = ended(operation(Kind.SALE, 100)), payment(100), ShownBalance(refunded=90)
    before = after_change(before, paid, ShownBalance()).payment
    assert has_new_totals(before, paid, shown)
    after = after_change(before, paid, shown).payment
    assert after.refunded == 90
    assert not has_new_totals(after, paid, shown)
    assert not has_new_totals(after, paid, None)
    assert not has_new_totals(None, paid, shown)
    assert not has_new_totals(before, paid.changed(state=State.UNKNOWN), shown)


def test_a_pending_movement_posts_nothing() -> None:
    """P6 C: every refund of Adyen is pending first."""
    started = operation(Kind.REFUND, 100)
    before = reserving(payment(100), started)
    change = after_change(before, started.changed(state=State.PENDING, effect=Effect.DONE), ShownBalance())
    assert (change.payment.refunded, change.posting) == (0, None)
    assert hold_of_payment(change.payment) is IntentHold.GIVING_BACK


def test_a_dispute_is_a_fact_of_its_own_and_a_won_one_gives_it_back() -> None:
    """P6 D and E: a chargeback freed the order, or was refunded beside it: the customer paid twice, or the merchant."""
    sale = ended(operation(Kind.SALE, 100))
    disputed = after_change(payment(100), sale, ShownBalance(dispute="opened", moved=100)).payment
    assert disputed.disputed == 100
    assert hold_of_payment(disputed) is IntentHold.PAID
    assert check_limit(disputed, Kind.REFUND, Money(1, "EUR")).verdict is LimitVerdict.EXCEEDS
    won = after_change(disputed, sale, ShownBalance(dispute="won", moved=100)).payment
    assert won.disputed == 0


# --- Intents


def test_a_paid_payment_holds_its_intent_and_a_full_refund_frees_it() -> None:
    assert hold_of_payment(payment(100)) is IntentHold.PAID
    half = moved(payment(100), Kind.REFUND, 50)
    assert hold_of_payment(half) is IntentHold.PAID
    assert hold_of_payment(moved(half, Kind.REFUND, 50)) is IntentHold.REFUNDED


def test_a_void_after_a_partial_capture_frees_nothing() -> None:
    """P6 A: the customer had paid 60, and was charged 100 again."""
    captured = moved(payment(100, captures=False), Kind.CAPTURE, 60)
    assert hold_of_payment(moved(captured, Kind.VOID, None)) is IntentHold.PAID


@pytest.mark.parametrize("voided_by_us", [False, True])
def test_an_authorization_that_ends_after_a_partial_capture_frees_nothing(*, voided_by_us: bool) -> None:
    """P6 A by an event: the object reads as cancelled, and what was captured of it stands."""
    captured = moved(payment(100, captures=False), Kind.CAPTURE, 60)
    if voided_by_us:
        captured = moved(captured, Kind.VOID, None)
    sale = ended(operation(Kind.AUTHORIZATION, 100), reading=ResultClass.REVERSED)
    after = after_change(captured, sale, ShownBalance())
    assert (after.payment.refunded, after.payment.voided, after.payment.capturable) == (0, 40, 0)
    assert (hold_of_payment(after.payment), after.posting) == (IntentHold.PAID, None)
    assert hold_of_payment(moved(after.payment, Kind.REFUND, 60)) is IntentHold.REFUNDED


def test_an_authorization_that_expired_by_the_providers_word_frees_its_intent() -> None:
    """N12: nothing can be captured any more."""
    for reading, shown in (
        (ResultClass.REVERSED, ShownBalance()),  # the object reads as cancelled or expired
        (ResultClass.SUCCEEDED, totals(captured=0, capturable=0)),
    ):
        made = payment(100, captures=False)
        assert hold_of_payment(made) is IntentHold.PAID
        sale = ended(operation(Kind.AUTHORIZATION, 100), reading=reading)
        assert hold_of_payment(after_change(made, sale, shown).payment) is IntentHold.REFUNDED


def test_the_providers_own_capturable_amount_wins_over_ours() -> None:
    """P39: somebody captured 30 and released most of the rest at the provider, or raised the authorization there."""
    sale = ended(operation(Kind.AUTHORIZATION, 100))
    made = payment(100, captures=False)
    released = after_change(made, sale, totals(captured=30, capturable=20)).payment
    assert (released.captured, released.capturable, released.voided) == (30, 20, 50)
    assert check_limit(released, Kind.CAPTURE, Money(20, "EUR")).verdict is LimitVerdict.FITS
    assert check_limit(released, Kind.CAPTURE, Money(21, "EUR")).verdict is LimitVerdict.EXCEEDS
    raised = after_change(made, sale, totals(captured=0, capturable=150)).payment
    assert (raised.authorised, raised.capturable) == (150, 150)
    assert not after_change(moved(raised, Kind.CAPTURE, 150), sale, totals()).negative
    # An object that is older than what we know, or that may hold an open capture, does not count.
    captured = moved(made, Kind.CAPTURE, 40)
    assert after_change(captured, sale, totals(captured=0, capturable=100)).payment.capturable == 60
    open_capture = reserving(made, operation(Kind.CAPTURE, 40))
    assert after_change(open_capture, sale, totals(captured=40, capturable=0)).payment.capturable == 100


def test_a_capture_above_what_was_authorised_passes_as_far_as_the_provider_allows_it() -> None:
    """PayPal: 15% more, at most 75.00 USD."""
    above = Overcapture(1500, (Money(7500, "USD"),))
    made = payment(1000, captures=False, overcapture=above)
    assert check_limit(made, Kind.CAPTURE, Money(1150, "EUR")).verdict is LimitVerdict.FITS
    assert check_limit(made, Kind.CAPTURE, Money(1151, "EUR")).verdict is LimitVerdict.EXCEEDS
    assert (made.capturable, above.above(100_000, "USD"), above.above(100_000, "EUR")) == (1000, 7500, 15_000)
    full = with_money(made, operation(Kind.CAPTURE), replace(ENFORCED, takes_remainder=True))
    assert full.money == Money(1000, "EUR")  # "all that is left" is what was authorised
    for amount, final in itertools.product((1150, 1151), (False, True)):
        capture = operation(Kind.CAPTURE, amount)
        posted = after_change(with_reservation(made, capture, ENFORCED), ended(capture), ShownBalance(final=final))
        assert posted.negative is (amount == 1151)
    given_back = moved(moved(made, Kind.CAPTURE, 1000), Kind.REFUND, 1000)
    assert hold_of_payment(given_back) is IntentHold.REFUNDED  # what could be captured above keeps no intent


def test_a_void_before_any_capture_frees() -> None:
    assert hold_of_payment(moved(payment(100, captures=False), Kind.VOID, None)) is IntentHold.REFUNDED


def test_a_refund_of_a_part_that_was_captured_does_not_free_what_can_still_be_captured() -> None:
    """P6 B: then the warehouse captured the rest."""
    part = moved(moved(payment(100, captures=False), Kind.CAPTURE, 60), Kind.REFUND, 60)
    assert hold_of_payment(part) is IntentHold.PAID
    final = moved(moved(payment(100, captures=False), Kind.CAPTURE, 60, final=True), Kind.REFUND, 60)
    assert hold_of_payment(final) is IntentHold.REFUNDED


def test_unknown_numbers_free_only_by_a_void_without_a_capture_of_ours() -> None:
    """N12: every payment of before the upgrade was never free."""
    unknown = payment(100, captures=None)
    assert hold_of_payment(moved(unknown, Kind.VOID, None)) is IntentHold.REFUNDED
    assert hold_of_payment(moved(moved(unknown, Kind.CAPTURE, 60), Kind.VOID, None)) is IntentHold.PAID
    assert hold_of_payment(moved(unknown, Kind.REFUND, 100)) is IntentHold.PAID


def test_a_void_is_posted_once_although_its_payment_is_given_back_by_it() -> None:
    voided = moved(payment(100, captures=None), Kind.VOID, None)
    given_back = ended(operation(Kind.SALE, 100), reading=ResultClass.REVERSED)
    assert after_change(voided, given_back, ShownBalance()).posting is None
    reversed_elsewhere = after_change(payment(100), given_back, ShownBalance()).posting
    assert reversed_elsewhere is not None
    assert (reversed_elsewhere.kind, reversed_elsewhere.minor_units) == ("reversal", 100)


@pytest.mark.parametrize(
    ("captures", "refunded", "given_back"), [(True, None, 100), (True, 30, 70), (False, None, 100), (None, None, None)]
)
def test_a_reversal_posts_what_it_gives_back(
    captures: bool | None, refunded: int | None, given_back: int | None
) -> None:
    before = payment(100, captures=captures)
    if refunded is not None:
        before = moved(before, Kind.REFUND, refunded)
    started = operation(Kind.REVERSAL)
    posting = after_change(reserving(before, started), ended(started), ShownBalance()).posting
    assert posting is not None
    assert posting.minor_units == given_back


def test_a_reversal_frees_whatever_was_captured() -> None:
    for captures in (True, False, None):
        assert hold_of_payment(moved(payment(100, captures=captures), Kind.REVERSAL, None)) is IntentHold.REFUNDED


def test_a_refund_that_was_taken_back_holds_the_intent_again() -> None:
    started = operation(Kind.REFUND, 100)
    free = after_change(reserving(payment(100), started), ended(started), ShownBalance()).payment
    assert hold_of_payment(free) is IntentHold.REFUNDED
    taken_back = after_change(free, ended(started, reading=ResultClass.RETURNED), ShownBalance()).payment
    assert hold_of_payment(taken_back) is IntentHold.PAID


def test_a_payment_whose_steps_ended_without_effect_counts_as_nothing() -> None:
    declined = operation(Kind.SALE, 100).changed(state=State.FAILED, result_class=ResultClass.ISSUER_HARD_DECLINE)
    tried = after_change(Payment("op_1", "acme", "a"), declined, ShownBalance((PaymentName("pi_1", "n:1"),))).payment
    assert hold_of_payment(tried) is IntentHold.FREE


def test_an_adopted_payment_has_what_the_provider_would_still_let_us_capture() -> None:
    """Its own word wins: after a refund of what was captured, the intent of such a payment was held for ever."""
    object_shown = ShownBalance(authorised=100, captured=60, capturable=0, refunded=0, disputed=0, currency="EUR")
    read = adopted(Payment("op_1", "acme", "account-1"), object_shown)
    assert (read.authorised, read.captured, read.capturable) == (100, 60, 0)
    assert hold_of_payment(read) is IntentHold.PAID
    assert hold_of_payment(moved(read, Kind.REFUND, 60)) is IntentHold.REFUNDED


def test_what_was_paid_elsewhere_holds_the_intent_until_it_is_read() -> None:
    """P12 A: "already confirmed" freed the order, and the job paid it again."""
    refused = operation(Kind.SALE, 100).changed(state=State.FAILED, result_class=ResultClass.ALREADY_DONE)
    held = after_change(Payment("op_1", "acme", "a", ("pi_1",)), refused, ShownBalance(verify_at=5.0)).payment
    assert (held.elsewhere, held.verify_at) == (PaidElsewhere.UNVERIFIED, 5.0)
    assert hold_of_payment(held) is IntentHold.PAID
    read = adopted(held, ShownBalance(authorised=100, captured=100, refunded=0, currency="EUR"))
    assert (read.elsewhere, read.captured) == (PaidElsewhere.VERIFIED, 100)
    assert hold_of_payment(read) is IntentHold.PAID
    assert hold_of_payment(replace(held, elsewhere=PaidElsewhere.NO)) is IntentHold.FREE


# --- All sequences


STEPS = st.lists(
    st.tuples(
        st.sampled_from([Kind.CAPTURE, Kind.REFUND]),
        st.integers(1, 60),
        st.sampled_from(["succeeds", "fails", "unknown", "pending", "returned"]),
    ),
    max_size=14,
)


@settings(max_examples=400, deadline=None)
@given(STEPS, st.booleans())
def test_under_enforce_no_sequence_of_calls_moves_more_than_the_payment_has(
    steps: list[tuple[Kind, int, str]], captures: bool
) -> None:
    """The provider executes whatever it is sent, also what stays unknown here."""
    balance, known = payment(100, captures=captures), dict[str, Operation]()
    executed = {Kind.CAPTURE: 100 if captures else 0, Kind.REFUND: 0}
    for kind, amount, fate in steps:
        fresh = operation(kind, amount)
        if judge_movement(balance, fresh, ENFORCED, known).verdict is not PaymentVerdict.PASS:
            continue
        balance = with_reservation(balance, fresh, ENFORCED)
        if fate in {"unknown", "pending"}:
            doubt = frozenset({1}) if fate == "unknown" else frozenset[int]()
            known[fresh.id] = fresh.changed(state=State(fate), doubt=doubt)
        else:
            known[fresh.id] = ended(fresh, State.FAILED, ResultClass.ABSENT) if fate == "fails" else ended(fresh)
        balance = after_change(balance, known[fresh.id], ShownBalance()).payment
        if fate == "returned":
            balance = after_change(balance, ended(fresh, reading=ResultClass.RETURNED), ShownBalance()).payment
        executed[kind] += amount if fate not in {"fails", "returned"} else 0
        if fate == "returned" and kind is Kind.CAPTURE:
            break  # what was refunded of it before is the provider's to answer for
        assert executed[Kind.CAPTURE] <= 100
        assert executed[Kind.REFUND] <= executed[Kind.CAPTURE]


def test_names_are_apart_by_provider_account_and_length() -> None:
    keys = {name_key(*parts) for parts in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "d"))}
    assert len(keys) == 4


@pytest.mark.parametrize("kind", sorted(FOLLOW_UPS))
def test_a_movement_touches_its_payment_when_it_ends_and_when_it_comes_into_doubt(kind: Kind) -> None:
    started = operation(kind, 10)
    assert touches_payment(started, ended(started), None)
    assert touches_payment(started, started.changed(state=State.UNKNOWN, doubt=frozenset({1})), None)
    assert not touches_payment(started, started.changed(state=State.BACKOFF), None)
    assert not touches_payment(started, ended(started).changed(payment=""), None)


def test_the_oldest_posted_movements_are_forgotten_and_reservations_never() -> None:
    before = payment(10**9)
    first = operation(Kind.REFUND, 1)
    before = reserving(before, first)
    for _ in range(1_005):
        before = moved(before, Kind.REFUND, 1)
    assert len(before.movements) <= 1_000
    assert before.movement_of(first.id) is not None
    assert before.refunded == 1_005
    assert all(movement.status is not MovementStatus.RESERVED for movement in before.movements[1:])
