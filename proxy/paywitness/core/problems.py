"""The body of our own replies: the members of RFC 9457, combined with the provider's error shape.

A client that reads XML gets XML if the shape has a root: our members are inside it, beside the provider's. All other
clients get problem+json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from paywitness.core.bodies.xml import encode_xml
from paywitness.core.errors import BodyError
from paywitness.core.record import record

_PROBLEM_JSON = b"application/problem+json"
_PROBLEM_XML = b"application/xml"


def problem_body(
    members: dict[str, Any], shape: Mapping[str, Any], kind: Problem, detail: str, *, xml: bool
) -> tuple[bytes, bytes]:
    """The body and its media type. The shape never replaces a member of ours."""
    texts = {"{detail}": detail, "{code}": "paywitness_" + kind.replace("-", "_")}
    filled = {name: _filled(value, texts) for name, value in shape.items()}
    if xml and len(filled) == 1:
        [(root, children)] = filled.items()
        if isinstance(children, dict):
            try:
                return encode_xml({root: children | members}), _PROBLEM_XML
            except BodyError:
                pass  # XML cannot hold one of the texts, so the reply is JSON
    # Escaped, because a text from outside may hold half of a surrogate pair.
    return json.dumps(
        members | {name: filled[name] for name in filled if name not in members}, default=str
    ).encode(), _PROBLEM_JSON


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """The provider's error shape, with our texts for its placeholders."""
    if isinstance(value, str):
        return _NAMES.sub(lambda name: texts[name.group()], value)
    if isinstance(value, Mapping):
        return {key: _filled(item, texts) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, texts) for item in value]
    return value


_NAMES = re.compile(r"\{detail\}|\{code\}")


PROBLEM_TYPE_PREFIX = "urn:paywitness:problem:"


class Problem(StrEnum):
    """Our own replies. The value is the last part of the problem's `type`, which carries the meaning, not the status
    code."""

    UNKNOWN = "unknown"
    NOT_SENT = "not-sent"
    ABSENT = "absent"
    JOURNAL_UNAVAILABLE = "journal-unavailable"
    IN_FLIGHT = "in-flight"
    GUARDED = "guarded"
    REFUNDED = "refunded"
    EXCEEDS_REMAINING = "exceeds-remaining"
    CAP_EXCEEDED = "cap-exceeded"
    APPROVAL_NEEDED = "approval-needed"
    REFUSED_BY_CHECK = "refused-by-check"
    CLOSED_WITHOUT_RESPONSE = "closed-without-response"
    KEY_EXPIRED = "key-expired"
    KEY_REUSED = "key-reused"
    KEY_REQUIRED = "key-required"
    KEY_INVALID = "key-invalid"
    CREDENTIAL_NOT_RECOGNISED = "credential-not-recognised"
    ACCOUNT_UNKNOWN = "account-unknown"
    BODY_UNREADABLE = "body-unreadable"
    TOO_LARGE = "too-large"
    TOO_SLOW = "too-slow"
    MALFORMED = "malformed"
    PROVIDER_NOT_ALLOWED = "provider-not-allowed"
    PATH_NOT_ALLOWED = "path-not-allowed"
    OPERATION_NOT_ALLOWED = "operation-not-allowed"
    HOST_NOT_ALLOWED = "host-not-allowed"
    CROSS_SITE = "cross-site"
    NOT_FOUND = "not-found"
    FORWARD_FAILED = "forward-failed"


@record
class ProblemDefinition:
    status_code: int
    title: str
    repeat_helps: bool  # whether the same call again, under the same key, can get another reply


PROBLEMS: dict[Problem, ProblemDefinition] = {
    Problem.UNKNOWN: ProblemDefinition(504, "The outcome of this payment is unknown", True),
    Problem.NOT_SENT: ProblemDefinition(503, "Nothing was sent, and nothing will be", True),
    Problem.ABSENT: ProblemDefinition(503, "It was sent and not executed, and will not be", True),
    Problem.JOURNAL_UNAVAILABLE: ProblemDefinition(504, "The journal did not answer", True),
    Problem.IN_FLIGHT: ProblemDefinition(409, "The same call is still under way", True),
    Problem.GUARDED: ProblemDefinition(409, "Another operation on the same money is open", True),
    Problem.REFUNDED: ProblemDefinition(409, "The payment was made and given back", False),
    Problem.EXCEEDS_REMAINING: ProblemDefinition(422, "The payment has less left than this", False),
    Problem.CAP_EXCEEDED: ProblemDefinition(409, "The payout exceeds a cap", False),
    Problem.APPROVAL_NEEDED: ProblemDefinition(409, "A person must approve this payout first", False),
    Problem.REFUSED_BY_CHECK: ProblemDefinition(409, "The check before the payout did not allow it", False),
    Problem.CLOSED_WITHOUT_RESPONSE: ProblemDefinition(409, "The operation ended without a response to replay", False),
    Problem.KEY_EXPIRED: ProblemDefinition(410, "The key belongs to an operation that has expired", False),
    Problem.KEY_REUSED: ProblemDefinition(422, "The key was used with another payload", False),
    Problem.KEY_REQUIRED: ProblemDefinition(400, "A key is required", False),
    Problem.KEY_INVALID: ProblemDefinition(400, "The key cannot be used", False),
    Problem.CREDENTIAL_NOT_RECOGNISED: ProblemDefinition(403, "This credential is not of this account", False),
    Problem.ACCOUNT_UNKNOWN: ProblemDefinition(504, "The owner of this credential is not known", True),
    Problem.BODY_UNREADABLE: ProblemDefinition(400, "The body cannot be read", False),
    Problem.TOO_LARGE: ProblemDefinition(413, "The request is too large", False),
    Problem.TOO_SLOW: ProblemDefinition(408, "The request did not arrive in time", True),
    Problem.MALFORMED: ProblemDefinition(400, "The request is malformed", False),
    Problem.PROVIDER_NOT_ALLOWED: ProblemDefinition(403, "No policy names this provider", False),
    Problem.PATH_NOT_ALLOWED: ProblemDefinition(403, "This path is not allowed", False),
    Problem.OPERATION_NOT_ALLOWED: ProblemDefinition(403, "No operation of the policy matches this call", False),
    Problem.HOST_NOT_ALLOWED: ProblemDefinition(403, "This sidecar does not serve this host name", False),
    Problem.CROSS_SITE: ProblemDefinition(403, "A web page of another origin may not call this", False),
    Problem.NOT_FOUND: ProblemDefinition(404, "There is no such thing here", False),
    Problem.FORWARD_FAILED: ProblemDefinition(504, "The provider did not answer this call", True),
}

