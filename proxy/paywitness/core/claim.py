"""Claims: who may carry an operation, and what a call under a known key or a held guard is answered with.

`judge` is the rule for a key, `judge_guard` that for a guard; both pure, so that every journal gives the same verdict
from the same records. The journal runs them and writes the result in one step; nothing else may come in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from paywitness.core.consequences import WriteContext, consequences
from paywitness.core.credential_owners import CredentialClaim, Maker
from paywitness.core.guard import GIVEN_BACK, GuardHold, hold_of, may_be_taken
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import GuardKind, Operation, Outcome, RepeatPaymentRule, State
from paywitness.core.payment import FOLLOW_UPS, Payment
from paywitness.core.payment_claims import IntentHold, LimitCheck, PaymentClaim
from paywitness.core.payout import PayoutClaim, PayoutRefusal
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record

REPLAY_BEFORE_NEXT_GENERATION_S = 60.0  # a purchase key that just ended without effect: a double click, not a new try


class ClaimVerdict(StrEnum):
    OWNED = "owned"  # written as SENDING; the claimer may send
    REPLAY = "replay"  # it has ended or stands: answer what is kept
    IN_FLIGHT = "in_flight"  # somebody holds it
    IN_DOUBT = "in_doubt"  # unknown or in review, nobody holds it
    MISMATCH = "mismatch"  # the key belongs to another payload
    GUARDED = "guarded"  # another open operation guards the same money
    PAID_BEFORE = "paid_before"  # an operation that was retired since paid the intent or the payout reference
    REFUNDED = "refunded"  # an equal payment of the intent was paid and given back
    RESERVED = "reserved"  # the balance of the payment allows it only once open movements have ended without effect
    EXCEEDS = "exceeds"  # the balance of the payment does not allow it
    OVER_CAP = "over_cap"  # the payout would exceed a cap
    NEEDS_APPROVAL = "needs_approval"  # a person must approve the payout first
    CHECK_REFUSED = "check_refused"  # whoever is asked before a payout did not allow it
    EXPIRED = "expired"  # only a tombstone is left
    ACCOUNT_UNKNOWN = "account_unknown"  # another credential's operation stands in the way, perhaps another owner's
    ANOTHER_OWNER = "another_owner"  # an operation of another owner stands in the way
    ABSENT = "absent"  # nothing known under key or guard, and the claimer was not permitted to start


class AliasKind(StrEnum):
    """How a key came to stand for another key's operation."""

    JOINED = "joined"  # equal call under a held intent: it gets what the first gets
    TAKEN = "taken"  # it took an answer that had reached nobody
    REFUSED = "refused"  # another call under a held guard: told 409; the key is free when the guard is


@record
class Alias:
    """A key that was given another key's operation, or was refused because of it."""

    key: str
    client_key: str
    operation_id: str
    kind: AliasKind
    at: float


@record
class Tombstone:
    """What is left of an operation after its retention: enough never to execute its key again silently."""

    key: str
    operation_id: str
    provider: str
    operation: str
    client_key: str
    outcome: Outcome
    reference: str | None
    ended_at: float
    maker: Maker = Maker()


def maker_of(operation: Operation) -> Maker:
    return Maker(operation.provider, operation.account, operation.credential, operation.named_account)


@record
class ClaimRequest:
    """What a claimer asks for. `fresh` is the operation as it would stand in its first generation, PREPARED."""

    fresh: Operation
    token: str  # asked again with the same token, a claim gives the same answer
    permitted: bool  # False: it starts nothing, whatever the key and the guard say
    lease_s: float
    sealed_request: bytes | None  # kept for a background re-send; None under never_store
    key_stem: str | None = None  # what later generations' provider keys are made of; None where none is sent
    compare_fingerprint: str | None = None  # the repeat's fingerprint under the stored rule, when that rule differs
    payment: PaymentClaim = PaymentClaim()  # what the call means for a payment
    payout: PayoutClaim | None = None  # what it means for the rules of its payouts, if there are some
    credential: CredentialClaim = CredentialClaim()  # what is known of its credential
    limits_from: str = ""  # ids of payments below this may have been moved unseen: their limits only warn
    leases_over_at: float = math.inf  # a lease that ends later than this is not over, whatever the journal's time says
    deliveries_known: bool = True  # False: the journal may have forgotten who got which reply


