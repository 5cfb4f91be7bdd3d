"""Credentials for our own calls: the caller's, those that were accepted for the account, or the environment's.

The caller's credential comes first, because it is known to be of the right account. It expires, so the others follow.
The owner of another credential must be known before "not found" under it counts, and before anything but an inquiry is
sent under it. A credential that is known to be another owner's is not used at all.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

from paywitness.clock import Clock
from paywitness.core.account_choice import headers_from
from paywitness.core.account_rules import BackgroundCredentials, OAuth2
from paywitness.core.call import Headers
from paywitness.core.credential_owners import AccountSource, CredentialRelation
from paywitness.core.errors import UnreadableSecret
from paywitness.core.identity import credential_in
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, UpstreamTimeouts
from paywitness.core.record import record
from paywitness.engine.calls.attempts import address_of
from paywitness.engine.calls.stored_messages import StoredRequest, credential_headers, open_credential
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.resolution.control_question import ControlQuestion
from paywitness.journal.base import Journal
from paywitness.repeated_lines import repeats
from paywitness.secrets import Vault
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import WireRequest

_log = logging.getLogger("paywitness.credentials")
SAME, UNKNOWN = CredentialRelation.SAME, CredentialRelation.UNKNOWN
_ACCEPTED_MAX = 5  # credentials of an account that are tried, newest first
_RENEW_BEFORE_S = 60.0  # a token that expires while the call is under way would get 401
_TOKEN_LIFETIME_DEFAULT_S = 300.0  # for providers that do not say


@record
class CredentialCandidate:
    """A credential to try."""

    headers: Headers
    is_of_account: bool  # it made the operation, or is mapped to the same account, so a miss under it counts
    may_send: bool  # it may send what moves money: as above, or the policy gives it for the account


@dataclass(slots=True)
class CredentialSource:
    journal: Journal
    vault: Vault
    environment: Mapping[str, str]
    upstream: UpstreamClient
    clock: Clock
    owners: CredentialOwners
    control_question: ControlQuestion = field(init=False)
    _tokens: dict[tuple[str, OAuth2], tuple[str, float]] = field(default_factory=dict)  # token, good until (monotonic)

    def __post_init__(self) -> None:
        self.control_question = ControlQuestion(self.journal, self.upstream, self.owners, self.vault, self.clock)

    async def candidates(
        self, operation: Operation, policy: Policy, request: StoredRequest | None
    ) -> AsyncIterator[CredentialCandidate]:
        """The credentials to try, one after the other. Each is read only when it is needed."""
        tried: set[Headers] = set()
        caller_headers = credential_headers(request.headers) if request is not None else ()
        if caller_headers:
            tried.add(caller_headers)
            yield CredentialCandidate(caller_headers, is_of_account=True, may_send=True)
        unknown: list[Headers] = []
        for accepted in await self._newest_accepted(operation):
            if accepted in tried or self._is_anothers(operation, policy, accepted):
                continue
            tried.add(accepted)
            # The provider executed a call under it for an account that the provider reads itself: that is a mapping.
            is_mapped = operation.account_source is AccountSource.SELECTOR
            relation = SAME if is_mapped else await self._relation(operation, policy, accepted)
            if relation is SAME:
                yield CredentialCandidate(accepted, is_of_account=True, may_send=True)
            elif relation is UNKNOWN and operation.account_source is not AccountSource.HEADER:
                unknown.append(accepted)
        async for environment in self._given(operation, policy, tried):
            tried.add(environment)
            relation = await self._relation(operation, policy, environment)
            if relation is not CredentialRelation.OTHER:
                yield CredentialCandidate(environment, is_of_account=relation is SAME, may_send=True)
        for accepted in unknown:  # last, because "not found" under them proves nothing
            yield CredentialCandidate(accepted, is_of_account=False, may_send=False)
        if not tried:
            yield CredentialCandidate((), is_of_account=True, may_send=True)  # a provider that needs no credential

    async def _given(self, operation: Operation, policy: Policy, tried: set[Headers]) -> AsyncIterator[Headers]:
        """The credentials that the policy gives for the account from the environment, without those that were tried."""
        for given in given_credentials(operation, policy):
            environment = await self._from_environment(policy, given)
            if environment and environment not in tried and not self._is_anothers(operation, policy, environment):
                yield environment

    def _is_anothers(self, operation: Operation, policy: Policy, headers: Headers) -> bool:
        """Whether the policy's `accounts:` list the credential, but only for other accounts than the operation's."""
        listing = policy.accounts.listing(credential_in(headers, self.vault.identity_secret))
        return bool(listing) and operation.named_account not in listing

    async def _relation(self, operation: Operation, policy: Policy, headers: Headers) -> CredentialRelation:
        relation = await self.owners.relation(operation, policy, headers)
        if relation is not UNKNOWN or operation.account_source is AccountSource.HEADER:
            return relation
        return SAME if await self.control_question.proves_same(operation, policy, headers) else UNKNOWN

    async def _newest_accepted(self, operation: Operation) -> list[Headers]:
        """The credentials that the provider accepted for the account, newest first. Several are tried, because a
        sidecar that records late may make a credential the newest that the provider no longer accepts."""
        found = []
        for _, sealed in await self.journal.newest_credentials(operation.account, _ACCEPTED_MAX):
            with suppress(UnreadableSecret):
                found.append(open_credential(self.vault, sealed, operation.account))
        return found

    async def _from_environment(self, policy: Policy, credentials: BackgroundCredentials) -> Headers:
        found = headers_from(credentials, self.environment)
        if found is None:
            names = " nor ".join(name for name in credentials.variables if not self.environment.get(name))
            _log.warning("the environment has no %s, which the policy's credentials name", names, extra=repeats(names))
            return ()
        if credentials.oauth2 is None:
            return found
        token = await self._oauth2_token(policy, credentials.oauth2)
        return () if token is None else (*found, (b"Authorization", f"Bearer {token}".encode("latin-1")))

    async def _oauth2_token(self, policy: Policy, oauth2: OAuth2) -> str | None:
        """A token by client credentials (RFC 6749 4.4), kept until it expires."""
        key = (policy.provider, oauth2)
        stored = self._tokens.get(key)
        if stored is not None and stored[1] > self.clock.mono():
            return stored[0]
        client, secret = self.environment.get(oauth2.client_id), self.environment.get(oauth2.client_secret)
        if client is None or secret is None:
            names = (oauth2.client_id, oauth2.client_secret)
            _log.warning("the environment has no %s or %s", *names, extra=repeats(*names))
            return None
        origin, prefix = address_of(policy)
        form = {"grant_type": "client_credentials", **({"scope": oauth2.scope} if oauth2.scope else {})}
        basic = base64.b64encode(f"{client}:{secret}".encode()).decode()
        headers: Headers = (
            (b"Authorization", f"Basic {basic}".encode()),
            (b"Content-Type", b"application/x-www-form-urlencoded"),
            (b"Accept", b"application/json"),
        )
        target = (prefix + oauth2.path).encode("latin-1")
        request = WireRequest(oauth2.method, target, headers, urlencode(form).encode())
        evidence = await self.upstream.send(origin, request, UpstreamTimeouts())
        token, lifetime_s = _parse_token(evidence.response.body if evidence.response is not None else b"")
        if token is None:
            place = (policy.provider, oauth2.path)
            _log.warning("%s gave no token at %s", *place, extra=repeats(*place))
            return None
        self._tokens[key] = (token, self.clock.mono() + max(0.0, lifetime_s - _RENEW_BEFORE_S))
        return token


def given_credentials(operation: Operation, policy: Policy) -> tuple[BackgroundCredentials, ...]:
    """The credentials that the policy gives for our own calls: those of the operation's account, then the file's."""
    account = policy.accounts.account_named(operation.named_account)
    of_file = () if policy.credentials is None else (policy.credentials,)
    return of_file if account is None else (*account.credentials, *of_file)


def _parse_token(body: bytes) -> tuple[str | None, float]:
    try:
        found = json.loads(body)
    except ValueError:
        return None, 0.0
    token = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        return None, 0.0
    lifetime = found.get("expires_in", _TOKEN_LIFETIME_DEFAULT_S)
    return token, float(lifetime) if isinstance(lifetime, (int, float)) and not isinstance(
        lifetime, bool
    ) else _TOKEN_LIFETIME_DEFAULT_S
