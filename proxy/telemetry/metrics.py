"""Metrics: counters and histograms fed by records, in a registry of their own. `docs/metrics.md` says what each is for.

Nothing here is global. The series of a provider's operation are looked up once and then held, so that telling a record
of the clean path costs a few dictionary look-ups. Labels are bounded: see `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.metrics_core import Metric

from proxy.core.decide import Action
from proxy.core.events import IncidentKind
from proxy.core.operation import Operation, Outcome
from proxy.core.reading import Reading
from proxy.telemetry.doubt import DoubtCounted, DoubtGauges
from proxy.telemetry.durations import Duration, Durations
from proxy.telemetry.edge import EdgeCounted, EdgeGauges
from proxy.telemetry.limits import LimitsGauges, LimitsWatched
from proxy.telemetry.names import REFUSALS, REFUSED_BY_JOURNAL, BoundedWords, KnownNames
from proxy.telemetry.observed import ObservedCounts
from proxy.telemetry.queue import Queued, QueueGauges
from proxy.telemetry.records import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallObserved,
    CallRefused,
    DoubtClosed,
    DoubtOpened,
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
    ScheduleRanOut,
)

# A provider answers in 100 ms to some seconds; 5 ms is a replay, 60 s is beyond every default timeout.
_CALL_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
# A commit to a local disk takes about a millisecond; a journal that needs five seconds is down.
_JOURNAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
# From a re-send that settles it at once, along the steps of the resolver's schedule, to a week of a person's time.
_DOUBT_BUCKETS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0, 259200.0, 604800.0)
# A timer of an idle loop is a millisecond late; a loop that is late by a second answers nobody meanwhile.
_LOOP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

_RETRIES = frozenset({Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY})
# The customer was charged although somebody had been told otherwise, or twice.
_LATE_SUCCESSES = frozenset({IncidentKind.DUPLICATE_SUCCESS, IncidentKind.SUCCESS_AFTER_FAILURE})
_OPERATION = ("provider", "operation")


class Registry(CollectorRegistry):
    """A registry without the `_created` samples that the library adds: they double the series and tell us nothing."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _FoundOutFamilies:
    """Those about what goes on after the caller has left: asked, told, tried elsewhere, passed on."""

    def __init__(self, registry: Registry) -> None:
        def counter(name: str, meaning: str, labels: Iterable[str]) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        self.late_successes = counter(
            "payment_duplicate_late_success_total",
            "Successes that came after a failure was told, or beside another success of the intent.",
            _OPERATION,
        )
        self.inquiries = counter(
            "payment_status_inquiry_total", "Inquiries, by what came of them.", ("provider", "outcome")
        )
        self.exhausted = counter(
            "payment_schedule_exhausted_total", "Doubts that outlasted their schedule of looks.", _OPERATION
        )
        self.notices = counter("payment_webhooks_total", "Webhooks, by what became of them.", ("provider", "result"))
        self.fallbacks = counter(
            "payment_fallback_total",
            "Operations without effect that were started again at another provider.",
            ("from_provider", "to_provider", "reason"),
        )
        self.outbox = counter(
            "paywitness_outbox_deliveries_total", "Changes that the sink took, and deliveries that failed.", ("result",)
        )
        self.outbox_pending = Gauge(
            "paywitness_outbox_pending", "Changes that wait to be delivered to the sink.", registry=registry
        )


class _Families:
    """Every family, registered."""

    def __init__(self, registry: Registry) -> None:
        self.found_out = _FoundOutFamilies(registry)

        def counter(name: str, meaning: str, labels: Iterable[str]) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        def histogram(name: str, meaning: str, labels: Iterable[str], buckets: tuple[float, ...]) -> Durations:
            return Durations(name, meaning, labels, buckets, registry)

        self.operations = counter(
            "payment_operations_total", "Operations that ended, by what became of the money.", (*_OPERATION, "outcome")
        )
        self.attempts = counter(
            "payment_attempts_total", "Attempts at the wire, by how they were read.", (*_OPERATION, "failure_class")
        )
        self.calls = histogram(
            "payment_call_duration_seconds", "From a call's arrival to its answer.", _OPERATION, _CALL_BUCKETS_S
        )
        self.upstream = histogram(
            "payment_upstream_duration_seconds", "How long one attempt took.", _OPERATION, _CALL_BUCKETS_S
        )
        self.retries = counter(
            "payment_operation_retry_total",
            "Retries that were decided, by what was read and the rule that allowed them.",
            (*_OPERATION, "failure_class", "decision"),
        )
        self.retries_refused = counter(
            "payment_retry_budget_exhausted_total",
            "Retries that found no allowance left, by the scope that refused them.",
            (*_OPERATION, "scope"),
        )
        self.unknown = counter("payment_operation_unknown_total", "Operations that came into doubt.", _OPERATION)
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
            "payment_incidents_total", "Evidence that contradicts what was final.", ("provider", "kind")
        )
        self.refusals = counter(
            "payment_refusals_total", "Calls turned away before anything was sent.", ("provider", "reason")
        )
        self.unmatched = counter(
            "payment_unmatched_calls_total", "Calls that match no operation, passed on as they came.", ("provider",)
        )
        self.journal = histogram(
            "paywitness_journal_duration_seconds", "How long a journal call took.", ("call",), _JOURNAL_BUCKETS_S
        )
        self.journal_errors = counter("paywitness_journal_errors_total", "Journal calls that failed.", ("call",))
        self.loop = histogram("paywitness_loop_lag_seconds", "How late the event loop ran.", (), _LOOP_BUCKETS_S)
        self.policy = Info("paywitness_policy", "The policy book in force.", registry=registry)
        self.reload = Gauge(
            "paywitness_policy_last_reload_successful",
            "Whether the last reading of the policy files gave a book: 1 or 0.",
            registry=registry,
        )
        self.build = Info("paywitness_build", "The version that runs.", registry=registry)

    def begin_at_zero(self, names: KnownNames) -> None:
        """What an alert waits for once: a counter that is born as 1 has not risen, as far as Prometheus can see."""
        for pair in names.pairs():
            for family in (self.unknown, self.found_out.exhausted, self.found_out.late_successes):
                family.labels(*pair)
        for provider in names.providers():
            for kind in IncidentKind:
                self.incidents.labels(provider, kind)
        self.incidents.labels("", IncidentKind.JOURNAL_ROLLBACK)
        for call in ("claim", "record", "look"):
            self.journal_errors.labels(call)


