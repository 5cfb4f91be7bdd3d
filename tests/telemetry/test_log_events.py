"""Which lines are written, what they say, and what they never say."""

from __future__ import annotations

import io
import json
import logging

import pytest

from paywitness.core.decide import Action
from paywitness.core.money import Money
from paywitness.core.operation import OtherPayment, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.result import ResultClass
from paywitness.repeated_lines import REPEATS
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    IncidentOpened,
    JournalCalled,
    JournalUnanswered,
    LimitChecked,
    OperationEnded,
    OutboxDelivered,
    PolicyReloaded,
    ReviewOpened,
    TelemetryEvent,
    WebhookReceived,
)
from paywitness.telemetry.logs import LogFormat, LogWriter, install_logging
from tests.limits.world import HandClock
from tests.telemetry.conftest import Told, at_debug
from tests.telemetry.samples import attempt, decision, operation

CARD = "4242 4242 4242 4242"

CLEAN: list[TelemetryEvent] = [
    AttemptFinished(operation(), attempt(), decision()),
    OperationEnded(operation(), EvidenceKind.RESPONSE),
    CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.09),
    JournalCalled("claim", 0.001),
    CallForwarded("acme"),
]
NOTABLE: list[tuple[TelemetryEvent, str, str]] = [
    (AttemptFinished(operation(attempts=2), attempt(number=2), decision()), "info", "attempt_finished"),
    (
        AttemptFinished(operation(State.FAILED), attempt(ResultClass.ISSUER_HARD_DECLINE), decision()),
        "info",
        "attempt_finished",
    ),
    (
        CallAnswered("acme", "authorization", Outcome.UNKNOWN, 504, Problem.UNKNOWN, 20.0, operation_id="op_1"),
        "info",
        "call_answered",
    ),
    (CallRefused("acme", "overloaded"), "info", "call_refused"),
    (LimitChecked("acme", "sale", "exceeds"), "warning", "limit_checked"),
    (OperationEnded(operation(), EvidenceKind.WEBHOOK), "info", "operation_ended"),
    (DoubtOpened(operation(State.UNKNOWN)), "warning", "doubt_opened"),
    (DoubtClosed(operation(), EvidenceKind.INQUIRY, 42.0), "info", "doubt_closed"),
    (IncidentOpened(operation(State.FAILED), "success_after_failure"), "error", "incident_opened"),
    (ReviewOpened(operation(State.REQUIRES_REVIEW)), "warning", "review_opened"),
    (JournalCalled("record", 2.0, failed=True), "warning", "journal_down"),
    (JournalUnanswered("what is due"), "warning", "journal_down"),
    (OutboxDelivered(1, failed=True, lag=3, why="status 500"), "warning", "sink_down"),
    (OutboxDelivered(1, failed=True, lag=3, why="status 410", gone=True), "error", "sink_down"),
    (PolicyReloaded("r1", ok=True), "info", "policy_in_force"),
    (PolicyReloaded("r1", ok=False, problems=("acme.yaml:1:1: broken",)), "error", "policy_refused"),
]


def test_a_clean_call_writes_no_line_by_default(told: Told) -> None:
    for record in CLEAN:
        told.tell(record)
    assert told.lines() == []


@at_debug
def test_at_debug_every_record_is_a_line(told: Told) -> None:
    for record in CLEAN:
        told.tell(record)
    assert [line["level"] for line in told.lines()] == ["debug"] * len(CLEAN)


def test_clean_calls_can_be_told_at_info(told: Told) -> None:
    logs = LogWriter(logging.getLogger("paywitness.test"), clean_level=logging.INFO)
    logs.attempt_finished(AttemptFinished(operation(), attempt(), decision()))
    assert [line["event"] for line in told.lines()] == ["attempt_finished"]


@pytest.mark.parametrize(("record", "level", "event"), NOTABLE)
def test_what_is_not_clean_is_a_line(told: Told, record: TelemetryEvent, level: str, event: str) -> None:
    told.tell(record)
    assert [(line["level"], line["event"]) for line in told.lines()] == [(level, event)]


