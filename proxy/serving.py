"""The running process: opens what the engine stands on, listens, goes on in the background, and drains at the end."""

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
from typing import Any

from proxy.admin.server import AdminServer
from proxy.admin.view import Readiness
from proxy.authority.files import AuthorityFiles, InForce
from proxy.authority.leaves import Leaves
from proxy.chance import SystemChance
from proxy.clock import Clock, SteadyWall, SystemClock
from proxy.core.identity import check_value
from proxy.edge.doorstep import House
from proxy.edge.ports import Ports
from proxy.edge.server import EdgeServer
from proxy.edge.traced import TracedCarrier
from proxy.edge.webhooks import WebhookServer
from proxy.engine.engine import Engine
from proxy.engine.intents import Intents
from proxy.engine.outbox import Outbox, Sink
from proxy.engine.recovery import Recovery
from proxy.engine.reload import Reload, keep_revisions, refuse_changed_identity, reloaded
from proxy.engine.replay import Replay
from proxy.engine.retention import Retention
from proxy.engine.review import Review
from proxy.engine.spool import Spool
from proxy.engine.steps import NoSteps, Steps
from proxy.engine.webhooks import Webhooks
from proxy.journal.base import Journal
from proxy.journal.sqlite import SqliteJournal
from proxy.keyring import admin_token, events_secret, vault_for
from proxy.limits.admission import Admission
from proxy.limits.budgets import Budgets
from proxy.limits.circuits import Circuits
from proxy.limits.opening import limits_at
from proxy.policy.book import PolicyBook, load_directory
from proxy.policy.watch import PolicyWatch
from proxy.settings import Address, Settings
from proxy.tasks import Tasks
from proxy.telemetry.limits import LimitsWatched
from proxy.telemetry.lines import install
from proxy.telemetry.logs import Logs
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.pulse import Pulse
from proxy.telemetry.telemetry import Telemetry
from proxy.telemetry.tracing import open_tracing
from proxy.upstream.outside import Outside
from proxy.wiring import Bounds, Ground, Parts, assemble, webhooks_for

_LAST_WORDS_S = 2.0  # of the grace time, for writing down what did not finish
Say = Callable[[str], None]
Greet = Callable[[Settings, PolicyBook, int], list[str]]  # what to say once it listens


@dataclass(frozen=True, slots=True)
class Life:
    """Between the two of them calls should come here."""

    stop: asyncio.Event
    open: asyncio.Event = field(default_factory=asyncio.Event)  # all listeners are there


@dataclass(frozen=True, slots=True)
class AdminView:
    """What the admin server may look at, and the hands it lends to operators."""

    engine: Engine
    reload: Reload
    journal: Journal
    metrics: Metrics
    telemetry: Telemetry
    review: Review
    intents: Intents
    circuits: Circuits
    budgets: Budgets
    admission: Admission
    life: Life

    def readiness(self) -> Readiness:
        return Readiness(self.life.stop.is_set(), self.reload.problems, starting=not self.life.open.is_set())

    def book(self) -> PolicyBook | None:
        return self.engine.book


async def serve(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    say: Say,
    greet: Greet,
    steps: Steps | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """The whole sidecar, until SIGTERM or SIGINT (or `stop`); then it drains within delay and grace time."""
    clock, chance, life = SystemClock(), SystemChance(), Life(stop or asyncio.Event())
    install(sys.stderr, logging.getLevelName(settings.log_level.upper()))
    book = load_directory(settings.policies)  # a policy that cannot be read stops a start, never a run
    open_limits = limits_at(settings.limits)
    events_key = events_secret(settings, environment)
    async with AsyncExitStack() as stack:
        clean_level = logging.INFO if settings.log_calls == "all" else logging.DEBUG
        telemetry = _telemetry(stack, environment, clock, clean_level)
        journal, shared = await open_journal(settings, clock)
        stack.push_async_callback(journal.close)
        vault = vault_for(settings, environment, chance)
        await journal.check_identity(check_value(vault.identity_secret))
        await refuse_changed_identity(journal, book)
        await keep_revisions(journal, book)
        spool = Spool(settings.spool_directory, vault, clock)
        stack.callback(spool.close)
        ground = Ground(journal, vault, clock, chance, steps or NoSteps(), telemetry, environment)
        parts = assemble(ground, Bounds.of(settings), book, spool, open_limits)
        engine = parts.engine
        stack.push_async_callback(parts.limits.close)
        stack.push_async_callback(parts.upstream.close)
        replay = Replay(spool, parts.records, parts.pinned, lambda: engine.book, clock, parts.late)
        await replay.replay_all()  # what is known for certain comes before what must be assumed
        recovery = Recovery(journal, clock, telemetry, settings.lease_s)
        recovered = await recovery.at_start(only_holder=not shared)
        reload = Reload(PolicyWatch(settings.policies, book), engine, journal, clock, telemetry)
        telemetry.tell(reloaded(book))
        webhooks = webhooks_for(ground, parts)
        stack.push_async_callback(webhooks.close)
        background = Tasks()  # loops that never end by themselves
        stack.push_async_callback(background.stop)
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "leases": parts.leases.keep_renewing(),
            "limits": parts.reports.keep_reporting(),
            "recovery": recovery.keep_looking(),
            "reload": reload.keep_looking(),
            "resolver": parts.resolver.keep_resolving(replay.replay_all),
            "webhooks": webhooks.keep_applying(),
            "spool": replay.keep_replaying(),
            "pulse": Pulse(clock, telemetry.metrics).keep_beating(),
            "retention": Retention(journal, clock, settings.retention_s, settings.tombstones_s).keep_sweeping(),
        }
        if parts.rollback is not None:
            loops["rollback"] = parts.rollback.keep_watching()
        if settings.events is not None and events_key is not None:
            sink = Sink(settings.events, events_key)
            loops["outbox"] = Outbox(journal, parts.upstream, sink, clock, chance, telemetry).keep_delivering()
        for name, loop in loops.items():
            background.start(loop, name)
        bound, edge = await _listen(stack, settings, environment, ground, parts, reload, webhooks, life)
        ports = Ports(edge, lambda: engine.book, reuse_port=settings.reuse_port)  # those of single providers
        await ports.follow()
        background.start(ports.keep_following(clock), "ports")
        life.open.set()
        _listen_to_signals(life.stop, reload.look_now)
        _spare_the_collector()
        for line in greet(bound, book, recovered):
            say(line)
        await life.stop.wait()
        await _leave(settings, engine, edge, clock, say)


