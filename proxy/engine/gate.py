"""The gate: whether a call may go to its provider now. Asked locally and before the journal; a refusal has a name.

Refused means that nothing new is written or sent; what is already known under the key is still answered. Whoever is let
through has a Turn: a place among the provider's calls in flight and, where its circuit is half open, a probe. A turn is
for one attempt and is ended once, with what the attempt showed of the provider.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.admission import AdmissionRefusal, Lane
from proxy.core.call import Priority
from proxy.core.circuit import CircuitRules, Group
from proxy.core.evidence import Evidence, WireFault
from proxy.core.frozen import frozen
from proxy.core.limited import Limited
from proxy.core.observation import OF_AN_ILL_PROVIDER, Observation, observation_of, observation_of_read
from proxy.core.operation import GuardKind, Operation
from proxy.core.passage import CircuitRefusal, CircuitView, Passage
from proxy.core.policy import FallbackCause, Policy
from proxy.core.reading import Classification
from proxy.core.retry_after import retry_after_s
from proxy.engine.errand import Errand, Turn
from proxy.limits.admission import Admission, Refused
from proxy.limits.circuits import Circuits, Probe
from proxy.policy.book import PolicyBook

_log = logging.getLogger("paywitness.limits")
_ILL_IN_A_ROW = 3  # so many failures and then a success: it was down, even where too few called for a circuit to open
_NOTHING_SENT = "Nothing was sent."
_LANES = {priority: Lane(priority) for priority in Priority}


@frozen
class Permit:
    granted: bool
    refusal: str = ""  # the name of the refusal, for the answer and the metric
    detail: str = ""
    retry_after_s: float = 1.0
    turn: Turn | None = None  # of what is granted; None: it is held back at once, and goes on by another route

    @property
    def limited(self) -> Limited:
        return Limited(self.refusal, self.retry_after_s)

    @property
    def by_circuit(self) -> bool:
        return self.refusal in _BY_CIRCUIT

    @property
    def for_want_of_room(self) -> bool:
        return self.refusal == AdmissionRefusal.QUEUE_FULL


_BY_CIRCUIT = frozenset(CircuitRefusal)
_DRAINING = Permit(False, "draining", f"This sidecar is shutting down. {_NOTHING_SENT} Try again, another will answer.")
_CALLER_LEFT = Permit(False, "caller_left", f"Its caller left while it waited for its turn. {_NOTHING_SENT}")
_ROLLED_BACK = Permit(
    False,
    "journal_rolled_back",
    f"The journal may have forgotten its last moments, and this provider would not notice a payment made twice. "
    f"{_NOTHING_SENT} Try again in a minute.",
    60.0,
)


def _never(*_: object) -> bool:
    return False


@dataclass(slots=True)
class Gate:
    circuits: Circuits
    admission: Admission
    book: Callable[[], PolicyBook]
    clock: Clock
    calls_max: int
    cautious: Callable[[], bool] = _never  # whether the journal may have forgotten what it took
    may_have_ended: Callable[[Operation], bool] = _never  # and whether an end that was told is part of that
    draining: bool = False
    recovered: set[str] = field(default_factory=set)  # providers that answer again; whoever tells the journal clears it
    _ill: Counter[str] = field(default_factory=Counter)

    async def permit(self, errand: Errand, calls_under_way: int, *, waits: bool = True) -> Permit:
        """Whether this call may start something new. Waits for a place, a little, unless told not to."""
        policy = errand.policy
        if self.draining:
            return _DRAINING
        if calls_under_way >= self.calls_max:
            detail = f"{self.calls_max} calls are under way already. {_NOTHING_SENT}"
            return Permit(False, "overloaded", detail)
        if not policy.contract.dedupes and self.cautious():
            return _ROLLED_BACK
        time_left_s = self._time_left_s(errand) if waits else 0.0
        permit = await self.turn(policy, Group.WRITE, _LANES[errand.priority], time_left_s)
        if not permit.granted and permit.by_circuit and _falls_back_when_open(errand, policy):
            return Permit(True)  # it starts, is held back at once, and goes on by another route
        if permit.turn is not None and permit.turn.admitted.waited_s > 0 and not errand.still_there():
            await self.end(permit.turn, None)
            return _CALLER_LEFT
        return permit

    async def turn(self, policy: Policy, group: Group, lane: Lane, time_left_s: float) -> Permit:
        """A turn at the provider, or why not. Waits for a place, a little."""
        provider = policy.provider
        view = self.circuits.view(provider, group)
        if view.passage is Passage.REFUSE:
            return _held(provider, view)
        probe = None
        if view.passage is Passage.PROBE:
            probe = await self._probe(policy, group)
            if probe is None:
                return _held(provider, view)
        try:
            admitted = await self.admission.admit(provider, lane, time_left_s, degraded=view.degraded)
        except BaseException:
            if probe is not None:
                await self.circuits.end_probe(probe, None)
            raise
        if isinstance(admitted, Refused):
            if probe is not None:
                await self.circuits.end_probe(probe, None)
            detail = f"{provider} has as many calls as it can take. {_NOTHING_SENT}"
            return Permit(False, admitted.reason, detail, admitted.retry_after_s)
        turn = Turn(policy, group, admitted, probe)
        if probe is None and admitted.waited_s > 0:  # it may have gone down meanwhile
            view = self.circuits.view(provider, group)
            if view.passage is not Passage.PERMIT:
                await self.end(turn, None)
                return _held(provider, view)
        return Permit(True, "", "", 0.0, turn)

    async def _probe(self, policy: Policy, group: Group) -> Probe | None:
        timeouts, repeatable = policy.timeouts, group is Group.INQUIRY or policy.contract.dedupes
        per_try_s = timeouts.connect_s + timeouts.tls_s + timeouts.first_byte_s
        return await self.circuits.take_probe(policy.provider, group, per_try_s, repeatable=repeatable)

    async def enter(self, errand: Errand, operation: Operation, policy: Policy) -> Evidence | None:
        """Before each attempt: None where it may go to the wire, else the evidence that it did not."""
        errand.byte_started = False  # of this attempt, from here on: waiting for its turn is part of it
        if errand.in_background and self.may_have_ended(operation):
            await self.leave(errand)
            errand.limited = _ROLLED_BACK.limited
            return Evidence.held_back(WireFault.NOT_ADMITTED, _ROLLED_BACK.refusal)
        if errand.turn is not None:
            return None
        lane = Lane.RESOLUTION if errand.nobody_hears else _LANES[errand.priority]
        time_left_s = self._time_left_s(errand) if not operation.doubt else policy.timeouts.deadline_s
        permit = await self.turn(policy, Group.WRITE, lane, time_left_s)
        if permit.granted:
            errand.turn, errand.limited = permit.turn, None
            return None
        errand.limited = permit.limited
        fault = WireFault.CIRCUIT_OPEN if permit.by_circuit else WireFault.NOT_ADMITTED
        return Evidence.held_back(fault, permit.refusal)

    async def leave(
        self, errand: Errand, evidence: Evidence | None = None, classification: Classification | None = None
    ) -> Observation | None:
        """The errand's turn is over, with what its attempt showed; or nothing is sent by it after all."""
        turn, errand.turn = errand.turn, None
        observation = None
        if turn is not None and evidence is not None and classification is not None:
            reading = classification.reading
            asked_s = retry_after_s(evidence.response, self.clock.now()) if reading in OF_AN_ILL_PROVIDER else None
            observation = observation_of(reading, evidence, self._slow_after_s(turn), asked_s)
        if turn is not None:
            await self.end(turn, observation)
        return observation

    async def end_read(self, turn: Turn, evidence: Evidence | None) -> Observation | None:
        """An inquiry's turn is over. None: nobody was asked."""
        if evidence is None:
            await self.end(turn, None)
            return None
        asked_s = retry_after_s(evidence.response, self.clock.now())
        observation = observation_of_read(evidence, self._slow_after_s(turn), asked_s)
        await self.end(turn, observation)
        return observation

    async def end(self, turn: Turn, observation: Observation | None) -> None:
        """Never raises for the limits' own sake: what the attempt showed of the payment matters more."""
        provider = turn.policy.provider
        try:
            self.admission.release(turn.admitted, observation)
            self.circuits.observe(provider, turn.group, observation)
            if observation is not None and not observation.well:
                self._ill[provider] += 1
            elif observation is not None and self._ill.pop(provider, 0) >= _ILL_IN_A_ROW:
                self.recovered.add(provider)
            if turn.probe is not None:
                await self.circuits.end_probe(turn.probe, observation)
        except Exception as error:  # noqa: BLE001  # a vote less, never an answer less
            _log.error("what %s showed was not counted: %s", provider, type(error).__name__)

    def _slow_after_s(self, turn: Turn) -> float:
        provider = self.book().providers.get(turn.policy.provider)
        return (provider.circuit if provider is not None else CircuitRules()).slow_after_s

    def _time_left_s(self, errand: Errand) -> float:
        return max(0.0, errand.deadline_mono - self.clock.mono())


def _falls_back_when_open(errand: Errand, policy: Policy) -> bool:
    guard = errand.identity.guard
    if guard is None or guard.kind is not GuardKind.INTENT:
        return False
    return any(FallbackCause.CIRCUIT_OPEN in fallback.when for fallback in policy.fallbacks)


def _held(provider: str, view: CircuitView) -> Permit:
    reason = view.reason or CircuitRefusal.PROBING
    return Permit(False, reason, f"{provider} {_WHY[reason]}. {_NOTHING_SENT}", view.retry_after_s)


_WHY = {
    CircuitRefusal.OPEN: "is down, as the last calls showed",
    CircuitRefusal.FORCED: "was closed to new calls by an operator",
    CircuitRefusal.PROBING: "was down, and is being tried with a few calls",
    CircuitRefusal.RAMP: "was down, and is given a part of its calls until it has held",
    CircuitRefusal.THROTTLED: "asked to be left alone for a while (Retry-After)",
}
