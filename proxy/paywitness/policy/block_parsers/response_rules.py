"""Rows and tables: how a response is classified. `classify`, `answers`, and the rows of a cancel or an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from paywitness.core.classify import ResponseRule
from paywitness.core.evidence import Response
from paywitness.core.fallback import REJECTIONS
from paywitness.core.result import DEFAULT_EFFECTS, Advice, Effect, ResultClass
from paywitness.policy.reading.document import ListNode, MapNode
from paywitness.policy.reading.expressions import JmesPath, condition, expression, implies
from paywitness.policy.reading.locations import FileProblems, did_you_mean, listed, quoted
from paywitness.policy.reading.section import (
    Section,
    SectionEntry,
    entries_of,
    invalid_value_message,
    read_text,
    rows_of,
)
from paywitness.policy.reading.value_readers import InvalidValue, Reader, boolean, one_of, status_codes, text, union
from paywitness.policy.schema import ROW

Tables = Mapping[str, Mapping[str, ResultClass]]
Bucket = TypeVar("Bucket")

_SUCCESSES = frozenset({ResultClass.SUCCEEDED, ResultClass.PENDING})
_result_class = one_of(ResultClass)
_advice = one_of(Advice)


def read_tables(file: Section) -> Tables:
    """`tables: {declines: {issuer_hard_decline: [stolen_card, ...]}}`, inverted: from the code to its result class."""
    return {entry.name: _read_table(entry, file.problems) for entry in file.entries("tables")}


def _read_table(entry: SectionEntry, problems: FileProblems) -> Mapping[str, ResultClass]:
    if not isinstance(entry.node, MapNode):
        problems.add(entry.node.location, entry.path, "found no mapping, allowed: lists of codes by reading")
        return {}
    return _codes_by_bucket(entries_of(entry.node, entry.path), _result_class, problems)


def read_advice(file: Section) -> Mapping[str, Advice]:
    """`advice: {contact_issuer: [do_not_honor, ...]}`, inverted: from the code to the advice for the customer."""
    return _codes_by_bucket(file.entries("advice"), _advice, file.problems)


def _codes_by_bucket(
    buckets: Iterable[SectionEntry], read_bucket: Reader[Bucket], problems: FileProblems
) -> dict[str, Bucket]:
    table: dict[str, Bucket] = {}
    for bucket in buckets:
        try:
            reading = read_bucket(bucket.name)
        except InvalidValue as invalid:
            problems.add(bucket.location, bucket.path, invalid_value_message(bucket.name, invalid))
            continue
        if not isinstance(bucket.node, ListNode):
            problems.add(bucket.node.location, bucket.path, "found no list, allowed: a list of codes")
            continue
        for index, item in enumerate(bucket.node.items):
            path = f"{bucket.path}[{index}]"
            code = read_text(item, path, "a code", text, problems)
            if code is not None and code in table:
                problems.add(item.location, path, f"found the code {quoted(code)}, which {table[code]} has already")
            elif code is not None:
                table[code] = reading
    return table


def read_answers(file: Section, tables: Tables) -> dict[str, tuple[ResponseRule, ...]]:
    """`answers`: for each object of the provider, its rows."""
    found = {}
    for entry in file.entries("answers"):
        sections = rows_of(entry.node, entry.path, ROW, file.problems)
        found[entry.name] = _read_in_order(sections, tables)
    return found


def read_rows(parent: Section, key: str, tables: Tables, *, of_event: bool = False) -> tuple[ResponseRule, ...]:
    sections = parent.children(key, ROW)
    for section in sections:
        if key == "read" and section.has("fallback"):
            section.add_problem(
                "fallback", "found in a row that reads no attempt, allowed: in 'classify' and 'answers'"
            )
    return _read_in_order(sections, tables, of_event=of_event)


def _read_in_order(sections: list[Section], tables: Tables, *, of_event: bool = False) -> tuple[ResponseRule, ...]:
    """The rows in their order, of which the first that matches decides. A row that can never be the first gets a
    warning."""
    rows: list[ResponseRule] = []
    for section in sections:
        row = read_row(section, tables, of_event=of_event)
        if row is None:
            continue
        before = next((earlier for earlier in rows if hides(earlier, row)), None)
        if before is not None:
            found = f"is never reached: {before.name} above matches whatever it matches; put this one before it"
            section.problems.warn(section.location, section.path, found)
        rows.append(row)
    return tuple(rows)


def hides(earlier: ResponseRule, later: ResponseRule) -> bool:
    """Whether the earlier row matches every response that the later one could match, as far as their shape shows it."""
    if earlier.observe or not _has_no_more_conditions(earlier, later):
        return False
    if later.recognises_page and not earlier.recognises_page:
        return False  # only such a row matches a gateway's page
    if later.reads_empty_body and not earlier.reads_empty_body:
        return False
    reads_errors = later.status_codes is not None and any(not 200 <= code < 300 for code in later.status_codes)
    if reads_errors and earlier.status_codes is None and any(map(earlier.says_done, earlier.result_classes)):
        return False  # without a status, the earlier row gives a success only to a 2xx
    return _reads_all_codes(earlier, later)


def _has_no_more_conditions(earlier: ResponseRule, later: ResponseRule) -> bool:
    if earlier.status_codes is not None and not (
        later.status_codes is not None and later.status_codes <= earlier.status_codes
    ):
        return False
    if not set(earlier.headers) <= set(later.headers):
        return False
    if earlier.when is None:
        return True
    return isinstance(earlier.when, JmesPath) and isinstance(later.when, JmesPath) and implies(later.when, earlier.when)


def _reads_all_codes(earlier: ResponseRule, later: ResponseRule) -> bool:
    """Whether the row has a result class for every code that the later row knows, if its other conditions hold."""
    if earlier.code is None or earlier.otherwise is not None:
        return True
    same_place = later.code is not None and str(later.code) == str(earlier.code)
    known = (earlier.table or {}).keys()
    return same_place and later.otherwise is None and (later.table or {}).keys() <= known


def read_row(section: Section, tables: Tables, *, of_event: bool = False) -> ResponseRule | None:
    """One row. None if it cannot be used; the reason is among the problems. `of_event`: the row is for webhook events,
    which always have a body."""
    problems_before = section.problems.count
    reading = section.read("as", _result_class)
    effect = section.read("effect", one_of(Effect))
    statuses = section.read_list("status", status_codes, single=True)
    when = section.read("when", condition) or section.read("body", condition)
    code = section.read("code", expression)
    row = ResponseRule(
        name=section.path,
        result_class=reading,
        effect=effect,
        status_codes=union(statuses) if section.has("status") else None,
        headers=tuple((entry.name.lower(), value) for entry, value in section.headers("header")),
        when=when,
        code=code,
        table=_named_table(section, tables),
        otherwise=section.read("otherwise", _result_class),
        stored=section.read_or("stored", boolean, default=True),
        observe=section.read_or("observe", boolean, default=False),
        advice=section.read("advice", _advice),
        fallback=section.read_or("fallback", boolean, default=False),
    )
    if section.problems.count == problems_before:
        _check_row(section, row)
    if section.problems.count == problems_before and not of_event:
        _check_success_shown(section, row)
    return row if section.problems.count == problems_before else None


def _named_table(section: Section, tables: Tables) -> Mapping[str, ResultClass] | None:
    name = section.read("table", text)
    if name is None:
        return None
    if name not in tables:
        known = f"allowed: {listed(tables)}" if tables else "and there is none under 'tables'"
        section.add_problem("table", f"found {quoted(name)}, {known}{did_you_mean(name, tables)}")
        return None
    return tables[name]


def _check_row(section: Section, row: ResponseRule) -> None:
    """Check which keys a row must have together, and which it must not."""
    conditions = ("when", "body", "status", "header", "code")
    if section.has("when") and section.has("body"):
        section.add_problem("body", "found beside 'when', which means the same, allowed: one of them")
    if section.has("code") != section.has("table"):
        lacking, given = ("table", "code") if section.has("code") else ("code", "table")
        section.add_problem(given, f"found without '{lacking}', allowed: both, to look a code up in a table")
    elif section.has("as") and section.has("table"):
        section.add_problem(
            "as", "found beside 'table', allowed: one of them; 'otherwise' is for codes not in the table"
        )
    elif not section.has("as") and not section.has("table"):
        section.problems.add(section.location, section.path, "found neither 'as' nor 'table', allowed: one of them")
    if section.has("otherwise") and not section.has("table"):
        section.add_problem("otherwise", "found without 'table', allowed: only beside one")
    if not any(section.has(key) for key in conditions):
        found = f"found no condition, so it would match every answer, allowed: at least one of {listed(conditions)}"
        section.problems.add(section.location, section.path, found)
    _check_effect(section, row)
    if row.fallback:
        _check_fallback(section, row)


def _check_fallback(section: Section, row: ResponseRule) -> None:
    """Check a row with `fallback: true`. Another route is allowed only if the provider refused the request in its own
    response, provably without effect."""
    effects = {result_class: row.effect or DEFAULT_EFFECTS[result_class] for result_class in row.result_classes}
    with_effect = [
        f"{result_class} ({effect})" for result_class, effect in effects.items() if effect is not Effect.NONE
    ]
    others = sorted(row.result_classes - REJECTIONS)
    if with_effect:
        why = "money may have moved, and would move again"
        section.add_problem("fallback", f"found 'true' in a row of {listed(with_effect)}, allowed: effect none; {why}")
    elif others:
        allowed = f"allowed: rows that read {' or '.join(sorted(REJECTIONS))}"
        section.add_problem("fallback", f"found 'true' in a row that reads {listed(others)}, {allowed}")
    elif _is_server_error_by_status(row):
        allowed = "allowed: beside 'when', 'header' or 'code'"
        section.add_problem("fallback", f"found 'true' for a 5xx by its status alone, {allowed}: it may be a gateway's")


def _check_success_shown(section: Section, row: ResponseRule) -> None:
    """A condition that gives `{}` a success gives it to nearly every body: a missing value equals a missing value, and
    `!error` needs no field. So such a row must name a status."""
    if row.status_codes is not None:
        return
    bare = replace(row, headers=())
    for tree, shown in (({}, "an empty object ({})"), (None, "an empty body")):
        found = bare.read(Response(200, b"", (), b""), tree)
        if found is not None and row.says_done(found):
            key = next(key for key in ("when", "body", "otherwise", "header") if section.has(key))
            allowed = "a condition that needs a value of the body (such as \"status == 'paid'\"), or 'status' beside it"
            section.add_problem(key, f"found a condition of '{found}' that holds for {shown}, allowed: {allowed}")
            return


def _check_effect(section: Section, row: ResponseRule) -> None:
    if not row.stored and any(map(row.says_done, row.result_classes)):
        section.add_problem("stored", "found 'false' for a success, allowed: true, or leave it out; a success is kept")
    if row.result_class is ResultClass.SUCCEEDED and row.effect not in {None, Effect.DONE}:
        section.add_problem("effect", f"found '{row.effect}' for a success, allowed: done, or leave it out")
    if row.result_class is None or not _is_server_error_by_status(row, every=True):
        return
    if row.result_class in _SUCCESSES:
        section.add_problem(
            "as", f"found '{row.result_class}' for a 5xx by its status alone: a gateway's error would count as paid"
        )
    elif (row.effect or DEFAULT_EFFECTS[row.result_class]) is Effect.NONE:
        section.add_warning(
            "as", "says that a 5xx had no effect, by its status alone; a gateway's 5xx may follow a payment"
        )


def _is_server_error_by_status(row: ResponseRule, *, every: bool = False) -> bool:
    """Whether the row matches a 5xx by nothing but its status. `every`: all of its statuses are 5xx."""
    if row.status_codes is None or row.when is not None or row.headers or row.code is not None:
        return False
    return (all if every else any)(status_code >= 500 for status_code in row.status_codes)


def can_read_a_success(rows: tuple[ResponseRule, ...]) -> bool:
    """Whether any row in force can mean that the operation succeeded (or was accepted)."""
    return any(_SUCCESSES & row.result_classes for row in rows if not row.observe)
