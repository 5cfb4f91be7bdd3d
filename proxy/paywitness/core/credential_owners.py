"""Whose a credential is: what is known of it, and whether it may act for what another credential made. Pure.

A credential is an alias of an account and no part of an identity: it rotates. What is known of it is a set of marks.
`=` the owner that the provider named, `~` another credential that it was shown to belong with, `@` an account that an
operator gave it, `@:` one of the policy's `accounts:` that lists it. Two credentials are of one owner if they share a
mark. If the provider named two owners, or the policy lists them for different accounts, they are of two. Else nobody
knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum

from paywitness.core.record import record

OWNER_MARK, PEER_MARK, ACCOUNT_MARK = "=", "~", "@"
MARKS_MAX = 64  # of one credential: what comes later is not written down


class MarkSource(StrEnum):
    """Who said so."""

    PROVIDER = "provider"  # it was asked whose the credential is
    POLICY = "policy"  # `accounts:` lists the credential
    CONTROL = "control"  # it found an object that the other credential had made
    OPERATOR = "operator"


class AccountSource(StrEnum):
    """What named the account of a call."""

    CONSTANT = "constant"  # nothing in the call: the policy's constant, which several credentials may share
    SELECTOR = "selector"  # something in the call that the provider reads too
    HEADER = "header"  # `Paywitness-Account` alone, which nobody but us has seen


class CredentialRelation(StrEnum):
    """What one credential is to another."""

    SAME = "same"  # of one owner, or mapped to the same account
    OTHER = "other"  # of two owners
    UNKNOWN = "unknown"


@record
class CredentialClaim:
    """What a claim knows of its caller's credential and account, beside their hashes."""

    scope: str = ""  # the provider, as keys know it
    separates: bool = False  # the policy can tell owners apart: what is not known is not assumed
    account: AccountSource = AccountSource.CONSTANT


@record
class Maker:
    """Whose call made an operation. Kept after the operation was retired. Nobody knows the credential of what an
    earlier release retired, or of a payment that an operator adopted."""

    provider: str = ""
    account: str = ""
    credential: str = ""
    named_account: str = ""  # its name in `accounts:`


def credential_key(scope: str, credential: str) -> str:
    """Under which a journal keeps what is known of a credential."""
    return f"w:{scope}:{credential}"


def owner_mark(owner_hash: str) -> str:
    return OWNER_MARK + owner_hash


def named_mark(name: str) -> str:
    """Of an account of the policy's `accounts:`. No hash of an account looks like it."""
    return f"{ACCOUNT_MARK}:{name}"


def marks_from_text(text: str) -> dict[str, str]:
    """The marks of a credential, each with who said so."""
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
    """What a credential is to the one that made an operation of the account. `named`: its name in `accounts:`."""
    if mine == other:
        return CredentialRelation.SAME
    own = {*marks, PEER_MARK + mine}
    others = {*other_marks, PEER_MARK + other}
    owner, other_owner = owner_in(marks), owner_in(other_marks)
    if owner is not None and other_owner is not None and owner != other_owner:
        return CredentialRelation.OTHER  # the provider's word goes before everybody else's
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
    """Whether a credential may be shown what another one of the account made. `accepted`: the provider has executed a
    call of it for the account. `source`: what named the account. `separates`: the policy can tell owners apart."""
    if relation is not CredentialRelation.UNKNOWN:
        return relation is CredentialRelation.SAME
    if not accepted or source is AccountSource.HEADER:
        return False  # anybody can name an account to us
    return source is AccountSource.SELECTOR or not separates
