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

from paywitness.clock import Clock, SystemClock
from paywitness.core.call import Headers
from paywitness.core.operation import Outcome
from paywitness.core.problems import PROBLEM_TYPE_PREFIX, Problem
from paywitness.core.reply import Reply
from paywitness.engine.webhooks.inbox import WebhookReply
from paywitness.server.body import RequestBody
from paywitness.server.connection import ServerConnection
from paywitness.server.dispatch import RequestDispatcher
from paywitness.server.engine_interface import CallHandler, ServerStreamedReply
from paywitness.server.errors import RequestRejected
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.request import head_size, read_request
from paywitness.server.request_target import INTERNAL_NAME, REVERSE_PROXY
from paywitness.server.server import HttpServer
from paywitness.telemetry.logs import raised_at

_log = logging.getLogger("paywitness.edge")

# Providers send a few kilobytes at once. Whoever needs longer, or more connections than these, is no provider.
WEBHOOK_LIMITS = ServerLimits(head_s=10.0, body_s=10.0, body_start_s=10.0, connections_max=256)
_RETRY_AFTER_S = 5

_NOT_GENUINE = ("webhook-not-genuine", "The delivery is not genuine")
_PROBLEMS = {  # what is said beside a status that is no 2xx; the same for every reason behind it
    400: ("webhook-unreadable", "The body is not JSON"),
    **dict.fromkeys((401, 403, 498), _NOT_GENUINE),  # by the policy's `refuse_with`; HTTP itself knows no 498
    404: ("not-found", "There is no such thing here"),
    405: ("method-not-allowed", "Webhooks are POSTed here"),
    422: ("webhook-without-id", "An event cannot be told from its own repetition: it has no id"),
    500: ("mistake", "The delivery was not kept, by a mistake of ours"),
    503: ("webhook-not-kept", "The delivery was not kept; send it again"),
}


# There are no payment calls on this port: every request is a delivery, or nothing, and nobody is there to carry it.
_NO_CALL_HANDLER = cast(CallHandler, None)


class WebhookReceiver(Protocol):
    """What the listener needs of the engine."""

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply: ...


class WebhookServer(HttpServer):
    """Serves providers from `start` to `close`, as the server serves callers. `drain` in between lets them finish."""

    def __init__(
        self, receiver: WebhookReceiver, limits: ServerLimits = WEBHOOK_LIMITS, clock: Clock = SystemClock()
    ) -> None:
        super().__init__(_NO_CALL_HANDLER, limits, clock)
        self._dispatcher = _WebhookDispatcher(_NO_CALL_HANDLER, self._registry, receiver)


@dataclass(frozen=True, slots=True)
class _WebhookDispatcher(RequestDispatcher):
    """One delivery from its head to its answer."""

    receiver: WebhookReceiver

    async def _reply_to(
        self, message: RawRequestMessage, stream: StreamReader, connection: ServerConnection
    ) -> tuple[Reply | ServerStreamedReply, bool]:
        limits = self.registry.limits
        try:
            if connection.head_may_exceed_limit and head_size(message) > limits.head_bytes_max:
                raise RequestRejected(Problem.TOO_LARGE, f"The head is larger than {limits.head_bytes_max} bytes.", 431)
            request = read_request(message, REVERSE_PROXY, _no_provider)
            segments = request.target.segments
            if request.target.prefix != INTERNAL_NAME or len(segments) not in (2, 3) or segments[0] != "webhooks":
                return _reply(WebhookReply(404)), False
            if request.method != "POST":
                return _reply(WebhookReply(405)), False
            body = await RequestBody(connection, stream, request.head, limits).read_whole()
        except RequestRejected as rejection:
            self.registry.counters.refused[rejection.kind] += 1
            if rejection.kind in (Problem.PATH_NOT_ALLOWED, Problem.PROVIDER_NOT_ALLOWED):
                return _reply(WebhookReply(404)), False
            return rejection.reply, rejection.closes
        account = segments[2] if len(segments) == 3 else ""
        try:
            return _reply(await self.receiver.receive(segments[1], account, request.head.headers, body)), False
        except Exception as error:  # noqa: BLE001 - an answer all the same: not kept, so not 2xx
            _log.error("receiving a webhook failed by %s at %s", type(error).__name__, raised_at(error))
            return _reply(WebhookReply(500)), False


def _no_provider(host: str) -> None:
    """Nobody is carried anywhere from here."""


def _reply(webhook_reply: WebhookReply) -> Reply:
    status = webhook_reply.status_code
    if 200 <= status < 300:
        headers: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),) if webhook_reply.body else ()
        return Reply(status, headers, webhook_reply.body, Outcome.NONE)
    kind, title = _PROBLEMS.get(status, ("refused", "The delivery was not taken"))
    members = {"type": PROBLEM_TYPE_PREFIX + kind, "title": title, "status": status}
    headers = ((b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store"))
    if status == 405:
        headers += ((b"Allow", b"POST"),)
    if status == 503:
        headers += ((b"Retry-After", b"%d" % _RETRY_AFTER_S),)
    return Reply(status, headers, json.dumps(members).encode(), Outcome.NONE)
