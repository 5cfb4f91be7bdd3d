"""Judges a fallback: one operation ends without effect and another one starts in its place, in one step. Pure. Every
store runs it as it runs `claim_plan`.
"""

from __future__ import annotations

from paywitness.core.claim import (
    AliasKind,
    ClaimJudgement,
    ClaimRequest,
    ClaimVerdict,
    after_expired_lease,
    lookup_verdict,
)
from paywitness.core.errors import IllegalTransition
from paywitness.core.operation import Operation, State
from paywitness.core.record import record
from paywitness.journal.base import OperationChange
from paywitness.journal.claim_answer import ClaimLookups, ClaimPlan
from paywitness.journal.claim_plan import fingerprint_of, start_write
from paywitness.journal.transitions import OperationWrite, record_write, stale_write


@record
class FallbackPlan:
    """The writes of a fallback: `end`, and the start in `second`. Both are written before the answer, or neither."""

    first: Operation
    second: ClaimPlan
    end: OperationWrite | None = None


def plan_fallback(change: OperationChange, request: ClaimRequest, now: float, lookups: ClaimLookups) -> FallbackPlan:
    """End the first and start the second, or raise StaleWrite. The same request with the same token gets the same
    answer again."""
    original, fresh = change.operation, request.fresh
    if original.fallback_to != fresh.id or fresh.fallback_of != original.id:
        raise ValueError(f"{original.id} and {fresh.id}: a fallback and what it stands for must name each other")
    if original.state is not State.FAILED:
        raise IllegalTransition(f"{original.id} falls back in {original.state}: only an end without effect may")
    stored = lookups.by_id(original.id)
    if stored is None:
        raise stale_write(original.id, original.version)
    if stored.version == original.version + 1 and stored.fallback_to == fresh.id:
        second = lookups.by_id(fresh.id)
        if second is not None and second.lease is not None and second.lease.token == request.token:
            return FallbackPlan(stored, ClaimPlan(ClaimVerdict.OWNED, second))  # its reply was lost
    if stored.version != original.version:
        raise stale_write(original.id, original.version)
    known = _plan_if_key_known(request, now, lookups)
    if known is not None:
        return FallbackPlan(stored, known)
    started = start_write(
        request,
        ClaimJudgement(ClaimVerdict.OWNED, None, fresh.generation, fresh.provider_key, fresh.stamp),
        now,
        f"stands for {original.id}",
    )
    ended = record_write(change, stored.lease, now)
    return FallbackPlan(ended.operation, ClaimPlan(ClaimVerdict.OWNED, started.operation, insert=started), ended)


def _plan_if_key_known(request: ClaimRequest, now: float, lookups: ClaimLookups) -> ClaimPlan | None:
    """The answer if the key under which the fallback would start is known already. Then nothing starts. None: the key
    is new."""
    key = request.fresh.key
    existing, kind = lookups.newest(key), None
    if existing is None and (alias := lookups.alias(key)) is not None:
        existing, kind = lookups.by_id(alias.operation_id), alias.kind
    if existing is not None:
        verdict = lookup_verdict(after_expired_lease(existing, now, request.leases_over_at))
        if kind is AliasKind.REFUSED:
            verdict = ClaimVerdict.GUARDED
        elif fingerprint_of(request) != existing.fingerprint:
            verdict = ClaimVerdict.MISMATCH
        return ClaimPlan(verdict, existing, alias_kind=kind, original=existing)
    gone = lookups.tombstone(key)
    return None if gone is None else ClaimPlan(ClaimVerdict.EXPIRED, None, tombstone=gone)
