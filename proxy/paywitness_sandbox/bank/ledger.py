"""The ledger: one entry for each effect on the money, in the order in which they happened.

The ledger never forgets and never edits. If it is full, it refuses further effects (`LedgerFull`). If it dropped
entries, tests could take a double charge for a single one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

ENTRIES_MAX = 1_000_000


class EntryKind(StrEnum):
    CHARGE = "charge"
    AUTHORIZATION = "authorization"
    CAPTURE = "capture"
    REFUND = "refund"
    VOID = "void"
    PAYOUT = "payout"
    REVERSAL = "reversal"  # the provider took back a payment that had succeeded
    REFUND_FAILED = "refund_failed"  # a refund that had left us came back
    DISPUTE = "dispute"  # the disputed money leaves us
    DISPUTE_WON = "dispute_won"  # the disputed money comes back


PAYING = frozenset({EntryKind.CHARGE, EntryKind.AUTHORIZATION})
"""If two charges of one order have such an entry, the customer paid, or was held, twice. An increment adds an
authorization to the same charge."""


class LedgerFull(Exception):
    """The ledger has no room for another effect, so the effect does not happen."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    seq: int
    at: float
    kind: EntryKind
    id: str
    charge: str
    """The charge of the effect; for a payout, the payout."""
    key: str | None
    order: str | None
    amount: int
    currency: str
    account: str | None = None
    """The sub-account. Each has keys of its own."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Ledger:
    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.entries_max = entries_max
        self._entries: list[LedgerEntry] = []
        self._by: dict[str, dict[str, list[LedgerEntry]]] = {"key": {}, "order": {}, "charge": {}}

    @property
    def entries(self) -> Sequence[LedgerEntry]:
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def require_room(self, lines: int = 1) -> None:
        """Raise LedgerFull before anything changes, so that no effect happens without its entry."""
        if len(self._entries) + lines > self.entries_max:
            raise LedgerFull(f"the ledger holds its {self.entries_max} entries; POST /_sandbox/reset empties it")

    def write(
        self,
        kind: EntryKind,
        *,
        at: float,
        id: str,
        charge: str,
        key: str | None,
        order: str | None,
        amount: int,
        currency: str,
        account: str | None = None,
    ) -> LedgerEntry:
        self.require_room()
        entry = LedgerEntry(len(self._entries) + 1, at, kind, id, charge, key, order, amount, currency.upper(), account)
        self._entries.append(entry)
        for name, value in (("key", key), ("order", order), ("charge", charge)):
            if value is not None:
                self._by[name].setdefault(value, []).append(entry)
        return entry

    def find(
        self,
        key: str | None = None,
        order: str | None = None,
        charge: str | None = None,
        kind: EntryKind | str | None = None,
        account: str | None = None,
    ) -> list[LedgerEntry]:
        """The entries that match all filters. A `pi_` name finds the charge behind the payment intent."""
        charge = None if charge is None else charge_id(charge)
        wanted = {"key": key, "order": order, "charge": charge}
        candidates: Sequence[LedgerEntry] = self._entries
        for name, value in wanted.items():
            if value is not None:
                candidates = min(candidates, self._by[name].get(value, []), key=len)
        return [
            entry
            for entry in candidates
            if (key is None or entry.key == key)
            and (order is None or entry.order == order)
            and (charge is None or entry.charge == charge)
            and (kind is None or entry.kind == kind)
            and (account is None or entry.account == account)
        ]

    def effects(
        self,
        key: str | None = None,
        order: str | None = None,
        charge: str | None = None,
        kind: EntryKind | str | None = None,
        account: str | None = None,
    ) -> int:
        return len(self.find(key, order, charge, kind, account))

    def charges_by_order(self) -> dict[str, int]:
        """The number of charges that have paid each order (charged or authorized it)."""
        return charges_by_order(self._entries)

    def duplicates_by_order(self) -> dict[str, int]:
        """Only the orders that were paid more than once. It should be empty."""
        return {order: count for order, count in self.charges_by_order().items() if count > 1}

    def totals(self) -> dict[str, dict[str, object]]:
        return totals(self._entries)

    def clear(self) -> None:
        self._entries.clear()
        for index in self._by.values():
            index.clear()


def charges_by_order(entries: Iterable[LedgerEntry]) -> dict[str, int]:
    paying = {(entry.order, entry.charge): None for entry in entries if entry.kind in PAYING}  # in their order
    return dict(Counter(order for order, _ in paying if order is not None))


def payouts_by_order(entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How often each order, or reference, was paid out."""
    return dict(Counter(entry.order for entry in entries if entry.kind is EntryKind.PAYOUT and entry.order is not None))


def totals(entries: Iterable[LedgerEntry]) -> dict[str, dict[str, object]]:
    """For each kind: the number of entries, and the sum in minor units by currency."""
    counts: Counter[EntryKind] = Counter()
    amounts: dict[EntryKind, Counter[str]] = {kind: Counter() for kind in EntryKind}
    for entry in entries:
        counts[entry.kind] += 1
        amounts[entry.kind][entry.currency] += entry.amount
    return {kind.value: {"count": counts[kind], "amount": dict(amounts[kind])} for kind in EntryKind}


def charge_id(reference: str) -> str:
    """`pi_x` is the payment intent whose charge is `ch_x`."""
    return "ch_" + reference.removeprefix("pi_") if reference.startswith("pi_") else reference
