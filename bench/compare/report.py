"""Figures to docs/comparison.md and its pictures. Pure: texts in, texts out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.compare.callers import JOB_PAUSE_S, JOB_RUNS
from bench.compare.figures import BUCKET_S, OPENS_WITHIN_S, OUTSET_S, WELL, Figures
from bench.compare.lanes import (
    HOW_A_PLAIN_CLIENT_WAITS,
    LANES,
    STRIPE_RETRIES,
    TENACITY_TRIES,
    TRIES,
    Client,
    Lane,
    configuration_of,
)
from bench.compare.pictures import bars, lines
from bench.compare.scenarios import CALL_S, LOST, SCENARIOS, SEED, TRY_S, Pace, Scenario
from bench.compare.verdicts import LANE_NAMED, Table, aims, wins_of_peers

PICTURED = ("paywitness_1", "paywitness_4", "envoy_careful", "envoy_budget", "nginx", "naive")
LATE_S_MAX = 0.2
_SCENARIO_NAMED = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the comparison, with all that its figures stand on."""

    table: Table
    pace: Pace
    command: str
    took_minutes: float
    conditions: Sequence[str]
    versions: Mapping[str, str]
    not_measured: Mapping[str, str]  # lane -> why


def page(run: Run) -> str:
    parts = [_opening(run), _verdict(run), _wins(run), *_scenarios(run), _callers(run), _configurations(run), _TRUST]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


# -- the page's parts -------------------------------------------------------------------------------------------------


