"""`paywitness doctor`: whether this installation is fit to hold money, and what to change."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from typing import Any

import click
from rich.text import Text

from paywitness.cli.ops.output import console
from paywitness.cli.run import run, settings_of
from paywitness.clock import SystemClock
from paywitness.core.errors import SettingsError
from paywitness.telemetry.logs import printable
from paywitness.tools.doctor.checklist import invalid_settings_report, run_checks
from paywitness.tools.doctor.runner import DoctorReport, Severity

_SHOWN_OPTIONS = {"config", "policies", "journal", "limits", "listen", "admin", "webhooks", "home"}
_COLOURS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.UNFIT: "bold red"}
_HELP = """Check whether this installation is fit to hold money, and show what to change.

Takes the options, variables and paywitness.yaml of `paywitness run`, and checks the parts that a run would use:
policies, secrets, journal, limits, machine. Each check prints one line: ok, warning or unfit, the finding, why it
matters, the remedy. It changes nothing, shows no secret, and ends within 15 seconds. Exit code 1 if anything is unfit.

\b
  paywitness doctor
  paywitness doctor --journal rediss://sidecar:...@redis.internal:6379/0 --json
"""


def _doctor(as_json: bool, **given: Any) -> None:
    try:
        settings = settings_of(given)
    except SettingsError as error:
        report = invalid_settings_report(error)
    else:
        report = asyncio.run(
            run_checks(settings, os.environ, clock=SystemClock(), progress=lambda text: click.echo(text, err=True))
        )
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if not report.fit:
        raise SystemExit(1)


def _print(report: DoctorReport) -> None:
    screen = console()
    width = max(len(finding.subject) for finding in report.findings)
    for finding in report.findings:
        severity = Text(f"{finding.severity.value:<8}", _COLOURS[finding.severity])
        text = f"{finding.subject:<{width}}  {printable(finding.line)}"
        screen.print(Text.assemble(severity, text), soft_wrap=True)
    screen.print(Text(report.summary, "bold"), soft_wrap=True)


def _options() -> list[click.Parameter]:
    """The options of `run`, so that one paywitness.yaml serves both. The help shows only those that matter here."""
    options: list[click.Parameter] = []
    for parameter in run.params:
        option = copy.copy(parameter)
        if isinstance(option, click.Option):
            option.hidden = option.name not in _SHOWN_OPTIONS
        options.append(option)
    return [*options, click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")]


doctor = click.Command(
    "doctor", callback=_doctor, params=_options(), help=_HELP, context_settings={"show_default": True}
)
