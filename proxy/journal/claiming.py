"""What a claim comes to, pure: the key first, then, where something new would start, its guard. And the fallback, which
ends one operation and starts another.

Every store runs these over a `Shelf`, its look-ups within the one step that the claim is, and writes what they say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from proxy.core.claim import (
    Alias,
    AliasKind,
    Claim,
    ClaimRequest,
    Judgement,
    Tombstone,
    Verdict,
    after_expired_lease,
    judge,
    judge_guard,
    may_start_again,
    standing_verdict,
)
from proxy.core.errors import IllegalTransition
from proxy.core.frozen import frozen
from proxy.core.guard import is_paid
from proxy.core.lifecycle import Event, IncidentKind, advance
from proxy.core.operation import Lease, Operation, State
from proxy.core.outside import told_by
from proxy.journal.base import Change
from proxy.journal.steps import Step, after_lease, entry_of, recorded, stale

_STARTED = (Event.SEND_RECORDED.value,)
FALLBACKS_MAX = 4  # how far a key is followed from fallback to fallback


class Shelf(Protocol):
    """What a claim may look up, all of it as it stands in the step that the claim is."""

    def newest(self, key: str) -> Operation | None:
        """The newest generation under the key."""
        ...

    def by_id(self, operation_id: str) -> Operation | None: ...

    def disputed(self, key: str) -> Operation | None:
        """One under the key whose incident is open, of any generation."""
        ...

    def alias(self, key: str) -> Alias | None: ...

    def tombstone(self, key: str) -> Tombstone | None: ...

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        """Those that `core.guard.guard_kept` keeps under the guard, oldest first: the newest GUARDED_MAX. What is open
        is among the newest, for nothing starts after it; an intent that is paid every month has many."""
        ...


@frozen
class ClaimSteps:
    """What a claim comes to. `before` (in this order), `alias` and `started` are written before it is answered."""

    verdict: Verdict
    holder: Operation | None  # of the key or the guard, as it stands after the steps
    before: tuple[Step, ...] = ()
    started: Step | None = None
    alias: Alias | None = None  # to be written; replaces one of the same key
    alias_kind: AliasKind | None = None  # what the key is to the holder, where it is not its own
    tombstone: Tombstone | None = None
    asked: Operation | None = None  # whose call it repeats: the holder, or what the holder is the fallback of
    heard: bool = False  # the answer had reached nobody before


def claim_steps(request: ClaimRequest, now: float, shelf: Shelf) -> ClaimSteps:
    """Judge the claim: first its key, then, where something new would start, its guard."""
    existing, kind = _stands_for(request, now, shelf)
    if existing is not None and (fallback := _fallback_of(existing, shelf)) is not None:
        return _fell_back(existing, fallback, kind, request, now)
    judgement = judge(existing, request, now)
    before: list[Step] = []
    if existing is not None and judgement.existing is not None and judgement.existing is not existing:
        before.append(after_lease(existing, judgement.existing, now))
    holder = before[-1].operation if before else judgement.existing
    if existing is None and (gone := shelf.tombstone(request.fresh.key)) is not None:
        return ClaimSteps(Verdict.EXPIRED, None, tombstone=gone)
    if judgement.start_generation is None:
        return _standing(ClaimSteps(judgement.verdict, holder, tuple(before), alias_kind=kind, asked=holder), now)
    if existing is not None and (earlier := shelf.disputed(existing.key)) is not None:
        # The newest ended without effect, but an earlier one may have paid after all: nothing more is sent for it.
        return ClaimSteps(Verdict.REPLAY, earlier, tuple(before), asked=earlier)
    return _under_guard(request, judgement, before, now, shelf)


def _stands_for(request: ClaimRequest, now: float, shelf: Shelf) -> tuple[Operation | None, AliasKind | None]:
    """The operation that the key stands for: its own, or the one it joined or took, unless that one let it go."""
    own = shelf.newest(request.fresh.key)
    if own is not None and not _lets_go(own, request, now):
        return own, None
    alias = shelf.alias(request.fresh.key)
    if alias is None or alias.kind is AliasKind.REFUSED:
        return own, None
    first = shelf.by_id(alias.operation_id)
    if first is None or _lets_go(first, request, now):
        return own, None
    return first, alias.kind


def _lets_go(operation: Operation, request: ClaimRequest, now: float) -> bool:
    stands = after_expired_lease(operation, now)
    return may_start_again(stands, now, equal=_fingerprint(request) == operation.fingerprint)


def _fingerprint(request: ClaimRequest) -> str:
    return request.compare_fingerprint or request.fresh.fingerprint


def _fallback_of(operation: Operation, shelf: Shelf) -> Operation | None:
    """What stands for an operation that fell back, followed to the last one."""
    last = None
    following: Operation | None = operation
    for _ in range(FALLBACKS_MAX):
        if following is None or following.fallback_to is None:
            break
        following = shelf.by_id(following.fallback_to)
        last = following or last
    return last


def _first_of(operation: Operation, shelf: Shelf) -> Operation:
    """What an operation is, in the end, the fallback of; itself where it is none."""
    first = operation
    for _ in range(FALLBACKS_MAX):
        if first.fallback_of is None or (earlier := shelf.by_id(first.fallback_of)) is None:
            break
        first = earlier
    return first


def _fell_back(
    first: Operation, fallback: Operation, kind: AliasKind | None, request: ClaimRequest, now: float
) -> ClaimSteps:
    """The key answers with the fallback's outcome for ever, and starts nothing any more. Whether the call is the same
    one is asked of the first: the other route may have another rule, and had another account."""
    if _fingerprint(request) != first.fingerprint:
        return ClaimSteps(Verdict.MISMATCH, first, alias_kind=kind, asked=first)
    before: tuple[Step, ...] = ()
    stands = after_expired_lease(fallback, now)
    if stands is not fallback:
        before = (after_lease(fallback, stands, now),)
        stands = before[0].operation
    return _standing(ClaimSteps(standing_verdict(stands), stands, before, alias_kind=kind, asked=first), now)


def _standing(steps: ClaimSteps, now: float) -> ClaimSteps:
    """A key that is known. Whoever comes back for an answer that had reached nobody hears it now; and where two keys
    were given one answer, both of them coming back is one purchase too few, or one key too many."""
    holder = steps.holder
    if holder is None or steps.verdict is not Verdict.REPLAY:
        return steps
    after = _came_back(holder, steps.alias_kind)
    if after is holder:
        return steps
    step = _noted(after, "answer_heard" if holder.unheard else "key_returned", now, holder)
    return replace(steps, holder=step.operation, before=(*steps.before, step), heard=holder.unheard)


def _came_back(holder: Operation, kind: AliasKind | None) -> Operation:
    if not holder.taken:
        return holder.changed(unheard=False) if holder.unheard else holder
    who = "taker_returned" if kind is AliasKind.TAKEN else "first_returned" if kind is None else holder.taken
    if holder.taken in {"taken", who}:
        return holder if holder.taken == who else holder.changed(taken=who, unheard=False)
    if holder.incident is not None or holder.taken == "both":
        return holder
    return holder.changed(taken="both", incident=IncidentKind.BOTH_KEYS_RETURNED.value)


def _under_guard(
    request: ClaimRequest, judgement: Judgement, before: list[Step], now: float, shelf: Shelf
) -> ClaimSteps:
    """Something new would start: unless another operation holds its guard."""
    fresh = request.fresh
    guarded = shelf.guarded(fresh.guard.value) if fresh.guard is not None else ()
    if not guarded:
        started = _started(request, judgement, now)
        return ClaimSteps(judgement.verdict, started.operation, tuple(before), started)
    holders: dict[str, Operation] = {}
    for found in guarded:
        if found.key == fresh.key:
            continue  # its own earlier generation: the key was judged already
        stands = after_expired_lease(found, now)
        if stands is not found:
            step = after_lease(found, stands, now)
            before.append(step)
            stands = step.operation
        holders[found.id] = stands
    firsts = {holder.id: _first_of(holder, shelf) for holder in holders.values()}
    guard = judge_guard([_as_asked(holder, firsts[holder.id]) for holder in holders.values()], fresh, now)
    if guard.holder is None or guard.alias is None:
        started = _started(request, judgement, now, _flag(holders))
        return ClaimSteps(judgement.verdict, started.operation, tuple(before), started)
    holder, first = holders[guard.holder.id], firsts[guard.holder.id]
    alias = Alias(fresh.key, fresh.client_key, first.id, guard.alias, now)
    if guard.alias is AliasKind.REFUSED:
        verdict = Verdict.GUARDED
    elif guard.alias is AliasKind.TAKEN:
        step = _noted(holder.changed(unheard=False, taken="taken"), "answer_taken", now, holder, fresh.client_key)
        before.append(step)
        holder, verdict = step.operation, standing_verdict(step.operation)
    else:
        verdict = standing_verdict(holder)
    asked = holder if first.id == holder.id else first
    heard = guard.alias is AliasKind.TAKEN
    return ClaimSteps(verdict, holder, tuple(before), alias=alias, alias_kind=guard.alias, asked=asked, heard=heard)


def _as_asked(holder: Operation, first: Operation) -> Operation:
    """A fallback is compared as the call that it stands for: the next equal call is equal to that one."""
    if first is holder:
        return holder
    return holder.changed(
        fingerprint=first.fingerprint, provider=first.provider, operation=first.operation, account=first.account
    )


def _flag(holders: dict[str, Operation]) -> str:
    """What a person should know of another payment of the same intent that did not keep this one from starting."""
    others = [holder.id for holder in holders.values() if is_paid(holder) or holder.state is State.REQUIRES_ACTION]
    return f"another payment of the same intent: {', '.join(others[:3])}" if others else ""


def _noted(after: Operation, event: str, now: float, before: Operation, by: str = "") -> Step:
    operation = after.changed(version=before.version + 1, updated_at=now)
    note = f"by key {by}" if by else ""
    entry = entry_of(operation, "caller", (event,), note)
    return Step(operation, replace(entry, told=told_by(before, operation)), erase_request=operation.state.ended)


def _started(request: ClaimRequest, judgement: Judgement, now: float, flag: str = "") -> Step:
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
    return Step(operation, entry_of(operation, "caller", _STARTED, "; ".join(notes)))


def answer(steps: ClaimSteps, now: float, sealed: tuple[bytes | None, bytes | None], *, accepted: bool) -> Claim:
    """The claim's answer. `sealed` is the holder's request and response; `accepted` counts where one is used."""
    verdict = steps.verdict
    sealed_request = sealed[0] if verdict is Verdict.IN_DOUBT else None
    sealed_response = sealed[1] if verdict is Verdict.REPLAY else None
    return Claim(
        verdict,
        steps.holder,
        now,
        sealed_request,
        sealed_response,
        accepted or not needs_sealed(steps),
        steps.alias_kind,
        steps.heard,
        steps.tombstone,
    )


def needs_sealed(steps: ClaimSteps) -> bool:
    """Whether the answer holds what is sealed, and so has to know whether the credential is accepted."""
    return steps.holder is not None and (steps.verdict is Verdict.REPLAY or steps.verdict is Verdict.IN_DOUBT)


@frozen
class FallBackSteps:
    """What a fallback comes to: `ended` and `started`, both or neither, are to be written before it is answered."""

    first: Operation
    second: ClaimSteps
    ended: Step | None = None


def fall_back_steps(change: Change, request: ClaimRequest, now: float, shelf: Shelf) -> FallBackSteps:
    """End the first and start the second, or raise StaleWrite. Asked again with its token, it gives the same answer."""
    asked, fresh = change.operation, request.fresh
    if asked.fallback_to != fresh.id or fresh.fallback_of != asked.id:
        raise ValueError(f"{asked.id} and {fresh.id}: a fallback and what it stands for must name each other")
    if asked.state is not State.FAILED:
        raise IllegalTransition(f"{asked.id} falls back in {asked.state}: only an end without effect may")
    stored = shelf.by_id(asked.id)
    if stored is None:
        raise stale(asked.id, asked.version)
    if stored.version == asked.version + 1 and stored.fallback_to == fresh.id:
        second = shelf.by_id(fresh.id)
        if second is not None and second.lease is not None and second.lease.token == request.token:
            return FallBackSteps(stored, ClaimSteps(Verdict.OWNED, second))  # its reply was lost
    if stored.version != asked.version:
        raise stale(asked.id, asked.version)
    known = _known(request, now, shelf)
    if known is not None:
        return FallBackSteps(stored, known)
    started = _started(
        request,
        Judgement(Verdict.OWNED, None, fresh.generation, fresh.provider_key, fresh.stamp),
        now,
        f"stands for {asked.id}",
    )
    ended = recorded(change, stored.lease, now)
    return FallBackSteps(ended.operation, ClaimSteps(Verdict.OWNED, started.operation, started=started), ended)


def _known(request: ClaimRequest, now: float, shelf: Shelf) -> ClaimSteps | None:
    """What is known of the key that a fallback would start under. Whatever it is, nothing is started over it."""
    key = request.fresh.key
    existing, kind = shelf.newest(key), None
    if existing is None and (alias := shelf.alias(key)) is not None:
        existing, kind = shelf.by_id(alias.operation_id), alias.kind
    if existing is not None:
        verdict = standing_verdict(after_expired_lease(existing, now))
        if kind is AliasKind.REFUSED:
            verdict = Verdict.GUARDED
        elif _fingerprint(request) != existing.fingerprint:
            verdict = Verdict.MISMATCH
        return ClaimSteps(verdict, existing, alias_kind=kind, asked=existing)
    gone = shelf.tombstone(key)
    return None if gone is None else ClaimSteps(Verdict.EXPIRED, None, tombstone=gone)
