"""The sidecars of a world: the real engine by the real `assemble`, with its real loops, over the world's clock, network
and store. Each has a Life: it can be killed at any await, paused beyond its lease, suspended, and started again."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, cast

from paywitness.clock import Clock
from paywitness.core.budget import AttemptOrigin, RetryRequest
from paywitness.core.call import Call, Headers
from paywitness.core.circuit import CallGroup
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Response
from paywitness.core.operation import AttemptSummary, Operation
from paywitness.core.reply import Reply
from paywitness.engine.calls.stored_messages import seal_response
from paywitness.engine.durability.recovery import Recovery
from paywitness.engine.durability.spool import Spool, SpooledEvidence, SpoolReplayer
from paywitness.engine.failpoints import Failpoints, NoFailpoints
from paywitness.engine.outbox import Sink
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import Journal
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import BudgetRefusal, Grant, LocalBudgets, ScopeTallies
from paywitness.limits.circuits import CurrentRules, LocalCircuits
from paywitness.limits.factory import Limits, budget_listener
from paywitness.option_defaults import Settings
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import RingKey, Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import TelemetryEvent
from paywitness.upstream.client import UpstreamClient
from paywitness.wiring import Platform, assemble, build_outbox, build_webhooks
from tests.randomness import SeededRandomness
from tests.simulation.failover import ForgetfulJournal
from tests.simulation.history import History
from tests.simulation.loop import Life, SimClock, SimLoop
from tests.simulation.network import Network, SimUpstream
from tests.simulation.policy import EVENTS, EVENTS_SECRET, WEBHOOK_SECRET
from tests.simulation.store import IndexedJournal, JournalDoor
from tests.simulation.swarm import Mix

LEASE_S = 30.0  # the default; a policy's `settle` is held against it
IDENTITY_SECRET = b"the identity secret of a simulated fleet"
_RING = (RingKey("k1", b"0" * 32),)


class _NoMetrics:
    def names_without_kind(self, counts: object) -> frozenset[tuple[str, str]]:
        return frozenset()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **values: None


class _NoTelemetry:
    """Records are made, and told to nobody: counting them proves nothing here."""

    metrics = _NoMetrics()

    def emit(self, record: TelemetryEvent) -> None:
        return None


class SimSpool:
    """A disk. It outlives the process."""

    def __init__(self, vault: Vault, clock: Clock, pieces: dict[str, SpooledEvidence], *, works: bool) -> None:
        self._vault = vault
        self._clock = clock
        self._pieces = pieces
        self._works = works

    def __len__(self) -> int:
        return len(self._pieces)

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        no_bytes_after_at: float | None = None,
        undelivered: bool = False,
    ) -> bool:
        if not self._works:
            return False
        answer = seal_response(self._vault, response, operation.id) if response is not None else None
        name = f"{len(self._pieces):06d}-{operation.id}-{attempt.number}"
        self._pieces[name] = SpooledEvidence(
            operation.id, attempt, self._clock.now(), answer, None, no_bytes_after_at, undelivered
        )
        return True

    async def pending(self) -> tuple[str, ...]:
        return tuple(self._pieces)

    async def read(self, name: str) -> SpooledEvidence | None:
        return self._pieces.get(name)

    async def remove(self, name: str) -> None:
        self._pieces.pop(name, None)


class SimSteps:
    """The named points in the life of a call and of a look. At the last one that is left its process is killed."""

    def __init__(self, kill: Callable[[], None], loop: SimLoop) -> None:
        self._kill = kill
        self._loop = loop
        self.left = 0  # 0: it goes on

    async def hit(self, name: str) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self._kill()
                await self._loop.create_future()  # of a process that is dead: never


class JudgedBudgets(LocalBudgets):
    """The fleet's retry budget, as its sidecars share it in a store, with somebody counting along."""

    def __init__(self, clock: Clock, chance: Randomness, fleet: Fleet) -> None:
        super().__init__(clock, chance, fleet.tallies)
        self._spending = fleet.spending
        self._store_clock = fleet.store_clock

    async def acquire(self, ask: RetryRequest) -> Grant | BudgetRefusal:
        found = await super().acquire(ask)
        if isinstance(found, Grant) and ask.origin.group is CallGroup.WRITE:
            self._spending.granted(found.cost, ask.intent)
        return found

    def count_first_attempt(self, origin: AttemptOrigin) -> None:
        super().count_first_attempt(origin)
        if origin.group is CallGroup.WRITE:
            self._spending.first()

    def count_caller_retry(self, origin: AttemptOrigin, cost: int) -> None:
        super().count_caller_retry(origin, cost)
        self._spending.repeated()

    def _now_ms(self) -> int:
        return int(self._store_clock.mono() * 1000)  # the store's own time: suspended sidecars do not bend it


