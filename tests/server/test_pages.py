"""Web pages at the payment port, over a real socket: by a name of their own, and across sites."""

from __future__ import annotations

import pytest

from tests.server.conftest import Edge
from tests.server.proxy_client import charge, tunnelled
from tests.server.raw_client import request

CHARGE = b'{"amount":1}'


def asked_under(host: str, path: str = "/acme/v1/charges") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode()


@pytest.mark.parametrize("path", ["/acme/v1/charges", "/paywitness/operations/op_1", "/"])
async def test_a_page_that_rebinds_its_name_to_us_is_refused(edge: Edge, path: str) -> None:
    """S1."""
    answer = await (await edge.caller()).ask(asked_under("evil.example:8700", path))
    assert (answer.status_code, answer.problem) == (403, "host-not-allowed")
    assert "--allowed-hosts" in answer.json["detail"]
    assert edge.carrier.calls == []


@pytest.mark.parametrize(
    "marks",
    [
        ("Origin: http://evil.example",),
        ("Origin: null",),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"),
    ],
)
async def test_a_post_across_sites_is_refused(edge: Edge, marks: tuple[str, ...]) -> None:
    """S1."""
    answer = await (await edge.caller()).ask(request("/acme/v1/charges", CHARGE, "Content-Type: text/plain", *marks))
    assert (answer.status_code, answer.problem) == (403, "cross-site")
    assert edge.carrier.calls == []


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]:8700", "paywitness:8700", "pod.payments.svc", "api.acme.test"])
async def test_services_ask_by_address_by_service_and_by_the_providers_own_host(edge: Edge, host: str) -> None:
    assert (await (await edge.caller()).ask(asked_under(host))).status_code == 200


async def test_a_caller_of_http_1_0_may_name_no_host(edge: Edge) -> None:
    assert (await (await edge.caller()).ask(b"GET / HTTP/1.0\r\n\r\n", "GET")).status_code == 200


async def test_whoever_came_by_a_proxy_setting_is_not_asked_for_its_origin(proxy: Edge) -> None:
    """What a browser sends to a provider through us, it could send without us."""
    caller = await tunnelled(proxy)
    assert (await caller.ask(charge("api.acme.test", "/v1/charges", "Origin: https://shop.example"))).status_code == 200
