"""The effect of a charge, capture, void, refund, dispute or payout on the money. Only this module writes to the ledger.

It has no HTTP and no faults, and gives no meaning to idempotency keys: it only writes a key beside its effect. Each
method either changes the object and writes its ledger entry, or raises and changes nothing. Nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paywitness_sandbox.bank.ledger import EntryKind, Ledger, charge_id
from paywitness_sandbox.bank.objects import (
    BankRefused,
    Capture,
    Charge,
    ChargeStatus,
    ChargeTerms,
    Dispute,
    DisputeStatus,
    IdSequence,
    Label,
    ObjectIndex,
    Payout,
    PayoutStatus,
    PayoutTerms,
    PendingChanges,
    Refund,
    RefundStatus,
    card_outcome,
    labels_of,
    payout_outcome,
    refund_outcome,
)
from paywitness_sandbox.clock import Clock


class Payouts:
    def __init__(
        self, ledger: Ledger, clock: Clock, naming: IdSequence, changes: PendingChanges, *, search_lag_s: float = 0.0
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = naming
        self._changes = changes
        self._payouts: ObjectIndex[Payout] = ObjectIndex("payout", clock, search_lag_s)

    def send(self, terms: PayoutTerms, key: str | None) -> Payout:
        """Send a payout. Pending is an effect, like paid: the money has left us. A failure writes no entry."""
        outcome = payout_outcome(terms.destination)
        self._ledger.require_room()
        self._payouts.require_room()
        payout = Payout(
            self._ids.new("po"), terms, key, self._clock(), outcome.status, outcome.code, outcome.fails_with_200
        )
        self._payouts.add(payout, labels_of(terms.metadata.items(), key=key, reference=terms.reference))
        if payout.status is not PayoutStatus.FAILED:
            self._write_entry(EntryKind.PAYOUT, payout, payout.id, key)
        self._changes.add(payout, payout.status, key)
        return payout

    def settle(self, payout: Payout, status: PayoutStatus) -> None:
        """End a pending payout, by the receiving bank's later decision. If it fails, the money comes back."""
        if payout.status is not PayoutStatus.PENDING:
            raise BankRefused("payout_not_open", f"a payout that is {payout.status} has nothing to settle")
        if status is PayoutStatus.FAILED:
            self._write_entry(EntryKind.VOID, payout, self._ids.new("vd"), payout.key)
            payout.failure_code = "account_closed"
        payout.status = status
        self._changes.add(payout, status, None)

    def reverse(self, payout: Payout) -> None:
        """Let the receiving bank send a paid payout back."""
        if payout.status is not PayoutStatus.PAID:
            raise BankRefused("payout_not_paid", f"a payout that is {payout.status} cannot be reversed")
        self._write_entry(EntryKind.REVERSAL, payout, self._ids.new("rv"), payout.key)
        payout.status = PayoutStatus.REVERSED
        self._changes.add(payout, payout.status, None)

    def get(self, name: str) -> Payout:
        return self._payouts.get(name)

    def search(self, labels: list[Label]) -> list[Payout]:
        return self._payouts.search(labels)

    def clear(self) -> None:
        self._payouts.clear()

    def _write_entry(self, kind: EntryKind, payout: Payout, id: str, key: str | None) -> None:
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
            account=terms.account,
        )


# --- Charges

REFUNDS_PER_CHARGE_MAX = 1_000
REFUND_FAILURE_REASON = "expired_or_canceled_card"  # one of Stripe's
UNPAID = frozenset({ChargeStatus.CREATED, ChargeStatus.FAILED})
"""The card may be charged, or charged again after a decline."""
CALLED_OFF_FREELY = UNPAID | {ChargeStatus.REQUIRES_ACTION}
NOT_PAYABLE_CODES = {
    ChargeStatus.REQUIRES_ACTION: "charge_requires_action",
    ChargeStatus.VOIDED: "charge_already_voided",
}


