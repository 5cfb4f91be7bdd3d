"""The payments, and what goes wrong with each request that reaches the provider. From one seed, the same in every lane.

The n-th request of a payment that reaches the provider meets the n-th fault of its script, whoever sent it and under
whichever key. So the lanes differ in what they do about a fault, never in how many they are dealt at the same point.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# How many requests in a hundred meet it; the rest are served properly. Heavy weather, on purpose: a hundred payments
# must show in half a minute what a shop sees in a bad quarter.
FAULTS = {
    "drop_after_commit": 7,
    "reset_after_commit": 4,
    "truncated_body": 3,
    "hang_after_commit": 3,
    "late_commit(late_s=2.5)": 1,
    "error_500_after_commit": 3,
    "html_504_after_commit": 2,
    "reset_before_commit": 4,
    "hang_before_commit": 2,
    "error_500_before_commit": 2,
    "error_503": 4,
    "html_502": 2,
    "rate_limited(retry_after_s=1)": 4,
    "slow(slow_s=0.7)": 5,
}
NO_FAULT = "-"
SCRIPT_ITEMS = 16  # more requests than a payment ever makes here; from then on the sky is clear

SOURCES = {"tok_ok": 94, "tok_insufficient_funds": 3, "tok_stolen_card": 2, "tok_expired_card": 1}
AMOUNT_MINOR_MIN, AMOUNT_MINOR_MAX = 500, 25_000
CURRENCY = "EUR"

START_SPAN_S = 18.0  # the payments of a run start within this, evenly spread
START_GAP_S_MAX = 0.2
START_GAP_S_MIN = (
    0.06  # faster, and a small machine would be the fault: 300 payments fit into the span, more take longer
)
OUTAGE_AT = 0.4  # of the span
OUTAGE_S = 2.0


@dataclass(frozen=True, slots=True)
class Payment:
    order: str
    amount: int
    source: str
    script: tuple[str, ...]

    def fault(self, arrived: int) -> str:
        """What the next request meets when so many have arrived before it."""
        return self.script[arrived] if arrived < len(self.script) else NO_FAULT

    @property
    def body(self) -> dict[str, object]:
        return {
            "amount": self.amount,
            "currency": CURRENCY,
            "source": self.source,
            "metadata": {"order_id": self.order},
        }


def payments(count: int, seed: int) -> list[Payment]:
    draws = Random(seed)
    return [_payment(number, draws) for number in range(1, count + 1)]


def _payment(number: int, draws: Random) -> Payment:
    amount = draws.randint(AMOUNT_MINOR_MIN, AMOUNT_MINOR_MAX)
    source = draws.choices(list(SOURCES), list(SOURCES.values()))[0]
    names = [NO_FAULT, *FAULTS]
    weights = [100 - sum(FAULTS.values()), *FAULTS.values()]
    return Payment(f"order-{number:04d}", amount, source, tuple(draws.choices(names, weights, k=SCRIPT_ITEMS)))


def start_gap_s(count: int) -> float:
    return max(START_GAP_S_MIN, min(START_GAP_S_MAX, START_SPAN_S / count))


def outage(count: int) -> dict[str, object]:
    """The schedule of a provider: once, for a short while, nobody listens."""
    start_s = OUTAGE_AT * start_gap_s(count) * count
    return {"outages": [{"mode": "refuse", "start_s": start_s, "duration_s": OUTAGE_S}]}
