"""The policy of a world: Acme's dialect, with the contract and the patience that the seed chose. It tells the truth
about the simulated provider: under a policy that lies nothing is promised."""

from __future__ import annotations

from functools import lru_cache

from paywitness.core.policy import Provider
from paywitness.policy.book import PolicyBook, load_content
from tests.simulation.payment_policy import ALREADY_DONE, answers_text, limits_text, operations_text
from tests.simulation.swarm import DENSE, SPARSE, Mix

UPSTREAM = "http://api.acme.test"
MOVED = "http://new.acme.test"  # what an edit of the policy calls the provider's address
ELSEWHERE = "http://eu.acme.test"  # another route of the same API, with books of its own
EVENTS = "http://events.shop.test/in"
WEBHOOK_SECRET = "whsec_of_the_simulation"
EVENTS_SECRET = "whsec_c2ltdWxhdGlvbiBvZiB0aGUgd2hvbGUgZW5naW5l"

_KEYS = """
idempotency:
  send_as: header:Idempotency-Key
  take_from: [header:Idempotency-Key]
  window: {window_s}s
  max_length: 255
  errors_under_key: {contract}
  key_space: account
"""
_NO_KEYS = """
idempotency:
  send_as: none
  take_from: [header:Idempotency-Key]
"""
_ASK_CHARGE = """
    ask:
      - {{needs: reference, request: "GET /v1/charges/{{reference}}", answer: charge}}
      - request: GET /v1/charges
        query: {{paywitness: "{{operation_id}}"{since}}}
        at: data
        more: has_more
        always_lists: data
        answer: charge
        lag: {lag_ms}ms
        misses: 3
    as_response: "@"
"""
# Of a provider that has no search: what has no name cannot be asked about.
_ASK_CHARGE_BY_NAME = """
    ask: [{needs: reference, request: "GET /v1/charges/{reference}", answer: charge, lag: 500ms, misses: 3}]
    as_response: "@"
"""
_SINCE = ', created_from: "{since}"'
_ASK_REFUND = """
    ask:
      - {{needs: reference, request: "GET /v1/refunds/{{reference}}", answer: refund}}
      - request: "GET /v1/charges/{{path:charge}}/refunds"
        query: {{paywitness: "{{operation_id}}"}}
        at: data
        more: has_more
        always_lists: data
        answer: refund
        lag: {lag_ms}ms
        misses: 3
    as_response: "@"
"""
_ASK_CAPTURE = """
    ask: [{{request: "GET /v1/charges/{{path:charge}}", answer: captured_charge_asked}}]
    belongs: {{reference: id}}
"""
_ASK_VOID = """
    ask: [{{request: "GET /v1/charges/{{path:charge}}", answer: voided_charge_asked}}]
    belongs: {{reference: id}}
"""
_ASK_PAYOUT = """
    ask:
      - {{needs: reference, request: "GET /v1/payouts/{{reference}}", answer: payout}}
      - request: GET /v1/payouts
        query: {{paywitness: "{{operation_id}}"{since}}}
        at: data
        more: has_more
        always_lists: data
        answer: payout
        lag: {lag_ms}ms
        misses: 3
    as_response: "@"
"""
_TEXT = """
provider: {provider}
{merchant}
upstream: {upstream}
hosts: [{host}]
body: json
{account}
{idempotency}
stamp: body:metadata.paywitness
timeouts: {{connect: 500ms, write: 1s, first_byte: {first_byte}, body_idle: 1s, deadline: {deadline_s}s}}
{limits}ignore: [client_time]
operations:
  authorization:
    kind: authorization
    match: POST /v1/charges
    where: "capture == `false`"
    idempotency: {{take_from: [header:Idempotency-Key, body:metadata.order_id]}}
    amount: {{at: amount, unit: minor}}
    currency: currency
    fits: {{amount: amount, unit: minor, currency: currency, stamp: metadata.paywitness}}
    intent: metadata.order_id
    after_success: block
    reference: id
    answer: charge
{ask_charge}
  sale:
    kind: sale
    match: POST /v1/charges
    idempotency: {{take_from: [header:Idempotency-Key, body:metadata.order_id]}}
    amount: {{at: amount, unit: minor}}
    currency: currency
    fits: {{amount: amount, unit: minor, currency: currency, stamp: metadata.paywitness}}
    intent: metadata.order_id
    after_success: block
    reference: id
    answer: charge
{ask_charge}
  capture:
    kind: capture
    match: "POST /v1/charges/{{charge}}/capture"
    target: path:charge
    stamp: none
    webhook: none
    amount: {{at: amount, unit: minor, absent: full}}
    answer: captured_charge
{ask_capture}
  void:
    kind: void
    match: "POST /v1/charges/{{charge}}/void"
    target: path:charge
    stamp: none
    webhook: none
    answer: voided_charge
{ask_void}
  payout:
    kind: payout
    match: POST /v1/payouts
    target: body:reference
    amount: {{at: amount, unit: minor}}
    currency: currency
    fits: {{amount: amount, unit: minor, currency: currency, stamp: metadata.paywitness}}
    reference: id
    answer: payout
{ask_payout}
  refund:
    kind: refund
    match: "POST /v1/charges/{{charge}}/refunds"
    target: path:charge
    amount: {{at: amount, unit: minor, absent: full}}
    fits: {{stamp: metadata.paywitness}}
    reference: id
    answer: refund
{ask_refund}
{more_operations}answers:
  charge:
    - {{when: "status == 'succeeded' || status == 'authorized'", as: succeeded}}
    - {{when: "status == 'processing'", as: pending}}
    - {{when: "status == 'requires_action'", as: requires_action}}
    - {{when: "status == 'failed'", code: failure_code, table: declines, otherwise: failed}}
    - {{when: "status == 'voided'", as: cancelled}}
    - {{when: "status == 'reversed'", as: reversed}}
  captured_charge:
    - {{when: "status == 'succeeded' && captured", as: succeeded}}
  captured_charge_asked:
    - {{when: "status == 'succeeded' && captured", as: succeeded}}
    - {{when: "status == 'authorized'", as: absent}}
    - {{when: "status == 'voided'", as: failed}}
  voided_charge:
    - {{when: "status == 'voided'", as: succeeded}}
  voided_charge_asked:
    - {{when: "status == 'voided'", as: succeeded}}
    - {{when: "status == 'authorized'", as: absent}}
    - {{when: "status == 'succeeded'", as: failed}}
  refund:
    - {{when: "status == 'succeeded'", as: succeeded}}
  payout:
    - {{when: "status == 'paid'", as: succeeded}}
    - {{when: "status == 'pending'", as: pending}}
    - {{when: "status == 'failed'", as: failed}}
    - {{when: "status == 'reversed'", as: reversed}}
{more_answers}classify:
{rejected}  - {{status: 409, when: "error.code == 'idempotency_key_in_use'", as: idempotency_in_flight}}
  - {{when: "error.type == 'idempotency_error'", as: idempotency_conflict}}
  - status: 409
    when: "error.type == 'invalid_request_error'"
    code: error.code
    table: conflicts
    otherwise: validation_error
  - {{status: 402, code: error.decline_code, table: declines}}
  - {{status: 503, when: "error.code == 'overloaded'", as: temporary_provider_error, effect: none}}
tables:
  declines:
    issuer_soft_decline: [insufficient_funds]
    issuer_hard_decline: [stolen_card, expired_card]
    risk_decline: [fraudulent]
  conflicts:
    already_done: [charge_already_captured, charge_already_refunded, charge_already_voided, charge_already_paid{done}]
problem: {{error: {{type: api_error, message: "{{detail}}"}}}}
unmatched: forward
{fallback}
retry:
  default: {{attempts: {attempts}, backoff: {backoff}, base: 100ms, cap: 2s}}
  rate_limited: {{attempts: 4, base: 500ms, cap: 5s}}
  network_connect_failure: {{attempts: 4, base: 100ms, cap: 1s}}
budget: {{window: 10s, provider: {{floor: 100, ratio: 5%, ceiling: 100%}}, per_intent: 3}}
{webhook}
resolve:
  schedule: [{schedule}]
  resend_for: {resend_for_s}s
  settle: 40s
  action_expires: 60s
"""
_WEBHOOK = """
webhook:
  scheme: hmac_sha256
  secrets: [env:ACME_WEBHOOK_SECRET]
  event_id: id
  find:
    - {operation_id: data.metadata.paywitness}
    - {provider_key: data.idempotency_key}
    - {reference: data.id}
  at: data
  answer_by: data.object
"""


