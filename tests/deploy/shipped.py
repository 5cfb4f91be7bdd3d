"""What is shipped in deploy/, as the tests read it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from paywitness.cli.main import main
from paywitness.cli.run import run
from paywitness.option_defaults import ADMIN_TOKEN, ENCRYPTION_KEYS, EVENTS_SECRET, IDENTITY_SECRET

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
OUR_USER = 1337
GRACE_S = float(next(option.default for option in run.params if option.name == "grace_seconds"))  # type: ignore[arg-type]

SECRETS = {IDENTITY_SECRET, ENCRYPTION_KEYS, ADMIN_TOKEN, EVENTS_SECRET}
VARIABLES = {str(option.envvar) for option in run.params if option.envvar} | SECRETS


def tool(program: str) -> str:
    """Where it is: in the virtual environment, else the system's."""
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    assert found, f"{program} is missing (`make test` installs it)"
    return found


def told(program: str, *arguments: str) -> str:
    """What a tool complains about; "" where all is well."""
    done = subprocess.run([tool(program), *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unknown_variables(names: set[str]) -> set[str]:
    """Those that begin as ours do, and are none of ours."""
    return {name for name in names if name.startswith("PAYWITNESS_")} - VARIABLES


def parse(arguments: list[str]) -> str:
    """The full name of the command that these arguments call; raises where it or an option does not exist."""
    command: click.Command = main
    context, rest = click.Context(main), list(arguments)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, rest)
    return context.command_path.strip()
