"""The checkers: what was promised, held against what is so. They share nothing with the engine; the judge is the
provider's ledger and what the callers were told. Our own journal is only asked whether anything is left lying."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from proxy.core.operation import HistoryEntry, Operation, Outcome, State
from proxy.core.reply import Problem, Reply
from proxy.sandbox.charge import Charge
from proxy.sandbox.ledger import PAYING, Entry, Kind
from proxy.upstream.target import WireRequest
from tests.simulation.callers import Told, Wish
from tests.simulation.history import History
from tests.simulation.loop import EPOCH_AT, SimLoop
from tests.simulation.network import Sent
from tests.simulation.provider import JudgedLedger, SimProvider
from tests.simulation.sidecars import Spending
from tests.simulation.swarm import Mix

WINDOW_S = 10.0  # of the retry budget
FLOOR = 10
_NOES = frozenset({Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT})
# By these a call says that it did nothing, whatever another one did.
_DID_NOTHING = frozenset(
    {Problem.NOT_SENT, Problem.GUARDED, Problem.KEY_REUSED, Problem.KEY_EXPIRED, Problem.CREDENTIAL_NOT_RECOGNISED}
)


@dataclass(frozen=True)
class _First:
    """The first send of what bears one stamp."""

    at_mono: float
    key: str | None
    request: WireRequest


class Checkers:
    def __init__(self, loop: SimLoop, mix: Mix, history: History) -> None:
        self._loop = loop
        self._mix = mix
        self._history = history
        self._firsts: dict[str, _First] = {}
        self._told_events: dict[str, list[int]] = defaultdict(list)  # versions by operation, as they first came
        self._seen_events: set[str] = set()
        self.ledger = JudgedLedger(self.line_written)
        self.providers: tuple[SimProvider, ...] = ()

    # -- as it happens

    def line_written(self, entry: Entry) -> None:
        """At most one effect of an order, of its capture, of its refund."""
        order = entry.order or "?"
        self._history.say("ledger", entry.kind, order, f"{entry.amount} {entry.id} key {entry.key}")
        if entry.kind in {Kind.VOID, Kind.REVERSAL}:
            return
        count = len(self._standing(order, entry.kind))
        if count > 1:
            self._history.violated("one effect", order, f"{count} times {entry.kind}")

    def sent(self, sent: Sent) -> None:
        """Every attempt sends the bytes of the first, under its key, and none beyond the key's window."""
        if sent.request.method != "POST" or sent.stamp is None:
            return
        first = self._firsts.get(sent.stamp)
        if first is None:
            self._firsts[sent.stamp] = _First(sent.at_mono, sent.key, sent.request)
            return
        if first.key != sent.key:
            self._history.violated("constant key", sent.about, f"first {first.key}, now {sent.key}")
        if first.request.body != sent.request.body or first.request.target != sent.request.target:
            self._history.violated("same bytes", sent.about, f"{first.request.body!r}, now {sent.request.body!r}")
        executed_at = self._executed_at(sent.stamp)
        if executed_at is None:
            return
        age_s = EPOCH_AT + sent.at_mono - executed_at
        if self._mix.contract in {"not_stored", "none"}:
            self._history.violated("no re-send in doubt", sent.about, f"executed {age_s:.1f} s ago")
        elif age_s > self._mix.window_s * 0.8 + 2.0:
            self._history.violated("no re-send past the window", sent.about, f"executed {age_s:.1f} s ago")

    def told(self, wish: Wish, told: Told) -> None:
        """Told succeeded: the effect is there, and it is the one that was asked for."""
        reply = told.reply
        if reply is None or reply.outcome is not Outcome.SUCCEEDED:
            return
        effects = self._effects(wish)
        if len(effects) != 1:
            self._history.violated("succeeded is one effect", wish.order, f"{len(effects)} effects of {wish.name}")
        elif reply.problem is None and effects[0].amount != told.amount:
            self._history.violated("the right amount", wish.order, f"{effects[0].amount} for {told.amount}")

    def event(self, request: WireRequest) -> None:
        """An event reached its sink. What is new of one operation comes in its order."""
        event = json.loads(request.body)
        if event["id"] in self._seen_events:
            return
        self._seen_events.add(event["id"])
        versions = self._told_events[event["subject"]]
        version = event["data"]["version"]
        if versions and version <= versions[-1] and not self._mix.failovers:  # what was told may be forgotten since
            about = (event["data"]["about"] or {}).get("id", "")
            self._history.violated("events in order", about, f"{version} after {versions[-1]} of {event['subject']}")
        versions.append(version)

    # -- at the end, after a quiet time

    def wishes(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            effects = self._effects(wish)
            if len(effects) > 1:
                self._history.violated("one effect", wish.order, f"{len(effects)} of {wish.name}")
            paid = [told for told in wish.told if _says(told.reply, {Outcome.SUCCEEDED})]
            if paid and not effects:
                self._history.violated("succeeded is one effect", wish.order, f"{wish.name}: the effect is gone")
            for entry in effects:
                at_mono = entry.at - EPOCH_AT
                if not any(told.began_mono <= at_mono and _may_have_paid(told) for told in wish.told):
                    detail = f"{wish.name}: every call was told that nothing came of it"
                    self._history.violated("no means none, for ever", wish.order, detail)

    def operations(
        self, operations: list[Operation], histories: dict[str, tuple[HistoryEntry, ...]], confused: set[str]
    ) -> None:
        """Nothing lost or stuck; and no doubt that was guessed away. `confused`: the stamps of what was given somebody
        else's answer, over which a person is rightly called where a webhook had shown the payment before."""
        by_stamp: dict[str, list[Operation]] = defaultdict(list)
        for operation in operations:
            by_stamp[operation.stamp].append(operation)
        for operation in operations:
            about = operation.guard.shown if operation.guard is not None else ""
            stuck = self._why_stuck(operation, histories[operation.id])
            if stuck:
                self._history.violated("nothing stuck", about, f"{operation.id} is {operation.state}: {stuck}")
            # After a rollback a person is called where two things went on at once: that is its promise.
            expected = operation.stamp in confused or bool(self._mix.failovers)
            if operation.incident is not None and not expected:
                self._history.violated("no contradiction", about, f"{operation.id}: {operation.incident}")
            if operation.kind.pays:
                self._compare(operation, by_stamp[operation.stamp], about)

    def nobody_left_lying(self, operations: list[Operation], now: float) -> None:
        """After a quiet time, and before anybody asks again: what a dead holder left was taken up."""
        for operation in operations:
            if operation.lease is not None and operation.lease.until_at < now - WINDOW_S:
                about = operation.guard.shown if operation.guard is not None else ""
                self._history.violated("nothing stuck", about, f"{operation.id} is {operation.state}, its holder gone")

    def _compare(self, operation: Operation, sharing: list[Operation], about: str) -> None:
        effects = self._effects_of_stamp(operation.stamp)
        if operation.state is State.SUCCEEDED and not effects:
            self._history.violated("doubt not guessed away", about, f"{operation.id} succeeded without an effect")
        others = [other for other in sharing if other.id != operation.id and other.state is not State.FAILED]
        if operation.state is State.FAILED and effects and not others:
            self._history.violated("doubt not guessed away", about, f"{operation.id} failed and had its effect")

    def _why_stuck(self, operation: Operation, history: tuple[HistoryEntry, ...]) -> str:
        state, asks = operation.state, self._mix.asks
        if state.ended or operation.incident is not None:
            return ""
        if state in {State.PREPARED, State.SENDING, State.BACKOFF}:
            return "nobody carries it"
        if state is State.REQUIRES_ACTION:
            return ""  # the customer's to end
        if state is State.REQUIRES_REVIEW:
            ambiguous = any("several" in entry.finding.detail for entry in history if entry.finding is not None)
            return "it could have been asked about" if asks and not ambiguous else ""
        if operation.due_at is None and operation.lease is None:
            return "nobody will ever look at it"
        return "it could have been found out by now" if asks else ""

    def events_delivered(self, told: list[tuple[str, str]]) -> None:
        for event_id, about in told:
            if event_id not in self._seen_events:
                self._history.violated("every event delivered", about, event_id)

    def budget(self, spending: Spending) -> None:
        """Nothing is sent that was not counted, and retries stay under the budget: in two windows of it no more than
        twice its floor, or twice the first attempts of those windows and the one before."""
        counted = len(spending.firsts) + len(spending.grants) + spending.repeats
        if spending.sends > counted:
            self._history.violated("budget", "", f"{spending.sends} sends, of which {counted} were counted")
        begin = firsts_begin = firsts_end = 0
        cost = 0
        for at, price in spending.grants:
            cost += price
            while spending.grants[begin][0] < at - WINDOW_S:
                cost -= spending.grants[begin][1]
                begin += 1
            while firsts_end < len(spending.firsts) and spending.firsts[firsts_end] <= at:
                firsts_end += 1
            while firsts_begin < firsts_end and spending.firsts[firsts_begin] < at - 3 * WINDOW_S:
                firsts_begin += 1
            if cost > 2 * max(FLOOR, firsts_end - firsts_begin):
                detail = f"{cost} spent in {WINDOW_S} s, over {firsts_end - firsts_begin} first attempts"
                self._history.violated("budget", "", detail)
                return

    def retries(self, spending: Spending, wishes: list[Wish], operations: list[Operation]) -> None:
        """A call may send once by itself. Everything beyond that was granted."""
        granted: Counter[str] = Counter()
        for value, order in {(one.guard.value, one.guard.shown) for one in operations if one.guard is not None}:
            granted[order] += spending.grants_of[value]
        for wish in wishes:
            allowed = len(wish.told) + granted[wish.order]
            if wish.pays and spending.sends_of[wish.name] > allowed:
                detail = f"{spending.sends_of[wish.name]} sends, {len(wish.told)} calls, {granted[wish.order]} grants"
                self._history.violated("budget", wish.order, detail)

    # -- what is so

    def _effects(self, wish: Wish) -> list[Entry]:
        if wish.pays:
            return self._standing(wish.order, Kind.CHARGE)
        return self._standing(wish.order, Kind.CAPTURE if wish.kind == "capture" else Kind.REFUND)

    def _standing(self, order: str, kind: Kind) -> list[Entry]:
        """The effects of an order that were not taken back."""
        entries = self.ledger.find(order=order)
        voided = {entry.charge for entry in entries if entry.kind is Kind.VOID}
        kinds = PAYING if kind in PAYING else {kind}
        return [entry for entry in entries if entry.kind in kinds and entry.charge not in voided]

    def _charges_of(self, stamp: str) -> list[Charge]:
        label = ("metadata.paywitness", stamp)
        return [charge for provider in self.providers for charge in provider.bank._charges._by_label.get(label, [])]

    def _executed_at(self, stamp: str) -> float | None:
        return next((charge.created_at for charge in self._charges_of(stamp)), None)

    def _effects_of_stamp(self, stamp: str) -> list[Entry]:
        found = []
        for charge in self._charges_of(stamp):
            entries = self.ledger.find(charge=charge.id)
            if not any(entry.kind is Kind.VOID for entry in entries):
                found += [entry for entry in entries if entry.kind in PAYING]
        return found


def _says(reply: Reply | None, outcomes: set[Outcome]) -> bool:
    return reply is not None and reply.outcome in outcomes and reply.problem not in _DID_NOTHING


def _may_have_paid(told: Told) -> bool:
    """Whether the call left it open, or said yes. Else nothing was ever to come of it."""
    reply = told.reply
    if reply is None:
        return True
    return reply.problem not in _DID_NOTHING and reply.outcome not in _NOES
