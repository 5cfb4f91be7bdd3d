"""Reverse mode: a request's head to a Call below `/{provider}/...`, or to a page of our own."""

from __future__ import annotations

import json
from typing import NamedTuple

from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.core.call import Call
from proxy.core.operation import Outcome
from proxy.core.reply import Problem, Reply
from proxy.edge.refused import Refused, malformed
from proxy.edge.target import OURS, Target, read_target
from proxy.edge.wishes import Head, read_head

# What payment interfaces use. The parser knows dozens more, most of them from other protocols.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_WELCOME = {
    "what": "Paywitness carries payment calls to providers and knows what became of each one.",
    "use": "Talk to /{provider}/... here as you would to the provider: the path below the prefix goes on as it is.",
    "ask": "GET /paywitness/operations/{id} tells what became of a payment; its id is in Paywitness-Operation.",
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

    @property
    def operation_id(self) -> str:
        """Of the one page that we have. Raises Refused for any other."""
        segments = self.target.segments
        if len(segments) != 2 or segments[0] != "operations" or self.method not in ("GET", "HEAD"):
            raise Refused(Problem.NOT_FOUND, "Below /paywitness/ there is only GET /paywitness/operations/{id}.")
        return segments[1]

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
