"""Stored requests and responses, sealed: their format, and the bytes that an attempt makes of them.

A request is stored as the caller sent it. For every attempt the provider key and our stamp are written into it again,
from the operation's own fields, so that every attempt sends the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from urllib.parse import unquote

from paywitness.core.bodies.tree import decode, value_at, with_value, without_value
from paywitness.core.call import Call, Headers
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.errors import BodyError, UnreadableSecret
from paywitness.core.evidence import Response
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind
from paywitness.core.record import record
from paywitness.randomness import OPERATION_ID_PREFIX
from paywitness.secrets import Vault
from paywitness.upstream.request import WireRequest

_FORMAT = b"1"
# The codings that classification can read. Another coding would turn every success into doubt.
_READABLE_CODINGS = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})


@record
class StoredRequest:
    """A call's request as the caller sent it, before anything of ours.

    It is not a WireRequest, although the fields are the same: without the provider key and the stamp it must not be
    sent, and the type checker sees to that.
    """

    method: str
    target: str
    headers: Headers
    body: bytes

    @classmethod
    def of(cls, call: Call) -> StoredRequest:
        return cls(call.method, call.target, call.headers, call.body)

    @property
    def segments(self) -> tuple[str, ...]:
        """The path's segments, decoded, as a policy matches them."""
        path = self.target.partition("?")[0]
        return tuple(unquote(segment) for segment in path[1:].split("/")) if path != "/" else ()

    def with_credentials_of(self, headers: Headers) -> StoredRequest:
        """The same request under the credentials of a duplicate, because the first's may have expired since."""
        renewed = self.headers
        for name, value in credential_headers(headers):
            renewed = with_header(renewed, name, value)
        return replace(self, headers=renewed)

    def without_body(self) -> StoredRequest:
        """The request without its body, which holds data that must not be stored. It allows an inquiry, but no
        re-send."""
        return replace(self, body=b"")


def seal_request(vault: Vault, request: StoredRequest, operation_id: str) -> bytes:
    first, second = request.method.encode("latin-1"), request.target.encode("latin-1")
    return vault.seal(_encode(first, second, request.headers, request.body), f"request:{operation_id}")


def open_request(vault: Vault, sealed: bytes, operation_id: str) -> StoredRequest:
    method, target, headers, body = _open(vault, sealed, f"request:{operation_id}")
    return StoredRequest(method, target, headers, body)


def seal_credential(vault: Vault, request: StoredRequest, account: str) -> bytes:
    """The credential headers of a request that the provider accepted, for background calls of the same account."""
    return vault.seal(_encode(b"", b"", credential_headers(request.headers), b""), f"credential:{account}")


def open_credential(vault: Vault, sealed: bytes, account: str) -> Headers:
    return _open(vault, sealed, f"credential:{account}")[2]


def credential_headers(headers: Headers) -> Headers:
    return tuple(pair for pair in headers if pair[0].lower() in CREDENTIAL_HEADERS)


def seal_response(vault: Vault, response: Response, operation_id: str) -> bytes:
    first = b"%d" % response.status_code
    return vault.seal(_encode(first, response.reason, response.headers, response.body), f"response:{operation_id}")


def open_response(vault: Vault, sealed: bytes, operation_id: str) -> Response:
    status, reason, headers, body = _open(vault, sealed, f"response:{operation_id}")
    return Response(int(status), reason.encode("latin-1"), headers, body)


def _encode(first: bytes, second: bytes, headers: Headers, body: bytes) -> bytes:
    """The format with the number of lines, the lines, the body. No line holds a line break: both parsers refuse
    those."""
    lines = [*map(b":".join, headers)]
    return b"\n".join([b"%b %d" % (_FORMAT, len(lines) + 2), first, second, *lines, body])


def _line_count(format_line: bytes) -> int:
    name, _, count = format_line.partition(b" ")
    if name != _FORMAT or not count.isdigit() or int(count) < 2:
        raise UnreadableSecret("what was sealed is not what this version writes")
    return int(count)


