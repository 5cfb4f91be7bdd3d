"""Payments in every journal: their names, reservations and balances change in the same step as the operation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import Claim, ClaimRequest, ClaimVerdict
from paywitness.core.lifecycle import Event, IncidentKind, advance
from paywitness.core.money import Money
from paywitness.core.operation import Guard, Operation, RepeatPaymentRule, State
from paywitness.core.payment import (
    Payment,
    ShownBalance,
    payment_key,
    payment_names,
)
from paywitness.core.payment_claims import LimitVerdict, PaymentClaim
from paywitness.core.payment_rules import LimitMode
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.journal.base import Journal, LedgerRow, OperationChange
from paywitness.journal.ledger import payment_from_row
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.conftest import Store
from tests.journal.samples import (
    TARGET,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    read,
    succeeding,
    telling,
)

DAY_S = 86_400.0
BLOCKING = intent(after_success=RepeatPaymentRule.BLOCK)
Kind = OperationKind


def shown(*names: str, account: str = "account-1", **values: Any) -> ShownBalance:
    return ShownBalance(names=payment_names("acme", account, names), **values)


def on(name: str = "ch_1", account: str = "account-1", **rules: Any) -> PaymentClaim:
    [acts_on] = payment_names("acme", account, [name])
    return PaymentClaim(acts_on=acts_on, **{"limits": LimitMode.ENFORCE, **rules})


async def paid(
    journal: Journal, key: str = "sale", name: str = "ch_1", *, guard: Guard | None = BLOCKING, **changes: Any
) -> Operation:
    """A payment of 12.50 that was made and captured."""
    started = await started_sale(journal, key, guard=guard, **changes)
    account = started.account
    evidence = shown(name, account=account, creates=True, captures=True)
    return await journal.record(telling(started, replace(succeeding(started), shown=evidence)))


async def started_sale(journal: Journal, key: str = "sale", **changes: Any) -> Operation:
    request = asking(key, operation="sale", kind=Kind.SALE, fingerprint=f"sale of {key}", **changes)
    fresh = request.fresh.changed(payment=request.fresh.id)
    claim = await journal.claim(replace(request, fresh=fresh))
    assert claim.verdict is ClaimVerdict.OWNED
    assert claim.operation is not None
    return claim.operation


def movement(
    key: str,
    kind: OperationKind = Kind.REFUND,
    amount: int | None = 500,
    claim: PaymentClaim | None = None,
    **changes: Any,
) -> ClaimRequest:
    money = None if amount is None else Money(amount, "EUR")
    changes = {"fingerprint": f"{kind} of {key}", **changes}
    request = asking(key, operation=kind.value, kind=kind, money=money, **changes)
    return replace(request, payment=claim or on())


async def move(
    journal: Journal, key: str, kind: OperationKind = Kind.REFUND, amount: int | None = 500, **changes: Any
) -> Operation:
    claim = await journal.claim(movement(key, kind, amount, **changes))
    assert claim.verdict is ClaimVerdict.OWNED, claim
    assert claim.operation is not None
    return claim.operation


def moved(operation: Operation, **values: Any) -> OperationChange:
    return telling(operation, replace(succeeding(operation), shown=ShownBalance(**values)))


async def balance(journal: Journal, payment_id: str) -> Payment:
    [row] = await journal.ledger_rows((payment_key(payment_id),))
    assert row is not None
    return payment_from_row(row)


# --- Names


async def test_a_success_writes_its_payment_and_a_follow_up_finds_it_by_its_name(journal: Journal) -> None:
    sale = await paid(journal)
    payment = await balance(journal, sale.id)
    assert (payment.names, payment.authorised, payment.captured, payment.refunded) == (("ch_1",), 1250, 1250, 0)
    assert payment.intent == BLOCKING
    refund = await move(journal, "refund")
    assert refund.payment == sale.id
    assert on().acts_on is not None
    [by_name] = await journal.ledger_rows((payment_names("acme", "account-1", ["ch_1"])[0].key,))
    assert by_name is not None
    assert payment_from_row(by_name).id == sale.id


async def test_two_accounts_do_not_share_a_name(journal: Journal) -> None:
    """P18: another account's refund reserved the remainder of this one's payment."""
    sale = await paid(journal)
    stranger = await move(journal, "refund", claim=on(account="account-2"), account="account-2")
    assert stranger.payment == stranger.id
    assert (await balance(journal, sale.id)).movements == ()


async def test_further_names_lead_to_the_same_payment(journal: Journal) -> None:
    """P33: the PaymentIntent and its charge."""
    started = await started_sale(journal)
    evidence = shown("pi_1", "ch_1", creates=True, captures=True)
    sale = await journal.record(replace(succeeding(started), shown=evidence))
    for amount, name in ((300, "pi_1"), (400, "ch_1")):
        assert (await move(journal, name, amount=amount, claim=on(name))).payment == sale.id


async def test_a_follow_up_under_another_name_joins_the_payment_when_the_response_shows_it(journal: Journal) -> None:
    """A refund by the charge's id, of a payment that is known by its PaymentIntent alone."""
    sale = await paid(journal, name="pi_1")
    refund = await move(journal, "refund", claim=on("ch_1"))
    assert refund.payment == refund.id
    done = await journal.record(replace(succeeding(refund), shown=shown("pi_1")))
    assert (done.payment, done.incident) == (sale.id, None)
    after = await balance(journal, sale.id)
    assert (after.refunded, set(after.names)) == (500, {"pi_1", "ch_1"})
    second = await move(journal, "second", amount=300, claim=on("ch_1"))
    assert second.payment == sale.id
    assert (await balance(journal, refund.id)).id == sale.id


