"""An edit that would give calls another identity is recognised, a rename that says so is not one."""

from __future__ import annotations

import json

import pytest

from paywitness.policy.identity_rules import identity_changes, identity_changes_between
from tests.policy.texts import MINIMAL, changed, load

BASE = load(MINIMAL)


def changes(text: str) -> list[str]:
    return identity_changes(BASE, load(text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("provider: bank", "provider: bank2", "provider: was bank, is bank2; 'formerly: bank' keeps its keys"),
        ("provider: bank", "provider: bank\nbody: form", "operations.pay.body: was json, is form"),
        ("provider: bank", "provider: bank\nignore: [time]", "operations.pay.ignore: was [], is [time]"),
        (
            "POST /v1/payments",
            "POST /v2/payments",
            "operations.pay.match: was [POST /v1/payments], is [POST /v2/payments]",
        ),
        ("    currency: c", "    where: confirm\n    currency: c", "operations.pay.where: was nothing, is confirm"),
        ("    currency: c", "    intent: order\n    currency: c", "operations.pay.intent: was nothing, is order"),
        (
            "    currency: c",
            "    target: body:order\n    currency: c",
            "operations.pay.target: was nothing, is body:order",
        ),
    ],
)
def test_a_change_of_identity_is_told(old, new, said):
    assert changes(changed(old, new)) == [said]


def test_a_key_in_another_place_is_a_change_of_identity():
    assert changes(changed("header:Idempotency-Key", "header:Request-Id")) == [
        "operations.pay.take_from: was [header:Idempotency-Key], is [header:Request-Id]",
        "operations.pay.send_as: was header:Idempotency-Key, is header:Request-Id",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("attempts: 3", "attempts: 5"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9001"),
        ("window: 24h", "window: 12h"),
        ("[stolen_card]", "[stolen_card, lost_card]"),
        ("first_byte: 5s", "first_byte: 9s"),
        ("provider: bank", "provider: bank\nstamp: body:metadata.id"),
        ("provider: bank", "provider: bank\nbudget: {per_intent: 1}"),
        ("provider: bank", "provider: bank\ncircuit: {minimum: 5}"),
        ("provider: bank", "provider: bank\npriority: [{as: low}]"),
        ("    currency: c", "    priority: [{above: 1 EUR, as: low}]\n    currency: c"),
    ],
)
def test_what_keys_do_not_rest_on_may_change(old, new):
    assert changes(changed(old, new)) == []


def test_a_create_may_name_its_intent_and_its_reference_without_a_change_of_identity():
    create = "operations:\n  create: {{kind: none, match: POST /v1/orders{more}}}\n"
    before = load(changed("operations:\n", create.format(more="")))
    after = load(changed("operations:\n", create.format(more=", intent: order_id, reference: id")))
    assert str(after.policies[0].intent) == "order_id"
    assert str(after.policies[0].classify.reference) == "id"
    assert identity_changes(before, after) == []
    assert identity_changes(after, before) == []


def test_an_operation_that_is_gone_or_renamed_is_told():
    assert changes(changed("  pay:\n", "  charge:\n")) == [
        "operations.pay: is gone; where it has a new name, 'formerly: pay' keeps its keys",
        "operations.charge: is new and matches POST /v1/payments, which pay matched until now",
    ]


def test_formerly_keeps_a_renamed_operation_itself():
    assert changes(changed("  pay:\n", "  charge:\n    formerly: pay\n")) == []


def test_formerly_keeps_a_renamed_provider_itself():
    renamed = load(changed("provider: bank", "provider: bank2\nformerly: bank"))
    assert identity_changes(BASE, renamed) == []
    assert renamed.policies[0].names == ("bank", "pay")


def test_a_new_operation_may_come_beside_the_old_ones_but_not_take_their_calls():
    beside = "  back: {kind: refund, match: POST /v1/refunds, answer: payment}\nanswers:\n"
    assert changes(changed("answers:\n", beside)) == []
    before = "operations:\n  first: {kind: none, match: 'POST /v1/{thing}', where: special}\n"
    assert changes(changed("operations:\n", before)) == [
        "operations.first: is new and matches POST /v1/{thing}, which pay matched until now",
    ]


def test_identity_is_plain_json_that_a_journal_can_keep():
    kept = json.loads(json.dumps(BASE.identity))
    assert identity_changes_between(kept, BASE.identity) == []
    assert identity_changes_between(kept, load(changed("provider: bank", "provider: bank\nbody: form")).identity) != []


def test_p2c_how_accounts_and_merchants_are_told_may_change():
    """Calls are looked for under the earlier rules too."""
    assert changes(changed("[const:main]", "[const:main, header:X-Id]")) == []
    assert changes(changed("provider: bank", "provider: bank\nmerchant: shop")) == []
