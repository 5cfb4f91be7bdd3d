"""The account that a call acts for, before it is claimed: `merchants: one` and `merchants: many`.

With one merchant, the identity is always that of the policy's account. The owner only separates: a credential of
another owner than the account's is refused, even if the call names the account by `Paywitness-Account`. With many
merchants, the owner or the name in `accounts:` is part of the identity, and no call is claimed before it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.account_choice import AccountChoice, choose_account
from paywitness.core.credential_owners import AccountSource, credential_key, owner_in
from paywitness.core.operation import Operation, State
from paywitness.core.policy import Policy
from paywitness.core.problems import ANOTHER_ACCOUNT, UNLISTED_ACCOUNT
from paywitness.core.recognise import recognise_under
from paywitness.core.reply import Reply
from paywitness.engine.calls.context import CallContext, account_unknown, another_owner
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.journal.base import Journal, OperationQuery
from paywitness.secrets import Vault

_OPEN = frozenset({State.PREPARED, State.SENDING, State.BACKOFF, State.UNKNOWN, State.REQUIRES_REVIEW, State.PENDING})
_OPEN_MAX = 200  # open operations of an account that are read to find the oldest
_OWNER_FOR_S = 60.0  # how long an account's owner is remembered
_ACCOUNTS_MAX = 10_000


@dataclass(slots=True)
class AccountAccess:
    journal: Journal
    owners: CredentialOwners
    vault: Vault
    clock: Clock
    _account_owners: dict[str, tuple[float, str]] = field(default_factory=dict)  # by account: until when, and the owner

    async def enter(self, context: CallContext) -> CallContext | Reply:
        """The call under its owner's account, or the reply if the call may not continue."""
        policy = context.policy
        rules = policy.accounts
        if not rules.asks_for_owner:
            return context
        time_left_s = context.deadline_mono - self.clock.mono()
        owner = await self.owners.ask_first(policy, context.call.headers, time_left_s)
        context = context.owned_by(owner)
        if rules.many or rules.named:
            chosen = self._chosen(context, owner)
            if chosen.contradicts:
                return another_owner(context, ANOTHER_ACCOUNT)
            if not chosen.is_known:
                # Also a call that only opens a payment: under another account its intent would not reach the confirm.
                return account_unknown(context) if rules.who_am_i else another_owner(context, UNLISTED_ACCOUNT)
            if (chosen.policy.account, chosen.policy.acts_for) != (policy.account, policy.acts_for):
                context = self._under(context, chosen.policy)
        if rules.many or owner is None or not policy.kind.moves_money:
            return context
        if context.identity.account_source is AccountSource.SELECTOR:
            return context  # the provider knows the account, and who may act for it
        of_account = await self._owner_of(context.identity.account, policy, owner)
        return another_owner(context) if of_account not in {None, owner} else context

    def _chosen(self, context: CallContext, owner: str | None) -> AccountChoice:
        """The account of the call, now that the provider has named its owner."""
        parameters, secret = dict(context.parameters), self.vault.identity_secret
        return choose_account(context.policy, context.call, context.tree, parameters, secret, owner)

    def _under(self, context: CallContext, policy: Policy) -> CallContext:
        client_key, secret = context.identity.client_key, self.vault.identity_secret
        recognised = recognise_under(
            policy, context.call, context.tree, dict(context.parameters), secret, lambda: client_key
        )
        return context.recognised_as(recognised, policy)

    async def _owner_of(self, account: str, policy: Policy, caller: str) -> str | None:
        """The owner of an account that the provider does not read: a constant one, or one that only
        `Paywitness-Account` names. It is the owner of the credential that made the account's oldest open operation,
        else its newest paid one. Without either it is the caller's owner. None: that credential has no known owner.
        Only an owner from the journal is remembered, because each of several sidecars may get its first call from
        another caller."""
        known = self._account_owners.get(account)
        if known is not None and known[0] > self.clock.mono():
            return known[1]
        made = await self._deciding_operation(account, policy)
        if made is None:
            return caller
        owner = owner_in(await self.owners.marks(credential_key(policy.key_provider, made.credential)))
        if owner is None:
            return None
        if len(self._account_owners) >= _ACCOUNTS_MAX:
            self._account_owners.clear()
        self._account_owners[account] = (self.clock.mono() + _OWNER_FOR_S, owner)
        return owner

    async def _deciding_operation(self, account: str, policy: Policy) -> Operation | None:
        accounts = frozenset({account})
        query = OperationQuery(provider=policy.provider, accounts=accounts, states=_OPEN, limit=_OPEN_MAX)
        if still_open := await self.journal.find_operations(query):
            return still_open[-1]
        paid = OperationQuery(provider=policy.provider, accounts=accounts, states=frozenset({State.SUCCEEDED}), limit=1)
        found = await self.journal.find_operations(paid)
        return found[0] if found else None
