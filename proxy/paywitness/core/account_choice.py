"""Which account of the policy's `accounts:` a call acts for. Pure.

An account with selectors is chosen by them: the provider reads them too. One without is chosen by the owner that the
provider names, or by the credential that the policy lists for it. `Paywitness-Account` comes last, and may not
contradict the others. Under `merchants: many` the account is part of the identity: by its owner if the policy gives
one, else by its name. So it does not depend on whether the provider could be asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paywitness.core.account_rules import BackgroundCredentials, EarlierAccount, NamedAccount
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Call, Headers
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.credential_owners import AccountSource, named_mark, owner_mark
from paywitness.core.identity import account_hashes_named, credential_in, credential_of, owner_hash, value_in
from paywitness.core.policy import Policy, Provider
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.core.record import record


@record
class AccountChoice:
    """The policy as it is for the account of a call."""

    policy: Policy
    is_known: bool = True  # False: several merchants act through the provider, and nothing shows which one this is
    contradicts: bool = False  # the call's sources name two different accounts


def choose_account(
    policy: Policy, call: Call, tree: Tree, parameters: dict[str, str], secret: bytes, owner: str | None = None
) -> AccountChoice:
    """The account that a call acts for. `owner` is the mark of the one that the provider named."""
    policy = policy.of_file or policy
    rules, option = policy.accounts, call.options.account
    if not rules.named:
        return _unlisted(policy, owner, is_known=not rules.many)
    values = {place: value_in(place, call, tree, parameters) for place in policy.account if _selects(place)}
    if any(values.values()):
        told_by, may_be = AccountSource.SELECTOR, [each for each in rules.named if _is_selected(each, values)]
    else:
        told_by, credential = AccountSource.CONSTANT, credential_of(call, secret)
        may_be = _told_by_credential(policy, credential, owner, secret, named_by_caller=option is not None)
    if len(may_be) > 1 or any(_is_of_another(each, policy, owner, secret) for each in may_be):
        return AccountChoice(policy, contradicts=True)
    if may_be:
        chosen = may_be[0]
        return AccountChoice(
            _acting_for(policy, chosen, told_by, secret),
            contradicts=option is not None and not _goes_by(chosen, option),
        )
    named = rules.account_named(option or "")
    if named is not None:
        contradicts = told_by is AccountSource.SELECTOR or _is_of_another(named, policy, owner, secret)
        is_known = not rules.many or rules.who_am_i is None or owner is not None
        return AccountChoice(_acting_for(policy, named, AccountSource.HEADER, secret), is_known, contradicts)
    is_told = told_by is AccountSource.SELECTOR
    apart = replace(policy, merchant="", of_file=policy) if is_told or option else policy
    return _unlisted(apart, owner, is_known=not rules.many or (is_told and rules.who_am_i is None))


def _unlisted(policy: Policy, owner: str | None, *, is_known: bool) -> AccountChoice:
    if policy.accounts.many and owner is not None:
        return AccountChoice(policy.of_owner(owner))
    return AccountChoice(policy, is_known)


def _selects(place: FieldRef) -> bool:
    return place.kind is not FieldKind.CONST


def _is_selected(account: NamedAccount, values: dict[FieldRef, str | None]) -> bool:
    return bool(account.selectors) and all(values.get(place) == value for place, value in account.selectors)


def _told_by_credential(
    policy: Policy, credential: str, owner: str | None, secret: bytes, *, named_by_caller: bool
) -> list[NamedAccount]:
    """The accounts to which the credential belongs according to the provider or the policy. More than one: the two
    disagree."""
    accounts = [each for each in policy.accounts.named if not each.selectors]
    owned = [each for each in accounts if owner is not None and _owner_of(each, policy, secret) == owner]
    listed = [each for each in accounts if credential in each.credential_hashes]
    if len(listed) > 1:
        listed = []  # one credential under several names proves nothing
    if not owned and not listed and not policy.accounts.many and not named_by_caller:
        return accounts  # the constant account itself, whichever its credential
    return owned + [each for each in listed if each not in owned]


def _owner_of(account: NamedAccount | EarlierAccount, policy: Policy, secret: bytes) -> str:
    return owner_mark(owner_hash(policy.key_provider, account.owner, secret)) if account.owner else ""


def _is_of_another(account: NamedAccount, policy: Policy, owner: str | None, secret: bytes) -> bool:
    """Whether, according to the provider, the credential belongs to another owner than the account."""
    return bool(account.owner) and owner is not None and owner != _owner_of(account, policy, secret)


def _goes_by(account: NamedAccount, named: str) -> bool:
    """Whether `Paywitness-Account` means this account: by its name, or as the provider names it."""
    return bool(named) and named in {account.name, account.owner, *(value for _, value in account.selectors)}


def _acting_for(
    policy: Policy, account: NamedAccount | EarlierAccount, told_by: AccountSource, secret: bytes
) -> Policy:
    """The policy for one of its accounts."""
    merchant = account.merchant or policy.merchant
    if not policy.accounts.many:
        told = None if told_by is AccountSource.HEADER else told_by  # the header stays part of the identity
        return replace(policy, merchant=merchant, acts_for=account.name, account_told_by=told, of_file=policy)
    mark = _owner_of(account, policy, secret) or named_mark(account.name)
    only_we_know = told_by is AccountSource.HEADER or (told_by is AccountSource.CONSTANT and not account.owner)
    return replace(
        policy.of_owner(mark),
        merchant=merchant,
        acts_for=account.name,
        account_told_by=told_by,
        only_we_know=only_we_know,
    )


def under_earlier_rules(
    policy: Policy, call: Call, tree: Tree, parameters: dict[str, str], secret: bytes, owner: str | None
) -> Iterator[Policy]:
    """The policies that a call would have had under each earlier rule for accounts."""
    today = policy.accounts.account_named(policy.acts_for)
    for rule in policy.accounts.earlier:
        plain = policy.under(rule)
        then = rule.account_named(policy.acts_for)
        if then is not None:
            yield _acting_for(plain, then, policy.account_told_by or AccountSource.HEADER, secret)
        if then is not None and today is not None and today.told_by <= then.told_by:
            continue  # every call of the account today was its call under that rule too
        is_apart = call.options.account or any(
            value_in(place, call, tree, parameters) for place in rule.account if _selects(place)
        )
        if rule.named and is_apart:
            plain = replace(plain, merchant="")
        named_owner = owner or (_owner_of(today, policy, secret) if today is not None else "")
        if not rule.many:
            yield plain
        elif named_owner:
            yield plain.of_owner(named_owner)


def for_every_account(policy: Policy, secret: bytes) -> Iterator[Policy]:
    """The policy for calls of no account in `accounts:`, for each that it names, and under every earlier rule."""
    yield policy
    for account in policy.accounts.named:
        yield _acting_for(policy, account, AccountSource.CONSTANT, secret)
    for rule in policy.accounts.earlier:
        plain = policy.under(rule)
        if not rule.many:  # otherwise the owner was part of it, and each owner finds its own operations
            yield plain
        for then in rule.named:
            yield _acting_for(plain, then, AccountSource.CONSTANT, secret)


def account_hashes_of(policy: Policy, account: str, named: str, secret: bytes) -> frozenset[str]:
    """As `account_hashes_named`, of the policy's account of this name: `named` may be what the provider calls it."""
    found = policy.accounts.account_named(account)
    if found is None or (named and not _goes_by(found, named)):
        return frozenset()
    places = _acting_for(policy, found, AccountSource.CONSTANT, secret).account
    texts = {named, "", *(value for _, value in found.selectors)} if named else {""}
    return frozenset().union(*(account_hashes_named(places, each, secret) for each in texts))


