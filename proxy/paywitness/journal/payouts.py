"""Caps and approvals of payouts as ledger rows, and how a claim or a change moves them. Pure.

A cap has one row for each scope: the newest window in which it was used, and the amount spent in that window. Each
approval has one row, and one further row lists the approvals that wait for an operator. Every store runs these
functions between its read and its write, as it does those of `claim_plan` and `transitions`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.money import Money
from paywitness.core.operation import Operation
from paywitness.core.payout import (
    APPROVALS_WAITING_KEY,
    Approval,
    ApprovalStatus,
    ApprovalTerms,
    CapCount,
    PayoutClaim,
    PayoutRefusal,
    over_cap,
    spent_change,
    window_at,
    window_s_of,
)
from paywitness.core.record import record
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import RowLookups

WAITING_MAX = 500  # requests on the list; an older one can still be approved by its id
REQUEST_KEPT_S = 30 * 86_400.0  # for a request that nobody approved; after that a duplicate call makes a new request

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


# --- Caps


def cap_count(row: LedgerRow | None) -> CapCount | None:
    if row is None:
        return None
    window, spent = row.text.split(" ")[:2]
    return CapCount(int(window), int(spent))


class _Counts:
    """The counts of caps, with changes that are not written yet."""

    def __init__(self, lookups: RowLookups) -> None:
        self._lookups = lookups
        self._found: dict[str, LedgerRow | None] = {}
        self.counts: dict[str, CapCount] = {}

    def read(self, key: str) -> CapCount | None:
        if key not in self._found:
            self._found[key] = row = self._lookups.row(key)
            count = cap_count(row)
            if count is not None:
                self.counts[key] = count
        return self.counts.get(key)

    def change(self, operation: Operation, minor_units: int) -> None:
        for key in operation.caps if minor_units else ():
            window = window_at(operation.created_at, window_s_of(key))
            count = self.read(key) or CapCount(window, 0)
            self.counts[key] = count.changed(window, minor_units)

    def rows(self) -> tuple[LedgerRow, ...]:
        """The rows of the counts that have changed."""
        rows = []
        for key, count in self.counts.items():
            row = self._found[key]
            if count != cap_count(row):
                version = 1 if row is None else row.version + 1
                rows.append(LedgerRow(key, version, f"{count.window} {count.spent}"))
        return tuple(rows)


def rows_of_change(operation: Operation, minor_units: int, lookups: RowLookups) -> tuple[LedgerRow, ...]:
    """The rows to be written with a change that moves the counts of the operation's caps by this amount."""
    counts = _Counts(lookups)
    counts.change(operation, minor_units)
    return counts.rows()


def rows_of_writes(
    stored: Iterable[Operation], written: Iterable[Operation], lookups: RowLookups
) -> tuple[LedgerRow, ...]:
    """The rows to be written with operations that are written over their stored versions."""
    before = {operation.id: operation for operation in stored if operation.caps}
    return rows_of_changes([(before[after.id], after) for after in written if after.id in before], lookups)


def rows_of_changes(
    changes: Iterable[tuple[Operation | None, Operation]], lookups: RowLookups
) -> tuple[LedgerRow, ...]:
    """The rows to be written with several changes, each a pair: the stored operation and the new one."""
    counts = _Counts(lookups)
    for before, after in changes:
        counts.change(after, spent_change(before, after))
    return counts.rows()


# --- Approvals as text


def approval_to_text(approval: Approval) -> str:
    terms = approval.terms
    value: dict[str, Any] = {
        "provider": terms.provider,
        "operation": terms.operation,
        "account": terms.account,
        "fingerprint": terms.fingerprint,
        "reference": terms.reference,
        "beneficiary": terms.beneficiary,
        "money": None if terms.money is None else (terms.money.minor_units, terms.money.currency),
        "requested_at": approval.requested_at,
        "valid_s": approval.valid_s,
    }
    if approval.approved_at is not None:
        value |= {"approved_at": approval.approved_at, "by": approval.approved_by, "reason": approval.reason}
    if approval.used_by:
        value["used_by"] = approval.used_by
    return _encode(value)


def approval_from_row(row: LedgerRow) -> Approval:
    value = _decode(row.text)
    money = value["money"]
    terms = ApprovalTerms(
        id=row.key.removeprefix("a:"),
        provider=value["provider"],
        operation=value["operation"],
        account=value["account"],
        fingerprint=value["fingerprint"],
        reference=value["reference"],
        beneficiary=value["beneficiary"],
        money=None if money is None else Money(*money[:2]),
    )
    return Approval(
        terms,
        value["requested_at"],
        value["valid_s"],
        value.get("approved_at"),
        value.get("by", ""),
        value.get("reason", ""),
        value.get("used_by", ""),
    )


