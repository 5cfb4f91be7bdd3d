"""A delivery: what is kept, sealed, of a provider's webhook. One event, the headers it came with and, where it shall be
relayed, the whole of it as it came.

A delivery of several events is kept event by event; its raw bytes are kept once, with the first of them that was new.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from proxy.core.body import Tree, decode_json, decompressed
from proxy.core.call import Headers
from proxy.core.errors import BodyError, UnreadableSecret
from proxy.vault import Vault

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Delivery:
    headers: Headers
    event: Tree  # None: it is not for us
    raw: bytes = b""  # the delivery to be relayed; empty where it shall not be, or another of its events carries it

    def header(self, name: str) -> str | None:
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


def tree_in(headers: Headers, raw: bytes) -> Tree:
    """What a delivery says, which is JSON. Raises BodyError."""
    return decode_json(decompressed(raw, Delivery(headers, None).header("Content-Encoding")))


def seal_delivery(vault: Vault, delivery: Delivery, bound_to: str, *, is_whole: bool) -> bytes:
    """`is_whole`: the event is all that the delivery says, so that it need not be kept beside the raw bytes."""
    told = delivery.event is not None and not (is_whole and delivery.raw)
    event = json.dumps(delivery.event, separators=(",", ":")).encode() if told else b""
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in delivery.headers]
    head = {"format": _FORMAT, "headers": pairs, "event_bytes": len(event), "unread": delivery.event is None}
    return vault.seal(json.dumps(head).encode() + b"\n" + event + delivery.raw, bound_to)


def open_delivery(vault: Vault, sealed: bytes, bound_to: str) -> Delivery:
    """Raises UnreadableSecret."""
    head, _, rest = vault.open(sealed, bound_to).partition(b"\n")
    told = json.loads(head)
    if told.get("format") != _FORMAT:
        raise UnreadableSecret("what was sealed is not what this version writes")
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in told["headers"])
    length = told["event_bytes"]
    raw = rest[length:]
    if told["unread"]:
        return Delivery(headers, None, raw)
    try:
        event = decode_json(rest[:length]) if length else tree_in(headers, raw)
    except BodyError:
        raise UnreadableSecret("what was sealed is no event") from None
    return Delivery(headers, event, raw)
