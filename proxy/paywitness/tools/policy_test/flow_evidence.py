"""Inquiries and events of a flow. They apply the provider's object to an operation and to its payment as the engine
does. See `ExternalEvidenceRecorder` and `WebhookApplier`."""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.bodies.tree import Encoding, Tree
from paywitness.core.classify import tree_of
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import Action
from paywitness.core.evidence import Response
from paywitness.core.external_evidence import (
    EvidenceSource,
    as_taken_back,
    changes_nothing,
    conclude_external,
    event_of,
)
from paywitness.core.inquiry import AbsenceProof, FoundObject, after_miss, is_settled, read_inquiry, read_object
from paywitness.core.lifecycle import EXTERNAL_DENIALS, Event
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    Finding,
    FindingKind,
    GuardKind,
    Operation,
    State,
)
from paywitness.core.payment import PaidElsewhere, Payment, ShownBalance, payment_names
from paywitness.core.payment_changes import adopted, has_new_totals
from paywitness.core.payment_evidence import held_against_names, held_against_payment, shown_by_object, shows_totals
from paywitness.core.policy import Policy
from paywitness.core.record import record
from paywitness.core.reply import changes_replay, replay_response
from paywitness.core.result import PROVIDER_SAID_NO, Classification, ResultClass
from paywitness.core.template import TemplateValues
from paywitness.core.webhook_event import (
    MatchKey,
    WebhookEvent,
    WebhookRules,
    object_and_rules,
    standing_for_steps,
    webhook_events_in,
)
from paywitness.engine.durability.journal_writer import change_of
from paywitness.journal.ledger import payment_by_name
from paywitness.tools.policy_test.case import NONE, GivenAttempt, GivenResponse, evidence_of, fill_response, response_of
from paywitness.tools.policy_test.flow_calls import LEASE_S, FlowWorld, release_voided_payment
from paywitness.tools.policy_test.recognition import CaseError, placeholders_of

_CONFIRMED_ABSENT = Classification.of(ResultClass.ABSENT, "absent_confirmed")


@record
class EvidenceResult:
    """The result of an inquiry or an event."""

    operation: Operation | None = None
    found: str = NONE
    found_by: str = NONE
    result_class: str = NONE
    action: str = NONE


# --- Inquiries


def run_inquiry(world: FlowWorld, operation: Operation, given: GivenResponse) -> EvidenceResult:
    """Inquire about the operation, with the given response."""
    recognised = world.calls[operation.id]
    policy = recognised.policy
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in recognised.call.headers}
    values = TemplateValues(operation, recognised.parameters, recognised.tree, headers)
    inquiry = next((one for one in policy.inquiries if one.target(values) is not None), None)
    if inquiry is None:
        raise CaseError(f"{policy.operation} has no 'ask' that can be filled in")
    response = fill_response(given, placeholders_of(operation, operation.reference))
    evidence = evidence_of(GivenAttempt(response), policy.encoding)
    seen = read_inquiry(inquiry, evidence, policy.classify, operation.expected_payment, values)
    payment = world.journal.payment(operation.payment)
    if payment is not None and operation.paid_elsewhere and _is_to_be_verified(payment):
        return _verify(world, operation, payment, seen)
    seen = held_against_names(operation, policy, inquiry, seen, payment, _owner_of(world, operation, seen))
    seen = held_against_payment(operation, policy, seen, payment, now=world.now)
    finding = seen.finding
    if finding.kind is FindingKind.MISSED and operation.state.in_doubt and operation.doubt:
        proof = AbsenceProof.of((inquiry,), _settle_s(policy))
        missed, absent = after_miss(operation, proof, world.now)
        if absent:
            seen = FoundObject(Finding(finding.source, FindingKind.MISSED, None, _CONFIRMED_ABSENT))
        elif missed is not operation:
            operation = _write(world, operation, missed, (Event.INQUIRY_MISSED,), EvidenceSource.INQUIRY)
    return _apply(world, operation, EvidenceSource.INQUIRY, seen)


def _owner_of(world: FlowWorld, operation: Operation, seen: FoundObject) -> Payment | None:
    """The payment that has the reference that was found."""
    classification = seen.finding.classification
    reference = classification.reference if classification is not None else None
    policy = world.policy_of(operation)
    names = payment_names(policy.names[0] or policy.provider, operation.account, [reference] if reference else [])
    found = payment_by_name(world.journal, names[0]) if names else None
    return found.payment if found is not None else None


