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
        "The same faults and the same load, through Paywitness and through what else there is. The sandbox's ledger is "
        "the judge of all. This page is written by the command, its verdicts too; do not edit it.",
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
            "## What Paywitness aims at, and what it reached",
            "",
            "The worst of its lanes counts.",
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
        "## Where a peer is better",
        "",
        "By one measure in one scenario, than the better of Paywitness' lanes; the best peer is named. The last column "
        "says what it paid for it there: waits are of what was paid, and who sends little amplifies little. In an "
        "outage, goodput is a matter of patience: an open circuit refuses at once, so its caller has made both runs "
        "within a second or two, though it was told when to come back; who keeps trying for ten seconds pays more of "
        "those orders, at the price of the amplification in the tables.",
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
- **lost**: orders that are charged and whose shop does not know it when the run ends, also where somebody is still
  finding out; or that it has as paid and are not. Where a shop believes the opposite of what the ledger shows, this is
  told apart; of the others it does not know, and would have to look them up.
- **known unpaid**: orders that are not charged and whose shop knows it: it may try again whenever it likes.
- **goodput**: orders charged once whose job was told so. What was found out later is not in it.
- **amplification**: requests at the provider, inquiries too, for each run of a job. In an outage also of its first
  {OUTSET_S:.0f} s, when no circuit can have opened, of its first {OPENS_WITHIN_S:.0f} s, in which one opens, and of the
  rest. Paywitness tries a few again, as far as its budget goes; about the others it asks, and begins when the
  schedule of its policy does, after two seconds.
- **recovery**: from the end of the trouble until {WELL:.0%} of the orders of every following {BUCKET_S:g} s are paid at
  their first run; never: not in this run.
- **p50, p99**: from placing an order to being told "paid", where it was.
- **left unknown**: orders whose job ended without knowing. **resolved rightly**: of these, by the end of the run
  somebody had found out, and the ledger agrees. Only Paywitness has such a somebody; a shop may write one for itself.
"""


def _callers(run: Run) -> str:
    pace = run.pace
    return f"""\
## The callers

- {pace.orders_per_s:g} orders a second are placed, each at its time, whatever became of the others; each is one payment
  of its own. At low traffic it is one order a second.
  {min(pace.lanes_at_once, len(LANES))} lanes at most run side by side, each at a provider of its own; two
  if many orders come within a second, all at low traffic.
- A job pays an order in up to {JOB_RUNS} runs. It runs again, {JOB_PAUSE_S:g} s later, whenever it was not told "paid"
  or "declined": so do queues, and people. This is the same in every lane.
- Everybody waits {TRY_S:g} s for one try and {CALL_S:g} s for all tries of a run: less than a shop would, so that a run
  fits into minutes. Behind a proxy the client makes {HOW_A_PLAIN_CLIENT_WAITS}; Envoy with nothing set has its own
  timeouts, and mitmproxy none.
- The stripe SDK waits as long between its tries as it likes: all of a run may take it more than {CALL_S:g} s.
- A client that retries by itself has {TRIES} tries (naive), {STRIPE_RETRIES + 1} (stripe's default) or {TENACITY_TRIES}
  (tenacity); Envoy and Paywitness have 4, Envoy set with care 5, nginx 3.
- Keys are the lane's habit (below). SDKs mint a fresh one for every call, and so does the caller of Paywitness; an
  application that hands over the order's number instead is safer, at a provider that dedupes. This one does, and stores
  every executed answer under the key, a 500 too (contract `replayed`, as Stripe's).
- A job is as careful as it can be: what it cannot know it calls unknown, never failed. It knows that nothing was done
  when it could not connect, and when the provider (503 overloaded, 429) or the proxy says so: Paywitness by its
  outcome, Envoy and nginx where they tell that they tried once, for the last try says nothing of those before it.
- When the load is over, doubt has up to {pace.settle_s:g} s to be resolved; then the ledgers are read.

Lost responses are made of: {", ".join(f"`{name}` {share:.0%}" for name, share in LOST.items())}."""


def _configurations(run: Run) -> str:
    said = [
        "## Every lane's configuration",
        "",
        "All of it, so that it can be disputed. Where one of ten is bad, every proxy has ten sidecars.",
    ]
    for lane in LANES:
        client = "" if lane.client is Client.ONE_TRY else f" Client: {lane.client}."
        said += ["", f"**{lane.title}**. Keys: {lane.keys}.{client}", "", "```text"]
        said += [configuration_of(lane).rstrip(), "```"]
    return "\n".join(said)


_TRUST = """\
## How far to trust it

- We wrote both sides of it, and we know our own product better than the peers. Whoever can set one of them up better is
  asked to: its configuration is above, and one command measures it again.
- A budget and an ejection of Envoy's are each sidecar's own and count what it has in flight. Outlier detection is made
  for one bad host among many; with one host it is a circuit without probes, which sends everything when its time is
  over: hence no panic threshold, and short ejections. Longer ones would send less in the outage and recover later.
  Envoy's filters for admission control and adaptive concurrency were not tried.
- nginx re-sends a POST only because it is told to (`non_idempotent`); by itself it does not.
- The lanes of a scenario run in groups, one after the other, in the order of the tables. Paywitness is in the last one,
  with nginx and mitmproxy; of all lanes it needs most of the machine, and shares it with itself.
- The provider is ours. It fails as the scenarios say and is honest otherwise; real ones are worse in ways of their own.
  `bench/compare/scenarios.py` is short: change it and run again.
- The peers do what they were made for. None of them was made to know what became of a payment; a shop may build that
  around them: keys per order, a journal, reconciliation. Such a shop is not measured here.
- Waits include the machine: callers, provider, proxies and Redis share it. Compare them within a scenario only.
- A share of a few hundred orders has an error of a point or two; counts of double charges and lost payments need none:
  where there should be zero, one is too many.
- Paywitness runs with the shipped policy of the sandbox, its limits included; its upstream and timeouts are set, as
  many tries as Envoy and tenacity have (4, not 3), and as many retries of one order as two runs of a job can use (6,
  not 3). Its sidecars share one Redis, as a fleet would; in the lane of one it is there as well.
- Where a peer with a key per order has no double charges, that is the provider's doing, which dedupes. A provider that
  does not is not measured here.
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
