"""A file on top of a shipped one: mappings merge, rows go in front, codes move, the rest replaces."""

from __future__ import annotations

from paywitness.core.result import ResultClass
from paywitness.policy.shipped_policies import shipped_directory, shipped_names
from tests.policy.bad_files import problems_of
from tests.policy.texts import load, operation

OWN = """\
extends: paywitness:acme
provider: acme_eu
upstream: https://eu.acme.test
timeouts: {first_byte: 9s}
account: [const:europe]
classify:
  - {status: 418, as: validation_error}
answers:
  charge:
    - {when: "status == 'settled'", as: succeeded}
tables:
  declines:
    issuer_hard_decline: [insufficient_funds]
    risk_decline: [velocity]
operations:
  sale:
    intent: metadata.basket
"""


def test_a_file_builds_on_a_shipped_one():
    base, own = load("extends: paywitness:acme\n"), load(OWN)
    assert base.name == "acme"
    assert own.name == "acme_eu"
    assert own.upstream == "https://eu.acme.test"
    assert [policy.operation for policy in own.policies] == [policy.operation for policy in base.policies]
    sale = operation(own, "sale")
    assert (sale.timeouts.first_byte_s, sale.timeouts.deadline_s) == (9.0, 20.0)
    assert [str(place) for place in sale.account] == ["const:europe"]
    assert str(sale.intent) == "metadata.basket"


def test_rows_go_in_front_and_are_named_by_where_they_end_up():
    base, own = operation(load("extends: paywitness:acme\n"), "sale"), operation(load(OWN), "sale")
    assert own.classify.rows[0].status_codes == frozenset({418})
    assert [row.name for row in own.classify.rows][:2] == ["classify[0]", "classify[1]"]
    assert len(own.classify.rows) == len(base.classify.rows) + 1
    assert str(own.classify.answers[0].when) == "status == 'settled'"
    assert own.classify.answers[1].when == base.classify.answers[0].when


def test_a_code_moves_to_where_the_file_puts_it():
    rows = operation(load(OWN), "sale").classify.rows
    table = next(row.table for row in rows if row.table is not None and "velocity" in row.table)
    assert table["insufficient_funds"] is ResultClass.ISSUER_HARD_DECLINE
    assert table["stolen_card"] is ResultClass.ISSUER_HARD_DECLINE
    assert table["velocity"] is ResultClass.RISK_DECLINE
    assert table["fraudulent"] is ResultClass.RISK_DECLINE


def test_the_kept_content_needs_no_shipped_file():
    own = load(OWN)
    assert "extends" not in own.content
    assert load(own.content) == own


def test_a_problem_is_told_in_the_file_it_stands_in():
    assert problems_of("extends: paywitness:acme\noperations: {sale: {answer: nothing}}\n") == (
        "bank.yaml:2:29: operations.sale.answer: found 'nothing', allowed: charge, confirmed_charge_asked, "
        "incremented_charge, capture, voided_charge, voided_charge_asked, refund, reversed_charge, "
        "reversed_charge_asked, dispute, payout",
    )
    (problem, *_) = problems_of("extends: paywitness:acme\nidempotency: {window: 1m}\n")
    assert problem.startswith("paywitness:acme:")
    assert ": resolve.resend_for: found 2m, allowed: at most 48s" in problem


def test_only_a_shipped_policy_can_be_extended():
    assert problems_of("extends: ../secrets.yaml\n")[0].startswith(
        "bank.yaml:1:10: extends: found '../secrets.yaml', allowed: "
    )
    assert problems_of("extends: [a]\n")[0].startswith("bank.yaml:1:10: extends: found 'a list or mapping', allowed: ")


def test_every_shipped_policy_is_found_and_can_be_extended():
    assert shipped_directory().is_dir()
    assert {"acme", "stripe"} <= set(shipped_names())
    for name in shipped_names():
        assert load(f"extends: paywitness:{name}\n").name == name
