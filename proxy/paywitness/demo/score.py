"""Compares the result that each caller got with the provider's ledger. Pure counting.

"Told" comes from the callers' log, "charged" only from the ledger. Neither the sidecar nor its journal takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from paywitness_sandbox.bank.ledger import PAYING, LedgerEntry


class ReportedOutcome(StrEnum):
    PAID = "paid"
    DECLINED = "declined"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Charged(StrEnum):
    NOT = "not charged"
    ONCE = "charged once"
    TWICE = "charged twice"


@dataclass(frozen=True, slots=True)
class CallerResult:
    """One line of the callers' log: the result of one payment for the application that made it."""

    order: str
    told: ReportedOutcome
    requests: int
    keys: int
    took_s: float
    operation: str | None = None
    attempts: int | None = None
    """The attempts of the operation, as the sidecar reported them."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Score:
    cells: Mapping[tuple[ReportedOutcome, Charged], int]
    overcharged: int
    """Minor units that were taken beyond the first charge of each order."""

    @property
    def payments(self) -> int:
        return sum(self.cells.values())

    @property
    def charged_twice(self) -> int:
        """Twice or more often."""
        return sum(self.cells[reported, Charged.TWICE] for reported in ReportedOutcome)

    @property
    def charged_but_told_failed(self) -> int:
        """A declined payment is also reported as failed."""
        wrong = (ReportedOutcome.FAILED, ReportedOutcome.DECLINED)
        return sum(self.cells[reported, charged] for reported in wrong for charged in (Charged.ONCE, Charged.TWICE))

    @property
    def told_paid_but_not_charged(self) -> int:
        return self.cells[ReportedOutcome.PAID, Charged.NOT]

    @property
    def told_unknown(self) -> int:
        return sum(self.cells[ReportedOutcome.UNKNOWN, charged] for charged in Charged)

    @property
    def told_unknown_and_charged(self) -> int:
        return self.told_unknown - self.cells[ReportedOutcome.UNKNOWN, Charged.NOT]

    @property
    def paid_and_told_paid(self) -> int:
        """The good case: one charge, and the caller knows."""
        return self.cells[ReportedOutcome.PAID, Charged.ONCE]

    @property
    def declined(self) -> int:
        return self.cells[ReportedOutcome.DECLINED, Charged.NOT]

    @property
    def failed_and_told_failed(self) -> int:
        return self.cells[ReportedOutcome.FAILED, Charged.NOT]

    def as_json(self) -> dict[str, int]:
        names = (
            *("payments", "charged_twice", "charged_but_told_failed", "told_paid_but_not_charged", "told_unknown"),
            *("told_unknown_and_charged", "paid_and_told_paid", "declined", "failed_and_told_failed", "overcharged"),
        )
        return {name: getattr(self, name) for name in names}


def score_payments(log: Iterable[CallerResult], entries: Iterable[LedgerEntry]) -> Score:
    """Count each payment in one cell. Raises ValueError if log and ledger cannot be of the same run."""
    paying = [entry for entry in entries if entry.kind in PAYING]
    charges = Counter(entry.order for entry in paying)
    cells = {(reported, charged): 0 for reported in ReportedOutcome for charged in Charged}
    seen: set[str] = set()
    for line in log:
        if line.order in seen:
            raise ValueError(f"{line.order} is in the callers' log twice")
        seen.add(line.order)
        cells[line.told, _charged(charges[line.order])] += 1
    if strangers := set(charges) - seen:
        raise ValueError(f"the ledger charges {sorted(map(str, strangers))}, which no caller ordered")
    return Score(cells, _overcharged(paying))


def _charged(times: int) -> Charged:
    if times == 0:
        return Charged.NOT
    return Charged.ONCE if times == 1 else Charged.TWICE


def _overcharged(paying: Iterable[LedgerEntry]) -> int:
    first: set[str | None] = set()
    total = 0
    for entry in paying:
        total += entry.amount if entry.order in first else 0
        first.add(entry.order)
    return total
