"""The sandbox's own server: connections, bounds, TLS, and its own mistakes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paywitness_sandbox.connection import BODY_BYTES_MAX
from paywitness_sandbox.server import Sandbox
from tests.sandbox.raw_client import (
    FIN,
    RESET,
    call,
    charge,
    charge_body,
    listen,
    read_response,
    request_bytes,
    send,
    until,
)


async def test_a_connection_serves_many_requests(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    for number in range(5):
        writer.write(request_bytes("POST", "/v1/charges", charge_body(f"o-{number}"), keep_alive=True))
        assert (await read_response(reader)).json["order"] == f"o-{number}"
    writer.close()
    assert len(sandbox.ledger) == 5


async def test_pipelined_requests_are_answered_in_their_order(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    bodies = [charge_body(f"o-{number}") for number in range(100)]
    writer.write(b"".join(request_bytes("POST", "/v1/charges", body, keep_alive=True) for body in bodies))
    orders = [(await read_response(reader)).json["order"] for _ in bodies]
    assert orders == [f"o-{number}" for number in range(100)]
    writer.close()


async def test_a_request_may_come_in_pieces(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    for byte in request_bytes("POST", "/v1/charges", charge_body("o-1")):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await listen(reader, 5)).json["status"] == "succeeded"
    writer.close()


async def test_a_chunked_request_is_read(sandbox) -> None:
    body = b'{"amount":5,"currency":"EUR"}'
    head = b"POST /v1/charges HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    seen = await send(sandbox, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert seen.json["amount"] == 5


async def test_a_caller_that_waits_for_100_continue_gets_it(sandbox) -> None:
    whole = request_bytes("POST", "/v1/charges", charge_body("o-1"), headers={"Expect": "100-continue"})
    head, _, body = whole.partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await listen(reader, 5)).status_code == 200
    writer.close()


async def test_a_caller_that_leaves_before_its_body_charges_nothing(sandbox) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(request_bytes("POST", "/v1/charges", charge_body("o-1"), key="k-1")[:-5])
    await until(lambda: sandbox.under_way == 1)
    writer.transport.abort()
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.ledger.effects() == 0
    assert (await charge(sandbox, key="k-1")).status_code == 200


async def test_a_caller_that_leaves_after_its_body_is_charged_all_the_same(sandbox) -> None:
    await charge(sandbox, key="k-1", fault="slow(slow_s=0.3)", wait_s=0.01)
    await until(lambda: sandbox.ledger.effects(key="k-1") == 1)
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.arrivals.arrivals[0].answered is None


async def test_a_caller_that_sends_and_hangs_up_at_once_has_paid(sandbox) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(request_bytes("POST", "/v1/charges", charge_body("o-1")))
    writer.close()
    await until(lambda: sandbox.ledger.effects(order="o-1") == 1)


async def test_connections_have_a_bound(sandbox, monkeypatch) -> None:
    monkeypatch.setattr("paywitness_sandbox.server.CONNECTIONS_MAX", 1)
    _, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    await until(lambda: len(sandbox._connections) == 1)
    assert (await charge(sandbox)).end == RESET
    writer.close()
    await until(lambda: len(sandbox._connections) == 0)
    assert (await charge(sandbox)).status_code == 200


async def test_a_body_has_a_bound(sandbox) -> None:
    seen = await call(sandbox, "POST", "/v1/charges", b" " * (BODY_BYTES_MAX + 1))
    assert (seen.status_code, seen.end) == (413, FIN)
    most = b'{"amount":1,"currency":"EUR"}'
    assert (await call(sandbox, "POST", "/v1/charges", most.ljust(BODY_BYTES_MAX))).status_code == 200


async def test_a_body_without_end_is_cut_off(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(b"POST /v1/charges HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
    writer.write(b" " * 20_000_000)
    assert (await listen(reader, 5)).end == RESET
    writer.transport.abort()


@pytest.mark.parametrize(
    "headers",
    [{"X-Long": "x" * 70_000}, {f"X-{number}": "1" for number in range(120)}],
    ids=["long", "many"],
)
async def test_a_head_has_a_bound(sandbox, headers) -> None:
    seen = await call(sandbox, "GET", "/v1/charges", headers=headers)
    assert seen.status_code == 431
    assert sandbox.arrivals.total == 0


@pytest.mark.parametrize(
    "data",
    [
        b"this is not HTTP\r\n\r\n",
        b"POST /v1/charges HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/charges HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_request_is_400_and_no_effect(sandbox, data) -> None:
    assert (await send(sandbox, data)).status_code == 400
    assert sandbox.ledger.effects() == 0


async def test_garbage_behind_a_good_request_does_not_spoil_it(sandbox) -> None:
    good = request_bytes("POST", "/v1/charges", charge_body("o-1"), keep_alive=True)
    seen = await send(sandbox, good + b"\x00\x01 garbage\r\n\r\n")
    assert seen.status_code == 200
    assert b"HTTP/1.1 400" in seen.raw
    assert sandbox.ledger.effects() == 1


async def test_a_mistake_of_the_sandbox_itself_is_called_one(sandbox, monkeypatch, caplog) -> None:
    monkeypatch.setattr(sandbox.bank, "open", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        seen = await charge(sandbox, key="k-1")
    assert (seen.status_code, seen.error["code"]) == (500, "sandbox_bug")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert (await charge(sandbox, key="k-1")).status_code == 200


async def test_stopping_ends_what_hangs(make_sandbox) -> None:
    sandbox = await make_sandbox()
    hanging = asyncio.create_task(charge(sandbox, fault="hang_after_commit(hang_s=60)"))
    await until(lambda: sandbox.ledger.effects() == 1)
    await sandbox.stop()
    assert (await hanging).end == RESET
    assert not sandbox.listening


async def test_a_stopped_sandbox_leaves_nobody_waiting_who_was_just_let_in(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    await sandbox.stop()
    assert (await listen(reader, 5)).raw == b""
    writer.transport.abort()
    await sandbox.stop()


async def test_a_sandbox_has_a_url_while_it_is_open(make_sandbox) -> None:
    sandbox = Sandbox()
    with pytest.raises(RuntimeError, match="not open"):
        _ = sandbox.url
    async with sandbox:
        assert sandbox.url == f"http://127.0.0.1:{sandbox.port}"
        with pytest.raises(RuntimeError, match="open already"):
            await sandbox.start()


def certificate(path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sandbox")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cafile=path)


async def test_faults_work_behind_tls(tmp_path) -> None:
    server, client = certificate(tmp_path / "sandbox.pem")
    sandbox = Sandbox()
    await sandbox.start(ssl=server)
    async with sandbox:
        assert sandbox.url.startswith("https://")
        for fault, raw in (("-", b"HTTP/1.1 200"), ("reset_after_commit", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port, ssl=client)
            writer.write(request_bytes("POST", "/v1/charges", charge_body("o-1"), fault=fault))
            seen = await listen(reader, 5)
            assert seen.raw[:12] == raw
            assert seen.end == (FIN if raw else RESET)
            writer.transport.abort()
        assert sandbox.ledger.effects() == 2
