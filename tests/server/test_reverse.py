"""Reverse mode over a real socket: what becomes of a request on its way to a Call."""

from __future__ import annotations

import pytest

from paywitness.core.call import CallerOptions, Priority
from tests.server.conftest import Edge, MakeEdge
from tests.server.raw_client import get, request


async def test_a_request_becomes_a_call(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request("/acme/v1/charges?expand=a&b", b'{"amount":1}', "Authorization: Bearer x"))
    assert (answer.status_code, answer.body) == (200, b'{"status":"succeeded"}')
    call = edge.carrier.call
    assert (call.provider, call.method, call.path, call.query) == ("acme", "POST", "/v1/charges", "expand=a&b")
    assert call.segments == ("v1", "charges")
    assert call.target == "/v1/charges?expand=a&b"
    assert call.headers == ((b"Authorization", b"Bearer x"),)
    assert call.body == b'{"amount":1}'
    assert call.options == CallerOptions()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/charges/%7Eme",
        "/v1/charges/~me",
        "/v1/charges/a+b",
        "/v1/charges/a%2Bb",
        "/v1/charges/%c3%A9",
        "/v1/charges/a;b=c:d@e",
        "/v1/charges/a,b!$&'()*=",
        "/v1/charges/x%20y%25",
        "/v1/charges/...",
        "/v1/charges/a.b",
        "/v1/charges?x=%7e&y=/../%2f&z=a+b;c?d",
        "/v1/charges?",
    ],
)
async def test_a_path_goes_on_byte_for_byte(edge: Edge, path: str) -> None:
    caller = await edge.caller()
    assert (await caller.ask(request("/acme" + path))).status_code == 200
    call = edge.carrier.call
    assert call.target == path.removesuffix("?")


async def test_segments_are_decoded_for_matching(edge: Edge) -> None:
    caller = await edge.caller()
    await caller.ask(request("/acme/v1/charges/%c3%A9%7E+;x"))
    assert edge.carrier.call.segments == ("v1", "charges", "é~+;x")


@pytest.mark.parametrize("path", ["/acme", "/acme/"])
async def test_a_bare_prefix_is_the_providers_root(edge: Edge, path: str) -> None:
    caller = await edge.caller()
    assert (await caller.ask(get(path + "?q=1"), "GET")).status_code == 200
    call = edge.carrier.forward_seen.call
    assert (call.path, call.query, call.segments) == ("/", "q=1", ())


@pytest.mark.parametrize(
    "path",
    [
        "/acme/v1/../charges",
        "/acme/v1/./charges",
        "/acme/v1/%2e%2E/charges",
        "/acme/v1/.%2e",
        "/acme/v1/%2e",
        "/acme//v1/charges",
        "/acme/v1//charges",
        "/acme/v1/charges/",
        "/acme//",
        "//acme/v1/charges",
        "//",
        "/acme/v1%2Fcharges",
        "/acme/v1%2fcharges",
        "/acme/v1%5Ccharges",
        "/acme/v1\\charges",
        "/acme/v1/%00",
        "/acme/v1/a%0ab",
        "/acme/v1/%7f",
        "/acme/v1/%c2%85",
        "/acme/v1/%ff",
        "/acme/v1/%c0%ae%c0%ae/charges",
        "/acme/v1/%ed%a0%80",
        "/acme/v1/%",
        "/acme/v1/%4",
        "/acme/v1/%zz",
        "/acme/v1/%+1",
        "/acme/v1/..;x/charges",
        "/acme/v1/;x/charges",
        "/acme/v1/charges#top",
        "/acme/v1/charges?a#top",
        "/%2e%2e/acme/v1",
        "/../acme/v1",
    ],
)
async def test_a_path_that_can_be_read_in_two_ways_is_refused(edge: Edge, path: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request(path))
    assert (answer.status_code, answer.problem) == (403, "path-not-allowed")
    assert answer.header("Paywitness-Outcome") == "none"
    assert edge.carrier.calls == []
    assert edge.carrier.forwarded == []
    assert (await caller.ask(request())).status_code == 200  # and the connection goes on


async def test_a_provider_that_no_policy_names_is_refused(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request("/nobody/v1/charges"))
    assert (answer.status_code, answer.problem) == (403, "provider-not-allowed")
    assert "nobody" in answer.json["detail"]
    assert edge.refused == {"provider-not-allowed": 1}