class Bank:
    def __init__(self, ledger: Ledger, clock: Clock, *, salt: str, search_lag_s: float = 0.0) -> None:
        self.ledger = ledger
        self._clock = clock
        self._ids = IdSequence(salt)
        self._charges: ObjectIndex[Charge] = ObjectIndex("charge", clock, search_lag_s)
        self._captures: ObjectIndex[Capture] = ObjectIndex("capture", clock, search_lag_s)
        self._refunds: ObjectIndex[Refund] = ObjectIndex("refund", clock, search_lag_s)
        self._disputes: ObjectIndex[Dispute] = ObjectIndex("dispute", clock, search_lag_s)
        self.changes = PendingChanges()
        self.payouts = Payouts(ledger, clock, self._ids, self.changes, search_lag_s=search_lag_s)

    # -- moving money ---------------------------------------------------------------------------------------------

    def open(self, terms: ChargeTerms, key: str | None) -> Charge:
        """Create a charge without charging the card."""
        card_outcome(terms.source)
        self._charges.require_room()
        charge = Charge(self._ids.new("ch"), terms, terms.source, key, self._clock())
        self._charges.add(charge, labels_of(terms.metadata.items(), key=key))
        return charge

    def pay(self, charge: Charge, key: str | None, source: str | None = None) -> None:
        """Charge the card. A decline is a result and no BankRefused: it leaves the charge failed."""
        if charge.status not in UNPAID:
            code = NOT_PAYABLE_CODES.get(charge.status, "charge_already_paid")
            raise BankRefused(code, f"the charge is {charge.status}")
        outcome = card_outcome(source or charge.source)
        self.ledger.require_room()
        charge.source, charge.paying_key = source or charge.source, key
        charge.failure_code, charge.failed_with_200 = outcome.code, outcome.fails_with_200
        charge.status = outcome.status
        if outcome.status is ChargeStatus.SUCCEEDED:
            self._collect(charge, key)
        elif outcome.status is ChargeStatus.PROCESSING:
            self._write_entry(EntryKind.CHARGE, charge, charge.id, charge.terms.amount, key)
        self.changes.add(charge, charge.status, key)

    def update(
        self,
        charge: Charge,
        *,
        amount: int | None = None,
        source: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Change metadata at any time, amount and card before the payment. Metadata are merged; an empty value removes
        its name."""
        if charge.status not in UNPAID and (amount is not None or source is not None):
            raise BankRefused("charge_already_paid", f"the amount and card of a charge that is {charge.status} stay")
        if source is not None:
            card_outcome(source)
        terms = charge.terms
        merged = {name: value for name, value in {**terms.metadata, **(metadata or {})}.items() if value != ""}
        self._charges.relabel(charge, labels_of(terms.metadata.items()), labels_of(merged.items()))
        charge.terms = replace(terms, amount=terms.amount if amount is None else amount, metadata=merged)
        charge.source = source or charge.source

    def increment(self, charge: Charge, key: str | None, total: int) -> None:
        """Authorize more, up to the new total. The entry has the difference."""
        if charge.status is not ChargeStatus.AUTHORIZED:
            raise BankRefused(*self._not_authorized_reason(charge, "incremented"))
        difference = total - charge.terms.amount
        if difference <= 0:
            raise BankRefused("amount_too_small", f"{charge.terms.amount} is authorized already", conflict=False)
        self._write_entry(EntryKind.AUTHORIZATION, charge, self._ids.new("in"), difference, key)
        charge.terms = replace(charge.terms, amount=total)
        self.changes.add(charge, "incremented", key)

    def capture(
        self,
        charge: Charge,
        key: str | None,
        amount: int | None = None,
        *,
        final: bool = True,
        metadata: dict[str, object] | None = None,
    ) -> Capture:
        """Capture. A final capture releases the remainder. After one that is not final, the remainder can still be
        captured."""
        if charge.status is not ChargeStatus.AUTHORIZED:
            raise BankRefused(*self._not_authorized_reason(charge, "captured"))
        left = charge.amount_capturable
        amount = left if amount is None else amount
        if amount > left:
            raise BankRefused("amount_too_large", f"only {left} can still be captured", conflict=False)
        self._captures.require_room()
        capture = Capture(self._ids.new("cp"), charge, amount, final, key, self._clock(), metadata or {})
        self._write_entry(EntryKind.CAPTURE, charge, capture.id, amount, key)
        self._captures.add(capture, labels_of(capture.metadata.items(), key=key, charge=charge.id))
        charge.amount_captured += amount
        if final or amount == left:
            charge.status = ChargeStatus.SUCCEEDED
        self.changes.add(charge, "captured", key)
        return capture

    def void(self, charge: Charge, key: str | None) -> None:
        """Release the uncaptured part of an authorization, or cancel an unpaid charge (no effect, no entry)."""
        if charge.status is ChargeStatus.AUTHORIZED:
            self._write_entry(EntryKind.VOID, charge, self._ids.new("vd"), charge.amount_capturable, key)
            charge.amount_voided = charge.amount_capturable
        elif charge.status not in CALLED_OFF_FREELY:
            raise BankRefused(*self._not_authorized_reason(charge, "voided"))
        charge.status = ChargeStatus.SUCCEEDED if charge.amount_captured else ChargeStatus.VOIDED
        self.changes.add(charge, "voided", key)

    def refund(
        self, charge: Charge, key: str | None, amount: int | None = None, metadata: dict[str, object] | None = None
    ) -> Refund:
        """Refund. Pending is an effect, like succeeded: the money has left us. A failure writes no entry."""
        self._require_captured(charge, "refunded")
        left, status = charge.amount_left, refund_outcome(metadata or {})
        if left == 0 and charge.amount_disputed:
            raise BankRefused("charge_disputed", "the rest of the charge is disputed")
        if left == 0:
            raise BankRefused("charge_already_refunded", "the charge has been refunded in full")
        amount = left if amount is None else amount
        if amount > left:
            raise BankRefused("amount_too_large", f"only {left} can still be refunded", conflict=False)
        if len(charge.refunds) >= REFUNDS_PER_CHARGE_MAX:
            raise BankRefused("too_many_refunds", f"a charge takes {REFUNDS_PER_CHARGE_MAX} refunds", conflict=False)
        self._refunds.require_room()
        refund = Refund(self._ids.new("re"), charge, amount, key, self._clock(), metadata or {}, status)
        if status is RefundStatus.FAILED:
            refund.failure_reason = REFUND_FAILURE_REASON
        else:
            self._write_entry(EntryKind.REFUND, charge, refund.id, amount, key)
            charge.amount_refunded += amount
        charge.refunds.append(refund)
        self._refunds.add(refund, labels_of(refund.searchable.items(), key=key, charge=charge.id))
        self.changes.add(refund, status, key)
        return refund

    def void_or_refund(
        self, charge: Charge, key: str | None, metadata: dict[str, object] | None = None
    ) -> Refund | None:
        """Undo a payment in any state: refund the rest of the captured part, release the uncaptured part."""
        refund = None
        self.ledger.require_room(2)
        if charge.amount_captured and not (charge.amount_capturable and charge.amount_left == 0):
            refund = self.refund(charge, key, metadata=metadata)
        if charge.amount_captured == 0 or charge.amount_capturable:
            self.void(charge, key)
        return refund

    def settle_refund(self, refund: Refund, status: RefundStatus) -> None:
        """End a pending refund, by the later decision of the customer's bank."""
        if refund.status is not RefundStatus.PENDING:
            raise BankRefused("refund_not_open", f"a refund that is {refund.status} has nothing to settle")
        if status is RefundStatus.FAILED:
            self._return_refund(refund)
        else:
            refund.status = status
            self.changes.add(refund, "updated", None)

    def fail_refund(self, refund: Refund) -> None:
        """Let the customer's bank send back a refund that had succeeded."""
        if refund.status is not RefundStatus.SUCCEEDED:
            raise BankRefused("refund_not_succeeded", f"a refund that is {refund.status} cannot fail any more")
        self._return_refund(refund)

    def settle(self, charge: Charge, status: ChargeStatus) -> None:
        """End an open charge (processing, 3DS), by the issuer's or the customer's later decision."""
        if charge.status not in (ChargeStatus.PROCESSING, ChargeStatus.REQUIRES_ACTION):
            raise BankRefused("charge_not_open", f"a charge that is {charge.status} has nothing to settle")
        was = charge.status
        if status is ChargeStatus.SUCCEEDED and was is ChargeStatus.REQUIRES_ACTION:
            self._collect(charge, charge.paying_key)
        elif status is ChargeStatus.SUCCEEDED:
            charge.amount_captured = charge.terms.amount
            charge.status = status
        else:
            if was is ChargeStatus.PROCESSING:
                self._write_entry(EntryKind.VOID, charge, self._ids.new("vd"), charge.terms.amount, charge.paying_key)
            charge.failure_code, charge.status = "generic_decline", ChargeStatus.FAILED
        self.changes.add(charge, charge.status, None)

    def reverse(self, charge: Charge) -> None:
        """Take back a charge that had succeeded, by the provider's own later decision."""
        left = charge.amount_left
        if charge.status is not ChargeStatus.SUCCEEDED or left == 0:
            raise BankRefused("charge_not_captured", f"a charge that is {charge.status} has nothing to reverse")
        self._write_entry(EntryKind.REVERSAL, charge, self._ids.new("rv"), left, charge.paying_key)
        charge.status = ChargeStatus.REVERSED
        self.changes.add(charge, charge.status, None)

    def open_dispute(self, charge: Charge, amount: int | None = None) -> Dispute:
        """Open a dispute: the customer's bank takes the money back until the dispute is decided."""
        self._require_captured(charge, "disputed")
        amount = charge.amount_left if amount is None else amount
        if not 0 < amount <= charge.amount_left:
            raise BankRefused("amount_too_large", f"only {charge.amount_left} can still be disputed", conflict=False)
        self._disputes.require_room()
        dispute = Dispute(self._ids.new("dp"), charge, amount, self._clock())
        self._write_entry(EntryKind.DISPUTE, charge, dispute.id, amount, charge.paying_key)
        charge.amount_disputed += amount
        self._disputes.add(dispute, labels_of(charge.terms.metadata.items(), charge=charge.id))
        self.changes.add(dispute, "created", None)
        return dispute

    def close_dispute(self, dispute: Dispute, status: DisputeStatus) -> None:
        """Close a dispute. If it is won, the money comes back. If it is lost, nothing changes: its entry is already
        written."""
        if dispute.status is not DisputeStatus.NEEDS_RESPONSE:
            raise BankRefused("dispute_not_open", f"a dispute that is {dispute.status} has nothing to settle")
        if status is DisputeStatus.WON:
            charge = dispute.charge
            self._write_entry(EntryKind.DISPUTE_WON, charge, self._ids.new("dw"), dispute.amount, charge.paying_key)
            charge.amount_disputed -= dispute.amount
        dispute.status = status
        self.changes.add(dispute, "closed", None)

    # -- reads ----------------------------------------------------------------------------------------------------

    def charge(self, reference: str) -> Charge:
        """By `ch_` or `pi_` name. It never lags; only searches do."""
        return self._charges.get(charge_id(reference))

    def refund_by_id(self, reference: str) -> Refund:
        return self._refunds.get(reference)

    def dispute(self, reference: str) -> Dispute:
        return self._disputes.get(reference)

    def search(self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None) -> list[Charge]:
        """The charges that match all filters, newest first, as far as the search index has caught up."""
        return self._charges.search(labels_of(metadata, key=key))

    def search_captures(
        self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None, *, charge: str
    ) -> list[Capture]:
        """The captures of one charge, like `search`."""
        return self._captures.search(labels_of(metadata, key=key, charge=self.charge(charge).id))

    def search_refunds(
        self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None, charge: str | None = None
    ) -> list[Refund]:
        """The refunds of one charge, or of all, like `search`."""
        charge = None if charge is None else self.charge(charge).id
        return self._refunds.search(labels_of(metadata, key=key, charge=charge))

    def search_disputes(self, metadata: Iterable[tuple[str, str]] = (), charge: str | None = None) -> list[Dispute]:
        """The disputes, by the metadata of their charge, like `search`."""
        charge = None if charge is None else self.charge(charge).id
        return self._disputes.search(labels_of(metadata, charge=charge))

    def clear(self) -> None:
        """Forget everything. The counter of ids goes on, so that an old id never names another charge."""
        self._charges.clear()
        self._captures.clear()
        self._refunds.clear()
        self._disputes.clear()
        self.payouts.clear()
        self.changes.take()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _collect(self, charge: Charge, key: str | None) -> None:
        kind = EntryKind.CHARGE if charge.terms.capture else EntryKind.AUTHORIZATION
        self._write_entry(kind, charge, charge.id, charge.terms.amount, key)
        charge.status = ChargeStatus.SUCCEEDED if charge.terms.capture else ChargeStatus.AUTHORIZED
        charge.amount_captured = charge.terms.amount if charge.terms.capture else 0
        charge.authorized_at = None if charge.terms.capture else self._clock()

    def _require_captured(self, charge: Charge, verb: str) -> None:
        if charge.status not in (ChargeStatus.SUCCEEDED, ChargeStatus.AUTHORIZED) or charge.amount_captured == 0:
            raise BankRefused("charge_not_captured", f"a charge that is {charge.status} cannot be {verb}")

    def _return_refund(self, refund: Refund) -> None:
        self._write_entry(EntryKind.REFUND_FAILED, refund.charge, self._ids.new("rf"), refund.amount, refund.key)
        refund.charge.amount_refunded -= refund.amount
        refund.status, refund.failure_reason = RefundStatus.FAILED, REFUND_FAILURE_REASON
        self.changes.add(refund, refund.status, None)

    def _write_entry(self, kind: EntryKind, charge: Charge, id: str, amount: int, key: str | None) -> None:
        terms = charge.terms
        self.ledger.write(
            kind,
            at=self._clock(),
            id=id,
            charge=charge.id,
            key=key,
            order=terms.order,
            amount=amount,
            currency=terms.currency,
            account=terms.account,
        )

    def _not_authorized_reason(self, charge: Charge, verb: str) -> tuple[str, str]:
        codes = {ChargeStatus.SUCCEEDED: "charge_already_captured", ChargeStatus.VOIDED: "charge_already_voided"}
        return codes.get(charge.status, "charge_not_authorized"), f"a charge that is {charge.status} cannot be {verb}"
