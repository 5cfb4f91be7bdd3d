"""A small world for the engine: the real engine over a real journal and real sockets, with the sandbox as referee."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proxy.chance import Chance, SeededChance
from proxy.clock import Clock, SystemClock
from proxy.core.admission import Bounds as AdmissionBounds
from proxy.core.budget import BudgetRules, ScopeRule
from proxy.core.call import Call, Wishes
from proxy.core.circuit import CircuitRules
from proxy.core.evidence import Response
from proxy.core.operation import AttemptSummary, Operation
from proxy.core.policy import Resolve
from proxy.core.reply import Reply
from proxy.engine.engine import Engine
from proxy.engine.leases import Leases
from proxy.engine.reload import keep_revisions
from proxy.engine.settling import Spooling
from proxy.engine.steps import NoSteps, Steps
from proxy.journal.base import Journal
from proxy.journal.memory import MemoryJournal
from proxy.limits.admission import Admission
from proxy.limits.circuits import Book
from proxy.limits.opening import Limits, local_limits
from proxy.policy.book import PolicyBook, load_content
from proxy.sandbox.arrivals import Arrival
from proxy.sandbox.server import Sandbox
from proxy.telemetry.logs import Logs
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import RingKey, Vault
from proxy.wiring import Bounds, Ground, Parts, assemble

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
        quiet_at: float | None,
        unheard: bool,
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


def sooner(book: PolicyBook, resolve: Resolve) -> PolicyBook:
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


def roomy_limits(book: Book, clock: Clock, chance: Chance) -> Limits:
    admission = Admission(clock, chance, AdmissionBounds(1000, 1000, 1000))
    return replace(local_limits(book, clock, chance), admission=admission)


def telemetry_for(clock: Clock) -> Telemetry:
    logger = logging.getLogger("paywitness.tests")
    logger.setLevel(logging.CRITICAL)
    return Telemetry(Metrics("test", clock.now), Logs(logger))


@dataclass
class World:
    sandbox: Sandbox
    engine: Engine
    leases: Leases
    journal: Journal
    clock: Clock
    parts: Parts

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
        wishes: Wishes | None = None,
    ) -> Reply:
        body = {"amount": amount, "currency": "EUR", "source": source, "metadata": {"order_id": order} if order else {}}
        given = {"Content-Type": "application/json", "Authorization": "Bearer test", **(headers or {})}
        if key is not None:
            given["Idempotency-Key"] = key
        if fault is not None:
            given["Sandbox-Fault"] = fault
        if contract is not None:
            given["Sandbox-Contract"] = contract
        return await self.post("/v1/charges", body, given, wishes or Wishes(timeout_s=timeout_s), still_there)

    async def post(
        self,
        path: str,
        body: object,
        headers: Mapping[str, str],
        wishes: Wishes | None = None,
        still_there: Callable[[], bool] = always,
    ) -> Reply:
        pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        segments = tuple(path.strip("/").split("/"))
        return await self.engine.answer(
            Call("acme", "POST", path, "", segments, pairs, raw, wishes or Wishes()), still_there
        )

    @property
    def arrivals(self) -> Sequence[Arrival]:
        """Every request that reached the provider."""
        return self.sandbox.arrivals.arrivals

    def effects(self, **which: str) -> int:
        return self.sandbox.ledger.effects(**which)


async def make_world(
    sandbox: Sandbox,
    *edits: tuple[str, str],
    journal: Journal | None = None,
    clock: Clock | None = None,
    steps: Steps | None = None,
    lease_s: float = 30.0,
    calls_max: int = 1000,
    ring_key: str = "k1",
    harvest_s: float = 0.0,
    resolve: Resolve | None = None,
    environment: Mapping[str, str] | None = None,
    spool: Spooling | None = None,
    limited: bool = False,
) -> World:
    clock = clock or SystemClock()
    journal = journal if journal is not None else MemoryJournal(clock=clock)
    chance = SeededChance(1)
    book = book_of(sandbox.url, *edits)
    if resolve is not None:
        book = sooner(book, resolve)
    if not limited:
        book = roomy(book)
    await keep_revisions(journal, book)
    vault = Vault(SECRET, (RingKey(ring_key, b"0" * 32),), chance.nonce)
    ground = Ground(journal, vault, clock, chance, steps or NoSteps(), telemetry_for(clock), environment or {})
    bounds, spool = Bounds(lease_s, calls_max, harvest_s), spool if spool is not None else NoSpool()
    parts = assemble(ground, bounds, book, spool, local_limits if limited else roomy_limits)
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
