"""The callers of a world, and what each of them wants: one payment of one order, its capture, void or refund, a payout.

They repeat under the same or a fresh key, hang up, hurry, change the payload, call twice at once. What they were told
is kept: it is one half of what the checkers go by.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from paywitness.core.call import Call, CallerOptions, Headers, Priority
from paywitness.core.operation import Outcome
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from tests.simulation.history import History
from tests.simulation.merchants import Merchant
from tests.simulation.provider import WISH_HEADER
from tests.simulation.sidecars import Fleet, Sidecar
from tests.simulation.swarm import Mix, stream

# What goes well, what is refused, and what ends later.
_SOURCES = {
    "charge": (
        "tok_ok",
        ("tok_stolen_card", "tok_insufficient_funds", "tok_fraudulent", "tok_failed_200_stolen_card"),
        ("tok_processing", "tok_3ds"),
    ),
    "payout": ("dest_ok", ("dest_failed_account_closed", "dest_refused_account_closed"), ("dest_pending",)),
}
_DEFINITE = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.DECLINED})
_WISH = WISH_HEADER.encode()
_CHARGES = ("v1", "charges")
_PATHS = {"refund": "refunds"}
_PRIORITIES = (None, None, Priority.LOW, Priority.MEDIUM)
EQUAL_AMOUNT = 4_200  # in worlds in which everybody pays the same
KEY_LENGTH_MAX = 255  # as the policy says
_LONG_NAME = 60  # times five characters
_SHOWS_MAX = 30
_WAITS_LONGER_S = 3.0  # than the deadline that the sidecar keeps: then a caller's own client gives up


OnSafe = Callable[[str, float, float], None]  # the order, when it was asked, when it was told
_NO_OPTIONS = CallerOptions()
_STAMP = re.compile(rb'"paywitness":\s*"([^"]+)"')
_STAMPS_MAX = 10


@dataclass
class Told:
    """One call, and what came of it."""

    began_mono: float
    amount: int
    key: str
    reply: Reply | None = None
    told_mono: float | None = None
    heard: bool = True
    no_journal: bool = False  # its sidecar had none all the while: this call did nothing
    lost: bool = False  # it ended without a reply

    @property
    def says_not_sent(self) -> bool:
        return self.reply is not None and self.reply.problem in {Problem.NOT_SENT, Problem.ABSENT}

    @property
    def definite(self) -> bool:
        """Whether it said for good what became of this payment."""
        reply = self.reply
        ours = reply is not None and reply.problem in {None, Problem.CLOSED_WITHOUT_RESPONSE}
        return ours and reply is not None and reply.outcome in _DEFINITE


@dataclass
class Wish:
    """What a caller wants, whatever it does about it."""

    name: str
    kind: str  # sale, authorization, capture, void, refund, payout
    amount: int
    source: str
    key: str  # header, body, ours: where its key stands
    starts_s: float
    calls: int
    order: str = ""
    charge: str = ""  # what a capture, void or refund is of
    copied: str | None = None  # of the metadata of another payment, in its own
    told: list[Told] = field(default_factory=list)

    @property
    def order_member(self) -> bytes:
        """What an answer about its order holds."""
        return f'"{self.order}"'.encode()

    @property
    def pays(self) -> bool:
        return self.kind in {"sale", "authorization"}


def wishes_of(mix: Mix, dice: Random) -> list[Wish]:
    """In the order of their coming; the first of them are the same however many there are."""
    wishes = []
    starts_s = 0.0
    for number in range(1, mix.payments + 1):
        starts_s += dice.expovariate(mix.rate_per_s)
        draw = dice.random()
        kind = "authorization" if dice.random() < mix.authorizations else "sale"
        kind = "payout" if dice.random() < mix.payouts else kind
        well, declining, open_ends = _SOURCES["payout" if kind == "payout" else "charge"]
        source = well
        if draw < mix.declines:
            source = dice.choice(declining)
        elif draw < mix.declines + mix.open_ends:
            source = dice.choice(open_ends)
        key = dice.choice(("header", "header", "body" if kind != "payout" else "header", "ours"))
        order = _order_name(mix, number)
        key = "header" if key == "body" and len(order) > KEY_LENGTH_MAX else key
        wishes.append(
            Wish(
                name=f"o{number}",
                kind=kind,
                amount=dice.randrange(100, 100_000) if not mix.equal_amounts else EQUAL_AMOUNT,
                source=source,
                key=key,
                starts_s=starts_s,
                calls=dice.randint(1, mix.patience),
                order=order,
            )
        )
    return wishes


def _order_name(mix: Mix, number: int) -> str:
    """Some are longer than what a journal keeps of them. Each has its own chance: none moves another's."""
    is_long = mix.long_names and stream(mix.seed, f"name of order {number}").random() < mix.long_names
    return f"o{number}" + "-long" * _LONG_NAME * bool(is_long)


