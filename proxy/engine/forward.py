"""What is no operation of a policy: forwarded once, as it came, never retried. Nothing is journalled.

The words are careful all the same: nobody has told us that such a call moves no money.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from proxy.core.call import Call, Headers
from proxy.core.evidence import Evidence
from proxy.core.operation import Outcome
from proxy.core.policy import Provider, Timeouts
from proxy.core.reply import ErrorShape, Problem, Reply, end_to_end, problem
from proxy.engine.attempt import address_of
from proxy.telemetry.records import CallForwarded
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import StreamRequest, WireRequest
from proxy.upstream.target import Timeouts as WireTimeouts

_OURS: Headers = ((b"Paywitness-Outcome", Outcome.NONE.encode()),)


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A reply whose body is still coming."""

    status_code: int
    headers: Headers
    body: AsyncIterator[bytes]
    outcome: Outcome = Outcome.NONE
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    upstream: UpstreamClient
    telemetry: Telemetry

    async def whole(self, call: Call, provider: Provider) -> Reply:
        """Forward a call whose body is already here."""
        origin, path_prefix = address_of(provider)
        request = WireRequest(call.method, (path_prefix + call.target).encode("latin-1"), call.headers, call.body)
        self.telemetry.tell(CallForwarded(provider.name))
        evidence = await self.upstream.send(origin, request, _wire(provider.timeouts))
        if evidence.response is None:
            return failed(evidence, provider)
        headers = end_to_end(evidence.response.headers) + _OURS
        return Reply(evidence.response.status_code, headers, evidence.response.body, Outcome.NONE)

    async def stream(
        self, call: Call, provider: Provider, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | StreamedReply:
        """Forward a call in pieces, both ways."""
        origin, path_prefix = address_of(provider)
        target = (path_prefix + call.target).encode("latin-1")
        self.telemetry.tell(CallForwarded(provider.name))
        request = StreamRequest(call.method, target, call.headers, length)
        answer = await self.upstream.stream(origin, request, body, _wire(provider.timeouts))
        if isinstance(answer, Evidence):
            return failed(answer, provider)
        return StreamedReply(answer.status_code, end_to_end(answer.headers) + _OURS, aiter(answer))


def _wire(timeouts: Timeouts) -> WireTimeouts:
    return WireTimeouts(
        connect_s=timeouts.connect_s,
        tls_s=timeouts.tls_s,
        write_s=timeouts.write_s,
        first_byte_s=timeouts.first_byte_s,
        body_idle_s=timeouts.body_idle_s,
    )


def failed(evidence: Evidence, provider: Provider) -> Reply:
    """What the caller is told where no whole answer came."""
    shape = ErrorShape(provider.problem)
    if not evidence.sent:
        detail = f"{provider.name} was not reached: {evidence.detail}. Nothing was sent."
        return problem(Problem.NOT_SENT, detail, shape=shape, provider=provider.name)
    detail = f"{provider.name} has the request and gave no whole answer: {evidence.detail}. It was not sent again."
    return problem(Problem.FORWARD_FAILED, detail, shape=shape, sent=True, provider=provider.name)
