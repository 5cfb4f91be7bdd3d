"""Case files of `policy test`: requests, their results, and the expected facts.

A case file stands beside its policy (policies/tests/stripe.yaml is stripe.yaml's). It is read like a policy: strict
keys, scalars as written, every problem with its file:line:column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from paywitness.core.errors import PolicyError
from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.policy.reading.document import ListNode, MapNode, Node, TextNode, json_value, read_document
from paywitness.policy.reading.locations import FileProblems, did_you_mean, listed, quoted
from paywitness.policy.reading.section import Section, SectionEntry, read_text, section_of
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    Reader,
    boolean,
    choice_of,
    duration,
    text,
    whole_number,
    yes_or_no,
)
from paywitness.tools.policy_test.case import (
    AFTER,
    CASE,
    EVENT,
    EXPECT,
    FILE,
    LEFT_OUT,
    NONE,
    PLACEHOLDERS,
    READERS,
    REQUEST,
    RESPONSE,
    RESPONSE_FORMS,
    RESULT_KEYS,
    SITUATIONS,
    Case,
    Expectation,
    GivenAttempt,
    GivenRequest,
    GivenResponse,
    Precondition,
    with_each,
)
from paywitness.tools.policy_test.flow import (
    BALANCE,
    BALANCE_READERS,
    FLOW,
    POSTING,
    POSTING_READERS,
    STEP,
    STEP_EXPECT,
    STEP_READERS,
    CaseFile,
    Flow,
    Step,
)

CASES_MAX = 2_000  # after `each`; several times the need of a policy with ten operations and two hundred codes
FLOWS_MAX = 500
STEPS_MAX = 100  # of one flow
_AGE_MAX_S = 366 * 86_400.0
_STEP_KINDS = ("request", "inquiry", "event")
T = TypeVar("T")


def is_case_file(content: bytes, *, among_cases: bool) -> bool:
    """Whether the file is meant as a case file. Its problems are reported when it is read."""
    document = read_document(content, "", FileProblems())
    if document is None:
        return among_cases
    is_policy = bool({"provider", "extends"} & document.entries.keys())
    return not is_policy and (bool({"cases", "flows"} & document.entries.keys()) or among_cases)


def read_case_file(content: bytes, source: str) -> CaseFile:
    """The file's cases. Raises PolicyError with every problem of it."""
    problems = FileProblems()
    document = read_document(content, source, problems)
    found = _CaseReader(Section(document, "", FILE, problems)).read(source) if document is not None else None
    if found is None or problems.count:
        raise PolicyError(problems.errors)
    return found


