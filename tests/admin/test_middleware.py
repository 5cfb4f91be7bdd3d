"""Who may enter the admin port, and what the others are told."""

from __future__ import annotations

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
