"""Circuits: the interface, and the local circuits. A local circuit is the core's machine with one row, this sidecar's.

`view` and `add_sample` are on the path of every call and do no I/O. `sync` is called twice a second. A probe that was
taken must be ended, with its health sample or with None. If it is not ended (its process died), it is free again when
its lease is over. A vote that comes after that is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from paywitness.clock import Clock
from paywitness.core import circuit as machine
from paywitness.core.circuit import (
    PASSING,
    PERMITTED,
    CallGroup,
    Circuit,
    CircuitRules,
    CircuitState,
    CircuitStatus,
    CircuitView,
    ForcedState,
    SharedCircuit,
    SidecarReport,
    view_of,
    with_hold,
)
from paywitness.core.holds import EVERYONE, HOLD_MAX_S, HOLDS_MAX, hold_statuses
from paywitness.core.provider_health import RECENT_BUCKETS, Health, HealthSample, HealthWindow
from paywitness.randomness import Randomness

FORCED_MAX_S = 7 * 86400.0  # a forced state must end by itself, because operators forget to end it
_HERE = "here"
_ASKS_MAX = 200  # waits that one row reports; the others follow with the next row
_DOWN = frozenset({CircuitState.OPEN, CircuitState.HALF_OPEN})

CurrentRules = Callable[[], Mapping[str, CircuitRules]]  # the present rules of every provider
SampleListener = Callable[[str, CallGroup, HealthSample], None]  # gets the health sample of every attempt, too
CircuitKey = tuple[str, CallGroup]


@dataclass(frozen=True, slots=True)
class Probe:
    """The right to one call while a circuit is half open."""

    provider: str
    group: CallGroup
    lease: str
    fleet: bool  # leased by the fleet's store; otherwise by this sidecar for itself


@dataclass(frozen=True, slots=True)
class CircuitCommand:
    """An operator's command that forces a circuit into a state. `state` None ends an earlier one."""

    state: CircuitState | None
    actor: str
    reason: str
    for_s: float = 3600.0

    def __post_init__(self) -> None:
        if not self.actor.strip() or not self.reason.strip():
            raise ValueError("who orders it, and why?")
        if self.state is not None and self.state not in machine.FORCIBLE:
            raise ValueError(f"{self.state} cannot be forced, only {', '.join(sorted(machine.FORCIBLE))}")
        if not 0 < self.for_s <= FORCED_MAX_S:
            raise ValueError(f"for more than 0 and at most {FORCED_MAX_S:.0f} seconds")


@dataclass(frozen=True, slots=True)
class CircuitChange:
    provider: str
    group: CallGroup
    before: CircuitState
    after: CircuitState
    fleet: bool

    @property
    def recovered(self) -> bool:
        """Whether the provider works again, so that its inquiries may be made earlier."""
        return self.before in _DOWN and self.after not in _DOWN


class Circuits(Protocol):
    def view(self, provider: str, group: CallGroup, party: str = EVERYONE) -> CircuitView:
        """Whether a call of this party may pass now. No I/O."""
        ...

    def add_sample(self, provider: str, group: CallGroup, sample: HealthSample | None, party: str = EVERYONE) -> None:
        """Count the health sample of an attempt or a probe. None (it showed nothing) is accepted and not counted. A
        Retry-After holds the party."""
        ...

    async def sync(self) -> tuple[CircuitChange, ...]:
        """Report to the fleet, read its state, and apply the time that has passed. Called twice a second. Never raises
        if a store is unavailable."""
        ...

    async def take_probe(self, provider: str, group: CallGroup, per_try_s: float, *, repeatable: bool) -> Probe | None:
        """The right to a call for which `view` returned PROBE, or None: refuse it. `repeatable`: a safe read, or
        deduped."""
        ...

    async def end_probe(self, probe: Probe, sample: HealthSample | None) -> None:
        """Give the probe back, with its vote. If the sample is None or throttled, it has no vote. Every probe taken is
        ended once."""
        ...

    async def force(self, provider: str, group: CallGroup, command: CircuitCommand) -> None:
        """Put an operator's command in force, fleet-wide. Raises StoreUnavailable if the store did not confirm it."""
        ...

    def statuses(self) -> tuple[CircuitStatus, ...]: ...


def probe_vote(sample: HealthSample | None) -> bool | None:
    """A probe's vote. A throttled probe shows neither health nor failure, so it has none: the gate limits such
    calls."""
    if sample is None or sample.health is Health.THROTTLED:
        return None
    return sample.healthy


