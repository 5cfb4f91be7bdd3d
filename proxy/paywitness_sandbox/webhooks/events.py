"""An event: the content for one change, in the dialect of the request that created the object."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar
from urllib.parse import urlsplit

from paywitness_sandbox.bank.objects import BankChange, Charge, ChargeStatus, Dialect, Dispute, Payout, Refund
from paywitness_sandbox.dialects.acme import charge_json, dispute_json, payout_json, refund_json
from paywitness_sandbox.dialects.stripe import intent_json
from paywitness_sandbox.messages import Request
from paywitness_sandbox.parameters import (
    InvalidParameter,
    Parameters,
    format_with_parameters,
    read_parameters,
    split_name,
)

# --- The endpoint
# The endpoint of events, their signatures, and the faults of their delivery (the mode): values read from JSON.
#
# {"url": "http://127.0.0.1:8700/paywitness/webhooks/acme", "secret": "whsec_test", "scheme": "hmac_sha256",
#  "mode": "normal", "delay_s": 0, "events": ["charge.*", "refund.succeeded"], "tries_max": 5}
#
# PUT /_sandbox/webhooks sets the mode for all requests, the Sandbox-Webhook header for one.
# The HMAC key is the secret's own bytes with its prefix. The signature is over the timestamp and the raw body.


class SigningScheme(StrEnum):
    HMAC_SHA256 = "hmac_sha256"
    STRIPE = "stripe"


def signature_headers(scheme: SigningScheme, secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """Both schemes sign `timestamp.body`, so that neither can be changed without the other."""
    signed = hmac.new(secret.encode(), str(timestamp).encode() + b"." + body, hashlib.sha256).hexdigest()
    if scheme is SigningScheme.STRIPE:
        return {"Stripe-Signature": f"t={timestamp},v1={signed}"}
    return {"Webhook-Timestamp": str(timestamp), "Webhook-Signature": f"sha256={signed}"}


# --- Modes

MODE_DEFAULTS: Mapping[str, Parameters] = {
    "normal": {},
    "early": {},
    "late": {"delay_s": 2.0},
    "twice": {},
    "ten_times": {},
    "never": {},
    "reversed": {"delay_s": 0.0},
    "forged": {},
    "old_timestamp": {"age_s": 3600.0},
    "wrong_amount": {"by_minor": 1},
    "other_account": {},
    "out_of_order": {},
}
MODE_MEANINGS = {
    "normal": "sent after the change, in order, until it is received",
    "early": "sent before the response to the call, even if that response is then lost; waits 2 s at most",
    "late": "sent after delay_s",
    "twice": "the same event two times, one after the other",
    "ten_times": "the same event ten times, all at once",
    "never": "not sent; it is kept, and /_sandbox/webhooks/{event}/resend sends it",
    "reversed": "sent; delay_s later the charge (payout) is reversed, and that is sent too",
    "forged": "signed with a wrong secret",
    "old_timestamp": "correctly signed, age_s ago",
    "wrong_amount": "correctly signed, the amount is by_minor more",
    "other_account": 'correctly signed, of the account "acct_other"',
    "out_of_order": "after a final event, an older one that says it is not final yet (processing, pending)",
}


class UnknownMode(ValueError):
    """The name is no mode, or the mode has no such parameter."""

    code: ClassVar[str] = "unknown_webhook_mode"


class EndpointMissing(UnknownMode):
    """The request names a mode, and there is no endpoint."""

    code = "webhook_endpoint_missing"


@dataclass(frozen=True, slots=True)
class WebhookMode:
    name: str
    parameters: Mapping[str, float | int]

    def number(self, parameter: str, default: float = 0.0) -> float | int:
        return self.parameters.get(parameter, default)

    def __str__(self) -> str:
        return format_with_parameters(self.name, self.parameters)


def parse_mode(text: str) -> WebhookMode:
    """Parse `late(delay_s=2)`."""
    call = split_name(text)
    if call is None or call[0] not in MODE_DEFAULTS:
        raise UnknownMode(f"unknown webhook mode {text.strip()!r}; known: {', '.join(MODE_DEFAULTS)}")
    known = MODE_DEFAULTS[call[0]]
    try:
        return WebhookMode(call[0], known | read_parameters(*call, known))
    except InvalidParameter as error:
        raise UnknownMode(str(error)) from None


def describe_modes() -> dict[str, str]:
    return {format_with_parameters(name, MODE_DEFAULTS[name]): meaning for name, meaning in MODE_MEANINGS.items()}


# --- Endpoints

DELAY_S_MAX = 3600.0
TRIES_DEFAULT = 5
TRIES_MAX = 20
FILTERS_MAX = 100
ENDPOINT_KEYS = ("url", "secret", "scheme", "mode", "delay_s", "events", "tries_max")


class InvalidEndpoint(ValueError):
    """The endpoint is not valid. The message gives the problem. The endpoint in force stays."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    secret: str
    scheme: SigningScheme
    mode: WebhookMode
    delay_s: float
    events: tuple[str, ...]
    """Types, or `charge.*`. Empty for all."""
    tries_max: int

    def wants(self, type: str) -> bool:
        family = type.partition(".")[0] + ".*"
        return not self.events or type in self.events or family in self.events

    def as_json(self) -> dict[str, object]:
        """For display, without the secret."""
        return {
            "url": self.url,
            "scheme": self.scheme,
            "mode": str(self.mode),
            "delay_s": self.delay_s,
            "events": list(self.events),
            "tries_max": self.tries_max,
        }


