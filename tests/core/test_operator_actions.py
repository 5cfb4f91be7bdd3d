"""What a person may do is what the lifecycle allows; what a person should do names the thing, the amount, the place."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from paywitness.core.classify import ClassifyRules
from paywitness.core.inquiry import Cancel, Inquiry
from paywitness.core.lifecycle import TABLE, Event, IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind, Operation, OtherPayment, State
from paywitness.core.operator_actions import (
    OperatorAction,
    actions_for,
    close_incident,
    proposal_for,
    resume_event,
    unavailable_reason,
)
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import OperationKind, ProviderContract
from paywitness.core.result import Effect, ResultClass
from paywitness.core.template import Template
from tests.telemetry.samples import operation as some_operation

PLAIN = Policy(
    provider="acme",
    operation="authorization",
    kind=OperationKind.AUTHORIZATION,
    routes=(),
    contract=ProviderContract(send_as=None, window_s=None),
    classify=ClassifyRules(),
    revision="r",
    upstream="http://127.0.0.1:1",
)
ABLE = replace(PLAIN, inquiries=(Inquiry("ask[0]", Template(("/",)), ()),), cancel=Cancel("POST", Template(("/",)), ()))

DOUBTFUL = ("inquire", "park", "resolve", "cancel")
OFFERED = {
    State.PREPARED: (),
    State.SENDING: (),
    State.BACKOFF: (),
    State.UNKNOWN: DOUBTFUL,
    State.PENDING: ("inquire", "park", "resolve"),
    State.REQUIRES_ACTION: ("inquire", "resolve"),
    State.SUCCEEDED: (),
    State.FAILED: (),
    State.REQUIRES_REVIEW: ("inquire", "resume", "resolve", "cancel"),
}


@pytest.mark.parametrize("state", list(State))
def test_what_is_offered_in_each_state(state: State) -> None:
    assert actions_for(some_operation(state), ABLE) == OFFERED[state]
    disputed = some_operation(state, incident="two_references")
    assert actions_for(disputed, ABLE) == (*OFFERED[state], "close-incident")


@pytest.mark.parametrize(("state", "under_way"), list(itertools.product(State, [True, False])))
def test_nothing_is_offered_that_the_table_forbids(state: State, under_way: bool) -> None:
    operation = some_operation(state, attempt_under_way=under_way)
    events = {
        OperatorAction.PARK: Event.OPERATOR_PARKED,
        OperatorAction.RESUME: resume_event(operation),
        OperatorAction.RESOLVE: Event.OPERATOR_FOUND_SUCCESS,
    }
    for act in actions_for(operation, ABLE):
        if act in events:
            assert events[act] in TABLE[state]


def test_under_an_attempt_nobody_says_how_it_ended() -> None:
    operation = some_operation(State.UNKNOWN, attempt_under_way=True)
    assert actions_for(operation, ABLE) == ("park",)
    assert (
        unavailable_reason(OperatorAction.RESOLVE, operation, ABLE)
        == "an attempt is under way and may still pay: wait for its end"
    )


def test_what_the_policy_cannot_do_is_not_offered() -> None:
    doubtful = some_operation(State.UNKNOWN)
    assert actions_for(doubtful, PLAIN) == ("park", "resolve")
    assert actions_for(doubtful, None) == ("park",)
    by_reference = replace(ABLE, cancel=Cancel("POST", Template(("/",)), (), needs_reference=True))
    assert "cancel" not in actions_for(doubtful, by_reference)
    assert "cancel" in actions_for(replace(doubtful, reference="ch_1"), by_reference)
    assert "cancel" not in actions_for(replace(doubtful, cancel_wanted=True), ABLE)
    assert "cancel" not in actions_for(replace(doubtful, cancel_sent=True), ABLE)


def test_resuming_goes_back_to_where_it_was_parked() -> None:
    assert resume_event(some_operation(State.REQUIRES_REVIEW)) is Event.OPERATOR_RESUMED
    assert resume_event(some_operation(State.REQUIRES_REVIEW, doubt=frozenset())) is Event.OPERATOR_RESUMED_WAITING


# --- incidents


def disputed(incident: IncidentKind | str, **changes: object) -> Operation:
    guard = Guard(GuardKind.INTENT, "hash", "order-17")
    return some_operation(State.FAILED, incident=incident, reference="ch_1", guard=guard, **changes)


def test_without_an_incident_there_is_nothing_to_propose() -> None:
    assert proposal_for(some_operation(State.SUCCEEDED)) is None


@pytest.mark.parametrize(
    ("incident", "kind"), list(itertools.product([*IncidentKind, "journal_rollback"], OperationKind))
)
def test_every_proposal_is_one_sentence_that_names_reference_amount_and_provider(
    incident: str, kind: OperationKind
) -> None:
    said = proposal_for(disputed(incident, kind=kind))
    assert said is not None
    assert "ch_1 (12.50 EUR) at acme" in said
    assert said.endswith(".")
    assert ". " not in said
    assert "{" not in said


@pytest.mark.parametrize("incident", list(IncidentKind))
def test_every_incident_has_a_proposal_of_its_own(incident: IncidentKind) -> None:
    assert proposal_for(disputed(incident)) != proposal_for(disputed("a kind of a later version"))


@pytest.mark.parametrize(
    ("incident", "advice"),
    [
        (IncidentKind.REFERENCE_TAKEN, "whether ch_1 (12.50 EUR) at acme was paid on its own"),
        (IncidentKind.NEGATIVE_REMAINDER, "give back or collect the difference"),
        (IncidentKind.UNVERIFIED_PAYMENT, "if it was not paid, say so with `ops not-paid "),
    ],
)
def test_what_to_do_about_the_numbers_and_names_of_a_payment(incident: IncidentKind, advice: str) -> None:
    assert advice in (proposal_for(disputed(incident)) or "")


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (OperationKind.AUTHORIZATION, "void ch_1 (12.50 EUR) at acme, or refund it if it was captured"),
        (OperationKind.SALE, "refund ch_1"),
        (OperationKind.CAPTURE, "refund ch_1"),
        (OperationKind.PAYOUT, "recall the payout ch_1"),
    ],
)
def test_money_that_should_not_have_moved_is_given_back_as_its_kind_allows(kind: OperationKind, verb: str) -> None:
    assert verb in (proposal_for(disputed(IncidentKind.SUCCESS_AFTER_FAILURE, kind=kind)) or "")


def test_a_duplicate_names_both_payments() -> None:
    first = some_operation(State.SUCCEEDED, reference="py_7", provider="globex")
    assert proposal_for(disputed(IncidentKind.DUPLICATE_SUCCESS, kind=OperationKind.SALE), first.as_other_payment) == (
        f"Payment of order-17 was made twice, already by py_7 (12.50 EUR) at globex, operation {first.id}: refund ch_1 "
        "(12.50 EUR) at acme."
    )


def test_an_incident_that_knows_the_other_amount_says_both() -> None:
    other = OtherPayment("", "acme", None, Money(4200, "EUR"))
    assert proposal_for(disputed(IncidentKind.ANOTHER_AMOUNT, other_payment=other)) == (
        "Check amounts: 12.50 EUR was requested, and ch_1 (12.50 EUR) at acme shows 42.00 EUR; refund or collect the "
        "difference."
    )
    same = proposal_for(disputed(IncidentKind.ANOTHER_AMOUNT, other_payment=OtherPayment(money=Money(1250, "EUR"))))
    assert same is not None
    assert "under a stamp that is not ours" in same


def test_an_incident_that_knows_the_other_reference_names_it() -> None:
    other = OtherPayment("", "acme", "ch_2", None)
    said = proposal_for(disputed(IncidentKind.TWO_REFERENCES, kind=OperationKind.SALE, other_payment=other))
    assert said == "acme made two payments of one call: keep ch_1 (12.50 EUR) at acme, and refund the other, ch_2."


@pytest.mark.parametrize("kind", [OperationKind.REFUND, OperationKind.REVERSAL])
def test_a_refund_that_came_back_after_the_purchase_was_paid_again_is_not_collected_anew(kind: OperationKind) -> None:
    """The customer has paid twice. The proposal was to collect the amount a third time."""
    assert proposal_for(disputed(IncidentKind.DUPLICATE_SUCCESS, kind=kind)) == (
        f"The {kind} ch_1 (12.50 EUR) at acme came back after its purchase was paid again, so the customer has paid "
        "twice: give one of the two payments back."
    )


def test_what_is_not_known_is_said_so() -> None:
    nameless = replace(disputed(IncidentKind.DOUBT_AFTER_FAILURE), reference=None, money=None)
    assert "the object under key order-17 (amount not known) at acme" in (proposal_for(nameless) or "")


# --- closing an incident


def test_an_incident_closed_as_paid_leaves_the_operation_paid_and_its_key_spent() -> None:
    failed = some_operation(state=State.FAILED).changed(incident=IncidentKind.SUCCESS_AFTER_FAILURE, key_released=True)
    paid, events = close_incident(failed, paid=True)
    assert events == (Event.INCIDENT_CLOSED_AS_PAID,)
    assert (paid.state, paid.result_class, paid.effect) == (State.SUCCEEDED, ResultClass.SUCCEEDED, Effect.DONE)
    assert (paid.incident, paid.key_released) == (None, False)
    unpaid, _ = close_incident(failed, paid=False)
    assert (unpaid.state, unpaid.incident, unpaid.key_released) == (State.FAILED, None, True)


def test_an_incident_closed_as_unpaid_takes_a_payment_back() -> None:
    succeeded = some_operation(state=State.SUCCEEDED).changed(
        incident=IncidentKind.FAILURE_AFTER_SUCCESS, result_class=ResultClass.SUCCEEDED
    )
    unpaid, _ = close_incident(succeeded, paid=False)
    assert (unpaid.state, unpaid.result_class, unpaid.incident) == (State.SUCCEEDED, ResultClass.RETURNED, None)
    paid, _ = close_incident(succeeded, paid=True)
    assert (paid.state, paid.result_class, paid.incident) == (State.SUCCEEDED, ResultClass.SUCCEEDED, None)
