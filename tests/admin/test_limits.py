"""Circuits, budgets and admission by the admin port: all see how they stand, and an operator forces a circuit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paywitness.core.admission import TrafficClass
from paywitness.core.budget import AttemptOrigin, BudgetRules, RetryRequest, ScopeRule
from paywitness.core.circuit import CallGroup, CircuitRefusal, CircuitRules, CircuitState
from paywitness.core.provider_contract import OperationKind
from paywitness.core.provider_health import Health, HealthSample
from paywitness.core.result import ResultClass
from paywitness.limits.admission import Admitted
from paywitness.limits.redis_circuits import RedisCircuits
from paywitness.limits.redis_scripts import RedisScriptRunner
from paywitness.policy.book import PolicyBook
from paywitness.redis.url import parse_limits_url
from paywitness.telemetry.events import CircuitForced
from tests.admin.conftest import Answer, Asker
from tests.admin.world import CARD, World, acme_book
from tests.limits.redis_server import RedisServer
from tests.randomness import own_randomness

BAD = HealthSample(Health.BAD)
WRITE = "/v1/circuits/acme/write"
OPEN = {"state": "open", "actor": "ada", "reason": "maintenance"}
UNTOUCHED = {
    "provider": "acme",
    "group": "write",
    "state": "closed",
    "fleet": False,
    "for_s": 0.0,
    "retry_after_s": 0.0,
    "throttled": False,
    "holds": [],
    "sidecars": 1,
    "forced": None,
}


@pytest.fixture
def told(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the telemetry was told."""
    found: list[Any] = []
    monkeypatch.setattr(world.telemetry, "emit", found.append)
    return found


async def write_circuit(ask: Asker) -> dict[str, Any]:
    [found] = [row for row in (await ask("/v1/circuits")).json["circuits"] if row["group"] == "write"]
    return dict(found)


# --- how circuits stand


async def test_a_provider_that_nobody_called_has_two_closed_circuits(ask: Asker) -> None:
    answer = await ask("/v1/circuits")
    assert answer.status_code == 200
    assert answer.json == {"circuits": [UNTOUCHED, {**UNTOUCHED, "group": "inquiry"}], "admission": []}


async def test_an_open_circuit_says_since_when_and_until_when(ask: Asker, world: World) -> None:
    for _ in range(30):
        world.circuits.add_sample("acme", CallGroup.WRITE, BAD)
    world.clock.at += 0.5
    await world.circuits.sync()
    world.clock.at += 0.5
    found = await write_circuit(ask)
    assert (found["state"], found["for_s"], found["fleet"], found["forced"]) == ("open", 0.5, False, None)
    assert 0.3 <= found["retry_after_s"] <= 0.7


async def test_how_full_it_is_at_a_provider_is_told(ask: Asker, world: World) -> None:
    for _ in range(3):
        assert isinstance(await world.admission.admit("acme", TrafficClass.HIGH, 10.0), Admitted)
    found = (await ask("/v1/circuits")).json["admission"]
    assert found == [
        {
            "provider": "acme",
            "limit": 20.0,
            "in_flight": 3,
            "waiting": 0,
            "waiting_by_priority": dict.fromkeys(TrafficClass, 0),
        }
    ]


async def test_a_provider_that_no_policy_names_any_more_is_not_shown(ask: Asker, world: World) -> None:
    await world.circuits.sync()
    assert isinstance(await world.admission.admit("acme", TrafficClass.HIGH, 10.0), Admitted)
    world.book_in_force = PolicyBook.of([])
    assert (await ask("/v1/circuits")).json == {"circuits": [], "admission": []}
    assert (await ask("/v1/budgets")).json == {"budgets": []}
    world.book_in_force = None
    assert (await ask("/v1/circuits")).json == {"circuits": [], "admission": []}


# --- an operator's word


async def test_who_was_asked_to_wait_is_shown_by_kind_and_never_by_name(ask: Asker, world: World) -> None:
    for party in ("c:5c1f0e", "c:9ad201", "a:77be30"):
        world.circuits.add_sample("acme", CallGroup.WRITE, HealthSample(Health.THROTTLED, retry_after_s=90.0), party)
    assert await write_circuit(ask) == {
        **UNTOUCHED,
        "holds": [
            {"limited_by": "credential", "parties": 2, "longest_s": 90.0},
            {"limited_by": "account", "parties": 1, "longest_s": 90.0},
        ],
    }


async def test_a_forced_circuit_stands_so_for_an_hour_and_says_by_whom(ask: Asker, world: World) -> None:
    answer = await ask(WRITE, method="POST", json=OPEN)
    assert answer.status_code == 200
    assert answer.json == {
        **UNTOUCHED,
        "state": "open",
        "retry_after_s": 3600.0,
        "forced": {"actor": "ada", "reason": "maintenance"},
    }
    assert await write_circuit(ask) == answer.json
    assert world.circuits.view("acme", CallGroup.WRITE).state is CircuitState.OPEN
    assert world.circuits.view("acme", CallGroup.INQUIRY).state is CircuitState.CLOSED
    world.clock.at += 3600
    assert (await write_circuit(ask))["forced"] is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90.0), (1.5, 1.5), ("15m", 900.0), ("7d", 604_800.0), (604_800, 604_800.0), (None, 3600.0)],
)
async def test_for_is_seconds_or_a_duration(ask: Asker, given: Any, seconds: float) -> None:
    answer = await ask(WRITE, method="POST", json={**OPEN, "for": given})
    assert answer.json["retry_after_s"] == seconds


