"""The listener for providers' webhooks: a port of its own, which may be public. `POST /paywitness/webhooks/{provider}`,
or with `/{account}` behind it.

Connections, heads and bodies are bounded as on the other ports. A stranger learns nothing here: an unknown address gets
404, a webhook that is not genuine gets 401 or the status that the policy sets, and neither reply says why.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Protocol, cast

from paywitness.clock import Clock, SystemClock
from paywitness.core.call import Headers
from paywitness.core.operation import Outcome
from paywitness.core.problems import PROBLEM_TYPE_PREFIX, PROBLEMS, Problem
from paywitness.core.reply import Reply
from paywitness.engine.webhooks.inbox import InboxResult, WebhookReply
from paywitness.option_defaults import DEFAULTS, Network
from paywitness.repeated_lines import REPEATS
from paywitness.server.connection import ServerConnection
from paywitness.server.dispatch import RequestDispatcher, read_whole
from paywitness.server.engine_interface import CallHandler, ServerStreamedReply
from paywitness.server.errors import RequestRejected
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.request import INTERNAL_NAME, PAGE_HEADERS, REVERSE_PROXY, ParsedRequest, read_request
from paywitness.server.request_parser import IncomingRequest
from paywitness.server.server import HttpServer
from paywitness.server.webhook_sources import SourceLimiter, source_of
from paywitness.telemetry.logs import raised_at

_log = logging.getLogger("paywitness.edge")

# Providers send a few kilobytes at once. A client that needs longer, or more connections than these, is no provider.
WEBHOOK_LIMITS = ServerLimits(
    head_s=10.0,
    body_s=10.0,
    body_start_s=10.0,
    connections_max=256,
    body_bytes_max=DEFAULTS.webhook_body_bytes,
)
_RETRY_AFTER_S = 5

JsonMembers = dict[str, str | int]

_NOT_GENUINE = ("webhook-not-genuine", "The webhook is not genuine")
_PROBLEMS = {  # type and title of the reply for each status that is no 2xx, whatever the reason behind it
    400: ("webhook-unreadable", "The body is not JSON"),
    **dict.fromkeys((401, 403, 498), _NOT_GENUINE),  # by the policy's `refuse_with`; HTTP itself knows no 498
    404: ("not-found", "There is no such thing here"),
    405: ("method-not-allowed", "Send webhooks by POST"),
    429: ("too-many-webhooks", "Too many webhooks of this address were not genuine; send it again later"),
    422: ("webhook-without-id", "An event has no id, so a repetition of it could not be recognised"),
    500: ("mistake", "The webhook was not kept because of an error in Paywitness; send it again"),
    503: ("webhook-not-kept", "The webhook was not kept; send it again"),
}


# There are no payment calls on this port, so no call handler is needed.
_NO_CALL_HANDLER = cast(CallHandler, None)


class WebhookReceiver(Protocol):
    """The listener's view of the engine."""

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply: ...

    def refuse(self, provider: str, result: InboxResult, status_code: int) -> WebhookReply:
        """Count a webhook that was refused unread."""
        ...


class WebhookServer(HttpServer):
    """Serves providers from `start` to `close`, as the server serves callers. `drain` in between lets them finish."""

    def __init__(
        self,
        receiver: WebhookReceiver,
        limits: ServerLimits = WEBHOOK_LIMITS,
        clock: Clock = SystemClock(),
        *,
        rate_per_s: float = DEFAULTS.webhook_rate,
        trusted_proxies: tuple[Network, ...] = (),
    ) -> None:
        super().__init__(_NO_CALL_HANDLER, limits, clock)
        sources = SourceLimiter(clock, rate_per_s)
        self._dispatcher = _WebhookDispatcher(
            _NO_CALL_HANDLER, self._registry, receiver, sources, trusted_proxies=trusted_proxies
        )