async def test_a_payment_that_turned_out_to_be_another_twice_is_still_found_by_its_first_id(journal: Journal) -> None:
    """Three names of one payment, each seen alone first: the id of the first leads to the last."""
    first = await move(journal, "first", amount=100, claim=on("re_order"))
    second = await move(journal, "second", amount=200, claim=on("ch_1"))
    sale = await paid(journal, name="pi_1")
    other = await move(journal, "other", amount=300, claim=on("re_order"))
    assert other.payment == first.id
    await journal.record(telling(first, replace(succeeding(first), shown=shown("re_order", "ch_1"))))
    await journal.record(telling(second, replace(succeeding(second), shown=shown("ch_1", "pi_1"))))
    await journal.record(telling(other, replace(succeeding(other), shown=shown("re_order"))))
    payment = await balance(journal, first.id)
    assert (payment.id, payment.refunded) == (sale.id, 600)
    assert set(payment.names) == {"pi_1", "ch_1", "re_order"}
    assert (await move(journal, "fourth", amount=50, claim=on("re_order"))).payment == sale.id


async def test_what_may_be_forgotten_of_a_payment_makes_its_numbers_unknown_and_opens_no_incident(
    journal: Journal,
) -> None:
    """A refund in the moment after a rollback, of what was captured a moment before it: more than was captured, it
    seemed."""
    started = await started_sale(journal)
    evidence = shown("ch_1", creates=True, captures=False)
    sale = await journal.record(telling(started, replace(succeeding(started), shown=evidence)))
    refund = await move(journal, "refund", claim=on(limits=LimitMode.WARN))
    done = await journal.record(replace(moved(refund), numbers_forgotten=True))
    assert (done.state, done.incident) == (State.SUCCEEDED, None)
    after = await balance(journal, sale.id)
    assert (after.captured, after.refunded, after.posted_total(), after.verify_at is not None) == (
        None,
        None,
        500,
        True,
    )


async def test_a_reference_that_is_taken_is_an_incident_and_never_fails_the_record(journal: Journal) -> None:
    first = await paid(journal, "first", guard=None)
    started = await started_sale(journal, "second")
    change = replace(succeeding(started), shown=shown("ch_1", creates=True, captures=True))
    second = await journal.record(replace(change, operation=change.operation.changed(reference="ch_1")))
    assert (second.state, second.incident) == (State.SUCCEEDED, IncidentKind.REFERENCE_TAKEN)
    assert second.reference is None
    assert (await balance(journal, first.id)).captured == 1250