@dataclass(slots=True)
class CircuitSamples:
    """The health samples of this sidecar for one circuit in its present epoch."""

    rules: CircuitRules
    window: HealthWindow
    epoch: int = 0
    began_ms: int = 0  # start of the epoch: calls that began before it do not count in it
    asks: dict[str, int] = field(default_factory=dict)  # by party: until when it must wait, as heard since the last row

    @classmethod
    def of(cls, rules: CircuitRules) -> CircuitSamples:
        return cls(rules, HealthWindow(rules.window_s))

    def add(self, sample: HealthSample, party: str, now_ms: int) -> bool:
        """Add a sample. Returns whether it counted."""
        if sample.retry_after_s is not None:  # whenever the call began
            until_ms = hold_until_ms(sample.retry_after_s, now_ms)
            self.asks[party] = max(until_ms, self.asks.get(party, 0))
        if now_ms - sample.duration_s * 1000 < self.began_ms:
            return False
        self.window.add(sample, now_ms)
        return True

    def row(self, now_ms: int) -> SidecarReport:
        recent, whole = self.window.counts(now_ms, RECENT_BUCKETS), self.window.counts(now_ms)
        asks = {party: self.asks.pop(party) for party in list(self.asks)[:_ASKS_MAX]}
        return SidecarReport(now_ms, self.epoch, recent, whole, asks)

    def put_back(self, asks: Mapping[str, int], now_ms: int) -> None:
        """The store did not take a row. Its waits go into the next row, if they are not over by then."""
        for party, until_ms in asks.items():
            if until_ms > now_ms and (party in self.asks or len(self.asks) < HOLDS_MAX):
                self.asks[party] = max(until_ms, self.asks.get(party, 0))

    def follow_epoch(self, epoch: int, now_ms: int) -> None:
        """Start with empty counts if a new epoch has begun."""
        if epoch != self.epoch:
            self.epoch, self.began_ms = epoch, now_ms
            self.window.clear()

    def set_rules(self, rules: CircuitRules) -> None:
        if rules != self.rules:
            if rules.window_s != self.rules.window_s:
                self.window = HealthWindow(rules.window_s)
            self.rules = rules


@dataclass(slots=True)
class _LocalEntry:
    samples: CircuitSamples
    held: dict[str, int] = field(default_factory=dict)  # by party: until when; the fleet's holds are here too
    fleet: SharedCircuit = field(default_factory=SharedCircuit)
    reported_state: CircuitState = CircuitState.CLOSED


