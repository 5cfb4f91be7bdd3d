"""Inquiries: asking the provider for the outcome of an operation, and judging what it responds. Pure.

- A hit counts only if it fits: the amount, the currency and the stamp that were expected.
- An object that shows another reference, key or stamp than ours is another's: such an inquiry failed.
- An object that several attempts share (the order, the payment that is acted on) shows the outcome of the last of them.
  A denial there may be that of an earlier attempt: it is marked `may_be_stale`.
- "Not found" is a miss only if the provider itself says so. An inquiry that was refused, that failed or that cannot be
  read is no miss, and an empty page one of many proves no absence.
- A 404 is a miss only of a page that names the operation, because a search that does not exist has found nothing out. A
  404 of a reference that the provider gave us is no miss either. A page without a list that responds with 200 and shows
  nothing is no miss: for a real miss it would respond with 404.
- `always_lists` names the list that the provider sends with every response, also an empty one. A response without it
  shows nothing about the content of the list: such an inquiry failed.
- A list that is bounded by a time missed only what it reaches back to, by the provider's own clock.
- **Absent** is concluded from N misses spread over the look-up lag, all of them after `settle` has passed since the
  last byte could have left. Elapsed time alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from paywitness.core import policy_defaults
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import (
    NOTHING_SHOWN,
    ClassifyRules,
    Condition,
    ExpectedPayment,
    Expression,
    ResponseRule,
    matches_expected,
    name_at,
    reference_in,
    tree_of,
    unfit,
)
from paywitness.core.evidence import Evidence, Response
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.provider_time import UNKNOWN_CLOCK_S, ProviderTime, time_in
from paywitness.core.record import record
from paywitness.core.result import DENIALS, PROVIDER_SAID_NO, Classification, Effect, ResultClass
from paywitness.core.template import Template, TemplateValues, in_path, in_query


class InquiryReason(StrEnum):
    """The reason for an inquiry."""

    LOST_RESPONSE = "lost_response"  # the outcome is unknown, and no whole response came
    ERROR_RESPONSE = "error_response"  # the outcome is unknown, although a whole response came (a 5xx, for example)
    PENDING = "pending"
    REQUIRES_ACTION = "requires_action"  # the customer's time to act is over
    WEBHOOK = "webhook"  # a webhook gave a hint, or a denial that has to be confirmed
    OPERATOR = "operator"
    PAYMENT = "payment"  # totals of a payment, or whether somebody else has paid it
    INTENT = "intent"  # whose purchase an object belongs to, before a step on it is sent


def reason_to_inquire(operation: Operation) -> InquiryReason:
    """Why the resolver inquires about a due operation."""
    if operation.check_asked_by == InquiryReason.WEBHOOK:
        return InquiryReason.WEBHOOK
    if operation.check_asked_by or operation.state is State.REQUIRES_REVIEW:
        return InquiryReason.OPERATOR
    if operation.state is State.PENDING:
        return InquiryReason.PENDING
    if operation.state is State.REQUIRES_ACTION:
        return InquiryReason.REQUIRES_ACTION
    return InquiryReason.ERROR_RESPONSE if operation.answered_attempts else InquiryReason.LOST_RESPONSE


BodyTemplate = tuple[tuple[tuple[str, ...], Template], ...]  # for each field of a body of ours: its path and its value


def filled_body(places: BodyTemplate, values: TemplateValues) -> dict[str, Any] | None:
    """The body, or None if a value is missing."""
    body: dict[str, Any] = {}
    for path, template in places:
        value = template.filled(values)
        if value is None:
            return None
        place = body
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return body


@dataclass(frozen=True, slots=True)
class BelongsFields:
    """The fields in which a found object shows what was asked for, so that another object is not taken for ours."""

    reference: Expression | None = None
    key: Expression | None = None  # the provider key
    stamp: Expression | None = None
    asked: Template | None = None  # the name in the inquiry: `{reference}`, or the object that the operation acts on
    # When the provider made the denial that the object shows, by the provider's clock.
    denied_at: Expression | None = None

    def hold(self, provider_object: Tree, values: TemplateValues) -> bool:
        """Whether the object may be ours. A field that only one side knows cannot contradict."""
        asked = self.asked.filled(values) if self.asked is not None else None
        pairs = (
            (name_at(self.reference, provider_object), asked),
            (name_at(self.key, provider_object), values.operation.provider_key),
            (name_at(self.stamp, provider_object), values.operation.sent_stamp or None),
        )
        return all(shown is None or wanted is None or shown == wanted for shown, wanted in pairs)

    def prove_ours(self, provider_object: Tree, operation: Operation) -> bool:
        """Whether the object shows our stamp or our provider key, which no other operation's object can."""
        pairs = (
            (name_at(self.key, provider_object), operation.provider_key),
            (name_at(self.stamp, provider_object), operation.sent_stamp or None),
        )
        return any(shown is not None and shown == ours for shown, ours in pairs)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One way to inquire. `at` finds the object in the response; it may be filled from the operation."""

    name: str  # ask[0]
    path: Template
    answers: tuple[ResponseRule, ...]
    method: str = "GET"
    needs_reference: bool = False
    query: tuple[tuple[str, Template], ...] = ()
    body: BodyTemplate = ()  # of a look-up that is a POST
    headers: tuple[tuple[str, str], ...] = ()  # beside the policy's; if both have one of that name, this one counts
    at: Callable[[TemplateValues], Expression | None] | None = None  # None: the whole response is the object
    more: Condition | None = None  # true of a response that is one page of several
    always_lists: Expression | None = None  # the list that every response of the provider holds
    lag_s: float = policy_defaults.ASK_LAG_S  # how far the look-up may lag behind
    misses: int = policy_defaults.ASK_MISSES
    belongs: BelongsFields = BelongsFields()
    shared: bool = False  # other operations may find the same object by it

    def names_in_path(self, *heads: str) -> bool:
        """Whether its path, the page that it requests, has a placeholder of one of these names."""
        return any(blank.head in heads for blank in self.path.placeholders)

    @property
    def bounded_by_time(self) -> bool:
        """Whether it requests only objects that were made after a time."""
        values = (self.path, *(value for _, value in self.query), *(value for _, value in self.body))
        return any(blank.head == "since" for value in values for blank in value.placeholders)

    def target(self, values: TemplateValues) -> str | None:
        """The request's path and query, or None if this operation cannot be inquired about in this way."""
        if self.needs_reference and values.operation.reference is None:
            return None
        path = self.path.filled(values, in_path)
        if path is None or (self.at is not None and self.at(values) is None):
            return None
        if filled_body(self.body, values) is None:
            return None
        pairs = []
        for name, template in self.query:
            value = template.filled(values)
            if value is None:
                return None
            pairs.append(f"{in_query(name)}={in_query(value)}")
        return f"{path}?{'&'.join(pairs)}" if pairs else path


