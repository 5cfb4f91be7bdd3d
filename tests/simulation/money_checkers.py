"""The checkers of the money between operations: what was promised of captures, voids, refunds, payouts and steps, held
against the provider's money book and against what the shops were told.

| promise | broken when |
|---|---|
| one effect for one movement | what a shop means once is in the book twice, under whatever keys it asks |
| captured within authorised | more is captured, though the shop did not ask for more, or limits are enforced |
| refunded within captured | likewise |
| no void beside a capture | a void reaches the provider while it works on a capture of the same payment |
| one transfer per reference | a second transfer of a reference whose first has not bounced |
| a success has its own line | a movement is told as done, and its line is missing, or another one's |
| a success stands | a payment is told as made that had been given back, or released, before its key came |
| an order is paid once | a second payment is made while another one of that order stands |
| a paid order is remembered | likewise, or a second transfer, after its operations were retired |
| no means none, for ever | there is a line though every call that could have made it was told no |
| doubt not guessed away | an operation stands as failed and has its line, or as succeeded without one |
| a free order can be paid | nothing of an order stands, nothing is open and no incident, and it is refused |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.result import ResultClass
from tests.simulation.callers import Told
from tests.simulation.guard_checkers import GuardChecker, Paid
from tests.simulation.history import History
from tests.simulation.loop import EPOCH_AT
from tests.simulation.network import Sent
from tests.simulation.orders import Asked, Order, Shop
from tests.simulation.payment_policy import OPERATIONS
from tests.simulation.payments import BROWSER, DASHBOARD, US, LineKind, MoneyBook, MoneyLine, Payment
from tests.simulation.provider import SimProvider
from tests.simulation.swarm import Mix

FREE_ORDERS_MAX = 20  # that are paid once more in the end
PAID_ORDERS_MAX = 10  # that somebody comes back for after the retention
_LINES = {
    "pay": LineKind.AUTHORISED,
    "confirm": LineKind.AUTHORISED,
    "capture": LineKind.CAPTURED,
    "refund": LineKind.REFUNDED,
    "void": LineKind.RELEASED,
    "payout": LineKind.TRANSFERRED,
}
_MOVES = {LineKind.CAPTURED: "capture", LineKind.REFUNDED: "refund"}
_TAKES_BACK = (LineKind.RETURNED, LineKind.BOUNCED)
# By these a call says that it did nothing, as far as this release has them.
DID_NOTHING = frozenset(
    problem
    for problem in Problem
    if problem
    in {
        *("not-sent", "guarded", "key-reused", "key-expired", "credential-not-recognised"),
        *("exceeds-remaining", "refunded", "absent", "approval-needed", "upgrading"),
    }
)
_OF_A_SPOOLED_DECLINE = frozenset({IncidentKind.FAILURE_AFTER_SUCCESS, IncidentKind.SUCCESS_AFTER_FAILURE})
_REFUSALS = frozenset({Problem.GUARDED, Problem.REFUNDED})  # the call is never equal to an earlier one


def is_of_payments(operation: Operation) -> bool:
    """Whether it is one of those that these checkers judge."""
    return operation.operation in OPERATIONS


class MoneyCheckers:
    def __init__(
        self, mix: Mix, history: History, book: MoneyBook, shop: Shop, providers: tuple[SimProvider, ...]
    ) -> None:
        self._mix = mix
        self._history = history
        self._book = book
        self._shop = shop
        self._providers = providers
        self.guards = GuardChecker(history)
        self._order_of_stamp: dict[str, str] = {}
        self._found_paid: set[str] = set()  # payments on which a confirm of ours was refused
        self.is_long_after = False  # the operations are retired
        self.has_numbers_of: Callable[[str], bool] = lambda payment: True  # whether the journal knows what it may move
        book.look = self.line_written
        shop.on_told = self.told
        shop.on_safe = self.guards.told_safe
        for provider in providers:
            provider.on_void_beside = self.void_beside

    # -- as it happens

    def sent(self, sent: Sent) -> None:
        asked = self._shop.asked.get(sent.about)
        if asked is not None and sent.stamp is not None:
            self._order_of_stamp[sent.stamp] = asked.order

    def is_cancel(self, sent: Sent) -> bool:
        """Whether an operator's wish is carried out: a void that no shop asked for."""
        asked = self._shop.asked.get(sent.about)
        return sent.request.target.endswith(b"/void") and (asked is None or asked.kind != "void")

    def line_written(self, line: MoneyLine) -> None:
        detail = (line.amount, line.id, "of", line.payment, "by", line.movement or line.by)
        self._history.say("book", line.kind, line.order, detail)
        if line.by != US:
            return
        match line.kind:
            case LineKind.AUTHORISED:
                self._paid_once(line)
            case LineKind.TRANSFERRED:
                self._transferred_once(line)
            case LineKind.CAPTURED | LineKind.REFUNDED:
                payment = self._book.payments[line.payment]
                if line.id != payment.id:  # a sale is captured by itself
                    self._moved_once(line)
                    self._within_limit(line, payment)
            case LineKind.RELEASED:
                self._moved_once(line)

    def void_beside(self, void: str, capture: str) -> None:
        """A void reaches the provider while a capture of the same payment is being worked on."""
        asked = self._shop.asked.get(void)
        if asked is not None and not self._mix.failovers:  # a store may have forgotten the capture
            self._history.violated("no void beside a capture", asked.order, f"{void} beside {capture}")

    def _paid_once(self, line: MoneyLine) -> None:
        """A second payment of an order needs that nothing of the first stands. What came back afterwards is nobody's
        doing; what a browser paid counts once a confirm of ours was refused over it."""
        if self._book.of(line.order, LineKind.RETURNED):
            return
        for other in self._book.payments_of(line.order):
            past_us = other.confirmed_by is not None and other.confirmed_by.by == BROWSER
            if other.id == line.payment or not other.stands or (past_us and other.id not in self._found_paid):
                continue
            promise = "a paid order is remembered" if self.is_long_after else "an order is paid once"
            self._history.violated(promise, line.order, f"{line.payment} while {other.id} stands")

    def _transferred_once(self, line: MoneyLine) -> None:
        bounced = {other.id for other in self._book.of(line.order, LineKind.BOUNCED)}
        standing = [one for one in self._book.of(line.order, LineKind.TRANSFERRED) if one.id not in bounced]
        if len(standing) > 1:
            detail = ", ".join(f"{one.amount} by {one.movement}" for one in standing)
            promise = "a paid order is remembered" if self.is_long_after else "one transfer per reference"
            self._history.violated(promise, line.order, detail)

    def _moved_once(self, line: MoneyLine) -> None:
        """What is meant once is done once, under whatever keys."""
        asked = self._shop.asked.get(line.movement)
        if asked is None:
            return
        back = {one.id for one in self._book.of(line.order, LineKind.RETURNED)}
        lines = [one for one in self._lines_of(asked) if one.id not in back]
        kin = self._kin(asked)
        meant = {one.meant for one in kin if one.told}
        by_one_key = sum(one.movement == line.movement for one in lines) > 1
        if by_one_key or (len(lines) > len(meant) and not self._may_be_taken_for_new(kin)):
            detail = ", ".join(f"{one.amount} by {one.movement}" for one in lines)
            self._history.violated("one effect for one movement", line.order, detail)

    def _within_limit(self, line: MoneyLine, payment: Payment) -> None:
        captures = line.kind is LineKind.CAPTURED
        is_over = payment.captured > payment.authorised if captures else self._refunded(payment) > payment.captured
        if not is_over:
            return
        order = self._shop.orders[payment.order]
        asked = [one for one in order.asked if one.payment in {payment.id, payment.charge}]
        if not captures and any(one.kind == "capture" and one.answer() is None for one in asked):
            return  # what may have been captured may be refunded
        kind = _MOVES[line.kind]
        moves = [one for one in asked if one.kind == kind and one.told]
        wanted = {
            one.name if self._may_be_taken_for_new([kin for kin in moves if kin.meant == one.meant]) else one.meant: (
                one.amount
            )
            for one in moves
        }
        has = payment.authorised if captures else payment.captured
        by_a_browser = payment.confirmed_by is not None and payment.confirmed_by.by == BROWSER
        is_bound = self._mix.enforces and not by_a_browser and self.has_numbers_of(payment.id)
        if sum(wanted.values()) > has and not is_bound:
            return
        promise = "captured within authorised" if captures else "refunded within captured"
        moved = payment.captured if captures else self._refunded(payment)
        self._history.violated(promise, line.order, f"{moved} of {has}, where {sum(wanted.values())} was asked for")

    def _refunded(self, payment: Payment) -> int:
        """By us: what a dashboard refunded beside it is not our doing."""
        lines = [line for line in self._book.of(payment.order, LineKind.REFUNDED) if line.payment == payment.id]
        back = {line.id for line in self._book.of(payment.order, LineKind.RETURNED)}
        return sum(line.amount for line in lines if line.by == US and line.id not in back)

    # -- what is told

    def told(self, asked: Asked, told: Told) -> None:
        reply = told.reply
        if told.says_not_sent and asked.pays and told.told_mono is not None:
            self.guards.told_not_sent(asked.order, told.began_mono, told.told_mono, asked.name)
        if reply is None or reply.problem not in {None, Problem.CLOSED_WITHOUT_RESPONSE}:
            return
        if asked.kind == "confirm" and reply.outcome is Outcome.FAILED and reply.status_code == 409:
            self._found_paid.add(asked.payment)
        if reply.outcome is not Outcome.SUCCEEDED:
            return
        if asked.kind == "payout":
            lines = self._book.of(asked.order, LineKind.TRANSFERRED)
            if not any(line.amount == asked.amount for line in lines):
                self._history.violated("a success has its own line", asked.order, f"{asked.name}: none of its amount")
        elif asked.moves:
            self._has_its_line(asked)
        elif asked.pays:
            self._stands(asked)

    def _has_its_line(self, asked: Asked) -> None:
        """Its own; or, under a fresh key, that of an equal call whose answer nobody else was told."""
        lines = self._lines_of(asked)
        if any(line.movement == asked.name for line in lines):
            if asked.kind != "void" and lines[0].amount != asked.amount:
                self._history.violated("the right amount", asked.order, f"{lines[0].amount} for {asked.amount}")
            return
        told = [one.name for one in self._kin(asked) if one.succeeded and not self._took_a_reply(one, lines)]
        if not lines or (len(told) > len(lines) and not any(one.lost for kin in self._kin(asked) for one in kin.told)):
            detail = f"{asked.name} is told as done: {len(lines)} lines, {len(told)} of its keys were told so"
            self._history.violated("a success has its own line", asked.order, detail)

    def _took_a_reply(self, asked: Asked, lines: list[MoneyLine]) -> bool:
        """Whether it got the reply of an equal call that was left in doubt before it came, and whose key came back
        later: one line, and two keys that may mean the same movement."""
        taken = asked.answer()
        if taken is None or taken.reply is None or any(line.movement == asked.name for line in lines):
            return False
        for line in lines:
            first = self._shop.asked[line.movement]
            back = first.answer()
            same = back is not None and back.reply is not None and back.reply.operation_id == taken.reply.operation_id
            if back is None or not same or not taken.reply.operation_id:
                continue
            before = (told for told in first.told if told is not back and not told.says_not_sent)
            in_doubt = (told.told_mono for told in before if told.told_mono is not None)
            if back.began_mono > taken.began_mono and any(at_mono <= taken.began_mono for at_mono in in_doubt):
                return True
        return False

    def _stands(self, asked: Asked) -> None:
        """A payment that is told under another key than made it had not been given back when that key first came: from
        then on it may stand for the payment, and is told what became of it."""
        lines = self._book.of(asked.order, LineKind.AUTHORISED)
        if any(line.movement == asked.name for line in lines):
            return
        began_at = asked.told[0].began_mono + EPOCH_AT
        for line in lines:
            payment = self._book.payments[line.payment]
            fits = asked.payment in {"", payment.id} and payment.amount == asked.amount
            free = payment.freed_at is not None and payment.freed_at < began_at and self._is_told_free(payment)
            if fits and not free:
                return
        detail = f"{asked.name} is told as paid, by {len(lines)} payments that do not stand"
        self._history.violated("a success stands", asked.order, detail)

    def _is_told_free(self, payment: Payment) -> bool:
        """Whether somebody was told of each refund and void of it that it is done: then we know it too."""
        lines = self._book.of(payment.order, LineKind.REFUNDED, LineKind.RELEASED)
        asked = [self._shop.asked.get(line.movement) for line in lines if line.payment == payment.id]
        return all(one is not None and any(kin.succeeded for kin in self._kin(one)) for one in asked)

    # -- at the end

    def payments_of(self, order: str) -> list[Paid]:
        """What we made of it: what a browser paid is not our word."""
        paid = []
        for line in self._book.of(order, LineKind.AUTHORISED):
            sent_mono = [one.sent_mono[line.payment] for one in self._providers if line.payment in one.sent_mono]
            if line.by == US and sent_mono:
                freed_at = [
                    one.at
                    for one in self._book.of(order, LineKind.REFUNDED, LineKind.RELEASED)
                    if one.payment == line.payment
                ]
                freed_mono = min(freed_at, default=math.inf) - EPOCH_AT
                paid.append(Paid(line.payment, sent_mono[0], freed_mono))
        return paid

    def judge(self) -> None:
        self.guards.judge(self.payments_of)
        back = {line.id for line in self._book.lines if line.kind in _TAKES_BACK}
        for line in self._book.lines:
            asked = self._shop.asked.get(line.movement)
            if asked is None or line.by != US or line.kind is not _LINES[asked.kind] or line.id in back:
                continue
            payment = self._book.payments.get(line.payment)
            if payment is not None and not payment.stands and self._was_cancelled(payment):
                continue
            at_mono = line.at - EPOCH_AT
            if not any(told.began_mono <= at_mono and _may_have_moved(told) for told in asked.told):
                detail = f"{asked.name}: every call was told that nothing came of it"
                self._history.violated("no means none, for ever", asked.order, detail)

    def compare(self, operation: Operation, sharing: Iterable[Operation]) -> None:
        """An operation with a stamp, and its line."""
        if operation.operation not in {"pay", "hold", "take", "give_back", "transfer"}:
            return
        order = self.order_of(operation)
        lines = [line for line in self._book.of_order.get(order, ()) if line.stamp == operation.stamp]
        back = {line.id for line in lines if line.kind in _TAKES_BACK}
        standing = [line for line in lines if line.id not in back and line.kind not in _TAKES_BACK]
        if operation.state is State.SUCCEEDED and not lines:
            detail = f"{operation.id} succeeded without a line"
            self._history.violated("doubt not guessed away", order, detail)
        others = [other for other in sharing if other.id != operation.id and other.state is not State.FAILED]
        paid = [self._book.payments[one.payment] for one in standing if one.id[:2] == "pi"]
        cancelled = any(self._was_cancelled(payment) for payment in paid)
        if operation.result_class is ResultClass.CANCELLED and not any(payment.stands for payment in paid):
            cancelled = True  # it was made, and released before an inquiry read it
        if operation.state is State.FAILED and standing and not others and not cancelled:
            self._history.violated("doubt not guessed away", order, f"{operation.id} failed and has its line")

    def expects_incident(self, operation: Operation) -> bool:
        """Whether somebody acted past us, or something came back after its order was paid again."""
        order = self.order_of(operation)
        lines = self._book.of_order.get(order, [])
        past_us = any(line.by in {BROWSER, DASHBOARD} for line in lines)
        if operation.incident == IncidentKind.BOTH_KEYS_RETURNED and self._may_return_twice(order):
            return True
        if operation.incident in _OF_A_SPOOLED_DECLINE and self._may_have_spooled_a_decline(operation):
            return True
        exceeded = any(payment.exceeded for payment in self._book.payments_of(order))
        if operation.incident == "negative_remainder" and (exceeded or self._book.of(order, LineKind.RETURNED)):
            return True
        paid_again = len(self._book.of(order, LineKind.AUTHORISED, LineKind.TRANSFERRED)) > 1
        return past_us or (paid_again and any(line.kind in _TAKES_BACK for line in lines))

    def _may_have_spooled_a_decline(self, operation: Operation) -> bool:
        """Whether its decline waited in the spool of a sidecar without its journal, while another step of the payment
        paid, and an inquiry by another sidecar read that."""
        without_journal = bool(self._mix.journal_stalls or self._mix.cut_offs)
        return without_journal and operation.operation == "confirm" and bool(self.payments_of(self.order_of(operation)))

    def _may_be_taken_for_new(self, kin: list[Asked]) -> bool:
        """Whether a fresh key may pass for another movement. Of a call that got no reply at all nobody knows whether it
        was answered, or whether a sidecar that stood still will yet begin with it. And if the store took the end of a
        movement but its reply was lost, it stands as told to a caller who was told 504."""
        mix = self._mix
        if mix.journal_lost_replies or mix.journal_late_writes or mix.journal_stalls or mix.cut_offs:
            return True
        return any(told.lost for one in kin for told in one.told)

    def _may_return_twice(self, order: str) -> bool:
        """Whether one key may have been told what another one did, and the other comes back: a sidecar that stood still
        begins with its call, or two movements are asked for by equal calls."""
        asked = self._shop.orders[order].asked if order in self._shop.orders else []
        meant = {one.meant: (one.path, one.body) for one in asked if one.moves}
        return len(set(meant.values())) < len(meant) or any(told.lost for one in asked for told in one.told)

    def truth_about(self, operation: Operation, *, settled: bool) -> bool | None:
        """What a person finds in the provider's books; None while it may still change, or if it bears no stamp."""
        things = [
            thing
            for provider in self._providers
            if provider.payments is not None
            for thing in provider.payments.made_by(operation.stamp)
        ]
        if operation.operation not in {"take", "give_back", "transfer"} or any(
            one.status == "pending" for one in things
        ):
            return None
        if any(thing.status == "succeeded" for thing in things):
            return True
        return False if settled else None

    def name_of(self, operation: Operation) -> str | None:
        made = [
            thing.id
            for provider in self._providers
            if provider.payments is not None
            for thing in provider.payments.made_by(operation.stamp)
            if thing.status == "succeeded"
        ]
        return made[0] if len(made) == 1 else None

    def free_orders(self, operations: list[Operation]) -> list[Order]:
        """Of which nothing stands at the provider and nothing is open with us, and that we can know to be so."""
        held = {self.order_of(one) for one in operations if is_of_payments(one) and _is_open(one)}
        if "" in held or self._mix.failovers:  # a store that forgets makes numbers unknown
            return []
        free = [order for order in self._shop.orders.values() if order.name not in held and self._is_free(order)]
        free.sort(key=lambda order: order.name not in self._book.of_order)  # first those that were paid, and given back
        return free[:FREE_ORDERS_MAX]

    def _is_free(self, order: Order) -> bool:
        lines = self._book.of_order.get(order.name, [])
        if order.story == "payouts":
            bounced = {line.id for line in lines if line.kind is LineKind.BOUNCED}
            sent = {line.id for line in lines if line.kind is LineKind.TRANSFERRED}
            return sent == bounced and all(self._heard(name, 1) for name in bounced)
        for payment in self._book.payments_of(order.name):
            told_by_others = any(line.by != US for line in lines if line.payment == payment.id)
            taken_back = any(line.kind is LineKind.RETURNED for line in lines if line.payment == payment.id)
            if told_by_others and taken_back:
                return False  # a total may be one from before a refund came back: it is not believed
            if payment.stands or payment.exceeded:  # more than there was is an incident
                return False
            if told_by_others and not self._heard(payment.id, payment.changes):
                return False
        return True

    def _heard(self, name: str, changes: int) -> bool:
        return any(provider.heard.get(name, 0) >= changes for provider in self._providers)

    def paid_once_more(self, order: Order, asked: Asked) -> None:
        reply = asked.told[-1].reply
        if reply is not None and reply.problem in _REFUSALS:
            detail = f"{asked.name} is refused: {reply.body[:200].decode('utf-8', 'replace')}"
            self._history.violated("a free order can be paid", order.name, detail)

    def paid_orders(self) -> list[Order]:
        """Of which something stands that we did ourselves."""
        paid = []
        for order in self._shop.orders.values():
            lines = self._book.of_order.get(order.name, [])
            if lines and all(line.by == US for line in lines):
                transferred = any(line.kind is LineKind.TRANSFERRED for line in lines)
                if transferred or any(payment.stands for payment in self._book.payments_of(order.name)):
                    paid.append(order)
        return paid[:PAID_ORDERS_MAX]

    # -- what is so

    def order_of(self, operation: Operation) -> str:
        """ "" if nobody can tell."""
        label = operation.guard.label if operation.guard is not None else ""
        if label in self._book.of_order:
            return label
        if label in self._book.payments:
            return self._book.payments[label].order
        return self._order_of_stamp.get(operation.stamp, label if label[:1] == "m" else "")

    def _kin(self, asked: Asked) -> list[Asked]:
        """What was asked for by an equal call, under any key: of two that mean different things nobody can tell
        which is which, as long as there are as many lines as things meant."""
        order = self._shop.orders[asked.order]
        return [one for one in order.asked if one.path == asked.path and one.body == asked.body]

    def _lines_of(self, asked: Asked) -> list[MoneyLine]:
        names = {one.name for one in self._kin(asked)}
        return [line for line in self._book.of(asked.order, _LINES[asked.kind]) if line.movement in names]

    def _was_cancelled(self, payment: Payment) -> bool:
        """By an operator."""
        lines = [one for one in self._book.of(payment.order, LineKind.RELEASED) if one.payment == payment.id]
        asked = [self._shop.asked.get(line.movement) for line in lines]
        return any(one is None or one.kind != "void" for one in asked)


def _may_have_moved(told: Told) -> bool:
    """Whether the call left it open, or said yes."""
    reply = told.reply
    if reply is None:
        return True
    if told.no_journal or reply.problem in DID_NOTHING:
        return False
    return reply.outcome not in {Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT, Outcome.ABSENT}


def _is_open(operation: Operation) -> bool:
    return not operation.state.ended or operation.incident is not None or operation.lease is not None
