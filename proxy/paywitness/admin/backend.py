"""What the admin server is given to look at, and the hands it lends to operators. Joined by the wiring."""

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
    """What only the running process knows of itself. Whether the journal is healthy the server asks the journal."""

    draining: bool = False
    reload_problems: tuple[str, ...] = ()  # of the last reading of the policy files; empty where it gave a book
    starting: bool = False  # not every listener is there yet
    clock_jumps: int = 0  # that this sidecar saw since it started
    awaits_dates: bool = False  # there was a gap: what was sent before it is re-sent after a provider's Date


class AdminBackend(Protocol):
    @property
    def journal(self) -> Journal: ...

    @property
    def metrics(self) -> Metrics:
        """The registry, and what was last counted of doubt."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Where what an operator did is told."""
        ...

    def readiness(self) -> Readiness: ...

    @property
    def levels(self) -> Levels | None:
        """Who holds the journal, and at which level it is; None: it is not announced."""
        ...

    def book(self) -> PolicyBook | None:
        """The book in force; None before the first."""
        ...

    @property
    def review(self) -> CommandExecutor:
        """What a person may do with an operation."""
        ...

    @property
    def approvals(self) -> PayoutApprovals:
        """Payouts that wait for a person."""
        ...

    @property
    def intents(self) -> Intents:
        """Whether a purchase may be paid."""
        ...

    @property
    def payments(self) -> PaymentLookup:
        """Payments by id, by name, by their intent."""
        ...

    @property
    def payment_commands(self) -> PaymentCommands:
        """What a person may do with a payment."""
        ...

    @property
    def credential_commands(self) -> CredentialCommands:
        """What a person may say of a credential."""
        ...

    @property
    def circuits(self) -> Circuits:
        """Whether providers are called, and the hand to force it."""
        ...

    @property
    def budgets(self) -> Budgets: ...

    @property
    def admission(self) -> Admission: ...
