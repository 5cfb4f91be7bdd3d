"""A carrier with a span around each call that may be an operation. Only where traces are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from proxy.core.call import Call
from proxy.core.reply import Reply
from proxy.edge.carrier import Carrier, StreamedReply
from proxy.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class TracedCarrier:
    """A `Carrier`; all but `answer` passes."""

    carrier: Carrier
    tracing: Tracing

    async def answer(self, call: Call, still_there: Callable[[], bool]) -> Reply:
        with self.tracing.call(call.header("traceparent"), call.header("tracestate")):
            return await self.carrier.answer(call, still_there)

    def knows(self, provider: str) -> bool:
        return self.carrier.knows(provider)

    def provider_at(self, host: str) -> str | None:
        return self.carrier.provider_at(host)

    def observes(self, provider: str) -> bool:
        return self.carrier.observes(provider)

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        return self.carrier.might_be_operation(provider, method, segments)

    async def forward(self, call: Call, body: AsyncIterator[bytes] | None, length: int | None) -> Reply | StreamedReply:
        return await self.carrier.forward(call, body, length)

    async def describe(self, operation_id: str) -> Reply:
        return await self.carrier.describe(operation_id)

    async def describe_intent(self, intent: str, merchant: str | None, provider: str | None) -> Reply:
        return await self.carrier.describe_intent(intent, merchant, provider)