def _telemetry(
    stack: AsyncExitStack, environment: Mapping[str, str], clock: Clock, clean_level: int = logging.DEBUG
) -> Telemetry:
    release = version("paywitness")
    tracing = open_tracing(environment, release, clock.now)
    if tracing is not None:
        stack.push_async_callback(tracing.close)
    return Telemetry(Metrics(release, clock.now), Logs(logging.getLogger("paywitness"), clean_level), tracing)


async def _listen(
    stack: AsyncExitStack,
    settings: Settings,
    environment: Mapping[str, str],
    ground: Ground,
    parts: Parts,
    reload: Reload,
    webhooks: Webhooks,
    life: Life,
) -> tuple[Settings, EdgeServer]:
    """The listeners: admin first, so that health can be asked; payments last, when all else is there. And where they
    are, which only they know where a port was left to the system."""
    engine, journal, telemetry = parts.engine, ground.journal, ground.telemetry
    review = Review(parts.records, parts.outside, journal, parts.pinned, lambda: engine.book, ground.clock, telemetry)
    limits = parts.limits
    telemetry.metrics.watch_limits(
        LimitsWatched(
            limits.circuits.standings,
            limits.budgets.remaining,
            limits.admission.crowds,
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
        engine.intents,
        limits.circuits,
        limits.budgets,
        limits.admission,
        life,
    )
    admin = AdminServer(view, admin_token(settings, environment, ground.chance))
    stack.push_async_callback(admin.close)
    admin_port = await admin.start(settings.admin.host, settings.admin.port)
    told = None
    if settings.webhooks is not None:
        listener = WebhookServer(webhooks)
        stack.push_async_callback(listener.close)
        where = settings.webhooks
        told = Address(*await listener.start(where.host, where.port, reuse_port=settings.reuse_port))
    edge = EdgeServer(engine if telemetry.tracing is None else TracedCarrier(engine, telemetry.tracing))
    stack.push_async_callback(edge.close)
    telemetry.metrics.watch_edge(edge.counters)
    where, house = settings.listen, _house(settings, ground.clock, engine)
    stack.push_async_callback(house.tasks.stop)
    listens = Address(*await edge.start(where.host, where.port, house=house, reuse_port=settings.reuse_port))
    return replace(settings, listen=listens, admin=Address(settings.admin.host, admin_port), webhooks=told), edge


def _house(settings: Settings, clock: Clock, engine: Engine) -> House:
    """For callers that come by a proxy setting, or redirected: whom they may reach, and as whom we answer them."""
    leaves = Leaves(InForce(AuthorityFiles(settings.home)), clock)
    return House(engine.provider_at, leaves.context_for, Outside(), settings.unlisted, Tasks())


async def _leave(settings: Settings, engine: Engine, edge: EdgeServer, clock: Clock, say: Say) -> None:
    """First go on serving while /readyz says no: whoever sends calls here must see it before the listener closes."""
    if settings.drain_delay_s:
        say(f"Leaving: not ready any more; calls are still taken for {settings.drain_delay_s:g} s.")
        edge.ask_to_leave()
        await clock.sleep(settings.drain_delay_s)
    say("Draining: no new calls; those under way finish or are recorded as doubt.")
    await drain(engine, edge, settings.grace_s, clock)


async def drain(engine: Engine, edge: EdgeServer, grace_s: float, clock: Clock) -> None:
    """Stop accepting, let what is under way finish, and write down the rest as doubt. Within the grace time."""
    began_mono = clock.mono()
    engine.gate.draining = True
    share_s = max(0.0, grace_s - _LAST_WORDS_S)
    await edge.drain(share_s)
    await engine.tasks.close(max(0.0, share_s - (clock.mono() - began_mono)))


async def open_journal(settings: Settings, clock: Clock) -> tuple[Journal, bool]:
    """The journal, and whether others may hold it too."""
    path = settings.journal_path
    if path is None:
        from proxy.journal.redis import RedisJournal  # a tenth of a second, which only a fleet's sidecars pay

        return await RedisJournal.open(settings.journal), True
    return await SqliteJournal.open(path, clock=SteadyWall(clock)), False


def _spare_the_collector() -> None:
    """What is here now stays for good, and calls leave next to no cycles behind: looked at by the collector at every
    700th value, as is its default, they cost a twentieth of all CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _listen_to_signals(stop: asyncio.Event, look_now: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, look_now.set)
