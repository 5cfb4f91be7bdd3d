"""Identity: the same call is the same operation on every sidecar, after every upgrade; no two calls run into one.

The fixed values below are promises. A change of any of them would make every payment under way unknown to the sidecars
of the next version: its retry would be a new payment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.call import Call, CallerOptions
from paywitness.core.claim import generation_key
from paywitness.core.identity import (
    Identity,
    canonical,
    check_value,
    credential_of,
    fingerprint_of,
    identify,
    is_usable_key,
    keyed_hash,
    request_hash_of,
)
from paywitness.core.operation import GuardKind
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind
from tests.core.samples import KEY_HEADER, SECRET, call, contract, policy

FEW = settings(max_examples=25, derandomize=True, database=None)
TEXTS = st.text(max_size=8)
BODY_KEY = FieldRef(FieldKind.BODY, "idempotency_key")
ORDER = FieldRef(FieldKind.BODY, "metadata.order_id")
CHARGE = {"amount": 1000, "currency": "EUR", "metadata": {"order_id": "A-1"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def identified(asked: Call, under: Policy, secret: bytes = SECRET, **parameters: str) -> Identity:
    tree = decode(asked.body, under.encoding)
    return identify(asked, under, tree, parameters, secret, lambda: "generated-key")


def charge(*headers: tuple[str, str], body: object = None, **changes: Any) -> Call:
    return call(json.dumps(CHARGE if body is None else body).encode(), *headers, **changes)


# --- promises in hexadecimal


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("parts", [(), ("one",), (b"one", "two", "three")])
def test_a_keyed_hash_is_the_hmac_of_the_standard(length: int, parts: tuple[str | bytes, ...]) -> None:
    secret = bytes(range(length))
    data = [part.encode() if isinstance(part, str) else part for part in parts]
    written = b"label" + b"".join(len(one).to_bytes(8, "big") + one for one in data)
    assert keyed_hash(secret, "label", *parts) == hmac.new(secret, written, hashlib.sha256).hexdigest()


@given(st.binary(max_size=130), st.text(max_size=9), st.lists(st.text(max_size=9) | st.binary(max_size=99), max_size=5))
def test_whatever_is_hashed_it_is_the_hmac_of_the_standard(secret: bytes, label: str, parts: list[str | bytes]) -> None:
    data = [part.encode() if isinstance(part, str) else part for part in parts]
    written = label.encode() + b"".join(len(one).to_bytes(8, "big") + one for one in data)
    wanted = hmac.digest(secret, written, "sha256").hex()
    assert [keyed_hash(secret, label, *parts) for _ in range(2)] == [wanted] * 2  # the first one left nothing behind


def test_identity_is_what_it_was() -> None:
    found = identified(charge(("Idempotency-Key", "order-1")), policy(account=(FieldRef(FieldKind.CONST, "main"),)))
    assert found.key == "da9987ae86dff9df2d245cb484380a49d87d1c36fcff7d1d7f041db7aac64091"
    assert found.account == "f95b30417b7a858db801baaddddd6ef1"
    assert found.fingerprint == "59b5446eef24f5814b6b76758a581750a24a37eeba80ad052b4affe575d20562"
    assert found.key_stem == "08025b7af79daec0df91e83ad125c82fed6db5c82916400a0c03b35d199e1e51"
    assert found.provider_key == "order-1"
    assert found.guard is not None
    assert found.guard.value == "2b40ace30c2c6838cff25053b0d54953"


def test_a_derived_provider_key_is_what_it_was() -> None:
    found = identified(
        charge(options=CallerOptions(key="order-1")), policy(account=(FieldRef(FieldKind.CONST, "main"),))
    )
    assert found.key == "da9987ae86dff9df2d245cb484380a49d87d1c36fcff7d1d7f041db7aac64091"
    assert found.provider_key == "08025b7a-f79d-4ec0-9f91-e83ad1250001"


@pytest.mark.parametrize(
    ("kind", "changes", "guard_kind", "value"),
    [
        (
            OperationKind.SALE,
            {"intent": lambda tree: tree["metadata"]["order_id"]},
            GuardKind.INTENT,
            "f86ada869a9b4098cef8b16263f79426",
        ),
        (
            OperationKind.SALE,
            {"intent": lambda tree: tree["metadata"]["order_id"], "merchant": "shop"},
            GuardKind.INTENT,
            "af7ef0a1be19530d52289a4ff3c553fb",
        ),
        (
            OperationKind.REFUND,
            {"target": FieldRef(FieldKind.PATH, "charge")},
            GuardKind.TARGET,
            "62bd4f52b2fdaaa855da4c4250f07c60",
        ),
    ],
)
def test_a_guard_is_what_it_was(
    kind: OperationKind, changes: dict[str, Any], guard_kind: GuardKind, value: str
) -> None:
    guard = identified(charge(), policy(kind=kind, **changes), charge="ch_1").guard
    assert guard is not None
    assert (guard.kind, guard.value) == (guard_kind, value)


def test_hashes_are_what_they_were() -> None:
    form = call(b"amount=1000&metadata[order_id]=A-1&items[]=a&items[]=b", query="b=2&a=1")
    under = policy(encoding=Encoding.FORM)
    assert identified(form, under).fingerprint == "179f76d5125b90400584752f9b416c02d42cda1fe3bb2d58ee5a3fb1a8272b74"
    assert check_value(SECRET) == "f4b52ffd3dc93e6de99aa10ee1244b33"
    assert credential_of(call(b"", ("Authorization", "Bearer sk_1")), SECRET) == "ad103be305e520a12c61ec068cbe05c2"
    assert (
        request_hash_of("POST", "/v1/charges?a=1", b"{}", SECRET)
        == "ce779c1820933e49a47cb8ff1a0362b4cf4b5e2aba86e6b430be85881ba94712"
    )
    assert keyed_hash(SECRET, "label", "a", b"b") == "59230e3a5af1307e98a3ff7cf122fc1b3b3dbc9793ea47b1382f6778d03db6c0"


# --- the same call is the same operation


@FEW
@given(JSON, TEXTS, TEXTS)
def test_the_same_call_has_the_same_identity(body: object, key: str, account: str) -> None:
    asked = charge(body={"body": body}, options=CallerOptions(key=key, account=account))
    again = charge(body={"body": body}, options=CallerOptions(key=key, account=account))
    assert identified(asked, policy()) == identified(again, policy())


@FEW
@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.randoms(use_true_random=False))
def test_key_order_and_white_space_are_no_part_of_the_fingerprint(body: dict[str, object], chance: Any) -> None:
    shuffled = list(body.items())
    chance.shuffle(shuffled)
    spaced = json.dumps(dict(shuffled), indent=3, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assume(b"\xed\xa0" not in spaced and b"\xed\xb0" not in spaced)
    first, second = charge(body=body), call(spaced)
    assert identified(first, policy()).fingerprint == identified(second, policy()).fingerprint


@FEW
@given(JSON, JSON)
def test_another_body_is_another_fingerprint(first: object, second: object) -> None:
    assume(canonical(first) != canonical(second))
    fingerprints = {identified(charge(body={"v": body}), policy()).fingerprint for body in (first, second)}
    assert len(fingerprints) == 2


@pytest.mark.parametrize(
    "other",
    [
        charge(body={**CHARGE, "amount": 1001}),
        charge(body={**CHARGE, "amount": "1000"}),
        charge(body={**CHARGE, "amount": 1000.0}),
        charge(body={**CHARGE, "currency": "USD"}),
        charge(path="/v1/charges/"),
        charge(method="PUT"),
        charge(query="a=1"),
    ],
    ids=["amount", "text", "float", "currency", "path", "method", "query"],
)
def test_what_is_asked_for_is_part_of_the_fingerprint(other: Call) -> None:
    assert identified(other, policy()).fingerprint != identified(charge(), policy()).fingerprint


def test_the_order_of_query_parameters_is_no_part_of_the_fingerprint() -> None:
    first, second = charge(query="a=1&b=2"), charge(query="b=2&a=1")
    assert identified(first, policy()).fingerprint == identified(second, policy()).fingerprint
    assert identified(charge(query="a=1&a=2"), policy()).fingerprint != identified(first, policy()).fingerprint


def test_volatile_fields_are_no_part_of_the_fingerprint_wherever_they_stand() -> None:
    under = policy(ignore=("client_time", "items.id"))
    body = {**CHARGE, "client_time": 1, "items": [{"id": 1, "price": 2}]}
    later = {**CHARGE, "client_time": 2, "items": [{"id": 9, "price": 2}]}
    dearer = {**CHARGE, "client_time": 2, "items": [{"id": 9, "price": 3}]}
    fingerprints = [identified(charge(body=found), under).fingerprint for found in (body, later, dearer)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert identified(charge(body=body), under).ignore == under.ignore


def test_literal_and_encoded_brackets_of_a_form_are_one_body() -> None:
    under = policy(encoding=Encoding.FORM)
    literal = call(b"amount=1000&metadata[order_id]=A-1")
    encoded = call(b"amount=1000&metadata%5Border_id%5D=A-1")
    dearer = call(b"amount=1001&metadata%5Border_id%5D=A-1")
    assert identified(literal, under) == identified(encoded, under)
    assert identified(literal, under).fingerprint != identified(dearer, under).fingerprint


def test_a_key_in_the_body_is_no_part_of_the_fingerprint() -> None:
    under = policy(contract=contract(send_as=BODY_KEY), take_from=(BODY_KEY,))
    first, fresh = (identified(charge(body={**CHARGE, "idempotency_key": key}), under) for key in ("k-1", "k-2"))
    assert first.key != fresh.key
    assert first.fingerprint == fresh.fingerprint
    assert first.guard == fresh.guard  # an SDK's retry under a key that it has just made is recognised
    again = fingerprint_of(charge(), CHARGE, first.ignore, SECRET)
    assert again == first.fingerprint


def test_credentials_are_no_part_of_the_identity() -> None:
    first = identified(charge(("Authorization", "Bearer one"), ("Idempotency-Key", "k")), policy())
    second = identified(charge(("Authorization", "Bearer two"), ("Idempotency-Key", "k")), policy())
    assert first.credential != second.credential
    assert replace(first, credential="") == replace(second, credential="")


# --- no two run into one


@FEW
@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_parts_cannot_run_into_each_other(first: list[str], second: list[str]) -> None:
    assert (keyed_hash(SECRET, "label", *first) == keyed_hash(SECRET, "label", *second)) == (first == second)


@FEW
@given(st.lists(st.sampled_from(["a", "b", "ab", "", "\x00", "\x00" * 8]), max_size=5))
def test_moving_a_border_between_parts_makes_another_hash(parts: list[str]) -> None:
    joined = "".join(parts)
    assume(parts != [joined])
    assert keyed_hash(SECRET, "label", *parts) != keyed_hash(SECRET, "label", joined)


def test_labels_and_secrets_keep_hashes_apart() -> None:
    hashes = {keyed_hash(secret, label, "x") for secret in (SECRET, b"other") for label in ("a", "b", "ax")}
    assert len(hashes) == 6


def test_half_a_character_hashes_like_any_other_text() -> None:
    assert keyed_hash(SECRET, "label", "\ud800") != keyed_hash(SECRET, "label", "\ud801")


@pytest.mark.parametrize(
    "other",
    [
        policy(provider="other"),
        policy(operation="other"),
        policy(account=(FieldRef(FieldKind.CONST, "main"),)),
        policy(names=("older", "")),
        policy(names=("", "older")),
    ],
)
def test_provider_account_and_operation_are_part_of_the_key(other: Policy) -> None:
    asked = charge(("Idempotency-Key", "k"))
    assert identified(asked, other).key != identified(asked, policy()).key


def test_a_renamed_operation_keeps_its_keys_and_its_guards() -> None:
    renamed = policy(provider="new", operation="newer", names=("acme", "authorization"))
    for headers in ((), (("Idempotency-Key", "k"),)):
        assert identified(charge(*headers), renamed) == identified(charge(*headers), policy())


def test_every_selector_of_the_account_counts_and_a_missing_one_is_empty() -> None:
    under = policy(account=(FieldRef(FieldKind.HEADER, "Acme-Account"), FieldRef(FieldKind.BODY, "merchantAccount")))
    accounts = [
        identified(asked, under).account
        for asked in (
            charge(),
            charge(("Acme-Account", "a")),
            charge(body={"merchantAccount": "a"}),
            charge(("Acme-Account", "a"), body={"merchantAccount": "a"}),
            charge(options=CallerOptions(account="a")),
            charge(("Acme-Account", "b")),
        )
    ]
    assert len(set(accounts)) == len(accounts)
    assert identified(charge(("acme-account", "a")), under).account == accounts[1]


# --- whose key it is


def test_our_own_header_always_names_the_key_and_then_a_derived_one_goes_out() -> None:
    found = identified(charge(("Idempotency-Key", "theirs"), options=CallerOptions(key="ours")), policy())
    assert (found.client_key, found.key_source, found.key_names_purchase) == ("ours", "paywitness-key", False)
    assert found.key_stem is not None
    assert found.provider_key == generation_key(found.key_stem, 1)


def test_the_first_source_that_is_present_names_the_key() -> None:
    under = policy(take_from=(KEY_HEADER, ORDER))
    assert identified(charge(("Idempotency-Key", "k")), under).key_source == "header:Idempotency-Key"
    for absent in ((), (("Idempotency-Key", ""),)):
        found = identified(charge(*absent), under)
        assert (found.client_key, found.key_source) == ("A-1", "body:metadata.order_id")
    none = identified(charge(body={}), under)
    assert (none.client_key, none.key_source) == ("generated-key", "generated")


def test_a_key_from_the_body_names_a_purchase_unless_it_is_the_providers_own() -> None:
    assert identified(charge(), policy(take_from=(ORDER,))).key_names_purchase
    own = policy(contract=contract(send_as=ORDER), take_from=(ORDER,))
    assert not identified(charge(), own).key_names_purchase
    assert not identified(charge(("Idempotency-Key", "k")), policy()).key_names_purchase
    assert not identified(charge(body={}), policy(take_from=(ORDER,))).key_names_purchase


@pytest.mark.parametrize(
    ("key", "changes", "own"),
    [
        ("k" * 64, {"max_length": 64}, True),
        ("k" * 65, {"max_length": 64}, False),
        ("k" * 10, {"min_length": 10}, True),
        ("k" * 9, {"min_length": 10}, False),
        ("k-1", {"characters": frozenset("k-1")}, True),
        ("K-1", {"characters": frozenset("k-1")}, False),
        ("clé", {}, False),
        ("k", {"key_space_is_account": False}, False),
    ],
    ids=[
        *("fits", "too long", "long enough", "too short", "of its characters", "of others", "not ASCII"),
        "the store is wider than the account",
    ],
)
def test_the_clients_own_key_goes_out_only_where_it_fits(key: str, changes: dict[str, Any], *, own: bool) -> None:
    found = identified(charge(("Idempotency-Key", key)), policy(contract=contract(**changes)))
    assert found.key_stem is not None
    assert found.provider_key == (key if own else generation_key(found.key_stem, 1))


def test_a_key_from_another_place_is_never_sent_as_it_is() -> None:
    found = identified(charge(), policy(take_from=(ORDER,)))
    assert found.key_stem is not None
    assert found.provider_key == generation_key(found.key_stem, 1)


def test_a_provider_without_keys_gets_none() -> None:
    found = identified(charge(("Idempotency-Key", "k")), policy(contract=contract(send_as=None)))
    assert (found.provider_key, found.key_stem) == (None, None)


@FEW
@given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12))
def test_two_tenants_with_one_key_never_share_a_derived_one(first: str, second: str) -> None:
    assume(first != second)
    under = policy(contract=contract(key_space_is_account=False))
    keys = {
        identified(charge(options=CallerOptions(key="k", account=tenant)), under).provider_key
        for tenant in (first, second)
    }
    assert len(keys) == 2


@pytest.mark.parametrize(("value", "key"), [("A-1", "A-1"), (17, "17"), (0, "0")])
def test_texts_and_whole_numbers_are_keys(value: object, key: str) -> None:
    assert identified(charge(body={"metadata": {"order_id": value}}), policy(take_from=(ORDER,))).client_key == key


@pytest.mark.parametrize("value", [None, True, 1.5, "", [], ["A-1"], {}])
def test_anything_else_is_no_key(value: object) -> None:
    found = identified(charge(body={"metadata": {"order_id": value}}), policy(take_from=(ORDER,)))
    assert found.key_source == "generated"


@pytest.mark.parametrize(
    ("key", "usable"),
    [("k", True), ("k" * 255, True), ("clé", True), ("a b", True)]
    + [(key, False) for key in ("", " ", "k" * 256, "a\r\nb", "a\x00", "\ud800", "a\tb")],
)
def test_a_key_must_be_fit_to_be_kept_shown_and_sent(key: str, *, usable: bool) -> None:
    assert is_usable_key(key) == usable


# --- guards


def intent_of(tree: Any) -> Any:
    return tree["metadata"]["order_id"]


def test_an_intent_is_guarded_within_its_account_and_across_providers_by_its_merchant() -> None:
    def value(**changes: Any) -> str:
        guard = identified(charge(), policy(intent=intent_of, **changes)).guard
        assert guard is not None
        assert (guard.kind, guard.label) == (GuardKind.INTENT, "A-1")
        return guard.value

    assert value() == value(operation="sale")
    assert value() != value(provider="other")
    assert value() != value(account=(FieldRef(FieldKind.CONST, "x"),))
    assert value(merchant="shop") == value(merchant="shop", provider="other", account=(FieldRef(FieldKind.CONST, "x"),))
    assert value(merchant="shop") != value(merchant="other")


def test_the_callers_word_for_the_intent_wins() -> None:
    guard = identified(charge(options=CallerOptions(intent="B-2")), policy(intent=intent_of)).guard
    assert guard is not None
    assert guard.label == "B-2"


def test_a_target_is_guarded_per_provider_account_and_operation() -> None:
    refund = policy(kind=OperationKind.REFUND, operation="refund", target=FieldRef(FieldKind.PATH, "charge"))
    guards = [
        identified(charge(), under, charge=target).guard
        for under, target in (
            (refund, "ch_1"),
            (refund, "ch_2"),
            (replace(refund, operation="capture"), "ch_1"),
            (replace(refund, provider="other"), "ch_1"),
            (replace(refund, account=(FieldRef(FieldKind.CONST, "x"),)), "ch_1"),
        )
    ]
    assert {guard.kind for guard in guards if guard} == {GuardKind.TARGET}
    assert len({guard.value for guard in guards if guard}) == len(guards)


def test_what_has_neither_is_guarded_by_its_content_and_what_moves_nothing_by_nothing() -> None:
    first, second = (identified(charge(("Idempotency-Key", key)), policy()).guard for key in ("k-1", "k-2"))
    assert first is not None
    assert first == second
    assert first.kind is GuardKind.FINGERPRINT
    assert identified(charge(body={}), policy()).guard != first
    assert identified(charge(), policy(kind=OperationKind.NONE)).guard is None
