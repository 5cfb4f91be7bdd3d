"""Payments with numbers: what the provider of a world keeps of authorizations, captures, refunds and transfers.

A payment has two names (`pi_`, `ch_`), is confirmed at its creation or later, captured once or in parts, refunded in
parts, and shows its totals. A refund or a transfer may fail after it had succeeded. Browsers and dashboards act on it
too, past everybody. Each movement of money is one line of the money book, which never forgets, and which knows whose
call made it. No HTTP, no faults and no keys: those are `provider.py`'s, as of everything else that it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from paywitness_sandbox.bank.objects import DECLINING_TOKENS, IdSequence

US = "us"  # who made a line: a call that came through a sidecar
BROWSER = "browser"
DASHBOARD = "dashboard"
PROVIDER = "provider"  # its own later word

Object = dict[str, object]


class LineKind(StrEnum):
    AUTHORISED = "authorised"
    CAPTURED = "captured"
    REFUNDED = "refunded"
    RETURNED = "returned"  # a refund that failed after it had succeeded
    RELEASED = "released"  # by a void
    TRANSFERRED = "transferred"
    BOUNCED = "bounced"  # a transfer that failed after it had succeeded


@dataclass(frozen=True, slots=True)
class MoneyLine:
    seq: int
    at: float
    kind: LineKind
    id: str  # of the payment, capture, refund or transfer
    payment: str  # of a transfer, the transfer
    order: str  # of a transfer, its reference
    amount: int
    movement: str  # the name of the call that it came by; "" if nobody named it
    stamp: str
    by: str


class Refused(Exception):
    """The provider will not do it, as the thing stands."""

    def __init__(self, code: str, *, conflict: bool = True) -> None:
        super().__init__(code)
        self.code = code
        self.conflict = conflict


class NotFound(Exception):
    """No such payment, capture, refund or transfer."""


class PaymentStatus(StrEnum):
    REQUIRES_CONFIRMATION = "requires_confirmation"
    REQUIRES_PAYMENT_METHOD = "requires_payment_method"  # declined; another confirm may follow
    PROCESSING = "processing"
    REQUIRES_CAPTURE = "requires_capture"
    SUCCEEDED = "succeeded"
    CANCELED = "canceled"


class PartStatus(StrEnum):
    """Of a capture, a refund or a transfer."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Origin:
    """By which call something is done."""

    movement: str = ""
    stamp: str = ""
    key: str | None = None
    by: str = US


@dataclass(slots=True)
class Payment:
    id: str
    charge: str  # its other name
    amount: int
    currency: str
    manual: bool  # it is authorised, and captured by later calls
    metadata: Object
    origin: Origin
    created_at: float
    status: PaymentStatus = PaymentStatus.REQUIRES_CONFIRMATION
    confirmed_by: Origin | None = None
    confirmed_later: bool = False  # it was opened, and confirmed by a call of its own
    authorised: int = 0
    captured: int = 0
    refunded: int = 0  # what is pending counts
    refunds_pending: int = 0
    voided: int = 0
    closed: bool = False  # nothing more can be captured
    exceeded: bool = False  # more was done with it than there was, if only for a while
    failure_code: str | None = None
    freed_at: float | None = None  # since when nothing of it stands
    changes: int = 0
    shown_stale: int = 0  # looks at it, since its last change, that showed it as it was before
    before: Object = field(default_factory=dict)  # as it was shown before its last change

    @property
    def order(self) -> str:
        return str(self.metadata.get("order_id", ""))

    @property
    def capturable(self) -> int:
        return 0 if self.closed else max(0, self.authorised - self.captured)

    @property
    def stands(self) -> bool:
        """Whether the customer has paid something that is not given back, or may still be charged for it. A refund that
        is pending may fail."""
        return self.captured > self.refunded - self.refunds_pending or self.capturable > 0

    def shown(self) -> Object:
        return {
            "id": self.id,
            "object": "payment",
            "status": str(self.status),
            "amount": self.amount,
            "currency": self.currency,
            "capture": "manual" if self.manual else "automatic",
            "amount_authorised": self.authorised,
            "amount_captured": self.captured,
            "amount_capturable": self.capturable,
            "amount_refunded": self.refunded,
            "amount_voided": self.voided,
            "latest_charge": self.charge,
            "metadata": self.metadata,
            "failure_code": self.failure_code,
            "idempotency_key": self.origin.key,
            "created": int(self.created_at),
        }