@at_debug
def test_a_webhooks_line_carries_the_name_that_it_had_before(told: Told) -> None:
    told.tell(WebhookReceived("acme", "accepted"))
    [line] = told.lines()
    assert (line["event"], line["formerly"]) == ("webhook_received", "notice_received")


def test_an_attempts_line_tells_the_evidence_its_meaning_and_the_decision(told: Told) -> None:
    lost = attempt(
        ResultClass.NETWORK_READ_TIMEOUT,
        phase="awaiting",
        status_code=None,
        fault="first_byte_timeout",
        detail="no byte of an answer within 5 s",
        duration_s=5.0031,
    )
    decided = decision(Action.STATUS_INQUIRY, "in_doubt_ask", delay_s=2.0)
    told.tell(AttemptFinished(operation(State.UNKNOWN), lost, decided))
    [line] = told.lines()
    del line["at"]
    assert line == {
        "level": "info",
        "event": "attempt_finished",
        "operation_id": "op_01JXQ6ZP00ABCDEFGHJKMNPQRS",
        "provider": "acme",
        "operation": "authorization",
        "attempt": 1,
        "phase": "awaiting",
        "bytes_written": 412,
        "fault": "first_byte_timeout",
        "reading": "network_read_timeout",
        "effect": "possible",
        "rule": "a_rule",
        "duration_ms": 5003.1,
        "detail": "no byte of an answer within 5 s",
        "state": "unknown",
        "doubt": [1],
        "action": "status_inquiry",
        "because": "in_doubt_ask",
        "delay_s": 2.0,
        "effect_may_exist": True,
        "revision": "0123456789abcdef",
    }


@at_debug
def test_no_line_holds_a_key_a_hash_or_a_card(told: Told) -> None:
    spilled = attempt(ResultClass.UNKNOWN_OUTCOME, detail=f"unexpected: card {CARD} cvc=987 Bearer canary-token")
    records = [record for record, _, _ in NOTABLE] + CLEAN
    records.append(AttemptFinished(operation(State.UNKNOWN), spilled, decision()))
    records.append(PolicyReloaded("r1", ok=False, problems=("acme.yaml:3:1: found 'sk_live_canary'",)))
    for record in records:
        told.tell(record)
    written = told.written()
    assert len(told.lines()) >= len(records)  # an outage is a line beside its call's
    for secret in (CARD, "4242", "987", "canary", "key-hash", "account-hash", "credential-hash", "fingerprint-hash"):
        assert secret not in written


def test_other_loggers_pass_the_same_filter(told: Told) -> None:
    logging.getLogger("paywitness.engine").info("kept %s", f"card {CARD}")
    logging.getLogger("some.library").warning("payload: %s", '{"cvc": "987"}')
    logging.getLogger("some.library").info("not ours, not shown")
    lines = told.lines()
    assert [line["event"] for line in lines] == ["note", "note"]
    assert lines[0]["message"] == "kept card ***"
    assert "987" not in told.written()


def test_an_exception_is_told_by_its_class_and_place_not_by_its_message(told: Told) -> None:
    try:
        raise ValueError("canary")
    except ValueError:
        logging.getLogger("paywitness.engine").exception("it broke")
    [line] = told.lines()
    assert line["error"] == "ValueError"
    assert line["place"].startswith("test_log_events.py:")
    assert "canary" not in told.stream.getvalue()


def test_telling_never_raises(told: Told) -> None:
    told.tell(object())  # type: ignore[arg-type]
    broken = AttemptFinished(operation(), None, decision())  # type: ignore[arg-type]
    told.tell(broken)
    assert [line["message"] for line in told.lines()] == [
        "a object was not told: KeyError",
        "a AttemptFinished was not told: AttributeError",
    ]


def test_an_invented_provider_name_is_cut(told: Told) -> None:
    told.tell(CallRefused("x" * 5000, "provider-not-allowed"))
    assert len(told.stream.getvalue()) < 300


