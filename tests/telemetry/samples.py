"""Operations, attempts and decisions to tell of: as the engine would make them, with nothing behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paywitness.core.decide import Action, Decision
from paywitness.core.money import Money
from paywitness.core.operation import AttemptSummary, Operation, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Classification, ResultClass

CREATED_AT = 1_750_000_000.0
# As a book tells its names: provider -> operation -> kind.
ACME_NAMES = {"acme": {"authorization": OperationKind.AUTHORIZATION}}
# The labels of that operation.
ACME = {"provider": "acme", "operation": "authorization", "kind": "authorization"}

_OPERATION = Operation(
    id="op_01JXQ6ZP00ABCDEFGHJKMNPQRS",
    key="key-hash",
    generation=1,
    provider="acme",
    operation="authorization",
    kind=OperationKind.AUTHORIZATION,
    account="account-hash",
    client_key="order-17",
    key_source="header:Idempotency-Key",
    key_names_purchase=False,
    provider_key="order-17",
    fingerprint="fingerprint-hash",
    ignore=(),
    request_hash="request-hash",
    credential="credential-hash",
    revision="0123456789abcdef",
    upstream="http://127.0.0.1:8702",
    created_at=CREATED_AT,
    updated_at=CREATED_AT,
    first_sent_at=CREATED_AT,
    attempts=1,
    money=Money(1250, "EUR"),
)


def operation(state: State = State.SUCCEEDED, **changes: Any) -> Operation:
    doubt = frozenset({1}) if state.in_doubt else frozenset[int]()
    return replace(_OPERATION, **{"state": state, "doubt": doubt, **changes})


def attempt(reading: ResultClass = ResultClass.SUCCEEDED, **changes: Any) -> AttemptSummary:
    summary = AttemptSummary(
        number=1,
        phase="complete",
        bytes_written=412,
        fault=None,
        status_code=200,
        detail="",
        duration_s=0.08,
        reset_by_us=False,
        classification=Classification.of(reading, "a_rule"),
    )
    return replace(summary, **changes)


def decision(action: Action = Action.STOP, because: str = "succeeded", delay_s: float = 0.0) -> Decision:
    return Decision(action, because, delay_s, effect_may_exist=action is not Action.MARK_TERMINAL_FAILURE)
