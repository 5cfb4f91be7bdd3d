"""Which account of `accounts:` a call acts for: precedence, contradictions, identity, and earlier rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paywitness.core.account_choice import (
    AccountChoice,
    account_hashes_of,
    choose_account,
    for_merchant,
    under_earlier_rules,
    with_listed_credentials,
)
from paywitness.core.account_rules import EarlierAccount, EarlierRule
from paywitness.core.call import Call, CallerOptions
from paywitness.core.credential_owners import AccountSource, CredentialRelation, owner_mark, related
from paywitness.core.identity import account_of, identify, owner_hash
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef
from tests.policy.texts import MINIMAL, changed, load

SECRET = b"s"
PLACES = "account: [const:main]"
SELECTED = """\
account: [const:main, header:Shop]
merchant: house
accounts:
  a: {merchant: alpha, owner: o-a, selectors: {"header:Shop": shop-a}}
  b: {selectors: {"header:Shop": shop-b}}
  platform: {merchant: gamma, credentials: {header: {Authorization: env:P}}}"""
LISTED = """\
account: [const:main]
merchants: many
who_am_i: {request: GET /v1/me, field: id}
accounts:
  a: {merchant: alpha, owner: o-a, credentials: {header: {Authorization: env:A}}}
  b: {merchant: beta, credentials: [{header: {Authorization: env:B}}, {header: {Authorization: env:B_OLD}}]}"""
KEYS = {"A": "key-a", "B": "key-b", "B_OLD": "old-b", "P": "key-p"}


def policy_of(accounts: str) -> Policy:
    provider = with_listed_credentials(load(changed(PLACES, accounts)), KEYS, SECRET)
    return provider.policies[0]


def a_call(key: str = "key-x", shop: str = "", named: str | None = None) -> Call:
    headers = [(b"Authorization", key.encode()), *([(b"Shop", shop.encode())] if shop else [])]
    options = CallerOptions(account=named)
    return Call("bank", "POST", "/v1/payments", "", ("v1", "payments"), tuple(headers), b"{}", options)


def owner(name: str) -> str:
    return owner_mark(owner_hash("bank", name, SECRET))


def choose(policy: Policy, call: Call, of: str | None = None) -> AccountChoice:
    return choose_account(policy, call, {}, {}, SECRET, of)


@pytest.mark.parametrize(
    ("call", "acts_for", "merchant", "told_by"),
    [
        (a_call(shop="shop-a"), "a", "alpha", AccountSource.SELECTOR),
        (a_call(shop="shop-b"), "b", "house", AccountSource.SELECTOR),  # the file's
        (a_call(shop="shop-c"), "", "", None),  # nobody's whom the file knows
        (a_call(), "platform", "gamma", AccountSource.CONSTANT),  # the constant account, whichever its credential
        (a_call("key-p", shop="shop-c"), "", "", None),  # a platform's credential does not make it the platform's
        (a_call(shop="shop-a", named="a"), "a", "alpha", AccountSource.SELECTOR),
        (a_call(shop="shop-a", named="shop-a"), "a", "alpha", AccountSource.SELECTOR),
        (a_call(named="b"), "b", "house", None),  # by the header alone, which stays part of the identity
        (a_call(named="nobody"), "", "", None),
    ],
)
def test_under_one_merchant_selectors_choose_and_the_identity_stays(
    call: Call, acts_for: str, merchant: str, told_by: AccountSource | None
) -> None:
    policy = policy_of(SELECTED)
    chosen = choose(policy, call)
    assert (chosen.contradicts, chosen.is_known) == (False, True)
    assert (chosen.policy.acts_for, chosen.policy.merchant, chosen.policy.account_told_by) == (
        acts_for,
        merchant,
        told_by,
    )
    assert chosen.policy.account == policy.account
    if told_by is not None:  # with or without a header that agrees
        plain = replace(call, options=CallerOptions())
        assert account_of(call, chosen.policy, {}, {}, SECRET) == account_of(plain, policy, {}, {}, SECRET)


@pytest.mark.parametrize(
    ("call", "of"),
    [
        (a_call(shop="shop-a", named="b"), None),
        (a_call(shop="shop-c", named="a"), None),
        (a_call("key-p", named="a"), None),
        (a_call(shop="shop-a"), owner("o-z")),  # the provider says it is another's
        (a_call(named="a"), owner("o-z")),
    ],
)
def test_what_names_two_accounts_contradicts_itself(call: Call, of: str | None) -> None:
    assert choose(policy_of(SELECTED), call, of).contradicts


@pytest.mark.parametrize(
    ("call", "of", "acts_for", "mark"),
    [
        (a_call("key-a"), None, "a", owner("o-a")),
        (a_call("key-a"), owner("o-a"), "a", owner("o-a")),  # the same, whether the provider was asked or not
        (a_call("other"), owner("o-a"), "a", owner("o-a")),
        (a_call("key-b"), None, "b", "@:b"),
        (a_call("old-b"), None, "b", "@:b"),
        (a_call("key-b"), owner("o-z"), "b", "@:b"),
        (a_call("other"), owner("o-z"), "", owner("o-z")),  # listed nowhere: the owner, as without `accounts:`
    ],
)
def test_under_many_merchants_the_identity_is_the_owner_or_the_name(
    call: Call, of: str | None, acts_for: str, mark: str
) -> None:
    chosen = choose(policy_of(LISTED), call, of)
    assert (chosen.contradicts, chosen.is_known, chosen.policy.acts_for) == (False, True, acts_for)
    assert chosen.policy.account[-1] == FieldRef(FieldKind.CONST, mark)
    again = choose(chosen.policy, call, of)  # a second time, as after the provider's word
    assert again.policy.account == chosen.policy.account


@pytest.mark.parametrize(
    ("call", "of"),
    [(a_call("key-a"), owner("o-z")), (a_call("key-b"), owner("o-a")), (a_call("key-a", named="b"), None)],
)
def test_under_many_merchants_a_credential_of_another_account_contradicts(call: Call, of: str | None) -> None:
    assert choose(policy_of(LISTED), call, of).contradicts


def test_under_many_merchants_an_unlisted_credential_is_not_known() -> None:
    policy = policy_of(LISTED)
    assert not choose(policy, a_call("other")).is_known
    assert not choose(policy, a_call("other", named="b")).is_known  # the provider may still say whose it is
    alone = policy_of(LISTED.replace("who_am_i: {request: GET /v1/me, field: id}\n", ""))
    assert not choose(alone, a_call("other")).is_known
    assert choose(alone, a_call("other", named="b")).is_known


def test_the_provider_key_is_derived_if_only_the_name_tells_accounts_apart() -> None:
    policy = policy_of(LISTED)
    keys = {}
    for key in ("key-a", "key-b"):
        call = replace(a_call(key), headers=(*a_call(key).headers, (b"Idempotency-Key", b"k-1")))
        found = identify(call, choose(policy, call).policy, {}, {}, SECRET, lambda: "generated")
        keys[key] = found.provider_key
    assert keys["key-a"] == "k-1"
    assert keys["key-b"] not in {None, "k-1"}


def test_a_header_that_is_no_credential_names_nobody() -> None:
    """Its hash would be that of every caller without a credential."""
    accounts = "account: [const:main]\nmerchants: many\naccounts:\n  a: {credentials: {header: {X-Shop: env:A}}}"
    policy = policy_of(accounts)
    assert policy.accounts.named[0].credential_hashes == frozenset()
    assert not choose(policy, replace(a_call(), headers=())).is_known


# --- Earlier rules


def earlier(policy: Policy, rule: EarlierRule, call: Call, of: str | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Merchant and account, under the rule."""
    edited = replace(policy, accounts=replace(policy.accounts, earlier=(rule,)))
    chosen = choose(edited, call, of).policy
    found = under_earlier_rules(chosen, call, {}, {}, SECRET, of)
    return [(each.merchant, tuple(map(str, each.account))) for each in found]


