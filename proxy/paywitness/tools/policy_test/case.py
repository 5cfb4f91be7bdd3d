"""Cases of `policy test` as values: a request, its result, the expectations. And the YAML keys of a case.

The second half makes bytes and evidence for the core from a case's values. case_file.py reads a case file. Nothing is
evaluated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paywitness.core.bodies.tree import Encoding, encode
from paywitness.core.decide import DEFAULT_RULE, RULES, Action
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.operation import FindingKind, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.result import Advice, Effect, ResultClass
from paywitness.core.webhook_event import MatchKey
from paywitness.policy.reading.locations import SourceLocation, did_you_mean, listed
from paywitness.policy.reading.value_readers import InvalidValue, Reader, choice_of, money, text, whole_number
from paywitness.policy.schema import Block

# --- Expected facts
# The facts that a case may expect, by name, each with its form.

NONE = "none"  # the fact does not exist: no operation, no key, no reply yet
RULE_NAMES = tuple(rule.name for rule in (*RULES, DEFAULT_RULE))


def _or_none(reader: Reader[str]) -> Reader[str]:
    def read(value: str) -> str:
        return value if value == NONE else reader(value)

    return read


def _one_of(kinds: type[StrEnum]) -> Reader[str]:
    return _or_none(choice_of(*(str(kind) for kind in kinds), NONE))


def _money(value: str) -> str:
    return str(money(value))


def _status(value: str) -> str:
    return str(whole_number(100, 599)(value))


def _rule(value: str) -> str:
    if value not in RULE_NAMES:
        raise InvalidValue(f"the name of a rule: {listed(RULE_NAMES)}", hint=did_you_mean(value, RULE_NAMES))
    return value


READERS: Mapping[str, Reader[str]] = {
    "operation": text,
    "client_key": text,
    "key_from": text,
    "provider_key": choice_of("own", "derived", NONE),
    "account": text,
    "amount": _or_none(_money),
    "guard": text,
    "class": _one_of(ResultClass),
    "effect": _or_none(choice_of(*Effect)),
    "advice": _one_of(Advice),
    "row": text,
    "observed": text,
    "reference": text,
    "found": _one_of(FindingKind),
    "found_by": _one_of(MatchKey),
    "state": _one_of(State),
    "action": _one_of(Action),
    "because": _or_none(_rule),
    "outcome": _one_of(Outcome),
    "status": _or_none(_status),
    "problem": _one_of(Problem),
}
EXPECT = Block(
    "expect",
    {
        "operation": "the operation's name, or none",
        "client_key": "the caller's key, or generated",
        "key_from": "its place: header:NAME, body:PATH, paywitness-key or generated",
        "provider_key": "own (the caller's), derived or none",
        "account": "a list: the value at each place of 'account'",
        "amount": "an amount in major units and its currency, such as 10.99 EUR, or none",
        "guard": "intent:TEXT, target:TEXT, fingerprint or none",
        "class": "a reading, or none",
        "effect": "none, possible or done",
        "advice": "the hint for the customer, such as contact_issuer",
        "row": "the row that matched, such as classify[2] or answers.charge[0], or a built-in rule such as http_500",
        "observed": "the first row with 'observe: true' that would have matched, or none",
        "reference": "the provider's name for it, or none",
        "found": "of 'asked', 'event' and 'cancelled': hit, missed, failed, not_ours or none",
        "found_by": "of 'event': operation_id, provider_key, client_key, reference, intent or none",
        "state": "the operation's state after it",
        "action": "the decided action, or none",
        "because": "the name of the rule that decided",
        "outcome": "the outcome that the caller gets",
        "status": "the status that the caller gets, or none while a retry follows",
        "problem": "the problem that the caller gets, or none if it is the provider's own response",
    },
)


# --- Cases

# The situations that a reader of a policy looks for. `shows` of a case or flow names them. `left_out` gives the reason
# why a file has none.
SITUATIONS = (
    "second_capture",  # another capture of a part
    "already_captured",  # the provider refuses a capture because the payment is already captured
    "over_refund",  # a refund of more than is left
    "void_against_capture",  # a void while a capture is open or unknown
    "pay_after_refund",  # an order is paid again after its payment was refunded
    "begun_anew",  # another object for the same order, after a lost response
    "decline_then_pay",  # a decline, then another try
    "customer_action",  # 3DS and redirects: another call completes the payment, or the customer does it at the provider
    "refund_fails_later",  # the provider takes a refund back after its success
    "payout_repeated",  # a payout again under a fresh key
    "dispute",  # a chargeback is opened, won or lost
    "foreign_object",  # the response to an inquiry shows another object of the same kind
    "stale_object",  # the object still shows the result of an earlier attempt
    "two_merchants",  # equal keys, orders and amounts in two accounts
)
SHOWS_FORMS = f"{listed(SITUATIONS)}, or a list of them"
LEFT_OUT = Block("left_out", dict.fromkeys(SITUATIONS, "the reason why no case and no flow shows it"))

RESPONSE_FORMS = "a status such as 402, the name of a response, or a mapping: like, status, headers, body"
FILE = Block(
    "case file",
    {
        "policy": "the policy's path, relative to this file; by default the file of this name in the folder above",
        "requests": "a mapping from a name to a request",
        "responses": "a mapping from a name to a response",
        "cases": "a list of cases",
        "flows": "a list of flows: several steps in a row",
        "left_out": "a mapping from a situation to the reason why no case and no flow shows it",
    },
)
REQUEST = Block(
    "request",
    {
        "like": "the name of a request above, which this one changes",
        "send": "a method and a path such as POST /v1/charges/ch_1/refunds",
        "headers": "a mapping of headers",
        "body": "a mapping, in the encoding of the policy; or a text, unchanged",
    },
)
RESPONSE = Block(
    "response",
    {
        "like": "the name of a response above, which this one changes",
        "status": "a whole number from 100 to 599",
        "headers": "a mapping of headers",
        "body": "JSON; or a text, unchanged",
    },
)
CASE = Block(
    "case",
    {
        "name": "what the case shows, in a few words",
        "request": "the name of a request, or a mapping: like, send, headers, body",
        "each": "a list of texts: the case runs once for each, in place of {each}",
        "after": "a mapping: the earlier attempt, and its time",
        "response": RESPONSE_FORMS,
        "fault": listed(WireFault),
        "phase": listed(phase.label for phase in NetworkPhase),
        "asked": f"the response to an inquiry: {RESPONSE_FORMS}",
        "event": "a webhook, a mapping: headers, body",
        "cancelled": f"the response to a cancel: {RESPONSE_FORMS}",
        "expect": "a mapping: the expected facts",
        "shows": SHOWS_FORMS,
    },
    required=("request", "expect"),
)
EVENT = Block("event", {"headers": "a mapping of headers", "body": "JSON"}, required=("body",))
AFTER = Block(
    "after",
    {
        "response": RESPONSE_FORMS,
        "fault": listed(WireFault),
        "phase": listed(phase.label for phase in NetworkPhase),
        "reference": "the provider's name for it, if it is known",
        "age": "a duration such as 300ms, 2s, 5m, 24h or 30d: since the first send",
        "tries": "a whole number from 0 to 10: attempts of this call, with the one that just ended",
        "background": "true or false",
    },
)
BLOCKS = (FILE, REQUEST, RESPONSE, EVENT, CASE, AFTER, EXPECT, LEFT_OUT)

PLACEHOLDERS = ("each", "operation_id", "provider_key", "client_key", "reference")  # in texts of responses and events
RESULT_KEYS = ("response", "fault", "asked", "event", "cancelled")


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
class GivenAttempt:
    """The result of one attempt: a response, or a fault on the wire."""

    response: GivenResponse | None = None
    fault: WireFault | None = None
    phase: NetworkPhase | None = None  # None: the phase in which such a fault usually shows


@dataclass(frozen=True, slots=True)
class Precondition:
    """The state before the case: an earlier attempt, its age, and its call."""

    attempt: GivenAttempt | None = None
    age_s: float | None = None
    tries: int | None = None
    reference: str | None = None
    background: bool = False


@dataclass(frozen=True, slots=True)
class Expectation:
    key: str
    value: str
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Case:
    """One case. It has at most one of `seen`, `asked`, `event` and `cancelled`. Without any, a duplicate comes and is
    decided."""

    name: str
    location: SourceLocation
    request: GivenRequest
    expect: tuple[Expectation, ...]
    precondition: Precondition = Precondition()
    attempt: GivenAttempt | None = None
    inquiry_response: GivenResponse | None = None
    webhook_event: GivenResponse | None = None  # body and headers; a webhook has no status
    cancel_response: GivenResponse | None = None
    shows: tuple[str, ...] = ()


def fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:
    """The JSON value with `{name}` in its texts replaced."""
    if isinstance(value, str):
        for name, text_of_it in values.items():
            value = value.replace(f"{{{name}}}", text_of_it)
        return value
    if isinstance(value, dict):
        return {key: fill_placeholders(child, values) for key, child in value.items()}
    return [fill_placeholders(item, values) for item in value] if isinstance(value, list) else value


def fill_response(response: GivenResponse, values: Mapping[str, str]) -> GivenResponse:
    return GivenResponse(
        response.status_code,
        fill_placeholders(dict(response.headers), values),
        fill_placeholders(response.body, values),
    )


def with_each(case: Case, each: str) -> Case:
    """The case with a value for `{each}`."""
    values = {"each": each}

    def of(response: GivenResponse | None) -> GivenResponse | None:
        return fill_response(response, values) if response is not None else None

    request, attempt = case.request, case.attempt
    return Case(
        name=f"{case.name} [{each}]",
        location=case.location,
        request=GivenRequest(
            request.method,
            fill_placeholders(request.target, values),
            fill_placeholders(dict(request.headers), values),
            fill_placeholders(request.body, values),
        ),
        expect=tuple(Expectation(one.key, fill_placeholders(one.value, values), one.location) for one in case.expect),
        precondition=case.precondition,
        attempt=GivenAttempt(of(attempt.response), attempt.fault, attempt.phase) if attempt is not None else None,
        inquiry_response=of(case.inquiry_response),
        webhook_event=of(case.webhook_event),
        cancel_response=of(case.cancel_response),
        shows=case.shows,
    )


# --- Bytes and evidence

# The phase in which a fault shows, unless the case gives one. From SENDING on the provider may have got the request.
_PHASE_OF_FAULT = {
    WireFault.CIRCUIT_OPEN: NetworkPhase.RESOLVING,
    WireFault.NOT_ADMITTED: NetworkPhase.RESOLVING,
    WireFault.POOL_EXHAUSTED: NetworkPhase.RESOLVING,
    WireFault.DNS_FAILURE: NetworkPhase.RESOLVING,
    WireFault.CONNECT_REFUSED: NetworkPhase.CONNECTING,
    WireFault.CONNECT_TIMEOUT: NetworkPhase.CONNECTING,
    WireFault.CONNECT_FAILED: NetworkPhase.CONNECTING,
    WireFault.TLS_FAILURE: NetworkPhase.HANDSHAKING,
    WireFault.TLS_TIMEOUT: NetworkPhase.HANDSHAKING,
    WireFault.LEASE_OVER: NetworkPhase.HANDSHAKING,
    WireFault.WRITE_TIMEOUT: NetworkPhase.SENDING,
    WireFault.BODY_TIMEOUT: NetworkPhase.RECEIVING,
    WireFault.MALFORMED: NetworkPhase.RECEIVING,
    WireFault.OVERSIZED: NetworkPhase.RECEIVING,
}


def evidence_of(attempt: GivenAttempt, encoding: Encoding = Encoding.JSON) -> Evidence:
    """The evidence of an attempt with this result. `encoding` is that of requests."""
    if attempt.response is not None:
        return Evidence(NetworkPhase.COMPLETE, 1, None, response_of(attempt.response, encoding), "", 0.0)
    assert attempt.fault is not None
    phase = attempt.phase if attempt.phase is not None else _PHASE_OF_FAULT.get(attempt.fault, NetworkPhase.AWAITING)
    return Evidence(phase, 1 if phase >= NetworkPhase.SENDING else 0, attempt.fault, None, "", 0.0)


def response_of(given: GivenResponse, encoding: Encoding = Encoding.JSON) -> Response:
    headers = tuple(
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in given.headers.items()
    )
    answered_in = Encoding.XML if encoding is Encoding.XML else Encoding.JSON
    return Response(given.status_code, b"", headers, body_bytes(given.body, answered_in))


def body_bytes(body: Any, encoding: Encoding) -> bytes:
    """The body in the bytes of the wire. A text goes unchanged. XML has one root, so a mapping with several members is
    written as JSON, which may stand in its place."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    rooted = isinstance(body, dict) and len(body) == 1
    return encode(body, encoding if rooted or encoding is not Encoding.XML else Encoding.JSON)
