"""Merchants of a world: whose credentials a call carries, and what the provider lets each of them do.

A world may have a twin: a second merchant at the same provider, behind the same sidecars, with the keys, orders and
amounts of the first, and books of its own. `selector`: a header of the call names the account. `header`: only our own
header does (`Paywitness-Account`), and at the provider both have one key space. `owners`: nothing in the call does, and
the provider is asked whose a credential is; the account is its first owner's. `many`: likewise, and each owner has an
account of its own.

A merchant may renew its credential, with and without a time in which both are taken, and may use a restricted one
beside it for some of its calls: one that `sends` and may not read, or one that `reads` and may not send.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from paywitness.core.call import Headers
from paywitness.core.credential_owners import AccountSource, credential_key, marks_from_text, owner_in
from paywitness.core.identity import credential_in
from paywitness.core.operation import Operation, State
from paywitness_sandbox.messages import Request, SandboxResponse, error_response
from tests.simulation.store import IndexedTables
from tests.simulation.swarm import Mix, stream

MERCHANT_HEADER = "X-Merchant"
ACCOUNT_PATH = "/v1/account"
TWIN = "twin"
_RESTRICTED_SHARE = 0.3  # of the calls of a merchant that has a restricted credential
UNAUTHORIZED = error_response(401, "authentication_error", "No such API key.", code="api_key_invalid")
_FORBIDDEN = error_response(403, "permission_error", "This API key may not do that.", code="forbidden")


@dataclass
class Merchant:
    """Whose calls these are."""

    name: str = "shop"
    rotated_mono: float = math.inf  # from then on it uses another credential
    overlap_s: float = 0.0  # so long after that the provider still takes the first
    restricted: str = ""  # what its second credential may do: `sends` or `reads`
    told_to_us: bool = False  # its calls name it in our own header alone
    dice: Random = field(default_factory=Random)

    @property
    def prefix(self) -> str:
        """Of what its calls are about, so that histories keep merchants apart."""
        return "" if self.name == "shop" else f"{self.name}/"

    @property
    def account(self) -> str | None:
        """What its calls say in `Paywitness-Account`."""
        return self.name if self.told_to_us else None

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.name, f"{self.name}-2", f"{self.name}-r"

    def headers(self, now_mono: float, *, whole: bool = False) -> Headers:
        """Of a call. `whole`: under a credential that may do everything."""
        token = self.tokens[now_mono >= self.rotated_mono]
        if self.restricted and not whole and self.dice.random() < _RESTRICTED_SHARE:
            token = self.tokens[2]
        return (
            (b"Content-Type", b"application/json"),
            credential_header(token),
            (MERCHANT_HEADER.encode(), self.name.encode()),
        )

    def refusal(self, request: Request, now_mono: float) -> SandboxResponse | None:
        """What the provider says to the credential of a request, unless it takes it."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._takes(token, now_mono):
            return UNAUTHORIZED
        permitted = "sends" if request.writes else "reads"
        return _FORBIDDEN if token == self.tokens[2] and self.restricted != permitted else None

    def may_read(self, token: str, now_mono: float) -> bool:
        return self._takes(token, now_mono) and (token != self.tokens[2] or self.restricted == "reads")

    def _takes(self, token: str, now_mono: float) -> bool:
        first, second, restricted = self.tokens
        if token == first:
            return now_mono < self.rotated_mono + self.overlap_s
        if token == second:
            return now_mono >= self.rotated_mono
        return token == restricted and bool(self.restricted)


@dataclass
class Intruder(Merchant):
    """Calls under the name of another merchant, with a credential of its own."""

    own: Merchant = field(default_factory=Merchant)

    @property
    def prefix(self) -> str:
        return "intruder/"

    def headers(self, now_mono: float, *, whole: bool = False) -> Headers:
        named = super().headers(now_mono, whole=whole)
        own = dict(self.own.headers(now_mono, whole=whole))
        return tuple((name, own[name] if name == b"Authorization" else value) for name, value in named)


def credential_header(token: str) -> tuple[bytes, bytes]:
    return b"Authorization", f"Bearer {token}".encode()


def merchant_named(name: str, mix: Mix, begins_mono: float) -> Merchant:
    dice = stream(mix.seed, f"credentials of {name}")
    merchant = Merchant(name, restricted=mix.restricted, told_to_us=mix.merchants == "header", dice=dice)
    if mix.rotates:
        load_s = mix.payments / mix.rate_per_s
        merchant.rotated_mono = begins_mono + dice.uniform(0.1, 0.6) * load_s
        merchant.overlap_s = dice.choice((0.0, 2.0, 30.0))
    return merchant


@dataclass
class Credentials:
    """Which credential made an operation, and whether anybody could still ask about it."""

    merchants: list[Merchant]
    secret: bytes  # the fleet's: a journal knows credentials by their hashes
    tables: Callable[[], IndexedTables]
    now_mono: Callable[[], float]

    def is_out_of_reach(self, operation: Operation) -> bool:
        """Whether nobody could ask: the credential that made it may not read, or not any more, and of no other one that
        may it can be known that it is of the same account. Then a person is called, rightly."""
        found = self._token_of(operation.credential)
        if found is None or not self.is_unread(operation):
            return False
        others = [other for other in self._reading(found[0]) if self._was_accepted(operation, other)]
        if operation.account_source is AccountSource.HEADER or not others:
            return True
        if operation.account_source is AccountSource.SELECTOR:
            return False
        if self.is_named(operation.credential) and any(map(self.is_named, others)):
            return False
        return not any(self._is_control(known, operation) for known in self.tables().operations.values())

    def is_unread(self, operation: Operation) -> bool:
        """Whether the credential that made it may not read, or not any more."""
        found = self._token_of(operation.credential)
        return found is not None and not found[0].may_read(found[1], self.now_mono())

    def are_of_two(self, stamp: str, token: str) -> bool:
        """Whether the provider has named two owners: of what made the operation, and of this token."""
        made = self.tables().newest_stamped(stamp)
        return made is not None and self.is_named(made.credential) and self.is_named(self._hash_of(token))

    def is_named(self, credential: str) -> bool:
        """Whether it is written down whose it is."""
        row = self.tables().row(credential_key("acme", credential))
        return row is not None and owner_in(marks_from_text(row.text)) is not None

    def _was_accepted(self, operation: Operation, credential: str) -> bool:
        """Before the schedule ran out."""
        accepted = self.tables().credentials.get((operation.account, credential))
        return accepted is not None and accepted.at < operation.updated_at

    def _is_control(self, known: Operation, operation: Operation) -> bool:
        """Whether it answers the control question: an earlier payment of the same kind, made by the same credential. Of
        those that were made later only the newest are looked at."""
        same = (known.account, known.credential, known.operation) == (
            operation.account,
            operation.credential,
            operation.operation,
        )
        return (
            same
            and known.id < operation.id
            and known.state is State.SUCCEEDED
            and known.reference is not None
            and known.incident is None
        )

    def _reading(self, merchant: Merchant) -> list[str]:
        return [self._hash_of(token) for token in merchant.tokens if merchant.may_read(token, self.now_mono())]

    def _token_of(self, credential: str) -> tuple[Merchant, str] | None:
        pairs = ((merchant, token) for merchant in self.merchants for token in merchant.tokens)
        return next((pair for pair in pairs if self._hash_of(pair[1]) == credential), None)

    def _hash_of(self, token: str) -> str:
        return credential_in((credential_header(token),), self.secret)
