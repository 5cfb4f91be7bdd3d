"""Metrics: counters and histograms fed by events, in a registry of their own. `docs/metrics.md` says what each is for.

Nothing here is global. The series of a provider's operation are looked up once and then held, so that an event of
the clean path costs a few dictionary look-ups. Labels are bounded: see `labels`. Values that are read at scrape time
are in `gauges`. The monitor of the event loop's lag is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.metrics_core import Metric

from paywitness.clock import Clock
from paywitness.core.decide import Action
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import DoubtCount, Operation
from paywitness.core.payment_claims import LimitVerdict
from paywitness.core.provider_contract import OperationKind
from paywitness.telemetry.background import BackgroundMetrics
from paywitness.telemetry.events import (
    ActionExpired,
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    CallShadowed,
    DoubtClosed,
    DoubtOpened,
    IncidentOpened,
    JournalCalled,
    JournalRolledBack,
    LimitChecked,
    OperationEnded,
    OperationStarted,
    PolicyReloaded,
    RetryRefused,
    ScheduleRanOut,
)
from paywitness.telemetry.gauges import (
    DoubtGauges,
    LimitsGauges,
    LimitsSources,
    PaymentGauges,
    QueueGauges,
    QueueRow,
    ServerCounters,
    ServerGauges,
)
from paywitness.telemetry.observed import ShadowCounters
from paywitness.telemetry.prometheus import (
    JOURNAL_LABEL_LETTERS,
    JOURNAL_REFUSALS,
    OPERATION_LABELS,
    REFUSAL_REASONS,
    UNKNOWN_KIND,
    BoundedLabels,
    DurationHistogram,
    HistogramSeries,
    KnownNames,
    OperationLabels,
)

# --- Metrics

# A provider responds in 100 ms to some seconds; 5 ms is a replay, 60 s is beyond every default timeout.
_CALL_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
# A commit to a local disk takes about a millisecond; a journal that needs five seconds is down.
_JOURNAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
# From a re-send that settles the doubt at once, through the steps of the resolver's schedule, to a week in review.
_DOUBT_BUCKETS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0, 259200.0, 604800.0)
# A timer of an idle loop is a millisecond late. While a loop is late by a second, it replies to nobody.
_LOOP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

_RETRIES = frozenset({Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY})
_LIMITED_KINDS = frozenset({OperationKind.CAPTURE, OperationKind.REFUND})
# The customer was charged after a caller got `failed`, or was charged twice.
_LATE_SUCCESSES = frozenset({IncidentKind.DUPLICATE_SUCCESS, IncidentKind.SUCCESS_AFTER_FAILURE})


class MetricRegistry(CollectorRegistry):
    """A registry without the `_created` samples that the library adds: they double the series and nobody uses them."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _limit_checks(registry: MetricRegistry) -> Counter:
    help_text = "Captures and refunds that do not fit the balance of their payment, or cannot be compared with it."
    return Counter("payment_limit_checks_total", help_text, (*OPERATION_LABELS, "result"), registry=registry)


def _started_and_ended(registry: MetricRegistry) -> tuple[Counter, Counter]:
    started = "Operations that the sidecar started, each at the provider that it went to."
    ended = "Operations that ended, by outcome."
    return (
        Counter("payment_operations_started_total", started, OPERATION_LABELS, registry=registry),
        Counter("payment_operations_total", ended, (*OPERATION_LABELS, "outcome"), registry=registry),
    )


