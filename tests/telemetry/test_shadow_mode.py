"""What was only watched: one line and one count for each call, and for each row that would have matched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paywitness.core.decide import Action
from paywitness.core.result import Classification, ResultClass, ShadowMatch
from paywitness.telemetry.events import AttemptFinished, CallShadowed, PolicyReloaded
from tests.telemetry.conftest import Told, at_debug
from tests.telemetry.samples import ACME, ACME_NAMES, attempt, decision, operation

UNREAD = Classification.of(ResultClass.UNKNOWN_OUTCOME, "unrecognised_2xx")
WATCHED = replace(UNREAD, shadow_match=ShadowMatch("answers.charge[0]", ResultClass.SUCCEEDED))
PAID = Classification.of(ResultClass.SUCCEEDED, "answers.charge[1]")
ASKED = CallShadowed("acme", "authorization", Action.STATUS_INQUIRY, "in_doubt_ask", WATCHED, 200, 0.25)


@pytest.fixture(autouse=True)
def known(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.stream.truncate(0)
    told.stream.seek(0)


def test_a_call_is_told_by_what_would_have_been_done(told: Told) -> None:
    told.tell(ASKED)
    (line,) = told.lines()
    assert line["event"] == "call_observed"
    assert (line["would_have"], line["because"]) == ("status_inquiry", "in_doubt_ask")
    assert (line["reading"], line["rule"], line["status_code"]) == ("unknown_outcome", "unrecognised_2xx", 200)
    assert (line["observed"], line["observed_as"]) == ("answers.charge[0]", "succeeded")
    assert line["duration_ms"] == 250.0


def test_a_clean_call_writes_no_line_by_default(told: Told) -> None:
    told.tell(CallShadowed("acme", "authorization", Action.STOP, "succeeded", PAID, 200, 0.1))
    assert told.lines() == []
    told.tell(CallShadowed("acme", "authorization", "replayed", "replay", PAID, 200, 0.1))
    assert len(told.lines()) == 1


@at_debug
def test_at_debug_it_does(told: Told) -> None:
    told.tell(CallShadowed("acme", "authorization", Action.STOP, "succeeded", PAID, 200, 0.1))
    assert [line["event"] for line in told.lines()] == ["call_observed"]


def test_calls_are_counted_by_class_action_and_rule(told: Told) -> None:
    told.tell(ASKED)
    told.tell(ASKED)
    told.tell(CallShadowed("acme", None, "refused", "body-unreadable"))
    names = {**ACME, "class": "unknown_outcome"}
    asked = {**names, "action": "status_inquiry", "rule": "in_doubt_ask"}
    assert told.value("payment_observed_decisions_total", **asked) == 2
    no_operation = {"provider": "acme", "operation": "none", "kind": "none"}
    refused = {**no_operation, "class": "none", "action": "refused", "rule": "body-unreadable"}
    assert told.value("payment_observed_decisions_total", **refused) == 1


def test_a_name_that_no_policy_gave_is_folded(told: Told) -> None:
    told.tell(CallShadowed("somebody", "something", "refused", "key-required"))
    stranger = {"provider": "other", "operation": "other", "kind": "unknown"}
    labels = {**stranger, "class": "none", "action": "refused", "rule": "key-required"}
    assert told.value("payment_observed_decisions_total", **labels) == 1


def test_a_row_is_counted_for_calls_that_pass_and_for_attempts_in_force(told: Told) -> None:
    labels = {**ACME, "row": "answers.charge[0]"}
    told.tell(ASKED)
    assert told.value("payment_observed_rows_total", **labels) == 1
    told.tell(AttemptFinished(operation(), replace(attempt(), classification=WATCHED), decision()))
    assert told.value("payment_observed_rows_total", **labels) == 2
    told.tell(AttemptFinished(operation(), attempt(), decision()))
    assert told.value("payment_observed_rows_total", **labels) == 2


def test_rows_are_bounded(told: Told) -> None:
    for number in range(300):
        watched = replace(UNREAD, shadow_match=ShadowMatch(f"classify[{number}]", ResultClass.FAILED))
        told.tell(replace(ASKED, classification=watched))
    families = {family.name: family for family in told.metrics.registry.collect()}
    rows = {sample.labels["row"] for sample in families["payment_observed_rows"].samples}
    assert len(rows) == 101
    assert "other" in rows
