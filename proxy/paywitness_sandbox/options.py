"""How a sandbox is set up: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paywitness_sandbox.bank.ledger import ENTRIES_MAX
from paywitness_sandbox.clock import Clock, wall_clock
from paywitness_sandbox.contract import Contract, parse_contract
from paywitness_sandbox.messages import ARRIVALS_MAX
from paywitness_sandbox.webhooks.events import parse_endpoint


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    contract: Contract | str = Contract.REPLAYED
    seed: int = 1
    schedule: Mapping[str, object] = field(default_factory=dict)
    """As PUT /_sandbox/faults takes it."""
    api_keys: tuple[str, ...] = ()
    """When given, every provider route wants one of them."""
    key_window_s: float = 86_400.0
    """Keys are forgotten after this; a day, as Stripe's."""
    search_lag_s: float = 0.0
    """A new charge is found by lists and searches only after this; by its name it is found at once."""
    hang_s: float = 60.0
    """Faults that never answer close the connection after this."""
    late_s: float = 10.0
    """How late the late faults are: later than most callers wait."""
    ledger_max: int = ENTRIES_MAX
    arrivals_max: int = ARRIVALS_MAX
    webhooks: Mapping[str, object] = field(default_factory=dict)
    """As PUT /_sandbox/webhooks takes it; empty: nobody is told."""
    clock: Clock = wall_clock

    def __post_init__(self) -> None:
        parse_contract(self.contract)
        if self.webhooks:
            parse_endpoint(self.webhooks)
        for name in ("key_window_s", "search_lag_s", "hang_s", "late_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a number of seconds, zero or more")

    @property
    def fault_defaults(self) -> dict[str, float]:
        """Fault parameters that are set for the whole sandbox, by their name."""
        return {"hang_s": self.hang_s, "late_s": self.late_s, "heal_s": self.late_s}
