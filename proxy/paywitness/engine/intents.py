"""Intents: whether a purchase may be paid (again, or elsewhere), from all its operations and payments.

The rule: paying is safe only if no operation of the purchase is, or can become, a payment, and each of its payments was
given back (`payment_claims.hold_of_payment`). The answer cannot include what is not in this journal (another journal,
rows that retention has removed), and it says so.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paywitness.core.errors import JournalUnavailable
from paywitness.core.guard import is_paid
from paywitness.core.identity import intent_label
from paywitness.core.operation import GuardKind, Operation, Outcome, State
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.payment_words import HOW_IT_IS_FREED, payment_sentences, payment_summary
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply, operation_summary, problem_reply
from paywitness.engine.payment_lookup import PaymentLookup, PaymentView
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook

_OPERATIONS_MAX = 200  # of one purchase; a customer tries a handful of cards
_NO_PAYMENT_KNOWN = (
    "This journal knows no payment of this intent: none was made through it, or it ended so long ago that it was "
    "forgotten."
)
_IN_SHADOW_MODE = (
    "Payments through a provider in shadow mode are not recorded, so it is not known whether paying is safe:"
)
_TOO_MANY_OPERATIONS = (
    f"More than {_OPERATIONS_MAX} operations bear this intent; not all were read. Narrow it by provider."
)
_PAID_BEFORE = "It was paid by an operation whose record is no longer kept, and nothing shows that it was given back."
_NOT_TOLD = (
    "This credential may not see this intent, so this reply cannot say that it may be paid. Send the credential "
    "headers that its payments carry; a credential is known once its provider has executed a call of it."
)
_MAY_HAVE_FORGOTTEN = (
    "The journal may have forgotten its last moments, or all it knew, and with it a payment of this intent. Ask again "
    "in a minute, and do not pay elsewhere before it says that this is safe."
)
_NOTHING_IN_THE_WAY = "Nothing of it is paid, open or in doubt."


def _never() -> bool:
    return False


VisibleGuards = Callable[[str, Iterable[Operation]], Awaitable[frozenset[str] | None]]


@dataclass(frozen=True, slots=True)
class IntentView:
    """The operations and payments of a purchase, as far as they are known."""

    intent: str
    operations: tuple[Operation, ...]  # those that have the intent, newest first
    payments: tuple[PaymentView, ...] = ()
    # Ids of operations that paid it and were retired, and whose payment is not stored.
    paid_before: tuple[str, ...] = ()
    complete: bool = True  # False: there are more operations than were read
    # Providers in shadow mode: it may have been paid there, and nothing is recorded.
    shadow_providers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Intents:
    """Reads the journal; decides nothing."""

    journal: Journal
    book: Callable[[], PolicyBook | None]  # the book in force, which has the providers of a merchant
    payments: PaymentLookup
    # Other sidecars may still be putting back what the journal forgot.
    recently_rolled_back: Callable[[], bool] = _never

    async def describe(
        self,
        intent: str,
        merchant: str | None = None,
        provider: str | None = None,
        guards_of: VisibleGuards | None = None,
    ) -> Reply:
        """The reply to a caller's question about a purchase. `merchant` and `provider` narrow it, because two shops may
        have the same order number. `guards_of` gives the guards that the caller may see."""
        view = await self.read(intent, merchant, provider, guards_of)
        if isinstance(view, Reply):
            return view
        headers = ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", Outcome.NONE.encode()))
        return Reply(200, headers, json.dumps(intent_status(view)).encode(), Outcome.NONE)

    async def read(
        self,
        intent: str,
        merchant: str | None = None,
        provider: str | None = None,
        guards_of: VisibleGuards | None = None,
    ) -> IntentView | Reply:
        """The purchase as it is known, or the reply that says why it is not."""
        providers = self._providers(merchant, provider)
        if not providers and (merchant is not None or provider is not None):
            return problem_reply(Problem.NOT_FOUND, "No policy in force names this merchant or provider.")
        try:
            view = await self._read(intent, providers, guards_of)
            if view is None:
                return problem_reply(Problem.NOT_FOUND, _NOT_TOLD)
            if self.recently_rolled_back() and intent_status(view)["safe_to_pay"]:
                return problem_reply(Problem.JOURNAL_UNAVAILABLE, _MAY_HAVE_FORGOTTEN)
            return view
        except JournalUnavailable:
            detail = "The journal did not answer. Ask again, and do not pay elsewhere before it says that this is safe."
            return problem_reply(Problem.JOURNAL_UNAVAILABLE, detail)

    async def _read(
        self, intent: str, providers: frozenset[str] | None, guards_of: VisibleGuards | None
    ) -> IntentView | None:
        """None: the caller may not see it."""
        label = intent_label(intent)
        scopes = [None] if providers is None else sorted(providers)
        found = [await self._operations_of(label, scope) for scope in scopes]
        operations = tuple(each for part in found for each in part if _belongs_to(label, each))
        visible = None if guards_of is None else await guards_of(intent, operations)
        if guards_of is not None:
            if visible is None:
                return None
            operations = tuple(each for each in operations if each.guard is not None and each.guard.value in visible)
        guards = (operation.guard.value for operation in operations if operation.guard is not None)
        remembered = await self.payments.remembered(intent, guards, providers, visible)
        ids = dict.fromkeys(
            each for each in (*(one.payment for one in operations), *(one.payment_id for one in remembered)) if each
        )
        found_by_id = {each: await self.payments.by_id(each) for each in ids}
        # Two ids may have become one payment.
        views = {view.payment.id: view for view in found_by_id.values() if view is not None}.values()
        kept = {each for each, view in found_by_id.items() if view is not None}
        paid = {operation.id for operation in operations if operation.state is State.SUCCEEDED}
        return IntentView(
            intent,
            operations,
            tuple(
                view
                for view in views
                if (providers is None or view.payment.provider in providers)
                and (_has_intent(view, label) or not paid.isdisjoint(view.operations_by_id))
            ),
            tuple(one.operation_id for one in remembered if one.payment_id not in kept),
            complete=all(len(part) <= _OPERATIONS_MAX for part in found),
            shadow_providers=self._shadow_providers(providers),
        )

    async def _operations_of(self, label: str, provider: str | None) -> tuple[Operation, ...]:
        return await self.journal.find_operations(
            OperationQuery(provider=provider, subject=label, limit=_OPERATIONS_MAX + 1)
        )

    def _shadow_providers(self, providers: frozenset[str] | None) -> tuple[str, ...]:
        book = self.book()
        known = book.providers.values() if book is not None else ()
        return tuple(each.name for each in known if each.observe and (providers is None or each.name in providers))

    def _providers(self, merchant: str | None, provider: str | None) -> frozenset[str] | None:
        """The providers that the question is about; None: all of them, also those that no policy names any more."""
        if merchant is None and provider is None:
            return None
        book = self.book()
        known = book.providers.values() if book is not None else ()
        return frozenset(
            each.name
            for each in known
            if (provider is None or each.name == provider) and (merchant is None or merchant in each.merchants)
        )


def intent_status(view: IntentView) -> dict[str, Any]:
    """Whether the purchase may be paid, and the reasons against it."""
    reasons = _reasons_against(view)
    notes = ([] if view.operations or view.payments or view.paid_before else [_NO_PAYMENT_KNOWN]) + (
        [] if view.complete else [_TOO_MANY_OPERATIONS]
    )
    notes += [f"{_IN_SHADOW_MODE} {', '.join(view.shadow_providers)}."] if view.shadow_providers else []
    return {
        "intent": view.intent,
        "safe_to_pay": view.complete and not reasons and not view.shadow_providers,
        "explanation": _explanation(view, reasons),
        "why_not": reasons,
        "payments": [payment_summary(each.payment, each.operations_by_id) for each in view.payments],
        "operations": [operation_summary(operation) for operation in view.operations],
        "note": " ".join(notes) or None,
    }


def _has_intent(view: PaymentView, label: str) -> bool:
    """Whether the payment is still this intent's: an update may have given its object to another intent."""
    intent = view.payment.intent
    return intent is None or intent.label == label


