"""One recorded operation under two policies: where they would first have done something else. By the core's functions.

The journal keeps what was seen of each attempt (phase, bytes, fault, status) and what that was read as; whole answers
only of operations that they settled. Of an answer that is gone, a row is known to match or not only where it is the
one that read it then, or one that was passed over then; else the operation cannot be replayed, and that is said.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace

from proxy.core.body import Encoding, Tree
from proxy.core.classify import Asked, ClassifyRules, Row, classify
from proxy.core.decide import Action, decide
from proxy.core.errors import IllegalTransition
from proxy.core.evidence import Evidence, NetworkPhase, Response, WireFault
from proxy.core.frozen import frozen
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import AttemptSummary, HistoryEntry, Operation, State
from proxy.core.policy import Policy
from proxy.core.reading import DOES_NOT_FIT, Classification, Effect, Reading
from proxy.engine.observing import as_in_force
from proxy.workbench.case import Before
from proxy.workbench.trial import supposed_context

ANSWER_NOT_KEPT = "an answer that a changed row would have to read is not kept"
GIVEN_UP_SOONER = "it was given up on sooner than the new policy would, so what would have come is not known"
NOTHING_DECIDED = "nothing was decided about it"
OTHER_WORDS = "it was recorded in words that this version does not know"
OUT_OF_STEP = "it went a way that neither policy goes"
_BUDGET = "no_effect_budget_exhausted"
_KEPT_OF_A_FRESH_ONE = frozenset({"money", "guard", "stamp", "unstamped", "distinct", "first_sent_at"})


class NotReplayed(Exception):
    """Why an operation cannot be replayed, in words."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one policy makes of one moment of an operation."""

    reading: str
    effect: str
    action: Action
    because: str

    def __str__(self) -> str:
        return f"{self.action} by {self.because}, read as {self.reading} ({self.effect})"


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the two first part."""

    when: str  # after attempt 2, when it was repeated
    old: Step
    new: Step


@dataclass(frozen=True, slots=True)
class Replayed:
    parting: Parting | None  # None: both go the same way to the end
    as_recorded: bool  # the old policy decides what was decided then, as far as they go the same way


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of an operation: the record of it, the answer that is kept, the rules it was read by then."""

    operation: Operation
    history: tuple[HistoryEntry, ...]
    response: Response | None = None
    rules: ClassifyRules | None = None


def replay(past: Past, old: Policy, new: Policy) -> Replayed:
    """The operation under both, up to where they part. Raises NotReplayed."""
    was, now = (_Course(past, policy, old.timeouts.first_byte_s) for policy in (old, new))
    decided, as_recorded = False, True
    tries = 0
    for entry in past.history:
        repeated = entry.attempt is None and Event.RESEND_RECORDED in entry.events and entry.source == "caller"
        if entry.attempt is None and not repeated:
            continue
        tries = 0 if repeated else tries + 1
        when = "when it was repeated" if entry.attempt is None else f"after attempt {entry.attempt.number}"
        try:
            steps = was.step(entry, tries), now.step(entry, tries)
        except IllegalTransition:
            raise NotReplayed(OUT_OF_STEP) from None
        decided = True
        as_recorded = as_recorded and entry.action in {"", steps[0].action}
        if steps[0] != steps[1]:
            return Replayed(Parting(when, *steps), as_recorded)
    if not decided:
        raise NotReplayed(NOTHING_DECIDED)
    return Replayed(None, as_recorded)


class _Course:
    """The way of an operation under one policy."""

    def __init__(self, past: Past, policy: Policy, waited_s: float) -> None:
        self._past = past
        self._policy = policy
        self._waited_s = waited_s  # for an answer to begin: the old policy's patience
        self._operation = _unsent(past.operation, policy)
        self._last_with_answer = _last_answered(past)

    def step(self, entry: HistoryEntry, tries: int) -> Step:
        first_sent_at = self._past.operation.first_sent_at or self._past.operation.created_at
        before = Before(
            age_s=max(0.0, entry.at - first_sent_at),
            tries=tries if entry.source == "caller" else None,
            background=entry.source != "caller",
        )
        policy, attempt = self._policy, entry.attempt
        if attempt is None:
            context = supposed_context(policy, self._operation, before, None, None)
            decision = decide(context)
            return Step("none", "none", decision.action, decision.because)
        evidence, read = self._read(attempt)
        if attempt.number > self._operation.attempts:
            doubted = self._operation.state is State.UNKNOWN
            self._operation = advance(self._operation, Event.RESEND_RECORDED if doubted else Event.SEND_RECORDED)
        self._operation, _ = conclude(self._operation, attempt.number, read, policy.contract)
        context = supposed_context(policy, self._operation, before, evidence, read)
        if entry.because == _BUDGET:
            context = replace(context, budget_allows=False)
        decision = decide(context)
        return Step(read.reading, read.effect, decision.action, decision.because)

    def _read(self, attempt: AttemptSummary) -> tuple[Evidence, Classification]:
        operation, rules, patience_s = self._past.operation, self._policy.classify, self._policy.timeouts.first_byte_s
        if attempt.fault == WireFault.FIRST_BYTE_TIMEOUT and patience_s > self._waited_s:
            raise NotReplayed(GIVEN_UP_SOONER)
        if attempt.status_code is not None and patience_s < min(self._waited_s, attempt.duration_s):
            evidence = as_in_force(_evidence(attempt, None), self._policy)
            return evidence, classify(evidence, rules)
        asked = Asked(operation.money, operation.sent_stamp)
        kept = self._past.response if attempt.number == self._last_with_answer else None
        if kept is not None or attempt.status_code is None:
            evidence = _evidence(attempt, kept)
            return evidence, replace(classify(evidence, rules, asked), observed=None)
        return _remembered(attempt, rules, self._past.rules)


