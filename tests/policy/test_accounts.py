"""`accounts:` in files: what is read, warned about, told, and what an edit may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.core.account_rules import BackgroundCredentials, NamedAccount, OAuth2
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.policy.check import check, describe_provider
from paywitness.policy.identity_rules import identity_changes
from paywitness.tools.policy_diff.facts import provider_facts
from paywitness.tools.policy_test.case_runner import report_lines, run_case_files
from tests.policy.texts import changed, load

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "accounts"
PLACES = "account: [const:main]"
TEXT = """\
account: [const:main, header:Shop]
accounts:
  a:
    merchant: alpha
    owner: o-a
    selectors: {"header:Shop": shop-a}
    credentials: {header: {Authorization: env:A}}
  b: {merchant: beta, credentials: [{header: {Authorization: env:B}}, {oauth2: {token: POST /token, client_id: env:C, client_secret: env:D}}]}"""  # noqa: E501


def named(text: str = TEXT) -> tuple[NamedAccount, ...]:
    return load(changed(PLACES, text)).policies[0].accounts.named


def test_accounts_are_read() -> None:
    first, second = named()
    shop = FieldRef(FieldKind.HEADER, "Shop")
    assert first == NamedAccount(
        "a", "alpha", "o-a", ((shop, "shop-a"),), (BackgroundCredentials((("Authorization", "A"),)),)
    )
    assert second.credentials[1] == BackgroundCredentials(oauth2=OAuth2("POST", "/token", "C", "D"))
    assert second.variables == ("B", "C", "D")


def test_a_merchant_beside_selectors_is_warned_about_until_accounts_say_whose_each_is(tmp_path: Path) -> None:
    old, new = "account: [const:main, header:Shop]\nmerchant: house", "merchant: house\n" + TEXT
    for text, warned in ((old, True), (new, False)):
        (tmp_path / "bank.yaml").write_text(changed(PLACES, text))
        report = check((tmp_path,))
        assert report.ok
        assert any("makes one merchant of all accounts" in line for line in report.lines) is warned


def test_events_that_name_no_owner_are_warned_about_under_many_merchants(tmp_path: Path) -> None:
    """Without a word payments of such a policy never learnt anything by webhook."""
    many = "extends: paywitness:stripe\nmerchants: many\n"
    by_owner = "webhook: {secrets: {acct_1: [env:ONE], acct_2: [env:TWO]}}\n"
    named = "accounts: {one: {owner: acct_1}}\n"
    for text, warned in ((many, True), (many + by_owner, False), (many + named, False), (many.split("\n")[0], False)):
        (tmp_path / "stripe.yaml").write_text(text)
        report = check((tmp_path,))
        assert report.ok, report.lines
        assert any("does not name its owner matches nothing" in line for line in report.lines) is warned


def test_check_and_diff_tell_of_each_account() -> None:
    provider = load(changed(PLACES, TEXT))
    lines = [line.strip() for line in describe_provider(provider) if line.strip().startswith("account ")]
    assert lines == [
        "account a: of the merchant alpha, named by header:Shop shop-a, owner o-a, credentials in A",
        "account b: of the merchant beta, named by its credential, credentials in B, C, D",
    ]
    facts = provider_facts(provider)
    assert [("alpha" in facts["accounts.a"]), ("beta" in facts["accounts.b"])] == [True, True]
    edited = provider_facts(load(changed(PLACES, TEXT.replace("merchant: alpha", "merchant: omega"))))
    assert {name for name in facts if facts[name] != edited[name]} == {"accounts.a"}


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("merchant: alpha", "merchant: omega", []),
        ("env:A}", "env:A_NEW}", []),
        ("  b:", "  c: {owner: o-c, selectors: {'header:Shop': c}}\n  b:", []),
        ("merchant: beta,", "merchant: beta, owner: o-b,", []),
        ("  a:", "  z:", ["accounts.a: is gone; its payments would not be found under another name"]),
        ("owner: o-a", "owner: o-z", ["accounts.a.owner: was o-a, is o-z"]),
        ("shop-a}", "shop-z}", ["accounts.a.selectors: was [header:Shop=shop-a], is [header:Shop=shop-z]"]),
    ],
)
def test_what_an_edit_of_accounts_may_change(old: str, new: str, lines: list[str]) -> None:
    before, after = load(changed(PLACES, TEXT)), load(changed(PLACES, TEXT.replace(old, new)))
    assert identity_changes(before, after) == lines


def test_a_credential_may_not_move_to_another_account() -> None:
    before = load(changed(PLACES, TEXT))
    moved = TEXT.replace("env:A}", "env:X}").replace("env:B}", "env:A}")
    assert identity_changes(before, load(changed(PLACES, moved))) == [
        "accounts.b.credentials: has env:A, which was that of a until now"
    ]


def test_a_file_may_gain_accounts() -> None:
    before = load(changed(PLACES, "account: [const:main, header:Shop]"))
    assert identity_changes(before, load(changed(PLACES, TEXT))) == []


@pytest.mark.parametrize("name", ["acme", "bank"])
def test_the_worked_example_does_what_it_says(name: str) -> None:
    reports = run_case_files((EXAMPLES / f"{name}.yaml",))
    assert all(report.ok and report.flows for report in reports), list(report_lines(reports))
