"""The block `payout`: every form that is taken, and every slip with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paywitness.core.money import Money
from paywitness.core.payout_rules import CapScope, CheckHook, PayoutCap, PayoutRules
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.policy.check import describe_payout, describe_policy
from paywitness.policy.identity_rules import identity_changes
from paywitness.tools.policy_diff.facts import operation_facts
from tests.policy.bad_files import problems_of
from tests.policy.texts import changed, load, operation

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
AMOUNT = ("amount: {at: amount, unit: minor}", "currency: currency")
CHECK = "check: {url: https://risk.example.com/payouts, secret: env:CHECK_SECRET}"


def text_of(*lines: str, kind: str = "payout", amount: bool = True) -> str:
    """The minimal file with a second operation, `send`, and these lines in its block `payout`."""
    more = "".join(f"    {line}\n" for line in (AMOUNT if amount else ()))
    block = "".join(f"      {line}\n" for line in lines)
    send = (
        f'  send:\n    kind: {kind}\n    match: "POST /v1/payees/{{payee}}/payouts"\n    answer: payment\n{more}'
        f"    payout:\n{block}"
    )
    return changed("answers:\n", send + "answers:\n")


def rules(*lines: str) -> PayoutRules:
    found = operation(load(text_of(*lines)), "send").payout
    assert found is not None
    return found


def test_an_operation_without_the_block_has_no_rules() -> None:
    assert operation(load(changed("    kind: sale\n", "    kind: sale\n    intent: order\n")), "pay").payout is None


def test_the_example_of_the_documentation_loads() -> None:
    (example,) = re.findall(r"```yaml\npayout:\n(.*?)```", DOCUMENT, re.DOTALL)
    assert rules(*(line[2:] for line in example.splitlines())) == PayoutRules(
        beneficiary=(FieldRef(FieldKind.BODY, "destination"),),
        caps=(
            PayoutCap(CapScope.BENEFICIARY, 86_400.0, Money(500_000, "EUR")),
            PayoutCap(CapScope.ACCOUNT, 86_400.0, Money(2_000_000, "EUR")),
        ),
        approval_above=(Money(100_000, "EUR"),),
        approval_valid_s=86_400.0,
        check=CheckHook("https://risk.example.com/payouts", "PAYOUT_CHECK_SECRET", 2.0),
    )


def test_amounts_are_in_major_units_of_their_currency() -> None:
    found = rules("approval_above: [{amount: 1000, currency: JPY}, {amount: 0.5, currency: EUR}]", "approval_valid: 1h")
    assert found.approval_above == (Money(1000, "JPY"), Money(50, "EUR"))
    assert found.approval_valid_s == 3600.0


def test_a_check_may_be_on_this_machine_without_tls_and_have_its_own_time() -> None:
    found = rules("check: {url: 'http://127.0.0.1:9000/c?x=1', secret: env:S, timeout: 300ms}").check
    assert found == CheckHook("http://127.0.0.1:9000/c?x=1", "S", 0.3)


CAP = "{per: account, window: 1d, amount: 5.00, currency: EUR}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((f"caps: [{CAP}]", "cap: 1"), "payout.cap: found an unknown key"),
        (
            ("approval_valid: 24h", CHECK),
            "payout.approval_valid: found without 'approval_above': nothing is ever approved",
        ),
        (("beneficiary: [body:iban]",), "payout: found none of 'caps', 'approval_above' and 'check'"),
        (("caps: [{per: payee, window: 1d, amount: 5.00, currency: EUR}]",), "payout.caps[0].per: found 'payee'"),
        (("caps: [{per: account, window: 1d, amount: 5.00}]",), "payout.caps[0].currency: found nothing"),
        (("caps: [{per: account, window: 90m, amount: 5, currency: EUR}]",), "payout.caps[0].window: found '90m'"),
        (("caps: [{per: account, window: 60d, amount: 5, currency: EUR}]",), "payout.caps[0].window: found '60d'"),
        (("caps: [{per: account, window: 1d, amount: 5.001, currency: EUR}]",), "payout.caps[0].amount: found '5.001"),
        (("caps: [{per: account, window: 1d, amount: -5, currency: EUR}]",), "payout.caps[0].amount: found '-5 EUR'"),
        (("caps: [{per: account, window: 1d, amount: 5, currency: eur}]",), "payout.caps[0].amount: found '5 eur'"),
        (
            ("caps: [{per: beneficiary, window: 1d, amount: 5, currency: EUR}]",),
            "payout.caps[0].per: found 'beneficiary' without the key 'beneficiary'",
        ),
        ((f"caps: [{CAP}, {CAP}]",), "payout.caps[1]: found a second cap per account in EUR over the same window"),
        (
            ("approval_above: [{amount: 5, currency: EUR}, {amount: 6, currency: EUR}]",),
            "payout.approval_above[1].currency: found EUR a second time",
        ),
        ((CHECK, "beneficiary: path:other"), "payout.beneficiary: found 'path:other', which is not in every 'match'"),
        (("check: {url: https://x.test}",), "payout.check.secret: found nothing, it is required"),
        (("check: {url: 'http://risk.example.com', secret: env:S}",), "payout.check.url: found"),
        (("check: {url: 'ftp://x.test', secret: env:S}",), "payout.check.url: found"),
        (("check: {url: 'https://u@x.test', secret: env:S}",), "payout.check.url: found"),
        (("check: {url: https://x.test, secret: hunter2}",), "payout.check.secret: found a literal value (not shown)"),
        (("check: {url: https://x.test, secret: env:S, timeout: 5m}",), "payout.check.timeout: found '5m'"),
    ],
)
def test_a_slip_is_told_with_its_place(lines: tuple[str, ...], said: str) -> None:
    (told,) = problems_of(text_of(*lines))
    assert re.match(r"bank\.yaml:\d+:\d+: operations\.send\.", told)
    assert told.partition("operations.send.")[2].startswith(said)
    assert "hunter2" not in told


@pytest.mark.parametrize("line", [f"caps: [{CAP}]", "approval_above: [{amount: 5, currency: EUR}]"])
def test_what_is_counted_needs_an_amount(line: str) -> None:
    (told,) = problems_of(text_of(line, amount=False))
    assert "found without 'amount' in the operation: there is nothing to count" in told


def test_only_a_payout_has_the_block() -> None:
    (told,) = problems_of(text_of(CHECK, kind="sale"))
    assert told.endswith("operations.send.payout: found in an operation of kind sale, allowed: in one of kind payout")


def test_the_block_is_no_part_of_the_identity_and_is_described_and_compared() -> None:
    lines = ("beneficiary: body:iban", f"caps: [{CAP}]", "approval_above: [{amount: 5, currency: EUR}]", CHECK)
    with_block, without = load(text_of(*lines)), load(text_of(CHECK))
    assert not identity_changes(without, with_block)
    policy = operation(with_block, "send")
    assert policy.payout is not None
    said = (
        "to body:iban; at most 5.00 EUR per account in 24h; a person approves what is above 5.00 EUR, good for 24h; "
        "https://risk.example.com/payouts is asked first, for 2s"
    )
    assert describe_payout(policy.payout) == said
    assert f"  payout: {said}" in describe_policy(policy)
    facts = operation_facts(policy)
    assert facts["payout.caps[0]"] == "per account, window 24h, amount 5.00 EUR"
    assert facts["payout.check.secret"] == "CHECK_SECRET"


def test_a_reference_is_made_of_several_places_in_a_payout_alone() -> None:
    two = "    target: [body:group, body:destination]\n    payout:\n"
    cap = "caps: [{per: account, window: 1d, amount: 5.00, currency: EUR}]"
    found = load(text_of(cap).replace("    payout:\n", two))
    send = operation(found, "send")
    assert (str(send.target), [str(place) for place in send.target_also]) == ("body:group", ["body:destination"])
    was = load(text_of(cap).replace("    payout:\n", "    target: body:group\n    payout:\n"))
    assert identity_changes(was, found) == ["operations.send.target: was body:group, is [body:group, body:destination]"]
    elsewhere = text_of(cap, kind="refund").replace("    payout:\n", two)
    assert any("target: found a list in an operation of kind refund" in problem for problem in problems_of(elsewhere))
    lacking = text_of(cap).replace("    payout:\n", "    target: [body:group, path:nobody]\n    payout:\n")
    assert any("found 'path:nobody', which is not in every 'match'" in problem for problem in problems_of(lacking))