class CallerLine:
    """How anybody calls a sidecar: to its answer, or until the caller has had enough."""

    def __init__(self, fleet: Fleet, mix: Mix, history: History) -> None:
        self._fleet = fleet
        self._loop = fleet.loop
        self._mix = mix
        self._history = history

    async def sidecar(self, dice: Random) -> Sidecar:
        while not (up := self._fleet.up()):  # connections are refused; clients that keep trying come within a second
            await self._fleet.next_up()
            await asyncio.sleep(dice.random())
        return dice.choice(up)

    async def exchange(
        self, sidecar: Sidecar, call: Call, told: Told, name: str, leaves_s: float, timeout_s: float | None
    ) -> bool:
        """Whether there was a reply."""
        leaves_mono = told.began_mono + leaves_s

        def still_there() -> bool:
            return told.heard and self._loop.now_mono < leaves_mono

        answer = sidecar.ask(call, still_there)
        waits_s = (timeout_s or self._mix.deadline_s) + _WAITS_LONGER_S
        giving_up = self._loop.unless_cancelled(waits_s, self._gives_up, name, told, answer)
        reply = await answer
        giving_up.cancel()
        if reply is None:
            told.heard, told.lost = False, True
            self._history.say("caller", "has no answer", name)
            return False
        told.told_mono = self._loop.now_mono
        if not still_there():
            told.heard = False
        told.reply = reply
        told.no_journal = reply.problem is Problem.JOURNAL_UNAVAILABLE and sidecar.door.was_away(told.began_mono)
        self._history.say("caller", "is told", name, (reply.status_code, _Words(reply)))
        return True

    async def is_safe_to_pay(self, sidecar: Sidecar, order: str, merchant: Merchant, on_safe: OnSafe) -> bool:
        came_mono = self._loop.now_mono
        headers, path = merchant.headers(came_mono), ("paywitness", "intents", order)
        reply = await sidecar.ask_about(order, Call("acme", "GET", "/".join(path), "", path, headers, b"", _NO_OPTIONS))
        if reply is None or reply.status_code != 200 or not json.loads(reply.body)["safe_to_pay"]:
            return False
        self._history.say("caller", "is told that it is safe", order[:20])
        on_safe(order, came_mono, self._loop.now_mono)
        return True

    def _gives_up(self, name: str, told: Told, answer: asyncio.Future[Reply | None]) -> None:
        told.heard = False
        if not answer.done():
            self._history.say("caller", "gives up waiting", name)
            answer.set_result(None)


