"""The options that the commands of the admin port share: its address, the token, who acts, the filters of a list."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from paywitness.admin.client import AdminClient, AdminRefused, AdminUnreachable
from paywitness.core.operation import State
from paywitness.core.provider_contract import OperationKind
from paywitness.option_defaults import DEFAULTS
from paywitness.telemetry.logs import printable

_STATES = [state.value for state in State]
_KINDS = [kind.value for kind in OperationKind]

EPILOG = """
\b
The token is that of the running proxy: --token, or PAYWITNESS_ADMIN_TOKEN, or the file
admin-token in --home, which `paywitness run` makes.
"""

Command = TypeVar("Command", bound=Callable[..., Any])
AdminResponse = dict[str, Any]


def admin_options(command: Command) -> Command:
    """The options for the admin port: its address, the token, and the form of the output."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print the admin API's JSON instead of text."),
        click.option(
            "--home",
            default=str(DEFAULTS.home),
            envvar="PAYWITNESS_HOME",
            show_envvar=True,
            type=click.Path(path_type=Path),
            show_default=True,
            help="The directory in which `paywitness run` keeps the admin token.",
        ),
        click.option(
            "--token",
            envvar="PAYWITNESS_ADMIN_TOKEN",
            show_envvar=True,
            help="The admin token. The variable is safer: other users of the machine can read arguments.",
        ),
        click.option(
            "--admin",
            default=DEFAULTS.admin.url,
            envvar="PAYWITNESS_ADMIN",
            show_envvar=True,
            show_default=True,
            help="The sidecar's admin port.",
        ),
    )
    return _with_options(options, command)


def _login_name() -> str:
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        return ""


def _checked_actor(context: click.Context, parameter: click.Parameter, actor: str) -> str:
    if not actor.strip():
        raise click.UsageError("Say who does it: --actor.")
    return actor


actor_option = click.option(
    "--actor",
    default=_login_name,
    show_default="you: $USER, or the name of your login",
    callback=_checked_actor,
    help="Who does it.",
)


def filter_options(command: Command) -> Command:
    """The filters that select operations."""
    options = (
        click.option("--account", metavar="ID", help="Only of this account: its id, or its name as callers give it."),
        click.option("--payment", metavar="ID", help="Only of this payment: its id, or the provider's name for it."),
        click.option("--amount", metavar='"10.99 EUR"', help="Only of exactly this amount and currency."),
        click.option("--order", metavar="ID", help="Only this order: the purchase or target that the policy names."),
        click.option("--key", help="Only under this key: the service's own, or the one that went to the provider."),
        click.option("--incidents", is_flag=True, help="Only operations with contradicting evidence."),
        click.option("--review", is_flag=True, help="Only operations that wait for a person."),
        click.option("--doubt", is_flag=True, help="Only operations whose outcome is unknown: unknown, and in review."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice(_STATES),
            metavar="STATE",
            help=f"Only in this state; repeatable. One of {', '.join(_STATES)}.",
        ),
        click.option(
            "--kind", type=click.Choice(_KINDS), metavar="KIND", help=f"Only of this kind: {', '.join(_KINDS)}."
        ),
        click.option("--operation", help="Only this operation's, as the policy names it: authorization, refund, ..."),
        click.option("--provider", help="Only this provider's."),
    )
    return _with_options(options, command)


def _with_options(options: tuple[Callable[[Any], Any], ...], command: Command) -> Command:
    for option in options:
        command = option(command)
    return command


def client_for(admin: str, token: str | None, home: Path) -> AdminClient:
    return AdminClient(admin, token or _stored_token(home))


def _stored_token(home: Path) -> str | None:
    """The token that `paywitness run` made, if there is one."""
    try:
        return (home / "admin-token").read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def call_admin(request: Callable[[], AdminResponse]) -> AdminResponse:
    try:
        return request()
    except AdminUnreachable as error:
        raise click.ClickException(str(error)) from None
    except AdminRefused as error:
        raise click.ClickException(printable(error_text(error))) from None


def error_text(error: AdminRefused) -> str:
    if error.status_code == 401:
        return (
            "The sidecar does not accept the admin token, or none was given. Give the one it was started with: "
            "--token, PAYWITNESS_ADMIN_TOKEN, or --home with the directory that holds its admin-token."
        )
    if error.status_code == 404:
        return f"{error} `paywitness ops list` shows its operations. Ended ones leave the journal after a while."
    return str(error)
