"""The relay: sends a provider's webhook on to the service's own address. At least once, in no particular order.

The bytes and headers are those of the provider, so that the service can check the signature itself. A 2xx is an
acknowledgement. After any other response the relay tries again, at growing intervals, for three days.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from paywitness.core.call import Headers
from paywitness.core.credential_and_hop_headers import end_to_end
from paywitness.core.operation import Operation
from paywitness.core.policy import UpstreamTimeouts
from paywitness.engine.webhooks.verification import StoredWebhook
from paywitness.repeated_lines import REPEATS
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import OPERATOR_GIVEN_TRUST, Origin, WireRequest

_log = logging.getLogger("paywitness.webhooks")

RELAYS_MAX = 64  # under way at a time; the rest waits in the journal
_CONCURRENT_POSTS_MAX = 8  # of those, on the wire
RELAY_LEASE_S = 180.0  # longer than a relay can take with its wait for a slot; until then no other sidecar tries
_TIMEOUTS = UpstreamTimeouts(first_byte_s=10.0, response_s=10.0)  # a service that takes longer should put it in a queue
_DELAY_MIN_S, _DELAY_MAX_S = 1.0, 300.0
_GIVE_UP_AFTER_S = 3 * 86400.0  # as long as providers try


def next_relay_at(received_at: float, now: float) -> float | None:
    """When to try again; None if the relay gives up. A wait is as long as the age of the webhook, so the age
    doubles."""
    age_s = max(0.0, now - received_at)
    if age_s >= _GIVE_UP_AFTER_S:
        return None
    return now + min(_DELAY_MAX_S, max(_DELAY_MIN_S, age_s))


@dataclass(frozen=True, slots=True)
class Relay:
    upstream: UpstreamClient
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_POSTS_MAX))

    async def deliver(self, url: str, webhook: StoredWebhook, operation: Operation | None) -> bool:
        """Send it once more. Returns whether the service acknowledged it."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode("latin-1")
        request = WireRequest("POST", target, _relay_headers(webhook.headers, operation), webhook.raw)
        try:
            origin = Origin.parse(f"{parts.scheme}://{parts.netloc}", OPERATOR_GIVEN_TRUST)
            async with self._slots:
                evidence = await self.upstream.send(origin, request, _TIMEOUTS)
        except ValueError as error:
            # The text of the client, which names no value.
            _log.error("a webhook cannot be relayed: %s", error, extra=REPEATS)
            return False
        return evidence.response is not None and 200 <= evidence.response.status_code < 300


def _relay_headers(received_headers: Headers, operation: Operation | None) -> Headers:
    provider_headers = tuple(
        (name, value)
        for name, value in end_to_end(received_headers)
        if name.lower() not in {b"host", b"expect"} and not name.lower().startswith(b"paywitness-")
    )
    if operation is None:
        return provider_headers
    outcome = operation.outcome.encode()
    return (*provider_headers, (b"Paywitness-Operation", operation.id.encode()), (b"Paywitness-Outcome", outcome))
