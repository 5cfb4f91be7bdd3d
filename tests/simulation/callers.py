"""The callers of a world, and what each of them wants: one payment of one order, or its capture or refund.

They repeat under the same or a fresh key, hang up, hurry, change the payload, call twice at once. What they were told
is kept: it is one half of what the checkers go by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from proxy.core.call import Call, Priority, Wishes
from proxy.core.operation import Outcome
from proxy.core.reply import Problem, Reply
from tests.simulation.history import History
from tests.simulation.provider import WISH_HEADER
from tests.simulation.sidecars import Fleet
from tests.simulation.swarm import Mix

DECLINING = ("tok_stolen_card", "tok_insufficient_funds", "tok_fraudulent", "tok_failed_200_stolen_card")
OPEN_ENDS = ("tok_processing", "tok_3ds")
_DEFINITE = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.DECLINED})
_WAITS_LONGER_S = 3.0  # than the deadline that the sidecar keeps: then a caller's own client gives up


@dataclass
class Told:
    """One call, and what came of it."""

    began_mono: float
    amount: int
    key: str
    reply: Reply | None = None
    told_mono: float | None = None
    heard: bool = True

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
    kind: str  # sale, authorization, capture, refund
    amount: int
    source: str
    key: str  # header, body, ours: where its key stands
    starts_s: float
    calls: int
    order: str = ""
    charge: str = ""  # what a capture or refund is of
    told: list[Told] = field(default_factory=list)

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
        source = "tok_ok"
        if draw < mix.declines:
            source = dice.choice(DECLINING)
        elif draw < mix.declines + mix.open_ends:
            source = dice.choice(OPEN_ENDS)
        wishes.append(
            Wish(
                name=f"o{number}",
                kind="authorization" if dice.random() < mix.authorizations else "sale",
                amount=dice.randrange(100, 100_000),
                source=source,
                key=dice.choice(("header", "header", "body", "ours")),
                starts_s=starts_s,
                calls=dice.randint(1, mix.patience),
                order=f"o{number}",
            )
        )
    return wishes


class Callers:
    def __init__(self, fleet: Fleet, mix: Mix, history: History, dice: Random) -> None:
        self._fleet = fleet
        self._loop = fleet.loop
        self._mix = mix
        self._history = history
        self._dice = dice
        self._calls = 0
        self.wishes: list[Wish] = []
        self.on_told: Callable[[Wish, Told], None] = lambda wish, told: None

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
            if told.definite and dice.random() >= self._mix.again_after_answer:
                break
            await asyncio.sleep(dice.choice((0.05, 0.5, 2.0, 8.0)))
        await self._follow_up(wish)

    async def _follow_up(self, wish: Wish) -> None:
        paid = next((told for told in wish.told if told.definite and told.reply is not None), None)
        if not wish.pays or paid is None or paid.reply is None or paid.reply.outcome is not Outcome.SUCCEEDED:
            return
        if self._dice.random() >= self._mix.follow_ups or paid.reply.status_code != 200:
            return
        kind = "capture" if wish.kind == "authorization" else "refund"
        charge = json.loads(paid.reply.body)["id"]
        name = f"{wish.name}{kind[0]}"
        amount = max(1, wish.amount // 2) if kind == "refund" else wish.amount
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
        while not (up := self._fleet.up()):  # noqa: ASYNC110  # as a client does whose connections are refused
            await asyncio.sleep(0.5)
        sidecar = dice.choice(up)
        told = Told(self._loop.now_mono, amount, key)
        wish.told.append(told)
        leaves_mono = told.began_mono + leaves_s

        def still_there() -> bool:
            return told.heard and self._loop.now_mono < leaves_mono

        call = self._call(wish, key, amount, timeout_s)
        self._history.say("caller", "calls", wish.name, f"{sidecar.life.name} {wish.kind} {amount} key {key}")
        answer = sidecar.ask(call, still_there)
        waits_s = (timeout_s or mix.deadline_s) + _WAITS_LONGER_S
        giving_up = self._loop.after(waits_s, self._gives_up, wish, told, answer)
        reply = await answer
        giving_up.cancel()
        if reply is None:
            told.heard = False
            self._history.say("caller", "has no answer", wish.name)
            return told
        told.told_mono = self._loop.now_mono
        if not still_there():
            told.heard = False
        told.reply = reply
        self._history.say("caller", f"is told {reply.status_code}", wish.name, _words(reply))
        self.on_told(wish, told)
        return told

    def _gives_up(self, wish: Wish, told: Told, answer: asyncio.Future[Reply | None]) -> None:
        told.heard = False
        if not answer.done():
            self._history.say("caller", "gives up waiting", wish.name)
            answer.set_result(None)

    def _call(self, wish: Wish, key: str, amount: int, timeout_s: float | None) -> Call:
        headers = [(b"Content-Type", b"application/json"), (b"Authorization", b"Bearer shop")]
        headers.append((WISH_HEADER.encode(), wish.name.encode()))
        wished = Wishes(timeout_s=timeout_s, priority=self._dice.choice((None, None, Priority.LOW, Priority.MEDIUM)))
        if wish.key == "header" or key != wish.name:
            headers.append((b"Idempotency-Key", f"k-{key}".encode()))
        elif wish.key == "ours":
            wished = Wishes(key=f"p-{key}", timeout_s=timeout_s, priority=wished.priority)
        path = "/v1/charges"
        body: dict[str, object] = {"amount": amount}
        if wish.pays:
            body |= {"currency": "EUR", "source": wish.source, "metadata": {"order_id": wish.name}}
            if wish.kind == "authorization":
                body["capture"] = False
        else:
            path = f"/v1/charges/{wish.charge}/{'capture' if wish.kind == 'capture' else 'refunds'}"
        segments = tuple(path[1:].split("/"))
        return Call("acme", "POST", path, "", segments, tuple(headers), json.dumps(body).encode(), wished)

    async def insist(self, wish: Wish) -> None:
        """When all is well again: whoever was not told a definite answer asks once more, under its first key."""
        await self.call(wish, calmly=True)


def _words(reply: Reply) -> str:
    problem = f" {reply.problem}" if reply.problem is not None else ""
    replayed = " replayed" if reply.replayed else ""
    return f"{reply.outcome}{problem}{replayed} {reply.operation_id or ''}"
