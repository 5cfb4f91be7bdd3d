"""The fleet's circuits: each sidecar's row goes to one Redis, the fleet's state comes back, in one script call.

Who speaks? The fleet, where its circuit is not simply passing calls. Else this sidecar's own circuits, which always run
beside it: a lone bad node opens for itself. When the store is gone they go on from where the fleet stood (an OPEN lasts
to its end, then this sidecar probes for itself), and when it is back the fleet speaks again. Nothing of it is asked
for on the path of a call, except the lease of a probe; and of those this sidecar asks for one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core import circuit as machine
from proxy.core.circuit import PASSING, Circuit, CircuitRules, CircuitState, Forced, Group
from proxy.core.errors import StoreUnavailable
from proxy.core.observation import Counts, Observation
from proxy.core.passage import REFUSED_WHILE_PROBING, CircuitView, Passage, permitted, view_of
from proxy.limits.circuits import (
    Book,
    Change,
    Heard,
    LocalCircuits,
    Order,
    Place,
    Probe,
    Standing,
    Tally,
    lease_ms,
    standing,
    verdict,
)
from proxy.limits.scripts import Argument, Runs, Script

LOST_AFTER_MS = machine.STALE_MS  # so long unheard, we are gone for the fleet, and it for us
# The circuit's fields between its state and the operator's words, as the script gives them.
_NUMBERS = (
    *("version", "epoch", "since_ms", "until_ms", "opened", "ok", "bad"),
    *("patience_ms", "troubled_ms", "gate_ms", "judged_ms"),
)
_AT_ONCE = 32  # reports in one go: more would make the last of them wait too long for their answer
_DENIED_MS = 100  # no probe was free: not asked again before this


@dataclass(frozen=True, slots=True)
class Reply:
    """What the script says, in the store's time."""

    granted: bool
    now_ms: int
    sidecars: int
    circuit: Circuit

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Reply:
        granted, now, sidecars, state, *numbers, actor, reason = (_text(part) for part in reply)
        values = dict(zip(_NUMBERS, map(int, numbers), strict=True))
        forced = Forced(actor, reason) if actor else None
        circuit = Circuit(state=CircuitState(state), forced=forced, **values)
        return cls(granted == "1", int(now), int(sidecars), circuit)


def _text(part: Any) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)


def keys_of(prefix: str, provider: str, group: Group) -> tuple[str, str, str]:
    """All in one slot of a cluster: the provider is the hash tag."""
    stem = f"{prefix}:circuit:{{{provider}}}:{group}"
    return f"{stem}:state", f"{stem}:rows", f"{stem}:leases"


def _numbers(rules: CircuitRules) -> tuple[Argument, ...]:
    opens, degrades = rules.open_at, rules.degrade_at
    shares = (opens.bad, opens.unknown, opens.slow, degrades.bad, degrades.unknown, degrades.slow, degrades.throttled)
    return rules.minimum, rules.minimum_to_open, *map(repr, shares)


def _counts(counts: Counts) -> tuple[Argument, ...]:
    return counts.total, counts.bad, counts.slow, counts.unknown, counts.throttled


@dataclass(slots=True)
class _Cell:
    tally: Tally  # for the row; this sidecar's own circuit has another, for its epochs are others
    shared: Circuit | None = None  # in the store's time
    offset_ms: int = 0  # our clock less the store's
    heard_ms: int = 0  # our clock
    sidecars: int = 1
    lost: bool = True
    asking: bool = False  # for a probe
    denied_until_ms: int = 0
    unsaid: dict[str, str] = field(default_factory=dict)  # by lease: votes that the store did not hear
    told: CircuitState = CircuitState.CLOSED


