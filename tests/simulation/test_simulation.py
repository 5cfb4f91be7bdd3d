"""The whole engine in simulated worlds: a short run of the proof, which `make simulate` plays at length."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.core.problems import Problem
from paywitness_sandbox.bank.ledger import EntryKind
from tests.simulation.callers import Wish
from tests.simulation.checkers import Checkers
from tests.simulation.report import describe
from tests.simulation.swarm import FAULTS, Mix, mix_of
from tests.simulation.world import RETURNING_MAX, World, play

TOP = Path(__file__).resolve().parents[2]
# Worlds that once broke a promise, whole, so that they stay the same when the swarm learns something new.
KEPT = {
    # What is in doubt was dated by a sidecar's wall clock, which was set: "not found" was believed while the request
    # was still being worked on, and the order was sent again.
    "a_clock_is_set_while_in_doubt": Mix(
        seed=1,
        payments=60,
        contract="not_stored",
        sidecars=2,
        webhooks=False,
        events=False,
        harvest_s=0.0,
        clock_jumps=6,
        crashes=1,
        faults={"gateway_504": 0.3},
    ),
    # One execution was declined and a re-send of it paid. The webhook of the declined one came last, and a person was
    # called over a failure after a success.
    "word_of_a_declined_execution_comes_last": Mix(
        seed=4,
        payments=15,
        contract="reexecuted",
        asks=False,
        events=False,
        window_s=60,
        resend_for_s=45,
        harvest_s=0.0,
        webhook_modes=("late", "normal"),
        faults={"late_refusal": 0.25},
    ),
    # A lost answer was recorded after others had found the operation absent, and a person was called over a doubt
    # after a failure. Then the same with several attempts.
    "a_lost_answer_is_recorded_after_it_was_found_absent": Mix(
        seed=4,
        payments=15,
        sidecars=2,
        webhooks=False,
        events=False,
        attempts=1,
        resend_for_s=0,
        harvest_s=0.0,
        declines=0.2,
        pauses=2,
        journal_stalls=3,
        faults={"answer_lost": 0.1, "reset_while_writing": 0.2, "black_hole": 0.2},
    ),
    "a_lost_answer_of_several_is_recorded_late": Mix(
        seed=4,
        payments=15,
        contract="not_stored",
        sidecars=2,
        webhooks=False,
        events=False,
        harvest_s=0.0,
        declines=0.2,
        pauses=2,
        journal_stalls=3,
        faults={"black_hole": 0.2, "rate_limited": 0.2, "answer_lost": 0.1},
    ),
    # A sidecar woke up in the middle of an inquiry about what had meanwhile been found absent and released. It found
    # the payment of the key's next generation, and a person was called over a duplicate.
    "an_inquiry_finds_the_next_generation": Mix(
        seed=38,
        payments=40,
        sidecars=2,
        webhooks=False,
        events=False,
        harvest_s=0.0,
        attempts=1,
        resend_for_s=0,
        declines=0.2,
        pauses=2,
        journal_stalls=3,
        faults={"answer_lost": 0.1, "reset_while_writing": 0.2, "black_hole": 0.2},
    ),
    # A refusal came late and ended an operation, and its caller was told so; the store forgot that, and before it was
    # put back the resolver sent the operation again, which paid.
    "an_end_is_forgotten_and_sent_again": Mix(
        seed=408,
        payments=657,
        webhooks=False,
        window_s=60,
        deadline_s=15,
        resend_for_s=45,
        harvest_s=20.0,
        rate_per_s=200.0,
        weather_s=7.0,
        connects_s=0.4,
        faults={
            "connect_timeout": 0.012,
            "reset_while_writing": 0.004,
            "black_hole": 0.012,
            "answer_lost": 0.004,
            "reset_before_answer": 0.012,
            "truncated": 0.004,
            "oversized": 0.0008,
            "delayed": 0.0008,
            "late_answer": 0.012,
            "late_refusal": 0.004,
            "slow": 0.004,
            "empty_200": 0.004,
            "gateway_502": 0.0008,
            "gateway_504": 0.0008,
            "error_500_after": 0.012,
            "rate_limited": 0.012,
            "declined_once": 0.0008,
        },
        retires=True,
        goes_elsewhere=1.0,
        returns_late=0.5,
        declines=0.019182949563414722,
        suspends=True,
        operators=20,
        failovers=1,
    ),
    # A store forgot the second in which an edited policy was put in force, and nobody told it again. Others could not
    # read what later operations were pinned to: one was left to a person, of another the event that it was paid was
    # given to the generation before.
    "an_edit_is_forgotten_and_its_operation_is_left": Mix(
        seed=31,
        payments=40,
        contract="reexecuted",
        sidecars=3,
        rate_per_s=8.0,
        events=False,
        attempts=1,
        resend_for_s=0,
        harvest_s=0.0,
        failovers=2,
        reloads=3,
        faults={"black_hole": 0.3},
    ),
    # An event ended a capture while the resolver sent it again. The caller that waited was told of it, the end of the
    # re-send was noted as heard by nobody, and an equal capture got its reply instead of being made.
    "a_resend_is_overtaken_by_an_event": Mix(
        seed=17,
        payments=40,
        lag_s=10.0,
        attempts=1,
        deadline_s=15,
        resend_for_s=45,
        harvest_s=20.0,
        rate_per_s=100.0,
        connects_s=0.4,
        new_connections=0.5,
        webhook_modes=("early", "normal"),
        faults={"reset_before_answer": 0.3},
        money_between=True,
        orders=1.0,
        events=False,
    ),
    # Deadlines passed while a slow store wrote the end of a capture. It was recorded as delivered when the write began,
    # and an equal capture under a fresh key was made before that was corrected.
    "a_deadline_passes_while_the_store_writes": Mix(
        seed=6,
        payments=100,
        sidecars=2,
        deadline_s=1,
        rate_per_s=20.0,
        journal_latency=0.3,
        money_between=True,
        orders=1.0,
        events=False,
    ),
    # A sidecar slept with the success of a refund in its hands. Meanwhile the refund failed, and others read that. The
    # sidecar woke up, and its own response was taken for a contradiction.
    "a_response_is_read_after_its_refund_failed": Mix(
        seed=9,
        payments=40,
        webhooks=False,
        lag_s=1.0,
        attempts=1,
        deadline_s=15,
        resend_for_s=0,
        harvest_s=20.0,
        sidecars=2,
        pauses=4,
        suspends=True,
        faults={"slow": 0.3},
        money_between=True,
        orders=1.0,
        events=False,
    ),
    "an_edit_is_forgotten_and_an_event_goes_astray": Mix(
        seed=25,
        payments=40,
        contract="reexecuted",
        sidecars=3,
        rate_per_s=8.0,
        events=False,
        attempts=1,
        resend_for_s=0,
        harvest_s=0.0,
        failovers=2,
        reloads=3,
        faults={"black_hole": 0.3},
    ),
    # `200 {}` in the place of a list was a miss, as nothing in the list is. Three of them, and the order was absent and
    # was charged again. The policy says that the list is always sent.
    "a_search_is_answered_without_its_list": Mix(
        seed=2030,
        payments=60,
        contract="none",
        webhooks=False,
        events=False,
        window_s=30,
        stale_looks=0.7,
        deadline_s=15,
        sidecars=3,
        rate_per_s=3.0,
        weather_s=22.0,
        new_connections=0.5,
        faults={
            "dns_failure": 0.06,
            "black_hole": 0.004,
            "oversized": 0.02,
            "late_refusal": 0.004,
            "foreign": 0.06,
            "gateway_502": 0.004,
            "error_500_before": 0.004,
            "error_500_after": 0.02,
            "empty_200": 0.3,
        },
        hangs_up=0.09378041929964435,
        returns_late=0.5,
        follow_ups=0.18846419843641335,
        crashes=1,
        pauses=2,
        operators=5,
        journal_lost_replies=0.03,
        cut_offs=1,
    ),
}


@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_seed_breaks_no_promise(seed: int, between: bool) -> None:
    outcome = play(seed, 60, between=between)
    assert outcome.ok, describe(outcome)


@pytest.mark.parametrize("name", KEPT)
def test_a_world_that_once_broke_a_promise_keeps_it(name: str) -> None:
    outcome = World(KEPT[name]).play()
    assert outcome.ok, "\n".join(outcome.history.lines(outcome.violations[0].about))


def test_every_fault_is_played_by_several_of_fifty_seeds() -> None:
    mixes = [mix_of(seed, 1_000) for seed in range(1, 51)]
    seldom = {name for name in FAULTS if sum(name in mix.faults for mix in mixes) < 5}
    befalls = (
        *("crashes", "crashes_at_steps", "pauses", "pauses_connecting", "stale_looks"),
        "clock_jumps",
        "operators",
        "reloads",
        "journal_stalls",
        "cut_offs",
        "failovers",
        "outages",
    )
    does = (
        *("hangs_up", "fresh_key", "other_payload", "twice_at_once", "follow_ups", "payouts", "open_ends", "fallback"),
        "retires",
    )
    seldom |= {name for name in (*befalls, *does) if sum(bool(getattr(mix, name)) for mix in mixes) < 5}
    assert not seldom
    assert {mix.contract for mix in mixes} == {"replayed", "reexecuted", "not_stored", "none"}


def test_the_same_seed_gives_the_same_history() -> None:
    """To the byte, also in another process whose hashes of strings differ."""
    here = play(5, 40, between=False).history
    code = "from tests.simulation.world import play; print(play(5, 40, between=False).history.digest())"
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TOP,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here.digest()
    assert play(5, 40, between=False).history.lines() == here.lines()


_DIGESTS = """
import sys
from tests.simulation.world import play
for seed in map(int, sys.argv[1:]):
    print(seed, play(seed, 150).history.digest(), flush=True)
