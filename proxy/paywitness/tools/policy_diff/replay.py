"""One recorded operation under two policies: where they would first have done something else. By the core's functions.

The journal keeps what was seen of each attempt (phase, bytes, fault, status) and what that was read as; whole answers
only of operations that they settled. Of an answer that is gone, a row is known to match or not only where it is the
one that read it then, or one that was passed over then; else the operation cannot be replayed, and that is said.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace

from paywitness.core.bodies.tree import Encoding, Tree
from paywitness.core.classify import SUCCESS_IN_ERROR, ClassifyRules, ResponseRule, classify
from paywitness.core.decide import Action, decide
from paywitness.core.errors import IllegalTransition
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import AttemptSummary, HistoryEntry, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.record import record
from paywitness.core.result import DOES_NOT_FIT, Classification, Effect, ResultClass
from paywitness.engine.calls.shadow import with_policy_timeouts
from paywitness.tools.policy_test.case import Precondition
from paywitness.tools.policy_test.case_evaluation import case_decision_context

RESPONSE_NOT_STORED = "an answer that a changed row would have to read is not kept"
GIVEN_UP_SOONER = "it was given up on sooner than the new policy would, so what would have come is not known"
NOTHING_DECIDED = "nothing was decided about it"
UNKNOWN_VOCABULARY = "it was recorded in words that this version does not know"
NOT_REACHABLE = "it went a way that neither policy goes"
_BUDGET_RULE = "no_effect_budget_exhausted"
_FIELDS_SET_BEFORE_SEND = frozenset({"money", "guard", "stamp", "unstamped", "distinct", "first_sent_at"})


class NotReplayed(Exception):
    """Why an operation cannot be replayed, in words."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What one policy makes of one moment of an operation."""

    result_class: str
    effect: str
    action: Action
    because: str

    def __str__(self) -> str:
        return f"{self.action} by {self.because}, read as {self.result_class} ({self.effect})"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the two first part."""

    when: str  # after attempt 2, when it was repeated
    old: ReplayStep
    new: ReplayStep


@dataclass(frozen=True, slots=True)
class ReplayResult:
    divergence: Divergence | None  # None: both go the same way to the end
    as_recorded: bool  # the old policy decides what was decided then, as far as they go the same way


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """What is known of an operation: the record of it, the answer that is kept, the rules it was read by then."""

    operation: Operation
    history: tuple[HistoryEntry, ...]
    response: Response | None = None
    rules: ClassifyRules | None = None


def replay(recorded: RecordedOperation, old: Policy, new: Policy) -> ReplayResult:
    """The operation under both, up to where they part. Raises NotReplayed."""
    was, now = (_PolicyReplay(recorded, policy, old.timeouts.first_byte_s) for policy in (old, new))
    decided, as_recorded = False, True
    tries = 0
    for entry in recorded.history:
        repeated = entry.attempt is None and Event.RESEND_RECORDED in entry.events and entry.source == "caller"
        if entry.attempt is None and not repeated:
            continue
        tries = 0 if repeated else tries + 1
        when = "when it was repeated" if entry.attempt is None else f"after attempt {entry.attempt.number}"
        try:
            steps = was.step(entry, tries), now.step(entry, tries)
        except IllegalTransition:
            raise NotReplayed(NOT_REACHABLE) from None
        decided = True
        as_recorded = as_recorded and entry.action in {"", steps[0].action}
        if steps[0] != steps[1]:
            return ReplayResult(Divergence(when, *steps), as_recorded)
    if not decided:
        raise NotReplayed(NOTHING_DECIDED)
    return ReplayResult(None, as_recorded)


class _PolicyReplay:
    """The way of an operation under one policy."""

    def __init__(self, recorded: RecordedOperation, policy: Policy, first_byte_waited_s: float) -> None:
        self._recorded = recorded
        self._policy = policy
        self._first_byte_waited_s = first_byte_waited_s  # for an answer to begin: the old policy's patience
        self._operation = _unsent(recorded.operation, policy)
        self._last_answered_attempt = _attempt_of_response(recorded)

    def step(self, entry: HistoryEntry, tries: int) -> ReplayStep:
        first_sent_at = self._recorded.operation.first_sent_at or self._recorded.operation.created_at
        precondition = Precondition(
            age_s=max(0.0, entry.at - first_sent_at),
            tries=tries if entry.source == "caller" else None,
            background=entry.source != "caller",
        )
        policy, attempt = self._policy, entry.attempt
        if attempt is None:
            context = case_decision_context(policy, self._operation, precondition, None, None)
            decision = decide(context)
            return ReplayStep("none", "none", decision.action, decision.because)
        evidence, read = self._read(attempt)
        if attempt.number > self._operation.attempts:
            doubted = self._operation.state is State.UNKNOWN
            self._operation = advance(self._operation, Event.RESEND_RECORDED if doubted else Event.SEND_RECORDED)
        self._operation, _ = conclude(self._operation, attempt.number, read, policy.contract)
        context = case_decision_context(policy, self._operation, precondition, evidence, read)
        if entry.because == _BUDGET_RULE:
            context = replace(context, budget_allows=False)
        decision = decide(context)
        return ReplayStep(read.result_class, read.effect, decision.action, decision.because)

    def _read(self, attempt: AttemptSummary) -> tuple[Evidence, Classification]:
        operation, rules, first_byte_s = (
            self._recorded.operation,
            self._policy.classify,
            self._policy.timeouts.first_byte_s,
        )
        if attempt.fault == WireFault.FIRST_BYTE_TIMEOUT and first_byte_s > self._first_byte_waited_s:
            raise NotReplayed(GIVEN_UP_SOONER)
        if attempt.status_code is not None and first_byte_s < min(self._first_byte_waited_s, attempt.duration_s):
            evidence = with_policy_timeouts(_evidence(attempt, None), self._policy)
            return evidence, classify(evidence, rules)
        expected = operation.expected_payment
        stored_response = self._recorded.response if attempt.number == self._last_answered_attempt else None
        if stored_response is not None or attempt.status_code is None:
            evidence = _evidence(attempt, stored_response)
            return evidence, replace(classify(evidence, rules, expected), shadow_match=None)
        return _classified_from_summary(attempt, rules, self._recorded.rules)


def _unsent(operation: Operation, policy: Policy) -> Operation:
    """The operation before its first attempt, as this policy would have started it."""
    defaults = {
        field.name: field.default
        for field in fields(operation)
        if field.default is not MISSING and field.name not in _FIELDS_SET_BEFORE_SEND
    }
    return operation.changed(**defaults, upstream=policy.upstream)


def _attempt_of_response(recorded: RecordedOperation) -> int | None:
    """The attempt that the kept answer is of."""
    if recorded.response is None:
        return None
    status_code = recorded.response.status_code
    attempts = [entry.attempt for entry in recorded.history if entry.attempt is not None]
    fitting = [attempt.number for attempt in attempts if attempt.status_code == status_code]
    return fitting[-1] if fitting else None


def _evidence(attempt: AttemptSummary, response: Response | None) -> Evidence:
    try:
        phase = NetworkPhase[attempt.phase.upper()]
        fault = WireFault(attempt.fault) if attempt.fault is not None else None
    except (KeyError, ValueError):
        raise NotReplayed(UNKNOWN_VOCABULARY) from None
    return Evidence(
        phase,
        attempt.bytes_written,
        fault,
        response,
        attempt.detail,
        attempt.duration_s,
        reset_by_us=attempt.reset_by_us,
    )


# --- Responses that were erased


@record
class _ReconstructedResponseRule(ResponseRule):
    """A row that is asked about an answer which nobody has any more."""

    matched: bool | None = None  # what is known of it
    recorded_class: ResultClass | None = None

    def read(self, response: Response, tree: Tree) -> ResultClass | None:
        if self.status_codes is not None and response.status_code not in self.status_codes:
            return None
        if self.matched is not None:
            return self.recorded_class if self.matched else None
        if self.observe:
            return None
        if self.when is None and self.code is None and not self.headers:
            return self.result_class
        raise NotReplayed(RESPONSE_NOT_STORED)


def _classified_from_summary(
    attempt: AttemptSummary, rules: ClassifyRules, then: ClassifyRules | None
) -> tuple[Evidence, Classification]:
    """What the rules make of an answer of which only the status, and what was read of it then, are known."""
    said = attempt.classification
    if rules == then:
        stub = Response(attempt.status_code or 0, b"", (), b"")
        return _evidence(attempt, stub), replace(said, shadow_match=None)
    if said.rule in {DOES_NOT_FIT, SUCCESS_IN_ERROR} or attempt.status_code is None:
        raise NotReplayed(RESPONSE_NOT_STORED)
    known = _KnownMatches.of(said, then, attempt.status_code)
    rows, answers = (tuple(known.reconstruct(row) for row in listed) for listed in (rules.rows, rules.answers))
    # It shows nothing that a row knows, so it contradicts nothing; whether it could be read at all is known.
    body = b"" if said.lost else b"<answer/>" if rules.encoding is Encoding.XML else b'{"answer": {}}'
    evidence = _evidence(attempt, Response(attempt.status_code, b"", (), body))
    read = classify(evidence, replace(rules, rows=rows, answers=answers))
    shows_payment = read.effect is not Effect.NONE
    if then is not None and shows_payment and rules.fit != then.fit:
        raise NotReplayed(RESPONSE_NOT_STORED)
    return evidence, replace(read, reference=said.reference, shadow_match=None)


_Condition = tuple[object, object]  # headers and expression: what a row asks of an answer beside its status


@dataclass(frozen=True, slots=True)
class _KnownMatches:
    """What follows from how an answer was read then: which rows it did not match, and which one it did."""

    passed: tuple[ResponseRule, ...]
    false: tuple[_Condition, ...]
    matched: ResponseRule | None
    recorded_class: ResultClass

    @classmethod
    def of(cls, said: Classification, then: ClassifyRules | None, status_code: int) -> _KnownMatches:
        passed: list[ResponseRule] = []
        false: list[_Condition] = []
        for row in (*then.rows, *then.answers) if then is not None else ():
            if row.name == said.rule:
                return cls(tuple(passed), tuple(false), _nameless(row), said.result_class)
            if row.observe:
                continue
            passed.append(_nameless(row))
            # Else the code alone may have kept it from matching, or that it reads a success from an error.
            conclusive = row.code is None or row.otherwise is not None
            conclusive = conclusive and not (status_code >= 300 and any(map(row.says_done, row.result_classes)))
            if conclusive and (row.status_codes is None or status_code in row.status_codes):
                false.append(_condition(row))
        return cls(tuple(passed), tuple(false), None, said.result_class)

    def reconstruct(self, row: ResponseRule) -> _ReconstructedResponseRule:
        plain, condition = _nameless(row), _condition(row)
        matched: bool | None = None
        said: ResultClass | None = self.recorded_class
        if plain == self.matched:
            matched = True
        elif plain in self.passed or condition in self.false:
            matched = False
        elif self.matched is not None and row.code is None and condition == _condition(self.matched):
            matched, said = True, row.result_class
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        return _ReconstructedResponseRule(**values, matched=matched, recorded_class=said)


def _condition(row: ResponseRule) -> _Condition:
    return row.headers, row.when


def _nameless(row: ResponseRule) -> ResponseRule:
    """What it says, wherever it stands."""
    return replace(row, name="", observe=False)
