"""The `webhook` block as the rules that deliveries are checked, read and matched by."""

from __future__ import annotations

import pytest

from proxy.core.notice import Finder, NoticeRules, notices_in, object_and_rows
from proxy.policy.book import load_directory
from proxy.policy.shipped import shipped_directory
from proxy.policy.webhooks import IN_FORCE
from proxy.schemes.named import SCHEMES, scheme_named
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, load, operation

BLOCK = """\
webhook:
  scheme: {hmac_sha512: {header: X-Signature, encoding: base64, timestamp_header: none, prefix: ""}}
  secrets: {acct_1: [env:ONE, env:ONE_OLD], acct_2: [env:TWO]}
  account: merchant
  tolerance: 1m
  events: items
  event_id: [code, id]
  find: [{client_key: order}, {intent: purchase}]
  at: object
  answer_by: object.kind
  read: [{when: "code == 'DENIED'", as: failed}]
  reply: "[accepted]"
  relay: https://shop.test/hooks?from=bank
"""


def rules_of(block: str) -> NoticeRules:
    found = load(block + MINIMAL).notices
    assert found is not None
    return found


def test_a_block_becomes_rules():
    rules = rules_of(BLOCK)
    assert rules.scheme == "hmac_sha512"
    assert rules.options == {"header": "X-Signature", "encoding": "base64", "timestamp_header": "none", "prefix": ""}
    assert rules.secrets == {"acct_1": ("ONE", "ONE_OLD"), "acct_2": ("TWO",)}
    assert rules.tolerance_s == 60.0
    assert [finder for finder, _ in rules.find] == [Finder.CLIENT_KEY, Finder.INTENT]
    assert [row.name for row in rules.read] == ["webhook.read[0]"]
    assert (rules.reply, rules.relay) == ("[accepted]", "https://shop.test/hooks?from=bank")


def test_a_delivery_is_read_by_them():
    rules = rules_of(BLOCK)
    event = {"code": "OK", "id": 7, "order": "A-1", "merchant": "acct_1", "object": {"kind": "payment"}}
    (notice,) = notices_in(rules, {"items": [event]})
    assert (notice.event_id, notice.account, notice.names) == ("OK:7", "acct_1", ((Finder.CLIENT_KEY, "A-1"),))
    shown, rows = object_and_rows(rules, event)
    assert shown == {"kind": "payment"}
    assert [row.name for row in rows] == ["answers.payment[0]", "answers.payment[1]"]


def test_a_list_of_secrets_is_the_main_accounts():
    rules = rules_of(
        "webhook: {scheme: standard, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment}\n"
    )
    assert rules.secrets == {"": ("S",)}
    assert (rules.scheme, dict(rules.options), rules.answer, rules.tolerance_s) == ("standard", {}, "payment", 300.0)


def test_the_schemes_that_are_in_force_are_those_that_exist():
    assert {name: tuple(option.name for option in known.options) for name, known in SCHEMES.items()} == IN_FORCE


@pytest.mark.parametrize(
    "scheme",
    [
        "stripe",
        "{stripe: {}}",
        "{hmac_sha256: {header: X-Sig}}",
        "{hmac_sha256: {timestamp_header: none}}",
        '{hmac_sha256: {timestamp_header: none, signed: "{body}!"}}',
        '{hmac_sha512: {signed: "{timestamp}:{body}", encoding: base64}}',
        '{hmac_sha512: {prefix: "v1="}}',
        "{hmac_sha256: {header: Webhook-Timestamp}}",
        "{hmac_sha256: {encoding: base32}}",
        '{hmac_sha256: {signed: "{timestamp}.{body}.{body}"}}',
        '{hmac_sha256: {signed: "{timestamp}.{body}}"}}',
        '{hmac_sha256: {timestamp_header: none, signed: "{timestamp}{body}"}}',
        "{hmac_sha256: {prefix: 'a b'}}",
        "{hmac_sha256: {header: 'a b'}}",
        "{stripe: {header: X}}",
    ],
)
def test_what_loads_can_be_made_and_what_cannot_does_not_load(scheme):
    block = (
        f"webhook: {{scheme: {scheme}, secrets: [env:S], event_id: id, find: [{{reference: id}}], answer: payment}}\n"
    )
    if problems_of(block + MINIMAL):
        with pytest.raises(ValueError, match="found"):
            made_anyway(scheme)
    else:
        rules = rules_of(block)
        assert scheme_named(rules.scheme, rules.options).name == rules.scheme


