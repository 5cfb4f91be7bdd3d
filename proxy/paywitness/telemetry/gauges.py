"""Gauges: unknown outcomes, the retry queue, payments, the limits, and the server's own counters, as collectors of the
registry.

A scrape never queries the journal and never reads a live object: it shows a snapshot. Doubt, queue and payments are set
when the journal was counted; limits and server are refreshed in the loop's thread at each scrape. Before the first
snapshot there are no samples. After it every known provider and operation has one, so that an end is seen as a zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from paywitness.core.admission import AdmissionStats
from paywitness.core.budget import BudgetScope
from paywitness.core.circuit import CallGroup, CircuitState, CircuitStatus
from paywitness.core.holds import LimitedBy
from paywitness.core.money import Money
from paywitness.core.operation import DoubtCount, Operation, State
from paywitness.telemetry.prometheus import (
    JOURNAL_LABELS,
    OPERATION_LABELS,
    OTHER,
    BoundedLabels,
    KnownNames,
    OperationLabels,
)


@dataclass(frozen=True, slots=True)
class _DoubtSnapshot:
    """The last count, by labels. Immutable: a scrape in another thread sees one count or the next."""

    operations: Mapping[OperationLabels, int]
    money: Mapping[tuple[str, str], float]  # provider, currency; major units
    reviews: Mapping[tuple[str, str], int]  # provider, reason
    oldest_at: Mapping[str, float | None]  # provider


def reviews_by_reason(operations: Iterable[Operation]) -> dict[tuple[str, str], int]:
    """How many of these operations are in review, by provider and the rule that sent them there."""
    return dict(Counter((each.provider, each.because) for each in operations if each.state is State.REQUIRES_REVIEW))


class DoubtGauges:
    """A collector of the registry."""

    def __init__(self, names: KnownNames, now: Callable[[], float]) -> None:
        self._names = names
        self._now = now
        self._reasons = BoundedLabels()
        self._snapshot: _DoubtSnapshot | None = None
        self._counts: tuple[DoubtCount, ...] = ()

    @property
    def counts(self) -> tuple[DoubtCount, ...]:
        """The counts that were last shown. Empty before the first count."""
        return self._counts

    def update(self, counts: Iterable[DoubtCount], reviews: Mapping[tuple[str, str], int] | None = None) -> None:
        """Show the journal's counts. `reviews`: operations in review by provider and reason, as far as known."""
        self._counts = tuple(counts)
        for count in self._counts:
            self._names.learn_operation(count.provider, count.operation)
        previous = self._snapshot
        money = dict.fromkeys(previous.money if previous is not None else (), 0.0)
        operations = dict.fromkeys(self._names.operations(), 0)
        oldest_at: dict[str, float | None] = dict.fromkeys(self._names.providers())
        for count in self._counts:
            labels = self._names.operation(count.provider, count.operation)
            provider = labels[0]
            operations[labels] = operations.get(labels, 0) + count.count
            oldest = oldest_at.get(provider)
            oldest_at[provider] = count.oldest_at if oldest is None else min(oldest, count.oldest_at)
            if count.currency:
                major = float(Money(count.minor_units, count.currency).major)
                money[provider, count.currency] = money.get((provider, count.currency), 0.0) + major
        self._snapshot = _DoubtSnapshot(operations, money, self._reviews(reviews or {}), oldest_at)

    def _reviews(self, listed: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Reviews by reason. Reviews that were counted but not listed have the reason `other`."""
        unlisted: dict[str, int] = {}
        for count in self._counts:
            if count.state is State.REQUIRES_REVIEW:
                provider = self._names.provider(count.provider)
                unlisted[provider] = unlisted.get(provider, 0) + count.count
        shown_before = self._snapshot.reviews if self._snapshot is not None else ()
        reviews = dict.fromkeys((*((provider, OTHER) for provider in self._names.providers()), *shown_before), 0)
        for (name, reason), number in listed.items():
            key = (self._names.provider(name), self._reasons.label(reason))
            reviews[key] = reviews.get(key, 0) + number
            unlisted[key[0]] = unlisted.get(key[0], 0) - number
        for provider, number in unlisted.items():
            if number > 0:
                reviews[provider, OTHER] = reviews.get((provider, OTHER), 0) + number
        return reviews

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "payment_operation_unknown_age_seconds",
            "Age of the oldest operation in doubt, 0 if there is none.",
            labels=(*JOURNAL_LABELS, "provider"),
        )
        in_doubt = GaugeMetricFamily(
            "payment_operations_in_doubt",
            "Operations in doubt, those in review among them.",
            labels=(*JOURNAL_LABELS, *OPERATION_LABELS),
        )
        money = GaugeMetricFamily(
            "payment_money_in_doubt",
            "Money of the operations in doubt, in major units.",
            labels=(*JOURNAL_LABELS, "provider", "currency"),
        )
        reviews = GaugeMetricFamily(
            "payment_review_open",
            "Operations that only a person or new evidence can end.",
            labels=(*JOURNAL_LABELS, "provider", "reason"),
        )
        snapshot = self._snapshot
        if snapshot is not None:
            now, journal = self._now(), self._names.journal
            for provider, oldest_at in snapshot.oldest_at.items():
                age.add_metric((journal, provider), 0.0 if oldest_at is None else max(0.0, now - oldest_at))
            for names, number in snapshot.operations.items():
                in_doubt.add_metric((journal, *names), number)
            for labels, major in snapshot.money.items():
                money.add_metric((journal, *labels), major)
            for labels, number in snapshot.reviews.items():
                reviews.add_metric((journal, *labels), number)
        yield from (age, in_doubt, money, reviews)


# --- Retry queue


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The operations of one provider and name that wait. `oldest_age_s`: the age of the one that waits longest."""

    provider: str
    operation: str
    count: int
    oldest_age_s: float


def queue_rows(counts: Iterable[DoubtCount], pending: Iterable[Operation], now: float) -> tuple[QueueRow, ...]:
    """The operations that the resolver will take by itself: those in doubt, as the journal counted them, and those
    pending."""
    in_doubt = [
        QueueRow(each.provider, each.operation, each.count, max(0.0, now - each.oldest_at))
        for each in counts
        if each.state is State.UNKNOWN
    ]
    not_final = [QueueRow(each.provider, each.operation, 1, max(0.0, now - each.created_at)) for each in pending]
    return (*in_doubt, *not_final)


@dataclass(frozen=True, slots=True)
class _QueueSnapshot:
    depth: Mapping[OperationLabels, int] = field(default_factory=dict)
    oldest_at: Mapping[OperationLabels, float] = field(default_factory=dict)


class QueueGauges:
    """A collector of the registry."""

    def __init__(self, names: KnownNames, now: Callable[[], float]) -> None:
        self._names = names
        self._now = now
        self._snapshot: _QueueSnapshot | None = None

    def update(self, rows: Iterable[QueueRow]) -> None:
        counted = tuple(rows)
        for row in counted:
            self._names.learn_operation(row.provider, row.operation)
        depth = dict.fromkeys(self._names.operations(), 0)
        oldest_at: dict[OperationLabels, float] = {}
        now = self._now()
        for row in counted:
            labels = self._names.operation(row.provider, row.operation)
            depth[labels] = depth.get(labels, 0) + row.count
            if row.count:
                oldest_at[labels] = min(oldest_at.get(labels, now), now - row.oldest_age_s)
        self._snapshot = _QueueSnapshot(depth, oldest_at)

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "payment_retry_queue_depth",
            "Operations that wait for the resolver: in doubt, or pending.",
            labels=(*JOURNAL_LABELS, *OPERATION_LABELS),
        )
        age = GaugeMetricFamily(
            "payment_retry_queue_oldest_age_seconds",
            "Age of the oldest operation that waits for the resolver, 0 if there is none.",
            labels=(*JOURNAL_LABELS, *OPERATION_LABELS),
        )
        snapshot = self._snapshot
        if snapshot is not None:
            now, journal = self._now(), self._names.journal
            for labels, number in snapshot.depth.items():
                depth.add_metric((journal, *labels), number)
                oldest_at = snapshot.oldest_at.get(labels)
                age.add_metric((journal, *labels), 0.0 if oldest_at is None else max(0.0, now - oldest_at))
        yield from (depth, age)


