"""The fleet's circuits: one script call sends this sidecar's row to Redis and returns the fleet's state.

Which circuit decides? If the fleet's circuit restricts calls, it decides. Otherwise this sidecar's own circuit does,
which always runs beside it, so that one sidecar with a bad network opens for itself. If the store is unavailable, the
local circuit continues from the fleet's state: an OPEN lasts to its end, then this sidecar probes for itself. When the
store is back, the fleet's circuit decides again. On the path of a call Redis is used only for the lease of a probe, and
this sidecar requests one such lease at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paywitness.clock import Clock
from paywitness.core import circuit as machine
from paywitness.core.circuit import (
    PASSING,
    REFUSED_WHILE_PROBING,
    CallGroup,
    Circuit,
    CircuitDecision,
    CircuitRules,
    CircuitState,
    CircuitStatus,
    CircuitView,
    ForcedState,
    SidecarReport,
    permitting_view,
    view_of,
    with_hold,
)
from paywitness.core.errors import StoreUnavailable
from paywitness.core.holds import EVERYONE
from paywitness.core.provider_health import HealthCounts, HealthSample
from paywitness.limits.budgets import KnownPeers
from paywitness.limits.circuits import (
    CircuitChange,
    CircuitCommand,
    CircuitKey,
    CircuitSamples,
    CurrentRules,
    LocalCircuits,
    Probe,
    SampleListener,
    circuit_status,
    probe_lease_ms,
    probe_vote,
)
from paywitness.limits.redis_scripts import Argument, ScriptRunner
from paywitness.randomness import Randomness
from paywitness.redis.pipeline import LuaScript

CIRCUIT = LuaScript.load(Path(__file__).parent / "lua", "circuit")
LOST_AFTER_MS = machine.STALE_MS  # after so long without a report the fleet ignores us, and we ignore its state
# The circuit's fields between its state and the operator's command, in the script's order.
_NUMBER_FIELDS = (
    *("version", "epoch", "since_ms", "until_ms", "opened", "ok", "bad"),
    *("patience_ms", "troubled_ms", "gate_ms", "judged_ms"),
)
_SYNCS_AT_ONCE = 32  # reports at the same time: with more the last ones would wait too long for their reply
_PROBE_DENIED_MS = 100  # if no probe was free, none is requested again before this


@dataclass(frozen=True, slots=True)
class CircuitReply:
    """The script's reply, in the store's time."""

    granted: bool
    now_ms: int
    sidecars: int
    circuit: Circuit
    holds_seen: int | None  # the last change of holds that it covers; None: it has no holds
    holds: Mapping[str, int]  # the holds that changed, by party: until when

    @classmethod
    def read(cls, reply: Sequence[Any]) -> CircuitReply:
        granted, now, sidecars, state, *parts = (_text(part) for part in reply)
        numbers, (actor, reason, *told) = parts[: len(_NUMBER_FIELDS)], parts[len(_NUMBER_FIELDS) :]
        values = dict(zip(_NUMBER_FIELDS, map(int, numbers), strict=True))
        forced = ForcedState(actor, reason) if actor else None
        circuit = Circuit(state=CircuitState(state), forced=forced, **values)
        holds = {party: int(until_ms) for party, until_ms in zip(told[1::2], told[2::2], strict=True)}
        return cls(granted == "1", int(now), int(sidecars), circuit, int(told[0]) if told else None, holds)


def _text(part: Any) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)


def keys_of(prefix: str, provider: str, group: CallGroup) -> list[str]:
    """The keys of a circuit, all in one slot of a cluster: the provider is the hash tag. An earlier release uses the
    first three too."""
    stem = f"{prefix}:circuit:{{{provider}}}:{group}"
    return [f"{stem}:{name}" for name in ("state", "rows", "leases", "holds", "holds-asked", "asked")]


def _rule_arguments(rules: CircuitRules) -> tuple[Argument, ...]:
    opens, degrades = rules.open_at, rules.degrade_at
    shares = (opens.bad, opens.unknown, opens.slow, degrades.bad, degrades.unknown, degrades.slow, degrades.throttled)
    return rules.minimum, rules.minimum_to_open, *map(repr, shares)


def report_arguments(sidecar: str, row: SidecarReport, now_ms: int, holds_seen: int) -> list[Argument]:
    """The arguments after the verb and the rules: the row, and the waits that the provider requested since the last
    row."""
    counts = (*_count_arguments(row.recent), *_count_arguments(row.whole), row.recent.asked, row.whole.asked)
    asks = [part for party, until_ms in row.asks.items() for part in (party, max(0, until_ms - now_ms))]
    return [sidecar, row.epoch, *counts, holds_seen, *asks]


def _count_arguments(counts: HealthCounts) -> tuple[Argument, ...]:
    return counts.total, counts.bad, counts.slow, counts.unknown, counts.throttled


@dataclass(slots=True)
class _FleetEntry:
    samples: CircuitSamples  # for the row; the local circuit has its own, because its epochs differ
    shared: Circuit | None = None  # in the store's time
    offset_ms: int = 0  # our clock minus the store's
    synced_ms: int = 0  # our clock
    sidecars: int = 1
    holds_seen: int = 0  # the last change of the fleet's holds that we know
    detached: bool = True
    requesting_probe: bool = False  # a request for a probe is under way
    probe_denied_until_ms: int = 0
    unsent_votes: dict[str, str] = field(default_factory=dict)  # by lease: votes that the store did not confirm
    reported_state: CircuitState = CircuitState.CLOSED


class RedisCircuits:
    def __init__(
        self,
        scripts: ScriptRunner,
        prefix: str,
        current_rules: CurrentRules,
        clock: Clock,
        chance: Randomness,
        known_peers: KnownPeers,
        listener: SampleListener | None = None,
    ) -> None:
        """`known_peers` is filled here, for the budgets. Every sidecar reports, even one without calls."""
        self._scripts = scripts
        self._known_peers = known_peers
        self._prefix = prefix
        self._current_rules = current_rules
        self._chance = chance
        self._sidecar = chance.token()
        self._local = LocalCircuits(current_rules, clock, chance, listener)
        self._entries: dict[CircuitKey, _FleetEntry] = {}

    def view(self, provider: str, group: CallGroup, party: str = EVERYONE) -> CircuitView:
        entry = self._entries.get((provider, group))
        local = self._local.view(provider, group, party)
        if entry is None or entry.shared is None or entry.detached:
            return local
        shared, now_ms = entry.shared, self._local.now_ms()
        if not _governs(shared, now_ms - entry.offset_ms):
            worse = shared.state is CircuitState.DEGRADED and local.state is CircuitState.CLOSED
            return permitting_view(shared.state) if worse and local.decision is CircuitDecision.PERMIT else local
        draw = self._chance.draw() if shared.state not in PASSING else 0.0
        view = view_of(shared, now_ms - entry.offset_ms, draw)
        held = self._local.held(provider, group)
        if held and shared.forced is None:
            view = with_hold(view, held, party, now_ms)
        if view.decision is CircuitDecision.PROBE and (entry.requesting_probe or now_ms < entry.probe_denied_until_ms):
            return REFUSED_WHILE_PROBING
        return view

    def add_sample(self, provider: str, group: CallGroup, sample: HealthSample | None, party: str = EVERYONE) -> None:
        if sample is not None:
            self._local.add_sample(provider, group, sample, party)
            self._entry(provider, group).samples.add(sample, party, self._local.now_ms())

    async def sync(self) -> tuple[CircuitChange, ...]:
        current_rules = self._current_rules()
        for key in [key for key in self._entries if key[0] not in current_rules]:
            del self._entries[key]
        self._local.judge_all()
        places = [(provider, group) for provider in current_rules for group in CallGroup]
        for provider, group in places:
            self._entry(provider, group).samples.set_rules(current_rules[provider].for_group(group))
        for first in range(0, len(places), _SYNCS_AT_ONCE):
            await asyncio.gather(*(self._sync_one(*key) for key in places[first : first + _SYNCS_AT_ONCE]))
        return tuple(change for key in places if (change := self._state_change(key)) is not None)

    async def take_probe(self, provider: str, group: CallGroup, per_try_s: float, *, repeatable: bool) -> Probe | None:
        if not repeatable:
            return None
        entry = self._entry(provider, group)
        if not self._fleet_governs(entry):
            return await self._local.take_probe(provider, group, per_try_s, repeatable=True)
        if entry.requesting_probe or self._local.now_ms() < entry.probe_denied_until_ms:
            return None
        lease = self._chance.token()
        entry.requesting_probe = True
        try:
            reply = await self._run("take", provider, group, entry, lease, probe_lease_ms(per_try_s))
        except StoreUnavailable:
            reply = None
            _keep_unsent_vote(entry, lease, "")  # because the store may have granted it
        finally:
            entry.requesting_probe = False
        if reply is not None and reply.granted:
            return Probe(provider, group, lease, fleet=True)
        entry.probe_denied_until_ms = self._local.now_ms() + _PROBE_DENIED_MS
        return None

    async def end_probe(self, probe: Probe, sample: HealthSample | None) -> None:
        if not probe.fleet:
            await self._local.end_probe(probe, sample)
            return
        well = probe_vote(sample)
        vote = "" if well is None else str(int(well))
        entry = self._entry(probe.provider, probe.group)
        try:
            await self._run("vote", probe.provider, probe.group, entry, probe.lease, vote)
        except StoreUnavailable:
            _keep_unsent_vote(entry, probe.lease, vote)

    async def force(self, provider: str, group: CallGroup, command: CircuitCommand) -> None:
        entry = self._entry(provider, group)
        if command.state is None:
            await self._run("release", provider, group, entry)
            return
        parameters = (command.state, round(command.for_s * 1000), command.actor, command.reason)
        await self._run("force", provider, group, entry, *parameters)

    def statuses(self) -> tuple[CircuitStatus, ...]:
        local = {(one.provider, one.group): one for one in self._local.statuses()}
        found = []
        for key, entry in sorted(self._entries.items()):
            own = local.get(key)
            if (
                entry.shared is None
                or entry.detached
                or (own and own.state not in PASSING and not self._fleet_governs(entry))
            ):
                found += [own] if own is not None else []
                continue
            found.append(self._fleet_status(key, entry))
        return tuple(found)

    def _fleet_status(self, key: CircuitKey, entry: _FleetEntry) -> CircuitStatus:
        assert entry.shared is not None
        now_ms = self._local.now_ms()
        circuit = machine.advance(machine.SharedCircuit(entry.shared), now_ms - entry.offset_ms).circuit
        circuit = _in_local_time(circuit, entry.offset_ms)
        return circuit_status(key, circuit, now_ms, self._local.held(*key), fleet=True, sidecars=entry.sidecars)

    # --- the fleet

    def _entry(self, provider: str, group: CallGroup) -> _FleetEntry:
        entry = self._entries.get((provider, group))
        if entry is None:
            rules = self._current_rules().get(provider) or CircuitRules()
            entry = self._entries[provider, group] = _FleetEntry(CircuitSamples.of(rules.for_group(group)))
        return entry

    def _fleet_governs(self, entry: _FleetEntry) -> bool:
        if entry.shared is None or entry.detached:
            return False
        return _governs(entry.shared, self._local.now_ms() - entry.offset_ms)

    async def _sync_one(self, provider: str, group: CallGroup) -> None:
        """Send our row and read the fleet's state."""
        entry, now_ms = self._entry(provider, group), self._local.now_ms()
        row: SidecarReport | None = entry.samples.row(now_ms)
        assert row is not None
        parameters = report_arguments(self._sidecar, row, now_ms, entry.holds_seen)
        try:
            await self._run("report", provider, group, entry, *parameters)
            row = None
            await self._send_unsent_votes(provider, group, entry)
        except StoreUnavailable:
            if row is not None:
                entry.samples.put_back(row.asks, now_ms)  # a hold that is sent twice counts once
            if not entry.detached and self._local.now_ms() - entry.synced_ms >= LOST_AFTER_MS:
                self._detach(provider, group, entry)

    async def _send_unsent_votes(self, provider: str, group: CallGroup, entry: _FleetEntry) -> None:
        """Send votes again that the store did not confirm. A lease that nobody gives back blocks other probes until it
        is over. A vote that is sent twice counts once."""
        for lease, vote in tuple(entry.unsent_votes.items()):
            await self._run("vote", provider, group, entry, lease, vote)
            entry.unsent_votes.pop(lease, None)

    async def _run(
        self, verb: str, provider: str, group: CallGroup, entry: _FleetEntry, *parameters: Argument
    ) -> CircuitReply:
        arguments = (verb, repr(self._chance.draw()), *_rule_arguments(entry.samples.rules), *parameters)
        found = await self._scripts.run(CIRCUIT, keys_of(self._prefix, provider, group), arguments)
        try:
            reply = CircuitReply.read(found)
        except ValueError as error:  # a state that only a later version knows
            raise StoreUnavailable("circuit: a reply that cannot be read") from error
        self._apply_reply(provider, group, entry, reply)
        return reply

    def _apply_reply(self, provider: str, group: CallGroup, entry: _FleetEntry, reply: CircuitReply) -> None:
        now_ms, restricted = self._local.now_ms(), not entry.detached and _restricts(entry.shared)
        entry.shared, entry.sidecars, entry.detached = reply.circuit, reply.sidecars, False
        self._known_peers[provider] = reply.sidecars
        entry.offset_ms, entry.synced_ms = now_ms - reply.now_ms, now_ms
        entry.samples.follow_epoch(reply.circuit.epoch, now_ms)
        if reply.holds_seen is not None:
            entry.holds_seen = reply.holds_seen
        for party, until_ms in reply.holds.items():
            self._local.hold(provider, group, party, until_ms + entry.offset_ms)
        if _restricts(entry.shared) and not restricted:
            self._local.adopt(provider, group, Circuit())  # the fleet's circuit decides, and will end the restriction

    def _detach(self, provider: str, group: CallGroup, entry: _FleetEntry) -> None:
        """Continue with the local circuit: from the fleet's state, if that restricts calls."""
        if entry.shared is not None and self._fleet_governs(entry):
            self._local.adopt(provider, group, _in_local_time(entry.shared, entry.offset_ms))
        entry.detached = True

    def _state_change(self, key: CircuitKey) -> CircuitChange | None:
        entry = self._entries[key]
        view, before = self.view(*key), entry.reported_state
        if view.state is before:
            return None
        entry.reported_state = view.state
        shared = entry.shared
        return CircuitChange(
            *key, before, view.state, not entry.detached and shared is not None and shared.state is view.state
        )


def _keep_unsent_vote(entry: _FleetEntry, lease: str, vote: str) -> None:
    """Keep a vote until the next report. The number of leases is bounded, so beyond it the oldest is over anyway."""
    entry.unsent_votes[lease] = vote
    while len(entry.unsent_votes) > machine.PROBES_MAX:
        del entry.unsent_votes[next(iter(entry.unsent_votes))]


def _restricts(shared: Circuit | None) -> bool:
    return shared is not None and (shared.state not in PASSING or shared.forced is not None)


def _governs(shared: Circuit, now_ms: int) -> bool:
    return _restricts(shared) or shared.gate_ms > now_ms


def _in_local_time(circuit: Circuit, offset_ms: int) -> Circuit:
    return replace(
        circuit,
        since_ms=circuit.since_ms + offset_ms,
        until_ms=circuit.until_ms + offset_ms,
        patience_ms=circuit.patience_ms + offset_ms,
        troubled_ms=circuit.troubled_ms + offset_ms,
        gate_ms=circuit.gate_ms + offset_ms if circuit.gate_ms else 0,
        judged_ms=0,
    )
