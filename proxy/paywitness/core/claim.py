"""Claims: which call may send for an operation, and what a call gets whose key is known or whose guard is held.

`judge` is the rule for a key, `judge_guard` the rule for a guard. Both are pure, so that every journal gives the same
verdict from the same records. The journal runs them and writes the result in one step, and nothing may come in between.
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

# An equal call this soon after a purchase key ended without effect is a double click, not a new try.
REPLAY_BEFORE_NEXT_GENERATION_S = 60.0


class ClaimVerdict(StrEnum):
    OWNED = "owned"  # written as SENDING; the claimer may send
    REPLAY = "replay"  # it has ended, or waits for the customer or the provider: reply from the record
    IN_FLIGHT = "in_flight"  # another call holds it
    IN_DOUBT = "in_doubt"  # unknown or in review, and no call holds it
    MISMATCH = "mismatch"  # the key belongs to another payload
    GUARDED = "guarded"  # another open operation guards the same money
    PAID_BEFORE = "paid_before"  # an operation that was retired since paid the intent or the payout reference
    REFUNDED = "refunded"  # an equal payment of the intent was paid and given back
    RESERVED = "reserved"  # the balance of the payment allows it only once open movements have ended without effect
    EXCEEDS = "exceeds"  # the balance of the payment does not allow it
    OVER_CAP = "over_cap"  # the payout would exceed a cap
    NEEDS_APPROVAL = "needs_approval"  # a person must approve the payout first
    CHECK_REFUSED = "check_refused"  # the check before a payout did not allow it
    EXPIRED = "expired"  # only a tombstone is left
    ACCOUNT_UNKNOWN = "account_unknown"  # another credential's operation is in the way, and may be another owner's
    ANOTHER_OWNER = "another_owner"  # an operation of another owner is in the way
    ABSENT = "absent"  # the journal knows nothing under key or guard, and the claimer was not permitted to start


class AliasKind(StrEnum):
    """Why a key stands for another key's operation."""

    JOINED = "joined"  # an equal call under a held intent: it gets the reply of the operation that holds it
    TAKEN = "taken"  # it took over a reply that had reached no caller
    REFUSED = "refused"  # another call under a held guard: it got 409, and its key is free once the guard is


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
    """The rest of an operation after its retention: enough to never execute its key again silently."""

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
    """A request to the journal. `fresh` is the operation as it would be in its first generation, PREPARED."""

    fresh: Operation
    token: str  # a second claim with the same token gets the same answer
    permitted: bool  # False: the claim starts nothing, whatever the key and the guard allow
    lease_s: float
    sealed_request: bytes | None  # stored for a background re-send; None under never_store
    key_stem: str | None = None  # the base of later generations' provider keys; None if none is sent
    # The fingerprint of the duplicate under the stored rule, if that rule differs.
    compare_fingerprint: str | None = None
    payment: PaymentClaim = PaymentClaim()  # what the call means for a payment
    payout: PayoutClaim | None = None  # what the call means for the payout rules, if the policy has any
    credential: CredentialClaim = CredentialClaim()  # what the journal needs to know of the call's credential
    # Payments with lower ids may have movements that the journal did not see, so their limits only warn.
    limits_from: str = ""
    leases_over_at: float = math.inf  # a lease that ends later than this is not over, whatever the journal's time is
    deliveries_known: bool = True  # False: the journal may have forgotten which replies reached a caller


@record
class Claim:
    """The journal's answer. `operation` is the holder of the key; it is missing only for ClaimVerdict.ABSENT and
    EXPIRED."""

    verdict: ClaimVerdict
    operation: Operation | None
    now: float  # the journal's clock when it answered
    sealed_request: bytes | None = None  # IN_DOUBT: the request that a re-send must repeat
    sealed_response: bytes | None = None  # REPLAY: the stored response; None if the operation was closed without one
    credential_accepted: bool = True  # the credential made the operation, or may see its reply
    # The credential made the operation, or is mapped to the same account, so it may send for it.
    credential_mapped: bool = True
    alias: AliasKind | None = None  # set if the key is not the operation's own
    # This claim got a reply that had reached no caller; it gives the reply back if its own caller does not get it
    # either.
    took_undelivered: bool = False
    tombstone: Tombstone | None = None  # EXPIRED
    payment: Payment | None = None  # the payment before the claim, if the call acts on one
    limit: LimitCheck | None = None  # what the payment's balance allows, if it was checked
    waits: bool = False  # GUARDED: only while the holder is in flight
    paid_by: str = ""  # PAID_BEFORE: the id of the operation, which was retired since
    payout: PayoutRefusal | None = None  # OVER_CAP, NEEDS_APPROVAL
    refusal: str = ""  # ABSENT: the reason why nothing was started