@dataclass(slots=True)
class Part:
    """A capture or a refund of a payment."""

    id: str
    object: str  # payment_capture, payment_refund
    payment: Payment
    amount: int
    metadata: Object
    origin: Origin
    created_at: float
    status: PartStatus = PartStatus.SUCCEEDED

    @property
    def order(self) -> str:
        return self.payment.order

    def shown(self) -> Object:
        return {
            "id": self.id,
            "object": self.object,
            "payment": self.payment.id,
            "charge": self.payment.charge,
            "amount": self.amount,
            "currency": self.payment.currency,
            "status": str(self.status),
            "metadata": self.metadata,
            "idempotency_key": self.origin.key,
            "created": int(self.created_at),
        }


@dataclass(slots=True)
class Transfer:
    """A payout under a reference of its own."""

    id: str
    reference: str
    amount: int
    currency: str
    destination: str
    metadata: Object
    origin: Origin
    created_at: float
    status: PartStatus = PartStatus.SUCCEEDED
    object: str = "transfer"

    @property
    def order(self) -> str:
        return self.reference

    def shown(self) -> Object:
        return {
            "id": self.id,
            "object": self.object,
            "status": "paid" if self.status is PartStatus.SUCCEEDED else str(self.status),
            "amount": self.amount,
            "currency": self.currency,
            "destination": self.destination,
            "reference": self.reference,
            "metadata": self.metadata,
            "idempotency_key": self.origin.key,
            "created": int(self.created_at),
        }


Thing = Payment | Part | Transfer


class MoneyBook:
    """The lines of all routes, with somebody looking at each as it is written."""

    def __init__(self) -> None:
        self.lines: list[MoneyLine] = []
        self.look: Callable[[MoneyLine], None] = lambda line: None
        self.of_order: dict[str, list[MoneyLine]] = {}
        self.payments: dict[str, Payment] = {}  # by either name

    def __len__(self) -> int:
        return len(self.lines)

    def write(self, kind: LineKind, at: float, thing: Thing, amount: int, origin: Origin, stamp: str = "") -> None:
        payment = thing.payment.id if isinstance(thing, Part) else thing.id
        line = MoneyLine(
            len(self.lines) + 1,
            at,
            kind,
            thing.id,
            payment,
            thing.order,
            amount,
            origin.movement,
            stamp or origin.stamp,
            origin.by,
        )
        self.lines.append(line)
        self.of_order.setdefault(line.order, []).append(line)
        self.look(line)

    def of(self, order: str, *kinds: LineKind) -> list[MoneyLine]:
        return [line for line in self.of_order.get(order, ()) if line.kind in kinds]

    def payments_of(self, order: str) -> list[Payment]:
        return [payment for name, payment in self.payments.items() if name == payment.id and payment.order == order]