async def test_a_step_on_an_object_that_nobody_saw_and_its_create_are_one_payment(journal: Journal) -> None:
    create = await started_sale(journal, "create", guard=None)
    step = await move(journal, "confirm", Kind.SALE, None, claim=on("pi_1"))
    confirmed = await journal.record(replace(succeeding(step), shown=shown("pi_1", captures=True, authorised=1250)))
    late = await journal.record(replace(succeeding(create), shown=shown("pi_1", creates=True, captures=True)))
    assert (late.incident, late.payment) == (None, confirmed.payment)
    payment = await balance(journal, confirmed.payment)
    assert (payment.captured, payment.created) == (1250, True)


# --- Reservations and limits


async def test_a_movement_reserves_while_it_is_open_and_posts_when_it_succeeds(journal: Journal) -> None:
    sale = await paid(journal)
    refund = await move(journal, "refund")
    assert [each.minor_units for each in (await balance(journal, sale.id)).reserved()] == [500]
    doubt = await journal.record(replace(doubting(refund), shown=ShownBalance()))
    after = await balance(journal, sale.id)
    assert (after.unanswered, after.refunded, len(after.reserved())) == (True, 0, 1)
    found = advance(doubt, Event.INQUIRY_FOUND_SUCCESS).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    await journal.record(OperationChange(found, (Event.INQUIRY_FOUND_SUCCESS,), shown=ShownBalance()))
    posted = await balance(journal, sale.id)
    assert (posted.refunded, posted.reserved()) == (500, ())


async def test_an_end_without_effect_gives_its_reservation_back(journal: Journal) -> None:
    sale = await paid(journal)
    refund = await move(journal, "refund")
    await journal.record(replace(declining(refund), shown=ShownBalance()))
    after = await balance(journal, sale.id)
    assert (after.refunded, after.movements) == (0, ())


async def test_more_than_is_left_exceeds_and_more_than_is_free_is_reserved(journal: Journal) -> None:
    await paid(journal)
    over = await journal.claim(movement("over", amount=1251))
    assert over.verdict is ClaimVerdict.EXCEEDS
    assert over.limit is not None
    assert over.limit.remaining == 1250
    held = await move(journal, "held", amount=1000)
    reserved = await journal.claim(movement("more", amount=300))
    assert (reserved.verdict, reserved.operation) == (ClaimVerdict.RESERVED, held)
    warned = await journal.claim(movement("warned", amount=300, claim=on(limits=LimitMode.WARN)))
    assert warned.verdict is ClaimVerdict.OWNED
    assert warned.limit is not None
    assert warned.limit.verdict is LimitVerdict.RESERVED


async def test_n7_limits_only_warn_for_what_an_older_sidecar_may_have_moved(journal: Journal) -> None:
    payment = await paid(journal)
    over = movement("over", amount=1251)
    assert (await journal.claim(replace(over, limits_from=payment.id))).verdict is ClaimVerdict.EXCEEDS
    warned = await journal.claim(replace(over, limits_from=f"{payment.id}~"))
    assert warned.verdict is ClaimVerdict.OWNED
    assert warned.limit is not None
    assert warned.limit.verdict is LimitVerdict.EXCEEDS


async def test_a_refused_key_is_free_afterwards(journal: Journal) -> None:
    await paid(journal)
    assert (await journal.claim(movement("one", amount=9999))).verdict is ClaimVerdict.EXCEEDS
    assert (await journal.claim(movement("one", amount=500))).verdict is ClaimVerdict.OWNED


async def test_a_void_waits_for_a_capture_in_flight_and_is_refused_beside_one_in_doubt(journal: Journal) -> None:
    """B6."""
    started = await started_sale(journal)
    await journal.record(replace(succeeding(started), shown=shown("ch_1", creates=True, captures=False)))
    capture = await move(journal, "capture", Kind.CAPTURE, 600)
    busy = await journal.claim(movement("void", Kind.VOID, None))
    assert (busy.verdict, busy.waits, busy.operation) == (ClaimVerdict.GUARDED, True, capture)
    await journal.record(replace(doubting(capture), shown=ShownBalance()))
    refused = await journal.claim(movement("void", Kind.VOID, None))
    assert (refused.verdict, refused.waits) == (ClaimVerdict.GUARDED, False)
    other_part = await journal.claim(movement("part", Kind.CAPTURE, 300))
    assert other_part.verdict is ClaimVerdict.OWNED


