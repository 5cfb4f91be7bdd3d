"""WebhookMatcher: finds the operation that a webhook event is about. Only within the account of the webhook's secret,
and never by a guess.

It tries the finders of the policy in their order, and the first that names exactly one operation wins. Generations of
one key count as one: the event belongs to the newest generation that was sent and whose amount and currency fit. Two
candidates match none. An operation whose own names contradict those in the event is no candidate, because our stamp may
have been copied into another payment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paywitness.core.account_choice import account_hashes_of, account_hashes_of_owner, for_every_account
from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ExpectedPayment, matches_expected
from paywitness.core.credential_owners import credential_key, marks_from_text, owner_in, owner_mark
from paywitness.core.identity import account_hashes_named, intent_guard, owner_hash
from paywitness.core.operation import Operation, State
from paywitness.core.payment import FOLLOW_UPS, name_key, payment_key, payment_names
from paywitness.core.policy import Policy, Provider
from paywitness.core.result import ResultClass
from paywitness.core.webhook_event import MatchKey, WebhookEvent, standing_for_steps
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.journal.base import Journal, LedgerRow, OperationQuery
from paywitness.journal.ledger import payment_from_row
from paywitness.journal.tombstones import abandoned_key, abandoned_operation
from paywitness.policy.book import PolicyBook
from paywitness.secrets import Vault

_CANDIDATES_MAX = 100  # a value that finds this many candidates names none of them


@dataclass(frozen=True, slots=True)
class WebhookMatch:
    """The result of the search. Without an operation and not `unmatchable`, later evidence may still change it."""

    operation: Operation | None = None
    policy: Policy | None = None  # pinned to the operation; None if it can no longer be read
    ambiguous: bool = False
    unmatchable: bool = False  # nothing in the event can ever name an operation of the account
    # The event's name for it also names other operations, so a denial may be that of an earlier one.
    shared: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    operation: Operation
    policy: Policy | None

    @property
    def was_sent(self) -> bool:
        return _was_sent(self.operation)

    def may_match(self, provider_object: Tree) -> bool:
        """Whether the object fits the operation. Without a policy it may: otherwise an older generation could get the
        event."""
        return self.policy is None or matches_expected(
            self.policy.classify.fit, provider_object, ExpectedPayment(self.operation.money)
        )


@dataclass(frozen=True, slots=True)
class WebhookMatcher:
    journal: Journal
    pinned: PinnedPolicies
    vault: Vault

    async def find(
        self, webhook_event: WebhookEvent, account: str, provider: Provider, book: PolicyBook, provider_object: Tree
    ) -> WebhookMatch:
        """Find the operation of an event. `account` is the one in the address, to which the secret belongs; "" is the
        main one. Raises JournalUnavailable."""
        if account and webhook_event.account and account != webhook_event.account:
            return WebhookMatch(unmatchable=True)  # another tenant's event under this tenant's secret
        account_name = account or webhook_event.account or ""
        if not webhook_event.match_values:
            return WebhookMatch(unmatchable=True)
        results: set[str] = set()
        for finder, value in webhook_event.match_values:
            listed = await self._operations_by(finder, value, provider, account_name)
            candidates = [
                candidate
                for operation in listed
                if (candidate := await self._candidate_of_account(operation, account_name, provider, book)) is not None
                and (account_name or not _may_be_another_merchants(finder, candidate))
                and await self._belongs(webhook_event, candidate)
            ]
            candidates = _steps_as_one(_without_unsent(candidates, listed))
            keys = {candidate.operation.key for candidate in candidates}
            if len(keys) == 1 and len(listed) < _CANDIDATES_MAX:
                best = _best_generation(candidates, provider_object)
                chosen = await self._newest_step(best, book)
                shared = chosen is not best or _is_shared(finder, chosen)
                return WebhookMatch(chosen.operation, chosen.policy, shared=shared)
            results.add("several" if keys or len(listed) >= _CANDIDATES_MAX else "none")
        step = await self._step_of_payment(webhook_event, provider, account_name) if results == {"none"} else None
        if step is not None:
            candidate = _Candidate(step, await self.pinned.policy_from_book(step, book))
            if await self._belongs(webhook_event, candidate):
                return WebhookMatch(step, candidate.policy, shared=True)
        return WebhookMatch(ambiguous=results == {"several"})

    async def retired(self, webhook_event: WebhookEvent, account: str, provider: Provider) -> str | None:
        """The id of a retired operation that the event names and whose customer had never acted; None if there is none.
        Raises JournalUnavailable."""
        account_name = account or webhook_event.account or ""
        hashes = sorted(self._account_hashes(provider, account_name))
        keys: list[str] = []
        for finder, value in webhook_event.match_values:
            if finder is MatchKey.INTENT:
                guards = sorted(self._intent_guards(value, provider, account_name))
                keys += [abandoned_key(finder, provider.name, "", guard) for guard in guards]
            else:
                keys += [abandoned_key(finder, provider.name, each, value) for each in hashes]
        rows = await self.journal.ledger_rows(tuple(keys)) if keys else ()
        return next((abandoned_operation(row) for row in rows if row is not None), None)

    async def payment_row(self, webhook_event: WebhookEvent, account: str, provider: Provider) -> LedgerRow | None:
        """The row of the payment that the event names (`payment`); None if we know none, or several. Raises
        JournalUnavailable."""
        if webhook_event.payment is None:
            return None
        rows = await self._payment_rows([webhook_event.payment], provider, account or webhook_event.account or "")
        return next(iter(rows.values())) if len(rows) == 1 else None

    async def _payment_rows(self, names: Iterable[str], provider: Provider, account_name: str) -> dict[str, LedgerRow]:
        """The payments of the account that have one of these names."""
        accounts = sorted(self._account_hashes(provider, account_name))
        known_as = provider.key_name or provider.name
        keys = tuple(name_key(known_as, account, name) for name in names for account in accounts)
        rows = await self.journal.ledger_rows(keys) if keys else ()
        return {row.key: row for row in rows if row is not None}

    async def _step_of_payment(
        self, webhook_event: WebhookEvent, provider: Provider, account_name: str
    ) -> Operation | None:
        """The newest paying step of the payment that has one of the event's references as a further name
        (`also_known_as`): a dispute names the capture of an order."""
        references = [value for finder, value in webhook_event.match_values if finder is MatchKey.REFERENCE]
        rows = await self._payment_rows(references, provider, account_name)
        if len(rows) != 1:
            return None
        for step in reversed(payment_from_row(next(iter(rows.values()))).steps):
            operation = await self.journal.read(step)
            if operation is not None and operation.kind.pays:
                return operation
        return None

    def _account_hashes(self, provider: Provider, account_name: str) -> frozenset[str]:
        secret = self.vault.identity_secret
        named = [
            account_hashes_of(policy, account.name, account_name, secret)
            for policy in provider.policies[:1]
            for account in policy.accounts.named
        ]
        named += [
            account_hashes_of_owner(policy, self._owner_named(policy, account_name), account_name, secret)
            for policy in provider.policies[:1]
        ]
        return account_hashes_named(provider.account, account_name, secret).union(*named)

    def _owner_named(self, policy: Policy, name: str) -> str:
        """The mark of the owner, if the name is that of an owner."""
        return owner_mark(owner_hash(policy.key_provider, name, self.vault.identity_secret))

    async def _belongs(self, webhook_event: WebhookEvent, candidate: _Candidate) -> bool:
        """Whether the event may be about this operation, by the names in the event. An event that shows the reference
        of another payment is about that payment, whatever else it shows."""
        operation, policy = candidate.operation, candidate.policy
        if policy is None:
            return True  # it cannot be applied, but an older generation must not get the event instead
        if webhook_event.shows_another(operation, stamped=policy.stamp is not None):
            return False
        shown = webhook_event.references
        if not shown or operation.reference in shown:
            return True
        if not operation.payment:
            return operation.reference is None
        keys = [name.key for name in payment_names(policy.names[0] or policy.provider, operation.account, shown)]
        rows = await self.journal.ledger_rows((payment_key(operation.payment), *keys))
        own, *others = [payment_from_row(row) if row is not None else None for row in rows]
        if own is not None and not set(shown).isdisjoint(own.names):
            return True
        ids = {operation.payment, *([own.id] if own is not None else [])}
        taken = any(other is not None and other.created and other.id not in ids for other in others)
        return operation.reference is None and not taken

    async def _newest_step(self, candidate: _Candidate, book: PolicyBook) -> _Candidate:
        """The newest step of the payment, if this one was declined and its object was confirmed again. Events about the
        object are about its newest step, although the object may have the stamp of the first."""
        operation = candidate.operation
        if operation.state is not State.FAILED or not operation.payment or not operation.kind.pays:
            return candidate
        [row] = await self.journal.ledger_rows((payment_key(operation.payment),))
        for step in reversed(payment_from_row(row).steps if row is not None else ()):
            newer = await self.journal.read(step) if step > operation.id else None
            if newer is not None and newer.kind.pays:
                return _Candidate(newer, await self.pinned.policy_from_book(newer, book))
        return candidate

    async def _operations_by(
        self, finder: MatchKey, value: str, provider: Provider, account_name: str
    ) -> tuple[Operation, ...]:
        def listing(**named: str) -> OperationQuery:
            return OperationQuery(provider=provider.name, limit=_CANDIDATES_MAX, **named)  # type: ignore[arg-type]

        match finder:
            case MatchKey.OPERATION_ID:
                return await self.journal.find_operations(listing(stamp=value))
            case MatchKey.PROVIDER_KEY:
                found = await self.journal.find_operations(listing(key=value))
                return tuple(operation for operation in found if operation.provider_key == value)
            case MatchKey.CLIENT_KEY:
                found = await self.journal.find_operations(listing(key=value))
                return tuple(operation for operation in found if operation.client_key == value)
            case MatchKey.REFERENCE:
                return await self.journal.find_operations(listing(reference=value))
            case MatchKey.INTENT:
                by_id: dict[str, Operation] = {}
                for guard in sorted(self._intent_guards(value, provider, account_name)):
                    by_id |= {
                        operation.id: operation
                        for operation in await self.journal.find_operations(listing(guard=guard))
                    }
                return tuple(by_id.values())

    def _intent_guards(self, intent: str, provider: Provider, account_name: str) -> set[str]:
        secret = self.vault.identity_secret
        paying = [each for each in provider.policies if each.kind.pays]
        guards = {
            intent_guard(policy, account, intent, secret)
            for each in paying
            for policy in for_every_account(each, secret)
            for account in account_hashes_named(policy.account, account_name, secret)
        }
        return guards | {
            intent_guard(each, account, intent, secret)
            for each in paying
            for account in account_hashes_of_owner(each, self._owner_named(each, account_name), account_name, secret)
        }

    async def _candidate_of_account(
        self, operation: Operation, account_name: str, provider: Provider, book: PolicyBook
    ) -> _Candidate | None:
        """The operation as a candidate, if it is the account's."""
        policy = await self.pinned.policy_from_book(operation, book)
        places = policy.account if policy is not None else provider.account
        accounts = account_hashes_named(places, account_name, self.vault.identity_secret)
        if policy is not None and policy.payment.continues:  # its request may name no account
            accounts |= account_hashes_named(places, "", self.vault.identity_secret)
        if policy is not None and operation.named_account:
            name, secret = operation.named_account, self.vault.identity_secret
            accounts |= account_hashes_of(policy, name, account_name, secret)
        elif policy is not None and policy.accounts.many:
            accounts |= await self._accounts_of_owners(operation, policy, account_name)
        if operation.account not in accounts:
            return None
        return _Candidate(operation, policy)

    async def _accounts_of_owners(self, operation: Operation, policy: Policy, account_name: str) -> frozenset[str]:
        """The accounts of the owners that the event may mean: the owner that the event names, and the owner of the
        credential that made the operation for the account that the event names. An event that names nobody belongs to
        nobody."""
        [row] = await self.journal.ledger_rows((credential_key(policy.key_provider, operation.credential),))
        made_by = owner_in(marks_from_text(row.text)) if row is not None else None
        secret, found = self.vault.identity_secret, frozenset[str]()
        for owner in {self._owner_named(policy, account_name), made_by or ""}:
            found |= account_hashes_of_owner(policy, owner, account_name, secret)
        return found


