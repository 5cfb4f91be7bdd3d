"""From the name in a policy file to the scheme. Checks and docs take the options of each scheme from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paywitness.webhook_signatures import dlocal, paypal, square, unsigned_body
from paywitness.webhook_signatures.adyen import Adyen
from paywitness.webhook_signatures.braintree import Braintree
from paywitness.webhook_signatures.hmac_schemes import BODY_HMAC_SCHEMES, BodyHmac, generic_hmac, generic_hmac_options
from paywitness.webhook_signatures.midtrans import Midtrans
from paywitness.webhook_signatures.scheme import SchemeOption, SignatureScheme
from paywitness.webhook_signatures.standard_webhooks import StandardWebhooks
from paywitness.webhook_signatures.stripe import Stripe
from paywitness.webhook_signatures.wise import Wise
from paywitness.webhook_signatures.worldpay import Worldpay


@dataclass(frozen=True, slots=True)
class RegisteredScheme:
    """A scheme that a policy can name: its description, its options, its constructor."""

    description: str
    options: tuple[SchemeOption, ...]
    make: Callable[[Mapping[str, str]], SignatureScheme]
    hint_only: bool = False  # it proves too little to be evidence, so a policy must take its events as hints


def _without_options(scheme: SignatureScheme, description: str) -> RegisteredScheme:
    """A scheme without options."""
    return RegisteredScheme(description, (), lambda _: scheme)


def _body_hmac(scheme: BodyHmac) -> RegisteredScheme:
    return _without_options(scheme, f"HMAC-{scheme.algorithm.upper()} over the body in {scheme.header.decode()}")


SCHEMES: Mapping[str, RegisteredScheme] = MappingProxyType(
    {
        "hmac_sha256": RegisteredScheme(
            "HMAC-SHA256 in a header, by options",
            generic_hmac_options("sha256"),
            lambda options: generic_hmac("sha256", options),
        ),
        "hmac_sha512": RegisteredScheme(
            "HMAC-SHA512 in a header, by options",
            generic_hmac_options("sha512"),
            lambda options: generic_hmac("sha512", options),
        ),
        "token": RegisteredScheme(
            "a secret repeated in a header; the body is not signed", unsigned_body.TOKEN_OPTIONS, unsigned_body.token
        ),
        "unsigned": RegisteredScheme(
            "nothing is signed: only a hint", unsigned_body.UNSIGNED_OPTIONS, unsigned_body.unsigned, hint_only=True
        ),
        "standard": _without_options(StandardWebhooks(), "Standard Webhooks 1.0.0, symmetric: v1 in webhook-signature"),
        "stripe": _without_options(Stripe(), "v1 in Stripe-Signature"),
        "adyen": _without_options(Adyen(), "HMAC-SHA256 over eight parts of each item, inside the item"),
        "paypal": RegisteredScheme(
            "RSA-SHA256 over the body's CRC in PAYPAL-TRANSMISSION-SIG", paypal.OPTIONS, paypal.paypal
        ),
        "square": RegisteredScheme(
            "HMAC-SHA256 over address and body in Square's header", square.OPTIONS, square.square
        ),
        **{scheme.name: _body_hmac(scheme) for scheme in BODY_HMAC_SCHEMES},
        "braintree": _without_options(Braintree(), "HMAC-SHA1 over bt_payload in bt_signature, in a form"),
        "worldpay": _without_options(Worldpay(), "HMAC-SHA256 over the body in Event-Signature"),
        "wise": _without_options(Wise(), "RSA-SHA256 over the body in X-Signature-SHA256"),
        "xendit": _without_options(
            unsigned_body.XENDIT, "a secret repeated in X-CALLBACK-TOKEN; the body is not signed"
        ),
        "flutterwave": _without_options(
            unsigned_body.FLUTTERWAVE, "v3: a secret repeated in verif-hash; the body is not signed"
        ),
        "dlocal": RegisteredScheme(
            "HMAC-SHA256 over login, date and body in Authorization", dlocal.OPTIONS, dlocal.dlocal
        ),
        "midtrans": RegisteredScheme(
            "SHA-512 over three fields of the body, in the body", (), lambda _: Midtrans(), hint_only=True
        ),
    }
)


def scheme_named(name: str, options: Mapping[str, str]) -> SignatureScheme:
    """Raises ValueError for an unknown name or invalid options, with the value found and the values allowed."""
    registered = SCHEMES.get(name)
    if registered is None:
        raise ValueError(f"found the scheme {name!r}, allowed: one of {', '.join(SCHEMES)}")
    allowed = [option.name for option in registered.options]
    for option in options:
        if option not in allowed:
            raise ValueError(f"found the option {option!r} of {name}, allowed: {', '.join(allowed) or 'none'}")
    for needed in registered.options:
        if needed.required and needed.name not in options:
            raise ValueError(f"found no option {needed.name!r} of {name}, it is required: {needed.description}")
    return registered.make(options)