class _MetricFamilies:
    """Every family, registered."""

    def __init__(self, registry: MetricRegistry, background: BackgroundMetrics) -> None:
        self.background = background
        self.limits = _limit_checks(registry)

        def counter(name: str, help_text: str, labels: Iterable[str]) -> Counter:
            return Counter(name, help_text, labels, registry=registry)

        def histogram(
            name: str, help_text: str, labels: Iterable[str], buckets: tuple[float, ...]
        ) -> DurationHistogram:
            return DurationHistogram(name, help_text, labels, buckets, registry)

        self.started, self.operations = _started_and_ended(registry)
        self.attempts = counter(
            "payment_attempts_total",
            "Attempts on the wire, by result class.",
            (*OPERATION_LABELS, "failure_class"),
        )
        self.calls = histogram(
            "payment_call_duration_seconds", "From a call's arrival to its reply.", OPERATION_LABELS, _CALL_BUCKETS_S
        )
        self.upstream = histogram(
            "payment_upstream_duration_seconds", "How long one attempt took.", OPERATION_LABELS, _CALL_BUCKETS_S
        )
        self.retries = counter(
            "payment_operation_retry_total",
            "Retries that the sidecar decided, by result class and the rule that allowed them.",
            (*OPERATION_LABELS, "failure_class", "decision"),
        )
        self.retries_refused = counter(
            "payment_retry_budget_exhausted_total",
            "Safe retries that the retry budget refused, by scope.",
            (*OPERATION_LABELS, "scope"),
        )
        self.unknown = counter("payment_operation_unknown_total", "Operations that came into doubt.", OPERATION_LABELS)
        self.doubt_duration = histogram(
            "payment_doubt_duration_seconds",
            "From the first send of an operation in doubt to the end of its doubt.",
            ("provider",),
            _DOUBT_BUCKETS_S,
        )
        self.resolutions = counter(
            "payment_resolutions_total",
            "Doubts that ended, by the evidence that ended them.",
            ("provider", "evidence", "outcome"),
        )
        self.incidents = counter(
            "payment_incidents_total", "Evidence that contradicts a final outcome.", ("provider", "kind")
        )
        self.refusals = counter(
            "payment_refusals_total", "Calls that the sidecar refused before it sent anything.", ("provider", "reason")
        )
        passed_on = "Calls that match no operation, forwarded unchanged."
        self.unmatched = counter("payment_unmatched_calls_total", passed_on, ("provider",))
        self.journal = histogram(
            "paywitness_journal_duration_seconds", "How long a journal call took.", ("call",), _JOURNAL_BUCKETS_S
        )
        self.journal_errors = counter("paywitness_journal_errors_total", "Journal calls that failed.", ("call",))
        self.loop = histogram("paywitness_loop_lag_seconds", "How late the event loop ran.", (), _LOOP_BUCKETS_S)
        self.policy = Info("paywitness_policy", "The policy book in force.", registry=registry)
        self.reload = Gauge(
            "paywitness_policy_last_reload_successful",
            "1 if the last reload of the policy files succeeded, else 0.",
            registry=registry,
        )
        self.build = Info("paywitness_build", "The version that runs.", registry=registry)

    def begin_at_zero(self, names: KnownNames) -> None:
        """Create the counters that alerts watch, at zero. Prometheus sees no rise in a counter that begins at 1."""
        for labels in names.operations():
            for family in (self.started, self.unknown, *self.background.of_operations):
                family.labels(*labels)
            if labels[2] in _LIMITED_KINDS:
                self.limits.labels(*labels, LimitVerdict.EXCEEDS)
        for provider in names.providers():
            for kind in IncidentKind:
                self.incidents.labels(provider, kind)
        self.incidents.labels("", IncidentKind.JOURNAL_ROLLBACK)
        self.background.begin_at_zero()
        for call in ("claim", "record", "look"):
            self.journal_errors.labels(call)


class _SeriesByLabels(dict[tuple[str, ...], Counter]):
    """The series of one operation in a family that has further labels, keyed by those labels."""

    def __init__(self, family: Counter, labels: OperationLabels) -> None:
        self._family = family
        self._labels = labels

    def __missing__(self, further: tuple[str, ...]) -> Counter:
        found = self[further] = self._family.labels(*self._labels, *further)
        return found


class _OperationSeries:
    """The series of one provider's operation, kept after their first use."""

    __slots__ = (
        *("actions_expired", "attempts", "calls", "ended", "exhausted", "late_successes"),
        *("retries", "started", "unknown", "upstream"),
    )

    def __init__(self, families: _MetricFamilies, labels: OperationLabels) -> None:
        self.attempts = _SeriesByLabels(families.attempts, labels)  # by result class
        self.retries = _SeriesByLabels(families.retries, labels)  # by result class and rule
        self.ended = _SeriesByLabels(families.operations, labels)  # by outcome
        self.started = families.started.labels(*labels)
        self.calls = families.calls.labels(*labels)
        self.upstream = families.upstream.labels(*labels)
        self.unknown = families.unknown.labels(*labels)
        self.exhausted = families.background.exhausted.labels(*labels)
        self.late_successes = families.background.late_successes.labels(*labels)
        self.actions_expired = families.background.actions_expired.labels(*labels)


