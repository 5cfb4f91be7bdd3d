"""Calls that are no operation of a policy: forwarded once, unchanged, never retried. Nothing is journalled.

The replies are careful all the same, because such a call may move money.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from paywitness.core.call import Call, Headers
from paywitness.core.credential_and_hop_headers import end_to_end, end_to_end_of_provider, headers_named
from paywitness.core.evidence import Evidence, Response
from paywitness.core.operation import Outcome
from paywitness.core.policy import Provider
from paywitness.core.problems import Problem
from paywitness.core.reply import NO_SHAPE, ErrorShape, Reply, problem_reply
from paywitness.engine.calls.attempts import address_of
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import CallForwarded
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import StreamRequest, WireRequest
from paywitness.upstream.stream import StreamedResponse

_OUTCOME_HEADERS: Headers = ((b"Paywitness-Outcome", Outcome.NONE.encode()),)


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A reply whose body is still coming."""

    status_code: int
    headers: Headers
    body: AsyncIterator[bytes]
    reason: bytes  # the provider's own
    trailers: Callable[[], Headers]  # after the body's end
    outcome: Outcome = Outcome.NONE
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Passthrough:
    upstream: UpstreamClient
    telemetry: Telemetry

    async def forward_whole(self, call: Call, provider: Provider) -> Reply:
        """Forward a call whose body is already here."""
        origin, path_prefix = address_of(provider)
        request = WireRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, call.body)
        self.telemetry.emit(CallForwarded(provider.name))
        evidence = await self.upstream.send(origin, request, provider.timeouts)
        if evidence.response is None:
            return failure_reply(evidence, provider)
        return whole_reply(evidence.response, _OUTCOME_HEADERS)

    async def forward_stream(
        self, call: Call, provider: Provider, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | StreamedReply:
        """Forward a call in pieces, both ways."""
        origin, path_prefix = address_of(provider)
        target = (path_prefix + call.target).encode("latin-1")
        self.telemetry.emit(CallForwarded(provider.name))
        request = StreamRequest(call.method, target, call.headers, length)
        response = await self.upstream.stream(origin, request, body, provider.timeouts)
        if isinstance(response, Evidence):
            return failure_reply(response, provider, call.method)
        return streamed_reply(response, _OUTCOME_HEADERS)


def whole_reply(response: Response, ours: Headers = ()) -> Reply:
    """The provider's response as it came, with our headers behind its own. Its Content-Length stays: for a HEAD or a
    304 it gives the length that the body would have."""
    headers = end_to_end(response.headers) + headers_named(response.headers, b"content-length") + ours
    return Reply(response.status_code, headers, response.body, Outcome.NONE, reason=response.reason)


def streamed_reply(response: StreamedResponse, ours: Headers = ()) -> StreamedReply:
    """The same, while its body is still coming; trailers may follow one that is chunked."""
    theirs = response.headers
    length = headers_named(theirs, b"content-length")
    framing = length or headers_named(theirs, b"trailer")
    return StreamedReply(
        response.status_code,
        end_to_end(theirs) + framing + ours,
        aiter(response),
        response.reason,
        lambda: end_to_end_of_provider(response.trailers),
    )


def failure_reply(evidence: Evidence, provider: Provider, method: str = "") -> Reply:
    """The reply if no whole response came. `method`: of a call that no operation of the policy can match; empty if one
    can, by its path and method."""
    shape = ErrorShape(provider.problem)
    if not evidence.sent:
        detail = f"{provider.name} was not reached: {evidence.detail}. Nothing was sent."
        return problem_reply(Problem.NOT_SENT, detail, shape=shape, provider=provider.name)
    happened = f"{provider.name} has the request and gave no whole answer: {evidence.detail}."
    return forward_failed_reply(method, happened, shape, provider.name)


# RFC 9110: they only read. A policy names the path and method of what moves money, and such a call is an operation.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def forward_failed_reply(method: str, happened: str, shape: ErrorShape = NO_SHAPE, provider: str = "") -> Reply:
    """The reply to a call that is no operation, and whose response was lost. `happened`: one sentence."""
    is_safe = method in _SAFE_METHODS
    detail = f"{happened} It was not sent again."
    if is_safe:
        detail += f" A {method} has no effect, so you may repeat it."
    return problem_reply(
        Problem.FORWARD_FAILED, detail, shape=shape, sent=True, provider=provider, without_effect=is_safe
    )
