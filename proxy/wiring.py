"""The wiring: the only place where objects are built and joined, as one list from the ground up.

The simulator and the crash tests build the same sidecar with a clock, chance, steps and network of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.circuit import CircuitRules
from proxy.engine.allowance import Allowances
from proxy.engine.applying import Applying
from proxy.engine.attempt import Sender
from proxy.engine.carry import Carry
from proxy.engine.credentials import Credentials
from proxy.engine.engine import Engine
from proxy.engine.errand import Errand
from proxy.engine.fallback import Fallbacks
from proxy.engine.forward import Forward
from proxy.engine.gate import Gate
from proxy.engine.heard_time import HeardTime
from proxy.engine.inquirer import Inquirer
from proxy.engine.intents import Intents
from proxy.engine.late import Late
from proxy.engine.leases import Leases
from proxy.engine.matching import Matching
from proxy.engine.observing import Observing
from proxy.engine.outside import Outside
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.records import Records
from proxy.engine.relay import Relay
from proxy.engine.repeats import Repeats
from proxy.engine.reports import Reports
from proxy.engine.resolver import Resolver
from proxy.engine.rollback import Rollback
from proxy.engine.settling import Settling, Spooling
from proxy.engine.steps import Steps
from proxy.engine.watch import Watch
from proxy.engine.webhooks import Webhooks
from proxy.journal.base import Journal
from proxy.limits.opening import Limits, OpenLimits, local_limits
from proxy.policy.book import PolicyBook
from proxy.settings import Settings
from proxy.tasks import Tasks
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.vault import Vault


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
    limits: Limits
    reports: Reports
    rollback: Rollback | None


OpenUpstream = Callable[[Ground, Bounds], UpstreamClient]


def real_upstream(ground: Ground, bounds: Bounds) -> UpstreamClient:
    return UpstreamClient(monotonic=ground.clock.mono, steps=ground.steps, harvest_s=bounds.harvest_s)


def assemble(
    ground: Ground,
    bounds: Bounds,
    book: PolicyBook,
    spool: Spooling,
    open_limits: OpenLimits = local_limits,
    open_upstream: OpenUpstream = real_upstream,
) -> Parts:
    """The engine over a journal and a network. No listener, no loop in the background."""
    journal, vault, clock, telemetry = ground.journal, ground.vault, ground.clock, ground.telemetry
    under_way: dict[str, Errand] = {}
    tasks, watch = Tasks(), Watch()
    leases = Leases(journal, clock, bounds.lease_s, telemetry)  # the right to send
    upstream = open_upstream(ground, bounds)  # the network
    time = HeardTime(clock)  # the journal's
    # What a store forgot is put back.
    rollback = Rollback(journal, leases, clock, telemetry, time) if journal.may_forget else None
    records = Records(journal, leases, vault, clock, telemetry, time, rollback=rollback)  # claims and writes
    pinned = PinnedPolicies(journal)  # the policy that each operation was started under
    outside = Outside(records, vault, clock, ground.chance, telemetry, watch)  # evidence that came by no attempt
    late = Late(records, outside, clock, telemetry)  # evidence that came too late for its call

    def current() -> PolicyBook:
        return engine.book

    def circuit_rules() -> Mapping[str, CircuitRules]:
        return {name: provider.circuit for name, provider in engine.book.providers.items()}

    limits = open_limits(circuit_rules, clock, ground.chance)  # how much a provider is given
    gate = Gate(limits.circuits, limits.admission, current, clock, bounds.calls_max)  # who may go to it now
    if rollback is not None:
        gate.cautious, gate.may_have_ended, rollback.book = rollback.cautious, rollback.may_have_ended, current
    allowances = Allowances(limits.budgets, telemetry)  # and who again
    fallbacks = Fallbacks(
        journal, current, leases, vault, clock, ground.chance, ground.environment, telemetry, rollback
    )
    carry = Carry(  # the life of a call
        records=records,
        repeats=Repeats(journal, vault, clock, pinned, under_way, watch),
        gate=gate,
        allowances=allowances,
        sender=Sender(upstream, leases, clock),
        settling=Settling(records, leases, allowances, vault, clock, ground.chance, telemetry, watch, late, spool),
        leases=leases,
        vault=vault,
        clock=clock,
        steps=ground.steps,
        fallbacks=fallbacks,
        late=late,
        tasks=tasks,
    )
    engine = Engine(
        carry=carry,
        fallbacks=fallbacks,
        forwarding=Forward(upstream, telemetry),  # what is no operation
        observing=Observing(upstream, vault, clock, ground.chance, telemetry),  # what is only watched
        intents=Intents(journal, current),  # whether a purchase may be paid
        journal=journal,
        vault=vault,
        gate=gate,
        clock=clock,
        chance=ground.chance,
        telemetry=telemetry,
        tasks=tasks,
        book=book,
        under_way=under_way,
    )
    resolver = _resolver(ground, bounds, carry, outside, pinned, current)
    reports = Reports(limits, gate, journal, watch, clock, telemetry)
    return Parts(engine, leases, resolver, outside, late, records, pinned, upstream, limits, reports, rollback)


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
        inquirer=Inquirer(
            journal, upstream, credentials, vault, clock, ground.telemetry, carry.tasks, carry.gate, carry.allowances
        ),
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
