"""`paywitness journal`: the sidecars that hold the journal, its level, and how to raise it.

It uses the admin port of a running sidecar. The exit code is 1 if anything was not done.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from paywitness.cli.admin_options import EPILOG, AdminResponse, actor_option, admin_options, call_admin, client_for
from paywitness.cli.ops.output import print_json
from paywitness.telemetry.logs import printable


@click.group(epilog=EPILOG)
def journal() -> None:
    """Show which sidecars hold the journal, and raise its level after an upgrade.

    Neighbouring releases share a journal while you replace one sidecar after the other. Rules that an older release
    cannot keep begin when the journal's level is raised: limits are enforced only from then on, and an older sidecar is
    refused (it replies 504, and sends nothing). The level rises by itself once no older sidecar has been seen for ten
    leases, or you raise it. It is never lowered.

    Releases before levels (0.1) announce nothing. Stop them before you start a newer one.

    \b
      paywitness journal status
      paywitness journal upgrade --reason "all sidecars run 0.2"
    """


@journal.command("status", epilog=EPILOG)
@admin_options
def status(admin: str, token: str | None, home: Path, as_json: bool) -> None:
    """Show the level of the journal, and the sidecars that hold it.

    \b
      paywitness journal status --json
    """
    client = client_for(admin, token, home)
    _show(call_admin(client.journal), as_json=as_json)


@journal.command("upgrade", epilog=EPILOG)
@click.option("--reason", required=True, help="Why: it is in the log.")
@actor_option
@click.option(
    "--older-stopped", is_flag=True, help="You have stopped every older sidecar that was seen in the last ten leases."
)
@admin_options
def upgrade(
    admin: str, token: str | None, home: Path, as_json: bool, reason: str, actor: str, older_stopped: bool
) -> None:
    """Raise the journal to the level of this release, now instead of after ten leases.

    Sidecars of older releases are refused from then on. If one was seen lately, the command does nothing unless you
    confirm with --older-stopped that it is stopped.

    \b
      paywitness journal upgrade --reason "all sidecars run 0.2"
      paywitness journal upgrade --reason "the last 0.1 is stopped" --older-stopped
    """
    client = client_for(admin, token, home)
    command = {"actor": actor, "reason": reason, "older_stopped": older_stopped}
    _show(call_admin(lambda: client.upgrade_journal(command)), as_json=as_json)


def _show(found: AdminResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    click.echo(_level_text(found))
    for one in found["sidecars"]:
        seen = datetime.fromtimestamp(one["seen_at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        click.echo(printable(f"  {one['name']}  release {one['release']}, level {one['level']}, seen {seen}"))


def _level_text(found: AdminResponse) -> str:
    level, newest = found["level"], found["newest_level"]
    if level is None or level >= newest:
        return f"The journal is at level {level}, the newest that this release knows."
    older = " An older sidecar was seen lately." if found["older_lives"] else ""
    return (
        f"The journal is at level {level}; this release keeps level {newest}. Limits only warn until it is raised: by "
        f"`paywitness journal upgrade`, or by itself in {found['raises_in_s']:.0f} s if no older sidecar lives.{older}"
    )
