"""A real sidecar tells a collector of its calls: OTLP over HTTP, read back from the bytes on the wire."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.conftest import Provider
from tests.e2e.contracts import CASES
from tests.e2e.sidecar import START_S, Sidecar
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
MakeSidecar = Callable[..., Sidecar]

CLEAN, LEFT_OUT, DOUBTFUL = ("0af7651916cd43dd8448eb211c80319" + digit for digit in "123")
CALLER = "b7ad6b7169203331"
SECRETS = (b"sk_live_51secret", b"order-with-a-name", b"Bearer", b"a-key-of-the-caller")


@dataclass
class Collector:
    """What a collector receives. `services`: by what name it was told of each trace."""

    port: int = field(default_factory=free_port)
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    raw: bytes = b""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.raw += body
        for told in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in told.resource.attributes}
            self.services.add(named["service.name"])
            for scope in told.scope_spans:
                self.spans.extend(scope.spans)
        self.came.set()
        return web.Response(body=b"", content_type="application/x-protobuf")

    def names(self, trace: str) -> list[str]:
        return sorted(span.name for span in self.spans if span.trace_id.hex() == trace)

    def only(self, trace: str, name: str) -> Span:
        (found,) = [span for span in self.spans if span.trace_id.hex() == trace and span.name == name]
        return found

    async def has(self, trace: str, *names: str) -> None:
        """Wait until it has them all."""
        async with asyncio.timeout(START_S):
            while not set(names) <= set(self.names(trace)):
                self.came.clear()
                await self.came.wait()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", collector.port).start()
    yield collector
    await runner.cleanup()


def traced(trace: str, flags: str = "01") -> dict[str, str]:
    return {
        "traceparent": f"00-{trace}-{CALLER}-{flags}",
        "Authorization": "Bearer sk_live_51secret",
        "Idempotency-Key": f"a-key-of-the-caller-{trace}",
    }


async def test_a_collector_gets_calls_attempts_writes_and_inquiries_and_nothing_secret(
    start_sandbox: Callable[..., Provider], make_sidecar: MakeSidecar, collector: Collector
) -> None:
    case = CASES["none_ask"]  # what is in doubt there can only be asked about
    sandbox = start_sandbox(case.stores)
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    sidecar = await asyncio.to_thread(make_sidecar(sandbox.url, *case.policy, environment=environment).start)

    async def charge(trace: str, flags: str = "01", fault: str = "") -> int:
        order = f"order-with-a-name-{trace}"
        paid = await asyncio.to_thread(sidecar.charge, order=order, fault=fault, headers=traced(trace, flags))
        return paid.status_code

    assert await charge(LEFT_OUT, "00") == 200
    assert await charge(CLEAN) == 200
    await charge(DOUBTFUL, fault=case.fault)
    await collector.has(CLEAN, "acme sale", "attempt", "journal claim", "journal record")
    await collector.has(DOUBTFUL, "acme sale", "attempt", "inquiry")
    call, attempt = collector.only(CLEAN, "acme sale"), collector.only(CLEAN, "attempt")
    assert call.parent_span_id.hex() == CALLER
    assert attempt.parent_span_id == call.span_id
    assert call.start_time_unix_nano <= attempt.start_time_unix_nano
    assert attempt.end_time_unix_nano <= call.end_time_unix_nano
    assert collector.services == {"paywitness"}
    assert await asyncio.to_thread(sidecar.stop) == 0
    assert collector.names(LEFT_OUT) == []
    assert not [secret for secret in SECRETS if secret in collector.raw]


async def test_a_collector_that_is_away_costs_no_call_and_no_drain(
    sandbox: Provider, make_sidecar: MakeSidecar
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    sidecar = await asyncio.to_thread(make_sidecar(sandbox.url, environment=environment).start)
    assert (await asyncio.to_thread(sidecar.charge)).status_code == 200
    assert await asyncio.to_thread(sidecar.stop) == 0
    assert sandbox.effects() == 1