async def test_a_holder_whose_lease_is_over_is_acted_upon_before_it_is_judged(store: Store) -> None:
    journal, clock = store.journal, store.clock
    started = await started_sale(journal)
    await journal.record(replace(succeeding(started), shown=shown("ch_1", creates=True, captures=False)))
    capture = await move(journal, "capture", Kind.CAPTURE, 600)
    clock.move(3600)
    refused = await journal.claim(movement("void", Kind.VOID, None))
    assert (refused.verdict, refused.waits) == (ClaimVerdict.GUARDED, False)
    assert (await read(journal, capture)).state is State.UNKNOWN


async def test_a_claim_that_is_asked_again_reserves_once(journal: Journal) -> None:
    sale = await paid(journal)
    request = movement("refund")
    first, second = await journal.claim(request), await journal.claim(request)
    assert (first.verdict, second.verdict) == (ClaimVerdict.OWNED, ClaimVerdict.OWNED)
    assert len((await balance(journal, sale.id)).reserved()) == 1


async def test_of_many_concurrent_movements_never_more_start_than_the_payment_allows(journal: Journal) -> None:
    sale = await paid(journal)
    requests = [movement(f"refund-{number}", amount=100 + number) for number in range(30)]
    claims = await asyncio.gather(*(journal.claim(request) for request in requests))
    started = [claim.operation for claim in claims if claim.verdict is ClaimVerdict.OWNED and claim.operation]
    reserved = sum(operation.money.minor_units for operation in started if operation.money)
    assert 0 < reserved <= 1250
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED, ClaimVerdict.RESERVED}
    await asyncio.gather(*(journal.record(moved(operation)) for operation in started))
    assert (await balance(journal, sale.id)).refunded == reserved


async def test_the_amount_of_a_follow_up_is_in_the_currency_of_its_payment(journal: Journal) -> None:
    """B9."""
    await paid(journal)
    named = await move(journal, "named", amount=None, claim=on(amount=300))
    assert named.money == Money(300, "EUR")
    rest = await move(journal, "rest", amount=None, claim=on(takes_remainder=True))
    assert (rest.money, rest.takes_remainder) == (Money(950, "EUR"), True)
    assert (await read(journal, rest)).money == Money(950, "EUR")


# --- Steps


async def test_the_intent_of_a_create_is_carried_to_its_later_steps(journal: Journal) -> None:
    """M16: a job whose confirm was in doubt began anew with another object of the same order."""
    for number, name in enumerate(("pi_1", "pi_2")):
        request = asking(f"create-{number}", operation="create", kind=Kind.NONE, money=None, fingerprint=name)
        fresh = request.fresh.changed(payment=request.fresh.id)
        claim = await journal.claim(replace(request, fresh=fresh))
        assert claim.operation is not None
        evidence = shown(name, creates=True, intent=BLOCKING)
        await journal.record(replace(succeeding(claim.operation), shown=evidence))
    first = await move(journal, "confirm-1", Kind.SALE, None, claim=on("pi_1"))
    assert first.guard == BLOCKING
    await journal.record(replace(doubting(first), shown=ShownBalance()))
    second = await journal.claim(movement("confirm-2", Kind.SALE, None, on("pi_2")))
    assert (second.verdict, second.operation and second.operation.id) == (ClaimVerdict.GUARDED, first.id)


async def test_a_create_keeps_the_intent_of_its_object_for_whoever_learns_its_end(journal: Journal) -> None:
    """Its response was lost, and an inquiry showed the object: the confirm then had no intent, and the order was paid
    twice."""
    request = asking("create", operation="create", kind=Kind.NONE, money=None)
    fresh = request.fresh.changed(payment=request.fresh.id)
    claim = await journal.claim(replace(request, fresh=fresh, payment=PaymentClaim(intent=BLOCKING)))
    assert claim.operation is not None
    assert (await read(journal, claim.operation)).object_intent == BLOCKING