class LocalCircuits:
    """The circuits of one sidecar that knows of no other."""

    def __init__(
        self, current_rules: CurrentRules, clock: Clock, chance: Randomness, listener: SampleListener | None = None
    ) -> None:
        self._current_rules = current_rules
        self._clock = clock
        self._chance = chance
        self._listener = listener
        self._entries: dict[CircuitKey, _LocalEntry] = {}

    def view(self, provider: str, group: CallGroup, party: str = EVERYONE) -> CircuitView:
        entry = self._entries.get((provider, group))
        if entry is None:
            return PERMITTED
        circuit, view = entry.fleet.circuit, PERMITTED
        if circuit.state is not CircuitState.CLOSED or circuit.gate_ms or circuit.forced is not None:
            draw = self._chance.draw() if circuit.state not in PASSING else 0.0
            view = view_of(circuit, self.now_ms(), draw)
        if not entry.held or circuit.forced is not None:
            return view
        return with_hold(view, entry.held, party, self.now_ms())

    def add_sample(self, provider: str, group: CallGroup, sample: HealthSample | None, party: str = EVERYONE) -> None:
        if sample is None:
            return
        if self._listener is not None:
            self._listener(provider, group, sample)
        entry = self._entries.get((provider, group)) or self._entry(provider, group)
        now_ms = int(self._clock.mono() * 1000)
        if sample.retry_after_s is not None:
            self.hold(provider, group, party, hold_until_ms(sample.retry_after_s, now_ms))
        counted = entry.samples.add(sample, party, now_ms)
        if sample.healthy:
            return
        due = not 0 <= now_ms - entry.fleet.circuit.judged_ms < machine.JUDGE_EVERY_MS
        if counted and due:
            self._judge(entry, now_ms)  # a failure is judged at once and not only at the next `sync`

    async def sync(self) -> tuple[CircuitChange, ...]:
        self.judge_all()
        return tuple(self._changes())

    async def take_probe(self, provider: str, group: CallGroup, per_try_s: float, *, repeatable: bool) -> Probe | None:
        if not repeatable:
            return None
        entry, now_ms, lease = self._entry(provider, group), self.now_ms(), self._chance.token()
        self._set_fleet(entry, machine.advance(entry.fleet, now_ms), now_ms)
        fleet, granted = machine.take_probe(entry.fleet, lease, now_ms, probe_lease_ms(per_try_s))
        self._set_fleet(entry, fleet, now_ms)
        return Probe(provider, group, lease, fleet=False) if granted else None

    async def end_probe(self, probe: Probe, sample: HealthSample | None) -> None:
        entry, now_ms = self._entry(probe.provider, probe.group), self.now_ms()
        draw = self._chance.draw()
        self._set_fleet(entry, machine.end_probe(entry.fleet, probe.lease, probe_vote(sample), now_ms, draw), now_ms)

    async def force(self, provider: str, group: CallGroup, command: CircuitCommand) -> None:
        entry, now_ms = self._entry(provider, group), self.now_ms()
        if command.state is None:
            self._set_fleet(entry, machine.release(entry.fleet, now_ms), now_ms)
            return
        by = ForcedState(command.actor, command.reason)
        self._set_fleet(
            entry, machine.force(entry.fleet, command.state, by, now_ms, round(command.for_s * 1000)), now_ms
        )

    def statuses(self) -> tuple[CircuitStatus, ...]:
        now_ms = self.now_ms()
        return tuple(
            circuit_status(
                key, machine.advance(entry.fleet, now_ms).circuit, now_ms, entry.held, fleet=False, sidecars=1
            )
            for key, entry in sorted(self._entries.items())
        )

    # --- for the fleet's circuits, which keep these warm

    def now_ms(self) -> int:
        return int(self._clock.mono() * 1000)

    def held(self, provider: str, group: CallGroup) -> Mapping[str, int]:
        """By party, until when it is held."""
        entry = self._entries.get((provider, group))
        return entry.held if entry is not None else {}

    def hold(self, provider: str, group: CallGroup, party: str, until_ms: int) -> None:
        """Hold a party that the provider told to wait, either this sidecar or another one of the fleet."""
        held = self._entry(provider, group).held
        until_ms = max(until_ms, held.pop(party, 0))
        if until_ms > self.now_ms():
            held[party] = until_ms
        while len(held) > HOLDS_MAX:
            del held[next(iter(held))]

    def adopt(self, provider: str, group: CallGroup, circuit: Circuit) -> None:
        """Continue from the fleet's state, or from the initial one. Times are those of this sidecar's clock."""
        entry, now_ms = self._entry(provider, group), self.now_ms()
        # Above both version numbers, so that earlier counts are not taken for this epoch's.
        number = max(entry.fleet.circuit.version, circuit.version) + 1
        adopted = replace(circuit, version=number, epoch=number, since_ms=circuit.since_ms or now_ms)
        self._set_fleet(entry, SharedCircuit(adopted), now_ms)

    def judge_all(self) -> None:
        now_ms, current_rules = self.now_ms(), self._current_rules()
        for key in [key for key in self._entries if key[0] not in current_rules]:
            del self._entries[key]
        for provider, rules in current_rules.items():
            for group in CallGroup:
                entry = self._entry(provider, group)
                entry.samples.set_rules(rules.for_group(group))
                for party in [party for party, until_ms in entry.held.items() if until_ms <= now_ms]:
                    del entry.held[party]
                self._judge(entry, now_ms)

    # --- the machine

    def _entry(self, provider: str, group: CallGroup) -> _LocalEntry:
        entry = self._entries.get((provider, group))
        if entry is None:
            rules = self._current_rules().get(provider) or CircuitRules()
            entry = self._entries[provider, group] = _LocalEntry(CircuitSamples.of(rules.for_group(group)))
        return entry

    def _judge(self, entry: _LocalEntry, now_ms: int) -> None:
        draw = self._chance.draw()
        # First apply the time that has passed. If it ends the epoch, the counts so far belong to the epoch that ended.
        self._set_fleet(entry, machine.advance(entry.fleet, now_ms), now_ms)
        row = entry.samples.row(now_ms)
        self._set_fleet(entry, machine.report(entry.fleet, _HERE, row, now_ms, draw, entry.samples.rules), now_ms)

    def _set_fleet(self, entry: _LocalEntry, fleet: SharedCircuit, now_ms: int) -> None:
        entry.fleet = fleet
        entry.samples.follow_epoch(fleet.circuit.epoch, now_ms)

    def _changes(self) -> Iterator[CircuitChange]:
        for (provider, group), entry in self._entries.items():
            state = entry.fleet.circuit.state
            if state is not entry.reported_state:
                yield CircuitChange(provider, group, entry.reported_state, state, fleet=False)
                entry.reported_state = state


def probe_lease_ms(per_try_s: float) -> int:
    return round(per_try_s * 1000) + machine.LEASE_SPARE_MS


def hold_until_ms(retry_after_s: float, now_ms: int) -> int:
    return now_ms + math.ceil(min(retry_after_s, HOLD_MAX_S) * 1000)


def circuit_status(
    key: CircuitKey, circuit: Circuit, now_ms: int, held: Mapping[str, int], *, fleet: bool, sidecars: int
) -> CircuitStatus:
    """The status of a circuit. All times are of one clock, `held` included."""
    all_held_ms = max(circuit.gate_ms, held.get(EVERYONE, 0))
    until_ms = circuit.until_ms if circuit.state is CircuitState.OPEN or circuit.forced is not None else 0
    return CircuitStatus(
        *key,
        state=circuit.state,
        fleet=fleet,
        for_s=max(0, now_ms - circuit.since_ms) / 1000 if circuit.version else 0.0,
        retry_after_s=max(0, until_ms - now_ms, all_held_ms - now_ms) / 1000,
        throttled=all_held_ms > now_ms,
        sidecars=sidecars,
        forced=circuit.forced,
        holds=hold_statuses(held, now_ms),
    )
