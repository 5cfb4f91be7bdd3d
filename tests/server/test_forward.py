"""A caller whose HTTP client was told of a proxy: addresses in full, and CONNECT with the authority's certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from paywitness.option_defaults import Unlisted
from tests.server.conftest import PATIENCE, Edge, MakeProxy
from tests.server.proxy_client import TRUSTING, Outside, charge, connect, tunnelled
from tests.server.raw_client import Answer, request, until


async def test_an_address_of_a_policys_host_is_that_providers(proxy: Edge) -> None:
    caller = await proxy.caller()
    answer = await caller.ask(charge("api.acme.test", "http://api.acme.test/v1/charges?a=b"))
    assert answer.status_code == 200
    (call,) = proxy.carrier.calls
    assert (call.provider, call.path, call.query) == ("acme", "/v1/charges", "a=b")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://API.Acme.Test/v1/charges", "api.acme.test"),
        ("http://api.acme.test:80/v1/charges", "api.acme.test:80"),
        ("http://api.acme.test:80/v1/charges", "api.acme.test"),
        ("https://api.acme.test./v1/charges", "api.acme.test"),
    ],
)
async def test_one_host_may_be_written_in_several_ways(proxy: Edge, address: str, host: str) -> None:
    caller = await proxy.caller()
    assert (await caller.ask(charge(host, address))).status_code == 200


@pytest.mark.parametrize(
    ("address", "host", "kind"),
    [
        ("http://api.acme.test/v1/charges", "api.globex.test", "malformed"),
        ("http://api.acme.test/v1/charges", "api.acme.test:8080", "malformed"),
        ("http://api.acme.test:x/v1/charges", "api.acme.test", "malformed"),
        ("http://key:secret@api.acme.test/v1/charges", "api.acme.test", "path-not-allowed"),
        ("http:///v1/charges", "api.acme.test", "malformed"),
        ("http://api.acme.test/v1/../admin", "api.acme.test", "path-not-allowed"),
        ("http://elsewhere.test/v1/charges", "elsewhere.test", "provider-not-allowed"),
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254", "provider-not-allowed"),
        ("http://127.0.0.1:8701/v1/operations", "127.0.0.1:8701", "provider-not-allowed"),
        ("ftp://api.acme.test/v1/charges", "api.acme.test", "path-not-allowed"),
    ],
)
async def test_an_address_that_could_lead_elsewhere_is_refused(proxy: Edge, address: str, host: str, kind: str) -> None:
    caller = await proxy.caller()
    answer = await caller.ask(charge(host, address))
    assert answer.problem == kind
    assert not proxy.carrier.calls
    assert not proxy.carrier.forwarded


@pytest.mark.parametrize("path", ["/v1/charges", "/v1/files"])
async def test_what_comes_by_a_proxy_setting_says_so_behind_all_that_the_caller_said(proxy: Edge, path: str) -> None:
    in_full, in_tls, plainly = await proxy.caller(), await tunnelled(proxy), await proxy.caller()
    await in_full.ask(charge("api.acme.test", f"http://api.acme.test{path}"))
    await in_tls.ask(charge("api.acme.test", path, "Via: 1.0 fred (paywitness), 1.1 paywitness.example"))
    await plainly.ask(charge("127.0.0.1", f"/acme{path}"))
    calls = proxy.carrier.calls or [seen.call for seen in proxy.carrier.forwarded]
    via = [[value for name, value in call.headers if name == b"Via"] for call in calls]
    assert via == [[b"1.1 paywitness"], [b"1.0 fred (paywitness), 1.1 paywitness.example", b"1.1 paywitness"], []]
    assert calls[1].headers[-1] == (b"Via", b"1.1 paywitness")


async def test_what_is_only_observed_passes_as_it_came(proxy: Edge) -> None:
    caller = await proxy.caller()
    await caller.ask(charge("api.globex.test", "http://api.globex.test/v1/charges"))
    await caller.ask(charge("api.globex.test", "http://api.globex.test/v1/files"))
    assert (proxy.carrier.call.headers, proxy.carrier.forward_seen.call.headers) == ((), ())


@pytest.mark.parametrize("via", ["1.1 paywitness", "1.0 fred, 1.1 Paywitness (sidecar)", "HTTP/1.1 paywitness"])
async def test_a_request_that_was_here_before_goes_no_further(proxy: Edge, via: str) -> None:
    caller = await proxy.caller()
    answer = await caller.ask(charge("api.acme.test", "http://api.acme.test/v1/charges", f"Via: {via}"))
    assert answer.problem == "path-not-allowed"
    assert "leads back" in answer.json["detail"]
    assert proxy.carrier.calls == []


async def test_a_host_of_a_policy_is_intercepted(proxy: Edge) -> None:
    caller = await tunnelled(proxy)
    for number in range(3):  # over one connection
        answer = await caller.ask(charge("api.acme.test", f"/v1/charges?n={number}"))
        assert answer.status_code == 200
    assert {(call.provider, call.path) for call in proxy.carrier.calls} == {("acme", "/v1/charges")}
    assert [call.query for call in proxy.carrier.calls] == ["n=0", "n=1", "n=2"]
    assert not any(name.lower().startswith(b"proxy-") for name, _ in proxy.carrier.calls[0].headers)


async def test_a_request_that_comes_with_the_last_of_the_handshake_is_served(proxy: Edge) -> None:
    answers: list[Answer] = []
    for _ in range(20):
        caller = await tunnelled(proxy)
        answers.append(await caller.ask(charge("api.acme.test")))
        caller.abort()
    assert [answer.status_code for answer in answers] == [200] * 20


async def test_within_a_tunnel_no_other_host_is_reached(proxy: Edge) -> None:
    for path, host in (("/v1/charges", "api.globex.test"), ("http://api.globex.test/v1/charges", "api.globex.test")):
        caller = await tunnelled(proxy)
        answer = await caller.ask(charge(host, path))
        assert answer.problem == "malformed"
    assert proxy.carrier.calls == []


async def test_another_name_in_tls_than_in_connect_ends_it(proxy: Edge) -> None:
    caller = await proxy.caller()
    caller.send(connect("api.acme.test:443"))
    await caller.head()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await caller.writer.start_tls(TRUSTING, server_hostname="api.globex.test")
    await until(lambda: proxy.refused == {"tls-failed": 1})
    await until(lambda: proxy.server.counters.connections_open == 0)


@pytest.mark.parametrize(
    ("agent", "line"),
    [
        ("curl/8.5.0", "prints for it: CURL_CA_BUNDLE"),
        ("Go-http-client/1.1", "prints for it: SSL_CERT_FILE"),
        ("sk_live_canary", "prints for it: SSL_CERT_FILE (OpenSSL, Go, Ruby), REQUESTS_CA_BUNDLE"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_caller_that_refuses_our_certificate_is_told_of_with_the_cure(
    proxy: Edge, caplog: pytest.LogCaptureFixture, agent: str, line: str, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context()  # trusts what the machine trusts
    context.maximum_version = version

    def shake_hands() -> None:  # as most clients do: asyncio's own sends no alert
        with socket.create_connection(proxy.address) as plain:
            plain.sendall(connect("api.acme.test:443", f"User-Agent: {agent}"))
            assert plain.recv(1_000).endswith(b"\r\n\r\n")
            context.wrap_socket(plain, server_hostname="api.acme.test")

    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(shake_hands)
    await until(lambda: proxy.refused == {"tls-failed": 1})
    [said] = [each for each in caplog.messages if "certificate" in each]
    assert said.startswith("a caller refused our certificate for api.acme.test (unknown CA): ")
    assert line in said
    assert "canary" not in said


async def test_a_handshake_that_ends_for_another_reason_is_no_line(
    proxy: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    caller = await proxy.caller()
    caller.send(connect("api.acme.test:443"))
    await caller.head()
    caller.send(b"no TLS at all")
    await until(lambda: proxy.refused == {"tls-failed": 1})
    assert [each for each in caplog.messages if "certificate" in each] == []


async def test_a_host_that_no_policy_names_is_told_of_with_the_cure(
    proxy: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    tunnel, plain = await proxy.caller(), await proxy.caller()
    await tunnel.ask(connect("bank.test:443"))
    await plain.ask(charge("bank.test", "http://bank.test/v1/charges"))
    by_tunnel, by_address = (each for each in caplog.messages if "bank.test" in each)
    assert by_tunnel.startswith("403: a caller asked for bank.test, which no policy names: add it to `hosts:`")
    assert "--unlisted tunnel" in by_tunnel
    assert "--unlisted" not in by_address  # plain HTTP is not passed on
    assert {record.__dict__["repeats"] for record in caplog.records if "bank.test" in record.getMessage()} == {
        ("bank.test",)
    }


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (connect("bank.test:443"), "provider-not-allowed"),
        (connect("api.acme.test:22"), "provider-not-allowed"),
        (connect("api.acme.test:443", host="api.globex.test:443"), "malformed"),
        (connect("api.acme.test:443", host="api.acme.test:8443"), "malformed"),
        (connect("api.acme.test:443", "Host: api.acme.test:443"), "malformed"),
        (connect("api.acme.test", host="api.acme.test"), "malformed"),
        (connect("api.acme.test:0"), "malformed"),
        (connect("api.acme.test:99999"), "malformed"),
        (connect("[::1"), "malformed"),
        (connect("api.acme.test:443") + b"early", "malformed"),
        (b"CONNECT api.acme.test:443 HTTP/1.1\r\n\r\n", "malformed"),
        (b"CONNECT  HTTP/1.1\r\n\r\n", "malformed"),
        (b"CONNECT api.acme.test:443 HTTP/1.1\r\nHost\r\n\r\n", "malformed"),
        (b"CONNECT /v1/charges HTTP/1.1\r\nHost: api.acme.test\r\n\r\n", "malformed"),
    ],
)
async def test_what_leads_nowhere_is_refused_in_plain_words(
    proxy: Edge, outside: Outside, head: bytes, kind: str
) -> None:
    caller = await proxy.caller()
    answer = await caller.ask(head)
    assert answer.problem == kind
    assert await caller.is_closed()
    assert outside.asked == []
    await until(lambda: proxy.server.counters.connections_open == 0)


async def test_a_tunnel_may_carry_plain_http_for_a_policys_host_alone(proxy: Edge) -> None:
    caller = await proxy.caller()
    caller.send(connect("api.acme.test:80"))
    assert (await caller.head())[0] == 200
    for host, status_code in (("api.acme.test", 200), ("api.acme.test:80", 200), ("api.globex.test", 400)):
        assert (await caller.ask(charge(host))).status_code == status_code
    assert [call.provider for call in proxy.carrier.calls] == ["acme", "acme"]
    assert (await (await proxy.caller()).ask(connect("bank.test:80"))).problem == "provider-not-allowed"


async def test_http_1_0_need_not_name_the_host_twice(proxy: Edge) -> None:
    caller = await proxy.caller()
    caller.send(b"CONNECT api.acme.test:443 HTTP/1.0\r\n\r\n")
    assert (await caller.head())[0] == 200


async def test_connect_may_come_byte_by_byte(proxy: Edge) -> None:
    caller = await proxy.caller()
    for byte in connect("api.acme.test:443"):
        caller.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await caller.head())[0] == 200


async def test_a_plain_request_may_begin_like_connect(proxy: Edge) -> None:
    caller = await proxy.caller()
    caller.send(b"CO")
    await asyncio.sleep(0.01)
    caller.send(b"PY /acme/v1/charges HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await caller.answer()).problem == "malformed"


async def test_connect_comes_first_or_not_at_all(proxy: Edge) -> None:
    caller = await proxy.caller()
    assert (await caller.ask(request())).status_code == 200
    assert (await caller.ask(connect("api.acme.test:443"))).problem == "malformed"


async def test_without_an_authority_it_says_what_to_do(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(certified=False)
    answer = await (await proxy.caller()).ask(connect("api.acme.test:443"))
    assert answer.problem == "provider-not-allowed"
    assert "paywitness ca init" in answer.json["detail"]


async def test_a_host_no_policy_names_is_joined_untouched_where_that_is_wanted(
    make_proxy: MakeProxy, outside: Outside
) -> None:
    proxy = await make_proxy(Unlisted.TUNNEL)
    caller = await proxy.caller()
    caller.send(connect("bank.test:443"))
    assert (await caller.head())[0] == 200
    caller.send(b"\x16\x03\x01 whatever")
    assert await caller.reader.readexactly(12) == b"\x16\x03\x01 whatever"
    much = bytes(range(256)) * 4096
    caller.send(much)
    assert await caller.reader.readexactly(len(much)) == much
    caller.half_close()
    assert await caller.rest() == b"end"
    assert (outside.asked, outside.left) == ([("bank.test", 443)], 1)
    assert not proxy.carrier.calls
    assert not proxy.carrier.forwarded
    await until(lambda: proxy.server.counters.connections_open == 0)


async def test_a_tunnel_leads_to_no_other_port(make_proxy: MakeProxy, outside: Outside) -> None:
    proxy = await make_proxy(Unlisted.TUNNEL)
    assert (await (await proxy.caller()).ask(connect("bank.test:25"))).problem == "provider-not-allowed"
    assert outside.asked == []


async def test_a_tunnel_that_cannot_be_had_is_told(make_proxy: MakeProxy, outside: Outside) -> None:
    outside.trouble = "the name leads to a private address"
    proxy = await make_proxy(Unlisted.TUNNEL)
    answer = await (await proxy.caller()).ask(connect("intranet.test:443"))
    assert answer.problem == "provider-not-allowed"
    assert "private address" in answer.json["detail"]


async def test_a_tunnel_does_not_outlive_either_side(make_proxy: MakeProxy, outside: Outside) -> None:
    proxy = await make_proxy(Unlisted.TUNNEL)
    caller = await proxy.caller()
    caller.send(connect("bank.test:443"))
    await caller.head()
    caller.reset()
    await until(lambda: proxy.server.counters.connections_open == 0)


async def test_those_who_dawdle_at_the_door_are_sent_away(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(limits=PATIENCE)
    silent, halfway, unshaken = await proxy.caller(), await proxy.caller(), await proxy.caller()
    halfway.send(b"CONNECT api.acme.test:443 HT")
    unshaken.send(connect("api.acme.test:443"))
    assert (await unshaken.head())[0] == 200
    for caller in (silent, halfway, unshaken):
        assert await caller.is_closed()
    await until(lambda: proxy.server.counters.connections_open == 0)


async def test_connect_and_its_handshake_have_one_time_together(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(limits=PATIENCE)
    slow = await proxy.caller()
    await asyncio.sleep(PATIENCE.head_s * 0.4)
    silent = await proxy.caller()  # its time began later
    await asyncio.sleep(PATIENCE.head_s * 0.4)
    slow.send(connect("api.acme.test:443"))
    assert (await slow.head())[0] == 200
    ends = {asyncio.ensure_future(slow.is_closed()): "slow", asyncio.ensure_future(silent.is_closed()): "silent"}
    done, rest = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    assert "slow" in {ends[end] for end in done}
    await asyncio.gather(*rest)


async def test_a_drain_finishes_what_is_under_way_within_tls(proxy: Edge) -> None:
    caller = await tunnelled(proxy)
    proxy.carrier.hold()
    caller.send(charge("api.acme.test"))
    await until(lambda: len(proxy.carrier.calls) == 1)
    draining = asyncio.ensure_future(proxy.server.drain(5.0))
    await asyncio.sleep(0.05)
    proxy.carrier.release()
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await draining == 0


async def test_a_callers_leaving_within_tls_is_noticed(proxy: Edge) -> None:
    caller = await tunnelled(proxy)
    proxy.carrier.hold()
    caller.send(charge("api.acme.test"))
    await until(lambda: len(proxy.carrier.calls) == 1)
    caller.abort()
    await until(lambda: proxy.server.counters.connections_open == 0)
    proxy.carrier.release()
