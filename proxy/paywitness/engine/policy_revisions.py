"""Pinned policies: an operation follows the contract, classification and decision rules under which it was started.

Addresses, timeouts, credentials and limits are never pinned: today's apply. If the journal no longer has a revision, or
this version cannot read it, there is no policy, and without a policy nothing is re-sent.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from paywitness.core.errors import PolicyError
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook, load_content

_REVISIONS_KEPT = 64


class PinnedPolicies:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._providers: OrderedDict[str, Provider | None] = OrderedDict()

    async def policy_of(self, operation: Operation, current: Policy) -> Policy | None:
        """The policy that the operation was started under, with today's address and timeouts."""
        if operation.revision == current.revision:
            return current
        provider = await self._provider_revision(operation)
        for policy in provider.policies if provider is not None else ():
            if policy.operation == operation.operation:
                return replace(
                    policy,
                    upstream=current.upstream,
                    timeouts=current.timeouts,
                    credentials=current.credentials,
                    accounts=current.accounts,
                    dashboard=current.dashboard,
                    budget=current.budget,
                )
        return None

    async def policy_from_book(self, operation: Operation, book: PolicyBook) -> Policy | None:
        """The policy of an operation, without a call that has matched one."""
        provider = book.providers.get(operation.provider)
        for policy in provider.policies if provider is not None else ():
            if policy.operation == operation.operation:
                return await self.policy_of(operation, policy)
        # Its provider or operation has left the book since. The pinned revision still has the way to inquire.
        pinned = await self._provider_revision(operation)
        for policy in pinned.policies if pinned is not None else ():
            if policy.operation == operation.operation:
                return policy
        return None

    async def _provider_revision(self, operation: Operation) -> Provider | None:
        if operation.revision not in self._providers:
            stored = await self._journal.revision(operation.provider, operation.revision)
            if stored is None:
                return None  # not remembered, because the store may get it again
            try:
                provider = load_content(stored.content.encode(), f"revision {stored.revision}")
            except PolicyError:
                provider = None
            self._providers[operation.revision] = provider
            if len(self._providers) > _REVISIONS_KEPT:
                self._providers.popitem(last=False)
        return self._providers[operation.revision]
