"""Payouts: what counts against their caps, what an approval binds, and what is announced of them. Pure.

Rules that hold together:
- A payout counts as spent from its claim on: while it is open, while its outcome is unknown, and after it succeeded.
  Only an end without effect, or its return, gives its amount back. An effect after such an end counts again.
- A cap counts in fixed windows of the journal's time. They begin on a Monday at midnight UTC, so that a window of one
  day is a calendar day and one of seven days a calendar week. A payout counts in the window of its claim.
- A payout that cannot be measured against the rules is refused: its amount cannot be read, or no cap has its currency.
- An approval is for exactly one payout. One claim uses it up. It lapses after its time. It also lapses if the journal
  rolls back, because the journal may have forgotten the claim that used it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b

from paywitness.core.guard import GIVEN_BACK
from paywitness.core.money import Money
from paywitness.core.operation import Operation, PayoutStage, Posting, State
from paywitness.core.payout_rules import PayoutCap
from paywitness.core.record import record

_FIRST_MONDAY_AT = 4 * 86_400.0  # 1970-01-05T00:00:00Z
_ROLLBACK_MARGIN_S = 5.0  # the approver's clock may have been ahead of the journal's by this
APPROVALS_WAITING_KEY = "a:waiting"  # the row that lists the requests that wait for an operator


# --- Caps


def counts_as_spent(operation: Operation) -> bool:
    """Whether the payout's amount is spent, or may be. A failed payout with an incident may have been paid."""
    if operation.state is State.FAILED:
        return operation.incident is not None
    return not (operation.state is State.SUCCEEDED and operation.result_class in GIVEN_BACK)


def spent_change(before: Operation | None, after: Operation) -> int:
    """The change to the count of the operation's caps, in minor units. `before` None: the operation starts."""
    if not after.caps or after.money is None:
        return 0
    was = before is not None and counts_as_spent(before)
    return after.money.minor_units * (int(counts_as_spent(after)) - int(was))


