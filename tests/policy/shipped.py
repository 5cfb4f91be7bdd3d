"""What the tests of the shipped policies share: the book, and answers as the wire would bring them."""

from __future__ import annotations

import json

from paywitness.core.classify import ExpectedPayment
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.money import Money
from paywitness.core.policy import Policy
from paywitness.policy.book import load_directory
from paywitness.policy.shipped_policies import shipped_directory
from tests.policy.texts import operation

BOOK = load_directory(shipped_directory())
TEN = Money(1000, "EUR")
NOTHING = ExpectedPayment()


def policy(name: str) -> Policy:
    provider, _, found = name.partition(".")
    return operation(BOOK.providers[provider], found)


def answered(status_code: int, body: object, *headers: tuple[bytes, bytes]) -> Evidence:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Evidence(NetworkPhase.COMPLETE, 100, None, Response(status_code, b"", headers, payload), "", 0.1)


def order(status: str, *captures: object) -> dict[str, object]:
    return {"id": "O1", "status": status, "purchase_units": [{"payments": {"captures": list(captures)}}]}


def capture(status: str, **response: str) -> dict[str, object]:
    return {"id": "C1", "status": status, "processor_response": response}