class _Series:
    """The series of one provider's operation, held once they are asked for."""

    __slots__ = (
        *("_attempts", "_ended", "_families", "_labels", "_retries"),
        *("calls", "exhausted", "late_successes", "unknown", "upstream"),
    )

    def __init__(self, families: _Families, labels: tuple[str, str]) -> None:
        self._families = families
        self._labels = labels
        self._attempts: dict[Reading, Counter] = {}
        self._retries: dict[tuple[Reading, str], Counter] = {}
        self._ended: dict[Outcome, Counter] = {}
        self.calls = families.calls.labels(*labels)
        self.upstream = families.upstream.labels(*labels)
        self.unknown = families.unknown.labels(*labels)
        self.exhausted = families.found_out.exhausted.labels(*labels)
        self.late_successes = families.found_out.late_successes.labels(*labels)

    def attempts(self, reading: Reading) -> Counter:
        found = self._attempts.get(reading)
        if found is None:
            found = self._attempts[reading] = self._families.attempts.labels(*self._labels, reading)
        return found

    def ended(self, outcome: Outcome) -> Counter:
        found = self._ended.get(outcome)
        if found is None:
            found = self._ended[outcome] = self._families.operations.labels(*self._labels, outcome)
        return found

    def retries(self, reading: Reading, rule: str) -> Counter:
        found = self._retries.get((reading, rule))
        if found is None:
            found = self._families.retries.labels(*self._labels, reading, rule)
            self._retries[reading, rule] = found
        return found


