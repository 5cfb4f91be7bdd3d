"""What a charge shows, compared with the lines of the ledger: the two must never disagree."""

from __future__ import annotations

from collections import Counter

from paywitness_sandbox.server import Sandbox
from tests.sandbox.raw_client import Seen, call


def lines(sandbox: Sandbox, **wanted: str) -> list[tuple[str, int]]:
    return [(entry.kind.value, entry.amount) for entry in sandbox.ledger.find(**wanted)]


async def post(sandbox: Sandbox, path: str, body: object = None, **more) -> Seen:
    return await call(sandbox, "POST", path, {} if body is None else body, **more)


async def shown_as_in_the_ledger(sandbox: Sandbox, charge: str) -> dict:
    """The charge as a GET shows it, once its numbers have been compared with its lines."""
    sums: Counter[str] = Counter()
    for kind, amount in lines(sandbox, charge=charge):
        sums[kind] += amount
    seen = (await call(sandbox, "GET", f"/v1/charges/{charge}")).json
    held = sums["authorization"] + sums["charge"]
    assert held in (0, seen["amount"])
    assert seen["amount_captured"] == sums["capture"] + sums["charge"]
    assert seen["amount_refunded"] == sums["refund"] - sums["refund_failed"]
    assert seen["amount_voided"] == sums["void"]
    assert seen["amount_disputed"] == sums["dispute"] - sums["dispute_won"]
    assert seen["amount_captured"] + seen["amount_capturable"] + seen["amount_voided"] <= held
    assert seen["amount_refunded"] + seen["amount_disputed"] <= seen["amount_captured"]
    return seen