@dataclass(frozen=True, slots=True)
class _WebhookDispatcher(RequestDispatcher):
    """One webhook from its head to its reply."""

    receiver: WebhookReceiver
    sources: SourceLimiter
    trusted_proxies: tuple[Network, ...] = ()

    async def _reply_to(
        self, incoming: IncomingRequest, connection: ServerConnection
    ) -> tuple[Reply | ServerStreamedReply, bool]:
        try:
            request = read_request(incoming, REVERSE_PROXY, _no_provider)
            segments = request.target.segments
            if request.target.prefix != INTERNAL_NAME or len(segments) not in (2, 3) or segments[0] != "webhooks":
                return _reply(WebhookReply(404)), False
            if request.method != "POST":
                return _reply(WebhookReply(405)), False
            if _is_from_page(incoming):
                raise RequestRejected(Problem.CROSS_SITE, "A web page asks, and providers have none.")
            source = source_of(connection.peer, incoming.values(b"x-forwarded-for"), self.trusted_proxies)
            return _reply(await self._receive(request, connection, source)), False
        except RequestRejected as rejection:
            self.registry.counters.refused[rejection.kind] += 1
            if rejection.kind in (Problem.PATH_NOT_ALLOWED, Problem.PROVIDER_NOT_ALLOWED):
                return _reply(WebhookReply(404)), False
            return _refused(rejection), rejection.closes

    async def _receive(self, request: ParsedRequest, connection: ServerConnection, source: str) -> WebhookReply:
        """Receive one webhook. Raises RequestRejected if its body is not read."""
        _, provider, *account = request.target.segments
        if not self.sources.take(source):
            return self.receiver.refuse(provider, InboxResult.TOO_MANY, 429)
        try:
            whole = await read_whole(connection, request.head, self.registry.limits)
        except RequestRejected as rejection:
            if rejection.kind is Problem.TOO_LARGE:
                self.receiver.refuse(provider, InboxResult.TOO_LARGE, 413)
            raise
        try:
            reply = await self.receiver.receive(provider, account[0] if account else "", request.head.headers, whole)
        except Exception as error:  # noqa: BLE001 - reply all the same: the webhook was not kept, so no 2xx
            _log.error("receiving a webhook failed by %s at %s", type(error).__name__, raised_at(error), extra=REPEATS)
            return WebhookReply(500)
        if reply.genuine:
            self.sources.give_back(source)
        return reply


def _is_from_page(incoming: IncomingRequest) -> bool:
    """Whether a browser sends it: providers set neither header. Host is not checked, because the address of this port
    is public and only the signature makes a webhook genuine."""
    return not incoming.head.names.isdisjoint(PAGE_HEADERS)


def _no_provider(host: str) -> None:
    """This port forwards to no provider."""


def _reply(webhook_reply: WebhookReply) -> Reply:
    status = webhook_reply.status_code
    if 200 <= status < 300:
        headers: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),) if webhook_reply.body else ()
        return Reply(status, headers, webhook_reply.body, Outcome.NONE)
    kind, title = _PROBLEMS.get(status, ("refused", "The webhook was not accepted"))
    headers = ()
    if status == 405:
        headers += ((b"Allow", b"POST"),)
    if status in {429, 503}:
        headers += ((b"Retry-After", b"%d" % _RETRY_AFTER_S),)
    return _problem({"type": PROBLEM_TYPE_PREFIX + kind, "title": title, "status": status}, headers)


def _refused(rejection: RequestRejected) -> Reply:
    """The reply to a request that is not read to its end. It is no payment call, so the reply does not say whether
    something was sent."""
    definition = PROBLEMS[rejection.kind]
    members: JsonMembers = {
        "type": PROBLEM_TYPE_PREFIX + rejection.kind,
        "title": definition.title,
        "status": rejection.status_code or definition.status_code,
        "detail": f"{rejection.detail} The webhook was not kept.",
    }
    return _problem(members)


def _problem(members: JsonMembers, more: Headers = ()) -> Reply:
    headers = ((b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store"), *more)
    status = int(members["status"])
    return Reply(status, headers, json.dumps(members).encode(), Outcome.NONE)