@record
class Claim:
    """The journal's answer. `operation` is the holder of the key; absent only for ClaimVerdict.ABSENT and EXPIRED."""

    verdict: ClaimVerdict
    operation: Operation | None
    now: float  # the journal's clock when it answered
    sealed_request: bytes | None = None  # IN_DOUBT: what a re-send must repeat
    sealed_response: bytes | None = None  # REPLAY: the kept answer; None where it was closed without one
    credential_accepted: bool = True  # it made the call, or may be shown its reply
    credential_mapped: bool = True  # it made the call, or is mapped to the same account: it may send for it
    alias: AliasKind | None = None  # the key is not the operation's own
    took_undelivered: bool = (
        False  # what had reached nobody was given to this claim: given back, if it tells nobody either
    )
    tombstone: Tombstone | None = None  # EXPIRED
    payment: Payment | None = None  # as it stood before the claim, if the call acts on one
    limit: LimitCheck | None = None  # what the balance says, if it was asked
    waits: bool = False  # GUARDED: only while the holder is in flight
    paid_by: str = ""  # PAID_BEFORE: the id of the operation, which was retired since
    payout: PayoutRefusal | None = None  # OVER_CAP, NEEDS_APPROVAL
    refusal: str = ""  # ABSENT: why nothing was started after all


@record
class ClaimJudgement:
    """What to write and to answer. `start_generation` is set if the key may start a new operation: OWNED, or ABSENT if
    the claimer was not permitted to."""

    verdict: ClaimVerdict
    existing: Operation | None = None  # the holder as it now stands: an expired lease has been acted upon
    start_generation: int | None = None
    provider_key: str | None = None  # of the generation that starts
    stamp: str = ""  # of the generation that starts


def after_expired_lease(operation: Operation, now: float, over_at: float = math.inf) -> Operation:
    """The operation after its lease ran out, if it did: SENDING is doubt, PREPARED and BACKOFF were never sent.
    `over_at`: a lease that ends later than that is not over; the journal's time may have jumped."""
    if operation.lease is None or operation.lease.until_at > min(now, over_at):
        return operation
    return drop_lease(operation, now)


def drop_lease(held: Operation, now: float) -> Operation:
    """The operation without its holder. What the holder may have been doing decides what is now true."""
    never_sent = held.state in {State.PREPARED, State.BACKOFF}
    after = advance(held, Event.LEASE_EXPIRED) if never_sent or held.attempt_under_way else held
    if held.attempt_under_way:
        after = after.changed(delivery_unknown=True)
    context = WriteContext(
        now,
        gives_back=held.lease.token if held.lease is not None else None,
        check_doubt_now=True,
        # Its holder checked, before a byte, that the lease would outlast the writing: none can leave from here on.
        no_bytes_after_at=now if held.attempt_under_way else None,
        reached=False,
    )
    return consequences(held, after, context).operation


@record
class GuardJudgement:
    """What a guard says to an operation that would start. `holder` is None if it may."""

    holder: Operation | None = None
    alias: AliasKind | None = None  # what the key becomes to the holder
    refunded: bool = False  # the holder's payment was given back, and the call is equal to it; no other payment holds
    repeats_refunded: bool = False  # the call is equal to a payment that was given back, whoever else holds the guard


def judge_guard(
    holders: Iterable[Operation],
    fresh: Operation,
    now: float,
    *,
    payment_holds: Mapping[str, IntentHold] = {},
    once_per_target: bool = False,
    deliveries_known: bool = True,
) -> GuardJudgement:
    """Whether another operation under the same guard keeps this one from starting, and what becomes of its key.
    `holders` are as they now stand, oldest first: expired leases have been acted upon. `payment_holds`: what the
    payments of holders say, by the holder's id. `once_per_target`: the object that a step acts on pays once at most.
    `deliveries_known`: whether it is known of every holder whether its reply reached anybody."""
    refused: Operation | None = None
    refused_by_step: Operation | None = None  # only its payment knows that it is paid: its own words say otherwise
    refunded: Operation | None = None
    for holder in holders:
        by_other_step = _paid_by_other_step(holder, payment_holds)
        hold = GuardHold.PAID if by_other_step else hold_of(holder, now)
        if hold is None or holder.guard is None or holder.key == fresh.key:
            continue
        is_intent = holder.guard.kind is GuardKind.INTENT
        if fresh.distinct and not (is_intent and hold is GuardHold.OPEN):
            continue  # meant twice, says the caller; but an open intent may still be paid
        standing = _standing(holder, payment_holds)
        asked = holder if deliveries_known else holder.changed(delivery_unknown=True)
        alias = _alias_to(asked, fresh, hold, standing, once_per_target=once_per_target)
        if by_other_step and alias is AliasKind.JOINED:
            alias = AliasKind.REFUSED  # its own reply asks the customer to act, who has
        if alias is AliasKind.REFUSED and standing is IntentHold.REFUNDED:
            refunded = refunded or holder
        elif alias is AliasKind.REFUSED and by_other_step:
            refused_by_step = refused_by_step or holder
        elif alias is AliasKind.REFUSED:
            refused = refused or holder
        elif alias is not None:
            return GuardJudgement(holder, alias)
    stands = refused or refused_by_step
    holder_told = stands or refunded
    if holder_told is None:
        return GuardJudgement()
    return GuardJudgement(holder_told, AliasKind.REFUSED, stands is None, refunded is not None)


