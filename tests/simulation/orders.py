"""Orders whose operations share their money, and what shops do with them: authorise and capture in parts, refund in
parts, void against a capture, pay again after a refund, send a payout twice, open a payment and confirm it, start over.

A shop means one *movement* by everything that it calls for the same reason. It repeats a movement under its key; if
its answer is lost, it may go on under a fresh key, as job runners do, and it does not come back to the earlier key.
What it was told is kept with each key: it is one half of what the checkers go by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from paywitness.core.call import Call, CallerOptions, Headers
from paywitness.core.operation import Outcome
from tests.simulation.callers import CallerLine, OnSafe, Told
from tests.simulation.history import History
from tests.simulation.merchants import Merchant
from tests.simulation.payments import Payment
from tests.simulation.provider import WISH_HEADER, SimProvider
from tests.simulation.sidecars import Fleet
from tests.simulation.swarm import Mix, stream

_WISH = WISH_HEADER.encode()
_LOSES_THE_ANSWER = 0.15  # of the calls: the shop hangs up, or does not wait
_PATIENCE = 3  # calls under one key
_MOVES = frozenset({"capture", "refund", "void", "payout"})


@dataclass
class Asked:
    """What was asked for under one key."""

    name: str  # of the key, and what the provider's lines know it by
    order: str
    kind: str  # pay, open, confirm, capture, void, refund, payout
    amount: int
    path: str
    body: str
    payment: str = ""  # what a follow-up or a confirm acts on, by either name
    meant: str = ""  # the movement: the name of the first key that it was asked for under
    told: list[Told] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        return self.kind in _MOVES

    @property
    def pays(self) -> bool:
        return self.kind in {"pay", "confirm"}

    def answer(self) -> Told | None:
        """The definite one that somebody heard."""
        return next((told for told in self.told if told.heard and told.definite), None)

    @property
    def answered(self) -> bool:
        """Whether the shop heard the provider: then a fresh key would mean another movement."""
        pending = (told for told in self.told if told.heard and told.reply is not None and told.reply.problem is None)
        return self.answer() is not None or any(told.reply.outcome is Outcome.PENDING for told in pending if told.reply)

    @property
    def succeeded(self) -> bool:
        answer = self.answer()
        return answer is not None and answer.reply is not None and answer.reply.outcome is Outcome.SUCCEEDED


@dataclass
class Order:
    name: str
    amount: int
    starts_s: float
    dice: Random
    story: str
    keys: int = 0
    asked: list[Asked] = field(default_factory=list)

    def body(self, **members: object) -> str:
        return json.dumps(members)

    def is_one_in(self, count: int) -> bool:
        return self.dice.randrange(count) == 0


def order_of(mix: Mix, number: int, starts_s: float) -> Order | None:
    """Whether the wish of that number is an order instead. Each has its own chance: none moves another's."""
    dice = stream(mix.seed, f"order {number}")
    if dice.random() >= mix.orders:
        return None
    return Order(
        f"m{number}", dice.randrange(1_000, 100_000), starts_s, dice, dice.choice(mix.stories or tuple(STORIES))
    )


