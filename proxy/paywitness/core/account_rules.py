"""What a policy says of accounts: how to ask the provider whose a credential is, and by which rules accounts were told
before. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.core.classify import Expression
from paywitness.core.provider_contract import FieldRef


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """How to ask the provider whose a credential is."""

    method: str
    path: str  # with its query
    field: Expression  # over the answer: the owner's id


@dataclass(frozen=True, slots=True)
class EarlierRule:
    """How accounts and merchants were told before. The journal may hold operations under it."""

    account: tuple[FieldRef, ...]
    merchant: str = ""
    many: bool = False


@dataclass(frozen=True, slots=True)
class AccountRules:
    """Whose accounts a provider's calls act for."""

    who_am_i: WhoAmI | None = None
    many: bool = False  # several owners act through one sidecar, each as an account of its own
    earlier: tuple[EarlierRule, ...] = ()  # newest first; not of the file, but of the journal
