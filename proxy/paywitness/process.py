"""The running process: opens journal and limits, listens, runs the background loops, and drains at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from socket import gethostname
from typing import Any

from paywitness.admin.backend import Readiness
from paywitness.admin.server import AdminServer
from paywitness.clock import Clock, SteadyWallClock, SystemClock
from paywitness.core.allowed_hosts import AllowedHosts
from paywitness.core.identity import check_value
from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.durability.levels import Levels
from paywitness.engine.durability.recovery import Recovery
from paywitness.engine.durability.retention_sweep import Retention
from paywitness.engine.durability.spool import Spool
from paywitness.engine.engine import Engine
from paywitness.engine.failpoints import Failpoints, NoFailpoints
from paywitness.engine.intents import Intents
from paywitness.engine.operator_commands import CommandExecutor
from paywitness.engine.outbox import Sink
from paywitness.engine.payment_commands import PaymentCommands
from paywitness.engine.payment_lookup import PaymentLookup
from paywitness.engine.payout_approvals import PayoutApprovals
from paywitness.engine.policy_reload import PolicyReload
from paywitness.engine.policy_start import book_at_start
from paywitness.engine.webhooks.inbox import WebhookInbox
from paywitness.journal.base import Journal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import Budgets
from paywitness.limits.circuits import Circuits
from paywitness.limits.factory import limits_factory
from paywitness.option_defaults import Address, Settings
from paywitness.policy.book import PolicyBook, load_directory
from paywitness.policy.watch import PolicyWatch
from paywitness.randomness import SystemRandomness
from paywitness.secrets import admin_token, events_secret, open_vault
from paywitness.server.connect import InterceptConfig
from paywitness.server.server import HttpServer, ProviderListeners
from paywitness.server.webhooks import WEBHOOK_LIMITS, WebhookServer
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry, open_tracing
from paywitness.telemetry.gauges import LimitsSources
from paywitness.telemetry.logs import LogWriter, install_logging
from paywitness.telemetry.metrics import LoopLagMonitor, Metrics
from paywitness.transparent.ca_files import CurrentLocalCa, LocalCaFiles
from paywitness.transparent.local_ca import HostCertificates
from paywitness.upstream.dial import PublicTunnelDialer
from paywitness.wiring import (
    Platform,
    SidecarParts,
    assemble,
    build_outbox,
    build_payment_commands,
    build_spool_replayer,
    build_webhooks,
)

_RECORDING_RESERVE_S = 2.0  # of the grace time, for recording calls that did not finish
PrintLine = Callable[[str], None]
StartupLines = Callable[[Settings, PolicyBook, int], list[str]]  # the lines to print once it listens


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Calls should come here while `listening` is set and no shutdown has begun."""

    stop: asyncio.Event
    listening: asyncio.Event = field(default_factory=asyncio.Event)  # all listeners are open


@dataclass(frozen=True, slots=True)
class AdminView:
    """The parts of the sidecar that the admin server reads, and those that run an operator's commands."""

    engine: Engine
    reload: PolicyReload
    journal: Journal
    metrics: Metrics
    telemetry: Telemetry
    review: CommandExecutor
    approvals: PayoutApprovals
    intents: Intents
    payment_commands: PaymentCommands
    credential_commands: CredentialCommands
    circuits: Circuits
    budgets: Budgets
    admission: Admission
    state: ProcessState

    def readiness(self) -> Readiness:
        ages = self.review.journal_writer.ages
        return Readiness(
            self.state.stop.is_set(),
            self.reload.problems,
            starting=not self.state.listening.is_set(),
            clock_jumps=ages.jumps,
            awaits_dates=ages.awaits_dates,
        )

    @property
    def payments(self) -> PaymentLookup:
        return self.intents.payments

    @property
    def levels(self) -> Levels | None:
        return self.review.journal_writer.levels

    def book(self) -> PolicyBook | None:
        return self.engine.book


