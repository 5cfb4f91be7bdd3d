"""The wiring: the only place where objects are built and joined, as one list from the ground up.

The simulator and the crash tests build the same sidecar with a clock, chance and steps of their own.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version

from proxy.admin.server import AdminServer
from proxy.admin.view import Readiness
from proxy.chance import Chance, SystemChance
from proxy.clock import Clock, SystemClock
from proxy.core.identity import check_value
from proxy.edge.server import EdgeServer
from proxy.engine.attempt import Sender
from proxy.engine.carry import Carry
from proxy.engine.engine import Engine
from proxy.engine.errand import Errand
from proxy.engine.forward import Forward
from proxy.engine.gate import Gate
from proxy.engine.leases import Leases
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.records import Records
from proxy.engine.recovery import Recovery
from proxy.engine.reload import Reload, keep_revisions, refuse_changed_identity, reloaded
from proxy.engine.repeats import Repeats
from proxy.engine.steps import NoSteps, Steps
from proxy.journal.base import Journal
from proxy.journal.sqlite import SqliteJournal
from proxy.policy.book import PolicyBook, load_directory
from proxy.policy.watch import PolicyWatch
from proxy.settings import ADMIN_TOKEN, ENCRYPTION_KEYS, IDENTITY_SECRET, Address, Settings, kept_secret
from proxy.tasks import Tasks
from proxy.telemetry.lines import install
from proxy.telemetry.logs import Logs
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.vault import Vault, read_identity_secret, read_ring

_LAST_WORDS_S = 2.0  # of the grace time, for writing down what did not finish
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AdminView:
    """What the admin server may look at."""

    engine: Engine
    reload: Reload
    journal: Journal
    metrics: Metrics

    def readiness(self) -> Readiness:
        return Readiness(self.engine.gate.draining, self.reload.problems)

    def book(self) -> PolicyBook | None:
        return self.engine.book


def assemble(
    *,
    book: PolicyBook,
    journal: Journal,
    vault: Vault,
    clock: Clock,
    chance: Chance,
    steps: Steps,
    telemetry: Telemetry,
    lease_s: float,
    calls_max: int,
) -> tuple[Engine, Leases]:
    """The engine over a journal and a network. No listener, no loop in the background."""
    under_way: dict[str, Errand] = {}
    leases = Leases(journal, clock, lease_s)  # the right to send
    upstream = UpstreamClient(monotonic=clock.mono, steps=steps)  # the network
    records = Records(journal, leases, vault, clock, telemetry)  # claims and writes
    repeats = Repeats(journal, vault, clock, PinnedPolicies(journal), under_way)  # known keys
    sender = Sender(upstream, leases, clock)  # one attempt
    carry = Carry(records, repeats, sender, leases, vault, clock, chance, steps, telemetry)  # the life of a call
    engine = Engine(
        carry=carry,
        forwarding=Forward(upstream, telemetry),  # what is no operation
        journal=journal,
        vault=vault,
        gate=Gate(calls_max),
        clock=clock,
        chance=chance,
        telemetry=telemetry,
        tasks=Tasks(),
        book=book,
        under_way=under_way,
    )
    return engine, leases


async def serve(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    say: Say,
    steps: Steps | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """The whole sidecar, until SIGTERM or SIGINT (or `stop`); then it drains within the grace time."""
    clock, chance, stop = SystemClock(), SystemChance(), stop or asyncio.Event()
    install(sys.stderr, logging.getLevelName(settings.log_level.upper()))
    telemetry = Telemetry(Metrics(version("paywitness"), clock.now), Logs(logging.getLogger("paywitness")))
    book = load_directory(settings.policies)  # a policy that cannot be read stops a start, never a run
    async with AsyncExitStack() as stack:
        journal = await SqliteJournal.open(settings.journal_path, clock=clock)
        stack.push_async_callback(journal.close)
        vault = vault_for(settings, environment, chance)
        await journal.check_identity(check_value(vault.identity_secret))
        await refuse_changed_identity(journal, book)
        await keep_revisions(journal, book)
        recovery = Recovery(journal, clock, telemetry)
        recovered = await recovery.at_start(only_holder=True)
        engine, leases = assemble(
            book=book,
            journal=journal,
            vault=vault,
            clock=clock,
            chance=chance,
            steps=steps or NoSteps(),
            telemetry=telemetry,
            lease_s=settings.lease_s,
            calls_max=settings.calls_max,
        )
        stack.push_async_callback(engine.carry.sender.upstream.close)
        reload = Reload(PolicyWatch(settings.policies, book), engine, journal, clock, telemetry)
        telemetry.tell(reloaded(book))
        background = Tasks()  # renewing, looking for lost leases, watching the policies
        stack.push_async_callback(background.stop)
        background.start(leases.keep_renewing(), "leases")
        background.start(recovery.keep_looking(), "recovery")
        background.start(reload.keep_looking(), "reload")
        admin = AdminServer(
            AdminView(engine, reload, journal, telemetry.metrics), admin_token(settings, environment, chance)
        )
        stack.push_async_callback(admin.close)
        admin_port = await admin.start(settings.admin.host, settings.admin.port)
        edge = EdgeServer(engine)
        stack.push_async_callback(edge.close)
        listens = Address(*await edge.start(settings.listen.host, settings.listen.port))
        _listen_to_signals(stop, reload.look_now)
        bound = replace(settings, listen=listens, admin=Address(settings.admin.host, admin_port))
        for line in greeting(bound, book, recovered):
            say(line)
        await stop.wait()
        say("Draining: no new calls; those under way finish or are recorded as doubt.")
        await drain(engine, edge, settings.grace_s, clock)


async def drain(engine: Engine, edge: EdgeServer, grace_s: float, clock: Clock) -> None:
    """Stop accepting, let what is under way finish, and write down the rest as doubt. Within the grace time."""
    began_mono = clock.mono()
    engine.gate.draining = True
    share_s = max(0.0, grace_s - _LAST_WORDS_S)
    await edge.drain(share_s)
    await engine.tasks.close(max(0.0, share_s - (clock.mono() - began_mono)))


def vault_for(settings: Settings, environment: Mapping[str, str], chance: Chance) -> Vault:
    """The vault of this journal: secrets from the environment, or those that the journal keeps beside itself."""

    def text_of_key() -> str:
        return base64.b64encode(chance.key()).decode()

    path = settings.journal_path
    secret = environment.get(IDENTITY_SECRET) or kept_secret(path.with_name(f"{path.name}.identity"), text_of_key)
    ring = environment.get(ENCRYPTION_KEYS) or kept_secret(
        path.with_name(f"{path.name}.keys"), lambda: f"k1:{text_of_key()}"
    )
    return Vault(read_identity_secret(secret), read_ring(ring), chance.nonce)


def admin_token(settings: Settings, environment: Mapping[str, str], chance: Chance) -> str:
    """The token of the admin port: from the environment, or made once and kept where `paywitness ops` looks for it."""
    return environment.get(ADMIN_TOKEN) or kept_secret(settings.home / "admin-token", chance.token)


def greeting(settings: Settings, book: PolicyBook, recovered: int) -> list[str]:
    """What a person who has just started it wants to know."""
    providers = ", ".join(sorted(book.providers))
    lines = [
        f"Paywitness listens on {settings.listen.url}/{{provider}}/...  for: {providers}",
        f"Admin, metrics, health on {settings.admin.url}  journal: {settings.journal}",
    ]
    if settings.sandbox is not None:
        url = settings.sandbox.url
        lines.append(f"The sandbox provider listens on {url}  ledger: {url}/_sandbox/ledger")
        if url not in {provider.upstream for provider in book.providers.values()}:
            lines.append(f"No policy's upstream is the sandbox: set `upstream: {url}` in a policy to reach it.")
    if recovered:
        lines.append(f"Recovered what an earlier process had left under way: {recovered} operation(s).")
    return lines


def _listen_to_signals(stop: asyncio.Event, look_now: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, look_now.set)