def _may_be_another_merchants(finder: MatchKey, candidate: _Candidate) -> bool:
    """Whether an event that names no account may have been found by a name that another merchant has chosen too: its
    key or its order. Our stamp, our own key and the provider's reference belong to one payment alone."""
    policy, operation = candidate.policy, candidate.operation
    if policy is None or not policy.accounts.many:
        return False
    match finder:
        case MatchKey.CLIENT_KEY | MatchKey.INTENT:
            return True
        case MatchKey.PROVIDER_KEY:
            return operation.provider_key == operation.client_key
        case MatchKey.OPERATION_ID | MatchKey.REFERENCE:
            return False


def _is_shared(finder: MatchKey, candidate: _Candidate) -> bool:
    """Whether the name by which the event was found may also be that of an earlier call."""
    policy, operation = candidate.policy, candidate.operation
    match finder:
        case MatchKey.OPERATION_ID | MatchKey.PROVIDER_KEY:
            return False
        case MatchKey.CLIENT_KEY:
            return operation.key_names_purchase
        case MatchKey.REFERENCE:
            acts_on_it = policy is None or bool(policy.payment.acts_on) or policy.payment.continues
            return acts_on_it and operation.kind not in FOLLOW_UPS
        case MatchKey.INTENT:
            return True


def _was_sent(operation: Operation) -> bool:
    never_reached = operation.result_class in {None, ResultClass.NETWORK_CONNECT_FAILURE}
    return operation.attempts > 0 and not (operation.state is State.FAILED and never_reached)


def _without_unsent(candidates: list[_Candidate], listed: Iterable[Operation]) -> list[_Candidate]:
    """The candidates without the generations that never reached the provider, if another generation of the key did. An
    event that does not fit the generation that was sent is somebody else's."""
    sent_keys = {operation.key for operation in listed if _was_sent(operation)}
    return [one for one in candidates if one.was_sent or one.operation.key not in sent_keys]


def _steps_as_one(candidates: list[_Candidate]) -> list[_Candidate]:
    keys = {operation.key for operation in standing_for_steps([candidate.operation for candidate in candidates])}
    return [candidate for candidate in candidates if candidate.operation.key in keys]


def _best_generation(candidates: list[_Candidate], provider_object: Tree) -> _Candidate:
    """Of the generations of one key, the newest that was sent and fits; else the newest that was sent."""
    newest_first = sorted(candidates, key=lambda candidate: candidate.operation.generation, reverse=True)
    sent = [candidate for candidate in newest_first if candidate.was_sent] or newest_first
    return next((candidate for candidate in sent if candidate.may_match(provider_object)), sent[0])
