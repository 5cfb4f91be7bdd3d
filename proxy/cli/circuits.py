"""`paywitness circuits`: which providers are called and which are not, and how to force it, by a running proxy's admin
port. Exit code 1 where anything was not done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from proxy.admin.client import AdminRefused
from proxy.cli.circuits_print import print_circuit, print_circuits
from proxy.cli.ops_print import print_json
from proxy.cli.ops_where import EPILOG, Answer, ask, client_for, where
from proxy.core.circuit import FORCIBLE, Group
from proxy.telemetry.lines import printable


class _ListsUnlessTold(click.Group):
    """`circuits` alone is `circuits list`, its options too."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in context.help_option_names):
            args = ["list", *args]
        return super().parse_args(context, args)


@click.group(cls=_ListsUnlessTold, epilog=EPILOG)
def circuits() -> None:
    """See which providers are called, and force it where you know better.

    A circuit opens by itself when a provider is down, and closes when it is back: nothing has to be done. Force it
    where you know more than the calls show: announced maintenance, or an outage that looks like success.

    \b
      paywitness circuits                    how every circuit stands, and what is left for retries
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h
      paywitness circuits release acme write --reason "maintenance is over"

    The group `write` is payments; `inquiry` is our own questions about what became of them, which go on while payments
    are stopped.
    """


@circuits.command("list", epilog=EPILOG)
@where
def list_circuits(admin: str, token: str | None, home: Path, as_json: bool) -> None:
    """Show how every circuit stands, how full it is at each provider, and what is left for retries.

    "Retries left" is in units of cost, in the tightest of each scope: a retry costs 1 after what was not sent, 2 after
    an error, 4 after a lost answer.

    \b
      paywitness circuits list --json
    """
    client = client_for(admin, token, home)
    found = _asked(client.circuits) | _asked(client.budgets)
    if as_json:
        print_json(found)
    else:
        print_circuits(found)


_ACTOR = click.option("--actor", envvar="USER", show_envvar=True, required=True, help="Who does it.")
_PROVIDER = click.argument("provider")
_GROUP = click.argument("group", type=click.Choice([group.value for group in Group]))


@circuits.command("force", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.argument("state", type=click.Choice(sorted(state.value for state in FORCIBLE)))
@click.option("--reason", required=True, help="Why: others see it beside the circuit, and it is in the log.")
@click.option(
    "--for", "lasts", metavar="DURATION", default="1h", show_default=True, help="How long: 15m, 2h, at most 7d."
)
@_ACTOR
@where
def force_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, state: str, **given: str
) -> None:
    """Put a circuit into a state for a while, whatever the calls show.

    \b
      open      nothing is sent: new calls get 503 at once; what is in doubt is still looked after
      degraded  calls pass, low priority is shed, retries go only as far as they help
      closed    calls pass, also where the circuit would have opened or the provider asked to wait
    \b
      paywitness circuits force acme write open --reason "maintenance until 14:00" --for 2h

    It holds for all sidecars that share --limits, else for this one. After a forced open a few probes come first.
    """
    order = {"state": state, "actor": given["actor"], "reason": given["reason"], "for": given["lasts"]}
    client = client_for(admin, token, home)
    found = _asked(lambda: client.force(provider, group, order))
    _show(found, as_json=as_json)


@circuits.command("release", epilog=EPILOG)
@_PROVIDER
@_GROUP
@click.option("--reason", required=True, help="Why: it is in the log.")
@_ACTOR
@where
def release_circuit(
    admin: str, token: str | None, home: Path, as_json: bool, provider: str, group: str, actor: str, reason: str
) -> None:
    """Take an order back before its time. Where none is in force nothing changes.

    \b
      paywitness circuits release acme write --reason "maintenance is over"
    """
    client = client_for(admin, token, home)
    order = {"state": None, "actor": actor, "reason": reason}
    found = _asked(lambda: client.force(provider, group, order))
    _show(found, as_json=as_json)


def _show(found: Answer, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_circuit(found)


def _asked(question: Callable[[], Answer]) -> Answer:
    def plainly() -> Answer:
        try:
            return question()
        except AdminRefused as error:
            if error.status_code == 404:  # of no operation: what there is instead is in the answer
                raise click.ClickException(printable(str(error))) from None
            raise

    return ask(plainly)
