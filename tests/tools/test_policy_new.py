"""`policy new`: what it writes passes `policy check`, is careful where nothing is known, and says what to verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.policy import Provider
from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind
from paywitness.core.result import ResultClass
from paywitness.policy.book import compile_content
from paywitness.tools.policy_new.draft import Draft, DraftOperation, policy_text
from paywitness.tools.policy_new.openapi import NotOpenApi, draft_from, read_openapi

OPENAPI = (Path(__file__).parent / "openapi" / "bank.yaml").read_bytes()


def loaded(draft: Draft) -> Provider:
    return compile_content(policy_text(draft).encode(), "new.yaml").provider


def described(**paths: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {f"/{name}": item for name, item in paths.items()}}


def test_a_draft_loads_and_is_careful() -> None:
    operations = tuple(
        DraftOperation(str(kind), kind, f"POST /v1/{kind}s", amount="amount", currency="currency")
        for kind in OperationKind
        if kind is not OperationKind.NONE
    )
    provider = loaded(Draft("bank", "https://api.bank.example", operations, key="header:Idempotency-Key"))
    for policy in provider.policies:
        assert not policy.contract.dedupes
        assert policy.contract.errors_under_key is ErrorsUnderKey.UNKNOWN


@pytest.mark.parametrize("key", ["", "body:idempotency_key", "header:X-Key"])
def test_the_key_stands_where_it_was_said(key: str) -> None:
    draft = Draft(
        "bank", "https://api.bank.example", (DraftOperation("pay", OperationKind.SALE, "POST /pay"),), key=key
    )
    (policy,) = loaded(draft).policies
    assert str(policy.contract.send_as or "") == key


def test_every_uncertain_line_says_that_it_must_be_verified() -> None:
    text = policy_text(draft_from(read_openapi(OPENAPI), provider="bank"))
    for line in text.splitlines():
        if any(word in line for word in ("kind:", "window:", "unit:", "fits:", "reference: id", ", as: ", "intent:")):
            assert "VERIFY" in line or line.startswith("#"), line


def test_an_openapi_file_gives_its_calls_key_amount_order_and_statuses() -> None:
    draft = draft_from(read_openapi(OPENAPI), provider="bank", origin="bank.yaml")
    provider = loaded(draft)
    assert provider.upstream == "https://api.bank.example"
    assert {policy.operation: str(policy.routes[0]) for policy in provider.policies} == {
        "sale": "POST /v2/payments",
        "refund": "POST /v2/payments/{payment_id}/refunds",
        "capture": "POST /v2/payments/{payment_id}/capture",
        "void": "POST /v2/payments/{payment_id}/cancel",
    }
    (sale,) = [policy for policy in provider.policies if policy.operation == "sale"]
    assert str(sale.contract.send_as) == "header:Idempotency-Key"
    assert sale.contract.supports_inquiry
    assert sale.amount is not None
    assert (str(sale.amount.at), sale.amount.unit, str(sale.currency)) == ("amount.value", "major", "amount.currency")
    assert str(sale.intent) == "metadata.order_id"
    assert [(row.result_class, str(row.when)) for row in sale.classify.answers][:3] == [
        (ResultClass.PENDING, "status == 'PENDING'"),
        (ResultClass.SUCCEEDED, "status == 'AUTHORISED'"),
        (ResultClass.SUCCEEDED, "status == 'PAID'"),
    ]
    assert "POST /customers" in draft.left_out
    assert "POST /payments/search" in draft.left_out
    assert any("that no policy can match" in call for call in draft.left_out)


def test_a_payment_s_status_is_never_taken_for_a_refund_s() -> None:
    provider = loaded(draft_from(read_openapi(OPENAPI), provider="bank"))
    for policy in provider.policies:
        if not policy.kind.pays:
            words = {str(row.when) for row in policy.classify.answers if row.result_class is ResultClass.SUCCEEDED}
            assert not {word for word in words if "PAID" in word or "AUTHORISED" in word}
            assert all(row.result_class is ResultClass.SUCCEEDED for row in policy.classify.answers)


def test_json_and_yaml_read_alike_and_what_is_given_comes_first() -> None:
    document = yaml.safe_load(OPENAPI)
    assert read_openapi(json.dumps(document).encode()) == read_openapi(OPENAPI)
    draft = draft_from(document, provider="mine", upstream="https://x.example", key="header:Mine")
    assert (draft.provider, draft.upstream, draft.key) == ("mine", "https://x.example", "header:Mine")
    assert draft_from(document, key="none").key == ""
    assert draft_from(document).provider == "bank_payments_api"


def test_a_path_with_a_name_does_not_take_the_calls_of_one_without() -> None:
    post = {"post": {"operationId": "pay"}}
    document = {"paths": {"/payments/{id}": post, "/payments/pay": post}}
    provider = loaded(draft_from(document))
    assert [str(policy.routes[0]) for policy in provider.policies] == ["POST /payments/pay", "POST /payments/{id}"]


def test_several_operations_of_a_kind_get_names_of_their_own() -> None:
    document = described(payments={"post": {}}, charges={"post": {}}, **{"a/charges": {"post": {}}})
    names = [policy.operation for policy in loaded(draft_from(document)).policies]
    assert len(set(names)) == 3


def test_swagger_2_is_read_too() -> None:
    document = {
        "swagger": "2.0",
        "host": "api.old.example",
        "basePath": "/v1",
        "paths": {
            "/payments": {
                "post": {
                    "parameters": [
                        {"in": "body", "name": "payment", "schema": {"properties": {"amount": {"type": "integer"}}}},
                        {"in": "header", "name": "X-Idempotency-Key"},
                    ],
                    "responses": {"200": {"schema": {"properties": {"state": {"enum": ["paid"]}}}}},
                }
            }
        },
    }
    draft = draft_from(document)
    (policy,) = loaded(draft).policies
    assert (draft.upstream, draft.key) == ("https://api.old.example", "header:X-Idempotency-Key")
    assert str(policy.routes[0]) == "POST /v1/payments"
    assert str(policy.classify.answers[0].when) == "state == 'paid'"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no 'paths'"),
        (b"{", "neither JSON nor YAML"),
        (b"a: [}", "neither JSON nor YAML (line 1)"),
        (b"\xff", "not UTF-8"),
        (b"paths: []", "no 'paths'"),
        (b"[" * 100_000, "nested more than 200 levels deep"),
        (b'{"paths": ' + b"[" * 100_000, "neither JSON nor YAML"),
    ],
)
def test_a_file_that_is_no_openapi_says_so(content: bytes, says: str) -> None:
    with pytest.raises(NotOpenApi) as caught:
        read_openapi(content)
    assert says in str(caught.value)


def test_a_file_without_money_says_what_to_do() -> None:
    with pytest.raises(NotOpenApi, match="--pay"):
        draft_from(described(customers={"post": {}}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
odd_operations = st.dictionaries(
    st.sampled_from(["operationId", "summary", "parameters", "requestBody", "responses"]), json_values, max_size=5
)


@given(odd_operations, st.text(max_size=20), json_values)
def test_whatever_a_description_says_the_draft_loads(operation: dict[str, Any], title: str, servers: Any) -> None:
    document = {"info": {"title": title}, "servers": servers, "paths": {"/payments": {"post": operation}}}
    loaded(draft_from(document, upstream="https://x.example"))
