"""Payouts: what counts as spent, in which window, what an approval binds, and what is announced of the money."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paywitness.core.announcements import cloud_events
from paywitness.core.call import Call
from paywitness.core.consequences import announcement_of
from paywitness.core.guard import GIVEN_BACK
from paywitness.core.identity import identify
from paywitness.core.money import Money
from paywitness.core.operation import HistoryEntry, Operation, PayoutStage, State
from paywitness.core.payout import (
    Approval,
    ApprovalStatus,
    ApprovalTerms,
    CapClaim,
    CapCount,
    PayoutClaim,
    cap_key,
    counts_as_spent,
    over_cap,
    payout_status,
    spent_change,
    window_at,
    window_end_at,
    window_s_of,
)
from paywitness.core.payout_claims import payout_claim
from paywitness.core.payout_rules import CapScope, CheckHook, PayoutCap, PayoutRules
from paywitness.core.policy import AmountField
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.policy.reading.expressions import expression
from tests.core.samples import SECRET, call, policy
from tests.core.samples import operation as some_operation

DAY_S = 86_400.0
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()
EUR_50 = PayoutCap(CapScope.ACCOUNT, DAY_S, Money(5000, "EUR"))
KEY = cap_key(EUR_50, "acme", "account")


def payout(**changes: Any) -> Operation:
    given = {"kind": OperationKind.PAYOUT, "operation": "payout", "money": Money(1000, "EUR"), "caps": (KEY,)}
    return some_operation(**{**given, **changes})


# --- caps


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("incident", [None, "success_after_failure"])
@pytest.mark.parametrize("result_class", [None, *ResultClass])
def test_only_an_end_without_effect_and_a_return_give_the_amount_back(
    state: State, incident: str | None, result_class: ResultClass | None
) -> None:
    found = counts_as_spent(payout(state=state, incident=incident, result_class=result_class))
    failed_for_good = state is State.FAILED and incident is None
    assert found is not (failed_for_good or (state is State.SUCCEEDED and result_class in GIVEN_BACK))


def test_a_change_moves_the_count_by_the_payouts_amount_once() -> None:
    sending, failed = payout(state=State.SENDING), payout(state=State.FAILED)
    contradicted = payout(state=State.FAILED, incident="success_after_failure")
    assert spent_change(None, sending) == 1000
    assert spent_change(sending, payout(state=State.UNKNOWN)) == 0
    assert spent_change(sending, payout(state=State.SUCCEEDED)) == 0
    assert spent_change(sending, failed) == -1000
    assert spent_change(failed, failed) == 0
    assert spent_change(failed, contradicted) == 1000
    returned = payout(state=State.SUCCEEDED, result_class=ResultClass.RETURNED)
    assert spent_change(payout(state=State.SUCCEEDED), returned) == -1000
    assert spent_change(sending, payout(state=State.FAILED, caps=())) == 0


def test_a_window_of_a_day_is_a_calendar_day_and_one_of_a_week_begins_on_monday() -> None:
    midnight = datetime(2026, 11, 18, tzinfo=UTC).timestamp()
    assert window_at(midnight, DAY_S) == window_at(midnight + DAY_S - 1, DAY_S) == window_at(midnight - 1, DAY_S) + 1
    assert window_end_at(window_at(NOON, DAY_S), DAY_S) == midnight + DAY_S
    week = window_at(NOON, 7 * DAY_S)
    assert datetime.fromtimestamp(window_end_at(week, 7 * DAY_S), UTC) == datetime(2026, 11, 23, tzinfo=UTC)


def test_the_key_of_a_cap_tells_its_window_and_not_its_amount() -> None:
    assert window_s_of(KEY) == DAY_S
    assert cap_key(PayoutCap(CapScope.ACCOUNT, DAY_S, Money(1, "EUR")), "acme", "account") == KEY
    others = {
        cap_key(PayoutCap(CapScope.ACCOUNT, 7 * DAY_S, Money(5000, "EUR")), "acme", "account"),
        cap_key(PayoutCap(CapScope.ACCOUNT, DAY_S, Money(5000, "USD")), "acme", "account"),
        cap_key(PayoutCap(CapScope.BENEFICIARY, DAY_S, Money(5000, "EUR")), "acme", "account"),
        cap_key(EUR_50, "acme", "another"),
        cap_key(EUR_50, "acmeaccount", ""),
    }
    assert KEY not in others
    assert len(others) == 5


def test_a_count_begins_anew_in_each_window_and_gives_back_only_in_its_own() -> None:
    count = CapCount(7, 0).changed(7, 1000).changed(7, 500)
    assert count == CapCount(7, 1500)
    assert count.changed(7, -1000) == CapCount(7, 500)
    later = count.changed(8, 200)
    assert later == CapCount(8, 200)
    assert later.changed(7, -1000) == later
    assert count.changed(8, -1000) == count
    assert count.changed(7, -9999) == CapCount(7, 0)
    # The journal's time never goes back. If it did, nothing would be forgotten by it.
    assert later.changed(7, 100) == CapCount(8, 300)
    assert later.spent_in(7) == 200


def test_a_payout_fits_up_to_the_cap_and_not_a_cent_above_it() -> None:
    claim = PayoutClaim((CapClaim(KEY, EUR_50),))
    window = window_at(NOON, DAY_S)
    assert over_cap(claim, Money(5000, "EUR"), {}, NOON) is None
    refused = over_cap(claim, Money(5001, "EUR"), {}, NOON)
    assert refused is not None
    assert (refused.left, refused.ends_in_s) == (5000, DAY_S / 2)
    counts = {KEY: CapCount(window, 4000)}
    assert over_cap(claim, Money(1000, "EUR"), counts, NOON) is None
    refused = over_cap(claim, Money(1001, "EUR"), counts, NOON)
    assert refused is not None
    assert refused.left == 1000
    assert over_cap(claim, Money(5000, "EUR"), counts, NOON + DAY_S) is None


# --- what a call means

RULES = PayoutRules(
    beneficiary=(FieldRef(FieldKind.BODY, "destination"),),
    caps=(EUR_50, PayoutCap(CapScope.BENEFICIARY, DAY_S, Money(2000, "EUR"))),
    approval_above=(Money(1000, "EUR"),),
)


def claimed(rules: PayoutRules = RULES, money: Money | None = Money(500, "EUR"), **body: Any) -> PayoutClaim:
    tree = {"destination": "DE89 3704 0044", **body}
    under = policy(kind=OperationKind.PAYOUT, payout=rules, amount=AmountField(expression("amount")))
    made: Call = call()
    identity = identify(made, under, tree, {}, SECRET, lambda: "generated")
    return payout_claim(made, under, tree, {}, identity, money, SECRET)


def test_a_beneficiary_is_one_however_it_is_written() -> None:
    account, beneficiary = claimed().caps
    assert [cap.key for cap in claimed(destination="de8937040044").caps] == [account.key, beneficiary.key]
    others = claimed(destination="DE00").caps
    assert (others[0].key, others[1].key == beneficiary.key) == (account.key, False)


def test_a_beneficiary_may_be_an_object() -> None:
    first, second = (claimed(destination={"iban": iban, "bic": "X"}).caps[1].key for iban in ("DE1", "DE2"))
    assert first != second
    assert claimed(destination={"bic": "X", "iban": "DE1"}).caps[1].key == first


def test_what_cannot_be_counted_is_refused() -> None:
    for money in (None, Money(1, "USD"), Money(-1, "EUR")):  # below zero it would give back what others have spent
        refused = over_cap(claimed(money=money), money, {}, NOON)
        assert refused is not None
        assert refused.cap is None
    assert claimed(PayoutRules(check=CheckHook("https://risk.test", "SECRET")), None).cannot_count == ""


@pytest.mark.parametrize(
    ("money", "needed"),
    [
        (Money(1000, "EUR"), False),
        (Money(1001, "EUR"), True),
        (Money(1, "USD"), True),  # a currency that the policy does not list
        (Money(-5000, "EUR"), True),
        (None, True),
    ],
)
def test_approval_is_needed_above_the_amount_and_for_what_cannot_be_compared(money: Money | None, needed: bool) -> None:
    assert (claimed(money=money).approval is not None) is needed


def test_an_approval_binds_content_amount_and_beneficiary() -> None:
    def terms(**body: Any) -> ApprovalTerms:
        found = claimed(money=Money(2000, "EUR"), **body).approval
        assert found is not None
        return found

    first = terms()
    assert terms() == first
    other_amount = claimed(money=Money(2001, "EUR")).approval
    assert other_amount is not None
    ids = {first.id, other_amount.id, terms(note="another body").id, terms(destination="DE00").id}
    assert len(ids) == 4


def test_an_approval_lapses_and_is_used_once() -> None:
    terms = claimed(money=Money(2000, "EUR")).approval
    assert terms is not None
    asked = Approval(terms, NOON, valid_s=60.0)
    assert asked.status(NOON + 999_999) is ApprovalStatus.WAITING
    approved = Approval(terms, NOON, 60.0, approved_at=NOON)
    assert approved.status(NOON + 59.9) is ApprovalStatus.APPROVED
    assert approved.status(NOON + 60.0) is ApprovalStatus.LAPSED
    assert Approval(terms, NOON, 60.0, approved_at=NOON, used_by="op_1").status(NOON) is ApprovalStatus.USED


def test_what_was_approved_before_the_journal_went_back_lapses() -> None:
    """The claim that used it up may be among what was forgotten."""
    terms = claimed(money=Money(2000, "EUR")).approval
    assert terms is not None
    approved = Approval(terms, NOON, 3600.0, approved_at=NOON)
    assert approved.status(NOON + 100, rolled_back_s=50.0) is ApprovalStatus.LAPSED
    assert approved.status(NOON + 100, rolled_back_s=200.0) is ApprovalStatus.APPROVED
    assert Approval(terms, NOON, 3600.0).status(NOON + 100, rolled_back_s=50.0) is ApprovalStatus.WAITING


# --- what is announced


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (None, {"state": State.SENDING}, PayoutStage.RESERVED),
        ({"state": State.SENDING}, {"state": State.SUCCEEDED}, PayoutStage.COMMITTED),
        ({"state": State.UNKNOWN, "doubt": frozenset({1})}, {"state": State.SUCCEEDED}, PayoutStage.COMMITTED),
        ({"state": State.SENDING}, {"state": State.FAILED}, PayoutStage.RELEASED),
        ({"state": State.BACKOFF}, {"state": State.FAILED}, PayoutStage.RELEASED),
        # What later evidence can contradict is not told as released.
        ({"state": State.UNKNOWN, "doubt": frozenset({1})}, {"state": State.FAILED}, None),
        ({"state": State.PENDING}, {"state": State.FAILED}, None),
        ({"state": State.BACKOFF}, {"state": State.FAILED, "result_class": ResultClass.FAILED}, None),
        ({"state": State.SENDING, "version": 1}, {"state": State.FAILED, "version": 3}, None),
        ({"state": State.FAILED}, {"state": State.FAILED, "incident": "success_after_failure"}, PayoutStage.RECLAIMED),
        ({"state": State.SENDING}, {"state": State.UNKNOWN}, None),
        ({"state": State.SUCCEEDED}, {"state": State.SUCCEEDED, "result_class": ResultClass.RETURNED}, None),
    ],
)
def test_what_a_change_says_of_the_money(
    before: dict[str, Any] | None, after: dict[str, Any], status: PayoutStage | None
) -> None:
    assert payout_status(None if before is None else payout(**before), payout(**after)) is status


def events_of(before: Operation | None, after: Operation) -> list[dict[str, Any]]:
    announcement = announcement_of(before, after)
    assert announcement is not None
    entry = HistoryEntry(NOON, 2, "caller", (), after.state, frozenset(), announcement=announcement)
    return cloud_events(after, entry)


def test_one_change_may_leave_two_events_under_ids_of_their_own() -> None:
    sending = payout(state=State.SENDING)
    paid = payout(state=State.SUCCEEDED, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    ended, committed = events_of(sending, paid)
    assert (ended["id"], ended["type"]) == ("op_01:2", "paywitness.operation.ended")
    assert (committed["id"], committed["type"]) == ("op_01:2:payout", "paywitness.payout.committed")
    assert ended["data"]["posting"] == committed["data"]["posting"]
    assert committed["data"]["posting"] == {
        "key": "op_01",
        "kind": "payout",
        "amount": "10.00",
        "minor_units": 1000,
        "currency": "EUR",
        "of": "op_01",
        "reverses": None,
    }


def test_a_claim_leaves_the_reservation_alone() -> None:
    (reserved,) = events_of(None, payout(state=State.SENDING))
    assert (reserved["id"], reserved["type"]) == ("op_01:2:payout", "paywitness.payout.reserved")
    assert reserved["data"]["posting"]["key"] == "op_01"


def test_what_reclaims_and_what_returns_names_what_it_reverses() -> None:
    failed = payout(state=State.FAILED)
    incident, reclaimed = events_of(failed, payout(state=State.FAILED, incident="success_after_failure"))
    assert incident["type"] == "paywitness.operation.incident_opened"
    assert (reclaimed["data"]["posting"]["key"], reclaimed["data"]["posting"]["reverses"]) == ("op_01", "op_01")
    paid = payout(state=State.SUCCEEDED)
    (returned,) = events_of(paid, payout(state=State.SUCCEEDED, result_class=ResultClass.RETURNED))
    posting = returned["data"]["posting"]
    assert (posting["key"], posting["kind"], posting["reverses"]) == ("op_01:returned", "return", "op_01")


def test_other_kinds_announce_as_before() -> None:
    sale = some_operation(kind=OperationKind.SALE, state=State.SENDING)
    assert announcement_of(None, sale) is None