def account_hashes_of_owner(policy: Policy, owner: str, named: str, secret: bytes) -> frozenset[str]:
    """Under `merchants: many`: the accounts of an owner's calls. `owner` is its mark, `named` what an event names: the
    owner itself, or a selector of its calls."""
    policy = policy.of_file or policy
    if not policy.accounts.many or not owner or not named:
        return frozenset()
    places = policy.of_owner(owner).account
    if owner == owner_mark(owner_hash(policy.key_provider, named, secret)):
        return account_hashes_named(places, "", secret)
    selects = any(_selects(place) for place in places)
    return account_hashes_named(places, named, secret) if selects else frozenset()


def for_merchant(
    policy: Policy, merchant: str, call: Call, tree: Tree, parameters: dict[str, str], secret: bytes
) -> Policy | None:
    """Another provider's policy for a call that already acts for a merchant; None if the merchant has no account there
    that the call is of, or several."""
    chosen = choose_account(policy, call, tree, parameters, secret).policy
    if not policy.accounts.named or chosen.account_told_by is AccountSource.SELECTOR:
        return chosen if chosen.merchant == merchant else None
    if any(value_in(place, call, tree, parameters) for place in policy.account if _selects(place)):
        return None
    accounts = [each for each in policy.accounts.named if not each.selectors]
    of_merchant = [each for each in accounts if merchant and (each.merchant or policy.merchant) == merchant]
    return _acting_for(policy, of_merchant[0], AccountSource.CONSTANT, secret) if len(of_merchant) == 1 else None


def with_listed_credentials(provider: Provider, environment: Mapping[str, str], secret: bytes) -> Provider:
    """The provider, whose accounts know the credentials that they list by their hashes."""
    if not any(policy.accounts.named for policy in provider.policies):
        return provider
    policies = []
    for policy in provider.policies:
        named = tuple(_with_hashes(each, environment, secret) for each in policy.accounts.named)
        policies.append(replace(policy, accounts=replace(policy.accounts, named=named)))
    return replace(provider, policies=tuple(policies))


def _with_hashes(account: NamedAccount, environment: Mapping[str, str], secret: bytes) -> NamedAccount:
    # An OAuth token changes every few hours, so it identifies nobody. Nor does a header that is no credential header:
    # its hash would be that of callers who send none.
    listed = [each for each in account.credentials if each.oauth2 is None and _holds_credential(each)]
    found = [headers_from(each, environment) for each in listed]
    return replace(
        account, credential_hashes=frozenset(credential_in(each, secret) for each in found if each is not None)
    )


def _holds_credential(credentials: BackgroundCredentials) -> bool:
    return any(name.lower().encode("latin-1") in CREDENTIAL_HEADERS for name, _ in credentials.headers)


def headers_from(credentials: BackgroundCredentials, environment: Mapping[str, str]) -> Headers | None:
    """The headers of credentials; None if the environment lacks one of them."""
    found = [(name, environment.get(variable)) for name, variable in credentials.headers]
    if not all(value for _, value in found):
        return None
    return tuple((name.encode("latin-1"), (value or "").encode("latin-1")) for name, value in found)
