"""The circuit: when to stop calling a provider, how to find out that it is back, and who may try.

Pure: a Fleet goes in with the time and a random draw, a Fleet comes out. `limits/lua/circuit.lua` is the same machine
in Lua, for a fleet that shares one store; a test runs both through the same sequences and compares every field.

    CLOSED     everything passes
    DEGRADED   everything passes, less is tried again, low priority is shed
    OPEN       nothing passes until `until_ms`: hard down or ambiguous, never merely worse
    HALF_OPEN  a few leased probes pass, fleet-wide; a vote counts only while its lease is held
    RAMP       a share of all calls passes, rising by the second; too many failures open it again

Each sidecar reports its own counts as one Row. OPEN needs a quorum of rows that are bad by themselves: one sidecar with
a broken network must not stop the others. Times are milliseconds of one clock, the store's where it is shared. An
`epoch` starts with each OPEN, HALF_OPEN and RAMP: rows that were counted before it say nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.core.observation import NOTHING, Counts

STALE_MS = 2_000  # four reports: whose row is older is gone, or cut off
JUDGE_EVERY_MS = 200  # of hundreds of reports a second only some are worth a look at all rows
QUORUM_SHARE = 0.3  # of the sidecars that have something to say
OPEN_BASE_MS = 1_000
# Leased probes cost the provider three calls of the whole fleet, so short intervals are cheap. Long ones are dear: one
# that is back gets all calls after the rest of an interval, the probes and the ramp, which is to be within 5 s also
# where sidecars, their store or their machines are busy: nominally it takes 3.7.
OPEN_MAX_MS = 1_500
OPEN_GROWTH = 1.5
_GROWTHS_MAX = 20  # 1.5**20 is beyond every maximum; more would only overflow
PROBES_MAX = 3
PROBES_OK = 5
LEASE_SPARE_MS = 1_000  # a probe's lease outlives its try by this
# Of probes, and of calls in the ramp. OPEN means hard down: a provider that answers half of its calls is better called
# than not, or random failures after an outage would keep it open for ever.
BAD_AFTER_OPEN_MAX = 0.5
BAD_PROBES_LEAST = 2  # one bad probe of three is no verdict
RAMP_MINIMUM = 5  # calls in the ramp before they are judged
RAMP_SHARES = (0.25, 0.5, 1.0)
RAMP_STAGE_MS = 750  # one report of every sidecar, at least
CLEAN_MS = 10_000  # DEGRADED is left after so long without a reason for it
PATIENCE_MS = 10_000  # without any probe for so long (none may be made of these operations), ordinary calls try it
GATE_MAX_MS = 300_000  # a longer Retry-After is asked about again after this
GATE_LEAST = 3  # calls that met it: where fewer are made, one more is no storm, and each waits for its own anyway


class Group(StrEnum):
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
class Shares:
    """Parts of all calls, from 0 to 1. More than 1 is never reached."""

    bad: float
    unknown: float
    slow: float
    throttled: float = 2.0

    def reached(self, counts: Counts) -> bool:
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

    window_s: float = 10.0
    minimum: int = 20
    slow_after_s: float = 8.0
    open_at: Shares = Shares(bad=0.85, unknown=0.5, slow=0.9)
    degrade_at: Shares = Shares(bad=0.2, unknown=0.05, slow=0.5, throttled=0.1)
    opens_from: int = 0  # calls, where fewer than `minimum` are enough to open it

    @property
    def minimum_to_open(self) -> int:
        return self.opens_from or self.minimum

    def of(self, group: Group) -> CircuitRules:
        """An inquiry that waits loses nothing, and every payment in doubt makes one: in an outage they would double all
        calls, so a quarter as many are enough to judge them. A read whose answer is lost leaves no doubt behind:
        stopping for ambiguity alone has no purpose, and of so few chance would do it."""
        if group is not Group.INQUIRY:
            return self
        opens = replace(self.open_at, unknown=max(self.open_at.unknown, self.open_at.bad))
        return replace(self, opens_from=math.ceil(self.minimum / 4), open_at=opens)


@dataclass(frozen=True, slots=True)
class Row:
    """What one sidecar reports."""

    at_ms: int
    epoch: int
    recent: Counts = NOTHING
    whole: Counts = NOTHING
    gate_ms: int = 0  # until when the provider asked this sidecar to wait


@dataclass(frozen=True, slots=True)
class Forced:
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Circuit:
    state: CircuitState = CircuitState.CLOSED
    version: int = 0
    epoch: int = 0
    since_ms: int = 0
    until_ms: int = 0  # of OPEN, and of whatever is forced
    opened: int = 0  # times in a row, without a clean while between them
    ok: int = 0  # votes of probes
    bad: int = 0
    patience_ms: int = 0  # HALF_OPEN: without a probe until then, ordinary calls try it
    troubled_ms: int = 0  # DEGRADED: when there was last a reason for it
    gate_ms: int = 0  # Retry-After, for the whole fleet
    judged_ms: int = 0
    forced: Forced | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that is shared about one provider and group. A lease is a probe's name and until when it is held."""

    circuit: Circuit = Circuit()
    rows: Mapping[str, Row] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)


