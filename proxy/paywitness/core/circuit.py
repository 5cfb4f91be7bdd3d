"""The circuit breaker: when to stop calling a provider, how to find out that it is back, and which calls may try.

Pure: the input is a SharedCircuit, the time and a random draw, and the output is a SharedCircuit.
`limits/lua/circuit.lua` is the same machine in Lua, for a fleet that shares one store. A test runs both through the
same sequences, and compares every field, and every constant by name.

    CLOSED     everything passes
    DEGRADED   everything passes, less is retried, low priority is shed
    OPEN       nothing passes until `until_ms`: the provider is down or ambiguous, never merely slower
    HALF_OPEN  a few leased probes pass, fleet-wide; a probe's result counts only while its lease is held
    RAMP       a share of all calls passes, rising by the second; too many failures open the circuit again

Each sidecar reports its own counts as one SidecarReport. OPEN needs a quorum of reports that are bad by themselves,
because one sidecar with a broken network must not stop the others. Times are milliseconds of one clock: the store's, if
the circuit is shared. An `epoch` starts with each OPEN, HALF_OPEN and RAMP, and counts only reports from its own time.

`view_of` decides about one call: permit, probe or refuse. A refusal has a name, for the reply and the metric, and a
time after which to call again. HALF_OPEN permits nothing by itself: a call needs a leased probe, and only a call that
the provider dedupes (or a safe read) may be one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from paywitness.core import policy_defaults
from paywitness.core.holds import EVERYONE, Hold, HoldStatus, LimitedBy, asked_lately, limited_by_of, with_asks
from paywitness.core.provider_health import NO_HEALTH_COUNTS, HealthCounts

STALE_MS = 2_000  # four reports: a sidecar whose row is older is gone or cut off
JUDGE_EVERY_MS = 200  # a fleet may send hundreds of reports a second, and not each of them is worth reading all rows
QUORUM_SHARE = 0.3  # of the sidecars that have counted any calls
OPEN_BASE_MS = 1_000
# Leased probes cost the provider three calls of the whole fleet, so short intervals are cheap. Long intervals are
# expensive: a provider that is back gets all calls only after the rest of an interval, the probes and the ramp. That
# must take at most 5 s, even if sidecars, their store or their machines are busy. Nominally it takes 3.7 s.
OPEN_MAX_MS = 1_500
OPEN_GROWTH = 1.5
_GROWTHS_MAX = 20  # 1.5**20 is beyond every maximum; more would only overflow
PROBES_MAX = 3
PROBES_OK = 5
LEASE_SPARE_MS = 1_000  # a probe's lease outlives its attempt by this
# The share of failed probes, and of failed calls in the ramp, that opens the circuit again. OPEN means hard down. A
# provider that answers half of its calls is better called than not, or random failures after an outage would keep the
# circuit open for ever.
BAD_AFTER_OPEN_MAX = 0.5
BAD_PROBES_LEAST = 2  # one failed probe of three decides nothing
RAMP_MINIMUM = 5  # calls in the ramp before they can open the circuit
RAMP_SHARES = (0.25, 0.5, 1.0)
RAMP_STAGE_MS = 750  # at least one report of every sidecar
CLEAN_MS = 10_000  # DEGRADED ends after this long without a reason for it
# After this long without a probe, ordinary calls may try: perhaps no operation of this provider may be a probe.
PATIENCE_MS = 10_000
# Parties that the provider did not ask to wait are held only if it refused several others, and not for long.
GATE_MAX_MS = 30_000  # from the first of these refusals
GATE_LEAST = 3
_NEVER_REACHED = 2.0  # a share is at most 1


class CallGroup(StrEnum):
    """Inquiries have a circuit of their own: an open write circuit never stops resolution."""

    WRITE = "write"
    INQUIRY = "inquiry"


class CircuitState(StrEnum):
    CLOSED = "closed"
    DEGRADED = "degraded"
    OPEN = "open"
    HALF_OPEN = "half_open"
    RAMP = "ramp"


FORCIBLE = frozenset({CircuitState.CLOSED, CircuitState.DEGRADED, CircuitState.OPEN})
PASSING = frozenset({CircuitState.CLOSED, CircuitState.DEGRADED})


@dataclass(frozen=True, slots=True)
class CircuitThresholds:
    """Parts of all calls, from 0 to 1. More than 1 is never reached."""

    bad: float
    unknown: float
    slow: float
    throttled: float = _NEVER_REACHED  # `open_at` has no such threshold

    def reached(self, counts: HealthCounts) -> bool:
        total = counts.total
        return total > 0 and (
            counts.bad / total >= self.bad
            or counts.unknown / total >= self.unknown
            or counts.slow / total >= self.slow
            or counts.throttled / total >= self.throttled
        )


@dataclass(frozen=True, slots=True)
class CircuitRules:
    """The policy's numbers."""

    window_s: float = policy_defaults.CIRCUIT_WINDOW_S
    minimum: int = policy_defaults.CIRCUIT_MINIMUM
    slow_after_s: float = policy_defaults.CIRCUIT_SLOW_AFTER_S
    open_at: CircuitThresholds = CircuitThresholds(
        bad=policy_defaults.CIRCUIT_OPEN_AT_BAD,
        unknown=policy_defaults.CIRCUIT_OPEN_AT_UNKNOWN,
        slow=policy_defaults.CIRCUIT_OPEN_AT_SLOW,
    )
    degrade_at: CircuitThresholds = CircuitThresholds(
        bad=policy_defaults.CIRCUIT_DEGRADE_AT_BAD,
        unknown=policy_defaults.CIRCUIT_DEGRADE_AT_UNKNOWN,
        slow=policy_defaults.CIRCUIT_DEGRADE_AT_SLOW,
        throttled=policy_defaults.CIRCUIT_DEGRADE_AT_THROTTLED,
    )
    opens_from: int = 0  # calls that are enough to open it, if fewer than `minimum` are

    @property
    def minimum_to_open(self) -> int:
        return self.opens_from or self.minimum

    def for_group(self, group: CallGroup) -> CircuitRules:
        """The rules for this group. An inquiry that waits loses nothing, and every payment in doubt makes one, so in an
        outage inquiries would double all calls. So a quarter as many calls are enough to judge them. A read whose
        response is lost leaves no doubt behind, so ambiguity alone is no reason to stop, and with so few calls chance
        would cause it."""
        if group is not CallGroup.INQUIRY:
            return self
        opens = replace(self.open_at, unknown=max(self.open_at.unknown, self.open_at.bad))
        return replace(self, opens_from=math.ceil(self.minimum / 4), open_at=opens)