# --- Payments


class PaymentGauges:
    """A collector of the registry."""

    def __init__(self, names: KnownNames) -> None:
        self._names = names
        self._expiring: int | None = None

    def update(self, expiring: int) -> None:
        self._expiring = expiring

    def collect(self) -> Iterator[Metric]:
        expiring = GaugeMetricFamily(
            "payment_authorizations_expiring",
            "Authorizations that expire within two days, neither captured whole nor voided; and the few payments that "
            "wait to be verified. Counted up to 10,000.",
            labels=JOURNAL_LABELS,
        )
        if self._expiring is not None:
            expiring.add_metric((self._names.journal,), self._expiring)
        yield expiring


# --- Limits


@dataclass(frozen=True, slots=True)
class LimitsSources:
    """The sources of the snapshot. None of them may wait for I/O."""

    circuits: Callable[[], Iterable[CircuitStatus]]
    remaining: Callable[[str], Mapping[BudgetScope, float]]  # of a provider's writes
    admission: Callable[[], Iterable[AdmissionStats]]
    fleet: Callable[[], bool]  # whether the fleet's store answers


@dataclass(frozen=True, slots=True)
class _LimitsSnapshot:
    states: Mapping[tuple[str, CallGroup], CircuitState]
    holds: Mapping[tuple[str, CallGroup, LimitedBy], int]
    remaining: Mapping[tuple[str, BudgetScope], float]
    admission: tuple[AdmissionStats, ...]
    fleet: bool


