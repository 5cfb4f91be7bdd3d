"""The owners of credentials: asks the provider before a new credential's first claim, and stores its answer.

One question serves all calls that wait for it, and they wait two seconds at most. A refusal by the provider is
remembered for an hour, a failed question for half a minute. Only an owner that the provider named goes into the
journal, so made-up credentials leave nothing there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from paywitness.clock import Clock
from paywitness.core.account_choice import with_listed_credentials
from paywitness.core.account_rules import AccountRules, WhoAmI
from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Headers
from paywitness.core.classify import tree_of
from paywitness.core.credential_owners import (
    MARKS_MAX,
    OWNER_MARK,
    CredentialRelation,
    MarkSource,
    credential_key,
    marks_from_text,
    marks_to_text,
    named_mark,
    owner_in,
    owner_mark,
    related,
)
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Evidence
from paywitness.core.identity import credential_in, owner_hash
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, UpstreamTimeouts
from paywitness.engine.calls.attempts import address_of
from paywitness.engine.calls.stored_messages import credential_headers, with_header
from paywitness.journal.base import Journal, LedgerRow
from paywitness.policy.book import PolicyBook
from paywitness.secrets import Vault
from paywitness.tasks import TaskRefused, Tasks
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import WireRequest

_log = logging.getLogger("paywitness.credentials")
WAIT_S = 2.0  # how long a call waits for the provider's answer
# A credential does not change its owner; then the journal is read again, because an operator may have mapped it.
_KNOWN_FOR_S = 3600.0
_REFUSED_FOR_S = 3600.0
_FAILED_FOR_S = 30.0
_SETTLED_MAX = 10_000  # credentials whose result this sidecar remembers
_WRITE_TRIES = 5
_MarksChange = Callable[[dict[str, str]], dict[str, str]]
_TIMEOUTS = UpstreamTimeouts(connect_s=WAIT_S, tls_s=WAIT_S, write_s=WAIT_S, first_byte_s=WAIT_S, body_idle_s=WAIT_S)


@dataclass(slots=True)
class CredentialOwners:
    journal: Journal
    upstream: UpstreamClient
    vault: Vault
    clock: Clock
    tasks: Tasks
    environment: Mapping[str, str] = field(default_factory=dict)  # holds the credentials that `accounts:` lists
    # Until when, and the owner.
    _settled: OrderedDict[str, tuple[float, str | None]] = field(default_factory=OrderedDict)
    _asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def ask_first(self, policy: Policy, headers: Headers, within_s: float) -> str | None:
        """Ask the provider for the owner of the credential, unless that has been done. Returns the owner, if it is
        known."""
        credential = credential_headers(headers)
        who_am_i = policy.accounts.who_am_i
        if who_am_i is None or not credential:
            return None
        key = credential_key(policy.key_provider, credential_in(credential, self.vault.identity_secret))
        settled = self._settled.get(key)
        if settled is None or settled[0] <= self.clock.mono():
            asking = self._asking.get(key)
            if asking is None:
                try:
                    asking = self.tasks.start(self._settle(key, policy, who_am_i, credential), "who-am-i")
                except TaskRefused:  # we are shutting down
                    return None
                self._asking[key] = asking
            await asyncio.wait({asking}, timeout=max(0.0, min(WAIT_S, within_s)))
            settled = self._settled.get(key)
        return settled[1] if settled is not None else None

    async def _settle(self, key: str, policy: Policy, who_am_i: WhoAmI, credential: Headers) -> None:
        try:
            owner, for_s = await self._owner_of(key, policy, who_am_i, credential)
            self._settled[key] = (self.clock.mono() + for_s, owner)
            self._settled.move_to_end(key)
            while len(self._settled) > _SETTLED_MAX:
                self._settled.popitem(last=False)
        finally:
            self._asking.pop(key, None)

    async def _owner_of(
        self, key: str, policy: Policy, who_am_i: WhoAmI, credential: Headers
    ) -> tuple[str | None, float]:
        """The owner, and for how long to remember it."""
        with suppress(JournalUnavailable):
            known = owner_in(await self.marks(key))
            if known is not None:
                return known, _KNOWN_FOR_S
        evidence = await self._ask(policy, who_am_i, credential)
        named = _named_owner(who_am_i, evidence)
        result = "known" if named else "refused" if _is_refusal(evidence) else "failed"
        _log.info("%s was asked for the owner of a new credential: %s", policy.provider, result)
        if named is None:
            return None, _REFUSED_FOR_S if result == "refused" else _FAILED_FOR_S
        mark = owner_mark(owner_hash(policy.key_provider, named, self.vault.identity_secret))
        try:
            await self.add_marks(key, {mark: MarkSource.PROVIDER})
        except JournalUnavailable:
            return None, 0.0  # the mark is not in the journal, so the claim would not find it
        return mark, _KNOWN_FOR_S

    async def _ask(self, policy: Policy, who_am_i: WhoAmI, credential: Headers) -> Evidence:
        origin, prefix = address_of(policy)
        headers: Headers = ((b"Accept", Encoding.JSON.media_type.encode()), (b"User-Agent", b"paywitness"))
        for name, value in (
            *((name.encode(), value.encode("latin-1")) for name, value in policy.headers),
            *credential,
        ):
            headers = with_header(headers, name, value)
        target = (prefix + who_am_i.path).encode("latin-1")
        return await self.upstream.send(origin, WireRequest(who_am_i.method, target, headers, b""), _TIMEOUTS)

    async def marks(self, key: str) -> dict[str, str]:
        [row] = await self.journal.ledger_rows((key,))
        return {} if row is None else marks_from_text(row.text)

    async def add_marks(self, key: str, marks: Mapping[str, str]) -> None:
        """Add marks to those that the journal has for a credential."""
        await self._rewrite(key, lambda known: _merged(known, marks))

    async def remove_peers(self, key: str) -> None:
        """Remove the marks that operators and control questions gave to a credential. Those of the provider and the
        policy stay."""
        stay = (OWNER_MARK, named_mark(""))
        await self._rewrite(key, lambda known: {mark: known[mark] for mark in known if mark.startswith(stay)})

    async def listed(self, book: PolicyBook) -> PolicyBook:
        """The book whose accounts know the credentials that they list, after the journal has been told to map them too.
        A credential that is no longer listed keeps its account, because it was rotated."""
        secret = self.vault.identity_secret
        providers = [with_listed_credentials(each, self.environment, secret) for each in book.providers.values()]
        for provider in providers:
            rules = provider.policies[0].accounts if provider.policies else AccountRules()
            for credential in frozenset().union(*(each.credential_hashes for each in rules.named)):
                key = credential_key(provider.policies[0].key_provider, credential)
                await self._rewrite(key, partial(_with_names, names=rules.listing(credential)))
        return PolicyBook.of(providers)

    async def _rewrite(self, key: str, change: _MarksChange) -> None:
        for _ in range(_WRITE_TRIES):
            [row] = await self.journal.ledger_rows((key,))
            known = {} if row is None else marks_from_text(row.text)
            wanted = change(dict(known))
            if wanted == known:
                return
            version = 1 if row is None else row.version + 1
            if await self.journal.write_ledger_rows((LedgerRow(key, version, marks_to_text(wanted)),)):
                return
        raise JournalUnavailable("the marks of a credential changed too often to be written")

    async def relation(self, operation: Operation, policy: Policy, headers: Headers) -> CredentialRelation:
        """The relation of a credential to the one that made the operation."""
        mine = credential_in(headers, self.vault.identity_secret)
        if mine == operation.credential:
            return CredentialRelation.SAME
        await self.ask_first(policy, headers, WAIT_S)
        scope = policy.key_provider
        marks = [await self.marks(credential_key(scope, credential)) for credential in (mine, operation.credential)]
        named = operation.named_account
        return related(mine, marks[0], operation.credential, marks[1], operation.account, named)


def _with_names(known: dict[str, str], names: frozenset[str]) -> dict[str, str]:
    """The marks of a credential, with the accounts that list it today and no others."""
    rest = {mark: source for mark, source in known.items() if not mark.startswith(named_mark(""))}
    return {**{named_mark(name): MarkSource.POLICY for name in sorted(names)}, **rest}


def _merged(known: dict[str, str], marks: Mapping[str, str]) -> dict[str, str]:
    if any(mark.startswith(OWNER_MARK) and source == MarkSource.PROVIDER for mark, source in marks.items()):
        # The provider's latest answer counts.
        known = {mark: known[mark] for mark in known if not mark.startswith(OWNER_MARK)}
    return dict([*marks.items(), *((mark, known[mark]) for mark in known if mark not in marks)][:MARKS_MAX])


def _named_owner(who_am_i: WhoAmI, evidence: Evidence) -> str | None:
    response = evidence.response
    if response is None or not 200 <= response.status_code < 300:
        return None
    tree, readable = tree_of(response, Encoding.JSON)
    found = who_am_i.field(tree) if readable else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) and found != "" else None


def _is_refusal(evidence: Evidence) -> bool:
    """Whether the provider refuses to answer. A success without the field is a refusal too; a limit or a fault of the
    provider is temporary."""
    response = evidence.response
    return response is not None and response.status_code < 500 and response.status_code not in {408, 429}
