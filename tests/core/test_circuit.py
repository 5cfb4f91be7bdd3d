"""The circuit's machine: every state under every event, the quorum, the leases, the gate. Time and chance come in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.circuit import (
    FORCIBLE,
    GATE_MAX_MS,
    PATIENCE_MS,
    PROBES_MAX,
    PROBES_OK,
    RAMP_SHARES,
    RAMP_STAGE_MS,
    STALE_MS,
    CallGroup,
    Circuit,
    CircuitDecision,
    CircuitRefusal,
    CircuitRules,
    CircuitState,
    CircuitThresholds,
    ForcedState,
    SharedCircuit,
    SidecarReport,
    advance,
    end_probe,
    force,
    open_for_ms,
    quorum,
    ramp_share,
    release,
    report,
    take_probe,
    view_of,
    with_hold,
)
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.holds import LimitedBy
from paywitness.core.provider_health import Health, HealthCounts, HealthSample, HealthWindow, health_sample_of
from paywitness.core.result import FAILURE_CLASSES, ResultClass

RULES = CircuitRules()
CLOSED, DEGRADED, OPEN, HALF_OPEN, RAMP = CircuitState
NOW = 1_000_000
BY = ForcedState("ada", "maintenance")
WELL, BAD = HealthCounts(total=30), HealthCounts(total=30, bad=30)


def row(counts: HealthCounts, at_ms: int = NOW, epoch: int = 0, asks: Mapping[str, int] | None = None) -> SidecarReport:
    return SidecarReport(at_ms, epoch, counts, counts, asks or {})


def told(
    rows: dict[str, HealthCounts], circuit: Circuit = Circuit(), now_ms: int = NOW, draw: float = 0.5
) -> SharedCircuit:
    """A fleet whose sidecars have all just reported."""
    *others, (last, counts) = rows.items()
    fleet = SharedCircuit(circuit, {name: row(one, now_ms, circuit.epoch) for name, one in others})
    return report(fleet, last, row(counts, now_ms, circuit.epoch), now_ms, draw, RULES)


def state_after(*counts: HealthCounts, **changes: object) -> CircuitState:
    return told({str(number): one for number, one in enumerate(counts)}, **changes).circuit.state  # type: ignore[arg-type]


def in_state(state: CircuitState, **changes: object) -> Circuit:
    """A circuit that has just come into the state."""
    times = {OPEN: {"until_ms": NOW + 1000}, HALF_OPEN: {"patience_ms": NOW + PATIENCE_MS}}.get(state, {})
    start = Circuit(state=state, version=7, epoch=7, since_ms=NOW, troubled_ms=NOW, opened=1)
    return replace(start, **{**times, **changes})  # type: ignore[arg-type]


# --- what opens and what degrades: every threshold, at it and just below it

AT = [
    # counts of 100 calls: bad, slow, unknown, throttled -> the state of one alone
    ((0, 0, 0, 0), CLOSED),
    ((19, 0, 0, 0), CLOSED),
    ((20, 0, 0, 0), DEGRADED),
    ((84, 0, 0, 0), DEGRADED),
    ((85, 0, 0, 0), OPEN),
    ((4, 0, 4, 0), CLOSED),
    ((5, 0, 5, 0), DEGRADED),
    ((49, 0, 49, 0), DEGRADED),
    ((50, 0, 50, 0), OPEN),
    ((0, 49, 0, 0), CLOSED),
    ((0, 50, 0, 0), DEGRADED),
    ((0, 89, 0, 0), DEGRADED),
    ((0, 90, 0, 0), OPEN),
    ((0, 0, 0, 9), CLOSED),
    ((0, 0, 0, 10), DEGRADED),
    ((0, 0, 0, 100), DEGRADED),
]


@pytest.mark.parametrize(("counts", "state"), AT)
def test_a_threshold_counts_from_its_own_value_on(counts, state):
    assert state_after(HealthCounts(100, *counts)) is state


@pytest.mark.parametrize("total", [1, 19])
def test_fewer_calls_than_the_minimum_change_nothing(total):
    assert state_after(HealthCounts(total, bad=total, unknown=total)) is CLOSED


def test_the_minimum_is_the_fleets():
    assert state_after(*[HealthCounts(2, bad=2)] * 10) is OPEN


def test_the_recent_span_opens_though_the_whole_window_is_mostly_well():
    seen = SidecarReport(NOW, 0, recent=HealthCounts(60, bad=60), whole=HealthCounts(200, bad=60))
    assert report(SharedCircuit(), "one", seen, NOW, 0.5, RULES).circuit.state is OPEN


def test_the_whole_window_opens_where_the_recent_span_has_too_few_calls():
    seen = SidecarReport(NOW, 0, recent=HealthCounts(6, bad=6), whole=HealthCounts(20, bad=20))
    assert report(SharedCircuit(), "one", seen, NOW, 0.5, RULES).circuit.state is OPEN


# --- the quorum


@pytest.mark.parametrize(
    ("reporting", "speaking", "needed"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 2), (6, 6, 2), (7, 7, 3), (11, 11, 4), (50, 50, 15), (50, 1, 2), (0, 0, 1)],
)
def test_the_quorum(reporting, speaking, needed):
    assert quorum(reporting, speaking) == needed


def test_one_bad_sidecar_of_eleven_opens_nothing():
    assert state_after(*[WELL] * 10, BAD) is CLOSED


def test_ten_bad_sidecars_of_eleven_open_the_circuit():
    assert state_after(WELL, *[BAD] * 10) is OPEN


def test_one_bad_sidecar_among_idle_ones_opens_nothing_for_them():
    assert state_after(*[HealthCounts()] * 9, BAD) is DEGRADED


def test_a_busy_bad_sidecar_does_not_outvote_many_quiet_ones():
    assert state_after(*[HealthCounts(5)] * 10, HealthCounts(5000, bad=5000)) is DEGRADED


def test_a_row_that_is_not_renewed_no_longer_counts():
    old = row(BAD, NOW - STALE_MS - 1)
    fleet = SharedCircuit(reports={"gone 1": old, "gone 2": old})
    after = report(fleet, "here", row(WELL), NOW, 0.5, RULES)
    assert after.circuit.state is CLOSED
    assert set(after.reports) == {"here"}


def test_rows_of_an_earlier_epoch_say_nothing():
    fleet = SharedCircuit(in_state(RAMP), {"other": row(BAD, epoch=6)})
    assert report(fleet, "here", row(BAD, epoch=6), NOW, 0.5, RULES).circuit.state is RAMP


def test_a_fleet_is_judged_at_most_five_times_a_second():
    fleet = told({"one": WELL})
    assert report(fleet, "one", row(BAD), NOW + 199, 0.5, RULES).circuit.state is CLOSED
    assert report(fleet, "one", row(BAD, NOW + 200), NOW + 200, 0.5, RULES).circuit.state is OPEN


def test_a_clock_that_goes_back_does_not_stop_the_judging():
    assert report(told({"one": WELL}), "one", row(BAD), NOW - 50_000, 0.5, RULES).circuit.state is OPEN


# --- time


@pytest.mark.parametrize(
    ("circuit", "after_ms", "state"),
    [
        (in_state(CLOSED), 10**9, CLOSED),
        (in_state(DEGRADED), 10**9, DEGRADED),  # left by a clean report, never by silence
        (in_state(OPEN), 999, OPEN),
        (in_state(OPEN), 1000, HALF_OPEN),
        (in_state(HALF_OPEN), PATIENCE_MS - 1, HALF_OPEN),
        (in_state(HALF_OPEN), PATIENCE_MS, RAMP),
        (in_state(RAMP), 2249, RAMP),
        (in_state(RAMP), 2250, CLOSED),
        (in_state(CLOSED, forced=BY, until_ms=NOW + 500), 499, CLOSED),
        (in_state(OPEN, forced=BY, until_ms=NOW + 500), 499, OPEN),
        (in_state(OPEN, forced=BY, until_ms=NOW + 500), 500, HALF_OPEN),
        (in_state(DEGRADED, forced=BY, until_ms=NOW + 500), 500, CLOSED),
    ],
)
def test_what_time_alone_changes(circuit, after_ms, state):
    after = advance(SharedCircuit(circuit), NOW + after_ms).circuit
    assert after.state is state
    assert (after.version > circuit.version) == (state is not circuit.state or circuit.forced is not after.forced)


def test_an_open_circuit_lasts_a_second_and_then_one_and_a_half():
    assert [open_for_ms(times) for times in range(5)] == [1000, 1500, 1500, 1500, 1500]


def test_who_is_back_is_called_in_full_within_five_seconds():
    """The longest interval with its jitter, a second for the probes and their news, the ramp's stages but the last; and
    half a second to spare, for a store that did not answer at once."""
    assert 1.2 * open_for_ms(99) + 1000 + RAMP_STAGE_MS * RAMP_SHARES.index(1.0) < 4500


def test_inquiries_are_judged_by_fewer_calls_and_never_by_ambiguity_alone():
    rules = CircuitRules()
    assert rules.for_group(CallGroup.WRITE) is rules
    asked = rules.for_group(CallGroup.INQUIRY)
    assert (asked.minimum_to_open, asked.open_at.unknown, asked.open_at.bad) == (5, 0.85, 0.85)
    assert (asked.minimum, asked.degrade_at) == (rules.minimum, rules.degrade_at)
    assert CircuitRules(minimum=1).for_group(CallGroup.INQUIRY).minimum_to_open == 1
    few = {count: SharedCircuit(reports={"one": row(HealthCounts(total=count, bad=count))}) for count in (4, 5)}

    def state(count: int, rules: CircuitRules) -> CircuitState:
        return report(few[count], "one", few[count].reports["one"], NOW, 0.5, rules).circuit.state

    assert (state(4, asked), state(5, asked), state(5, rules)) == (CLOSED, OPEN, CLOSED)
    lax = CircuitRules(open_at=CircuitThresholds(bad=0.6, unknown=0.9, slow=0.9))
    assert lax.for_group(CallGroup.INQUIRY).open_at.unknown == 0.9


@pytest.mark.parametrize(("draw", "lasts_ms"), [(0.0, 800), (0.5, 1000), (0.9999, 1199)])
def test_the_time_it_is_open_is_jittered(draw, lasts_ms):
    circuit = told({"one": BAD}, draw=draw).circuit
    assert circuit.until_ms - NOW == lasts_ms


def test_degraded_is_left_after_ten_clean_seconds():
    circuit = in_state(DEGRADED)
    assert state_after(WELL, circuit=circuit, now_ms=NOW + 9_999) is DEGRADED
    assert state_after(WELL, circuit=circuit, now_ms=NOW + 10_000) is CLOSED


def test_a_clean_while_makes_the_next_opening_a_first_one():
    reopened = told({"one": BAD}, in_state(CLOSED, opened=1), NOW + 5000)
    assert reopened.circuit.until_ms - NOW - 5000 == 1500
    clean = told({"one": WELL}, in_state(CLOSED, opened=3), NOW + 10_000)
    assert clean.circuit.opened == 0


@pytest.mark.parametrize(
    ("after_ms", "share"), [(0, 0.25), (749, 0.25), (750, 0.5), (1500, 1.0), (9999, 1.0), (-5, 0.25)]
)
def test_the_ramp_rises_by_its_stages(after_ms, share):
    assert ramp_share(in_state(RAMP), NOW + after_ms) == share


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        (HealthCounts(4, bad=4), RAMP),
        (HealthCounts(6, bad=3), RAMP),
        (HealthCounts(5, bad=3), OPEN),
        (HealthCounts(100, bad=51), OPEN),
    ],
)
def test_more_than_half_bad_in_the_ramp_opens_again(counts, state):
    after = told({"one": counts}, in_state(RAMP)).circuit
    assert after.state is state
    assert after.opened == (2 if state is OPEN else 1)


# --- probes


def probing(leases: int = 0) -> SharedCircuit:
    fleet = SharedCircuit(in_state(HALF_OPEN))
    for number in range(leases):
        fleet, granted = take_probe(fleet, f"lease {number}", NOW, 3000)
        assert granted
    return fleet


@pytest.mark.parametrize("state", CircuitState)
def test_probes_are_leased_only_while_half_open(state):
    assert take_probe(SharedCircuit(in_state(state)), "lease", NOW, 3000)[1] == (state is HALF_OPEN)


def test_an_open_circuit_whose_time_is_over_leases_at_once():
    fleet, granted = take_probe(SharedCircuit(in_state(OPEN)), "lease", NOW + 1000, 3000)
    assert granted
    assert fleet.circuit.state is HALF_OPEN


def test_fifty_that_race_get_three_probes():
    fleet, grants = SharedCircuit(in_state(HALF_OPEN)), 0
    for number in range(50):
        fleet, granted = take_probe(fleet, f"lease {number}", NOW, 3000)
        grants += granted
    assert grants == PROBES_MAX == len(fleet.leases)


def test_who_asks_again_with_the_same_lease_gets_the_same_answer():
    fleet = probing(3)
    again, granted = take_probe(fleet, "lease 1", NOW + 10, 3000)
    assert granted
    assert again.leases == fleet.leases


def test_a_lease_that_is_over_is_free_again():
    assert not take_probe(probing(3), "late", NOW + 2999, 3000)[1]
    fleet, granted = take_probe(probing(3), "late", NOW + 3000, 3000)
    assert granted
    assert set(fleet.leases) == {"late"}


def test_five_good_probes_start_the_ramp():
    fleet = SharedCircuit(in_state(HALF_OPEN))
    for number in range(PROBES_OK):
        assert fleet.circuit.state is HALF_OPEN
        fleet, _ = take_probe(fleet, str(number), NOW, 3000)
        fleet = end_probe(fleet, str(number), True, NOW + 1, 0.5)
    assert fleet.circuit.state is RAMP
    assert fleet.leases == {}


@pytest.mark.parametrize(
    ("votes", "state"),
    [
        ((False,), HALF_OPEN),
        ((False, False), OPEN),
        ((True, False, False), OPEN),
        ((False, True, False), OPEN),
        ((True, True, False, False), HALF_OPEN),
        ((True, True, False, True, False, False, True), HALF_OPEN),
        ((True, True, False, True, False, False, True, True), RAMP),
        ((True, True, True, True, False, True), RAMP),
        ((None,) * 9, HALF_OPEN),
    ],
)
def test_more_than_half_of_two_or_more_probes_opens_again(votes, state):
    fleet = SharedCircuit(in_state(HALF_OPEN))
    for number, ok in enumerate(votes):
        fleet, _ = take_probe(fleet, str(number), NOW, 3000)
        fleet = end_probe(fleet, str(number), ok, NOW + 1, 0.5)
    assert fleet.circuit.state is state


def test_a_late_vote_is_ignored():
    fleet = probing(1)
    assert end_probe(fleet, "lease 0", False, NOW + 3000, 0.5).circuit == fleet.circuit
    assert end_probe(fleet, "nobody's", False, NOW, 0.5).circuit == fleet.circuit


def test_a_vote_of_an_earlier_half_open_is_ignored():
    fleet = end_probe(end_probe(probing(3), "lease 0", False, NOW, 0.5), "lease 2", False, NOW, 0.5)
    assert fleet.circuit.state is OPEN
    later = advance(fleet, fleet.circuit.until_ms)
    assert later.circuit.state is HALF_OPEN
    assert end_probe(later, "lease 1", False, fleet.circuit.until_ms, 0.5).circuit == later.circuit


def test_no_probe_goes_out_against_retry_after():
    assert not take_probe(SharedCircuit(in_state(HALF_OPEN, gate_ms=NOW + 1)), "lease", NOW, 3000)[1]


def test_where_nothing_may_be_a_probe_ordinary_calls_try_it_after_a_while():
    """A provider that dedupes nothing would otherwise stay shut for ever."""
    assert advance(probing(), NOW + PATIENCE_MS).circuit.state is RAMP


def test_a_probe_that_is_out_is_waited_for():
    fleet = probing(1)
    assert advance(fleet, NOW + PATIENCE_MS).circuit.state is HALF_OPEN
    assert advance(fleet, NOW + 3000 + PATIENCE_MS).circuit.state is RAMP


# --- Retry-After


PARTIES = ("c:1", "c:2", "c:3", "c:4")


def gated(counts: HealthCounts, asked_ms: int, parties: int = 3, circuit: Circuit = Circuit()) -> Circuit:
    asks = dict.fromkeys(PARTIES[:parties], asked_ms)
    return report(SharedCircuit(circuit), "one", row(counts, NOW, circuit.epoch, asks), NOW, 0.5, RULES).circuit


def test_several_parties_that_were_asked_to_wait_hold_the_others_too():
    circuit = gated(HealthCounts(3, throttled=3, asked=3), NOW + 20_000)
    view = view_of(circuit, NOW)
    assert (view.decision, view.reason, view.retry_after_s) == (CircuitDecision.REFUSE, CircuitRefusal.THROTTLED, 20.0)
    assert view.limited_by is LimitedBy.PROVIDER
    assert view_of(circuit, NOW + 20_000).decision is CircuitDecision.PERMIT


def test_two_parties_hold_nobody_else_however_often_they_were_refused():
    assert gated(HealthCounts(100, throttled=100, asked=100), NOW + 20_000, parties=2).gate_ms == 0


def test_calls_that_failed_and_asked_for_nothing_hold_nobody():
    assert gated(HealthCounts(100, bad=50, throttled=50, asked=9), NOW + 20_000).gate_ms == 0
    assert gated(HealthCounts(100, asked=10), NOW + 20_000).gate_ms == NOW + 20_000


def test_a_429_that_concerns_everyone_is_not_one_among_several():
    asks = dict.fromkeys(("", *PARTIES[:2]), NOW + 20_000)
    one = row(HealthCounts(3, throttled=3, asked=3), NOW, 0, asks)
    assert report(SharedCircuit(), "one", one, NOW, 0.5, RULES).circuit.gate_ms == 0


def test_refusals_of_a_while_ago_do_not_count_among_several():
    fleet = SharedCircuit()
    for number, party in enumerate(PARTIES):
        now_ms = NOW + number * 5_001
        one = row(HealthCounts(3, throttled=3, asked=3), now_ms, 0, {party: now_ms + 120_000})
        fleet = report(fleet, "one", one, now_ms, 0.5, RULES)
    assert fleet.circuit.gate_ms == 0
    assert set(fleet.holds) == set(PARTIES)


def test_the_gate_is_never_moved_forward_in_time_and_never_beyond_half_a_minute():
    refused = HealthCounts(3, throttled=3, asked=3)
    assert gated(refused, NOW + 5, circuit=Circuit(gate_ms=NOW + 10)).gate_ms == NOW + 10
    assert gated(refused, NOW + 10**9).gate_ms == NOW + GATE_MAX_MS == NOW + 30_000


def test_open_lasts_at_least_as_long_as_everyone_is_held():
    assert gated(replace(BAD, asked=BAD.total), NOW + 20_000).until_ms == NOW + 20_000
    refused = HealthCounts(3, bad=3, asked=3)
    assert gated(refused, NOW + 20_000, circuit=in_state(OPEN)).until_ms == NOW + 20_000


def test_a_hold_refuses_its_party_and_lengthens_what_a_refusal_tells():
    held = {"c:1": NOW + 120_000, "": NOW + 5_000}
    one, other = (with_hold(view_of(Circuit(), NOW), held, party, NOW) for party in ("c:1", "c:2"))
    assert (one.reason, one.retry_after_s, one.limited_by) == (
        CircuitRefusal.THROTTLED,
        120.0,
        LimitedBy.CREDENTIAL,
    )
    assert (other.reason, other.retry_after_s, other.limited_by) == (CircuitRefusal.THROTTLED, 5.0, LimitedBy.PROVIDER)
    opened = view_of(in_state(OPEN, until_ms=NOW + 1_000), NOW)
    assert with_hold(opened, held, "c:1", NOW) == replace(opened, retry_after_s=120.0)
    gate = view_of(Circuit(gate_ms=NOW + 30_000), NOW)
    assert with_hold(gate, held, "c:2", NOW) is gate
    assert with_hold(gate, held, "c:1", NOW).retry_after_s == 120.0
    assert with_hold(view_of(Circuit(), NOW), held, "c:1", NOW + 120_000).decision is CircuitDecision.PERMIT


# --- operators


@pytest.mark.parametrize(("state", "before"), list(itertools.product(sorted(FORCIBLE), CircuitState)))
def test_a_forced_state_stands_whatever_is_reported(state, before):
    fleet = force(SharedCircuit(in_state(before)), state, BY, NOW, 60_000)
    for counts in (BAD, WELL):
        fleet = report(fleet, "one", row(counts, NOW + 500, fleet.circuit.epoch), NOW + 500, 0.5, RULES)
    assert fleet.circuit.state is state
    assert fleet.circuit.forced == BY
    passage = CircuitDecision.REFUSE if state is OPEN else CircuitDecision.PERMIT
    assert view_of(fleet.circuit, NOW + 500).decision is passage


@pytest.mark.parametrize("state", sorted(set(CircuitState) - FORCIBLE))
def test_what_lives_by_leases_and_seconds_cannot_be_forced(state):
    with pytest.raises(ValueError, match="cannot be forced"):
        force(SharedCircuit(), state, BY, NOW, 1000)


@pytest.mark.parametrize(("state", "after"), [(OPEN, HALF_OPEN), (CLOSED, CLOSED), (DEGRADED, CLOSED)])
def test_a_forced_state_ends_at_its_time_or_when_it_is_released(state, after):
    fleet = force(SharedCircuit(), state, BY, NOW, 60_000)
    for ended in (advance(fleet, NOW + 60_000), release(fleet, NOW + 10)):
        assert ended.circuit.state is after
        assert ended.circuit.forced is None


def test_releasing_what_is_not_forced_changes_nothing():
    assert release(SharedCircuit(in_state(OPEN)), NOW) == SharedCircuit(in_state(OPEN))


def test_an_operators_word_stands_above_the_gate():
    circuit = force(SharedCircuit(Circuit(gate_ms=NOW + 9000)), CLOSED, BY, NOW, 60_000).circuit
    assert view_of(circuit, NOW).decision is CircuitDecision.PERMIT


# --- what a call is told


@pytest.mark.parametrize(
    ("circuit", "draw", "passage", "reason", "retry_after_s"),
    [
        (Circuit(), 0.99, CircuitDecision.PERMIT, None, 0),
        (in_state(DEGRADED), 0.99, CircuitDecision.PERMIT, None, 0),
        (in_state(OPEN), 0.0, CircuitDecision.REFUSE, CircuitRefusal.OPEN, 1.0),
        (in_state(OPEN, until_ms=NOW), 0.0, CircuitDecision.PROBE, CircuitRefusal.PROBING, 1.0),
        (in_state(HALF_OPEN), 0.0, CircuitDecision.PROBE, CircuitRefusal.PROBING, 1.0),
        (in_state(RAMP), 0.24, CircuitDecision.PERMIT, None, 0),
        (in_state(RAMP), 0.25, CircuitDecision.REFUSE, CircuitRefusal.RAMP, 1.0),
        (in_state(OPEN, forced=BY), 0.0, CircuitDecision.REFUSE, CircuitRefusal.FORCED, 1.0),
    ],
)
def test_what_a_call_is_told(circuit, draw, passage, reason, retry_after_s):
    view = view_of(circuit, NOW, draw)
    assert (view.decision, view.reason, view.retry_after_s) == (passage, reason, retry_after_s)


# --- what counts


def evidence(
    fault: WireFault | None = None, phase: NetworkPhase = NetworkPhase.COMPLETE, took_s: float = 1
) -> Evidence:
    written = 100 if phase >= NetworkPhase.SENDING else 0
    return Evidence(phase, written, fault, None, "", took_s)


ILL = {
    ResultClass.RATE_LIMITED: Health.THROTTLED,
    ResultClass.TEMPORARY_PROVIDER_ERROR: Health.BAD,
    ResultClass.NETWORK_CONNECT_FAILURE: Health.BAD,
    ResultClass.NETWORK_READ_TIMEOUT: Health.UNKNOWN,
    ResultClass.PROVIDER_TIMEOUT: Health.UNKNOWN,
    ResultClass.UNKNOWN_OUTCOME: Health.UNKNOWN,
}


@pytest.mark.parametrize(
    "reading", sorted(FAILURE_CLASSES | {ResultClass.SUCCEEDED, ResultClass.FAILED, ResultClass.ABSENT})
)
def test_declines_and_the_callers_own_errors_are_signs_of_health(reading):
    seen = health_sample_of(reading, evidence(), 8.0)
    assert seen is not None
    assert seen.health is ILL.get(reading, Health.OK)


@pytest.mark.parametrize("fault", [WireFault.POOL_EXHAUSTED, WireFault.DNS_FAILURE, WireFault.LEASE_OVER])
def test_what_did_not_leave_for_reasons_of_our_own_is_not_counted(fault):
    unsent = evidence(fault, NetworkPhase.RESOLVING)
    assert health_sample_of(ResultClass.NETWORK_CONNECT_FAILURE, unsent, 8.0) is None


@pytest.mark.parametrize("fault", [WireFault.CONNECT_REFUSED, WireFault.CONNECT_TIMEOUT, WireFault.TLS_FAILURE])
def test_a_provider_that_cannot_be_reached_is_bad(fault):
    seen = health_sample_of(ResultClass.NETWORK_CONNECT_FAILURE, evidence(fault, NetworkPhase.CONNECTING), 8.0)
    assert seen is not None
    assert seen.health is Health.BAD


def test_slow_is_slow_however_it_ends():
    seen = health_sample_of(ResultClass.SUCCEEDED, evidence(took_s=8.0), 8.0)
    assert seen is not None
    assert seen.slow
    assert not seen.healthy


@pytest.mark.parametrize(
    ("reading", "fault", "overload"),
    [
        (ResultClass.RATE_LIMITED, None, True),
        (ResultClass.NETWORK_READ_TIMEOUT, WireFault.FIRST_BYTE_TIMEOUT, True),
        (ResultClass.UNKNOWN_OUTCOME, WireFault.RESET, False),
        (ResultClass.TEMPORARY_PROVIDER_ERROR, None, False),
        (ResultClass.SUCCEEDED, None, False),
    ],
)
def test_a_timeout_and_a_429_are_signs_of_overload_and_a_reset_is_not(reading, fault, overload):
    seen = health_sample_of(reading, evidence(fault), 8.0)
    assert seen is not None
    assert seen.overload is overload


def test_a_window_forgets():
    window = HealthWindow(10.0)
    for second in range(10):
        window.add(HealthSample(Health.UNKNOWN if second < 5 else Health.THROTTLED, slow=True), second * 1000)
    assert window.counts(9_000) == HealthCounts(10, bad=5, slow=10, unknown=5, throttled=5)
    assert window.counts(9_000, 3) == HealthCounts(3, slow=3, throttled=3)
    assert window.counts(14_000) == HealthCounts(5, slow=5, throttled=5)
    assert window.counts(19_000) == HealthCounts()
    window.clear()
    assert window.counts(9_000) == HealthCounts()


# --- whatever happens

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["report", "take", "vote", "force", "release", "wait"]),
        st.integers(0, 3),
        st.integers(0, 4000),
        st.tuples(*[st.integers(0, 40)] * 2),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_leases_are_bounded_and_versions_only_rise(events):
    fleet, now_ms = SharedCircuit(), NOW
    for verb, who, wait_ms, (total, bad) in events:
        before, now_ms = fleet, now_ms + wait_ms
        match verb:
            case "report":
                counts = HealthCounts(total, bad=min(bad, total))
                fleet = report(fleet, str(who), row(counts, now_ms, fleet.circuit.epoch), now_ms, 0.3, RULES)
            case "take":
                fleet, _ = take_probe(fleet, str(who), now_ms, 1500)
            case "vote":
                fleet = end_probe(fleet, str(who), bad % 3 != 0, now_ms, 0.3)
            case "force":
                fleet = force(fleet, sorted(FORCIBLE)[who % 3], BY, now_ms, 2000)
            case "release":
                fleet = release(fleet, now_ms)
            case _:
                fleet = advance(fleet, now_ms)
        after = fleet.circuit
        assert len(fleet.leases) <= PROBES_MAX
        assert after.state is HALF_OPEN or not fleet.leases
        assert after.version >= before.circuit.version
        assert (after.state is before.circuit.state) or after.version > before.circuit.version
        assert after.state is not OPEN or after.until_ms > now_ms or after.until_ms >= before.circuit.until_ms
        assert after.epoch <= after.version


def test_shares_that_are_not_given_are_never_reached():
    assert not CircuitThresholds(bad=2, unknown=2, slow=2).reached(HealthCounts(9, 9, 9, 9, 9))
