"""`paywitness doctor`: whether this installation is fit to hold money, and what to change."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from typing import Any

import click
from rich.text import Text

from proxy.cli.ops_print import console
from proxy.cli.run import run, settings_of
from proxy.clock import SystemClock
from proxy.core.errors import SettingsError
from proxy.telemetry.lines import printable
from proxy.workbench.doctor import examine, unusable
from proxy.workbench.finding import Fitness, Report

_SHOWN = {"config", "policies", "journal", "limits", "listen", "admin", "webhooks", "home"}
_COLOURS = {Fitness.OK: "green", Fitness.WARNING: "yellow", Fitness.UNFIT: "bold red"}
_HELP = """Say whether this installation is fit to hold money, and what to change.

Takes the options, variables and paywitness.yaml of `paywitness run`, and looks at what that would use: policies,
secrets, journal, limits, machine. One line a check: ok, warning or unfit, what was found, why it matters, what to do.
It changes nothing, shows no secret, and ends within 15 seconds. Exit code 1 where anything is unfit.

\b
  paywitness doctor
  paywitness doctor --journal rediss://sidecar:...@redis.internal:6379/0 --json
"""


def _doctor(as_json: bool, **given: Any) -> None:
    try:
        settings = settings_of(given)
    except SettingsError as error:
        report = unusable(error)
    else:
        report = asyncio.run(
            examine(settings, os.environ, clock=SystemClock(), say=lambda text: click.echo(text, err=True))
        )
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if not report.fit:
        raise SystemExit(1)


def _print(report: Report) -> None:
    screen = console()
    width = max(len(finding.subject) for finding in report.findings)
    for finding in report.findings:
        fitness = Text(f"{finding.fitness.value:<8}", _COLOURS[finding.fitness])
        told = f"{finding.subject:<{width}}  {printable(finding.line)}"
        screen.print(Text.assemble(fitness, told), soft_wrap=True)
    screen.print(Text(report.verdict, "bold"), soft_wrap=True)


def _options() -> list[click.Parameter]:
    """Those of `run`, so that one paywitness.yaml serves both; the help shows those that matter here."""
    options: list[click.Parameter] = []
    for parameter in run.params:
        option = copy.copy(parameter)
        if isinstance(option, click.Option):
            option.hidden = option.name not in _SHOWN
        options.append(option)
    return [*options, click.Option(["--json", "as_json"], is_flag=True, help="For machines.")]


doctor = click.Command(
    "doctor", callback=_doctor, params=_options(), help=_HELP, context_settings={"show_default": True}
)
