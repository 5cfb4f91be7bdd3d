"""Approvals of payouts: which of them wait for an operator, and how one is approved.

An approval is a row of the journal's ledger. Claims create the request and use the approval up. Here a person approves
it, by name and with a reason. That sends nothing: the caller must repeat its call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paywitness.clock import JournalClock
from paywitness.core.errors import JournalUnavailable, PaywitnessError
from paywitness.core.payout import APPROVALS_WAITING_KEY, Approval, ApprovalStatus
from paywitness.engine.operator_commands import valid_actor_and_reason
from paywitness.journal.base import Journal
from paywitness.journal.payouts import approval_from_row, approval_row, waiting_ids

_WRITE_TRIES = 5


class NoSuchApproval(PaywitnessError):
    """The journal holds no request under this id."""


class ApprovalRefused(PaywitnessError):
    """The request cannot be approved as it stands."""


@dataclass(frozen=True, slots=True)
class PayoutApprovals:
    journal: Journal
    journal_clock: JournalClock

    def status(self, approval: Approval) -> ApprovalStatus:
        """Its present status."""
        return approval.status(self.now(), self.journal.rolled_back_s())

    def now(self) -> float:
        """The journal's time, by which approvals lapse."""
        return self.journal_clock.now()

    async def listed(self) -> tuple[Approval, ...]:
        """The approvals that wait for an operator or for their call, oldest first."""
        [waiting] = await self.journal.ledger_rows((APPROVALS_WAITING_KEY,))
        keys = tuple(f"a:{approval_id}" for approval_id, _ in waiting_ids(waiting))
        rows = await self.journal.ledger_rows(keys) if keys else ()
        return tuple(approval_from_row(row) for row in rows if row is not None)

    async def approve(self, approval_id: str, actor: str, reason: str) -> Approval:
        """Approve one payout, once. A second command while it is approved changes nothing. Raises InvalidCommand,
        NoSuchApproval, ApprovalRefused, JournalUnavailable."""
        actor, reason = valid_actor_and_reason(actor, reason)
        for _ in range(_WRITE_TRIES):
            [row] = await self.journal.ledger_rows((f"a:{approval_id}",))
            if row is None:
                raise NoSuchApproval(approval_id)
            known, now = approval_from_row(row), self.now()
            match known.status(now, self.journal.rolled_back_s()):
                case ApprovalStatus.APPROVED:
                    return known
                case ApprovalStatus.USED:
                    raise ApprovalRefused(f"it was used by {known.used_by}; a further payout asks for its own approval")
            approved = replace(known, approved_at=max(now, known.requested_at), approved_by=actor, reason=reason)
            if await self.journal.write_ledger_rows((approval_row(approved, row),)):
                return approved
        raise JournalUnavailable("others were faster: nothing was approved")
