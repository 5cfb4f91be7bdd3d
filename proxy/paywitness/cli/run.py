"""`paywitness run`: the sidecar, until it is stopped. Its options, and the lines that it prints at the start."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click
import yaml

from paywitness.core.errors import PaywitnessError, SettingsError
from paywitness.option_defaults import (
    DEFAULTS,
    LOCAL,
    OFF,
    SANDBOX,
    Address,
    Settings,
    Unlisted,
    option_text,
    read_address,
    read_duration,
    read_listener,
    read_names,
    read_networks,
    read_sink,
    redacted_url,
)
from paywitness.policy.book import PolicyBook
from paywitness.policy.shipped_policies import shipped_directory
from paywitness.process import serve
from paywitness.randomness import SystemRandomness


def startup_lines(settings: Settings, book: PolicyBook, recovered: int) -> list[str]:
    """The first lines: the addresses, the providers, and the operations recovered."""
    providers = ", ".join(sorted(book.providers))
    lines = [
        f"Paywitness listens on {settings.listen.url}/{{provider}}/...  for: {providers}",
        f"Admin, metrics, health on {settings.admin.url}  journal: {settings.journal_redacted_url}",
    ]
    observed = sorted(name for name, provider in book.providers.items() if provider.observe)
    if observed:
        lines.append(f"Shadow mode, so calls pass unchanged and unguarded: {', '.join(observed)}")
    if settings.limits != LOCAL:
        lines.append(f"Retry budgets and circuits are the fleet's: {redacted_url(settings.limits)}")
    elif settings.journal_path is None:
        lines.append("Retry budgets and circuits are this sidecar's own: give --limits redis://... to share them")
    if settings.webhooks is not None:
        webhook_providers = sorted(
            name for name, provider in book.providers.items() if provider.webhook_rules is not None
        )
        lines.append(
            f"Webhooks on {settings.webhooks.url}/paywitness/webhooks/{{provider}}  "
            f"for: {', '.join(webhook_providers) or 'nobody'}"
        )
    if settings.events is not None:
        lines.append(f"Events go to {settings.events}")
    if settings.sandbox is not None:
        url = settings.sandbox.url
        lines.append(f"The sandbox provider listens on {url}  ledger: {url}/_sandbox/ledger")
        if url not in {provider.upstream for provider in book.providers.values()}:
            lines.append(f"No policy uses the sandbox as its upstream: set `upstream: {url}` in a policy to reach it.")
    if recovered:
        lines.append(f"Recovered from an earlier process: {recovered} operation(s).")
    return lines


# --- Command

_FILE_BYTES_MAX = 64 * 1024
_OPEN_FILES = 8192
_YEAR_S = 365 * 86400.0
_SANDBOX_SECRET = "ACME_WEBHOOK_SECRET"  # the name in acme's policy


def _read_config_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the values of `paywitness.yaml` the defaults. The environment and flags win over them."""
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
    for name, value in named.items():
        if value is False and not getattr(known[name], "is_flag", False):
            named[name] = OFF  # YAML 1.1 reads `off` as false
    context.default_map = {**named, **(context.default_map or {})}
    return path


