"""Recognition: which operation a call is, or why it is refused before anything is written."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Call, CallerOptions, Priority
from paywitness.core.identity import identify, request_hash_of
from paywitness.core.money import Money
from paywitness.core.operation import State
from paywitness.core.policy import AmountField, Policy, Provider
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.core.recognise import (
    FindCandidates,
    RecognisedCall,
    RecognitionRefusal,
    recognise,
    recognise_under,
)
from tests.core.samples import SECRET, call, contract, policy

BODY_KEY = FieldRef(FieldKind.BODY, "idempotency_key")
STAMP = FieldRef(FieldKind.BODY, "metadata.paywitness")
CHARGE = b'{"amount": 1000, "currency": "EUR", "card": {"number": "4242"}}'
KEYED = ("Idempotency-Key", "order-1")


class At:
    """An expression that reads one field of the body."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, tree: Tree) -> Any:
        return tree.get(self._name) if isinstance(tree, dict) else None


def provider_of(under: Policy) -> Provider:
    return Provider(under.provider, under.upstream, (), under.revision, "", "", (under,))


def matching(under: Policy | None, *, reads_body: bool = False) -> FindCandidates:
    """A book with one operation, whose `where` reads the body if `reads_body`."""
    found = replace(under, where=lambda tree: True) if under is not None and reads_body else under
    return lambda *_: () if found is None else ((found, {}),)


def recognised(asked: Call, under: Policy, *, reads_body: bool = False) -> RecognisedCall | RecognitionRefusal | None:
    return recognise(asked, provider_of(under), matching(under, reads_body=reads_body), SECRET, lambda: "generated-key")


def operation_of(asked: Call, under: Policy) -> RecognisedCall:
    found = recognised(asked, under)
    assert isinstance(found, RecognisedCall)
    return found


def refusal_of(asked: Call, under: Policy, *, reads_body: bool = False) -> RecognitionRefusal:
    found = recognised(asked, under, reads_body=reads_body)
    assert isinstance(found, RecognitionRefusal)
    return found


# --- what is no operation


def test_a_call_that_no_operation_matches_is_none_whatever_its_body_holds() -> None:
    asked = call(b"{no json", KEYED)
    assert recognise(asked, provider_of(policy()), matching(None), SECRET, lambda: "") is None


def test_a_call_whose_body_is_that_of_no_operation_is_none() -> None:
    under = policy(where=lambda tree: tree.get("mode") == "manual")
    assert recognised(call(b'{"mode": "auto"}', KEYED), under) is None
    assert isinstance(recognised(call(b'{"mode": "manual"}', KEYED), under), RecognisedCall)


# --- refusals


def test_an_unreadable_body_is_refused_and_names_the_operation_if_the_path_alone_gives_it() -> None:
    found = refusal_of(call(b"{no json", KEYED), policy())
    assert (found.problem, found.policy, found.recognised) == (Problem.BODY_UNREADABLE, policy(), None)
    assert found.detail.endswith(". Nothing was sent.")


def test_an_unreadable_body_that_decides_on_the_operation_leaves_it_unnamed() -> None:
    found = refusal_of(call(b"{no json", KEYED), policy(), reads_body=True)
    assert (found.problem, found.policy, found.recognised) == (Problem.BODY_UNREADABLE, None, None)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b'{"idempotency_key": {"nested": 1}}'])
def test_a_body_without_room_for_the_provider_key_is_refused(body: bytes) -> None:
    found = refusal_of(call(body, KEYED), policy(contract=contract(send_as=BODY_KEY)))
    assert (found.problem, found.detail) == (
        Problem.BODY_UNREADABLE,
        "the body has no room for idempotency_key. Nothing was sent.",
    )


def test_a_compressed_body_has_no_room_for_the_provider_key() -> None:
    asked = call(gzip.compress(CHARGE), KEYED, ("Content-Encoding", "gzip"))
    assert refusal_of(asked, policy(contract=contract(send_as=BODY_KEY))).problem is Problem.BODY_UNREADABLE
    assert operation_of(asked, policy()).tree == operation_of(call(CHARGE, KEYED), policy()).tree


@pytest.mark.parametrize("reads_body", [False, True])
def test_a_body_over_a_bound_is_told_so_before_anything_is_sent(reads_body: bool) -> None:
    """S2."""
    hostile = gzip.compress(b'{"amount": 1, "x": [' + b"[]," * 2_000_000 + b"0]}")
    for asked in (
        call(hostile, KEYED, ("Content-Encoding", "gzip")),
        call(b'{"x": [' + b"[]," * 100_000 + b"0]}", KEYED),
    ):
        found = refusal_of(asked, policy(), reads_body=reads_body)
        assert found.problem is Problem.TOO_LARGE
        assert found.detail.endswith("Nothing was sent. Send a smaller body.")


