"""Who may enter the admin port, and what the others are told."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from tests.admin.conftest import Asker
from tests.admin.world import TOKEN, World

GUARDED = ["/v1/operations", "/v1/operations/op_00000000000000000000000001", "/v1/policies", "/", "/v1/nothing"]
GUARDED += ["/v1/review", "/v1/incidents", "/v1/intents/order-17", "/v1/outcomes"]
GUARDED += ["/v1/circuits", "/v1/circuits/acme/write", "/v1/budgets"]
OPEN = ["/healthz", "/readyz", "/metrics"]


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    return World(token=getattr(request, "param", TOKEN))


without_token = pytest.mark.parametrize("world", [None, ""], indirect=True)


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "tökén"])
async def test_without_the_token_nobody_enters(ask: Asker, path: str, token: str | None) -> None:
    answer = await ask(path, token=token)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "Authorization: Bearer" in answer.json["detail"]
    assert TOKEN not in answer.text


async def test_the_token_needs_its_scheme(ask: Asker) -> None:
    assert (await ask("/v1/operations", token=None, Authorization=TOKEN)).status_code == 401
    assert (await ask("/v1/operations", token=None, Authorization=f"Basic {TOKEN}")).status_code == 401
    assert (await ask("/v1/operations", token=None, Authorization=f"bearer {TOKEN}")).status_code == 200


@pytest.mark.parametrize("path", OPEN)
async def test_health_and_metrics_need_no_token(ask: Asker, path: str) -> None:
    assert (await ask(path, token=None)).status_code == 200


@without_token
@pytest.mark.parametrize("given", ["", "anything", None])
async def test_where_no_token_is_set_the_door_is_shut_and_says_how_to_open_it(ask: Asker, given: str | None) -> None:
    answer = await ask("/v1/operations", token=given)
    assert answer.status_code == 403
    assert answer.json["type"] == "urn:paywitness:problem:admin-token-not-set"
    assert "PAYWITNESS_ADMIN_TOKEN" in answer.json["detail"]
    assert (await ask("/healthz", token=None)).status_code == 200


async def test_what_is_not_there_is_404_as_a_problem(ask: Asker) -> None:
    answer = await ask("/v1/nothing")
    assert (answer.status_code, answer.json["status"], answer.json["type"]) == (
        404,
        404,
        "urn:paywitness:problem:not-found",
    )
    assert answer.json["detail"] == "The admin port has no /v1/nothing."


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_here_can_be_changed(ask: Asker, method: str) -> None:
    answer = await ask("/v1/operations", method=method)
    assert (answer.status_code, answer.json["type"]) == (405, "urn:paywitness:problem:method-not-allowed")
    assert "GET" in answer.headers["Allow"]


async def test_no_answer_is_kept_by_a_cache_or_names_a_library(ask: Asker) -> None:
    for path in ("/v1/operations", "/v1/nothing", "/healthz"):
        headers = (await ask(path)).headers
        assert (headers["Cache-Control"], headers["Server"]) == ("no-store", "paywitness")


@pytest.mark.parametrize("path", [*OPEN, "/v1/operations"])
async def test_a_page_that_rebinds_its_name_to_us_reads_nothing(ask: Asker, path: str) -> None:
    """S1: metrics neither, and not with the token."""
    answer = await ask(path, Host="evil.example")
    assert (answer.status_code, answer.json["type"]) == (403, "urn:paywitness:problem:host-not-allowed")


@pytest.mark.parametrize("path", [*OPEN, "/v1/operations"])
@pytest.mark.parametrize("mark", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_of_another_origin_reads_nothing(ask: Asker, path: str, mark: dict[str, str]) -> None:
    answer = await ask(path, **mark)
    assert (answer.status_code, answer.json["type"]) == (403, "urn:paywitness:problem:cross-site")


@pytest.mark.parametrize("host", ["10.2.3.4:8701", "localhost", "paywitness.payments.svc:8701"])
async def test_probes_and_scrapes_by_address_and_service_pass(ask: Asker, host: str) -> None:
    assert (await ask("/readyz", token=None, Host=host)).status_code == 200


# --- malformed requests


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "nonsense"])
async def test_a_body_that_is_not_what_its_coding_says_is_a_bad_request(ask: Asker, coding: str) -> None:
    """T6."""
    answer = await ask(
        "/v1/operations/op_00000000000000000000000001/park", method="POST", json={}, Content_Encoding=coding
    )
    assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json")


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/review/close HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["gzip", "words", "tls", "hosts", "name", "path", "chunk", "long"],
)
async def test_whoever_has_no_token_writes_no_error_into_the_log(
    ask: Asker, world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """T6."""
    parts = urlsplit(world.address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(data)
    writer.write_eof()
    told = await reader.read()
    writer.close()
    assert b" 500 " not in told.split(b"\r\n")[0]
    assert (await ask("/healthz", token=None)).status_code == 200
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING] == []
