"""Two real sidecars that share their limits in one real Redis, and their port: what one learns counts for both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import FLEET_SECRETS, Provider
from tests.e2e.sidecar import Sidecar, ask, wait_until
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow
MakeSidecar = Callable[..., Sidecar]


@pytest.fixture
def fleet(sandbox: Provider, make_sidecar: MakeSidecar, redis: RedisServer) -> list[Sidecar]:
    """Each with a journal of its own: Redis holds the limits alone."""
    return [make_sidecar(sandbox.url, options=("--limits", redis.url), limited=True).start() for _ in range(2)]


def circuit(sidecar: Sidecar, group: str = "write") -> dict:
    (found,) = [one for one in sidecar.admin("/v1/circuits").json["circuits"] if one["group"] == group]
    return found


def metric(sidecar: Sidecar, name: str) -> float:
    lines = ask(f"{sidecar.admin_url}/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def pays(sidecar: Sidecar, name: str) -> bool:
    return sidecar.charge(name, name).status_code == 200


def test_what_an_operator_forces_at_one_holds_at_the_other(sandbox: Provider, fleet: list[Sidecar]) -> None:
    first, second = fleet
    wait_until(lambda: circuit(second)["fleet"], "the second hearing of the fleet")
    order = {"state": "open", "reason": "their maintenance", "actor": "a test", "for": "10m"}
    assert first.admin("/v1/circuits/acme/write", order).status_code == 200
    wait_until(lambda: circuit(second)["state"] == "open", "the order reaching the second")
    refused = second.charge()
    assert (refused.status_code, refused.problem, refused.outcome) == (503, "not-sent", "not_sent")
    assert refused.headers["Paywitness-Limited-By"].startswith("circuit_forced_open")
    assert int(refused.headers["Retry-After"]) > 500
    assert circuit(second)["forced"]["reason"] == "their maintenance"
    assert metric(second, 'payment_refusals_total{provider="acme",reason="circuit_forced_open"}') == 1
    assert sandbox.arrivals() == []
    taken_back = {"state": None, "reason": "they are done", "actor": "a test"}
    assert second.admin("/v1/circuits/acme/write", taken_back).status_code == 200
    wait_until(lambda: pays(second, "key-1"), "the first payment after it")
    wait_until(lambda: pays(first, "key-2"), "the same at the first")
    assert sandbox.effects("key-1") == 1


def test_an_outage_that_the_fleet_sees_holds_back_all_and_ends_by_itself(
    sandbox: Provider, fleet: list[Sidecar]
) -> None:
    sandbox.weather(faults={"error_503": 1.0})
    for number in range(24):
        for sidecar in fleet:
            name = f"down-{number}-{sidecar.port}"
            sidecar.charge(name, name, headers={"Paywitness-Timeout-Ms": "400"})
    wait_until(lambda: all(circuit(sidecar)["state"] != "closed" for sidecar in fleet), "the circuit opening")
    assert all(
        metric(sidecar, 'payment_circuit_state{group="write",provider="acme",state="closed"}') == 0 for sidecar in fleet
    )
    sandbox.weather()
    for sidecar in fleet:
        wait_until(lambda at=sidecar: pays(at, f"up-{at.port}"), "a payment after the outage")
        assert sandbox.effects(f"up-{sidecar.port}") == 1


def test_without_their_redis_limits_are_local_at_once_and_the_fleets_again_when_it_is_back(
    sandbox: Provider, fleet: list[Sidecar], redis: RedisServer
) -> None:
    first = fleet[0]
    wait_until(lambda: metric(first, "paywitness_limits_fleet") == 1, "hearing of the fleet")
    redis.kill()
    paid = first.charge(fault="drop_after_commit,-*")
    assert (paid.status_code, paid.headers["Paywitness-Attempts"], sandbox.effects()) == (200, "2", 1)
    wait_until(lambda: metric(first, "paywitness_limits_fleet") == 0, "noticing that it is gone")
    redis.start()
    wait_until(lambda: metric(first, "paywitness_limits_fleet") == 1, "hearing of the fleet again")


def test_two_sidecars_share_a_port_and_one_goes_on_when_the_other_is_killed(
    sandbox: Provider, make_sidecar: MakeSidecar, redis: RedisServer
) -> None:
    options = ("--journal", redis.url, "--reuse-port", "--lease-seconds", "6")
    first, second = (
        make_sidecar(sandbox.url, options=options, environment=FLEET_SECRETS, limited=True) for _ in range(2)
    )
    second.port, second.webhooks_port = first.port, first.webhooks_port
    for sidecar in (first, second):
        sidecar.start()
        wait_until(lambda at=sidecar: _ready(at), "its being ready")
    for number in range(60):
        assert pays(first, f"order-{number}")
    served = [metric(sidecar, "payment_operations_total") for sidecar in (first, second)]
    assert sum(served) == 60
    assert min(served) > 0  # the kernel deals out connections: sixty at one of them would be a chance of 2^-59
    first.kill()
    for number in range(60, 70):
        assert pays(second, f"order-{number}")
    assert second.charge("order-3", "order-3").headers["Paywitness-Replayed"] == "true"
    assert len(sandbox.ledger()) == 70


def _ready(sidecar: Sidecar) -> bool:
    try:
        return ask(f"{sidecar.admin_url}/readyz").status_code == 200
    except OSError:
        return False
