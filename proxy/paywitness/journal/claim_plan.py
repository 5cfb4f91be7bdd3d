"""Judges a claim: its key first. If a new operation would start, its guard comes next, then the rules of its payment or
payout. Pure.

A claim is one atomic step of the store. Within it every store runs these functions over its own `ClaimLookups`, and
writes the plan that they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from paywitness.core.claim import (
    Alias,
    AliasKind,
    Claim,
    ClaimJudgement,
    ClaimRequest,
    ClaimVerdict,
    GuardJudgement,
    after_expired_lease,
    is_covered,
    judge,
    judge_guard,
    lookup_verdict,
    may_start_again,
)
from paywitness.core.consequences import WriteContext, announcement_of, consequences
from paywitness.core.fallback import FALLBACKS_MAX
from paywitness.core.guard import GIVEN_BACK_BY_TAKER, is_paid
from paywitness.core.lifecycle import Event, IncidentKind, advance
from paywitness.core.operation import GuardKind, Lease, Operation, State
from paywitness.core.payment import FOLLOW_UPS, Payment
from paywitness.core.payment_changes import reconciled
from paywitness.core.payment_claims import (
    IntentHold,
    LimitCheck,
    PaymentClaim,
    PaymentVerdict,
    hold_of_payment,
    judge_movement,
    with_reservation,
)
from paywitness.core.payment_rules import LimitMode
from paywitness.core.provider_contract import OperationKind
from paywitness.journal.base import LedgerRow
from paywitness.journal.claim_answer import ClaimLookups, ClaimPlan, with_credential
from paywitness.journal.ledger import (
    BehindPayment,
    PaymentTarget,
    intent_key,
    link_row,
    payment_by_id,
    payment_holds,
    payment_row,
    target_of,
)
from paywitness.journal.payouts import plan_payout, rows_of_changes
from paywitness.journal.tombstones import RememberedPayment, remembered_payer
from paywitness.journal.transitions import OperationWrite, history_entry, lease_end_write

_START_EVENTS = (Event.SEND_RECORDED.value,)


def plan_answer(request: ClaimRequest, now: float, lookups: ClaimLookups) -> ClaimPlan:
    """The plan of a claim: its verdict, as far as its credential may see it, and all rows to write, the counts of caps
    among them. Every store runs this within the atomic step of the claim."""
    plan = plan_claim(request, now, lookups)
    if request.payout is not None or plan.updates:
        changes = _counted_changes(plan.updates, lookups)
        if plan.insert is not None:
            changes.append((None, plan.insert.operation))
        plan = replace(plan, rows=(*plan.rows, *rows_of_changes(changes, lookups)))
    is_first = plan.insert is not None and plan.earlier is None
    return plan if is_first else with_credential(plan, request, lookups)


def _counted_changes(
    updates: Iterable[OperationWrite], lookups: ClaimLookups
) -> list[tuple[Operation | None, Operation]]:
    """The updates that may change the counts of caps: each operation as it is stored, and as it shall be."""
    return [(lookups.by_id(write.operation.id), write.operation) for write in updates if write.operation.caps]


def claim_result(plan: ClaimPlan, now: float, sealed: Callable[[str], tuple[bytes | None, bytes | None]]) -> Claim:
    """The claim's answer. `sealed` reads the holder's sealed request and response; it runs only if the answer contains
    one of them."""
    verdict, request, response = plan.verdict, None, None
    if verdict is ClaimVerdict.REPLAY and plan.holder is not None:
        _, response = sealed(plan.holder.id)
    elif verdict is ClaimVerdict.IN_DOUBT and plan.holder is not None:
        request, _ = sealed(plan.holder.id)
    return Claim(
        verdict,
        plan.holder,
        now,
        request,
        response,
        plan.credential_accepted,
        plan.credential_mapped,
        plan.alias_kind,
        plan.first_delivery,
        plan.tombstone,
        plan.payment,
        plan.limit,
        plan.waits,
        "" if plan.payer is None else plan.payer.operation_id,
        plan.payout,
    )


def plan_claim(request: ClaimRequest, now: float, lookups: ClaimLookups) -> ClaimPlan:
    """Judge the claim: first its key, then, if a new operation would start, its guard."""
    existing, kind = _operation_of_key(request, now, lookups)
    if existing is not None and (fallback := _last_fallback_of(existing, lookups)) is not None:
        return _plan_for_fallback(existing, fallback, kind, request, now)
    judgement = judge(existing, request, now)
    before: list[OperationWrite] = []
    if existing is not None and judgement.existing is not None and judgement.existing is not existing:
        before.append(lease_end_write(existing, judgement.existing, now))
    holder = before[-1].operation if before else judgement.existing
    if existing is None and (gone := lookups.tombstone(request.fresh.key)) is not None:
        return ClaimPlan(ClaimVerdict.EXPIRED, None, tombstone=gone)
    if judgement.start_generation is None:
        return _plan_for_known_key(
            ClaimPlan(judgement.verdict, holder, tuple(before), alias_kind=kind, original=holder), now
        )
    if existing is not None and (earlier := lookups.disputed(existing.key)) is not None:
        # The newest generation ended without effect, but an earlier one may have paid after all. So nothing is sent.
        return ClaimPlan(ClaimVerdict.REPLAY, earlier, tuple(before), original=earlier)
    plan = _plan_under_guard(request, judgement, before, now, lookups)
    if plan.verdict is ClaimVerdict.ABSENT:
        # The call is not permitted, and neither key nor guard stops it. The journal records nothing about it.
        return ClaimPlan(plan.verdict, holder, plan.updates)
    return plan if existing is None else replace(plan, earlier=existing)


def _operation_of_key(
    request: ClaimRequest, now: float, lookups: ClaimLookups
) -> tuple[Operation | None, AliasKind | None]:
    """The operation that the key stands for: its own, or the one that it joined or took over. An operation that has
    released the key does not count. If the key joined a payment that was refunded since, the claim is judged as any
    other equal call."""
    own = lookups.newest(request.fresh.key)
    if own is not None and not _releases_key(own, request, now):
        return own, None
    alias = lookups.alias(request.fresh.key)
    if alias is None or alias.kind is AliasKind.REFUSED:
        return own, None
    first = lookups.by_id(alias.operation_id)
    if first is None or _releases_key(first, request, now):
        return own, None
    if alias.kind is AliasKind.JOINED and _is_given_back(first, request, lookups):
        return own, None
    return first, alias.kind


def _is_given_back(first: Operation, request: ClaimRequest, lookups: ClaimLookups) -> bool:
    is_equal_payment = first.kind.pays and fingerprint_of(request) == first.fingerprint
    if not is_equal_payment or first.state is not State.SUCCEEDED or not first.payment:
        return False
    found = payment_by_id(lookups, first.payment)
    return found is not None and hold_of_payment(found.payment) is IntentHold.REFUNDED


def _releases_key(operation: Operation, request: ClaimRequest, now: float) -> bool:
    current = after_expired_lease(operation, now, request.leases_over_at)
    return may_start_again(current, now, equal=fingerprint_of(request) == operation.fingerprint)


def fingerprint_of(request: ClaimRequest) -> str:
    return request.compare_fingerprint or request.fresh.fingerprint


def _last_fallback_of(operation: Operation, lookups: ClaimLookups) -> Operation | None:
    """The last operation in the chain of fallbacks of this one. None: it did not fall back."""
    last = None
    following: Operation | None = operation
    for _ in range(FALLBACKS_MAX):
        if following is None or following.fallback_to is None:
            break
        following = lookups.by_id(following.fallback_to)
        last = following or last
    return last


def _original_of(operation: Operation, lookups: ClaimLookups) -> Operation:
    """The first operation of the chain in which this one is a fallback; the operation itself if it is none."""
    first = operation
    for _ in range(FALLBACKS_MAX):
        if first.fallback_of is None or (earlier := lookups.by_id(first.fallback_of)) is None:
            break
        first = earlier
    return first


def _plan_for_fallback(
    first: Operation, fallback: Operation, kind: AliasKind | None, request: ClaimRequest, now: float
) -> ClaimPlan:
    """The key always gets the fallback's outcome, and never starts an operation again. The call is compared with the
    first operation, because the fallback's route may have another fingerprint rule, and had another account."""
    if fingerprint_of(request) != first.fingerprint:
        return ClaimPlan(ClaimVerdict.MISMATCH, first, alias_kind=kind, original=first)
    before: tuple[OperationWrite, ...] = ()
    current = after_expired_lease(fallback, now, request.leases_over_at)
    if current is not fallback:
        before = (lease_end_write(fallback, current, now),)
        current = before[0].operation
    return _plan_for_known_key(
        ClaimPlan(lookup_verdict(current), current, before, alias_kind=kind, original=first), now
    )