class _CaseReader:
    """Reads one file: the named requests and responses first, then the cases that use the names."""

    def __init__(self, file: Section) -> None:
        self.file = file
        self.problems = file.problems
        self.requests: dict[str, GivenRequest] = {}
        self.responses: dict[str, GivenResponse] = {}

    def read(self, source: str) -> CaseFile:
        for entry in self.file.entries("requests"):
            self.requests[entry.name] = self._request(entry)
        for entry in self.file.entries("responses"):
            self.responses[entry.name] = self._response(entry)
        cases = [case for section in self.file.children("cases", CASE) for case in self._cases(section)]
        if len(cases) > CASES_MAX:
            self.file.add_problem("cases", f"found {len(cases)} cases, allowed: at most {CASES_MAX}")
        flows = [self._flow(section) for section in self.file.children("flows", FLOW)]
        if len(flows) > FLOWS_MAX:
            self.file.add_problem("flows", f"found {len(flows)} flows, allowed: at most {FLOWS_MAX}")
        if not self.file.has("cases") and not self.file.has("flows"):
            required = f"found nothing, it is required: {FILE.keys['cases']}; or 'flows', {FILE.keys['flows']}"
            self.problems.add(self.file.location, "cases", required)
        shown: list[Case | Flow] = [*cases, *flows]
        left_out = self._left_out({situation for one in shown for situation in one.shows})
        return CaseFile(source, self.file.read("policy", text), tuple(cases), tuple(flows), left_out)

    def _left_out(self, shown: set[str]) -> Mapping[str, str]:
        """The situations that nothing in the file shows, each with its reason."""
        section = self.file.child("left_out", LEFT_OUT)
        if section is None:
            return {}
        for situation in sorted(shown & set(SITUATIONS)):
            if section.has(situation):
                section.add_problem(situation, "found although a case or flow shows it, allowed: one of the two")
        found = {situation: section.read(situation, text) for situation in SITUATIONS if section.has(situation)}
        return {situation: reason for situation, reason in found.items() if reason is not None}

    def _request(self, entry: SectionEntry) -> GivenRequest:
        if isinstance(entry.node, TextNode):
            return self._by_name(entry, self.requests, GivenRequest(), "requests")
        section = section_of(entry, REQUEST, self.problems)
        if section is None:
            return GivenRequest()
        base = self._base_of(section, self.requests, GivenRequest(), "requests")
        method, target = section.read_or("send", _route, (base.method, base.target))
        if not method and not section.has("like"):
            section.problems.add(
                section.location, section.key_path("send"), f"found nothing, it is required: {REQUEST.keys['send']}"
            )
        return GivenRequest(method, target, self._headers(section, base.headers), self._body(section, base.body))

    def _response(self, entry: SectionEntry) -> GivenResponse:
        if isinstance(entry.node, TextNode):
            if entry.node.text.isdigit():
                status = read_text(entry.node, entry.path, RESPONSE_FORMS, _status, self.problems)
                return GivenResponse(status or 200)
            return self._by_name(entry, self.responses, GivenResponse(), "responses")
        section = section_of(entry, RESPONSE, self.problems)
        if section is None:
            return GivenResponse()
        base = self._base_of(section, self.responses, GivenResponse(), "responses")
        status_code = section.read_or("status", _status, base.status_code)
        return GivenResponse(status_code, self._headers(section, base.headers), self._body(section, base.body))

    def _by_name(self, entry: SectionEntry, known: Mapping[str, T], otherwise: T, where: str) -> T:
        found = read_text(entry.node, entry.path, "a name", text, self.problems)
        if found is not None and found not in known:
            self.problems.add(entry.node.location, entry.path, _unknown_name(found, known, where))
        return known.get(found or "", otherwise)

    def _base_of(self, section: Section, known: Mapping[str, T], otherwise: T, where: str) -> T:
        found = section.read("like", text)
        if found is not None and found not in known:
            section.add_problem("like", _unknown_name(found, known, where))
        return known.get(found or "", otherwise)

    def _headers(self, section: Section, base: Mapping[str, str]) -> Mapping[str, str]:
        found = dict(base)
        for entry, value in section.headers("headers"):
            found = {name: previous for name, previous in found.items() if name.lower() != entry.name.lower()}
            found[entry.name] = value
        return found

    def _body(self, section: Section, base: Any) -> Any:
        node = section.node("body")
        if node is None:
            return base
        self._check_quotes(node, section.key_path("body"))
        return _merged(base, json_value(node))

    def _check_quotes(self, node: Node, path: str) -> None:
        """Refuse `{each}` without quotes: YAML reads it as a mapping, which is never meant."""
        if isinstance(node, ListNode):
            for index, item in enumerate(node.items):
                self._check_quotes(item, f"{path}[{index}]")
        elif isinstance(node, MapNode):
            for key, child in node.entries.items():
                bare = isinstance(child, TextNode) and child.plain and not child.text
                if bare and len(node.entries) == 1 and key in PLACEHOLDERS:
                    self.problems.add(node.location, path, f'found {{{key}}} without quotes, allowed: "{{{key}}}"')
                self._check_quotes(child, f"{path}.{key}")

    def _cases(self, section: Section) -> list[Case]:
        """The case, or one case for each value of `each`."""
        result_keys = [key for key in RESULT_KEYS if section.has(key)]
        if len(result_keys) > 1:
            section.add_problem(
                result_keys[1], f"found beside '{result_keys[0]}', allowed: one of {listed(RESULT_KEYS)}"
            )
        precondition = self._precondition(section)
        if not result_keys and precondition.attempt is None:
            allowed = f"one of {listed(RESULT_KEYS)}; or 'after' with a fault or response, which a repeat then follows"
            self.problems.add(section.location, section.path, f"found no result of the request, allowed: {allowed}")
        request = self._entry(section, "request")
        case = Case(
            name=section.read_or("name", text, "") or _default_name(section, result_keys),
            location=section.location,
            request=self._request(request) if request is not None else GivenRequest(),
            expect=self._expectations(section),
            precondition=precondition,
            attempt=self._attempt(section),
            inquiry_response=self._optional_response(section, "asked"),
            webhook_event=self._event(section),
            cancel_response=self._optional_response(section, "cancelled"),
            shows=section.read_list("shows", choice_of(*SITUATIONS), single=True),
        )
        if not section.has("each"):
            return [case]
        return [with_each(case, value) for value in section.read_list("each", text)]

    def _flow(self, section: Section) -> Flow:
        steps = [self._step(step, number) for number, step in enumerate(section.children("steps", STEP), 1)]
        if len(steps) > STEPS_MAX:
            section.add_problem("steps", f"found {len(steps)} steps, allowed: at most {STEPS_MAX}")
        shows = section.read_list("shows", choice_of(*SITUATIONS), single=True)
        return Flow(section.read_or("name", text, ""), section.location, tuple(steps), shows)

    def _step(self, section: Section, number: int) -> Step:
        kinds = [key for key in _STEP_KINDS if section.has(key)]
        if len(kinds) > 1:
            section.add_problem(kinds[1], f"found beside '{kinds[0]}', allowed: one of {listed(_STEP_KINDS)}")
        if not kinds and not section.has("pause"):
            allowed = f"one of {listed((*_STEP_KINDS, 'pause'))}"
            self.problems.add(section.location, section.path, f"found nothing to do, allowed: {allowed}")
        for key, of in (*((key, "request") for key in ("response", "lost", "fault")), ("of", "inquiry")):
            if section.has(key) and of not in kinds:
                section.add_problem(key, f"found without '{of}', allowed: only beside one")
        if not kinds and section.has("expect"):
            section.add_problem("expect", f"found beside a pause, allowed: only beside one of {listed(_STEP_KINDS)}")
        request = self._entry(section, "request")
        return Step(
            section.location,
            self._step_expectations(section),
            request=self._request(request) if request is not None else None,
            attempt=self._step_attempt(section),
            inquiry=self._optional_response(section, "inquiry"),
            of=section.read("of", whole_number(1, max(1, number - 1))),
            event=self._event(section),
            pause_s=section.read_or("pause", duration(0.0, _AGE_MAX_S), 0.0),
        )

    def _step_attempt(self, section: Section) -> GivenAttempt | None:
        attempt = self._attempt(section)
        if not section.read_or("lost", yes_or_no, default=False):
            return attempt
        if attempt is not None:
            section.add_problem("lost", "found beside a response or a fault, allowed: one of them")
        return GivenAttempt(fault=WireFault.FIRST_BYTE_TIMEOUT)

    def _step_expectations(self, section: Section) -> tuple[Expectation, ...]:
        expect = section.child("expect", STEP_EXPECT)
        if expect is None:
            return ()
        found = list(_expectations_in(expect, STEP_READERS))
        balance = expect.child("balance", BALANCE)
        if balance is not None:
            found += _expectations_in(balance, BALANCE_READERS, "balance.")
        node = expect.node("posting")
        if isinstance(node, TextNode) and node.text == NONE:
            found.append(Expectation("posting", NONE, node.location))
        elif (posting := expect.child("posting", POSTING)) is not None:
            found += _expectations_in(posting, POSTING_READERS, "posting.")
        if not found:
            allowed = f"at least one of {listed(STEP_EXPECT.keys)}"
            section.add_problem("expect", f"found nothing to compare, allowed: {allowed}")
        return tuple(found)

    def _entry(self, section: Section, key: str) -> SectionEntry | None:
        node = section.node(key)
        return SectionEntry(key, section.key_path(key), section.key_location(key), node) if node is not None else None

    def _optional_response(self, section: Section, key: str) -> GivenResponse | None:
        entry = self._entry(section, key)
        return self._response(entry) if entry is not None else None

    def _event(self, section: Section) -> GivenResponse | None:
        event = section.child("event", EVENT)
        return GivenResponse(200, self._headers(event, {}), self._body(event, None)) if event is not None else None

    def _attempt(self, section: Section) -> GivenAttempt | None:
        fault = section.read("fault", choice_of(*WireFault))
        phase = section.read("phase", choice_of(*(phase.label for phase in NetworkPhase)))
        if phase is not None and fault is None:
            section.add_problem("phase", "found without 'fault', allowed: only beside one")
        response = self._optional_response(section, "response")
        if fault is not None and response is not None:
            section.add_problem("fault", "found beside 'response', allowed: one of them")
        if fault is None and response is None:
            return None
        return GivenAttempt(
            response,
            WireFault(fault) if fault is not None else None,
            NetworkPhase[phase.upper()] if phase is not None else None,
        )

    def _precondition(self, section: Section) -> Precondition:
        after = section.child("after", AFTER)
        if after is None:
            return Precondition()
        return Precondition(
            attempt=self._attempt(after),
            age_s=after.read("age", duration(0.0, _AGE_MAX_S)),
            tries=after.read("tries", whole_number(0, 10)),
            reference=after.read("reference", text),
            background=after.read_or("background", boolean, default=False),
        )

    def _expectations(self, section: Section) -> tuple[Expectation, ...]:
        expect = section.child("expect", EXPECT)
        if expect is None:
            return ()
        found = []
        for key, reader in READERS.items():
            if not expect.has(key):
                continue
            if key == "account":
                value: str | None = ", ".join(expect.read_list(key, _anything, single=True))
            else:
                value = expect.read(key, reader)
            if value is not None:
                found.append(Expectation(key, value, expect.value_location(key)))
        if not found:
            section.add_problem("expect", f"found nothing to compare, allowed: at least one of {listed(EXPECT.keys)}")
        return tuple(found)


