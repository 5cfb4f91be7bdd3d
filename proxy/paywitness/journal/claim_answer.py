"""A claim's answer, pure: its plan as its credential may hear of it. Another owner's operation is never named, nor
joined, taken up by a next generation, nor is anything refused because of it.

If another credential made the operation that stands in the way, the two must be of one owner. If the policy can tell
owners apart and nobody knows it yet, nothing is told and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paywitness.core.claim import AliasKind, Claim, ClaimRequest, ClaimVerdict, maker_of
from paywitness.core.credential_owners import (
    AccountSource,
    CredentialRelation,
    Maker,
    credential_key,
    marks_from_text,
    may_see,
    related,
)
from paywitness.journal import claim_plan
from paywitness.journal.claim_plan import ClaimLookups, ClaimPlan

# What starts something, or is said without another operation.
_TELLS_OF_NOBODY = frozenset(
    {
        ClaimVerdict.OWNED,
        ClaimVerdict.ABSENT,
        ClaimVerdict.OVER_CAP,
        ClaimVerdict.NEEDS_APPROVAL,
        ClaimVerdict.CHECK_REFUSED,
    }
)


def plan_answer(request: ClaimRequest, now: float, lookups: ClaimLookups) -> ClaimPlan:
    """What a claim comes to for its credential. Every store runs this in the one step that the claim is."""
    return _with_credential(claim_plan.plan_claim(request, now, lookups), request, lookups)


def _with_credential(plan: ClaimPlan, request: ClaimRequest, lookups: ClaimLookups) -> ClaimPlan:
    """The plan, with what its credential may be shown and may send; or the refusal that names nothing."""
    fresh, known = request.fresh, request.credential
    if plan.insert is not None:
        # A key that another owner used is not a fresh one: the next generation has the stamp and key of the first.
        other = lookups.newest(fresh.key)
    elif plan.verdict in _TELLS_OF_NOBODY:
        return plan
    else:
        other = plan.original or plan.holder
        if other is None and plan.payment is not None:
            other = lookups.by_id(plan.payment.id)  # the balance refuses it: whoever made the payment
    maker = _retired_maker(plan) if other is None else maker_of(other)
    if maker is None or maker.credential == fresh.credential:
        return plan
    if not maker.credential:
        # Whoever is known to be of the account has been told apart from other owners already.
        is_known = not known.separates or _marks_of(known.scope, fresh.credential, lookups)
        return plan if is_known else ClaimPlan(ClaimVerdict.ACCOUNT_UNKNOWN, None)
    if maker.provider != fresh.provider:
        # Of another provider of the merchant: its credentials say nothing of ours.
        accepted = lookups.accepted(maker.account, fresh.credential)
        return replace(plan, credential_accepted=accepted, credential_mapped=False)
    relation = _relation_to(maker, request, lookups)
    if relation is CredentialRelation.OTHER:
        return ClaimPlan(ClaimVerdict.ANOTHER_OWNER, None)
    is_same = relation is CredentialRelation.SAME
    accepted = not is_same and known.account is not AccountSource.HEADER
    accepted = accepted and lookups.accepted(maker.account, fresh.credential)
    seen = may_see(relation, accepted=accepted, source=known.account, separates=known.separates)
    # The provider executed its call for an account that it read itself.
    is_same = is_same or (seen and known.account is AccountSource.SELECTOR)
    takes_reply = plan.alias is not None and plan.alias.kind is AliasKind.TAKEN
    if (known.separates and not is_same) or (takes_reply and not seen):
        # Who may not be shown a reply does not take it either: its key would stand for what another key is told.
        return ClaimPlan(ClaimVerdict.ACCOUNT_UNKNOWN, None)
    return replace(plan, credential_accepted=seen, credential_mapped=is_same)


def _retired_maker(plan: ClaimPlan) -> Maker | None:
    """Whose the operation was that stands in the way and is no longer kept."""
    if plan.tombstone is not None:
        return plan.tombstone.maker
    return None if plan.payer is None else plan.payer.maker


def _relation_to(maker: Maker, request: ClaimRequest, lookups: ClaimLookups) -> CredentialRelation:
    scope, mine = request.credential.scope, request.fresh.credential
    marks = [_marks_of(scope, credential, lookups) for credential in (mine, maker.credential)]
    return related(mine, marks[0], maker.credential, marks[1], maker.account, maker.named_account)


def _marks_of(scope: str, credential: str, lookups: ClaimLookups) -> dict[str, str]:
    row = lookups.row(credential_key(scope, credential))
    return {} if row is None else marks_from_text(row.text)


def claim_result(plan: ClaimPlan, now: float, sealed: Callable[[str], tuple[bytes | None, bytes | None]]) -> Claim:
    """The claim's answer. `sealed` reads the sealed request and response of the holder, if the answer holds one."""
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
