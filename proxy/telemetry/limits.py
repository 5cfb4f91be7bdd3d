"""The gauges about limits: how circuits stand, what is left for retries, how full it is at each provider.

Asked when somebody scrapes, by `look`, which belongs to the loop's thread: what is asked there changes under a reader
in another one. `collect`, which runs in the scrape's thread, shows what the last look saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from proxy.core.budget import Scope
from proxy.core.circuit import CircuitState, Group
from proxy.telemetry.names import KnownNames


class Stands(Protocol):
    """Where a circuit stands: the limits' `Standing`, by its shape."""

    @property
    def provider(self) -> str: ...
    @property
    def group(self) -> Group: ...
    @property
    def state(self) -> CircuitState: ...


class Crowded(Protocol):
    """How full it is at a provider: the limits' `Crowd`, by its shape."""

    @property
    def provider(self) -> str: ...
    @property
    def limit(self) -> float: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def waiting(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LimitsWatched:
    """Whom to ask. None of them may wait for anything."""

    standings: Callable[[], Iterable[Stands]]
    remaining: Callable[[str], Mapping[Scope, float]]  # of a provider's writes
    crowds: Callable[[], Iterable[Crowded]]
    fleet: Callable[[], bool]  # whether the fleet's store answers


@dataclass(frozen=True, slots=True)
class _Seen:
    states: Mapping[tuple[str, Group], CircuitState]
    remaining: Mapping[tuple[str, Scope], float]
    crowds: tuple[Crowded, ...]
    fleet: bool


class LimitsGauges:
    """A collector of the registry. Shows nothing before it was told whom to ask, and has looked."""

    def __init__(self, names: KnownNames) -> None:
        self._names = names
        self._watched: LimitsWatched | None = None
        self._seen: _Seen | None = None

    def watch(self, watched: LimitsWatched) -> None:
        self._watched = watched

    def look(self) -> None:
        """See how things stand now. Not in another thread than theirs."""
        watched = self._watched
        if watched is None:
            return
        known = self._names.providers()
        # A provider that nobody has called yet has its series too, so that an alert has something to compare with.
        states = {(provider, group): CircuitState.CLOSED for provider in known for group in Group}
        states |= {(one.provider, one.group): one.state for one in watched.standings() if one.provider in known}
        remaining = {
            (provider, scope): left for provider in known for scope, left in watched.remaining(provider).items()
        }
        crowds = tuple(crowd for crowd in watched.crowds() if crowd.provider in known)
        self._seen = _Seen(states, remaining, crowds, watched.fleet())

    def collect(self) -> Iterator[Metric]:
        circuits = GaugeMetricFamily(
            "payment_circuit_state",
            "Whether a circuit stands in this state: 1 or 0.",
            labels=("provider", "group", "state"),
        )
        remaining = GaugeMetricFamily(
            "payment_retry_budget_remaining",
            "What is left for retries of writes, in units of cost, in the tightest of each scope.",
            labels=("provider", "scope"),
        )
        fleet = GaugeMetricFamily(
            "paywitness_limits_fleet", "Whether limits are the fleet's: 1, or 0 while each sidecar has its own."
        )
        seen = self._seen
        if seen is not None:
            for (provider, group), stands in seen.states.items():
                for state in CircuitState:
                    circuits.add_metric((provider, group, state), 1 if state is stands else 0)
            for labels, left in seen.remaining.items():
                remaining.add_metric(labels, left)
            fleet.add_metric((), 1 if seen.fleet else 0)
        yield from (circuits, remaining, *_admission(seen.crowds if seen is not None else ()), fleet)


def _admission(crowds: Iterable[Crowded]) -> Iterator[Metric]:
    labels = ("provider",)
    limit = GaugeMetricFamily(
        "paywitness_admission_limit", "How many calls may be in flight at the provider.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "paywitness_admission_in_flight", "Calls that are in flight at the provider.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "paywitness_admission_waiting", "Calls that wait for a place among those in flight.", labels=labels
    )
    for crowd in crowds:
        limit.add_metric((crowd.provider,), crowd.limit)
        in_flight.add_metric((crowd.provider,), crowd.in_flight)
        waiting.add_metric((crowd.provider,), crowd.waiting)
    yield from (limit, in_flight, waiting)
