"""The `webhook` block as the rules that deliveries are checked, read and matched by."""

from __future__ import annotations

import pytest

from paywitness.core.webhook_event import MatchKey, WebhookRules, object_and_rules, webhook_events_in
from paywitness.policy.block_parsers.webhook import HINT_ONLY, REQUIRED_OPTIONS
from paywitness.policy.block_parsers.webhook import SCHEMES as ALLOWED
from paywitness.policy.book import load_directory
from paywitness.policy.check import describe_contract
from paywitness.policy.shipped_policies import shipped_directory
from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, changed, load, operation

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
  refuse_with: 498
  relay: https://shop.test/hooks?from=bank
"""


def rules_of(block: str) -> WebhookRules:
    found = load(block + MINIMAL).webhook_rules
    assert found is not None
    return found


def test_a_block_becomes_rules():
    rules = rules_of(BLOCK)
    assert rules.scheme == "hmac_sha512"
    assert rules.options == {"header": "X-Signature", "encoding": "base64", "timestamp_header": "none", "prefix": ""}
    assert rules.secrets == {"acct_1": ("ONE", "ONE_OLD"), "acct_2": ("TWO",)}
    assert rules.tolerance_s == 60.0
    assert [finder for finder, _ in rules.find] == [MatchKey.CLIENT_KEY, MatchKey.INTENT]
    assert [row.name for row in rules.read] == ["webhook.read[0]"]
    assert (rules.reply, rules.relay) == ("[accepted]", "https://shop.test/hooks?from=bank")
    assert rules.refuse_with == 498


def test_a_delivery_is_read_by_them():
    rules = rules_of(BLOCK)
    event = {"code": "OK", "id": 7, "order": "A-1", "merchant": "acct_1", "object": {"kind": "payment"}}
    (notice,) = webhook_events_in(rules, {"items": [event]})
    assert (notice.event_id, notice.account, notice.match_values) == ("OK:7", "acct_1", ((MatchKey.CLIENT_KEY, "A-1"),))
    shown, rows = object_and_rules(rules, event)
    assert shown == {"kind": "payment"}
    assert [row.name for row in rows] == ["answers.payment[0]", "answers.payment[1]"]


def test_a_list_of_secrets_is_the_main_accounts():
    rules = rules_of(
        "webhook: {scheme: standard, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment}\n"
    )
    assert rules.secrets == {"": ("S",)}
    assert (rules.scheme, dict(rules.options), rules.answer, rules.tolerance_s) == ("standard", {}, "payment", 300.0)
    assert rules.refuse_with == 401


def test_the_schemes_that_are_in_force_are_those_that_exist():
    assert {name: tuple(option.name for option in known.options) for name, known in SCHEMES.items()} == ALLOWED
    required = {
        name: tuple(option.name for option in known.options if option.required) for name, known in SCHEMES.items()
    }
    assert {name: options for name, options in required.items() if options} == REQUIRED_OPTIONS
    assert tuple(name for name, known in SCHEMES.items() if known.hint_only) == HINT_ONLY


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
        "{square: {url: 'https://shop.test/hooks'}}",
        "{square: {url: 'https://shop.test/hooks https://shop.test/more'}}",
        "{square: {url: shop.test}}",
        "{square: {}}",
        "{paypal: {environment: sandbox}}",
        "{paypal: {environment: test}}",
        "{token: {header: X-Token}}",
        "{token: {header: 'a b'}}",
        *("adyen", "checkout", "gocardless", "razorpay", "paystack", "mollie", "authorizenet", "coinbase", "paypal"),
        *("braintree", "worldpay", "wise", "xendit", "flutterwave"),
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


def test_an_address_may_be_named_by_a_variable():
    rules = rules_of(
        "webhook: {scheme: {square: {url: env:SQUARE_URL}}, secrets: [env:S], event_id: id, find: [{reference: id}], "
        "answer: payment}\n"
    )
    assert rules.options == {"url": "env:SQUARE_URL"}


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_an_id_may_stand_in_a_header_beside_parts_of_the_event():
    rules = rules_of(
        "webhook: {scheme: razorpay, secrets: [env:S], event_id: ['header:X-Razorpay-Event-Id', event], "
        "find: [{reference: id}], answer: payment}\n"
    )
    event = {"event": "payment.captured"}

    def ids(*headers: tuple[bytes, bytes]) -> list[str]:
        return [notice.event_id for notice in webhook_events_in(rules, event, headers)]

    named = (b"x-razorpay-event-id", b" evt_1 ")
    assert ids(named) == ["evt_1:payment.captured"]
    assert ids() == ids((named[0], b"")) == ids(named, named) == ids((named[0], b"x" * 256)) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("event_id: 'header:a b'", "webhook.event_id: found 'header:a b', allowed: a header name"),
        ("event_id: 'header:X-Id', events: items", "webhook.event_id: found only headers beside 'events'"),
    ],
)
def test_a_header_that_cannot_name_an_event_is_refused(lines, said):
    block = f"webhook: {{scheme: razorpay, secrets: [env:S], {lines}, find: [{{reference: i}}], answer: payment}}\n"
    assert said in problems_of(block + MINIMAL)[0]


# -- hints -------------------------------------------------------------------------------------------------------------

HINT = "webhook: {{scheme: {}, event_id: id, find: [{{reference: id}}]{}}}\n"


def test_a_contract_says_where_an_event_is_only_a_hint():
    told = HINT.format("xendit", ", secrets: [env:S], answer: payment")
    hinting = HINT.format("xendit", ", secrets: [env:S], hint: true")
    assert not operation(load(told + MINIMAL), "pay").contract.webhook_hints
    contract = operation(load(hinting + MINIMAL), "pay").contract
    assert (contract.webhook_hints, contract.webhook_expected) == (True, False)
    assert describe_contract(contract).endswith("; inquiries possible; a webhook is only a hint")
    none = changed("    kind: sale\n", "    kind: sale\n    webhook: none\n", hinting + MINIMAL)
    assert not operation(load(none), "pay").contract.webhook_hints


def test_a_hint_needs_no_rows_and_is_not_waited_for():
    provider = load(HINT.format("{unsigned: {body: form}}", ", hint: true") + MINIMAL)
    assert provider.webhook_rules is not None
    assert (provider.webhook_rules.hint, provider.webhook_rules.secrets) == (True, {"": ()})
    assert not operation(provider, "pay").contract.webhook_expected
    signed = load(HINT.format("xendit", ", secrets: [env:S], hint: true") + MINIMAL)
    assert signed.webhook_rules is not None
    assert (signed.webhook_rules.hint, signed.webhook_rules.secrets) == (True, {"": ("S",)})
    assert not operation(signed, "pay").contract.webhook_expected


def test_without_the_word_an_event_is_evidence_and_is_waited_for():
    for more in (", secrets: [env:S], answer: payment", ", secrets: [env:S], answer: payment, hint: false"):
        provider = load(HINT.format("xendit", more) + MINIMAL)
        assert provider.webhook_rules is not None
        assert not provider.webhook_rules.hint
        assert operation(provider, "pay").contract.webhook_expected


@pytest.mark.parametrize(
    ("scheme", "more", "said"),
    [
        ("unsigned", ", answer: payment", "webhook.hint: found none, it is required of 'unsigned': true"),
        ("unsigned", ", hint: false, answer: payment", "webhook.hint: found none, it is required of 'unsigned'"),
        ("midtrans", ", secrets: [env:S], answer: payment", "webhook.hint: found none, it is required of 'midtrans'"),
        ("midtrans", ", hint: true", "webhook.secrets: found nothing, it is required"),
        ("unsigned", ", hint: true, secrets: [env:S]", "webhook.secrets: found beside 'unsigned', allowed: none"),
        ("unsigned", ", hint: true, relay: http://127.0.0.1:1/x", "webhook.relay: found beside 'unsigned'"),
        ("{unsigned: {body: xml}}", ", hint: true", "found 'xml', allowed: json, form"),
        ("xendit", ", secrets: [env:S], hint: perhaps", "webhook.hint: found 'perhaps', allowed: true or false"),
        ("square", ", secrets: [env:S], answer: payment", "found 'square' without the option 'url', it is required"),
        ("dlocal", ", secrets: [env:S], answer: payment", "found 'dlocal' without the option 'login', it is required"),
        ("{dlocal: {login: a b}}", ", secrets: [env:S]", "found 'a b', allowed: your X-Login at the provider"),
    ],
)
def test_what_proves_too_little_must_be_called_a_hint(scheme, more, said):
    assert any(said in problem for problem in problems_of(HINT.format(scheme, more) + MINIMAL))


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
STRIPE, ACME = BOOK.providers["stripe"].webhook_rules, BOOK.providers["acme"].webhook_rules


def found_by(rules: WebhookRules | None, event: object) -> list[tuple[str, str]]:
    assert rules is not None
    return [(str(finder), value) for notice in webhook_events_in(rules, event) for finder, value in notice.match_values]


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
    shown, rows = object_and_rules(rules, event)
    assert all(row.when is None or not row.when(shown) for row in rows)


@pytest.mark.parametrize("kind", ["charge", "refund", "payout"])
def test_acmes_events_are_read_by_the_object_they_show(kind):
    assert ACME is not None
    data = {"object": kind, "id": "x_1", "metadata": {"paywitness": "op_1"}, "idempotency_key": "k"}
    event = {"id": "evt_1", "type": f"{kind}.changed", "account": None, "data": data}
    assert found_by(ACME, event) == [("operation_id", "op_1"), ("provider_key", "k"), ("reference", "x_1")]
    shown, rows = object_and_rules(ACME, event)
    assert shown == data
    assert {row.name.split("[")[0] for row in rows} == {f"answers.{kind}"}


def test_an_event_shows_the_names_that_find_looks_for_or_those_of_belongs():
    find = "find: [{operation_id: meta.stamp}, {provider_key: key}, {reference: id}, {reference: charge}]"
    webhook = f"webhook: {{scheme: standard, secrets: [env:A], event_id: n, answer: payment, {find}%s}}\n"
    text = f"stamp: body:meta.stamp\n{MINIMAL}{webhook}"
    event = {"n": "1", "id": "p1", "charge": "c1", "key": "k1", "own": "k2", "meta": {"stamp": "op_1"}, "pay": "p9"}

    def shown(belongs: str) -> tuple[object, ...]:
        rules = load(text % belongs).webhook_rules
        assert rules is not None
        (found,) = webhook_events_in(rules, event)
        return found.references, found.key, found.stamp

    assert shown("") == (("p1", "c1"), None, "op_1")
    assert shown(", belongs: {reference: pay, key: own}") == (("p9",), "k2", "op_1")
    (problem,) = problems_of(text % ", belongs: {denied_at: at}")
    assert problem.endswith("found in a webhook, allowed: in 'ask'. A denial of a shared object is asked about")
