"""The wiring: the only place where objects are built and joined, as one list from the ground up.

The simulator and the crash tests build the same sidecar with a clock, chance and steps of their own.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from proxy.admin.server import AdminServer
from proxy.admin.view import Readiness
from proxy.chance import Chance, SystemChance
from proxy.clock import Clock, SystemClock
from proxy.core.errors import SettingsError
from proxy.core.identity import check_value
from proxy.edge.server import EdgeServer
from proxy.edge.webhooks import WebhookServer
from proxy.engine.applying import Applying
from proxy.engine.attempt import Sender
from proxy.engine.carry import Carry, Spooling
from proxy.engine.credentials import Credentials
from proxy.engine.engine import Engine
from proxy.engine.errand import Errand
from proxy.engine.fallback import Fallbacks
from proxy.engine.forward import Forward
from proxy.engine.gate import Gate
from proxy.engine.inquirer import Inquirer
from proxy.engine.intents import Intents
from proxy.engine.late import Late
from proxy.engine.leases import Leases
from proxy.engine.matching import Matching
from proxy.engine.outbox import Outbox, Sink
from proxy.engine.outside import Outside
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.records import Records
from proxy.engine.recovery import Recovery
from proxy.engine.relay import Relay
from proxy.engine.reload import Reload, keep_revisions, refuse_changed_identity, reloaded
from proxy.engine.repeats import Repeats
from proxy.engine.replay import Replay
from proxy.engine.resolver import Resolver
from proxy.engine.retention import Retention
from proxy.engine.review import Review
from proxy.engine.spool import Spool
from proxy.engine.steps import NoSteps, Steps
from proxy.engine.watch import Watch
from proxy.engine.webhooks import Webhooks
from proxy.journal.base import Journal
from proxy.journal.sqlite import SqliteJournal
from proxy.policy.book import PolicyBook, load_directory
from proxy.policy.watch import PolicyWatch
from proxy.settings import ADMIN_TOKEN, ENCRYPTION_KEYS, EVENTS_SECRET, IDENTITY_SECRET, Address, Settings, kept_secret
from proxy.tasks import Tasks
from proxy.telemetry.lines import install
from proxy.telemetry.logs import Logs
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.vault import Vault, read_identity_secret, read_ring

_LAST_WORDS_S = 2.0  # of the grace time, for writing down what did not finish
Say = Callable[[str], None]
Greet = Callable[[Settings, PolicyBook, int], list[str]]  # what to say once it listens


@dataclass(frozen=True, slots=True)
class AdminView:
    """What the admin server may look at, and the hands it lends to operators."""

    engine: Engine
    reload: Reload
    journal: Journal
    metrics: Metrics
    review: Review
    intents: Intents

    def readiness(self) -> Readiness:
        return Readiness(self.engine.gate.draining, self.reload.problems)

    def book(self) -> PolicyBook | None:
        return self.engine.book


@dataclass(frozen=True, slots=True)
class Ground:
    """What everything else stands on."""

    journal: Journal
    vault: Vault
    clock: Clock
    chance: Chance
    steps: Steps
    telemetry: Telemetry
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much, how long, how many."""

    lease_s: float = 30.0
    calls_max: int = 1_000
    harvest_s: float = 20.0
    resolvers: int = 16
    resolvers_per_provider: int = 8

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        return cls(
            lease_s=settings.lease_s,
            calls_max=settings.calls_max,
            harvest_s=settings.harvest_s,
            resolvers=settings.resolvers,
            resolvers_per_provider=settings.resolvers_per_provider,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """A sidecar without its listeners and loops: what carries calls, and what goes on when they have left."""

    engine: Engine
    leases: Leases
    resolver: Resolver
    outside: Outside
    late: Late
    records: Records
    pinned: PinnedPolicies
    upstream: UpstreamClient


def assemble(ground: Ground, bounds: Bounds, book: PolicyBook, spool: Spooling) -> Parts:
    """The engine over a journal and a network. No listener, no loop in the background."""
    journal, vault, clock, telemetry = ground.journal, ground.vault, ground.clock, ground.telemetry
    under_way: dict[str, Errand] = {}
    tasks, watch = Tasks(), Watch()
    leases = Leases(journal, clock, bounds.lease_s)  # the right to send
    upstream = UpstreamClient(monotonic=clock.mono, steps=ground.steps, harvest_s=bounds.harvest_s)  # the network
    records = Records(journal, leases, vault, clock, telemetry)  # claims and writes
    pinned = PinnedPolicies(journal)  # the policy that each operation was started under
    outside = Outside(records, vault, clock, ground.chance, telemetry, watch)  # evidence that came by no attempt
    late = Late(records, outside, clock, telemetry)  # evidence that came too late for its call

    def current() -> PolicyBook:
        return engine.book

    fallbacks = Fallbacks(journal, current, leases, vault, clock, ground.chance, ground.environment, telemetry)
    carry = Carry(  # the life of a call
        records=records,
        repeats=Repeats(journal, vault, clock, pinned, under_way, watch),
        sender=Sender(upstream, leases, clock),
        leases=leases,
        vault=vault,
        clock=clock,
        chance=ground.chance,
        steps=ground.steps,
        telemetry=telemetry,
        watch=watch,
        fallbacks=fallbacks,
        late=late,
        spool=spool,
        tasks=tasks,
    )
    engine = Engine(
        carry=carry,
        fallbacks=fallbacks,
        forwarding=Forward(upstream, telemetry),  # what is no operation
        intents=Intents(journal, current),  # whether a purchase may be paid
        journal=journal,
        vault=vault,
        gate=Gate(bounds.calls_max),
        clock=clock,
        chance=ground.chance,
        telemetry=telemetry,
        tasks=tasks,
        book=book,
        under_way=under_way,
    )
    resolver = _resolver(ground, bounds, carry, outside, pinned, current)
    return Parts(engine, leases, resolver, outside, late, records, pinned, upstream)


def _resolver(
    ground: Ground,
    bounds: Bounds,
    carry: Carry,
    outside: Outside,
    pinned: PinnedPolicies,
    book: Callable[[], PolicyBook],
) -> Resolver:
    """What goes on finding out after the caller has left."""
    journal, vault, clock, upstream = ground.journal, ground.vault, ground.clock, carry.sender.upstream
    credentials = Credentials(journal, vault, ground.environment, upstream, clock)  # for calls of our own
    return Resolver(
        journal=journal,
        carry=carry,
        outside=outside,
        inquirer=Inquirer(journal, upstream, credentials, vault, clock, ground.telemetry, carry.tasks),
        pinned=pinned,
        book=book,
        clock=clock,
        chance=ground.chance,
        steps=ground.steps,
        telemetry=ground.telemetry,
        tasks=carry.tasks,
        workers_max=bounds.resolvers,
        per_provider_max=bounds.resolvers_per_provider,
    )


def webhooks_for(ground: Ground, parts: Parts) -> Webhooks:
    """What providers tell us unasked."""
    matching = Matching(ground.journal, parts.pinned, ground.vault)
    return Webhooks(
        journal=ground.journal,
        vault=ground.vault,
        clock=ground.clock,
        telemetry=ground.telemetry,
        applying=Applying(matching, parts.outside, parts.resolver.inquirer),
        relay=Relay(parts.upstream),
        book=lambda: parts.engine.book,
        environment=ground.environment,
    )


async def serve(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    say: Say,
    greet: Greet,
    steps: Steps | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """The whole sidecar, until SIGTERM or SIGINT (or `stop`); then it drains within the grace time."""
    clock, chance, stop = SystemClock(), SystemChance(), stop or asyncio.Event()
    install(sys.stderr, logging.getLevelName(settings.log_level.upper()))
    telemetry = Telemetry(Metrics(version("paywitness"), clock.now), Logs(logging.getLogger("paywitness")))
    book = load_directory(settings.policies)  # a policy that cannot be read stops a start, never a run
    sink = sink_for(settings, environment)
    async with AsyncExitStack() as stack:
        journal, shared = await open_journal(settings, clock)
        stack.push_async_callback(journal.close)
        vault = vault_for(settings, environment, chance)
        await journal.check_identity(check_value(vault.identity_secret))
        await refuse_changed_identity(journal, book)
        await keep_revisions(journal, book)
        spool = Spool(settings.spool_directory, vault, clock)
        stack.callback(spool.close)
        ground = Ground(journal, vault, clock, chance, steps or NoSteps(), telemetry, environment)
        parts = assemble(ground, Bounds.of(settings), book, spool)
        engine = parts.engine
        stack.push_async_callback(parts.upstream.close)
        replay = Replay(spool, parts.records, parts.pinned, lambda: engine.book, clock, parts.late)
        await replay.replay_all()  # what is known for certain comes before what must be assumed
        recovery = Recovery(journal, clock, telemetry)
        recovered = await recovery.at_start(only_holder=not shared)
        reload = Reload(PolicyWatch(settings.policies, book), engine, journal, clock, telemetry)
        telemetry.tell(reloaded(book))
        webhooks = webhooks_for(ground, parts)
        stack.push_async_callback(webhooks.close)
        background = Tasks()  # loops that never end by themselves
        stack.push_async_callback(background.stop)
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "leases": parts.leases.keep_renewing(),
            "recovery": recovery.keep_looking(),
            "reload": reload.keep_looking(),
            "resolver": parts.resolver.keep_resolving(replay.replay_all),
            "webhooks": webhooks.keep_applying(),
            "spool": replay.keep_replaying(),
            "retention": Retention(journal, clock, settings.retention_s, settings.tombstones_s).keep_sweeping(),
        }
        if sink is not None:
            loops["outbox"] = Outbox(journal, parts.upstream, sink, clock, chance, telemetry).keep_delivering()
        for name, loop in loops.items():
            background.start(loop, name)
        bound, edge = await _listen(stack, settings, environment, ground, parts, reload, webhooks)
        _listen_to_signals(stop, reload.look_now)
        for line in greet(bound, book, recovered):
            say(line)
        await stop.wait()
        say("Draining: no new calls; those under way finish or are recorded as doubt.")
        await drain(engine, edge, settings.grace_s, clock)


async def _listen(
    stack: AsyncExitStack,
    settings: Settings,
    environment: Mapping[str, str],
    ground: Ground,
    parts: Parts,
    reload: Reload,
    webhooks: Webhooks,
) -> tuple[Settings, EdgeServer]:
    """The listeners: admin first, so that health can be asked; payments last, when all else is there. And where they
    are, which only they know where a port was left to the system."""
    engine, journal, telemetry = parts.engine, ground.journal, ground.telemetry
    review = Review(parts.records, parts.outside, journal, parts.pinned, lambda: engine.book, ground.clock, telemetry)
    view = AdminView(engine, reload, journal, telemetry.metrics, review, engine.intents)
    admin = AdminServer(view, admin_token(settings, environment, ground.chance))
    stack.push_async_callback(admin.close)
    admin_port = await admin.start(settings.admin.host, settings.admin.port)
    told = None
    if settings.webhooks is not None:
        listener = WebhookServer(webhooks)
        stack.push_async_callback(listener.close)
        told = Address(*await listener.start(settings.webhooks.host, settings.webhooks.port))
    edge = EdgeServer(engine)
    stack.push_async_callback(edge.close)
    listens = Address(*await edge.start(settings.listen.host, settings.listen.port))
    return replace(settings, listen=listens, admin=Address(settings.admin.host, admin_port), webhooks=told), edge


def sink_for(settings: Settings, environment: Mapping[str, str]) -> Sink | None:
    """Where events go. Unsigned ones could be anybody's, so a sink needs its secret."""
    if settings.events is None:
        return None
    secret = environment.get(EVENTS_SECRET)
    if not secret:
        raise SettingsError(f"--events {settings.events}: set {EVENTS_SECRET}, by which its receiver knows us")
    return Sink(settings.events, secret.encode())


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
    return await SqliteJournal.open(path, clock=clock), False


def vault_for(settings: Settings, environment: Mapping[str, str], chance: Chance) -> Vault:
    """The vault of this journal: secrets from the environment, or those that the journal keeps beside itself."""

    def text_of_key() -> str:
        return base64.b64encode(chance.key()).decode()

    path = settings.journal_path
    if path is None:
        missing = [name for name in (IDENTITY_SECRET, ENCRYPTION_KEYS) if not environment.get(name)]
        if missing:
            raise SettingsError(
                f"--journal {settings.journal_shown}: set {' and '.join(missing)}, the "
                "same for every sidecar that shares it: else none would recognise another's payments"
            )
        ring = read_ring(environment[ENCRYPTION_KEYS])
        return Vault(read_identity_secret(environment[IDENTITY_SECRET]), ring, chance.nonce)
    secret = environment.get(IDENTITY_SECRET) or kept_secret(path.with_name(f"{path.name}.identity"), text_of_key)
    keys = environment.get(ENCRYPTION_KEYS) or kept_secret(
        path.with_name(f"{path.name}.keys"), lambda: f"k1:{text_of_key()}"
    )
    return Vault(read_identity_secret(secret), read_ring(keys), chance.nonce)


def admin_token(settings: Settings, environment: Mapping[str, str], chance: Chance) -> str:
    """The token of the admin port: from the environment, or made once and kept where `paywitness ops` looks for it."""
    return environment.get(ADMIN_TOKEN) or kept_secret(settings.home / "admin-token", chance.token)


def _listen_to_signals(stop: asyncio.Event, look_now: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, look_now.set)