def _unsent(operation: Operation, policy: Policy) -> Operation:
    """The operation before its first attempt, as this policy would have started it."""
    begun = {
        field.name: field.default
        for field in fields(operation)
        if field.default is not MISSING and field.name not in _KEPT_OF_A_FRESH_ONE
    }
    return operation.changed(**begun, upstream=policy.upstream)


def _last_answered(past: Past) -> int | None:
    """The attempt that the kept answer is of."""
    if past.response is None:
        return None
    status_code = past.response.status_code
    attempts = [entry.attempt for entry in past.history if entry.attempt is not None]
    fitting = [attempt.number for attempt in attempts if attempt.status_code == status_code]
    return fitting[-1] if fitting else None


def _evidence(attempt: AttemptSummary, response: Response | None) -> Evidence:
    try:
        phase = NetworkPhase[attempt.phase.upper()]
        fault = WireFault(attempt.fault) if attempt.fault is not None else None
    except (KeyError, ValueError):
        raise NotReplayed(OTHER_WORDS) from None
    return Evidence(
        phase,
        attempt.bytes_written,
        fault,
        response,
        attempt.detail,
        attempt.duration_s,
        reset_by_us=attempt.reset_by_us,
    )


# --- an answer that is gone


@frozen
class _RememberedRow(Row):
    """A row that is asked about an answer which nobody has any more."""

    matched: bool | None = None  # what is known of it
    said: Reading | None = None

    def read(self, response: Response, tree: Tree) -> Reading | None:
        if self.status_codes is not None and response.status_code not in self.status_codes:
            return None
        if self.matched is not None:
            return self.said if self.matched else None
        if self.observe:
            return None
        if self.when is None and self.code is None and not self.headers:
            return self.reading
        raise NotReplayed(ANSWER_NOT_KEPT)


def _remembered(
    attempt: AttemptSummary, rules: ClassifyRules, then: ClassifyRules | None
) -> tuple[Evidence, Classification]:
    """What the rules make of an answer of which only the status, and what was read of it then, are known."""
    said = attempt.classification
    if rules == then:
        stub = Response(attempt.status_code or 0, b"", (), b"")
        return _evidence(attempt, stub), replace(said, observed=None)
    if said.rule == DOES_NOT_FIT or attempt.status_code is None:
        raise NotReplayed(ANSWER_NOT_KEPT)
    known = _Known.of(said, then, attempt.status_code)
    rows, answers = (tuple(known.recalled(row) for row in listed) for listed in (rules.rows, rules.answers))
    # It shows nothing, so it contradicts nothing; whether it could be read at all is known.
    body = b"" if said.lost else b"<answer/>" if rules.encoding is Encoding.XML else b"{}"
    evidence = _evidence(attempt, Response(attempt.status_code, b"", (), body))
    read = classify(evidence, replace(rules, rows=rows, answers=answers))
    shows_payment = read.effect is not Effect.NONE
    if then is not None and shows_payment and rules.fit != then.fit:
        raise NotReplayed(ANSWER_NOT_KEPT)
    return evidence, replace(read, reference=said.reference, observed=None)


_Condition = tuple[object, object]  # headers and expression: what a row asks of an answer beside its status


@dataclass(frozen=True, slots=True)
class _Known:
    """What follows from how an answer was read then: which rows it did not match, and which one it did."""

    passed: tuple[Row, ...]
    false: tuple[_Condition, ...]
    matched: Row | None
    said: Reading

    @classmethod
    def of(cls, said: Classification, then: ClassifyRules | None, status_code: int) -> _Known:
        passed: list[Row] = []
        false: list[_Condition] = []
        for row in (*then.rows, *then.answers) if then is not None else ():
            if row.name == said.rule:
                return cls(tuple(passed), tuple(false), _nameless(row), said.reading)
            if row.observe:
                continue
            passed.append(_nameless(row))
            tells = row.code is None or row.otherwise is not None  # else the code alone may have kept it from matching
            if tells and (row.status_codes is None or status_code in row.status_codes):
                false.append(_condition(row))
        return cls(tuple(passed), tuple(false), None, said.reading)

    def recalled(self, row: Row) -> _RememberedRow:
        plain, condition = _nameless(row), _condition(row)
        matched: bool | None = None
        said: Reading | None = self.said
        if plain == self.matched:
            matched = True
        elif plain in self.passed or condition in self.false:
            matched = False
        elif self.matched is not None and row.code is None and condition == _condition(self.matched):
            matched, said = True, row.reading
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        return _RememberedRow(**values, matched=matched, said=said)


def _condition(row: Row) -> _Condition:
    return row.headers, row.when


def _nameless(row: Row) -> Row:
    """What it says, wherever it stands."""
    return replace(row, name="", observe=False)