"""
# Each with several sidecars, and with what makes one act upon several operations at once: a store that forgets,
# another route, an outage, deliveries to a sink.
_MANY_AT_ONCE = ("4", "22", "32", "38", "50", "55")


@pytest.mark.slow
def test_a_history_does_not_depend_on_hashes_nor_on_the_worlds_before_it() -> None:
    """Sets of strings have another order under another PYTHONHASHSEED, sets of objects at other addresses."""

    def digests(hash_seed: str, seeds: Iterable[str]) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _DIGESTS, *seeds]
        played = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=True)
        return sorted(played.stdout.splitlines())

    one_way = digests("0", _MANY_AT_ONCE)
    assert len(one_way) == len(_MANY_AT_ONCE)
    assert one_way == digests("12345", reversed(_MANY_AT_ONCE))


def test_another_seed_gives_another_history() -> None:
    assert play(5, 20, between=False).history.digest() != play(6, 20, between=False).history.digest()


def test_the_first_payments_of_a_world_go_as_they_go_in_the_whole() -> None:
    """To the line, until the next one would come: so a failing world can be cut to its shortest beginning."""
    whole = play(3, 60, between=False).history.lines()
    beginning = play(3, 60, first=30, between=False).history.lines()
    until = next(place for place, line in enumerate(whole) if " o31 " in line)
    assert until > 100
    assert beginning[:until] == whole[:until]


PLAIN = Mix(1, 40, webhooks=False, events=False)


def paid_again(world: World, wish: Wish) -> None:
    """Somebody else charges the same order behind everybody's back."""
    entry = world.provider.ledger.find(order=wish.order)[0]
    world.provider.ledger.write(
        EntryKind.CHARGE,
        at=entry.at,
        id="ch_x",
        charge="ch_x",
        key=None,
        order=entry.order,
        amount=entry.amount,
        currency="EUR",
    )


