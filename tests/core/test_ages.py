"""How long ago something was, by the smallest and by the largest reading of all clocks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from paywitness.core.ages import (
    AgeTable,
    ClockReading,
    Jump,
    count_date,
    count_reading,
    first_table,
    table_from_text,
    table_to_text,
)

T0 = 1_800_000_000.0
HOUR_S, DAY_S = 3_600.0, 86_400.0


def reading(passed_s: float, *, store_ahead_s: float = 0.0, host: str = "a", boot: float | None = None) -> ClockReading:
    """What every clock says so long after the first reading, if only the store's was set."""
    at = T0 + passed_s
    own_boot = 500.0 + passed_s if boot is None else boot
    return ClockReading(at + max(0.0, store_ahead_s), at + store_ahead_s, at, own_boot, own_boot, host)


FIRST = reading(0.0)
TABLE = first_table(FIRST)


def test_while_all_clocks_agree_both_ages_are_the_journals_time() -> None:
    counted = count_reading(TABLE, FIRST, reading(600.0), shared=True)
    assert counted.jump is None
    assert counted.table.jumps == ()
    assert counted.table.low_age_s(T0 + 100.0, T0 + 600.0) == 500.0
    assert counted.table.high_age_s(T0 + 100.0, T0 + 600.0) == 500.0


def test_what_is_to_come_has_not_passed() -> None:
    assert TABLE.low_age_s(T0 + 100.0, T0 + 40.0) == -60.0
    assert TABLE.high_age_s(T0 + 100.0, T0 + 40.0) == 0.0


def test_m19_a_step_of_the_stores_clock_is_left_out_of_the_low_age_and_counted_in_the_high_one() -> None:
    jumped = reading(2.0, store_ahead_s=1200.0)
    counted = count_reading(TABLE, FIRST, jumped, shared=True)
    assert counted.jump is not None
    table = counted.table
    assert table.low_age_s(T0, jumped.at) <= 2.0
    assert table.high_age_s(T0, jumped.at) >= 1202.0
    later = count_reading(table, jumped, reading(302.0, store_ahead_s=1200.0), shared=True)
    assert later.jump is None
    assert 295.0 <= later.table.low_age_s(T0, later.table.seen.at) <= 302.0


def test_n2_twenty_sidecars_count_an_interval_once() -> None:
    """Each of them saw the same ten minutes; ten minutes have passed, and not two hundred."""
    table = TABLE
    earlier = dict.fromkeys(range(20), FIRST)
    for beat in range(1, 301):
        for sidecar in range(20):
            now = reading(beat * 2.0 + sidecar * 0.01)
            table = count_reading(table, earlier[sidecar], now, shared=True).table
            earlier[sidecar] = now
    assert table.jumps == ()
    assert table.low_age_s(T0, table.seen.at) == pytest.approx(600.0, abs=1.0)
    assert table.high_age_s(T0, table.seen.at) == pytest.approx(600.0, abs=1.0)


def test_n2_twenty_sidecars_see_one_jump_once() -> None:
    table = TABLE
    for sidecar in range(20):
        table = count_reading(table, FIRST, reading(2.0 + sidecar * 0.01, store_ahead_s=1200.0), shared=True).table
    at = table.seen.at
    assert 0.0 <= at - T0 - table.low_age_s(T0, at) <= 1203.0
    assert table.high_age_s(T0, at) <= 1205.0


def test_p1_a_a_weekend_without_anybody_is_in_the_high_age_and_not_in_the_low_one() -> None:
    """One sidecar over SQLite: sent on Friday at 18:00, the host goes down at 18:02 and boots on Monday at 08:00."""
    friday = count_reading(TABLE, FIRST, reading(120.0), shared=False).table
    monday = reading(62 * HOUR_S, host="booted again", boot=30.0)
    table = count_reading(friday, None, monday, shared=False)
    assert table.is_gap
    assert table.table.low_age_s(T0, monday.at) <= 120.0
    assert table.table.high_age_s(T0, monday.at, "stripe") == math.inf  # no clock can tell, so nothing is re-sent
    dated = count_date(table.table, "stripe", monday.wall_at, monday.at)
    assert dated.high_age_s(T0, monday.at, "stripe") >= 62 * HOUR_S
    assert dated.high_age_s(T0, monday.at, "adyen") == math.inf
    assert dated.high_age_s(monday.at + 1.0, monday.at + 2.0, "adyen") == 1.0  # sent since: that age is known


