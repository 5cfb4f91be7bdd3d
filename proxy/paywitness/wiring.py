"""The wiring: the only place that builds and joins objects, as one list from the bottom up.

The simulator and the crash tests build the same sidecar with a clock, randomness, failpoints and network of their own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paywitness.clock import Clock, JournalClock
from paywitness.engine.account_access import AccountAccess
from paywitness.engine.calls.attempts import AttemptRecorder, AttemptSender, EvidenceSpool
from paywitness.engine.calls.context import CallProgress
from paywitness.engine.calls.duplicates import DuplicateCalls
from paywitness.engine.calls.fallback import Fallbacks
from paywitness.engine.calls.gate import Gate, RetryBudget, never
from paywitness.engine.calls.passthrough import Passthrough
from paywitness.engine.calls.payout_check import PayoutCheck
from paywitness.engine.calls.pipeline import CallPipeline
from paywitness.engine.calls.refused_lookups import RefusedLookups
from paywitness.engine.calls.shadow import ShadowMode
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.levels import Levels
from paywitness.engine.durability.rollback import RollbackMonitor
from paywitness.engine.durability.spool import Spool, SpoolReplayer
from paywitness.engine.earlier_rules import EarlierIdentities
from paywitness.engine.engine import Engine
from paywitness.engine.failpoints import Failpoints
from paywitness.engine.intents import Intents
from paywitness.engine.limits_sync import LimitsSync
from paywitness.engine.outbox import Outbox, Sink
from paywitness.engine.payment_commands import PaymentCommands
from paywitness.engine.payment_lookup import PaymentLookup
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.background_credentials import CredentialSource
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import InquiryClient
from paywitness.engine.resolution.late_evidence import LateEvidenceRecorder
from paywitness.engine.resolution.payments import IntentReader, PaymentSweep
from paywitness.engine.resolution.resolver import Resolver
from paywitness.engine.webhooks.applier import WebhookApplier
from paywitness.engine.webhooks.inbox import WebhookInbox
from paywitness.engine.webhooks.matcher import WebhookMatcher
from paywitness.engine.webhooks.relay import Relay
from paywitness.journal.base import Journal
from paywitness.limits.factory import Limits, LimitsFactory, local_limits
from paywitness.option_defaults import Settings
from paywitness.policy.book import CurrentPolicies, PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.upstream.client import UpstreamClient


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts that all others need."""

    journal: Journal
    vault: Vault
    clock: Clock
    randomness: Randomness
    failpoints: Failpoints
    telemetry: Telemetry
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SidecarParts:
    """A sidecar without its listeners and loops: the call pipeline, and the parts that go on after the caller has
    left."""

    engine: Engine
    leases: Leases
    resolver: Resolver
    external_evidence: ExternalEvidenceRecorder
    late_evidence: LateEvidenceRecorder
    journal_writer: JournalWriter
    pinned: PinnedPolicies
    upstream: UpstreamClient
    limits: Limits
    limits_sync: LimitsSync
    payment_sweep: PaymentSweep
    rollback: RollbackMonitor | None

    @property
    def levels(self) -> Levels | None:
        return self.journal_writer.levels

    @property
    def ages(self) -> Ages:
        return self.journal_writer.ages


OpenUpstream = Callable[[Platform, Settings], UpstreamClient]


def real_upstream(platform: Platform, settings: Settings) -> UpstreamClient:
    return UpstreamClient(
        monotonic=platform.clock.mono,
        at_failpoint=platform.failpoints.hit,
        late_response_s=settings.late_response_s,
    )


