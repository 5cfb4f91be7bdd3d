"""A fleet in virtual time against a provider in trouble: attempts for each call, and what comes of the calls."""

from __future__ import annotations

import asyncio

import pytest

from tests.limits import amplification
from tests.limits.amplification import (
    ACCOUNTS,
    AIMS,
    COSTS,
    SIDECARS,
    WARM_S,
    Fleet,
    after_the_warm_up,
    in_a_hard_outage,
)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("accounts", ACCOUNTS)
@pytest.mark.parametrize("sidecars", SIDECARS)
@pytest.mark.parametrize(("calls_per_s", "most"), [(20.0, 1.10), (1.0, 1.5)])
def test_a_hard_outage_is_hardly_amplified(
    calls_per_s: float, most: float, sidecars: int, accounts: int, cost: int
) -> None:
    assert in_a_hard_outage(sidecars, calls_per_s, cost, accounts) <= most == AIMS[calls_per_s][0]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("accounts", ACCOUNTS)
def test_nor_is_it_at_two_hundred_calls_a_second(cost: int, accounts: int) -> None:
    fleet = Fleet(50, 200, cost, 7, after_the_warm_up(1.0), accounts=accounts)
    assert asyncio.run(fleet.run(WARM_S + 10)).attempts_per_call <= 1.10


@pytest.mark.parametrize(("measured", "exit_code", "verdict"), [(1.10, 0, "met"), (1.51, 1, "missed")])
def test_the_command_prints_every_number_and_fails_if_one_is_missed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: float,
    exit_code: int,
    verdict: str,
) -> None:
    monkeypatch.setattr(amplification, "in_a_hard_outage", lambda *_: measured)
    assert amplification.main() == exit_code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SIDECARS) * len(AIMS)
    assert lines[0].startswith(f"calls a second 20, sidecars 1, 10 s: {measured:.2f} attempts a call, at most 1.10: ")
    assert {line.rpartition(" ")[2] for line in lines} == {verdict}


@pytest.mark.parametrize("sidecars", [1, 10, 500])
def test_at_one_call_a_second_every_lost_response_is_retried(sidecars: int) -> None:
    """A fifth of them is lost. Three attempts without any budget give 99.2%."""
    fleet = Fleet(sidecars, 1, 4, 1, after_the_warm_up(0.2))
    assert asyncio.run(fleet.run(WARM_S + 300)).goodput >= 0.99


def test_an_outage_after_a_bad_while_is_noticed() -> None:
    """The ratio is high, for retries helped; then nothing helps any more."""
    fleet = Fleet(10, 20, 2, 3, lambda elapsed: 0.4 if elapsed < WARM_S else 1.0)
    assert asyncio.run(fleet.run(WARM_S + 30)).attempts_per_call <= 1.10


@pytest.mark.parametrize(("sidecars", "calls_per_s", "seconds"), [(1, 20, 300), (10, 20, 300), (50, 200, 60)])
def test_with_a_quarter_of_random_failures_as_good_as_all_calls_succeed(
    sidecars: int, calls_per_s: float, seconds: float
) -> None:
    """Three tries without any budget give 98.4%."""
    fleet = Fleet(sidecars, calls_per_s, 2, 1, after_the_warm_up(0.25))
    assert asyncio.run(fleet.run(WARM_S + seconds)).goodput >= 0.98