def is_covered(request: ClaimRequest, holders: Iterable[Operation], guard: GuardJudgement) -> bool:
    """Whether the intent is paid in several payments, and this one is within their sum. An equal call is joined."""
    total, money = request.payment.intent_total, request.fresh.money
    if total is None or money is None or guard.alias is not AliasKind.REFUSED or money.currency != total.currency:
        return False
    if guard.repeats_refunded:
        return False  # a late duplicate of a part that was given back
    amounts = [money.minor_units]
    for holder in holders:
        if holder.money is None or holder.money.currency != total.currency:
            return False
        amounts.append(holder.money.minor_units)
    return sum(amounts) <= total.minor_units


def _paid_by_other_step(holder: Operation, payment_holds: Mapping[str, IntentHold]) -> bool:
    """Whether the customer had to act, and another step of the same payment has paid it since. That step may name no
    intent itself (the details of a 3DS check): then only the payment knows."""
    guard = holder.guard
    return (
        holder.state is State.REQUIRES_ACTION
        and guard is not None
        and guard.kind is GuardKind.INTENT
        and guard.after_success is RepeatPaymentRule.BLOCK
        and payment_holds.get(holder.id, IntentHold.FREE) is not IntentHold.FREE
    )


def _standing(holder: Operation, payment_holds: Mapping[str, IntentHold]) -> IntentHold:
    """What the payment of a holder that paid says of its intent. A payment that knows of no success lags behind an
    operation that has succeeded: then the operation counts."""
    if _paid_by_other_step(holder, payment_holds):
        return payment_holds[holder.id]
    if holder.state is not State.SUCCEEDED and not holder.paid_elsewhere:
        return IntentHold.PAID
    if holder.kind in FOLLOW_UPS and holder.result_class in GIVEN_BACK:
        return IntentHold.FREE  # a refund that came back pays nothing: the balance says what may be refunded again
    by_operation = IntentHold.REFUNDED if holder.result_class in GIVEN_BACK else IntentHold.PAID
    standing = payment_holds.get(holder.id, by_operation)
    is_behind = standing is IntentHold.FREE and not holder.paid_elsewhere
    return by_operation if is_behind else standing


def _alias_to(
    holder: Operation, fresh: Operation, hold: GuardHold, standing: IntentHold, *, once_per_target: bool
) -> AliasKind | None:
    """What the key of a call becomes to one holder of its guard; None if the holder does not keep it off."""
    equal = _same_call(holder, fresh)
    if standing in {IntentHold.FREE, IntentHold.REFUNDED}:
        pays_it_again = once_per_target and bool(fresh.payment) and fresh.payment == holder.payment
        return AliasKind.REFUSED if (equal or pays_it_again) and standing is IntentHold.REFUNDED else None
    if standing is IntentHold.GIVING_BACK or hold is GuardHold.GIVEN_BACK:
        return AliasKind.REFUSED  # its reply may not be true any more, and may be again
    if hold is GuardHold.UNDELIVERED:
        taken = AliasKind.TAKEN if may_be_taken(holder) else AliasKind.REFUSED
        return taken if equal else None
    is_intent = holder.guard is not None and holder.guard.kind is GuardKind.INTENT
    if equal and (is_intent or _is_settled_transfer(holder)):
        return AliasKind.JOINED
    continues = _continues(holder, fresh, hold, equal=equal, once_per_target=once_per_target)
    return None if continues else AliasKind.REFUSED


def _is_settled_transfer(holder: Operation) -> bool:
    """Whether it is a payout that was made: an equal call under its reference gets its reply."""
    return holder.kind is OperationKind.PAYOUT and holder.state is State.SUCCEEDED