def _plan_for_known_key(plan: ClaimPlan, now: float) -> ClaimPlan:
    """Answer a known key. A reply that had reached no caller counts as delivered now. If two keys got the same reply,
    and callers come back with both, that is an incident: one purchase too few, or one key too many."""
    holder = plan.holder
    if holder is None or plan.verdict is not ClaimVerdict.REPLAY:
        return plan
    after = _after_key_returned(holder, plan.alias_kind)
    if after is holder:
        return plan
    write = _note_write(after, "answer_heard" if holder.undelivered else "key_returned", now, holder)
    return replace(plan, holder=write.operation, updates=(*plan.updates, write), first_delivery=holder.undelivered)


def _after_key_returned(holder: Operation, kind: AliasKind | None) -> Operation:
    if not holder.takeover:
        return holder.changed(undelivered=False) if holder.undelivered else holder
    who = "taker_returned" if kind is AliasKind.TAKEN else "first_returned" if kind is None else holder.takeover
    if holder.takeover in {"taken", GIVEN_BACK_BY_TAKER, who}:
        return holder if holder.takeover == who else holder.changed(takeover=who, undelivered=False)
    if holder.incident is not None or holder.takeover == "both":
        return holder
    return holder.changed(takeover="both", incident=IncidentKind.BOTH_KEYS_RETURNED.value)


