"""Secrets and card numbers in every place where a caller can write: none of them is in any byte that we wrote.

Each place has a canary of its own and a card number of its own. They go through a real process, in calls that succeed,
that are declined, that stay in doubt, and that are no HTTP at all; then the process is killed, and everything that it
has left is searched: its log, its journal with what SQLite keeps beside it, its spool, its metrics, its admin port, and
what it tells other callers. Sealed they may be kept, and the caller itself may be told what it said.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import TOP, Sidecar, ask
from tests.server.test_hostile import MALFORMED

pytestmark = pytest.mark.slow

MakeSidecar = Callable[..., Sidecar]
WEBHOOK_SECRET = "whsec_of_the_shop"
SECONDS = 20.0
PAID = b"HTTP/1.1 200 OK"


def card_number(number: int) -> str:
    """One that a checksum would take for real, and no other place has."""
    digits = f"4{number:014d}"
    doubled = [int(digit) * (2 - place % 2) for place, digit in enumerate(digits)]
    return digits + str(-sum(value - 9 * (value > 9) for value in doubled) % 10)


@dataclass
class Flock:
    """The canaries, by the place where each was put."""

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(73_512_009))

    def put(self, place: str) -> str:
        """A secret and a card number, as one word of letters, digits and hyphens."""
        if place not in self.placed:
            number = next(self.numbers)
            self.placed[place] = (f"sk-canary-{number * 7919:x}", card_number(number))
        return "-".join(self.placed[place])

    def found_in(self, what: str, data: bytes) -> list[str]:
        """`what: place` for each that is in these bytes, as it is, in hex or in base64."""
        whole = data.lower()
        found = []
        for place, words in self.placed.items():
            for word in words:
                plain = word.encode()
                forms = (plain, plain.hex().encode(), base64.b64encode(plain).rstrip(b"=")[:-1].lower())
                if any(form in whole for form in forms):
                    found.append(f"{what}: {place}")
        return sorted(set(found))


class Caller:
    """Says what it is given on a socket, and hears what comes back."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._port = sidecar.port
        self._trusting = ssl.create_default_context(cafile=str(sidecar.home / "ca-bundle.pem"))

    def say(self, data: bytes, port: int | None = None) -> bytes:
        with socket.create_connection(("127.0.0.1", port or self._port), SECONDS) as wire:
            wire.sendall(data)
            wire.shutdown(socket.SHUT_WR)
            return _heard(wire)

    def say_in_a_tunnel(self, data: bytes, name: str = "api.acme.test") -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), SECONDS) as wire:
            wire.sendall(b"CONNECT api.acme.test:443 HTTP/1.1\r\nHost: api.acme.test:443\r\n\r\n")
            assert b" 200 " in wire.recv(4096)
            try:
                with self._trusting.wrap_socket(wire, server_hostname=name) as secured:
                    secured.sendall(data)
                    return _heard(secured)
            except ssl.SSLError:
                return b""


def _heard(wire: socket.socket) -> bytes:
    heard = b""
    try:
        while data := wire.recv(65536):
            heard += data
    except OSError:
        pass  # it was cut off
    return heard


