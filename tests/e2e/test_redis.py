"""Two real sidecars over one real Redis: one send, whoever is asked, and whoever dies. The ledger judges."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.judge import paid_by_order, posts
from tests.e2e.sidecar import Answer, Sidecar, wait_until
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow


@pytest.fixture
def fleet(sandbox: Provider, make_fleet: Callable[..., list[Sidecar]]) -> list[Sidecar]:
    return make_fleet(sandbox.url)


def test_the_same_key_at_both_at_once_is_one_send(sandbox: Provider, fleet: list[Sidecar]) -> None:
    for sidecar in fleet:
        sidecar.start()

    def call(number: int) -> Answer:
        return fleet[number % 2].charge(fault="slow(slow_s=0.5)")

    with ThreadPoolExecutor(20) as callers:
        answers = list(callers.map(call, range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert (sandbox.effects(), len(posts(sandbox))) == (1, 1)


def test_any_sidecar_answers_for_any_operation(sandbox: Provider, fleet: list[Sidecar]) -> None:
    first, second = (sidecar.start() for sidecar in fleet)
    paid = first.charge()
    again = second.charge()
    joined = second.charge("a fresh key")
    assert (again.status_code, again.body, again.headers["Paywitness-Replayed"]) == (200, paid.body, "true")
    assert (joined.status_code, joined.body) == (200, paid.body)
    assert sandbox.effects() == 1


def test_when_the_holder_dies_the_other_ends_it_through_doubt(sandbox: Provider, fleet: list[Sidecar]) -> None:
    first, second = fleet
    first.start(step="upstream_answered")
    second.start()
    first.charge_and_die()

    def states() -> set[str]:
        return {found["state"] for found in second.admin("/v1/operations").json["operations"]}

    wait_until(lambda: states() == {"succeeded"}, "the resolution by the other", within_s=40)
    answer = second.charge()
    assert (answer.status_code, sandbox.effects()) == (200, 1)


def test_while_redis_is_away_nothing_is_sent_and_then_all_goes_on(
    sandbox: Provider, fleet: list[Sidecar], redis: RedisServer
) -> None:
    first, _ = (sidecar.start() for sidecar in fleet)
    assert first.charge("before", "before").status_code == 200
    redis.kill()
    began = time.monotonic()
    answer = first.charge("during", "during")
    assert (answer.status_code, answer.problem, answer.sent) == (504, "journal-unavailable", False)
    assert time.monotonic() - began < 10
    assert sandbox.effects("during") == 0
    redis.start()
    wait_until(lambda: first.charge("after", "after").status_code == 200, "the journal's return", within_s=30)
    assert first.charge("before", "before").headers["Paywitness-Replayed"] == "true"
    assert (sandbox.effects("after"), sandbox.effects("before")) == (1, 1)


def test_scripts_that_redis_forgets_again_and_again_are_told_it_again_and_each_order_is_paid_once(
    sandbox: Provider, fleet: list[Sidecar], redis: RedisServer
) -> None:
    for sidecar in fleet:
        sidecar.start()
    over = threading.Event()

    def pay(number: int) -> Answer:
        return fleet[number % 2].charge(f"key-{number}", f"order-{number}")

    def forget() -> int:
        times = 0
        while not over.is_set():
            assert redis.ask("SCRIPT", "FLUSH") == b"+OK\r\n"
            times += 1
            over.wait(0.02)
        return times

    with ThreadPoolExecutor(9) as hands:
        forgotten = hands.submit(forget)
        try:
            answers = list(hands.map(pay, range(200)))
        finally:
            over.set()
    assert forgotten.result() > 3  # on a machine that is busy; some fifty on an idle one
    assert {(answer.status_code, answer.outcome) for answer in answers} == {(200, "succeeded")}
    assert paid_by_order(sandbox) == Counter(f"order-{number}" for number in range(200))


def test_a_sidecar_that_slept_past_its_lease_finds_that_the_other_went_on(
    sandbox: Provider, fleet: list[Sidecar]
) -> None:
    first, second = fleet
    first.start(step="upstream_connected", on_step="STOP")
    second.start()
    caller = threading.Thread(target=lambda: first.charge(timeout=60))
    caller.start()
    wait_until(lambda: first.stopped, "the stop at the step")
    wait_until(lambda: sandbox.effects() == 1, "the other's re-send", within_s=40)
    first.send(signal.SIGCONT)
    caller.join(60)
    assert second.charge().status_code == 200
    assert sandbox.effects() == 1