def _plan_under_guard(
    request: ClaimRequest, judgement: ClaimJudgement, before: list[OperationWrite], now: float, lookups: ClaimLookups
) -> ClaimPlan:
    """Judge an operation that would start. It does not start if another operation holds its guard, or if its payment
    does not allow it."""
    target = target_of(request, lookups)
    request = replace(request, fresh=target.fresh)
    fresh = request.fresh
    guarded = lookups.guarded(fresh.guard.value) if fresh.guard is not None else ()
    holders: dict[str, Operation] = {}
    firsts: dict[str, Operation] = {}
    for found in guarded:
        if found.key != fresh.key:  # its own earlier generation: the key was judged already
            holders[found.id] = holder = _after_lease(found, before, now, request)
            firsts[holder.id] = _original_of(holder, lookups)

    def behind(payment: Payment) -> dict[str, Operation]:
        return _open_movements(payment, before, now, lookups, request)

    guard = GuardJudgement()
    if holders:
        guard = judge_guard(
            [_with_identity_of_original(holder, firsts[holder.id]) for holder in holders.values()],
            fresh,
            now,
            payment_holds=payment_holds(lookups, holders.values(), behind),
            once_per_target=request.payment.once_per_target,
            deliveries_known=request.deliveries_known,
        )
    if guard.holder is None and (payer := _payer_before(fresh, lookups, behind)) is not None:
        return ClaimPlan(ClaimVerdict.PAID_BEFORE, None, tuple(before), payer=payer)
    if guard.holder is None or guard.alias is None or is_covered(request, holders.values(), guard):
        if request.payout is not None:
            return _plan_payout(request, judgement, before, now, lookups)
        if target.payment is not None and _is_beside_unknown(target.payment, fresh, holders.values(), lookups):
            request = replace(request, fresh=fresh.changed(beside_unknown=True))
        note = _other_payments_note(holders) if holders else ""
        return _plan_on_payment(request, judgement, before, now, lookups, target, note)
    return _plan_behind_guard(
        guard.alias, holders[guard.holder.id], firsts[guard.holder.id], fresh, before, now, lookups, guard.refunded
    )


