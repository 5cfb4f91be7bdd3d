"""docs/metrics.md and the registry name the same metrics, with the same labels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.metrics_core import Metric

from paywitness.core.budget import BudgetScope
from paywitness.core.circuit import CallGroup, CircuitState
from paywitness.core.decide import Action
from paywitness.core.inquiry import InquiryReason
from paywitness.core.operation import Finding, FindingKind, Outcome, State
from paywitness.core.result import Classification, ResultClass, ShadowMatch
from paywitness.telemetry.events import (
    ActionExpired,
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    CallShadowed,
    CircuitChanged,
    CircuitForced,
    ClockJumped,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    LimitChecked,
    OperationEnded,
    OperationStarted,
    OutboxDelivered,
    PolicyReloaded,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
    WebhookDelayed,
    WebhookReceived,
)
from paywitness.telemetry.gauges import QueueRow
from tests.telemetry.conftest import Told
from tests.telemetry.samples import ACME_NAMES, attempt, decision, operation
from tests.telemetry.test_limits import watched
from tests.telemetry.test_metrics import counted
from tests.telemetry.test_server_gauges import at_the_door

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SUFFIX = {"counter": "_total", "info": "_info"}


def documented() -> dict[str, set[str]]:
    """Metric -> labels, as the page tells them."""
    found = {}
    for section in PAGE.read_text("utf-8").split("\n### ")[1:]:
        name, _, text = section.partition("\n")
        labels = re.search(r"Labels: (.+?)\.\n", text, re.DOTALL)
        outside_brackets = re.sub(r"\(.*?\)", "", labels.group(1), flags=re.DOTALL) if labels else ""
        assert "**When it is off:**" in text, f"{name}: what to do when it is off?"
        found[name] = set(re.findall(r"`(\w+)`", outside_brackets))
    return found


def shown(told: Told) -> dict[str, set[str]]:
    """Metric -> labels, as a scrape shows them once everything has happened."""
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.tell(OperationStarted(operation()))
    told.tell(AttemptFinished(operation(), attempt(), decision()))
    told.tell(AttemptFinished(operation(), attempt(), decision(Action.RETRY_SAME_OPERATION)))
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.1))
    told.tell(CallRefused("acme", "overloaded"))
    told.tell(LimitChecked("acme", "sale", "exceeds"))
    told.tell(CallForwarded("acme"))
    told.tell(CallShadowed("acme", "authorization", "status_inquiry", "in_doubt_ask", watched_by_a_row()))
    told.tell(OperationEnded(operation(), EvidenceKind.RESPONSE))
    told.tell(DoubtOpened(operation(State.UNKNOWN)))
    told.tell(DoubtClosed(operation(), EvidenceKind.INQUIRY, 1.0))
    told.tell(IncidentOpened(operation(), "success_after_failure"))
    told.tell(JournalCalled("claim", 0.1, failed=True))
    finding, reason = Finding("ask[0]", FindingKind.MISSED), InquiryReason.LOST_RESPONSE
    told.tell(InquiryFinished(operation(State.UNKNOWN), finding, 0.1, reason))
    told.tell(WebhookReceived("acme", "accepted"))
    told.tell(WebhookDelayed("acme", 2.0))
    told.tell(ActionExpired(operation(State.REQUIRES_ACTION)))
    told.tell(OperationEnded(operation().changed(fallback_of="op_1"), EvidenceKind.RESPONSE))
    told.tell(FellBack("acme", "other", "not_sent", "op_1"))
    told.tell(OperationEnded(operation(fallback_from="acme", fallback_reason="absent"), EvidenceKind.RESPONSE))
    told.tell(ReviewOpened(operation(State.REQUIRES_REVIEW)))
    told.tell(ScheduleRanOut(operation(State.REQUIRES_REVIEW)))
    told.tell(OutboxDelivered(3, failed=False, lag=0))
    told.tell(RetryRefused("acme", "authorization", BudgetScope.PROVIDER))
    told.tell(CircuitChanged("acme", CallGroup.WRITE, CircuitState.CLOSED, CircuitState.OPEN, fleet=True))
    told.tell(CircuitForced("acme", CallGroup.WRITE, CircuitState.OPEN, "ada", "maintenance", 60.0))
    told.tell(ClockJumped(gap=False, left_out_s=1.0, added_s=0.0))
    told.tell(JournalRolledBack("another replication id"))
    told.metrics.watch_server(at_the_door())
    told.metrics.watch_limits(watched())
    told.metrics.refresh_gauges()
    told.metrics.learn_journal("5eed")
    told.metrics.set_queue([QueueRow("acme", "authorization", 1, 5.0)])
    told.metrics.set_doubt([counted(state=State.REQUIRES_REVIEW)])
    told.metrics.set_expiring_authorizations(2)
    return {name_of(family): labels_of(family) for family in told.metrics.registry.collect()}


def watched_by_a_row() -> Classification:
    read = Classification.of(ResultClass.UNKNOWN_OUTCOME, "unrecognised_2xx")
    return replace(read, shadow_match=ShadowMatch("answers.charge[0]", ResultClass.SUCCEEDED))


def name_of(family: Metric) -> str:
    return family.name + SUFFIX.get(family.type, "")


def labels_of(family: Metric) -> set[str]:
    assert family.samples, f"{family.name} was never fed: tell a record that feeds it"
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def test_the_page_and_the_registry_name_the_same_metrics_and_labels(told: Told) -> None:
    assert documented() == shown(told)


def test_every_metric_says_what_it_is(told: Told) -> None:
    for family in told.metrics.registry.collect():
        assert family.documentation.endswith(".")


def test_every_metric_by_operation_is_by_kind_too(told: Told) -> None:
    """Else payouts of two providers, whose policies call them differently, could not be summed."""
    by_operation = {name: labels for name, labels in shown(told).items() if "operation" in labels}
    assert len(by_operation) > 10
    assert [name for name, labels in by_operation.items() if "kind" not in labels] == []
