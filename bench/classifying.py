"""Classifying: what reading one answer costs by the largest policy of the pack.

The answer is one that no row knows, so that every condition is looked at and the built-in rules decide. The operation
and the status are those with the most rows to look at.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator

from paywitness.core.classify import ClassifyRules, ExpectedPayment, classify
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.record import record
from paywitness.policy.book import load_directory
from paywitness.policy.shipped_policies import shipped_directory

AIM_US = 100.0
_STATUSES = (200, 400, 402, 409, 429, 500)
_CALLS, _PARTS = 2_000, 5
# The size and the depth of a payment as providers show it, and words that no policy lists.
_BODY = json.dumps(
    {
        "id": "unlisted_1",
        "status": "a word that nobody listed",
        "error": {"type": "unlisted", "code": "unlisted", "message": "no row knows this one"},
        "data": {"id": "unlisted_1", "status": "unlisted", "amount": 1099, "currency": "EUR"},
        "payment": {"status": "unlisted", "card_details": {"errors": [{"code": "unlisted"}]}},
        "metadata": {f"key_{number}": "a text of the shop's own" for number in range(12)},
        "lines": [{"sku": f"sku-{number}", "quantity": number, "price": 100 * number} for number in range(12)],
    }
).encode()


@record
class Cost:
    operation: str  # stripe.sale
    rows: int  # that are looked at
    status_code: int
    micros: float  # of CPU time, the median of the parts


def largest() -> Cost:
    """The operation with the most rows, and what one of its answers costs."""
    operations = dict(_operations())
    rows, name, status_code = max(
        (_looked_at(rules, status_code), name, status_code)
        for name, rules in operations.items()
        for status_code in _STATUSES
    )
    parts = [_seconds(operations[name], status_code, _CALLS) for _ in range(_PARTS)]
    return Cost(name, rows, status_code, 1e6 * statistics.median(parts) / _CALLS)


def line(cost: Cost) -> str:
    what = f"{cost.operation}, {cost.rows} rows, a {cost.status_code} of {len(_BODY)} bytes that none of them knows"
    return f"Classifying one answer: {cost.micros:.0f} us ({what}; the aim is {AIM_US:.0f} us)"


def _operations() -> Iterator[tuple[str, ClassifyRules]]:
    for provider in load_directory(shipped_directory()).providers.values():
        for policy in provider.policies:
            yield f"{policy.provider}.{policy.operation}", policy.classify


def _looked_at(rules: ClassifyRules, status_code: int) -> int:
    rows = (*rules.rows, *rules.answers)
    return sum(row.status_codes is None or status_code in row.status_codes for row in rows)


def _seconds(rules: ClassifyRules, status_code: int, calls: int) -> float:
    response = Response(status_code, b"", ((b"Content-Type", b"application/json"),), _BODY)
    evidence = Evidence(NetworkPhase.COMPLETE, 700, None, response, "answered", 0.001)
    began = time.thread_time()
    for _ in range(calls):
        classify(evidence, rules, ExpectedPayment(None, "op_1"))
    return time.thread_time() - began