class Callers:
    def __init__(self, fleet: Fleet, mix: Mix, history: History, dice: Random, merchant: Merchant) -> None:
        self._fleet = fleet
        self._loop = fleet.loop
        self._mix = mix
        self._history = history
        self._dice = dice
        self.merchant = merchant
        self._calls = 0
        self._line = CallerLine(fleet, mix, history)
        self.wishes: list[Wish] = []
        self.called_off: set[str] = set()  # charges that somebody wants voided
        self._look_dice = Random(f"{mix.seed} looks of {merchant.name}")
        self._copy_dice = Random(f"{mix.seed} copies of {merchant.name}")
        self._seen_stamps: list[str] = []
        self.on_told: Callable[[Wish, Told], None] = lambda wish, told: None
        self.on_safe: OnSafe = lambda order, came_mono, told_mono: None

    async def customer(self, wish: Wish) -> None:
        """Somebody who wants one thing, with the patience it has."""
        self.wishes.append(wish)
        dice = self._dice
        for _ in range(wish.calls):
            if dice.random() < self._mix.twice_at_once:
                first, second = self.call(wish), self.call(wish)
                told, _ = await asyncio.gather(first, second)
            else:
                told = await self.call(wish)
            if await self._is_told_safe(wish, told):
                break
            if told.definite and dice.random() >= self._mix.again_after_answer:
                break
            if told.says_not_sent and dice.random() < self._mix.goes_elsewhere:
                break
            await asyncio.sleep(self._returns_after_s())
        await self._follow_up(wish)

    async def _is_told_safe(self, wish: Wish, told: Told) -> bool:
        if not self._mix.looks or not wish.pays or self._look_dice.random() >= self._mix.looks:
            return False
        return await self._look(wish, self._look_dice.choice((0.0, 0.05, 1.0, 5.0)))

    def _returns_after_s(self) -> float:
        if self._mix.returns_late and self._dice.random() < self._mix.returns_late:
            return self._mix.window_s + self._dice.uniform(0.0, 5.0)
        return self._dice.choice((0.05, 0.5, 2.0, 8.0))

    async def _follow_up(self, wish: Wish) -> None:
        paid = next((told for told in wish.told if told.definite and told.reply is not None), None)
        if not wish.pays or paid is None or paid.reply is None or paid.reply.outcome is not Outcome.SUCCEEDED:
            return
        if self._dice.random() >= self._mix.follow_ups or paid.reply.status_code != 200:
            return
        kind = self._dice.choice(("capture", "void")) if wish.kind == "authorization" else "refund"
        charge = json.loads(paid.reply.body)["id"]
        name = f"{wish.name}{kind[0]}"
        amount = max(1, wish.amount // 2) if kind == "refund" else wish.amount
        if kind == "void":
            self.called_off.add(charge)
        await self.customer(Wish(name, kind, amount, "", "header", 0.0, wish.calls, wish.order, charge))

    async def call(self, wish: Wish, *, calmly: bool = False) -> Told:
        """One call, to its answer or without one."""
        dice, mix = self._dice, self._mix
        self._calls += 1
        amount, key, timeout_s, leaves_s = wish.amount, wish.name, None, 1e9
        if not calmly:
            if wish.pays and dice.random() < mix.fresh_key:  # an answered refund under a fresh key is another refund
                key = f"{wish.name}-{self._calls}"
            if dice.random() < mix.other_payload:
                amount += 1
            if dice.random() < mix.hurries:
                timeout_s = dice.choice((0.05, 0.3, 1.5))
            if dice.random() < mix.hangs_up:
                leaves_s = dice.choice((0.0, 0.02, 0.5))
        sidecar = await self._line.sidecar(dice)
        told = Told(self._loop.now_mono, amount, key)
        wish.told.append(told)
        call = self._call(wish, key, amount, timeout_s, whole=calmly)
        self._history.say("caller", "calls", wish.name, (sidecar.life.name, wish.kind, amount, "key", key))
        if await self._line.exchange(sidecar, call, told, wish.name, leaves_s, timeout_s):
            self.on_told(wish, told)
            if self._mix.copies_stamps:
                self._keep_stamp(told)
        return told

    def _call(self, wish: Wish, key: str, amount: int, timeout_s: float | None, *, whole: bool) -> Call:
        priority = self._dice.choice(_PRIORITIES)
        headers: Headers = (
            *self.merchant.headers(self._loop.now_mono, whole=whole),
            (_WISH, f"{self.merchant.prefix}{wish.name}".encode()),
        )
        ours = None
        if wish.key == "header" or key != wish.name:
            headers = (*headers, (b"Idempotency-Key", f"k-{key}".encode()))
        elif wish.key == "ours":
            ours = f"p-{key}"
        wished = CallerOptions(key=ours, account=self.merchant.account, timeout_s=timeout_s, priority=priority)
        if wish.pays:
            capture = '"capture": false, ' if wish.kind == "authorization" else ""
            body = (
                f'{{"amount": {amount}, "currency": "EUR", {capture}"source": "{wish.source}", '
                f'"metadata": {{{self._copied_stamp(wish)}"order_id": "{wish.order}"}}}}'
            )
            return Call("acme", "POST", "/v1/charges", "", _CHARGES, headers, body.encode(), wished)
        path = f"/v1/charges/{wish.charge}/{_PATHS.get(wish.kind, wish.kind)}"
        body = f'{{"amount": {amount}}}' if wish.kind != "void" else "{}"
        if wish.kind == "payout":
            path = "/v1/payouts"
            body = (
                f'{{"amount": {amount}, "currency": "EUR", "destination": "{wish.source}", '
                f'"reference": "{wish.order}", "metadata": {{"order_id": "{wish.order}"}}}}'
            )
        return Call("acme", "POST", path, "", tuple(path[1:].split("/")), headers, body.encode(), wished)

    def _copied_stamp(self, wish: Wish) -> str:
        """The stamp of an answer that somebody was given, which was copied with the metadata around it."""
        if wish.copied is None:
            copies = bool(self._seen_stamps) and self._copy_dice.random() < self._mix.copies_stamps
            wish.copied = f'"paywitness": "{self._copy_dice.choice(self._seen_stamps)}", ' if copies else ""
        return wish.copied

    def _keep_stamp(self, told: Told) -> None:
        found = _STAMP.search(told.reply.body) if told.reply is not None else None
        if found is not None:
            self._seen_stamps.append(found.group(1).decode())
            del self._seen_stamps[:-_STAMPS_MAX]

    async def _look(self, wish: Wish, after_s: float) -> bool:
        """Ask whether the order may be paid. Whoever is told that it may pays elsewhere."""
        await asyncio.sleep(after_s)
        sidecar = await self._line.sidecar(self._look_dice)
        return await self._line.is_safe_to_pay(sidecar, wish.order, self.merchant, self.on_safe)

    async def show_credential(self) -> None:
        """One more payment, under whatever credential is in use by now."""
        wish = Wish("late", "sale", 100, "tok_ok", "header", 0.0, 1, "late")
        for _ in range(_SHOWS_MAX):
            told = await self.call(wish, calmly=True)
            refused = told.reply is not None and told.reply.problem is Problem.CREDENTIAL_NOT_RECOGNISED
            if told.definite or refused:
                return
            await asyncio.sleep(10.0)

    async def pay_once_more(self, wish: Wish) -> Told:
        """Somebody else pays the order: under a fresh key, with another card, another amount."""
        order = replace(wish, name=f"{wish.name}f", source="tok_ok", amount=wish.amount + 7, key="header", told=[])
        return await self.call(order, calmly=True)

    async def insist(self, wish: Wish) -> None:
        """When all is well again: whoever was not told a definite answer asks once more, under its first key."""
        await self.call(wish, calmly=True)


class _Words:
    """A reply in a few words, when somebody reads them."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __str__(self) -> str:
        reply = self._reply
        problem = f" {reply.problem}" if reply.problem is not None else ""
        replayed = " replayed" if reply.replayed else ""
        return f"{reply.outcome}{problem}{replayed} {reply.operation_id or ''}"