# --- what may happen


def report(fleet: Fleet, member: str, row: Row, now_ms: int, draw: float, rules: CircuitRules) -> Fleet:
    """A sidecar's row replaces its last one; then time and all rows together may change the state."""
    fleet = advance(replace(fleet, rows={**fleet.rows, member: row}), now_ms)
    circuit = fleet.circuit
    # A clock that went back (a failover) must not put judging off until it has caught up.
    if circuit.forced is not None or 0 <= now_ms - circuit.judged_ms < JUDGE_EVERY_MS:
        return fleet
    fresh = {name: one for name, one in fleet.rows.items() if now_ms - one.at_ms <= STALE_MS}
    return _judge(replace(fleet, circuit=replace(circuit, judged_ms=now_ms), rows=fresh), now_ms, draw, rules)


def take(fleet: Fleet, lease: str, now_ms: int, lease_ms: int) -> tuple[Fleet, bool]:
    """Lease a probe, if one is free. Whoever asks again with the same lease gets the same answer."""
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


def vote(fleet: Fleet, lease: str, ok: bool | None, now_ms: int, draw: float) -> Fleet:
    """End a probe. Only a lease that is still held has a vote; None only gives it back."""
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


def force(fleet: Fleet, state: CircuitState, by: Forced, now_ms: int, for_ms: int) -> Fleet:
    """An operator's word, for a while. The machine rests meanwhile."""
    if state not in FORCIBLE:
        raise ValueError(f"{state} cannot be forced")
    return _enter(fleet, state, now_ms, until_ms=now_ms + for_ms, forced=by)


def release(fleet: Fleet, now_ms: int) -> Fleet:
    """Take an operator's word back before its time."""
    if fleet.circuit.forced is None:
        return fleet
    return _end_of_force(fleet, now_ms)


def advance(fleet: Fleet, now_ms: int) -> Fleet:
    """What time alone changes."""
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


# --- how it is judged


@dataclass(frozen=True, slots=True)
class Sum:
    """All rows of one span: their counts, how many say something, and how many are bad by themselves."""

    counts: Counts
    speaking: int
    bad_rows: int


def summed(spans: Iterable[Counts], rules: CircuitRules) -> Sum:
    total, speaking, bad_rows = NOTHING, 0, 0
    for counts in spans:
        total = total.plus(counts)
        speaking += counts.total > 0
        bad_rows += rules.open_at.reached(counts)
    return Sum(total, speaking, bad_rows)


def quorum(reporting: int, speaking: int) -> int:
    """How many sidecars must be bad by themselves. One alone speaks for itself; among others it needs a second."""
    return 1 if reporting <= 1 else max(2, math.ceil(QUORUM_SHARE * speaking))


