"""Records evidence from outside our own attempts: from an inquiry, a webhook event, a cancel or a person.

All of them go the same way: conclude, decide when to inquire again, record over the version that was read. Whoever
brings evidence needs no lease, because a lease is only the right to send.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.consequences import WriteContext
from paywitness.core.external_evidence import (
    EvidenceSource,
    as_taken_back,
    changes_nothing,
    conclude_external,
    is_postponed,
    precedes_end,
)
from paywitness.core.fallback import FallbackCause
from paywitness.core.guard import is_paid
from paywitness.core.inquiry import CONFIRMED_ABSENT, is_settled, quiet_since
from paywitness.core.lifecycle import PENDINGS, REVERSALS, SUCCESSES, Event, IncidentKind, advance
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    Finding,
    FindingKind,
    GuardKind,
    Operation,
    State,
)
from paywitness.core.payment import Payment, ShownBalance, payment_key
from paywitness.core.payment_changes import has_new_totals, is_new_dispute
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.payment_evidence import shown_by_object, shows_dispute, shows_totals
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import OperationKind
from paywitness.core.reply import changes_replay, replay_response
from paywitness.core.result import Effect, ResultClass
from paywitness.engine.calls.stored_messages import seal_response
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.ledger import payment_from_row
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, transition_events

# If an inquiry found one of these, it is true whichever attempt caused it.
_TRUE_OF_ANY_ATTEMPT = frozenset({*SUCCESSES, *PENDINGS, *REVERSALS})
_LEFT_TO_CALLER_S = 2.0  # a caller at another sidecar checks once a second
_JITTER_SHARE = 0.2  # proportional, so that a thousand doubts of one outage are not inquired about in one second


@dataclass(frozen=True, slots=True)
class AppliedEvidence:
    """The result of applying a piece of evidence. Without an event and not postponed, it showed nothing new."""

    operation: Operation
    event: Event | None = None
    postponed: bool = False


class _MayBeLaterGenerationError(Exception):
    """The payment that an inquiry found may be of a later generation of the key."""


class _NothingNewError(Exception):
    def __init__(self, operation: Operation, *, postponed: bool = False) -> None:
        super().__init__(operation.id)
        self.operation = operation
        self.postponed = postponed  # it may show something new later


@dataclass(frozen=True, slots=True)
class ExternalEvidenceRecorder:
    journal_writer: JournalWriter
    vault: Vault
    clock: Clock
    randomness: Randomness
    telemetry: Telemetry
    waiters: OperationWaiters

    async def apply(
        self,
        operation: Operation,
        policy: Policy,
        source: EvidenceSource,
        finding: Finding,
        *,
        provider_object: Tree = None,
        may_be_stale: bool = False,
        lease_token: str | None = None,
        actor: str = "",
        note: str = "",
    ) -> AppliedEvidence:
        """Record a finding. `provider_object` is the provider's own object; `may_be_stale` is as in `FoundObject`;
        `lease_token` is that of the lease to give back. Raises JournalUnavailable."""
        once = partial(
            self._apply_once,
            policy=policy,
            source=source,
            finding=finding,
            provider_object=provider_object,
            may_be_stale=may_be_stale,
            lease_token=lease_token,
            actor=actor,
            note=note,
        )
        applied = await once(operation)
        if applied.operation.version == operation.version or not shows_totals(operation, policy, provider_object):
            return applied
        if await self._shows_more(applied.operation, policy, finding, provider_object):
            # A change has one posting. The other totals that the object shows are written by a second change.
            await once(applied.operation)
        return applied

    async def _apply_once(
        self,
        operation: Operation,
        policy: Policy,
        source: EvidenceSource,
        finding: Finding,
        *,
        provider_object: Tree,
        may_be_stale: bool,
        lease_token: str | None,
        actor: str,
        note: str,
    ) -> AppliedEvidence:
        event: Event | None = None
        before = inquired = operation
        is_last_generation: bool | None = None  # whether no later generation of its key has the same stamp
        payment = await self._payment_to_compare(operation, policy, finding, provider_object)
        was_incremented = finding.kind is FindingKind.NOT_OURS and await self._was_incremented(operation)

        def change_from(current: Operation) -> OperationChange:
            nonlocal event, before
            before = current
            after, event = self._conclude(current, policy, source, finding, may_be_stale=may_be_stale)
            if was_incremented:
                after = after.changed(incident=current.incident)  # it shows the total after the increments
            now = self.journal_writer.journal_clock.now()
            shown = shown_by_object(after, policy, finding.classification, provider_object, now=now)
            if shown is not None and shown.dispute:
                _check_new_dispute(payment, current, shown)
                return self._dispute_change(current, policy, source, finding, shown, lease_token)
            if source is EvidenceSource.INQUIRY:
                _check_inquiry_applies(current, inquired, event, is_last_generation=is_last_generation)
            if not has_new_totals(payment, after, shown) and _says_nothing_new(current, after, event, finding):
                raise _NothingNewError(current)
            if event is not None and after.state is not current.state:
                after = after.changed(because=event.value)  # the evidence is the reason
            change = change_of(
                current,
                after,
                (event,) if event is not None else (),
                self._write_context(current, policy, lease_token),
                source=source,
                because=after.because,
                note=note,
                finding=finding,
                actor=actor,
                shown=shown,
            )
            sealed_response = self._sealed_replay_response(current, change.operation, policy, provider_object)
            return replace(change, sealed_response=sealed_response)

        try:
            try:
                recorded = await self.journal_writer.write_with_retry(operation, change_from)
            except _MayBeLaterGenerationError:
                is_last_generation = not await self._has_later_generation(before)
                recorded = await self.journal_writer.write_with_retry(operation, change_from)
        except _NothingNewError as unchanged:
            classification = finding.classification
            postponed = classification is not None and is_postponed(
                unchanged.operation, source, classification.result_class, policy.contract, may_be_stale=may_be_stale
            )
            return AppliedEvidence(unchanged.operation, None, postponed or unchanged.postponed)
        for record in transition_events(before, recorded, EvidenceKind(source), self.clock.now()):
            self.telemetry.emit(record)
        self.waiters.notify(recorded.id)
        await self.release_voided_payment(before, recorded)
        return AppliedEvidence(recorded, event)

    async def _shows_more(self, operation: Operation, policy: Policy, finding: Finding, provider_object: Tree) -> bool:
        """Whether the object shows totals of the payment that are still not known."""
        payment = await self._payment_to_compare(operation, policy, finding, provider_object)
        now = self.journal_writer.journal_clock.now()
        shown = shown_by_object(operation, policy, finding.classification, provider_object, now=now)
        is_dispute = shown is not None and bool(shown.dispute)  # it was applied, and would be counted again
        return not is_dispute and has_new_totals(payment, operation, shown)

    async def apply_absence(
        self, operation: Operation, counted: Operation, policy: Policy, finding: Finding, lease_token: str
    ) -> bool:
        """End an operation that inquiries have proven absent. Its caller may still wait, and may pay by another route.
        Then that payment and the end must be one step. So the end is left to that caller for a moment, once. `counted`
        is the operation with the last miss. Returns whether anything was written. Raises JournalUnavailable."""
        detail = f"{counted.misses} misses after all had settled"
        if self._may_be_made_elsewhere(operation, policy):
            left = Finding(finding.source, FindingKind.MISSED, None, None, f"{detail}; its caller may pay elsewhere")
            return await self._leave_to_caller(operation, counted, left, lease_token)
        proven = Finding(finding.source, FindingKind.MISSED, None, CONFIRMED_ABSENT, detail)
        applied = await self.apply(operation, policy, EvidenceSource.INQUIRY, proven, lease_token=lease_token)
        return applied.event is not None

    def _may_be_made_elsewhere(self, operation: Operation, policy: Policy) -> bool:
        """Whether its caller may still wait, here or at another sidecar, and would take another route."""
        listed = policy.fallback_for(FallbackCause.ABSENT) is not None
        guarded = operation.guard is not None and operation.guard.kind is GuardKind.INTENT
        was_denied, was_left = operation.effect is Effect.NONE, operation.absence_shown or operation.cancel_sent
        if not (listed and guarded and operation.state is State.UNKNOWN) or was_denied or was_left:
            return False
        age_s = self.journal_writer.journal_clock.now() - operation.created_at
        return age_s < policy.timeouts.deadline_s or self.waiters.is_awaited(operation.id)

    async def _leave_to_caller(
        self, operation: Operation, counted: Operation, finding: Finding, lease_token: str
    ) -> bool:
        now = max(self.journal_writer.journal_clock.now(), operation.updated_at)
        known = WriteContext(now, gives_back=lease_token, check_at=now + _LEFT_TO_CALLER_S)
        after = counted.changed(absence_shown=True)
        events = (Event.INQUIRY_MISSED,)
        change = change_of(
            operation, after, events, known, source="resolver", because=operation.because, finding=finding
        )
        recorded = await self.journal_writer.try_write(change)
        self.waiters.notify(operation.id)
        return recorded is not None

    def _may_be_of_forgotten(self, before: Operation, after: Operation) -> bool:
        """Whether a success that contradicts an end may be of a later generation of the key, which the journal forgot a
        moment ago. The sidecar that knows that generation puts it back within a lease."""
        contradicts = after.incident == IncidentKind.SUCCESS_AFTER_FAILURE and before.incident is None
        rollback = self.journal_writer.rollback
        return contradicts and before.key_released and rollback is not None and rollback.recently_rolled_back()

    async def _was_incremented(self, operation: Operation) -> bool:
        if not operation.payment or not operation.kind.pays or operation.state is not State.SUCCEEDED:
            return False
        [row] = await self.journal_writer.journal.ledger_rows((payment_key(operation.payment),))
        movements = payment_from_row(row).movements if row is not None else ()
        return any(movement.kind is OperationKind.INCREMENT for movement in movements)

    async def _payment_to_compare(
        self, operation: Operation, policy: Policy, finding: Finding, provider_object: Tree
    ) -> Payment | None:
        """The payment whose totals, or whose dispute, the object shows."""
        is_dispute = finding.classification is not None and shows_dispute(finding.classification)
        if not operation.payment or not (is_dispute or shows_totals(operation, policy, provider_object)):
            return None
        [row] = await self.journal_writer.journal.ledger_rows((payment_key(operation.payment),))
        return None if row is None else payment_from_row(row)

    async def _has_later_generation(self, operation: Operation) -> bool:
        """Whether its key has started again under the same stamp. A later generation that has not failed is inquired
        about on its own."""
        listing = OperationQuery(provider=operation.provider, stamp=operation.stamp, limit=10)
        found = await self.journal_writer.journal.find_operations(listing)
        later = [one for one in found if one.key == operation.key and one.generation > operation.generation]
        return any(one.state is not State.FAILED for one in later)

    async def release_voided_payment(self, before: Operation, after: Operation) -> None:
        """A void that succeeded gave back what its target had paid, so that intent may be paid again. If the process
        dies in between, the intent stays blocked until an event or a person releases it."""
        guard = after.guard
        first_time = after.state is State.SUCCEEDED and not before.state.ended
        if (
            after.kind is not OperationKind.VOID
            or not first_time
            or guard is None
            or guard.kind is not GuardKind.TARGET
        ):
            return
        listing = OperationQuery(provider=after.provider, reference=guard.label, limit=10)
        found = await self.journal_writer.journal.find_operations(listing)
        paid = [one for one in found if one.account == after.account and one.kind.pays and is_paid(one)]
        if len(paid) != 1 or not await self._is_given_back(paid[0]):
            return

        def change_from(current: Operation) -> OperationChange:
            if not is_paid(current):
                raise _NothingNewError(current)
            given_back = advance(current, Event.VOID_SUCCEEDED, result_class=ResultClass.REVERSED)
            known = WriteContext(self.journal_writer.journal_clock.now())
            note = f"voided by {after.id}"
            return change_of(current, given_back, (Event.VOID_SUCCEEDED,), known, note=note, sealed_response=b"")

        with suppress(_NothingNewError):
            await self.journal_writer.write_with_retry(paid[0], change_from)

    async def _is_given_back(self, operation: Operation) -> bool:
        """Whether the whole payment was given back: a void of the rest after a capture gives back less. A payment
        without a record counts as given back, unless a capture of ours exists."""
        if not operation.payment:
            return True
        [row] = await self.journal_writer.journal.ledger_rows((payment_key(operation.payment),))
        return row is None or hold_of_payment(payment_from_row(row)) is IntentHold.REFUNDED

    def _dispute_change(
        self,
        current: Operation,
        policy: Policy,
        source: EvidenceSource,
        finding: Finding,
        shown: ShownBalance,
        lease_token: str | None,
    ) -> OperationChange:
        """A dispute is a fact of the payment: the operation does not change."""
        kind = AnnouncementKind.DISPUTE_WON if shown.dispute == "won" else AnnouncementKind.DISPUTED
        announcement = Announcement((kind,), current.outcome, current.result_class, current.reference, current.incident)
        context = self._write_context(current, policy, lease_token)
        change = change_of(current, current, (kind.value,), context, source=source, finding=finding, shown=shown)
        return replace(change, announcement=announcement)

    def _conclude(
        self, current: Operation, policy: Policy, source: EvidenceSource, finding: Finding, *, may_be_stale: bool
    ) -> tuple[Operation, Event | None]:
        classification = finding.classification
        if classification is None:
            return current, None
        failed_is_return = policy.payment.failed_is_return
        if source is EvidenceSource.WEBHOOK and precedes_end(
            current, classification, failed_is_return=failed_is_return
        ):
            return current, None
        classification = as_taken_back(current, classification, failed_is_return=failed_is_return)
        settled = self.is_settled(current, policy)
        after, event = conclude_external(
            current, source, classification, policy.contract, settled=settled, may_be_stale=may_be_stale
        )
        if source is EvidenceSource.WEBHOOK and self._may_be_of_forgotten(current, after):
            raise _NothingNewError(current, postponed=True)
        return after, event

    def _write_context(self, current: Operation, policy: Policy, lease_token: str | None) -> WriteContext:
        now, rollback = self.journal_writer.journal_clock.now(), self.journal_writer.rollback
        return WriteContext(
            now,
            gives_back=lease_token,
            first_check_at=lambda after: now + self.first_check_delay_s(after, policy),
            reached=self.waiters.has_waiter(current.id),
            # Its caller may have seen an end that the journal has forgotten since.
            delivery_pending=rollback is not None and rollback.end_may_be_lost(current),
        )

    def first_check_delay_s(self, operation: Operation, policy: Policy) -> float:
        """How long after a change of state an operation is first inquired about."""
        if operation.state is State.REQUIRES_ACTION:
            return policy.resolve.action_expires_s
        return policy.resolve.schedule_s[0] * self.jitter_factor()

    def jitter_factor(self) -> float:
        return 1.0 - _JITTER_SHARE + 2 * _JITTER_SHARE * self.randomness.draw()

    def is_settled(self, operation: Operation, policy: Policy) -> bool:
        return is_settled(operation, self.settle_s(policy), self.journal_writer.ages.low_now(quiet_since(operation)))

    def settle_s(self, policy: Policy) -> float:
        """After this long nothing can still arrive: never sooner than a lease and the first byte's timeout are over."""
        return max(policy.resolve.settle_s, self.journal_writer.leases.lease_s + policy.timeouts.first_byte_s)

    def _sealed_replay_response(
        self, before: Operation, after: Operation, policy: Policy, provider_object: Tree
    ) -> bytes | None:
        """The sealed reply to later duplicates: the provider's own object, in the shape that the policy gives it. The
        response that was stored for an earlier state is no longer true."""
        if not changes_replay(before, after):
            return None
        response = replay_response(after, policy.as_response, provider_object, policy.encoding)
        return b"" if response is None else seal_response(self.vault, response, after.id)


def _check_new_dispute(payment: Payment | None, current: Operation, shown: ShownBalance) -> None:
    """A later event of the same dispute is announced only if it changes the amount or the result."""
    if payment is not None and not is_new_dispute(payment, current, shown):
        raise _NothingNewError(current)


def _says_nothing_new(before: Operation, after: Operation, event: Event | None, finding: Finding) -> bool:
    if event is None and after.incident == before.incident and finding.kind is not FindingKind.NOT_OURS:
        return True
    return changes_nothing(before, after) and finding.kind is FindingKind.HIT


def _check_inquiry_applies(
    current: Operation, inquired: Operation, event: Event | None, *, is_last_generation: bool | None
) -> None:
    """Whether an inquiry that was made for `inquired` can show this about the operation as it is now."""
    if event not in _TRUE_OF_ANY_ATTEMPT:
        if current.attempts != inquired.attempts:
            # The inquiry was made before the last attempt was sent, and cannot deny that attempt.
            raise _NothingNewError(current)
    elif current.key_released and is_last_generation is None:
        raise _MayBeLaterGenerationError
    elif current.key_released and not is_last_generation:
        raise _NothingNewError(current)  # a later generation's payment
