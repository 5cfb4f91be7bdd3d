"""A policy's rules for accounts: which accounts there are, how to ask the provider for the owner of a credential, and
the earlier rules for accounts. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.classify import Expression
from paywitness.core.provider_contract import FieldRef


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """How to ask the provider for the owner of a credential."""

    method: str
    path: str  # with its query
    field: Expression  # over the response: the owner's id


@dataclass(frozen=True, slots=True)
class OAuth2:
    """Client credentials, exchanged for a token at the provider. It has the names of secrets, never the secrets."""

    method: str
    path: str
    client_id: str  # name of an environment variable, as is the next
    client_secret: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class BackgroundCredentials:
    """Credentials for background calls when the caller's own no longer work. Names of environment variables."""

    headers: tuple[tuple[str, str], ...] = ()  # header, variable
    oauth2: OAuth2 | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        named = tuple(variable for _, variable in self.headers)
        return named if self.oauth2 is None else (*named, self.oauth2.client_id, self.oauth2.client_secret)


@dataclass(frozen=True, slots=True)
class NamedAccount:
    """An account of the policy's `accounts:`: its merchant and owner, and how a call of it is recognised."""

    name: str
    merchant: str = ""  # empty: the file's
    owner: str = ""  # as `who_am_i` names it
    selectors: tuple[tuple[FieldRef, str], ...] = ()  # places of the policy's `account`, each with its value
    credentials: tuple[BackgroundCredentials, ...] = ()  # the first is the one to send under
    credential_hashes: frozenset[str] = frozenset()  # of those; they come from the environment, not from the file

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables of its credentials."""
        return tuple(variable for each in self.credentials for variable in each.variables)

    @property
    def told_by(self) -> frozenset[str]:
        """The facts by which a call of the account is recognised, as texts to compare."""
        places = [f"{place}={value}" for place, value in self.selectors]
        return frozenset([*places, *(f"env:{variable}" for variable in self.variables)])


@dataclass(frozen=True, slots=True)
class EarlierAccount:
    """An account of `accounts:` as an earlier rule had it."""

    name: str
    merchant: str
    owner: str
    told_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class EarlierRule:
    """An earlier rule for accounts and merchants. The journal may hold operations under it."""

    account: tuple[FieldRef, ...]
    merchant: str = ""
    many: bool = False
    named: tuple[EarlierAccount, ...] = ()

    def account_named(self, name: str) -> EarlierAccount | None:
        return next((each for each in self.named if each.name == name), None)


@dataclass(frozen=True, slots=True)
class AccountRules:
    """The accounts that a provider's calls act for."""

    who_am_i: WhoAmI | None = None
    many: bool = False  # several owners act through one sidecar, each as an account of its own
    earlier: tuple[EarlierRule, ...] = ()  # newest first; they come from the journal, not from the file
    named: tuple[NamedAccount, ...] = ()  # `accounts:`

    # whether two credentials without marks may belong to two owners
    tells_owners_apart: bool = field(init=False, repr=False, compare=False)
    # whether the owner or the account of a credential must be found out before a call is claimed
    asks_for_owner: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tells_owners_apart", self.who_am_i is not None or self.many)
        asks_for_owner = self.who_am_i is not None or bool(self.named and self.many)
        object.__setattr__(self, "asks_for_owner", asks_for_owner)

    def account_named(self, name: str) -> NamedAccount | None:
        return next((each for each in self.named if each.name == name), None) if name else None

    def listing(self, credential: str) -> frozenset[str]:
        """The names of the accounts that list the credential."""
        return frozenset(each.name for each in self.named if credential in each.credential_hashes)
