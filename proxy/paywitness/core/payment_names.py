"""The names under which a provider knows a payment, and the keys under which a journal keeps payments and names. Pure.

A name belongs to one payment of one account: two accounts, or two providers, may use the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple


class PaymentName(NamedTuple):
    """A name under which the provider knows a payment, and the key of the row that links it to the payment."""

    name: str
    key: str


def payment_key(payment_id: str) -> str:
    return f"p:{payment_id}"


def name_key(provider: str, account: str, name: str) -> str:
    """Under which a journal keeps the link from a name to its payment. `provider` is the name that keys know."""
    digest = blake2b(digest_size=20)
    for part in (provider, account, name):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return f"n:{digest.hexdigest()}"


def payment_names(provider: str, account: str, names: Iterable[str]) -> tuple[PaymentName, ...]:
    return tuple(PaymentName(name, name_key(provider, account, name)) for name in dict.fromkeys(names))
