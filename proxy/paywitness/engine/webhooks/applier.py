"""Applies one stored webhook event to the operation that it is about, under the policy pinned to that operation. Also
applies hints: unsigned webhooks, which are a reason to inquire."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ClassifyRules, ExpectedPayment, ResponseRule
from paywitness.core.consequences import WriteContext
from paywitness.core.evidence import Response
from paywitness.core.external_evidence import EvidenceSource, event_of
from paywitness.core.inquiry import FoundObject, InquiryReason, read_object
from paywitness.core.lifecycle import EXTERNAL_DENIALS
from paywitness.core.operation import FindingKind, Operation, State
from paywitness.core.payment import FOLLOW_UPS, payment_key
from paywitness.core.payment_evidence import shows_totals
from paywitness.core.policy import Policy, Provider
from paywitness.core.result import Effect, ResultClass
from paywitness.core.webhook_event import (
    WebhookEvent,
    WebhookRules,
    delay_since_send,
    object_and_rules,
    webhook_events_in,
)
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import InquiryClient
from paywitness.engine.webhooks.matcher import WebhookMatcher
from paywitness.engine.webhooks.verification import StoredWebhook
from paywitness.journal.base import OperationChange, StoredWebhookEvent, WebhookEventResult
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.events import WebhookDelayed

# At once, and some seconds later, because the provider's objects may lag behind its events.
_READ_AGAIN_AT_TRIES = (0, 5)
# A hint that this many inquiries did not confirm is dropped: the resolver inquires by its own schedule.
_HINT_TRIES_MAX = 5


_log = logging.getLogger("paywitness.webhooks")


class _NoLongerDueError(Exception):
    """Somebody was faster: there is no inquiry to pull forward."""


@dataclass(frozen=True, slots=True)
class WebhookApplier:
    matcher: WebhookMatcher
    external_evidence: ExternalEvidenceRecorder
    inquiry_client: InquiryClient

    async def apply(
        self, stored_event: StoredWebhookEvent, webhook: StoredWebhook, provider: Provider, book: PolicyBook
    ) -> tuple[WebhookEventResult, Operation | None]:
        """The result of the event, and the operation that it matched. Raises JournalUnavailable."""
        rules = provider.webhook_rules
        webhook_events = (
            webhook_events_in(replace(rules, events=None), webhook.event, webhook.headers) if rules is not None else ()
        )
        if rules is None or not webhook_events:
            return WebhookEventResult.WAITING, None  # the policy has changed since, and no longer knows such events
        provider_object, rows = object_and_rules(rules, webhook.event)
        reader = _EventReader(f"webhook {stored_event.event_id}", rules, rows, webhook, provider_object)
        match = await self.matcher.find(webhook_events[0], stored_event.account, provider, book, provider_object)
        if match.operation is None:
            if not rules.hint and not reader.is_meaningful:
                return WebhookEventResult.NOTHING_NEW, None  # whichever operation it is about, it matches no row
            if match.unmatchable:
                return WebhookEventResult.UNMATCHED, None
            if match.ambiguous:
                return WebhookEventResult.AMBIGUOUS, None
            retired = await self.matcher.retired(webhook_events[0], stored_event.account, provider)
            if retired is None:
                if stored_event.attempts in _READ_AGAIN_AT_TRIES:
                    await self._read_payment_again(webhook_events[0], stored_event.account, provider)
                return WebhookEventResult.WAITING, None
            return self._tell_of_retired(retired, provider, tells_of_money=rules.hint or reader.tells_of_money), None
        if match.policy is None:
            return WebhookEventResult.WAITING, match.operation
        if rules.hint:
            return await self._apply_hint(match.operation, match.policy, stored_event.attempts)
        first_try = stored_event.attempts == 0
        concluded = await self._conclude(
            match.operation, match.policy, reader, first_try=first_try, shared=match.shared
        )
        has_totals = await self._apply_totals(match.operation, reader, book)
        return (WebhookEventResult.APPLIED, match.operation) if has_totals else concluded

    async def _apply_totals(self, operation: Operation, reader: _EventReader, book: PolicyBook) -> bool:
        """Whether the event showed new totals of a payment that another step has paid. The event may name the step that
        opened the payment and moved no money itself. Its totals are those of the step that paid. Raises
        JournalUnavailable."""
        if not operation.payment or operation.kind in FOLLOW_UPS or operation.state is not State.SUCCEEDED:
            return False
        [row] = await self.matcher.journal.ledger_rows((payment_key(operation.payment),))
        paid_by = payment_from_row(row).paid_by if row is not None else ""
        paying = await self.matcher.journal.read(paid_by) if paid_by not in {"", operation.id} else None
        if paying is None or paying.state is not State.SUCCEEDED:
            return False
        policy = await self.matcher.pinned.policy_from_book(paying, book)
        if policy is None or not shows_totals(paying, policy, reader.provider_object):
            return False
        seen = reader.read(policy.classify, paying.expected_payment)
        classification = seen.finding.classification
        if classification is None or classification.result_class is not ResultClass.SUCCEEDED:
            return False  # an event of another step may deny an earlier attempt: only an inquiry can show it
        applied = await self.external_evidence.apply(
            paying,
            policy,
            EvidenceSource.WEBHOOK,
            seen.finding,
            provider_object=seen.provider_object,
            may_be_stale=True,
        )
        return applied.operation.version != paying.version

    async def _read_payment_again(self, webhook_event: WebhookEvent, account: str, provider: Provider) -> None:
        """The event is about a movement that no call of ours made, or about no movement that it names. So the sweep of
        payments reads the totals of its payment from the provider."""
        journal_writer = self.external_evidence.journal_writer
        row = await self.matcher.payment_row(webhook_event, account, provider)
        payment = payment_from_row(row) if row is not None else None
        if row is None or payment is None or not payment.paid or payment.verify_at is not None:
            return
        due = replace(payment, verify_at=journal_writer.journal_clock.now(), verifications=0)
        # If the write fails, somebody was faster: next time.
        await journal_writer.journal.write_ledger_rows((payment_row(due, row),))

    def _tell_of_retired(self, operation_id: str, provider: Provider, *, tells_of_money: bool) -> WebhookEventResult:
        """Report an event of a retired operation. Its customer had never acted, so it does not count as paid, and only
        a person can correct that now."""
        if not tells_of_money:
            return WebhookEventResult.NOTHING_NEW
        _log.error(
            "%s: a webhook of %s shows a payment, long after its customer should have acted. It was retired, and does "
            "not count as paid: compare it with later payments",
            operation_id,
            provider.name,
        )
        return WebhookEventResult.RETIRED

    async def _conclude(
        self, operation: Operation, policy: Policy, reader: _EventReader, *, first_try: bool, shared: bool
    ) -> tuple[WebhookEventResult, Operation]:
        if not policy.contract.webhook_expected:
            return WebhookEventResult.NOTHING_NEW, operation  # its rows are for another operation's object
        seen = reader.read(policy.classify, operation.expected_payment)
        if seen.finding.kind not in {FindingKind.HIT, FindingKind.NOT_OURS}:
            return WebhookEventResult.NOTHING_NEW, operation
        is_contradicted = operation.state is State.SUCCEEDED and _denies(seen)
        if (is_contradicted or _may_precede_cancel(operation, seen)) and policy.inquiries:
            asked = await self.inquire(operation, policy)
            return asked or (WebhookEventResult.WAITING, operation)  # the event waits until the provider has answered
        applied = await self.external_evidence.apply(
            operation,
            policy,
            EvidenceSource.WEBHOOK,
            seen.finding,
            provider_object=seen.provider_object,
            may_be_stale=shared,
        )
        if seen.finding.kind is FindingKind.NOT_OURS:
            return WebhookEventResult.DOES_NOT_FIT, applied.operation
        if applied.postponed:
            if first_try and _denies(seen):
                await self._expedite_inquiry(applied.operation, policy)
            return WebhookEventResult.WAITING, applied.operation
        return (
            WebhookEventResult.APPLIED if applied.event is not None else WebhookEventResult.NOTHING_NEW,
            applied.operation,
        )

    async def _apply_hint(
        self, operation: Operation, policy: Policy, tries: int
    ) -> tuple[WebhookEventResult, Operation]:
        """Inquire because of a hint, which itself proves nothing. If there is no way to inquire, the hint is
        worthless."""
        asked = (
            await self.inquire(operation, policy) if policy.inquiries else (WebhookEventResult.NOTHING_NEW, operation)
        )
        result = WebhookEventResult.WAITING if tries + 1 < _HINT_TRIES_MAX else WebhookEventResult.NOTHING_NEW
        return asked or (result, operation)

    async def inquire(self, operation: Operation, policy: Policy) -> tuple[WebhookEventResult, Operation] | None:
        """Inquire because of an event that is not enough. It only hints, or it denies a payment that was made: then it
        may be an older event that comes late, about an attempt before the one that paid. None: the inquiry showed
        nothing."""
        request = await self.inquiry_client.stored_request(operation)
        inquiry_result = await self.inquiry_client.inquire(operation, policy, request, InquiryReason.WEBHOOK)
        seen = inquiry_result.seen
        if seen.finding.kind is not FindingKind.HIT or (seen.may_be_stale and operation.doubt):
            return None  # a denial that may be stale needs several inquiries, which the resolver makes
        applied = await self.external_evidence.apply(
            operation,
            policy,
            EvidenceSource.INQUIRY,
            seen.finding,
            provider_object=seen.provider_object,
            may_be_stale=seen.may_be_stale,
        )
        return (
            WebhookEventResult.APPLIED if applied.event is not None else WebhookEventResult.NOTHING_NEW,
            applied.operation,
        )

    async def _expedite_inquiry(self, operation: Operation, policy: Policy) -> None:
        """The denial may be that of another attempt, which does not end the doubt. An inquiry may end it, so it is made
        now."""
        journal_writer = self.external_evidence.journal_writer

        def change_from(current: Operation) -> OperationChange:
            now = journal_writer.journal_clock.now()
            waits = current.due_at is not None and current.due_at > now
            if not waits or current.attempt_under_way or not current.doubt or current.state.ended:
                raise _NoLongerDueError
            note = "a webhook denied it, or another attempt: inquired at once"
            known = WriteContext(now, check_at=now, check_asked_by=InquiryReason.WEBHOOK)
            source = EvidenceSource.WEBHOOK
            return change_of(current, current, (), known, source=source, because=current.because, note=note)

        if policy.inquiries:
            try:
                await journal_writer.write_with_retry(operation, change_from)
            except _NoLongerDueError:
                return


def _denies(seen: FoundObject) -> bool:
    reading = seen.finding.classification.result_class if seen.finding.classification is not None else None
    return reading is not None and event_of(EvidenceSource.WEBHOOK, reading) in EXTERNAL_DENIALS


def _may_precede_cancel(operation: Operation, seen: FoundObject) -> bool:
    """Whether an event shows a payment that our cancel may have undone since: the customer acted, and then the cancel
    arrived. Only the provider can show which of the two counts."""
    was_cancelled = operation.state is State.FAILED and operation.result_class is ResultClass.CANCELLED
    classification = seen.finding.classification
    tells_of_effect = classification is not None and classification.effect is not Effect.NONE
    return operation.cancel_sent and was_cancelled and tells_of_effect


@dataclass(frozen=True, slots=True)
class _EventReader:
    """One event and the rows for it, ready for the rules of any operation."""

    source: str
    rules: WebhookRules
    rows: tuple[ResponseRule, ...]
    webhook: StoredWebhook
    provider_object: Tree

    @property
    def is_meaningful(self) -> bool:
        """Whether any row gives it a result class that could move an operation."""
        return self.read(ClassifyRules(), ExpectedPayment()).finding.kind is FindingKind.HIT

    @property
    def tells_of_money(self) -> bool:
        """Whether a row classifies it as paid or accepted."""
        classification = self.read(ClassifyRules(), ExpectedPayment()).finding.classification
        return classification is not None and classification.effect is not Effect.NONE

    def read(self, rules: ClassifyRules, asked: ExpectedPayment) -> FoundObject:
        # Rows may test headers and the status code, so the event gets its own headers and status 200.
        response = Response(200, b"", self.webhook.headers, b"")
        event, event_rows = self.webhook.event, self.rules.read
        return read_object(
            self.source, self.rows, rules, asked, response, self.provider_object, event=event, event_rows=event_rows
        )


# --- Hints
#
# A hint is a webhook without a signature. Anybody can send one, so nothing of it is stored and it proves nothing. It is
# a reason to inquire about an operation that we know, and the provider's response is the evidence.
#
# The inquiry comes before the acknowledgement: if it could not be made, the webhook is not acknowledged, and comes
# again. A stranger can cause inquiries only about operations that he can name, a few at a time, and each of them
# rarely.

HINTS_MAX = 10  # of one webhook; Mollie sends one
INQUIRY_INTERVAL_S = 5.0  # the time between two inquiries about one operation; a hint that comes sooner comes again
_CONCURRENT_INQUIRIES_MAX = 8
_INQUIRY_TIMEOUT_S = 10.0  # providers wait for about 15 s
_REMEMBERED_MAX = 4096


@dataclass(slots=True)
class Hints:
    applier: WebhookApplier
    clock: Clock
    _inquired_mono: OrderedDict[str, float] = field(default_factory=OrderedDict)  # by operation
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_INQUIRIES_MAX))

    async def inquire(
        self,
        webhook_events: tuple[WebhookEvent, ...],
        account: str,
        provider: Provider,
        rules: WebhookRules,
        book: PolicyBook,
    ) -> bool:
        """Inquire about the operations that the hints name. False: the provider should send the hints again. Raises
        JournalUnavailable."""
        done = True
        for webhook_event in webhook_events[:HINTS_MAX]:
            provider_object, _ = object_and_rules(rules, webhook_event.payload)
            match = await self.applier.matcher.find(webhook_event, account, provider, book, provider_object)
            if match.operation is None:
                retired = await self.applier.matcher.retired(webhook_event, account, provider)
                if retired is not None:
                    _log.warning("%s: a hint of %s names it, long after it was retired", retired, provider.name)
                continue
            if match.policy is None or not match.policy.inquiries:
                continue
            if self._slots.locked() or self._too_soon(match.operation.id):
                done = False
                continue
            async with self._slots:
                try:
                    async with asyncio.timeout(_INQUIRY_TIMEOUT_S):
                        result = await self.applier.inquire(match.operation, match.policy)
                    done = result is not None and done
                    self._emit_delay(match.operation, result)
                except TimeoutError:
                    done = False
        return done

    def _emit_delay(self, operation: Operation, result: tuple[WebhookEventResult, Operation] | None) -> None:
        """Report the delay of a hint that an inquiry confirmed. The time in an unsigned webhook proves nothing."""
        delay_s = delay_since_send(operation, self.clock.now())
        if delay_s is not None and result is not None and result[0] is WebhookEventResult.APPLIED:
            self.applier.external_evidence.telemetry.emit(WebhookDelayed(operation.provider, delay_s))

    def _too_soon(self, operation_id: str) -> bool:
        now_mono = self.clock.mono()
        inquired_mono = self._inquired_mono.get(operation_id)
        if inquired_mono is not None and now_mono - inquired_mono < INQUIRY_INTERVAL_S:
            return True
        self._inquired_mono[operation_id] = now_mono
        self._inquired_mono.move_to_end(operation_id)
        while len(self._inquired_mono) > _REMEMBERED_MAX:
            self._inquired_mono.popitem(last=False)
        return False