def assemble(
    platform: Platform,
    settings: Settings,
    book: PolicyBook,
    spool: EvidenceSpool,
    open_limits: LimitsFactory = local_limits,
    open_upstream: OpenUpstream = real_upstream,
    release: str = "",
) -> SidecarParts:
    """Build the engine over a journal and a network. It starts no listener and no background loop."""
    journal, vault, clock, telemetry = platform.journal, platform.vault, platform.clock, platform.telemetry
    randomness, environment = platform.randomness, platform.environment
    policies = CurrentPolicies(book)
    tasks, waiters, in_flight, pinned = Tasks(), OperationWaiters(), dict[str, CallProgress](), PinnedPolicies(journal)
    # Leases, the network, and the journal's own time.
    leases, journal_clock = Leases(journal, clock, settings.lease_s, telemetry), JournalClock(clock)
    ages, upstream = Ages(journal, clock, journal_clock, telemetry), open_upstream(platform, settings)
    rollback = None
    if journal.can_roll_back:
        rollback = RollbackMonitor(journal, leases, clock, telemetry, journal_clock, policies)
    times = (journal_clock, ages, _build_levels(platform, settings, ages, release))
    journal_writer = JournalWriter(journal, leases, vault, clock, telemetry, *times, rollback=rollback)
    # External evidence, and evidence that came too late for its call.
    external_evidence = ExternalEvidenceRecorder(journal_writer, vault, clock, randomness, telemetry, waiters)
    late_evidence = LateEvidenceRecorder(journal_writer, external_evidence, clock, telemetry)
    # Limits: the admission to each provider, and retries.
    limits = open_limits(policies.circuit_rules, clock, randomness)
    gate = _build_gate(limits, policies, clock, settings, rollback)
    retry_budget = RetryBudget(limits.budgets, telemetry)
    fallbacks = Fallbacks(journal, policies, leases, vault, clock, randomness, environment, telemetry, gate, rollback)
    # The life of a call.
    attempt_recorder = AttemptRecorder(
        journal_writer, leases, retry_budget, vault, clock, randomness, telemetry, waiters, late_evidence, spool
    )
    pipeline = CallPipeline(
        journal_writer=journal_writer,
        duplicates=DuplicateCalls(journal, vault, clock, pinned, in_flight, waiters),
        gate=gate,
        retry_budget=retry_budget,
        sender=AttemptSender(upstream, leases, clock, ages),
        attempt_recorder=attempt_recorder,
        leases=leases,
        vault=vault,
        clock=clock,
        failpoints=platform.failpoints,
        fallbacks=fallbacks,
        late_evidence=late_evidence,
        tasks=tasks,
        payout_check=PayoutCheck(upstream, environment, clock),
        refused_lookups=RefusedLookups(journal_writer),
    )
    # The entry: operations, passthrough, shadow mode, and questions about intents.
    credential_owners = CredentialOwners(journal, upstream, vault, clock, tasks, environment)
    identities = _build_identities(platform, credential_owners)
    inquiry_client = _build_inquiry_client(platform, pipeline, credential_owners)
    shadow = ShadowMode(upstream, vault, clock, randomness, telemetry)
    intents = _build_intents(platform, policies, gate)
    questions = (intents, IntentReader(journal, inquiry_client, vault, clock, telemetry))
    entry_points = (pipeline, fallbacks, Passthrough(upstream, telemetry), shadow, *questions, *identities)
    engine = Engine(*entry_points, journal, vault, gate, clock, randomness, telemetry, tasks, policies, in_flight)
    # After the caller has left.
    resolver = _build_resolver(platform, settings, pipeline, external_evidence, inquiry_client, pinned, policies)
    payment_sweep = PaymentSweep(journal, journal_writer, external_evidence, inquiry_client, pinned, policies, clock)
    limits_sync = LimitsSync(limits, gate, journal, ages.due_times, clock, telemetry)
    recorders, background = (external_evidence, late_evidence, journal_writer), (limits_sync, payment_sweep, rollback)
    return SidecarParts(engine, leases, resolver, *recorders, pinned, upstream, limits, *background)


def _build_levels(platform: Platform, settings: Settings, ages: Ages, release: str) -> Levels | None:
    """Announces this sidecar to the others of its journal. None if the sidecar names no release."""
    if not release:
        return None
    name = f"{socket.gethostname()}:{os.getpid()}"
    return Levels(platform.journal, platform.clock, ages, settings.lease_s, name=name, release=release)