@pytest.mark.parametrize("state", ["open", "degraded", "closed"])
async def test_each_state_that_can_be_forced_is(ask: Asker, state: str) -> None:
    answer = await ask(WRITE, method="POST", json={**OPEN, "state": state})
    assert (answer.json["state"], answer.json["forced"]["actor"]) == (state, "ada")


TAKE_BACK = {"actor": "bob", "reason": "it is over"}


@pytest.mark.parametrize(("method", "body"), [("POST", {"state": None, **TAKE_BACK}), ("DELETE", TAKE_BACK)])
async def test_an_order_can_be_taken_back(ask: Asker, told: list[Any], method: str, body: dict[str, Any]) -> None:
    await ask(WRITE, method="POST", json=OPEN)
    answer = await ask(WRITE, method=method, json=body)
    assert (answer.status_code, answer.json["state"], answer.json["forced"]) == (200, "half_open", None)
    assert told[1] == CircuitForced("acme", CallGroup.WRITE, None, "bob", "it is over", 0.0)


async def test_to_take_back_what_was_never_ordered_changes_nothing(ask: Asker) -> None:
    answer = await ask(WRITE, method="DELETE", json=TAKE_BACK)
    assert (answer.status_code, answer.json) == (200, UNTOUCHED)


async def test_who_forced_it_and_why_is_told_without_what_was_pasted(ask: Asker, told: list[Any]) -> None:
    await ask(WRITE, method="POST", json={**OPEN, "reason": f"card {CARD} fails", "for": "15m"})
    [record] = told
    assert isinstance(record, CircuitForced)
    assert (record.state, record.actor, record.for_s, record.confirmed) == (CircuitState.OPEN, "ada", 900.0, True)
    assert record.reason.startswith("card ")
    assert CARD not in record.reason
    assert CARD not in (await ask("/v1/circuits")).text


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def fleet(world: World, redis: RedisServer) -> AsyncIterator[tuple[RedisCircuits, RedisCircuits]]:
    """The circuits of two sidecars. The first one is the one that is asked."""
    made, opened = [], []
    for _ in range(2):
        target, randomness = parse_limits_url(redis.url), own_randomness()
        scripts = RedisScriptRunner.open(target, world.clock, randomness, 5.0)
        made.append(
            RedisCircuits(scripts, target.prefix, lambda: {"acme": CircuitRules()}, world.clock, randomness, {})
        )
        opened.append(scripts)
    world.circuits = made[0]
    for circuits in made:
        await circuits.sync()
    yield made[0], made[1]
    for scripts in opened:
        await scripts.close()


async def test_an_order_given_to_one_sidecar_holds_for_the_fleet(
    ask: Asker, fleet: tuple[RedisCircuits, RedisCircuits]
) -> None:
    answer = await ask(WRITE, method="POST", json=OPEN)
    assert (answer.json["state"], answer.json["fleet"]) == ("open", True)
    _, other = fleet
    await other.sync()
    assert other.view("acme", CallGroup.WRITE).reason is CircuitRefusal.FORCED
    await ask(WRITE, method="DELETE", json=TAKE_BACK)
    await other.sync()
    assert other.view("acme", CallGroup.WRITE).state is CircuitState.HALF_OPEN


