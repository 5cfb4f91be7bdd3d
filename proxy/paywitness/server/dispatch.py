"""One request from its head to its reply: read it, reject it or hand it to the engine, write the reply.

All branches of an inbound request are here. If the request may be an operation, its body is read whole and within
bounds. Otherwise it is passed on piece by piece. A streamed reply is written while the provider still sends it, at the
caller's pace. The rule: if the provider's body breaks off, the caller's connection is reset, so that a partial reply
never looks complete.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import PurePath

from paywitness.core.allowed_hosts import AllowedHosts
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply, problem_reply
from paywitness.engine.calls.passthrough import forward_failed_reply
from paywitness.repeated_lines import repeats
from paywitness.server.connection import ServerConnection
from paywitness.server.engine_interface import CallHandler, ServerStreamedReply
from paywitness.server.errors import CallerDisconnected, RequestRejected
from paywitness.server.heads import (
    BODILESS,
    CHUNKED,
    CONNECTION_LINES,
    RequestHead,
    content_length,
    head_bytes,
    last_chunk_bytes,
    reply_bytes,
)
from paywitness.server.limits_and_timeouts import CALLER_LEFT, UPSTREAM_BROKE, ServerLimits
from paywitness.server.listener import ConnectionRegistry
from paywitness.server.request import INTERNAL_NAME, ParsedRequest, check_asker, read_request
from paywitness.server.request_parser import IncomingRequest
from paywitness.telemetry.emitter import Tracing

# --- The caller's body


async def read_whole(connection: ServerConnection, head: RequestHead, limits: ServerLimits) -> bytes:
    """The whole body of the request that is being served. Raises RequestRejected if it is too large, too slow or
    broken, CallerDisconnected if its sender has left."""
    body, limit = connection.body, limits.body_bytes_max
    if head.length is not None and head.length > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    while True:
        if body.fault is not None:
            raise body.fault
        if body.received_bytes > limit:
            raise _too_large(limit)
        if body.held:
            pieces.append(body.take(limit))
            if connection.reading_paused:
                connection.balance_reading()
        if body.complete:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        await _wait_for_more(connection, limits)


async def read_pieces(connection: ServerConnection, limits: ServerLimits) -> AsyncIterator[bytes]:
    """The body as it arrives, no faster than it is taken. Raises as `read_whole` does, but not for the size."""
    body = connection.body
    while True:
        if body.fault is not None:
            raise body.fault
        if body.held:
            piece = body.take(limits.piece_bytes_max)
            if connection.reading_paused:
                connection.balance_reading()
            yield piece
        elif body.complete:
            return
        else:
            await _wait_for_more(connection, limits)


async def _wait_for_more(connection: ServerConnection, limits: ServerLimits) -> None:
    if not connection.is_open:
        raise CallerDisconnected
    body = connection.body
    if body.continue_due:
        body.continue_due = False
        connection.send_continue()
    loop = asyncio.get_running_loop()
    began_mono = loop.time()
    earned_s = limits.body_start_s + body.received_bytes / limits.body_bytes_per_s_min
    await connection.body_arrival(min(limits.body_idle_s, min(limits.body_s, earned_s) - body.waited_s))
    body.waited_s += loop.time() - began_mono


def _too_large(limit: int) -> RequestRejected:
    return RequestRejected(Problem.TOO_LARGE, f"The body may have at most {limit} bytes.")


# --- Streamed replies


async def stream_reply(
    reply: ServerStreamedReply,
    method: str,
    connection: ServerConnection,
    registry: ConnectionRegistry,
    *,
    keep_alive: bool,
) -> bool:
    """Write a reply whose body is still coming. Returns whether the connection can be used afterwards.

    Raises ConnectionError if the caller leaves. The body is closed in any case.
    """
    length = content_length(reply.headers)
    bodiless = method == "HEAD" or reply.status_code in BODILESS
    chunked = length is None and connection.http11 and not bodiless
    if length is None and not chunked and not bodiless:
        keep_alive = False  # HTTP/1.0: only the end of the connection can end it
    framing = CHUNKED if chunked else b""
    if length is not None and reply.status_code != 204:
        framing = b"Content-Length: %d" % length
    line = CONNECTION_LINES[keep_alive, connection.http11]
    try:
        date_line = registry.date_line.now()
        connection.write(head_bytes(reply.status_code, reply.headers, framing, line, date_line, reply.reason))
        left_bytes = None if bodiless else length
        while (piece := await _next_piece(reply.body)) is not None:
            if bodiless or not piece:
                continue
            if left_bytes is not None:
                left_bytes -= len(piece)
                if left_bytes < 0:
                    break
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await connection.drain_writes()
        if left_bytes:
            raise _StreamBroken  # the body is longer or shorter than its head said
        if chunked:
            connection.write(last_chunk_bytes(reply.trailers()))
        return keep_alive
    except _StreamBroken:
        registry.counters.broken[UPSTREAM_BROKE] += 1
        connection.reset()
        return False
    finally:
        await _close_body(reply.body)


class _StreamBroken(Exception):
    """The body ended early, or is longer than its head said."""


async def _next_piece(body: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(body, None)
    except Exception as error:
        raise _StreamBroken from error  # so that no error of the provider's side looks like a caller that left


async def _close_body(body: AsyncIterator[bytes]) -> None:
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()


# --- Requests

_log = logging.getLogger("paywitness.edge")

_JOINED_BYTES_MAX = 64 * 1024  # up to this size a body is copied behind its head, to leave in one segment with it


@dataclass(frozen=True, slots=True)
class RequestDispatcher:
    """Serves the requests of all connections."""

    call_handler: CallHandler
    registry: ConnectionRegistry
    tracing: Tracing | None = field(default=None, kw_only=True)  # a span around each call that may be an operation
    allowed_hosts: AllowedHosts = field(default=AllowedHosts(), kw_only=True)

    async def serve(self, incoming: IncomingRequest, connection: ServerConnection) -> bool:
        """Reply to one request. Returns whether another may follow. Raises for nothing that the caller or the engine
        does."""
        self.registry.counters.requests += 1
        keep_alive = False
        try:
            reply, closes = await self._reply_to(incoming, connection)
            body = connection.body
            keep_alive = not closes and incoming.keep_alive and body.complete and body.ends_plainly
            keep_alive = keep_alive and connection.accepts_more  # otherwise nobody would serve the next request
            if isinstance(reply, Reply):
                line = CONNECTION_LINES[keep_alive, connection.http11]
                head, reply_body = reply_bytes(reply, incoming.method, line, self.registry.date_line.now())
                if len(reply_body) <= _JOINED_BYTES_MAX:
                    connection.write(head + reply_body)
                else:
                    connection.write(head)
                    connection.write(reply_body)
                if connection.writing_paused:
                    await connection.drain_writes()
            else:
                keep_alive = await stream_reply(
                    reply, incoming.method, connection, self.registry, keep_alive=keep_alive
                )
            keep_alive = keep_alive and connection.accepts_more  # it may have changed while the caller took the reply
        except (CallerDisconnected, ConnectionError):
            self.registry.counters.broken[CALLER_LEFT] += 1
            keep_alive = False
        finally:
            if keep_alive:
                connection.await_next_request()
            else:
                connection.linger_close()
        return keep_alive

    async def _reply_to(
        self, incoming: IncomingRequest, connection: ServerConnection
    ) -> tuple[Reply | ServerStreamedReply, bool]:
        """The reply, and whether the connection must end with it."""
        handler = self.call_handler
        try:
            request = read_request(incoming, connection.ingress, handler.provider_at)
            check_asker(request, incoming, self.allowed_hosts, handler.provider_at)
            provider = request.target.prefix
            if not provider:
                return request.root_page(), False
            if provider == INTERNAL_NAME:
                return await self._internal_page(request), False
            if not handler.knows(provider):
                raise _unknown_provider(provider)
            unchanged = request.via_proxy and handler.in_shadow_mode(provider)
            if not handler.might_be_operation(provider, request.method, request.target.segments):
                return await self._forward(request, connection, unchanged=unchanged), False
            body = await read_whole(connection, request.head, self.registry.limits)
            call = request.call(body, unchanged=unchanged)
        except RequestRejected as rejection:
            self.registry.counters.refused[rejection.kind] += 1
            return rejection.reply, rejection.closes
        connection.watch_caller()
        try:
            if self.tracing is None:
                return await handler.reply_to(call, connection.is_caller_connected), False
            with self.tracing.call(call.header("traceparent"), call.header("tracestate")):
                return await handler.reply_to(call, connection.is_caller_connected), False
        except Exception as error:  # noqa: BLE001 - whatever failed, money may have moved, and the reply says so
            _log_failure("answering a call", error)
            detail = "This sidecar failed while it carried the call. Repeat with the same key. Do not pay again."
            return problem_reply(Problem.UNKNOWN, detail, sent=True, provider=provider), False

    async def _forward(
        self, request: ParsedRequest, connection: ServerConnection, *, unchanged: bool
    ) -> Reply | ServerStreamedReply:
        provider, length = request.target.prefix, request.head.length
        pieces = read_pieces(connection, self.registry.limits) if request.head.chunked or length else None
        try:
            return await self.call_handler.forward(request.call(b"", unchanged=unchanged), pieces, length)
        except RequestRejected as rejection:  # the caller's body failed while it was passed on
            rejection.part_sent = True
            raise
        except CallerDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            _log_failure("forwarding a call", error)
            return forward_failed_reply(
                request.method, "This sidecar failed while it forwarded the call.", provider=provider
            )

    async def _internal_page(self, request: ParsedRequest) -> Reply:
        try:
            return await request.internal_page(self.call_handler)
        except RequestRejected:
            raise
        except Exception as error:  # noqa: BLE001 - reply all the same
            _log_failure("describing what is known", error)
            return problem_reply(Problem.JOURNAL_UNAVAILABLE, "It could not be looked up. Ask again.")


def _unknown_provider(provider: str) -> RequestRejected:
    detail = f"No policy names {provider[:40]!r}. Requests go to /{{provider}}/..., by the name in its policy."
    return RequestRejected(Problem.PROVIDER_NOT_ALLOWED, detail)


def _log_failure(activity: str, error: Exception) -> None:
    """Log the error's class and place. Never its text, which may hold a caller's data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    _log.error("%s failed by %s at %s", activity, type(error).__name__, place, extra=repeats(activity, place))
