"""One recorded operation under two policies, up to their first difference. It uses the core's functions.

The journal keeps a summary of each attempt (phase, bytes, fault, status, result class), and a whole response only for
operations that it ended. If a response is gone, we know of only some rows whether they match it: the row that
classified it then, and the rows that were tried before that one. If any other row would have to read it, the operation
cannot be replayed, and the report says so.
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
    """The operation cannot be replayed. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The result of one policy at one step of an operation."""

    result_class: str
    effect: str
    action: Action
    because: str

    def __str__(self) -> str:
        return f"{self.action} by {self.because}, read as {self.result_class} ({self.effect})"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step with different results."""

    when: str  # "after attempt 2", "when it was repeated"
    old: ReplayStep
    new: ReplayStep


@dataclass(frozen=True, slots=True)
class ReplayResult:
    divergence: Divergence | None  # None: no difference up to the end
    as_recorded: bool  # the old policy makes the recorded decisions, up to the divergence


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """The data of an operation: its record, its stored response, and the rules that classified its responses."""

    operation: Operation
    history: tuple[HistoryEntry, ...]
    response: Response | None = None
    rules: ClassifyRules | None = None


def replay(recorded: RecordedOperation, old: Policy, new: Policy) -> ReplayResult:
    """Replay the operation under both policies up to their first difference. Raises NotReplayed."""
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
    """Replays an operation under one policy."""

    def __init__(self, recorded: RecordedOperation, policy: Policy, first_byte_waited_s: float) -> None:
        self._recorded = recorded
        self._policy = policy
        self._first_byte_waited_s = first_byte_waited_s  # the old policy's timeout for the first byte
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
    """The number of the attempt that the stored response belongs to."""
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
    """A row that is applied to a response that is no longer stored."""

    matched: bool | None = None  # whether it matched; None: unknown
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
    """Classify a response of which only the status and the former classification are known."""
    said = attempt.classification
    if rules == then:
        stub = Response(attempt.status_code or 0, b"", (), b"")
        return _evidence(attempt, stub), replace(said, shadow_match=None)
    if said.rule in {DOES_NOT_FIT, SUCCESS_IN_ERROR} or attempt.status_code is None:
        raise NotReplayed(RESPONSE_NOT_STORED)
    known = _KnownMatches.of(said, then, attempt.status_code)
    rows, answers = (tuple(known.reconstruct(row) for row in listed) for listed in (rules.rows, rules.answers))
    # The stub shows nothing that a row knows, so it contradicts nothing. We know only whether the body could be parsed.
    body = b"" if said.lost else b"<answer/>" if rules.encoding is Encoding.XML else b'{"answer": {}}'
    evidence = _evidence(attempt, Response(attempt.status_code, b"", (), body))
    read = classify(evidence, replace(rules, rows=rows, answers=answers))
    shows_payment = read.effect is not Effect.NONE
    if then is not None and shows_payment and rules.fit != then.fit:
        raise NotReplayed(RESPONSE_NOT_STORED)
    return evidence, replace(read, reference=said.reference, shadow_match=None)


_Condition = tuple[object, object]  # headers and expression: the conditions of a row besides the status


@dataclass(frozen=True, slots=True)
class _KnownMatches:
    """The rows of the former rules that did not match the response, and the one that did."""

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
            # Otherwise its code alone may have kept it from matching, or the rule that an error status never shows
            # success.
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
    """The row's content, without its name and its shadow mode."""
    return replace(row, name="", observe=False)