@dataclass(frozen=True, slots=True)
class Cancel:
    """How to cancel an operation in doubt at the provider, and which responses show that it is cancelled."""

    method: str
    path: Template
    read: tuple[ResponseRule, ...]
    needs_reference: bool = False
    body: BodyTemplate = ()
    when_schedule_ran_out: bool = False  # False: only if an operator wants it

    def target(self, values: TemplateValues) -> str | None:
        if self.needs_reference and values.operation.reference is None:
            return None
        return self.path.filled(values, in_path)


@dataclass(frozen=True, slots=True)
class FoundObject:
    """The result of an inquiry: the finding, and the object itself if it was a hit or shows that nothing was done to
    it."""

    finding: Finding
    provider_object: Tree = None
    may_be_stale: bool = False  # the denial may be that of an attempt before ours
    gone: bool = False  # a page that the provider has named to us does not exist


def read_inquiry(
    inquiry: Inquiry,
    evidence: Evidence,
    rules: ClassifyRules,
    expected: ExpectedPayment,
    values: TemplateValues,
    provider_time: ProviderTime | None = None,
) -> FoundObject:
    """What this response to an inquiry shows of the operation. `provider_time` is the provider's clock, as far as the
    response shows it."""
    seen = _read_inquiry(inquiry, evidence, rules, expected, values)
    kind, status = seen.finding.kind, seen.finding.status_code
    if kind is FindingKind.MISSED and inquiry.bounded_by_time and not _covers_attempt(values, provider_time):
        return _without_object(inquiry, FindingKind.FAILED, status, "the list may begin after it was sent")
    if kind is FindingKind.HIT and inquiry.shared and _result_class_of(seen) in PROVIDER_SAID_NO:
        return replace(seen, may_be_stale=not _is_of_attempt(inquiry.belongs, seen, values.operation, provider_time))
    return seen


