"""Circuits: the interface, and the local ones: the core's machine with one row, this sidecar's own.

`view` and `observe` are on the path of every call and ask nobody. `report` is called twice a second. A probe that was
taken must be ended, with what it showed or with None; one that is not (its process died) is free again when its lease
is over, and its vote, should it still come, is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core import circuit as machine
from proxy.core.circuit import PASSING, Circuit, CircuitRules, CircuitState, Fleet, Forced, Group, Row
from proxy.core.observation import RECENT_BUCKETS, Health, Observation, Window
from proxy.core.passage import PERMITTED, CircuitView, view_of

FORCED_MAX_S = 7 * 86400.0  # an operator's word is forgotten sooner than the operator
_HERE = "here"
_DOWN = frozenset({CircuitState.OPEN, CircuitState.HALF_OPEN})

Book = Callable[[], Mapping[str, CircuitRules]]  # the rules of every provider that there is now
Heard = Callable[[str, Group, Observation], None]  # who else wants to know what an attempt showed
Place = tuple[str, Group]


@dataclass(frozen=True, slots=True)
class Probe:
    """The right to one call while a circuit is half open."""

    provider: str
    group: Group
    lease: str
    fleet: bool  # leased by the fleet's store; else by this sidecar for itself


@dataclass(frozen=True, slots=True)
class Order:
    """An operator's word about a circuit. `state` None takes an earlier one back."""

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
class Standing:
    """Where a circuit stands, for people and gauges."""

    provider: str
    group: Group
    state: CircuitState
    fleet: bool  # the fleet's state; else this sidecar's own
    for_s: float  # how long it has stood so
    retry_after_s: float  # until the next change, where that is known: OPEN, forced, the gate
    throttled: bool
    sidecars: int
    forced: Forced | None


@dataclass(frozen=True, slots=True)
class Change:
    provider: str
    group: Group
    before: CircuitState
    after: CircuitState
    fleet: bool

    @property
    def recovered(self) -> bool:
        """The provider is back: its due inquiries may be pulled forward."""
        return self.before in _DOWN and self.after not in _DOWN


class Circuits(Protocol):
    def view(self, provider: str, group: Group) -> CircuitView:
        """Whether a call may pass now. Asks nobody."""
        ...

    def observe(self, provider: str, group: Group, observation: Observation | None) -> None:
        """What an attempt showed, probes included; None (it showed nothing) is taken and not counted."""
        ...

    async def report(self) -> tuple[Change, ...]:
        """Tell the fleet, hear from it, and let time pass. Twice a second. Never raises for a store that is gone."""
        ...

    async def take_probe(self, provider: str, group: Group, per_try_s: float, *, repeatable: bool) -> Probe | None:
        """The right to a call where `view` said PROBE, or None: refuse. `repeatable`: a safe read, or deduped."""
        ...

    async def end_probe(self, probe: Probe, observation: Observation | None) -> None:
        """Give the probe back, with its vote. None, or throttled: no vote. Every probe taken is ended once."""
        ...

    async def force(self, provider: str, group: Group, order: Order) -> None:
        """Put an operator's word in force, fleet-wide. Raises StoreUnavailable where that could not be confirmed."""
        ...

    def standings(self) -> tuple[Standing, ...]: ...


def verdict(observation: Observation | None) -> bool | None:
    """A probe's vote. Throttled is neither well nor ill: the gate speaks for it."""
    if observation is None or observation.health is Health.THROTTLED:
        return None
    return observation.well


@dataclass(slots=True)
class Tally:
    """What this sidecar has seen of one circuit in its present epoch."""

    rules: CircuitRules
    window: Window
    epoch: int = 0
    began_ms: int = 0  # of the epoch: calls that began before it say nothing about it
    gate_ms: int = 0

    @classmethod
    def of(cls, rules: CircuitRules) -> Tally:
        return cls(rules, Window(rules.window_s))

    def add(self, observation: Observation, now_ms: int) -> bool:
        """Whether it counted."""
        if now_ms - observation.duration_s * 1000 < self.began_ms:
            return False
        self.window.add(observation, now_ms)
        if observation.retry_after_s is not None:
            self.gate_ms = max(self.gate_ms, now_ms + round(min(observation.retry_after_s, 1e6) * 1000))
        return True

    def row(self, now_ms: int) -> Row:
        recent, whole = self.window.counts(now_ms, RECENT_BUCKETS), self.window.counts(now_ms)
        return Row(now_ms, self.epoch, recent, whole, self.gate_ms if self.gate_ms > now_ms else 0)

    def follow(self, epoch: int, now_ms: int) -> None:
        """Start anew where a new epoch has begun."""
        if epoch != self.epoch:
            self.epoch, self.began_ms, self.gate_ms = epoch, now_ms, 0
            self.window.clear()

    def rule_by(self, rules: CircuitRules) -> None:
        if rules != self.rules:
            if rules.window_s != self.rules.window_s:
                self.window = Window(rules.window_s)
            self.rules = rules


@dataclass(slots=True)
class _Cell:
    tally: Tally
    fleet: Fleet = field(default_factory=Fleet)
    told: CircuitState = CircuitState.CLOSED