@pytest.mark.parametrize("known_ahead_s", [None, 0.0, 2.0, -172_800.0])
def test_n2_only_a_date_tells_how_long_a_dead_clock_stood(known_ahead_s: float | None) -> None:
    """The host was off for 62 hours and its clock with it: every clock of ours says minutes."""
    table = TABLE if known_ahead_s is None else count_date(TABLE, "stripe", T0 + known_ahead_s, T0)
    woken = reading(180.0, host="booted again", boot=60.0)
    gap = count_reading(table, None, woken, shared=False).table
    assert gap.high_age_s(T0, woken.at, "stripe") == math.inf
    date_at = woken.at + (known_ahead_s or 0.0) + 62 * HOUR_S
    dated = count_date(gap, "stripe", date_at, woken.at)
    assert dated.high_age_s(T0, woken.at, "stripe") >= 62 * HOUR_S
    assert dated.low_age_s(T0, woken.at) <= 180.0


def test_a_restart_on_a_machine_that_ran_on_is_no_gap() -> None:
    back = count_reading(TABLE, None, reading(900.0), shared=False)
    assert not back.is_gap
    assert back.jump is None
    assert back.table.low_age_s(T0, T0 + 900.0) == 900.0


def test_a_restart_whose_clock_was_set_meanwhile_is_a_jump() -> None:
    """M6: one start with the clock two days ahead, the next under the right one."""
    ahead = first_table(reading(0.0, store_ahead_s=2 * DAY_S))
    set_back = replace(reading(10.0), at=T0 + 2 * DAY_S)
    counted = count_reading(ahead, None, set_back, shared=False)
    assert counted.jump is not None
    assert counted.table.low_age_s(ahead.seen.at, set_back.at) <= 0.0
    assert counted.table.high_age_s(ahead.seen.at, set_back.at) >= 10.0


def test_p1_b_pods_that_live_shorter_than_settle_still_see_it_pass() -> None:
    """Each lives eight minutes on a machine of its own, and the next one comes three seconds later."""
    table, now_s, unseen_s = TABLE, 0.0, 0.0
    for pod in range(4):
        own = None
        for _ in range(48):
            now_s += 10.0
            seen = reading(now_s, host=f"pod {pod}")
            table = count_reading(table, own, seen, shared=True).table
            own = seen
        now_s += 3.0
        unseen_s += 3.0 + 10.0
    assert table.gap_at is None
    assert table.low_age_s(T0, table.seen.at) >= table.seen.at - T0 - unseen_s
    assert table.low_age_s(T0, table.seen.at) > 3 * 480.0


def test_a_clock_that_was_set_back_and_lags_is_added_to_the_high_age() -> None:
    """The journal's time goes on at half its pace. What was sent before may be older than it says."""
    table, own = TABLE, FIRST
    for beat in range(1, 601):
        passed_s = beat * 2.0
        seen = ClockReading(
            T0 + passed_s / 2, T0 - 3600.0 + passed_s, T0 + passed_s, 500.0 + passed_s, 500.0 + passed_s, "a"
        )
        counted = count_reading(table, own, seen, shared=True)
        table, own = counted.table, seen if counted.jump is not None or beat % 30 == 0 else own
    assert table.high_age_s(T0, table.seen.at) >= 1200.0 - 1.0
    assert table.high_age_s(T0, table.seen.at) <= 1300.0
    assert table.low_age_s(T0, table.seen.at) <= 600.0


def test_a_clock_that_runs_half_as_fast_again_is_noticed() -> None:
    table, own, jumps = TABLE, FIRST, 0
    for beat in range(1, 31):
        passed_s = beat * 2.0
        seen = reading(passed_s, store_ahead_s=passed_s * 0.5)
        counted = count_reading(table, own, seen, shared=True)
        table = counted.table
        if counted.jump is not None:
            own, jumps = seen, jumps + 1
    assert jumps >= 10
    assert table.low_age_s(T0, table.seen.at) <= 62.0


def test_a_slow_answer_is_no_jump() -> None:
    slow = replace(reading(5.0), boot=502.0, answered_boot=506.0)
    assert count_reading(TABLE, FIRST, slow, shared=True).jump is None


@pytest.mark.parametrize(("lease_s", "passed_s", "over"), [(30.0, 5.0, False), (30.0, 24.0, False), (30.0, 29.0, True)])
def test_a_jump_ends_nobodys_lease_early(lease_s: float, passed_s: float, over: bool) -> None:
    started = count_reading(TABLE, FIRST, reading(100.0), shared=True).table
    held_until_at = T0 + 125.0
    jumped = count_reading(started, reading(100.0), reading(102.0, store_ahead_s=1200.0), shared=True).table
    now = jumped.seen.at + passed_s
    assert (held_until_at <= jumped.leases_over_at(lease_s, now)) is over


