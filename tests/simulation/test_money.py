"""The money between operations: the checkers see what they are there for, and the worlds play what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.core.operation import Outcome
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from tests.simulation.callers import Told
from tests.simulation.money_checkers import MoneyCheckers
from tests.simulation.orders import STORIES, Asked, Order
from tests.simulation.payments import Origin, Part, Payment, Payments, PaymentStatus, Transfer
from tests.simulation.policy import policy_text
from tests.simulation.swarm import Mix, mix_of, stream, with_money_between
from tests.simulation.world import World, play

TOP = Path(__file__).resolve().parents[2]
PLAIN = Mix(1, 10, webhooks=False, events=False, money_between=True, orders=1.0)


class Case:
    """A world before its first call, in which a test says what is asked, told and done."""

    def __init__(self, mix: Mix) -> None:
        self.world = World(mix)
        assert self.world.shop is not None
        assert self.world.provider.payments is not None
        assert self.world.checkers.money is not None
        self.shop, self.money = self.world.shop, self.world.checkers.money
        self.money.has_numbers_of = lambda payment: True  # no journal takes part
        self.payments: Payments = self.world.provider.payments
        self.order = Order("m1", 100, 0.0, stream(1, "order"), "captures")
        self.shop.orders["m1"] = self.order

    def asked(self, kind: str, amount: int = 100, payment: str = "", meant: Asked | None = None) -> Asked:
        path = f"/v2/{kind}" if kind != "void" else f"/v2/payments/{payment}/void"
        asked = self.shop._new(self.order, kind, path, f"{amount}", amount, payment, meant)
        asked.told.append(Told(self.world.loop.now_mono, amount, asked.name))
        return asked

    def paid(self, *, manual: bool = False, asked: Asked | None = None, amount: int = 100) -> Payment:
        asked = asked or self.asked("pay")
        metadata: dict[str, object] = {"order_id": "m1"}
        origin = Origin(asked.name, f"op_{asked.name}")
        payment = self.payments.open(amount, "EUR", manual=manual, metadata=metadata, origin=origin)
        self.payments.confirm(payment, "tok_ok", origin)
        return payment

    def captured(self, payment: Payment, asked: Asked, *, amount: int | None = None) -> Part:
        return self.payments.capture(payment, amount or asked.amount, {}, Origin(asked.name), final=False)

    def refunded(self, payment: Payment, asked: Asked) -> Part:
        return self.payments.refund(payment, asked.amount, {}, Origin(asked.name))

    def transferred(self, asked: Asked) -> Transfer:
        body = {"amount": asked.amount, "currency": "EUR", "destination": "dest_ok", "reference": "m1"}
        return self.payments.transfer(body, {}, Origin(asked.name))

    def tell(
        self,
        asked: Asked,
        outcome: Outcome,
        problem: Problem | None = None,
        status_code: int = 200,
        operation_id: str = "",
    ) -> None:
        asked.told[-1].reply = Reply(status_code, (), b"{}", outcome, problem, operation_id=operation_id)
        self.money.told(asked, asked.told[-1])

    @property
    def broken(self) -> list[str]:
        return [violation.promise for violation in self.world.history.violations]


MakeCase = Callable[[Mix], Case]


@pytest.fixture
def make_case() -> Iterator[MakeCase]:
    made: list[Case] = []

    def make(mix: Mix) -> Case:
        made.append(Case(mix))
        return made[-1]

    yield make
    for case in made:
        case.world.loop.close()


@pytest.fixture
def case(make_case: MakeCase) -> Case:
    return make_case(PLAIN)


def test_two_payments_of_an_order_that_both_stand(case: Case) -> None:
    case.paid()
    assert case.broken == []
    case.paid()
    assert case.broken == ["an order is paid once"]


@pytest.mark.parametrize("given_back", ["refund", "void"])
def test_an_order_is_paid_again_once_nothing_stands(case: Case, given_back: str) -> None:
    first = case.paid(manual=given_back == "void")
    if given_back == "void":
        case.payments.void(first, Origin(case.asked("void", 0, first.id).name))
    else:
        case.refunded(first, case.asked("refund", 100, first.id))
    case.paid()
    assert case.broken == []


def test_what_a_browser_paid_counts_once_a_confirm_was_refused_over_it(case: Case) -> None:
    first = case.paid()
    assert first.confirmed_by is not None
    first.confirmed_by = replace(first.confirmed_by, by="browser")
    confirm = case.asked("confirm", 100, first.id)
    case.paid()
    assert case.broken == []
    case.tell(confirm, Outcome.FAILED, status_code=409)
    case.paid()
    assert "an order is paid once" in case.broken


def test_a_second_transfer_of_a_reference(case: Case) -> None:
    case.transferred(case.asked("payout"))
    case.transferred(case.asked("payout", 101))
    assert case.broken == ["one transfer per reference"]


def test_a_transfer_that_bounced_may_be_made_again(case: Case) -> None:
    first = case.transferred(case.asked("payout"))
    case.payments.end_part(first, succeeded=False)
    case.transferred(case.asked("payout", 101))
    assert case.broken == []


def test_one_movement_done_under_two_keys(case: Case) -> None:
    payment = case.paid()
    first = case.asked("refund", 30, payment.id)
    case.refunded(payment, first)
    case.refunded(payment, case.asked("refund", 30, payment.id, first))
    assert case.broken == ["one effect for one movement"]


def test_equal_movements_are_two_if_they_are_meant_so(case: Case) -> None:
    payment = case.paid()
    for _ in range(2):
        case.refunded(payment, case.asked("refund", 30, payment.id))
    assert case.broken == []


@pytest.mark.parametrize(("limits", "broken"), [("warn", []), ("enforce", ["captured within authorised"])])
def test_more_is_captured_than_authorised_because_the_shop_wants_it(
    make_case: MakeCase, limits: str, broken: list[str]
) -> None:
    case = make_case(replace(PLAIN, lenient=True, limits=limits, limits_edited=limits))
    payment = case.paid(manual=True)
    for amount in (60, 61):
        case.captured(payment, case.asked("capture", amount, payment.id))
    assert case.broken == broken


def test_more_is_captured_than_authorised_though_nobody_wants_it(make_case: MakeCase) -> None:
    case = make_case(replace(PLAIN, lenient=True))
    payment = case.paid(manual=True)
    case.captured(payment, case.asked("capture", 60, payment.id), amount=101)
    assert case.broken == ["captured within authorised"]


def test_more_is_refunded_than_captured_though_limits_are_enforced(make_case: MakeCase) -> None:
    case = make_case(replace(PLAIN, lenient=True, limits="enforce", limits_edited="enforce"))
    payment = case.paid()
    case.refunded(payment, case.asked("refund", 60, payment.id))
    case.refunded(payment, case.asked("refund", 61, payment.id))
    assert case.broken == ["refunded within captured"]


def test_a_refusal_that_is_told_as_a_success(case: Case) -> None:
    payment = case.paid(manual=True)
    case.captured(payment, case.asked("capture", 60, payment.id))
    case.tell(case.asked("capture", 40, payment.id), Outcome.SUCCEEDED)
    assert case.broken == ["a success has its own line"]


def test_a_fresh_key_takes_an_answer_that_nobody_heard_and_no_other(case: Case) -> None:
    payment = case.paid()
    first = case.asked("refund", 30, payment.id)
    case.refunded(payment, first)
    again = case.asked("refund", 30, payment.id, first)
    case.tell(again, Outcome.SUCCEEDED)
    assert case.broken == []
    case.tell(case.asked("refund", 30, payment.id, first), Outcome.SUCCEEDED)
    assert case.broken == ["a success has its own line"]


@pytest.mark.parametrize("in_doubt", [True, False])
def test_an_equal_call_may_get_the_reply_of_a_key_that_was_left_in_doubt_and_comes_back(
    case: Case, in_doubt: bool
) -> None:
    """Nobody can tell an equal call from a retry of the one in doubt. Without the doubt it is another movement."""
    loop, payment = case.world.loop, case.paid()
    first = case.asked("refund", 30, payment.id)
    case.refunded(payment, first)
    if in_doubt:
        first.told[0].told_mono = loop.now_mono
        first.told.append(Told(loop.now_mono, 30, first.name))
    loop.now_mono += 1.0
    other = case.asked("refund", 30, payment.id)
    loop.now_mono += 1.0
    first.told[-1].began_mono = loop.now_mono
    for asked in (other, first):
        case.tell(asked, Outcome.SUCCEEDED, operation_id="op_1")
    last = case.asked("refund", 30, payment.id)
    case.refunded(payment, case.asked("refund", 30, payment.id))
    case.tell(last, Outcome.SUCCEEDED)
    assert case.broken == ([] if in_doubt else ["a success has its own line"])


def test_a_refunded_payment_that_is_told_as_a_new_one(case: Case) -> None:
    payment = case.paid()
    refund = case.asked("refund", 100, payment.id)
    case.refunded(payment, refund)
    case.world.loop.now_mono += 1.0
    case.tell(case.asked("pay"), Outcome.SUCCEEDED)
    assert case.broken == []  # of a refund that nobody was told of, we may not know either
    case.tell(refund, Outcome.SUCCEEDED)
    case.tell(case.asked("pay"), Outcome.SUCCEEDED)
    assert case.broken == ["a success stands"]


def test_a_void_that_reaches_the_provider_beside_a_capture(case: Case) -> None:
    void = case.asked("void", 0, "pi_1")
    case.world.provider.on_void_beside(void.name, "m1.capture9")
    assert case.broken == ["no void beside a capture"]


def test_a_line_though_every_call_was_told_no(case: Case) -> None:
    payment = case.paid()
    refund = case.asked("refund", 30, payment.id)
    case.refunded(payment, refund)
    case.tell(refund, Outcome.FAILED)
    case.money.judge()
    assert case.broken == ["no means none, for ever"]


def test_a_free_order_that_is_refused(case: Case) -> None:
    payment = case.paid()
    case.refunded(payment, case.asked("refund", 100, payment.id))
    assert case.money.free_orders([]) == [case.order]
    asked = case.asked("pay", 107)
    case.tell(asked, Outcome.SUCCEEDED, Problem.GUARDED, 409)
    case.money.paid_once_more(case.order, asked)
    assert case.broken == ["a free order can be paid"]


def test_an_order_is_not_free_while_something_of_it_stands(case: Case) -> None:
    payment = case.paid(manual=True)
    capture = case.asked("capture", 60, payment.id)
    case.captured(payment, capture)
    case.refunded(payment, case.asked("refund", 60, payment.id))
    assert payment.status is PaymentStatus.REQUIRES_CAPTURE
    assert case.money.free_orders([]) == []


def test_a_paid_order_that_is_paid_again_after_its_retention(case: Case) -> None:
    case.paid()
    assert case.money.paid_orders() == [case.order]
    case.money.is_long_after = True
    case.paid()
    assert case.broken == ["a paid order is remembered"]


# --- worlds


def test_the_policy_of_a_world_without_it_says_nothing_of_it() -> None:
    assert "/v2/" not in policy_text(mix_of(1, 60))
    assert "/v2/" in policy_text(with_money_between(mix_of(1, 60)))


def test_an_edit_changes_timeouts_and_the_schedule_too() -> None:
    mix = with_money_between(mix_of(1, 60))
    before, after = policy_text(mix), policy_text(mix, edited=True)
    changed = {line.split(":")[0].strip() for line in set(before.splitlines()) ^ set(after.splitlines())}
    assert {"timeouts", "schedule", "default"} <= changed


def test_the_same_seed_gives_the_same_history() -> None:
    code = "from tests.simulation.world import play; print(play(5, 40).history.digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=TOP, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == play(5, 40).history.digest()


def test_the_first_orders_of_a_world_go_as_they_go_in_the_whole() -> None:
    whole = play(3, 60).history.lines()
    beginning = play(3, 60, first=30).history.lines()
    until = next(place for place, line in enumerate(whole) if " o31 " in line or " m31 " in line)
    assert until > 100
    assert beginning[:until] == whole[:until]


@pytest.mark.slow
def test_everything_happens_in_several_of_thirty_worlds() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 31):
        world = World(with_money_between(mix_of(seed, 60)))
        outcome = world.play()
        assert world.shop is not None
        money = world.checkers.money
        assert isinstance(money, MoneyCheckers)
        asked = world.shop.asked.values()
        happened = {order.story for order in world.shop.orders.values()}
        happened |= {f"fresh {one.kind}" for one in asked if one.meant != one.name}
        happened |= {f"{one.kind} succeeds" for one in asked if one.succeeded}
        happened |= {f"{line.kind} by {line.by}" for line in money._book.lines}
        happened |= {
            word for word in ("operator   cancels", "loads an edited") if word in "\n".join(outcome.history.lines())
        }
        seen.update(happened)
    wanted = {
        *STORIES,
        *(f"fresh {kind}" for kind in ("pay", "open", "confirm", "capture", "refund", "void", "payout")),
        *(f"{kind} succeeds" for kind in ("pay", "open", "confirm", "capture", "refund", "void", "payout")),
        *("refunded by dashboard", "authorised by browser", "returned by provider", "bounced by provider"),
        *("operator   cancels", "loads an edited"),
    }
    rare = {"operator   cancels"}
    assert {name for name in wanted if seen[name] < (1 if name in rare else 3)} == set()
