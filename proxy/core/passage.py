"""Passage: whether a call may go to the provider now, read off a circuit without asking anybody.

A refusal has a name, for the answer and the metric, and says when to come back. HALF_OPEN lets nothing pass by itself:
a call needs a leased probe, and only one whose repetition the provider dedupes (or a safe read) may be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.core.circuit import Circuit, CircuitState, Fleet, advance, ramp_share

HALF_OPEN_RETRY_S = 1.0  # probes are being made: soon, and not at once
_RAMP_RETRY_S = 1.0  # a stage of the ramp


class Passage(StrEnum):
    PERMIT = "permit"
    PROBE = "probe"  # take a probe, or refuse
    REFUSE = "refuse"


class CircuitRefusal(StrEnum):
    """Names of refusals."""

    OPEN = "circuit_open"
    FORCED = "circuit_forced_open"
    PROBING = "circuit_half_open"
    RAMP = "circuit_ramp"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class CircuitView:
    """What a circuit says to one call."""

    passage: Passage
    state: CircuitState
    reason: CircuitRefusal | None = None
    retry_after_s: float = 0.0

    @property
    def degraded(self) -> bool:
        """Whether to hold back: retries only as far as they help, no hedges, low priority shed."""
        return self.state is not CircuitState.CLOSED


_PERMITS = {state: CircuitView(Passage.PERMIT, state) for state in CircuitState}
PERMITTED = _PERMITS[CircuitState.CLOSED]
REFUSED_WHILE_PROBING = CircuitView(Passage.REFUSE, CircuitState.HALF_OPEN, CircuitRefusal.PROBING, HALF_OPEN_RETRY_S)


def permitted(state: CircuitState) -> CircuitView:
    return _PERMITS[state]


def view_of(circuit: Circuit, now_ms: int, draw: float = 0.0) -> CircuitView:
    """What the circuit says now. What time alone changes is seen at once, before anybody has written it down."""
    circuit = advance(Fleet(circuit), now_ms).circuit
    state = circuit.state
    if circuit.forced is not None and state is not CircuitState.OPEN:
        return _PERMITS[state]  # an operator's word stands above the gate too
    if state is CircuitState.OPEN:
        reason = CircuitRefusal.FORCED if circuit.forced is not None else CircuitRefusal.OPEN
        return CircuitView(Passage.REFUSE, state, reason, (circuit.until_ms - now_ms) / 1000)
    if circuit.gate_ms > now_ms:
        return CircuitView(Passage.REFUSE, state, CircuitRefusal.THROTTLED, (circuit.gate_ms - now_ms) / 1000)
    if state is CircuitState.HALF_OPEN:
        return CircuitView(Passage.PROBE, state, CircuitRefusal.PROBING, HALF_OPEN_RETRY_S)
    if state is CircuitState.RAMP and draw >= ramp_share(circuit, now_ms):
        return CircuitView(Passage.REFUSE, state, CircuitRefusal.RAMP, _RAMP_RETRY_S)
    return _PERMITS[state]