# --- for a person


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_text_and_a_pipe_gets_json() -> None:
    for stream, is_text in ((Terminal(), True), (io.StringIO(), False)):
        undo = install_logging(stream, logging.INFO)
        LogWriter(logging.getLogger("paywitness.test")).doubt_opened(DoubtOpened(operation(State.UNKNOWN)))
        undo()
        assert stream.getvalue().startswith("{") is not is_text
    text = io.StringIO()
    undo = install_logging(text, logging.INFO, LogFormat.TEXT)
    LogWriter(logging.getLogger("paywitness.test")).doubt_opened(DoubtOpened(operation(State.UNKNOWN)))
    undo()
    assert "warning doubt opened  operation_id=op_01JXQ6ZP00ABCDEFGHJKMNPQRS provider=acme" in text.getvalue()
    assert "\x1b" not in text.getvalue()


def test_nothing_in_a_text_line_commands_the_terminal_or_begins_another_line() -> None:
    stream = Terminal()
    undo = install_logging(stream, logging.INFO)
    evil = attempt(ResultClass.UNKNOWN_OUTCOME, detail="\x1b[2Jgone\nforged line")
    LogWriter(logging.getLogger("paywitness.test")).attempt_finished(
        AttemptFinished(operation(State.UNKNOWN), evil, decision())
    )
    undo()
    assert "\x1b[2J" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_installing_can_be_undone() -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    install_logging(io.StringIO(), logging.DEBUG)()
    assert (list(root.handlers), root.level) == before


def test_a_json_line_stays_json_whatever_is_in_it(told: Told) -> None:
    logging.getLogger("paywitness.engine").info("note", extra={"fields": {"pan": 4242424242424242, "odd": {1, 2}}})
    [line] = [json.loads(text) for text in told.stream.getvalue().splitlines()]
    assert line["pan"] == "***"


def test_an_incident_says_both_amounts_and_which_operation_it_is_with(told: Told) -> None:
    other = OtherPayment("op_2", "globex", "ch_2", Money(4200, "EUR"))
    disputed = operation(State.SUCCEEDED, incident="another_amount", other_payment=other)
    told.tell(IncidentOpened(disputed, "another_amount"))
    [line] = told.lines()
    assert (line["amount"], line["currency"]) == ("12.50", "EUR")
    assert (line["other_amount"], line["other_currency"]) == ("42.00", "EUR")
    assert (line["other_operation_id"], line["other_provider"]) == ("op_2", "globex")


# --- outages


def test_a_journal_that_is_down_is_one_line_a_minute_with_how_long_and_how_many_were_refused(told: Told) -> None:
    clock = HandClock()
    logger = logging.getLogger("paywitness.test")
    tell = Telemetry(told.metrics, LogWriter(logger, mono=clock.mono)).emit
    refused = CallAnswered("acme", "sale", Outcome.NONE, 504, Problem.JOURNAL_UNAVAILABLE, 0.5)
    for quarter in range(4 * 90):
        clock.seconds = quarter / 4
        tell(JournalUnanswered("what is due"))
        if quarter % 40 == 0:
            tell(JournalCalled("claim", 0.5, failed=True))
            tell(refused)
    clock.seconds = 7530.0
    tell(JournalCalled("claim", 0.001))
    lines = [line for line in told.lines() if line["event"].startswith("journal_")]
    assert [line["event"] for line in lines] == ["journal_down", "journal_still_down", "journal_back"]
    assert [line["level"] for line in lines] == ["warning"] * 3
    assert [(line.get("down_s"), line.get("refused")) for line in lines] == [(None, None), (60.0, 6), (7530.0, 9)]
    assert lines[0]["waits"] == "what is due"
    assert {line.get("formerly") for line in lines[:2]} == {"journal_call_failed"}


def test_a_line_that_was_held_back_is_counted_in_the_next(told: Told) -> None:
    logger = logging.getLogger("paywitness.test")
    for seconds in (0.0, 1.0, 2.0, 61.0):
        record = logger.makeRecord("paywitness.test", logging.ERROR, "", 0, "it fails", (), None, extra=REPEATS)
        record.created += seconds
        logger.handle(record)
    assert [(line["message"], line.get("left_out")) for line in told.lines()] == [("it fails", None), ("it fails", 2)]
