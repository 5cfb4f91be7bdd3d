"""The twin of a world's merchant: its callers, its provider's books, and checkers that look at nothing else."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field, replace

from paywitness.core.operation import HistoryEntry, Operation, Outcome
from paywitness.core.problems import Problem
from paywitness_sandbox.bank.ledger import Ledger
from tests.simulation.callers import Callers, Told, Wish, wishes_of
from tests.simulation.checkers import Checkers
from tests.simulation.history import History
from tests.simulation.merchants import TWIN, Credentials, Intruder, merchant_named
from tests.simulation.network import Sent, header_of
from tests.simulation.payments import MoneyBook
from tests.simulation.provider import SimProvider
from tests.simulation.sidecars import Fleet
from tests.simulation.swarm import Mix, stream


def merchant_of(sent: Sent) -> str:
    """Whose credential a request carries."""
    return _token_of(sent).partition("-")[0]


def _token_of(sent: Sent) -> str:
    return (header_of(sent.request, b"authorization") or "").removeprefix("Bearer ")


_INTRUDES = 0.1  # of what the first merchant has paid
_STAMP_ASKED_FOR = re.compile(rb"[?&]paywitness=(op_[^&]+)")


@dataclass
class MerchantChecker:
    """Nobody is told about, joined to, or denied by the payment of another merchant."""

    mix: Mix
    history: History
    books: dict[str, Ledger]  # of each merchant
    credentials: Credentials
    _made_by: dict[str, str] = field(default_factory=dict)  # stamps: for whom they were sent
    _key_of: dict[str, str] = field(default_factory=dict)  # keys at the provider: for whom they were sent first

    def sent(self, sent: Sent) -> None:
        """Nothing that moves money leaves under the credential of another merchant, nor under its stamp; or its key, if
        both have one key space."""
        if sent.request.method != "POST":
            self._asked(sent)
            return
        carries, wants = merchant_of(sent), TWIN if sent.about.startswith(f"{TWIN}/") else "shop"
        if sent.stamp is not None and self._made_by.setdefault(sent.stamp, wants) != wants:
            self.history.violated("everybody's own merchant", sent.about, f"sent under another's stamp {sent.stamp}")
        shared_key = sent.key if self.mix.merchants == "header" and self.mix.dedupes else None
        if shared_key is not None and self._key_of.setdefault(shared_key, wants) != wants:
            self.history.violated("everybody's own merchant", sent.about, f"sent under another's key {shared_key}")
        if carries != wants:
            self.history.violated("everybody's own merchant", sent.about, f"sent under the credential of {carries}")

    def _asked(self, sent: Sent) -> None:
        """Nobody is asked for under a credential that the provider has named another owner's."""
        found = _STAMP_ASKED_FOR.search(sent.request.target)
        stamp = found.group(1).decode() if found is not None else ""
        carries = merchant_of(sent)
        if self._made_by.get(stamp, carries) != carries and self.credentials.are_of_two(stamp, _token_of(sent)):
            self.history.violated("everybody's own merchant", sent.about, f"{stamp} is asked for as {carries}")

    def told(self, merchant: str, about: str, problem: Problem | None, operation_id: str | None, body: bytes) -> None:
        made_by = self._made_by.get(operation_id or "", merchant)
        if made_by != merchant:
            self.history.violated("everybody's own merchant", about, f"told of {operation_id}, which is of {made_by}")
        shown = _name_in(body) if problem is None else ""
        others = [name for name, book in self.books.items() if name != merchant and shown and book.find(charge=shown)]
        if others:
            self.history.violated("everybody's own merchant", about, f"told of {shown}, which is of {others[0]}")
        mix = self.mix
        named = mix.merchants in {"selector", "header"} and not (mix.rotates or mix.restricted)
        told_apart = mix.merchants == "many" or named
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
    def __init__(self, fleet: Fleet, mix: Mix, history: History, first: Checkers, credentials: Credentials) -> None:
        self._mix = mix
        self._first = first
        self.checkers = Checkers(fleet.loop, mix, history)
        self.provider = SimProvider(fleet.loop, mix, stream(mix.seed, TWIN), history, self.checkers.ledger, TWIN)
        self.provider.merchant = merchant_named(TWIN, mix, fleet.loop.now_mono)
        credentials.merchants.append(self.provider.merchant)
        self.checkers.credentials = credentials
        if mix.merchants == "header":
            self.provider.share_keys_with(first.providers[0])
        if mix.money_between:  # of which it has none: an inquiry under its credential finds nothing
            self.provider.keep_payments(MoneyBook(), f"{mix.seed} {TWIN}")
        self.checkers.providers = (self.provider,)
        self.callers = Callers(fleet, mix, history, stream(mix.seed, "callers of the twin"), self.provider.merchant)
        self.checkers.called_off = self.callers.called_off
        self.merchants = MerchantChecker(mix, history, {"shop": first.ledger, TWIN: self.checkers.ledger}, credentials)
        self.callers.on_told = self._told
        intruder = Intruder(told_to_us=self.provider.merchant.told_to_us, own=self.provider.merchant)
        self._intruders = Callers(fleet, mix, history, stream(mix.seed, "intruders"), intruder)
        self._intruders.on_told = lambda wish, told: self._look(TWIN, wish, told)
        self._start, self._intrudes = fleet.loop.start, stream(mix.seed, "who intrudes")
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
        is_paid = told.definite and told.reply is not None and told.reply.outcome is Outcome.SUCCEEDED
        is_first = (told.key, told.amount) == (wish.name, wish.amount)
        if is_paid and is_first and self._mix.merchants != "many" and self._intrudes.random() < _INTRUDES:
            self._start(self._intrude(wish))

    async def _intrude(self, wish: Wish) -> None:
        """The twin repeats what the first merchant has paid, under that one's name and its own credential."""
        await self._intruders.call(replace(wish, told=[]), calmly=True)

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
