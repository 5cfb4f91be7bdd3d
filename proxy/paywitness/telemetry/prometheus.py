"""What we write ourselves instead of using prometheus_client's own: a histogram without locks, and a scrape in pieces.

Histograms are observed in the loop's thread alone. A scrape takes milliseconds in that same thread, so it is encoded
family by family and calls go on between two of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar


class HistogramSeries:
    """One series."""

    __slots__ = ("_bounds_s", "counts", "exemplars", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)  # the last one is what is longer than all bounds
        self.sum_s = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # by bucket: the last of a trace that fell into it

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
        """May be asked in another thread: a series is read as it is just then, its count always that of its buckets."""
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

_END_OF_EXPOSITION = b"# EOF\n"  # of the newer format, which may stand only once

Encoder = Callable[[Collector], bytes]


class _SingleFamily(Collector):
    """A family by itself, as an encoder asks for it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def exposition_pieces(registry: CollectorRegistry, encode: Encoder) -> Iterator[bytes]:
    """What the encoder would write of the registry, family by family."""
    ends = False
    for family in registry.collect():
        written = encode(_SingleFamily(family))
        ends = written.endswith(_END_OF_EXPOSITION)
        yield written.removesuffix(_END_OF_EXPOSITION)
    if ends:
        yield _END_OF_EXPOSITION