async def test_a_decline_leaves_the_object_and_another_confirm_pays_it_without_an_incident(journal: Journal) -> None:
    """P4 A: the commonest retry of a card payment ended in an incident."""
    started = await started_sale(journal, guard=BLOCKING)
    await journal.record(replace(declining(started), shown=shown("pi_1", creates=True)))
    step = await move(journal, "confirm", Kind.SALE, None, claim=on("pi_1"))
    assert (step.payment, step.guard) == (started.id, BLOCKING)
    done = await journal.record(replace(succeeding(step), shown=shown("pi_1", captures=True, authorised=1250)))
    assert done.incident is None
    again = await journal.claim(asking("again", guard=BLOCKING, fingerprint="another"))
    assert again.verdict is ClaimVerdict.GUARDED


async def test_two_steps_that_both_succeed_are_one_success(journal: Journal) -> None:
    """P4 B: 3DS. The event names the sale, the confirm has succeeded: the only payment was to be refunded."""
    started = await started_sale(journal, guard=BLOCKING)
    acting = advance(started, Event.ACTION_SEEN, 1).changed(lease=None, result_class=ResultClass.REQUIRES_ACTION)
    waiting = await journal.record(OperationChange(acting, (Event.ACTION_SEEN,), shown=shown("pi_1", creates=True)))
    step = await move(journal, "confirm", Kind.SALE, None, claim=on("pi_1"))
    confirmed = await journal.record(replace(succeeding(step), shown=shown("pi_1", captures=True, authorised=1250)))
    told = advance(waiting, Event.WEBHOOK_TOLD_SUCCESS).changed(result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    sale = await journal.record(
        OperationChange(told, (Event.WEBHOOK_TOLD_SUCCESS,), shown=shown("pi_1", captures=True))
    )
    assert (confirmed.incident, sale.incident) == (None, None)
    assert (await balance(journal, sale.payment)).captured == 1250


async def test_an_order_that_a_step_without_an_intent_has_paid_is_not_paid_again(journal: Journal) -> None:
    """P4 C, 3DS: the sale waits for the customer, and the call that completes it names neither payment nor order."""
    started = await started_sale(journal, guard=BLOCKING)
    acting = advance(started, Event.ACTION_SEEN, 1).changed(lease=None, result_class=ResultClass.REQUIRES_ACTION)
    await journal.record(OperationChange(acting, (Event.ACTION_SEEN,), shown=shown("pi_1", creates=True)))
    other = asking("other", operation="sale", kind=Kind.SALE, guard=BLOCKING, fingerprint="another card")
    equal = asking("equal", operation="sale", kind=Kind.SALE, guard=BLOCKING, fingerprint="sale of sale")
    details = await started_sale(journal, "details", guard=None)
    await journal.record(replace(succeeding(details), shown=shown("pi_1", captures=True, authorised=1250)))
    for request in (other, equal):
        claim = await journal.claim(request)
        assert (claim.verdict, claim.operation and claim.operation.id) == (ClaimVerdict.GUARDED, started.id)
    await journal.record(moved(await move(journal, "refund", amount=1250, claim=on("pi_1"))))
    assert (await journal.claim(equal)).verdict is ClaimVerdict.REFUNDED
    assert (await journal.claim(other)).verdict is ClaimVerdict.OWNED


async def test_a_step_of_the_same_payment_is_refused_only_while_an_earlier_one_is_in_flight_or_unknown(
    journal: Journal,
) -> None:
    started = await started_sale(journal, guard=BLOCKING)
    await journal.record(replace(declining(started), shown=shown("pi_1", creates=True)))
    first = await move(journal, "confirm-1", Kind.SALE, None, claim=on("pi_1"))
    assert (await journal.claim(movement("x", Kind.SALE, None, on("pi_1")))).verdict is ClaimVerdict.GUARDED
    once = await journal.claim(movement("y", Kind.SALE, None, on("pi_1", once_per_target=True)))
    assert once.verdict is ClaimVerdict.OWNED
    assert once.operation is not None
    await journal.record(replace(declining(once.operation), shown=ShownBalance()))
    await journal.record(replace(declining(first), shown=ShownBalance()))
    assert (await journal.claim(movement("z", Kind.SALE, None, on("pi_1")))).verdict is ClaimVerdict.OWNED


# --- Intents


async def refunded(journal: Journal) -> Operation:
    sale = await paid(journal)
    refund = await move(journal, "refund", amount=1250)
    await journal.record(moved(refund))
    return sale


async def test_a_payment_that_pays_once_is_not_confirmed_again_after_it_was_given_back(journal: Journal) -> None:
    """The provider refused another confirm as already made, an inquiry read the payment as paid, and the caller was
    told so of money that had been given back."""
    await refunded(journal)
    once = movement("late", Kind.SALE, None, on("ch_1", once_per_target=True), guard=BLOCKING)
    assert (await journal.claim(once)).verdict is ClaimVerdict.REFUNDED
    elsewhere = movement("new", Kind.SALE, None, on("ch_2", once_per_target=True), guard=BLOCKING)
    assert (await journal.claim(elsewhere)).verdict is ClaimVerdict.OWNED


async def test_after_a_full_refund_an_equal_call_is_told_so_and_another_passes(journal: Journal) -> None:
    """B3 and P34."""
    sale = await refunded(journal)
    equal = asking("again", operation="sale", kind=Kind.SALE, fingerprint=sale.fingerprint, guard=BLOCKING)
    told = await journal.claim(equal)
    assert (told.verdict, told.operation and told.operation.id) == (ClaimVerdict.REFUNDED, sale.id)
    distinct = replace(equal, fresh=equal.fresh.changed(distinct="the customer came back"))
    assert (await journal.claim(distinct)).verdict is ClaimVerdict.OWNED
    other = asking("other", operation="sale", kind=Kind.SALE, fingerprint="another body", guard=BLOCKING)
    other = replace(other, fresh=other.fresh.changed(distinct="", key="key of another"))
    assert (await journal.claim(other)).verdict is ClaimVerdict.GUARDED  # the one above is under way


async def test_a_refund_that_an_expired_lease_ended_keeps_its_intent_no_longer(store: Store) -> None:
    """The end by a lease writes no payment: the reservation is still in its row, and means nothing."""
    journal, clock = store.journal, store.clock
    await refunded(journal)
    dead = await move(journal, "second refund", amount=100, claim=on(limits=LimitMode.WARN))
    waiting = dead.changed(state=State.BACKOFF, attempt_under_way=False)
    await journal.record(OperationChange(waiting, (), lease_s=30.0))
    other = asking("again", operation="sale", kind=Kind.SALE, fingerprint="another body", guard=BLOCKING)
    other = replace(other, fresh=other.fresh.changed(payment=other.fresh.id))
    assert (await journal.claim(other)).verdict is ClaimVerdict.GUARDED
    clock.move(60.0)
    await journal.expire_leases()
    again = await journal.claim(replace(other, token="again"))
    assert again.verdict is ClaimVerdict.OWNED
    assert again.operation is not None
    # The success of this one is no duplicate: what was paid before was given back.
    evidence = shown("ch_2", creates=True, captures=True)
    paid_again = await journal.record(replace(succeeding(again.operation), shown=evidence))
    assert paid_again.incident is None


async def test_names_of_a_renamed_provider_stay_under_the_name_that_keys_know(store: Store) -> None:
    """A payment by its charge, made before the object's own name was known: both links lead to one payment."""
    journal = store.journal
    renamed: dict[str, Any] = {"provider": "acme_eu", "keyed_as": "acme"}
    sale = await paid(journal, name="pi_1", **renamed)
    refund = await move(journal, "refund", claim=on("ch_1"), **renamed)
    assert refund.payment == refund.id
    evidence = shown("pi_1")
    after = await journal.record(telling(refund, replace(succeeding(refund), shown=evidence)))
    assert after.payment == sale.id
    assert (await move(journal, "second", amount=300, claim=on("ch_1"), **renamed)).payment == sale.id


async def test_a_partial_refund_frees_nothing(journal: Journal) -> None:
    await paid(journal)
    await journal.record(moved(await move(journal, "refund", amount=1249)))
    other = asking("other", operation="sale", kind=Kind.SALE, fingerprint="another body", guard=BLOCKING)
    assert (await journal.claim(other)).verdict is ClaimVerdict.GUARDED


async def test_a_refund_that_is_taken_back_after_the_order_was_paid_again_is_a_duplicate(journal: Journal) -> None:
    """P15."""
    await paid(journal)
    started = await move(journal, "refund", amount=1250)
    refund = await journal.record(moved(started))
    second = await started_sale(journal, "second", guard=BLOCKING)
    again = await journal.record(replace(succeeding(second), shown=shown("ch_2", creates=True, captures=True)))
    assert again.incident is None
    returned = advance(refund, Event.WEBHOOK_TOLD_REVERSAL).changed(result_class=ResultClass.RETURNED)
    change = OperationChange(returned, (Event.WEBHOOK_TOLD_REVERSAL,), shown=ShownBalance())
    taken_back = await journal.record(change)
    assert taken_back.incident == IncidentKind.DUPLICATE_SUCCESS


async def test_a_paid_intent_is_remembered_after_its_operation_was_retired(store: Store) -> None:
    """P17: a refund on day 100, an order that was paid in spring."""
    journal, clock = store.journal, store.clock
    sale = await paid(journal)
    clock.move(31 * DAY_S)
    assert await journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=100) >= 1
    assert await journal.read(sale.id) is None
    other = asking("other", operation="sale", kind=Kind.SALE, fingerprint="another", guard=BLOCKING)
    told = await journal.claim(other)
    assert (told.verdict, told.paid_by) == (ClaimVerdict.PAID_BEFORE, sale.id)
    refund = await move(journal, "refund", amount=1250)
    assert refund.payment == sale.id
    await journal.record(moved(refund))
    assert (await journal.claim(other)).verdict is ClaimVerdict.OWNED