async def test_an_order_that_was_not_confirmed_says_so_and_is_told_all_the_same(
    ask: Asker, fleet: tuple[RedisCircuits, RedisCircuits], redis: RedisServer, told: list[Any]
) -> None:
    redis.stop()
    answer = await ask(WRITE, method="POST", json=OPEN)
    assert (answer.status_code, answer.json["type"]) == (503, "urn:paywitness:problem:limits-unavailable")
    assert "unknown whether the command took effect" in answer.json["detail"]
    assert told == [
        CircuitForced("acme", CallGroup.WRITE, CircuitState.OPEN, "ada", "maintenance", 3600.0, confirmed=False)
    ]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/circuits/nobody/write", "Providers: acme."),
        ("/v1/circuits/acme/reads", "Groups: write, inquiry."),
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_what_is_not_there_says_what_is(ask: Asker, told: list[Any], path: str, says: str, method: str) -> None:
    answer = await ask(path, method=method, json={})
    assert (answer.status_code, answer.json["type"]) == (404, "urn:paywitness:problem:not-found")
    assert says in answer.json["detail"]
    assert told == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": "half_open"}, "only closed, degraded, open"),
        ({"state": "ramp"}, "only closed, degraded, open"),
        ({"state": 1}, "state is a text"),
        ({"actor": " "}, "Say who does it"),
        ({"actor": "a" * 101}, "Say who does it"),
        ({"actor": "a\u001b[2J"}, "cannot be printed"),
        ({"reason": "no"}, "Say why"),
        ({"reason": "x" * 1001}, "Say why"),
        ({"reason": "half \ud800 a pair"}, "cannot be printed"),
        ({"for": 0}, "for is 1 to 604800 seconds"),
        ({"for": 604_801}, "for is 1 to 604800 seconds"),
        ({"for": float("nan")}, "for is 1 to 604800 seconds"),
        ({"for": True}, "for is 1 to 604800 seconds"),
        ({"for": ["1h"]}, "for is 1 to 604800 seconds"),
        ({"for": "8d"}, "give 1s to 7d"),
        ({"for": "soon"}, "give a duration such as"),
        ({"for": "500ms"}, "give 1s to 7d"),
        ({"state": None, "for": 60}, "for needs a state"),
        ({"until": "noon"}, "There is no member 'until' in this command"),
    ],
)
async def test_an_invalid_command_is_refused_and_nothing_changes(
    ask: Asker, told: list[Any], changes: dict[str, Any], says: str
) -> None:
    answer = await ask(WRITE, method="POST", json={**OPEN, **changes})
    assert (answer.status_code, answer.json["type"]) == (400, "urn:paywitness:problem:invalid-command")
    assert says in answer.json["detail"]
    assert (await write_circuit(ask), told) == (UNTOUCHED, [])


async def test_an_order_without_a_state_is_a_slip_and_takes_nothing_back(ask: Asker) -> None:
    await ask(WRITE, method="POST", json=OPEN)
    answer = await ask(WRITE, method="POST", json=TAKE_BACK)
    assert (answer.status_code, "Give a state" in answer.json["detail"]) == (400, True)
    assert (await write_circuit(ask))["state"] == "open"


# --- budgets


def ask_for_retry(rules: BudgetRules, group: CallGroup = CallGroup.WRITE) -> RetryRequest:
    return RetryRequest(
        AttemptOrigin("acme", "authorization", "main", rules, group), ResultClass.NETWORK_CONNECT_FAILURE
    )


def budget_of(answer: Answer, group: str) -> dict[str, Any]:
    [found] = [row for row in answer.json["budgets"] if row["group"] == group]
    return dict(found)


async def test_the_rules_in_force_are_shown_before_anything_is_counted(ask: Asker, world: World) -> None:
    rules = BudgetRules(window_s=20.0, account=ScopeRule(7, ratio=0.1, ceiling=0.5), per_intent=2)
    [acme] = acme_book().providers.values()
    policies = tuple(replace(policy, budget=rules) for policy in acme.policies)
    world.book_in_force = PolicyBook.of([replace(acme, policies=policies)])
    found = budget_of(await ask("/v1/budgets"), "write")
    assert (found["window_s"], found["per_intent"], found["fleet"]) == (20.0, 2, False)
    assert [scope["scope"] for scope in found["scopes"]] == ["provider", "operation", "account", "failure_class"]
    account = {"scope": "account", "remaining": None, "floor": 7, "ratio": 0.1, "ceiling": 0.5}
    assert found["scopes"][2] == account


async def test_what_is_left_is_shown_by_scope_and_group(ask: Asker, world: World) -> None:
    for _ in range(2):
        await world.budgets.acquire(ask_for_retry(BudgetRules()))
    answer = await ask("/v1/budgets")
    left = {scope["scope"]: scope["remaining"] for scope in budget_of(answer, "write")["scopes"]}
    assert left == {"provider": 98.0, "operation": 48.0, "account": 28.0, "failure_class": 48.0}
    assert {scope["remaining"] for scope in budget_of(answer, "inquiry")["scopes"]} == {None}


async def test_whose_budgets_they_are_is_said(ask: Asker, world: World) -> None:
    world.budgets.fleet = True
    assert [row["fleet"] for row in (await ask("/v1/budgets")).json["budgets"]] == [True, True]


async def test_a_provider_without_operations_has_the_usual_rules(ask: Asker, world: World) -> None:
    [acme] = acme_book().providers.values()
    world.book_in_force = PolicyBook.of([replace(acme, policies=())])
    assert budget_of(await ask("/v1/budgets"), "write")["window_s"] == BudgetRules().window_s


# --- the scrape


async def test_a_scrape_asks_how_limits_stand_now(ask: Asker, world: World) -> None:
    world.counters.learn({"acme": {"authorization": OperationKind.AUTHORIZATION}})
    closed = 'payment_circuit_state{group="write",provider="acme",state="closed"} 1.0'
    opened = 'payment_circuit_state{group="write",provider="acme",state="open"} 1.0'
    assert closed in (await ask("/metrics")).text
    await ask(WRITE, method="POST", json=OPEN)
    scraped = (await ask("/metrics")).text
    assert opened in scraped
    assert closed not in scraped