class Metrics:
    """All counters, histograms and gauges. `now` is wall time, for the age of the oldest doubt."""

    def __init__(self, version: str, now: Callable[[], float]) -> None:
        self.registry = MetricRegistry()
        self._names = KnownNames()
        self.background = BackgroundMetrics(self.registry, self._names)
        self._families = _MetricFamilies(self.registry, self.background)
        self._families.build.info({"version": version})
        self._doubt = DoubtGauges(self._names, now)
        self.registry.register(self._doubt)
        self._queue = QueueGauges(self._names, now)
        self.registry.register(self._queue)
        self._payments = PaymentGauges(self._names)
        self.registry.register(self._payments)
        self._limits = LimitsGauges(self._names)
        self.registry.register(self._limits)
        self._server = ServerGauges()
        self.registry.register(self._server)
        self._shadow = ShadowCounters(self.registry, self._names)
        self._loop = self._families.loop.labels()
        ProcessCollector(registry=self.registry)  # memory, CPU and open files, under the library's usual names
        self._series: dict[tuple[str, str], _OperationSeries] = {}  # by provider and operation, which fix the kind
        self._journal: dict[str, HistogramSeries] = {}
        self._rules = BoundedLabels()
        self._reasons = BoundedLabels(only=REFUSAL_REASONS)
        self._incident_kinds = BoundedLabels()
        self._journal_calls = BoundedLabels()

    def learn(self, names: Mapping[str, Mapping[str, OperationKind]]) -> None:
        """Let a book's names become labels: provider -> operation -> kind."""
        self._names.learn(names)
        self._series.clear()  # a kind may have changed: the series are looked up anew

    def learn_operations(self, operations: Iterable[Operation]) -> None:
        """Let the names and kinds of journalled operations become labels, if no book gave them."""
        for operation in operations:
            self._names.learn_operation(operation.provider, operation.operation, operation.kind)

    def names_without_kind(self, counts: Iterable[DoubtCount]) -> frozenset[tuple[str, str]]:
        """The names (provider, operation) among these that neither a book nor an operation has given a kind."""
        names = {(count.provider, count.operation) for count in counts}
        for name in names:
            self._names.learn_operation(*name)
        return frozenset(name for name in names if self._names.operation(*name) == (*name, UNKNOWN_KIND))

    def learn_journal(self, journal_id: str) -> None:
        """Let the journal's id become the label of every gauge that counts its operations."""
        self._names.journal = journal_id[:JOURNAL_LABEL_LETTERS]

    def set_doubt(self, counts: Iterable[DoubtCount], reviews: Mapping[tuple[str, str], int] | None = None) -> None:
        """Show the journal's latest count. `reviews`: how many operations are in review by provider and reason."""
        self._doubt.update(counts, reviews)

    def set_queue(self, rows: Iterable[QueueRow]) -> None:
        """Show the operations that wait for the resolver, by the latest count."""
        self._queue.update(rows)

    def set_expiring_authorizations(self, count: int) -> None:
        self._payments.update(count)

    def watch_limits(self, source: LimitsSources) -> None:
        """Show circuits, budgets and admission at every scrape."""
        self._limits.watch(source)

    def watch_server(self, source: ServerCounters) -> None:
        """Show the server's own counters at every scrape."""
        self._server.watch(source)

    def refresh_gauges(self) -> None:
        """Refresh the gauges before a scrape. Call it in the loop's thread; another thread may write the scrape."""
        self._limits.refresh()
        self._server.refresh()

    @property
    def doubt_counts(self) -> tuple[DoubtCount, ...]:
        """The counts of doubt that were last shown."""
        return self._doubt.counts

    def operation_started(self, event: OperationStarted) -> None:
        operation = event.operation
        series = self._series.get((operation.provider, operation.operation)) or self._learn_series(operation)
        series.started.inc()

    def attempt_finished(self, event: AttemptFinished) -> None:
        operation, attempt, decision = event.operation, event.attempt, event.decision
        reading = attempt.classification.result_class
        series = self._series.get((operation.provider, operation.operation)) or self._learn_series(operation)
        series.attempts[reading,].inc()
        measured_s = event.upstream_duration_s
        series.upstream.observe(attempt.duration_s if measured_s is None else measured_s)
        if attempt.classification.shadow_match is not None:
            self._shadow.row(operation.provider, operation.operation, attempt.classification.shadow_match)
        if decision.action in _RETRIES:
            series.retries[reading, self._rules.label(decision.because)].inc()

    def call_answered(self, event: CallAnswered) -> None:
        names = (event.provider or "", event.operation_name or "")
        series = self._series.get(names) or self._series_of_call(event.provider, event.operation_name)
        series.calls.observe(event.duration_s, event.trace_id)
        if event.problem in JOURNAL_REFUSALS:
            self._families.refusals.labels(self._names.provider(event.provider), event.problem).inc()

    def call_refused(self, event: CallRefused) -> None:
        provider = self._names.provider(event.provider)
        self._families.refusals.labels(provider, self._reasons.label(event.reason)).inc()

    def limit_checked(self, event: LimitChecked) -> None:
        names = self._names.operation(event.provider, event.operation)
        self._families.limits.labels(*names, event.result).inc()

    def call_forwarded(self, event: CallForwarded) -> None:
        self._families.unmatched.labels(self._names.provider(event.provider)).inc()

    def call_shadowed(self, event: CallShadowed) -> None:
        self._shadow.call(event)

    def operation_ended(self, event: OperationEnded) -> None:
        operation = event.operation
        series = self._series.get((operation.provider, operation.operation)) or self._learn_series(operation)
        series.ended[operation.outcome,].inc()
        if operation.fallback_from:
            self.background.fallback_ended(operation)

    def doubt_opened(self, event: DoubtOpened) -> None:
        self._series_of_operation(event.operation).unknown.inc()

    def doubt_closed(self, event: DoubtClosed) -> None:
        provider = self._names.provider(event.operation.provider)
        self._families.doubt_duration.labels(provider).observe(event.age_s)
        self._families.resolutions.labels(provider, event.evidence_kind, event.operation.outcome).inc()

    def incident_opened(self, event: IncidentOpened) -> None:
        provider = self._names.provider(event.operation.provider)
        self._families.incidents.labels(provider, self._incident_kinds.label(event.kind)).inc()
        if event.kind in _LATE_SUCCESSES:
            self._series_of_operation(event.operation).late_successes.inc()

    def action_expired(self, event: ActionExpired) -> None:
        self._series_of_operation(event.operation).actions_expired.inc()

    def schedule_ran_out(self, event: ScheduleRanOut) -> None:
        self._series_of_operation(event.operation).exhausted.inc()

    def retry_refused(self, event: RetryRefused) -> None:
        labels = self._names.operation(event.provider, event.operation_name)
        self._families.retries_refused.labels(*labels, event.scope).inc()

    def journal_rolled_back(self, event: JournalRolledBack) -> None:
        """Count an incident of the journal, which belongs to no provider."""
        self._families.incidents.labels("", IncidentKind.JOURNAL_ROLLBACK).inc()

    def journal_called(self, event: JournalCalled) -> None:
        duration = self._journal.get(event.call)
        if duration is None:
            call = self._journal_calls.label(event.call)
            duration = self._journal[call] = self._families.journal.labels(call)
        duration.observe(event.duration_s)
        if event.failed:
            self._families.journal_errors.labels(self._journal_calls.label(event.call)).inc()

    def observe_loop_lag(self, lag_s: float) -> None:
        self._loop.observe(lag_s)

    def policy_reloaded(self, event: PolicyReloaded) -> None:
        self.learn(event.operations)
        self._families.begin_at_zero(self._names)
        self._families.reload.set(1 if event.ok else 0)
        if event.revision:
            self._families.policy.info({"revision": event.revision})

    def _series_of_operation(self, operation: Operation) -> _OperationSeries:
        """The series of a journalled operation. Its names come from a policy."""
        return self._series.get((operation.provider, operation.operation)) or self._learn_series(operation)

    def _learn_series(self, operation: Operation) -> _OperationSeries:
        self._names.learn_operation(operation.provider, operation.operation, operation.kind)
        return self._series_of_call(operation.provider, operation.operation)

    def _series_of_call(self, provider: str | None, operation: str | None) -> _OperationSeries:
        """The series of a call. Its names may be anything that a caller wrote."""
        labels = self._names.operation(provider, operation)
        names = labels[:2]
        found = self._series.get(names)
        if found is None:
            found = self._series[names] = _OperationSeries(self._families, labels)
        return found


# --- Loop lag

_LOOP_SAMPLE_EVERY_S = 0.25  # four samples a second have no measurable cost


@dataclass(frozen=True, slots=True)
class LoopLagMonitor:
    clock: Clock
    metrics: Metrics

    async def run(self) -> None:
        """Sleep, and measure how much too late the sleep ends."""
        while True:
            due_mono = self.clock.mono() + _LOOP_SAMPLE_EVERY_S
            await self.clock.sleep(_LOOP_SAMPLE_EVERY_S)
            self.metrics.observe_loop_lag(max(0.0, self.clock.mono() - due_mono))