def approval_row(approval: Approval, before: LedgerRow | None) -> LedgerRow:
    version = 1 if before is None else before.version + 1
    return LedgerRow(approval.terms.key, version, approval_to_text(approval))


def waiting_ids(row: LedgerRow | None) -> list[tuple[str, float]]:
    """The ids of the requests on the list, oldest first, each with the time of its request."""
    return [] if row is None else [(each[0], each[1]) for each in _decode(row.text)]


def _waiting_row(before: LedgerRow | None, approval: Approval, *, listed: bool) -> LedgerRow | None:
    """The row of the list with the request, or without it. None: the list is so already."""
    kept = waiting_ids(before)
    after = [each for each in kept if each[0] != approval.terms.id]
    if listed:
        fresh_after = approval.requested_at - REQUEST_KEPT_S
        after = [each for each in after if each[1] > fresh_after][-(WAITING_MAX - 1) :]
        after.append((approval.terms.id, approval.requested_at))
    if after == kept:
        return None
    return LedgerRow(APPROVALS_WAITING_KEY, 1 if before is None else before.version + 1, _encode(after))


# --- Claims


@record
class PayoutPlan:
    """The verdict of the payout rules on a claim that may start otherwise."""

    verdict: ClaimVerdict  # OWNED: it may start
    rows: tuple[LedgerRow, ...] = ()  # without the rows of caps
    refusal: PayoutRefusal | None = None
    caps: tuple[str, ...] = ()
    note: str = ""  # for the timeline


def plan_payout(
    request: ClaimRequest, changes: Iterable[tuple[Operation | None, Operation]], now: float, lookups: RowLookups
) -> PayoutPlan:
    """Whether the payout may start: first its caps, then its approval. `changes` are written before it, so an amount
    that they give back to a cap may be used."""
    claim, fresh = request.payout, request.fresh
    if claim is None:
        return PayoutPlan(ClaimVerdict.OWNED)
    counts = _Counts(lookups)
    for before, after in changes:
        counts.change(after, spent_change(before, after))
    for cap in claim.caps:
        counts.read(cap.key)
    refused = over_cap(claim, fresh.money, counts.counts, now)
    if refused is not None:
        return PayoutPlan(ClaimVerdict.OVER_CAP, refusal=PayoutRefusal(cap=refused))
    plan = PayoutPlan(ClaimVerdict.OWNED)
    if claim.approval is not None:
        plan = _plan_approval(claim.approval, claim, request, now, lookups)
    if plan.verdict is not ClaimVerdict.OWNED:
        return plan
    if claim.check_first:
        return PayoutPlan(ClaimVerdict.ABSENT)  # it is claimed when the check has allowed it; nothing is used up yet
    return replace(plan, caps=tuple(cap.key for cap in claim.caps))


def _plan_approval(
    terms: ApprovalTerms, claim: PayoutClaim, request: ClaimRequest, now: float, lookups: RowLookups
) -> PayoutPlan:
    """An approval that stands is used up by this claim. Else it is asked for, once."""
    row, list_row = lookups.row(terms.key), lookups.row(APPROVALS_WAITING_KEY)
    known = None if row is None else approval_from_row(row)
    status = None if known is None or known.terms != terms else known.status(now, claim.rolled_back_s)
    if known is not None and status is ApprovalStatus.APPROVED:
        used = replace(known, used_by=request.fresh.id)
        off_list = _waiting_row(list_row, used, listed=False)
        rows = (approval_row(used, row), *([off_list] if off_list is not None else []))
        return PayoutPlan(ClaimVerdict.OWNED, rows, note=f"approved by {known.approved_by}: {known.reason}")
    waits = known is not None and status is ApprovalStatus.WAITING and now - known.requested_at < REQUEST_KEPT_S
    if known is not None and waits:
        return PayoutPlan(ClaimVerdict.NEEDS_APPROVAL, refusal=PayoutRefusal(approval=known))
    requested = Approval(terms, now, claim.approval_valid_s)
    on_list = _waiting_row(list_row, requested, listed=True)
    rows = (approval_row(requested, row), *([on_list] if on_list is not None else []))
    return PayoutPlan(ClaimVerdict.NEEDS_APPROVAL, rows, PayoutRefusal(approval=requested))
