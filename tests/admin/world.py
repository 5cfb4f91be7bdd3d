"""A world for the admin port: a journal in memory with a past, a policy book, metrics, a server on a real socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paywitness.admin.backend import Readiness
from paywitness.admin.server import AdminServer
from paywitness.clock import JournalClock
from paywitness.core.admission import ConcurrencyBounds
from paywitness.core.circuit import CircuitRules
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.classify import ClassifyRules
from paywitness.core.consequences import announcement_of
from paywitness.core.decide import Action
from paywitness.core.fallback import FallbackCause, FallbackChoice, RouteCandidate, RouteVerdict
from paywitness.core.inquiry import Cancel, Inquiry
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import AttemptSummary, Guard, GuardKind, Operation, State
from paywitness.core.policy import Policy, Provider, Route
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.result import Classification, ResultClass
from paywitness.core.template import Placeholder, Template
from paywitness.engine.calls.gate import Gate, RetryBudget
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.levels import Levels
from paywitness.engine.intents import Intents
from paywitness.engine.operator_commands import CommandExecutor
from paywitness.engine.payment_commands import PaymentCommands
from paywitness.engine.payment_lookup import PaymentLookup
from paywitness.engine.payout_approvals import PayoutApprovals
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.background_credentials import CredentialSource
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.inquiries import InquiryClient
from paywitness.journal.base import Journal, OperationChange
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import LocalBudgets
from paywitness.limits.circuits import Circuits, LocalCircuits
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import RingKey, Vault
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.gauges import LimitsSources
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.upstream.client import UpstreamClient
from tests.journal.memory import MemoryJournal
from tests.randomness import own_randomness
from tests.telemetry.samples import operation as some_operation

TOKEN = "token-of-the-admin"
STARTED_AT = 1_750_000_000.0

# What the journal holds that must never be told.
SEALED_REQUEST, SEALED_RESPONSE = b"canary-sealed-request", b"canary-sealed-response"
SECRETS = {
    "key": "canary-key-hash",
    "credential": "canary-credential-hash",
    "fingerprint": "canary-fingerprint",
    "request_hash": "canary-request-hash",
}
CARD = "4242 4242 4242 4242"
ACCOUNT = "a" * 32  # a keyed hash too, which is shown: it says which operations are one account's

CONTRACT = ProviderContract(
    send_as=FieldRef(FieldKind.HEADER, "Idempotency-Key"), window_s=86_400.0, supports_inquiry=True
)


class HandClock:
    """Stands still until it is moved, or until somebody waits."""

    def __init__(self, now: float = STARTED_AT) -> None:
        self.at = now

    def now(self) -> float:
        return self.at

    def mono(self) -> float:
        return self.at

    def boot(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


class SomeBudgets(LocalBudgets):
    """Budgets that say whose they are as the test wants it."""

    fleet = False


@dataclass
class World:
    """What the server looks at, and hands to change it."""

    clock: HandClock = field(default_factory=HandClock)
    now_ready: Readiness = Readiness()
    book_in_force: PolicyBook | None = None
    token: str | None = TOKEN
    address: str = ""
    journal_kind: type[MemoryJournal] = MemoryJournal
    store: Any = None  # another journal than one in memory

    def __post_init__(self) -> None:
        self.memory = self.store or self.journal_kind(clock=self.clock)
        self.counters = Metrics("1.2.3", self.clock.now)
        logger = logging.getLogger("paywitness.tests")
        logger.setLevel(logging.CRITICAL)
        self.telemetry = telemetry = Telemetry(self.counters, LogWriter(logger))
        chance = own_randomness()
        vault = Vault(b"a secret of the tests, long enough", (RingKey("k1", b"0" * 32),), chance.nonce)
        leases = Leases(self.memory, self.clock, 30.0)
        journal_clock = JournalClock(self.clock)
        self.ages = Ages(self.memory, self.clock, journal_clock, telemetry)
        self.levels: Levels | None = Levels(self.memory, self.clock, self.ages, 30.0, name="pod-1:7", release="1.2.3")
        records = JournalWriter(self.memory, leases, vault, self.clock, telemetry, journal_clock, self.ages)
        outside = ExternalEvidenceRecorder(records, vault, self.clock, chance, telemetry, OperationWaiters())
        pinned = PinnedPolicies(self.memory)
        self.hands = CommandExecutor(records, outside, self.memory, pinned, self.book, self.clock, telemetry)
        self.payments = PaymentLookup(self.memory, self.book, vault.identity_secret)
        self.approvals = PayoutApprovals(self.memory, records.journal_clock)
        self.purchases = Intents(self.memory, self.book, self.payments)
        self.book_in_force = self.book_in_force or acme_book()
        self._numbers = iter(range(1, 10_000))
        self.circuits: Circuits = LocalCircuits(self._circuit_rules, self.clock, chance)
        self.budgets = SomeBudgets(self.clock, chance)
        self.admission = Admission(self.clock, chance, ConcurrencyBounds(start=20.0))
        owners = CredentialOwners(self.memory, UpstreamClient(monotonic=self.clock.mono), vault, self.clock, Tasks())
        self.credential_commands = CredentialCommands(self.memory, records, owners)
        self.payment_commands = self._payment_commands(chance, vault, records.journal_clock)
        self.counters.watch_limits(
            LimitsSources(
                self.circuits.statuses, self.budgets.remaining, self.admission.stats, lambda: self.budgets.fleet
            )
        )

    def _payment_commands(self, chance: Randomness, vault: Vault, journal_clock: JournalClock) -> PaymentCommands:
        upstream = UpstreamClient(monotonic=self.clock.mono)
        gate = Gate(self.circuits, self.admission, lambda: self.book_in_force or PolicyBook.of(()), self.clock, 100)
        owners = CredentialOwners(self.memory, upstream, vault, self.clock, Tasks())
        inquiry_client = InquiryClient(
            self.memory,
            upstream,
            CredentialSource(self.memory, vault, {}, upstream, self.clock, owners),
            vault,
            self.clock,
            self.telemetry,
            Tasks(),
            gate,
            RetryBudget(self.budgets, self.telemetry),
            self.ages,
        )
        return PaymentCommands(
            self.payments, self.memory, inquiry_client, self.book, journal_clock, chance, self.telemetry
        )

    def _circuit_rules(self) -> dict[str, CircuitRules]:
        book = self.book_in_force
        return {name: provider.circuit for name, provider in book.providers.items()} if book is not None else {}

    # the view

    @property
    def journal(self) -> Journal:
        return self.memory

    @property
    def metrics(self) -> Metrics:
        return self.counters

    def readiness(self) -> Readiness:
        return self.now_ready

    def book(self) -> PolicyBook | None:
        return self.book_in_force

    @property
    def review(self) -> CommandExecutor:
        return self.hands

    @property
    def intents(self) -> Intents:
        return self.purchases

    # its past

    async def started(self, client_key: str = "order-17", **changes: Any) -> Operation:
        """An operation that is being sent."""
        number = next(self._numbers)
        hashes = {**SECRETS, "account": ACCOUNT, "key": f"{SECRETS['key']}-{number}"}
        facts = {
            "id": f"op_{number:026d}",
            "client_key": client_key,
            "provider_key": f"{client_key}-upstream",
            "state": State.PREPARED,
            "attempts": 0,
            "first_sent_at": None,
            "guard": Guard(GuardKind.INTENT, f"canary-guard-hash-{number}", "order-17"),
            "revision": "acme-revision",
            **hashes,
            **changes,
        }
        fresh = some_operation(**facts)
        request = ClaimRequest(fresh, "canary-lease-token", True, 30.0, SEALED_REQUEST)
        claim = await self.memory.claim(request)
        assert claim.verdict is ClaimVerdict.OWNED
        assert claim.operation is not None
        return claim.operation

    async def attempted(
        self, operation: Operation, reading: ResultClass, action: Action, because: str, **changes: Any
    ) -> Operation:
        """The operation after its attempt was read so and decided upon so."""
        classification = Classification.of(reading, f"rule_of_{reading}")
        after, event = conclude(operation, operation.attempts, classification, CONTRACT)
        after = replace(after, lease=None, because=because)
        facts = {"status_code": 200, "phase": "complete", "fault": None, "detail": "", **changes}
        summary = AttemptSummary(
            number=operation.attempts,
            bytes_written=412,
            duration_s=0.0803,
            reset_by_us=False,
            classification=classification,
            **facts,
        )
        change = OperationChange(
            after,
            (event,),
            attempt=summary,
            action=action,
            because=because,
            delay_s=2.0 if action is Action.STATUS_INQUIRY else 0.0,
            sealed_response=SEALED_RESPONSE,
            announcement=announcement_of(operation, after),
        )
        self.clock.at += 1
        return await self.memory.record(change)

    async def succeeded(self, **changes: Any) -> Operation:
        return await self.attempted(await self.started(**changes), ResultClass.SUCCEEDED, Action.STOP, "succeeded")

    async def declined(self, **changes: Any) -> Operation:
        started = await self.started(**changes)
        act = Action.MARK_TERMINAL_FAILURE
        return await self.attempted(started, ResultClass.ISSUER_HARD_DECLINE, act, "provider_said_no", status_code=402)

    async def in_doubt(self, **changes: Any) -> Operation:
        return await self.attempted(
            await self.started(**changes),
            ResultClass.NETWORK_READ_TIMEOUT,
            Action.STATUS_INQUIRY,
            "in_doubt_ask",
            status_code=None,
            phase="awaiting",
            fault="first_byte_timeout",
            detail=f"no answer within 5 s; card {CARD} was in it",
        )

    async def in_review(self, **changes: Any) -> Operation:
        return await self.changed(await self.in_doubt(**changes), Event.PARKED, note="parked, Bearer canary-bearer")

    async def fallen_back(self, **changes: Any) -> Operation:
        """One that was shown absent, and stood for by another at the second of two routes."""
        doubted = await self.in_doubt(**changes)
        candidates = (
            RouteCandidate("acme_us", RouteVerdict.CREDENTIALS_MISSING, "US_KEY"),
            RouteCandidate("acme_eu", RouteVerdict.TAKEN),
        )
        choice = FallbackChoice(FallbackCause.ABSENT, candidates, "acme-revision", 1)
        absent = advance(doubted, Event.INQUIRY_CONFIRMED_ABSENT, fallback_to="op_second")
        events = (Event.INQUIRY_CONFIRMED_ABSENT,)
        return await self.journal.record(OperationChange(absent, events, fallback=choice))

    async def with_incident(self, **changes: Any) -> Operation:
        return await self.changed(await self.declined(**changes), Event.WEBHOOK_TOLD_SUCCESS)

    async def pending(self, **changes: Any) -> Operation:
        return await self.attempted(
            await self.started(**changes), ResultClass.PENDING, Action.STATUS_INQUIRY, "accepted"
        )

    async def abandoned(self, **changes: Any) -> Operation:
        """The customer was asked to act, and nobody looks at it any more."""
        started = await self.started(**changes)
        return await self.attempted(
            started, ResultClass.REQUIRES_ACTION, Action.ASK_CUSTOMER_ACTION, "customer_must_act"
        )

    async def changed(self, operation: Operation, event: Event, *, note: str = "", **changes: Any) -> Operation:
        after = replace(advance(operation, event), **changes)
        self.clock.at += 1
        told = announcement_of(operation, after)
        return await self.memory.record(
            OperationChange(after, (event,), source="webhook", note=note, announcement=told)
        )


def acme_book() -> PolicyBook:
    policy = Policy(
        provider="acme",
        operation="authorization",
        kind=OperationKind.AUTHORIZATION,
        routes=(Route("POST", ("v1", "charges")),),
        contract=CONTRACT,
        classify=ClassifyRules(),
        revision="acme-revision",
        upstream="http://user:canary-password@127.0.0.1:8702",
        merchant="shop",
        inquiries=(Inquiry("ask[0]", Template(("/v1/charges/", Placeholder("reference"))), ()),),
        cancel=Cancel("POST", Template(("/v1/cancel/", Placeholder("client_key"))), ()),
        dashboard=Template(("https://dashboard.acme.test/payments/", Placeholder("reference"))),
    )
    provider = Provider(
        name="acme",
        upstream="http://user:canary-password@127.0.0.1:8702",
        hosts=("api.acme.test",),
        revision="acme-revision",
        content="canary-content",
        source="policies/acme.yaml",
        policies=(policy, replace(policy, operation="refund", kind=OperationKind.REFUND, inquiries=(), cancel=None)),
    )
    return PolicyBook.of([provider])


async def serve(world: World) -> Callable[[], Any]:
    """Serve the world at a free port; returns what closes it."""
    server = AdminServer(world, world.token)
    port = await server.start("127.0.0.1", 0)
    world.address = f"http://127.0.0.1:{port}"
    return server.close
