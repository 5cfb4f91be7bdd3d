"""Webhooks, with real processes: the sandbox signs, tells, repeats and lies; the sidecar believes what is genuine.

The doubt here can be ended by an event alone: nobody can be asked, and nothing may be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Answer, Sidecar, wait_until

MakeSidecar = Callable[..., Sidecar]
pytestmark = pytest.mark.slow

SECRET = "whsec_of_the_shop"
ONLY_EVENTS = (
    ("errors_under_key: replayed ", "errors_under_key: not_stored "),
    ("    ask: *ask_for_a_charge ", "    # nobody to ask "),
)
LOST = "drop_after_commit"


@dataclass
class Shop:
    """A sidecar that the sandbox tells its events to."""

    sidecar: Sidecar
    provider: Provider

    def tell(self, mode: str = "normal", **how: object) -> None:
        url = f"http://127.0.0.1:{self.sidecar.webhooks_port}/paywitness/webhooks/acme"
        self.provider.tell_webhooks(url, SECRET, mode=mode, **how)

    def charge(self, mode: str, *, order: str = "order-1", fault: str = "", patience_s: float = 20.0) -> Answer:
        wishes = {"Sandbox-Webhook": mode, "Paywitness-Timeout-Ms": str(int(patience_s * 1000))}
        return self.sidecar.charge(f"key-{order}", order, fault=fault, headers=wishes)

    def lose(self, mode: str, order: str = "order-1") -> str:
        """A charge that is paid and whose answer is lost, and its caller gone before any event can help."""
        answer = self.charge(mode, order=order, fault=LOST, patience_s=0.7)
        assert (answer.status_code, answer.outcome) == (504, "unknown"), answer.body
        assert self.provider.effects(order) == 1
        return answer.headers["Paywitness-Operation"]

    def count(self, result: str) -> int:
        return int(self.sidecar.metric("payment_webhooks_total", provider="acme", result=result))

    def counts(self, *results: str) -> tuple[int, ...]:
        return tuple(self.count(result) for result in results)

    def until_counted(self, result: str, times: int = 1) -> None:
        wait_until(lambda: self.count(result) >= times, f"{times} {result}: {self.provider.webhooks()}")
        assert self.count(result) == times

    def until(self, operation_id: str, state: str) -> dict:
        wait_until(lambda: self.sidecar.operation(operation_id)["state"] == state, f"{operation_id} {state}")
        return self.sidecar.operation(operation_id)

    def told(self, operation: dict) -> list[dict]:
        """What webhooks changed of it."""
        return [entry for entry in operation["timeline"] if entry["source"] == "webhook"]

    def nothing_comes_of_it(self, operation_id: str) -> dict:
        """An honest event of another payment, told and applied after it; and it is as it was."""
        before = self.sidecar.operation(operation_id)
        applied = self.count("applied")
        self.until(self.lose("late(delay_s=1.5)", f"order-after-{operation_id}"), "succeeded")
        after = self.sidecar.operation(operation_id)
        assert (after["state"], after["doubt"], after["incident"]) == ("unknown", before["doubt"], None)
        assert {entry["state"] for entry in self.told(after)} <= {"unknown"}
        assert self.count("applied") == applied + 1
        return after

    def repeat(self, order: str = "order-1") -> Answer:
        arrived = self.posts
        answer = self.charge("normal", order=order, patience_s=1.0)
        assert self.posts == arrived  # nothing is sent for it
        return answer

    @property
    def posts(self) -> int:
        return sum(arrival["method"] == "POST" for arrival in self.provider.arrivals())

    def is_paid_once(self, operation_id: str, order: str = "order-1") -> dict:
        """By an event; and whoever comes back is told so."""
        operation = self.until(operation_id, "succeeded")
        (effect,) = self.provider.ledger(f"&order={order}")
        assert (operation["reference"], operation["incident"], operation["doubt"]) == (effect["charge"], None, [])
        assert [entry["state"] for entry in self.told(operation)] == ["succeeded"]
        repeat = self.repeat(order)
        assert (repeat.status_code, repeat.outcome, repeat.json["id"]) == (200, "succeeded", effect["charge"])
        return operation


@pytest.fixture
def shop(sandbox: Provider, make_sidecar: MakeSidecar) -> Shop:
    sidecar = make_sidecar(sandbox.url, *ONLY_EVENTS, environment={"ACME_WEBHOOK_SECRET": SECRET}).start()
    found = Shop(sidecar, sandbox)
    found.tell(tries_max=1)
    return found


# --- what is true


def test_an_event_that_overtakes_the_answer_is_true_and_so_is_the_answer(shop: Shop) -> None:
    answer = shop.charge("early")
    assert (answer.status_code, answer.outcome) == (200, "succeeded")
    shop.until_counted("accepted")
    wait_until(lambda: sum(shop.counts("applied", "nothing_new")) == 1, "what became of the event")
    operation = shop.sidecar.operation(answer.headers["Paywitness-Operation"])
    assert (operation["state"], operation["incident"]) == ("succeeded", None)
    assert operation["reference"] == answer.json["id"]
    repeat = shop.repeat()
    assert (repeat.status_code, repeat.json["id"], shop.provider.effects()) == (200, answer.json["id"], 1)


def test_an_event_that_comes_in_place_of_the_answer_is_told_to_the_caller_that_waits(shop: Shop) -> None:
    answer = shop.charge("early", fault=LOST)
    assert (answer.status_code, answer.outcome) == (200, "succeeded")
    shop.is_paid_once(answer.headers["Paywitness-Operation"])
    assert shop.counts("accepted", "applied") == (1, 1)
    assert shop.posts == 1


def test_a_late_event_ends_a_doubt_whose_caller_has_left(shop: Shop) -> None:
    shop.is_paid_once(shop.lose("late(delay_s=2)"))
    assert shop.counts("accepted", "applied") == (1, 1)


def test_a_late_event_of_what_is_known_says_nothing_new(shop: Shop) -> None:
    answer = shop.charge("late(delay_s=1)")
    before = shop.sidecar.operation(answer.headers["Paywitness-Operation"])
    shop.until_counted("nothing_new")
    assert shop.sidecar.operation(before["id"]) == before
    assert shop.counts("accepted", "applied") == (1, 0)


@pytest.mark.parametrize(("mode", "copies"), [("twice", 2), ("ten_times", 10)])
def test_the_same_event_again_and_again_is_one_event(shop: Shop, mode: str, copies: int) -> None:
    shop.tell(delay_s=1.5, tries_max=1)
    shop.is_paid_once(shop.lose(mode))
    shop.until_counted("duplicate", copies - 1)
    assert shop.counts("accepted", "applied", "nothing_new") == (1, 1, 0)


def test_a_payment_that_is_taken_back_was_paid_and_is_told_as_reversed(shop: Shop) -> None:
    shop.tell(delay_s=1.5, tries_max=1)
    operation_id = shop.lose("reversed(delay_s=1.5)")
    assert shop.until(operation_id, "succeeded")["reading"] == "succeeded"
    shop.until_counted("applied", 2)
    operation = shop.sidecar.operation(operation_id)
    assert (operation["state"], operation["reading"], operation["incident"]) == ("succeeded", "reversed", None)
    assert [entry["told"][-1] for entry in shop.told(operation)] == ["ended", "reversed"]
    assert [entry["kind"] for entry in shop.provider.ledger("&order=order-1")] == ["charge", "reversal"]


def test_a_payment_that_was_answered_and_then_taken_back_frees_its_order(shop: Shop) -> None:
    answer = shop.charge("reversed(delay_s=0.5)")
    assert answer.status_code == 200
    shop.until_counted("applied")
    operation = shop.sidecar.operation(answer.headers["Paywitness-Operation"])
    assert (operation["state"], operation["reading"], operation["incident"]) == ("succeeded", "reversed", None)
    late = shop.sidecar.charge("key-late", "order-1")  # the same call, delayed: it must not charge again
    assert (late.status_code, late.problem) == (409, "refunded")
    meant = {"Paywitness-Distinct": "the customer pays again"}
    another = shop.sidecar.charge("key-another", "order-1", headers=meant)
    assert another.status_code == 200
    assert another.headers["Paywitness-Operation"] != operation["id"]
    assert [entry["kind"] for entry in shop.provider.ledger("&order=order-1")] == ["charge", "reversal", "charge"]


def test_an_older_event_after_the_final_one_says_nothing_new(shop: Shop) -> None:
    shop.tell(delay_s=1.5, tries_max=1)
    operation_id = shop.lose("out_of_order")
    shop.until_counted("nothing_new")
    shop.is_paid_once(operation_id)
    assert shop.counts("accepted", "applied") == (2, 1)


# --- what is not


@pytest.mark.parametrize(("mode", "result"), [("forged", "bad_signature"), ("old_timestamp(age_s=3600)", "too_old")])
def test_what_is_not_genuine_changes_nothing_and_the_genuine_one_is_still_believed(
    shop: Shop, mode: str, result: str
) -> None:
    operation_id = shop.lose(mode)
    shop.until_counted(result)
    (event,) = shop.provider.webhooks()
    assert (event["state"], event["last_status_code"]) == ("given_up", 401)
    assert shop.counts("accepted", "applied") == (0, 0)
    shop.nothing_comes_of_it(operation_id)
    assert shop.repeat().status_code == 504
    shop.provider.tell_again(event["id"])
    shop.is_paid_once(operation_id)


def test_another_amount_is_no_success(shop: Shop) -> None:
    operation_id = shop.lose("wrong_amount(by_minor=1)")
    shop.until_counted("does_not_fit")
    shop.nothing_comes_of_it(operation_id)
    assert (shop.repeat().status_code, shop.provider.effects()) == (504, 1)


def test_another_amount_of_what_was_paid_is_an_incident_that_its_replay_carries(shop: Shop) -> None:
    answer = shop.charge("wrong_amount(by_minor=1)")
    assert answer.status_code == 200
    shop.until_counted("does_not_fit")
    operation = shop.sidecar.operation(answer.headers["Paywitness-Operation"])
    assert (operation["state"], operation["incident"]) == ("succeeded", "another_amount")
    repeat = shop.repeat()
    assert (repeat.status_code, repeat.headers["Paywitness-Incident"]) == (200, "another_amount")
    assert [each["id"] for each in shop.sidecar.admin("/v1/incidents").json["operations"]] == [operation["id"]]


def test_an_event_of_another_account_is_kept_and_matches_nothing(shop: Shop) -> None:
    operation_id = shop.lose("other_account")
    shop.until_counted("accepted")
    shop.nothing_comes_of_it(operation_id)
    assert shop.repeat().status_code == 504


# --- what is late for ever, and what meets nobody


def test_an_event_that_never_comes_is_a_review_and_ends_it_when_it_comes_after_all(
    sandbox: Provider, make_sidecar: MakeSidecar
) -> None:
    soon = ("schedule: [2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h]", "schedule: [300ms, 600ms, 1s]")
    sidecar = make_sidecar(sandbox.url, *ONLY_EVENTS, soon, environment={"ACME_WEBHOOK_SECRET": SECRET}).start()
    shop = Shop(sidecar, sandbox)
    shop.tell("never")
    operation_id = shop.lose("never")
    operation = shop.until(operation_id, "requires_review")
    assert (operation["because"], operation["next_check_at"]) == ("schedule_ran_out", None)
    assert (shop.repeat().status_code, shop.count("accepted")) == (504, 0)
    shop.provider.tell_again(shop.provider.webhooks()[0]["id"])
    shop.is_paid_once(operation_id)


def test_an_event_told_to_a_sidecar_that_is_down_is_applied_by_the_next(shop: Shop) -> None:
    shop.tell(tries_max=20)
    operation_id = shop.lose("late(delay_s=2)")
    shop.sidecar.kill()
    wait_until(lambda: shop.provider.webhooks()[0]["tries"] >= 2, "a try that meets nobody")
    shop.sidecar.start()
    shop.is_paid_once(operation_id)


def test_what_was_acknowledged_before_a_kill_is_applied_after_it(shop: Shop) -> None:
    """Many events at once and kill -9 as soon as the first is acknowledged: none of the acknowledged is lost."""
    orders = [f"order-{number}" for number in range(30)]
    with ThreadPoolExecutor(10) as callers:
        lost = dict(zip(orders, callers.map(lambda order: shop.lose("never", order), orders), strict=True))
    assert len(set(lost.values())) == 30
    shop.tell(tries_max=20)
    for event in shop.provider.webhooks():
        shop.provider.tell_again(event["id"])
    wait_until(lambda: any(event["received"] for event in shop.provider.webhooks()), "the first acknowledgement")
    shop.sidecar.kill()
    shop.sidecar.start()
    for order in orders:
        shop.is_paid_once(lost[order], order)