@record
class ClaimJudgement:
    """What to write and what to answer. `start_generation` is set if the key may start a new operation: OWNED, or
    ABSENT if the claimer was not permitted to start one."""

    verdict: ClaimVerdict
    existing: Operation | None = None  # the holder as it is now: if its lease had expired, that was applied
    start_generation: int | None = None
    provider_key: str | None = None  # of the generation that starts
    stamp: str = ""  # of the generation that starts


def after_expired_lease(operation: Operation, now: float, over_at: float = math.inf) -> Operation:
    """The operation after its lease ran out, if it did. SENDING becomes an unknown outcome; PREPARED and BACKOFF were
    not being sent. `over_at`: a lease that ends later is not over, because the journal's time may have jumped."""
    if operation.lease is None or operation.lease.until_at > min(now, over_at):
        return operation
    return drop_lease(operation, now)


def drop_lease(held: Operation, now: float) -> Operation:
    """The operation without its holder. Its next state depends on what the holder may have been doing."""
    never_sent = held.state in {State.PREPARED, State.BACKOFF}
    after = advance(held, Event.LEASE_EXPIRED) if never_sent or held.attempt_under_way else held
    if held.attempt_under_way:
        after = after.changed(delivery_unknown=True)
    context = WriteContext(
        now,
        gives_back=held.lease.token if held.lease is not None else None,
        check_doubt_now=True,
        # Before its first byte the holder checked that its lease would outlast the writing. So no byte can leave now.
        no_bytes_after_at=now if held.attempt_under_way else None,
        reached=False,
    )
    return consequences(held, after, context).operation


@record
class GuardJudgement:
    """The guard's verdict on an operation that would start. `holder` is None if the operation may start."""

    holder: Operation | None = None
    alias: AliasKind | None = None  # what the key of the call becomes for the holder
    # The holder's payment was given back, the call is equal to it, and no other payment holds the guard.
    refunded: bool = False
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
    """Whether another operation under the same guard prevents this one from starting, and what becomes of its key.
    `holders` are as they are now, oldest first: expired leases have been applied. `payment_holds`: what the payments of
    holders say about the intent, by the holder's id. `once_per_target`: the object that a step acts on can be paid only
    once. `deliveries_known`: whether the journal knows for each holder if its reply reached a caller."""
    refused: Operation | None = None
    # Only its payment shows that it is paid; its own state says that the customer must act.
    refused_by_step: Operation | None = None
    refunded: Operation | None = None
    for holder in holders:
        by_other_step = _paid_by_other_step(holder, payment_holds)
        hold = GuardHold.PAID if by_other_step else hold_of(holder, now)
        if hold is None or holder.guard is None or holder.key == fresh.key:
            continue
        is_intent = holder.guard.kind is GuardKind.INTENT
        if fresh.distinct and not (is_intent and hold is GuardHold.OPEN):
            continue  # the caller means two payments; but while an intent is open, the first may still be paid
        standing = _standing(holder, payment_holds)
        asked = holder if deliveries_known else holder.changed(delivery_unknown=True)
        alias = _alias_to(asked, fresh, hold, standing, once_per_target=once_per_target)
        if by_other_step and alias is AliasKind.JOINED:
            alias = AliasKind.REFUSED  # the holder's reply asks the customer to act, and the customer has
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
    """Whether the intent is paid in several payments, and this one fits into their sum. An equal call is joined
    instead."""
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
    """Whether the customer had to act, and another step of the same payment has paid since. That step may name no
    intent itself (the details of a 3DS check), so that only the payment shows it."""
    guard = holder.guard
    return (
        holder.state is State.REQUIRES_ACTION
        and guard is not None
        and guard.kind is GuardKind.INTENT
        and guard.after_success is RepeatPaymentRule.BLOCK
        and payment_holds.get(holder.id, IntentHold.FREE) is not IntentHold.FREE
    )


def _standing(holder: Operation, payment_holds: Mapping[str, IntentHold]) -> IntentHold:
    """What the payment of a holder that paid says of its intent. If the operation succeeded and the payment shows no
    success, the payment lags behind: then the operation counts."""
    if _paid_by_other_step(holder, payment_holds):
        return payment_holds[holder.id]
    if holder.state is not State.SUCCEEDED and not holder.paid_elsewhere:
        return IntentHold.PAID
    if holder.kind in FOLLOW_UPS and holder.result_class in GIVEN_BACK:
        return IntentHold.FREE  # a refund that came back pays nothing: the balance decides what may be refunded again
    by_operation = IntentHold.REFUNDED if holder.result_class in GIVEN_BACK else IntentHold.PAID
    standing = payment_holds.get(holder.id, by_operation)
    is_behind = standing is IntentHold.FREE and not holder.paid_elsewhere
    return by_operation if is_behind else standing