def _covers_attempt(values: TemplateValues, provider_time: ProviderTime | None) -> bool:
    """Whether a list that begins at `{since}` would hold our attempt."""
    first_sent_at, since_at = values.operation.first_sent_at, values.since_at
    if first_sent_at is None or since_at is None:
        return False
    if provider_time is None:
        return since_at <= first_sent_at - UNKNOWN_CLOCK_S
    return since_at <= provider_time.earliest_sent_at


def _is_of_attempt(
    belongs: BelongsFields, seen: FoundObject, operation: Operation, provider_time: ProviderTime | None
) -> bool:
    """Whether the denial of a shared object is provably that of our attempt: it shows our stamp or key, or a time after
    the only attempt was sent."""
    if belongs.prove_ours(seen.provider_object, operation):
        return True
    if belongs.denied_at is None or provider_time is None or operation.first_sent_at is None or operation.attempts > 1:
        return False
    denied_at = time_in(belongs.denied_at(seen.provider_object))
    return denied_at is not None and denied_at >= provider_time.latest_sent_at


def _read_inquiry(
    inquiry: Inquiry, evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment, values: TemplateValues
) -> FoundObject:
    response = evidence.response
    if response is None:
        fault = str(evidence.fault) if evidence.fault is not None else "no response"
        return _without_object(inquiry, FindingKind.FAILED, None, fault)
    tree, readable = tree_of(response, rules.encoding)
    status = response.status_code
    if status == 404 and (readable or not response.body):
        return _not_found(inquiry)
    if not 200 <= status < 300 or not readable or not response.body.strip():
        return _without_object(inquiry, FindingKind.FAILED, status, "no response that shows anything")
    if inquiry.always_lists is not None and not isinstance(inquiry.always_lists(tree), list):
        return _without_object(inquiry, FindingKind.FAILED, status, "the response lacks the list that it always has")
    more = inquiry.more is not None and bool(inquiry.more(tree))
    provider_object = tree
    if inquiry.at is not None:
        place = inquiry.at(values)
        if place is None:  # nothing was searched for, so nothing was missed
            return _without_object(inquiry, FindingKind.FAILED, status, "the value to look for is no longer known")
        provider_object = place(tree)
    found = provider_object if isinstance(provider_object, list) else [provider_object]
    ours = [one for one in found if inquiry.belongs.hold(one, values)]
    if found and not ours:
        return _without_object(inquiry, FindingKind.FAILED, status, "another object than the one that was asked for")
    if len(ours) > 1:
        each = [read_object(inquiry.name, inquiry.answers, rules, expected, response, one) for one in ours]
        return _on_page(inquiry, status, _one_of_several(inquiry, status, each), more=more)
    if not ours or ours[0] in NOTHING_SHOWN:
        return _nothing_found(inquiry, rules, response, tree, more=more)
    found_object = read_object(inquiry.name, inquiry.answers, rules, expected, response, ours[0])
    return _on_page(inquiry, status, found_object, more=more)


def _not_found(inquiry: Inquiry) -> FoundObject:
    """The result of a 404. A search that finds nothing responds with 200."""
    if inquiry.names_in_path("reference"):
        detail = "not found, although the provider gave us this reference"
        return replace(_without_object(inquiry, FindingKind.FAILED, 404, detail), gone=True)
    if not inquiry.names_in_path(*_NAME_ONE):
        return _without_object(inquiry, FindingKind.FAILED, 404, "there is no such search")
    return _without_object(inquiry, FindingKind.MISSED, 404, "not found")


_NAME_ONE = ("reference", "provider_key", "client_key", "operation_id", "path", "body")


def _nothing_found(
    inquiry: Inquiry, rules: ClassifyRules, response: Response, tree: Tree, *, more: bool
) -> FoundObject:
    """A miss, if this response belongs to such a search. A response that is itself the object of a payment belongs to
    another request, and shows nothing of ours."""
    status = response.status_code
    if more:
        return _without_object(inquiry, FindingKind.FAILED, status, "not on this page, and there are more")
    if inquiry.at is None or inquiry.names_in_path("reference"):
        return _without_object(inquiry, FindingKind.FAILED, status, "a page that shows nothing")
    names_one = reference_in(rules, tree) is not None
    if names_one and any(row.read(response, tree) for row in inquiry.answers):
        return _without_object(inquiry, FindingKind.FAILED, status, "a response to another request")
    return _without_object(inquiry, FindingKind.MISSED, status, "nothing found")