def never_paid(world: World, wish: Wish) -> None:
    """The effect of a payment that was told as succeeded vanishes."""
    world.provider.ledger._by["order"][wish.order].clear()


def told_nothing_came_of_it(world: World, wish: Wish) -> None:
    from paywitness.core.operation import Outcome

    for told in wish.told:
        assert told.reply is not None
        told.reply = replace(told.reply, outcome=Outcome.FAILED)


@pytest.mark.parametrize(
    ("lie", "promise"),
    [
        (paid_again, "one effect"),
        (never_paid, "succeeded is one effect"),
        (told_nothing_came_of_it, "no means none, for ever"),
    ],
)
def test_a_checker_sees_what_it_is_there_for(lie: Callable[[World, Wish], None], promise: str) -> None:
    world = World(PLAIN)
    judge = world._judge

    def lie_then_judge() -> None:
        lie(world, world.callers.wishes[7])
        judge()

    world._judge = lie_then_judge  # type: ignore[method-assign]
    outcome = world.play()
    assert {violation.promise for violation in outcome.violations} >= {promise}


def test_who_comes_back_after_the_retention_is_told_so_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[Wish] = []
    came_back = Checkers.came_back

    def noted(self: Checkers, wish: Wish, sends: int) -> None:
        returned.append(wish)
        came_back(self, wish, sends)

    monkeypatch.setattr(Checkers, "came_back", noted)
    world = World(replace(PLAIN, retires=True))
    outcome = world.play()
    assert outcome.ok, outcome.violations
    assert len(returned) == RETURNING_MAX
    replies = [wish.told[-1].reply for wish in returned]
    assert {reply.problem for reply in replies if reply is not None} == {Problem.KEY_EXPIRED}
    world.checkers.came_back(returned[0], 1)
    assert [violation.promise for violation in world.history.violations] == ["an old key is not executed"]


def test_a_failing_seed_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself, the life of the payment line by line, and a short world in which it still happens."""

    def forgets_to_check_the_amount(self: World) -> None:
        wish = next((wish for wish in self.callers.wishes if wish.name == "o9"), None)
        if wish is not None:
            self.history.violated("one effect", wish.order, "planted")

    monkeypatch.setattr(World, "_judge", forgets_to_check_the_amount)
    report = describe(play(4, 16, between=False))
    assert "--seeds 4 --payments 16 --first 9 --plain" in report
    assert "caller     calls" in report
    assert " o9 " in report
    assert " o8 " not in report