MAIN = (FieldRef(FieldKind.CONST, "main"),)
SHOP = (*MAIN, FieldRef(FieldKind.HEADER, "Shop"))


def test_a_file_that_gains_accounts_looks_under_the_scope_without() -> None:
    places = ("const:main", "header:Shop")
    assert earlier(policy_of(SELECTED), EarlierRule(SHOP, "house"), a_call(shop="shop-a")) == [("house", places)]
    assert earlier(policy_of(LISTED), EarlierRule(MAIN), a_call("key-b")) == [("", ("const:main",))]


def test_a_file_of_many_owners_that_gains_accounts_looks_under_the_owner() -> None:
    rule = EarlierRule(MAIN, "", many=True)
    by_owner = [("", ("const:main", f"const:{owner('o-z')}"))]
    assert earlier(policy_of(LISTED), rule, a_call("key-b"), owner("o-z")) == by_owner
    assert earlier(policy_of(LISTED), rule, a_call("key-b")) == []


def test_an_account_with_another_merchant_is_looked_for_under_the_one_before() -> None:
    policy = policy_of(SELECTED)
    told_by = policy.accounts.named[0].told_by
    then = EarlierAccount("a", "omega", "o-a", told_by)
    places = ("const:main", "header:Shop")
    assert earlier(policy, EarlierRule(SHOP, "house", named=(then,)), a_call(shop="shop-a")) == [("omega", places)]
    narrower = replace(then, told_by=frozenset())  # it was not chosen by what it is chosen by now
    found = earlier(policy, EarlierRule(SHOP, "house", named=(narrower,)), a_call(shop="shop-a"))
    assert found == [("omega", places), ("", places)]