def _on_page(inquiry: Inquiry, status_code: int, found_object: FoundObject, *, more: bool) -> FoundObject:
    """The result from one page. If there are more pages, one page can show that it was paid, but not that it was
    not."""
    if more and (found_object.finding.kind is FindingKind.MISSED or _result_class_of(found_object) in DENIALS):
        return _without_object(inquiry, FindingKind.FAILED, status_code, "denied on this page, and there are more")
    return found_object


def _one_of_several(inquiry: Inquiry, status_code: int, each: list[FoundObject]) -> FoundObject:
    """The result of several objects together. A provider that executes a failed attempt again keeps an object for each.
    If one of them was paid, that is the outcome. If all of ours were denied, the denial is. If two were paid, or one
    cannot be read, a person must decide. Objects that are not ours do not count."""
    hits = [
        found_object
        for found_object in each
        if found_object.finding.kind is FindingKind.HIT and found_object.finding.classification is not None
    ]
    others = [
        found_object
        for found_object in each
        if found_object.finding.kind not in {FindingKind.HIT, FindingKind.NOT_OURS}
    ]
    if others or not hits:
        found = FindingKind.NOT_OURS if not others and not hits else FindingKind.FAILED
        return _without_object(inquiry, found, status_code, "several were found")
    denied = [found_object for found_object in hits if _result_class_of(found_object) in DENIALS]
    moved = [found_object for found_object in hits if found_object not in denied]
    if len(moved) > 1:
        return _without_object(
            inquiry, FindingKind.FAILED, status_code, "several were found that were paid or still may be"
        )
    return moved[0] if moved else denied[0]


def _result_class_of(found_object: FoundObject) -> ResultClass | None:
    return found_object.finding.classification.result_class if found_object.finding.classification is not None else None


def read_object(
    source: str,
    rows: tuple[ResponseRule, ...],
    rules: ClassifyRules,
    expected: ExpectedPayment,
    response: Response,
    provider_object: Tree,
    *,
    event: Tree = None,
    event_rows: tuple[ResponseRule, ...] = (),
) -> FoundObject:
    """What the provider's own object shows of the operation, from an inquiry or a webhook event. `event_rows` come
    first, and test the event that held the object. Only the object itself must fit, and only it gives the reference."""
    status = response.status_code
    of_event, of_object = ((row, event, True) for row in event_rows), ((row, provider_object, False) for row in rows)
    for row, tested, is_event in (*of_event, *of_object):
        result_class = row.read(response, tested)
        if result_class is None or row.observe:
            continue
        if row.says_done(result_class) and (tested in NOTHING_SHOWN or not (is_event or row.tests_body)):
            continue  # nothing is shown, or the row tests only the status of the response that held it
        found = Classification.of(result_class, row.name, effect=row.effect, advice=rules.advice_of(row, tested))
        if result_class is ResultClass.ABSENT:
            missed = Finding(source, FindingKind.MISSED, status, None, f"{row.name} reads it as absent")
            return FoundObject(missed, provider_object)
        if result_class in PAYMENT_FACTS:
            found = replace(found, reference=None)
            return FoundObject(Finding(source, FindingKind.HIT, status, found), provider_object)
        if result_class not in _CONCLUSIVE or found.effect is Effect.POSSIBLE:
            return FoundObject(
                Finding(source, FindingKind.FAILED, status, found, f"{row.name} reads it as {result_class}")
            )
        if not matches_expected(rules.fit, provider_object, expected):
            found = replace(unfit(rules.fit, provider_object, expected), reference=reference_in(rules, provider_object))
            return FoundObject(
                Finding(source, FindingKind.NOT_OURS, status, found, "another amount, currency or stamp")
            )
        found = replace(found, reference=reference_in(rules, provider_object))
        return FoundObject(Finding(source, FindingKind.HIT, status, found), provider_object)
    return FoundObject(Finding(source, FindingKind.FAILED, status, None, "no row reads it"))


# The result classes of an object that move an operation. The others (an error, "unknown") prove nothing.
_CONCLUSIVE = PROVIDER_SAID_NO | {ResultClass.SUCCEEDED, ResultClass.PENDING, ResultClass.REVERSED}
# Facts of a payment that was made. Their object shows its own amount, not that of the payment.
PAYMENT_FACTS = frozenset({ResultClass.RETURNED, ResultClass.DISPUTED, ResultClass.DISPUTE_WON})


