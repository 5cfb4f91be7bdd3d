"""Providers' own ways of telling, through a real listener: batches, ids in headers, certificates, and mere hints."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization

from paywitness.clock import SystemClock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation, State
from paywitness.engine.webhooks.applier import HINTS_MAX, INQUIRY_INTERVAL_S
from paywitness.engine.webhooks.verification import CACHED_CERTIFICATES_MAX, SignerCertificates
from paywitness.journal.base import OperationQuery
from paywitness.policy.book import PolicyBook
from paywitness.upstream import dial
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.tls import tls_context
from paywitness_sandbox.server import Sandbox
from tests.engine.webhooks.test_inbox import ENVIRONMENT, ONE_TRY, SECRETS, Hooks, ShakyJournal, event, hooked
from tests.journal.memory import MemoryJournal
from tests.webhook_signatures.rsa_signing import certificate, key
from tests.webhook_signatures.signing import ADYEN_ITEM, adyen_body, adyen_item, base64_of, braintree, hex_of
from tests.webhook_signatures.test_paypal import WEBHOOK_ID
from tests.webhook_signatures.test_paypal import sent as paypal_headers

SCHEME = "  scheme: hmac_sha256 "
FINDERS = "    - {operation_id: data.metadata.paywitness}\n"
KEY = "00ff" * 16


# --- a batch, each item signed by itself, an id of three parts, and the answer that is wanted

ADYEN = (
    (SCHEME, "  scheme: adyen "),
    (SECRETS, f'  events: "notificationItems[].NotificationRequestItem"\n  reply: "[accepted]"\n{SECRETS}'),
    ("  event_id: id ", "  event_id: [eventCode, pspReference, success] "),
    (FINDERS, "    - {client_key: merchantReference}\n"),
    ("\n  at: data ", "\n  read: [{when: \"success == 'true'\", as: succeeded}] "),
    ("  answer_by: data.object ", '  at: "{id: pspReference, amount: amount.value, currency: amount.currency}" '),
)


def item(reference: str, secret: str = KEY, **values: object) -> dict[str, object]:
    told = {**ADYEN_ITEM, "merchantReference": reference, "pspReference": f"psp_{reference}"}
    told["amount"] = {"value": 1099, "currency": "EUR"}
    return adyen_item(secret.encode(), {**told, **values})


async def test_a_batch_of_adyens_is_kept_item_by_item_and_answered_as_adyen_wants(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY, *ADYEN, environment={"ACME_WEBHOOK_SECRET": KEY}) as hooks:
        hooks.apply_from_now_on()
        for name in ("one", "two"):
            await hooks.unknown(name, order=name)
        forged = await hooks.post("acme", adyen_body(item("one"), item("two", "ee" * 16)))
        assert (forged.status_code, hooks.count("bad_signature"), hooks.count("accepted")) == (401, 1, 0)
        answer = await hooks.post("acme", adyen_body(item("one"), item("two")))
        assert (answer.status_code, answer.body) == (200, b"[accepted]")
        await hooks.until_counted("applied", 2)
        again = await hooks.post("acme", adyen_body(item("two"), item("one"), item("one", success="false")))
        assert again.status_code == 200
        assert (hooks.count("duplicate"), hooks.count("accepted")) == (2, 3)
        for name in ("one", "two"):
            assert (await hooks.operation(name)).state is State.SUCCEEDED


# --- an id in a header

RAZORPAY = ((SCHEME, "  scheme: razorpay "), ("  event_id: id ", "  event_id: 'header:x-razorpay-event-id' "))


async def test_an_event_is_known_again_by_its_header(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY, *RAZORPAY) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        body = json.dumps(event(operation)).encode()
        signed = f"X-Razorpay-Signature: {hex_of(body, ENVIRONMENT['ACME_WEBHOOK_SECRET'].encode())}"
        for _ in range(2):
            assert (await hooks.post("acme", body, signed, "X-Razorpay-Event-Id: evt_7")).status_code == 200
        assert (hooks.count("accepted"), hooks.count("duplicate")) == (1, 1)
        assert (await hooks.post("acme", body, signed)).status_code == 422
        await hooks.until_counted("applied")
        history = await hooks.world.journal.history((await hooks.operation()).id)
        assert history[-1].finding is not None
        assert history[-1].finding.source == "webhook evt_7"


# --- XML inside a form

BRAINTREE = (
    (SCHEME, "  scheme: braintree "),
    ("  event_id: id ", "  event_id: [notification.kind, notification.subject.transaction.id] "),
    (FINDERS, "    - {client_key: notification.subject.transaction.order_id}\n"),
    ("\n  at: data ", "\n  read: [{when: \"notification.kind == 'transaction_settled'\", as: succeeded}] "),
    ("  answer_by: data.object ", '  at: "{id: notification.subject.transaction.id}" '),
)


async def test_braintrees_xml_ends_a_doubt(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY, *BRAINTREE) as hooks:
        hooks.apply_from_now_on()
        await hooks.unknown("one", order="one")
        xml = b"<notification><kind>transaction_settled</kind><subject><transaction><id>t1</id><order-id>one</order-id>"
        xml += b"</transaction></subject></notification>"
        _, body = braintree(ENVIRONMENT["ACME_WEBHOOK_SECRET"].encode(), xml)
        _, hostile = braintree(ENVIRONMENT["ACME_WEBHOOK_SECRET"].encode(), b"<!DOCTYPE x>" + xml)
        form = "Content-Type: application/x-www-form-urlencoded"
        assert (await hooks.post("acme", hostile, form)).status_code == 400
        for _ in range(2):
            assert (await hooks.post("acme", body, form)).status_code == 200
        assert (hooks.count("accepted"), hooks.count("duplicate"), hooks.count("unreadable")) == (1, 1, 1)
        await hooks.until_counted("applied")
        assert (await hooks.operation("one")).state is State.SUCCEEDED


# --- a status that HTTP does not know, for what is not genuine


async def test_gocardless_hears_498_for_what_is_not_genuine(sandbox: Sandbox) -> None:
    gocardless = ((SCHEME, "  refuse_with: 498\n  scheme: gocardless "),)
    async with hooked(sandbox, ONE_TRY, *gocardless) as hooks:
        body = json.dumps(event(await hooks.unknown())).encode()
        secret = ENVIRONMENT["ACME_WEBHOOK_SECRET"].encode()
        forged = await hooks.post("acme", body, f"Webhook-Signature: {hex_of(body, b'another')}")
        assert (forged.status_code, hooks.count("bad_signature"), hooks.count("accepted")) == (498, 1, 0)
        assert (await hooks.post("acme", body, f"Webhook-Signature: {hex_of(body, secret)}")).status_code == 200


# --- an option of the environment

SQUARE = (SCHEME, "  scheme: {square: {url: env:SQUARE_URL}} ")


async def test_an_address_comes_from_the_environment_and_without_it_nothing_is_taken(sandbox: Sandbox) -> None:
    secret, url = ENVIRONMENT["ACME_WEBHOOK_SECRET"].encode(), "https://shop.test/hooks"
    body = json.dumps(event()).encode()
    signed = f"x-square-hmacsha256-signature: {base64_of(url.encode() + body, secret)}"
    async with hooked(sandbox, SQUARE, environment={**ENVIRONMENT, "SQUARE_URL": url}) as hooks:
        assert (await hooks.post("acme", body, signed)).status_code == 200
    async with hooked(sandbox, SQUARE) as hooks:
        assert (await hooks.post("acme", body, signed)).status_code == 503
        assert hooks.count("no_scheme") == 1


# --- hints that are signed

HINT = (SECRETS, f"  hint: true\n{SECRETS}")


async def test_what_a_hint_says_is_not_believed_but_asked(sandbox: Sandbox) -> None:
    """The event lies: it says failed. The provider, asked, says paid."""
    async with hooked(sandbox, ONE_TRY, HINT) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        assert (await hooks.tell(event(operation, "failed"))).status_code == 200
        await hooks.until_counted("applied")
        ended = await hooks.operation()
        assert (ended.state, ended.incident) == (State.SUCCEEDED, None)
        assert (await hooks.world.journal.history(ended.id))[-1].source == "inquiry"


async def test_a_hint_of_a_success_that_the_provider_does_not_know_changes_nothing(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY, HINT) as hooks:
        await hooks.world.charge(fault="close_before_commit")
        operation = await hooks.operation()
        assert operation.state is State.UNKNOWN
        await hooks.tell(event(operation))
        for _ in range(5):
            await hooks.webhooks.apply_due()
            hooks.time.ahead_s += 10
        after = await hooks.operation()
        assert (after.state, after.doubt, hooks.count("applied")) == (State.UNKNOWN, operation.doubt, 0)
        assert hooks.count("nothing_new") == 1  # it is let go


# --- hints that are not signed

UNSIGNED = (
    (SCHEME, "  scheme: {unsigned: {body: form}} "),
    (SECRETS, "  hint: true #"),
    (FINDERS, "    - {provider_key: id}\n"),
)


@asynccontextmanager
async def unsigned(sandbox: Sandbox, journal: MemoryJournal | None = None) -> AsyncIterator[Hooks]:
    async with hooked(sandbox, ONE_TRY, *UNSIGNED, journal=journal, environment={}) as hooks:
        yield hooks


async def hint(hooks: Hooks, *ids: str) -> int:
    return (await hooks.post("acme", urlencode([("id", each) for each in ids]).encode())).status_code


def asked(hooks: Hooks) -> float:
    """How often the provider was asked about something."""
    families = hooks.world.engine.telemetry.metrics.registry.collect()
    inquiries = [family for family in families if family.name == "payment_status_inquiry"]
    return sum(sample.value for family in inquiries for sample in family.samples if sample.name.endswith("_total"))


class Later(SystemClock):
    """After the pause between two questions."""

    def mono(self) -> float:
        return super().mono() + INQUIRY_INTERVAL_S


async def nothing_is_kept(hooks: Hooks) -> bool:
    hooks.time.ahead_s += 10
    return await hooks.world.journal.due_webhook_events(limit=10) == ()


async def test_an_unsigned_hint_makes_us_ask_and_the_answer_is_the_evidence(sandbox: Sandbox) -> None:
    async with unsigned(sandbox) as hooks:
        await hooks.unknown()
        assert await hint(hooks, "key-1") == 200
        ended = await hooks.operation()
        assert ended.state is State.SUCCEEDED
        assert (await hooks.world.journal.history(ended.id))[-1].source == "inquiry"
        assert hooks.count("hinted") == 1
        assert await nothing_is_kept(hooks)


async def test_what_an_unsigned_hint_could_not_show_is_not_acknowledged_and_changes_nothing(sandbox: Sandbox) -> None:
    async with unsigned(sandbox) as hooks:
        await hooks.world.charge(fault="close_before_commit")
        before = await hooks.operation()
        assert await hint(hooks, "key-1") == 503
        assert await hooks.operation() == before
        assert hooks.count("held_back") == 1


async def test_a_stranger_learns_nothing_and_leaves_nothing(sandbox: Sandbox) -> None:
    async with unsigned(sandbox) as hooks:
        before = await hooks.unknown()
        assert await hint(hooks, "key-of-nobody") == 200
        assert await hint(hooks) == 200
        assert (await hooks.post("acme", b"not=a=form&&")).status_code == 400
        assert (await hooks.post("acme/shop-a", b"id=key-1")).status_code == 404
        assert await hooks.operation() == before
        assert await nothing_is_kept(hooks)


async def test_what_is_unsigned_is_refused_where_the_policy_does_not_call_it_a_hint(sandbox: Sandbox) -> None:
    """No file loads that says so; the listener does not rely on it."""
    async with unsigned(sandbox) as hooks:
        before = await hooks.unknown()
        provider = hooks.world.engine.book.providers["acme"]
        assert provider.webhook_rules is not None
        careless = replace(provider, webhook_rules=replace(provider.webhook_rules, hint=False))
        hooks.webhooks.book = lambda: PolicyBook.of([careless])
        assert await hint(hooks, "key-1") == 401
        assert (await hooks.operation(), hooks.count("unsigned")) == (before, 1)


async def test_one_operation_is_asked_about_now_and_then_however_often_it_is_hinted_at(sandbox: Sandbox) -> None:
    async with unsigned(sandbox) as hooks:
        await hooks.world.charge(fault="close_before_commit")
        assert [await hint(hooks, "key-1") for _ in range(3)] == [503, 503, 503]
        assert asked(hooks) == 1
        hooks.webhooks._hints.clock = Later()
        assert await hint(hooks, "key-1") == 503
        assert asked(hooks) == 2


async def test_a_delivery_of_many_hints_is_followed_as_far_as_ten(sandbox: Sandbox) -> None:
    many = (SECRETS, '  hint: true\n  events: "id[].{id: @}" #')
    async with hooked(sandbox, ONE_TRY, UNSIGNED[0], many, UNSIGNED[2], environment={}) as hooks:
        keys = [f"key-{number}" for number in range(HINTS_MAX + 2)]
        for name in keys:
            await hooks.unknown(name, order=name)
        assert await hint(hooks, *keys) == 200
        states = [(await hooks.operation(name)).state for name in keys]
        assert states == [State.SUCCEEDED] * HINTS_MAX + [State.UNKNOWN] * 2


async def test_a_journal_that_is_down_lets_a_hint_come_again(sandbox: Sandbox) -> None:
    class Down(ShakyJournal):
        async def find_operations(self, asked: OperationQuery) -> tuple[Operation, ...]:
            if self.down:
                raise JournalUnavailable("down")
            return await super().find_operations(asked)

    journal = Down(clock=SystemClock())
    async with unsigned(sandbox, journal) as hooks:
        await hooks.unknown()
        journal.down = True
        assert await hint(hooks, "key-1") == 503
        assert hooks.count("not_kept") == 1
        journal.down = False
        assert await hint(hooks, "key-1") == 200


# --- certificates

HOST = "api.paypal.com"
CERTS = "/v1/notifications/certs/"
PAYPAL = ((SCHEME, "  scheme: paypal "),)


@dataclass
class PayPalHost:
    """PayPal's own host, over TLS; what it has been asked for."""

    pages: dict[str, bytes]
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        body = self.pages.get(path)
        status = b"200 OK" if body is not None else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body or b"")))
        writer.write(body or b"")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def paypal_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pages: dict[str, bytes], name: str = HOST
) -> AsyncIterator[tuple[PayPalHost, UpstreamClient]]:
    """A server of that name, and a client that trusts it as others trust the system's roots."""
    now = SystemClock().now()
    private, pem = key(8), certificate(key(8), name, at=now, alternative=name)
    (tmp_path / "host.pem").write_bytes(
        pem
        + private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "host.pem")
    host = PayPalHost(pages)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=context)
    address = server.sockets[0].getsockname()
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def here(name: str, port: object, **more: object):
        if name == HOST:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]
        return await resolve(name, port, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", here)
    monkeypatch.setattr(dial, "is_public", lambda address: True)  # the internet is on this machine here
    client = UpstreamClient(ssl_context=tls_context(cadata=pem.decode()))
    try:
        yield host, client
    finally:
        await client.close()
        server.close()


def told_by_paypal(hooks: Hooks, body: bytes, name: str = "CERT-1", number: int = 0) -> tuple[str, ...]:
    sent = dict(paypal_headers(body=body, at=hooks.time.now(), number=number))
    sent[b"PAYPAL-CERT-URL"] = f"https://{HOST}{CERTS}{name}".encode()
    return tuple(f"{header.decode()}: {value.decode()}" for header, value in sent.items())


async def test_paypals_events_are_checked_by_the_certificate_that_its_own_host_gives(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = SystemClock().now()
    pages = {f"{CERTS}CERT-1": certificate(key(0), at=now), f"{CERTS}CERT-2": b"no certificate"}
    environment = {"ACME_WEBHOOK_SECRET": WEBHOOK_ID.decode()}
    async with (
        paypal_host(monkeypatch, tmp_path, pages) as (host, client),
        hooked(sandbox, ONE_TRY, *PAYPAL, environment=environment) as hooks,
    ):
        hooks.webhooks._signer_certificates = SignerCertificates(client, hooks.time)
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        body = json.dumps(event(operation)).encode()
        forged = told_by_paypal(hooks, body, number=1)
        assert (await hooks.post("acme", body, *forged)).status_code == 401
        for _ in range(3):
            assert (await hooks.post("acme", body, *told_by_paypal(hooks, body))).status_code == 200
        await hooks.until_counted("applied")
        assert host.asked == [f"{CERTS}CERT-1"]  # kept
        for name in ("CERT-2", "CERT-3"):  # which is no certificate, and which is not there
            assert (await hooks.post("acme", body, *told_by_paypal(hooks, body, name))).status_code == 503
        assert hooks.count("no_certificate") == 2
        elsewhere = told_by_paypal(hooks, body, "../../x")
        assert (await hooks.post("acme", body, *elsewhere)).status_code == 401
        assert len(host.asked) == 3


async def test_a_host_that_cannot_prove_its_name_gives_no_certificate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {f"{CERTS}CERT-1": certificate(key(0), at=SystemClock().now())}
    async with paypal_host(monkeypatch, tmp_path, pages, name="evil.test") as (host, client):
        assert await SignerCertificates(client, SystemClock()).get(f"https://{HOST}{CERTS}CERT-1") is None
        assert host.asked == []


async def test_a_stranger_cannot_make_us_fetch_without_end_nor_push_out_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {f"{CERTS}CERT-1": certificate(key(0), at=SystemClock().now())}
    async with paypal_host(monkeypatch, tmp_path, pages) as (host, client):
        certificates = SignerCertificates(client, SystemClock())
        good = f"https://{HOST}{CERTS}CERT-1"
        assert await certificates.get(good) == pages[f"{CERTS}CERT-1"]
        invented = [f"https://{HOST}{CERTS}X-{number}" for number in range(2 * CACHED_CERTIFICATES_MAX)]
        assert await asyncio.gather(*map(certificates.get, invented)) == [None] * len(invented)
        assert len(host.asked) == 20
        assert await certificates.get(good) == pages[f"{CERTS}CERT-1"]
        assert len(host.asked) == 20


async def test_many_at_once_fetch_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages = {f"{CERTS}CERT-1": certificate(key(0), at=SystemClock().now())}
    async with paypal_host(monkeypatch, tmp_path, pages) as (host, client):
        certificates = SignerCertificates(client, SystemClock())
        found = await asyncio.gather(*(certificates.get(f"https://{HOST}{CERTS}CERT-1") for _ in range(20)))
        assert set(found) == {pages[f"{CERTS}CERT-1"]}
        assert len(host.asked) <= 2  # as many as have a turn at the same time