class Metrics:
    """What is counted and measured. `now` is wall time, for the age of the oldest doubt."""

    def __init__(self, version: str, now: Callable[[], float]) -> None:
        self.registry = Registry()
        self._names = KnownNames()
        self._families = _Families(self.registry)
        self._families.build.info({"version": version})
        self._doubt = DoubtGauges(self._names, now)
        self.registry.register(self._doubt)
        self._queue = QueueGauges(self._names, now)
        self.registry.register(self._queue)
        self._limits = LimitsGauges(self._names)
        self.registry.register(self._limits)
        self._edge = EdgeGauges()
        self.registry.register(self._edge)
        self._observed = ObservedCounts(self.registry, self._names)
        self._loop = self._families.loop.labels()
        ProcessCollector(registry=self.registry)  # memory, CPU and open files, under the names that everybody knows
        self._series: dict[tuple[str, str], _Series] = {}
        self._journal: dict[str, Duration] = {}
        self._rules = BoundedWords()
        self._reasons = BoundedWords(only=REFUSALS)
        self._incident_kinds = BoundedWords()
        self._journal_calls = BoundedWords()
        self._found = BoundedWords()
        self._notice_results = BoundedWords()
        self._fallback_reasons = BoundedWords()

    def learn(self, names: Mapping[str, Iterable[str]]) -> None:
        """Let a book's names become labels: provider -> operations."""
        self._names.learn(names)

    def show_doubt(self, counts: Iterable[DoubtCounted], reviews: Mapping[tuple[str, str], int] | None = None) -> None:
        """Show what the journal counted just now. `reviews`: how many are in review by provider and reason."""
        self._doubt.show(counts, reviews)

    def show_queue(self, rows: Iterable[Queued]) -> None:
        """Show what is scheduled to be tried or looked at again, as it was counted just now."""
        self._queue.show(rows)

    def watch_limits(self, watched: LimitsWatched) -> None:
        """Show how circuits, budgets and admission stand, whenever somebody looks."""
        self._limits.watch(watched)

    def watch_edge(self, watched: EdgeCounted) -> None:
        """Show what the edge counts by itself, whenever somebody looks."""
        self._edge.watch(watched)

    def look(self) -> None:
        """Ask what is asked at every scrape. In the loop's thread; the scrape itself may be written in another."""
        self._limits.look()
        self._edge.look()

    @property
    def doubt_counts(self) -> tuple[DoubtCounted, ...]:
        """What was last shown of doubt."""
        return self._doubt.counts

    def attempt_finished(self, record: AttemptFinished) -> None:
        attempt, decision = record.attempt, record.decision
        reading = attempt.classification.reading
        series = self._of_operation(record.operation)
        series.attempts(reading).inc()
        measured_s = record.upstream_duration_s
        series.upstream.observe(attempt.duration_s if measured_s is None else measured_s)
        if attempt.classification.observed is not None:
            self._observed.row(record.operation.provider, record.operation.operation, attempt.classification.observed)
        if decision.action in _RETRIES:
            series.retries(reading, self._rules.label(decision.because)).inc()

    def call_answered(self, record: CallAnswered) -> None:
        names = (record.provider or "", record.operation_name or "")
        series = self._series.get(names) or self._of_call(record.provider, record.operation_name)
        series.calls.observe(record.duration_s, record.trace_id)
        if record.problem in REFUSED_BY_JOURNAL:
            self._families.refusals.labels(self._names.provider(record.provider), record.problem).inc()

    def call_refused(self, record: CallRefused) -> None:
        provider = self._names.provider(record.provider)
        self._families.refusals.labels(provider, self._reasons.label(record.reason)).inc()

    def call_forwarded(self, record: CallForwarded) -> None:
        self._families.unmatched.labels(self._names.provider(record.provider)).inc()

    def call_observed(self, record: CallObserved) -> None:
        self._observed.call(record)

    def operation_ended(self, record: OperationEnded) -> None:
        self._of_operation(record.operation).ended(record.operation.outcome).inc()

    def doubt_opened(self, record: DoubtOpened) -> None:
        self._of_operation(record.operation).unknown.inc()

    def doubt_closed(self, record: DoubtClosed) -> None:
        provider = self._names.provider(record.operation.provider)
        self._families.doubt_duration.labels(provider).observe(record.age_s)
        self._families.resolutions.labels(provider, record.evidence_kind, record.operation.outcome).inc()

    def incident_opened(self, record: IncidentOpened) -> None:
        provider = self._names.provider(record.operation.provider)
        self._families.incidents.labels(provider, self._incident_kinds.label(record.kind)).inc()
        if record.kind in _LATE_SUCCESSES:
            self._of_operation(record.operation).late_successes.inc()

    def inquiry_finished(self, record: InquiryFinished) -> None:
        provider = self._names.provider(record.operation.provider)
        self._families.found_out.inquiries.labels(provider, self._found.label(record.finding.found)).inc()

    def notice_received(self, record: NoticeReceived) -> None:
        provider = self._names.provider(record.provider)
        self._families.found_out.notices.labels(provider, self._notice_results.label(record.result)).inc()

    def fell_back(self, record: FellBack) -> None:
        routes = (self._names.provider(record.from_provider), self._names.provider(record.to_provider))
        self._families.found_out.fallbacks.labels(*routes, self._fallback_reasons.label(record.reason)).inc()

    def schedule_ran_out(self, record: ScheduleRanOut) -> None:
        self._of_operation(record.operation).exhausted.inc()

    def outbox_delivered(self, record: OutboxDelivered) -> None:
        if record.failed:
            self._families.found_out.outbox.labels("failed").inc()
        else:
            self._families.found_out.outbox.labels("delivered").inc(record.count)
        self._families.found_out.outbox_pending.set(record.lag)

    def retry_refused(self, record: RetryRefused) -> None:
        pair = self._names.pair(record.provider, record.operation_name)
        self._families.retries_refused.labels(*pair, record.scope).inc()

    def journal_rolled_back(self, record: JournalRolledBack) -> None:
        """An incident of the journal, and so of no provider."""
        self._families.incidents.labels("", IncidentKind.JOURNAL_ROLLBACK).inc()

    def journal_called(self, record: JournalCalled) -> None:
        duration = self._journal.get(record.call)
        if duration is None:
            call = self._journal_calls.label(record.call)
            duration = self._journal[call] = self._families.journal.labels(call)
        duration.observe(record.duration_s)
        if record.failed:
            self._families.journal_errors.labels(self._journal_calls.label(record.call)).inc()

    def loop_was_late(self, lag_s: float) -> None:
        self._loop.observe(lag_s)

    def policy_reloaded(self, record: PolicyReloaded) -> None:
        self.learn(record.operations)
        self._families.begin_at_zero(self._names)
        self._families.reload.set(1 if record.ok else 0)
        if record.revision:
            self._families.policy.info({"revision": record.revision})

    def _of_operation(self, operation: Operation) -> _Series:
        """The series of an operation that was journalled: a policy gave it its names."""
        found = self._series.get((operation.provider, operation.operation))
        if found is None:
            self._names.learn_pair(operation.provider, operation.operation)
            found = self._of_call(operation.provider, operation.operation)
        return found

    def _of_call(self, provider: str | None, operation: str | None) -> _Series:
        """The series of a call, whose names may be anything."""
        labels = self._names.pair(provider, operation)
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = _Series(self._families, labels)
        return found