@dataclass(frozen=True, slots=True)
class SidecarReport:
    """What one sidecar reports."""

    at_ms: int
    epoch: int
    recent: HealthCounts = NO_HEALTH_COUNTS
    whole: HealthCounts = NO_HEALTH_COUNTS
    # By party: until when the provider has asked it to wait, since the last report.
    asks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForcedState:
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Circuit:
    state: CircuitState = CircuitState.CLOSED
    version: int = 0
    epoch: int = 0
    since_ms: int = 0
    until_ms: int = 0  # of OPEN, and of a forced state
    opened: int = 0  # how often it opened in a row, without a clean time in between
    ok: int = 0  # results of probes
    bad: int = 0
    patience_ms: int = 0  # HALF_OPEN: if there is no probe until then, ordinary calls may try
    troubled_ms: int = 0  # DEGRADED: when there was last a reason for it
    gate_ms: int = 0  # until when all parties are held, because the provider asked several to wait
    judged_ms: int = 0
    forced: ForcedState | None = None


@dataclass(frozen=True, slots=True)
class SharedCircuit:
    """All that a fleet shares about one provider and group. `leases` has the end of each probe's lease, by its name."""

    circuit: Circuit = Circuit()
    reports: Mapping[str, SidecarReport] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)  # by party


# --- Events


def report(
    fleet: SharedCircuit, member: str, sidecar_report: SidecarReport, now_ms: int, draw: float, rules: CircuitRules
) -> SharedCircuit:
    """A sidecar's report replaces its last one. Then time and all reports together may change the state."""
    holds = with_asks(fleet.holds, sidecar_report.asks, now_ms)
    fleet = advance(replace(fleet, reports={**fleet.reports, member: sidecar_report}, holds=holds), now_ms)
    circuit = fleet.circuit
    # If the clock went back (a failover), judging must not stop until it has caught up.
    if circuit.forced is not None or 0 <= now_ms - circuit.judged_ms < JUDGE_EVERY_MS:
        return fleet
    fresh = {name: one for name, one in fleet.reports.items() if now_ms - one.at_ms <= STALE_MS}
    return _judge(replace(fleet, circuit=replace(circuit, judged_ms=now_ms), reports=fresh), now_ms, draw, rules)


