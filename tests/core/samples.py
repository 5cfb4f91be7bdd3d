"""Values that the tests of the core are made of: an operation, contracts, answers, calls. Everything has a default."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from paywitness.core.call import Call, CallerOptions
from paywitness.core.classify import ClassifyRules
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Route
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.result import Classification, Effect, ResultClass

KEY_HEADER = FieldRef(FieldKind.HEADER, "Idempotency-Key")
SECRET = b"an identity secret for the tests"


def operation(**changes: Any) -> Operation:
    plain = Operation(
        id="op_01",
        key="k" * 64,
        generation=1,
        provider="acme",
        operation="authorization",
        kind=OperationKind.AUTHORIZATION,
        account="a" * 32,
        client_key="order-1",
        key_source="header:Idempotency-Key",
        key_names_purchase=False,
        provider_key="order-1",
        fingerprint="f" * 64,
        ignore=(),
        request_hash="r" * 64,
        credential="c" * 32,
        revision="rev",
        upstream="https://acme.test",
        created_at=1000.0,
        updated_at=1000.0,
    )
    return replace(plain, **changes)


def contract(errors: ErrorsUnderKey = ErrorsUnderKey.REPLAYED, **changes: Any) -> ProviderContract:
    return replace(ProviderContract(send_as=KEY_HEADER, window_s=86_400.0, errors_under_key=errors), **changes)


def read(reading: ResultClass, effect: Effect | None = None, *, lost: bool = False, **changes: Any) -> Classification:
    return replace(Classification.of(reading, "test", effect=effect, lost=lost), **changes)


def response(status_code: int = 200, body: object = b"", *headers: tuple[str, str], **changes: Any) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = tuple((name.encode(), value.encode()) for name, value in headers)
    return replace(Response(status_code, b"", pairs, raw), **changes)


def answered(found: Response) -> Evidence:
    return Evidence(NetworkPhase.COMPLETE, 100, None, found, "", 0.1)


def unanswered(phase: NetworkPhase, fault: WireFault | None = None, bytes_written: int = 0) -> Evidence:
    return Evidence(phase, bytes_written, fault, None, "", 0.1)


def call(
    body: bytes = b"{}", *headers: tuple[str, str], wishes: CallerOptions = CallerOptions(), **changes: Any
) -> Call:
    pairs = tuple((name.encode(), value.encode("latin-1")) for name, value in headers)
    plain = Call("acme", "POST", "/v1/charges", "", ("v1", "charges"), pairs, body, wishes)
    return replace(plain, **changes)


def policy(**changes: Any) -> Policy:
    plain = Policy(
        provider="acme",
        operation="authorization",
        kind=OperationKind.AUTHORIZATION,
        routes=(Route("POST", ("v1", "charges")),),
        contract=contract(),
        classify=ClassifyRules(),
        revision="rev",
        upstream="https://acme.test",
        take_from=(KEY_HEADER,),
    )
    return replace(plain, **changes)
