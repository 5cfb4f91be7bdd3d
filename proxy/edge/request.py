"""Reverse mode: a request's head to a Call below `/{provider}/...`, or to a page of our own."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import parse_qsl

from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.core.call import Call
from proxy.core.operation import Outcome
from proxy.core.reply import Problem, Reply
from proxy.edge.carrier import Carrier
from proxy.edge.refused import Refused, malformed
from proxy.edge.target import OURS, Target, read_target
from proxy.edge.wishes import Head, read_head

# What payment interfaces use. The parser knows dozens more, most of them from other protocols.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_WELCOME = {
    "what": "Paywitness carries payment calls to providers and knows what became of each one.",
    "use": "Talk to /{provider}/... here as you would to the provider: the path below the prefix goes on as it is.",
    "ask": "GET /paywitness/operations/{id} tells what became of a payment; its id is in Paywitness-Operation.",
    "pay elsewhere": "GET /paywitness/intents/{id} tells whether a purchase may be paid again, or at another provider.",
    "headers": "Paywitness-Key, -Intent, -Account, -Timeout-Ms, -Priority, -Distinct are for us and do not go on.",
}
WELCOME = Reply(
    200,
    ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", Outcome.NONE.encode())),
    json.dumps(_WELCOME, indent=2).encode() + b"\n",
    Outcome.NONE,
)


class Asked(NamedTuple):
    """What the head of a request asks for."""

    method: str
    target: Target
    head: Head

    @property
    def is_welcome(self) -> bool:
        return not self.target.first

    @property
    def is_ours(self) -> bool:
        return self.target.first == OURS

    async def page(self, carrier: Carrier) -> Reply:
        """One of our own pages. Raises Refused for any other, and whatever the carrier raises."""
        segments = self.target.segments
        if self.method in ("GET", "HEAD") and len(segments) > 1:
            if segments[0] == "operations" and len(segments) == 2:
                return await carrier.describe(segments[1])
            if segments[0] == "intents":  # a shop's own order number: a slash in it comes as one more segment
                return await carrier.describe_intent("/".join(segments[1:]), *self._narrowed())
        detail = "Below /paywitness/ there are GET /paywitness/operations/{id} and GET /paywitness/intents/{id}."
        raise Refused(Problem.NOT_FOUND, detail)

    def _narrowed(self) -> tuple[str | None, str | None]:
        """The merchant and provider that the query names. What is not understood is refused: it would widen it."""
        try:
            pairs = parse_qsl(self.target.query, keep_blank_values=True, max_num_fields=2, errors="strict")
        except ValueError:
            pairs = [("", "")]
        given = dict(pairs)
        if len(given) < len(pairs) or not given.keys() <= {"merchant", "provider"}:
            raise malformed("An intent may be narrowed by ?merchant= and ?provider=, once each, and by nothing else.")
        return given.get("merchant"), given.get("provider")

    def call(self, body: bytes) -> Call:
        first, path, query, segments = self.target
        return Call(first, self.method, path, query, segments, self.head.headers, body, self.head.wishes)


def read_request(message: RawRequestMessage, provider: str | None) -> Asked:
    """Read a head. Raises Refused for what the parser lets pass and we do not."""
    method = message.method
    is_http11 = message.version == HttpVersion11
    if not is_http11 and message.version != HttpVersion10:
        raise malformed("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if method == "CONNECT":
        raise Refused(Problem.PATH_NOT_ALLOWED, "Tunnels are not served here.")
    if method not in METHODS:
        raise malformed(f"{method} is not served; allowed are {', '.join(sorted(METHODS))}.")
    head = read_head(message.raw_headers, is_http11=is_http11)
    return Asked(method, read_target(message.path, provider), head)


def head_size(message: RawRequestMessage) -> int:
    """What a head measured on the wire, less its punctuation."""
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)