def take_probe(fleet: SharedCircuit, lease: str, now_ms: int, lease_ms: int) -> tuple[SharedCircuit, bool]:
    """Lease a probe, if one is free. A second request with the same lease gets the same result."""
    fleet = advance(fleet, now_ms)
    circuit = fleet.circuit
    if circuit.state is not CircuitState.HALF_OPEN or circuit.gate_ms > now_ms:
        return fleet, False
    held = {name: until_ms for name, until_ms in fleet.leases.items() if until_ms > now_ms}
    if lease not in held and len(held) >= PROBES_MAX:
        return replace(fleet, leases=held), False
    held.setdefault(lease, now_ms + lease_ms)
    patient = replace(circuit, patience_ms=max(circuit.patience_ms, now_ms + lease_ms + PATIENCE_MS))
    return replace(fleet, circuit=patient, leases=held), True


def end_probe(fleet: SharedCircuit, lease: str, ok: bool | None, now_ms: int, draw: float) -> SharedCircuit:
    """End a probe. Its result counts only if its lease is still held. None only gives the lease back."""
    held = dict(fleet.leases)
    in_time = held.pop(lease, 0) > now_ms
    circuit = fleet.circuit
    fleet = replace(fleet, leases=held)
    if ok is None or not in_time or circuit.state is not CircuitState.HALF_OPEN:
        return fleet
    oks, bads = circuit.ok + ok, circuit.bad + (not ok)
    fleet = replace(fleet, circuit=replace(circuit, ok=oks, bad=bads, patience_ms=now_ms + PATIENCE_MS))
    if bads >= BAD_PROBES_LEAST and bads > BAD_AFTER_OPEN_MAX * (oks + bads):
        return _open(fleet, now_ms, draw)
    return _enter(fleet, CircuitState.RAMP, now_ms) if oks >= PROBES_OK else fleet


def force(fleet: SharedCircuit, state: CircuitState, by: ForcedState, now_ms: int, for_ms: int) -> SharedCircuit:
    """Set the state by an operator's command, for a while. Meanwhile reports change nothing."""
    if state not in FORCIBLE:
        raise ValueError(f"{state} cannot be forced")
    return _enter(fleet, state, now_ms, until_ms=now_ms + for_ms, forced=by)


def release(fleet: SharedCircuit, now_ms: int) -> SharedCircuit:
    """End a forced state before its time."""
    if fleet.circuit.forced is None:
        return fleet
    return _end_of_force(fleet, now_ms)


def advance(fleet: SharedCircuit, now_ms: int) -> SharedCircuit:
    """The change that time alone makes."""
    circuit = fleet.circuit
    if circuit.forced is not None:
        return _end_of_force(fleet, now_ms) if now_ms >= circuit.until_ms else fleet
    match circuit.state:
        case CircuitState.OPEN if now_ms >= circuit.until_ms:
            return _enter(fleet, CircuitState.HALF_OPEN, now_ms, patience_ms=now_ms + PATIENCE_MS)
        case CircuitState.HALF_OPEN if now_ms >= circuit.patience_ms:
            return _enter(fleet, CircuitState.RAMP, now_ms)
        case CircuitState.RAMP if now_ms - circuit.since_ms >= RAMP_STAGE_MS * len(RAMP_SHARES):
            return _enter(fleet, CircuitState.CLOSED, now_ms)
        case _:
            return fleet


def ramp_share(circuit: Circuit, now_ms: int) -> float:
    stage = max(0, now_ms - circuit.since_ms) // RAMP_STAGE_MS
    return RAMP_SHARES[min(stage, len(RAMP_SHARES) - 1)]


# --- Thresholds


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """All reports of one span: their sum, how many have calls, and how many are bad by themselves."""

    counts: HealthCounts
    reports_with_calls: int
    bad_reports: int


def sum_reports(spans: Iterable[HealthCounts], rules: CircuitRules) -> FleetCounts:
    total, speaking, bad_rows = NO_HEALTH_COUNTS, 0, 0
    for counts in spans:
        total = total.plus(counts)
        speaking += counts.total > 0
        bad_rows += rules.open_at.reached(counts)
    return FleetCounts(total, speaking, bad_rows)


def quorum(reporting: int, speaking: int) -> int:
    """How many sidecars must be bad by themselves. A single sidecar decides alone; of several, at least two."""
    return 1 if reporting <= 1 else max(2, math.ceil(QUORUM_SHARE * speaking))


