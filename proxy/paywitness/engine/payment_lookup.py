"""Payments as people and callers ask for them: by id, by a name that the provider knows, by their intent. It reads the
journal, and decides nothing.

A name alone does not give the account. It is searched for in the account of calls that name none, and in the accounts
of the operations that have the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from paywitness.core.account_choice import account_hashes_of, for_every_account
from paywitness.core.identity import account_hashes_named, intent_guard
from paywitness.core.operation import HistoryEntry, Operation
from paywitness.core.payment import Payment, name_key, payment_key
from paywitness.core.payment_changes import reconciled
from paywitness.core.policy import Provider
from paywitness.journal.base import Journal, OperationQuery
from paywitness.journal.ledger import (
    PaymentCommandEntry,
    commands_key,
    intent_key,
    payment_commands,
    payment_from_row,
)
from paywitness.journal.tombstones import RememberedPayment, remembered_payments
from paywitness.policy.book import PolicyBook

_OPERATIONS_MAX = 200  # of one payment; a marketplace makes a few dozen partial refunds
_TIMELINE_MAX = 2_000  # the newest entries of one payment
_GUARDS_MAX = 200  # scopes in which an intent is searched for
_ACCOUNT_ID = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A payment with its newest operations, as far as they are stored. `version` is that of its row."""

    payment: Payment
    version: int
    operations: tuple[Operation, ...] = ()  # oldest first

    @property
    def operations_by_id(self) -> dict[str, Operation]:
        return {operation.id: operation for operation in self.operations}


@dataclass(frozen=True, slots=True)
class PaymentHistoryEntry:
    """One entry of a payment's timeline: a change of one of its operations, or a person's command on the payment."""

    at: float
    operation: Operation | None = None
    entry: HistoryEntry | None = None
    command: PaymentCommandEntry | None = None


