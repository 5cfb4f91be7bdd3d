"""A storm: many payments at once through the real engine, with everything going wrong that a seed can think of.

The provider breaks by script, callers repeat, hang up, hurry, change their minds and come back under fresh keys, the
journal loses replies, leases run out under living holders, the policy is edited, events come early, late, twice and in
the wrong order, and the engine is killed or shut down and built again over the same journal. In some of them the
resolver goes on finding out all the while. What was told to whom is kept; the sandbox's ledger says what is true.
`tests.engine.test_storm` compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from paywitness.clock import SystemClock
from paywitness.core.call import Call, CallerOptions
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import HistoryEntry, Operation, State
from paywitness.core.policy import ResolutionRules
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.engine.engine import Engine
from paywitness.engine.failpoints import NoFailpoints
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook
from paywitness.secrets import RingKey, Vault
from paywitness.server.webhooks import WebhookServer
from paywitness.tasks import TaskRefused, Tasks
from paywitness.wiring import Platform, SidecarParts, assemble, build_webhooks
from paywitness_sandbox.bank.objects import ChargeTerms
from paywitness_sandbox.faults.registry import FAULTS
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.world import SECRET, NoSpool, book_of, roomy, roomy_limits, sooner, telemetry_for
from tests.journal.memory import MemoryJournal
from tests.randomness import SeededRandomness

CONTRACTS = ("replayed", "reexecuted", "not_stored", "none")
LEASE_S = 30.0
RETRY_AFTER_MAX_S = 1.0
ANSWERED_WITHIN_S = 20.0
T = TypeVar("T")

# Short enough for a storm to be over soon, long enough for a busy machine.
FAST = (
    ("  connect: 2s\n  first_byte: 5s ", "  connect: 300ms\n  write: 300ms\n  body_idle: 300ms\n  first_byte: 300ms "),
    ("deadline: 20s", "deadline: 2s"),
    ("base: 100ms, cap: 5s", "base: 5ms, cap: 40ms"),
    ("base: 1s, cap: 20s", "base: 5ms, cap: 40ms"),
    ("base: 200ms, cap: 2s", "base: 5ms, cap: 40ms"),
    ("never_store: [source.number, source.cvc]", "never_store: [card.cvc]"),
    ("lag: 5s ", "lag: 300ms "),
    ("        answer: refund\n    as_response", "        answer: refund\n        lag: 300ms\n    as_response"),
)
# For storms in which the resolver runs. What the provider still does after we gave up (PARAMETERS, late_s) is over well
# before `settle`; a schedule that long does not run out. The clock is not moved there: settling is a matter of time.
SOON = ResolutionRules(settle_s=2.5, resend_for_s=4.0, schedule_s=(0.1, 0.2, 0.3, *(0.5,) * 60))
SHORT_LEASE_S = 0.7  # runs out under whoever is slow and does not renew it
RESOLVED_WITHIN_S = 12.0
WEBHOOK_SECRET = "whsec_of_the_storm"
WEBHOOK_MODES = ("normal", "early", "late(delay_s=0.4)", "twice", "out_of_order", "never")
WITHOUT_KEYS = (
    ("send_as: header:Idempotency-Key          # where Acme takes the key", "send_as: none"),
    ("  window: 24h ", "  # window: 24h "),
    ("  max_length: 255", "  # max_length"),
    ("  errors_under_key: replayed ", "  # errors_under_key: replayed "),
    ("  key_space: account ", "  # key_space: account "),
)
# An edit in mid-storm: other patience, other reading of one answer, and no faith in the provider's key any more.
EDITED = (
    ("default: {attempts: 3,", "default: {attempts: 2,"),
    ("error.code == 'overloaded'", "error.code == 'another'"),
)

# What never commits before its answer is lost, hangs until hang_s or commits late comes as often as all others.
PARAMETERS = {
    "slow": ("slow_s=0.05", "slow_s=0.2", "slow_s=0.6"),
    "drip": ("drip_s=0.1", "drip_s=0.5"),
    # No longer than RETRY_AFTER_MAX_S: until then its credential is held.
    "rate_limited": ("retry_after_s=0", "retry_after_s=0", "retry_after_s=1", "retry_after_s=1"),
}
SOURCES = (
    *("tok_ok",) * 12,
    *("tok_stolen_card", "tok_insufficient_funds", "tok_fraudulent", "tok_failed_200_stolen_card"),
    *("tok_declined_never_heard_of", "tok_processing", "tok_3ds"),
)


KEYS = ("header", "header", "header", "body", "body", "ours", "none")


def edits_for(contract: str) -> tuple[tuple[str, str], ...]:
    """The edits of the policy by which it says the truth about the provider."""
    if contract == "none":
        return (*FAST, *WITHOUT_KEYS)
    return (*FAST, ("errors_under_key: replayed ", f"errors_under_key: {contract} "))


@dataclass(frozen=True)
class Dials:
    """How a storm blows. Chances are of one journal call; numbers are of events while it lasts."""

    contract: str = "replayed"
    payments: int = 40
    sqlite: bool = False
    lost_replies: float = 0.0
    crashes: int = 0
    sweeps: int = 0
    outages: int = 0
    reloads: int = 0
    sidecars: int = 1  # more than one only over one journal in memory
    calls_max: int = 5  # of one caller for one payment
    resolver: bool = False
    webhooks: bool = False
    fresh: float = 0.0  # chance that a call comes under a key of its own
    distinct: float = 0.0  # chance that a call says that it is meant twice
    jobs: int = 0  # callers that try under a fresh key each time, one after the other, until they are told
    lasts_s: float = 1.2


@dataclass(frozen=True)
class Payment:
    """What a caller wants, whatever it does about it."""

    name: str
    key: str  # header, body, ours or none: where its key stands
    amount: int
    source: str
    script: str
    captures: bool = True
    secret: bool = False  # carries what must not be stored
    refunds: bool = False  # part of a charge that the provider has already, named as its order
    webhook: str = ""  # how its events are told
    job: bool = False  # whoever wants it tries until it is told, and wants it once

    def call(
        self,
        *,
        amount: int,
        source: str,
        credential: str,
        timeout_s: float | None,
        charge: str = "",
        fresh_key: str = "",
        distinct: str | None = None,
    ) -> Call:
        body: dict[str, Any] = {"amount": amount}
        if not self.refunds:
            body |= {"currency": "EUR", "source": source}
        if not self.refunds and self.key != "none":  # an order in the body would be its key
            body["metadata"] = {"order_id": self.name}
        if not self.captures:
            body["capture"] = False
        if self.secret:
            body["card"] = {"cvc": "123"}
        headers = [(b"Content-Type", b"application/json"), (b"Authorization", f"Bearer {credential}".encode())]
        if fresh_key:
            headers.append((b"Idempotency-Key", fresh_key.encode()))
        elif self.key == "header":
            headers.append((b"Idempotency-Key", f"key-{self.name}".encode()))
        if self.script:
            headers.append((b"Sandbox-Fault", self.script.encode()))
        if self.webhook:
            headers.append((b"Sandbox-Webhook", self.webhook.encode()))
        ours = f"ours-{self.name}" if self.key == "ours" and not fresh_key else None
        wishes = CallerOptions(key=ours, timeout_s=timeout_s, distinct=distinct)
        segments = ("v1", "charges", charge, "refunds") if self.refunds else ("v1", "charges")
        raw = json.dumps(body).encode()
        return Call("acme", "POST", "/" + "/".join(segments), "", segments, tuple(headers), raw, wishes)


@dataclass
class Told:
    """One call and what it was told. No reply: the sidecar died under it."""

    payment: Payment
    amount: int
    credential: str
    began_mono: float
    over_mono: float = 0.0
    waits_s: float = 0.0
    reply: Reply | None = None
    calmly: bool = False
    left: bool = False  # the engine saw that its caller had gone
    fresh: bool = False

    def __str__(self) -> str:
        said = (
            "nothing" if self.reply is None else f"{self.reply.status_code} {self.reply.outcome} {self.reply.problem}"
        )
        where = self.reply.operation_id if self.reply is not None else None
        wanted = f"{self.payment.name} ({self.payment.key} {self.amount} {self.payment.source} {self.payment.script!r})"
        return f"{wanted} told {said} of {where} from {self.began_mono:.3f} to {self.over_mono:.3f}"

    @property
    def problem(self) -> dict[str, Any]:
        return json.loads(self.reply.body) if self.reply is not None and self.reply.problem is not None else {}


class StormClock(SystemClock):
    """One wall clock for journal, engine and provider, which the storm moves on: leases then run out at once."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