def _plan_behind_guard(
    kind: AliasKind,
    holder: Operation,
    first: Operation,
    fresh: Operation,
    before: list[OperationWrite],
    now: float,
    lookups: ClaimLookups,
    refunded: bool,
) -> ClaimPlan:
    """The holder of the guard prevents the start: the call's key becomes an alias of the holder's, or is refused."""
    alias = Alias(fresh.key, fresh.client_key, first.id, kind, now)
    if kind is AliasKind.REFUSED:
        verdict = ClaimVerdict.REFUNDED if refunded else ClaimVerdict.GUARDED
    elif kind is AliasKind.TAKEN:
        write = _note_write(
            holder.changed(undelivered=False, takeover="taken"), "answer_taken", now, holder, fresh.client_key
        )
        before.append(write)
        # If the holder still has a lease, its resolver only inquires and can find nothing new. So reply now.
        holder, verdict = write.operation, ClaimVerdict.REPLAY
    else:
        verdict = lookup_verdict(holder)
    original = holder if first.id == holder.id else first
    first_delivery = kind is AliasKind.TAKEN
    rows = _ask_for_numbers(holder, lookups, now) if verdict is ClaimVerdict.GUARDED else ()
    return ClaimPlan(
        verdict,
        holder,
        tuple(before),
        alias=alias,
        alias_kind=kind,
        original=original,
        first_delivery=first_delivery,
        rows=rows,
    )


def _is_beside_unknown(payment: Payment, fresh: Operation, holders: Iterable[Operation], lookups: ClaimLookups) -> bool:
    """Whether a step would start while an earlier step of its payment may still pay. The object pays at most once, but
    if this step is declined, the earlier one may have paid. The steps are read only if the payment was in doubt."""
    if not fresh.kind.pays:
        return False
    steps = [holder for holder in holders if holder.payment == payment.id]
    if payment.unanswered:
        steps += [step for step in map(lookups.by_id, payment.steps) if step is not None]
    return any(step.kind.pays and not step.state.ended and step.state is not State.REQUIRES_ACTION for step in steps)


def _ask_for_numbers(holder: Operation, lookups: ClaimLookups, now: float) -> tuple[LedgerRow, ...]:
    """The row that makes the payment due for a verification, if it holds its intent only because a number is unknown.
    Empty if that verification was already requested."""
    found = payment_by_id(lookups, holder.payment) if holder.payment and holder.state is State.SUCCEEDED else None
    if found is None or None not in {found.payment.captured, found.payment.refunded}:
        return ()
    if found.payment.verify_at is not None or found.payment.verifications:
        return ()
    return (payment_row(replace(found.payment, verify_at=now), found.row),)


def _after_lease(found: Operation, before: list[OperationWrite], now: float, request: ClaimRequest) -> Operation:
    """The operation with its expired lease applied, if it has one. That update goes into `before`: it is written before
    the claim is answered."""
    current = after_expired_lease(found, now, request.leases_over_at)
    if current is found:
        return found
    write = lease_end_write(found, current, now)
    if all(write.operation.id != other.operation.id for other in before):
        before.append(write)
    return write.operation


def _payer_before(fresh: Operation, lookups: ClaimLookups, behind: BehindPayment) -> RememberedPayment | None:
    """The retired operation that paid the intent or the payout reference of `fresh`; None: there is none."""
    guard = fresh.guard
    if guard is None or guard.kind is GuardKind.FINGERPRINT or fresh.distinct or fresh.kind in FOLLOW_UPS:
        return None
    row = lookups.row(intent_key(guard.value))
    return None if row is None else remembered_payer(row, lookups, behind)


def _limits_of(request: ClaimRequest, payment: Payment) -> PaymentClaim:
    """The call's claim on its payment. Its limits only warn if an older sidecar may move the payment without counting
    the movement, or may have done so."""
    claim = request.payment
    if claim.limits is not LimitMode.ENFORCE or payment.id >= request.limits_from:
        return claim
    return replace(claim, limits=LimitMode.WARN)


def _plan_on_payment(
    request: ClaimRequest,
    judgement: ClaimJudgement,
    before: list[OperationWrite],
    now: float,
    lookups: ClaimLookups,
    target: PaymentTarget,
    note: str,
) -> ClaimPlan:
    """Start the operation: no guard prevents it. A follow-up must also fit the balance of its payment."""
    fresh, payment = request.fresh, target.payment
    if payment is None or request.payment.acts_on is None:
        started = start_write(request, judgement, now, note)
        return ClaimPlan(judgement.verdict, started.operation, tuple(before), started)
    open_operations = _open_movements(payment, before, now, lookups, request)
    current = reconciled(payment, open_operations)
    limit: LimitCheck | None = None
    if fresh.kind in FOLLOW_UPS:
        judged = judge_movement(current, fresh, _limits_of(request, payment), open_operations)
        limit = judged.check
        if judged.verdict is not PaymentVerdict.PASS:
            return ClaimPlan(
                _PAYMENT_VERDICTS[judged.verdict],
                judged.holder,
                tuple(before),
                payment=current,
                limit=limit,
                waits=judged.verdict is PaymentVerdict.BUSY,
            )
    started = start_write(request, judgement, now, note)
    rows = [payment_row(with_reservation(current, started.operation, request.payment), target.row)]
    if target.row is None:
        rows.append(link_row(request.payment.acts_on.key, payment.id))
    return ClaimPlan(
        judgement.verdict,
        started.operation,
        tuple(before),
        started,
        rows=tuple(rows),
        payment=current,
        limit=limit,
    )


