"""docs/metrics.md and the registry name the same metrics, with the same labels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.metrics_core import Metric

from proxy.core.budget import Scope
from proxy.core.circuit import CircuitState, Group
from proxy.core.decide import Action
from proxy.core.operation import Finding, Found, Outcome, State
from proxy.core.reading import Classification, Observed, Reading
from proxy.telemetry.queue import QueueRow
from proxy.telemetry.records import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallObserved,
    CallRefused,
    CircuitChanged,
    CircuitForced,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    NoticeReceived,
    OperationEnded,
    OutboxDelivered,
    PolicyReloaded,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
)
from tests.telemetry.conftest import Told
from tests.telemetry.test_edge import at_the_door
from tests.telemetry.test_limits import watched
from tests.telemetry.test_metrics import counted
from tests.telemetry.worth import attempt, decision, operation

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
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": ("authorization",)}))
    told.tell(AttemptFinished(operation(), attempt(), decision()))
    told.tell(AttemptFinished(operation(), attempt(), decision(Action.RETRY_SAME_OPERATION)))
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.1))
    told.tell(CallRefused("acme", "overloaded"))
    told.tell(CallForwarded("acme"))
    told.tell(CallObserved("acme", "authorization", "status_inquiry", "in_doubt_ask", watched_by_a_row()))
    told.tell(OperationEnded(operation(), EvidenceKind.RESPONSE))
    told.tell(DoubtOpened(operation(State.UNKNOWN)))
    told.tell(DoubtClosed(operation(), EvidenceKind.INQUIRY, 1.0))
    told.tell(IncidentOpened(operation(), "success_after_failure"))
    told.tell(JournalCalled("claim", 0.1, failed=True))
    told.tell(InquiryFinished(operation(State.UNKNOWN), Finding("ask[0]", Found.MISSED), 0.1))
    told.tell(NoticeReceived("acme", "accepted"))
    told.tell(FellBack("acme", "other", "not_sent", "op_1"))
    told.tell(ReviewOpened(operation(State.REQUIRES_REVIEW)))
    told.tell(ScheduleRanOut(operation(State.REQUIRES_REVIEW)))
    told.tell(OutboxDelivered(3, failed=False, lag=0))
    told.tell(RetryRefused("acme", "authorization", Scope.PROVIDER))
    told.tell(CircuitChanged("acme", Group.WRITE, CircuitState.CLOSED, CircuitState.OPEN, fleet=True))
    told.tell(CircuitForced("acme", Group.WRITE, CircuitState.OPEN, "ada", "maintenance", 60.0))
    told.tell(JournalRolledBack("another replication id"))
    told.metrics.watch_edge(at_the_door())
    told.metrics.watch_limits(watched())
    told.metrics.look()
    told.metrics.show_queue([QueueRow("acme", "authorization", 1, 5.0)])
    told.metrics.show_doubt([counted(state=State.REQUIRES_REVIEW)])
    return {name_of(family): labels_of(family) for family in told.metrics.registry.collect()}


def watched_by_a_row() -> Classification:
    read = Classification.of(Reading.UNKNOWN_OUTCOME, "unrecognised_2xx")
    return replace(read, observed=Observed("answers.charge[0]", Reading.SUCCEEDED))


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
