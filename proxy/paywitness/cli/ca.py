"""`paywitness ca`: the local authority, by which clients trust their proxy for the hosts of policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from paywitness.cli.run import default_policies
from paywitness.clock import SystemClock
from paywitness.core.errors import PaywitnessError, SettingsError
from paywitness.option_defaults import DEFAULTS, read_address
from paywitness.policy.book import load_directory
from paywitness.transparent.ca_files import LocalCaFiles, shell_lines
from paywitness.transparent.local_ca import LocalCa, utc_datetime

Command = TypeVar("Command", bound=Callable[..., Any])


def _home(command: Command) -> Command:
    option = click.option(
        "--home",
        default=str(DEFAULTS.home),
        show_default=True,
        type=click.Path(path_type=Path, file_okay=False),
        envvar="PAYWITNESS_HOME",
        help="Where the authority is kept, beside our other files.",
    )
    return option(command)


def _policies(command: Command) -> Command:
    option = click.option(
        "--policies",
        type=click.Path(path_type=Path),
        envvar="PAYWITNESS_POLICIES",
        help="The directory of policy files.  [default: ./policies, else those shipped]",
    )
    return option(command)


class OneLineErrorsGroup(click.Group):
    """Our own errors as one line, not as a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PaywitnessError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{error.filename or ''} {error.strerror or error}".strip()) from None


@click.group(cls=OneLineErrorsGroup)
def ca() -> None:
    """The local authority: what lets services reach providers through us without a change of code.

    A service whose HTTPS_PROXY is this sidecar asks for a tunnel to its provider. To see the calls inside, the sidecar
    answers in the provider's name, with certificates of an authority of its own that the service trusts. The authority
    is bound to the hosts of your policies: for any other name its certificates are void, whoever holds its key.

    \b
      paywitness ca init                    make it, or bind it to the hosts that policies have gained
      eval "$(paywitness ca env)"           what a service needs in its environment
      paywitness ca rotate                  prepare the next one; then: paywitness ca rotate --finish
    """


@ca.command()
@_home
@_policies
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also keep the bundle there, for services of other users to read. Remembered: rotate keeps it in step.",
)
def init(home: Path, policies: Path | None, bundle: Path | None) -> None:
    """Make the authority, or bind it anew to the hosts that policies name now.

    Run it again after a policy has gained a host: the key stays, so services go on trusting what they trust; for the
    new host they need the new bundle.
    """
    files, hosts = LocalCaFiles(home), _hosts(policies)
    before = files.read()
    if before is not None and not before.missing(hosts):
        click.echo(f"The authority covers every host of the policies: it was not changed.\n{_description(before)}")
    else:
        authority = files.create_or_extend(hosts, utc_datetime(SystemClock().now()))
        what = "made" if before is None else "bound anew, with the same key"
        click.echo(f"The authority was {what}.\n{_description(authority)}")
    files.publish(bundle)
    click.echo(f"Services trust it by {files.bundle_for_services}: see paywitness ca env.")


@ca.command()
@_home
@_policies
@click.option("--pem", is_flag=True, help="The certificate alone, for a trust store.")
def show(home: Path, policies: Path | None, pem: bool) -> None:
    """Show the authority: its names, its end, its fingerprint, and which hosts of the policies it does not cover."""
    files = LocalCaFiles(home)
    authority = _existing(files)
    if pem:
        click.echo(authority.pem.decode(), nl=False)
        return
    click.echo(_description(authority))
    prepared = files.read_next()
    if prepared is not None:
        click.echo(
            f"next          {prepared.fingerprint}\n              (paywitness ca rotate --finish puts it in force)"
        )
    missing = authority.missing(_hosts(policies))
    if missing:
        click.echo(f"not covered   {', '.join(missing)}\n              (paywitness ca init binds it to them)")


@ca.command()
@_home
@click.option("--proxy", default=str(DEFAULTS.listen), show_default=True, help="Where the sidecar listens.")
@click.option("--no-proxy", default="localhost,127.0.0.1,::1", show_default=True, help="What does not go through it.")
def env(home: Path, proxy: str, no_proxy: str) -> None:
    """Print what a service needs in its environment, as lines for a shell; and, as comments, what some clients need
    besides, because they bring roots of their own.

    \b
      eval "$(paywitness ca env)"
      paywitness ca env > /run/paywitness/env
    """
    files = LocalCaFiles(home)
    _existing(files)
    where = read_address(proxy, "--proxy")
    for line in shell_lines(where.url, no_proxy, files.bundle_for_services):
        click.echo(line)


@ca.command()
@_home
@_policies
@click.option("--finish", is_flag=True, help="The second step: the next authority signs from now on.")
def rotate(home: Path, policies: Path | None, finish: bool) -> None:
    """Change the authority for another, in two steps, so that nobody is cut off.

    First the next one joins the bundle: let every service load it. Then, with --finish, it signs; a running sidecar
    takes it over with its next connection.
    """
    files = LocalCaFiles(home)
    if finish:
        click.echo(f"The next authority is in force.\n{_description(files.activate_next())}")
        return
    _existing(files)
    prepared = files.prepare_next(_hosts(policies), utc_datetime(SystemClock().now()))
    click.echo(f"Prepared, and in {files.bundle_for_services}. It signs nothing yet.\n{_description(prepared)}")
    click.echo("Let every service load the bundle, then: paywitness ca rotate --finish")


def _hosts(policies: Path | None) -> tuple[str, ...]:
    book = load_directory(policies or default_policies())
    return tuple(sorted({host for provider in book.providers.values() for host in provider.hosts}))


def _existing(files: LocalCaFiles) -> LocalCa:
    authority = files.read()
    if authority is None:
        raise SettingsError(f"there is no authority in {files.home}: paywitness ca init makes one")
    return authority


def _description(authority: LocalCa) -> str:
    return "\n".join(
        [
            f"vouches for   {', '.join(authority.names)}",
            f"until         {authority.ends_at:%Y-%m-%d %H:%M} UTC",
            f"SHA-256       {authority.fingerprint}",
        ]
    )
