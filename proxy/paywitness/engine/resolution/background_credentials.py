"""Credentials for calls of our own: the caller's, the account's newest accepted one, or the environment's.

The caller's come first: they are known to be of the right account. They expire, so the others follow. Of those it must
be known whose they are before "not found" under one of them says anything, or anything but an inquiry is sent.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
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
from paywitness.engine.calls.attempt_sender import address_of
from paywitness.engine.calls.stored_messages import StoredRequest, credential_headers, open_credential
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.resolution.control_question import ControlQuestion
from paywitness.journal.base import Journal
from paywitness.secrets import Vault
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import WireRequest

_log = logging.getLogger("paywitness.credentials")
_RENEW_BEFORE_S = 60.0  # a token that ends while the call is under way answers 401
_TOKEN_LIFETIME_DEFAULT_S = 300.0  # for providers that do not say


@record
class CredentialCandidate:
    """A credential to try."""

    headers: Headers
    is_of_account: bool  # it made the operation, or is mapped to the same account: a miss under it counts
    may_send: bool  # also what moves money: as above, or the policy gives it for the account


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
        """Credentials to try, one after the other. Nothing is looked up before it is needed."""
        tried: set[Headers] = set()
        caller_headers = credential_headers(request.headers) if request is not None else ()
        if caller_headers:
            tried.add(caller_headers)
            yield CredentialCandidate(caller_headers, is_of_account=True, may_send=True)
        newest = await self.newest_accepted(operation)
        if newest and newest not in tried and not self._is_anothers(operation, policy, newest):
            tried.add(newest)
            # The provider executed a call under it for an account that it reads itself: that is a mapping.
            mapped = operation.account_source is AccountSource.SELECTOR or await self._is_same(
                operation, policy, newest
            )
            if mapped or operation.account_source is not AccountSource.HEADER:
                yield CredentialCandidate(newest, is_of_account=mapped, may_send=mapped)
        for given in given_credentials(operation, policy):
            environment = await self._from_environment(policy, given)
            if environment and environment not in tried and not self._is_anothers(operation, policy, environment):
                tried.add(environment)
                is_same = await self._is_same(operation, policy, environment)
                yield CredentialCandidate(environment, is_of_account=is_same, may_send=True)
        if not tried:
            yield CredentialCandidate((), is_of_account=True, may_send=True)  # a provider that asks for none

    def _is_anothers(self, operation: Operation, policy: Policy, headers: Headers) -> bool:
        """Whether the policy's `accounts:` list the credential, and for other accounts than the operation's."""
        listing = policy.accounts.listing(credential_in(headers, self.vault.identity_secret))
        return bool(listing) and operation.named_account not in listing

    async def _is_same(self, operation: Operation, policy: Policy, headers: Headers) -> bool:
        relation = await self.owners.relation(operation, policy, headers)
        if relation is not CredentialRelation.UNKNOWN or operation.account_source is AccountSource.HEADER:
            return relation is CredentialRelation.SAME
        return await self.control_question.proves_same(operation, policy, headers)

    async def newest_accepted(self, operation: Operation) -> Headers:
        """What the provider accepted last for the account."""
        stored = await self.journal.newest_credential(operation.account)
        if stored is None:
            return ()
        try:
            return open_credential(self.vault, stored[1], operation.account)
        except UnreadableSecret:
            return ()

    async def _from_environment(self, policy: Policy, credentials: BackgroundCredentials) -> Headers:
        found = headers_from(credentials, self.environment)
        if found is None:
            names = [name for name in credentials.variables if not self.environment.get(name)]
            _log.warning("the environment has no %s, which the policy's credentials name", " nor ".join(names))
            return ()
        if credentials.oauth2 is None:
            return found
        token = await self._oauth2_token(policy, credentials.oauth2)
        return () if token is None else (*found, (b"Authorization", f"Bearer {token}".encode("latin-1")))

    async def _oauth2_token(self, policy: Policy, oauth2: OAuth2) -> str | None:
        """A token by client credentials (RFC 6749 4.4), kept for as long as it is good."""
        key = (policy.provider, oauth2)
        stored = self._tokens.get(key)
        if stored is not None and stored[1] > self.clock.mono():
            return stored[0]
        client, secret = self.environment.get(oauth2.client_id), self.environment.get(oauth2.client_secret)
        if client is None or secret is None:
            _log.warning("the environment has no %s or %s", oauth2.client_id, oauth2.client_secret)
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
            _log.warning("%s gave no token at %s", policy.provider, oauth2.path)
            return None
        self._tokens[key] = (token, self.clock.mono() + max(0.0, lifetime_s - _RENEW_BEFORE_S))
        return token


def given_credentials(operation: Operation, policy: Policy) -> tuple[BackgroundCredentials, ...]:
    """What the policy gives for calls of our own: those of the operation's account, then the file's."""
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
