"""What a caller may see on the payment port: the operations and intents that its credential may be told of.

A caller sends the credential headers that its payments carry. The rule is that of replays
(`core.credential_owners.may_see`). Every other caller gets the same reply as for an id that does not exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paywitness.core.account_choice import choose_account
from paywitness.core.call import Call
from paywitness.core.credential_owners import credential_key, marks_from_text, may_see, related
from paywitness.core.identity import account_of, credential_of, intent_guard
from paywitness.core.operation import Operation
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook


@dataclass(frozen=True, slots=True)
class Visibility:
    """What one question may see."""

    journal: Journal
    book: PolicyBook
    identity_secret: bytes
    call: Call

    @property
    def credential(self) -> str:
        """As replays know it: callers without a credential header count as one."""
        return credential_of(self.call, self.identity_secret)

    async def sees(self, operation: Operation) -> bool:
        """Whether the question may see the operation. Raises JournalUnavailable."""
        credential, provider = self.credential, self.book.providers.get(operation.provider)
        if credential == operation.credential:
            return True
        if provider is None or not provider.policies:
            return False
        policy = provider.policies[0]
        keys = tuple(credential_key(policy.key_provider, each) for each in (credential, operation.credential))
        rows = await self.journal.ledger_rows(keys)
        marks = [{} if row is None else marks_from_text(row.text) for row in rows]
        return may_see(
            related(credential, marks[0], operation.credential, marks[1], operation.account, operation.named_account),
            accepted=await self.journal.accepts_credential(operation.account, credential),
            source=operation.account_source,
            separates=policy.accounts.tells_owners_apart,
        )

    async def guards_of(self, intent: str, operations: Iterable[Operation]) -> frozenset[str] | None:
        """The guards of the intent that the question may see, from these operations and from payments that were
        retired. None: it may see no guard, or it is not known whether it may see one of them. A question that sees one
        operation of a guard sees all of them, because they are one merchant's."""
        own = await self._guards_of_accounts(intent)
        groups: dict[str, list[Operation]] = defaultdict(list)
        for operation in operations:
            if operation.guard is not None:
                groups[operation.guard.value].append(operation)
        visible = set(own.keys() - groups.keys())
        for guard, group in groups.items():
            if await self._sees_any(group):
                visible.add(guard)
            elif guard in own:
                if any(operation.provider in own[guard] for operation in group):
                    return None  # of the same account, but made by a credential that may be another owner's
                visible.add(guard)  # of another provider of the merchant
        return frozenset(visible) or None

    async def _sees_any(self, operations: list[Operation]) -> bool:
        for operation in operations:
            if await self.sees(operation):
                return True
        return False

    async def _guards_of_accounts(self, intent: str) -> dict[str, set[str]]:
        """The guards of the intent in the accounts that the question names and whose providers have accepted its
        credential; with these providers."""
        credential = self.credential
        guards: dict[str, set[str]] = defaultdict(set)
        accepted: dict[str, bool] = {}
        for provider in self.book.providers.values():
            for each in provider.policies:
                policy = choose_account(each, self.call, None, {}, self.identity_secret).policy
                account = account_of(self.call, policy, None, {}, self.identity_secret)
                if account not in accepted:
                    accepted[account] = await self.journal.accepts_credential(account, credential)
                if accepted[account]:
                    guards[intent_guard(policy, account, intent, self.identity_secret)].add(provider.name)
        return guards