class Spending:
    """What was let through, by when. `sends` is what the network saw."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.firsts: list[float] = []
        self.grants: list[tuple[float, int]] = []
        self.repeats = 0
        self.sends = 0
        self.sends_of: Counter[str] = Counter()  # by orders
        self.grants_of: Counter[str] = Counter()  # by intents

    def first(self) -> None:
        self.firsts.append(self._loop.now_mono)

    def repeated(self) -> None:
        self.repeats += 1

    def granted(self, cost: int, intent: str | None) -> None:
        self.grants.append((self._loop.now_mono, cost))
        self.grants_of[intent or ""] += 1


class Fleet:
    """What the sidecars of a world share, and what befalls them."""

    def __init__(
        self, loop: SimLoop, mix: Mix, history: History, network: Network, book: PolicyBook, dice: Random
    ) -> None:
        self.loop = loop
        self.mix = mix
        self.history = history
        self.network = network
        self.book = book
        self.dice = dice
        self.drain_dice = Random(f"{mix.seed} drains")
        self.store_clock = SimClock(loop)
        self.journal: IndexedJournal = IndexedJournal(clock=self.store_clock)
        if mix.failovers:
            self.journal = ForgetfulJournal(clock=self.store_clock)
        self.tallies = ScopeTallies()
        self.spending = Spending(loop)
        self.disks: list[dict[str, SpooledEvidence]] = [{} for _ in range(mix.sidecars)]
        self.sidecars: list[Sidecar | None] = [None] * mix.sidecars
        self.graveyard: list[object] = []  # tasks of the dead: nothing of them may run, not even when swept up
        self.lives = 0
        self.calm = False
        self._next_up: asyncio.Future[None] = loop.create_future()

    @property
    def only_holder(self) -> bool:
        """A journal that is a file of one process."""
        return self.mix.sidecars == 1 and not self.mix.failovers

    @property
    def machine_ahead_s(self) -> float:
        """Of the clock of a machine that starts. One that stands still when the machine is off is the store's too."""
        return self.store_clock.ahead_s if self.mix.clock_stops else 0.0

    def start(self, slot: int) -> None:
        self.lives += 1
        sidecar = Sidecar(self, slot, f"sidecar{slot + 1}.{self.lives}")
        self.sidecars[slot] = sidecar
        self.history.say(sidecar.life.name, "starts")
        sidecar.run(sidecar.serve())

    def kill(self, slot: int, away_max_s: float | None = None) -> None:
        sidecar = self.sidecars[slot]
        if sidecar is None:
            return
        self.history.say(sidecar.life.name, "is killed")
        self.graveyard.extend(asyncio.all_tasks(self.loop))
        sidecar.life.kill()
        self.sidecars[slot] = None
        self.graveyard.append(sidecar)
        sidecar.hang_up()
        if self.only_holder:
            self.journal = self.journal.reopened(self.store_clock)  # as a file that only one process can hold
        longest_s = away_max_s or self.dice.choice(
            (20.0, 20.0, 60.0) if not self.mix.clock_stops else (60.0,)
        )  # a lease may be over before it is back
        away_s = self.dice.uniform(0.1, longest_s)
        if self.mix.clock_stops:
            self.store_clock.ahead_s -= away_s
            self.history.say("store", "clock stood still", "", f"for {away_s:.1f} s")
        self.loop.after(away_s, self.start, slot)

    def replace_pods(self, slot: int, until_mono: float) -> None:
        """The sidecar is replaced by one on another machine, and that one soon after."""
        if self.loop.now_mono < until_mono:
            self.kill(slot, away_max_s=5.0)
            lives_s = self.mix.pods_live_s
            self.loop.after(5.0 + self.dice.uniform(0.3, 1.0) * lives_s, self.replace_pods, slot, until_mono)

    def kill_at_a_step(self, slot: int) -> None:
        """At one of the next named points that it reaches."""
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            sidecar.steps.left = self.dice.randint(1, 12)

    def drain(self, slot: int) -> None:
        """It is told to stop: it finishes what it carries, starts nothing new, and goes."""
        sidecar = self.sidecars[slot]
        if sidecar is not None and sidecar.listens:
            self.history.say(sidecar.life.name, "shuts down")
            sidecar.parts.engine.gate.draining = True
            self.loop.after(self.drain_dice.uniform(1.0, 8.0), self._gone, sidecar, slot)

    def _gone(self, sidecar: Sidecar, slot: int) -> None:
        if self.sidecars[slot] is sidecar:
            self.kill(slot)

    def pause(self, slot: int) -> None:
        sidecar = self.sidecars[slot]
        if sidecar is None or not sidecar.life.awake:
            return
        # The longest outlast a lease, `settle` and the misses.
        self._pause(sidecar, self.dice.choice((2.0, 15.0, 45.0, 100.0, 100.0)))

    def pause_connecting(self, slot: int) -> None:
        """It stands still while it connects for the next payment, which it has recorded as being sent, and wakes up
        when its right to send is over."""
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            sidecar.upstream.stops_connecting = True

    def pause_now(self, sidecar: Sidecar) -> None:
        if sidecar.life.awake:
            self._pause(sidecar, self.dice.choice((35.0, 45.0, 60.0, 100.0)))

    def _pause(self, sidecar: Sidecar, lasts_s: float) -> None:
        self.history.say(sidecar.life.name, "is suspended" if self.mix.suspends else "is stopped", "", f"{lasts_s} s")
        sidecar.life.pause()
        self.loop.after(lasts_s, self._wake, sidecar, lasts_s)

    def _wake(self, sidecar: Sidecar, lasted_s: float) -> None:
        if sidecar.life.alive:
            self.history.say(sidecar.life.name, "wakes up")
            if self.mix.suspends:
                sidecar.clock.suspended_s += lasted_s
                self.loop.shift_timers(sidecar.life, lasted_s)
            sidecar.life.wake(self.loop)

    def jump(self, slot: int) -> None:
        """Somebody sets a sidecar's wall clock."""
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            sidecar.clock.ahead_s = self.dice.choice((-300.0, -20.0, -1.0, 1.0, 20.0, 300.0))
            self.history.say(sidecar.life.name, "clock is set", "", f"{sidecar.clock.ahead_s:+.0f} s")

    def step_store(self, slot: int) -> None:
        """Somebody sets the clock of the store, whoever asks it. It is not set right again."""
        by_s = self.dice.choice((-600.0, -20.0, 50.0, 50.0, 300.0, 3_600.0))
        self.store_clock.ahead_s += by_s
        self.history.say("store", "clock is set", "", f"by {by_s:+.0f} s")

    def stall(self, slot: int) -> None:
        """The journal does not answer this sidecar, or refuses it at once."""
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            lasts_s = self.dice.choice((1.0, 5.0, 45.0))  # the longest outlasts a lease
            sidecar.lose_journal(lasts_s, refuses=self.dice.random() < 0.5)

    def cut_off(self, slot: int) -> None:
        """A sidecar's network goes while it connects: what it is about to send is not sent, and it can tell nobody."""
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            sidecar.upstream.cut_off()

    def fail_over(self, slot: int) -> None:
        """Of the store, whoever asks."""
        journal = self.journal
        if isinstance(journal, ForgetfulJournal) and math.isinf(self.mix.forgets_s):
            self.history.say("store", "loses all its keys")
            journal.lose_all()
        elif isinstance(journal, ForgetfulJournal):
            journal.replicate()
            self.loop.after(self.mix.forgets_s, self._forget)

    def _forget(self) -> None:
        assert isinstance(self.journal, ForgetfulJournal)
        before = self.journal.tables.seq
        self.journal.fail_over()
        self.history.say("store", "fails over", "", f"{before - self.journal.tables.seq} changes are forgotten")

    def reload(self, slot: int, book: PolicyBook) -> None:
        sidecar = self.sidecars[slot]
        if sidecar is not None:
            self.history.say(sidecar.life.name, "loads an edited policy", "", book.revision)
            sidecar.run(sidecar.put_in_force(book))

    def be_calm(self) -> None:
        self.calm = True
        for sidecar in self.sidecars:
            if sidecar is not None:
                sidecar.door.calm = True
                sidecar.clock.ahead_s = self.machine_ahead_s

    @property
    def all_awake(self) -> bool:
        return all(sidecar is not None and sidecar.listens and sidecar.life.awake for sidecar in self.sidecars)

    def up(self) -> list[Sidecar]:
        """Those whose listeners are open. A stopped process still accepts: its kernel does."""
        return [sidecar for sidecar in self.sidecars if sidecar is not None and sidecar.listens]

    async def next_up(self) -> None:
        """Until a sidecar begins to listen."""
        await asyncio.shield(self._next_up)

    def is_up(self) -> None:
        self._next_up.set_result(None)
        self._next_up = self.loop.create_future()


