"""A small world for the engine: the real engine over a real journal and real sockets, with the sandbox as referee."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paywitness.clock import Clock, SystemClock
from paywitness.core.admission import ConcurrencyBounds as AdmissionBounds
from paywitness.core.budget import BudgetRules, ScopeRule
from paywitness.core.call import Call, CallerOptions, Priority
from paywitness.core.circuit import CircuitRules
from paywitness.core.classify import ExpectedPayment
from paywitness.core.evidence import Response
from paywitness.core.operation import AttemptSummary, Operation
from paywitness.core.payment_claims import PaymentClaim
from paywitness.core.policy import ResolutionRules
from paywitness.core.recognise import recognise_under
from paywitness.core.reply import NO_SHAPE, Reply
from paywitness.engine.calls.attempts import EvidenceSpool
from paywitness.engine.calls.context import CallContext, CallProgress
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.durability.leases import Leases
from paywitness.engine.engine import Engine
from paywitness.engine.failpoints import Failpoints, NoFailpoints
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import Journal
from paywitness.limits.admission import Admission
from paywitness.limits.circuits import CurrentRules
from paywitness.limits.factory import Limits, local_limits
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook, load_content
from paywitness.randomness import Randomness
from paywitness.secrets import RingKey, Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness.wiring import Platform, SidecarParts, assemble
from paywitness_sandbox.messages import SandboxArrival
from paywitness_sandbox.server import Sandbox
from tests.journal.memory import MemoryJournal
from tests.randomness import own_randomness

POLICY = Path(__file__).resolve().parents[2] / "policies" / "acme.yaml"
SECRET = b"a secret of the tests, long enough"


class NoSpool:
    """A disk that takes nothing."""

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        no_bytes_after_at: float | None,
        undelivered: bool,
    ) -> bool:
        return False


def always() -> bool:
    return True


def book_of(upstream: str, *edits: tuple[str, str]) -> PolicyBook:
    """The shipped policy of the sandbox, pointed at a running one, with pieces of its text replaced."""
    text = POLICY.read_text().replace("http://127.0.0.1:8702", upstream)
    for old, new in edits:
        assert old in text, f"the policy has no {old!r}"
        text = text.replace(old, new)
    return PolicyBook.of([load_content(text.encode(), "acme.yaml")])


def sooner(book: PolicyBook, resolve: ResolutionRules) -> PolicyBook:
    """The book with other times for what is in doubt, shorter than a file may ask for: a lease lasts less here."""
    return PolicyBook.of(
        replace(provider, policies=tuple(replace(policy, resolve=resolve) for policy in provider.policies))
        for provider in book.providers.values()
    )


def roomy(book: PolicyBook) -> PolicyBook:
    """The book with limits that nobody reaches: what they do is told by the tests of limits."""
    scope = ScopeRule(100_000)
    budget = BudgetRules(provider=scope, operation=scope, account=scope, failure_class=scope, per_intent=1000)
    return PolicyBook.of(
        replace(
            provider,
            circuit=CircuitRules(minimum=1_000_000, degrade_at=replace(CircuitRules().degrade_at, throttled=2.0)),
            policies=tuple(replace(policy, budget=budget) for policy in provider.policies),
        )
        for provider in book.providers.values()
    )


def roomy_limits(book: CurrentRules, clock: Clock, randomness: Randomness) -> Limits:
    admission = Admission(clock, randomness, AdmissionBounds(1000, 1000, 1000))
    return replace(local_limits(book, clock, randomness), admission=admission)


def telemetry_for(clock: Clock) -> Telemetry:
    logger = logging.getLogger("paywitness.tests")
    logger.setLevel(logging.CRITICAL)
    return Telemetry(Metrics("test", clock.now), LogWriter(logger))


@dataclass
class World:
    sandbox: Sandbox
    engine: Engine
    leases: Leases
    journal: Journal
    clock: Clock
    parts: SidecarParts

    async def charge(
        self,
        key: str | None = "key-1",
        *,
        amount: int = 1099,
        order: str | None = "order-1",
        fault: str | None = None,
        contract: str | None = None,
        source: str = "tok_ok",
        timeout_s: float | None = None,
        still_there: Callable[[], bool] = always,
        headers: Mapping[str, str] | None = None,
        options: CallerOptions | None = None,
    ) -> Reply:
        body = {"amount": amount, "currency": "EUR", "source": source, "metadata": {"order_id": order} if order else {}}
        given = {"Content-Type": "application/json", "Authorization": "Bearer test", **(headers or {})}
        if key is not None:
            given["Idempotency-Key"] = key
        if fault is not None:
            given["Sandbox-Fault"] = fault
        if contract is not None:
            given["Sandbox-Contract"] = contract
        return await self.post("/v1/charges", body, given, options or CallerOptions(timeout_s=timeout_s), still_there)

    async def post(
        self,
        path: str,
        body: object,
        headers: Mapping[str, str],
        options: CallerOptions | None = None,
        still_there: Callable[[], bool] = always,
    ) -> Reply:
        pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        segments = tuple(path.strip("/").split("/"))
        return await self.engine.reply_to(
            Call("acme", "POST", path, "", segments, pairs, raw, options or CallerOptions()), still_there
        )

    @property
    def arrivals(self) -> Sequence[SandboxArrival]:
        """Every request that reached the provider."""
        return self.sandbox.arrivals.arrivals

    def effects(self, **which: str) -> int:
        return self.sandbox.ledger.effects(**which)


async def make_world(
    sandbox: Sandbox,
    *edits: tuple[str, str],
    journal: Journal | None = None,
    clock: Clock | None = None,
    failpoints: Failpoints | None = None,
    lease_s: float = 30.0,
    calls_max: int = 1000,
    ring_key: str = "k1",
    harvest_s: float = 0.0,
    resolve: ResolutionRules | None = None,
    environment: Mapping[str, str] | None = None,
    spool: EvidenceSpool | None = None,
    limited: bool = False,
) -> World:
    clock = clock or SystemClock()
    journal = journal if journal is not None else MemoryJournal(clock=clock)
    randomness = own_randomness()
    book = book_of(sandbox.url, *edits)
    if resolve is not None:
        book = sooner(book, resolve)
    if not limited:
        book = roomy(book)
    await store_revisions(journal, book)
    vault = Vault(SECRET, (RingKey(ring_key, b"0" * 32),), randomness.nonce)
    platform = Platform(
        journal, vault, clock, randomness, failpoints or NoFailpoints(), telemetry_for(clock), environment or {}
    )
    settings = Settings(Path(), lease_s=lease_s, calls_max=calls_max, late_response_s=harvest_s)
    spool = spool if spool is not None else NoSpool()
    parts = assemble(platform, settings, book, spool, local_limits if limited else roomy_limits)
    await parts.ages.count()
    return World(sandbox, parts.engine, parts.leases, journal, clock, parts)


async def until(condition: Callable[[], object]) -> None:
    """Let the world go on until it is so. The test's own time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110  # the world is real sockets: there is no event to wait for
        await asyncio.sleep(0.01)


