"""Late responses: a response that comes after its attempt timed out is still evidence.

The attempt ends in time, with the evidence of a timeout. Its connection goes on listening outside the pool, for a
bounded time; the number of such connections is bounded too. It delivers no more bytes and takes no further call. It
ends by a reset, or closes once the response is whole. The rule: only a whole response is reported, and only once. A
partial one adds nothing to the doubt that is on record already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from paywitness.core.evidence import Evidence, NetworkPhase
from paywitness.upstream.connection import UpstreamConnection
from paywitness.upstream.exchange import UpstreamExchange

OnLateResponse = Callable[[Evidence], None]


class LateExchange(UpstreamExchange):
    """Listens on in place of an exchange that timed out, with the same parser and a fixed end."""

    __slots__ = ("_began_mono", "_late_responses", "_on_late", "_reused", "_superseded", "connection")

    last = True

    def __init__(
        self,
        superseded: UpstreamExchange,
        late_responses: LateResponses,
        connection: UpstreamConnection,
        on_late: OnLateResponse,
        began_mono: float,
        *,
        reused: bool,
        expires_mono: float,
    ) -> None:
        super().__init__(superseded.done, superseded.parser, superseded.timeouts)
        self.phase = superseded.phase
        self.bytes_total = superseded.bytes_total
        self.drained = superseded.drained
        self.expiry = superseded.expiry
        self.expires_mono = expires_mono
        self.connection = connection
        self._superseded = superseded
        self._late_responses = late_responses
        self._on_late = on_late
        self._began_mono = began_mono
        self._reused = reused

    @property
    def attempt(self) -> UpstreamExchange:
        return self._superseded

    def received(self, now: float) -> None:
        """Bytes that arrive do not extend the time: the evidence of the timeout has said how long this may last."""

    def conclude(self) -> None:
        self._late_responses.remove(self)
        if self.phase is NetworkPhase.COMPLETE:
            observed = self.evidence(self._late_responses.monotonic() - self._began_mono, reused=self._reused)
            evidence = replace(observed, detail=f"{observed.detail}, after the attempt had timed out")
            # Call it from the loop: the call that timed out was queued before, so it always has its evidence first.
            asyncio.get_running_loop().call_soon(self._on_late, evidence)


class LateResponses:
    """The connections that still listen after their attempt timed out."""

    __slots__ = ("_closed", "_connections_max", "_listen_s", "_listening", "monotonic")

    def __init__(self, listen_s: float, connections_max: int, monotonic: Callable[[], float]) -> None:
        self._listen_s = listen_s
        self._connections_max = connections_max
        self._listening: set[LateExchange] = set()
        self._closed = False
        self.monotonic = monotonic

    def __len__(self) -> int:
        return len(self._listening)

    def take_over(
        self,
        exchange: UpstreamExchange,
        now: float,
        *,
        connection: UpstreamConnection,
        on_late: OnLateResponse,
        began_mono: float,
        reused: bool,
    ) -> LateExchange | None:
        """The exchange that listens on in place of one whose time is up. None: there is none, so the connection must be
        reset."""
        ends_mono = now + self._listen_s
        if self._closed or ends_mono <= now or len(self._listening) >= self._connections_max:
            return None
        late = LateExchange(exchange, self, connection, on_late, began_mono, reused=reused, expires_mono=ends_mono)
        self._listening.add(late)
        return late

    def remove(self, late: LateExchange) -> None:
        self._listening.discard(late)

    def close(self) -> None:
        """Reset them all. From now on a timeout ends by a reset again."""
        self._closed = True
        for late in tuple(self._listening):
            late.connection.abandon(late.attempt)
