"""Operator commands: a person's actions on operations. Every action has an actor and a reason, and is an entry of the
timeline.

The rule that must hold: a command runs on exactly the version that its operator saw. If somebody else was faster
(another operator, a webhook, the resolver), nothing is written, and the operator gets the present state. No command
sends anything itself: `inquire` and `cancel` make the operation due, and the resolver does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.consequences import WriteContext
from paywitness.core.errors import JournalUnavailable, PaywitnessError, StaleWrite
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.inquiry import InquiryReason
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import Finding, FindingKind, HistoryEntry, Operation, State
from paywitness.core.operator_actions import (
    OperatorAction,
    actions_for,
    close_incident,
    close_refusal,
    resume_event,
    unavailable_reason,
)
from paywitness.core.payment import ShownBalance
from paywitness.core.payment_evidence import shown_by_object
from paywitness.core.policy import Policy
from paywitness.core.redact import redact
from paywitness.core.reply import changes_replay
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import EvidenceKind, transition_events

REASON_LENGTH_MIN, REASON_LENGTH_MAX = 3, 1000
EVIDENCE_LENGTH_MIN = 10  # "checked" is no evidence: saying what was seen and in which place takes a few words
ACTOR_LENGTH_MAX = 100
REFERENCE_LENGTH_MAX = 255
BULK_MAX = 500
_PAGE_SIZE = 200
_OPERATOR_RULE = "operator"  # the name of the rule for a person's finding


class InvalidCommand(PaywitnessError):
    """The command itself cannot be run: a part of it is missing or too long."""


class ActionNotAllowed(PaywitnessError):
    """The operation does not allow the action as it stands."""

    def __init__(self, operation: Operation, why: str, allowed_actions: tuple[OperatorAction, ...]) -> None:
        super().__init__(why)
        self.operation = operation
        self.why = why
        self.allowed_actions = allowed_actions


class VersionConflict(PaywitnessError):
    """Somebody was faster. Nothing was written; `entry` is the last change."""

    def __init__(self, operation: Operation, entry: HistoryEntry | None) -> None:
        super().__init__(operation.id)
        self.operation = operation
        self.entry = entry


class NoSuchOperation(PaywitnessError):
    """The journal does not hold it."""


def valid_actor_and_reason(actor: str, reason: str) -> tuple[str, str]:
    """The actor and the reason, ready to be stored. Raises InvalidCommand."""
    _check_printable("actor", actor)
    _check_printable("reason", reason)
    if not 1 <= len(actor.strip()) <= ACTOR_LENGTH_MAX:
        raise InvalidCommand(f"Say who does it: actor has 1 to {ACTOR_LENGTH_MAX} characters.")
    if not REASON_LENGTH_MIN <= len(reason.strip()) <= REASON_LENGTH_MAX:
        raise InvalidCommand(
            f"Say why: reason has {REASON_LENGTH_MIN} to {REASON_LENGTH_MAX} characters, kept in the timeline."
        )
    return redact(actor.strip()), redact(reason.strip())


def _check_printable(name: str, text: str) -> None:
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise InvalidCommand(f"{name} holds characters that cannot be printed.")


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """One command of a person: the action, by whom and why."""

    action: OperatorAction
    actor: str
    reason: str
    succeeded: bool | None = None  # of `resolve`: how it ended. Of `close-incident` too, if the end is in question
    evidence: str = ""  # of `resolve`: what was seen, and in which place
    reference: str | None = None  # of `resolve`: the provider's name for the payment

    def validated(self) -> OperatorCommand:
        """The command, ready to be stored: nothing missing or too long, and no card number in pasted text."""
        actor, reason, evidence = validated_texts(self.actor, self.reason, self.evidence)
        self._check_resolution()
        return replace(self, actor=actor, reason=reason, evidence=evidence)

    def _check_resolution(self) -> None:
        if self.action is not OperatorAction.RESOLVE:
            says_end = self.succeeded is not None and self.action is not OperatorAction.CLOSE_INCIDENT
            if says_end or self.evidence or self.reference is not None:
                raise InvalidCommand(
                    f"as, evidence and reference belong to resolve, as to close-incident too; {self.action} takes none "
                    "of the others."
                )
            return
        if self.succeeded is None:
            raise InvalidCommand("Say how it ended: as is succeeded or failed.")
        check_evidence(self.evidence, "Only evidence ends a doubt")
        if self.reference is not None:
            check_reference(self.reference)


def validated_texts(actor: str, reason: str, evidence: str) -> tuple[str, str, str]:
    """The actor, the reason and the evidence, ready to be stored. Raises InvalidCommand."""
    _check_printable("evidence", evidence)
    return *valid_actor_and_reason(actor, reason), redact(evidence.strip())


def check_evidence(evidence: str, rule: str) -> None:
    if not EVIDENCE_LENGTH_MIN <= len(evidence.strip()) <= REASON_LENGTH_MAX:
        raise InvalidCommand(
            f"{rule}: evidence says what was seen and where, in "
            f"{EVIDENCE_LENGTH_MIN} to {REASON_LENGTH_MAX} characters, such as 'dashboard shows ch_123 captured'."
        )


def check_reference(reference: str) -> None:
    is_name = reference.isprintable() and reference == reference.strip()
    if not 1 <= len(reference) <= REFERENCE_LENGTH_MAX or not is_name:
        raise InvalidCommand(f"reference has 1 to {REFERENCE_LENGTH_MAX} printable characters, no spaces around it.")


@dataclass(frozen=True, slots=True)
class BulkRefusal:
    operation_id: str
    why: str


@dataclass(slots=True)
class BulkResult:
    """The result of a bulk command, or of its dry run."""

    operations: list[Operation] = field(default_factory=list)  # those that the command is offered for
    done: int = 0
    refused: list[BulkRefusal] = field(default_factory=list)
    has_more: bool = False  # more operations fit the filters than the limit allows

    @property
    def money(self) -> dict[str, Money]:
        """The amounts of these operations, by currency."""
        totals: dict[str, Money] = {}
        for money in (operation.money for operation in self.operations if operation.money is not None):
            earlier = totals.get(money.currency, Money(0, money.currency))
            totals[money.currency] = Money(earlier.minor_units + money.minor_units, money.currency)
        return dict(sorted(totals.items()))


@dataclass(frozen=True, slots=True)
class CommandExecutor:
    """Runs the commands of operators."""

    journal_writer: JournalWriter
    external_evidence: ExternalEvidenceRecorder
    journal: Journal
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook | None]  # the book in force
    clock: Clock
    telemetry: Telemetry

    async def policy_of(self, operation: Operation) -> Policy | None:
        """The policy that the operation is pinned to; None if it cannot be read."""
        return await self.pinned.policy_from_book(operation, self.book() or PolicyBook.of(()))

    async def execute(self, operation_id: str, command: OperatorCommand, version: int | None = None) -> Operation:
        """Run one command on exactly this version, or on the version that is read now. Raises InvalidCommand,
        ActionNotAllowed, VersionConflict, NoSuchOperation, JournalUnavailable."""
        command = command.validated()
        operation = await self.journal.read(operation_id)
        if operation is None:
            raise NoSuchOperation(operation_id)
        if version is not None and version != operation.version:
            raise await self._conflict(operation)
        return await self._execute(operation, command)

    async def execute_many(
        self,
        listing: OperationQuery,
        command: OperatorCommand,
        *,
        dry_run: bool,
        limit: int,
        only_ids: Collection[str] | None = None,
    ) -> BulkResult:
        """Run a command for all operations that fit the filters, one after the other. `only_ids`: those that the
        operator has seen; others that fit are left alone. Operations that refuse the command are reported; the rest is
        done."""
        command = command.validated()
        result = await self._select(listing, command, limit, only_ids)
        if dry_run:
            return result
        for operation in result.operations:
            try:
                await self._execute(operation, command)
                result.done += 1
            except ActionNotAllowed as error:
                result.refused.append(BulkRefusal(operation.id, error.why))
            except VersionConflict as error:
                result.refused.append(BulkRefusal(operation.id, f"somebody was faster: {describe_conflict(error)}"))
            except JournalUnavailable:
                result.refused.append(
                    BulkRefusal(operation.id, "the journal did not answer: check the operation before you try again")
                )
        return result

    async def _select(
        self, listing: OperationQuery, command: OperatorCommand, limit: int, only_ids: Collection[str] | None
    ) -> BulkResult:
        result, before = BulkResult(), listing.before
        seen: set[str] = set()
        while not result.has_more:
            page = await self.journal.find_operations(replace(listing, limit=_PAGE_SIZE, before=before))
            for operation in page:
                if only_ids is not None and operation.id not in only_ids:
                    continue
                if len(seen) >= min(limit, BULK_MAX):
                    result.has_more = True
                    break
                seen.add(operation.id)
                why = _refusal_of(command, operation, await self.policy_of(operation))
                if why is None:
                    result.operations.append(operation)
                else:
                    result.refused.append(BulkRefusal(operation.id, why))
            if len(page) < _PAGE_SIZE or (only_ids is not None and len(seen) >= len(only_ids)):
                break
            before = page[-1].id
        for missing in sorted(set(only_ids or ()) - seen):
            result.refused.append(BulkRefusal(missing, "it no longer fits the filters"))
        return result

    async def _execute(self, operation: Operation, command: OperatorCommand) -> Operation:
        policy = await self.policy_of(operation)
        why = _refusal_of(command, operation, policy)
        if why is not None:
            raise ActionNotAllowed(operation, why, actions_for(operation, policy))
        if command.action is OperatorAction.RESOLVE and policy is not None:
            return await self._resolve(operation, policy, command)
        after, events = _changed_by(operation, command)
        now = self.journal_writer.journal_clock.now()
        change = change_of(
            operation,
            after,
            events,
            WriteContext(now, check_at=now, check_asked_by=InquiryReason.OPERATOR)
            if command.action in _CHECKING_ACTIONS
            else WriteContext(now),
            source=EvidenceSource.OPERATOR,
            action=command.action,
            because=f"operator_{command.action.replace('-', '_')}",
            note=command.reason,
            actor=command.actor,
            shown=_shown_by_person(after, policy, command, now),
            # A reply that was stored for another end than this one is no longer true.
            sealed_response=b"" if changes_replay(operation, after) and operation.state.ended else None,
        )
        recorded = await self.journal_writer.try_write(change)
        if recorded is None:
            raise await self._conflict(operation)
        for record in transition_events(operation, recorded, EvidenceKind.OPERATOR, self.clock.now()):
            self.telemetry.emit(record)
        self.external_evidence.waiters.notify(recorded.id)
        return recorded

    async def _resolve(self, operation: Operation, policy: Policy, command: OperatorCommand) -> Operation:
        reading = ResultClass.SUCCEEDED if command.succeeded else ResultClass.FAILED
        classification = replace(Classification.of(reading, _OPERATOR_RULE), reference=command.reference)
        finding = Finding(
            EvidenceSource.OPERATOR, FindingKind.HIT, classification=classification, detail=command.evidence
        )
        at_this_version = replace(
            self.external_evidence, journal_writer=replace(self.journal_writer, fail_on_conflict=True)
        )
        try:
            applied = await at_this_version.apply(
                operation, policy, EvidenceSource.OPERATOR, finding, actor=command.actor, note=command.reason
            )
        except StaleWrite:
            raise await self._conflict(operation) from None
        if applied.event is None:
            raise ActionNotAllowed(
                operation, "an attempt may still arrive: wait for its end", actions_for(operation, policy)
            )
        return applied.operation

    async def _conflict(self, operation: Operation) -> VersionConflict:
        current = await self.journal_writer.current(operation)
        history = await self.journal.history(operation.id)
        last = next((entry for entry in reversed(history) if entry.version <= current.version), None)
        return VersionConflict(current, last)


_CHECKING_ACTIONS = frozenset({OperatorAction.INQUIRE, OperatorAction.CANCEL})


def _refusal_of(command: OperatorCommand, operation: Operation, policy: Policy | None) -> str | None:
    """Why the command cannot be run for the operation as it is; None if it can."""
    why = unavailable_reason(command.action, operation, policy)
    if why is None and command.action is OperatorAction.CLOSE_INCIDENT:
        return close_refusal(operation.state, operation.incident, operation.payment, paid=command.succeeded)
    return why


def _changed_by(operation: Operation, command: OperatorCommand) -> tuple[Operation, tuple[Event, ...]]:
    """The operation after the command, and the events of the command."""
    match command.action:
        case OperatorAction.PARK:
            event = Event.OPERATOR_PARKED
        case OperatorAction.RESUME:
            event = resume_event(operation)
        case OperatorAction.CANCEL:
            return operation.changed(cancel_wanted=True), ()
        case OperatorAction.CLOSE_INCIDENT:
            return close_incident(operation, paid=command.succeeded)
        case _:
            return operation, ()
    return advance(operation, event, because=event), (event,)


def _shown_by_person(
    after: Operation, policy: Policy | None, command: OperatorCommand, now: float
) -> ShownBalance | None:
    """What a command shows of the operation's payment: an incident that is closed as paid shows a success."""
    is_close = command.action is OperatorAction.CLOSE_INCIDENT
    if policy is None or not (is_close and command.succeeded and after.state is State.SUCCEEDED):
        return None
    return shown_by_object(after, policy, Classification.of(ResultClass.SUCCEEDED, _OPERATOR_RULE), None, now=now)


def describe_conflict(error: VersionConflict) -> str:
    """The present state of the operation, and who caused it."""
    state = error.operation.state.replace("_", " ")
    entry = error.entry
    if entry is None:
        return f"it is now {state} (version {error.operation.version})"
    who = f"{entry.actor} ({entry.source})" if entry.actor else f"the {entry.source}"
    what = ", ".join(event.replace("_", " ") for event in entry.events) or entry.action or "a note"
    reason = f", saying: {redact(entry.note)}" if entry.note and entry.actor else ""
    return f"it is now {state} (version {error.operation.version}), by {who}: {what}{reason}"
