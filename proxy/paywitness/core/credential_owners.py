"""The owners of credentials: the known marks of a credential, and whether it may act for an operation that another
credential made. Pure.

A credential is an alias of an account and no part of an identity, because it rotates. The journal keeps a set of marks
for it: `=` the owner that the provider named, `~` another credential that it was shown to belong with, `@` an account
that an operator gave it, `@:` one of the policy's `accounts:` that lists it. Two credentials belong to one owner if
they share a mark. They belong to two owners if the provider named two, or if the policy lists them for different
accounts. Otherwise nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum

from paywitness.core.record import record

OWNER_MARK, PEER_MARK, ACCOUNT_MARK = "=", "~", "@"
MARKS_MAX = 64  # of one credential; later marks are not stored


class MarkSource(StrEnum):
    """The source of a mark."""

    PROVIDER = "provider"  # it was asked whose the credential is
    POLICY = "policy"  # `accounts:` lists the credential
    CONTROL = "control"  # it found an object that the other credential had made
    OPERATOR = "operator"


class AccountSource(StrEnum):
    """The source of a call's account."""

    CONSTANT = "constant"  # nothing in the call: the policy's constant, which several credentials may share
    SELECTOR = "selector"  # something in the call that the provider reads too
    HEADER = "header"  # `Paywitness-Account` alone, which nobody but us has seen


class CredentialRelation(StrEnum):
    """Whether two credentials belong to one owner."""

    SAME = "same"  # of one owner, or mapped to the same account
    OTHER = "other"  # of two owners
    UNKNOWN = "unknown"


@record
class CredentialClaim:
    """The facts that a claim has about its caller's credential and account, beside their hashes."""

    scope: str = ""  # the provider's name in keys
    separates: bool = False  # the policy can tell owners apart, so an unknown owner is not assumed to be the same
    account: AccountSource = AccountSource.CONSTANT


@record
class Maker:
    """The account and credential whose call made an operation. They are kept after the operation was retired. The
    credential is unknown if an earlier release retired the operation, or if an operator adopted the payment."""

    provider: str = ""
    account: str = ""
    credential: str = ""
    named_account: str = ""  # its name in `accounts:`


def credential_key(scope: str, credential: str) -> str:
    """The key of the row that keeps the marks of a credential."""
    return f"w:{scope}:{credential}"


def owner_mark(owner_hash: str) -> str:
    return OWNER_MARK + owner_hash


def named_mark(name: str) -> str:
    """The mark of an account in the policy's `accounts:`. No hash of an account looks like it."""
    return f"{ACCOUNT_MARK}:{name}"


def marks_from_text(text: str) -> dict[str, str]:
    """The marks of a credential, each with its source."""
    found = json.loads(text).get("marks", {})
    return {str(mark): str(source) for mark, source in found.items()} if isinstance(found, dict) else {}


def marks_to_text(marks: Mapping[str, str]) -> str:
    return json.dumps({"marks": dict(sorted(marks.items()))}, separators=(",", ":"))


def owner_in(marks: Mapping[str, str]) -> str | None:
    """The owner that the provider, or else the policy, named."""
    named = [mark for mark in marks if mark.startswith(OWNER_MARK)]
    return named[0] if len(named) == 1 else None


def related(
    mine: str, marks: Mapping[str, str], other: str, other_marks: Mapping[str, str], account: str, named: str = ""
) -> CredentialRelation:
    """The relation of a credential to the one that made an operation of the account. `named`: the account's name in
    `accounts:`."""
    if mine == other:
        return CredentialRelation.SAME
    own = {*marks, PEER_MARK + mine}
    others = {*other_marks, PEER_MARK + other}
    owner, other_owner = owner_in(marks), owner_in(other_marks)
    if owner is not None and other_owner is not None and owner != other_owner:
        return CredentialRelation.OTHER  # the provider's statement takes precedence over all others
    if named:  # a credential of several accounts made it: only those of this one are its account's
        others = others - _named_in(others) | {named_mark(named)}
    if own & others or ACCOUNT_MARK + account in own:
        return CredentialRelation.SAME
    if not named and _named_in(own) and _named_in(others):
        return CredentialRelation.OTHER  # listed for different accounts, and the operation is from before that
    return CredentialRelation.UNKNOWN


def _named_in(marks: set[str]) -> set[str]:
    return {mark for mark in marks if mark.startswith(named_mark(""))}


def may_see(relation: CredentialRelation, *, accepted: bool, source: AccountSource, separates: bool) -> bool:
    """Whether a credential may see an operation that another credential of the account made. `accepted`: the provider
    has executed a call of it for the account. `source`: the source of the account's name. `separates`: the policy can
    tell owners apart."""
    if relation is not CredentialRelation.UNKNOWN:
        return relation is CredentialRelation.SAME
    if not accepted or source is AccountSource.HEADER:
        return False  # anybody can name an account to us
    return source is AccountSource.SELECTOR or not separates
