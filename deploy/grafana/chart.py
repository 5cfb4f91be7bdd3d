"""What a dashboard is made of: charts as values, and the few ways in which a query may sum things up.

Counters are summed over sidecars. A gauge from the journal is reported alike by every sidecar that shares the journal.
So it goes through `in_journals`: the largest of equal numbers within a journal, and their sum over journals.

A share is of what was counted at the same provider: what a fallback starts is counted where it was started, and calls
where they came to. So the whole is `STARTED`, never calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

INSTANCE = 'instance=~"$instance"'
PROVIDER = f'provider=~"$provider", {INSTANCE}'
OPERATION = f'provider=~"$provider", operation=~"$operation", kind=~"$kind", {INSTANCE}'
STARTED = "payment_operations_started_total"
# Of calls: what matched no operation has no attempts, and would make every mean smaller than it is.
CARRIED = f'operation!="none", {OPERATION}'
_WINDOW = "$__rate_interval"


class Kind(StrEnum):
    LINES = "lines"
    NUMBER = "number"
    STATES = "states"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str
    exemplars: bool = False  # beside the line, calls by their trace


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel. `when_red` says what to do, and `red` from where on it is; `red_below` turns that round. A panel
    without `red` has no number that is wrong everywhere: it says what to do when it looks wrong."""

    title: str
    shows: str
    when_red: str
    queries: tuple[Query, ...]
    red: float | None = None
    red_below: bool = False
    yellow: float | None = None  # from here on it is worth a look
    unit: str = "short"
    kind: Kind = Kind.LINES
    width: int = 8
    stacked: bool = False
    decimals: int | None = None
    nothing: str | None = None  # what is shown where there is no data, and that is as it should be
    states: tuple[tuple[str, str], ...] = ()  # of a chart of states: text and colour by number
    red_of: Mapping[str, float] = field(default_factory=dict)  # of a line or number by its name, in the place of `red`
    colour: str | None = None  # all lines are shades of it
    runbook: str | None = None  # of docs/runbooks: who reads the panel when it is red goes on there

    @property
    def description(self) -> str:
        when = "When red" if self.red is not None or self.red_of else "When it looks wrong"
        return f"{self.shows}\n\n**{when}:** {self.when_red}"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class Board:
    name: str  # of its file, and in its address
    title: str
    shows: str
    sections: tuple[Section, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for section in self.sections for chart in section.charts)


def per_second(metric: str, by: str, where: str) -> str:
    """A counter's rate, summed over sidecars."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[{_WINDOW}]))"


def risen(metric: str, by: str, where: str, window: str = _WINDOW) -> str:
    """How much a counter rose, summed over sidecars: for what is rare."""
    return f"sum by ({by}) (increase({metric}{{{where}}}[{window}]))"


def share(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def quantile(of: float, metric: str, by: str, where: str) -> str:
    rates = per_second(f"{metric}_bucket", f"{by}, le" if by else "le", where)
    return f"histogram_quantile({of}, {rates})"


def in_journals(metric: str, by: str, where: str, summed_by: str | None = None) -> str:
    """A gauge from the journal: the largest that its sidecars report, summed over journals. `summed_by`: the labels
    that are left; all of `by` if it is None, none if it is empty."""
    left = by if summed_by is None else summed_by
    each = f"(max by (journal, {by}) ({metric}{{{where}}}))"
    return f"sum by ({left}) {each}" if left else f"sum{each}"


def oldest(metric: str, by: str, where: str) -> str:
    """An age from the journal: of the oldest one in any of them."""
    return f"max by ({by}) ({metric}{{{where}}})" if by else f"max({metric}{{{where}}})"