# --- Titles of single cases

NOT_EXECUTED = "The provider refused it, and nothing more will be sent"
EXECUTED_NOWHERE = "No provider executed it, and nothing more will be sent"
PAID_ALREADY = "This was paid already, by another call"
EQUAL_CALL_SUCCEEDED = "An equal call succeeded, and its caller may not know"
RESERVED = "Open operations of the payment reserve what is left of it"
CONTRADICTED = "Evidence about this payment contradicts itself"
CLOSED_TITLES = {
    "succeeded": "It succeeded, and there is no response to replay",
    "pending": "The provider accepted it, and there is no response to replay",
    "requires_action": "The customer must act, and there is no response to replay",
    "declined": "It was declined, and there is no response to replay",
    "failed": "It failed without effect, and there is no response to replay",
}

# --- Texts of the 504
# They tell a caller why the outcome is unknown. Each says what happened, and what to do next.

DEADLINE_PASSED = (
    "The provider has the request and has not answered in time. The attempt goes on, and its outcome will be known. "
    "Repeat with the same key, or wait. Do not make another payment."
)
RESPONSE_LOST = (
    "The provider may have executed this payment; its response was lost. Repeat with the same key, or wait. "
    "Do not make another payment."
)
ANSWERED_IN_DOUBT = (
    "The provider answered, and its response leaves open whether it executed this payment. Paywitness will find out. "
    "Repeat with the same key, or wait. Do not make another payment."
)
STILL_IN_FLIGHT = (
    "The same call is still under way, and the provider may already have it. Repeat with the same key, or wait. "
    "Do not make another payment."
)
ATTEMPT_NOT_RECORDED = (
    "The journal did not take the record of this attempt. Paywitness will find out the outcome of this payment. "
    "Repeat with the same key, or wait. Do not make another payment."
)
JOURNAL_DID_NOT_ANSWER = (
    "The journal did not answer, so nothing was sent by this call; an earlier one under the same key may have been. "
    "Repeat with the same key."
)
TOO_MANY_LOOKUPS = (
    "This call was refused by our limits, and so many are refused at once that the journal was not asked about it. "
    "Nothing was sent by this call; an earlier one may have been. Repeat with the same key."
)
JOURNAL_FORGOT = (
    "The journal may have forgotten its last moments, or all it knew. Nothing was sent by this call; an earlier one "
    "may have been. Repeat with the same key in a minute."
)
NEEDS_A_PERSON = (
    "The provider may have executed this payment, and no evidence shows the outcome. A person must look. "
    "Do not pay again."
)

WHOSE_IS_UNKNOWN = (
    "A payment under this key, order or content may have been made already, under another credential. It is not known "
    "whether both are of one account, so this reply shows nothing of it, and nothing was sent by this call. Repeat "
    "with the same key, or ask an operator to map the credential. Do not make another payment."
)
ANOTHER_OWNER = (
    "The provider says that this credential belongs to another account than the one that this policy acts for. Nothing "
    "was sent. `merchants: many` in the policy lets one sidecar act for several."
)
ANOTHER_ACCOUNT = (
    "This call contradicts itself about its account: the provider's answer, the policy's `accounts:` and "
    "`Paywitness-Account` name different ones. Nothing was sent."
)
UNLISTED_ACCOUNT = (
    "Several merchants act through this policy, and none of its `accounts:` lists this credential. Nothing was sent. "
    "List it there, or name the account by `Paywitness-Account`."
)

# --- Texts of the 409s

CHECK_REFUSED = (
    "The check before this payout did not allow it, or did not answer in time. Nothing was sent, nothing is "
    "recorded, and the key is free."
)


def contradicted_text(incident: str) -> str:
    return f"Evidence about this payment contradicts itself (incident: {incident}). A person must look."
