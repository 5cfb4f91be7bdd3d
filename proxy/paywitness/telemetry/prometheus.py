"""Our additions to the Prometheus client: which names may be labels, a histogram without locks, a scrape in pieces.

Only the loop's thread observes histograms. A scrape takes milliseconds in that same thread, so it is encoded family by
family, and calls go on between two families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

from paywitness.core.admission import AdmissionRefusal
from paywitness.core.circuit import CircuitRefusal
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import OperationKind

# --- Labels
# Which names may become labels. All others, which a caller may have made up, become `other`.
#
# The name of a provider or an operation becomes known by a policy book that was in force, or by an operation that was
# journalled under one. It stays known, so that a series does not change its name when a policy file is removed.
#
# `kind` follows from the two names, so that all metrics of a sidecar agree on it: the newest book gives it. If no book
# names the operation, it is the kind that the operation was journalled with.
#
# `journal` is the beginning of the journal's id, which shows nothing else. It is the same for all sidecars that share
# it.

OTHER = "other"
NONE = "none"  # the call matched no operation
UNKNOWN_KIND = "unknown"  # neither a book nor a journalled operation gave the name a kind
OPERATION_LABELS = ("provider", "operation", "kind")
JOURNAL_LABELS = ("journal",)  # gauges that count the journal's operations have it in front of their other labels
JOURNAL_LABEL_LETTERS = 8  # of a thousand journals two are alike in one fleet of ten thousand

OperationLabels = tuple[str, str, str]  # provider, operation, kind

# Policies name dozens. A thousand bounds the damage of a mistake.
_NAMES_MAX = 1000
# Rules, reasons and journal calls are names from our own code, a few dozen of each.
_LABELS_MAX = 100

# Why a call is refused: a problem, a limit, or this sidecar's own state. A reason that is missing here is counted as
# `other`.
REFUSAL_REASONS = frozenset(
    {*Problem, *CircuitRefusal, *AdmissionRefusal, "overloaded", "draining", "caller_left", "journal_rolled_back"},
)

# Refusals because of the journal's records, or by the check before a payout. They have no event but that of their
# reply.
JOURNAL_REFUSALS = frozenset(
    {
        Problem.ACCOUNT_UNKNOWN,
        Problem.APPROVAL_NEEDED,
        Problem.CAP_EXCEEDED,
        Problem.CLOSED_WITHOUT_RESPONSE,
        Problem.CREDENTIAL_NOT_RECOGNISED,
        Problem.GUARDED,
        Problem.IN_FLIGHT,
        Problem.KEY_EXPIRED,
        Problem.KEY_REUSED,
        Problem.REFUSED_BY_CHECK,
    }
)


class KnownNames:
    """The names of providers and their operations, the kind of each operation, and the journal's label."""

    def __init__(self) -> None:
        self.journal = ""  # before the journal was first read
        self._operations: dict[str, dict[str, str]] = {}  # provider -> operation -> kind
        self._count = 0

    def learn(self, names: Mapping[str, Mapping[str, OperationKind]]) -> None:
        """Know a book's names: provider -> operation -> kind. The book's kind replaces an earlier one."""
        for provider, operations in names.items():
            self._learn_provider(provider)
            for operation, kind in operations.items():
                self.learn_operation(provider, operation)
                if operation in self._operations.get(provider, ()):
                    self._operations[provider][operation] = kind

    def learn_operation(self, provider: str, operation: str, kind: OperationKind | None = None) -> None:
        """Know the names of an operation that was journalled. Its kind counts only if the name has none yet."""
        self._learn_provider(provider)
        known = self._operations.get(provider)
        if known is None:
            return
        if operation not in known and self._count < _NAMES_MAX:
            known[operation] = UNKNOWN_KIND
            self._count += 1
        if kind is not None and known.get(operation) == UNKNOWN_KIND:
            known[operation] = kind

    def _learn_provider(self, provider: str) -> None:
        if provider not in self._operations and self._count < _NAMES_MAX:
            self._operations[provider] = {}
            self._count += 1

    def provider(self, name: str | None) -> str:
        """The provider's label."""
        if name is None:
            return NONE
        return name if name in self._operations else OTHER

    def operation(self, provider: str | None, operation: str | None) -> OperationLabels:
        """The labels of a provider's operation."""
        label = self.provider(provider)
        if operation is None:
            return label, NONE, NONE
        kind = self._operations.get(label, {}).get(operation)
        return (label, OTHER, UNKNOWN_KIND) if kind is None else (label, operation, kind)

    def providers(self) -> tuple[str, ...]:
        return tuple(self._operations)

    def operations(self) -> tuple[OperationLabels, ...]:
        return tuple(
            (provider, operation, kind)
            for provider, known in self._operations.items()
            for operation, kind in known.items()
        )


class BoundedLabels:
    """Labels that come from code and not from callers, bounded all the same. `only`: these labels and no others."""

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self._known = set(only or ())
        self._learns = only is None

    def label(self, name: str) -> str:
        if name in self._known:
            return name
        if not name or not self._learns or len(self._known) >= _LABELS_MAX:
            return OTHER
        self._known.add(name)
        return name


# --- Histograms


class HistogramSeries:
    """One series."""

    __slots__ = ("_bounds_s", "counts", "exemplars", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)  # the last one counts values above all bounds
        self.sum_s = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # by bucket: the last value with a trace that fell into it

    def observe(self, seconds: float, trace_id: str | None = None) -> None:
        bucket = bisect_left(self._bounds_s, seconds)
        self.counts[bucket] += 1
        self.sum_s += seconds
        if trace_id is not None:
            self.exemplars[bucket] = Exemplar({"trace_id": trace_id}, seconds)


class DurationHistogram(Collector):
    """One family, its series by their labels."""

    def __init__(
        self, name: str, help_text: str, labels: Iterable[str], bounds_s: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._name, self._help_text, self._labels = name, help_text, tuple(labels)
        self._bounds_s = bounds_s
        self._bucket_labels = [*(str(bound) for bound in bounds_s), "+Inf"]
        self._series: dict[tuple[str, ...], HistogramSeries] = {}
        registry.register(self)

    def labels(self, *values: str) -> HistogramSeries:
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = HistogramSeries(self._bounds_s)
        return series

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._help_text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """May run in another thread: each series is read as it is then, and its count is the sum of its buckets."""
        family = HistogramMetricFamily(self._name, self._help_text, labels=self._labels)
        for labels, series in tuple(self._series.items()):
            cumulative = accumulate(tuple(series.counts))
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for bucket, (bound, count) in enumerate(zip(self._bucket_labels, cumulative, strict=True)):
                exemplar = series.exemplars.get(bucket)
                buckets.append((bound, count) if exemplar is None else (bound, count, exemplar))
            family.add_metric(labels, buckets, series.sum_s)
        yield family


# --- Exposition

_END_OF_EXPOSITION = b"# EOF\n"  # of the newer format, which may have it only once

Encoder = Callable[[Collector], bytes]


class _SingleFamily(Collector):
    """One family as a collector, because an encoder needs one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def exposition_pieces(registry: CollectorRegistry, encode: Encoder) -> Iterator[bytes]:
    """The encoder's output for the registry, family by family."""
    ends = False
    for family in registry.collect():
        written = encode(_SingleFamily(family))
        ends = written.endswith(_END_OF_EXPOSITION)
        yield written.removesuffix(_END_OF_EXPOSITION)
    if ends:
        yield _END_OF_EXPOSITION