def _build_gate(
    limits: Limits, policies: CurrentPolicies, clock: Clock, settings: Settings, rollback: RollbackMonitor | None
) -> Gate:
    """The check before an attempt. It also knows of a journal that was rolled back."""
    forgets = (rollback.recently_rolled_back, rollback.end_may_be_lost) if rollback is not None else (never, never)
    return Gate(limits.circuits, limits.admission, policies, clock, settings.calls_max, *forgets)


def _build_intents(platform: Platform, current: Callable[[], PolicyBook], gate: Gate) -> Intents:
    payments = PaymentLookup(platform.journal, current, platform.vault.identity_secret)
    return Intents(platform.journal, current, payments, gate.recently_rolled_back)


def _build_identities(
    platform: Platform, owners: CredentialOwners
) -> tuple[CredentialOwners, AccountAccess, EarlierIdentities]:
    """The owner of a call's credential, and earlier identities of the call."""
    journal, vault, clock = platform.journal, platform.vault, platform.clock
    return owners, AccountAccess(journal, owners, vault, clock), EarlierIdentities(journal, vault, clock)


def _build_inquiry_client(platform: Platform, pipeline: CallPipeline, owners: CredentialOwners) -> InquiryClient:
    """Sends inquiries to providers."""
    journal, vault, clock, upstream = platform.journal, platform.vault, platform.clock, pipeline.sender.upstream
    credentials = CredentialSource(journal, vault, platform.environment, upstream, clock, owners)
    limits = (pipeline.tasks, pipeline.gate, pipeline.retry_budget)
    ages = pipeline.journal_writer.ages
    return InquiryClient(journal, upstream, credentials, vault, clock, platform.telemetry, *limits, ages)


def _build_resolver(
    platform: Platform,
    settings: Settings,
    pipeline: CallPipeline,
    external_evidence: ExternalEvidenceRecorder,
    inquiry_client: InquiryClient,
    pinned: PinnedPolicies,
    book: Callable[[], PolicyBook],
) -> Resolver:
    """Resolves unknown outcomes after the caller has left."""
    return Resolver(
        journal=platform.journal,
        pipeline=pipeline,
        external_evidence=external_evidence,
        inquiry_client=inquiry_client,
        pinned=pinned,
        book=book,
        clock=platform.clock,
        randomness=platform.randomness,
        failpoints=platform.failpoints,
        telemetry=platform.telemetry,
        tasks=pipeline.tasks,
        workers_max=settings.resolvers,
        per_provider_max=settings.resolvers_per_provider,
    )


def build_webhooks(platform: Platform, parts: SidecarParts) -> WebhookInbox:
    """Receives and applies webhook events."""
    matching = WebhookMatcher(platform.journal, parts.pinned, platform.vault)
    return WebhookInbox(
        journal=platform.journal,
        vault=platform.vault,
        clock=platform.clock,
        telemetry=platform.telemetry,
        applier=WebhookApplier(matching, parts.external_evidence, parts.resolver.inquiry_client),
        relay=Relay(parts.upstream),
        book=parts.engine.policies,
        environment=platform.environment,
        due_times=parts.ages.due_times,
    )


def build_outbox(platform: Platform, parts: SidecarParts, sink: Sink) -> Outbox:
    """Publishes announcements to the sink."""
    announced = parts.ages.due_times.announcements
    outside = (platform.clock, platform.randomness, platform.telemetry)
    return Outbox(platform.journal, parts.upstream, sink, announced, *outside)


def build_payment_commands(platform: Platform, parts: SidecarParts) -> PaymentCommands:
    """Runs operator actions on payments."""
    return PaymentCommands(
        lookup=parts.engine.intents.payments,
        journal=platform.journal,
        inquiry_client=parts.resolver.inquiry_client,
        book=parts.engine.policies,
        journal_clock=parts.journal_writer.journal_clock,
        randomness=platform.randomness,
        telemetry=platform.telemetry,
    )


def build_spool_replayer(platform: Platform, parts: SidecarParts, spool: Spool) -> SpoolReplayer:
    """Replays evidence from the local disk into the journal."""
    return SpoolReplayer(
        spool, parts.journal_writer, parts.pinned, parts.engine.policies, platform.clock, parts.late_evidence
    )
