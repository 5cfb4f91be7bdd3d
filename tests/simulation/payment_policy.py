"""What the policy of a world says of payments with numbers (`payments.py`): the operations under /v2, their answers.

The keys that concern the money between operations are listed in `_NEW_KEYS`. A release that does not know one of them
yet is given the policy without it, so that the same worlds can be played before and after.
"""

from __future__ import annotations

import re

from paywitness.policy.schema import FILE, OPERATION
from tests.simulation.swarm import Mix

CANCELLED = frozenset({"hold", "confirm"})  # those that can be given up while in doubt
OPERATIONS = frozenset({"pay", "hold", "open", "confirm", "take", "take_once", "give_up", "give_back", "transfer"})
_NEW_KEYS = frozenset(
    {
        *("payment", "also_known_as", "captures", "balance", "limits", "final", "partial", "once_per_target"),
        *("failed_after_success", "belongs"),
    }
)
_KEY = re.compile(r"^ {4}(\w+):")

# The words in capitals are put in by `operations_text`. One key a line: a key that is not known takes its line along.
_OPERATIONS = """
  pay:
    kind: sale
    match: POST /v2/payments
    where: "confirm && capture == 'automatic'"
    captures: automatic
PAYING
  hold:
    kind: authorization
    match: POST /v2/payments
    where: "confirm && capture == 'manual'"
    captures: manual
    cancel:
      needs: reference
      request: "POST /v2/payments/{reference}/void"
      read: [{when: "status == 'canceled'", as: cancelled}]
PAYING
  open:
    kind: none
    match: POST /v2/payments
    fits: {stamp: metadata.paywitness}
    intent: metadata.order_id
    after_success: block
    reference: id
    also_known_as: [latest_charge]
    balance: BALANCE
    answer: payment_opened
ASK_PAYMENT(payment_opened)
    as_response: "@"
  confirm:
    kind: sale
    match: "POST /v2/payments/{payment}/confirm"
    target: path:payment
    after_success: block
    once_per_target: yes
    captures: "capture == 'automatic'"
    also_known_as: [latest_charge]
    balance: BALANCE
    stamp: none
    webhook: none
    answer: payment
    cancel:
      request: "POST /v2/payments/{path:payment}/void"
      read: [{when: "status == 'canceled'", as: cancelled}]
ASK_TARGET(payment_asked)
    as_response: "@"
  take:
    kind: capture
    match: "POST /v2/payments/{payment}/captures"
    target: path:payment
    partial: sequence
    final: final
    also_known_as: [payment, charge]
    amount: {at: amount, unit: minor, absent: full}
    fits: {stamp: metadata.paywitness}
    reference: id
    answer: payment_capture
ASK_STAMP(captures, payment_capture)
    as_response: "@"
  take_once:
    kind: capture
    match: "POST /v2/payments/{payment}/capture"
    target: path:payment
    partial: single
    final: yes
    also_known_as: [latest_charge]
    balance: BALANCE
    amount: {at: amount, unit: minor, absent: full}
    stamp: none
    webhook: none
    answer: payment_captured
ASK_TARGET(payment_captured_asked)
    as_response: "@"
  give_up:
    kind: void
    match: "POST /v2/payments/{payment}/void"
    target: path:payment
    also_known_as: [latest_charge]
    balance: BALANCE
    stamp: none
    webhook: none
    answer: payment_voided
ASK_TARGET(payment_voided_asked)
    as_response: "@"
  give_back:
    kind: refund
    match: POST /v2/refunds
    target: body:payment
    payment: [body:payment, body:charge]
    also_known_as: [payment, charge]
    failed_after_success: returned
    amount: {at: amount, unit: minor, absent: full}
    fits: {stamp: metadata.paywitness}
    reference: id
    answer: payment_refund
ASK_STAMP(refunds, payment_refund)
    as_response: "@"
  transfer:
    kind: payout
    match: POST /v2/transfers
    target: body:reference
    after_success: block
    failed_after_success: returned
    amount: {at: amount, unit: minor}
    currency: currency
    fits: {amount: amount, unit: minor, currency: currency, stamp: metadata.paywitness}
    reference: id
    answer: transfer
ASK_STAMP(transfers, transfer)
    as_response: "@"
"""
_PAYING = """
    amount: {at: amount, unit: minor}
    currency: currency
    fits: {amount: amount, unit: minor, currency: currency, stamp: metadata.paywitness}
    intent: metadata.order_id
    after_success: block
    reference: id
    also_known_as: [latest_charge]
    balance: BALANCE
    answer: payment
ASK_PAYMENT(payment)
    as_response: "@"
"""
_BALANCE = (
    "{authorised: amount_authorised, captured: amount_captured, capturable: amount_capturable, "
    "refunded: amount_refunded, currency: currency, unit: minor}"
)
_ASK_PAYMENT = """
    ask:
      - {needs: reference, request: "GET /v2/payments/{reference}", answer: ANSWER}
      - request: GET /v2/payments
        query: {paywitness: "{operation_id}"}
        at: data
        more: has_more
        always_lists: data
        answer: ANSWER
        lag: LAG
        misses: 3
"""
_ASK_STAMP = """
    ask:
      - {needs: reference, request: "GET /v2/LISTED/{reference}", answer: ANSWER}
      - request: GET /v2/LISTED
        query: {paywitness: "{operation_id}"}
        at: data
        more: has_more
        always_lists: data
        answer: ANSWER
        lag: LAG
        misses: 3
"""
_ASK_TARGET = """
    ask: [{request: "GET /v2/payments/{path:payment}", answer: ANSWER, lag: LAG, misses: 3}]
    belongs: {reference: id}
"""
ANSWERS = """
  payment:
    - {when: "status == 'succeeded' || status == 'requires_capture'", as: succeeded}
    - {when: "status == 'processing'", as: pending}
    - {when: "status == 'requires_payment_method'", code: failure_code, table: declines, otherwise: failed}
    - {when: "status == 'canceled'", as: cancelled}
  payment_opened:
    - {when: "object == 'payment'", as: succeeded}
  payment_asked:
    - {when: "status == 'succeeded' || status == 'requires_capture'", as: succeeded}
    - {when: "status == 'processing'", as: pending}
    - {when: "status == 'requires_confirmation' || status == 'requires_payment_method'", as: absent}
    - {when: "status == 'canceled'", as: cancelled}
  payment_captured:
    - {when: "amount_captured > `0`", as: succeeded}
  payment_captured_asked:
    - {when: "amount_captured > `0`", as: succeeded}
    - {when: "status == 'requires_capture'", as: absent}
    - {when: "status == 'canceled'", as: failed}
  payment_voided:
    - {when: "amount_voided > `0` || status == 'canceled'", as: succeeded}
  payment_voided_asked:
    - {when: "amount_voided > `0` || status == 'canceled'", as: succeeded}
    - {when: "status == 'requires_capture'", as: absent}
    - {when: "status == 'succeeded'", as: failed}
  payment_capture:
    - {when: "object == 'payment_capture' && status == 'succeeded'", as: succeeded}
  payment_refund:
    - {when: "object == 'payment_refund' && status == 'succeeded'", as: succeeded}
    - {when: "object == 'payment_refund' && status == 'pending'", as: pending}
    - {when: "object == 'payment_refund' && status == 'failed'", as: failed}
  transfer:
    - {when: "object == 'transfer' && status == 'paid'", as: succeeded}
    - {when: "object == 'transfer' && status == 'pending'", as: pending}
    - {when: "object == 'transfer' && status == 'failed'", as: failed}
"""
_DECLINED_IS_ABSENT = """
    - {when: "status == 'requires_confirmation' || status == 'requires_payment_method'", as: absent}
"""
_DECLINED_IS_DECLINED = """
    - {when: "status == 'requires_confirmation'", as: absent}
    - {when: "status == 'requires_payment_method'", code: failure_code, table: declines, otherwise: failed}
"""
ALREADY_DONE = ", payment_already_confirmed, payment_already_captured, payment_already_voided, payment_already_refunded"


