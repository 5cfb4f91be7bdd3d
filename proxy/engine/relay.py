"""The relay: a provider's webhook told again to the service's own address. At least once, in no particular order.

The bytes and headers are those of the provider, so that the service can check the signature itself. A 2xx is an
acknowledgement; anything else is tried again, less and less often, for three days.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy.core.call import Headers
from proxy.core.operation import Operation
from proxy.core.reply import end_to_end
from proxy.engine.delivery import Delivery
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import ANYWHERE, Origin, Timeouts, WireRequest

_log = logging.getLogger("paywitness.webhooks")

RELAYS_MAX = 64  # that are under way; the rest waits in the journal
_AT_A_TIME = 8  # of those, on the wire
LEASE_S = 180.0  # longer than they can take with their turn: until then no other sidecar tries
_TIMEOUTS = Timeouts(first_byte_s=10.0, answer_s=10.0)  # a service that takes longer should put it in a queue
_DELAY_MIN_S, _DELAY_MAX_S = 1.0, 300.0
_GIVE_UP_AFTER_S = 3 * 86400.0  # as long as providers go on


def next_relay_at(received_at: float, now: float) -> float | None:
    """When to try again; None where it is given up. Waiting as long as it has waited doubles the age each time."""
    age_s = max(0.0, now - received_at)
    if age_s >= _GIVE_UP_AFTER_S:
        return None
    return now + min(_DELAY_MAX_S, max(_DELAY_MIN_S, age_s))


@dataclass(frozen=True, slots=True)
class Relay:
    upstream: UpstreamClient
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))

    async def deliver(self, url: str, delivery: Delivery, operation: Operation | None) -> bool:
        """Tell it once more; whether the service acknowledged it."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode("latin-1")
        request = WireRequest("POST", target, _headers(delivery.headers, operation), delivery.raw)
        try:
            origin = Origin.parse(f"{parts.scheme}://{parts.netloc}", ANYWHERE)
            async with self._turns:
                evidence = await self.upstream.send(origin, request, _TIMEOUTS)
        except ValueError as error:
            _log.error("a webhook cannot be relayed: %s", error)  # names no value: the wire's own words
            return False
        return evidence.response is not None and 200 <= evidence.response.status_code < 300


def _headers(given: Headers, operation: Operation | None) -> Headers:
    theirs = tuple(
        (name, value)
        for name, value in end_to_end(given)
        if name.lower() not in {b"host", b"expect"} and not name.lower().startswith(b"paywitness-")
    )
    if operation is None:
        return theirs
    outcome = operation.outcome.encode()
    return (*theirs, (b"Paywitness-Operation", operation.id.encode()), (b"Paywitness-Outcome", outcome))