class LimitsGauges:
    """A collector of the registry. Shows nothing before `watch` and the first `refresh`."""

    def __init__(self, names: KnownNames) -> None:
        self._names = names
        self._sources: LimitsSources | None = None
        self._snapshot: _LimitsSnapshot | None = None

    def watch(self, sources: LimitsSources) -> None:
        self._sources = sources

    def refresh(self) -> None:
        """Take a snapshot of the limits. Call it in the loop's thread, as the limits run there."""
        sources = self._sources
        if sources is None:
            return
        known = self._names.providers()
        # A provider without a call yet has its series too, because an alert needs an earlier value to compare with.
        states = {(provider, group): CircuitState.CLOSED for provider in known for group in CallGroup}
        holds = {(provider, group, kind): 0 for provider in known for group in CallGroup for kind in LimitedBy}
        statuses = [one for one in sources.circuits() if one.provider in known]
        for one in statuses:
            holds |= {(one.provider, one.group, hold.limited_by): hold.parties for hold in one.holds}
        states |= {(one.provider, one.group): one.state for one in statuses}
        remaining = {
            (provider, scope): left for provider in known for scope, left in sources.remaining(provider).items()
        }
        admission = tuple(stats for stats in sources.admission() if stats.provider in known)
        self._snapshot = _LimitsSnapshot(states, holds, remaining, admission, sources.fleet())

    def collect(self) -> Iterator[Metric]:
        circuits = GaugeMetricFamily(
            "payment_circuit_state",
            "1 for the present state of the circuit, 0 for the others.",
            labels=("provider", "group", "state"),
        )
        holds = GaugeMetricFamily(
            "payment_holds",
            "Credentials or accounts that must wait (Retry-After); of `provider` 1 if all its calls are held.",
            labels=("provider", "group", "limited_by"),
        )
        remaining = GaugeMetricFamily(
            "payment_retry_budget_remaining",
            "The rest for retries of writes, in units of cost, in the tightest budget of each scope.",
            labels=("provider", "scope"),
        )
        fleet = GaugeMetricFamily(
            "paywitness_limits_fleet", "1 if limits are the fleet's, 0 if they are this sidecar's own."
        )
        snapshot = self._snapshot
        if snapshot is not None:
            for (provider, group), stands in snapshot.states.items():
                for state in CircuitState:
                    circuits.add_metric((provider, group, state), 1 if state is stands else 0)
            for held, parties in snapshot.holds.items():
                holds.add_metric(held, parties)
            for labels, left in snapshot.remaining.items():
                remaining.add_metric(labels, left)
            fleet.add_metric((), 1 if snapshot.fleet else 0)
        yield from (
            circuits,
            holds,
            remaining,
            *_admission_families(snapshot.admission if snapshot is not None else ()),
            fleet,
        )


def _admission_families(admission: Iterable[AdmissionStats]) -> Iterator[Metric]:
    labels = ("provider",)
    limit = GaugeMetricFamily(
        "paywitness_admission_limit", "How many calls may be in flight at the provider.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "paywitness_admission_in_flight", "Calls that are in flight at the provider.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "paywitness_admission_waiting",
        "Calls that wait for a place among those in flight, by their priority.",
        labels=(*labels, "priority"),
    )
    for stats in admission:
        limit.add_metric((stats.provider,), stats.limit)
        in_flight.add_metric((stats.provider,), stats.in_flight)
        for priority, count in stats.waiting_by_priority.items():
            waiting.add_metric((stats.provider, priority), count)
    yield from (limit, in_flight, waiting)


# --- Server

_REASON_LABELS = ("reason",)


@dataclass(slots=True)
class ServerCounters:
    """The counters of a server. A reason is a name from our code: a problem's, or one of `limits_and_timeouts`."""

    connections_open: int = 0
    requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)  # replies that broke off before their end, by whose fault


@dataclass(frozen=True, slots=True)
class _ServerSnapshot:
    connections: int
    refused: Mapping[str, int]
    broken: Mapping[str, int]


class ServerGauges:
    """A collector of the registry. Shows nothing before `watch` and the first `refresh`."""

    def __init__(self) -> None:
        self._counters: ServerCounters | None = None
        self._snapshot: _ServerSnapshot | None = None
        self._reasons = BoundedLabels()

    def watch(self, counters: ServerCounters) -> None:
        self._counters = counters

    def refresh(self) -> None:
        """Take a snapshot of the counters. Call it in the server's thread."""
        if self._counters is not None:
            refused, broken = self._bounded(self._counters.refused), self._bounded(self._counters.broken)
            self._snapshot = _ServerSnapshot(self._counters.connections_open, refused, broken)

    def _bounded(self, counted: Mapping[str, int]) -> dict[str, int]:
        bounded: dict[str, int] = {}
        for reason, number in counted.items():
            label = self._reasons.label(reason)
            bounded[label] = bounded.get(label, 0) + number
        return bounded

    def collect(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("paywitness_edge_connections", "Connections of callers that are open.")
        refused = CounterMetricFamily(
            "paywitness_edge_refusals_total", "Requests and connections refused before a call.", labels=_REASON_LABELS
        )
        broken = CounterMetricFamily(
            "paywitness_edge_broken_answers_total", "Replies that broke off before their end.", labels=_REASON_LABELS
        )
        snapshot = self._snapshot
        if snapshot is not None:
            connections.add_metric((), snapshot.connections)
            for reason, number in snapshot.refused.items():
                refused.add_metric((reason,), number)
            for reason, number in snapshot.broken.items():
                broken.add_metric((reason,), number)
        yield from (connections, refused, broken)