@dataclass(frozen=True, slots=True)
class PaymentLookup:
    journal: Journal
    book: Callable[[], PolicyBook | None]
    identity_secret: bytes

    # --- payments

    async def by_id(self, payment_id: str) -> PaymentView | None:
        """The payment with this id, or the payment that it was merged into."""
        [row] = await self.journal.ledger_rows((payment_key(payment_id),))
        if row is None:
            return None
        payment = await self.current(payment_from_row(row))
        return PaymentView(payment, row.version, await self._operations_of(payment))

    async def current(self, payment: Payment) -> Payment:
        """The payment without the movements that an expired lease has ended since it was written."""
        found = [await self.journal.read(movement.operation_id) for movement in payment.reserved()]
        return reconciled(payment, {operation.id: operation for operation in found if operation is not None})

    async def _operations_of(self, payment: Payment) -> tuple[Operation, ...]:
        listed = await self.journal.find_operations(OperationQuery(payment=payment.id, limit=_OPERATIONS_MAX))
        found = {operation.id: operation for operation in listed}
        named = {*payment.steps, *(movement.operation_id for movement in payment.movements)} - found.keys()
        for operation_id in sorted(named, reverse=True)[: _OPERATIONS_MAX - len(found)]:
            # One that has the id of a payment that was merged into this one.
            operation = await self.journal.read(operation_id)
            if operation is not None:
                found[operation_id] = operation
        return tuple(found[operation_id] for operation_id in sorted(found))

    async def find(self, text: str, provider: str | None = None, account: str | None = None) -> tuple[str, ...]:
        """The ids of the payments that this text may mean: a payment's id, an operation's, or a provider's name for a
        payment. `account` is a name or an id."""
        [row] = await self.journal.ledger_rows((payment_key(text),))
        if row is not None:
            return (payment_from_row(row).id,)
        operation = await self.journal.read(text)
        found = [operation] if operation is not None else []
        if not found:
            for query in (OperationQuery(reference=text), OperationQuery(subject=text)):
                found += await self.journal.find_operations(replace(query, provider=provider))
        ids = {each.payment for each in found if each.payment and (provider is None or each.provider == provider)}
        if operation is None:
            ids |= await self._by_name(text, provider, account)
        accounts = None if account is None else self.account_ids(account)
        views = [await self.by_id(payment_id) for payment_id in sorted(ids)]
        meant = [view.payment for view in views if view is not None]
        return tuple(dict.fromkeys(payment.id for payment in meant if _is_meant(payment, text, operation, accounts)))

    async def _by_name(self, name: str, provider: str | None, account: str | None) -> set[str]:
        keys = [
            name_key(each.key_name or each.name, account_id, name)
            for each in self._providers(provider)
            for account_id in self._account_ids_at(each, account or "")
        ]
        rows = await self.journal.ledger_rows(tuple(keys)) if keys else ()
        return {row.key.removeprefix("p:") for row in rows if row is not None and row.key.startswith("p:")}

    async def timeline(
        self, payments: Iterable[PaymentView], operations: Iterable[Operation] = ()
    ) -> tuple[PaymentHistoryEntry, ...]:
        """The history of payments, by time: the changes of all their operations and of these others, and the commands
        of people on the payments."""
        views = tuple(payments)
        merged = {operation.id: operation for view in views for operation in view.operations}
        merged |= {operation.id: operation for operation in operations}
        entries: list[PaymentHistoryEntry] = []
        for operation in merged.values():
            history = await self.journal.history(operation.id)
            entries += [PaymentHistoryEntry(entry.at, operation, entry) for entry in history]
        for row in await self.journal.ledger_rows(tuple(commands_key(view.payment.id) for view in views)):
            entries += [PaymentHistoryEntry(command.at, command=command) for command in payment_commands(row)]
        entries.sort(key=lambda each: each.at)  # stable: within one moment it keeps the order of each history
        return tuple(entries[-_TIMELINE_MAX:])

    # --- intents

    async def remembered(
        self, intent: str, guards: Iterable[str], providers: frozenset[str] | None, only: frozenset[str] | None = None
    ) -> tuple[RememberedPayment, ...]:
        """Payments of the intent whose operations were retired, or that were adopted. `guards`: those of its stored
        operations; `providers` None: all of them; `only`: these guards and no others."""
        found = dict.fromkeys((*guards, *self._guards_of(intent, providers)) if only is None else sorted(only))
        keys = [intent_key(guard) for guard in found]
        rows = await self.journal.ledger_rows(tuple(keys[:_GUARDS_MAX])) if keys else ()
        return tuple(each for row in rows if row is not None for each in remembered_payments(row))

    def _guards_of(self, intent: str, providers: frozenset[str] | None) -> list[str]:
        """The guards of the intent for calls that name no account. The guard of a named account cannot be computed from
        the intent alone."""
        guards: dict[str, None] = {}
        for provider in self._providers(None):
            for policy in provider.policies if providers is None or provider.name in providers else ():
                for rule in for_every_account(policy, self.identity_secret):
                    for account in account_hashes_named(rule.account, "", self.identity_secret):
                        guards[intent_guard(rule, account, intent, self.identity_secret)] = None
        return list(guards)

    # --- accounts

    def account_ids(self, account: str) -> frozenset[str]:
        """The ids that an account may have. It is given by its name or by one of its ids."""
        known = [self._account_ids_at(provider, account) for provider in self._providers(None)]
        return frozenset({account}).union(*known)

    def _account_ids_at(self, provider: Provider, account: str) -> frozenset[str]:
        """`account` is its id, its name, or empty for the account of calls that name none."""
        if _ACCOUNT_ID.match(account):
            return frozenset({account})
        secret = self.identity_secret
        rules = [rule for policy in provider.policies for rule in for_every_account(policy, secret)]
        places = {rule.account for rule in rules} | {provider.account}
        known = [account_hashes_of(policy, account, account, secret) for policy in provider.policies]
        return frozenset().union(*known, *(account_hashes_named(each, account, secret) for each in places))

    def _providers(self, name: str | None) -> tuple[Provider, ...]:
        book = self.book()
        known = book.providers.values() if book is not None else ()
        return tuple(provider for provider in known if name is None or provider.name == name)


def _is_meant(payment: Payment, text: str, operation: Operation | None, accounts: frozenset[str] | None) -> bool:
    """Whether the text means this payment. An operation may act on an object whose name belongs to another payment, or
    the text may be an intent's label."""
    is_named = operation is not None or text in payment.names
    return is_named and (accounts is None or payment.account in accounts)
