"""A primary that is cut off from its replica, dies, and is replaced by it: real processes, a real partition. The ledger
judges.

The replica follows the primary through a forwarder: cutting that is a partition, with nothing left in any buffer that
the replica would still read. The sidecars reach whoever is primary through another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import FLEET_LEASE_S, FLEET_SECRETS, Provider
from tests.e2e.sidecar import Answer, Sidecar, wait_until
from tests.journal.redis_server import RedisServer
from tests.journal.tcp_forwarder import Forwarder
from tests.ports import free_port

pytestmark = pytest.mark.slow
MakeSidecar = Callable[..., Sidecar]


@dataclass
class Pair:
    """A primary and its replica, and the address that leads to whichever of them is in charge."""

    primary: RedisServer
    replica: RedisServer
    link: Forwarder
    address: Forwarder
    third: RedisServer

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.address.port}/0"

    def cut(self) -> None:
        """From here on the replica hears nothing of the primary."""
        self.link.lead_to(free_port())
        self.link.drop()
        wait_until(lambda: self.replica.info("replication")["master_link_status"] == "down", "the cut")
        wait_until(lambda: self.primary.info("replication")["connected_slaves"] == "0", "the primary's notice of it")

    def fail_over(self) -> None:
        """The primary dies with all that only it knew; the replica takes its place."""
        self.primary.kill()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.address.lead_to(self.replica.port)
        self.address.drop()

    def give_it_a_replica(self) -> None:
        self.third.start()
        wait_until(lambda: _has_replica(self.replica), "the next replica")


def _has_replica(primary: RedisServer) -> bool:
    """One that has everything, and says so."""
    told = primary.info("replication")
    return f"state=online,offset={told['master_repl_offset']}," in told.get("slave0", "")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
    primary = RedisServer(tmp_path / "primary", *quick)
    primary.start()
    link = Forwarder(primary.port)
    replica = RedisServer(tmp_path / "replica", *quick, "--replicaof", f"127.0.0.1 {link.port}")
    replica.start()
    third = RedisServer(tmp_path / "third", *quick, "--replicaof", f"127.0.0.1 {replica.port}")
    wait_until(lambda: _has_replica(primary), "the replica")
    address = Forwarder(primary.port)
    yield Pair(primary, replica, link, address, third)
    for forwarder in (link, address):
        forwarder.close()
    for server in (primary, replica, third):
        server.kill()


@pytest.fixture
def fleet(sandbox: Provider, make_sidecar: MakeSidecar, pair: Pair, request: pytest.FixtureRequest) -> list[Sidecar]:
    url = pair.url + request.param
    options = ("--journal", url, "--lease-seconds", f"{FLEET_LEASE_S:.0f}")
    return [make_sidecar(sandbox.url, options=options, environment=FLEET_SECRETS).start() for _ in range(2)]


def charge_all(sidecar: Sidecar, names: list[str], fault: str = "") -> dict[str, Answer]:
    """One order for each name, all at once."""
    with ThreadPoolExecutor(20) as callers:
        return dict(zip(names, callers.map(lambda name: sidecar.charge(name, name, fault=fault), names), strict=True))


def named(what: str, count: int) -> list[str]:
    return [f"{what}-{number}" for number in range(count)]


def statuses(answers: dict[str, Answer]) -> set[int]:
    return {answer.status_code for answer in answers.values()}


def effects(sandbox: Provider, names: list[str]) -> list[int]:
    return [sandbox.effects(name) for name in names]


@pytest.mark.parametrize("fleet", [""], indirect=True)
def test_with_replicas_nothing_is_sent_that_a_failover_could_forget(
    sandbox: Provider, fleet: list[Sidecar], pair: Pair
) -> None:
    first, second = fleet
    before, slow, during = named("before", 10), named("slow", 5), named("during", 5)
    wait_until(lambda: pair.primary.ask("HGET", "paywitness:{j}:meta", "replicas_seen") == b"$1\r\n1\r\n", "its memory")
    answered = charge_all(first, before)
    assert statuses(answered) == {200}
    with ThreadPoolExecutor(1) as background:
        # Sent before the cut, answered after it: what the provider said is known to the primary alone.
        under_way = background.submit(charge_all, second, slow, "slow(slow_s=1.5)")
        wait_until(lambda: len(sandbox.arrivals()) == 15, "the slow ones' arrival")
        pair.cut()
        refused = charge_all(first, during)
        answered |= under_way.result()
    assert statuses(answered) == {200}
    assert statuses(refused) == {504}
    assert {answer.json["sent"] for answer in refused.values()} == {False}
    # A sidecar that starts now, and has never seen a replica itself, does not send either.
    second.stop()
    second.start()
    assert second.charge("late", "late").json["sent"] is False
    assert effects(sandbox, [*during, "late"]) == [0] * 6
    pair.fail_over()
    pair.give_it_a_replica()
    for sidecar in fleet:
        wait_until(lambda s=sidecar: s.admin("/v1/operations").status_code == 200, "the journal's return")

    def state(answer: Answer) -> str:
        return first.operation(answer.headers["Paywitness-Operation"]).get("state", "forgotten")

    wait_until(lambda: {state(answer) for answer in answered.values()} == {"succeeded"}, "the end of all", within_s=25)
    again = charge_all(first, [*before, *slow])
    assert statuses(again) == {200}
    assert {name: answer.json["id"] for name, answer in again.items()} == {
        name: answer.json["id"] for name, answer in answered.items()
    }
    wait_until(lambda: statuses(charge_all(first, [*during, "late"])) == {200}, "what was refused", within_s=25)
    assert effects(sandbox, [*before, *slow, *during, "late"]) == [1] * 21


@pytest.mark.parametrize("fleet", ["?replicas=0"], indirect=True)
def test_without_them_what_is_forgotten_is_what_dead_sidecars_wrote_and_a_repeat_is_still_one_effect(
    sandbox: Provider, fleet: list[Sidecar], pair: Pair
) -> None:
    living, dead = fleet
    before, of_living, of_dead = named("before", 10), named("living", 10), named("dead", 10)
    answered = charge_all(living, before)
    wait_until(lambda: _has_replica(pair.primary), "its replica")
    pair.cut()
    began = time.monotonic()
    answered |= charge_all(living, of_living)
    answered |= charge_all(dead, of_dead)
    assert statuses(answered) == {200}
    dead.kill()
    pair.fail_over()
    wait_until(lambda: "journal_rolled_back" in living.log, "the notice", within_s=20)
    assert living.metric("payment_incidents_total", kind="journal_rollback") == 1

    def known() -> set[str]:
        found = {operation["id"] for operation in living.operations()}
        return {name for name, answer in answered.items() if answer.headers["Paywitness-Operation"] in found}

    wait_until(lambda: known() >= {*before, *of_living}, "what the living put back", within_s=10)
    forgotten = set(answered) - known()
    print(f"forgotten: {len(forgotten)} of {len(of_living) + len(of_dead)} written while cut off")
    assert forgotten == set(of_dead)  # and nothing of before the cut
    again = charge_all(living, list(answered))
    for name in (*before, *of_living):
        assert (again[name].status_code, again[name].body) == (200, answered[name].body)
    assert effects(sandbox, list(answered)) == [1] * 30  # what was forgotten was sent again, under the same key
    assert time.monotonic() - began < 60


def test_the_cut_is_a_partition(pair: Pair) -> None:
    """What this file stands on: the replica never gets what was written after the cut, not even later."""
    pair.primary.ask("SET", "before", "1")
    wait_until(lambda: _has_replica(pair.primary), "its replica")
    pair.cut()
    pair.primary.ask("SET", "after", "1")
    pair.fail_over()
    assert (pair.replica.ask("GET", "before"), pair.replica.ask("GET", "after")) == (b"$1\r\n1\r\n", b"$-1\r\n")
