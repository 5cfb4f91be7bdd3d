"""The bank's payout desk: what a payout does to the money. A method changes it and writes its line, or does nothing."""

from __future__ import annotations

from proxy.sandbox.changes import Changes
from proxy.sandbox.clock import Clock
from proxy.sandbox.ledger import Kind, Ledger
from proxy.sandbox.naming import Naming
from proxy.sandbox.outcomes import payout_outcome_of
from proxy.sandbox.payout import Payout, PayoutStatus, PayoutTerms
from proxy.sandbox.refusals import Refused
from proxy.sandbox.register import Label, Register, labels_of


class PayoutDesk:
    def __init__(
        self, ledger: Ledger, clock: Clock, naming: Naming, changes: Changes, *, search_lag_s: float = 0.0
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._naming = naming
        self._changes = changes
        self._payouts: Register[Payout] = Register("payout", clock, search_lag_s)

    def send(self, terms: PayoutTerms, key: str | None) -> Payout:
        """Accepted (pending) is an effect, as paid is: the money has left us. A failure leaves no line."""
        outcome = payout_outcome_of(terms.destination)
        self._ledger.require_room()
        self._payouts.require_room()
        payout = Payout(self._naming.new("po"), terms, key, self._clock(), outcome.status, outcome.code, outcome.quiet)
        self._payouts.add(payout, labels_of(terms.metadata.items(), key=key, reference=terms.reference))
        if payout.status is not PayoutStatus.FAILED:
            self._enter(Kind.PAYOUT, payout, payout.id, key)
        self._changes.note(payout, payout.status, key)
        return payout

    def settle(self, payout: Payout, status: PayoutStatus) -> None:
        """End a pending payout: the receiving bank's later word. What fails comes back."""
        if payout.status is not PayoutStatus.PENDING:
            raise Refused("payout_not_open", f"a payout that is {payout.status} has nothing to settle")
        if status is PayoutStatus.FAILED:
            self._enter(Kind.VOID, payout, self._naming.new("vd"), payout.key)
            payout.failure_code = "account_closed"
        payout.status = status
        self._changes.note(payout, status, None)

    def reverse(self, payout: Payout) -> None:
        """The receiving bank sends it back after all."""
        if payout.status is not PayoutStatus.PAID:
            raise Refused("payout_not_paid", f"a payout that is {payout.status} cannot be reversed")
        self._enter(Kind.REVERSAL, payout, self._naming.new("rv"), payout.key)
        payout.status = PayoutStatus.REVERSED
        self._changes.note(payout, payout.status, None)

    def named(self, name: str) -> Payout:
        return self._payouts.named(name)

    def search(self, labels: list[Label]) -> list[Payout]:
        return self._payouts.search(labels)

    def clear(self) -> None:
        self._payouts.clear()

    def _enter(self, kind: Kind, payout: Payout, id: str, key: str | None) -> None:
        terms = payout.terms
        self._ledger.write(
            kind,
            at=self._clock(),
            id=id,
            charge=payout.id,
            key=key,
            order=terms.order,
            amount=terms.amount,
            currency=terms.currency,
        )