@click.command(context_settings={"show_default": True})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="PAYWITNESS_CONFIG",
    callback=_read_config_file,
    is_eager=True,
    help="A YAML file with these options' names as keys.  [default: ./paywitness.yaml if it exists]",
    show_default=False,
)
@click.option(
    "--policies",
    type=click.Path(path_type=Path),
    envvar="PAYWITNESS_POLICIES",
    help="The directory of policy files; watched while running.  [default: ./policies, else those shipped]",
    show_default=False,
)
@click.option("--listen", default=str(DEFAULTS.listen), envvar="PAYWITNESS_LISTEN", help="The address for services.")
@click.option(
    "--admin", default=str(DEFAULTS.admin), envvar="PAYWITNESS_ADMIN", help="Metrics, health and the admin API."
)
@click.option(
    "--journal",
    default=DEFAULTS.journal,
    envvar="PAYWITNESS_JOURNAL",
    help="The journal of operations: sqlite:///relative.db or sqlite:////absolute.db; for a fleet "
    "redis://host:6379/0 (rediss://, redis+sentinel://).",
)
@click.option(
    "--limits",
    default=DEFAULTS.limits,
    envvar="PAYWITNESS_LIMITS",
    help="The store of retry budgets and circuits: local, or one Redis for the fleet: redis://host:6379/1 "
    "(rediss://, redis+sentinel://, redis+cluster://).",
)
@click.option(
    "--home",
    default=str(DEFAULTS.home),
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PAYWITNESS_HOME",
    help="The directory of our own files: the spool, and the admin token if the environment gives none.",
)
@click.option("--with-sandbox", is_flag=True, envvar="PAYWITNESS_WITH_SANDBOX", help="Start the sandbox provider too.")
@click.option("--sandbox", default=str(SANDBOX), envvar="PAYWITNESS_SANDBOX", help="The sandbox's address.")
@click.option(
    "--log-level",
    default=DEFAULTS.log_level,
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="PAYWITNESS_LOG_LEVEL",
    help="info: everything except clean first-try successes.",
)
@click.option(
    "--log-calls",
    default=DEFAULTS.log_calls,
    type=click.Choice(["notable", "all"]),
    envvar="PAYWITNESS_LOG_CALLS",
    help="all: clean first-try successes at info too.",
)
@click.option(
    "--lease-seconds",
    default=DEFAULTS.lease_s,
    envvar="PAYWITNESS_LEASE_SECONDS",
    help="How long a lease, the right to send, lasts.",
)
@click.option(
    "--grace-seconds",
    default=DEFAULTS.grace_s,
    envvar="PAYWITNESS_GRACE_SECONDS",
    help="How long a shutdown waits for calls under way.",
)
@click.option(
    "--drain-delay",
    default=option_text(DEFAULTS.drain_delay_s),
    envvar="PAYWITNESS_DRAIN_DELAY",
    help="How long after SIGTERM we take calls while /readyz says no. Then the grace time begins.",
)
@click.option(
    "--reuse-port",
    is_flag=True,
    envvar="PAYWITNESS_REUSE_PORT",
    help="Share the listen and webhook ports with other sidecars of this machine; needs a journal that is shared too.",
)
@click.option(
    "--unlisted",
    default=DEFAULTS.unlisted.value,
    type=click.Choice([way.value for way in Unlisted]),
    envvar="PAYWITNESS_UNLISTED",
    help="Hosts that no policy names, for callers that use us as a proxy. We never intercept them.",
)
@click.option(
    "--calls-max", default=DEFAULTS.calls_max, envvar="PAYWITNESS_CALLS_MAX", help="Operations under way at once."
)
@click.option(
    "--webhooks",
    default=str(DEFAULTS.webhooks),
    envvar="PAYWITNESS_WEBHOOKS",
    help="The listener for providers' webhooks. It is separate because it may be public. off: no listener.",
)
@click.option(
    "--webhook-body-bytes",
    default=DEFAULTS.webhook_body_bytes,
    type=click.IntRange(1024, 1024 * 1024),
    envvar="PAYWITNESS_WEBHOOK_BODY_BYTES",
    help="The largest webhook.",
)
@click.option(
    "--webhook-rate",
    default=DEFAULTS.webhook_rate,
    type=click.IntRange(1, 10_000),
    envvar="PAYWITNESS_WEBHOOK_RATE",
    help="How many webhooks of one address may fail verification in a second before it gets 429.",
)
@click.option(
    "--trusted-proxies",
    envvar="PAYWITNESS_TRUSTED_PROXIES",
    help="Proxies before the webhook port whose X-Forwarded-For we trust: addresses or networks, with commas between.",
    show_default=False,
)
@click.option(
    "--allowed-hosts",
    envvar="PAYWITNESS_ALLOWED_HOSTS",
    help="Further host names of the payment port and the admin port, with commas between; *.name for all below it. "
    "Addresses, localhost, names of one label and of Kubernetes services are always allowed.",
    show_default=False,
)
@click.option(
    "--events",
    envvar="PAYWITNESS_EVENTS",
    help="The sink for ends, doubts, resolutions and incidents, as CloudEvents: http(s)://host/path.  [default: none]",
    show_default=False,
)
@click.option(
    "--retention",
    default=option_text(DEFAULTS.retention_s),
    envvar="PAYWITNESS_RETENTION",
    help="How long an ended operation is kept whole.",
)
@click.option(
    "--tombstones",
    default=option_text(DEFAULTS.tombstones_s),
    envvar="PAYWITNESS_TOMBSTONES",
    help="How long after that a call with its key gets 410. Later the call would be a new payment.",
)
@click.option(
    "--payments-kept",
    default=option_text(DEFAULTS.payments_kept_s),
    envvar="PAYWITNESS_PAYMENTS_KEPT",
    help="How long a payment's balance and names are kept after its last change; never less than --retention.",
)
@click.option(
    "--resolvers",
    default=DEFAULTS.resolvers,
    type=click.IntRange(1, 1000),
    envvar="PAYWITNESS_RESOLVERS",
    help="How many operations the resolver handles at once.",
)
@click.option(
    "--resolvers-per-provider",
    default=DEFAULTS.resolvers_per_provider,
    type=click.IntRange(1, 1000),
    envvar="PAYWITNESS_RESOLVERS_PER_PROVIDER",
    help="How many of these may be of one provider.",
)
@click.option(
    "--harvest",
    default=option_text(DEFAULTS.late_response_s),
    envvar="PAYWITNESS_HARVEST",
    help="How long we wait for a late response after its attempt has timed out; 0: not at all.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PAYWITNESS_SPOOL",
    help="The directory for evidence that the journal did not take. One process only.  [default: {home}/spool]",
    show_default=False,
)
def run(**given: Any) -> None:
    """Start the sidecar.

    Services call http://127.0.0.1:8700/{provider}/... as if it were the provider. SIGTERM drains: the sidecar takes no
    new calls, and those under way finish or are recorded as unknown. SIGHUP reads the policies again (they are watched
    anyway).

    \b
    Secrets come from the environment. With a SQLite journal the sidecar makes and keeps them beside it (mode 0600):
      PAYWITNESS_IDENTITY_SECRET   the secret of the hashes that identify calls; never change it while the journal lives
      PAYWITNESS_ENCRYPTION_KEYS   id:base64,...  32 bytes each; the first one encrypts, all decrypt
      PAYWITNESS_ADMIN_TOKEN       bearer token of the admin API
      PAYWITNESS_EVENTS_SECRET     signs the events that are sent to --events; only from the environment
    """
    try:
        _run(settings_of(given))
    except PaywitnessError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.strerror or error}") from None


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings from the options. Raises SettingsError."""
    policies, spool, events = given["policies"], given["spool"], given["events"]
    settings = Settings(
        policies=Path(policies) if policies else default_policies(),
        listen=read_address(given["listen"], "--listen"),
        admin=read_address(given["admin"], "--admin"),
        journal=given["journal"],
        limits=given["limits"],
        home=Path(given["home"]),
        sandbox=read_address(given["sandbox"], "--sandbox") if given["with_sandbox"] else None,
        log_level=given["log_level"],
        log_calls=given["log_calls"],
        lease_s=given["lease_seconds"],
        grace_s=given["grace_seconds"],
        drain_delay_s=read_duration(given["drain_delay"], "--drain-delay", least_s=0, most_s=600),
        calls_max=given["calls_max"],
        reuse_port=given["reuse_port"],
        unlisted=Unlisted(given["unlisted"]),
        webhooks=read_listener(given["webhooks"], "--webhooks"),
        webhook_body_bytes=given["webhook_body_bytes"],
        webhook_rate=given["webhook_rate"],
        trusted_proxies=read_networks(given["trusted_proxies"] or "", "--trusted-proxies"),
        allowed_hosts=read_names(given["allowed_hosts"] or "", "--allowed-hosts"),
        events=read_sink(events, "--events") if events and events != OFF else None,
        retention_s=read_duration(given["retention"], "--retention", least_s=60, most_s=20 * _YEAR_S),
        # A caller's own retries end within a day. If a key were forgotten sooner, a retry would pay again.
        tombstones_s=read_duration(given["tombstones"], "--tombstones", least_s=86400, most_s=20 * _YEAR_S),
        payments_kept_s=read_duration(given["payments_kept"], "--payments-kept", least_s=86400, most_s=20 * _YEAR_S),
        resolvers=given["resolvers"],
        resolvers_per_provider=given["resolvers_per_provider"],
        # Well under the default `settle` (10 m): an inquiry must not prove absence while a late response may still
        # come.
        late_response_s=read_duration(given["harvest"], "--harvest", least_s=0, most_s=300),
        spool=Path(spool) if spool else None,
    )
    if settings.lease_s <= 5:
        raise SettingsError("--lease-seconds must be more than the 5 s that writing a request may take")
    if settings.reuse_port and settings.journal_path is not None:
        raise SettingsError("--reuse-port: a SQLite journal is one process' own; give --journal redis://host:6379/0")
    return settings


def default_policies() -> Path:
    here = Path("policies")
    return here if here.is_dir() else shipped_directory()


def _run(settings: Settings) -> None:
    if sys.platform != "linux":
        click.echo("Paywitness is made for Linux. Elsewhere connection resets and lease clocks are weaker.", err=True)
    _raise_open_files_limit()
    try:
        import uvloop  # the `speed` extra; optional
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))


def _raise_open_files_limit() -> None:
    """Raise the limit of open files, as far as allowed: a thousand callers need as many connections to providers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings) -> None:
    environment: Mapping[str, str] = os.environ
    async with AsyncExitStack() as exit_stack:
        if settings.sandbox is not None:
            from paywitness_sandbox.server import Sandbox, SandboxOptions  # loaded only with --with-sandbox

            secret = environment.get(_SANDBOX_SECRET) or SystemRandomness().token()
            environment = {**environment, _SANDBOX_SECRET: secret}
            sandbox = Sandbox(SandboxOptions(webhooks=_sandbox_webhooks(settings.webhooks, secret)))
            await sandbox.start(host=settings.sandbox.host, port=settings.sandbox.port)
            exit_stack.push_async_callback(sandbox.stop)
        await serve(
            settings, environment, print_line=lambda text: click.echo(text, err=True), startup_lines=startup_lines
        )


def _sandbox_webhooks(listener: Address | None, secret: str) -> Mapping[str, object]:
    """The webhook settings of the sandbox that runs beside us: it sends to us, as acme's policy expects."""
    if listener is None or listener.port == 0:
        return {}
    return {"url": f"{listener.url}/paywitness/webhooks/acme", "secret": secret, "scheme": "hmac_sha256"}