def made_anyway(scheme: str) -> object:
    """The scheme from options as they are written, past the check."""
    import yaml  # only here: the project itself never reads a policy by YAML's own types

    ((name, options),) = yaml.safe_load(scheme).items()
    return scheme_named(name, {key: str(value) for key, value in options.items()})


def test_a_webhook_that_cannot_be_checked_yet_is_not_waited_for():
    text = "webhook: {scheme: paypal, event_id: id, find: [{reference: id}], answer: payment}\n" + MINIMAL
    provider = load(text)
    assert not operation(provider, "pay").contract.webhook_expected
    assert provider.not_in_force == ("webhook: paypal",)


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ("{'a/b': [env:S]}", "webhook.secrets.a/b: found no name of an account"),
        ("{a: env:S}", "webhook.secrets.a: found no list"),
        ("{a: []}", "webhook.secrets.a: found no list"),
        ("{}", "webhook.secrets: found nothing"),
        ("env:S", "webhook.secrets: found 'env:S', allowed: a list"),
    ],
)
def test_secrets_are_lists_of_variables(secrets, said):
    block = f"webhook: {{scheme: stripe, secrets: {secrets}, event_id: i, find: [{{reference: i}}], answer: payment}}\n"
    assert said in problems_of(block + MINIMAL)[0]


# -- the shipped ones -------------------------------------------------------------------------------------------------

BOOK = load_directory(shipped_directory())
STRIPE, ACME = BOOK.providers["stripe"].notices, BOOK.providers["acme"].notices


def found_by(rules: NoticeRules | None, event: object) -> list[tuple[str, str]]:
    assert rules is not None
    return [(str(finder), value) for notice in notices_in(rules, event) for finder, value in notice.names]


def stripe_event(type: str, **members: object) -> dict[str, object]:
    return {"id": "evt_1", "type": type, "data": {"object": members}, "request": {"idempotency_key": "k"}}


def test_stripes_payment_is_found_by_key_stamp_and_reference():
    event = stripe_event(
        "payment_intent.succeeded", object="payment_intent", id="pi_1", metadata={"paywitness": "op_1"}
    )
    assert found_by(STRIPE, event) == [("provider_key", "k"), ("operation_id", "op_1"), ("reference", "pi_1")]


def test_stripes_events_are_not_taken_for_the_calls_that_only_caused_them():
    cancelled = stripe_event("payment_intent.canceled", object="payment_intent", id="pi_1")
    assert found_by(STRIPE, cancelled) == [("reference", "pi_1")]
    refunded = stripe_event("charge.refunded", object="charge", id="ch_1", payment_intent=None)
    assert found_by(STRIPE, refunded) == [("reference", "ch_1")]


def test_a_charge_of_a_payment_intent_has_no_say_of_its_own():
    event = stripe_event("charge.succeeded", object="charge", id="ch_1", payment_intent="pi_1", metadata={})
    assert found_by(STRIPE, event) == []


def test_stripes_created_event_is_no_failure():
    rules = STRIPE
    assert rules is not None
    event = stripe_event("payment_intent.created", object="payment_intent", status="requires_payment_method")
    shown, rows = object_and_rows(rules, event)
    assert all(row.when is None or not row.when(shown) for row in rows)


@pytest.mark.parametrize("kind", ["charge", "refund", "payout"])
def test_acmes_events_are_read_by_the_object_they_show(kind):
    assert ACME is not None
    data = {"object": kind, "id": "x_1", "metadata": {"paywitness": "op_1"}, "idempotency_key": "k"}
    event = {"id": "evt_1", "type": f"{kind}.changed", "account": None, "data": data}
    assert found_by(ACME, event) == [("operation_id", "op_1"), ("provider_key", "k"), ("reference", "x_1")]
    shown, rows = object_and_rows(ACME, event)
    assert shown == data
    assert {row.name.split("[")[0] for row in rows} == {f"answers.{kind}"}
