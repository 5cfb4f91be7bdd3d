"""`paywitness ca`: the local CA, by which clients trust the sidecar for the hosts of the policies."""

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
        help="The directory of the authority and of our other files.",
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
    """Prints our own errors as one line, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PaywitnessError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{error.filename or ''} {error.strerror or error}".strip()) from None


@click.group(cls=OneLineErrorsGroup)
def ca() -> None:
    """The local authority: with it, services reach providers through us without a change of code.

    A service whose HTTPS_PROXY is this sidecar requests a tunnel to its provider. To read the calls inside, the sidecar
    presents itself as the provider, with certificates of its own authority, which the service trusts. The authority is
    bound to the hosts of your policies: for any other name its certificates are void, whoever holds its key.

    \b
      paywitness ca init                    make it, or bind it to hosts that are new in the policies
      eval "$(paywitness ca env)"           set the environment of a service
      paywitness ca rotate                  prepare the next one; then: paywitness ca rotate --finish
    """


@ca.command()
@_home
@_policies
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also copy the bundle there, for services of other users to read. `rotate` keeps the copy up to date.",
)
def init(home: Path, policies: Path | None, bundle: Path | None) -> None:
    """Make the authority, or bind it anew to the hosts that policies name now.

    Run it again after you have added a host to a policy. The key stays, so services keep their trust. For the new host
    they need the new bundle.
    """
    files, hosts = LocalCaFiles(home), _hosts(policies)
    before = files.read()
    if before is not None and not before.missing(hosts):
        click.echo(f"The authority covers every host of the policies: it was not changed.\n{_description(before)}")
    else:
        authority = files.create_or_extend(hosts, utc_datetime(SystemClock().now()))
        what = "made" if before is None else "bound to the new hosts, with the same key"
        click.echo(f"The authority was {what}.\n{_description(authority)}")
    files.publish(bundle)
    click.echo(f"Services need the bundle {files.bundle_for_services}: see paywitness ca env.")


@ca.command()
@_home
@_policies
@click.option("--pem", is_flag=True, help="The certificate alone, for a trust store.")
def show(home: Path, policies: Path | None, pem: bool) -> None:
    """Show the authority: its names, its end, its fingerprint, and the hosts of the policies that it does not cover."""
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
@click.option("--proxy", default=str(DEFAULTS.listen), show_default=True, help="The sidecar's address.")
@click.option("--no-proxy", default="localhost,127.0.0.1,::1", show_default=True, help="Hosts not to proxy.")
def env(home: Path, proxy: str, no_proxy: str) -> None:
    """Print the environment that a service needs, as lines for a shell. Comments say what to do for clients that bring
    root certificates of their own.

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
    """Replace the authority by another, in two steps, so that no service loses its connection.

    The first step adds the next authority to the bundle: let every service load the bundle. The second step, with
    --finish, makes the next authority sign. A running sidecar uses it from its next connection on.
    """
    files = LocalCaFiles(home)
    if finish:
        click.echo(f"The next authority is in force.\n{_description(files.activate_next())}")
        return
    _existing(files)
    prepared = files.prepare_next(_hosts(policies), utc_datetime(SystemClock().now()))
    click.echo(f"The next authority is in {files.bundle_for_services}. It signs nothing yet.\n{_description(prepared)}")
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