async def test_rows_are_forgotten_after_their_time_but_not_while_something_is_reserved(store: Store) -> None:
    journal, clock = store.journal, store.clock
    sale = await paid(journal)
    other = await paid(journal, "other", "ch_9", guard=None)
    open_refund = await move(journal, "refund", claim=on("ch_9"))
    await journal.record(replace(doubting(open_refund), shown=ShownBalance()))
    clock.move(401 * DAY_S)
    for _ in range(3):
        await journal.retire(retention_s=30 * DAY_S, tombstone_s=900 * DAY_S, limit=100)
    rows = await journal.ledger_rows((payment_key(sale.id), payment_key(other.id)))
    assert rows[0] is None
    assert rows[1] is not None


# --- Rows


async def test_rows_are_written_over_their_version_all_or_none(journal: Journal) -> None:
    one, two = LedgerRow("x:1", 1, "first"), LedgerRow("x:2", 1, "second", due_at=5.0)
    assert await journal.write_ledger_rows((one, two))
    assert not await journal.write_ledger_rows((replace(one, version=2, text="newer"), two))
    assert [row and row.text for row in await journal.ledger_rows(("x:1", "x:2", "x:3"))] == ["first", "second", None]
    assert await journal.write_ledger_rows((replace(one, version=2, text="ünïcode"),))
    [row] = await journal.ledger_rows(("x:1",))
    assert row is not None
    assert (row.version, row.text) == (2, "ünïcode")


