"""The control question: whether a credential finds an object that another credential is known to have made. If it does,
both are of one account, and "not found" under it counts.

If the provider cannot name the owner of a credential, only this tells a rotated token from a stranger's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Headers
from paywitness.core.credential_owners import PEER_MARK, MarkSource, credential_key
from paywitness.core.errors import JournalUnavailable
from paywitness.core.identity import credential_in
from paywitness.core.inquiry import Inquiry, read_inquiry
from paywitness.core.operation import FindingKind, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.template import TemplateValues
from paywitness.engine.calls.attempts import address_of
from paywitness.engine.calls.stored_messages import with_header
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.journal.base import Journal, OperationQuery
from paywitness.secrets import Vault
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import WireRequest

# Payments just before the operation, and as many of the newest, among which one of its credential is searched for.
_KNOWN_MAX = 50
_ASKED_AGAIN_AFTER_S = 600.0
_PAIRS_MAX = 1_000


@dataclass(slots=True)
class ControlQuestion:
    journal: Journal
    upstream: UpstreamClient
    owners: CredentialOwners
    vault: Vault
    clock: Clock
    _asked: dict[tuple[str, str], float] = field(default_factory=dict)  # pairs of credentials: when to ask again

    async def proves_same(self, operation: Operation, policy: Policy, headers: Headers) -> bool:
        """Whether the credential finds an object of the one that made the operation. If it does, that is recorded."""
        mine = credential_in(headers, self.vault.identity_secret)
        pair = (mine, operation.credential)
        if self._asked.get(pair, 0.0) > self.clock.mono():
            return False
        if len(self._asked) >= _PAIRS_MAX:
            self._asked.clear()
        self._asked[pair] = self.clock.mono() + _ASKED_AGAIN_AFTER_S
        known = await self._known_object(operation, policy)
        if known is None or not await self._finds(*known, policy, headers):
            return False
        try:
            key = credential_key(policy.key_provider, mine)
            await self.owners.add_marks(key, {PEER_MARK + operation.credential: MarkSource.CONTROL})
        except JournalUnavailable:
            return False
        return True

    async def _known_object(self, operation: Operation, policy: Policy) -> tuple[Operation, Inquiry, str] | None:
        """A payment that the operation's credential is known to have made, and the inquiry for it by its reference."""
        newest = OperationQuery(
            provider=operation.provider,
            operation=operation.operation,
            accounts=frozenset({operation.account}),
            states=frozenset({State.SUCCEEDED}),
            limit=_KNOWN_MAX,
        )
        # After a rotation the newest payments are soon all of the other credential. Those just before it are of the
        # same one.
        earlier = await self.journal.find_operations(replace(newest, before=operation.id))
        for known in (*earlier, *await self.journal.find_operations(newest)):
            if known.credential != operation.credential or known.reference is None or known.incident is not None:
                continue
            for inquiry in policy.inquiries:
                target = inquiry.target(TemplateValues(known, {})) if inquiry.method == "GET" else None
                if target is not None and known.reference in target:
                    return known, inquiry, target
        return None

    async def _finds(self, known: Operation, inquiry: Inquiry, target: str, policy: Policy, headers: Headers) -> bool:
        origin, prefix = address_of(policy)
        sent: Headers = ((b"Accept", Encoding.JSON.media_type.encode()), (b"User-Agent", b"paywitness"))
        forced = ((name.encode(), value.encode("latin-1")) for name, value in (*policy.headers, *inquiry.headers))
        for name, value in (*forced, *headers):
            sent = with_header(sent, name, value)
        request = WireRequest("GET", (prefix + target).encode("latin-1"), sent, b"")
        evidence = await self.upstream.send(origin, request, policy.timeouts)
        values = TemplateValues(known, {})
        seen = read_inquiry(inquiry, evidence, policy.classify, known.expected_payment, values)
        return seen.finding.kind is FindingKind.HIT