class Door:
    """The way to a journal, on which calls and replies get lost; dead once its process is."""

    def __init__(self, journal: Journal, dice: Random, lost: float) -> None:
        self.journal = journal
        self.lost = lost
        self.dead = False
        self._dice = dice

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._through(lambda: self.journal.claim(request))

    async def record(self, change: OperationChange) -> Operation:
        return await self._through(lambda: self.journal.record(change))

    async def read(self, operation_id: str) -> Operation | None:
        return await self._through(lambda: self.journal.read(operation_id))

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return await self._through(lambda: self.journal.sealed(operation_id))

    async def revision(self, provider: str, revision: str) -> Any:
        return await self._through(lambda: self.journal.revision(provider, revision))

    async def keep_revision(self, provider: str, revision: str, content: str) -> None:
        await self.journal.keep_revision(provider, revision, content)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """All that the resolver, the leases and the webhooks ask beside."""
        if name in {"can_roll_back", "rolled_back_s", "journal_id"}:  # what it says of itself costs no trip
            return getattr(self.journal, name)
        return lambda *given, **named: self._through(lambda: getattr(self.journal, name)(*given, **named))

    async def _through(self, ask: Callable[[], Awaitable[T]]) -> T:
        before, after = self._dice.random(), self._dice.random()
        self._lose(before)
        answer = await ask()
        self._lose(after)
        return answer

    def _lose(self, chance: float) -> None:
        if self.dead or chance < self.lost:
            raise JournalUnavailable("lost on the way")


