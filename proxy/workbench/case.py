"""Cases of `policy test` as values: a request, what came of it, what is expected. And the keys they are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.core.evidence import NetworkPhase, WireFault
from proxy.policy.marks import Mark, listed
from proxy.policy.schema import Block
from proxy.workbench.expectations import EXPECT

RESPONSE_FORMS = "a status such as 402, the name of a response, or a mapping: like, status, headers, body"
FILE = Block(
    "case file",
    {
        "policy": "the policy's file, seen from here; else the one of this name in the folder above",
        "requests": "a mapping from a name to a request",
        "responses": "a mapping from a name to a response",
        "cases": "a list of cases",
    },
    required=("cases",),
)
REQUEST = Block(
    "request",
    {
        "like": "the name of a request above, which this one changes",
        "send": "a method and a path such as POST /v1/charges/ch_1/refunds",
        "headers": "a mapping of headers",
        "body": "a mapping, in the encoding of the policy; or a text, as it stands",
    },
)
RESPONSE = Block(
    "response",
    {
        "like": "the name of a response above, which this one changes",
        "status": "a whole number from 100 to 599",
        "headers": "a mapping of headers",
        "body": "JSON; or a text, as it stands",
    },
)
CASE = Block(
    "case",
    {
        "name": "what the case shows, in a few words",
        "request": "the name of a request, or a mapping: like, send, headers, body",
        "each": "a list of texts: the case is run with each of them for {each}",
        "after": "a mapping: what came before, and when",
        "response": RESPONSE_FORMS,
        "fault": listed(WireFault),
        "phase": listed(phase.word for phase in NetworkPhase),
        "asked": f"what an inquiry was answered: {RESPONSE_FORMS}",
        "event": "a webhook's delivery, a mapping: headers, body",
        "cancelled": f"what a cancel was answered: {RESPONSE_FORMS}",
        "expect": "a mapping: what should come of it",
    },
    required=("request", "expect"),
)
EVENT = Block("event", {"headers": "a mapping of headers", "body": "JSON"}, required=("body",))
AFTER = Block(
    "after",
    {
        "response": RESPONSE_FORMS,
        "fault": listed(WireFault),
        "phase": listed(phase.word for phase in NetworkPhase),
        "reference": "the provider's name for it, where it is known",
        "age": "a duration such as 300ms, 2s, 5m, 24h or 30d: since the first send",
        "tries": "a whole number from 0 to 10: of this call, the one that just ended included",
        "background": "true or false",
    },
)
BLOCKS = (FILE, REQUEST, RESPONSE, EVENT, CASE, AFTER, EXPECT)

FILLED_IN = ("each", "operation_id", "provider_key", "client_key", "reference")  # in texts of what comes back
WAYS = ("response", "fault", "asked", "event", "cancelled")


@dataclass(frozen=True, slots=True)
class GivenRequest:
    method: str = ""
    target: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True, slots=True)
class GivenResponse:
    status_code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What one attempt came to: a response, or a fault on the wire."""

    response: GivenResponse | None = None
    fault: WireFault | None = None
    phase: NetworkPhase | None = None  # None: the one in which such a fault shows


@dataclass(frozen=True, slots=True)
class Before:
    """What came before: an earlier attempt, and how it stands by now."""

    seen: Seen | None = None
    age_s: float | None = None
    tries: int | None = None
    reference: str | None = None
    background: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    key: str
    value: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Case:
    """One case. At most one of `seen`, `asked`, `event` and `cancelled`; without any, a repeat comes and is decided."""

    name: str
    mark: Mark
    request: GivenRequest
    expect: tuple[Expected, ...]
    before: Before = Before()
    seen: Seen | None = None
    asked: GivenResponse | None = None
    event: GivenResponse | None = None  # its body and headers; a delivery has no status
    cancelled: GivenResponse | None = None


@dataclass(frozen=True, slots=True)
class CaseFile:
    source: str
    policy: str | None
    cases: tuple[Case, ...]


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """The JSON value with `{name}` in its texts replaced."""
    if isinstance(value, str):
        for name, text_of_it in values.items():
            value = value.replace(f"{{{name}}}", text_of_it)
        return value
    if isinstance(value, dict):
        return {key: filled(child, values) for key, child in value.items()}
    return [filled(item, values) for item in value] if isinstance(value, list) else value


def filled_response(response: GivenResponse, values: Mapping[str, str]) -> GivenResponse:
    return GivenResponse(response.status_code, filled(dict(response.headers), values), filled(response.body, values))


def with_each(case: Case, each: str) -> Case:
    """The case with a value for `{each}`."""
    values = {"each": each}

    def of(response: GivenResponse | None) -> GivenResponse | None:
        return filled_response(response, values) if response is not None else None

    request, seen = case.request, case.seen
    return Case(
        name=f"{case.name} [{each}]",
        mark=case.mark,
        request=GivenRequest(
            request.method,
            filled(request.target, values),
            filled(dict(request.headers), values),
            filled(request.body, values),
        ),
        expect=tuple(Expected(one.key, filled(one.value, values), one.mark) for one in case.expect),
        before=case.before,
        seen=Seen(of(seen.response), seen.fault, seen.phase) if seen is not None else None,
        asked=of(case.asked),
        event=of(case.event),
        cancelled=of(case.cancelled),
    )