class Shop:
    def __init__(
        self, fleet: Fleet, mix: Mix, history: History, providers: tuple[SimProvider, ...], merchant: Merchant
    ) -> None:
        self._merchant = merchant
        self._loop = fleet.loop
        self._mix = mix
        self._history = history
        self._providers = providers
        self._line = CallerLine(fleet, mix, history)
        self._under_fresh_keys = not mix.failovers  # a store that forgets cannot know what another key is doing
        self.asked: dict[str, Asked] = {}
        self.orders: dict[str, Order] = {}
        self._look_dice = Random(f"{mix.seed} looks of shops")
        self.on_safe: OnSafe = lambda order, came_mono, told_mono: None
        self.on_told: Callable[[Asked, Told], None] = lambda asked, told: None

    async def serve(self, order: Order) -> None:
        self.orders[order.name] = order
        self._history.say("shop", order.story, order.name, str(order.amount))
        await STORIES[order.story](self, order)

    # -- calls

    def _new(
        self, order: Order, kind: str, path: str, body: str, amount: int, payment: str = "", meant: Asked | None = None
    ) -> Asked:
        order.keys += 1
        name = f"{order.name}.{kind}{order.keys}"
        asked = Asked(name, order.name, kind, amount, path, body, payment, meant.meant if meant else name)
        order.asked.append(asked)
        self.asked[name] = asked
        return asked

    async def call(self, order: Order, asked: Asked, *, calmly: bool = False) -> Told:
        dice, timeout_s, leaves_s = order.dice, None, 1e9
        if not calmly and dice.random() < _LOSES_THE_ANSWER:
            timeout_s = dice.choice((None, 0.05, 0.3))
            leaves_s = dice.choice((0.0, 0.02, 0.5)) if timeout_s is None else leaves_s
        sidecar = await self._line.sidecar(dice)
        told = Told(self._loop.now_mono, asked.amount, asked.name)
        asked.told.append(told)
        named = ((_WISH, asked.name.encode()), (b"Idempotency-Key", f"k-{asked.name}".encode()))
        headers: Headers = (*self._merchant.headers(self._loop.now_mono, whole=calmly), *named)
        segments = tuple(asked.path[1:].split("/"))
        options = CallerOptions(account=self._merchant.account, timeout_s=timeout_s)
        call = Call("acme", "POST", asked.path, "", segments, headers, asked.body.encode(), options)
        self._history.say("shop", "calls", asked.name, (sidecar.life.name, asked.path, asked.amount))
        if await self._line.exchange(sidecar, call, told, asked.name, leaves_s, timeout_s):
            self.on_told(asked, told)
        return told

    async def until_told(self, order: Order, asked: Asked, *, fresh: bool = True) -> Asked:
        """Under its key until it is answered for good, or patience ends; after a lost answer perhaps under a fresh one.
        Returns what was asked last."""
        dice = order.dice
        for _ in range(dice.randint(1, _PATIENCE)):
            if order.is_one_in(8):
                await asyncio.gather(self.call(order, asked), self.call(order, asked))
            else:
                await self.call(order, asked)
            if asked.answered or await self._is_told_safe(order, asked):
                return asked
            await asyncio.sleep(dice.choice((0.05, 0.5, 2.0, 8.0)))
            if fresh and self._under_fresh_keys and order.is_one_in(2):
                asked = self._new(order, asked.kind, asked.path, asked.body, asked.amount, asked.payment, asked)
        return asked

    async def _is_told_safe(self, order: Order, asked: Asked) -> bool:
        """Somebody asks whether the order may be paid, and if it may, pays it elsewhere."""
        if not asked.pays or not self._mix.looks or self._look_dice.random() >= self._mix.looks:
            return False
        await asyncio.sleep(self._look_dice.choice((0.0, 0.05, 1.0, 5.0)))
        sidecar = await self._line.sidecar(self._look_dice)
        return await self._line.is_safe_to_pay(sidecar, order.name, self._merchant, self.on_safe)

    async def insist(self, order: Order) -> None:
        """When all is well again: of each movement that nobody was told the end of, the last key is asked once more."""
        last: dict[str, Asked] = {}
        for asked in order.asked:
            last[asked.meant] = asked
        told = {asked.meant for asked in order.asked if asked.answered}
        for meant, asked in last.items():
            if meant not in told:
                await self.call(order, asked, calmly=True)

    # -- what is called for

    def _paying(self, order: Order, amount: int, source: str, *, manual: bool, confirm: bool = True) -> Asked:
        body = order.body(
            amount=amount,
            currency="EUR",
            capture="manual" if manual else "automatic",
            confirm=confirm,
            source=source,
            metadata={"order_id": order.name},
        )
        return self._new(order, "pay" if confirm else "open", "/v2/payments", body, amount)

    async def pay(self, order: Order, *, manual: bool) -> str:
        """The name of the payment; "" if it was not told."""
        draw = order.dice.random()
        source = "tok_processing" if draw < 0.06 else "tok_insufficient_funds" if draw < 0.1 else "tok_ok"
        asked = await self.until_told(order, self._paying(order, order.amount, source, manual=manual))
        return _id_told(asked)

    def _capture(self, order: Order, payment: str, amount: int, *, final: bool = False) -> Asked:
        if self._mix.partial == "single":
            path, body = f"/v2/payments/{payment}/capture", order.body(amount=amount)
        else:
            path = f"/v2/payments/{payment}/captures"
            body = order.body(amount=amount, final=final, metadata={})
        return self._new(order, "capture", path, body, amount, payment)

    def _void(self, order: Order, payment: str) -> Asked:
        return self._new(order, "void", f"/v2/payments/{payment}/void", "{}", 0, payment)

    def _refund(self, order: Order, payment: str, amount: int) -> Asked:
        """By one name of the payment or by the other."""
        named = {"payment": payment} if order.dice.random() < 0.7 else {"charge": "ch_" + payment.removeprefix("pi_")}
        return self._new(
            order, "refund", "/v2/refunds", order.body(amount=amount, metadata={}, **named), amount, payment
        )

    async def _in_turn_or_at_once(self, order: Order, many: list[Asked]) -> None:
        if order.is_one_in(3):
            await asyncio.gather(*(self.until_told(order, asked) for asked in many))
            return
        for asked in many:
            last = await self.until_told(order, asked)
            if last.succeeded and order.is_one_in(10):  # by mistake: it is another one, which nobody may take for this
                again = self._new(order, last.kind, last.path, last.body, last.amount, last.payment)
                await self.until_told(order, again)

    def _parts(self, order: Order, whole: int) -> list[int]:
        """Some amounts that make up the whole; one time in four more than that."""
        count = order.dice.randint(1, 3)
        parts = [whole // (count + 1)] * count
        parts = [part + place for place, part in enumerate(parts)]  # equal ones would have to wait for each other
        if order.is_one_in(5):
            parts[-1:] = [parts[0]] if count > 1 else parts[-1:]
        rest = whole - sum(parts)
        return [*parts, rest + whole // 3 if order.is_one_in(4) else rest]

    async def refund_in_parts(self, order: Order, payment: str, captured: int) -> None:
        if order.is_one_in(5):
            self._by_dashboard(order, payment, captured // 3)
        await self._in_turn_or_at_once(
            order, [self._refund(order, payment, amount) for amount in self._parts(order, captured)]
        )

    def _by_dashboard(self, order: Order, payment: str, amount: int) -> None:
        for provider, found in self._at_provider(payment):
            provider.refund_by_dashboard(found, max(1, amount))

    def _by_browser(self, payment: str) -> None:
        for provider, found in self._at_provider(payment):
            provider.confirm_by_browser(found)

    def _at_provider(self, payment: str) -> list[tuple[SimProvider, Payment]]:
        return [
            (provider, found)
            for provider in self._providers
            if provider.payments is not None and provider.payments.has(payment)
            if isinstance(found := provider.payments.thing(payment), Payment)
        ]

    # -- stories

    async def captures(self, order: Order) -> None:
        """Authorise, capture in parts, perhaps void what is left against the last of them, refund in parts."""
        payment = await self.pay(order, manual=True)
        if not payment:
            return
        amounts = self._parts(order, order.amount)
        if order.is_one_in(3):
            amounts = amounts[:-1]  # something is left
        captures = [self._capture(order, payment, amount) for amount in amounts]
        await self._in_turn_or_at_once(order, captures)
        if order.is_one_in(2):
            await self.until_told(order, self._void(order, payment))
        captured = sum(asked.amount for asked in order.asked if asked.kind == "capture" and asked.succeeded)
        if captured and order.is_one_in(2):
            await self.refund_in_parts(order, payment, captured)

    async def void_against_capture(self, order: Order) -> None:
        payment = await self.pay(order, manual=True)
        if not payment:
            return
        amount = order.amount if order.is_one_in(2) else order.amount // 2
        capture, void = self._capture(order, payment, amount), self._void(order, payment)

        async def a_moment_later() -> None:
            await asyncio.sleep(order.dice.choice((0.0, 0.01, 0.05, 0.5)))
            await self.until_told(order, void)

        await asyncio.gather(self.until_told(order, capture), a_moment_later())

    async def refunds(self, order: Order) -> None:
        payment = await self.pay(order, manual=False)
        if payment:
            await self.refund_in_parts(order, payment, order.amount)

    async def pays_again(self, order: Order) -> None:
        """Paid, refunded in full, and paid again: by an equal call, which is a late duplicate, or by another one."""
        payment = await self.pay(order, manual=False)
        if not payment or not self._under_fresh_keys:
            return
        halves = [order.amount] if order.is_one_in(2) else [order.amount // 2, order.amount - order.amount // 2]
        for amount in halves:
            await self.until_told(order, self._refund(order, payment, amount))
        await asyncio.sleep(order.dice.choice((0.0, 1.0, 10.0)))
        amount = order.amount if order.is_one_in(2) else order.amount + 1
        await self.until_told(order, self._paying(order, amount, "tok_ok", manual=False))

    async def payouts(self, order: Order) -> None:
        """One transfer per reference, whatever keys and amounts it is asked for under."""
        draw = order.dice.random()
        destination = "dest_pending" if draw < 0.1 else "dest_refused" if draw < 0.15 else "dest_ok"

        def transfer(amount: int) -> Asked:
            body = order.body(amount=amount, currency="EUR", destination=destination, reference=order.name, metadata={})
            return self._new(order, "payout", "/v2/transfers", body, amount)

        await self.until_told(order, transfer(order.amount))
        if not self._under_fresh_keys:
            return
        await asyncio.sleep(order.dice.choice((0.0, 0.5, 5.0, 30.0)))
        for _ in range(order.dice.randint(0, 2)):
            await self.until_told(order, transfer(order.amount if order.is_one_in(2) else order.amount + 1))

    async def two_steps(self, order: Order) -> None:
        """Open a payment, confirm it; after a decline with another card; after a lost answer the job starts over with a
        new payment of the same order. A browser may have confirmed meanwhile."""
        manual, payment = order.is_one_in(4), ""
        for _ in range(order.dice.randint(1, 3)):
            payment = await self._open(order, manual=manual)
            if not payment:
                return
            if order.is_one_in(6):
                self._by_browser(payment)
            elif order.is_one_in(8):
                self._loop.after(order.dice.uniform(0.0, 2.0), self._by_browser, payment)
            if await self._confirm(order, payment) or not self._under_fresh_keys:
                break
        if not self._confirmed(order, payment):
            return
        if manual:
            await self.until_told(order, self._capture(order, payment, order.amount, final=True))
        elif order.is_one_in(3):
            await self.refund_in_parts(order, payment, order.amount)

    async def _open(self, order: Order, *, manual: bool) -> str:
        asked = self._paying(order, order.amount, "", manual=manual, confirm=False)
        return _id_told(await self.until_told(order, asked))

    async def _confirm(self, order: Order, payment: str) -> bool:
        """Whether the shop has an end that it can live with; else it starts over."""
        cards = ["tok_insufficient_funds", "tok_ok"] if order.is_one_in(4) else ["tok_ok"]
        for card in cards:
            body, path = order.body(source=card), f"/v2/payments/{payment}/confirm"
            asked = self._new(order, "confirm", path, body, order.amount, payment)
            asked = await self.until_told(order, asked, fresh=order.is_one_in(3))
            if asked.succeeded:
                return True
        return False

    def _confirmed(self, order: Order, payment: str) -> bool:
        return any(asked.payment == payment and asked.kind == "confirm" and asked.succeeded for asked in order.asked)

    # -- long after

    async def pay_once_more(self, order: Order) -> Asked:
        """Another payment of the order, or another payout of its reference, that nobody could take for the first."""
        amount = order.amount + 7
        if order.story == "payouts":
            body = order.body(amount=amount, currency="EUR", destination="dest_ok", reference=order.name, metadata={})
            asked = self._new(order, "payout", "/v2/transfers", body, amount)
        else:
            asked = self._paying(order, amount, "tok_ok", manual=False)
        await self.call(order, asked, calmly=True)
        return asked


def _id_told(asked: Asked) -> str:
    """The payment that its answer shows."""
    answer = asked.answer()
    if not asked.succeeded or answer is None or answer.reply is None or answer.reply.status_code != 200:
        return ""
    return str(json.loads(answer.reply.body).get("id", ""))  # of an empty 200 there is none


STORIES = {
    "captures": Shop.captures,
    "void_against_capture": Shop.void_against_capture,
    "refunds": Shop.refunds,
    "pays_again": Shop.pays_again,
    "payouts": Shop.payouts,
    "two_steps": Shop.two_steps,
}
