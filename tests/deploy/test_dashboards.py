"""The dashboards: what is committed is what is generated, and every panel asks for what exists, in the right way."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from deploy.grafana.boards import BOARDS
from deploy.grafana.chart import Board, Chart, Kind
from deploy.grafana.drawing import drawn
from deploy.grafana.meanings import AMBER, BLUE, GREEN, GREY, RED, colours_by_word
from paywitness.core.operation import Outcome
from paywitness.core.result import FAILURE_CLASSES, ResultClass
from tests.deploy.rules import TOP

METRICS = (TOP / "docs" / "metrics.md").read_text("utf-8")
FOLDER = TOP / "deploy" / "grafana"
# Grafana's names of units; another word is shown as it stands, behind the number.
UNITS = {"short", "locale", "s", "ops", "reqps", "percentunit", "bytes"}
DURATIONS_SUFFIX = re.compile("_(bucket|count|sum)$")
CHARTS = [pytest.param(chart, id=f"{board.name}: {chart.title}") for board in BOARDS for chart in board.charts]


def documented() -> dict[str, str]:
    """Metric -> what the page says of it."""
    sections = (section.partition("\n") for section in METRICS.split("\n### ")[1:])
    return {name: text for name, _, text in sections}


def named_in(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = re.findall(r"\b(?:payment|paywitness|process)_\w+", bare)
    return {DURATIONS_SUFFIX.sub("", name) for name in names}


def panels_of(board: Board) -> Iterator[dict]:
    return (panel for panel in json.loads(drawn(board))["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_what_is_committed_is_what_is_generated(board: Board) -> None:
    committed = (FOLDER / f"{board.name}.json").read_text("utf-8")
    assert committed == drawn(board), "run: make dashboards"


def test_there_are_the_six_and_no_others() -> None:
    assert [board.title.removeprefix("Paywitness / ") for board in BOARDS] == [
        "Overview",
        "Provider health",
        "Retries and budgets",
        "Unknown outcomes",
        "Fallback and incidents",
        "The proxy itself",
    ]
    assert {file.stem for file in FOLDER.glob("*.json")} == {board.name for board in BOARDS}


def test_every_metric_is_on_a_dashboard() -> None:
    asked = {
        name for board in BOARDS for chart in board.charts for query in chart.queries for name in named_in(query.expr)
    }
    not_worth_a_panel = {"process_virtual_memory_bytes"}  # nothing follows from it
    assert asked == set(documented()) - not_worth_a_panel


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboard_can_be_narrowed_by_provider_operation_kind_and_instance(board: Board) -> None:
    variables = {each["name"]: each for each in json.loads(drawn(board))["templating"]["list"]}
    assert list(variables) == ["datasource", "provider", "operation", "kind", "instance", "docs"]
    assert all(variables[name]["includeAll"] for name in ("provider", "operation", "kind", "instance"))
    panels = list(panels_of(board))
    assert Counter(panel["id"] for panel in panels).most_common(1)[0][1] == 1
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {"${datasource}"}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_no_panel_lies_over_another(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(drawn(board))["panels"]:
        at = {"x": 0, "y": 0, **panel["gridPos"]}
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("chart", CHARTS)
def test_a_panel_says_what_it_shows_and_what_to_do_when_it_is_red(chart: Chart) -> None:
    assert len(chart.shows) > 10
    assert len(chart.when_red) > 10
    assert chart.unit in UNITS
    assert (chart.kind is Kind.STATES) == bool(chart.states)
    for query in chart.queries:
        assert "vector(" not in query.expr, "nothing is made up where there is no data"
        assert query.legend


@pytest.mark.parametrize("chart", CHARTS)
def test_a_share_of_calls_leaves_out_those_that_match_no_operation(chart: Chart) -> None:
    """They have no attempts: whoever reads a lot would seem to retry nothing."""
    for query in chart.queries:
        _, divided, by = query.expr.partition(") / ")
        if divided and "payment_call_duration_seconds" in by:
            assert by.count("payment_call_duration_seconds") == by.count('operation!="none"'), query.expr


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_number_is_that_of_this_moment(board: Board) -> None:
    """The last one of a range stays green for hours after the last sidecar has died."""
    for panel in panels_of(board):
        if panel["type"] == "stat":
            assert all(target["instant"] and not target.get("range") for target in panel["targets"]), panel["title"]
            named = any("{{" in target["legendFormat"] for target in panel["targets"])
            assert panel["options"]["textMode"] == ("value_and_name" if named else "value")


@pytest.mark.parametrize("chart", CHARTS)
def test_a_panel_asks_by_the_variables_and_sums_journals_not_sidecars(chart: Chart) -> None:
    for query in chart.queries:
        asked = [text for text in re.findall(r"\{([^}]*)\}", query.expr) if "alertname" not in text]
        assert all('instance=~"$instance"' in text for text in asked)
        for name in named_in(query.expr):
            if "Gauge (from the journal)" not in documented()[name]:
                continue
            if "age_seconds" in name:  # of the oldest one, in whichever journal
                assert re.search(rf"max( by \([\w, ]+\) )?\({name}\b", query.expr), query.expr
            else:
                taken = rf"sum( by \([\w, ]+\) )?\(max by \(journal\b[\w, ]*\) \({name}\b"
                assert re.search(taken, query.expr), query.expr


@pytest.mark.parametrize("chart", CHARTS)
def test_a_share_is_of_what_was_counted_at_the_same_provider(chart: Chart) -> None:
    """Calls are counted at the provider that was addressed: of one that only gets fallbacks there are none."""
    for query in chart.queries:
        _, divided, whole = query.expr.partition(") / ")
        if divided and "by (provider" in whole:
            assert "payment_call_duration_seconds" not in whole, query.expr


@pytest.mark.parametrize("chart", CHARTS)
def test_a_runbook_is_a_link_and_not_a_word_of_the_description(chart: Chart) -> None:
    if chart.runbook is not None:
        assert (TOP / "docs" / "runbooks" / f"{chart.runbook}.md").exists()
    assert "Runbook " not in chart.description, "name the runbook by `runbook`, so that the panel links to it"


def test_every_runbook_but_those_of_no_data_is_linked_from_a_panel() -> None:
    linked = {chart.runbook for board in BOARDS for chart in board.charts}
    pages = {page.stem for page in (TOP / "docs" / "runbooks").glob("*.md")}
    assert pages - linked == {"absent", "down", "journal-rollback"}  # nothing is drawn of a sidecar that is not there


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_panel_links_to_its_runbook_under_the_address_that_the_reader_gave(board: Board) -> None:
    runbooks = {chart.title: chart.runbook for chart in board.charts if chart.runbook is not None}
    links = {panel["title"]: panel["links"] for panel in panels_of(board) if panel.get("links")}
    assert set(links) == set(runbooks)
    for title, (link,) in links.items():
        assert link["url"] == f"${{docs:raw}}/runbooks/{runbooks[title]}.md"


COLOURED = {"succeeded": GREEN, "failed": GREY, "declined": BLUE, "unknown": AMBER}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_an_outcome_has_the_same_colour_on_every_panel(board: Board) -> None:
    for panel in panels_of(board):
        shown = {
            override["matcher"]["options"]: override["properties"][0]["value"]["fixedColor"]
            for override in panel["fieldConfig"].get("overrides", [])
            if override["properties"][0]["id"] == "color"
        }
        by_outcome = any(target["legendFormat"].endswith("{{outcome}}") for target in panel["targets"])
        for word, colour in COLOURED.items() if by_outcome else ():
            assert shown[f"/(^| ){word}$/"] == colour, panel["title"]


def test_every_outcome_and_every_class_has_a_colour() -> None:
    ends = set(Outcome) - {Outcome.NONE, Outcome.IN_FLIGHT}
    assert ends <= set(colours_by_word(["{{kind}} {{outcome}}"]))
    assert FAILURE_CLASSES | {ResultClass.SUCCEEDED} <= set(colours_by_word(["{{failure_class}}"]))
    assert colours_by_word(["{{provider}}", "95%"]) == {}


def test_incidents_are_red() -> None:
    charts = {chart.title: chart for board in BOARDS for chart in board.charts}
    assert charts["Incidents, by kind"].colour == charts["Late or duplicate success"].colour == RED


def test_money_is_red_by_its_currency() -> None:
    (panel,) = [panel for panel in panels_of(BOARDS[0]) if panel["title"] == "Money in doubt"]
    red = {
        override["matcher"]["options"]: override["properties"][0]["value"]["steps"][-1]
        for override in panel["fieldConfig"]["overrides"]
    }
    assert red["EUR"] == {"color": "red", "value": 10_000}
    assert red["JPY"] == {"color": "red", "value": 1_500_000}
    assert "red" not in {step["color"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]}
