"""What has changed at the bank and has not been announced yet. The bank notes it; the webhooks take it away."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from proxy.sandbox.charge import Charge, Refund
from proxy.sandbox.payout import Payout

CHANGES_MAX = 1_000  # between two looks; one request makes one or two


@dataclass(frozen=True, slots=True)
class Change:
    thing: Charge | Refund | Payout
    what: str
    """In the past tense, as event types have it: `succeeded`, `captured`, `voided`."""
    key: str | None
    """The idempotency key of the request that changed it."""


class Changes:
    def __init__(self) -> None:
        self._noted: deque[Change] = deque(maxlen=CHANGES_MAX)

    def note(self, thing: Charge | Refund | Payout, what: str, key: str | None) -> None:
        self._noted.append(Change(thing, what, key))

    def take(self) -> list[Change]:
        taken = list(self._noted)
        self._noted.clear()
        return taken