def _judge(fleet: SharedCircuit, now_ms: int, draw: float, rules: CircuitRules) -> SharedCircuit:
    circuit = fleet.circuit
    reports = [
        sidecar_report
        for sidecar_report in fleet.reports.values()
        if sidecar_report.epoch == circuit.epoch and sidecar_report.whole.total > 0
    ]
    sums = (
        sum_reports((sidecar_report.recent for sidecar_report in reports), rules),
        sum_reports((sidecar_report.whole for sidecar_report in reports), rules),
    )
    fleet = _with_gate(fleet, sums, now_ms, rules)
    circuit = fleet.circuit
    if circuit.state is CircuitState.RAMP:
        counts = sums[1].counts
        failing = counts.total >= RAMP_MINIMUM and counts.bad > BAD_AFTER_OPEN_MAX * counts.total
        return _open(fleet, now_ms, draw) if failing else fleet
    if circuit.state not in PASSING:
        return fleet
    if any(_is_down(one, len(fleet.reports), rules) for one in sums):
        return _open(fleet, now_ms, draw)
    if any(one.counts.total >= rules.minimum and rules.degrade_at.reached(one.counts) for one in sums):
        if circuit.state is CircuitState.CLOSED:
            fleet = _enter(fleet, CircuitState.DEGRADED, now_ms)
        return replace(fleet, circuit=replace(fleet.circuit, troubled_ms=now_ms))
    return _recovered(fleet, now_ms)


def _is_down(span: FleetCounts, reporting: int, rules: CircuitRules) -> bool:
    enough = span.counts.total >= rules.minimum_to_open
    return (
        enough and rules.open_at.reached(span.counts) and span.bad_reports >= quorum(reporting, span.reports_with_calls)
    )


def _with_gate(
    fleet: SharedCircuit, sums: tuple[FleetCounts, FleetCounts], now_ms: int, rules: CircuitRules
) -> SharedCircuit:
    """If the provider asked several parties to wait, and they are enough of all calls, all others wait too, for a
    while."""
    asked = asked_lately(fleet.holds, now_ms)
    share = rules.degrade_at.throttled
    met = len(asked) >= GATE_LEAST and any(0 < one.counts.asked >= share * one.counts.total for one in sums)
    if not met:
        return fleet
    gate_ms = min(max(hold.until_ms for hold in asked), min(hold.asked_ms for hold in asked) + GATE_MAX_MS)
    if gate_ms <= max(now_ms, fleet.circuit.gate_ms):
        return fleet
    circuit = replace(fleet.circuit, gate_ms=gate_ms)
    if circuit.state is CircuitState.OPEN:
        circuit = replace(circuit, until_ms=max(circuit.until_ms, gate_ms))
    return replace(fleet, circuit=circuit)


def _recovered(fleet: SharedCircuit, now_ms: int) -> SharedCircuit:
    circuit = fleet.circuit
    if circuit.state is CircuitState.DEGRADED and now_ms - circuit.troubled_ms >= CLEAN_MS:
        fleet = _enter(fleet, CircuitState.CLOSED, now_ms)
        return replace(fleet, circuit=replace(fleet.circuit, opened=0))
    if circuit.state is CircuitState.CLOSED and circuit.opened and now_ms - circuit.since_ms >= CLEAN_MS:
        return replace(fleet, circuit=replace(circuit, opened=0))
    return fleet


# --- State changes


def _enter(
    fleet: SharedCircuit,
    state: CircuitState,
    now_ms: int,
    *,
    until_ms: int = 0,
    patience_ms: int = 0,
    forced: ForcedState | None = None,
) -> SharedCircuit:
    """Leases and probe results end with their state. A new epoch begins, unless calls continue as before."""
    version = fleet.circuit.version + 1
    goes_on = state in PASSING and forced is None
    circuit = replace(
        fleet.circuit,
        state=state,
        version=version,
        epoch=fleet.circuit.epoch if goes_on else version,
        since_ms=now_ms,
        until_ms=until_ms,
        ok=0,
        bad=0,
        patience_ms=patience_ms,
        forced=forced,
    )
    return SharedCircuit(circuit, fleet.reports, {}, fleet.holds)


def _open(fleet: SharedCircuit, now_ms: int, draw: float) -> SharedCircuit:
    opened = fleet.circuit.opened
    lasts_ms = math.floor(open_for_ms(opened) * (0.8 + 0.4 * draw))
    fleet = _enter(fleet, CircuitState.OPEN, now_ms, until_ms=max(now_ms + lasts_ms, fleet.circuit.gate_ms))
    return replace(fleet, circuit=replace(fleet.circuit, opened=min(opened + 1, _GROWTHS_MAX)))


def open_for_ms(opened: int) -> float:
    """How long OPEN lasts, before jitter: a second at first, then a second and a half."""
    return min(float(OPEN_MAX_MS), OPEN_BASE_MS * OPEN_GROWTH ** min(opened, _GROWTHS_MAX))


