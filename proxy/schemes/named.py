"""The name in a policy file -> the scheme. What each scheme may be told stands here for checks and for the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from proxy.schemes.base import Option, Scheme
from proxy.schemes.plain_hmac import options_of, plain_hmac
from proxy.schemes.standard import Standard
from proxy.schemes.stripe import Stripe


@dataclass(frozen=True, slots=True)
class Known:
    """A scheme that can be named: what it is, what it may be told, how it is made."""

    description: str
    options: tuple[Option, ...]
    make: Callable[[Mapping[str, str]], Scheme]


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
        "standard": Known("Standard Webhooks 1.0.0, symmetric: v1 in webhook-signature", (), lambda _: Standard()),
        "stripe": Known("Stripe: v1 in Stripe-Signature", (), lambda _: Stripe()),
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
    return known.make(options)