def _belongs_to(label: str, operation: Operation) -> bool:
    guard = operation.guard
    return guard is not None and guard.kind is GuardKind.INTENT and guard.label == label


def _reasons_against(view: IntentView) -> list[dict[str, Any]]:
    """The reasons against another payment: each operation that is one, each payment that holds (once, however many
    steps it has), and each earlier payment whose record is gone."""
    holds = {
        operation_id: hold_of_payment(each.payment) for each in view.payments for operation_id in each.operations_by_id
    }
    reasons, told = [], set()
    for operation in view.operations:
        reason = unsafe_reason(operation, holds.get(operation.id))
        if reason is not None:
            reasons.append(_reason(operation, reason))
            told.add(operation.id)
    for each in view.payments:
        stands = hold_of_payment(each.payment) in {IntentHold.PAID, IntentHold.GIVING_BACK}
        if stands and told.isdisjoint(each.operations_by_id):
            reasons.append({**_reason_of_payment(each), "reason": payment_sentences(each.payment)})
    reasons += [
        {"operation": each, "provider": None, "state": None, "outcome": None, "reason": _PAID_BEFORE}
        for each in view.paid_before
    ]
    return reasons


def _reason(operation: Operation, reason: str) -> dict[str, Any]:
    return {
        "operation": operation.id,
        "provider": operation.provider,
        "state": operation.state,
        "outcome": operation.outcome,
        "reason": reason,
    }


