"""A board as Grafana's own JSON, by Grafana's own types: a misspelt field does not pass."""

from __future__ import annotations

import json
from dataclasses import replace

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as NumberPanel
from grafana_foundation_sdk.builders.statetimeline import Panel as StatesPanel
from grafana_foundation_sdk.builders.timeseries import Panel as LinesPanel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.chart import INSTANCE, PROVIDER, Board, Chart, Kind, Section
from deploy.grafana.meanings import AMBER, BLUE, colours_by_word

_TAG = "paywitness"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = {Kind.NUMBER: 4, Kind.LINES: 8, Kind.STATES: 6}
# What the builders give to every variable, and Grafana's own types to one kind alone that is not used here.
_NO_VARIABLES_OF_OURS = ("auto", "auto_count", "auto_min")
_VARIABLES = {
    "provider": "label_values(payment_operation_unknown_total, provider)",
    "operation": 'label_values(payment_operation_unknown_total{provider=~"$provider"}, operation)',
    "kind": 'label_values(payment_operation_unknown_total{provider=~"$provider"}, kind)',
    "instance": "label_values(paywitness_build_info, instance)",
}
# Where the docs are read: panels link to their runbooks there. Grafana shows it as a field that anybody can fill in.
_DOCS = "https://git.example.com/paywitness/docs"
# What is newly so, and was not so before: compared over one step, so that each change is marked once. Grafana's types
# do not know the last three fields of an annotation from Prometheus.
STEP = "15s"
_STATES = f"max by (provider, group, state) (payment_circuit_state{{{PROVIDER}}}"
_REVISIONS = f"count by (revision) (paywitness_policy_info{{{INSTANCE}}}"
ANNOTATIONS = {
    "Policies": (
        f"{_REVISIONS}) unless {_REVISIONS} offset {STEP})",
        BLUE,
        {"step": STEP, "titleFormat": "Policies in force", "textFormat": "revision {{revision}}"},
    ),
    "Circuits": (
        f"({_STATES}) == 1) and ({_STATES} offset {STEP}) == 0)",
        AMBER,
        {"step": STEP, "titleFormat": "Circuit {{state}}", "textFormat": "{{provider}} {{group}}"},
    ),
}


def drawn(board: Board) -> str:
    """The file that Grafana imports."""
    made = (
        builders.Dashboard(board.title)
        .uid(f"paywitness-{board.name}")
        .description(board.shows)
        .tags([_TAG])
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Paywitness")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in _VARIABLES.items():
        made = made.with_variable(_variable(name, query))
    docs = models.VariableOption(selected=True, text=_DOCS, value=_DOCS)
    made = made.with_variable(builders.TextBoxVariable("docs").label("Docs").default_value(_DOCS).current(docs))
    for name, (expr, colour, _) in ANNOTATIONS.items():
        made = made.annotation(
            builders.AnnotationQuery().name(name).datasource(_SOURCE).enable(True).icon_color(colour).expr(expr)
        )
    number = 0
    for section in board.sections:
        number += 1
        made = made.with_row(builders.Row(section.title).id(number))
        for chart in _in_whole_lines(section):
            number += 1
            made = made.with_panel(_panel(chart).id(number))
    plain = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    for variable in plain["templating"]["list"]:
        for name in _NO_VARIABLES_OF_OURS:
            variable.pop(name, None)
    for annotation in plain["annotations"]["list"]:
        annotation.update(ANNOTATIONS[annotation["name"]][2])
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _in_whole_lines(section: Section) -> tuple[Chart, ...]:
    """A section whose lines are not filled would be drawn over by the next."""
    filled = 0
    for chart in section.charts:
        filled = chart.width if filled + chart.width > 24 else filled + chart.width
        if filled == 24:
            filled = 0
    assert filled == 0, f"the charts of {section.title!r} do not fill their last line"
    return section.charts


def _variable(name: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(chart: Chart) -> NumberPanel | LinesPanel | StatesPanel:
    panel: NumberPanel | LinesPanel | StatesPanel
    if chart.kind is Kind.NUMBER:
        panel = _number(chart)
    elif chart.kind is Kind.STATES:
        panel = _states(chart)
    else:
        panel = _lines(chart)
    panel = (
        panel.title(chart.title)
        .description(chart.description)
        .datasource(_SOURCE)
        .unit(chart.unit)
        .thresholds(_thresholds(chart))
        .span(chart.width)
        .height(_HEIGHT[chart.kind])
    )
    if chart.decimals is not None:
        panel = panel.decimals(chart.decimals)
    if chart.runbook is not None:
        panel = panel.links([_link_to(chart.runbook)])
    for name, red in chart.red_of.items():
        panel = panel.override_by_name(name, [_own_thresholds(chart, red)])
    if chart.nothing is not None:
        panel = panel.no_value(chart.nothing)
    for place, query in enumerate(chart.queries):
        target = Dataquery().expr(query.expr).ref_id(chr(ord("A") + place)).datasource(_SOURCE)
        if chart.kind is Kind.NUMBER:
            target = target.instant()
        panel = panel.with_target(target.legend_format(query.legend).exemplar(query.exemplars))
    return panel


def _link_to(runbook: str) -> builders.DashboardLink:
    return (
        builders.DashboardLink(f"Runbook: {runbook}")
        .type(models.DashboardLinkType.LINK)
        .url(f"${{docs:raw}}/runbooks/{runbook}.md")
        .target_blank(True)
    )


def _own_thresholds(chart: Chart, red: float) -> models.DynamicConfigValue:
    """From where on this one is red."""
    return models.DynamicConfigValue(id_val="thresholds", value=_thresholds(replace(chart, red=red)).build())


def _number(chart: Chart) -> NumberPanel:
    """The value now, its background in its colour: read from across the room. Asked for this moment alone: the last one
    of a range is green for hours after the last sidecar has died."""
    named = any("{{" in query.legend for query in chart.queries)
    return (
        NumberPanel()
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME if named else common.BigValueTextMode.VALUE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def _lines(chart: Chart) -> LinesPanel:
    panel = (
        LinesPanel()
        .line_width(1)
        .fill_opacity(30 if chart.stacked else 5)
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .legend(
            common_builders.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
        )
    )
    if chart.colour is not None:
        shades = builders.FieldColor().mode(models.FieldColorModeId.SHADES).fixed_color(chart.colour)
        panel = panel.color_scheme(shades)
    for word, colour in colours_by_word([query.legend for query in chart.queries]).items():
        fixed = models.FieldColor(mode=models.FieldColorModeId.FIXED, fixed_color=colour)
        panel = panel.override_by_regexp(f"/(^| ){word}$/", [models.DynamicConfigValue("color", fixed)])
    if not chart.red_below:
        panel = panel.axis_soft_min(0)  # a line that moves by a hundredth must not fill the panel
    if chart.stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if chart.red is not None:
        dashed = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(dashed)
    return panel


def _states(chart: Chart) -> StatesPanel:
    texts = {
        str(number): models.ValueMappingResult(text=text, color=colour, index=number)
        for number, (text, colour) in enumerate(chart.states)
    }
    return StatesPanel().mappings([models.ValueMap(options=texts)]).merge_values(True)


def _thresholds(chart: Chart) -> builders.ThresholdsConfig:
    below, above = ("red", "green") if chart.red_below else ("green", "red")
    steps = [models.Threshold(value=None, color=below if chart.red is not None else "green")]
    if chart.yellow is not None:
        steps.append(models.Threshold(value=chart.yellow, color="yellow"))
    if chart.red is not None:
        steps.append(models.Threshold(value=chart.red, color=above))
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
