"""Matching: which operation a notice is about. Within the account its secret belongs to, and never by a guess.

The finders of the policy are tried in their order; the first that names exactly one operation wins. Generations of one
key count as one: the event belongs to the newest that was sent and whose amount and currency fit. Two candidates match
none.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.body import Tree
from proxy.core.classify import Asked, fits
from proxy.core.identity import account_named, intent_guard
from proxy.core.notice import Finder, Notice
from proxy.core.operation import Operation, State
from proxy.core.policy import Policy, Provider
from proxy.core.reading import Reading
from proxy.engine.pinned import PinnedPolicies
from proxy.journal.base import Journal, Listing
from proxy.policy.book import PolicyBook
from proxy.vault import Vault

_CANDIDATES_MAX = 100  # a thing with so many candidates names none of them


@dataclass(frozen=True, slots=True)
class Match:
    """What was found. Neither an operation nor final: nothing yet, which later evidence may change."""

    operation: Operation | None = None
    policy: Policy | None = None  # pinned to the operation; None where it can no longer be read
    ambiguous: bool = False
    hopeless: bool = False  # nothing in the event can ever name an operation of the account


@dataclass(frozen=True, slots=True)
class _Candidate:
    operation: Operation
    policy: Policy | None

    @property
    def was_sent(self) -> bool:
        never_reached = self.operation.reading in {None, Reading.NETWORK_CONNECT_FAILURE}
        return self.operation.attempts > 0 and not (self.operation.state is State.FAILED and never_reached)

    def may_fit(self, shown: Tree) -> bool:
        """What cannot be held against its policy may: an older generation must not be given what is its."""
        return self.policy is None or fits(self.policy.classify.fit, shown, Asked(self.operation.money))


@dataclass(frozen=True, slots=True)
class Matching:
    journal: Journal
    pinned: PinnedPolicies
    vault: Vault

    async def find(self, notice: Notice, account: str, provider: Provider, book: PolicyBook, shown: Tree) -> Match:
        """`account` is the one in the address, to which the secret belongs; "" is the main one. Raises
        JournalUnavailable."""
        if account and notice.account and account != notice.account:
            return Match(hopeless=True)  # another tenant's event under this tenant's secret
        name = account or notice.account or ""
        if not notice.names:
            return Match(hopeless=True)
        outcomes: set[str] = set()
        for finder, value in notice.names:
            listed = await self._listed(finder, value, provider, name)
            candidates = [
                candidate
                for operation in listed
                if (candidate := await self._within(operation, name, provider, book)) is not None
            ]
            keys = {candidate.operation.key for candidate in candidates}
            if len(keys) == 1 and len(listed) < _CANDIDATES_MAX:
                chosen = _generation(candidates, shown)
                return Match(chosen.operation, chosen.policy)
            outcomes.add("several" if keys or len(listed) >= _CANDIDATES_MAX else "none")
        return Match(ambiguous=outcomes == {"several"})

    async def _listed(self, finder: Finder, value: str, provider: Provider, name: str) -> tuple[Operation, ...]:
        def listing(**named: str) -> Listing:
            return Listing(provider=provider.name, limit=_CANDIDATES_MAX, **named)  # type: ignore[arg-type]

        match finder:
            case Finder.OPERATION_ID:
                return await self.journal.listing(listing(stamp=value))
            case Finder.PROVIDER_KEY:
                found = await self.journal.listing(listing(key=value))
                return tuple(operation for operation in found if operation.provider_key == value)
            case Finder.CLIENT_KEY:
                found = await self.journal.listing(listing(key=value))
                return tuple(operation for operation in found if operation.client_key == value)
            case Finder.REFERENCE:
                return await self.journal.listing(listing(reference=value))
            case Finder.INTENT:
                by_id: dict[str, Operation] = {}
                for guard in sorted(self._guards(value, provider, name)):
                    by_id |= {operation.id: operation for operation in await self.journal.listing(listing(guard=guard))}
                return tuple(by_id.values())

    def _guards(self, intent: str, provider: Provider, name: str) -> set[str]:
        secret = self.vault.identity_secret
        return {
            intent_guard(policy, account, intent, secret)
            for policy in provider.policies
            if policy.kind.pays
            for account in account_named(policy.account, name, secret)
        }

    async def _within(self, operation: Operation, name: str, provider: Provider, book: PolicyBook) -> _Candidate | None:
        """The operation, if it is the account's."""
        policy = await self.pinned.of(operation, book)
        places = policy.account if policy is not None else provider.account
        if operation.account not in account_named(places, name, self.vault.identity_secret):
            return None
        return _Candidate(operation, policy)


def _generation(candidates: list[_Candidate], shown: Tree) -> _Candidate:
    """Of the generations of one key, the newest that was sent and fits; else the newest that was sent."""
    newest_first = sorted(candidates, key=lambda candidate: candidate.operation.generation, reverse=True)
    sent = [candidate for candidate in newest_first if candidate.was_sent] or newest_first
    return next((candidate for candidate in sent if candidate.may_fit(shown)), sent[0])