@dataclass
class Sidecar:
    engine: Engine
    door: Door
    ending: list[asyncio.Task[None]] = field(default_factory=list)
    background: Tasks = field(default_factory=Tasks)
    server: WebhookServer | None = None

    async def end(self, grace_s: float) -> None:
        if self.server is not None:
            await self.server.close()
        await self.background.stop()
        await self.engine.tasks.close(grace_s)
        await self.engine.pipeline.sender.upstream.close()


class Deaths(logging.Handler):
    """Tasks that died of a fault of ours: there must be none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


class Storm:
    def __init__(self, seed: int, dials: Dials, directory: Path) -> None:
        self.seed, self.dials = seed, dials
        self.dice = Random(seed)
        self.clock = StormClock()
        self.tellings: list[Told] = []
        self.unanswered: list[str] = []
        self.deaths = Deaths()
        self.operations: list[Operation] = []
        self.histories: dict[str, tuple[HistoryEntry, ...]] = {}
        options = SandboxOptions(contract=dials.contract, seed=seed, hang_s=0.8, late_s=0.45, clock=self.clock.now)
        self.sandbox = Sandbox(options)
        self.charges: dict[str, str] = {}  # made beforehand, to be refunded
        self.stuck: list[str] = []
        self.lease_s = SHORT_LEASE_S if dials.resolver else LEASE_S
        self._path = directory / f"storm-{seed}.db"
        self._sidecars: list[Sidecar] = []
        self._open = asyncio.Event()
        self._lives = 0
        self.payments = [self._payment(number) for number in range(dials.payments)]
        self.payments += [self._job(number) for number in range(dials.jobs)]
        for payment in self.payments:
            if payment.refunds:
                terms = ChargeTerms(100_000_000, "EUR", "tok_ok", metadata={"order_id": payment.name})
                charge = self.sandbox.bank.open(terms, None)
                self.sandbox.bank.pay(charge, None)
                self.charges[payment.name] = charge.id

    # What will be tried.

    def _payment(self, number: int) -> Payment:
        dice = self.dice
        refunds = dice.random() < 0.2
        return Payment(
            name=f"order-{self.seed}-{number}",
            key=dice.choice(("header", "header", "ours", "none") if refunds else KEYS),
            amount=dice.randrange(100, 1_000_000),
            source=dice.choice(SOURCES),
            script=self._script(),
            captures=dice.random() < 0.8,
            secret=dice.random() < 0.15,
            refunds=refunds,
            webhook=dice.choice(self._modes()) if self.dials.webhooks else "",
        )

    def _modes(self) -> tuple[str, ...]:
        """Where failed work is done again there are two charges of one payment, and both told to be accepted is an
        incident, as it should be."""
        return tuple(mode for mode in WEBHOOK_MODES if mode != "out_of_order" or self.dials.contract != "reexecuted")

    def _job(self, number: int) -> Payment:
        payment = self._payment(number)
        name = f"job-{self.seed}-{number}"
        return replace(payment, name=name, key=self.dice.choice(("header", "none")), refunds=False, job=True)

    def _script(self) -> str:
        if self.dice.random() < 0.15:
            return ""
        items = [self._fault() for _ in range(self.dice.choice((1, 1, 1, 2, 2, 3, 4, 6)))]
        return ",".join(items) + ("*" if self.dice.random() < 0.08 else "")

    def _fault(self) -> str:
        name = self.dice.choice(["-", *sorted(FAULTS)])
        return f"{name}({self.dice.choice(PARAMETERS[name])})" if name in PARAMETERS else name

    # What happens.

    async def blow(self) -> None:
        """The whole storm: bad weather, then calm repeats, then everything that is known afterwards."""
        logger = logging.getLogger("paywitness.tasks")
        logger.addHandler(self.deaths)
        try:
            async with self.sandbox:
                self.book = roomy(book_of(self.sandbox.url, *edits_for(self.dials.contract)))
                if self.dials.resolver:
                    self.book = sooner(self.book, SOON)
                await self._build()
                weather = asyncio.ensure_future(self._weather())
                await asyncio.gather(*(self._customer(payment) for payment in self.payments))
                await weather
                await self._idle()
                await self._calm()
                await self._idle()
                if self.dials.resolver:
                    await self._until_resolved()
                await self._read_all()
                await self._end()
        finally:
            logger.removeHandler(self.deaths)

    async def _weather(self) -> None:
        dials = self.dials
        events: list[Callable[[], Awaitable[None]]] = [
            *[self._crash] * dials.crashes,
            *[self._sweep] * dials.sweeps,
            *[self._outage] * dials.outages,
            *[self._reload] * dials.reloads,
        ]
        self.dice.shuffle(events)
        for event in events:
            await asyncio.sleep(dials.lasts_s / len(events) * self.dice.uniform(0.5, 1.5))
            await event()

    async def _crash(self) -> None:
        """kill -9 or a shutdown in a hurry; then another process over the same journal."""
        self._open.clear()
        gone, self._sidecars = self._sidecars, []
        if self.dice.random() < 0.5:
            for sidecar in gone:
                sidecar.door.dead = True
                sidecar.ending.append(asyncio.ensure_future(sidecar.end(0.0)))
                await asyncio.sleep(0)
        else:
            await asyncio.gather(*(sidecar.end(self.dice.choice((0.0, 0.02, 0.1))) for sidecar in gone))
            for sidecar in gone:
                sidecar.door.dead = True
        await self._build(after=gone)

    async def _sweep(self) -> None:
        """Every lease runs out, also of those who live and send."""
        if self.dials.resolver:
            return  # leases run out by themselves there
        self.clock.ahead_s += LEASE_S + 1
        await self._sidecars[0].door.journal.expire_leases()

    async def _outage(self) -> None:
        self.sandbox.add_outage({"mode": "refuse", "duration_s": self.dice.uniform(0.05, 0.3)})

    async def _reload(self) -> None:
        """The edit and its undoing, by turns. An operation goes by what it was started under."""
        for sidecar in self._sidecars:
            book = self._edited_book() if sidecar.engine.book is self.book else self.book
            await store_revisions(sidecar.door.journal, book)
            sidecar.engine.policies.book = book

    def _edited_book(self) -> PolicyBook:
        contract = self.dials.contract
        careful = ((f"errors_under_key: {contract} ", "errors_under_key: not_stored "),)
        edits = (*edits_for(contract), *EDITED, *(careful if contract != "none" else ()))
        return roomy(book_of(self.sandbox.url, *edits))

    async def _build(self, after: list[Sidecar] | None = None) -> None:
        """Sidecars over the journal as the last ones left it."""
        journal = await self._journal(after[0].door.journal if after else None)
        while await journal.expire_leases(all_of_earlier_holders=True):
            pass
        await store_revisions(journal, self.book)
        for _ in range(self.dials.sidecars):
            self._lives += 1
            door = Door(journal, Random(self.dice.random()), self.dials.lost_replies)
            chance = SeededRandomness(self.seed * 1000 + self._lives)
            ground = Platform(
                journal=cast(Journal, door),
                vault=Vault(SECRET, (RingKey("k1", b"0" * 32),), chance.nonce),
                clock=self.clock,
                randomness=chance,
                failpoints=NoFailpoints(),
                telemetry=telemetry_for(self.clock),
                environment={"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET},
            )
            harvest_s = self.dice.choice((0.0, 0.6)) if self.dials.resolver else 0.0
            settings = Settings(Path(), lease_s=self.lease_s, late_response_s=harvest_s)
            parts = assemble(ground, settings, self.book, NoSpool(), roomy_limits)
            self._sidecars.append(await self._running(ground, parts, door))
        if after:
            self._sidecars[0].ending += [task for sidecar in after for task in sidecar.ending]
        self._open.set()

    async def _running(self, ground: Platform, parts: SidecarParts, door: Door) -> Sidecar:
        """The sidecar with its loops, as far as this storm has them. Every second one is slow to renew its leases."""
        sidecar = Sidecar(parts.engine, door)
        for _ in range(10):  # without a first reading of the clocks nothing is young enough to be sent again
            with contextlib.suppress(JournalUnavailable):
                await parts.ages.count()
                break
        if self.dials.resolver:
            sidecar.background.start(parts.resolver.keep_resolving(), "resolver")
            sidecar.background.start(self._keep_expiring(door), "recovery")
            if self.dice.random() < 0.5:
                sidecar.background.start(parts.leases.keep_renewing(), "leases")
        if self.dials.webhooks:
            webhooks = build_webhooks(ground, parts)
            sidecar.background.start(webhooks.keep_applying(), "webhooks")
            sidecar.server = WebhookServer(webhooks)
            host, port = await sidecar.server.start("127.0.0.1", 0)
            url = f"http://{host}:{port}/paywitness/webhooks/acme"
            self.sandbox.webhooks.set_endpoint({"url": url, "secret": WEBHOOK_SECRET})
        return sidecar

    async def _keep_expiring(self, door: Door) -> None:
        while True:
            with contextlib.suppress(JournalUnavailable):
                await door.expire_leases()
            await asyncio.sleep(0.1)

    async def _journal(self, before: Journal | None) -> Journal:
        if self.dials.sqlite:
            if before is not None:
                await before.close()
            return await SqliteJournal.open(self._path, clock=self.clock)
        if isinstance(before, MemoryJournal):
            return before.reopened(self.clock)
        return MemoryJournal(clock=self.clock)

    # Who calls.

    async def _customer(self, payment: Payment) -> None:
        dice = Random(f"{self.seed} {payment.name}")
        await asyncio.sleep(dice.uniform(0, self.dials.lasts_s * 0.6))
        if payment.job:
            await self._job_runs(payment, dice)
            return
        calls = dice.choice((1, 2, 2, self.dials.calls_max - 1, self.dials.calls_max))
        if dice.random() < 0.4:
            await asyncio.gather(*(self._call(payment, dice) for _ in range(calls)))
            return
        for _ in range(calls):
            if await self._call(payment, dice) and dice.random() < 0.7:
                return
            await asyncio.sleep(dice.choice((0.0, 0.0, 0.02, 0.2)))

    async def _job_runs(self, payment: Payment, dice: Random) -> None:
        """A job: under a fresh key each time, until somebody who is still there is told. It wants one payment."""
        for _ in range(dice.choice((1, 3, 8))):
            if await self._call(payment, dice):
                return
            await asyncio.sleep(dice.choice((0.0, 0.02, 0.2, 0.6)))

    async def _call(self, payment: Payment, dice: Random, *, calmly: bool = False) -> bool:
        """One call. Whether it brought a definite answer to somebody who was there."""
        amount, source, credential, timeout_s, stays_s = payment.amount, payment.source, "first", None, 1e9
        fresh_key, distinct = "", None
        if not calmly:
            timeout_s = dice.choice((None, None, None, 0.02, 0.2, 0.5, 1.0))
            stays_s = dice.choice((1e9, 1e9, 1e9, 0.0, 0.01, 0.1))
            credential = dice.choice(("first",) * 9 + ("second",))
            if dice.random() < 0.1:
                amount, source = amount + 1, dice.choice((source, "tok_ok"))
            if self.dials.fresh and dice.random() < self.dials.fresh:
                fresh_key = f"fresh-{payment.name}-{len(self.tellings)}"
            if self.dials.distinct and dice.random() < self.dials.distinct:
                distinct = "meant twice"
        if payment.job:
            amount, source, credential, distinct = payment.amount, payment.source, "first", None
            fresh_key = f"try-{payment.name}-{len(self.tellings)}"
        await self._open.wait()
        sidecar = dice.choice(self._sidecars)
        told = Told(payment, amount, credential, self.clock.mono(), waits_s=timeout_s or 2.0, calmly=calmly)
        told.fresh = bool(fresh_key)
        call = payment.call(
            amount=amount,
            source=source,
            credential=credential,
            timeout_s=timeout_s,
            charge=self.charges.get(payment.name, ""),
            fresh_key=fresh_key,
            distinct=distinct,
        )

        def still_there() -> bool:
            told.left = told.left or self.clock.mono() >= told.began_mono + stays_s
            return not told.left

        self.tellings.append(told)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                reply = await sidecar.engine.reply_to(call, still_there)
        except (TimeoutError, TaskRefused) as error:
            if not sidecar.door.dead and sidecar in self._sidecars:
                self.unanswered.append(f"{payment}: {type(error).__name__}")
            return False
        told.over_mono = self.clock.mono()
        if sidecar.door.dead:
            return False  # its process was killed: nobody heard that
        told.reply = reply
        heard = not (payment.job and told.left)
        ours = payment.job and reply.problem in {Problem.GUARDED, Problem.ACCOUNT_UNKNOWN}
        definite = {"succeeded", "failed", "declined", "pending", "requires_action"}
        return heard and not ours and reply.outcome in definite

    async def _calm(self) -> None:
        """The weather is over. Who was not told a definite answer asks again, and again."""
        self.sandbox.set_schedule({})
        for sidecar in self._sidecars:
            sidecar.door.lost = 0.0
            sidecar.engine.policies.book = self.book
        await self._sweep()
        await asyncio.sleep(RETRY_AFTER_MAX_S)  # whoever the provider asked to wait has waited
        insisting = [payment for payment in self.payments if payment.key != "none" and not payment.job]
        await asyncio.gather(*(self._insist(payment) for payment in insisting))

    async def _insist(self, payment: Payment) -> None:
        # Each waits to its deadline for what the resolver finds. Without one a repeat may be told to wait, and again.
        for _ in range(2 if self.dials.resolver else 60):
            if await self._call(payment, Random(payment.name), calmly=True):
                return
            await asyncio.sleep(0.1)  # the provider may still be at work on an earlier attempt

    async def _idle(self) -> None:
        """Until nothing is under way any more, here or at the provider."""

        def busy(sidecar: Sidecar) -> int:
            # A resolver has always something to do; what callers asked for is over all the same.
            return len(sidecar.engine.in_flight if self.dials.resolver else sidecar.engine.tasks)

        async with asyncio.timeout(30):
            while any(busy(sidecar) for sidecar in self._sidecars) or self.sandbox.under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _until_resolved(self) -> None:
        """Nobody calls any more. What is in doubt is found out all the same, and within a bounded time."""
        journal = self._sidecars[0].door.journal
        doubtful: list[Operation] = []
        for _ in range(int(RESOLVED_WITHIN_S / 0.05)):
            open_states = frozenset(State) - {State.SUCCEEDED, State.FAILED, State.REQUIRES_ACTION, State.PENDING}
            listed = await journal.find_operations(OperationQuery(states=open_states, limit=500))
            doubtful = [operation for operation in listed if operation.doubt or not operation.state.in_doubt]
            doubtful = [operation for operation in doubtful if not await self._is_ambiguous(operation)]
            if not doubtful:
                break
            await asyncio.sleep(0.05)
        for sidecar in self._sidecars:
            await sidecar.background.stop()
            await sidecar.engine.tasks.close(5.0)
        for operation in doubtful:
            history = await journal.history(operation.id)
            told = " | ".join(f"{entry.source} {entry.events} {entry.finding} {entry.note}" for entry in history[-6:])
            self.stuck.append(f"{operation.id} {operation.client_key} is {operation.state}: {told}")

    async def _is_ambiguous(self, operation: Operation) -> bool:
        """Where failed work is done again, several objects bear one stamp: that proves nothing, and is a person's."""
        history = await self._sidecars[0].door.journal.history(operation.id)
        found = [entry.finding for entry in history if entry.finding is not None]
        return bool(found) and found[-1].detail.startswith("several were found")

    # What is known afterwards.

    async def _read_all(self) -> None:
        journal = self._sidecars[0].door.journal
        before: str | None = None
        while page := await journal.find_operations(OperationQuery(limit=500, before=before)):
            self.operations += page
            before = page[-1].id
        for operation in self.operations:
            self.histories[operation.id] = await journal.history(operation.id)

    async def _end(self) -> None:
        for sidecar in self._sidecars:
            await sidecar.end(5.0)
            for task in sidecar.ending:
                await task
        with contextlib.suppress(JournalUnavailable):
            await self._sidecars[0].door.journal.close()
