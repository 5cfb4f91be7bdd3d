"""The policy texts that the tests start from. `MINIMAL` is the smallest useful file; cases replace one piece of it."""

from __future__ import annotations

from paywitness.core.bodies.tree import Tree
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider
from paywitness.core.provider_contract import OperationKind
from paywitness.core.recognise import first_for
from paywitness.policy.book import PolicyBook, load_content

MINIMAL = """\
provider: bank
upstream: http://127.0.0.1:9000
account: [const:main]
idempotency:
  send_as: header:Idempotency-Key
  window: 24h
  errors_under_key: replayed
timeouts: {first_byte: 5s, deadline: 20s}
operations:
  pay:
    kind: sale
    match: POST /v1/payments
    amount: {at: amount, unit: minor}
    currency: currency
    reference: id
    answer: payment
    ask:
      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}
answers:
  payment:
    - {when: "status == 'paid'", as: succeeded}
    - {when: "status == 'refused'", code: reason, table: declines}
classify:
  - {status: 402, code: error.code, table: declines}
tables:
  declines:
    issuer_hard_decline: [stolen_card]
    issuer_soft_decline: [no_funds]
retry:
  default: {attempts: 3, base: 100ms}
resolve: {settle: 10m, resend_for: 2m}
"""


def changed(old: str, new: str, text: str = MINIMAL) -> str:
    """The text with one piece replaced. The piece must be there exactly once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text"
    return text.replace(old, new)


def load(text: str, source: str = "bank.yaml") -> Provider:
    return load_content(text.encode(), source)


def an_operation(**changes: object) -> Operation:
    """One that was sent, and whose answer nobody has seen."""
    sent = Operation(
        id="op_1",
        key="k",
        generation=1,
        provider="bank",
        operation="pay",
        kind=OperationKind.SALE,
        account="a",
        client_key="client-1",
        key_source="header:Idempotency-Key",
        key_names_purchase=False,
        provider_key="provider-1",
        fingerprint="f",
        ignore=(),
        request_hash="",
        credential="",
        revision="r",
        upstream="http://127.0.0.1:9000",
        created_at=0.0,
        updated_at=0.0,
    )
    return sent.changed(**changes)


def operation(provider: Provider, name: str) -> Policy:
    return next(policy for policy in provider.policies if policy.operation == name)


def matched(book: PolicyBook, provider: str, method: str, path: str, body: Tree = None) -> tuple[str, dict[str, str]]:
    """The name of the operation that such a call is, and the parameters of its path; "" if it is none."""
    found = first_for(book.candidates(provider, method, tuple(path[1:].split("/"))), body)
    return (found[0].operation, found[1]) if found is not None else ("", {})
