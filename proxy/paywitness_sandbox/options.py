"""The options of a sandbox: one frozen value, checked when it is made."""

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
    """In the form of PUT /_sandbox/faults."""
    api_keys: tuple[str, ...] = ()
    """If given, every provider route requires one of them."""
    key_window_s: float = 86_400.0
    """Keys are forgotten after this time; a day, as at Stripe."""
    search_lag_s: float = 0.0
    """Lists and searches find a new charge only after this time. By its id it is found at once."""
    hang_s: float = 60.0
    """Faults without a response close the connection after this time."""
    late_s: float = 10.0
    """The delay of late faults: longer than most callers wait."""
    ledger_max: int = ENTRIES_MAX
    arrivals_max: int = ARRIVALS_MAX
    webhooks: Mapping[str, object] = field(default_factory=dict)
    """In the form of PUT /_sandbox/webhooks. Empty: no events are sent."""
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
        """Fault parameters that are set for the whole sandbox, by name."""
        return {"hang_s": self.hang_s, "late_s": self.late_s, "heal_s": self.late_s}
