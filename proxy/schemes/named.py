"""The name in a policy file -> the scheme. What each scheme may be told stands here for checks and for the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from proxy.schemes import dlocal, paypal, square, token, unsigned
from proxy.schemes.adyen import Adyen
from proxy.schemes.base import Option, Scheme
from proxy.schemes.braintree import Braintree
from proxy.schemes.midtrans import Midtrans
from proxy.schemes.over_body import OVER_BODY, OverBody
from proxy.schemes.plain_hmac import options_of, plain_hmac
from proxy.schemes.standard import Standard
from proxy.schemes.stripe import Stripe
from proxy.schemes.wise import Wise
from proxy.schemes.worldpay import Worldpay


@dataclass(frozen=True, slots=True)
class Known:
    """A scheme that can be named: what it is, what it may be told, how it is made."""

    description: str
    options: tuple[Option, ...]
    make: Callable[[Mapping[str, str]], Scheme]
    hint_only: bool = False  # it proves too little to be evidence: a policy must say that an event is only a hint


def _alone(scheme: Scheme, description: str) -> Known:
    """A scheme that may be told nothing."""
    return Known(description, (), lambda _: scheme)


def _over_body(scheme: OverBody) -> Known:
    return _alone(scheme, f"HMAC-{scheme.algorithm.upper()} over the body in {scheme.header.decode()}")


SCHEMES: Mapping[str, Known] = MappingProxyType(
    {
        "hmac_sha256": Known(
            "HMAC-SHA256 in a header, told by options where and how",
            options_of("sha256"),
            lambda options: plain_hmac("sha256", options),
        ),
        "hmac_sha512": Known(
            "HMAC-SHA512 in a header, told by options where and how",
            options_of("sha512"),
            lambda options: plain_hmac("sha512", options),
        ),
        "token": Known("a secret repeated in a header; the body is not signed", token.OPTIONS, token.token),
        "unsigned": Known("nothing is signed: only a hint", unsigned.OPTIONS, unsigned.unsigned, hint_only=True),
        "standard": _alone(Standard(), "Standard Webhooks 1.0.0, symmetric: v1 in webhook-signature"),
        "stripe": _alone(Stripe(), "v1 in Stripe-Signature"),
        "adyen": _alone(Adyen(), "HMAC-SHA256 over eight parts of each item, inside the item"),
        "paypal": Known("RSA-SHA256 over the body's CRC in PAYPAL-TRANSMISSION-SIG", paypal.OPTIONS, paypal.paypal),
        "square": Known("HMAC-SHA256 over address and body in Square's header", square.OPTIONS, square.square),
        **{scheme.name: _over_body(scheme) for scheme in OVER_BODY},
        "braintree": _alone(Braintree(), "HMAC-SHA1 over bt_payload in bt_signature, in a form"),
        "worldpay": _alone(Worldpay(), "HMAC-SHA256 over the body in Event-Signature"),
        "wise": _alone(Wise(), "RSA-SHA256 over the body in X-Signature-SHA256"),
        "xendit": _alone(token.XENDIT, "a secret repeated in X-CALLBACK-TOKEN; the body is not signed"),
        "flutterwave": _alone(token.FLUTTERWAVE, "v3: a secret repeated in verif-hash; the body is not signed"),
        "dlocal": Known("HMAC-SHA256 over login, date and body in Authorization", dlocal.OPTIONS, dlocal.dlocal),
        "midtrans": Known(
            "SHA-512 over three fields of the body, in the body", (), lambda _: Midtrans(), hint_only=True
        ),
    }
)


def scheme_named(name: str, options: Mapping[str, str]) -> Scheme:
    """Raises ValueError, saying what was found and what is allowed, for an unknown name or unfit options."""
    known = SCHEMES.get(name)
    if known is None:
        raise ValueError(f"found the scheme {name!r}, allowed: one of {', '.join(SCHEMES)}")
    allowed = [option.name for option in known.options]
    for option in options:
        if option not in allowed:
            raise ValueError(f"found the option {option!r} of {name}, allowed: {', '.join(allowed) or 'none'}")
    for needed in known.options:
        if needed.required and needed.name not in options:
            raise ValueError(f"found no option {needed.name!r} of {name}, it is required: {needed.description}")
    return known.make(options)