def test_a_policy_that_demands_a_key_refuses_a_call_without_one() -> None:
    demanding = policy(key_required=True)
    found = refusal_of(call(CHARGE), demanding)
    assert (found.problem, found.policy) == (Problem.KEY_REQUIRED, demanding)
    assert found.recognised is not None
    assert found.recognised.identity.client_key == "generated-key"
    assert isinstance(recognised(call(CHARGE), policy()), RecognisedCall)


@pytest.mark.parametrize("key", ["x" * 256, " ", "two\nlines"])
def test_an_unusable_key_is_refused(key: str) -> None:
    asked = replace(call(CHARGE), options=CallerOptions(key=key))
    assert refusal_of(asked, policy()).problem is Problem.KEY_INVALID


# --- operations


def test_an_operation_has_the_identity_the_amount_and_the_priority_of_its_call() -> None:
    under = policy(amount=AmountField(At("amount")), currency=At("currency"))
    asked = replace(call(CHARGE, KEYED), options=CallerOptions(priority=Priority.LOW))
    found = operation_of(asked, under)
    assert found.identity == identify(asked, under, found.tree, {}, SECRET, lambda: "")
    assert (found.money, found.priority) == (Money(1000, "EUR"), Priority.LOW)


def test_an_amount_that_is_none_is_left_to_the_provider() -> None:
    under = policy(amount=AmountField(At("amount")), currency=At("currency"))
    assert operation_of(call(b'{"amount": "much", "currency": "EUR"}', KEYED), under).money is None


def test_a_request_with_data_that_must_not_be_stored_is_known_by_its_hash() -> None:
    asked = call(CHARGE, KEYED)
    held = operation_of(asked, policy(never_store=("card.number",)))
    assert held.holds_unstorable_data
    assert held.request_hash == request_hash_of(asked.method, asked.target, asked.body, SECRET)
    free = operation_of(asked, policy(never_store=("card.code",)))
    assert (free.holds_unstorable_data, free.request_hash) == (False, "")


def test_a_stamp_that_has_no_room_is_left_out_and_the_call_goes_on() -> None:
    assert not operation_of(call(CHARGE, KEYED), policy(stamp=STAMP)).unstamped
    assert operation_of(call(b"[]", KEYED), policy(stamp=STAMP)).unstamped


def test_m29_a_stamp_beyond_the_keys_that_the_provider_takes_is_left_out() -> None:
    """One key more would be refused on every attempt, so that the payment could never be made."""
    full = {"amount": 1099, "currency": "EUR", "metadata": {f"key_{number}": "x" for number in range(50)}}
    limited = policy(stamp=STAMP, stamp_keys_max=50)
    assert operation_of(call(json.dumps(full).encode(), KEYED), limited).unstamped
    del full["metadata"]["key_0"]  # type: ignore[attr-defined]
    assert not operation_of(call(json.dumps(full).encode(), KEYED), limited).unstamped
    full["metadata"] |= {"key_0": "x", "paywitness": "copied"}  # type: ignore[operator]
    assert not operation_of(call(json.dumps(full).encode(), KEYED), limited).unstamped  # it takes that one's place
    assert not operation_of(call(CHARGE, KEYED), policy(stamp=STAMP, stamp_keys_max=1)).unstamped


def test_a_fresh_operation_holds_what_was_recognised() -> None:
    asked = replace(call(CHARGE, KEYED), options=CallerOptions(distinct="second order"))
    found = operation_of(asked, policy(stamp=STAMP))
    fresh = found.fresh_operation("op_1", 1000.0)
    identity = found.identity
    assert (fresh.id, fresh.stamp, fresh.generation, fresh.state) == ("op_1", "op_1", 1, State.PREPARED)
    assert (fresh.created_at, fresh.updated_at, fresh.first_sent_at) == (1000.0, 1000.0, None)
    assert (fresh.key, fresh.account, fresh.client_key) == (identity.key, identity.account, identity.client_key)
    assert (fresh.provider_key, fresh.fingerprint, fresh.guard) == (
        identity.provider_key,
        identity.fingerprint,
        identity.guard,
    )
    assert (fresh.provider, fresh.operation, fresh.revision) == (
        found.policy.provider,
        found.policy.operation,
        found.policy.revision,
    )
    assert fresh.distinct == "second order"


def test_recognition_under_a_known_policy_refuses_nothing() -> None:
    found = recognise_under(policy(key_required=True), call(CHARGE), {}, {}, SECRET, lambda: "first-key")
    assert found.identity.client_key == "first-key"
