"""The parts of the sidecar that the admin server reads, and those that run an operator's commands. `wiring.py` joins
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.durability.levels import Levels
from paywitness.engine.intents import Intents
from paywitness.engine.operator_commands import CommandExecutor
from paywitness.engine.payment_commands import PaymentCommands
from paywitness.engine.payment_lookup import PaymentLookup
from paywitness.engine.payout_approvals import PayoutApprovals
from paywitness.journal.base import Journal
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import Budgets
from paywitness.limits.circuits import Circuits
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Readiness:
    """Facts that only the running process knows. The server asks the journal itself whether it is healthy."""

    draining: bool = False
    reload_problems: tuple[str, ...] = ()  # from the last reading of the policy files; empty if it gave a book
    starting: bool = False  # not every listener is open yet
    clock_jumps: int = 0  # that this sidecar has seen since its start
    # The clock had a gap. A call from before it is sent again only after a response of the provider has shown a Date.
    awaits_dates: bool = False


class AdminBackend(Protocol):
    @property
    def journal(self) -> Journal: ...

    @property
    def metrics(self) -> Metrics:
        """The registry, with the latest count of operations in doubt."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Records operator actions."""
        ...

    def readiness(self) -> Readiness: ...

    @property
    def levels(self) -> Levels | None:
        """The sidecars that hold the journal, and its level. None if this sidecar does not announce itself."""
        ...

    def book(self) -> PolicyBook | None:
        """The policy book in force. None before the first."""
        ...

    @property
    def review(self) -> CommandExecutor:
        """Runs operator actions on operations."""
        ...

    @property
    def approvals(self) -> PayoutApprovals:
        """Payouts that wait for a person's approval."""
        ...

    @property
    def intents(self) -> Intents:
        """Whether an intent may be paid."""
        ...

    @property
    def payments(self) -> PaymentLookup:
        """Finds payments by id, by name or by intent."""
        ...

    @property
    def payment_commands(self) -> PaymentCommands:
        """Runs operator actions on payments."""
        ...

    @property
    def credential_commands(self) -> CredentialCommands:
        """Records an operator's statements about credentials."""
        ...

    @property
    def circuits(self) -> Circuits:
        """The state of each provider's circuits. An operator may force one."""
        ...

    @property
    def budgets(self) -> Budgets: ...

    @property
    def admission(self) -> Admission: ...
