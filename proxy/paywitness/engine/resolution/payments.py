"""Due payments, in the background: those that were paid elsewhere are verified, and authorizations that expire are
announced. Also reads the intent of an object that we did not create, before a step acts on it.

A payment is due by its own row in the ledger. Each action writes the row over its version, so that only one sidecar of
a fleet acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import reference_text
from paywitness.core.consequences import WriteContext
from paywitness.core.errors import IllegalTransition, JournalUnavailable
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.identity import intent_guard_of
from paywitness.core.inquiry import InquiryReason, is_settled, quiet_since
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Announcement, AnnouncementKind, FindingKind, GuardKind, Operation, State
from paywitness.core.payment import PaidElsewhere, Payment, ShownBalance
from paywitness.core.payment_changes import adopted
from paywitness.core.payment_claims import may_still_expire
from paywitness.core.payment_evidence import shown_balance
from paywitness.core.policy import Policy, Route
from paywitness.core.result import PROVIDER_SAID_NO, ResultClass
from paywitness.engine.calls.context import CallContext
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.journal.base import Journal, LedgerRow
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness.policy.book import PolicyBook
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, JournalUnanswered, LimitChecked, transition_events

_RETRY_AFTER_S = 5.0
_BATCH_MAX = 50
_MISSES = 3  # the least number of inquiries without the object that prove that nobody paid it
_READ_TIMEOUT_S = 2.0
_INTENT_UNKNOWN = "intent_unknown"


@dataclass(frozen=True, slots=True)
class PaymentSweep:
    journal: Journal
    journal_writer: JournalWriter
    external_evidence: ExternalEvidenceRecorder
    inquiry_client: InquiryClient
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook]
    clock: Clock

    async def keep_sweeping(self) -> None:
        due_times = self.journal_writer.ages.due_times
        while True:
            try:
                await self.sweep()
                await due_times.wait(due_times.ledger_rows, did_something=False)  # the rest of a batch is not urgent
            except JournalUnavailable:
                self.journal_writer.telemetry.emit(JournalUnanswered("due payments"))
                await self.clock.sleep(_RETRY_AFTER_S)

    async def sweep(self) -> int:
        """Act on due payments. Returns how many. Raises JournalUnavailable."""
        acted = 0
        for row in await self.journal.due_ledger_rows(limit=_BATCH_MAX):
            if row.key.startswith("p:"):
                acted += await self._act(row, payment_from_row(row))
        return acted

    async def _act(self, row: LedgerRow, payment: Payment) -> bool:
        now = self.journal_writer.journal_clock.now() if self.journal_writer.journal_clock.known else self.clock.now()
        if payment.verify_at is not None and payment.verify_at <= now:
            return await self._verify(row, payment, now)
        return await self._announce_expiry(row, payment, now)

    # --- paid elsewhere

    async def _verify(self, row: LedgerRow, payment: Payment, now: float) -> bool:
        """Inquire whether the object was paid, but not by us. Until an inquiry has read it, its intent counts as
        paid."""
        if payment.paid or payment.elsewhere is PaidElsewhere.VERIFIED:
            return await self._refresh(row, payment, now)
        operation = await self._step(payment, lambda step: step.paid_elsewhere)
        policy = await self.pinned.policy_from_book(operation, self.book()) if operation is not None else None
        if operation is None or policy is None:
            return await self._write(row, replace(payment, verify_at=None))
        result = await self.inquiry_client.inquire(
            operation, policy, _request_for(policy, payment), InquiryReason.PAYMENT
        )
        if _reads_unpaid(result) and self._is_settled(operation, policy):
            payment = replace(payment, verify_misses=payment.verify_misses + 1)
        is_paid = _says_paid(result, payment, policy)
        if is_paid is None:
            return await self._verify_later(row, payment, operation, policy, now)
        if not is_paid:
            return await self._write(row, replace(payment, elsewhere=PaidElsewhere.NO, verify_at=None))
        classification = result.seen.finding.classification
        shown = (
            shown_balance(operation, policy, classification, result.seen.provider_object, now=now)
            if classification is not None
            else None
        )
        return await self._write(row, adopted(payment, shown or ShownBalance()))

    def _is_settled(self, operation: Operation, policy: Policy) -> bool:
        """Whether even a replica that lags must now show a payment from before the provider said "already done"."""
        now = self.journal_writer.ages.low_now(quiet_since(operation))
        return is_settled(operation, policy.resolve.settle_s, now)

    async def _refresh(self, row: LedgerRow, payment: Payment, now: float) -> bool:
        """Read the totals of a payment again, because somebody else seems to have moved some of it."""
        operation = await self._step(payment, lambda step: step.kind.pays and step.state is State.SUCCEEDED)
        policy = await self.pinned.policy_from_book(operation, self.book()) if operation is not None else None
        if operation is None or policy is None or not policy.inquiries:
            return await self._write(row, replace(payment, verify_at=None))
        request = await self.inquiry_client.stored_request(operation) or _request_for(policy, payment)
        result = await self.inquiry_client.inquire(operation, policy, request, InquiryReason.PAYMENT)
        finding = result.seen.finding
        checked, schedule_s = payment.verifications + 1, policy.resolve.schedule_s
        # A denial may be that of an earlier step, shown by a replica that lags.
        is_read = finding.kind is FindingKind.HIT and not result.seen.may_be_stale
        if is_read:
            found = result.seen.provider_object
            await self.external_evidence.apply(
                operation, policy, EvidenceSource.INQUIRY, finding, provider_object=found
            )
        [current] = await self.journal.ledger_rows((row.key,))
        if current is None:
            return False
        latest = payment_from_row(current)
        again = not is_read or may_still_expire(latest, now)
        verify_at = now + schedule_s[checked] if again and checked < len(schedule_s) else None
        return await self._write(current, replace(latest, verify_at=verify_at, verifications=checked))

    async def _verify_later(
        self, row: LedgerRow, payment: Payment, operation: Operation, policy: Policy, now: float
    ) -> bool:
        """The inquiry showed nothing: inquire again by the schedule, and after that open an incident for a person."""
        checked = payment.verifications + 1
        schedule_s = policy.resolve.schedule_s
        if checked < len(schedule_s):
            later = replace(payment, verifications=checked, verify_at=now + schedule_s[checked])
            return await self._write(row, later)
        incident = operation.incident or IncidentKind.UNVERIFIED_PAYMENT
        change = change_of(
            operation,
            operation.changed(incident=incident),
            (),
            WriteContext(now),
            source="resolver",
            note="the provider says that it was paid, not by us, and no inquiry has read the object",
        )
        written = await self.journal_writer.try_write(change)
        for event in transition_events(operation, written or operation, EvidenceKind.INQUIRY, self.clock.now()):
            self.journal_writer.telemetry.emit(event)
        return await self._write(row, replace(payment, verifications=checked, verify_at=None))

    async def _step(self, payment: Payment, wanted: Callable[[Operation], bool]) -> Operation | None:
        """The newest step of the payment that fits; None if there is none or it was retired."""
        for operation_id in reversed(payment.steps):
            operation = await self.journal.read(operation_id)
            if operation is not None and wanted(operation):
                return operation
        return None

    # --- expiry

    async def _announce_expiry(self, row: LedgerRow, payment: Payment, now: float) -> bool:
        """Announce that an authorization expires within a day, or has expired. A capture is still let through, because
        the provider decides about it."""
        if payment.expires_at is None:
            return await self._write(row, payment)
        expired = payment.expires_at <= now
        operation = await self._step(payment, lambda step: step.kind.pays)
        if expired and operation is not None:
            # The journal's time may have jumped. An authorization that is still good must not be called expired.
            lasts_s = payment.expires_at - operation.created_at
            left_s = lasts_s - self.journal_writer.ages.low_age_s(operation.created_at)
            if left_s > 0.0 and payment.expiry_announced:
                return await self.journal.write_ledger_rows((replace(payment_row(payment, row), due_at=now + left_s),))
            expired = left_s <= 0.0
        word = "expired" if expired else "soon"
        kind = AnnouncementKind.AUTHORIZATION_EXPIRED if expired else AnnouncementKind.AUTHORIZATION_EXPIRES
        if operation is None:
            return await self._write(row, replace(payment, expiry_announced=word))
        announcement = Announcement(
            (kind,), operation.outcome, operation.result_class, operation.reference, operation.incident
        )
        # Our date does not end it: an inquiry shows whether anything can still be captured.
        verify_at = now if expired and payment.paid else None
        shown = ShownBalance(expiry_announced=word, verify_at=verify_at)
        change = change_of(operation, operation, (kind.value,), WriteContext(now), source="resolver", shown=shown)
        try:
            written = await self.journal_writer.try_write(replace(change, announcement=announcement))
        except IllegalTransition:
            return False
        return written is not None

    async def _write(self, row: LedgerRow, payment: Payment) -> bool:
        return await self.journal.write_ledger_rows((payment_row(payment, row),))


def _says_paid(result: InquiryResult, payment: Payment, policy: Policy) -> bool | None:
    """Whether the object was paid; None: the inquiry does not show it. A replica that lags may cause a few misses, so
    several are needed, and an inquiry that failed is none. It may also show a decline from before the payment, so a
    decline is only a miss. A cancelled object is not paid."""
    finding = result.seen.finding
    if finding.kind is FindingKind.HIT and _reading(result) in {ResultClass.SUCCEEDED, ResultClass.PENDING}:
        return True
    if finding.kind is FindingKind.HIT and _reading(result) is ResultClass.CANCELLED:
        return False
    misses = max((_MISSES, *(inquiry.misses for inquiry in policy.inquiries)))
    return False if _reads_unpaid(result) and payment.verify_misses >= misses else None


def _reads_unpaid(result: InquiryResult) -> bool:
    kind = result.seen.finding.kind
    return kind is FindingKind.MISSED or (kind is FindingKind.HIT and _reading(result) in PROVIDER_SAID_NO)


def _reading(result: InquiryResult) -> ResultClass | None:
    classification = result.seen.finding.classification
    return classification.result_class if classification is not None else None


def _request_for(policy: Policy, payment: Payment) -> StoredRequest | None:
    """The request that acted on the payment, as far as an inquiry needs it: its path. The request itself was erased."""
    name = payment.names[0] if payment.names else ""
    for route in policy.routes:
        if name and not route.literal:
            return StoredRequest(route.method, _path(route, name), (), b"")
    return None


def _path(route: Route, name: str) -> str:
    return "/" + "/".join(name if segment.startswith("{") else segment for segment in route.segments)


# --- The intent of an object that we did not create


@dataclass(frozen=True, slots=True)
class IntentReader:
    """Reads the intent of the object that a step acts on, if no earlier call has given it."""

    journal: Journal
    inquiry_client: InquiryClient
    vault: Vault
    clock: Clock
    telemetry: Telemetry

    async def complete(self, context: CallContext) -> CallContext:
        """The call with the intent of the object that it acts on. If that cannot be read, only its target guards it."""
        policy, acts_on, operation = context.policy, context.payment_claim.acts_on, context.fresh
        if policy.payment.intent_at is None or acts_on is None or not policy.kind.pays:
            return context
        if operation.guard is not None and operation.guard.kind is GuardKind.INTENT:
            return context
        try:
            [row] = await self.journal.ledger_rows((acts_on.key,))
        except JournalUnavailable:
            return context  # the claim meets the same outage, and reports it
        if row is not None and payment_from_row(row).intent is not None:
            return context
        shown = await self._read_object(context, operation)
        intent = reference_text(policy.payment.intent_at(shown)) if shown is not None else None
        if intent is None:
            self.telemetry.emit(LimitChecked(policy.provider, policy.operation, _INTENT_UNKNOWN))
            return context
        return context.guarded_by(intent_guard_of(policy, operation.account, intent, self.vault.identity_secret))

    async def _read_object(self, context: CallContext, operation: Operation) -> Tree:
        time_left_s = min(_READ_TIMEOUT_S, context.deadline_mono - self.clock.mono())
        try:
            async with asyncio.timeout(max(0.0, time_left_s)):
                return await self.inquiry_client.read_object(operation, context.policy, context.request)
        except TimeoutError:
            return None