def _is_to_be_verified(payment: Payment) -> bool:
    """Whether the provider said that the payment was made elsewhere, and no inquiry has shown it yet."""
    is_open = not payment.paid and payment.elsewhere is not PaidElsewhere.VERIFIED
    return is_open and payment.verify_at is not None


def _verify(world: FlowWorld, operation: Operation, payment: Payment, seen: FoundObject) -> EvidenceResult:
    """Apply an inquiry for a payment that was made elsewhere: see `PaymentSweep`."""
    classification, policy = seen.finding.classification, world.policy_of(operation)
    reading = classification.result_class if classification is not None else None
    if seen.finding.kind is FindingKind.HIT and reading in {ResultClass.SUCCEEDED, ResultClass.PENDING}:
        shown = shown_by_object(operation, policy, classification, seen.provider_object, now=world.now)
        world.journal.write_payment(adopted(payment, shown or ShownBalance()))
    elif seen.finding.kind is FindingKind.HIT and reading in PROVIDER_SAID_NO:
        world.journal.write_payment(replace(payment, elsewhere=PaidElsewhere.NO, verify_at=None))
    return EvidenceResult(operation, seen.finding.kind, NONE, reading or NONE)


def _settle_s(policy: Policy) -> float:
    return max(policy.resolve.settle_s, LEASE_S + policy.timeouts.first_byte_s)


# --- Events


def run_event(world: FlowWorld, given: GivenResponse) -> EvidenceResult:
    """Receive a webhook event."""
    rules = world.provider.webhook_rules
    if rules is None:
        raise CaseError("the policy has no 'webhook'")
    delivery = response_of(given, Encoding.JSON)
    webhook_events = webhook_events_in(rules, tree_of(delivery, Encoding.JSON)[0], delivery.headers)
    if len(webhook_events) != 1:
        return EvidenceResult()
    operation, found_by = _matched(world, webhook_events[0])
    if operation is None:
        return EvidenceResult(found_by=found_by)
    policy = world.policy_of(operation)
    if rules.hint:  # a hint is no evidence: the sidecar inquires
        return EvidenceResult(operation, found_by=found_by, action=Action.STATUS_INQUIRY if policy.inquiries else NONE)
    if not policy.contract.webhook_expected:
        return EvidenceResult(operation, found_by=found_by)
    seen = _read_event(rules, webhook_events[0], delivery, operation, policy)
    if operation.state is State.SUCCEEDED and _denies(seen) and policy.inquiries:
        # The event denies a success. It may be an older event that comes late, so the sidecar inquires.
        result_class = seen.finding.classification.result_class if seen.finding.classification is not None else NONE
        return EvidenceResult(operation, seen.finding.kind, found_by, result_class, Action.STATUS_INQUIRY)
    return replace(_apply(world, operation, EvidenceSource.WEBHOOK, seen), found_by=found_by)


def _matched(world: FlowWorld, webhook_event: WebhookEvent) -> tuple[Operation | None, str]:
    """The operation that the event names, and the key that names it. The first finder that names exactly one key
    wins."""
    is_ambiguous = False
    for finder, value in webhook_event.match_values:
        named = [one for one in world.journal.operations.values() if value in _names(one, finder)]
        found = standing_for_steps(named)
        if len({one.key for one in found}) == 1:
            return max(found, key=lambda one: one.generation), finder
        is_ambiguous = is_ambiguous or bool(found)
    return (None, NONE) if is_ambiguous else _step_of_payment(world, webhook_event)


def _step_of_payment(world: FlowWorld, webhook_event: WebhookEvent) -> tuple[Operation | None, str]:
    """The newest paying step of the payment that has a reference of the event as a further name."""
    references = {value for finder, value in webhook_event.match_values if finder is MatchKey.REFERENCE}
    for operation in reversed(world.journal.operations.values()):
        payment = world.journal.payment(operation.payment) if operation.kind.pays else None
        if payment is not None and not references.isdisjoint(payment.names):
            return operation, MatchKey.REFERENCE
    return None, NONE


