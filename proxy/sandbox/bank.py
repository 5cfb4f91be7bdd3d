"""What a charge, capture, void or refund does to the money: the one place that writes to the ledger.

No HTTP, no idempotency keys' meaning, no faults: a key is only written beside the effect. Each method either changes
the charge and writes its line, or raises and changes nothing. Nothing here awaits, so nothing can come in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from proxy.sandbox.charge import Charge, Refund, Status, Terms
from proxy.sandbox.clock import Clock
from proxy.sandbox.ledger import Kind, Ledger, charge_name
from proxy.sandbox.outcomes import outcome_of

CHARGES_MAX = 1_000_000
REFUNDS_PER_CHARGE_MAX = 1_000


class Refused(Exception):
    """The bank will not do it; `conflict` says that the charge's state forbids it, rather than the request."""

    def __init__(self, code: str, message: str, *, conflict: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflict = conflict


class NotFound(Exception):
    """No such charge or refund."""


class Bank:
    def __init__(self, ledger: Ledger, clock: Clock, *, salt: str, search_lag_s: float = 0.0) -> None:
        self.ledger = ledger
        self._clock = clock
        self._salt = salt
        self._search_lag_s = search_lag_s
        self._ids_given = 0
        self._charges: dict[str, Charge] = {}
        self._refunds: dict[str, Refund] = {}
        self._by_metadata: dict[tuple[str, str], list[Charge]] = {}
        self._by_key: dict[str, list[Charge]] = {}

    # -- moving money ---------------------------------------------------------------------------------------------

    def open(self, terms: Terms, key: str | None) -> Charge:
        """Announce a charge; nothing is asked of the card."""
        outcome_of(terms.source)
        if len(self._charges) >= CHARGES_MAX:
            raise Refused("too_many_charges", f"the sandbox holds its {CHARGES_MAX} charges", conflict=False)
        charge = Charge(self._new_id("ch"), terms, terms.source, key, self._clock())
        self._charges[charge.id] = charge
        for name, value in terms.metadata.items():
            self._by_metadata.setdefault((name, str(value)), []).append(charge)
        if key is not None:
            self._by_key.setdefault(key, []).append(charge)
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

    def capture(self, charge: Charge, key: str | None, amount: int | None = None) -> None:
        if charge.status is not Status.AUTHORIZED:
            raise Refused(*self._why_not_authorized(charge, "captured"))
        amount = charge.terms.amount if amount is None else amount
        if amount > charge.terms.amount:
            raise Refused("amount_too_large", f"only {charge.terms.amount} was authorized", conflict=False)
        self._enter(Kind.CAPTURE, charge, self._new_id("cp"), amount, key)
        charge.status, charge.amount_captured = Status.SUCCEEDED, amount

    def void(self, charge: Charge, key: str | None) -> None:
        """Release an authorization, or call off what was never paid (no effect, no line)."""
        if charge.status is Status.AUTHORIZED:
            self._enter(Kind.VOID, charge, self._new_id("vd"), charge.terms.amount, key)
        elif charge.status not in (Status.CREATED, Status.REQUIRES_ACTION):
            raise Refused(*self._why_not_authorized(charge, "voided"))
        charge.status = Status.VOIDED

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
        refund = Refund(self._new_id("re"), charge, amount, key, self._clock(), metadata or {})
        self._enter(Kind.REFUND, charge, refund.id, amount, key)
        charge.amount_refunded += amount
        charge.refunds.append(refund)
        self._refunds[refund.id] = refund
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
                self._enter(Kind.VOID, charge, self._new_id("vd"), charge.terms.amount, charge.key)
            charge.failure_code, charge.status = "generic_decline", Status.FAILED

    # -- looking --------------------------------------------------------------------------------------------------

    def charge(self, reference: str) -> Charge:
        """By `ch_` or `pi_` name. Never lags: only the searches do."""
        charge = self._charges.get(charge_name(reference))
        if charge is None:
            raise NotFound(f"no such charge: {reference}")
        return charge

    def refund_named(self, reference: str) -> Refund:
        refund = self._refunds.get(reference)
        if refund is None:
            raise NotFound(f"no such refund: {reference}")
        return refund

    def search(self, metadata: Iterable[tuple[str, str]] = (), key: str | None = None) -> list[Charge]:
        """The charges that fit everything given, newest first, as far as the search index has caught up."""
        groups: list[Sequence[Charge]] = [self._by_metadata.get(pair, []) for pair in metadata]
        if key is not None:
            groups.append(self._by_key.get(key, []))
        first = min(groups, key=len) if groups else list(self._charges.values())
        names = [{charge.id for charge in group} for group in groups]
        seen_until = self._clock() - self._search_lag_s
        return [
            charge
            for charge in reversed(first)
            if charge.created_at <= seen_until and all(charge.id in group for group in names)
        ]

    def clear(self) -> None:
        """Forget all charges. Names go on counting: an old name must never come back as another charge."""
        self._charges.clear()
        self._refunds.clear()
        self._by_metadata.clear()
        self._by_key.clear()

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

    def _new_id(self, prefix: str) -> str:
        """Looks like a provider's, is the same for the same salt, and never repeats."""
        self._ids_given += 1
        digest = hashlib.blake2s(f"{self._salt}:{self._ids_given}".encode(), digest_size=10).hexdigest()
        return f"{prefix}_{digest}"
