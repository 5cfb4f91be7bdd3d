"""The gauges about doubt: shown from what the journal last counted, never counted by a scrape.

Only the age moves between two counts: the date of the oldest doubt is kept, and its age is taken when somebody looks.
Before the first count there are no samples: no number is better than a zero that nobody has checked. After it every
known provider and operation has one, so that a doubt which ends is seen as a zero and not as a series that vanished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from proxy.core.money import Money
from proxy.core.operation import Operation, State
from proxy.telemetry.names import OTHER, BoundedWords, KnownNames


class DoubtCounted(Protocol):
    """What the journal counts for one provider, operation, currency and state: its `DoubtCount`, by its shape."""

    @property
    def provider(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def count(self) -> int: ...
    @property
    def minor_units(self) -> int: ...
    @property
    def oldest_at(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was last counted, in labels. Immutable: a scrape in another thread sees one count or the next."""

    operations: Mapping[tuple[str, str], int]  # provider, operation
    money: Mapping[tuple[str, str], float]  # provider, currency; major units
    reviews: Mapping[tuple[str, str], int]  # provider, reason
    oldest_at: Mapping[str, float | None]  # provider


def reviews_by_reason(operations: Iterable[Operation]) -> dict[tuple[str, str], int]:
    """How many of these are in review, by provider and the rule that sent them there."""
    return dict(Counter((each.provider, each.because) for each in operations if each.state is State.REQUIRES_REVIEW))


class DoubtGauges:
    """A collector of the registry."""

    def __init__(self, names: KnownNames, now: Callable[[], float]) -> None:
        self._names = names
        self._now = now
        self._reasons = BoundedWords()
        self._shown: _Shown | None = None
        self._counts: tuple[DoubtCounted, ...] = ()

    @property
    def counts(self) -> tuple[DoubtCounted, ...]:
        """What was last shown; empty before the first time."""
        return self._counts

    def show(self, counts: Iterable[DoubtCounted], reviews: Mapping[tuple[str, str], int] | None = None) -> None:
        """Show what the journal counted. `reviews`: operations in review by provider and reason, as far as known."""
        self._counts = tuple(counts)
        for count in self._counts:
            self._names.learn_pair(count.provider, count.operation)
        earlier = self._shown
        money = dict.fromkeys(earlier.money if earlier is not None else (), 0.0)
        operations = dict.fromkeys(self._names.pairs(), 0)
        oldest_at: dict[str, float | None] = dict.fromkeys(self._names.providers())
        for count in self._counts:
            pair = self._names.pair(count.provider, count.operation)
            operations[pair] = operations.get(pair, 0) + count.count
            oldest = oldest_at.get(pair[0])
            oldest_at[pair[0]] = count.oldest_at if oldest is None else min(oldest, count.oldest_at)
            if count.currency:
                major = float(Money(count.minor_units, count.currency).major)
                money[pair[0], count.currency] = money.get((pair[0], count.currency), 0.0) + major
        self._shown = _Shown(operations, money, self._reviews(reviews or {}), oldest_at)

    def _reviews(self, listed: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Reviews by reason; what was counted beyond those that were listed has the reason `other`."""
        unlisted: dict[str, int] = {}
        for count in self._counts:
            if count.state is State.REQUIRES_REVIEW:
                provider = self._names.provider(count.provider)
                unlisted[provider] = unlisted.get(provider, 0) + count.count
        reviews = dict.fromkeys(self._shown.reviews if self._shown is not None else (), 0)
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
            "Age of the oldest operation in doubt, 0 where there is none.",
            labels=("provider",),
        )
        in_doubt = GaugeMetricFamily(
            "payment_operations_in_doubt",
            "Operations whose outcome is not known, those in review among them.",
            labels=("provider", "operation"),
        )
        money = GaugeMetricFamily(
            "payment_money_in_doubt",
            "Money that may or may not have moved, in major units.",
            labels=("provider", "currency"),
        )
        reviews = GaugeMetricFamily(
            "payment_review_open",
            "Operations that only a person or new evidence can end.",
            labels=("provider", "reason"),
        )
        shown = self._shown
        if shown is not None:
            now = self._now()
            for provider, oldest_at in shown.oldest_at.items():
                age.add_metric((provider,), 0.0 if oldest_at is None else max(0.0, now - oldest_at))
            for labels, number in shown.operations.items():
                in_doubt.add_metric(labels, number)
            for labels, major in shown.money.items():
                money.add_metric(labels, major)
            for labels, number in shown.reviews.items():
                reviews.add_metric(labels, number)
        yield from (age, in_doubt, money, reviews)
