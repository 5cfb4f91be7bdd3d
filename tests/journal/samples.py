"""Operations, claims and changes for the tests, as the engine would make them; and a clock that is moved by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from paywitness.core.claim import ClaimRequest
from paywitness.core.consequences import announcement_of
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import AttemptSummary, Guard, GuardKind, Lease, Operation, RepeatPaymentRule, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.journal.base import Journal, OperationChange

LEASE_S = 30.0
STEM = "0123456789abcdef0123456789abcdef"

_numbers = itertools.count(1)


class HandClock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds


def prepared(key: str = "key-1", **changes: Any) -> Operation:
    """A fresh operation under the key, with an id that sorts after all made before it."""
    operation_id = changes.pop("id", f"op_{next(_numbers):026d}")
    operation = Operation(
        id=operation_id,
        stamp=operation_id,
        key=key,
        generation=1,
        provider="acme",
        operation="authorization",
        kind=OperationKind.AUTHORIZATION,
        account="account-1",
        client_key=f"client-{key}",
        key_source="header:Idempotency-Key",
        key_names_purchase=False,
        provider_key=f"provider-{key}",
        fingerprint="fingerprint-1",
        ignore=(),
        request_hash="request-hash",
        credential="credential-1",
        revision="revision-1",
        upstream="http://127.0.0.1:8702",
        created_at=0.0,
        updated_at=0.0,
        money=Money(1250, "EUR"),
    )
    return replace(operation, **changes)


def asking(
    key: str = "key-1",
    *,
    token: str = "",
    permitted: bool = True,
    sealed_request: bytes | None = b"sealed request",
    **changes: Any,
) -> ClaimRequest:
    fresh = prepared(key, **changes)
    return ClaimRequest(fresh, token or f"token-of-{fresh.id}", permitted, LEASE_S, sealed_request, key_stem=STEM)


def intent(
    value: str = "intent-1",
    *,
    after_success: RepeatPaymentRule = RepeatPaymentRule.FLAG,
    during_action: RepeatPaymentRule = RepeatPaymentRule.FLAG,
) -> Guard:
    return Guard(GuardKind.INTENT, value, f"order of {value}", after_success, during_action)


TARGET = Guard(GuardKind.TARGET, "target-1", "ch_1")
FINGERPRINT = Guard(GuardKind.FINGERPRINT, "fingerprint-guard-1")


async def owned(journal: Journal, key: str = "key-1", **changes: Any) -> Operation:
    claim = await journal.claim(asking(key, **changes))
    assert claim.verdict == "owned"
    assert claim.operation is not None
    return claim.operation


def summary(reading: ResultClass, number: int = 1) -> AttemptSummary:
    return AttemptSummary(
        number=number,
        phase="complete",
        bytes_written=321,
        fault=None,
        status_code=200,
        detail="",
        duration_s=0.125,
        reset_by_us=False,
        classification=Classification.of(reading, "test rule"),
    )


def succeeding(operation: Operation, **changes: Any) -> OperationChange:
    after = replace(
        advance(operation, Event.SUCCESS_SEEN, operation.attempts),
        lease=None,
        result_class=ResultClass.SUCCEEDED,
        effect=Effect.DONE,
        reference=f"ch_{operation.id}",
        because="succeeded",
    )
    change = OperationChange(
        after,
        (Event.SUCCESS_SEEN,),
        attempt=summary(ResultClass.SUCCEEDED, operation.attempts),
        action="stop",
        because="succeeded",
        sealed_response=b"sealed response",
    )
    return replace(change, **changes)


def declining(operation: Operation, *, released: bool = False, **changes: Any) -> OperationChange:
    after = replace(
        advance(operation, Event.DENIAL_SEEN, operation.attempts),
        lease=None,
        key_released=released,
        result_class=ResultClass.ISSUER_HARD_DECLINE,
        effect=Effect.NONE,
    )
    return replace(OperationChange(after, (Event.DENIAL_SEEN,), sealed_response=b"sealed decline"), **changes)


def doubting(operation: Operation, **changes: Any) -> OperationChange:
    """The answer was lost, and nobody holds the operation any more."""
    after = replace(
        advance(operation, Event.ANSWER_LOST, operation.attempts),
        lease=None,
        result_class=ResultClass.NETWORK_READ_TIMEOUT,
        effect=Effect.POSSIBLE,
    )
    return replace(OperationChange(after, (Event.ANSWER_LOST,)), **changes)


def waiting(operation: Operation, **changes: Any) -> OperationChange:
    """The attempt had no effect; the holder keeps its lease and waits for the next one."""
    after = advance(operation, Event.NO_EFFECT_SEEN, operation.attempts)
    return replace(OperationChange(after, (Event.NO_EFFECT_SEEN,), delay_s=0.5, lease_s=LEASE_S), **changes)


def resending(operation: Operation, token: str) -> OperationChange:
    after = replace(advance(operation, Event.RESEND_RECORDED), lease=Lease(token, 0.0))
    return OperationChange(after, (Event.RESEND_RECORDED,), source="resolver", lease_s=LEASE_S)


def reversing(operation: Operation) -> OperationChange:
    """A success that was given back."""
    after = replace(advance(operation, Event.WEBHOOK_TOLD_REVERSAL), result_class=ResultClass.REVERSED)
    return OperationChange(
        after, (Event.WEBHOOK_TOLD_REVERSAL,), source="webhook", announcement=announcement_of(operation, after)
    )


def acting(operation: Operation) -> OperationChange:
    """The customer is asked to act."""
    after = replace(
        advance(operation, Event.ACTION_SEEN, operation.attempts),
        lease=None,
        result_class=ResultClass.REQUIRES_ACTION,
        effect=Effect.NONE,
    )
    return OperationChange(after, (Event.ACTION_SEEN,), sealed_response=b"sealed action")


def pending(operation: Operation, **changes: Any) -> OperationChange:
    after = replace(
        advance(operation, Event.PENDING_SEEN, operation.attempts),
        lease=None,
        result_class=ResultClass.PENDING,
        effect=Effect.DONE,
        **changes,
    )
    return OperationChange(after, (Event.PENDING_SEEN,), sealed_response=b"sealed pending")


def unheard(change: OperationChange) -> OperationChange:
    """The same, except that its answer reached nobody."""
    return replace(change, operation=replace(change.operation, undelivered=True))


def telling(operation: Operation, change: OperationChange) -> OperationChange:
    """The change of the operation, with what it tells the rest of the company."""
    return replace(change, announcement=announcement_of(operation, change.operation))


def falling_back(operation: Operation, key: str = "fallback", **changes: Any) -> tuple[OperationChange, ClaimRequest]:
    """The first ends without effect, and the second stands for it at another provider."""
    changes = {"provider": "acme_eu", "account": "account-eu", "credential": "credential-eu", **changes}
    request = asking(key, fallback_of=operation.id, guard=operation.guard, **changes)
    ended = declining(operation, released=True)
    after = replace(ended.operation, fallback_to=request.fresh.id, result_class=ResultClass.NETWORK_CONNECT_FAILURE)
    return replace(ended, operation=after), request


def holding(operation: Operation, token: str) -> OperationChange:
    """It is held by somebody, as a resolver holds what is due."""
    held = replace(operation, lease=Lease(token, 0.0))
    return OperationChange(held, (), source="resolver", note="lease taken", lease_s=LEASE_S)


def touching(operation: Operation, note: str = "touched") -> OperationChange:
    """A change that moves nothing."""
    return OperationChange(operation, (), source="operator", note=note)


async def read(journal: Journal, operation: Operation) -> Operation:
    """The operation as it now stands; it must be there."""
    found = await journal.read(operation.id)
    assert found is not None
    return found


DOUBTS = frozenset({State.UNKNOWN, State.REQUIRES_REVIEW})