def parse_endpoint(source: Mapping[str, object]) -> Endpoint:
    """Raises InvalidEndpoint, or UnknownMode for an unknown mode."""
    if unknown := set(source) - set(ENDPOINT_KEYS):
        raise InvalidEndpoint(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ENDPOINT_KEYS)}")
    scheme = source.get("scheme", SigningScheme.HMAC_SHA256)
    if scheme not in list(SigningScheme):
        raise InvalidEndpoint(f"scheme is one of {', '.join(SigningScheme)}")
    secret, mode = source.get("secret"), source.get("mode", "normal")
    if not isinstance(secret, str) or not secret:
        raise InvalidEndpoint("secret is a text, and not an empty one")
    if not isinstance(mode, str):
        raise InvalidEndpoint("mode is the name of a mode")
    return Endpoint(
        url=_url(source.get("url")),
        secret=secret,
        scheme=SigningScheme(str(scheme)),
        mode=parse_mode(mode),
        delay_s=_delay_s(source.get("delay_s", 0.0)),
        events=_events(source.get("events", [])),
        tries_max=_tries_max(source.get("tries_max", TRIES_DEFAULT)),
    )


def _url(value: object) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidEndpoint("url is an address that begins with http:// or https://")
    return str(value)


def _delay_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= DELAY_S_MAX:
        raise InvalidEndpoint(f"delay_s is a number from 0 to {DELAY_S_MAX:g}")
    return float(value)