def _names(operation: Operation, finder: MatchKey) -> set[str | None]:
    guard = operation.guard
    match finder:
        case MatchKey.OPERATION_ID:
            return {operation.id, operation.stamp}
        case MatchKey.PROVIDER_KEY:
            return {operation.provider_key}
        case MatchKey.CLIENT_KEY:
            return {operation.client_key}
        case MatchKey.REFERENCE:
            return {operation.reference}
        case MatchKey.INTENT:
            return {guard.label} if guard is not None and guard.kind is GuardKind.INTENT else set()


def _read_event(
    rules: WebhookRules, webhook_event: WebhookEvent, delivery: Response, operation: Operation, policy: Policy
) -> FoundObject:
    event = webhook_event.payload
    provider_object, rows = object_and_rules(rules, event)
    signed = Response(200, b"", delivery.headers, b"")
    expected = operation.expected_payment
    return read_object(
        "webhook", rows, policy.classify, expected, signed, provider_object, event=event, event_rows=rules.read
    )


def _denies(seen: FoundObject) -> bool:
    reading = seen.finding.classification.result_class if seen.finding.classification is not None else None
    return reading is not None and event_of(EvidenceSource.WEBHOOK, reading) in EXTERNAL_DENIALS


# --- Applied


def _apply(world: FlowWorld, operation: Operation, source: EvidenceSource, seen: FoundObject) -> EvidenceResult:
    """Record the finding if it is new."""
    finding, policy = seen.finding, world.policy_of(operation)
    classification = finding.classification
    if classification is None or finding.kind is FindingKind.FAILED:
        return EvidenceResult(operation, finding.kind)
    result_class = classification.result_class
    taken_back = as_taken_back(operation, classification, failed_is_return=policy.payment.failed_is_return)
    settled = is_settled(operation, _settle_s(policy), world.now)
    after, event = conclude_external(
        operation, source, taken_back, policy.contract, settled=settled, may_be_stale=seen.may_be_stale
    )
    shown = shown_by_object(after, policy, classification, seen.provider_object, now=world.now)
    if shown is not None and shown.dispute:
        operation = _write_dispute(world, operation, source, shown)
    elif _says_something_new(world, operation, after, event, seen, shown):
        before = operation
        events = (event,) if event is not None else ()
        operation = _write(world, before, after, events, source, shown)
        _keep_response(world, before, operation, policy, seen.provider_object)
        release_voided_payment(world, before, operation)
    return EvidenceResult(operation, finding.kind, NONE, result_class)


def _says_something_new(
    world: FlowWorld,
    before: Operation,
    after: Operation,
    event: Event | None,
    seen: FoundObject,
    shown: ShownBalance | None,
) -> bool:
    """Whether it changes the operation, or shows totals of its payment that are not known yet."""
    comparable = shows_totals(before, world.policy_of(before), seen.provider_object)
    if has_new_totals(world.journal.payment(before.payment) if comparable else None, after, shown):
        return True
    is_news = event is not None or after.incident != before.incident
    return is_news and not changes_nothing(before, after)


def _write(
    world: FlowWorld,
    before: Operation,
    after: Operation,
    events: tuple[str, ...],
    source: EvidenceSource,
    shown: ShownBalance | None = None,
) -> Operation:
    known = WriteContext(world.now, reached=False)
    return world.journal.record(change_of(before, after, events, known, source=source, shown=shown), world.now)


def _write_dispute(world: FlowWorld, current: Operation, source: EvidenceSource, shown: ShownBalance) -> Operation:
    """Record a dispute. It is a fact of the payment, so the operation stays as it is."""
    kind = AnnouncementKind.DISPUTE_WON if shown.dispute == "won" else AnnouncementKind.DISPUTED
    announcement = Announcement((kind,), current.outcome, current.result_class, current.reference, current.incident)
    change = change_of(current, current, (kind.value,), WriteContext(world.now), source=source, shown=shown)
    return world.journal.record(replace(change, announcement=announcement), world.now)


def _keep_response(
    world: FlowWorld, before: Operation, after: Operation, policy: Policy, provider_object: Tree
) -> None:
    if not changes_replay(before, after):
        return
    response = replay_response(after, policy.as_response, provider_object, policy.encoding)
    if response is None:
        world.responses.pop(after.id, None)
    else:
        world.responses[after.id] = response