def _plan_payout(
    request: ClaimRequest, judgement: ClaimJudgement, before: list[OperationWrite], now: float, lookups: ClaimLookups
) -> ClaimPlan:
    """Start the payout: no guard prevents it. Its caps must allow it. Above the policy's amount a person must have
    approved it."""
    if not request.permitted:
        return ClaimPlan(ClaimVerdict.ABSENT, None, tuple(before))  # only a payout that may start needs caps, approval
    planned = plan_payout(request, _counted_changes(before, lookups), now, lookups)
    if planned.verdict is not ClaimVerdict.OWNED:
        return ClaimPlan(planned.verdict, None, tuple(before), rows=planned.rows, payout=planned.refusal)
    counted = replace(request, fresh=request.fresh.changed(caps=planned.caps))
    started = start_write(counted, judgement, now, planned.note)
    return ClaimPlan(judgement.verdict, started.operation, tuple(before), started, rows=planned.rows)


_PAYMENT_VERDICTS = {
    PaymentVerdict.BUSY: ClaimVerdict.GUARDED,
    PaymentVerdict.OPEN: ClaimVerdict.GUARDED,
    PaymentVerdict.RESERVED: ClaimVerdict.RESERVED,
    PaymentVerdict.EXCEEDS: ClaimVerdict.EXCEEDS,
}


def _open_movements(
    payment: Payment, before: list[OperationWrite], now: float, lookups: ClaimLookups, request: ClaimRequest
) -> dict[str, Operation]:
    found = (lookups.by_id(movement.operation_id) for movement in payment.reserved())
    return {operation.id: _after_lease(operation, before, now, request) for operation in found if operation is not None}


def _with_identity_of_original(holder: Operation, first: Operation) -> Operation:
    """The holder with the identity of its original. A fallback is compared as the call that it stands for, because the
    next equal call is equal to that one."""
    if first is holder:
        return holder
    return holder.changed(
        fingerprint=first.fingerprint, provider=first.provider, operation=first.operation, account=first.account
    )


def _other_payments_note(holders: dict[str, Operation]) -> str:
    """The note for people about other payments of the same intent that did not prevent this start."""
    others = [holder.id for holder in holders.values() if is_paid(holder) or holder.state is State.REQUIRES_ACTION]
    return f"another payment of the same intent: {', '.join(others[:3])}" if others else ""


def _note_write(after: Operation, event: str, now: float, before: Operation, by: str = "") -> OperationWrite:
    implied = consequences(before, after, WriteContext(now))
    operation = implied.operation.changed(version=before.version + 1, updated_at=now)
    note = f"by key {by}" if by else ""
    entry = replace(history_entry(operation, "caller", (event,), note), announcement=implied.announcement)
    return OperationWrite(operation, entry, implied.erase_request)


def start_write(request: ClaimRequest, judgement: ClaimJudgement, now: float, flag: str = "") -> OperationWrite:
    generation = judgement.start_generation or 1
    operation = advance(
        request.fresh,
        Event.SEND_RECORDED,
        generation=generation,
        provider_key=judgement.provider_key,
        stamp=judgement.stamp,
        version=1,
        created_at=now,
        updated_at=now,
        first_sent_at=now,
        lease=Lease(request.token, now + request.lease_s),
    )
    notes = [flag] if flag else []
    if request.fresh.distinct:
        notes.append(f"meant twice: {request.fresh.distinct}")
    if judgement.existing is not None:
        notes.insert(0, f"generation {generation} of key; earlier operation {judgement.existing.id}")
    entry = history_entry(operation, "caller", _START_EVENTS, "; ".join(notes))
    if operation.kind is OperationKind.PAYOUT:
        entry = replace(entry, announcement=announcement_of(None, operation))
    return OperationWrite(operation, entry)