async def test_rows_are_due_when_their_time_has_come(journal: Journal, clock: HandClock) -> None:
    now = clock.now()
    await journal.write_ledger_rows((LedgerRow("x:1", 1, "a", now + 10), LedgerRow("x:2", 1, "b", now + 5)))
    assert await journal.due_ledger_rows(limit=10) == ()
    clock.move(11)
    assert [row.key for row in await journal.due_ledger_rows(limit=10)] == ["x:2", "x:1"]
    await journal.write_ledger_rows((LedgerRow("x:2", 2, "b"),))
    assert [row.key for row in await journal.due_ledger_rows(limit=10)] == ["x:1"]


async def test_payments_that_are_due_soon_are_counted_and_other_rows_are_not(
    journal: Journal, clock: HandClock
) -> None:
    now = clock.now()
    due = {"p:late": -5.0, "p:soon": 50.0, "p:tomorrow": 5_000.0, "a:approval": 50.0}
    await journal.write_ledger_rows(
        (*(LedgerRow(key, 1, "{}", now + due_s) for key, due_s in due.items()), LedgerRow("p:never", 1, "{}"))
    )
    counts = [await journal.count_due_ledger_rows(within_s) for within_s in (0.0, 50.0, DAY_S)]
    assert counts == [1, 2, 3]
    clock.move(60)
    assert await journal.count_due_ledger_rows(0.0) == 2
    await journal.write_ledger_rows((LedgerRow("p:soon", 2, "{}"),))
    assert await journal.count_due_ledger_rows(DAY_S) == 2


