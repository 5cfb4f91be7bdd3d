"""The aims, and where a peer is better. Pure, and written by the same hand for both: what is missed says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.compare.figures import OPENS_WITHIN_S, OUTSET_S, Figures
from bench.compare.lanes import LANES, Lane, Peer

Table = Mapping[str, Mapping[str, Figures]]  # scenario -> lane -> figures
LANE_NAMED = {lane.name: lane for lane in LANES}


@dataclass(frozen=True, slots=True)
class Aim:
    text: str
    measured: str
    met: bool | None  # None: not measured

    @property
    def verdict(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "**missed**"


def aims(table: Table) -> Iterator[Aim]:
    ours = [figures for lanes in table.values() for name, figures in lanes.items() if _is_ours(name)]
    for text, count in (("double charges", lambda f: f.doubles), ("lost payments", lambda f: f.lost)):
        worst = max(map(count, ours), default=None)
        measured = "" if worst is None else str(worst)
        yield Aim(f"{text}: none in any scenario", measured, None if worst is None else worst == 0)
    outset = f"amplification in a hard outage's first {OUTSET_S:.0f} s, before a circuit can open: at most 1.10"
    yield _at_most(table, "hard_outage", lambda f: f.amplification_outset, 1.10, outset)
    early = f"amplification in its first {OPENS_WITHIN_S:.0f} s, in which the circuit opens: at most 1.10"
    yield _at_most(table, "hard_outage", lambda f: f.amplification_early, 1.10, early)
    late = "amplification in a hard outage, after that: at most 0.2"
    yield _at_most(table, "hard_outage", lambda f: f.amplification_late, 0.2, late)
    after = "recovered within 5 s of a hard outage's end"
    yield _at_most(table, "hard_outage", lambda f: f.recovery_s, 5.0, after)
    yield _at_most(table, "brownout", lambda f: f.recovery_s, 2.0, "recovered within 2 s of a brownout's end")
    yield _goodput(table)
    slow = "20% lost responses at one order a second: all orders are paid"
    yield _all_paid(table, "low_traffic", lambda f: f.goodput, slow)
    others = "one bad sidecar costs the others nothing: all orders that begin at them are paid"
    yield _all_paid(table, "one_bad_sidecar", lambda f: f.others_goodput, others)


def _at_most(table: Table, scenario: str, value: Callable[[Figures], float | None], most: float, text: str) -> Aim:
    values = [
        found
        for name, figures in table.get(scenario, {}).items()
        if _is_ours(name) and (found := value(figures)) is not None
    ]
    if not values:
        return Aim(text, "", None)
    worst = max(values)
    return Aim(text, "never in this run" if math.isinf(worst) else f"{worst:.2f}", worst <= most + 1e-9)


def _all_paid(table: Table, scenario: str, value: Callable[[Figures], float | None], text: str) -> Aim:
    goodputs = [
        found
        for name, figures in table.get(scenario, {}).items()
        if _is_ours(name) and (found := value(figures)) is not None
    ]
    if not goodputs:
        return Aim(text, "", None)
    return Aim(text, f"{100 * min(goodputs):.1f}%", min(goodputs) == 1.0)


def _goodput(table: Table) -> Aim:
    text = "goodput at 25% random failures: at least the best Envoy's less a point"
    lanes = table.get("random_25", {})
    ours = [figures.goodput for name, figures in lanes.items() if _is_ours(name)]
    envoys = [figures.goodput for name, figures in lanes.items() if LANE_NAMED[name].peer is Peer.ENVOY]
    if not ours or not envoys:
        return Aim(text, "", None)
    said = f"{100 * min(ours):.1f}% beside {100 * max(envoys):.1f}%"
    return Aim(text, said, min(ours) >= max(envoys) - 0.01 - 1e-9)


@dataclass(frozen=True, slots=True)
class Measure:
    title: str
    value: Callable[[Figures], float | None]
    shown: Callable[[float], str]
    greater_is_better: bool = False
    worth: float = 0.0  # a smaller difference is noise


MEASURES = (
    Measure("goodput", lambda f: f.goodput, lambda v: f"{100 * v:.1f}%", greater_is_better=True, worth=0.005),
    Measure("amplification", lambda f: f.amplification, lambda v: f"{v:.2f}", worth=0.02),
    Measure("recovery", lambda f: f.recovery_s, lambda v: "never" if math.isinf(v) else f"{v:.1f} s", worth=0.4),
    Measure("p50", lambda f: f.p50_s, lambda v: f"{1000 * v:.0f} ms", worth=0.002),
    Measure("p99", lambda f: f.p99_s, lambda v: f"{1000 * v:.0f} ms", worth=0.02),
    Measure("orders left unknown", lambda f: f.unknown, lambda v: f"{v:.0f}", worth=0.5),
)


@dataclass(frozen=True, slots=True)
class Win:
    """A peer that is better than the best of ours, by one measure in one scenario."""

    scenario: str
    measure: str
    lane: Lane
    theirs: str
    ours: str
    goodput: float
    doubles: int
    lost: int


def wins_of_peers(table: Table) -> Iterator[Win]:
    for scenario, lanes in table.items():
        for measure in MEASURES:
            best = _best(lanes, measure, ours=False)
            own = _best(lanes, measure, ours=True)
            if best is None or own is None or not _better(measure, best[1], own[1]):
                continue
            figures = lanes[best[0]]
            shown = measure.shown(best[1]), measure.shown(own[1])
            yield Win(
                scenario, measure.title, LANE_NAMED[best[0]], *shown, figures.goodput, figures.doubles, figures.lost
            )


def _better(measure: Measure, theirs: float, ours: float) -> bool:
    return (theirs - ours if measure.greater_is_better else ours - theirs) > measure.worth


def _best(lanes: Mapping[str, Figures], measure: Measure, *, ours: bool) -> tuple[str, float] | None:
    values = [
        (name, value)
        for name, figures in lanes.items()
        if _is_ours(name) is ours and (value := measure.value(figures)) is not None and not math.isnan(value)
    ]
    sign = -1 if measure.greater_is_better else 1
    return min(values, key=lambda pair: (sign * pair[1], lanes[pair[0]].doubles + lanes[pair[0]].lost), default=None)


def _is_ours(name: str) -> bool:
    return LANE_NAMED[name].is_ours
