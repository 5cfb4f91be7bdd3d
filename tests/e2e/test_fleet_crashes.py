"""kill -9 at each step of the life of a call, over one Redis: the other sidecar ends it. The ledger judges.

A fleet knows that a holder is gone by its lease alone, so all victims die at once and their leases run out together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from paywitness.engine.failpoints import (
    ANSWER_CLASSIFIED,
    ANSWER_RECORDED,
    CALL_FAILPOINTS,
    RESEND_RECORDED,
    RESOLUTION_FAILPOINTS,
    UPSTREAM_ANSWERED,
)
from tests.e2e.callers import PATIENCE_MS, PAUSE_S
from tests.e2e.conftest import Provider
from tests.e2e.contracts import NOBODY_TO_ASK, SOON
from tests.e2e.judge import all_at_rest, paid_by_order, posts
from tests.e2e.sidecar import Answer, Sidecar, wait_until
from tests.engine.storm import WITHOUT_KEYS

MakeFleet = Callable[..., list[Sidecar]]
pytestmark = pytest.mark.slow

FIRST_STEPS = tuple(step for step in CALL_FAILPOINTS if step != RESEND_RECORDED)
LOST = "drop_after_commit"
DEATHS = (
    *((step, "") for step in FIRST_STEPS),
    (UPSTREAM_ANSWERED, LOST),
    (ANSWER_CLASSIFIED, LOST),
    (ANSWER_RECORDED, LOST),
)
ENDED_WITHIN_S = 40.0  # a lease, a look at all leases, and the provider is asked


@dataclass(frozen=True)
class Victim:
    sidecar: Sidecar
    step: str  # at which it dies
    fault: str = ""

    @property
    def order(self) -> str:
        return f"{self.step}-{self.fault}"

    def start(self) -> None:
        self.sidecar.start(step=self.step)

    def die(self) -> None:
        self.sidecar.charge_and_die(f"key-{self.order}", self.order, fault=self.fault)


def all_die(*victims: Victim) -> None:
    """Each at its step, under a call of its own."""
    with ThreadPoolExecutor(2) as hands:  # more starts at once would only hold each other up
        list(hands.map(Victim.start, victims))
    with ThreadPoolExecutor(len(victims)) as hands:
        list(hands.map(Victim.die, victims))


def insist(sidecar: Sidecar, order: str) -> Answer:
    """The caller's repeat, until it is told how it ended."""
    end_mono = time.monotonic() + ENDED_WITHIN_S
    while True:
        answer = sidecar.charge(f"key-{order}", order, headers={"Paywitness-Timeout-Ms": str(PATIENCE_MS)})
        if answer.status_code == 200 or time.monotonic() > end_mono:
            return answer
        time.sleep(PAUSE_S)


def test_when_one_is_killed_at_any_step_the_callers_repeat_at_the_other_ends_in_one_charge(
    sandbox: Provider, make_fleet: MakeFleet
) -> None:
    other, *others = make_fleet(sandbox.url, *SOON, count=1 + len(DEATHS))
    other.start()
    victims = [Victim(sidecar, *death) for sidecar, death in zip(others, DEATHS, strict=True)]
    all_die(*victims)
    orders = [victim.order for victim in victims]
    assert set(paid_by_order(sandbox).values()) <= {1}
    with ThreadPoolExecutor(len(orders)) as callers:
        answers = dict(zip(orders, callers.map(lambda order: insist(other, order), orders), strict=True))
    ends = {order: (answer.status_code, answer.outcome) for order, answer in answers.items()}
    assert ends == dict.fromkeys(orders, (200, "succeeded")), answers
    assert paid_by_order(sandbox) == Counter(orders)
    assert Counter(operation["state"] for operation in other.operations()) == {"succeeded": len(orders)}
    assert {arrival["key"] for arrival in posts(sandbox)} == {f"key-{order}" for order in orders}


def test_a_resend_that_a_kill_cut_short_is_ended_by_the_other(sandbox: Provider, make_fleet: MakeFleet) -> None:
    other, first = make_fleet(sandbox.url, *SOON, *NOBODY_TO_ASK)
    victim = Victim(first, RESEND_RECORDED, ",".join([LOST] * 3))
    all_die(victim)
    other.start()
    answer = insist(other, victim.order)
    assert (answer.status_code, answer.outcome) == (200, "succeeded"), answer.body
    assert paid_by_order(sandbox) == {victim.order: 1}
    assert [operation["state"] for operation in other.operations()] == ["succeeded"]


@pytest.mark.parametrize("step", RESOLUTION_FAILPOINTS)
def test_a_kill_while_the_provider_is_asked_is_resolved_by_the_other_with_no_caller_and_no_operator(
    start_sandbox: Callable[..., Provider], make_fleet: MakeFleet, step: str
) -> None:
    """Without keys, so that asking alone can end it."""
    provider = start_sandbox("none")
    other, first = make_fleet(provider.url, *SOON, *WITHOUT_KEYS)
    victim = Victim(first, step, LOST)
    all_die(victim)
    other.start()
    wait_until(lambda: all_at_rest(other), "the resolution by the other", ENDED_WITHIN_S)
    (operation,) = other.operations()
    assert (operation["state"], operation["incident"]) == ("succeeded", None)
    answer = other.charge(f"key-{victim.order}", victim.order)
    assert (answer.status_code, answer.outcome) == (200, "succeeded")
    assert (paid_by_order(provider), len(posts(provider))) == ({victim.order: 1}, 1)
