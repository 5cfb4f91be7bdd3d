"""`paywitness run`: the proxy, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click
import yaml

from proxy.core.errors import PaywitnessError, SettingsError
from proxy.policy.shipped import shipped_directory
from proxy.sandbox.server import Sandbox
from proxy.settings import Settings, check_limits, read_address
from proxy.wiring import serve

_FILE_BYTES_MAX = 64 * 1024


def _read_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Values of `paywitness.yaml` become defaults: the environment and flags win over them."""
    found = path or Path("paywitness.yaml")
    if not found.is_file():
        if path is not None:
            raise click.BadParameter(f"{path} is not a file")
        return path
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name}
    try:
        values: Any = yaml.safe_load(found.read_bytes()[:_FILE_BYTES_MAX]) or {}
    except yaml.YAMLError as error:
        raise click.BadParameter(f"{found} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise click.BadParameter(f"{found} must be a mapping of option names to values")
    named = {str(key).replace("-", "_"): value for key, value in values.items()}
    unknown = sorted(set(named) - set(known))
    if unknown:
        allowed = ", ".join(sorted(name.replace("_", "-") for name in known if name not in {"config", "help"}))
        raise click.BadParameter(f"{found}: unknown key {unknown[0].replace('_', '-')!r}; known are {allowed}")
    context.default_map = {**named, **(context.default_map or {})}
    return path


@click.command(context_settings={"show_default": True})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="PAYWITNESS_CONFIG",
    callback=_read_file,
    is_eager=True,
    help="A YAML file with these options' names as keys.  [default: ./paywitness.yaml where there is one]",
    show_default=False,
)
@click.option(
    "--policies",
    type=click.Path(path_type=Path),
    envvar="PAYWITNESS_POLICIES",
    help="The directory of policy files; watched while running.  [default: ./policies, else those shipped]",
    show_default=False,
)
@click.option("--listen", default="127.0.0.1:8700", envvar="PAYWITNESS_LISTEN", help="Where services call us.")
@click.option("--admin", default="127.0.0.1:8701", envvar="PAYWITNESS_ADMIN", help="Metrics, health and the admin API.")
@click.option(
    "--journal",
    default="sqlite:///.paywitness/journal.db",
    envvar="PAYWITNESS_JOURNAL",
    help="Where operations are recorded: sqlite:///relative.db or sqlite:////absolute.db.",
)
@click.option("--limits", default="local", envvar="PAYWITNESS_LIMITS", help="Where limits are kept: local.")
@click.option(
    "--home",
    default=".paywitness",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PAYWITNESS_HOME",
    help="Where the admin token is kept when the environment gives none.",
)
@click.option("--with-sandbox", is_flag=True, envvar="PAYWITNESS_WITH_SANDBOX", help="Start the sandbox provider too.")
@click.option("--sandbox", default="127.0.0.1:8702", envvar="PAYWITNESS_SANDBOX", help="Where the sandbox listens.")
@click.option(
    "--log-level",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="PAYWITNESS_LOG_LEVEL",
    help="info: whatever is not a clean first-try success.",
)
@click.option(
    "--lease-seconds", default=30.0, envvar="PAYWITNESS_LEASE_SECONDS", help="How long a right to send lasts."
)
@click.option(
    "--grace-seconds", default=25.0, envvar="PAYWITNESS_GRACE_SECONDS", help="How long SIGTERM waits for calls."
)
@click.option("--calls-max", default=1000, envvar="PAYWITNESS_CALLS_MAX", help="Operations under way at once.")
def run(
    config: Path | None,
    policies: Path | None,
    listen: str,
    admin: str,
    journal: str,
    limits: str,
    home: Path,
    with_sandbox: bool,
    sandbox: str,
    log_level: str,
    lease_seconds: float,
    grace_seconds: float,
    calls_max: int,
) -> None:
    """Start the proxy.

    Services call http://127.0.0.1:8700/{provider}/... as if it were the provider. SIGTERM drains: no new calls, those
    under way finish or are recorded as doubt. SIGHUP reads the policies again (they are watched anyway).

    \b
    Secrets come from the environment; with a SQLite journal they are made and kept beside it (mode 0600):
      PAYWITNESS_IDENTITY_SECRET   gives calls their identity; never change it while the journal lives
      PAYWITNESS_ENCRYPTION_KEYS   id:base64,...  32 bytes each; the first one encrypts, all decrypt
      PAYWITNESS_ADMIN_TOKEN       bearer token of the admin API
    """
    try:
        settings = Settings(
            policies=Path(policies) if policies else _policies_here(),
            listen=read_address(listen, "--listen"),
            admin=read_address(admin, "--admin"),
            journal=journal,
            limits=check_limits(limits),
            home=Path(home),
            sandbox=read_address(sandbox, "--sandbox") if with_sandbox else None,
            log_level=log_level,
            lease_s=lease_seconds,
            grace_s=grace_seconds,
            calls_max=calls_max,
        )
        if settings.lease_s <= 5:
            raise SettingsError("--lease-seconds must be more than the 5 s that writing a request may take")
        _run(settings)
    except PaywitnessError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.strerror or error}") from None


def _policies_here() -> Path:
    here = Path("policies")
    return here if here.is_dir() else shipped_directory()


def _run(settings: Settings) -> None:
    if sys.platform != "linux":
        click.echo("Paywitness is made for Linux: resets and lease clocks are weaker elsewhere.", err=True)
    try:
        import uvloop  # the `speed` extra; everything works without it
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    async with AsyncExitStack() as beside:
        if settings.sandbox is not None:
            sandbox = Sandbox()
            await sandbox.start(host=settings.sandbox.host, port=settings.sandbox.port)
            beside.push_async_callback(sandbox.stop)
        await serve(settings, os.environ, say=lambda text: click.echo(text, err=True))