def _opening(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    said = [
        "# The comparison",
        "",
        "This page compares Paywitness with its alternatives under the same faults and the same load. The sandbox's "
        "ledger is the judge. The command writes this page, with its verdicts, so do not edit it.",
        "",
        "```text",
        "make compare                about twenty minutes; MINUTES=60 for a closer look",
        "make compare QUICK=1        about five minutes: a first look, not for a claim, and not written here",
        "```",
        "",
        f"This run: `{run.command}`, {run.took_minutes:.0f} minutes, seed {SEED}. {versions}.",
        "",
        "```text",
        *run.conditions,
        *_lateness(run.table),
        "```",
    ]
    if run.not_measured:
        said += ["", "Not measured:", ""]
        said += [f"- {title}: {why.strip().splitlines()[-1]}" for title, why in run.not_measured.items()]
    return "\n".join(said)


def _lateness(table: Table) -> Iterator[str]:
    """What a machine cannot place in time looks like a provider's delay: which scenarios not to trust."""
    for scenario in SCENARIOS:
        late_s = max((figures.placed_late_s for figures in table.get(scenario.name, {}).values()), default=0.0)
        said = f"{scenario.title}: orders were placed up to {1000 * late_s:.0f} ms late (p99 of the worst lane)"
        if late_s > LATE_S_MAX:
            said += ". WARNING: this machine was too busy, trust no figure of it"
        if scenario.name in table:
            yield said


def _verdict(run: Run) -> str:
    rows = [f"| {aim.text} | {aim.measured} | {aim.verdict} |" for aim in aims(run.table)]
    return "\n".join(
        [
            "## The aims of Paywitness, and the results",
            "",
            "For each aim the worst lane of Paywitness counts.",
            "",
            "| aim | measured | |",
            "|---|---|---|",
            *rows,
            "",
            "![Double charges and lost payments by lane](pictures/comparison-wrong.svg)",
            "",
            "![Goodput under random failures by lane](pictures/comparison-goodput.svg)",
            "",
            "![Recovery after an outage and a brownout by lane](pictures/comparison-recovery.svg)",
        ]
    )


def _wins(run: Run) -> str:
    wins = list(wins_of_peers(run.table))
    said = [
        "## Measures in which a peer is better",
        "",
        "Each row is one measure in one scenario. It names the best peer if that peer is better than the better lane "
        "of Paywitness. The last column shows the price of that: p50 and p99 cover only paid orders, and a peer that "
        "sends few requests has a low amplification. In an outage, goodput depends on patience. An open circuit "
        "refuses at once, so its caller has made both runs within a second or two, although the reply says when to "
        "come back. A lane that keeps trying for ten seconds pays more of those orders, at the price of the "
        "amplification in the tables.",
        "",
    ]
    if not wins:
        return "\n".join([*said, "Nowhere in this run."])
    said += [
        "| scenario | by | peer | it | Paywitness | its goodput, double charges, lost |",
        "|---|---|---|---|---|---|",
    ]
    for win in wins:
        title = _SCENARIO_NAMED[win.scenario].title
        paid = f"{_share(win.goodput)}, {win.doubles}, {win.lost}"
        said.append(f"| {title} | {win.measure} | {win.lane.title} | {win.theirs} | {win.ours} | {paid} |")
    return "\n".join(said)


def _scenarios(run: Run) -> Iterator[str]:
    pictured = {"hard_outage", "thundering_recovery"}
    yield _READING
    for name, lanes in run.table.items():
        scenario = _SCENARIO_NAMED[name]
        said = [f"### {scenario.title}", "", f"{scenario.what}{_when(scenario, run.pace)}", "", *_rows(scenario, lanes)]
        if name in pictured:
            said += ["", f"![Requests a second at the provider](pictures/comparison-{name}.svg)"]
        yield "\n".join(said)


def _when(scenario: Scenario, pace: Pace) -> str:
    if not scenario.has_edges:
        return f" {pace.load_s:.0f} s."
    return f" From {pace.lead_s:.0f} s to {pace.trouble_over_s:.0f} s of {pace.load_s:.0f} s."


def _rows(scenario: Scenario, lanes: Mapping[str, Figures]) -> Iterator[str]:
    heads = ["lane", "orders", "double charges", "lost", "known unpaid", "goodput", "amplification"]
    outage = scenario.name == "hard_outage"
    heads += [f"first {OUTSET_S:.0f} s of it", f"first {OPENS_WITHIN_S:.0f} s", "the rest"] if outage else []
    heads += ["recovery"] if scenario.has_edges else []
    heads += ["others' goodput", "others' p99"] if scenario.pods else []
    heads += ["p50", "p99", "left unknown", "resolved rightly"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" + "|---:" * (len(heads) - 1) + "|"
    for name, figures in lanes.items():
        lane = LANE_NAMED[name]
        title = f"**{_title(lane, scenario)}**" if lane.is_ours else lane.title
        counts = (str(figures.orders), str(figures.doubles), _lost(figures), str(figures.known_unpaid))
        cells = [title, *counts, _share(figures.goodput), _ratio(figures.amplification)]
        spans = (figures.amplification_outset, figures.amplification_early, figures.amplification_late)
        cells += map(_ratio, spans) if outage else []
        cells += [_seconds(figures.recovery_s)] if scenario.has_edges else []
        cells += [_share(figures.others_goodput), _millis(figures.others_p99_s)] if scenario.pods else []
        cells += [_millis(figures.p50_s), _millis(figures.p99_s), str(figures.unknown), _resolved(figures)]
        yield f"| {' | '.join(cells)} |"


def _title(lane: Lane, scenario: Scenario) -> str:
    return f"Paywitness, {scenario.pods} sidecars" if scenario.pods else lane.title


def _lost(figures: Figures) -> str:
    return f"{figures.lost}, {figures.told_wrongly} told wrongly" if figures.told_wrongly else str(figures.lost)


def _resolved(figures: Figures) -> str:
    if not figures.unknown:
        return ""
    wrong = f", {figures.resolved_wrongly} wrongly" if figures.resolved_wrongly else ""
    return f"{figures.resolved_rightly}{wrong}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else "never" if math.isinf(value) else f"{value:.1f} s"


def _millis(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{1000 * value:.0f} ms"


_READING = f"""\
## The scenarios

- **double charges**: orders that the ledger has charged twice or more.
- **lost**: orders that are charged and whose shop does not know it when the run ends, even if a lane is still
  inquiring; and orders that the shop has as paid and the ledger does not. If a shop believes the opposite of the
  ledger, the table counts this apart ("told wrongly"). The shop does not know the other lost orders, and would have
  to look them up.
- **known unpaid**: orders that are not charged and whose shop knows it. The shop may try again whenever it likes.
- **goodput**: orders charged once whose job was told so. An order that was resolved later does not count.
- **amplification**: requests at the provider, with inquiries, for each run of a job. In an outage the table also shows
  the first {OUTSET_S:.0f} s, when no circuit can have opened, the first {OPENS_WITHIN_S:.0f} s, in which one opens, and
  the rest. Paywitness tries a few orders again, as far as its budget goes. It inquires for the others, and begins after
  two seconds, as the schedule of its policy says.
- **recovery**: the time from the end of the trouble until {WELL:.0%} of the orders of every following {BUCKET_S:g} s
  are paid at their first run. "never": not in this run.
- **p50, p99**: the time from placing an order until the job is told "paid", of paid orders.
- **left unknown**: orders whose job ended without knowing. **resolved rightly**: of these, the orders that the lane had
  resolved by the end of the run, if the ledger agrees. Only Paywitness resolves orders by itself. A shop may write such
  a worker for itself.
"""


def _callers(run: Run) -> str:
    pace = run.pace
    return f"""\
## The callers

- The bench places {pace.orders_per_s:g} orders a second, each at its time, even if earlier orders are still open.
  Each is one payment of its own. At low traffic it is one order a second.
  At most {min(pace.lanes_at_once, len(LANES))} lanes run side by side, each at a provider of its own.
  If many orders come within a second, two lanes run side by side. At low traffic all do.
- A job pays an order in up to {JOB_RUNS} runs. It runs again, {JOB_PAUSE_S:g} s later, whenever it was not told "paid"
  or "declined", as queues and people do. This is the same in every lane.
- Every lane waits {TRY_S:g} s for one try and {CALL_S:g} s for all tries of a run. A shop would wait longer, but a run
  must fit into minutes. Behind a proxy the client makes {HOW_A_PLAIN_CLIENT_WAITS}. Envoy without settings has its own
  timeouts, and mitmproxy has none.
- The stripe SDK waits as long between its tries as it likes, so all tries of a run may take it more than {CALL_S:g} s.
- A client that retries by itself has {TRIES} tries (naive), {STRIPE_RETRIES + 1} (stripe's default) or {TENACITY_TRIES}
  (tenacity). Envoy and Paywitness have 4, Envoy set with care 5, nginx 3.
- Each lane has its own habit for keys (below). SDKs mint a fresh key for every call, and so does the caller of
  Paywitness. An application that passes the order's number as the key is safer at a provider that dedupes. This
  provider does, and stores every executed response under the key, also a 500 (contract `replayed`, as Stripe's).
- A job is as careful as it can be. It calls an outcome unknown, never failed, if it cannot know it. It knows that
  nothing was done if it could not connect, or if the provider (503 overloaded, 429) or the proxy says so. Paywitness
  says so by its outcome. Envoy and nginx say so only if they report that they tried once, because the last try
  proves nothing about those before it.
- When the load is over, doubt has up to {pace.settle_s:g} s to be resolved. Then the bench reads the ledgers.

Lost responses consist of: {", ".join(f"`{name}` {share:.0%}" for name, share in LOST.items())}."""


def _configurations(run: Run) -> str:
    said = [
        "## Every lane's configuration",
        "",
        "These are complete, so that you can dispute them. If one of ten is bad, every proxy has ten sidecars.",
    ]
    for lane in LANES:
        client = "" if lane.client is Client.ONE_TRY else f" Client: {lane.client}."
        said += ["", f"**{lane.title}**. Keys: {lane.keys}.{client}", "", "```text"]
        said += [configuration_of(lane).rstrip(), "```"]
    return "\n".join(said)


_TRUST = """\
## How far to trust it

- We wrote the bench and one of the products, and we know our own product better than the peers. If you can set up a
  peer better, please do: its configuration is above, and one command measures it again.
- Each sidecar of Envoy has its own budget and its own ejection, and counts what it has in flight. Outlier detection
  is made for one bad host among many. With one host it is a circuit without probes, which sends everything when its
  time is over. Hence there is no panic threshold, and ejections are short. Longer ones would send less in the outage
  and recover later. Envoy's filters for admission control and adaptive concurrency were not tried.
- nginx re-sends a POST only because `non_idempotent` is set. By itself it does not.
- The lanes of a scenario run in groups, one after the other, in the order of the tables. Paywitness is in the last
  group, with nginx and mitmproxy. Of all lanes it needs most of the machine, and it shares the machine with itself.
- The provider is ours. It fails as the scenarios say and is honest otherwise. Real providers are worse in ways of their
  own. `bench/compare/scenarios.py` is short: change it and run again.
- The peers do the work that they were made for. None of them was made to know the outcome of a payment. A shop may
  build that around them: keys per order, a journal, reconciliation. Such a shop is not measured here.
- Waits include the machine: callers, provider, proxies and Redis share it. Compare them within a scenario only.
- A share of a few hundred orders has an error of a point or two. Counts of double charges and lost payments have none:
  if there should be zero, one is too many.
- Paywitness runs with the shipped policy of the sandbox and its limits. These settings differ: the upstream, the
  timeouts, as many tries as Envoy and tenacity have (4, not 3), and as many retries of one order as two runs of a job
  can use (6, not 3). Its sidecars share one Redis, as a fleet would. The lane of one sidecar has that Redis as well.
- If a peer with a key per order has no double charges, that is because the provider dedupes. A provider that does not
  dedupe is not measured here.
"""


# -- pictures ---------------------------------------------------------------------------------------------------------


def pictures(run: Run) -> dict[str, str]:
    """File name -> SVG. The same names in every run, for the page links to them."""
    titles = {lane.name: lane.title for lane in LANES}
    wrong = []
    for lane in LANES:
        figures = [lanes[lane.name] for lanes in run.table.values() if lane.name in lanes]
        if figures:
            counts = (sum(one.doubles for one in figures), sum(one.lost for one in figures))
            wrong.append((lane.title, counts, lane.is_ours))
    goodput = [
        (titles[name], tuple(round(100 * value, 1) for value in values), LANE_NAMED[name].is_ours)
        for name in titles
        if len(values := _goodputs(run.table, name)) == 2
    ]
    recovery = [
        (titles[name], spans, LANE_NAMED[name].is_ours)
        for name in titles
        if not all(map(math.isnan, spans := _recoveries(run.table, name)))
    ]
    drawn = {
        "comparison-wrong.svg": bars("Orders gone wrong, all scenarios", wrong, ("double charges", "lost payments")),
        "comparison-goodput.svg": bars("Goodput, % of orders", goodput, ("25% random failures", "50%")),
        "comparison-recovery.svg": bars(
            "Recovery: until orders are paid at their first run again", recovery, ("hard outage", "brownout"), " s"
        ),
    }
    trouble = (run.pace.lead_s, run.pace.trouble_over_s)
    for name in ("hard_outage", "thundering_recovery"):
        lanes = run.table.get(name, {})
        rates = {titles[lane]: lanes[lane].requests_per_s for lane in PICTURED if lane in lanes}
        title = f"{_SCENARIO_NAMED[name].title}: requests a second at the provider"
        drawn[f"comparison-{name}.svg"] = lines(title, rates, trouble, "outage")
    return drawn


def _goodputs(table: Table, lane: str) -> list[float]:
    both = [table.get(name, {}) for name in ("random_25", "random_50")]
    return [lanes[lane].goodput for lanes in both if lane in lanes]


def _recoveries(table: Table, lane: str) -> tuple[float, ...]:
    """Not a number: not measured."""
    both = [table.get(name, {}).get(lane) for name in ("hard_outage", "brownout")]
    return tuple(math.nan if one is None or one.recovery_s is None else one.recovery_s for one in both)
