"""What goes wrong at the provider, and when. Plain values, the same for every lane.

A run has a calm lead, a time of trouble and a calm end. Where a scenario has no edges, trouble is all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SEED = 7
TRY_S = 1.0  # how long anybody waits for one try; shops wait longer, but a run must fit into minutes
CALL_S = 4.0  # for all tries of one call
PATIENCE_S = CALL_S + 1.0  # of a client whose proxy does the tries: for its last word
PODS = 10  # where a scenario is about one of ten
BAD_POD = 3
BURST_S = 1.0
_ALL = 99


@dataclass(frozen=True, slots=True)
class Pace:
    """How long and how much."""

    lead_s: float
    trouble_s: float
    after_s: float
    orders_per_s: float
    settle_s: float  # how long doubt may take to be resolved, when the load is over
    lanes_at_once: int

    @property
    def load_s(self) -> float:
        return self.lead_s + self.trouble_s + self.after_s

    @property
    def trouble_over_s(self) -> float:
        return self.lead_s + self.trouble_s


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    what: str  # to a reader
    faults: dict[str, float] = field(default_factory=dict)  # all the time
    outage: str = ""  # the mode of an outage in the time of trouble
    brownout: dict[str, float] = field(default_factory=dict)  # in the time of trouble
    strength: float = 0.0  # how many times the load the provider can bear; 0: any
    queue_s: float = 0.0  # how much work it takes in beyond that, before it answers 503
    burst: float = 0.0  # when trouble ends, this share of the orders of its time comes once more, within `BURST_S`
    orders_per_s: float = 0.0  # 0: as many as the pace says
    pods: int = 0  # so many sidecars (pods, where there is no proxy), one of them with a broken network

    @property
    def has_edges(self) -> bool:
        return bool(self.outage or self.brownout)

    def schedule(self, pace: Pace) -> dict[str, object]:
        """As the sandbox takes it at PUT /_sandbox/faults; its times count from then."""
        trouble = {"start_s": pace.lead_s, "duration_s": pace.trouble_s}
        schedule: dict[str, object] = {"seed": SEED, "latency": {"kind": "uniform", "low_s": 0.01, "high_s": 0.05}}
        if self.faults:
            schedule |= {"faults": self.faults, "apply_to": "writes"}
        if self.outage:
            schedule["outages"] = [{**trouble, "mode": self.outage}]
        if self.brownout:
            schedule["brownouts"] = [{**trouble, **self.brownout}]
        return schedule

    def order_times_s(self, pace: Pace) -> list[float]:
        """When each order is placed, from the beginning."""
        per_s = self.orders_per_s or pace.orders_per_s
        steady = [number / per_s for number in range(round(pace.load_s * per_s))]
        extra = round(self.burst * pace.trouble_s * per_s)
        return sorted([*steady, *(pace.trouble_over_s + BURST_S * number / extra for number in range(extra))])

    def lanes_at_once(self, pace: Pace) -> int:
        """Bursts of several lanes fall into the same second: more than two, and one machine cannot place them in it.
        Lanes of few orders may all run at once."""
        if self.orders_per_s:
            return _ALL
        return min(2, pace.lanes_at_once) if self.burst else pace.lanes_at_once


LOST = {
    "drop_after_commit": 0.06,
    "reset_after_commit": 0.04,
    "truncated_body": 0.03,
    "hang_after_commit(hang_s=10)": 0.03,
    "late_commit(late_s=2.5, hang_s=5)": 0.01,
    "error_500_after_commit": 0.02,
    "html_504_after_commit": 0.01,
}


def _failing(share: float) -> dict[str, float]:
    """Failures without effect, of the three kinds that a caller sees: said so, said by a gateway, said by a reset."""
    return {"error_503": 0.6 * share, "html_502": 0.2 * share, "reset_before_commit": 0.2 * share}


SCENARIOS = (
    Scenario(
        "lost_responses",
        "Lost responses",
        "20% of all writes take the money, and their answer is lost: closed, reset, cut off, never sent, or a 5xx in "
        "its place.",
        faults=LOST,
    ),
    Scenario(
        "low_traffic",
        "Lost responses at low traffic",
        "The same at one order a second: a retry must not depend on how many calls there are.",
        faults=LOST,
        orders_per_s=1.0,
    ),
    Scenario(
        "hard_outage",
        "Hard outage",
        "Every connection is accepted and reset: a dead provider behind a balancer that lives.",
        outage="reset_before_read",
    ),
    Scenario(
        "brownout",
        "Brownout",
        "Everything takes 0.4 s longer, and 40% is answered 503, overloaded.",
        brownout={"latency_s": 0.4, "error_probability": 0.4},
    ),
    Scenario(
        "random_25",
        "25% random failures",
        "A quarter of all writes fails without effect: 15% with 503, 5% with a gateway's 502, 5% by a reset.",
        faults=_failing(0.25),
    ),
    Scenario("random_50", "50% random failures", "The same, twice as often.", faults=_failing(0.5)),
    Scenario(
        "thundering_recovery",
        "Thundering recovery",
        "Nobody listens. When it is over, half of the orders of that time come again within a second, and the provider "
        "bears only twice its usual load: it works one request after the other, also those whose caller has left, and "
        "refuses with 503 what would wait longer than 3 s.",
        outage="refuse",
        strength=2.0,
        queue_s=3.0,
        burst=0.5,
    ),
    Scenario(
        "one_bad_sidecar",
        "One bad sidecar of ten",
        "Ten sidecars, or ten pods where there is no proxy. All that one of them sends is read by nobody, and reset. A "
        "job that runs again runs at the next one.",
        pods=PODS,
    ),
)

QUICK = Pace(lead_s=2.0, trouble_s=5.0, after_s=6.0, orders_per_s=10.0, settle_s=15.0, lanes_at_once=_ALL)
LOAD_S_MIN = 20.0  # then trouble lasts 8 s: 4 until a circuit is open, and 4 more
_LOAD_S_MAX = 150.0
_AT_ONCE = 4
_ORDERS_PER_S = 20.0
_SETTLE_S = 90.0  # the first three steps of the shipped policy's schedule; less where no doubt is left
# As measured: to start, to let the last jobs end, to stop; and what settling takes of those 90 s, once a scenario.
_BESIDE_S, _SETTLES_S = 18.0, 40.0


def pace_for(minutes: float, scenarios: Sequence[Scenario], lanes: int) -> Pace:
    """A pace that keeps a run within about so many minutes; but no shorter than what is worth measuring."""
    pace = _pace_of(LOAD_S_MIN)
    load_s = (minutes * 60 - len(scenarios) * _SETTLES_S) / _groups(pace, scenarios, lanes) - _BESIDE_S
    return _pace_of(min(max(load_s, LOAD_S_MIN), _LOAD_S_MAX))


def _pace_of(load_s: float) -> Pace:
    return Pace(0.2 * load_s, 0.4 * load_s, 0.4 * load_s, _ORDERS_PER_S, _SETTLE_S, _AT_ONCE)


def minutes_of(pace: Pace, scenarios: Sequence[Scenario], lanes: int) -> float:
    """About how long a run of this pace takes."""
    settles_s = len(scenarios) * min(pace.settle_s, _SETTLES_S)
    return (_groups(pace, scenarios, lanes) * (pace.load_s + _BESIDE_S) + settles_s) / 60


def _groups(pace: Pace, scenarios: Sequence[Scenario], lanes: int) -> int:
    """Of lanes that run side by side, of all scenarios."""
    return sum(-(-lanes // scenario.lanes_at_once(pace)) for scenario in scenarios)