class LocalCircuits:
    """The circuits of one sidecar that knows of no other."""

    def __init__(self, book: Book, clock: Clock, chance: Chance, heard: Heard | None = None) -> None:
        self._book = book
        self._clock = clock
        self._chance = chance
        self._heard = heard
        self._cells: dict[Place, _Cell] = {}

    def view(self, provider: str, group: Group) -> CircuitView:
        cell = self._cells.get((provider, group))
        if cell is None:
            return PERMITTED
        circuit = cell.fleet.circuit
        if circuit.state is CircuitState.CLOSED and circuit.gate_ms == 0 and circuit.forced is None:
            return PERMITTED
        draw = self._chance.draw() if circuit.state not in PASSING else 0.0
        return view_of(circuit, self.now_ms(), draw)

    def observe(self, provider: str, group: Group, observation: Observation | None) -> None:
        if observation is None:
            return
        if self._heard is not None:
            self._heard(provider, group, observation)
        cell, now_ms = self._cell(provider, group), self.now_ms()
        counted = cell.tally.add(observation, now_ms)
        if observation.well:
            return
        due = not 0 <= now_ms - cell.fleet.circuit.judged_ms < machine.JUDGE_EVERY_MS
        if counted and due:
            self._step(cell, now_ms)  # bad news does not wait for the next report

    async def report(self) -> tuple[Change, ...]:
        self.step_all()
        return tuple(self._changes())

    async def take_probe(self, provider: str, group: Group, per_try_s: float, *, repeatable: bool) -> Probe | None:
        if not repeatable:
            return None
        cell, now_ms, lease = self._cell(provider, group), self.now_ms(), self._chance.token()
        self._put(cell, machine.advance(cell.fleet, now_ms), now_ms)
        fleet, granted = machine.take(cell.fleet, lease, now_ms, lease_ms(per_try_s))
        self._put(cell, fleet, now_ms)
        return Probe(provider, group, lease, fleet=False) if granted else None

    async def end_probe(self, probe: Probe, observation: Observation | None) -> None:
        cell, now_ms = self._cell(probe.provider, probe.group), self.now_ms()
        draw = self._chance.draw()
        self._put(cell, machine.vote(cell.fleet, probe.lease, verdict(observation), now_ms, draw), now_ms)

    async def force(self, provider: str, group: Group, order: Order) -> None:
        cell, now_ms = self._cell(provider, group), self.now_ms()
        if order.state is None:
            self._put(cell, machine.release(cell.fleet, now_ms), now_ms)
            return
        by = Forced(order.actor, order.reason)
        self._put(cell, machine.force(cell.fleet, order.state, by, now_ms, round(order.for_s * 1000)), now_ms)

    def standings(self) -> tuple[Standing, ...]:
        now_ms = self.now_ms()
        return tuple(
            standing(place, machine.advance(cell.fleet, now_ms).circuit, now_ms, fleet=False, sidecars=1)
            for place, cell in sorted(self._cells.items())
        )

    # --- for the fleet's circuits, which keep these warm

    def now_ms(self) -> int:
        return int(self._clock.mono() * 1000)

    def circuit(self, provider: str, group: Group) -> Circuit:
        cell = self._cells.get((provider, group))
        return machine.advance(cell.fleet, self.now_ms()).circuit if cell is not None else Circuit()

    def adopt(self, provider: str, group: Group, circuit: Circuit) -> None:
        """Go on from where the fleet stood, or from the beginning. Times are those of this sidecar's clock."""
        cell, now_ms = self._cell(provider, group), self.now_ms()
        # Beyond both numberings, so that what was counted until now is not taken for this epoch's.
        number = max(cell.fleet.circuit.version, circuit.version) + 1
        adopted = replace(circuit, version=number, epoch=number, since_ms=circuit.since_ms or now_ms)
        self._put(cell, Fleet(adopted), now_ms)

    def step_all(self) -> None:
        now_ms, book = self.now_ms(), self._book()
        for place in [place for place in self._cells if place[0] not in book]:
            del self._cells[place]
        for provider, rules in book.items():
            for group in Group:
                cell = self._cell(provider, group)
                cell.tally.rule_by(rules.of(group))
                self._step(cell, now_ms)

    # --- the machine

    def _cell(self, provider: str, group: Group) -> _Cell:
        cell = self._cells.get((provider, group))
        if cell is None:
            rules = self._book().get(provider) or CircuitRules()
            cell = self._cells[provider, group] = _Cell(Tally.of(rules.of(group)))
        return cell

    def _step(self, cell: _Cell, now_ms: int) -> None:
        draw = self._chance.draw()
        # First what time changes: what was counted until now belongs to the epoch that it ends.
        self._put(cell, machine.advance(cell.fleet, now_ms), now_ms)
        row = cell.tally.row(now_ms)
        self._put(cell, machine.report(cell.fleet, _HERE, row, now_ms, draw, cell.tally.rules), now_ms)

    def _put(self, cell: _Cell, fleet: Fleet, now_ms: int) -> None:
        cell.fleet = fleet
        cell.tally.follow(fleet.circuit.epoch, now_ms)

    def _changes(self) -> Iterator[Change]:
        for (provider, group), cell in self._cells.items():
            state = cell.fleet.circuit.state
            if state is not cell.told:
                yield Change(provider, group, cell.told, state, fleet=False)
                cell.told = state


def lease_ms(per_try_s: float) -> int:
    return round(per_try_s * 1000) + machine.LEASE_SPARE_MS


def standing(place: Place, circuit: Circuit, now_ms: int, *, fleet: bool, sidecars: int) -> Standing:
    until_ms = circuit.until_ms if circuit.state is CircuitState.OPEN or circuit.forced is not None else 0
    return Standing(
        *place,
        state=circuit.state,
        fleet=fleet,
        for_s=max(0, now_ms - circuit.since_ms) / 1000 if circuit.version else 0.0,
        retry_after_s=max(0, until_ms - now_ms, circuit.gate_ms - now_ms) / 1000,
        throttled=circuit.gate_ms > now_ms,
        sidecars=sidecars,
        forced=circuit.forced,
    )