def test_m29_a_forward_jump_makes_nothing_old_enough_to_be_retired() -> None:
    running = count_reading(TABLE, FIRST, reading(40 * DAY_S), shared=True).table
    before_jump = running.seen
    assert running.journal_seconds(30 * DAY_S, before_jump.at) == 30 * DAY_S
    jumped = count_reading(running, before_jump, reading(40 * DAY_S + 2.0, store_ahead_s=30 * DAY_S), shared=True).table
    now = jumped.seen.at
    ended_before = now - jumped.journal_seconds(30 * DAY_S, now)
    assert T0 + 9 * DAY_S <= ended_before <= T0 + 10 * DAY_S + 3.0  # as before the jump
    assert jumped.journal_seconds(60 * DAY_S, now) >= now  # so long nobody has counted


def test_what_is_older_than_the_counters_is_counted_from_when_they_began() -> None:
    """Operations of an earlier release: low from the upgrade on, high by the clocks."""
    written_at = T0 - 50 * DAY_S
    assert TABLE.low_age_s(written_at, T0 + 60.0) == 60.0
    assert TABLE.high_age_s(written_at, T0 + 60.0) == 50 * DAY_S + 60.0


def test_jumps_are_bounded_and_never_make_low_larger_or_high_smaller() -> None:
    dice = Random(7)
    table, exact, own, now_s, ahead_s = TABLE, list[Jump](), FIRST, 0.0, 0.0
    for _ in range(900):
        now_s += dice.uniform(1.0, 400.0)
        ahead_s += dice.choice((0.0, 5.0, 300.0))
        seen = reading(now_s, store_ahead_s=ahead_s)
        counted = count_reading(table, own, seen, shared=True)
        table, own = counted.table, seen
        if counted.jump is not None:
            exact.append(counted.jump)
    assert len(table.jumps) <= 200 < len(exact)
    now, unmerged = table.seen.at, replace(table, jumps=tuple(exact))
    for at in (T0 + dice.uniform(0.0, now - T0) for _ in range(300)):
        assert table.low_age_s(at, now) <= unmerged.low_age_s(at, now) + 1e-6
        assert table.high_age_s(at, now) >= now - at


def test_after_many_jumps_that_were_merged_time_counts_again() -> None:
    """Sidecars and stores died every few seconds for minutes. All that was left out lay at the last jump, and nothing
    that was sent shortly before it grew old for as long again: nothing could be shown to be absent."""
    table, at = TABLE, T0
    for number in range(1, 101):
        at = T0 + 4.0 * number
        started = ClockReading(at, at, at, 500.0 + 4.0 * number, 500.0 + 4.0 * number, f"host {number}")
        table = count_reading(table, None, started, shared=True).table
    assert len(table.jumps) == 1
    sent_at, own = at - 10.0, table.seen
    later = ClockReading(at + 40.0, at + 40.0, at + 40.0, own.boot + 40.0, own.boot + 40.0, own.host)
    assert count_reading(table, own, later, shared=True).table.low_age_s(sent_at, later.at) == 40.0


def test_every_mix_of_steps_gaps_and_restarts_keeps_the_truth_between_both_ages() -> None:
    """Four intervals, each of them with one of these events: low <= what truly passed <= high, at every moment."""
    events = ("calm", "forward", "back", "restart", "moved", "asleep")
    for happened in product(events, repeat=4):
        _play(happened)


def _play(happened: tuple[str, ...]) -> None:
    table, own = TABLE, FIRST
    true_s, ahead_s, journal_at, host = 0.0, 0.0, T0, "a"
    sent: list[tuple[float, float]] = [(T0, 0.0)]
    for number, event in enumerate(happened):
        asleep_s = 2.0 if event != "asleep" else 500.0
        true_s += asleep_s
        ahead_s += {"forward": 1200.0, "back": -700.0}.get(event, 0.0)
        raw_at = T0 + true_s + ahead_s
        journal_at = max(raw_at, journal_at + asleep_s / 2 if raw_at < journal_at else raw_at)
        host = f"{host}{number}" if event == "moved" else host
        seen = ClockReading(journal_at, raw_at, T0 + true_s, 500.0 + true_s, 500.0 + true_s, host)
        earlier = None if event in {"restart", "moved"} else own
        table, own = count_reading(table, earlier, seen, shared=True).table, seen
        for at, at_s in sent:
            assert table.low_age_s(at, journal_at) <= true_s - at_s + 1.0 * len(happened), (happened, number)
            assert table.high_age_s(at, journal_at) >= true_s - at_s - 1.0 * len(happened), (happened, number)
        sent.append((journal_at, true_s))


def test_it_is_stored_and_read_as_it_was() -> None:
    table = AgeTable(T0, FIRST, (Jump(T0 + 5.0, 1.5, 0.25),), T0 + 5.0, ("acme", "stripe"), (("acme", -3.0),))
    assert table_from_text(table_to_text(table)) == table
    assert table_from_text(table_to_text(TABLE)) == TABLE