def _alias_to(
    holder: Operation, fresh: Operation, hold: GuardHold, standing: IntentHold, *, once_per_target: bool
) -> AliasKind | None:
    """What the key of a call becomes for one holder of its guard; None if the holder does not prevent the call."""
    equal = _same_call(holder, fresh)
    if standing in {IntentHold.FREE, IntentHold.REFUNDED}:
        pays_it_again = once_per_target and bool(fresh.payment) and fresh.payment == holder.payment
        return AliasKind.REFUSED if (equal or pays_it_again) and standing is IntentHold.REFUNDED else None
    if standing is IntentHold.GIVING_BACK or hold is GuardHold.GIVEN_BACK:
        return AliasKind.REFUSED  # the holder's reply may no longer be true, and may become true again
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
    """Whether the holder belongs to the same payment and does not prevent this operation. While movements are reserved,
    the payment's balance decides about them. A holder that has ended and whose reply is not delivered yet prevents an
    equal call. A holder with an incident prevents every call. A step is prevented by an earlier step that is in flight
    or unknown, and by a success."""
    if not fresh.payment or holder.payment != fresh.payment:
        return False
    if fresh.kind in FOLLOW_UPS:
        is_reserved = holder.state in _IN_FLIGHT_OR_UNKNOWN
        return hold is GuardHold.OPEN and holder.incident is None and (is_reserved or not equal)
    return hold is GuardHold.OPEN and (once_per_target or holder.state not in _IN_FLIGHT_OR_UNKNOWN)


def _same_call(first: Operation, second: Operation) -> bool:
    """Whether both calls request the same of the same account. An intent may span accounts and providers; a reply may
    not."""
    mine = (first.fingerprint, first.provider, first.operation, first.account)
    return mine == (second.fingerprint, second.provider, second.operation, second.account)


def lookup_verdict(operation: Operation) -> ClaimVerdict:
    """The verdict on an operation for a call that may only read it."""
    if operation.lease is not None or operation.state in {State.PREPARED, State.SENDING, State.BACKOFF}:
        return ClaimVerdict.IN_FLIGHT
    return ClaimVerdict.IN_DOUBT if operation.state.in_doubt else ClaimVerdict.REPLAY


def judge(existing: Operation | None, request: ClaimRequest, now: float) -> ClaimJudgement:
    """The verdict on a claim, given the newest operation under its key. If the key may start something, the guard is
    checked next, even if the claimer was not permitted to start: "nothing was sent" must be true of the whole
    purchase."""
    start = ClaimVerdict.OWNED if request.permitted else ClaimVerdict.ABSENT
    if existing is None:
        return ClaimJudgement(start, None, 1, request.fresh.provider_key, request.fresh.stamp)
    if existing.version == 1 and existing.lease is not None and existing.lease.token == request.token:
        return ClaimJudgement(ClaimVerdict.OWNED, existing)  # the same claim again: its answer was lost
    existing = after_expired_lease(existing, now, request.leases_over_at)
    equal = (request.compare_fingerprint or request.fresh.fingerprint) == existing.fingerprint
    if may_start_again(existing, now, equal=equal):
        generation = existing.generation + 1
        # Under a key that stays, an equal payload must also have equal bytes, or the provider takes it for another
        # request.
        stamp = existing.stamp if equal and existing.key_released else request.fresh.stamp
        return ClaimJudgement(start, existing, generation, _provider_key(existing, request, generation), stamp)
    if not equal:
        return ClaimJudgement(ClaimVerdict.MISMATCH, existing)
    return ClaimJudgement(lookup_verdict(existing), existing)


def _provider_key(existing: Operation, request: ClaimRequest, generation: int) -> str | None:
    """The provider key of the next generation. A released end keeps its key: if we were wrong about that end, the
    provider still sees the same key, and dedupes or refuses. Only a decline needs another key, because the provider
    stores it."""
    if existing.key_released or request.key_stem is None:
        return existing.provider_key
    return generation_key(request.key_stem, generation)


def generation_key(stem: str, generation: int) -> str:
    """The provider key of a generation: a lower-case UUID of 26 derived digits and four that count generations.

    It has the version and variant of a random UUID, because some providers accept no other.
    """
    variant = "89ab"[int(stem[16], 16) % 4]
    return f"{stem[:8]}-{stem[8:12]}-4{stem[13:16]}-{variant}{stem[17:20]}-{stem[20:28]}{generation % 0x10000:04x}"


def may_start_again(existing: Operation, now: float, *, equal: bool) -> bool:
    """Whether the key may start its next generation: the operation provably ended without effect, and nothing
    contradicts that."""
    if existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent:
        return False
    if existing.fallback_to is not None:
        return False  # its key returns the fallback's outcome for ever
    if existing.lease is not None and existing.attempt_under_way:
        return False  # another call may be sending under this key now
    if existing.key_released:
        return True
    if not existing.key_names_purchase:
        return False  # a definite end uses up a key from a header
    return not equal or now - (existing.ended_at or now) >= REPLAY_BEFORE_NEXT_GENERATION_S
