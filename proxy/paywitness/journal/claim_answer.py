"""What a claim comes to, and what its credential may hear of that, pure. Another owner's operation is never named, nor
joined, taken up by a next generation, nor is anything refused because of it.

If another credential made the operation that stands in the way, the two must be of one owner. If the policy can tell
owners apart and nobody knows it yet, nothing is told and nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from paywitness.core.claim import Alias, AliasKind, ClaimRequest, ClaimVerdict, Tombstone, maker_of
from paywitness.core.credential_owners import (
    AccountSource,
    CredentialRelation,
    Maker,
    credential_key,
    marks_from_text,
    may_see,
    related,
)
from paywitness.core.operation import Operation
from paywitness.core.payment import Payment
from paywitness.core.payment_claims import LimitCheck
from paywitness.core.payout import PayoutRefusal
from paywitness.core.record import record
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import OperationLookups
from paywitness.journal.tombstones import RememberedPayment
from paywitness.journal.transitions import OperationWrite


class ClaimLookups(OperationLookups, Protocol):
    """What a claim may look up, all of it as it stands in the step that the claim is."""

    def newest(self, key: str) -> Operation | None:
        """The newest generation under the key."""
        ...

    def disputed(self, key: str) -> Operation | None:
        """One under the key whose incident is open, of any generation."""
        ...

    def alias(self, key: str) -> Alias | None: ...

    def tombstone(self, key: str) -> Tombstone | None: ...

    def accepted(self, account: str, credential: str) -> bool:
        """Whether the provider has executed a call of the credential for the account."""
        ...

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        """Those that `core.guard.indexed_guard` keeps under the guard, oldest first: the newest GUARDED_MAX, and of the
        others those that `core.guard.is_more_than_paid`. An intent that is paid every month has many; one whose
        customer had to act may be accepted after them."""
        ...


@record
class ClaimPlan:
    """What a claim comes to. `before` (in this order), `alias` and `started` are written before it is answered."""

    verdict: ClaimVerdict
    holder: Operation | None  # of the key or the guard, as it stands after the steps
    updates: tuple[OperationWrite, ...] = ()
    insert: OperationWrite | None = None
    alias: Alias | None = None  # to be written; replaces one of the same key
    alias_kind: AliasKind | None = None  # what the key is to the holder, where it is not its own
    tombstone: Tombstone | None = None
    earlier: Operation | None = None  # the newest of the key itself, if another one would start
    original: Operation | None = None  # whose call it repeats: the holder, or what the holder is the fallback of
    first_delivery: bool = False  # the answer had reached nobody before
    rows: tuple[LedgerRow, ...] = ()  # of the ledger, to be written
    payment: Payment | None = None  # that the call acts on, as it stood before
    limit: LimitCheck | None = None
    waits: bool = False  # GUARDED: only while the holder is in flight
    payer: RememberedPayment | None = None  # PAID_BEFORE: the operation, which was retired since
    payout: PayoutRefusal | None = None
    credential_accepted: bool = True  # the claimer may be shown the reply
    credential_mapped: bool = True  # the claimer may send for the holder


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


def with_credential(plan: ClaimPlan, request: ClaimRequest, lookups: ClaimLookups) -> ClaimPlan:
    """The plan, with what its credential may be shown and may send; or the refusal that names nothing."""
    fresh, known = request.fresh, request.credential
    if plan.insert is not None:
        # A key that another owner used is not a fresh one: the next generation has the stamp and key of the first.
        other = plan.earlier
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