def request(line: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    head = [f"{line} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def charge(flock: Flock, place: str, fault: str = "", *headers: str, **more: object) -> tuple[list[str], bytes]:
    """Headers and body of a charge that has canaries wherever a charge can have one."""
    canary = flock.put
    body = {
        "amount": 1099,
        "currency": "EUR",
        "source": "tok_ok",
        "description": canary(f"{place}: body"),
        canary(f"{place}: name of a field"): 1,
        "metadata": {"order_id": f"order-{place}", "note": canary(f"{place}: metadata")},
        **more,
    }
    given = [
        f"Authorization: Bearer {canary(f'{place}: credential')}",
        "Content-Type: application/json",
        f"Idempotency-Key: key-{place}",
        f"Cookie: session={canary(f'{place}: cookie')}",
        f"User-Agent: {canary(f'{place}: user agent')}",
        f"Proxy-Authorization: Basic {canary(f'{place}: proxy credential')}",
        f"X-{canary(f'{place}: name of a header')}: 1",
        f"X-Anything: {canary(f'{place}: header')}",
        *([f"Sandbox-Fault: {fault}"] if fault else []),
        *headers,
    ]
    return given, json.dumps(body).encode()


def carried(flock: Flock, caller: Caller) -> None:
    """Calls that reach the provider."""
    canary = flock.put
    for place, fault, more in (
        ("paid", "", {}),
        ("lost once", "drop_after_commit", {}),
        ("declined", "declined", {}),
        ("refused", "unauthorized", {}),
        ("with a card", "drop_after_commit", {"source": {"number": canary("the card"), "cvc": canary("the cvc")}}),
        ("wrong", "wrong_amount", {}),
    ):
        headers, body = charge(flock, place, fault, "Paywitness-Timeout-Ms: 1500", **more)
        query = canary(f"{place}: query")
        caller.say(request(f"POST /acme/v1/charges?q={query}", *headers, body=body))
    headers, body = charge(flock, "in a tunnel")
    line = f"POST /v1/charges?q={canary('in a tunnel: query')}"
    assert PAID in caller.say_in_a_tunnel(request(line, *headers, body=body, host="api.acme.test"))
    headers, body = charge(flock, "by an address")
    line = f"POST http://api.acme.test/v1/charges?q={canary('by an address: query')}"
    assert PAID in caller.say(request(line, *headers, body=body, host="api.acme.test"))
    headers, body = charge(flock, "in chunks", "", "Transfer-Encoding: chunked", f"Trailer: {canary('trailer names')}")
    head = request("POST /acme/v1/charges", *headers).replace(b"Content-Length: 0\r\n", b"")
    extension, trailer = canary("chunk extension").encode(), canary("trailer").encode()
    assert PAID in caller.say(
        head + b"%x;%b\r\n%b\r\n0\r\nX-Trailer: %b\r\n\r\n" % (len(body), extension, body, trailer)
    )
    caller.say(request(f"GET /acme/v1/things/{canary('path')}?q={canary('query')}", f"X: {canary('forwarded header')}"))
    caller.say(request("POST /acme/v1/things", body=canary("forwarded body").encode()))


def named(names: Flock, flock: Flock, caller: Caller) -> None:
    """What a caller names a payment by. Operators look for it by these words, so the journal has them as they are."""
    for name in ("Paywitness-Key", "Paywitness-Intent", "Paywitness-Distinct"):
        headers, body = charge(flock, f"named by {name}", "", f"{name}: {names.put(name)}")
        assert PAID in caller.say(request("POST /acme/v1/charges", *headers, body=body))
    headers, body = charge(flock, "named by its order", metadata={"order_id": names.put("order")})
    assert PAID in caller.say(request("POST /acme/v1/charges", *headers, body=body))
    headers, body = charge(flock, "named by its charge")
    caller.say(request(f"POST /acme/v1/charges/{names.put('charge')}/refunds", *headers, body=body))
    for name in ("Paywitness-Account", "Acme-Account"):  # an account is kept as its fingerprint
        headers, body = charge(flock, f"named by {name}", "", f"{name}: {flock.put(name)}")
        assert PAID in caller.say(request("POST /acme/v1/charges", *headers, body=body))


def turned_away(flock: Flock, caller: Caller) -> None:
    """Calls that go no further than our door."""
    canary = flock.put
    for name, data in MALFORMED.items():
        planted = canary(f"malformed: {name}").encode()
        caller.say(data.replace(b"\r\n", b"\r\nX-Secret: " + planted + b"\r\n", 1))
        caller.say(data.replace(b"v1", planted).replace(b"X", planted).replace(b"zz", planted))
    for place, line, host in (
        ("unknown provider", "POST /{}/v1/charges", "127.0.0.1"),
        ("our own pages", "GET /paywitness/{}", "127.0.0.1"),
        ("an operation's id", "GET /paywitness/operations/{}", "127.0.0.1"),
        ("an intent", "GET /paywitness/intents/{}", "127.0.0.1"),
        ("a user in an address", "GET http://{}@api.acme.test/v1/charges", "api.acme.test"),
        ("an address", "GET http://{}.test/v1/charges", "api.acme.test"),
        ("an address that is refused", "GET http://{0}.test/v1/charges", "api.acme.test"),
        ("a connect target", "CONNECT {}.test:443", "api.acme.test"),
        ("a connect target and host", "CONNECT {0}.test:443", "{0}.test:443"),
        ("a connect target's user", "CONNECT {}@api.acme.test:443", "api.acme.test:443"),
        ("a connect target's port", "CONNECT api.acme.test:{}", "api.acme.test:443"),
        ("a broken escape", "GET /acme/%zz{}", "127.0.0.1"),
        ("a method", "{} /acme/v1/charges", "127.0.0.1"),
        ("a host", "GET /acme/v1/charges", "{}.test"),
        ("a host that is none", "GET /acme/v1/charges", "{}@a/b"),
    ):
        word = canary(place)
        caller.say(request(line.format(word), f"X-Secret: {canary(f'{place}: header')}", host=host.format(word)))
    caller.say_in_a_tunnel(b"", name=f"{canary('a name in TLS')}.test")
    caller.say_in_a_tunnel(request("GET /v1/charges", host=f"{canary('a host within TLS')}.test"))
    for name in ("Key", "Intent", "Account", "Timeout-Ms", "Priority", "Distinct", canary("a name of a wish")):
        headers, body = charge(flock, f"wish {name}", "", f"Paywitness-{name}: \x07{canary(f'bad wish {name}')}")
        caller.say(request("POST /acme/v1/charges", *headers, body=body))
    caller.say(canary("no HTTP at all").encode() * 3)


def told_by_providers(flock: Flock, sidecar: Sidecar) -> None:
    """Webhooks, genuine ones and others."""
    canary = flock.put
    where = f"http://127.0.0.1:{sidecar.webhooks_port}/paywitness/webhooks"
    event = {"id": "evt_canary", "type": "charge.succeeded", "data": {"id": "ch_x", "note": canary("forged event")}}
    forged = {"Acme-Signature": f"t=1,v1={canary('signature')}", "X-Any": canary("webhook header")}
    ask(f"{where}/acme", event, forged)
    ask(f"{where}/acme/{canary('webhook account')}?q={canary('webhook query')}", event, forged)
    ask(f"{where}/{canary('webhook provider')}", event, forged)
    ask(f"{where}/acme", canary("webhook that is no JSON").encode(), forged)
    malformed = f"POST /{canary('webhook path')} HTTP/1.1\r\nX : {canary('webhook malformed')}\r\n\r\n".encode()
    Caller(sidecar).say(malformed, sidecar.webhooks_port)


def told_on_our_side(sidecar: Sidecar) -> Iterable[tuple[str, bytes]]:
    """What an operator, a scraper and another caller are told."""
    yield "metrics", ask(f"{sidecar.admin_url}/metrics").body
    yield "readyz", ask(f"{sidecar.admin_url}/readyz").body
    for path in ("operations?limit=200", "review", "incidents", "outcomes", "policies", "circuits", "budgets"):
        yield f"admin {path}", sidecar.admin(f"/v1/{path}").body
    for operation in sidecar.operations():
        found = operation["id"]
        yield f"admin {found}", sidecar.admin(f"/v1/operations/{found}").body
        public = ask(f"http://127.0.0.1:{sidecar.port}/paywitness/operations/{found}")
        yield f"another caller, of {found}", str(public.headers).encode() + public.body
    yield "another caller", ask(f"http://127.0.0.1:{sidecar.port}/paywitness/intents/order-paid").body
    repeat = sidecar.charge("key-paid", "order-other", amount=5)  # by another credential, with another body
    assert repeat.status_code == 422
    yield "another caller, of a key", str(repeat.headers).encode() + repeat.body


def test_nothing_that_a_caller_said_is_in_any_byte_that_we_wrote(sandbox: Provider, make_sidecar: MakeSidecar) -> None:
    flock, names = Flock(), Flock(numbers=count(91_400_123))
    secret = {"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET}
    sidecar = make_sidecar(sandbox.url, environment=secret, options=("--log-level", "debug"))
    init = ["ca", "init", "--home", str(sidecar.home), "--policies", str(sidecar.home / "policies")]
    subprocess.run([sys.executable, "-m", "paywitness", *init], cwd=TOP, check=True, capture_output=True)
    sidecar.start()
    hook = f"http://127.0.0.1:{sidecar.webhooks_port}/paywitness/webhooks/acme"
    sandbox.tell_webhooks(hook, WEBHOOK_SECRET, mode="normal")  # genuine events tell what the charges said
    caller = Caller(sidecar)
    carried(flock, caller)
    named(names, flock, caller)
    turned_away(flock, caller)
    told_by_providers(flock, sidecar)
    told = list(told_on_our_side(sidecar))
    sidecar.kill()  # so that the journal's log stays as it stands
    written = [path for path in sidecar.home.rglob("*") if path.is_file() and path.parent.name != "policies"]
    assert {"log", "journal.db", "journal.db-wal"} <= {path.name for path in written}
    told += [(str(path.relative_to(sidecar.home)), path.read_bytes()) for path in written]
    # The name of a host that no policy lists is logged, once a minute: whoever sets the caller up needs it.
    assert [hit for what, data in told for hit in flock.found_in(what, data)] == ["log: a connect target and host"]
    kept = {hit.partition(":")[0].split(" ")[0] for what, data in told for hit in names.found_in(what, data)}
    assert kept <= {"admin", "journal.db", "journal.db-wal"}
    assert "journal.db-wal" in kept  # this search finds what is there
    assert len(flock.placed) > 150