async def serve(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    print_line: PrintLine,
    startup_lines: StartupLines,
    failpoints: Failpoints | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run the whole sidecar until SIGTERM or SIGINT (or `stop`). Then drain within delay and grace time."""
    clock, randomness, state = SystemClock(), SystemRandomness(), ProcessState(stop or asyncio.Event())
    install_logging(sys.stderr, logging.getLevelName(settings.log_level.upper()))
    book = load_directory(settings.policies)  # an invalid policy stops a start, never a run
    open_limits = limits_factory(settings.limits)
    events_key = events_secret(settings, environment)
    async with AsyncExitStack() as stack:
        clean_level = logging.INFO if settings.log_calls == "all" else logging.DEBUG
        telemetry = _telemetry(stack, environment, clock, clean_level)
        journal, shared = await open_journal(settings, clock)
        stack.push_async_callback(journal.close)
        vault = open_vault(settings, environment, randomness)
        await journal.check_identity(check_value(vault.identity_secret))
        book, refused = await book_at_start(journal, book)
        spool = Spool(settings.spool_directory, vault, clock)
        stack.callback(spool.close)
        platform = Platform(journal, vault, clock, randomness, failpoints or NoFailpoints(), telemetry, environment)
        parts = assemble(platform, settings, book, spool, open_limits, release=version("paywitness"))
        stack.push_async_callback(parts.limits.close)
        stack.push_async_callback(parts.upstream.close)
        spool_replayer = build_spool_replayer(platform, parts, spool)
        await spool_replayer.replay_all()  # known evidence first, before recovery assumes that an outcome is unknown
        await parts.ages.count()
        if parts.levels is not None:
            await parts.levels.announce()
        recovery = Recovery(journal, clock, telemetry, settings.lease_s, parts.ages)
        recovered = await recovery.at_start(only_holder=not shared)
        reload = PolicyReload(PolicyWatch(settings.policies, book), parts.engine, journal, clock, telemetry)
        await reload.begin(book, refused)
        webhooks = build_webhooks(platform, parts)
        stack.push_async_callback(webhooks.close)
        background = Tasks()  # loops that never end by themselves
        stack.push_async_callback(background.stop)
        loops: dict[str, Coroutine[Any, Any, None]] = {
            **_loops_of_journal(platform, parts, settings),
            "limits": parts.limits_sync.keep_syncing(),
            "recovery": recovery.keep_expiring_leases(),
            "gauges": recovery.keep_updating_gauges(),
            "reload": reload.keep_polling(),
            "payments": parts.payment_sweep.keep_sweeping(),
            "resolver": parts.resolver.keep_resolving(spool_replayer.replay_all),
            "webhooks": webhooks.keep_applying(),
            "spool": spool_replayer.keep_replaying(),
            "pulse": LoopLagMonitor(clock, telemetry.metrics).run(),
        }
        if settings.events is not None and events_key is not None:
            sink = Sink(settings.events, events_key)
            loops["outbox"] = build_outbox(platform, parts, sink).keep_delivering()
        for name, loop in loops.items():
            background.start(loop, name)
        bound, server = await _listen(stack, settings, environment, platform, parts, reload, webhooks, state)
        ports = ProviderListeners(server, lambda: parts.engine.book, reuse_port=settings.reuse_port)
        await ports.sync()
        background.start(ports.keep_syncing(clock), "ports")
        state.listening.set()
        _install_signal_handlers(state.stop, reload.poll_now)
        _tune_garbage_collector()
        for line in startup_lines(bound, book, recovered):
            print_line(line)
        await state.stop.wait()
        await _shut_down(settings, parts.engine, server, clock, print_line)


def _loops_of_journal(
    platform: Platform, parts: SidecarParts, settings: Settings
) -> dict[str, Coroutine[Any, Any, None]]:
    """The loops that keep the journal itself in order."""
    retention = Retention(platform.journal, platform.clock, parts.ages, parts.engine.telemetry, *settings.kept_for_s)
    loops: dict[str, Coroutine[Any, Any, None]] = {
        "leases": parts.leases.keep_renewing(),
        "ages": parts.ages.keep_counting(),
        "retention": retention.keep_sweeping(),
    }
    if parts.levels is not None:
        loops["levels"] = parts.levels.keep_announcing()
    if parts.rollback is not None:
        loops["rollback"] = parts.rollback.keep_watching()
    return loops


def _telemetry(
    stack: AsyncExitStack, environment: Mapping[str, str], clock: Clock, clean_level: int = logging.DEBUG
) -> Telemetry:
    release = version("paywitness")
    tracing = open_tracing(environment, release, clock.now)
    if tracing is not None:
        stack.push_async_callback(tracing.close)
    logs = LogWriter(logging.getLogger("paywitness"), clean_level, clock.mono)
    return Telemetry(Metrics(release, clock.now), logs, tracing)


async def _listen(
    stack: AsyncExitStack,
    settings: Settings,
    environment: Mapping[str, str],
    platform: Platform,
    parts: SidecarParts,
    reload: PolicyReload,
    webhooks: WebhookInbox,
    state: ProcessState,
) -> tuple[Settings, HttpServer]:
    """Open the listeners: admin first, so that health can be checked; payments last, when everything else runs. The
    settings returned hold the real addresses: a port given as 0 is known only now."""
    engine, journal, telemetry = parts.engine, platform.journal, platform.telemetry
    review = CommandExecutor(
        parts.journal_writer,
        parts.external_evidence,
        journal,
        parts.pinned,
        lambda: engine.book,
        platform.clock,
        telemetry,
    )
    limits = parts.limits
    telemetry.metrics.watch_limits(
        LimitsSources(
            limits.circuits.statuses,
            limits.budgets.remaining,
            limits.admission.stats,
            lambda: limits.budgets.fleet,
        )
    )
    view = AdminView(
        engine,
        reload,
        journal,
        telemetry.metrics,
        telemetry,
        review,
        PayoutApprovals(journal, parts.journal_writer.journal_clock),
        engine.intents,
        build_payment_commands(platform, parts),
        CredentialCommands(platform.journal, parts.journal_writer, parts.engine.credential_owners),
        limits.circuits,
        limits.budgets,
        limits.admission,
        state,
    )
    token = admin_token(settings, environment, platform.randomness)
    admin = AdminServer(view, token, _allowed_hosts(settings))
    stack.push_async_callback(admin.close)
    admin_port = await admin.start(settings.admin.host, settings.admin.port)
    webhooks_address = await _listen_for_webhooks(stack, settings, webhooks, platform.clock)
    server = HttpServer(engine, tracing=telemetry.tracing, allowed_hosts=_allowed_hosts(settings))
    stack.push_async_callback(server.close)
    telemetry.metrics.watch_server(server.counters)
    address, intercept_config = settings.listen, _intercept_config(settings, platform.clock, engine)
    stack.push_async_callback(intercept_config.tasks.stop)
    listen_address = Address(
        *await server.start(address.host, address.port, intercept=intercept_config, reuse_port=settings.reuse_port)
    )
    return replace(
        settings, listen=listen_address, admin=Address(settings.admin.host, admin_port), webhooks=webhooks_address
    ), server


async def _listen_for_webhooks(
    stack: AsyncExitStack, settings: Settings, webhooks: WebhookInbox, clock: Clock
) -> Address | None:
    address = settings.webhooks
    if address is None:
        return None
    limits = replace(WEBHOOK_LIMITS, body_bytes_max=settings.webhook_body_bytes)
    rate, proxies = settings.webhook_rate, settings.trusted_proxies
    listener = WebhookServer(webhooks, limits, clock, rate_per_s=rate, trusted_proxies=proxies)
    stack.push_async_callback(listener.close)
    return Address(*await listener.start(address.host, address.port, reuse_port=settings.reuse_port))


def _allowed_hosts(settings: Settings) -> AllowedHosts:
    """The host names that were given, and this machine's own."""
    own = {gethostname().lower(), settings.listen.host.lower(), settings.admin.host.lower()}
    return replace(settings.allowed_hosts, names=settings.allowed_hosts.names | own)


def _intercept_config(settings: Settings, clock: Clock, engine: Engine) -> InterceptConfig:
    """The settings for callers that use a proxy setting or are redirected: allowed hosts, and the local CA."""
    host_certificates = HostCertificates(CurrentLocalCa(LocalCaFiles(settings.home)), clock)
    return InterceptConfig(
        engine.provider_at, host_certificates.context_for, PublicTunnelDialer(), settings.unlisted, Tasks()
    )


async def _shut_down(
    settings: Settings, engine: Engine, server: HttpServer, clock: Clock, print_line: PrintLine
) -> None:
    """Keep serving for `drain_delay_s` while /readyz says no, so that load balancers see it before the listener
    closes."""
    if settings.drain_delay_s:
        print_line(f"Leaving: not ready any more. Calls are taken for another {settings.drain_delay_s:g} s.")
        server.stop_keep_alive()
        await clock.sleep(settings.drain_delay_s)
    print_line("Draining: no new calls. Those under way finish or are recorded as unknown.")
    await drain(engine, server, settings.grace_s, clock)


async def drain(engine: Engine, server: HttpServer, grace_s: float, clock: Clock) -> None:
    """Stop accepting, let calls under way finish, and record the rest as unknown outcomes. Within the grace time."""
    began_mono = clock.mono()
    engine.gate.draining = True
    drain_s = max(0.0, grace_s - _RECORDING_RESERVE_S)
    await server.drain(drain_s)
    await engine.tasks.close(max(0.0, drain_s - (clock.mono() - began_mono)))


async def open_journal(settings: Settings, clock: Clock) -> tuple[Journal, bool]:
    """The journal, and whether other sidecars may hold it too."""
    path = settings.journal_path
    if path is None:
        from paywitness.journal.redis.journal import (
            RedisJournal,  # the import takes a tenth of a second, which only a fleet's sidecars pay
        )

        mark_path = settings.spool_directory.with_name("journal-mark")
        return await RedisJournal.open(settings.journal, mark_path=mark_path), True
    return await SqliteJournal.open(path, clock=SteadyWallClock(clock), wall_clock=clock), False


def _tune_garbage_collector() -> None:
    """Freeze today's objects and collect rarely. Today's objects stay for good, and calls leave hardly any cycles. With
    the default threshold of 700 new objects the collector would take a twentieth of all CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _install_signal_handlers(stop: asyncio.Event, poll_now: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, poll_now.set)
