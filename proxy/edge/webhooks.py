"""The listener for providers' webhooks: a port of its own, which may be public. `POST /paywitness/webhooks/{provider}`,
or with `/{account}` behind it.

Connections, heads and bodies are bounded as on the other ports. A stranger learns nothing here: what is not an address
of ours is 404, what is not genuine is 401 or what its provider wants to hear, and neither says why.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Protocol, cast

from aiohttp import StreamReader
from aiohttp.http import RawRequestMessage

from proxy.clock import Clock, SystemClock
from proxy.core.call import Headers
from proxy.core.operation import Outcome
from proxy.core.reply import PROBLEM_TYPE_PREFIX, Problem, Reply
from proxy.edge.body import Body
from proxy.edge.carrier import Carrier, StreamedReply
from proxy.edge.connection import Connection
from proxy.edge.exchange import Exchanges
from proxy.edge.limits import EdgeLimits
from proxy.edge.refused import Refused
from proxy.edge.request import head_size, read_request
from proxy.edge.server import EdgeServer
from proxy.edge.target import OURS
from proxy.edge.way import REVERSE
from proxy.engine.webhooks import WebhookReply
from proxy.telemetry.lines import place_of

_log = logging.getLogger("paywitness.edge")

# Providers send a few kilobytes at once. Whoever needs longer, or more connections than these, is no provider.
LIMITS = EdgeLimits(head_s=10.0, body_s=10.0, body_start_s=10.0, connections_max=256)
_RETRY_AFTER_S = 5

_NOT_GENUINE = ("webhook-not-genuine", "The delivery is not genuine")
_KINDS = {  # what is said beside a status that is no 2xx; the same for every reason behind it
    400: ("webhook-unreadable", "The body is not JSON"),
    **dict.fromkeys((401, 403, 498), _NOT_GENUINE),  # by the policy's `refuse_with`; HTTP itself knows no 498
    404: ("not-found", "There is no such thing here"),
    405: ("method-not-allowed", "Webhooks are POSTed here"),
    422: ("webhook-without-id", "An event cannot be told from its own repetition: it has no id"),
    500: ("mistake", "The delivery was not kept, by a mistake of ours"),
    503: ("webhook-not-kept", "The delivery was not kept; send it again"),
}


# There are no payment calls on this port: every request is a delivery, or nothing, and nobody is there to carry it.
_NO_CARRIER = cast(Carrier, None)


class Receiver(Protocol):
    """What the listener needs of the engine."""

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply: ...


class WebhookServer(EdgeServer):
    """Serves providers from `start` to `close`, as the edge serves callers. `drain` in between lets them finish."""

    def __init__(self, receiver: Receiver, limits: EdgeLimits = LIMITS, clock: Clock = SystemClock()) -> None:
        super().__init__(_NO_CARRIER, limits, clock)
        self._exchanges = _Deliveries(_NO_CARRIER, self._hall, receiver)


@dataclass(frozen=True, slots=True)
class _Deliveries(Exchanges):
    """One delivery from its head to its answer."""

    receiver: Receiver

    async def _reply_to(
        self, message: RawRequestMessage, stream: StreamReader, connection: Connection
    ) -> tuple[Reply | StreamedReply, bool]:
        limits = self.hall.limits
        try:
            if connection.bulky and head_size(message) > limits.head_bytes_max:
                raise Refused(Problem.TOO_LARGE, f"The head is larger than {limits.head_bytes_max} bytes.", 431)
            asked = read_request(message, REVERSE, _no_proxy)
            segments = asked.target.segments
            if asked.target.first != OURS or len(segments) not in (2, 3) or segments[0] != "webhooks":
                return _reply(WebhookReply(404)), False
            if asked.method != "POST":
                return _reply(WebhookReply(405)), False
            body = await Body(connection, stream, asked.head, limits).whole()
        except Refused as refusal:
            self.hall.counters.refused[refusal.kind] += 1
            if refusal.kind in (Problem.PATH_NOT_ALLOWED, Problem.PROVIDER_NOT_ALLOWED):
                return _reply(WebhookReply(404)), False
            return refusal.reply, refusal.closes
        account = segments[2] if len(segments) == 3 else ""
        try:
            return _reply(await self.receiver.receive(segments[1], account, asked.head.headers, body)), False
        except Exception as error:  # noqa: BLE001 - an answer all the same: not kept, so not 2xx
            _log.error("receiving a webhook failed by %s at %s", type(error).__name__, place_of(error))
            return _reply(WebhookReply(500)), False


def _no_proxy(host: str) -> None:
    """Nobody is carried anywhere from here."""


def _reply(told: WebhookReply) -> Reply:
    status = told.status_code
    if 200 <= status < 300:
        headers: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),) if told.body else ()
        return Reply(status, headers, told.body, Outcome.NONE)
    kind, title = _KINDS.get(status, ("refused", "The delivery was not taken"))
    members = {"type": PROBLEM_TYPE_PREFIX + kind, "title": title, "status": status}
    headers = ((b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store"))
    if status == 405:
        headers += ((b"Allow", b"POST"),)
    if status == 503:
        headers += ((b"Retry-After", b"%d" % _RETRY_AFTER_S),)
    return Reply(status, headers, json.dumps(members).encode(), Outcome.NONE)
