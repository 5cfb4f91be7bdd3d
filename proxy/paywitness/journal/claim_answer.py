"""The plan of a claim, and the part of it that the claim's credential may see. Pure. A claim never names another
owner's operation, never joins it, and never starts a next generation of it. Nor is a call refused because of it.

If another credential made the operation in the way, both credentials must belong to one owner. If the policy can tell
owners apart, and the owner is not known yet, the claim is refused without naming the operation, and nothing is written.
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
    """The look-ups of a claim. All of them read within the atomic step of the claim."""

    def newest(self, key: str) -> Operation | None:
        """The newest generation under the key."""
        ...

    def disputed(self, key: str) -> Operation | None:
        """An operation under the key, of any generation, with an open incident."""
        ...

    def alias(self, key: str) -> Alias | None: ...

    def tombstone(self, key: str) -> Tombstone | None: ...

    def accepted(self, account: str, credential: str) -> bool:
        """Whether the provider has executed a call of the credential for the account."""
        ...

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        """The operations that `core.guard.indexed_guard` keeps under the guard, oldest first: the newest GUARDED_MAX,
        and of the others only those that `core.guard.is_more_than_paid`. An intent that is paid every month has many
        operations. An older one whose customer had to act may still be accepted after all of them."""
        ...


@record
class ClaimPlan:
    """The verdict of a claim, and the writes that come with it. `updates` (in this order), `insert`, `alias` and `rows`
    are written before the claim is answered."""

    verdict: ClaimVerdict
    holder: Operation | None  # holds the key or the guard; as it is after `updates`
    updates: tuple[OperationWrite, ...] = ()
    insert: OperationWrite | None = None
    alias: Alias | None = None  # to be written; replaces an alias of the same key
    alias_kind: AliasKind | None = None  # how the key stands for the holder, if it is not the holder's own key
    tombstone: Tombstone | None = None
    earlier: Operation | None = None  # the newest of the key itself, if another one would start
    original: Operation | None = None  # the operation whose call this one repeats: the holder, or its original
    first_delivery: bool = False  # the reply had reached no caller before
    rows: tuple[LedgerRow, ...] = ()  # of the ledger, to be written
    payment: Payment | None = None  # the payment that the call acts on, as it was before
    limit: LimitCheck | None = None
    waits: bool = False  # GUARDED, but only while the holder is in flight
    payer: RememberedPayment | None = None  # PAID_BEFORE: the operation that paid and was retired since
    payout: PayoutRefusal | None = None
    credential_accepted: bool = True  # the claimer may be shown the reply
    credential_mapped: bool = True  # the claimer may send for the holder


# Verdicts that start an operation, or that name no other operation.
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
    """The plan, marked with what its credential may see and may send; or a refusal that names no operation."""
    fresh, known = request.fresh, request.credential
    if plan.insert is not None:
        # A key that another owner used is not fresh: the next generation would have the stamp and key of the first.
        other = plan.earlier
    elif plan.verdict in _TELLS_OF_NOBODY:
        return plan
    else:
        other = plan.original or plan.holder
        if other is None and plan.payment is not None:
            other = lookups.by_id(plan.payment.id)  # the balance refuses it: compare with the maker of the payment
    maker = _retired_maker(plan) if other is None else maker_of(other)
    if maker is None or maker.credential == fresh.credential:
        return plan
    if not maker.credential:
        # If the credential has marks of an account, it has been told apart from other owners already.
        is_known = not known.separates or _marks_of(known.scope, fresh.credential, lookups)
        return plan if is_known else ClaimPlan(ClaimVerdict.ACCOUNT_UNKNOWN, None)
    if maker.provider != fresh.provider:
        # The operation went to another provider of the merchant, whose credentials prove nothing about ours.
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
        # A caller that may not see a reply may not take it over either: its key would stand for another owner's reply.
        return ClaimPlan(ClaimVerdict.ACCOUNT_UNKNOWN, None)
    return replace(plan, credential_accepted=seen, credential_mapped=is_same)


def _retired_maker(plan: ClaimPlan) -> Maker | None:
    """The maker of the retired operation that is in the way."""
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
