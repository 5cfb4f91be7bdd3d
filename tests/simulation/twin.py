"""The twin of a world's merchant: its callers, its provider's books, and checkers that look at nothing else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace

from paywitness.core.operation import HistoryEntry, Operation
from paywitness.core.problems import Problem
from paywitness_sandbox.bank.ledger import Ledger
from tests.simulation.callers import Callers, Told, Wish, wishes_of
from tests.simulation.checkers import Checkers
from tests.simulation.history import History
from tests.simulation.merchants import TWIN, merchant_named
from tests.simulation.network import Sent, header_of
from tests.simulation.payments import MoneyBook
from tests.simulation.provider import SimProvider
from tests.simulation.sidecars import Fleet
from tests.simulation.swarm import Mix, stream


def merchant_of(sent: Sent) -> str:
    """Whose credential a request carries."""
    token = (header_of(sent.request, b"authorization") or "").removeprefix("Bearer ")
    return token.removesuffix("-2")


@dataclass
class MerchantChecker:
    """Nobody is told about, joined to, or denied by the payment of another merchant."""

    mix: Mix
    history: History
    books: dict[str, Ledger]  # of each merchant
    _made_by: dict[str, str] = field(default_factory=dict)  # stamps: whose credential sent them

    def sent(self, sent: Sent) -> None:
        """Nothing that moves money leaves under the credential of another merchant."""
        if sent.request.method != "POST":
            return
        carries, wants = merchant_of(sent), TWIN if sent.about.startswith(f"{TWIN}/") else "shop"
        if sent.stamp is not None:
            self._made_by.setdefault(sent.stamp, wants)
        if carries != wants:
            self.history.violated("everybody's own merchant", sent.about, f"sent under the credential of {carries}")

    def told(self, merchant: str, about: str, problem: Problem | None, operation_id: str | None, body: bytes) -> None:
        made_by = self._made_by.get(operation_id or "", merchant)
        if made_by != merchant:
            self.history.violated("everybody's own merchant", about, f"told of {operation_id}, which is of {made_by}")
        shown = _name_in(body) if problem is None else ""
        others = [name for name, book in self.books.items() if name != merchant and shown and book.find(charge=shown)]
        if others:
            self.history.violated("everybody's own merchant", about, f"told of {shown}, which is of {others[0]}")
        told_apart = self.mix.merchants == "many" or (self.mix.merchants == "selector" and not self.mix.rotates)
        if problem is Problem.CREDENTIAL_NOT_RECOGNISED and told_apart:
            self.history.violated("everybody's own merchant", about, f"denied by another's: {problem}")

    def is_of(self, merchant: str, stamp: str) -> bool:
        return self._made_by.get(stamp, "shop") == merchant


def _name_in(body: bytes) -> str:
    try:
        shown = json.loads(body)
    except ValueError:
        return ""
    return str(shown.get("id", "")) if isinstance(shown, dict) else ""


class Twin:
    def __init__(self, fleet: Fleet, mix: Mix, history: History, first: Checkers) -> None:
        self._mix = mix
        self._first = first
        self.checkers = Checkers(fleet.loop, mix, history)
        self.provider = SimProvider(fleet.loop, mix, stream(mix.seed, TWIN), history, self.checkers.ledger, TWIN)
        self.provider.merchant = merchant_named(TWIN, mix, fleet.loop.now_mono)
        if mix.money_between:  # of which it has none: an inquiry under its credential finds nothing
            self.provider.keep_payments(MoneyBook(), f"{mix.seed} {TWIN}")
        self.checkers.providers = (self.provider,)
        self.callers = Callers(fleet, mix, history, stream(mix.seed, "callers of the twin"), self.provider.merchant)
        self.checkers.called_off = self.callers.called_off
        self.merchants = MerchantChecker(mix, history, {"shop": first.ledger, TWIN: self.checkers.ledger})
        self.callers.on_told = self._told
        self.callers.on_safe = self.checkers.guards.told_safe
        self.wishes = [self._own(wish) for wish in wishes_of(mix, stream(mix.seed, "wishes"))]

    def _own(self, wish: Wish) -> Wish:
        """The same wish, a moment before or after. If nothing in a call names the account, equal keys are refused:
        there every second wish has names that are nobody else's."""
        dice = stream(self._mix.seed, f"twin of {wish.name}")
        starts_s = max(0.0, wish.starts_s + dice.uniform(-1.0, 1.0))
        name = f"x{wish.name}" if self._mix.merchants == "owners" and dice.random() < 0.5 else wish.name
        return replace(wish, starts_s=starts_s, name=name, order=name if name != wish.name else wish.order, told=[])

    def told_first(self, wish: Wish, told: Told) -> None:
        """What the first merchant is told."""
        self._first.told(wish, told)
        self._look("shop", wish, told)

    def _told(self, wish: Wish, told: Told) -> None:
        self.checkers.told(wish, told)
        self._look(TWIN, wish, told)

    def _look(self, merchant: str, wish: Wish, told: Told) -> None:
        if told.reply is not None:
            reply = told.reply
            self.merchants.told(merchant, wish.order, reply.problem, reply.operation_id, reply.body)

    async def insist(self) -> None:
        insisting = [wish for wish in self.callers.wishes if not any(told.definite for told in wish.told)]
        await asyncio.gather(*(self.callers.insist(wish) for wish in insisting))

    def judge(
        self, operations: list[Operation], histories: dict[str, tuple[HistoryEntry, ...]], confused: set[str]
    ) -> None:
        """Each merchant's operations by its own books."""
        self.checkers.wishes(self.callers.wishes)
        own = [operation for operation in operations if self.merchants.is_of(TWIN, operation.stamp)]
        ids = {operation.id for operation in own}
        self.checkers.operations(own, histories, confused)
        self._first.operations([one for one in operations if one.id not in ids], histories, confused)