def _open(vault: Vault, sealed: bytes, bound_to: str) -> tuple[str, str, Headers, bytes]:
    format_line, _, rest = vault.open(sealed, bound_to).partition(b"\n")
    lines, count = [], _line_count(format_line)
    for _ in range(count):
        line, _, rest = rest.partition(b"\n")
        lines.append(line)
    pairs = tuple((name, value) for name, _, value in (line.partition(b":") for line in lines[2:]))
    return lines[0].decode("latin-1"), lines[1].decode("latin-1"), pairs, rest


def wire_request(request: StoredRequest, operation: Operation, policy: Policy, path_prefix: str) -> WireRequest:
    """The bytes of an attempt: the caller's, with the provider key, the stamp and the policy's headers written in."""
    headers, body = request.headers, request.body
    stamp = operation.sent_stamp
    for place, value in ((policy.stamp, stamp), (policy.contract.send_as, operation.provider_key)):
        if place is None or value is None:
            continue
        if place.kind is FieldKind.HEADER:
            headers = with_header(headers, place.name.encode("latin-1"), value.encode("latin-1"))
        else:
            body = with_value(body, policy.encoding, place.name, value, was_read=True)
    if policy.stamp is None or stamp is None:
        headers, body = _without_copied_stamp(headers, body, policy)
    for name, forced in policy.headers:
        headers = with_header(headers, name.encode("latin-1"), forced.encode("latin-1"))
    target = (path_prefix + request.target).encode("latin-1")
    return WireRequest(request.method, target, with_readable_codings(headers), body)


def _without_copied_stamp(headers: Headers, body: bytes, policy: Policy) -> tuple[Headers, bytes]:
    """Remove a stamp from a request that gets none of its own. A caller may have copied the stamp of another payment,
    and that payment's webhook events would then be matched to this one. In XML it stays: there an event must match by
    its other names."""
    place = policy.stamp_reserved
    if place is None:
        return headers, body
    if place.kind is FieldKind.HEADER:
        wanted = place.name.lower().encode("latin-1")
        copied = [pair for pair in headers if pair[0].lower() == wanted and _OUR_STAMP.fullmatch(pair[1])]
        return tuple(pair for pair in headers if pair not in copied), body
    if _OUR_STAMP.search(body) is None:
        return headers, body
    try:
        found = value_at(decode(body, policy.encoding), place.name)
        is_copy = isinstance(found, str) and _OUR_STAMP.fullmatch(found.encode("utf-8", "replace")) is not None
        return headers, without_value(body, policy.encoding, place.name) if is_copy else body
    except BodyError:
        return headers, body


_OUR_STAMP = re.compile(OPERATION_ID_PREFIX.encode() + rb"[0-9A-HJKMNP-TV-Z]{26}")


def with_header(headers: Headers, name: bytes, value: bytes) -> Headers:
    """The headers with this one set: in its present place, or at the end. Never twice."""
    wanted, names = name.lower(), [given.lower() for given, _ in headers]
    occurrences = names.count(wanted)
    if not occurrences:
        return (*headers, (name, value))
    at = names.index(wanted)
    if occurrences == 1 and headers[at][1] == value:
        return headers
    after = [pair for pair, given in zip(headers[at + 1 :], names[at + 1 :], strict=True) if given != wanted]
    return (*headers[:at], (headers[at][0], value), *after)


def with_readable_codings(headers: Headers) -> Headers:
    """The headers with `Accept-Encoding` narrowed to codings in which the response can be read."""
    for at, (name, value) in enumerate(headers):
        if name.lower() == b"accept-encoding" and (readable := _readable(value)) != value:
            return with_readable_codings((*headers[:at], (name, readable), *headers[at + 1 :]))
    return headers


@lru_cache(maxsize=64)
def _readable(codings: bytes) -> bytes:
    tokens = [token.strip() for token in codings.split(b",")]
    readable = [token for token in tokens if token.split(b";")[0].strip().lower() in _READABLE_CODINGS]
    return codings if len(readable) == len(tokens) else b", ".join(readable) or b"identity"
