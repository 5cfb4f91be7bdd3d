"""`paywitness redirect`: kernel rules that send a service's calls to the sidecar, without a change of the service."""

from __future__ import annotations

import click

from paywitness.cli.ca import OneLineErrorsGroup
from paywitness.option_defaults import DEFAULTS
from paywitness.transparent.redirect import (
    FirewallBackend,
    RedirectRules,
    detect_backend,
    install,
    install_script,
    installed_rules,
    remove,
)

_BACKEND = click.option(
    "--backend",
    type=click.Choice([backend.value for backend in FirewallBackend]),
    help="The tool.  [default: nft if it is installed, else iptables]",
)


@click.group(cls=OneLineErrorsGroup)
def redirect() -> None:
    """Send a service's outgoing calls to the sidecar by kernel rules, without a proxy setting.

    The rules hold for one network namespace: a pod, a container, or this machine. Connections to ports 80 and 443 go to
    the sidecar. Connections of the sidecar's own user, to this machine and to private networks do not. The service must
    trust the local authority (paywitness ca env), and the sidecar must listen on this machine: --listen localhost:8700.

    \b
      paywitness redirect install --uid 1337          in an init container, as root
      paywitness redirect install --uid 1337 --dry-run
      paywitness redirect show
      paywitness redirect remove
    """


@redirect.command("install")
@click.option("--uid", type=click.IntRange(1), help="The user that the sidecar runs as. Its connections pass.")
@click.option("--gid", type=click.IntRange(1), help="Or its group.")
@click.option(
    "--to-port",
    type=click.IntRange(1, 65535),
    default=DEFAULTS.listen.port,
    show_default=True,
    help="The sidecar's port.",
)
@click.option("--ports", default="80,443", show_default=True, help="The destination ports to redirect.")
@click.option("--private", "private_too", is_flag=True, help="Also redirect connections to private networks.")
@click.option("--dry-run", is_flag=True, help="Print the rules and change nothing.")
@_BACKEND
def install_rules(
    uid: int | None, gid: int | None, to_port: int, ports: str, private_too: bool, dry_run: bool, backend: str | None
) -> None:
    """Install the rules. They replace those that we installed before."""
    if uid is None and gid is None:
        raise click.UsageError("give --uid or --gid of the sidecar, or it would be redirected to itself")
    wanted = RedirectRules(uid, gid, to_port, _ports(ports), private_too)
    chosen = FirewallBackend(backend) if backend else detect_backend()
    if dry_run:
        click.echo(install_script(wanted, chosen), nl=False)
        return
    install(wanted, chosen)
    click.echo(
        f"Connections to {ports} go to port {to_port}, but for the sidecar's own.\n{installed_rules(chosen)}", nl=False
    )


@redirect.command("remove")
@_BACKEND
def remove_rules(backend: str | None) -> None:
    """Remove the rules. If there are none, nothing happens."""
    remove(FirewallBackend(backend) if backend else detect_backend())
    click.echo("No rule of ours is left.")


@redirect.command()
@_BACKEND
def show(backend: str | None) -> None:
    """Show our rules in the kernel. Exit code 1 if there are none."""
    found = installed_rules(FirewallBackend(backend) if backend else detect_backend())
    if not found:
        click.echo("No rule of ours is installed.", err=True)
        raise SystemExit(1)
    click.echo(found, nl=False)


def _ports(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(port) for port in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < port < 65536 for port in found) or len(found) > 15:
        raise click.BadParameter(f"found {text!r}, allowed: up to 15 ports, such as 80,443", param_hint="--ports")
    return found