class Sidecar:
    def __init__(self, fleet: Fleet, slot: int, name: str) -> None:
        mix, loop = fleet.mix, fleet.loop
        self.fleet = fleet
        self.life = Life(name)
        boots = (
            fleet.lives if mix.reboots or mix.pods_live_s else 0
        )  # another start of the machine, whose boot time begins anew
        self.clock = SimClock(loop, boot_offset_s=slot * 10_000.0 - boots * 7.0, host=f"machine {slot}, start {boots}")
        self.clock.ahead_s = fleet.machine_ahead_s
        seed = f"{mix.seed} {name}"
        door_dice = Random(f"{seed} journal")
        self.door = JournalDoor(lambda: fleet.journal, loop, self.life, mix, door_dice, fleet.history)
        self.door.calm = fleet.calm
        chance = SeededRandomness(Random(f"{seed} chance").getrandbits(64))
        vault = Vault(IDENTITY_SECRET, _RING, chance.nonce)
        journal = cast(Journal, self.door)
        telemetry = cast(Telemetry, _NoTelemetry())
        environment = {"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET}
        self.steps = SimSteps(lambda: fleet.kill(slot), loop)
        steps: Failpoints = self.steps if mix.crashes_at_steps else NoFailpoints()
        self.ground = Platform(journal, vault, self.clock, chance, steps, telemetry, environment)
        settings = Settings(Path(), lease_s=LEASE_S, late_response_s=mix.harvest_s)
        self.spool = SimSpool(vault, self.clock, fleet.disks[slot], works=mix.spool)

        self.upstream = SimUpstream(fleet.network, self.life, mix.harvest_s)
        self.upstream.steps = self.steps if mix.crashes_at_steps else None
        self.upstream.on_connecting = lambda: fleet.pause_now(self)
        self.upstream.on_cut_off = lambda lasts_s: self.lose_journal(lasts_s, refuses=True)

        def upstream(ground: Platform, settings: Settings) -> UpstreamClient:
            return cast(UpstreamClient, self.upstream)

        self.parts = assemble(self.ground, settings, fleet.book, self.spool, self._limits, upstream)
        self.webhooks = build_webhooks(self.ground, self.parts)
        self.listens = False
        self._callers: dict[asyncio.Future[Reply | None], None] = {}
        self._running: dict[asyncio.Task[Any], None] = {}

    def _limits(self, book: CurrentRules, clock: Clock, chance: Randomness) -> Limits:
        budgets = JudgedBudgets(clock, chance, self.fleet)
        return Limits(LocalCircuits(book, clock, chance, budget_listener(budgets)), budgets, Admission(clock, chance))

    def lose_journal(self, lasts_s: float, *, refuses: bool) -> None:
        what = "journal is down" if refuses else "journal stalls"
        self.fleet.history.say(self.life.name, what, "", f"{lasts_s} s")
        self.door.refuses = refuses
        if self.fleet.loop.now_mono >= self.door.stalled_until_mono:
            self.door.stalled_since_mono = self.fleet.loop.now_mono
        self.door.stalled_until_mono = max(self.door.stalled_until_mono, self.fleet.loop.now_mono + lasts_s)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self.fleet.loop.start(coroutine, self.life)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} at {where.filename.rpartition('/')[2]}:{where.lineno}"
            self.fleet.history.violated("no fault of ours", "", detail)

    async def serve(self) -> None:
        """As `wiring.serve` starts one, less its listeners."""
        parts, ground, engine = self.parts, self.ground, self.parts.engine
        replay = SpoolReplayer(
            cast(Spool, self.spool),
            parts.journal_writer,
            parts.pinned,
            lambda: engine.book,
            self.clock,
            parts.late_evidence,
        )
        recovery = Recovery(ground.journal, self.clock, ground.telemetry, LEASE_S, parts.ages)
        await self._until_taken(lambda: store_revisions(ground.journal, self.fleet.book))
        await self._until_taken(replay.replay_all)
        await self._until_taken(parts.ages.count)
        await self._until_taken(lambda: recovery.at_start(only_holder=self.fleet.only_holder))
        loops = [
            parts.leases.keep_renewing(),
            parts.ages.keep_counting(),
            parts.limits_sync.keep_syncing(),
            recovery.keep_expiring_leases(),
            parts.resolver.keep_resolving(replay.replay_all),
            parts.payment_sweep.keep_sweeping(),
            self.webhooks.keep_applying(),
            replay.keep_replaying(),
        ]
        if parts.rollback is not None:
            loops.append(parts.rollback.keep_watching())
        if self.fleet.mix.events:
            sink = Sink(EVENTS, EVENTS_SECRET.encode())
            loops.append(build_outbox(ground, parts, sink).keep_delivering())
        for loop in loops:
            self.run(loop)
        self.listens = True
        self.fleet.is_up()

    async def _until_taken(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """A start that the journal refuses is tried again by whoever keeps the process running."""
        while True:
            try:
                await step()
            except JournalUnavailable:
                await self.clock.sleep(1.0)
            else:
                return

    async def put_in_force(self, book: PolicyBook) -> None:
        await self._until_taken(lambda: store_revisions(self.ground.journal, book))
        self.parts.engine.policies.book = book

    def ask(self, call: Call, still_there: Callable[[], bool]) -> asyncio.Future[Reply | None]:
        """What a caller of this sidecar waits for; None where the connection breaks."""
        answer: asyncio.Future[Reply | None] = self.fleet.loop.create_future()
        self._callers[answer] = None
        self.run(self._answer(call, still_there, answer))
        return answer

    async def _answer(self, call: Call, still_there: Callable[[], bool], answer: asyncio.Future[Reply | None]) -> None:
        reply = await self.parts.engine.reply_to(call, still_there)
        self._callers.pop(answer, None)
        if not answer.done():
            answer.set_result(reply)

    def ask_about(self, intent: str, call: Call) -> asyncio.Future[Reply | None]:
        """What `GET /paywitness/intents/{id}` of this sidecar answers; None where the connection breaks."""
        answer: asyncio.Future[Reply | None] = self.fleet.loop.create_future()
        self._callers[answer] = None
        self.run(self._answer_about(intent, call, answer))
        return answer

    async def _answer_about(self, intent: str, call: Call, answer: asyncio.Future[Reply | None]) -> None:
        reply = await self.parts.engine.describe_intent(intent, None, None, call)
        self._callers.pop(answer, None)
        if not answer.done():
            answer.set_result(reply)

    def hang_up(self) -> None:
        for answer in self._callers:
            if not answer.done():
                answer.set_result(None)
        self._callers.clear()

    def tell(self, headers: Headers, body: bytes, taken: Callable[[bool], None]) -> None:
        """A provider's event comes to its webhook listener."""

        async def receive() -> None:
            reply = await self.webhooks.receive("acme", "", headers, body)
            self.fleet.loop.after(0.0, taken, reply.status_code < 300)

        self.run(receive())