class RedisCircuits:
    def __init__(
        self, scripts: Runs, prefix: str, book: Book, clock: Clock, chance: Chance, heard: Heard | None = None
    ) -> None:
        self._scripts = scripts
        self._script = Script.named("circuit")
        self._prefix = prefix
        self._book = book
        self._chance = chance
        self._member = chance.token()
        self._alone = LocalCircuits(book, clock, chance, heard)
        self._cells: dict[Place, _Cell] = {}

    def view(self, provider: str, group: Group) -> CircuitView:
        cell = self._cells.get((provider, group))
        alone = self._alone.view(provider, group)
        if cell is None or cell.shared is None or cell.lost:
            return alone
        shared, now_ms = cell.shared, self._alone.now_ms()
        if not _speaks(shared, now_ms - cell.offset_ms):
            worse = shared.state is CircuitState.DEGRADED and alone.state is CircuitState.CLOSED
            return permitted(shared.state) if worse and alone.passage is Passage.PERMIT else alone
        draw = self._chance.draw() if shared.state not in PASSING else 0.0
        view = view_of(shared, now_ms - cell.offset_ms, draw)
        if view.passage is Passage.PROBE and (cell.asking or now_ms < cell.denied_until_ms):
            return REFUSED_WHILE_PROBING
        return view

    def observe(self, provider: str, group: Group, observation: Observation | None) -> None:
        if observation is not None:
            self._alone.observe(provider, group, observation)
            self._cell(provider, group).tally.add(observation, self._alone.now_ms())

    async def report(self) -> tuple[Change, ...]:
        book = self._book()
        for place in [place for place in self._cells if place[0] not in book]:
            del self._cells[place]
        self._alone.step_all()
        places = [(provider, group) for provider in book for group in Group]
        for provider, group in places:
            self._cell(provider, group).tally.rule_by(book[provider].of(group))
        for first in range(0, len(places), _AT_ONCE):
            await asyncio.gather(*(self._exchange(*place) for place in places[first : first + _AT_ONCE]))
        return tuple(change for place in places if (change := self._change(place)) is not None)

    async def take_probe(self, provider: str, group: Group, per_try_s: float, *, repeatable: bool) -> Probe | None:
        if not repeatable:
            return None
        cell = self._cell(provider, group)
        if not self._fleet_speaks(cell):
            return await self._alone.take_probe(provider, group, per_try_s, repeatable=True)
        if cell.asking or self._alone.now_ms() < cell.denied_until_ms:
            return None
        lease = self._chance.token()
        cell.asking = True
        try:
            reply = await self._run("take", provider, group, cell, lease, lease_ms(per_try_s))
        except StoreUnavailable:
            reply = None
            _keep_unsaid(cell, lease, "")  # should it have been granted
        finally:
            cell.asking = False
        if reply is not None and reply.granted:
            return Probe(provider, group, lease, fleet=True)
        cell.denied_until_ms = self._alone.now_ms() + _DENIED_MS
        return None

    async def end_probe(self, probe: Probe, observation: Observation | None) -> None:
        if not probe.fleet:
            await self._alone.end_probe(probe, observation)
            return
        well = verdict(observation)
        vote = "" if well is None else str(int(well))
        cell = self._cell(probe.provider, probe.group)
        try:
            await self._run("vote", probe.provider, probe.group, cell, probe.lease, vote)
        except StoreUnavailable:
            _keep_unsaid(cell, probe.lease, vote)

    async def force(self, provider: str, group: Group, order: Order) -> None:
        cell = self._cell(provider, group)
        if order.state is None:
            await self._run("release", provider, group, cell)
            return
        words = (order.state, round(order.for_s * 1000), order.actor, order.reason)
        await self._run("force", provider, group, cell, *words)

    def standings(self) -> tuple[Standing, ...]:
        alone = {(one.provider, one.group): one for one in self._alone.standings()}
        found = []
        for place, cell in sorted(self._cells.items()):
            own = alone.get(place)
            if cell.shared is None or cell.lost or (own and own.state not in PASSING and not self._fleet_speaks(cell)):
                found += [own] if own is not None else []
                continue
            found.append(self._shared_standing(place, cell))
        return tuple(found)

    def _shared_standing(self, place: Place, cell: _Cell) -> Standing:
        assert cell.shared is not None
        now_ms = self._alone.now_ms() - cell.offset_ms
        circuit = machine.advance(machine.Fleet(cell.shared), now_ms).circuit
        return standing(place, circuit, now_ms, fleet=True, sidecars=cell.sidecars)

    # --- the fleet

    def _cell(self, provider: str, group: Group) -> _Cell:
        cell = self._cells.get((provider, group))
        if cell is None:
            rules = self._book().get(provider) or CircuitRules()
            cell = self._cells[provider, group] = _Cell(Tally.of(rules.of(group)))
        return cell

    def _fleet_speaks(self, cell: _Cell) -> bool:
        if cell.shared is None or cell.lost:
            return False
        return _speaks(cell.shared, self._alone.now_ms() - cell.offset_ms)

    async def _exchange(self, provider: str, group: Group) -> None:
        """Our row goes, the fleet's state comes."""
        cell, now_ms = self._cell(provider, group), self._alone.now_ms()
        row = cell.tally.row(now_ms)
        left_ms = max(0, row.gate_ms - now_ms)
        words = (self._member, row.epoch, *_counts(row.recent), *_counts(row.whole), left_ms)
        try:
            await self._run("report", provider, group, cell, *words)
            await self._say_unsaid(provider, group, cell)
        except StoreUnavailable:
            if not cell.lost and self._alone.now_ms() - cell.heard_ms >= LOST_AFTER_MS:
                self._lose(provider, group, cell)

    async def _say_unsaid(self, provider: str, group: Group, cell: _Cell) -> None:
        """A lease that nobody gives back holds up the others until it is over. Said twice, a vote counts once."""
        for lease, vote in tuple(cell.unsaid.items()):
            await self._run("vote", provider, group, cell, lease, vote)
            cell.unsaid.pop(lease, None)

    async def _run(self, verb: str, provider: str, group: Group, cell: _Cell, *words: Argument) -> Reply:
        arguments = (verb, repr(self._chance.draw()), *_numbers(cell.tally.rules), *words)
        found = await self._scripts.run(self._script, keys_of(self._prefix, provider, group), arguments)
        try:
            reply = Reply.read(found)
        except ValueError as error:  # a state that only a later version of us knows
            raise StoreUnavailable("circuit: a reply that cannot be read") from error
        self._hear(provider, group, cell, reply)
        return reply

    def _hear(self, provider: str, group: Group, cell: _Cell, reply: Reply) -> None:
        now_ms, ruled = self._alone.now_ms(), not cell.lost and _rules(cell.shared)
        cell.shared, cell.sidecars, cell.lost = reply.circuit, reply.sidecars, False
        cell.offset_ms, cell.heard_ms = now_ms - reply.now_ms, now_ms
        cell.tally.follow(reply.circuit.epoch, now_ms)
        if _rules(cell.shared) and not ruled:
            self._alone.adopt(provider, group, Circuit())  # the fleet knows, and will say when it is over

    def _lose(self, provider: str, group: Group, cell: _Cell) -> None:
        """Go on alone: from where the fleet stood, if it was not simply passing calls."""
        if cell.shared is not None and self._fleet_speaks(cell):
            self._alone.adopt(provider, group, _rebased(cell.shared, cell.offset_ms))
        cell.lost = True

    def _change(self, place: Place) -> Change | None:
        cell = self._cells[place]
        view, before = self.view(*place), cell.told
        if view.state is before:
            return None
        cell.told = view.state
        shared = cell.shared
        return Change(*place, before, view.state, not cell.lost and shared is not None and shared.state is view.state)


def _keep_unsaid(cell: _Cell, lease: str, vote: str) -> None:
    """Until the next report; of more than there can be leases the oldest is over anyway."""
    cell.unsaid[lease] = vote
    while len(cell.unsaid) > machine.PROBES_MAX:
        del cell.unsaid[next(iter(cell.unsaid))]


def _rules(shared: Circuit | None) -> bool:
    return shared is not None and (shared.state not in PASSING or shared.forced is not None)


def _speaks(shared: Circuit, now_ms: int) -> bool:
    return _rules(shared) or shared.gate_ms > now_ms


def _rebased(circuit: Circuit, offset_ms: int) -> Circuit:
    return replace(
        circuit,
        since_ms=circuit.since_ms + offset_ms,
        until_ms=circuit.until_ms + offset_ms,
        patience_ms=circuit.patience_ms + offset_ms,
        troubled_ms=circuit.troubled_ms + offset_ms,
        gate_ms=circuit.gate_ms + offset_ms if circuit.gate_ms else 0,
        judged_ms=0,
    )
