"""The simulated provider says what the dialect says, and overlooks a thing no more often than the policy knows."""

from __future__ import annotations

import pytest

from paywitness.upstream.request import WireRequest
from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import Ledger
from paywitness_sandbox.dialects.acme import create_charge
from paywitness_sandbox.messages import Request, SandboxResponse
from tests.simulation.history import History
from tests.simulation.loop import SimLoop
from tests.simulation.merchants import Merchant
from tests.simulation.provider import STALE_LOOKS_MAX, SimProvider, _create_charge, _request_of
from tests.simulation.swarm import Mix, stream

STAMP = "op_1"
CHARGE = (
    '{{"amount": 1200, "currency": "EUR", "source": "{source}", '
    '"metadata": {{"order_id": "o\\u00e91", "paywitness": "op_1"}}}}'
)


def wire(method: str, target: str, body: str = "") -> WireRequest:
    headers = (*Merchant().headers(0.0), (b"Idempotency-Key", b"k-1"))
    return WireRequest(method, target.encode(), headers, body.encode())


@pytest.mark.parametrize("source", ["tok_ok", "tok_stolen_card", "tok_failed_200_stolen_card", "tok_3ds"])
def test_a_charge_is_answered_as_the_dialect_does_to_the_byte(source: str) -> None:
    def bank() -> Bank:
        return Bank(Ledger(), lambda: 1_750_000_000.0, salt="1")

    asked = wire("POST", "/v1/charges", CHARGE.format(source=source))
    plain = Request("POST", "/v1/charges", dict(_request_of(asked).headers), True)
    plain.body += asked.body
    assert _create_charge(bank(), _request_of(asked), {}) == create_charge(bank(), plain, {})


def test_a_stale_replica_answers_fewer_looks_than_prove_absence() -> None:
    loop = SimLoop()
    history = History(loop)
    mix = Mix(seed=1, payments=1, lag_s=1.0, stale_looks=1.0)
    provider = SimProvider(loop, mix, stream(1, "provider"), history, Ledger(), "acme")
    answers: list[SandboxResponse] = []
    provider.arrive(wire("POST", "/v1/charges", CHARGE.format(source="tok_ok")), None, 0.0, answers.append)
    found = []
    for _ in range(4):
        loop.now_mono += 5.0
        provider.arrive(wire("GET", f"/v1/charges?paywitness={STAMP}"), None, 0.0, answers.append)
        found.append(b'"data":[]' not in answers[-1].body)
    loop.close()
    assert answers[0].status_code == 200
    assert found == [False] * STALE_LOOKS_MAX + [True] * (4 - STALE_LOOKS_MAX)
