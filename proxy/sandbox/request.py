"""One request as it arrives: the head at once, the body when it is all here."""

from __future__ import annotations

import hashlib
from functools import cached_property
from urllib.parse import parse_qsl, unquote

from proxy.sandbox.body import FIELDS_MAX, BadBody, Tree, order_in, parse_body

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Request:
    """The head; `body` and what is read from it mean something only once the wire has set `complete`."""

    def __init__(self, method: str, target: str, headers: dict[str, str], keep_alive: bool) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.complete = False
        path, _, self._query = target.partition("?")
        self.segments = tuple(unquote(segment) for segment in path.split("/")[1:])
        self.path = path

    @property
    def key(self) -> str | None:
        """The idempotency key; reads have none, whatever they send."""
        return self.headers.get("idempotency-key") or None if self.method == "POST" else None

    @property
    def writes(self) -> bool:
        return self.method in WRITES

    @cached_property
    def query(self) -> dict[str, str]:
        """Raises BadBody: too much is too much in the address as well."""
        try:
            return dict(parse_qsl(self._query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as error:
            raise BadBody(f"the query is no query: {error}") from error

    @cached_property
    def tree(self) -> Tree:
        """The body as a tree; raises BadBody."""
        return parse_body(self.headers.get("content-type", "application/json"), bytes(self.body))

    @cached_property
    def fingerprint(self) -> str:
        """What makes two requests under one key the same request."""
        digest = hashlib.sha256(f"{self.method} {self.target}\n".encode("utf-8", "surrogateescape"))
        digest.update(self.body)
        return digest.hexdigest()

    @property
    def order_in_head(self) -> str | None:
        """POST /v1/orders/{order}/pay"""
        return self.segments[2] if len(self.segments) == 4 and self.segments[:2] == ("v1", "orders") else None

    @cached_property
    def order(self) -> str | None:
        """The order it is about: in the path, else in the body's metadata."""
        if self.order_in_head is not None or not self.body:
            return self.order_in_head
        try:
            return order_in(self.tree) or self._reference
        except BadBody:  # an unreadable body names no order; the dialect will say what is wrong with it
            return None

    @property
    def _reference(self) -> str | None:
        """A payout that names no order is known by its reference."""
        reference = self.tree.get("reference") if self.segments == ("v1", "payouts") else None
        return reference if isinstance(reference, str) else None

    @property
    def identity_in_head(self) -> str | None:
        """Who it is, when the head alone tells."""
        if self.key is not None:
            return f"key:{self.key}"
        return None if self.order_in_head is None else f"order:{self.order_in_head}"

    @property
    def identity(self) -> str:
        """What makes two arrivals tries of the same thing: the key, else the order, else the very bytes."""
        if self.identity_in_head is not None:
            return self.identity_in_head
        if self.method == "POST" and self.order is not None:
            return f"order:{self.order}"
        return f"bytes:{self.fingerprint}"