def _judge(fleet: Fleet, now_ms: int, draw: float, rules: CircuitRules) -> Fleet:
    circuit = fleet.circuit
    rows = [row for row in fleet.rows.values() if row.epoch == circuit.epoch and row.whole.total > 0]
    sums = (summed((row.recent for row in rows), rules), summed((row.whole for row in rows), rules))
    fleet = _gated(fleet, rows, sums, now_ms, rules)
    circuit = fleet.circuit
    if circuit.state is CircuitState.RAMP:
        counts = sums[1].counts
        failing = counts.total >= RAMP_MINIMUM and counts.bad > BAD_AFTER_OPEN_MAX * counts.total
        return _open(fleet, now_ms, draw) if failing else fleet
    if circuit.state not in PASSING:
        return fleet
    if any(_is_down(one, len(fleet.rows), rules) for one in sums):
        return _open(fleet, now_ms, draw)
    if any(one.counts.total >= rules.minimum and rules.degrade_at.reached(one.counts) for one in sums):
        if circuit.state is CircuitState.CLOSED:
            fleet = _enter(fleet, CircuitState.DEGRADED, now_ms)
        return replace(fleet, circuit=replace(fleet.circuit, troubled_ms=now_ms))
    return _clean(fleet, now_ms)


def _is_down(span: Sum, reporting: int, rules: CircuitRules) -> bool:
    enough = span.counts.total >= rules.minimum_to_open
    return enough and rules.open_at.reached(span.counts) and span.bad_rows >= quorum(reporting, span.speaking)


def _gated(fleet: Fleet, rows: list[Row], sums: tuple[Sum, Sum], now_ms: int, rules: CircuitRules) -> Fleet:
    """Retry-After closes the gate for all where a share of all calls met it: one alone may be a caller's own limit."""
    asked_ms = max((row.gate_ms for row in rows), default=0)
    met = any(_refused(one.counts) >= max(GATE_LEAST, rules.degrade_at.throttled * one.counts.total) for one in sums)
    gate_ms = min(asked_ms, now_ms + GATE_MAX_MS)
    if not met or gate_ms <= max(now_ms, fleet.circuit.gate_ms):
        return fleet
    circuit = replace(fleet.circuit, gate_ms=gate_ms)
    if circuit.state is CircuitState.OPEN:
        circuit = replace(circuit, until_ms=max(circuit.until_ms, gate_ms))
    return replace(fleet, circuit=circuit)


def _refused(counts: Counts) -> int:
    return counts.throttled + counts.bad  # a 503 may carry Retry-After as well as a 429


def _clean(fleet: Fleet, now_ms: int) -> Fleet:
    circuit = fleet.circuit
    if circuit.state is CircuitState.DEGRADED and now_ms - circuit.troubled_ms >= CLEAN_MS:
        fleet = _enter(fleet, CircuitState.CLOSED, now_ms)
        return replace(fleet, circuit=replace(fleet.circuit, opened=0))
    if circuit.state is CircuitState.CLOSED and circuit.opened and now_ms - circuit.since_ms >= CLEAN_MS:
        return replace(fleet, circuit=replace(circuit, opened=0))
    return fleet


# --- how a state is entered


def _enter(
    fleet: Fleet,
    state: CircuitState,
    now_ms: int,
    *,
    until_ms: int = 0,
    patience_ms: int = 0,
    forced: Forced | None = None,
) -> Fleet:
    """Leases and votes end with their state; a new epoch begins unless calls go on as they went."""
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
    return Fleet(circuit, fleet.rows, {})


def _open(fleet: Fleet, now_ms: int, draw: float) -> Fleet:
    opened = fleet.circuit.opened
    lasts_ms = math.floor(open_for_ms(opened) * (0.8 + 0.4 * draw))
    fleet = _enter(fleet, CircuitState.OPEN, now_ms, until_ms=max(now_ms + lasts_ms, fleet.circuit.gate_ms))
    return replace(fleet, circuit=replace(fleet.circuit, opened=min(opened + 1, _GROWTHS_MAX)))


def open_for_ms(opened: int) -> float:
    """Before jitter: a second at first, then a second and a half."""
    return min(float(OPEN_MAX_MS), OPEN_BASE_MS * OPEN_GROWTH ** min(opened, _GROWTHS_MAX))


def _end_of_force(fleet: Fleet, now_ms: int) -> Fleet:
    """After a forced stop one looks before one pours; after anything else calls simply go on."""
    if fleet.circuit.state is CircuitState.OPEN:
        return _enter(fleet, CircuitState.HALF_OPEN, now_ms, patience_ms=now_ms + PATIENCE_MS)
    return _enter(fleet, CircuitState.CLOSED, now_ms)
