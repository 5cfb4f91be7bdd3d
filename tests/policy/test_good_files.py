"""What a good file becomes: the values that the rest of the house decides by."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.core.account_rules import BackgroundCredentials, OAuth2
from paywitness.core.bodies.tree import Encoding
from paywitness.core.budget import BudgetRules, ScopeRule
from paywitness.core.circuit import CircuitRules
from paywitness.core.fallback import Fallback, FallbackCause
from paywitness.core.identity import provider_accepts
from paywitness.core.money import Unit
from paywitness.core.operation import RepeatPaymentRule
from paywitness.core.policy import (
    ResolutionRules,
    Timeouts,
    UnmatchedCalls,
)
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind, FieldRef, OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.core.retry import Jitter, RetryRule
from paywitness.core.template import TemplateValues, in_path
from paywitness.policy.check import describe_action
from paywitness.policy.explain import FailureScenario, explain
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, an_operation, changed, load, operation

DESIGN_EXAMPLE = Path(__file__).with_name("design_example.yaml").read_text()
# The example names an object that it does not write out.
WITH_REFUND = changed(
    "\nclassify:", "\n  refund: [{when: \"status == 'succeeded'\", as: succeeded}]\nclassify:", DESIGN_EXAMPLE
)


def test_the_smallest_file_has_careful_defaults():
    provider = load(MINIMAL)
    policy = operation(provider, "pay")
    assert provider.hosts == ()
    assert provider.unmatched is UnmatchedCalls.FORWARD
    assert policy.encoding is Encoding.JSON
    assert policy.take_from == (FieldRef(FieldKind.HEADER, "Idempotency-Key"),)
    assert policy.names == ("bank", "pay")
    assert policy.stamp is None
    assert policy.after_success is RepeatPaymentRule.FLAG
    assert policy.timeouts == Timeouts()
    assert policy.contract.key_space_is_account
    assert not policy.contract.webhook_expected
    assert not policy.key_required
    assert not policy.observe


def test_a_request_id_is_named_by_a_header_of_the_response_that_holds_no_secret():
    loaded = load(f"request_id: header:Request-Id\n{MINIMAL}")
    assert {policy.request_id_header for policy in loaded.policies} == {"Request-Id"}
    assert {policy.request_id_header for policy in load(MINIMAL).policies} == {""}
    [problem] = problems_of(f"request_id: header:Set-Cookie\n{MINIMAL}")
    assert problem.endswith("Set-Cookie may hold a secret, and a request id is kept and shown")
    [problem] = problems_of(f"request_id: body:id\n{MINIMAL}")
    assert "allowed: header:NAME" in problem


def test_a_provider_goes_by_the_name_of_its_upstream():
    assert load(changed("http://127.0.0.1:9000", "https://API.bank.example/v3/")).hosts == ("api.bank.example",)
    assert load(changed("http://127.0.0.1:9000", "https://203.0.113.7")).hosts == ()


def test_the_example_of_the_design_loads():
    provider = load(WITH_REFUND, "acme.yaml")
    policy = operation(provider, "authorization")
    assert policy.kind is OperationKind.AUTHORIZATION
    assert [str(route) for route in policy.routes] == ["POST /v1/charges", "POST /v1/orders/{order}/pay"]
    assert policy.account == (FieldRef(FieldKind.CONST, "main"), FieldRef(FieldKind.HEADER, "Acme-Account"))
    assert policy.contract.errors_under_key is ErrorsUnderKey.REPLAYED
    assert policy.contract.window_s == 86400
    assert policy.contract.supports_inquiry
    assert policy.contract.webhook_expected
    assert policy.stamp == FieldRef(FieldKind.BODY, "metadata.paywitness")
    assert policy.never_store == ("card.cvc",)
    assert policy.ignore == ("client_time",)
    assert policy.after_success is RepeatPaymentRule.BLOCK
    assert policy.amount is not None
    assert policy.amount.unit is Unit.MINOR
    assert policy.retry_rule(ResultClass.RATE_LIMITED) == RetryRule(5, Jitter.FULL, 1.0, 20.0)
    assert policy.retry_rule(ResultClass.NETWORK_CONNECT_FAILURE) == RetryRule(3, Jitter.FULL, 0.1, 5.0)
    assert policy.problem == {"error": {"type": "api_error", "message": "{detail}"}}
    assert operation(provider, "refund").contract.window_s == 3600
    assert policy.merchant == "shop"
    assert (str(policy.intent), str(policy.as_response)) == ("metadata.order_id", "@")
    assert policy.during_action is RepeatPaymentRule.FLAG
    assert [inquiry.name for inquiry in policy.inquiries] == ["ask[0]", "ask[1]"]
    assert policy.cancel is not None
    assert policy.credentials == BackgroundCredentials(headers=(("Authorization", "ACME_KEY"),))
    causes = frozenset({FallbackCause.NOT_SENT, FallbackCause.CIRCUIT_OPEN})
    assert policy.fallbacks == (Fallback("acme_eu", causes),)
    assert operation(provider, "refund").fallbacks == ()
    assert provider.webhook_rules is not None
    assert provider.key_name == "acme"
    assert provider.account == policy.account


def test_every_operation_has_its_providers_budget():
    text = changed(
        "budget: {window: 10s, provider: {floor: 10,", "budget: {window: 20s, provider: {floor: 7,", WITH_REFUND
    )
    budgets = {policy.budget for policy in load(text).policies}
    assert budgets == {BudgetRules(20.0, ScopeRule(7, 0.05, 1.0), per_intent=3)}
    assert {policy.budget for policy in load(MINIMAL).policies} == {BudgetRules()}


def test_a_provider_has_its_circuit():
    text = changed("minimum: 20, slow_after: 8s", "minimum: 9, slow_after: 3s", WITH_REFUND)
    assert load(text).circuit == CircuitRules(minimum=9, slow_after_s=3.0)
    assert load(MINIMAL).circuit == CircuitRules()


def test_of_the_example_as_printed_only_the_missing_object_is_told():
    assert problems_of(DESIGN_EXAMPLE) == (
        "bank.yaml:40:13: operations.refund.answer: found 'refund', allowed: charge",
    )


@pytest.mark.parametrize(
    ("written", "window_s", "assumed"),
    [
        ("24h", 86400.0, frozenset()),
        ("30d", 2592000.0, frozenset()),
        ("unknown", None, frozenset()),
        ("{assumed: 15m}", 900.0, frozenset({"window"})),
    ],
)
def test_a_window_is_known_unknown_or_assumed(written, window_s, assumed):
    contract = operation(load(changed("window: 24h", f"window: {written}")), "pay").contract
    assert contract.window_s == window_s
    assert contract.assumed == assumed
    assert contract.dedupes is (window_s is not None)


def test_what_the_provider_keeps_may_be_assumed():
    provider = load(changed("errors_under_key: replayed", "errors_under_key: {assumed: replayed}"))
    contract = operation(provider, "pay").contract
    assert contract.errors_under_key is ErrorsUnderKey.REPLAYED
    assert contract.assumed == {"errors_under_key"}


def test_an_operation_may_have_a_contract_of_its_own():
    own = "    kind: sale\n    idempotency: {send_as: body:request_id, window: 1h, max_length: 40, key_space: wider}\n"
    policy = operation(load(changed("    kind: sale\n", own)), "pay")
    assert policy.contract.send_as == FieldRef(FieldKind.BODY, "request_id")
    assert policy.contract.window_s == 3600
    assert policy.contract.errors_under_key is ErrorsUnderKey.REPLAYED
    assert policy.contract.max_length == 40
    assert not policy.contract.key_space_is_account
    assert policy.take_from == (FieldRef(FieldKind.BODY, "request_id"),)


def test_a_key_may_be_bound_to_characters_and_a_length():
    bound = "  window: 24h\n  min_length: 10\n  characters: a-z 0-9 _ - space\n"
    contract = operation(load(changed("  window: 24h\n", bound)), "pay").contract
    assert contract.min_length == 10
    assert contract.characters == frozenset("abcdefghijklmnopqrstuvwxyz0123456789_- ")
    assert provider_accepts(contract, "order 17-b_1")
    assert not provider_accepts(contract, "ORDER 17-b_1")
    free = operation(load(MINIMAL), "pay").contract
    assert (free.min_length, free.characters) == (1, None)


def test_an_operation_without_a_key_forgets_the_providers_facts_about_it():
    contract = operation(
        load(changed("    kind: sale\n", "    kind: sale\n    idempotency: {send_as: none}\n")), "pay"
    ).contract
    assert contract.send_as is None
    assert contract.window_s is None
    assert contract.errors_under_key is ErrorsUnderKey.UNKNOWN
    assert not contract.dedupes


def test_an_object_that_moves_no_money_needs_no_facts_about_its_key():
    text = changed("  window: 24h\n  errors_under_key: replayed\n", "")
    text = changed("kind: sale", "kind: none", text)
    assert operation(load(text), "pay").contract.errors_under_key is ErrorsUnderKey.UNKNOWN


def test_throttling_waits_a_second_unless_it_is_told_otherwise():
    default = operation(load(MINIMAL), "pay")
    assert default.retry_rule(ResultClass.RATE_LIMITED).base_s == 1.0
    assert default.retry_rule(ResultClass.PROVIDER_TIMEOUT).base_s == 0.1
    own = operation(load(changed("retry:\n", "retry:\n  rate_limited: {base: 300ms}\n")), "pay")
    assert own.retry_rule(ResultClass.RATE_LIMITED) == RetryRule(3, Jitter.FULL, 0.3, 5.0)


def test_a_class_inherits_from_the_default_and_an_operation_from_its_provider():
    text = changed("retry:\n", "retry:\n  provider_timeout: {backoff: equal}\n")
    text = changed("    kind: sale\n", "    kind: sale\n    retry: {default: {attempts: 2}}\n", text)
    policy = operation(load(text), "pay")
    assert policy.retry_default == RetryRule(2, Jitter.FULL, 0.1, 5.0)
    assert policy.retry_rule(ResultClass.PROVIDER_TIMEOUT) == RetryRule(2, Jitter.EQUAL, 0.1, 5.0)


def test_timeouts_and_resolution_merge_key_by_key():
    own = "    kind: sale\n    timeouts: {first_byte: 20s}\n    resolve: {settle: 1h}\n"
    policy = operation(load(changed("    kind: sale\n", own)), "pay")
    assert policy.timeouts == Timeouts(first_byte_s=20.0)
    assert policy.resolve == ResolutionRules(settle_s=3600.0)
    text = changed("resend_for: 2m}", "resend_for: 2m, action_expires: 2h}")
    assert operation(load(text), "pay").resolve.action_expires_s == 7200.0


def test_what_is_not_confirmed_in_time_is_cancelled_only_if_the_policy_says_so():
    cancel = (
        '    kind: sale\n    cancel: {request: "POST /v1/payments/{client_key}/void", '
        "read: [{when: \"status == 'voided'\", as: cancelled}]}\n"
    )
    plain = changed("    kind: sale\n", cancel)
    assert not operation(load(plain), "pay").resolve.cancels_expired_action
    cancels = changed("resend_for: 2m}", "resend_for: 2m, on_action_expired: cancel}", plain)
    policy = operation(load(cancels), "pay")
    assert policy.resolve.cancels_expired_action
    assert "cancelled if it is shown that the customer has still not acted" in describe_action(policy)
    lines = explain(policy, FailureScenario(ResultClass.REQUIRES_ACTION)).lines
    assert f"  action:   {describe_action(policy)}" in lines
    set_aside = explain(operation(load(plain), "pay"), FailureScenario(ResultClass.REQUIRES_ACTION)).lines
    assert "  action:   inquiry after 24h; set aside if the customer has still not acted" in set_aside


def test_a_background_re_send_never_outlives_a_short_window():
    text = changed("resolve: {settle: 10m, resend_for: 2m}\n", "", changed("window: 24h", "window: 1m"))
    assert operation(load(text), "pay").resolve.resend_for_s == 48.0


def test_rows_keep_their_names_conditions_and_effects():
    rows = (
        '  - {status: [409, 5xx], header: {X-Hint: "No"}, body: e, as: temporary_provider_error, effect: possible}\n'
        "  - {status: 402"
    )
    policy = operation(load(changed("  - {status: 402", rows)), "pay")
    first, second = policy.classify.rows
    assert (first.name, second.name) == ("classify[0]", "classify[1]")
    assert first.status_codes == frozenset({409, *range(500, 600)})
    assert first.headers == (("x-hint", "No"),)
    assert (first.result_class, first.effect) == (ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.POSSIBLE)
    assert [row.name for row in policy.classify.answers] == ["answers.payment[0]", "answers.payment[1]"]
    assert second.table == {"stolen_card": ResultClass.ISSUER_HARD_DECLINE, "no_funds": ResultClass.ISSUER_SOFT_DECLINE}


def test_a_row_may_say_that_its_answer_is_not_kept_under_the_key():
    row = "  - {status: 409, as: idempotency_in_flight, stored: false}\n  - {status: 402"
    first, second = operation(load(changed("  - {status: 402", row)), "pay").classify.rows
    assert (first.stored, second.stored) == (False, True)


def test_an_inquiry_may_have_headers_of_its_own():
    ask = 'request: "GET /v1/payments/{reference}", headers: {Accept: application/hal+json}'
    (inquiry,) = operation(load(changed('request: "GET /v1/payments/{reference}"', ask)), "pay").inquiries
    assert inquiry.headers == (("Accept", "application/hal+json"),)


def test_an_operation_may_say_that_no_event_tells_of_it():
    rules = "scheme: stripe, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment"
    webhook = f"webhook: {{{rules}}}\nresolve: {{"
    text = changed("resolve: {", webhook)
    assert operation(load(text), "pay").contract.webhook_expected
    text = changed("    kind: sale\n", "    kind: sale\n    webhook: none\n", text)
    assert not operation(load(text), "pay").contract.webhook_expected


def test_another_payment_while_the_customer_must_act_is_the_policys_choice():
    text = changed("    kind: sale\n", "    kind: sale\n    intent: order\n    during_action: block\n")
    assert operation(load(text), "pay").during_action is RepeatPaymentRule.BLOCK


def test_credentials_are_names_of_variables():
    oauth2 = "{token: POST /v1/token, client_id: env:ID, client_secret: env:SECRET, scope: pay}"
    policy = operation(load(f"credentials: {{header: {{X-Key: env:KEY}}, oauth2: {oauth2}}}\n" + MINIMAL), "pay")
    assert policy.credentials == BackgroundCredentials(
        (("X-Key", "KEY"),), OAuth2("POST", "/v1/token", "ID", "SECRET", "pay")
    )


def test_an_operations_own_link_comes_before_its_providers():
    text = 'dashboard: "https://bank.test/p/{reference}"\n' + MINIMAL
    values = TemplateValues(an_operation(reference="p/1"), {})

    def link(text: str) -> str | None:
        found = operation(load(text), "pay").dashboard
        return found.filled(values, in_path) if found is not None else None

    assert link(MINIMAL) is None
    assert link(text) == "https://bank.test/p/p%2F1"
    own = '    kind: sale\n    dashboard: "https://bank.test/own?key={client_key}"\n'
    assert link(changed("    kind: sale\n", own, text)) == "https://bank.test/own?key=client-1"


def test_an_operation_may_refuse_the_stamp():
    text = "stamp: body:metadata.paywitness\n" + MINIMAL
    assert operation(load(text), "pay").stamp == FieldRef(FieldKind.BODY, "metadata.paywitness")
    assert operation(load(changed("    kind: sale\n", "    kind: sale\n    stamp: none\n", text)), "pay").stamp is None


def test_lists_of_paths_and_headers_add_up():
    text = "ignore: [a]\nnever_store: [b]\nheaders: {Prefer: x, X-One: one}\n" + MINIMAL
    own = "    kind: sale\n    ignore: [c]\n    never_store: [d.e]\n    headers: {Prefer: return=representation}\n"
    policy = operation(load(changed("    kind: sale\n", own, text)), "pay")
    assert policy.ignore == ("a", "c")
    assert policy.never_store == ("b", "d.e")
    assert policy.headers == (("Prefer", "return=representation"), ("X-One", "one"))


def test_a_policy_that_only_observes_says_so_everywhere():
    provider = load("mode: observe\n" + MINIMAL)
    assert provider.observe
    assert provider.policies[0].observe


def test_the_revision_is_of_the_content_not_of_its_layout():
    revision = load(MINIMAL).revision
    assert len(revision) == 16
    assert load("# a comment\n" + MINIMAL.replace("window: 24h", "window:   '24h'")).revision == revision
    assert load(changed("attempts: 3", "attempts: 4")).revision != revision


def test_the_kept_content_alone_gives_the_same_provider_again():
    provider = load("problem: {error: {code: null, status: 402, text: '402'}}\n" + MINIMAL)
    again = load(provider.content)
    assert again == provider
    assert again.problem == {"error": {"code": None, "status": 402, "text": "402"}}