def _expectations_in(section: Section, readers: Mapping[str, Reader[str]], prefix: str = "") -> Iterator[Expectation]:
    for key, reader in readers.items():
        value = section.read(key, reader) if section.has(key) else None
        if value is not None:
            yield Expectation(prefix + key, value, section.value_location(key))


def _anything(value: str) -> str:
    return value


def _status(value: str) -> int:
    return whole_number(100, 599)(value)


def _route(value: str) -> tuple[str, str]:
    method, _, target = value.partition(" ")
    if not method.isalpha() or not method.isupper() or not target.startswith("/") or not target.isascii():
        raise InvalidValue(REQUEST.keys["send"])
    return method, target


def _unknown_name(found: str, known: Mapping[str, object], where: str) -> str:
    allowed = f"allowed: {listed(known)}" if known else f"and there is none above it under '{where}'"
    return f"found {quoted(found)}, {allowed}{did_you_mean(found, known)}"


def _default_name(section: Section, result_keys: list[str]) -> str:
    """The name of a case without one: its request, and its result."""

    def word(key: str) -> str:
        node = section.node(key)
        if isinstance(node, TextNode):
            return node.text
        entries = node.entries if isinstance(node, MapNode) else {}
        texts = [entries[name] for name in ("like", "send", "status") if name in entries]
        return " ".join(found.text for found in texts if isinstance(found, TextNode)) or key

    return (
        f"{word('request')}: {f'{result_keys[0]} ' if result_keys[:1] != ['fault'] else ''}{word(result_keys[0])}"
        if result_keys
        else (f"{word('request')}: repeated")
    )


def _merged(base: Any, over: Any) -> Any:
    """Mappings merge, and null removes a key. Any other value replaces the base."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return {key: value for key, value in merged.items() if value is not None or key not in over}
