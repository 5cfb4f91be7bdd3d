"""Logs: which event becomes a line, at which level, with which fields, and how the line is written.

INFO has every event that is not a clean first-attempt success, so that a quiet log means a quiet system. DEBUG has
every call. A doubt is a warning: nobody has done anything wrong, but money may have moved. An incident is an error. A
field has the same name here and in the admin port's JSON.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePath
from typing import TextIO

from paywitness.clock import SystemClock
from paywitness.core.circuit import CircuitState
from paywitness.core.decide import Action
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.redact import redact, redact_tree
from paywitness.core.result import Classification, ResultClass
from paywitness.repeated_lines import DependencyOutage, OutageLine, OutageReport, RepeatedLines
from paywitness.telemetry.events import (
    ActionExpired,
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    CallShadowed,
    CircuitChanged,
    CircuitForced,
    ClockJumped,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    JournalUnanswered,
    LimitChecked,
    OperationEnded,
    OutboxDelivered,
    PaymentCommandRun,
    PolicyReloaded,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
    WebhookReceived,
)

# --- Log format
# Lines: their format, and the stream they go to. One line an event; JSON for machines, text for a terminal.
#
# Every line of the process passes here, those of libraries too, and is redacted here as the last defence. An exception
# is logged by its class and its place, never by its message, which may carry a caller's data.

LOGGER_NAME = "paywitness"

_FRAMES_MAX = 5  # frames of an exception's place: enough to find it, short enough for a line
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


class LogFormat(StrEnum):
    AUTO = "auto"  # text on a terminal, else JSON
    JSON = "json"
    TEXT = "text"


class JsonLogFormatter(logging.Formatter):
    """One JSON object a line: `at`, `level`, `event`, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": iso(record.created), "level": record.levelname.lower(), **_event_fields(record)}
        return json.dumps(redact_tree(line), ensure_ascii=False, default=str, separators=(",", ":"))


class TextLogFormatter(logging.Formatter):
    """For a person: time, level, the event in words, then `name=value`. Control characters are made visible."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        level = record.levelname.lower()
        event_fields = _event_fields(record)
        event = str(event_fields.pop("event")).replace("_", " ")
        fields = " ".join(f"{name}={_value_text(value)}" for name, value in event_fields.items())
        text = printable(redact(f"{event}  {fields}" if fields else event))
        if not self._colour:
            return f"{at} {level:<7} {text}"
        return f"{_DIM}{at}{_PLAIN} {_COLOURS.get(level, '')}{level:<7}{_PLAIN} {text}"


def _event_fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    held_back = {"left_out": left_out} if (left_out := getattr(record, "left_out", 0)) else {}
    if isinstance(fields, dict):
        return {"event": record.getMessage(), **fields, **held_back}
    event_fields: dict[str, object] = {"event": "note", "message": record.getMessage(), "logger": record.name}
    event_fields |= held_back
    if record.exc_info and record.exc_info[1] is not None:
        event_fields["error"] = type(record.exc_info[1]).__name__
        event_fields["place"] = raised_at(record.exc_info[1])
    return event_fields


def raised_at(error: BaseException) -> str:
    """The place at which an exception was raised: file, line and function, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
    return " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def _value_text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(str(item) for item in value) + "]"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def printable(text: str) -> str:
    """The text without characters that could control a terminal or begin another line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def iso(at: float) -> str:
    """Wall time in ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def install_logging(stream: TextIO, level: int, line_format: LogFormat = LogFormat.AUTO) -> Callable[[], None]:
    """Send every line of the process to the stream: ours from `level` on, those of libraries from WARNING. Returns a
    function that undoes it."""
    text = line_format is LogFormat.TEXT or (line_format is LogFormat.AUTO and stream.isatty())
    root, ours = logging.getLogger(), logging.getLogger(LOGGER_NAME)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLogFormatter(colour=stream.isatty()) if text else JsonLogFormatter())
    handler.addFilter(RepeatedLines())
    earlier = list(root.handlers), root.level, ours.level
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    ours.setLevel(level)

    def undo() -> None:
        root.handlers, root_level, our_level = earlier
        root.setLevel(root_level)
        ours.setLevel(our_level)

    return undo


# --- Log events