def operations_text(mix: Mix, lag_ms: int) -> str:
    """The operations under /v2, as far as this release knows their keys."""
    text = _OPERATIONS.replace("PAYING\n", _PAYING.lstrip("\n")).replace("BALANCE", _BALANCE)
    asks = {"PAYMENT": _ASK_PAYMENT, "STAMP": _ASK_STAMP, "TARGET": _ASK_TARGET}

    def ask(found: re.Match[str]) -> str:
        name, listed, answer = found.groups()
        text = asks[name].strip("\n").replace("LISTED", listed or "").replace("ANSWER", answer)
        return text.replace("LAG", f"{lag_ms}ms") if mix.asks else ""

    text = re.sub(r"ASK_(\w+)\((?:(\w+), )?(\w+)\)", ask, text)
    return "\n".join(line for line in text.strip("\n").splitlines() if line and _is_known(line)) + "\n"


def answers_text(mix: Mix) -> str:
    """With a decline that any confirm of the payment may find, in worlds that have it."""
    text = ANSWERS.lstrip("\n")
    return text.replace(_DECLINED_IS_ABSENT, _DECLINED_IS_DECLINED) if mix.shows_declines else text


def limits_text(limits: str) -> str:
    return f"limits: {limits}\n" if "limits" in FILE.keys else ""


def _is_known(line: str) -> bool:
    key = _KEY.match(line)
    return key is None or key.group(1) not in _NEW_KEYS or key.group(1) in OPERATION.keys
