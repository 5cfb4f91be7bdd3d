"""Where webhook events go, how they are signed, and how delivery goes wrong (the mode): values read from JSON.

{"url": "http://127.0.0.1:8700/paywitness/webhooks/acme", "secret": "whsec_test", "scheme": "hmac_sha256",
 "mode": "normal", "delay_s": 0, "events": ["charge.*", "refund.succeeded"], "tries_max": 5}

PUT /_sandbox/webhooks sets the mode for all requests, the Sandbox-Webhook header for one. The HMAC key is the secret's
own bytes, prefix included; the raw body is what is signed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar
from urllib.parse import urlsplit

from paywitness_sandbox.parameters import (
    InvalidParameter,
    Parameters,
    format_with_parameters,
    read_parameters,
    split_name,
)


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
    "normal": "told after the change, in order, until it is received",
    "early": "told before the answer to the call is sent, also when that answer is then lost; waits 2 s at most",
    "late": "told after delay_s",
    "twice": "the same event two times, one after the other",
    "ten_times": "the same event ten times, all at once",
    "never": "not told; it is kept, and /_sandbox/webhooks/{event}/resend tells it",
    "reversed": "told; delay_s later the charge (payout) is reversed, and that is told too",
    "forged": "signed with a wrong secret",
    "old_timestamp": "correctly signed, age_s ago",
    "wrong_amount": "correctly signed, the amount is by_minor more",
    "other_account": 'correctly signed, of the account "acct_other"',
    "out_of_order": "after a final event, an older one that says it is not final yet (processing, pending)",
}


class UnknownMode(ValueError):
    """Not the name of a mode, or not a parameter of it."""

    code: ClassVar[str] = "unknown_webhook_mode"


class EndpointMissing(UnknownMode):
    """A mode was asked for, and there is no endpoint."""

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
    """`late(delay_s=2)` -> the mode."""
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
    """Says what is wrong; the endpoint in force stays."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    secret: str
    scheme: SigningScheme
    mode: WebhookMode
    delay_s: float
    events: tuple[str, ...]
    """Types, or `charge.*`; empty for all."""
    tries_max: int

    def wants(self, type: str) -> bool:
        family = type.partition(".")[0] + ".*"
        return not self.events or type in self.events or family in self.events

    def as_json(self) -> dict[str, object]:
        """For showing. The secret is not shown."""
        return {
            "url": self.url,
            "scheme": self.scheme,
            "mode": str(self.mode),
            "delay_s": self.delay_s,
            "events": list(self.events),
            "tries_max": self.tries_max,
        }


def parse_endpoint(source: Mapping[str, object]) -> Endpoint:
    """Raises InvalidEndpoint, or UnknownMode for a mode that is none."""
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
