"""The simulated provider's payments with numbers: what they show, what they refuse, and what each movement leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from paywitness.upstream.request import WireRequest
from paywitness_sandbox.bank.ledger import Ledger
from paywitness_sandbox.messages import SandboxResponse
from tests.simulation.history import History
from tests.simulation.loop import SimLoop
from tests.simulation.merchants import Merchant
from tests.simulation.payments import LineKind, MoneyBook, Payment
from tests.simulation.provider import SimProvider
from tests.simulation.swarm import Mix, stream

MIX = Mix(seed=1, payments=1, money_between=True)


class Desk:
    """One provider, and somebody who calls it."""

    def __init__(self, mix: Mix) -> None:
        self.loop = SimLoop()
        self.book = MoneyBook()
        history = History(self.loop)
        self.provider = SimProvider(self.loop, mix, stream(1, "provider"), history, Ledger(), "acme")
        self.provider.keep_payments(self.book, "1 acme")
        assert self.provider.payments is not None
        self.provider.payments.is_pending = lambda: False
        self.calls = 0

    def call(self, method: str, path: str, **body: object) -> tuple[int, dict[str, object]]:
        self.calls += 1
        answers: list[SandboxResponse] = []
        key, wish = (b"Idempotency-Key", f"k-{self.calls}".encode()), (b"X-Wish", f"m1.{self.calls}".encode())
        headers = (*Merchant().headers(0.0), key, wish)
        sent = json.dumps(body).encode() if method == "POST" else b""
        self.provider.arrive(WireRequest(method, path.encode(), headers, sent), None, 0.0, answers.append)
        return answers[0].status_code, json.loads(answers[0].body)

    def pay(self, amount: int = 100, *, capture: str = "automatic", **more: object) -> str:
        metadata = {"order_id": "m1", "paywitness": "op_1"}
        asked = {"confirm": True, "source": "tok_ok", "metadata": metadata} | more
        _, shown = self.call("POST", "/v2/payments", amount=amount, currency="EUR", capture=capture, **asked)
        return str(shown["id"])

    def refused(self, path: str, **body: object) -> str:
        status_code, shown = self.call("POST", path, **body)
        error = shown["error"]
        assert status_code in {400, 409}
        assert isinstance(error, dict)
        return str(error["code"])

    def lines(self) -> list[tuple[LineKind, int]]:
        return [(line.kind, line.amount) for line in self.book.lines]


@pytest.fixture
def make_desk() -> Iterator[Callable[[Mix], Desk]]:
    made: list[Desk] = []

    def make(mix: Mix) -> Desk:
        made.append(Desk(mix))
        return made[-1]

    yield make
    for desk in made:
        desk.loop.close()


@pytest.fixture
def desk(make_desk: Callable[[Mix], Desk]) -> Desk:
    return make_desk(MIX)


def test_a_sequence_of_captures_shows_its_totals_and_ends_at_what_was_authorised(desk: Desk) -> None:
    payment = desk.pay(capture="manual")
    path = f"/v2/payments/{payment}/captures"
    assert desk.call("POST", path, amount=30)[1]["amount"] == 30
    _, shown = desk.call("GET", f"/v2/payments/{payment}")
    assert (shown["status"], shown["amount_captured"], shown["amount_capturable"]) == ("requires_capture", 30, 70)
    assert desk.refused(path, amount=71) == "amount_too_large"
    desk.call("POST", path, amount=70)
    assert desk.refused(path, amount=1) == "payment_already_captured"
    assert desk.lines() == [(LineKind.AUTHORISED, 100), (LineKind.CAPTURED, 30), (LineKind.CAPTURED, 70)]
    assert [line.movement for line in desk.book.lines][1:] == ["m1.2", "m1.5"]


def test_a_single_capture_leaves_nothing_to_capture(desk: Desk) -> None:
    payment = desk.pay(capture="manual")
    _, shown = desk.call("POST", f"/v2/payments/{payment}/capture", amount=30)
    assert (shown["status"], shown["amount_capturable"]) == ("succeeded", 0)
    assert desk.refused(f"/v2/payments/{payment}/capture", amount=70) == "payment_already_captured"
    assert desk.refused(f"/v2/payments/{payment}/void") == "payment_already_captured"


def test_a_void_releases_what_is_left(desk: Desk) -> None:
    payment = desk.pay(capture="manual")
    desk.call("POST", f"/v2/payments/{payment}/captures", amount=30)
    assert desk.call("POST", f"/v2/payments/{payment}/void")[1]["amount_voided"] == 70
    assert desk.refused(f"/v2/payments/{payment}/void") == "payment_already_voided"
    assert desk.lines()[-1] == (LineKind.RELEASED, 70)


def test_a_payment_is_refunded_in_parts_by_either_of_its_names(desk: Desk) -> None:
    payment = desk.pay()
    charge = "ch_" + payment.removeprefix("pi_")
    desk.call("POST", "/v2/refunds", payment=payment, amount=40)
    desk.call("POST", "/v2/refunds", charge=charge, amount=60)
    assert desk.refused("/v2/refunds", payment=payment, amount=1) == "payment_already_refunded"
    assert not desk.book.payments[payment].stands
    assert desk.book.payments[charge] is desk.book.payments[payment]


def test_a_refund_that_fails_later_comes_back(desk: Desk) -> None:
    payment = desk.pay()
    refund = desk.call("POST", "/v2/refunds", payment=payment, amount=100)[1]["id"]
    assert desk.provider.payments is not None
    made = desk.provider.payments.thing(str(refund))
    assert not isinstance(made, Payment)
    desk.provider.payments.end_part(made, succeeded=False)
    assert desk.call("GET", f"/v2/refunds/{refund}")[1]["status"] == "failed"
    assert desk.book.payments[payment].stands
    assert desk.lines()[-1] == (LineKind.RETURNED, 100)


def test_a_decline_is_followed_by_another_confirm_and_a_success_by_none(desk: Desk) -> None:
    payment = desk.pay(confirm=False)
    path = f"/v2/payments/{payment}/confirm"
    assert desk.call("POST", path, source="tok_insufficient_funds")[0] == 402
    assert desk.call("POST", path, source="tok_ok")[1]["status"] == "succeeded"
    assert desk.refused(path, source="tok_ok") == "payment_already_confirmed"


def test_a_browser_and_a_dashboard_act_past_everybody(desk: Desk) -> None:
    payment = desk.book.payments[desk.pay(confirm=False)]
    desk.provider.confirm_by_browser(payment)
    desk.provider.refund_by_dashboard(payment, 30)
    assert [line.by for line in desk.book.lines] == ["browser", "browser", "dashboard"]
    assert (payment.captured, payment.refunded) == (100, 30)


def test_a_lenient_provider_adds_nothing_up(make_desk: Callable[[Mix], Desk]) -> None:
    desk = make_desk(replace(MIX, lenient=True))
    payment = desk.pay(capture="manual")
    for amount in (70, 70):
        assert desk.call("POST", f"/v2/payments/{payment}/captures", amount=amount)[0] == 200
        assert desk.call("POST", "/v2/refunds", payment=payment, amount=amount)[0] == 200
    assert desk.book.payments[payment].captured == 140


def test_a_stale_replica_shows_a_payment_as_it_was_no_more_often_than_misses_count(
    make_desk: Callable[[Mix], Desk],
) -> None:
    desk = make_desk(replace(MIX, stale_looks=1.0))
    payment = desk.pay(confirm=False)
    desk.call("POST", f"/v2/payments/{payment}/confirm", source="tok_ok")
    shown = [desk.call("GET", f"/v2/payments/{payment}")[1]["status"] for _ in range(4)]
    assert shown == ["requires_confirmation", "requires_confirmation", "succeeded", "succeeded"]


def test_a_search_by_stamp_finds_what_bears_it(desk: Desk) -> None:
    payment = desk.pay()
    assert desk.call("GET", "/v2/payments?paywitness=op_1")[1]["data"] == [desk.book.payments[payment].shown()]
    assert desk.call("GET", "/v2/payments?paywitness=op_2")[1]["data"] == []