def _reason_of_payment(view: PaymentView) -> dict[str, Any]:
    """The operation that paid, or the newest step. An adopted payment has neither."""
    steps = [operation for operation in view.operations if operation.kind.pays]
    payer = next((operation for operation in steps if operation.state is State.SUCCEEDED), steps[-1] if steps else None)
    if payer is not None:
        return _reason(payer, "") | {"payment": view.payment.id}
    return {
        "operation": None,
        "provider": view.payment.provider,
        "state": None,
        "outcome": None,
        "payment": view.payment.id,
    }


def _explanation(view: IntentView, reasons: list[dict[str, Any]]) -> str:
    """The same in sentences: the state of each payment, the open operations, and when it may be paid again."""
    sentences = [
        f"Payment {(each.payment.names or (each.payment.id,))[0]} at {each.payment.provider}. "
        f"{payment_sentences(each.payment)}"
        for each in view.payments
    ]
    sentences += [
        f"Operation {reason['operation']}: {reason['reason']}" for reason in reasons if "payment" not in reason
    ]
    if reasons:
        sentences.append(HOW_IT_IS_FREED)
    return " ".join(sentences) or _NOTHING_IN_THE_WAY


def unsafe_reason(operation: Operation, hold: IntentHold | None = None) -> str | None:
    """Why another payment of its intent would not be safe; None if this operation is no reason. `hold` is the verdict
    of its payment, which then counts for its successes; None: its payment is not stored."""
    if operation.incident is not None:
        return f"Its evidence contradicts itself ({operation.incident}). A person must look first."
    match operation.state:
        case State.PREPARED | State.SENDING | State.BACKOFF:
            return "It is under way. Wait for its end."
        case State.UNKNOWN | State.REQUIRES_REVIEW:
            return "It may have been paid: the outcome is unknown. Paying elsewhere could charge the customer twice."
        case State.PENDING:
            return "The provider accepted it and has not finished: it may still be paid."
        case State.REQUIRES_ACTION:
            # If another step has paid it, its payment shows that, and there is nothing left to confirm.
            return _MAY_STILL_CONFIRM if hold in {None, IntentHold.FREE} else None
        case State.SUCCEEDED:
            # If the payment shows no success, it lags behind the operation: the success counts.
            return "It is paid." if is_paid(operation) and hold in {None, IntentHold.FREE} else None
        case State.FAILED:
            return _PAID_ELSEWHERE if operation.paid_elsewhere and hold is None else None


_MAY_STILL_CONFIRM = "The customer was asked to confirm it and may still do so. Cancel it at the provider first."
_PAID_ELSEWHERE = "The provider says that it was paid already, but not by a call of ours."