def _end_of_force(fleet: SharedCircuit, now_ms: int) -> SharedCircuit:
    """After a forced OPEN the circuit probes before it lets traffic through; after any other forced state it closes."""
    if fleet.circuit.state is CircuitState.OPEN:
        return _enter(fleet, CircuitState.HALF_OPEN, now_ms, patience_ms=now_ms + PATIENCE_MS)
    return _enter(fleet, CircuitState.CLOSED, now_ms)


# --- Decisions on calls

HALF_OPEN_RETRY_S = 1.0  # probes are under way: come back soon, but not at once
_RAMP_RETRY_S = 1.0  # a stage of the ramp, rounded up


class CircuitDecision(StrEnum):
    PERMIT = "permit"
    PROBE = "probe"  # lease a probe, or refuse
    REFUSE = "refuse"


class CircuitRefusal(StrEnum):
    """The names of refusals."""

    OPEN = "circuit_open"
    FORCED = "circuit_forced_open"
    PROBING = "circuit_half_open"
    RAMP = "circuit_ramp"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class CircuitView:
    """What a circuit decides about one call."""

    decision: CircuitDecision
    state: CircuitState
    reason: CircuitRefusal | None = None
    retry_after_s: float = 0.0
    limited_by: LimitedBy | None = None  # of THROTTLED: who must wait

    @property
    def degraded(self) -> bool:
        """Whether to hold back: fewer retries, no hedges, low priority is shed."""
        return self.state is not CircuitState.CLOSED


_PERMITS = {state: CircuitView(CircuitDecision.PERMIT, state) for state in CircuitState}
PERMITTED = _PERMITS[CircuitState.CLOSED]
REFUSED_WHILE_PROBING = CircuitView(
    CircuitDecision.REFUSE, CircuitState.HALF_OPEN, CircuitRefusal.PROBING, HALF_OPEN_RETRY_S
)


def permitting_view(state: CircuitState) -> CircuitView:
    return _PERMITS[state]


def view_of(circuit: Circuit, now_ms: int, draw: float = 0.0) -> CircuitView:
    """The circuit's decision now. It includes the changes that time alone makes, even if nobody has recorded them
    yet."""
    circuit = advance(SharedCircuit(circuit), now_ms).circuit
    state = circuit.state
    if circuit.forced is not None and state is not CircuitState.OPEN:
        return _PERMITS[state]  # an operator's command overrides the gate too
    if state is CircuitState.OPEN:
        reason = CircuitRefusal.FORCED if circuit.forced is not None else CircuitRefusal.OPEN
        return CircuitView(CircuitDecision.REFUSE, state, reason, (circuit.until_ms - now_ms) / 1000)
    if circuit.gate_ms > now_ms:
        return _throttled(state, circuit.gate_ms - now_ms, LimitedBy.PROVIDER)
    if state is CircuitState.HALF_OPEN:
        return CircuitView(CircuitDecision.PROBE, state, CircuitRefusal.PROBING, HALF_OPEN_RETRY_S)
    if state is CircuitState.RAMP and draw >= ramp_share(circuit, now_ms):
        return CircuitView(CircuitDecision.REFUSE, state, CircuitRefusal.RAMP, _RAMP_RETRY_S)
    return _PERMITS[state]


def _throttled(state: CircuitState, left_ms: int, limited_by: LimitedBy) -> CircuitView:
    return CircuitView(CircuitDecision.REFUSE, state, CircuitRefusal.THROTTLED, left_ms / 1000, limited_by)


def with_hold(view: CircuitView, held: Mapping[str, int], party: str, now_ms: int) -> CircuitView:
    """The circuit's decision on a call of this party, which may be held. `held`: until when, by party."""
    by = party if held.get(party, 0) >= held.get(EVERYONE, 0) else EVERYONE
    left_ms = held.get(by, 0) - now_ms
    if left_ms <= 0:
        return view
    if view.decision is CircuitDecision.REFUSE and view.reason is not CircuitRefusal.THROTTLED:
        return replace(view, retry_after_s=max(view.retry_after_s, left_ms / 1000))
    if view.decision is CircuitDecision.REFUSE and view.retry_after_s * 1000 >= left_ms:
        return view
    return _throttled(view.state, left_ms, limited_by_of(by))


@dataclass(frozen=True, slots=True)
class CircuitStatus:
    """The state of a circuit, for people and gauges."""

    provider: str
    group: CallGroup
    state: CircuitState
    fleet: bool  # the fleet's state; else this sidecar's own
    for_s: float  # how long it has been in this state
    retry_after_s: float  # until the next change, if that is known: OPEN, forced, the gate
    throttled: bool  # all parties are held, by the gate or because a 429 concerns everyone
    sidecars: int
    forced: ForcedState | None
    holds: tuple[HoldStatus, ...] = ()
