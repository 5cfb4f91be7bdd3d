"""A world: one seed, played from its first call to a quiet end, and what the checkers said of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paywitness.core.announcements import cloud_events
from paywitness.core.call import Headers
from paywitness.core.identity import intent_label
from paywitness.core.operation import HistoryEntry, Operation, State
from paywitness.engine.durability.retention_sweep import Retention
from paywitness.journal.ledger import payment_from_row
from paywitness.upstream.request import WireRequest
from tests.simulation.callers import Callers, wishes_of
from tests.simulation.checkers import Checkers
from tests.simulation.enemies import with_enemies
from tests.simulation.focus import focused_mix
from tests.simulation.history import History, Violation
from tests.simulation.loop import EPOCH_AT, SimLoop
from tests.simulation.merchants import TWIN, Credentials, merchant_named
from tests.simulation.money_checkers import MoneyCheckers
from tests.simulation.network import Network, Sent
from tests.simulation.operators import Operators
from tests.simulation.orders import Shop, order_of
from tests.simulation.payments import MoneyBook
from tests.simulation.policy import book_for
from tests.simulation.provider import SimProvider
from tests.simulation.sidecars import IDENTITY_SECRET, Fleet
from tests.simulation.store import IndexedTables
from tests.simulation.swarm import SHORT_WINDOW_S, Mix, mix_of, stream, with_money_between
from tests.simulation.twin import Twin, merchant_of

QUIET_MAX_S = 900.0  # beyond `settle`, a lease, the misses that follow, and the longest step of a schedule
LOAD_MAX_S = 900.0
STEP_MAX_S = 3600.0  # of a clock that is set
PODS_REPLACED_S = 180.0  # after the payments came: what is in doubt is ended by sidecars none of which sees it all
_LOOK_EVERY_S = 5.0
_DELIVERED_WITHIN_S = 20.0  # a deliverer's lease, and what still waits for the sink
TOMBSTONE_S = 90 * 86_400.0
RETURNING_MAX = 20  # callers who come back after everything was retired


@dataclass(frozen=True)
class Outcome:
    """What one seed came to."""

    mix: Mix
    of_payments: int  # of the whole world, where only its beginning was played
    calls: int
    sends: int
    faults: int  # exchanges that the network or the provider spoilt
    lasted_s: float
    violations: tuple[Violation, ...]
    history: History

    @property
    def ok(self) -> bool:
        return not self.violations


class _Deaths(logging.Handler):
    """Tasks of the engine that died: faults of ours, which nobody would see otherwise."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "died of" in text or "failed by" in text:
            self._history.violated("no fault of ours", "", text)


