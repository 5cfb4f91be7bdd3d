"""Intents: whether a purchase may be paid (again, or elsewhere), said from every operation that was made for it.

The rule: it is safe only while no operation of it can be, or become, a payment. Whoever cannot be asked here (another
journal, what retention has removed) is not spoken for, and the answer says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paywitness.core.errors import JournalUnavailable
from paywitness.core.guard import is_paid
from paywitness.core.operation import GuardKind, Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply, operation_summary, problem_reply
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook

_OPERATIONS_MAX = 200  # of one purchase; a customer tries a handful of cards
_NO_PAYMENT_KNOWN = (
    "This journal knows no payment of this intent: none was made through it, or it ended so long ago that it was "
    "forgotten."
)
_IN_SHADOW_MODE = (
    "Payments through a provider that is only observed are not known here, so this cannot be said to be safe:"
)
_TOO_MANY_OPERATIONS = (
    f"More than {_OPERATIONS_MAX} operations bear this intent; not all were looked at. Narrow it by provider."
)


@dataclass(frozen=True, slots=True)
class Intents:
    """Reads the journal; decides nothing."""

    journal: Journal
    book: Callable[[], PolicyBook | None]  # the one in force: which providers a merchant has

    async def describe(self, intent: str, merchant: str | None = None, provider: str | None = None) -> Reply:
        """What a caller may know of a purchase. `merchant` and `provider` narrow it: order numbers of two shops may be
        alike."""
        providers = self._providers(merchant, provider)
        if not providers and (merchant is not None or provider is not None):
            return problem_reply(Problem.NOT_FOUND, "No policy in force names this merchant or provider.")
        scopes = [None] if providers is None else sorted(providers)
        try:
            found = [await self._operations_of(intent, scope) for scope in scopes]
        except JournalUnavailable:
            detail = "The journal did not answer. Ask again, and do not pay elsewhere before it says that this is safe."
            return problem_reply(Problem.JOURNAL_UNAVAILABLE, detail)
        complete = all(len(each) <= _OPERATIONS_MAX for each in found)
        status = intent_status(
            intent,
            [operation for each in found for operation in each],
            complete=complete,
            shadow_providers=self._shadow_providers(providers),
        )
        headers = ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", Outcome.NONE.encode()))
        return Reply(200, headers, json.dumps(status).encode(), Outcome.NONE)

    async def _operations_of(self, intent: str, provider: str | None) -> tuple[Operation, ...]:
        return await self.journal.find_operations(
            OperationQuery(provider=provider, subject=intent, limit=_OPERATIONS_MAX + 1)
        )

    def _shadow_providers(self, providers: frozenset[str] | None) -> tuple[str, ...]:
        book = self.book()
        known = book.providers.values() if book is not None else ()
        return tuple(each.name for each in known if each.observe and (providers is None or each.name in providers))

    def _providers(self, merchant: str | None, provider: str | None) -> frozenset[str] | None:
        """The providers that are meant; None: all of them, also those that no policy names any more."""
        if merchant is None and provider is None:
            return None
        book = self.book()
        known = book.providers.values() if book is not None else ()
        return frozenset(
            each.name
            for each in known
            if (provider is None or each.name == provider)
            and (merchant is None or any(policy.merchant == merchant for policy in each.policies))
        )


def intent_status(
    intent: str, operations: Iterable[Operation], *, complete: bool = True, shadow_providers: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Whether the purchase may be paid, and what speaks against it. `complete`: these are all that is known of it.
    `observed`: providers that it may have been paid at, and that nothing is recorded of."""
    matching = [operation for operation in operations if _belongs_to(intent, operation)]
    blocking = [(operation, reason) for operation in matching if (reason := unsafe_reason(operation)) is not None]
    notes = ([] if matching else [_NO_PAYMENT_KNOWN]) + ([] if complete else [_TOO_MANY_OPERATIONS])
    notes += [f"{_IN_SHADOW_MODE} {', '.join(shadow_providers)}."] if shadow_providers else []
    return {
        "intent": intent,
        "safe_to_pay": complete and not blocking and not shadow_providers,
        "why_not": [
            {
                "operation": operation.id,
                "provider": operation.provider,
                "state": operation.state,
                "outcome": operation.outcome,
                "reason": reason,
            }
            for operation, reason in blocking
        ],
        "operations": [operation_summary(operation) for operation in matching],
        "note": " ".join(notes) or None,
    }


def _belongs_to(intent: str, operation: Operation) -> bool:
    guard = operation.guard
    return guard is not None and guard.kind is GuardKind.INTENT and guard.label == intent


def unsafe_reason(operation: Operation) -> str | None:
    """Why another payment of its intent would not be safe; None where this operation does not speak against it."""
    if operation.incident is not None:
        return f"What is known of it contradicts itself ({operation.incident}). A person must look first."
    match operation.state:
        case State.PREPARED | State.SENDING | State.BACKOFF:
            return "It is under way. Wait for its end."
        case State.UNKNOWN | State.REQUIRES_REVIEW:
            return "It may have been paid: the outcome is unknown. Paying elsewhere could charge the customer twice."
        case State.PENDING:
            return "The provider accepted it and has not finished: it may still be paid."
        case State.REQUIRES_ACTION:
            return "The customer was asked to confirm it and may still do so. Cancel it at the provider first."
        case State.SUCCEEDED:
            return "It is paid." if is_paid(operation) else None
        case State.FAILED:
            return None