class Payments:
    """What one route of the provider has made. Each method changes the thing and writes its line, or raises."""

    def __init__(
        self, book: MoneyBook, now: Callable[[], float], salt: str, *, lenient: bool, search_lag_s: float
    ) -> None:
        self.book = book
        self.is_pending: Callable[[], bool] = lambda: False  # asked of each refund: whether it succeeds later
        self._now = now
        self._search_lag_s = search_lag_s
        self._ids = IdSequence(salt)
        self._lenient = lenient  # it does not add up what is captured and refunded: that is the merchant's business
        self._things: dict[str, Thing] = {}
        self._stamped: dict[str, list[Thing]] = {}
        self.changed: list[Thing] = []  # since somebody last told of them

    # -- looking

    def payment(self, name: str) -> Payment:
        found = self._things.get(name)
        if not isinstance(found, Payment):
            raise NotFound(name)
        return found

    def thing(self, name: str) -> Thing:
        found = self._things.get(name)
        if found is None:
            raise NotFound(name)
        return found

    def has(self, name: str) -> bool:
        return name in self._things

    def made_by(self, stamp: str) -> list[Thing]:
        return self._stamped.get(stamp, [])

    def found(self, stamp: str) -> list[Thing]:
        """Likewise, as far as the search index has caught up."""
        seen_until = self._now() - self._search_lag_s
        return [thing for thing in self.made_by(stamp) if thing.created_at <= seen_until]

    # -- moving money

    def open(self, amount: int, currency: str, *, manual: bool, metadata: Object, origin: Origin) -> Payment:
        name = self._ids.new("pi")
        charge = "ch_" + name.removeprefix("pi_")
        payment = Payment(name, charge, amount, currency, manual, metadata, origin, self._now())
        self._add(payment, payment.charge)
        self.book.payments[payment.id] = self.book.payments[payment.charge] = payment
        return payment

    def confirm(self, payment: Payment, source: str, origin: Origin) -> None:
        """Ask the card. A decline is an answer: another confirm may follow it."""
        if payment.status in {PaymentStatus.REQUIRES_CAPTURE, PaymentStatus.SUCCEEDED, PaymentStatus.PROCESSING}:
            raise Refused("payment_already_confirmed")
        if payment.status is PaymentStatus.CANCELED:
            raise Refused("payment_already_voided")
        self._note_state(payment)
        payment.confirmed_by = origin
        payment.failure_code = DECLINING_TOKENS.get(source)
        if payment.failure_code is not None:
            payment.status = PaymentStatus.REQUIRES_PAYMENT_METHOD
            if not payment.confirmed_later:  # of one that was opened only, nobody is told of what did not pay
                self.changed.append(payment)
        elif source == "tok_processing":
            payment.status = PaymentStatus.PROCESSING
            self.changed.append(payment)
        else:
            self._pay(payment, origin)

    def settle(self, payment: Payment, *, paid: bool) -> bool:
        """The issuer's later word of one that is processing. False: it was given up meanwhile."""
        if payment.status is not PaymentStatus.PROCESSING or payment.confirmed_by is None:
            return False
        self._note_state(payment)
        if paid:
            self._pay(payment, payment.confirmed_by)
        else:
            payment.status, payment.failure_code = PaymentStatus.REQUIRES_PAYMENT_METHOD, "generic_decline"
            self.changed.append(payment)
        return True

    def _pay(self, payment: Payment, origin: Origin) -> None:
        payment.authorised = payment.amount
        payment.captured = 0 if payment.manual else payment.amount
        payment.status = PaymentStatus.REQUIRES_CAPTURE if payment.manual else PaymentStatus.SUCCEEDED
        payment.closed = not payment.manual
        self.book.write(LineKind.AUTHORISED, self._now(), payment, payment.amount, origin)
        if not payment.manual:
            self.book.write(LineKind.CAPTURED, self._now(), payment, payment.amount, origin)
        self.changed.append(payment)

    def capture(self, payment: Payment, amount: int | None, metadata: Object, origin: Origin, *, final: bool) -> Part:
        if payment.status is PaymentStatus.CANCELED:
            raise Refused("payment_already_voided")
        if payment.status not in {PaymentStatus.REQUIRES_CAPTURE, PaymentStatus.SUCCEEDED}:
            raise Refused("payment_not_authorised")
        if payment.capturable == 0 and (payment.closed or not self._lenient):
            raise Refused("payment_already_captured")
        amount = payment.capturable if amount is None else amount
        if amount > payment.capturable and not self._lenient:
            raise Refused("amount_too_large", conflict=False)
        self._note_state(payment)
        part = Part(self._ids.new("cp"), "payment_capture", payment, amount, metadata, origin, self._now())
        self._add(part)
        payment.captured += amount
        payment.exceeded = payment.exceeded or payment.captured > payment.authorised
        payment.closed = final
        if payment.capturable == 0:
            payment.status = PaymentStatus.SUCCEEDED
        self.book.write(LineKind.CAPTURED, self._now(), part, amount, origin)
        self.changed += [part, payment]
        return part

    def void(self, payment: Payment, origin: Origin) -> None:
        """Release what is not captured. What was never authorised, or is being worked on, is given up: no line."""
        unpaid = {
            PaymentStatus.REQUIRES_CONFIRMATION,
            PaymentStatus.REQUIRES_PAYMENT_METHOD,
            PaymentStatus.PROCESSING,
        }
        if payment.status is PaymentStatus.CANCELED or payment.voided:
            raise Refused("payment_already_voided")
        if payment.status not in unpaid and payment.capturable == 0:
            raise Refused("payment_already_captured")
        self._note_state(payment)
        released, payment.closed = payment.capturable, True
        payment.voided = released
        if not payment.captured:
            payment.status = PaymentStatus.CANCELED
        else:
            payment.status = PaymentStatus.SUCCEEDED
        if released:
            self._note_freed(payment)
            self.book.write(LineKind.RELEASED, self._now(), payment, released, origin)
        self.changed.append(payment)

    def refund(self, payment: Payment, amount: int | None, metadata: Object, origin: Origin) -> Part:
        left = payment.captured - payment.refunded
        if payment.captured == 0:
            raise Refused("payment_not_captured")
        if left <= 0 and not self._lenient:
            raise Refused("payment_already_refunded")
        amount = left if amount is None else amount
        if amount > left and not self._lenient:
            raise Refused("amount_too_large", conflict=False)
        self._note_state(payment)
        part = Part(self._ids.new("re"), "payment_refund", payment, amount, metadata, origin, self._now())
        part.status = PartStatus.PENDING if self.is_pending() else PartStatus.SUCCEEDED
        self._add(part)
        payment.refunded += amount
        payment.exceeded = payment.exceeded or payment.refunded > payment.captured
        payment.refunds_pending += amount if part.status is PartStatus.PENDING else 0
        self._note_freed(payment)
        self.book.write(LineKind.REFUNDED, self._now(), part, amount, origin)
        self.changed += [part, payment]
        return part

    def end_part(self, thing: Part | Transfer, *, succeeded: bool) -> None:
        """The other bank's later word: what was pending, or had succeeded, ends so. What fails comes back."""
        if thing.status is PartStatus.FAILED:
            return
        was_pending = thing.status is PartStatus.PENDING
        thing.status = PartStatus.SUCCEEDED if succeeded else PartStatus.FAILED
        if isinstance(thing, Part):
            payment = thing.payment
            self._note_state(payment)
            payment.refunded -= 0 if succeeded else thing.amount
            payment.refunds_pending -= thing.amount if was_pending else 0
            self._note_freed(payment)
            self.changed.append(payment)
        if not succeeded:
            kind = LineKind.RETURNED if isinstance(thing, Part) else LineKind.BOUNCED
            origin = Origin(thing.origin.movement, thing.origin.stamp, by=PROVIDER)
            self.book.write(kind, self._now(), thing, thing.amount, origin)
        self.changed.append(thing)

    def transfer(self, body: Object, metadata: Object, origin: Origin) -> Transfer:
        destination = str(body["destination"])
        transfer = Transfer(
            self._ids.new("tr"),
            str(body["reference"]),
            _whole(body["amount"]),
            str(body["currency"]),
            destination,
            metadata,
            origin,
            self._now(),
        )
        self._add(transfer)
        if destination == "dest_refused":
            transfer.status = PartStatus.FAILED
        else:
            transfer.status = PartStatus.PENDING if destination == "dest_pending" else PartStatus.SUCCEEDED
            self.book.write(LineKind.TRANSFERRED, self._now(), transfer, transfer.amount, origin)
        self.changed.append(transfer)
        return transfer

    # -- inside

    def _add(self, thing: Thing, *names: str) -> None:
        for name in (thing.id, *names):
            self._things[name] = thing
        if thing.origin.stamp:
            self._stamped.setdefault(thing.origin.stamp, []).append(thing)

    def _note_state(self, payment: Payment) -> None:
        """Before each change: how a replica that lags goes on showing it."""
        payment.before = payment.shown()
        payment.changes += 1
        payment.shown_stale = 0

    def _note_freed(self, payment: Payment) -> None:
        payment.freed_at = None if payment.stands else self._now()


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
