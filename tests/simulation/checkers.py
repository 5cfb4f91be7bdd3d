"""The checkers: what was promised, held against what is so. They share nothing with the engine; the judge is the
provider's ledger and what the callers were told. Our own journal is only asked whether anything is left lying."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from paywitness.core.identity import intent_label
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import AnnouncementKind, HistoryEntry, Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import OperationKind as OperationKind
from paywitness.core.reply import Reply
from paywitness.core.result import ResultClass
from paywitness.upstream.request import WireRequest
from paywitness_sandbox.bank.ledger import PAYING, EntryKind, LedgerEntry
from paywitness_sandbox.bank.objects import Charge, ChargeStatus, Payout, PayoutStatus
from tests.simulation.callers import Told, Wish
from tests.simulation.guard_checkers import GuardChecker, Paid
from tests.simulation.history import History
from tests.simulation.loop import EPOCH_AT, SimLoop
from tests.simulation.merchants import Credentials
from tests.simulation.money_checkers import MoneyCheckers, is_of_payments
from tests.simulation.network import Sent
from tests.simulation.provider import JudgedLedger, SimProvider
from tests.simulation.sidecars import Spending
from tests.simulation.swarm import GATEWAYS, Mix

WINDOW_S = 10.0  # of the retry budget
FLOOR = 100  # retries in a window
SETTLED_S = 60.0  # nothing is worked on for so long
FREE_WISHES_MAX = 20  # that are paid once more in the end
ENOUGH_TO_JUDGE = 20  # wishes
PAID_LEAST = 0.05  # of them; where the only sidecar is away for most of a short world, it was 0.18
_OPEN_AT_PROVIDER = frozenset({ChargeStatus.PROCESSING, ChargeStatus.REQUIRES_ACTION, PayoutStatus.PENDING})
_NOES = frozenset({Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT, Outcome.ABSENT})
_GIVES_BACK = frozenset({EntryKind.VOID, EntryKind.REFUND, EntryKind.REVERSAL})
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


# What a store that forgets may call a person for. The numbers of a payment are unknown then: totals that the provider
# shows and movements that are put back may count one movement twice.
_AFTER_ROLLBACK = frozenset({IncidentKind.JOURNAL_ROLLBACK, IncidentKind.NEGATIVE_REMAINDER})


class Checkers:
    def __init__(self, loop: SimLoop, mix: Mix, history: History) -> None:
        self._loop = loop
        self._mix = mix
        self._history = history
        self._firsts: dict[str, _First] = {}
        self._lasts: dict[str, float] = {}  # when it was last sent, by stamp
        self._told_events: dict[str, list[int]] = defaultdict(list)  # versions by operation, as they first came
        self._seen_events: set[str] = set()
        self.ledger = JudgedLedger(self.line_written)
        self.providers: tuple[SimProvider, ...] = ()
        self.called_off: set[str] = set()  # charges that somebody wants voided
        self.credentials: Credentials | None = None
        self.guards = GuardChecker(history)
        self._indistinct: frozenset[str] = frozenset()  # operations that no object tells apart
        # By charges: from when to when the journal has them as waiting for their customers.
        self.waits_mono: dict[str, tuple[float, float]] = {}
        self.money: MoneyCheckers | None = None  # of the money between operations, in worlds that have it

    # -- as it happens

    def line_written(self, entry: LedgerEntry) -> None:
        """At most one effect of an order, of its capture, of its refund."""
        order = entry.order or "?"
        self._history.say("ledger", entry.kind, order, (entry.amount, entry.id, "key", entry.key))
        if (
            entry.kind is EntryKind.VOID
            and len([one for one in self._of(entry.charge) if one.kind is EntryKind.VOID]) > 1
        ):
            self._history.violated("one effect", order, f"{entry.charge} is voided twice")
        if entry.kind in {EntryKind.VOID, EntryKind.REVERSAL}:
            return
        count = len(self._standing(order, entry.kind))
        if count > 1:
            self._history.violated("one effect", order, f"{count} times {entry.kind}")

    def sent(self, sent: Sent) -> None:
        """Every attempt sends the bytes of the first, under its key, and none beyond the key's window."""
        if sent.request.method != "POST" or sent.stamp is None:
            return
        self._lasts[sent.stamp] = sent.at_mono
        if self.money is not None:
            self.money.sent(sent)
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
        if told.says_not_sent and wish.pays and told.told_mono is not None:
            self.guards.told_not_sent(wish.order, told.began_mono, told.told_mono, f"{wish.name}, key {told.key}")
            self.guards.told_without_effect(
                reply.operation_id if reply else None, wish.order, f"{wish.name} ({told.key})"
            )
        if reply is None or reply.outcome is not Outcome.SUCCEEDED:
            return
        effects = self._effects(wish)
        if len(effects) != 1:
            self._history.violated("succeeded is one effect", wish.order, f"{len(effects)} effects of {wish.name}")
        elif reply.problem is None and wish.kind != "void" and effects[0].amount != told.amount:  # a void names none
            self._history.violated("the right amount", wish.order, f"{effects[0].amount} for {told.amount}")
        if reply.problem is None and b'"order_id"' in reply.body and wish.order_member not in reply.body:
            self._history.violated("nobody else's answer", wish.order, reply.body.decode("utf-8", "replace"))

    def event(self, request: WireRequest) -> None:
        """An event reached its sink. What is new of one operation comes in its order."""
        event = json.loads(request.body)
        if event["id"] in self._seen_events:
            return
        self._seen_events.add(event["id"])
        of_payout = ":payout" * event["type"].startswith("paywitness.payout.")  # a change may tell two events
        versions = self._told_events[event["subject"] + of_payout]
        version = event["data"]["version"]
        if versions and version <= versions[-1] and not self._mix.failovers:  # what was told may be forgotten since
            about = (event["data"]["about"] or {}).get("id", "")
            self._history.violated("events in order", about, f"{version} after {versions[-1]} of {event['subject']}")
        versions.append(version)

    # -- at the end, after a quiet time

    def wishes(self, wishes: list[Wish]) -> None:
        self.guards.judge(self._payments_of)
        paid_in_all = sum(1 for wish in wishes if self._effects(wish))
        shared = self._mix.merchants == "owners"  # an account is its first owner's, and everybody else is refused
        if len(wishes) >= ENOUGH_TO_JUDGE and paid_in_all < PAID_LEAST * len(wishes) and not shared:
            self._history.violated("somebody is paid", "", f"{paid_in_all} of {len(wishes)} wishes came true")
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

    def came_back(self, wish: Wish, sends: int) -> None:
        """After the retention, under the one key it ever had: it is told so, and nothing is sent. A key under which
        nothing was ever sent is not known; if another key has paid the order, it is told that."""
        reply = wish.told[-1].reply
        never_sent = all(told.reply is not None and told.reply.problem is Problem.NOT_SENT for told in wish.told[:-1])
        allowed = {Problem.KEY_EXPIRED, Problem.JOURNAL_UNAVAILABLE, *([Problem.GUARDED] if never_sent else [])}
        if sends:
            self._history.violated("an old key is not executed", wish.order, f"{sends} more sends")
        elif reply is not None and reply.problem not in allowed:
            self._history.violated("an old key is not executed", wish.order, f"told {reply.outcome} {reply.problem}")

    def operations(
        self, operations: list[Operation], histories: dict[str, tuple[HistoryEntry, ...]], confused: set[str]
    ) -> None:
        """Nothing lost or stuck; and no doubt that was guessed away. `confused`: the stamps of what was given somebody
        else's answer, over which a person is rightly called where a webhook had shown the payment before."""
        by_stamp: dict[str, list[Operation]] = defaultdict(list)
        self._indistinct = self._indistinct_of(operations)
        for operation in operations:
            by_stamp[operation.stamp].append(operation)
        for operation in operations:
            about = operation.guard.label if operation.guard is not None else ""
            stuck = self._why_stuck(operation)
            if stuck:
                self._history.violated("nothing stuck", about, f"{operation.id} is {operation.state}: {stuck}")
            # After a rollback a person is called where two things went on at once: that is its promise.
            rolled_back = bool(self._mix.failovers) and operation.incident in _AFTER_ROLLBACK
            gone = bool(self._mix.odd_statuses) and operation.incident == IncidentKind.REFERENCE_NOT_FOUND
            expected = operation.stamp in confused or rolled_back or gone or self._may_be_taken_for_copy(operation)
            money = self.money if self.money is not None and is_of_payments(operation) else None
            if money is not None:
                expected = expected or money.expects_incident(operation)
                about = money.order_of(operation)
                money.compare(operation, by_stamp[operation.stamp])
            if operation.incident is not None and not expected:
                self._history.violated("no contradiction", about, f"{operation.id}: {operation.incident}")
            if money is not None:
                continue
            if operation.kind.pays or operation.kind is OperationKind.PAYOUT:
                self._compare(operation, by_stamp[operation.stamp], about)

    def nobody_left_lying(self, operations: list[Operation], now: float) -> None:
        """After a quiet time, and before anybody asks again: what a dead holder left was taken up, and what evidence
        could end was ended by itself."""
        self._indistinct = self._indistinct_of(operations)
        for operation in operations:
            about = operation.guard.label if operation.guard is not None else ""
            if operation.lease is not None and operation.lease.until_at < now - WINDOW_S:
                self._history.violated("nothing stuck", about, f"{operation.id} is {operation.state}, its holder gone")
            elif stuck := self._why_stuck(operation):
                detail = f"{operation.id} is {operation.state} after a quiet time: {stuck}"
                self._history.violated("nothing stuck", about, detail)

    def _compare(self, operation: Operation, sharing: list[Operation], about: str) -> None:
        effects = self._effects_of_stamp(operation.stamp)
        if operation.state is State.SUCCEEDED and not effects:
            self._history.violated("doubt not guessed away", about, f"{operation.id} succeeded without an effect")
        others = [other for other in sharing if other.id != operation.id and other.state is not State.FAILED]
        if operation.state is State.FAILED and effects and not others:
            self._history.violated("doubt not guessed away", about, f"{operation.id} failed and had its effect")

    def truth_about(self, operation: Operation, now: float) -> bool | None:
        """Whether an operation is paid, by the books; None while a request may arrive or be worked on, or where it is
        not told by its stamp."""
        first = self._firsts.get(operation.stamp)
        if first is not None and self.money is not None and is_of_payments(operation):
            settled = now - EPOCH_AT - self._lasts[operation.stamp] > SETTLED_S
            return self.money.truth_about(operation, settled=settled)
        if first is None or not (operation.kind.pays or operation.kind is OperationKind.PAYOUT):
            return None
        made = self._made_by(operation.stamp)
        if any(one.status in _OPEN_AT_PROVIDER for one in made):
            return None
        if self._effects_of_stamp(operation.stamp):
            return True
        settled = now - EPOCH_AT - self._lasts[operation.stamp] > SETTLED_S
        return False if settled else None

    def name_of(self, operation: Operation) -> str | None:
        """The name of the one thing that the operation made, for a person who says that it succeeded."""
        if self.money is not None and is_of_payments(operation):
            return self.money.name_of(operation)
        made = [one.id for one in self._made_by(operation.stamp)]
        return made[0] if len(made) == 1 else None

    def _why_stuck(self, operation: Operation) -> str:
        """An incident is a person's, and is judged by itself: whether it was called for. So is what the provider has
        several of."""
        state, asks = operation.state, self._mix.asks
        if state.ended or operation.incident is not None:
            return ""
        if state in {State.PREPARED, State.SENDING, State.BACKOFF}:
            return "nobody carries it"
        made = self._made_by(operation.stamp)
        if state is State.REQUIRES_ACTION:
            acted = bool(made) and not any(one.status in _OPEN_AT_PROVIDER for one in made)
            return "its customer has acted" if asks and acted and not self._unreachable(operation) else ""
        if state is State.REQUIRES_REVIEW:
            could_be_told = asks and len(made) < 2 and not self._unreachable(operation)
            return "it could have been asked about" if could_be_told and operation.id not in self._indistinct else ""
        if operation.due_at is None and operation.lease is None:
            return "nobody will ever look at it"
        mostly_misled = self._mix.stale_looks > 0.5 and any(name in self._mix.faults for name in GATEWAYS)
        if mostly_misled and state is State.PENDING:
            return ""  # gateways answer, else a replica that lags: the next look comes, and nothing moves meanwhile
        could_be_told = asks and not self._unreachable(operation) and operation.id not in self._indistinct
        return "it could have been found out by now" if could_be_told else ""

    def _indistinct_of(self, operations: list[Operation]) -> frozenset[str]:
        """Those in doubt beside others on the same object. Only a store that forgets lets two be sent at once; then the
        object does not tell which of them moved it, and a person is called."""
        in_doubt: dict[tuple[str, str], list[str]] = defaultdict(list)
        for operation in operations if self._mix.failovers else ():
            if operation.acts_on and operation.state.in_doubt:
                in_doubt[operation.account, operation.acts_on].append(operation.id)
        return frozenset(one for several in in_doubt.values() if len(several) > 1 for one in several)

    def _unreachable(self, operation: Operation) -> bool:
        """Whether no credential that may read is known to be of the account. If the one that made it may not read, and
        gateways, replicas that lag or strange objects answer in between, ten looks may be too few to find out."""
        if self.credentials is None:
            return False
        mix = self._mix
        is_disturbed = mix.stale_looks > 0 or mix.foreign_objects > 0 or any(name in mix.faults for name in GATEWAYS)
        return self.credentials.is_out_of_reach(operation) or (is_disturbed and self.credentials.is_unread(operation))

    def _may_be_taken_for_copy(self, operation: Operation) -> bool:
        """Whether nobody can tell the event of a copy, which bears our stamp, from one of its own: it ended without the
        provider's name for it (an operator found it, or it was absent and its stamp was sent once more), or it is a
        refund, of which these policies compare no amount. A second refund of that stamp may be a second execution, so
        a person is rightly called."""
        if not self._mix.copied_events:
            return False
        if operation.incident == IncidentKind.TWO_REFERENCES and operation.kind is OperationKind.REFUND:
            return True
        if operation.result_class is ResultClass.ABSENT:
            return operation.incident == IncidentKind.SUCCESS_AFTER_FAILURE
        return operation.because == "operator_found_success" and operation.incident == IncidentKind.ANOTHER_AMOUNT

    def _has_stored_error(self, operation: Operation) -> bool:
        """Whether the provider answers every attempt under its key with the 500 that it has stored."""
        return any(operation.provider_key in provider.stored_errors for provider in self.providers)

    def told_in_the_end(self, wishes: list[Wish], operations: list[Operation]) -> None:
        """Whoever asks once more when all is well is not told that nobody knows, if somebody can be asked."""
        contradicted = {
            one.guard.label
            for one in operations
            if one.guard is not None
            and (one.incident is not None or (one.doubt and (self._unreachable(one) or self._has_stored_error(one))))
        }
        for wish in wishes if self._mix.asks and not self._mix.failovers else ():
            reply = wish.told[-1].reply
            if reply is not None and reply.problem is Problem.UNKNOWN and intent_label(wish.order) not in contradicted:
                self._history.violated("everybody is told in the end", wish.order, f"{wish.name} is told 504")

    def free_wishes(self, wishes: list[Wish], operations: list[Operation]) -> list[Wish]:
        """Payments of orders of which nothing stands at the provider and nothing is open with us."""
        held = {one.guard.label for one in operations if one.guard is not None and _holds(one)}
        free = [
            wish
            for wish in wishes
            if wish.pays and intent_label(wish.order) not in held and not self.ledger.named("order", wish.order)
        ]
        return free[:FREE_WISHES_MAX]

    def paid_once_more(self, wish: Wish, told: Told) -> None:
        if told.reply is not None and told.reply.problem in {Problem.GUARDED, Problem.REFUNDED, Problem.UNKNOWN}:
            detail = f"{told.key} is refused: {told.reply.body[:200].decode('utf-8', 'replace')}"
            self._history.violated("a free order can be paid", wish.order, detail)

    def events_delivered(self, told: list[tuple[str, str]]) -> None:
        for event_id, about in told:
            if event_id not in self._seen_events:
                self._history.violated("every event delivered", about, event_id)

    def told_once(self, operations: list[Operation], histories: dict[str, tuple[HistoryEntry, ...]]) -> None:
        """That it ended: whoever reads it delivers the goods. An event that comes twice is none."""
        for operation in operations:
            ends = [
                entry
                for entry in histories[operation.id]
                if entry.announcement and AnnouncementKind.ENDED in entry.announcement.kinds
            ]
            if len(ends) > 1:
                about = operation.guard.label if operation.guard is not None else ""
                self._history.violated("an end is told once", about, f"{operation.id}: {len(ends)} times")

    def budget(self, spending: Spending) -> None:
        """Nothing is sent that was not counted, and retries stay under the budget: in two windows of it no more than
        twice the floor of the provider, or twice the first attempts of those windows and the one
        before."""
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
        for value, order in {(one.guard.value, one.guard.label) for one in operations if one.guard is not None}:
            granted[order] += spending.grants_of[value]
        for wish in wishes:
            grants = granted[intent_label(wish.order)]
            allowed = len(wish.told) + grants
            if wish.pays and spending.sends_of[wish.name] > allowed:
                detail = f"{spending.sends_of[wish.name]} sends, {len(wish.told)} calls, {grants} grants"
                self._history.violated("budget", wish.order, detail)

    # -- what is so

    def _effects(self, wish: Wish) -> list[LedgerEntry]:
        if wish.kind == "void":
            return [entry for entry in self._of(wish.charge) if entry.kind is EntryKind.VOID]
        return self._standing(wish.order, EntryKind.CHARGE if wish.pays else EntryKind(wish.kind))

    def _standing(self, order: str, kind: EntryKind) -> list[LedgerEntry]:
        """The effects of an order that the provider did not take back by itself."""
        entries = self.ledger.named("order", order)
        if len(entries) == 1:  # nothing was taken back
            return entries if entries[0].kind is kind or (kind in PAYING and entries[0].kind in PAYING) else []
        voided = [entry.charge for entry in entries if self._is_taken_back(entry)]
        kinds = PAYING if kind in PAYING else (kind,)
        return [entry for entry in entries if entry.kind in kinds and entry.charge not in voided]

    def _payments_of(self, order: str) -> list[Paid]:
        """Of an order, by whichever request."""
        sent_mono = {name: at for provider in self.providers for name, at in provider.sent_mono.items()}
        paid = []
        for entry in self.ledger.named("order", order):
            if entry.kind in PAYING and entry.charge in sent_mono:
                back = [one.at - EPOCH_AT for one in self._of(entry.charge) if one.kind in _GIVES_BACK]
                waits_mono = self.waits_mono.get(entry.charge, (math.inf, math.inf))
                paid.append(Paid(entry.charge, sent_mono[entry.charge], min(back, default=math.inf), waits_mono))
        return paid

    def _of(self, charge: str) -> list[LedgerEntry]:
        return self.ledger.named("charge", charge)

    def _is_taken_back(self, entry: LedgerEntry) -> bool:
        return entry.kind is EntryKind.VOID and entry.charge not in self.called_off

    def _made_by(self, stamp: str) -> list[Charge | Payout]:
        return [made for provider in self.providers for made in provider.made_by(stamp)]

    def _executed_at(self, stamp: str) -> float | None:
        found = (provider.executed_at(stamp) for provider in self.providers)
        return next((at for at in found if at is not None), None)

    def _effects_of_stamp(self, stamp: str) -> list[LedgerEntry]:
        found = []
        for made in self._made_by(stamp):
            entries = self._of(made.id)
            if not any(self._is_taken_back(entry) for entry in entries):
                found += [entry for entry in entries if entry.kind in PAYING or entry.kind is EntryKind.PAYOUT]
        return found


def _holds(operation: Operation) -> bool:
    return not operation.state.ended or operation.incident is not None or operation.lease is not None


def _says(reply: Reply | None, outcomes: set[Outcome]) -> bool:
    return reply is not None and reply.outcome in outcomes and reply.problem not in _DID_NOTHING


def _may_have_paid(told: Told) -> bool:
    """Whether the call left it open, or said yes. Else nothing was ever to come of it."""
    reply = told.reply
    if reply is None:
        return True
    if told.no_journal:
        return False
    return reply.problem not in _DID_NOTHING and reply.outcome not in _NOES
