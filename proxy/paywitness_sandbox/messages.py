"""Requests and responses. A request as it arrives: its head first, its body once complete, and the body as nested
dictionaries. A response is a value that the dialects and the faults make. Only this module turns it into bytes.

JSON and forms become the same kind of tree. Other modules decide what to do with a request.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

FIELDS_MAX = 1000

Tree = dict[str, object]


class InvalidBody(ValueError):
    """The body does not fit its content type."""


def parse_body(content_type: str, body: bytes) -> Tree:
    if not body.strip():
        return {}
    # curl sends everything as "form". A body that begins like a JSON object is one.
    is_object = body.lstrip().startswith(b"{")
    if content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded" and not is_object:
        return parse_form(body)
    return parse_json(body)


def parse_json(body: bytes) -> Tree:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidBody(f"the body is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise InvalidBody("the body is not a JSON object")
    return tree


def parse_form(body: bytes) -> Tree:
    """`metadata[order_id]=1`, with literal or encoded brackets. `expand[]=x` becomes {"expand": {"": "x"}}."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise InvalidBody(f"the body is not a form: {error}") from error
    tree: Tree = {}
    for name, value in pairs:
        first, *rest = name.replace("]", "").split("[")
        branch = tree
        for inner in rest:
            twig = branch.setdefault(first, {})
            if not isinstance(twig, dict):
                raise InvalidBody(f"{name!r} is given both as a value and as a group")
            branch, first = twig, inner
        if isinstance(branch.get(first), dict):
            raise InvalidBody(f"{name!r} is given both as a value and as a group")
        branch[first] = value
    return tree


def order_in(tree: Tree) -> str | None:
    """The order that a body names, in both dialects: metadata.order_id."""
    metadata = tree.get("metadata")
    order = metadata.get("order_id") if isinstance(metadata, dict) else None
    return None if order is None else str(order)


# --- Requests

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ACCOUNT_HEADERS = ("acme-account", "stripe-account")


