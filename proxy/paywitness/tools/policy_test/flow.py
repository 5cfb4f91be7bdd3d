"""Flows of `policy test` as values: several steps in a row against one policy. And the YAML keys of a flow.

A case shows the result of one request. A flow shows rules between operations: the rest of a payment's balance, calls
that are refused while another operation is open, whether an order may be paid again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paywitness.core.evidence import NetworkPhase, WireFault
from paywitness.core.lifecycle import IncidentKind
from paywitness.policy.reading.locations import SourceLocation, listed
from paywitness.policy.reading.value_readers import Reader, choice_of, text, whole_number, yes_or_no
from paywitness.policy.schema import Block
from paywitness.tools.policy_test.case import (
    NONE,
    READERS,
    RESPONSE_FORMS,
    SHOWS_FORMS,
    Case,
    Expectation,
    GivenAttempt,
    GivenRequest,
    GivenResponse,
)

UNKNOWN = "null"  # the number is unknown
BALANCE_NUMBERS = ("authorised", "captured", "refunded", "voided", "disputed")
AMOUNT_MAX = 999_999_999


def yes_no(value: str) -> str:
    return "yes" if yes_or_no(value) else "no"


def _amount(value: str) -> str:
    return value if value == UNKNOWN else str(whole_number(0, AMOUNT_MAX)(value))


STEP_READERS: Mapping[str, Reader[str]] = {
    "sent": yes_no,
    "replayed": yes_no,
    "safe_to_pay": yes_no,
    "incident": choice_of(*IncidentKind, NONE),
    **{
        key: READERS[key]
        for key in ("operation", "class", "found", "found_by", "state", "action", "outcome", "status", "problem")
    },
    "reference": READERS["reference"],
}
BALANCE_READERS: Mapping[str, Reader[str]] = dict.fromkeys(BALANCE_NUMBERS, _amount)
POSTING_READERS: Mapping[str, Reader[str]] = {"kind": text, "amount": _amount}

_MINOR = "minor units such as 1099, or null: unknown"
STEP_EXPECT = Block(
    "expect of a step",
    {
        "sent": "yes or no: whether this step sent something to the provider",
        "replayed": "yes or no: whether the caller gets a stored reply",
        "safe_to_pay": "yes or no: whether the order may be paid (again)",
        "balance": "a mapping: the numbers of the payment after the step",
        "posting": "a mapping: kind and amount of the movement that the step shows; or none",
        "incident": f"{listed(IncidentKind)} or none",
        "operation": "the operation's name, or none",
        "class": "a reading, or none",
        "found": "of 'inquiry' and 'event': hit, missed, failed, not_ours or none",
        "found_by": "of 'event': operation_id, provider_key, client_key, reference, intent or none",
        "state": "the operation's state after it",
        "action": "the decided action, or none",
        "outcome": "the outcome that the caller gets",
        "status": "the status that the caller gets",
        "problem": "the problem that the caller gets, or none if it is the provider's own response",
        "reference": "the provider's name for it, or none",
    },
)
BALANCE = Block("balance", dict.fromkeys(BALANCE_NUMBERS, _MINOR))
POSTING = Block("posting", {"kind": "sale, authorization, capture, refund, void, ...", "amount": _MINOR})

FLOW = Block(
    "flow",
    {"name": "what the flow shows, in a few words", "shows": SHOWS_FORMS, "steps": "a list of steps"},
    required=("name", "steps"),
)
STEP = Block(
    "step",
    {
        "request": "the name of a request, or a mapping: like, send, headers, body",
        "response": RESPONSE_FORMS,
        "lost": "yes: the request was sent, and no response came",
        "fault": listed(WireFault),
        "phase": listed(phase.label for phase in NetworkPhase),
        "inquiry": f"the response to an inquiry: {RESPONSE_FORMS}",
        "event": "a webhook, a mapping: headers, body",
        "of": "of 'inquiry': the number of the step whose operation is inquired about",
        "pause": "a duration such as 300ms, 2s, 5m, 24h or 30d: before the step",
        "expect": "a mapping: the expected facts",
    },
)
FLOW_BLOCKS = (FLOW, STEP, STEP_EXPECT, BALANCE, POSTING)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. It has one of `request`, `inquiry` and `event`, or none of them: then only time passes."""

    location: SourceLocation
    expect: tuple[Expectation, ...] = ()
    request: GivenRequest | None = None
    attempt: GivenAttempt | None = None  # the result of each attempt of the request; None: nothing may be sent
    inquiry: GivenResponse | None = None
    of: int | None = None  # counted from 1; None: the newest operation
    event: GivenResponse | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    location: SourceLocation
    steps: tuple[Step, ...]
    shows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The content of one case file."""

    source: str
    policy: str | None
    cases: tuple[Case, ...]
    flows: tuple[Flow, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # situations that nothing here shows, with the reason
