"""Logs: which record becomes a line, at which level, with which fields. How a line is written is `lines`' business.

INFO tells everything that is not a clean first-attempt success, so that a quiet log means a quiet system; DEBUG tells
every call. A doubt is a warning: nobody has done anything wrong, but money may have moved. An incident is an error.
A field has the same name here and in the admin's JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from proxy.core.circuit import CircuitState
from proxy.core.decide import Action
from proxy.core.operation import Operation, Outcome, State
from proxy.core.reading import Classification, Reading
from proxy.telemetry.records import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallObserved,
    CallRefused,
    CircuitChanged,
    CircuitForced,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    JournalRolledBack,
    NoticeReceived,
    OperationEnded,
    OutboxDelivered,
    PolicyReloaded,
    RetryRefused,
    ReviewOpened,
    ScheduleRanOut,
)

_FOREIGN_NAME_MAX = 64
# What a webhook that changes nothing comes to: as many as there are payments.
_QUIET_NOTICES = frozenset({"accepted", "duplicate", "nothing_new"})
_WORSE = frozenset({CircuitState.OPEN, CircuitState.DEGRADED})
_OWN_ANSWERS = frozenset({EvidenceKind.RESPONSE, EvidenceKind.REPLAY})


class Logs:
    """Writes records to a logger. `clean_level` is the level of what went well at the first try."""

    def __init__(self, logger: logging.Logger, clean_level: int = logging.DEBUG) -> None:
        self._logger = logger
        self._clean_level = clean_level

    def attempt_finished(self, record: AttemptFinished) -> None:
        operation = record.operation
        clean = operation.state is State.SUCCEEDED and operation.attempts == 1 and operation.incident is None
        level = self._clean_level if clean else logging.INFO
        if not self._logger.isEnabledFor(level):
            return
        attempt, decision = record.attempt, record.decision
        classification = attempt.classification
        measured_s = record.upstream_duration_s
        self._write(
            level,
            "attempt_finished",
            {
                **_of(operation),
                "attempt": attempt.number,
                "phase": attempt.phase,
                "bytes_written": attempt.bytes_written,
                "fault": attempt.fault,
                "status_code": attempt.status_code,
                "reading": classification.reading,
                "effect": classification.effect,
                "rule": classification.rule,
                **_observed(classification),
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

    def call_answered(self, record: CallAnswered) -> None:
        notable = record.problem is not None or record.outcome is Outcome.UNKNOWN
        level = logging.INFO if notable else self._clean_level
        if not self._logger.isEnabledFor(level):
            return
        self._write(
            level,
            "call_answered",
            {
                "operation_id": record.operation_id,
                "trace_id": record.trace_id,
                "provider": record.provider,
                "operation": record.operation_name,
                "outcome": record.outcome,
                "status_code": record.status_code,
                "problem": record.problem,
                "replayed": record.replayed,
                "duration_ms": _milliseconds(record.duration_s),
            },
        )

    def call_refused(self, record: CallRefused) -> None:
        # The name may be anything that a caller wrote into a path.
        provider = record.provider[:_FOREIGN_NAME_MAX] if record.provider is not None else None
        self._write(logging.INFO, "call_refused", {"provider": provider, "reason": record.reason})

    def call_forwarded(self, record: CallForwarded) -> None:
        self._write(logging.DEBUG, "call_forwarded", {"provider": record.provider})

    def call_observed(self, record: CallObserved) -> None:
        read = record.classification
        clean = read is not None and read.reading is Reading.SUCCEEDED and record.action == Action.STOP
        level = self._clean_level if clean else logging.INFO
        if not self._logger.isEnabledFor(level):
            return
        fields = {
            "provider": record.provider,
            "operation": record.operation_name,
            "status_code": record.status_code,
            "reading": read.reading if read is not None else None,
            "effect": read.effect if read is not None else None,
            "rule": read.rule if read is not None else None,
            **(_observed(read) if read is not None else {}),
            "would_have": record.action,
            "because": record.because,
            "duration_ms": _milliseconds(record.duration_s),
        }
        self._write(level, "call_observed", fields)

    def operation_ended(self, record: OperationEnded) -> None:
        # An end by its own answer stands in the attempt's line already.
        level = logging.DEBUG if record.evidence_kind in _OWN_ANSWERS else logging.INFO
        if not self._logger.isEnabledFor(level):
            return
        self._write(level, "operation_ended", {**_end_of(record.operation), "evidence": record.evidence_kind})

    def doubt_opened(self, record: DoubtOpened) -> None:
        operation = record.operation
        fields = {"state": operation.state, "doubt": sorted(operation.doubt), "reading": operation.reading}
        self._write(logging.WARNING, "doubt_opened", {**_of(operation), **_money(operation), **fields})

    def doubt_closed(self, record: DoubtClosed) -> None:
        fields = {"evidence": record.evidence_kind, "age_s": round(record.age_s, 3)}
        self._write(logging.INFO, "doubt_closed", {**_end_of(record.operation), **fields})

    def incident_opened(self, record: IncidentOpened) -> None:
        self._write(logging.ERROR, "incident_opened", {**_end_of(record.operation), "kind": record.kind})

    def review_opened(self, record: ReviewOpened) -> None:
        self._write(logging.WARNING, "review_opened", _end_of(record.operation))

    def inquiry_finished(self, record: InquiryFinished) -> None:
        finding = record.finding
        fields = {
            "source": finding.source,
            "found": finding.found,
            "status_code": finding.status_code,
            "reading": finding.classification.reading if finding.classification is not None else None,
            "detail": finding.detail or None,
            "state": record.operation.state,
            "hedged": record.hedged or None,
            "duration_ms": _milliseconds(record.duration_s),
        }
        self._write(logging.INFO, "inquiry_finished", {**_of(record.operation), **fields})

    def notice_received(self, record: NoticeReceived) -> None:
        # The name may be anything that a stranger wrote into a path.
        provider = record.provider[:_FOREIGN_NAME_MAX] if record.provider is not None else None
        level = logging.DEBUG if record.result in _QUIET_NOTICES else logging.INFO
        self._write(level, "notice_received", {"provider": provider, "result": record.result})

    def fell_back(self, record: FellBack) -> None:
        fields = {"from_provider": record.from_provider, "to_provider": record.to_provider, "reason": record.reason}
        self._write(logging.INFO, "fell_back", {"operation_id": record.operation_id, **fields})

    def schedule_ran_out(self, record: ScheduleRanOut) -> None:
        fields = {"looks": record.operation.looks, "state": record.operation.state}
        self._write(
            logging.WARNING, "schedule_ran_out", {**_of(record.operation), **_money(record.operation), **fields}
        )

    def outbox_delivered(self, record: OutboxDelivered) -> None:
        level = logging.WARNING if record.failed else logging.DEBUG
        name = "outbox_delivery_failed" if record.failed else "outbox_delivered"
        self._write(level, name, {"count": record.count, "lag": record.lag})

    def retry_refused(self, record: RetryRefused) -> None:
        names = {"provider": record.provider, "operation": record.operation_name}
        fields = {"operation_id": record.operation_id, **names, "scope": record.scope}
        self._write(logging.INFO, "retry_refused", fields)

    def circuit_changed(self, record: CircuitChanged) -> None:
        level = logging.WARNING if record.after in _WORSE else logging.INFO
        fields = {
            "provider": record.provider,
            "group": record.group,
            "before": record.before,
            "state": record.after,
            "fleet": record.fleet,
        }
        self._write(level, "circuit_changed", fields)

    def circuit_forced(self, record: CircuitForced) -> None:
        """What a person did is kept, whatever came of it."""
        fields = {
            "provider": record.provider,
            "group": record.group,
            "state": record.state,
            "for_s": record.for_s if record.state is not None else None,
            "actor": record.actor,
            "reason": record.reason,
            "confirmed": record.confirmed,
        }
        name = "circuit_forced" if record.state is not None else "circuit_released"
        self._write(logging.WARNING, name, fields)

    def journal_rolled_back(self, record: JournalRolledBack) -> None:
        self._write(logging.ERROR, "journal_rolled_back", {"detail": record.detail})

    def journal_called(self, record: JournalCalled) -> None:
        level = logging.WARNING if record.failed else logging.DEBUG
        if not self._logger.isEnabledFor(level):
            return
        name = "journal_call_failed" if record.failed else "journal_called"
        self._write(level, name, {"call": record.call, "duration_ms": _milliseconds(record.duration_s)})

    def policy_reloaded(self, record: PolicyReloaded) -> None:
        if record.ok:
            self._write(logging.INFO, "policy_in_force", {"revision": record.revision})
            return
        fields = {"revision_in_force": record.revision, "problems": list(record.problems)}
        self._write(logging.ERROR, "policy_refused", fields)

    def _write(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        told = {name: value for name, value in fields.items() if value is not None}
        self._logger.log(level, event, extra={"fields": told})


def _observed(read: Classification) -> dict[str, object]:
    """The row that is only watched and would have read it first, where there is one."""
    return {"observed": read.observed.row, "observed_as": read.observed.reading} if read.observed is not None else {}


def _of(operation: Operation) -> dict[str, object]:
    return {"operation_id": operation.id, "provider": operation.provider, "operation": operation.operation}


def _money(operation: Operation) -> dict[str, object]:
    if operation.money is None:
        return {}
    return {"amount": str(operation.money.major), "currency": operation.money.currency}


def _end_of(operation: Operation) -> dict[str, object]:
    return {
        **_of(operation),
        **_money(operation),
        "state": operation.state,
        "outcome": operation.outcome,
        "attempts": operation.attempts,
        "because": operation.because or None,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