_FOREIGN_NAME_MAX = 64
# Results of webhooks that change nothing: there are as many of these as there are payments.
_QUIET_WEBHOOK_RESULTS = frozenset({"accepted", "duplicate", "nothing_new", "too_many"})
_WORSE = frozenset({CircuitState.OPEN, CircuitState.DEGRADED})
_OWN_RESPONSES = frozenset({EvidenceKind.RESPONSE, EvidenceKind.REPLAY})


_PAYMENT_COMMANDS = {"adopt": "payment_adopted", "not-paid": "payment_declared_unpaid"}


class LogWriter:
    """Writes events to a logger. `clean_level` is the level for attempts that succeeded at the first try."""

    def __init__(
        self,
        logger: logging.Logger,
        clean_level: int = logging.DEBUG,
        mono: Callable[[], float] = SystemClock.mono,
    ) -> None:
        self.logger = logger
        self._clean_level = clean_level
        self._journal, self._sink = DependencyOutage(mono), DependencyOutage(mono)

    def attempt_finished(self, event: AttemptFinished) -> None:
        operation = event.operation
        clean = operation.state is State.SUCCEEDED and operation.attempts == 1 and operation.incident is None
        level = self._clean_level if clean else logging.INFO
        if not self.logger.isEnabledFor(level):
            return
        attempt, decision = event.attempt, event.decision
        classification = attempt.classification
        measured_s = event.upstream_duration_s
        self._write(
            level,
            "attempt_finished",
            {
                **_operation_fields(operation),
                "attempt": attempt.number,
                "phase": attempt.phase,
                "bytes_written": attempt.bytes_written,
                "fault": attempt.fault,
                "status_code": attempt.status_code,
                "reading": classification.result_class,
                "effect": classification.effect,
                "rule": classification.rule,
                **_shadow_fields(classification),
                "duration_ms": _milliseconds(attempt.duration_s if measured_s is None else measured_s),
                "detail": attempt.detail,
                "state": operation.state,
                "doubt": sorted(operation.doubt),
                "action": decision.action,
                "because": decision.because,
                "delay_s": round(decision.delay_s, 3),
                "effect_may_exist": decision.effect_may_exist,
                "revision": operation.revision,
            },
        )

    def call_answered(self, event: CallAnswered) -> None:
        if event.problem is Problem.JOURNAL_UNAVAILABLE:
            self._journal.refused()
        notable = event.problem is not None or event.outcome is Outcome.UNKNOWN
        level = logging.INFO if notable else self._clean_level
        if not self.logger.isEnabledFor(level):
            return
        self._write(
            level,
            "call_answered",
            {
                "operation_id": event.operation_id,
                "trace_id": event.trace_id,
                "provider": event.provider,
                "operation": event.operation_name,
                "outcome": event.outcome,
                "status_code": event.status_code,
                "problem": event.problem,
                "replayed": event.replayed,
                "duration_ms": _milliseconds(event.duration_s),
            },
        )

    def call_refused(self, event: CallRefused) -> None:
        # The name may be anything that a caller wrote into a path.
        provider = event.provider[:_FOREIGN_NAME_MAX] if event.provider is not None else None
        self._write(logging.INFO, "call_refused", {"provider": provider, "reason": event.reason})

    def limit_checked(self, event: LimitChecked) -> None:
        level = logging.DEBUG if event.result == "unknown" else logging.WARNING
        what = {"provider": event.provider, "operation_name": event.operation, "result": event.result}
        self._write(level, "limit_checked", what)

    def call_forwarded(self, event: CallForwarded) -> None:
        self._write(logging.DEBUG, "call_forwarded", {"provider": event.provider})

    def call_shadowed(self, event: CallShadowed) -> None:
        read = event.classification
        clean = read is not None and read.result_class is ResultClass.SUCCEEDED and event.action == Action.STOP
        level = self._clean_level if clean else logging.INFO
        if not self.logger.isEnabledFor(level):
            return
        fields = {
            "provider": event.provider,
            "operation": event.operation_name,
            "status_code": event.status_code,
            "reading": read.result_class if read is not None else None,
            "effect": read.effect if read is not None else None,
            "rule": read.rule if read is not None else None,
            **(_shadow_fields(read) if read is not None else {}),
            "would_have": event.action,
            "because": event.because,
            "duration_ms": _milliseconds(event.duration_s),
        }
        self._write(level, "call_observed", fields)

    def operation_ended(self, event: OperationEnded) -> None:
        # The attempt's line already has an end by the attempt's own response.
        level = logging.DEBUG if event.evidence_kind in _OWN_RESPONSES else logging.INFO
        if not self.logger.isEnabledFor(level):
            return
        self._write(level, "operation_ended", {**_end_fields(event.operation), "evidence": event.evidence_kind})

    def doubt_opened(self, event: DoubtOpened) -> None:
        operation = event.operation
        fields = {"state": operation.state, "doubt": sorted(operation.doubt), "reading": operation.result_class}
        self._write(
            logging.WARNING, "doubt_opened", {**_operation_fields(operation), **_money_fields(operation), **fields}
        )

    def doubt_closed(self, event: DoubtClosed) -> None:
        fields = {"evidence": event.evidence_kind, "age_s": round(event.age_s, 3)}
        self._write(logging.INFO, "doubt_closed", {**_end_fields(event.operation), **fields})

    def incident_opened(self, event: IncidentOpened) -> None:
        fields = {**_end_fields(event.operation), **_other_payment_fields(event.operation), "kind": event.kind}
        self._write(logging.ERROR, "incident_opened", fields)

    def review_opened(self, event: ReviewOpened) -> None:
        self._write(logging.WARNING, "review_opened", _end_fields(event.operation))

    def inquiry_finished(self, event: InquiryFinished) -> None:
        finding = event.finding
        fields = {
            "source": finding.source,
            "found": finding.kind,
            "status_code": finding.status_code,
            "reading": finding.classification.result_class if finding.classification is not None else None,
            "detail": finding.detail or None,
            "reason": event.reason,
            "state": event.operation.state,
            "hedged": event.hedged or None,
            "duration_ms": _milliseconds(event.duration_s),
        }
        self._write(logging.INFO, "inquiry_finished", {**_operation_fields(event.operation), **fields})

    def webhook_received(self, event: WebhookReceived) -> None:
        # The name may be anything that a stranger wrote into a path.
        provider = event.provider[:_FOREIGN_NAME_MAX] if event.provider is not None else None
        level = logging.DEBUG if event.result in _QUIET_WEBHOOK_RESULTS else logging.INFO
        # The event was called `notice_received`. Searches for that name still find the line, for one release.
        fields = {"provider": provider, "result": event.result, "formerly": "notice_received"}
        self._write(level, "webhook_received", fields)

    def fell_back(self, event: FellBack) -> None:
        fields = {"from_provider": event.from_provider, "to_provider": event.to_provider, "reason": event.reason}
        self._write(logging.INFO, "fell_back", {"operation_id": event.operation_id, **fields})

    def action_expired(self, event: ActionExpired) -> None:
        operation = event.operation
        fields = {"because": operation.because, "cancel_wanted": operation.cancel_wanted or None}
        self._write(
            logging.INFO, "action_expired", {**_operation_fields(operation), **_money_fields(operation), **fields}
        )

    def schedule_ran_out(self, event: ScheduleRanOut) -> None:
        fields = {"looks": event.operation.checks_done, "state": event.operation.state}
        self._write(
            logging.WARNING,
            "schedule_ran_out",
            {**_operation_fields(event.operation), **_money_fields(event.operation), **fields},
        )

    def outbox_delivered(self, event: OutboxDelivered) -> None:
        if event.failed:
            fields = {"why": event.why, "lag": event.lag, "formerly": "outbox_delivery_failed"}
            level = logging.ERROR if event.gone else logging.WARNING
            self._write_outage("sink", self._sink.failed(), fields, level)
        elif event.count:
            self._write_outage("sink", self._sink.worked(), {"lag": event.lag})
        name = "outbox_delivery_failed" if event.failed else "outbox_delivered"
        self._write(logging.DEBUG, name, {"count": event.count, "lag": event.lag})

    def retry_refused(self, event: RetryRefused) -> None:
        names = {"provider": event.provider, "operation": event.operation_name}
        fields = {"operation_id": event.operation_id, **names, "scope": event.scope}
        self._write(logging.INFO, "retry_refused", fields)

    def circuit_changed(self, event: CircuitChanged) -> None:
        level = logging.WARNING if event.after in _WORSE else logging.INFO
        fields = {
            "provider": event.provider,
            "group": event.group,
            "before": event.before,
            "state": event.after,
            "fleet": event.fleet,
        }
        self._write(level, "circuit_changed", fields)

    def circuit_forced(self, event: CircuitForced) -> None:
        """Log every operator command, whatever came of it."""
        fields = {
            "provider": event.provider,
            "group": event.group,
            "state": event.state,
            "for_s": event.for_s if event.state is not None else None,
            "actor": event.actor,
            "reason": event.reason,
            "confirmed": event.confirmed,
        }
        name = "circuit_forced" if event.state is not None else "circuit_released"
        self._write(logging.WARNING, name, fields)

    def payment_command_run(self, event: PaymentCommandRun) -> None:
        """Log every operator command on a payment."""
        fields = {
            "provider": event.provider,
            "payment": event.payment,
            "stated": event.stated,
            "actor": event.actor,
            "reason": event.reason,
        }
        self._write(logging.WARNING, _PAYMENT_COMMANDS.get(event.action, "balance_stated"), fields)

    def journal_rolled_back(self, event: JournalRolledBack) -> None:
        self._write(logging.ERROR, "journal_rolled_back", {"detail": event.detail})

    def clock_jumped(self, event: ClockJumped) -> None:
        fields = {"left_out_s": round(event.left_out_s, 3), "added_s": round(event.added_s, 3)}
        self._write(logging.WARNING, "clock_gap" if event.gap else "clock_jumped", fields)

    def journal_called(self, event: JournalCalled) -> None:
        if event.failed:
            self._write_journal_down({"call": event.call})
        elif self._journal.is_down:
            self._write_outage("journal", self._journal.worked(), {"call": event.call})
        if not self.logger.isEnabledFor(logging.DEBUG):
            return
        name = "journal_call_failed" if event.failed else "journal_called"
        self._write(logging.DEBUG, name, {"call": event.call, "duration_ms": _milliseconds(event.duration_s)})

    def journal_unanswered(self, event: JournalUnanswered) -> None:
        self._write_journal_down({"waits": event.waits})
        self._write(logging.DEBUG, "journal_unanswered", {"waits": event.waits})

    def _write_journal_down(self, fields: Mapping[str, object]) -> None:
        self._write_outage("journal", self._journal.failed(), {**fields, "formerly": "journal_call_failed"})

    def _write_outage(
        self, what: str, report: OutageReport | None, fields: Mapping[str, object], level: int = logging.WARNING
    ) -> None:
        """One line when it goes down, one a minute, one when it is back: `journal_down`, `journal_back`."""
        if report is None:
            return
        down_s = report.down_s if report.line is not OutageLine.DOWN else None
        counts = {"down_s": down_s, "failures": report.failures, "refused": report.refused or None}
        self._write(level, f"{what}_{report.line}", {**counts, **fields})

    def policy_reloaded(self, event: PolicyReloaded) -> None:
        if event.ok:
            self._write(logging.INFO, "policy_in_force", {"revision": event.revision})
            return
        fields = {"revision_in_force": event.revision, "problems": list(event.problems)}
        self._write(logging.ERROR, "policy_refused", fields)

    def _write(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        present = {name: value for name, value in fields.items() if value is not None}
        self.logger.log(level, event, extra={"fields": present})


def _shadow_fields(read: Classification) -> dict[str, object]:
    """The row in shadow mode that would have matched the response first, if there is one."""
    return (
        {"observed": read.shadow_match.rule, "observed_as": read.shadow_match.result_class}
        if read.shadow_match is not None
        else {}
    )


def _operation_fields(operation: Operation) -> dict[str, object]:
    return {"operation_id": operation.id, "provider": operation.provider, "operation": operation.operation}


def _money_fields(operation: Operation) -> dict[str, object]:
    if operation.money is None:
        return {}
    return {"amount": str(operation.money.major), "currency": operation.money.currency}


def _other_payment_fields(operation: Operation) -> dict[str, object]:
    """The other payment of an incident."""
    other = operation.other_payment
    if other is None:
        return {}
    money = other.money
    return {
        "other_operation_id": other.operation_id or None,
        "other_provider": other.provider,
        "other_amount": str(money.major) if money is not None else None,
        "other_currency": money.currency if money is not None else None,
    }


def _end_fields(operation: Operation) -> dict[str, object]:
    return {
        **_operation_fields(operation),
        **_money_fields(operation),
        "state": operation.state,
        "outcome": operation.outcome,
        "attempts": operation.attempts,
        "because": operation.because or None,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