async def test_a_refused_body_is_not_read(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"POST /nobody/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (403, "close")


@pytest.mark.parametrize("target", ["*", "/"])
async def test_t7_options_of_the_whole_server_are_told_by_us(edge: Edge, target: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request(target, None, method="OPTIONS"))
    assert (answer.status_code, answer.header("Allow")) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
    assert answer.header("Paywitness-Outcome") == "none"
    assert (edge.carrier.calls, edge.carrier.forwarded) == ([], [])
    assert (await caller.ask(get("/"), "GET")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_an_asterisk_is_no_path_of_another_method(edge: Edge, method: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request("*", None, method=method))
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert (edge.carrier.calls, edge.carrier.forwarded) == ([], [])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_t7_a_payment_to_the_front_page_is_not_told_that_all_is_well(edge: Edge, method: str) -> None:
    """A base address without the provider's name: 200 would be read as a payment."""
    caller = await edge.caller()
    answer = await caller.ask(request("/", b"{}", method=method))
    assert (answer.status_code, answer.problem) == (404, "not-found")
    assert answer.header("Paywitness-Outcome") == "none"


async def test_the_front_page_says_how_to_use_it(edge: Edge) -> None:
    caller = await edge.caller()
    answer = await caller.ask(get("/"), "GET")
    assert answer.status_code == 200
    assert "/{provider}/" in answer.json["use"]
    assert answer.header("Paywitness-Outcome") == "none"


async def test_an_operation_is_described(edge: Edge) -> None:
    caller = await edge.caller()
    assert (await caller.ask(get("/paywitness/operations/op_1"), "GET")).status_code == 200
    assert edge.carrier.described == ["op_1"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/paywitness/operations/op_1"),
        ("GET", "/paywitness/operations"),
        ("GET", "/paywitness"),
        ("GET", "/paywitness/"),
        ("GET", "/paywitness/operations/a/b"),
        ("GET", "/paywitness/else/op_1"),
    ],
)
async def test_nothing_else_is_below_our_own_name(edge: Edge, method: str, path: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request(path, None, method=method), method)
    assert (answer.status_code, answer.problem) == (404, "not-found")
    assert edge.carrier.described == []


async def test_a_port_of_its_own_needs_no_prefix(make_edge: MakeEdge) -> None:
    edge = await make_edge(provider="globex")
    caller = await edge.caller()
    assert (await caller.ask(request("/v1/charges?a=b"))).status_code == 200
    call = edge.carrier.call
    assert (call.provider, call.path, call.query, call.segments) == ("globex", "/v1/charges", "a=b", ("v1", "charges"))
    assert (await caller.ask(request("/v1/../charges"))).problem == "path-not-allowed"
    assert (await caller.ask(get("/paywitness/operations/op_2"), "GET")).status_code == 200
    assert edge.carrier.described == ["op_2"]


async def test_headers_go_on_in_their_order_case_and_number(edge: Edge) -> None:
    sent = [
        "X-Dup: 1",
        "x-dup: 2",
        "X-DUP: 3",
        "Accept:  a,  b ",
        "Idempotency-Key: k",
        "X-Bytes: \xff\xe9",
        "X-Empty:",
    ]
    caller = await edge.caller()
    await caller.ask(request("/acme/v1/charges", b"{}", *sent))
    assert edge.carrier.call.headers == (
        (b"X-Dup", b"1"),
        (b"x-dup", b"2"),
        (b"X-DUP", b"3"),
        (b"Accept", b"a,  b"),
        (b"Idempotency-Key", b"k"),
        (b"X-Bytes", b"\xff\xe9"),
        (b"X-Empty", b""),
    )


async def test_headers_of_one_connection_do_not_go_on(edge: Edge) -> None:
    hop_by_hop = [
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Keep-Alive: 5",
        "TE: trailers",
        "Proxy-Authorization: x",
    ]
    caller = await edge.caller()
    await caller.ask(request("/acme/v1/charges", b"{}", *hop_by_hop, "Expect: 100-continue", "X-Kept: 1"))
    assert edge.carrier.call.headers == ((b"X-Kept", b"1"),)


async def test_wishes_are_ours_and_do_not_go_on(edge: Edge) -> None:
    wishes = [
        "paywitness-key: k-1",
        "Paywitness-Intent: order 7",
        "PAYWITNESS-ACCOUNT: main",
        "Paywitness-Timeout-Ms: 1500",
        "Paywitness-Priority: low",
        "Paywitness-Distinct: paid twice on purpose",
        "Prefer: respond-async, return=representation",
    ]
    caller = await edge.caller()
    await caller.ask(request("/acme/v1/charges", b"{}", *wishes))
    call = edge.carrier.call
    assert call.options == CallerOptions("k-1", "order 7", "main", 1.5, Priority.LOW, "paid twice on purpose")
    assert call.headers == ((b"Prefer", b"return=representation"),)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Paywitness-Timeout-Ms: soon", "'soon'"),
        ("Paywitness-Priority: urgent", "'urgent'"),
        ("Paywitness-Key:", "''"),
        ("Paywitness-Intnet: x", "Paywitness-Intnet"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused_with_what_is_allowed(edge: Edge, header: str, found: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request("/acme/v1/charges", b"{}", header))
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert header.partition(":")[0] in answer.json["detail"]
    assert found in answer.json["detail"]
    assert edge.carrier.calls == []


async def test_two_requests_in_one_segment_are_both_answered_in_order(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(request("/acme/v1/charges/1") + request("/acme/v1/charges/2") + get("/"))
    assert [(await caller.answer()).status_code for _ in range(3)] == [200, 200, 200]
    assert [call.path for call in edge.carrier.calls] == ["/v1/charges/1", "/v1/charges/2"]


async def test_an_engine_that_fails_leaves_the_outcome_unknown(edge: Edge) -> None:
    edge.carrier.error = RuntimeError("boom")
    caller = await edge.caller()
    answer = await caller.ask(request())
    assert (answer.status_code, answer.problem) == (504, "unknown")
    assert answer.json["side_effect_may_exist"] is True
    forwarded = await caller.ask(get("/acme/v1/balance"), "GET")
    assert (forwarded.status_code, forwarded.problem) == (504, "forward-failed")
    assert forwarded.json["side_effect_may_exist"] is False  # a GET
    described = await caller.ask(get("/paywitness/operations/x"), "GET")
    assert (described.status_code, described.problem) == (504, "journal-unavailable")