_MIRROR = "same_credentials_as: acme"
_ACCOUNTS = {
    "": "account: [const:main]",
    "selector": "account: [header:X-Merchant]",
    "header": "account: [const:main]",
    "owners": "account: [const:main]\nwho_am_i: {request: GET /v1/account, field: account_id}",
    "many": "account: [const:main]\nmerchants: many\nwho_am_i: {request: GET /v1/account, field: account_id}",
}
_REJECTED = "  - {status: 401, as: authentication_error, fallback: true}\n"


def _fallback_text(mix: Mix) -> str:
    causes = ["not_sent", "rate_limited", "circuit_open"]
    causes += ["absent"] if mix.leaves_if_absent else []
    causes += ["rejected"] if mix.leaves_if_rejected else []
    return f"fallback: [{{to: acme_eu, when: [{', '.join(causes)}]}}]"


def policy_text(mix: Mix, *, edited: bool = False, elsewhere: bool = False, moved: bool = False) -> str:
    """The policy as a file. `edited`: as somebody changes it while it runs; what identifies a call stays. `moved`: with
    another address."""
    between = mix.money_between
    more = edited and between  # then an edit changes more than how often and how fast something is tried
    keys = (_KEYS if mix.contract != "none" else _NO_KEYS).format(window_s=mix.window_s, contract=mix.contract)
    lag_ms = int(mix.lag_s * 1000) + 500
    lag = {"lag_ms": lag_ms, "since": _SINCE if mix.bounded_lists else ""}
    upstream = ELSEWHERE if elsewhere else MOVED if moved else UPSTREAM
    ask_charge = _ASK_CHARGE_BY_NAME if mix.odd_statuses else _ASK_CHARGE.format(**lag) if mix.asks else ""
    return _TEXT.format(
        provider="acme_eu" if elsewhere else "acme",
        upstream=upstream,
        host=upstream.removeprefix("http://"),
        fallback=_MIRROR if elsewhere else _fallback_text(mix) if mix.fallback else "",
        rejected=_REJECTED if mix.leaves_if_rejected and not elsewhere else "",
        merchant="merchant: shop" if mix.merchants in {"", "owners"} else "",  # all accounts of a file would be one's
        account=_ACCOUNTS[mix.merchants],
        idempotency=keys,
        deadline_s=mix.deadline_s + (2 if more else 0),
        first_byte="1500ms" if more else "1s",
        limits=limits_text(mix.limits_edited if edited else mix.limits) if between else "",
        more_operations=operations_text(mix, lag_ms) if between else "",
        more_answers=answers_text(mix) if between else "",
        done=ALREADY_DONE if between else "",
        ask_charge=ask_charge,
        ask_refund=_ASK_REFUND.format(**lag) if mix.asks else "",
        ask_capture=_ASK_CAPTURE.format(**lag) if mix.asks else "",
        ask_void=_ASK_VOID.format(**lag) if mix.asks else "",
        ask_payout=_ASK_PAYOUT.format(**lag) if mix.asks else "",
        attempts=mix.attempts + (1 if edited else 0),
        backoff="equal" if edited else "full",
        webhook=_WEBHOOK if mix.webhooks and not elsewhere else "",
        resend_for_s=mix.resend_for_s // (2 if more else 1),
        schedule=(SPARSE if mix.schedule == DENSE else DENSE) if more else mix.schedule,
    )


def book_for(mix: Mix, *, edited: bool = False, moved: bool = False) -> PolicyBook:
    texts = [policy_text(mix, edited=edited, moved=moved)]
    if mix.fallback:
        texts.append(policy_text(mix, elsewhere=True))
    return PolicyBook.of([_loaded(text) for text in texts])


@lru_cache(maxsize=64)
def _loaded(text: str) -> Provider:
    return load_content(text.encode(), "acme.yaml")
