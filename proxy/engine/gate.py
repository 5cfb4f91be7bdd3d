"""The gate: whether a call may start something new, asked locally and before the journal. A refusal has a name.

Refused means that nothing new is written or sent; what is already known under the key is still answered. Circuits,
admission and budgets will speak here; today it is the bound on what is under way, and the end of the process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Permit:
    granted: bool
    refusal: str = ""  # the name of the refusal, for the answer and the metric
    detail: str = ""


GRANTED = Permit(True)
_DRAINING = Permit(
    False, "draining", "This sidecar is shutting down. Nothing was sent; try again, another will answer."
)


class Gate:
    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self.draining = False

    def permit(self, calls_under_way: int) -> Permit:
        if self.draining:
            return _DRAINING
        if calls_under_way >= self._calls_max:
            return Permit(False, "overloaded", f"{self._calls_max} calls are under way already. Nothing was sent.")
        return GRANTED
