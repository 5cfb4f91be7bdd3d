"""Inquiries: asking the provider what became of an operation, and what its answer is worth. Pure.

- A hit counts only if it fits: the amount, the currency and the stamp that were asked for.
- "Not found" is a miss only where the provider itself says so; refused, failed and unreadable inquiries are no misses,
  and nothing on page one of many is not absent.
- **Absent** is concluded from N misses spread over the look-up lag, all of them after `settle` has passed since the
  last byte could have left. Elapsed time alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from proxy.core.body import Tree
from proxy.core.classify import Asked, ClassifyRules, Expression, Row, evaluate, fits, reference_in, tree_of, truthy
from proxy.core.evidence import Evidence, Response
from proxy.core.operation import Finding, Found, Operation
from proxy.core.reading import DENIALS, DOES_NOT_FIT, Classification, Effect, Reading
from proxy.core.template import Template, Values, in_path, in_query

Places = tuple[tuple[tuple[str, ...], Template], ...]  # where in a body of our own, what


def filled_body(places: Places, values: Values) -> dict[str, Any] | None:
    """The body, or None where a value is missing."""
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
class Inquiry:
    """One way to ask. `at` finds the object in what comes back; it may be filled from the operation."""

    name: str  # ask[0]
    path: Template
    answers: tuple[Row, ...]
    method: str = "GET"
    needs_reference: bool = False
    query: tuple[tuple[str, Template], ...] = ()
    body: Places = ()  # of a look-up that is a POST
    headers: tuple[tuple[str, str], ...] = ()  # beside the policy's; where both name one, this counts
    at: Callable[[Values], Expression | None] | None = None  # None: the whole answer is the object
    more: Expression | None = None  # true of an answer that is one page of several
    lag_s: float = 5.0  # how far the look-up may be behind
    misses: int = 3

    def target(self, values: Values) -> str | None:
        """The request's path and query, or None where this operation cannot be asked about in this way."""
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
    """How an operation in doubt is given up at the provider, and what shows that it was."""

    method: str
    path: Template
    read: tuple[Row, ...]
    needs_reference: bool = False
    body: Places = ()
    when_schedule_ran_out: bool = False  # else only an operator's

    def target(self, values: Values) -> str | None:
        if self.needs_reference and values.operation.reference is None:
            return None
        return self.path.filled(values, in_path)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an inquiry came to: what is kept of it, and the object itself where it was a hit."""

    finding: Finding
    shown: Tree = None


def read_inquiry(inquiry: Inquiry, evidence: Evidence, rules: ClassifyRules, asked: Asked, values: Values) -> Seen:
    """What this answer to an inquiry says of the operation."""
    response = evidence.response
    if response is None:
        fault = str(evidence.fault) if evidence.fault is not None else "no answer"
        return _seen(inquiry, Found.FAILED, None, fault)
    tree, readable = tree_of(response, rules.encoding)
    status = response.status_code
    if status == 404 and (readable or not response.body):
        return _seen(inquiry, Found.MISSED, status, "not found")
    if not 200 <= status < 300 or not readable:
        return _seen(inquiry, Found.FAILED, status, "no answer that says anything")
    more = inquiry.more is not None and truthy(inquiry.more, tree)
    shown = tree
    if inquiry.at is not None:
        place = inquiry.at(values)
        if place is None:  # nobody looked, so nothing was missed
            return _seen(inquiry, Found.FAILED, status, "what to look for is not known any more")
        shown = evaluate(place, tree)
    if isinstance(shown, list):
        if len(shown) > 1:
            each = [read_object(inquiry.name, inquiry.answers, rules, asked, response, one) for one in shown]
            return _on_page(inquiry, status, _one_of_several(inquiry, status, each), more=more)
        shown = shown[0] if shown else None
    if shown is None or shown in ({}, ""):
        return _nothing_found(inquiry, rules, response, tree, more=more)
    seen = read_object(inquiry.name, inquiry.answers, rules, asked, response, shown)
    return _on_page(inquiry, status, seen, more=more)


def _nothing_found(inquiry: Inquiry, rules: ClassifyRules, response: Response, tree: Tree, *, more: bool) -> Seen:
    """A miss, where the answer is one to such a search. One that is itself the object of a payment was mixed up with
    another's, and says nothing of ours."""
    status = response.status_code
    if more:
        return _seen(inquiry, Found.FAILED, status, "not on this page, and there are more")
    names_one = inquiry.at is not None and reference_in(rules, tree) is not None
    if names_one and any(row.read(response, tree) for row in inquiry.answers):
        return _seen(inquiry, Found.FAILED, status, "an answer to something else")
    return _seen(inquiry, Found.MISSED, status, "nothing found")


def _on_page(inquiry: Inquiry, status_code: int, seen: Seen, *, more: bool) -> Seen:
    """What a page says, where there are more: that it was paid, but not that it was not."""
    if more and (seen.finding.found is Found.MISSED or _reading(seen) in DENIALS):
        return _seen(inquiry, Found.FAILED, status_code, "denied on this page, and there are more")
    return seen