# --- Other providers, and what is found by an account's name


def test_a_call_goes_on_at_another_provider_only_for_its_merchant() -> None:
    policy = policy_of(LISTED)
    found = for_merchant(policy, "beta", a_call(), {}, {}, SECRET)
    assert found is not None
    assert (found.acts_for, found.merchant) == ("b", "beta")
    assert for_merchant(policy, "nobody", a_call(), {}, {}, SECRET) is None
    assert for_merchant(policy, "", a_call(), {}, {}, SECRET) is None
    selected = policy_of(SELECTED)
    assert for_merchant(selected, "alpha", a_call(shop="shop-b"), {}, {}, SECRET) is None
    assert for_merchant(selected, "alpha", a_call(shop="shop-a"), {}, {}, SECRET) is not None


def test_an_account_is_found_by_its_name_its_owner_and_what_selects_it() -> None:
    policy = policy_of(SELECTED)
    own = account_of(a_call(shop="shop-a"), policy, {}, {}, SECRET)
    for named in ("a", "o-a", "shop-a"):
        assert own in account_hashes_of(policy, "a", named, SECRET)
    assert own not in account_hashes_of(policy, "a", "shop-b", SECRET)
    assert own not in account_hashes_of(policy, "b", "b", SECRET)
    assert own not in account_hashes_of(policy, "a", "", SECRET)  # an event of the main account is not its
    other = account_of(a_call(shop="shop-b"), policy, {}, {}, SECRET)
    assert other not in account_hashes_of(policy, "b", "", SECRET)


# --- Marks


def test_credentials_that_the_policy_lists_are_of_one_account_or_of_two() -> None:
    a, b = {"@:a": "policy"}, {"@:b": "policy"}
    assert related("1", a, "2", a, "account") is CredentialRelation.SAME
    assert related("1", a, "2", b, "account") is CredentialRelation.OTHER
    assert related("1", a, "2", {**a, **b}, "account") is CredentialRelation.SAME
    assert related("1", a, "2", {}, "account") is CredentialRelation.UNKNOWN
    assert related("1", a, "2", {}, "account", "a") is CredentialRelation.SAME  # made for the account
    assert related("1", a, "2", b, "account", "b") is CredentialRelation.UNKNOWN  # a platform may act for it too
    assert related("1", b, "2", {**a, **b}, "account", "a") is CredentialRelation.UNKNOWN  # a platform made it for a
    said = {"=x": "provider"}, {"=y": "provider"}
    assert related("1", {**a, **said[0]}, "2", {**a, **said[1]}, "account") is CredentialRelation.OTHER


def test_a_policy_without_accounts_is_left_as_it_is() -> None:
    policy = load(MINIMAL).policies[0]
    assert choose(policy, a_call()).policy is policy
