"""Hostile requests by the ways of a proxy: addresses in full, CONNECT, and whatever is said within its TLS.

Each is refused, or forwarded as exactly one request to the provider that it names.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from paywitness.option_defaults import Unlisted
from tests.server.conftest import PATIENCE, Edge, MakeProxy
from tests.server.proxy_client import Outside, charge, connect, tunnelled
from tests.server.raw_client import Caller, get, until
from tests.server.test_hostile import FOLLOWER, HOST, MALFORMED
from tests.server.test_robustness import BITS

OWN_HOST = b"Host: api.acme.test\r\n"


def by_address(data: bytes) -> bytes:
    return data.replace(b"/acme/v1", b"http://api.acme.test/v1").replace(HOST, OWN_HOST)


def within_tls(data: bytes) -> bytes:
    return data.replace(b"/acme/v1", b"/v1").replace(HOST, OWN_HOST)


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused_by_address_too(proxy: Edge, name: str) -> None:
    caller = await proxy.caller()
    await _is_refused(proxy, caller, by_address(MALFORMED[name] + FOLLOWER))


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused_within_tls_too(proxy: Edge, name: str) -> None:
    caller = await tunnelled(proxy)
    await _is_refused(proxy, caller, within_tls(MALFORMED[name] + FOLLOWER))


async def _is_refused(proxy: Edge, caller: Caller, data: bytes) -> None:
    answer = await caller.ask(data)
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert answer.json["sent"] is False
    assert await caller.is_closed()
    assert (proxy.carrier.calls, proxy.carrier.forwarded) == ([], [])


ADDRESSES = [
    "http://api.acme.test@elsewhere.test/v1/charges",
    "http://elsewhere.test@api.acme.test/v1/charges",
    "http://api.acme.test:80@elsewhere.test/v1/charges",
    "http://api.acme.test%40elsewhere.test/v1/charges",
    "http://api.acme.test%2f@elsewhere.test/v1/charges",
    "http://api.acme.test%00.elsewhere.test/v1/charges",
    "http://api%2eacme%2etest/v1/charges",
    "http://api.acme.test\\@elsewhere.test/v1/charges",
    "http://api.acme.test\\.elsewhere.test/v1/charges",
    "http://api.acme.test#@elsewhere.test/v1/charges",
    "http://api.acme.test;elsewhere.test/v1/charges",
    "http://api.acme.test,elsewhere.test/v1/charges",
    "http://[api.acme.test]/v1/charges",
    "http://[::1]/v1/charges",
    "http://[::1%25lo]/v1/charges",
    "http://[::ffff:127.0.0.1]/v1/charges",
    "http://127.0.0.1/v1/charges",
    "http://2130706433/v1/charges",
    "http://0x7f.1/v1/charges",
    "http://0177.0.0.1/v1/charges",
    "http://localhost:8701/v1/operations",
    "http://api.acme.test:8443/v1/charges",
    "http://api.acme.test:443/v1/charges",
    "https://api.acme.test:80/v1/charges",
    "http://api.acme.test:080x/v1/charges",
    "http://api.acme.test:0/v1/charges",
    "http://api.acme.test:80:80/v1/charges",
    "http://api.acme.test:-80/v1/charges",
    "http://api.acme.test:99999/v1/charges",
    "http://api.acme.test../v1/charges",
    "http://.api.acme.test/v1/charges",
    "http://api..acme.test/v1/charges",
    "http://acme.test/v1/charges",
    "http://xapi.acme.test/v1/charges",
    "http://api.acme.test.elsewhere.test/v1/charges",
    "http://%61pi.acme.test/v1/charges",
    "http://" + "a" * 64 + ".acme.test/v1/charges",
    "http://" + "a." * 130 + "test/v1/charges",
    "http:/api.acme.test/v1/charges",
    "http:api.acme.test/v1/charges",
    "//api.acme.test/v1/charges",
    "http://api.acme.test//v1/charges",
    "http://api.acme.test/v1/./charges",
    "http://api.acme.test/v1%2fcharges",
    "http://api.acme.test/v1/charges#x",
    "ws://api.acme.test/v1/charges",
    "unix:/run/paywitness.sock",
    "api.acme.test:80",
    "*",
]


@pytest.mark.parametrize("said", ["the same", "the provider"])
@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_with_a_trick_in_it_goes_nowhere(proxy: Edge, address: str, said: str) -> None:
    caller = await proxy.caller()
    host = address.partition("://")[2].partition("/")[0] if said == "the same" else "api.acme.test"
    answer = await caller.ask(charge(host, address))
    assert answer.problem in {"malformed", "path-not-allowed", "provider-not-allowed"}
    assert (proxy.carrier.calls, proxy.carrier.forwarded) == ([], [])


@pytest.mark.parametrize(
    ("address", "path", "query"),
    [
        ("http://api.acme.test/v1/charges?next=http://elsewhere.test/", "/v1/charges", "next=http://elsewhere.test/"),
        ("http://api.acme.test?a=/b/c", "/", "a=/b/c"),
        ("http://api.acme.test", "/", ""),
        ("HTTP://API.ACME.TEST:80/v1/charges?a=@b", "/v1/charges", "a=@b"),
        ("https://api.acme.test:443/v1/charges", "/v1/charges", ""),
        ("http://api.acme.test/v1/charges/@elsewhere.test", "/v1/charges/@elsewhere.test", ""),
    ],
)
async def test_an_address_that_only_looks_odd_is_one_request(proxy: Edge, address: str, path: str, query: str) -> None:
    caller = await proxy.caller()
    assert (await caller.ask(charge("api.acme.test", address))).status_code == 200
    calls = [*proxy.carrier.calls, *(seen.call for seen in proxy.carrier.forwarded)]
    assert [(call.provider, call.path, call.query) for call in calls] == [("acme", path, query)]


async def test_two_hosts_are_one_too_many_whichever_is_right(proxy: Edge) -> None:
    for address in ("http://api.acme.test/v1/charges", "/acme/v1/charges"):
        caller = await proxy.caller()
        answer = await caller.ask(charge("api.acme.test", address, "Host: api.acme.test"))
        assert answer.problem == "malformed"
    assert proxy.carrier.calls == []


async def test_another_port_within_tls_is_another_place(proxy: Edge) -> None:
    for host, status_code in (("api.acme.test:443", 200), ("api.acme.test:8443", 400), ("api.acme.test:80", 400)):
        caller = await tunnelled(proxy)
        assert (await caller.ask(charge(host))).status_code == status_code
    assert len(proxy.carrier.calls) == 1


CONNECTS = [
    connect("api.acme.test@elsewhere.test:443"),
    connect("key:secret@api.acme.test:443"),
    connect("http://api.acme.test:443"),
    connect("api.acme.test:443/v1/charges"),
    connect("api.acme.test:443?x"),
    connect("api.acme.test%2eelsewhere.test:443"),
    connect("api.acme.test:443:443"),
    connect("api.acme.test:+443"),
    connect("api.acme.test: 443"),
    connect("api.acme.test:0x1bb"),
    connect("[api.acme.test]:443"),
    connect("[::1]:443x"),
    connect("[::1%25lo]:443"),
    connect("::1:443"),
    connect(".api.acme.test:443"),
    connect("api..acme.test:443"),
    connect("a" * 64 + ".acme.test:443"),
    connect("api.acme.test:443", host="api.acme.test:443, elsewhere.test:443"),
    connect("api.acme.test:443", host="api.acme.test@elsewhere.test"),
    connect("api.acme.test:443", "Content-Length: 5"),
    connect("api.acme.test:443", "Content-Length: 5") + b"hello",
    connect("api.acme.test:443", "Transfer-Encoding: chunked"),
    connect("api.acme.test:443", "Content-Length: 0", "Content-Length: 0"),
    connect("api.acme.test:443", "X: a\r\n b"),
    connect("api.acme.test:443", "X: a\0b"),
    connect("api.acme.test:443", "X : a"),
    connect("api.acme.test:443") + FOLLOWER,
    connect("api.acme.test:443").replace(b"HTTP/1.1", b"HTTP/2.0"),
    connect("api.acme.test:443").replace(b"HTTP/1.1", b"HTTP/1.1x"),
    connect("api.acme.test:443").replace(b"\r\n", b"\n"),
    connect("api.acme.test:443").replace(b" HTTP", b"  HTTP"),
    connect(" api.acme.test:443", host="api.acme.test:443"),
    connect("*"),
    connect("/"),
]
UNLISTED = ["127.0.0.1:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "2130706433:443", "localhost:443", "acme.test:443"]


@pytest.mark.parametrize("head", CONNECTS)
async def test_a_connect_with_a_trick_in_it_opens_nothing(make_proxy: MakeProxy, outside: Outside, head: bytes) -> None:
    proxy = await make_proxy(Unlisted.TUNNEL)  # where the most could be reached
    caller = await proxy.caller()
    assert (await caller.ask(head)).problem == "malformed"
    assert await caller.is_closed()
    assert outside.asked == []
    assert (proxy.carrier.calls, proxy.carrier.forwarded) == ([], [])


@pytest.mark.parametrize("authority", UNLISTED)
async def test_what_no_policy_names_is_refused_however_it_is_written(proxy: Edge, authority: str) -> None:
    caller = await proxy.caller()
    assert (await caller.ask(connect(authority))).problem == "provider-not-allowed"


async def test_a_connect_that_announces_no_body_may_say_so(proxy: Edge) -> None:
    caller = await proxy.caller()
    caller.send(connect("api.acme.test:443", "Content-Length: 0", "Proxy-Connection: keep-alive"))
    assert (await caller.head())[0] == 200


def mutated(chance: Random) -> bytes:
    seeds = [*CONNECTS, connect("api.acme.test:443"), connect("bank.test:443"), by_address(MALFORMED["no host"])]
    seeds += [charge("api.acme.test", address) for address in ADDRESSES]
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[place:place] = chance.choice(BITS)
            case 1:
                del data[place : place + chance.randint(1, 4)]
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
async def test_noise_around_connect_and_addresses_reaches_nobody_else(
    make_proxy: MakeProxy, outside: Outside, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = await make_proxy(limits=PATIENCE)
    caplog.set_level(logging.WARNING)
    escaped: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(context))
    chance = Random(seed)

    async def one(data: bytes) -> None:
        caller = await proxy.caller()
        cut = chance.randrange(len(data) + 1)
        caller.send(data[:cut])
        await asyncio.sleep(0)
        caller.send(data[cut:])
        await caller.is_closed()
        caller.close()

    for _ in range(3):
        await asyncio.gather(*(one(mutated(chance)) for _ in range(25)))
    assert (await (await proxy.caller()).ask(get("/"), "GET")).status_code == 200
    assert escaped == []
    assert caplog.records == []
    assert outside.asked == []
    calls = [*proxy.carrier.calls, *(seen.call for seen in proxy.carrier.forwarded)]
    assert {call.provider for call in calls} <= {"acme", "globex"}
    await until(lambda: proxy.server.counters.connections_open == 1)