def _one_of_several(inquiry: Inquiry, status_code: int, each: list[Seen]) -> Seen:
    """What several objects say together. A provider that executes a failed try again keeps each of them: one that was
    paid is the truth, and where all of ours were denied, that is. Two that were paid, or one that cannot be read, are a
    person's; objects that are not ours do not count."""
    hits = [seen for seen in each if seen.finding.found is Found.HIT and seen.finding.classification is not None]
    others = [seen for seen in each if seen.finding.found not in {Found.HIT, Found.NOT_OURS}]
    if others or not hits:
        found = Found.NOT_OURS if not others and not hits else Found.FAILED
        return _seen(inquiry, found, status_code, "several were found")
    denied = [seen for seen in hits if _reading(seen) in DENIALS]
    moved = [seen for seen in hits if seen not in denied]
    if len(moved) > 1:
        return _seen(inquiry, Found.FAILED, status_code, "several were found that were paid or still may be")
    return moved[0] if moved else denied[0]


def _reading(seen: Seen) -> Reading | None:
    return seen.finding.classification.reading if seen.finding.classification is not None else None


def read_object(
    source: str,
    rows: tuple[Row, ...],
    rules: ClassifyRules,
    asked: Asked,
    response: Response,
    shown: Tree,
    *,
    event: Tree = None,
    event_rows: tuple[Row, ...] = (),
) -> Seen:
    """What the provider's own object, found by an inquiry or told by an event, says of the operation. `event_rows` come
    first, and test the event that the object came in; what must fit, and its name, is told by the object alone."""
    status = response.status_code
    for row, tested in (*((row, event) for row in event_rows), *((row, shown) for row in rows)):
        reading = row.read(response, tested)
        if reading is None or row.observe:
            continue
        found = Classification.of(reading, row.name, effect=row.effect)
        if reading is Reading.ABSENT:
            return Seen(Finding(source, Found.MISSED, status, None, f"{row.name} reads it as absent"))
        if reading not in _TELLING or found.effect is Effect.POSSIBLE:
            return Seen(Finding(source, Found.FAILED, status, found, f"{row.name} reads it as {reading}"))
        if not fits(rules.fit, shown, asked):
            found = Classification.of(Reading.UNKNOWN_OUTCOME, DOES_NOT_FIT)
            return Seen(Finding(source, Found.NOT_OURS, status, found, "another amount, currency or stamp"))
        found = replace(found, reference=reference_in(rules, shown))
        return Seen(Finding(source, Found.HIT, status, found), shown)
    return Seen(Finding(source, Found.FAILED, status, None, "no row reads it"))


# What an object can say that moves an operation. The rest (an error, "unknown") says nothing.
_TELLING = DENIALS | {Reading.SUCCEEDED, Reading.PENDING, Reading.REQUIRES_ACTION, Reading.REVERSED}


def _seen(inquiry: Inquiry, found: Found, status_code: int | None, detail: str) -> Seen:
    return Seen(Finding(inquiry.name, found, status_code, None, detail))


@dataclass(frozen=True, slots=True)
class Proof:
    """What it takes to believe that an operation is absent: the strictest of the ways that were asked."""

    misses: int
    lag_s: float
    settle_s: float

    @classmethod
    def of(cls, asked: tuple[Inquiry, ...], settle_s: float) -> Proof:
        return cls(max(one.misses for one in asked), max(one.lag_s for one in asked), settle_s)


def settled_at(operation: Operation, settle_s: float) -> float:
    """From when on nothing of the operation can still arrive."""
    quiet_at = operation.quiet_at if operation.quiet_at is not None else operation.updated_at
    return quiet_at + settle_s


def is_settled(operation: Operation, settle_s: float, now: float) -> bool:
    return not operation.attempt_under_way and now >= settled_at(operation, settle_s)


def after_miss(operation: Operation, proof: Proof, now: float) -> tuple[Operation, bool]:
    """The operation after a miss, and whether it is now known to be absent. A miss before all has settled counts
    nothing."""
    if not is_settled(operation, proof.settle_s, now):
        return operation, False
    first_at = operation.first_miss_at if operation.first_miss_at is not None else now
    after = operation.changed(misses=operation.misses + 1, first_miss_at=first_at)
    return after, after.misses >= proof.misses and now - first_at >= proof.lag_s


def next_look_at(
    operation: Operation, schedule_s: tuple[float, ...], now: float, jitter: float, *, proof: Proof | None = None
) -> float | None:
    """When to look again after a look; None where the schedule has run out. `jitter` is a factor around 1. `proof` is
    given after a miss: once all has settled, the misses that prove absence follow each other by the lag, whatever the
    schedule says, and use none of it up."""
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
    """A look that was pulled forward uses up a look, not time: the schedule ends no sooner than it would have."""
    if operation.looks < len(schedule_s):
        return now + schedule_s[operation.looks] * jitter
    began_at = operation.first_sent_at if operation.first_sent_at is not None else operation.created_at
    ends_at = began_at + _LASTS_AT_LEAST * sum(schedule_s)
    return ends_at if now < ends_at else None


_LASTS_AT_LEAST = 0.8  # of the whole schedule: its waits are jittered