def window_at(at: float, window_s: float) -> int:
    """The number of the window that this time lies in."""
    return int((at - _FIRST_MONDAY_AT) // window_s)


def window_end_at(window: int, window_s: float) -> float:
    return _FIRST_MONDAY_AT + (window + 1) * window_s


def cap_key(cap: PayoutCap, *scope: str) -> str:
    """The key under which a journal counts. Other amounts of the same cap, and other operations of the same scope,
    count together. The key holds the window's length, so that giving back needs only the key."""
    digest = blake2b(digest_size=20)
    for part in (cap.per.value, cap.amount.currency, *scope):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return f"c:{cap.window_s:.0f}:{digest.hexdigest()}"


def window_s_of(key: str) -> float:
    return float(key.split(":", 2)[1])


@record
class CapCount:
    """The count of a cap in the newest window in which it was used."""

    window: int
    spent: int

    def spent_in(self, window: int) -> int:
        return self.spent if self.window >= window else 0

    def changed(self, window: int, minor_units: int) -> CapCount:
        """The count after a payout that was claimed in this window, or that gives its amount back. Giving back in a
        window that is over changes nothing. A count is never below zero."""
        if window > self.window:
            return CapCount(window, minor_units) if minor_units > 0 else self
        if window < self.window and minor_units < 0:
            return self
        return CapCount(self.window, max(0, self.spent + minor_units))


# --- What a call means


@record
class CapClaim:
    """A cap that a payout counts against."""

    key: str
    cap: PayoutCap


@record
class ApprovalTerms:
    """The one payout that an approval is for."""

    id: str
    provider: str
    operation: str
    account: str
    fingerprint: str
    reference: str  # the payout's own reference, in clear; empty: it has none
    beneficiary: str  # keyed hash
    money: Money | None

    @property
    def key(self) -> str:
        return f"a:{self.id}"


@record
class PayoutClaim:
    """What a call means for the payout rules."""

    caps: tuple[CapClaim, ...] = ()
    cannot_count: str = ""  # the reason why the caps cannot count it, so that it is refused
    approval: ApprovalTerms | None = None  # the payout that must be approved first
    approval_valid_s: float = 0.0
    check_first: bool = False  # the check before a payout has not been made yet
    rolled_back_s: float | None = None  # how long ago the journal rolled back; None: it did not

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The rows of the ledger that the claim reads."""
        caps = tuple(cap.key for cap in self.caps)
        return caps if self.approval is None else (*caps, self.approval.key, APPROVALS_WAITING_KEY)


@record
class CapRefusal:
    """Why a payout is over a cap."""

    cap: PayoutCap | None  # None: the payout cannot be counted
    left: int = 0  # left of the cap, in minor units
    ends_in_s: float = 0.0  # until the window is over
    detail: str = ""


def over_cap(claim: PayoutClaim, money: Money | None, counts: Mapping[str, CapCount], now: float) -> CapRefusal | None:
    """The first cap that the payout would exceed; None: it fits into all of them."""
    if claim.cannot_count:
        return CapRefusal(None, detail=claim.cannot_count)
    for each in claim.caps:
        cap, window = each.cap, window_at(now, each.cap.window_s)
        count = counts.get(each.key)
        if count is not None:
            window = max(window, count.window)
        spent = 0 if count is None else count.spent_in(window)
        if money is None or spent + money.minor_units > cap.amount.minor_units:
            left = max(0, cap.amount.minor_units - spent)
            return CapRefusal(cap, left, max(0.0, window_end_at(window, cap.window_s) - now))
    return None


# --- Approvals


class ApprovalStatus(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    LAPSED = "lapsed"  # it was approved, and nobody used it in time; or the journal may have forgotten that it was used
    USED = "used"


@record
class Approval:
    """A request for approval, and its result. Times are the journal's."""

    terms: ApprovalTerms
    requested_at: float
    valid_s: float
    approved_at: float | None = None
    approved_by: str = ""
    reason: str = ""
    used_by: str = ""  # the id of the operation

    def status(self, now: float, rolled_back_s: float | None = None) -> ApprovalStatus:
        """`rolled_back_s`: how long ago the journal rolled back. An approval from before that lapses, because it may
        have been used and the use forgotten."""
        if self.used_by:
            return ApprovalStatus.USED
        if self.approved_at is None:
            return ApprovalStatus.WAITING
        if rolled_back_s is not None and self.approved_at <= now - rolled_back_s + _ROLLBACK_MARGIN_S:
            return ApprovalStatus.LAPSED
        return ApprovalStatus.APPROVED if now - self.approved_at < self.valid_s else ApprovalStatus.LAPSED


@record
class PayoutRefusal:
    """Why a claim did not start a payout. With neither field set, the check before the payout did not allow it."""

    cap: CapRefusal | None = None
    approval: Approval | None = None  # the approval that it waits for


# --- What is announced

# States before any doubt: an operation that fails from here had its own complete response, or was never sent.
_UNDOUBTED = frozenset({State.PREPARED, State.SENDING, State.BACKOFF})


def payout_status(before: Operation | None, after: Operation) -> PayoutStage | None:
    """The stage of a payout's money after a change; None if the stage is not new. `released` only after an end that no
    evidence can contradict: the payout was not sent, or each attempt has its own complete response and none of them had
    an effect. After any other end without effect there is only the operation's own event."""
    if before is None:
        return PayoutStage.COMMITTED if after.state is State.SUCCEEDED else PayoutStage.RESERVED
    if after.state is State.SUCCEEDED:
        if before.state is not State.SUCCEEDED:
            return PayoutStage.COMMITTED
        return PayoutStage.RECLAIMED if counts_as_spent(after) and not counts_as_spent(before) else None
    if after.state is not State.FAILED:
        return None
    if before.state is State.FAILED:
        return PayoutStage.RECLAIMED if counts_as_spent(after) and not counts_as_spent(before) else None
    # Between two versions that a rollback took it may have been in doubt.
    one_step = after.version - before.version <= 1
    told_by_others = before.state is State.BACKOFF and after.result_class is not before.result_class
    if before.state in _UNDOUBTED and not before.doubt and one_step and not told_by_others and after.incident is None:
        return PayoutStage.RELEASED
    return None


def payout_posting(operation: Operation, status: PayoutStage, state: State) -> Posting:
    """The posting of the payout, under its one key. A return names the payout that it takes back. A payout that undoes
    a release or a return names that one."""
    reverses = None
    if status is PayoutStage.RECLAIMED:
        reverses = operation.id if state is State.FAILED else f"{operation.id}:returned"
    return _posting(operation, operation.id, operation.kind.value, reverses)


def movement_of_change(before: Operation | None, after: Operation) -> Posting | None:
    """The movement in the change of a payout that first shows it: the payout, or its return."""
    was = before.state is State.SUCCEEDED if before is not None else False
    if after.state is not State.SUCCEEDED:
        return None
    given_back_before = was and before is not None and before.result_class in GIVEN_BACK
    if after.result_class in GIVEN_BACK and not given_back_before:
        return _posting(after, f"{after.id}:returned", "return", after.id)
    return None if was else _posting(after, after.id, after.kind.value, None)


def _posting(operation: Operation, key: str, kind: str, reverses: str | None) -> Posting:
    money = operation.money
    units, currency = (None, None) if money is None else (money.minor_units, money.currency)
    return Posting(key, kind, units, currency, operation.id, reverses)