def _events(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > FILTERS_MAX:
        raise InvalidEndpoint(f"events is a list of at most {FILTERS_MAX} types")
    if not all(isinstance(item, str) and item for item in value):
        raise InvalidEndpoint("events holds types, like charge.succeeded or charge.*")
    return tuple(value)


def _tries_max(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TRIES_MAX:
        raise InvalidEndpoint(f"tries_max is a whole number from 1 to {TRIES_MAX}")
    return value


# --- Events

STRIPE_API_VERSION = "2024-06-20"
AMOUNT_FIELDS = ("amount", "amount_captured", "amount_received", "amount_capturable")

# From the bank's transition of a charge to Stripe's type.
INTENT_TYPES = {
    "succeeded": "payment_intent.succeeded",
    "captured": "payment_intent.succeeded",
    "authorized": "payment_intent.amount_capturable_updated",
    "failed": "payment_intent.payment_failed",
    "processing": "payment_intent.processing",
    "requires_action": "payment_intent.requires_action",
    "voided": "payment_intent.canceled",
    "reversed": "payment_intent.canceled",
    "incremented": "payment_intent.amount_capturable_updated",
}
REFUND_TYPES = {
    "succeeded": "refund.created",
    "pending": "refund.created",
    "updated": "charge.refund.updated",
    "failed": "refund.failed",
}
DISPUTE_TYPES = {"created": "charge.dispute.created", "closed": "charge.dispute.closed"}
# Nothing follows these, so an older event that arrives later must not count.
FINAL_TRANSITIONS = frozenset({"succeeded", "authorized", "failed", "paid"})


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    id: str
    type: str
    created: int
    account: str | None
    dialect: Dialect
    data: dict[str, object]
    """The object as a GET shows it."""
    key: str | None
    """The key of the request that caused the event."""

    @property
    def body(self) -> bytes:
        shape: dict[str, object]
        if self.dialect is Dialect.STRIPE:
            shape = {"id": self.id, "object": "event", "type": self.type, "created": self.created}
            shape |= {"api_version": STRIPE_API_VERSION, "livemode": False, "data": {"object": self.data}}
            shape["request"] = {"id": None, "idempotency_key": self.key}
            if self.account is not None:
                shape["account"] = self.account
        else:
            shape = {"id": self.id, "type": self.type, "created": self.created, "account": self.account}
            shape["data"] = self.data
        return json.dumps(shape, separators=(",", ":")).encode()

    def with_amount_more(self, by_minor: int) -> SandboxEvent:
        amounts = {name: self.data[name] for name in AMOUNT_FIELDS if self.data.get(name)}
        wrong_amounts = {name: value + by_minor for name, value in amounts.items() if isinstance(value, int)}
        return replace(self, data=self.data | wrong_amounts)


def event_for(change: BankChange, request: Request, *, id: str, created: int) -> SandboxEvent:
    """The event for a change. `request` caused the change: its address is used for the customer's redirect."""
    subject = change.subject
    if isinstance(subject, Payout):
        type = f"payout.{change.transition}"
        return SandboxEvent(id, type, created, subject.terms.account, Dialect.ACME, payout_json(subject), change.key)
    if isinstance(subject, Refund):
        terms = subject.charge.terms
        type = REFUND_TYPES[change.transition] if terms.dialect is Dialect.STRIPE else f"refund.{change.transition}"
        return SandboxEvent(id, type, created, terms.account, terms.dialect, refund_json(subject), change.key)
    if isinstance(subject, Dispute):
        terms = subject.charge.terms
        type = DISPUTE_TYPES[change.transition] if terms.dialect is Dialect.STRIPE else f"dispute.{change.transition}"
        return SandboxEvent(id, type, created, terms.account, terms.dialect, dispute_json(subject), change.key)
    type, data = _charge_type_and_data(subject, change.transition, request)
    return SandboxEvent(id, type, created, subject.terms.account, subject.terms.dialect, data, change.key)


def _charge_type_and_data(charge: Charge, transition: str, request: Request) -> tuple[str, dict[str, object]]:
    if charge.terms.dialect is Dialect.STRIPE:
        return _intent_type(charge, transition), intent_json(charge, request)
    return f"charge.{transition}", charge_json(charge, request)


def _intent_type(charge: Charge, transition: str) -> str:
    """The type for an intent. A partial capture or void leaves the intent in another state than a whole one."""
    if transition == "captured" and charge.status is ChargeStatus.AUTHORIZED:
        transition = "authorized"
    if transition == "voided" and charge.status is ChargeStatus.SUCCEEDED:
        transition = "succeeded"
    return INTENT_TYPES[transition]


def older_event(event: SandboxEvent, change: BankChange, *, id: str) -> SandboxEvent:
    """The event of a second earlier, which shows that the object is under way."""
    if isinstance(change.subject, Charge):
        is_stripe = event.dialect is Dialect.STRIPE
        type = INTENT_TYPES["processing"] if is_stripe else "charge.processing"
        nothing_yet: dict[str, object] = {"amount_received": 0, "amount_capturable": 0, "last_payment_error": None}
        if not is_stripe:
            nothing_yet = {"captured": False, "amount_captured": 0, "amount_capturable": 0, "failure_code": None}
            nothing_yet["capture_before"] = None
        data = event.data | nothing_yet | {"status": "processing"}
    else:
        type = event.type if event.dialect is Dialect.STRIPE else event.type.partition(".")[0] + ".pending"
        data = event.data | {"status": "pending"}
    return replace(event, id=id, type=type, created=event.created - 1, data=data)
