"""What a charge, capture, void or refund does to the money. Payouts have their own desk (`payouts.py`); nobody else
writes to the ledger.

No HTTP, no idempotency keys' meaning, no faults: a key is only written beside the effect. Each method either changes
the charge and writes its line, or raises and changes nothing. Nothing here awaits, so nothing can come in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.sandbox.changes import Changes
from proxy.sandbox.charge import Charge, Refund, Status, Terms
from proxy.sandbox.clock import Clock
from proxy.sandbox.ledger import Kind, Ledger, charge_name
from proxy.sandbox.naming import Naming
from proxy.sandbox.outcomes import outcome_of
from proxy.sandbox.payouts import PayoutDesk
from proxy.sandbox.refusals import Refused
from proxy.sandbox.register import Register, labels_of

REFUNDS_PER_CHARGE_MAX = 1_000


class Bank:
    def __init__(self, ledger: Ledger, clock: Clock, *, salt: str, search_lag_s: float = 0.0) -> None:
        self.ledger = ledger
        self._clock = clock
        self._naming = Naming(salt)
        self._charges: Register[Charge] = Register("charge", clock, search_lag_s)
        self._refunds: Register[Refund] = Register("refund", clock, search_lag_s)
        self.changes = Changes()
        self.payouts = PayoutDesk(ledger, clock, self._naming, self.changes, search_lag_s=search_lag_s)

    # -- moving money ---------------------------------------------------------------------------------------------

    def open(self, terms: Terms, key: str | None) -> Charge:
        """Announce a charge; nothing is asked of the card."""
        outcome_of(terms.source)
        self._charges.require_room()
        charge = Charge(self._naming.new("ch"), terms, terms.source, key, self._clock())
        self._charges.add(charge, labels_of(terms.metadata.items(), key=key))
        return charge

    def pay(self, charge: Charge, key: str | None, source: str | None = None) -> None:
        """Ask the card. A decline is an answer, not a refusal: it leaves the charge failed."""
        if charge.status not in (Status.CREATED, Status.FAILED):
            raise Refused("charge_already_paid", f"the charge is {charge.status}")
        outcome = outcome_of(source or charge.source)
        self.ledger.require_room()
        charge.source = source or charge.source
        charge.failure_code, charge.quiet_failure = outcome.code, outcome.quiet
        charge.status = outcome.status
        if outcome.status is Status.SUCCEEDED:
            self._collect(charge, key)
        elif outcome.status is Status.PROCESSING:
            self._enter(Kind.CHARGE, charge, charge.id, charge.terms.amount, key)
        self.changes.note(charge, charge.status, key)

    def capture(self, charge: Charge, key: str | None, amount: int | None = None) -> None:
        if charge.status is not Status.AUTHORIZED:
            raise Refused(*self._why_not_authorized(charge, "captured"))
        amount = charge.terms.amount if amount is None else amount
        if amount > charge.terms.amount:
            raise Refused("amount_too_large", f"only {charge.terms.amount} was authorized", conflict=False)
        self._enter(Kind.CAPTURE, charge, self._naming.new("cp"), amount, key)
        charge.status, charge.amount_captured = Status.SUCCEEDED, amount
        self.changes.note(charge, "captured", key)

    def void(self, charge: Charge, key: str | None) -> None:
        """Release an authorization, or call off what was never paid (no effect, no line)."""
        if charge.status is Status.AUTHORIZED:
            self._enter(Kind.VOID, charge, self._naming.new("vd"), charge.terms.amount, key)
        elif charge.status not in (Status.CREATED, Status.REQUIRES_ACTION):
            raise Refused(*self._why_not_authorized(charge, "voided"))
        charge.status = Status.VOIDED
        self.changes.note(charge, charge.status, key)

    def refund(
        self, charge: Charge, key: str | None, amount: int | None = None, metadata: dict[str, object] | None = None
    ) -> Refund:
        if charge.status is not Status.SUCCEEDED:
            raise Refused("charge_not_captured", f"a charge that is {charge.status} cannot be refunded")
        left = charge.amount_captured - charge.amount_refunded
        if left == 0:
            raise Refused("charge_already_refunded", "the charge has been refunded in full")
        amount = left if amount is None else amount
        if amount > left:
            raise Refused("amount_too_large", f"only {left} is left to refund", conflict=False)
        if len(charge.refunds) >= REFUNDS_PER_CHARGE_MAX:
            raise Refused("too_many_refunds", f"a charge takes {REFUNDS_PER_CHARGE_MAX} refunds", conflict=False)
        self._refunds.require_room()
        refund = Refund(self._naming.new("re"), charge, amount, key, self._clock(), metadata or {})
        self._enter(Kind.REFUND, charge, refund.id, amount, key)
        charge.amount_refunded += amount
        charge.refunds.append(refund)
        self._refunds.add(refund, labels_of(refund.labelled.items(), key=key, charge=charge.id))
        self.changes.note(refund, "succeeded", key)
        return refund

    def settle(self, charge: Charge, status: Status) -> None:
        """End what was left open (processing, 3DS): the issuer's or the customer's later word."""
        if charge.status not in (Status.PROCESSING, Status.REQUIRES_ACTION):
            raise Refused("charge_not_open", f"a charge that is {charge.status} has nothing to settle")
        was = charge.status
        if status is Status.SUCCEEDED and was is Status.REQUIRES_ACTION:
            self._collect(charge, charge.key)
        elif status is Status.SUCCEEDED:
            charge.amount_captured = charge.terms.amount
            charge.status = status
        else:
            if was is Status.PROCESSING:
                self._enter(Kind.VOID, charge, self._naming.new("vd"), charge.terms.amount, charge.key)
            charge.failure_code, charge.status = "generic_decline", Status.FAILED
        self.changes.note(charge, charge.status, None)

    def reverse(self, charge: Charge) -> None:
        """Take back what had succeeded: the provider's own later word, which nobody asked for."""
        left = charge.amount_captured - charge.amount_refunded
        if charge.status is not Status.SUCCEEDED or left == 0:
            raise Refused("charge_not_captured", f"a charge that is {charge.status} has nothing to reverse")
        self._enter(Kind.REVERSAL, charge, self._naming.new("rv"), left, charge.key)
        charge.status = Status.REVERSED
        self.changes.note(charge, charge.status, None)

    # -- looking --------------------------------------------------------------------------------------------------

    def charge(self, reference: str) -> Charge:
        """By `ch_` or `pi_` name. Never lags: only the searches do."""
        return self._charges.named(charge_name(reference))

    def refund_named(self, reference: str) -> Refund:
        return self._refunds.named(reference)

    def search(self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None) -> list[Charge]:
        """The charges that fit everything given, newest first, as far as the search index has caught up."""
        return self._charges.search(labels_of(metadata, key=key))

    def search_refunds(
        self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None, charge: str | None = None
    ) -> list[Refund]:
        """Likewise; of one charge, or of all."""
        charge = None if charge is None else self.charge(charge).id
        return self._refunds.search(labels_of(metadata, key=key, charge=charge))

    def clear(self) -> None:
        """Forget everything. Names go on counting: an old name must never come back as another charge."""
        self._charges.clear()
        self._refunds.clear()
        self.payouts.clear()
        self.changes.take()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _collect(self, charge: Charge, key: str | None) -> None:
        kind = Kind.CHARGE if charge.terms.capture else Kind.AUTHORIZATION
        self._enter(kind, charge, charge.id, charge.terms.amount, key)
        charge.status = Status.SUCCEEDED if charge.terms.capture else Status.AUTHORIZED
        charge.amount_captured = charge.terms.amount if charge.terms.capture else 0

    def _enter(self, kind: Kind, charge: Charge, id: str, amount: int, key: str | None) -> None:
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
        )

    def _why_not_authorized(self, charge: Charge, verb: str) -> tuple[str, str]:
        codes = {Status.SUCCEEDED: "charge_already_captured", Status.VOIDED: "charge_already_voided"}
        return codes.get(charge.status, "charge_not_authorized"), f"a charge that is {charge.status} cannot be {verb}"