def _without_object(inquiry: Inquiry, found: FindingKind, status_code: int | None, detail: str) -> FoundObject:
    return FoundObject(Finding(inquiry.name, found, status_code, None, detail))


CONFIRMED_ABSENT = Classification.of(ResultClass.ABSENT, "absent_confirmed")


@dataclass(frozen=True, slots=True)
class AbsenceProof:
    """What proves an operation absent: the strictest values of the inquiries that were made."""

    misses: int
    lag_s: float
    settle_s: float

    @classmethod
    def of(cls, expected: tuple[Inquiry, ...], settle_s: float) -> AbsenceProof:
        return cls(max(one.misses for one in expected), max(one.lag_s for one in expected), settle_s)


def quiet_since(operation: Operation) -> float:
    """From then on no byte of the operation can leave. All times that follow count from here by the smallest age
    (`ages`): each `now` below, and the time of a first miss, is this moment plus the time that has certainly passed
    since."""
    return operation.no_bytes_after_at if operation.no_bytes_after_at is not None else operation.updated_at


def settled_at(operation: Operation, settle_s: float) -> float:
    """From then on nothing of the operation can still arrive."""
    return quiet_since(operation) + settle_s


def is_settled(operation: Operation, settle_s: float, now: float) -> bool:
    return not operation.attempt_under_way and now >= settled_at(operation, settle_s)


def after_miss(operation: Operation, proof: AbsenceProof, now: float) -> tuple[Operation, bool]:
    """The operation after a miss, and whether it is now proven absent. A miss counts nothing before all has settled."""
    if not is_settled(operation, proof.settle_s, now):
        return operation, False
    first_at = operation.first_miss_at if operation.first_miss_at is not None else now
    after = operation.changed(misses=operation.misses + 1, first_miss_at=first_at)
    return after, after.misses >= proof.misses and now - first_at >= proof.lag_s


def next_inquiry_at(
    operation: Operation, schedule_s: tuple[float, ...], now: float, jitter: float, *, proof: AbsenceProof | None = None
) -> float | None:
    """When to inquire again after an inquiry; None if the schedule has run out. `jitter` is a factor around 1. `proof`
    is given after a miss: once all has settled, the misses that prove absence follow each other by the lag, whatever
    the schedule says, and use up none of it."""
    by_schedule = _by_schedule(operation, schedule_s, now, jitter)
    if proof is None:
        return by_schedule
    ready_at = settled_at(operation, proof.settle_s)
    if now < ready_at:
        soonest = ready_at + proof.lag_s * abs(jitter - 1.0)
    else:
        soonest = now + max(proof.lag_s, 0.05) * max(1.0, jitter) / max(1, proof.misses - 1)
    return soonest if by_schedule is None else min(by_schedule, soonest)


def _by_schedule(operation: Operation, schedule_s: tuple[float, ...], now: float, jitter: float) -> float | None:
    """An inquiry that was made early uses up one inquiry of the schedule, and no time: the schedule ends no sooner than
    it would have."""
    if operation.checks_done < len(schedule_s):
        return now + schedule_s[operation.checks_done] * jitter
    began_at = operation.first_sent_at if operation.first_sent_at is not None else operation.created_at
    ends_at = began_at + _SCHEDULE_SHARE_MIN * sum(schedule_s)
    return ends_at if now < ends_at else None


@record
class NextInquiry:
    """The place of an operation in its schedule of inquiries."""

    number: int  # of the next inquiry
    of: int
    gives_up_at: float  # about: waits are jittered, and a provider may request longer ones


def next_inquiry(operation: Operation, schedule_s: tuple[float, ...]) -> NextInquiry | None:
    """Which inquiry is next, of how many, and when the operation goes to a person if none finds anything; None if no
    inquiry is due."""
    if operation.due_at is None or operation.state not in {State.UNKNOWN, State.PENDING}:
        return None
    number = operation.checks_done + 1
    began_at = operation.first_sent_at if operation.first_sent_at is not None else operation.created_at
    soonest_at = began_at + _SCHEDULE_SHARE_MIN * sum(schedule_s)
    return NextInquiry(
        number, max(number, len(schedule_s)), max(soonest_at, operation.due_at + sum(schedule_s[number:]))
    )


_SCHEDULE_SHARE_MIN = 0.8  # of the whole schedule: its waits are jittered
