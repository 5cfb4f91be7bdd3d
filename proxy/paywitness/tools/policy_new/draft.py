"""`paywitness policy new`: a starting policy, with comments that say what to verify.

If a fact about the provider is unknown, its value is the one that cannot charge twice. The key window is unknown, so
nothing is re-sent while the outcome is unknown. No row exists for other statuses, so any other 2xx is an unknown
outcome.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./:-]*\Z")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "none"})


# The status that means success if nobody knows better. It appears only if the operation was executed.
PAID_STATUSES = {
    OperationKind.SALE: "succeeded",
    OperationKind.AUTHORIZATION: "authorized",
    OperationKind.CAPTURE: "captured",
    OperationKind.INCREMENT: "authorized",
    OperationKind.REFUND: "refunded",
    OperationKind.VOID: "voided",
    OperationKind.REVERSAL: "reversed",
    OperationKind.PAYOUT: "paid",
}


@dataclass(frozen=True, slots=True)
class DraftOperation:
    """A call that moves money, as far as we know it."""

    name: str
    kind: OperationKind
    match: str
    amount: str = ""  # expressions over the request's body; "" if it carries none
    unit: str = "minor"
    currency: str = ""
    intent: str = ""
    unit_is_known: bool = False
    reference: str = "id"
    status: str = "status"  # the place of the status in a response
    result_classes: tuple[tuple[str, ResultClass], ...] = (("succeeded", ResultClass.SUCCEEDED),)  # by status
    unclassified_statuses: tuple[str, ...] = ()  # statuses that a person must classify
    inquiry_request: str = ""  # GET /v1/payments/{reference}, if there is one
    found_in: str = ""  # its place in the source, for the comment


@dataclass(frozen=True, slots=True)
class Draft:
    provider: str
    upstream: str
    operations: tuple[DraftOperation, ...]
    body: str = "json"
    key: str = ""  # header:NAME, body:PATH; "" if the provider takes none
    key_required: bool = False
    left_out: tuple[str, ...] = ()  # calls that are no operation of the draft, listed in a comment
    origin: str = ""


def policy_text(draft: Draft) -> str:
    """The policy file."""
    lines = [*_head(draft), *_contract(draft), "", "operations:"]
    for operation in draft.operations:
        lines += _operation(operation)
    lines += _answers(draft)
    lines += _tail(draft)
    return "\n".join(lines) + "\n"


def _head(draft: Draft) -> list[str]:
    origin = f" It was made from {draft.origin}." if draft.origin else ""
    return [
        f"# {draft.provider}: a starting policy.{origin}",
        "# Check every VERIFY against the provider's documentation, note the place there, then remove the word.",
        "# Unknown facts have safe values: nothing is re-sent in doubt, and an unknown 2xx is an unknown outcome.",
        "#",
        f"#   paywitness policy check {draft.provider}.yaml     its summary, and every problem in it",
        f"#   paywitness policy test {draft.provider}.yaml      once there are cases in tests/{draft.provider}.yaml",
        "",
        f"provider: {_scalar(draft.provider)}",
        f"upstream: {_scalar(draft.upstream)}    # VERIFY: the test or the live address",
        f"body: {_scalar(draft.body)}    # VERIFY: how request bodies are encoded: json or form",
        "account: [const:main]    # VERIFY: add the account's field (header:Merchant-Id); never a credential",
        "",
    ]


def _contract(draft: Draft) -> list[str]:
    if not draft.key:
        return [
            "# VERIFY: does it take an idempotency key? Without one nothing is re-sent once a byte may have left.",
            "# idempotency: {send_as: header:Idempotency-Key, window: 24h, errors_under_key: replayed}",
        ]
    return [
        "idempotency:",
        f"  send_as: {_scalar(draft.key)}",
        "  window: unknown    # VERIFY: how long it remembers a key, such as 24h. unknown: never re-sent in doubt",
        "  errors_under_key: unknown    # VERIFY: is a 500 stored too (replayed), or the work done again (reexecuted)?",
        "  max_length: 255    # VERIFY",
        f"  required: {'true' if draft.key_required else 'false'}    # true: a call without a key is answered 400",
    ]


def _operation(operation: DraftOperation) -> list[str]:
    found = f"    # {operation.found_in}" if operation.found_in else ""
    lines = [
        f"  {operation.name}:{found}",
        f"    kind: {operation.kind}    # VERIFY",
        f"    match: {_scalar(operation.match)}",
    ]
    parameters = re.findall(r"\{([a-z0-9_]+)\}", operation.match)
    if parameters and not operation.kind.pays:
        lines.append(f"    target: path:{parameters[0]}    # two of these on one thing never run at once")
    lines += _money(operation)
    if operation.kind.pays and operation.intent:
        lines.append(
            f"    intent: {_scalar(operation.intent)}    # VERIFY: names the purchase, for one payment at a time"
        )
    elif operation.kind.pays and not parameters:
        lines.append("    # VERIFY: intent: metadata.order_id    (it names the purchase, so that it is paid once)")
    lines += [
        f"    reference: {_scalar(operation.reference)}    # VERIFY: in the response",
        f"    answer: {operation.name}",
    ]
    if operation.inquiry_request:
        lines += [
            "    ask:    # VERIFY: and add a search by the order or by our stamp, in case its response was lost",
            f"      - {{needs: reference, request: {_scalar(operation.inquiry_request)}, answer: {operation.name}}}",
        ]
    else:
        lines.append(f'    # VERIFY: ask: [{{needs: reference, request: "GET /...", answer: {operation.name}}}]')
    return [*lines, ""]


def _money(operation: DraftOperation) -> list[str]:
    if not operation.amount:
        return []
    optional = ", absent: full" if operation.kind in {OperationKind.CAPTURE, OperationKind.REFUND} else ""
    verify = "" if operation.unit_is_known else "    # VERIFY: 1099 is minor, 10.99 is major"
    lines = [f"    amount: {{at: {_scalar(operation.amount)}, unit: {operation.unit}{optional}}}{verify}"]
    if operation.currency:
        at, code = _scalar(operation.amount), _scalar(operation.currency)
        lines += [
            f"    currency: {code}",
            f"    fits: {{amount: {at}, unit: {operation.unit}, currency: {code}}}    # VERIFY: in the response",
        ]
    return lines


def _answers(draft: Draft) -> list[str]:
    lines = ["answers:    # the meaning of responses; a 2xx without a row is an unknown outcome, never a success"]
    for operation in draft.operations:
        lines.append(f"  {operation.name}:")
        for word, result_class in operation.result_classes:
            condition = json.dumps(f"{operation.status} == '{word}'")
            lines.append(f"    - {{when: {condition}, as: {result_class}}}    # VERIFY")
        for word in operation.unclassified_statuses:
            lines.append(f"    # VERIFY: - {{when: \"{operation.status} == '{word}'\", as: ...}}")
    return [*lines, ""]


def _tail(draft: Draft) -> list[str]:
    lines = [
        "# VERIFY: the field with the decline code. Without these rows a 402 is a hard decline.",
        "# classify:",
        "#   - {status: 402, code: error.code, table: declines}",
        "# tables:",
        "#   declines: {issuer_soft_decline: [insufficient_funds], issuer_hard_decline: [stolen_card]}",
        "",
        "unmatched: forward    # calls that are no operation are forwarded once, unchanged; refuse: 403",
        "timeouts: {connect: 2s, first_byte: 20s, deadline: 60s}    # VERIFY: an issuer may be slow",
        "retry: {default: {attempts: 3, backoff: full, base: 200ms, cap: 5s}}",
    ]
    if draft.left_out:
        lines += ["", "# Left out, and so forwarded unchanged. VERIFY that none of them moves money:"]
        lines += [f"#   {call}" for call in draft.left_out]
    return lines


def _scalar(text: str) -> str:
    """The text as a YAML scalar. It is quoted if YAML would read anything else."""
    plain = _PLAIN.match(text) and text.lower() not in _NOT_TEXT
    sends = re.fullmatch(r"[A-Z]+ [A-Za-z0-9_./-]+", text)
    return text if plain or sends else json.dumps(text)