def outcome(reply: Reply) -> str:
    return header(reply, "Paywitness-Outcome") or ""


def header(reply: Reply, name: str) -> str | None:
    wanted = name.lower().encode()
    return next((value.decode() for key, value in reply.headers if key.lower() == wanted), None)


def problem_type(reply: Reply) -> str:
    return str(json.loads(reply.body)["type"]).rsplit(":", 1)[-1]


def waiting_caller(world: World, fresh: Operation, *, still_there: bool = True) -> CallContext:
    """The context of a call that would start this operation, and whose caller waits for a minute."""
    new = asyncio.get_running_loop().create_future
    policy = next(one for one in world.engine.book.providers["acme"].policies if one.operation == "sale")
    call = Call("acme", "POST", "/v1/charges", "", ("v1", "charges"), (), b"{}")
    secret = world.engine.vault.identity_secret
    recognised = recognise_under(policy, call, None, {}, secret, lambda: "key")
    return CallContext(
        policy=policy,
        tree=None,
        expected=ExpectedPayment(None),
        shape=NO_SHAPE,
        token="ours",
        deadline_mono=world.clock.mono() + 60.0,
        still_there=lambda: still_there,
        request=StoredRequest.of(call),
        request_available=True,
        priority=Priority.HIGH,
        progress=CallProgress(fresh, new()),
        call=call,
        identity=replace(recognised.identity, key=fresh.key),
        reply=new(),
        fresh=fresh,
        holds_unstorable_data=False,
        payment_claim=PaymentClaim(),
        payout_claim=None,
        parameters={},
    )