_IN_FLIGHT_OR_UNKNOWN = frozenset({State.PREPARED, State.SENDING, State.BACKOFF, State.UNKNOWN, State.REQUIRES_REVIEW})


def _continues(holder: Operation, fresh: Operation, hold: GuardHold, *, equal: bool, once_per_target: bool) -> bool:
    """Whether the holder is an operation of the same payment that does not keep this one off. The balance of a payment
    judges its movements while they are reserved. One that has ended and is still being answered keeps an equal call
    off, one that is contradicted all. A step is kept off by an earlier one that is in flight or unknown, and by
    success."""
    if not fresh.payment or holder.payment != fresh.payment:
        return False
    if fresh.kind in FOLLOW_UPS:
        is_reserved = holder.state in _IN_FLIGHT_OR_UNKNOWN
        return hold is GuardHold.OPEN and holder.incident is None and (is_reserved or not equal)
    return hold is GuardHold.OPEN and (once_per_target or holder.state not in _IN_FLIGHT_OR_UNKNOWN)


def _same_call(first: Operation, second: Operation) -> bool:
    """Whether both ask the same of the same account: an intent may span accounts and providers, an answer does not."""
    mine = (first.fingerprint, first.provider, first.operation, first.account)
    return mine == (second.fingerprint, second.provider, second.operation, second.account)


def lookup_verdict(operation: Operation) -> ClaimVerdict:
    """What a call that only may look is told of an operation."""
    if operation.lease is not None or operation.state in {State.PREPARED, State.SENDING, State.BACKOFF}:
        return ClaimVerdict.IN_FLIGHT
    return ClaimVerdict.IN_DOUBT if operation.state.in_doubt else ClaimVerdict.REPLAY


def judge(existing: Operation | None, request: ClaimRequest, now: float) -> ClaimJudgement:
    """What becomes of a claim, given the newest operation under its key. If the key may start something, the guard is
    asked next, whether or not the claimer was permitted to start: "nothing was sent" must be true of the purchase."""
    start = ClaimVerdict.OWNED if request.permitted else ClaimVerdict.ABSENT
    if existing is None:
        return ClaimJudgement(start, None, 1, request.fresh.provider_key, request.fresh.stamp)
    if existing.version == 1 and existing.lease is not None and existing.lease.token == request.token:
        return ClaimJudgement(ClaimVerdict.OWNED, existing)  # the same claim, asked again: its reply was lost
    existing = after_expired_lease(existing, now, request.leases_over_at)
    equal = (request.compare_fingerprint or request.fresh.fingerprint) == existing.fingerprint
    if may_start_again(existing, now, equal=equal):
        generation = existing.generation + 1
        # Under a kept key an equal payload must also be equal in bytes, or the provider takes it for another one.
        stamp = existing.stamp if equal and existing.key_released else request.fresh.stamp
        return ClaimJudgement(start, existing, generation, _provider_key(existing, request, generation), stamp)
    if not equal:
        return ClaimJudgement(ClaimVerdict.MISMATCH, existing)
    return ClaimJudgement(lookup_verdict(existing), existing)


def _provider_key(existing: Operation, request: ClaimRequest, generation: int) -> str | None:
    """A released end keeps its key: if we were wrong about it, the provider still sees the same key, and dedupes or
    refuses. Only an end that the provider stores, a decline, needs another one."""
    if existing.key_released or request.key_stem is None:
        return existing.provider_key
    return generation_key(request.key_stem, generation)


def generation_key(stem: str, generation: int) -> str:
    """The provider key of a generation: a lower-case UUID of 26 derived digits and four that count generations.

    Its version and variant are those of a random UUID: some providers take no other."""
    variant = "89ab"[int(stem[16], 16) % 4]
    return f"{stem[:8]}-{stem[8:12]}-4{stem[13:16]}-{variant}{stem[17:20]}-{stem[20:28]}{generation % 0x10000:04x}"


def may_start_again(existing: Operation, now: float, *, equal: bool) -> bool:
    """Whether the key may start its next generation: it ended provably without effect, and nothing contradicts that."""
    if existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent:
        return False
    if existing.fallback_to is not None:
        return False  # its key answers with the fallback's outcome for ever
    if existing.lease is not None and existing.attempt_under_way:
        return False  # somebody may be sending under this key right now
    if existing.key_released:
        return True
    if not existing.key_names_purchase:
        return False  # a key from a header is spent by a definite end
    return not equal or now - (existing.ended_at or now) >= REPLAY_BEFORE_NEXT_GENERATION_S