@pytest.mark.parametrize(("hours_left", "is_counted"), [(1, True), (47, True), (49, False)])
async def test_a_day_before_it_is_due_an_authorization_that_expires_within_two_days_is_counted(
    journal: Journal, clock: HandClock, hours_left: int, is_counted: bool
) -> None:
    """A payment is due a day before it expires, and from then on when it expires."""
    started = await started_sale(journal)
    expires_at = clock.now() + hours_left * 3_600.0
    evidence = shown("ch_1", creates=True, captures=False, expires_at=expires_at)
    await journal.record(telling(started, replace(succeeding(started), shown=evidence)))
    assert await journal.count_due_ledger_rows(DAY_S) == is_counted
    capture = await move(journal, "capture", Kind.CAPTURE, 1250)
    await journal.record(moved(capture))
    assert await journal.count_due_ledger_rows(DAY_S) == 0


# --- Postings


async def test_each_movement_is_posted_once_under_one_key(journal: Journal) -> None:
    sale = await paid(journal)
    refund = await journal.record(moved(await move(journal, "refund", amount=200)))
    told = {row.operation.id: row.entry.announcement for row in await journal.announcements(0, limit=50)}
    first, second = told[sale.id], told[refund.id]
    assert first is not None
    assert second is not None
    assert first.posting is not None
    assert second.posting is not None
    assert (first.posting.kind, first.posting.minor_units, first.posting.of) == ("sale", 1250, sale.id)
    assert (second.posting.key, second.posting.minor_units, second.posting.currency) == (refund.id, 200, "EUR")


async def test_what_was_refunded_beyond_the_payment_is_an_incident_in_the_same_step(journal: Journal) -> None:
    await paid(journal)
    refund = await move(journal, "refund", amount=5000, claim=on(limits=LimitMode.OFF))
    after = await journal.record(moved(refund))
    assert after.incident == IncidentKind.NEGATIVE_REMAINDER


# --- Cost


async def test_a_clean_call_and_a_clean_follow_up_cost_two_calls_each_on_redis(
    redis_url: str, clock: HandClock
) -> None:
    journal = await RedisJournal.open(redis_url, clock=clock)
    calls = journal.calls
    await paid(journal)
    assert journal.calls - calls == 2
    calls = journal.calls
    await journal.record(moved(await move(journal, "refund")))
    assert journal.calls - calls == 2
    await journal.close()


async def test_a_second_sidecar_sees_what_the_first_reserved(redis_url: str, clock: HandClock) -> None:
    one, two = await RedisJournal.open(redis_url, clock=clock), await RedisJournal.open(redis_url, clock=clock)
    sale = await paid(one)
    await move(two, "first", amount=1000)
    blind = await one.claim(movement("second", amount=900))
    assert blind.verdict is ClaimVerdict.RESERVED
    claims: list[Claim] = await asyncio.gather(
        *((one if number % 2 else two).claim(movement(f"race-{number}", amount=20 + number)) for number in range(40))
    )
    started = [
        claim.operation.money.minor_units
        for claim in claims
        if claim.verdict is ClaimVerdict.OWNED and claim.operation and claim.operation.money
    ]
    assert 0 < sum(started) <= 250
    assert sum(each.minor_units or 0 for each in (await balance(one, sale.id)).reserved()) == 1000 + sum(started)
    await one.close()
    await two.close()


@pytest.mark.parametrize("state", [State.UNKNOWN, State.SENDING])
async def test_an_earlier_operation_without_a_payment_still_holds_its_target(journal: Journal, state: State) -> None:
    """What was journalled before payments were kept."""
    earlier = await owned(journal, "old", operation="refund", kind=Kind.REFUND, guard=TARGET)
    if state is State.UNKNOWN:
        await journal.record(doubting(earlier))
    claim = await journal.claim(movement("new", amount=10, guard=TARGET))
    assert claim.verdict is ClaimVerdict.GUARDED