class World:
    def __init__(self, mix: Mix, of_payments: int | None = None) -> None:
        self.mix = mix
        self._of_payments = of_payments or mix.payments
        self.loop = loop = SimLoop()
        self.history = History(self.loop)
        self.checkers = Checkers(self.loop, mix, self.history)
        ledger = self.checkers.ledger
        self.provider = SimProvider(loop, mix, stream(mix.seed, "provider"), self.history, ledger, "acme")
        self.elsewhere = SimProvider(loop, mix, stream(mix.seed, "elsewhere"), self.history, ledger, "acme_eu")
        self.moved = SimProvider(loop, mix, stream(mix.seed, "moved"), self.history, ledger, "acme_new")
        self.checkers.providers = (self.provider, self.elsewhere, self.moved)
        hosts = {"api.acme.test": self.provider, "eu.acme.test": self.elsewhere, "new.acme.test": self.moved}
        self.network = Network(loop, mix, stream(mix.seed, "network"), self.history, hosts)
        self.network.on_sent = self._sent
        self.network.sink = self._sink
        self.book = book_for(mix)
        self.fleet = Fleet(self.loop, mix, self.history, self.network, self.book, stream(mix.seed, "fleet"))
        merchant = merchant_named("shop", mix, loop.now_mono)
        self.provider.merchant = self.elsewhere.merchant = self.moved.merchant = merchant
        self.callers = Callers(self.fleet, mix, self.history, stream(mix.seed, "callers"), merchant)
        credentials = Credentials([merchant], IDENTITY_SECRET, lambda: self.fleet.journal.tables, lambda: loop.now_mono)
        self.checkers.credentials = credentials
        self.twin = Twin(self.fleet, mix, self.history, self.checkers, credentials) if mix.merchants else None
        if self.twin is not None:
            self.network.provider_of = self._provider_of
        self.callers.on_told = self.checkers.told if self.twin is None else self.twin.told_first
        self.callers.on_safe = self.checkers.guards.told_safe
        self.checkers.called_off = self.callers.called_off
        self.operators = Operators(self._truth, self._name_of, self.history, stream(mix.seed, "operators"))
        self._sink_dice = stream(mix.seed, "sink")
        self.shop: Shop | None = self._open_shop() if mix.money_between else None
        if mix.webhooks:
            self.provider.deliver = self.moved.deliver = self._deliver
        self._left = 0
        self._last_sent_mono = 0.0
        self._all_done: asyncio.Future[None] = self.loop.create_future()

    def _open_shop(self) -> Shop:
        """The money between operations: a provider that keeps numbers, a shop, and checkers of their own."""
        mix, book, providers = self.mix, MoneyBook(), (self.provider, self.elsewhere)
        for name, provider in (("acme", self.provider), ("acme_eu", self.elsewhere)):
            provider.keep_payments(book, f"{mix.seed} {name}")
        shop = Shop(self.fleet, mix, self.history, providers, self.callers.merchant)
        self.checkers.money = MoneyCheckers(mix, self.history, book, shop, providers)
        self.checkers.money.has_numbers_of = self._has_numbers_of
        self.operators.cancels = True
        return shop

    def _has_numbers_of(self, name: str) -> bool:
        """Whether the journal knows what was authorised and captured of a payment. It does not as long as the success
        of the payment waits in the spool of a sidecar whose journal is away."""
        rows = (row for row, _ in self.fleet.journal.tables.ledger.values() if row.key.startswith("p:"))
        payments = [payment for payment in map(payment_from_row, rows) if name in payment.names]
        return any(payment.authorised is not None and payment.captured is not None for payment in payments)

    def play(self) -> Outcome:
        deaths, logger = _Deaths(self.history), logging.getLogger("paywitness")
        unheard = logging.NullHandler()  # last words of the dead
        logger.addHandler(deaths)
        kept, logger.propagate = logger.propagate, False
        try:
            self.loop.run_until_complete(self.loop.start(self._run()))
        finally:
            logger.removeHandler(deaths)
            logger.addHandler(unheard)
            self._sweep_up()
            logger.removeHandler(unheard)
            logger.propagate = kept
        for fault in self.loop.faults:
            self.history.violated("no fault of ours", "", fault)
        calls = sum(len(wish.told) for wish in self.callers.wishes)
        calls += sum(len(asked.told) for asked in self.shop.asked.values()) if self.shop is not None else 0
        network, history = self.network, self.history
        counts = (calls, network.exchanges, network.faults)
        return Outcome(self.mix, self._of_payments, *counts, history.at_s, tuple(history.violations), history)

    async def _run(self) -> None:  # noqa: C901  # one step after the other
        for slot in range(self.mix.sidecars):
            self.fleet.start(slot)
        wishes = wishes_of(self.mix, stream(self.mix.seed, "wishes"))
        self._left = len(wishes)
        for number, wish in enumerate(wishes, 1):
            order = order_of(self.mix, number, wish.starts_s) if self.shop is not None else None
            if self.shop is not None and order is not None:
                self.loop.after(wish.starts_s, self._comes, partial(self.shop.serve, order))
            else:
                self.loop.after(wish.starts_s, self._comes, partial(self.callers.customer, wish))
        if self.twin is not None:
            for wish in self.twin.wishes:
                self._left += 1
                self.loop.after(wish.starts_s, self._comes, partial(self.twin.callers.customer, wish))
        self._weather()
        try:
            async with asyncio.timeout(LOAD_MAX_S):
                await self._all_done
        except TimeoutError:
            self.history.violated("everybody is answered", "", f"{self._left} callers still try after {LOAD_MAX_S} s")
        self._calm()
        if (
            self.mix.rotates or self.mix.restricted
        ):  # the provider has seen a whole credential of everybody at least once
            await self.callers.show_credential()
            if self.twin is not None:
                await self.twin.callers.show_credential()
        await self._quiet()
        if self.mix.operators:
            await self._resumed()
            await self._quiet()
        self.checkers.nobody_left_lying(list(self.fleet.journal.tables.operations.values()), self.provider.now())
        if self.mix.window_s < SHORT_WINDOW_S:  # whoever asks now asks for what the provider has forgotten
            await asyncio.sleep(max(0.0, self._last_sent_mono + self.mix.window_s + 1.0 - self.loop.now_mono))
        insisting = [wish for wish in self.callers.wishes if not any(told.definite for told in wish.told)]
        await asyncio.gather(*(self.callers.insist(wish) for wish in insisting))
        self.checkers.told_in_the_end(insisting, list(self.fleet.journal.tables.operations.values()))
        if self.twin is not None:
            await self.twin.insist()
        if self.shop is not None:
            await asyncio.gather(*(self.shop.insist(order) for order in self.shop.orders.values()))
        await self._quiet()
        await asyncio.sleep(_DELIVERED_WITHIN_S if self.mix.events else 1.0)
        self._judge()
        if self.shop is not None and self.checkers.money is not None:
            await self._pay_what_is_free(self.shop, self.checkers.money)
        await self._pay_free_wishes()
        if self.mix.retires:
            await self._long_after()

    def _comes(self, customer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.start(self._customer(customer))

    async def _customer(self, customer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await customer()
        finally:
            self._left -= 1
            if self._left == 0:
                self._all_done.set_result(None)

    async def _pay_what_is_free(self, shop: Shop, money: MoneyCheckers) -> None:
        """An order of which nothing stands can be paid by somebody who comes with a fresh key."""
        money.judge()
        for order in money.free_orders(list(self.fleet.journal.tables.operations.values())):
            money.paid_once_more(order, await shop.pay_once_more(order))
        await self._quiet()

    async def _pay_free_wishes(self) -> None:
        """As above, of orders that one call pays. A store that forgets makes no promise to a fresh key."""
        if self.mix.failovers or self.twin is not None:
            return
        operations = list(self.fleet.journal.tables.operations.values())
        for wish in self.checkers.free_wishes(self.callers.wishes, operations):
            self.checkers.paid_once_more(wish, await self.callers.pay_once_more(wish))
        await self._quiet()

    # -- the weather

    def _weather(self) -> None:
        mix, dice, fleet = self.mix, stream(self.mix.seed, "weather"), self.fleet
        lasts_s = mix.weather_s or mix.payments / mix.rate_per_s + 5.0
        edited = book_for(mix, edited=True) if mix.reloads else self.book
        events: list[tuple[int, Callable[[int], None]]] = [
            (mix.crashes, fleet.kill),
            (mix.pauses, fleet.pause),
            (mix.clock_jumps, fleet.jump),
            (mix.journal_stalls, fleet.stall),
            (mix.cut_offs, fleet.cut_off),
            (mix.failovers, fleet.fail_over),
            (mix.operators, self._operator_looks),
            (mix.reloads, lambda slot: fleet.reload(slot, edited)),
            (mix.pauses_connecting, fleet.pause_connecting),
            (mix.crashes_at_steps, fleet.kill_at_a_step),
            (mix.drains, fleet.drain),
        ]
        for count, event in events:
            for _ in range(count):
                self.loop.after(dice.uniform(0.5, lasts_s), event, dice.randrange(mix.sidecars))
        self._more_weather(lasts_s)

    def _more_weather(self, lasts_s: float) -> None:
        """What the enemies bring. Drawn apart."""
        mix, dice, fleet = self.mix, stream(self.mix.seed, "weather, enemies"), self.fleet
        for _ in range(mix.store_steps):
            self.loop.after(dice.uniform(0.5, lasts_s + mix.late_steps_s), fleet.step_store, 0)
        for slot in range(mix.sidecars):
            if mix.moves:
                moved = book_for(mix, moved=True)
                self.loop.after(dice.uniform(0.2, 0.7) * lasts_s, fleet.reload, slot, moved)
            if mix.pods_live_s:
                until_mono = self.loop.now_mono + lasts_s + PODS_REPLACED_S
                self.loop.after(dice.uniform(0.1, 1.0) * mix.pods_live_s, fleet.replace_pods, slot, until_mono)

    def _operator_looks(self, slot: int) -> None:
        sidecar = self.fleet.sidecars[slot]
        if sidecar is not None and sidecar.listens:
            sidecar.run(self.operators.look(sidecar))

    def _truth(self, operation: Operation) -> bool | None:
        """What a person finds in the provider's books: whether it is paid, once that cannot change any more."""
        checkers = self.checkers
        if self.twin is not None and self.twin.merchants.is_of(TWIN, operation.stamp):
            checkers = self.twin.checkers
        return checkers.truth_about(operation, self.provider.now())

    def _name_of(self, operation: Operation) -> str | None:
        """The name under which the provider's books have what the operation made."""
        checkers = self.checkers
        if self.twin is not None and self.twin.merchants.is_of(TWIN, operation.stamp):
            checkers = self.twin.checkers
        return checkers.name_of(operation)

    def _calm(self) -> None:
        self.history.say("world", "is calm from here on")
        self.network.be_calm()
        self.provider.calm = self.elsewhere.calm = self.moved.calm = True
        if self.twin is not None:
            self.twin.provider.calm = True
        self.fleet.be_calm()

    async def _quiet(self) -> None:
        """Until nothing is open that could still be ended."""
        # A store's clock that was set back stands until it has caught up, and everything waits for it. If it was set
        # forward about when something was sent, that time is not counted as passed, and passes once more.
        longest_s = QUIET_MAX_S + STEP_MAX_S * (self.mix.store_steps + self.mix.clock_stops)
        for _ in range(int(longest_s / _LOOK_EVERY_S)):
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.fleet.all_awake and not self._any_open(self.fleet.journal.tables):
                return

    def _any_open(self, tables: IndexedTables) -> bool:
        """What may be open is looked at first: that nothing is, is worth a look at everything."""
        for state, held in tables.by_state.items():
            if not state.ended and any(self._is_open(tables.operations[operation_id]) for operation_id in held):
                return True
        return any(self._is_open(operation) for operation in tables.operations.values())

    async def _resumed(self) -> None:
        """What was parked is taken up again, by whoever has a journal."""
        for sidecar in self.fleet.up():
            sidecar.run(self.operators.resume_all(sidecar))
            await asyncio.sleep(1.0)

    async def _long_after(self) -> None:
        """What is over is retired as after its retention, and some who know of no other key ask once more."""
        tables = self.fleet.journal.tables
        before = {operation.guard.label for operation in tables.operations.values() if operation.guard}
        for sidecar in self.fleet.up()[:1]:
            ground, ages = sidecar.ground, sidecar.parts.ages
            sidecar.run(Retention(ground.journal, sidecar.clock, ages, ground.telemetry, 0.0, TOMBSTONE_S).sweep())
        await asyncio.sleep(_LOOK_EVERY_S)
        left = {operation.guard.label for operation in tables.operations.values() if operation.guard}
        gone = [wish for wish in self.callers.wishes if wish.pays and intent_label(wish.order) in before]
        gone = [wish for wish in gone if intent_label(wish.order) not in left]
        coming = [wish for wish in gone if all(told.key == wish.name for told in wish.told)][:RETURNING_MAX]
        sends_of = self.fleet.spending.sends_of
        sent_before = {wish.name: sends_of[wish.name] for wish in coming}
        await asyncio.gather(*(self.callers.insist(wish) for wish in coming))
        for wish in coming:
            self.checkers.came_back(wish, sends_of[wish.name] - sent_before[wish.name])
        if self.shop is not None and self.checkers.money is not None and not self.mix.failovers:
            self.checkers.money.is_long_after = True
            for order in self.checkers.money.paid_orders():  # under a fresh key: it is paid, and stays so
                await self.shop.pay_once_more(order)

    def _is_open(self, operation: Operation) -> bool:
        if operation.lease is not None:
            return True
        if operation.state.ended or operation.state is State.REQUIRES_REVIEW:
            return False
        return operation.due_at is not None and (self.mix.asks or operation.state is not State.UNKNOWN)

    # -- joints

    def _sent(self, sent: Sent) -> None:
        if sent.request.method == "POST":
            self._last_sent_mono = sent.at_mono
            if self.checkers.money is None or not self.checkers.money.is_cancel(sent):  # of which no budget knows
                self.fleet.spending.sends += 1
            self.fleet.spending.sends_of[sent.about] += 1
            self._check_lease(sent)
        if self.twin is not None:
            self.twin.merchants.sent(sent)
            (self.twin.checkers if merchant_of(sent) == TWIN else self.checkers).sent(sent)
        else:
            self.checkers.sent(sent)

    def _provider_of(self, sent: Sent) -> SimProvider:
        """Each merchant has books of its own."""
        is_twin = self.twin is not None and merchant_of(sent) == TWIN
        return self.twin.provider if self.twin is not None and is_twin else self.network.providers[sent.host]

    def _check_lease(self, sent: Sent) -> None:
        """A lease is the right to send: at the first byte the store still holds it for somebody. What an event has
        ended meanwhile, its sender may not know; and a store that forgets knows of no lease."""
        tables = self.fleet.journal.tables
        operation = tables.newest_stamped(sent.stamp or "") if not self._store_is_odd else None
        if operation is not None and not operation.state.ended:
            lease = operation.lease
            if lease is None or lease.until_at <= self.fleet.store_clock.now():
                self.history.violated("no send without a lease", sent.about, f"{operation.id} is {operation.state}")

    @property
    def _store_is_odd(self) -> bool:
        """Whether the store forgets, or its clock is set: then its time says nothing of a lease."""
        return bool(self.mix.failovers or self.mix.store_steps or self.mix.clock_stops)

    def _sink(self, request: WireRequest) -> int:
        if not self.network.calm and self._sink_dice.random() < 0.05:
            return self._sink_dice.choice((0, 500))
        self.checkers.event(request)
        return 200

    def _deliver(self, headers: Headers, body: bytes, taken: Callable[[bool], None]) -> None:
        up = self.fleet.up()
        if up:
            self._sink_dice.choice(up).tell(headers, body, taken)
        else:
            taken(False)

    # -- the end

    def _judge(self) -> None:
        tables = self.fleet.journal.tables
        operations = list(tables.operations.values())
        histories: dict[str, tuple[HistoryEntry, ...]] = {
            operation.id: tuple(tables.changes[seq][1] for seq in tables.seqs_of[operation.id])
            for operation in operations
        }
        for checkers in (self.checkers, *((self.twin.checkers,) if self.twin is not None else ())):
            checkers.waits_mono = _waits_mono(operations, histories)
        self.checkers.wishes(self.callers.wishes)
        if not self.mix.failovers:  # what was told may be forgotten since
            self.checkers.told_once(operations, histories)
            fallen = {operation.id: operation.fallback_to for operation in operations if operation.fallback_to}
            self.checkers.guards.judge_fallbacks(fallen)
        if self.twin is None:
            self.checkers.operations(operations, histories, self.network.confused)
        else:
            self.twin.judge(operations, histories, self.network.confused)
        self.checkers.budget(self.fleet.spending)
        if not self.mix.fallback:  # another route's first attempt asks nobody
            self.checkers.retries(self.fleet.spending, self.callers.wishes, operations)
        if self.mix.events:
            told = [
                (event["id"], operation.guard.label if operation.guard else "")
                for operation in operations
                for entry in histories[operation.id]
                if entry.announcement is not None and entry.at <= self.fleet.store_clock.now() - _DELIVERED_WITHIN_S
                for event in cloud_events(operation, entry)
            ]
            self.checkers.events_delivered(told)

    def _sweep_up(self) -> None:
        """Nothing of this world runs on: what is still pending is closed, its processes being dead."""
        for sidecar in self.fleet.sidecars:
            if sidecar is not None:
                sidecar.life.kill()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:
                pass  # it wanted to wait once more
        self.loop.close()


def _waits_mono(
    operations: list[Operation], histories: dict[str, tuple[HistoryEntry, ...]]
) -> dict[str, tuple[float, float]]:
    """By the provider's names: from when to when the journal has a payment as one that waits for its customer."""
    waits = {}
    for operation in operations:
        entries = histories[operation.id]
        since = [entry.at for entry in entries if entry.state is State.REQUIRES_ACTION]
        if since and operation.reference is not None:
            until = [entry.at for entry in entries if entry.at > since[0] and entry.state is not State.REQUIRES_ACTION]
            waits[operation.reference] = since[0] - EPOCH_AT, min(until, default=math.inf) - EPOCH_AT
    return waits


def play(seed: int, payments: int, first: int | None = None, *, between: bool = True, focus: str = "") -> Outcome:
    """One seed; or only its `first` payments, as the whole world begins. What it made is swept up at its end and not
    meanwhile: worlds are small, and die young. `between`: with the money between operations, unless a test wants the
    plain world. `focus`: the world of this seed that has it, which decides `between` itself."""
    if focus:
        mix = focused_mix(focus, seed, payments)
    else:
        mix = mix_of(seed, payments)
        mix = with_enemies(with_money_between(mix) if between else mix)
    if first is not None:
        mix = replace(mix, payments=min(first, payments))
    collects = gc.isenabled()
    if collects:
        gc.collect()
        gc.disable()
    try:
        return World(mix, payments).play()
    finally:
        if collects:
            gc.enable()