class Request:
    """A request. `body`, and everything read from it, is valid only once the connection has set `complete`."""

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
        """The idempotency key. Reads have none, even if they send one."""
        return self.headers.get("idempotency-key") or None if self.method == "POST" else None

    @property
    def account(self) -> str | None:
        """The sub-account that the request acts for, in either dialect."""
        return next((self.headers[name] for name in ACCOUNT_HEADERS if self.headers.get(name)), None)

    @property
    def writes(self) -> bool:
        return self.method in WRITES

    @cached_property
    def query(self) -> dict[str, str]:
        """Raises InvalidBody, also for too many fields."""
        try:
            return dict(parse_qsl(self._query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as error:
            raise InvalidBody(f"the query is no query: {error}") from error

    @cached_property
    def tree(self) -> Tree:
        """The body as a tree. Raises InvalidBody."""
        return parse_body(self.headers.get("content-type", "application/json"), bytes(self.body))

    @cached_property
    def fingerprint(self) -> str:
        """Two requests under one key are the same request if this is equal."""
        digest = hashlib.sha256(f"{self.method} {self.target}\n".encode("utf-8", "surrogateescape"))
        digest.update(self.body)
        return digest.hexdigest()

    @property
    def order_in_head(self) -> str | None:
        """The order in POST /v1/orders/{order}/pay."""
        return self.segments[2] if len(self.segments) == 4 and self.segments[:2] == ("v1", "orders") else None

    @cached_property
    def order(self) -> str | None:
        """The order of the request: from the path, else from the body's metadata."""
        if self.order_in_head is not None or not self.body:
            return self.order_in_head
        try:
            return order_in(self.tree) or self._reference
        except InvalidBody:  # an unreadable body names no order; the dialect reports the problem
            return None

    @property
    def _reference(self) -> str | None:
        """The reference of a payout, which identifies a payout without an order."""
        reference = self.tree.get("reference") if self.segments == ("v1", "payouts") else None
        return reference if isinstance(reference, str) else None

    @property
    def identity_in_head(self) -> str | None:
        """The identity, if the head alone gives it."""
        if self.key is not None:
            return f"key:{self.key}" if self.account is None else f"key:{self.account}:{self.key}"
        return None if self.order_in_head is None else f"order:{self.order_in_head}"

    @property
    def identity(self) -> str:
        """Arrivals with equal identities are attempts of the same thing: the key, else the order, else the bytes."""
        if self.identity_in_head is not None:
            return self.identity_in_head
        if self.method == "POST" and self.order is not None:
            return f"order:{self.order}"
        return f"bytes:{self.fingerprint}"


# --- Responses
# A response of the provider: a value, made by the dialects and the faults. Only this module turns it into bytes.

Headers = tuple[tuple[str, str], ...]

# Sent before any work began, so no contract stores them under a key.
NOT_EXECUTED_STATUSES = frozenset({400, 401, 403, 404, 405, 409, 413, 429, 431, 503, 507})


@dataclass(frozen=True, slots=True)
class SandboxResponse:
    status_code: int
    body: bytes
    content_type: str = "application/json"
    headers: Headers = ()
    failed: bool = False
    """The work was done and its result is a failure: a decline, with any status."""

    @property
    def executed(self) -> bool:
        """Whether the provider had begun the work before this response."""
        return self.status_code not in NOT_EXECUTED_STATUSES

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status_code < 300 and not self.failed

    def with_headers(self, *more: tuple[str, str]) -> SandboxResponse:
        return replace(self, headers=self.headers + more)

    def head(self, *more: tuple[str, str], length: int | None = None) -> bytes:
        """Status line and headers. `length` may be wrong on purpose. A length below zero leaves Content-Length out."""
        lines = [f"HTTP/1.1 {self.status_code} {reason_phrase(self.status_code)}", f"Content-Type: {self.content_type}"]
        length = len(self.body) if length is None else length
        if length >= 0:
            lines.append(f"Content-Length: {length}")
        lines.extend(f"{name}: {value}" for name, value in self.headers + more)
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def reason_phrase(status_code: int) -> str:
    try:
        return HTTPStatus(status_code).phrase
    except ValueError:
        return "Unknown"


def json_response(
    status_code: int, value: object, *, failed: bool = False, indent: int | None = None
) -> SandboxResponse:
    text = json.dumps(value, indent=indent, separators=None if indent else (",", ":"))
    return SandboxResponse(status_code, (text + "\n" if indent else text).encode(), failed=failed)


def error_response(
    status_code: int, kind: str, message: str, *, code: str | None = None, **more: object
) -> SandboxResponse:
    """Both dialects use the same form for errors: `{"error": {"type": ..., "code": ..., "message": ...}}`."""
    error: dict[str, object] = {"type": kind, "message": message}
    if code is not None:
        error["code"] = code
    error.update(more)
    return json_response(status_code, {"error": error})


def invalid_request(message: str, *, param: str | None = None, code: str = "parameter_invalid") -> SandboxResponse:
    more = {} if param is None else {"param": param}
    return error_response(400, "invalid_request_error", message, code=code, **more)


def card_declined(decline_code: str, **more: object) -> SandboxResponse:
    message = f"The card was declined: {decline_code.replace('_', ' ')}."
    return error_response(402, "card_error", message, code="card_declined", decline_code=decline_code, **more)


def internal_error() -> SandboxResponse:
    return error_response(500, "api_error", "Something went wrong on our side.", code="internal_error")


def misuse(message: str, code: str, **more: object) -> SandboxResponse:
    """The error for a request to the sandbox itself that it cannot fulfil."""
    return error_response(400, "sandbox_error", message, code=code, **more)


# --- Arrivals
# The log of requests that reached the provider, with any result. The newest are kept, the older ones only counted.

ARRIVALS_MAX = 100_000


@dataclass(slots=True)
class SandboxArrival:
    seq: int
    at: float
    method: str
    path: str
    key: str | None
    order: str | None = None
    fault: str | None = None
    executed: bool = False
    """Whether the bank did the work for this arrival, and not for an earlier one."""
    replayed: bool = False
    effects: int = 0
    """The entries that this arrival wrote into the ledger."""
    answered: int | None = None
    """Status of the whole response that was written. None if none was."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class ArrivalLog:
    def __init__(self, arrivals_max: int = ARRIVALS_MAX) -> None:
        self.arrivals_max = arrivals_max
        self._newest: deque[SandboxArrival] = deque(maxlen=arrivals_max)
        self.total = 0

    @property
    def dropped(self) -> int:
        return self.total - len(self._newest)

    @property
    def arrivals(self) -> Sequence[SandboxArrival]:
        return self._newest

    def add(self, at: float, method: str, path: str, key: str | None) -> SandboxArrival:
        self.total += 1
        arrival = SandboxArrival(self.total, at, method, path, key)
        self._newest.append(arrival)
        return arrival

    def find(self, key: str | None = None, order: str | None = None) -> list[SandboxArrival]:
        return [
            arrival
            for arrival in self._newest
            if (key is None or arrival.key == key) and (order is None or arrival.order == order)
        ]

    def clear(self) -> None:
        self._newest.clear()
        self.total = 0
