"""One request and its answer on one connection: the running record from which Evidence is made.

It holds the facts (how far, how much, what came back) and the moment at which the present phase has lasted too long. It
does no I/O: the connection tells it what happened. The rule: phases only go forward, and when two are possible the
record says the later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.response_parser import ResponseParser

# Bound once: on the path of every call, naming a member of an enum costs more than all else that is done with it.
_CONNECTING = NetworkPhase.CONNECTING
_AWAITING = NetworkPhase.AWAITING
_COMPLETE = NetworkPhase.COMPLETE
_WRITE_TIMEOUT = WireFault.WRITE_TIMEOUT
_FIRST_BYTE_TIMEOUT = WireFault.FIRST_BYTE_TIMEOUT
_BODY_TIMEOUT = WireFault.BODY_TIMEOUT

_EXPIRY_DETAILS = {
    _WRITE_TIMEOUT: "the request could not be written in time",
    _FIRST_BYTE_TIMEOUT: "no answer came in time",
    _BODY_TIMEOUT: "the answer stopped arriving",
}


class UpstreamExchange:
    """The record of one exchange. `done` is resolved once, when there is an answer or a fault."""

    __slots__ = (
        "_response_ends_mono",
        "_timeouts",
        "bytes_total",
        "bytes_written",
        "detail",
        "done",
        "drained",
        "expires_mono",
        "expiry",
        "fault",
        "listening_s",
        "parser",
        "phase",
        "repeated",
        "request_complete",
        "reset_by_us",
        "take_over",
    )

    last = False  # whether no other exchange may follow on its connection, however it ends

    def __init__(self, done: asyncio.Future[None], parser: ResponseParser, timeouts: UpstreamTimeouts) -> None:
        self.done = done
        self.parser = parser
        self.phase: NetworkPhase = _CONNECTING
        self.fault: WireFault | None = None
        self.detail = ""
        self.bytes_total = 0  # of the request, as far as it was handed over
        self.bytes_written = 0
        self.reset_by_us = False
        self.repeated = False  # its answer is byte for byte that of the exchange before on its connection
        self.listening_s = 0.0  # how long another listens on in its place
        self.take_over: Callable[[UpstreamExchange, float], UpstreamExchange | None] | None = (
            None  # gives that other, when time is up
        )
        self.request_complete = True  # the request was handed over entirely; False while an upload goes on
        self.drained = False  # and the kernel has taken all of it
        self.expires_mono = 0.0
        self.expiry: WireFault = _WRITE_TIMEOUT
        self._timeouts = timeouts
        self._response_ends_mono = 0.0

    @property
    def attempt(self) -> UpstreamExchange:
        """The exchange that somebody waited for: itself, unless it listens on in the place of one."""
        return self

    def writing(self, now: float) -> None:
        """Something was handed over that the kernel has not taken yet."""
        self.expires_mono = now + self._timeouts.write_s
        self.expiry = _WRITE_TIMEOUT

    def flushed(self, now: float) -> None:
        """The kernel has taken all that we had for it."""
        if not self.request_complete:
            return
        self.drained = True
        if self.phase < _AWAITING:
            self.phase = _AWAITING
        if self._response_ends_mono:
            self._await_more(now)
        else:
            self.expires_mono = now + self._timeouts.first_byte_s
            self.expiry = _FIRST_BYTE_TIMEOUT

    def received(self, now: float) -> None:
        """Part of an answer arrived. An informational response is heard too, but does not extend the wait."""
        if self.parser.interim_only:
            return
        if not self._response_ends_mono:
            self._response_ends_mono = now + self._timeouts.response_s
        if self.drained:  # while still writing, the time to write goes on counting
            self._await_more(now)

    def _await_more(self, now: float) -> None:
        self.expires_mono = min(now + self._timeouts.body_idle_s, self._response_ends_mono)
        self.expiry = _BODY_TIMEOUT

    @property
    def expiry_detail(self) -> str:
        return _EXPIRY_DETAILS[self.expiry]

    def progressed(self) -> None:
        """More of the answer is there. For those who pass it on in pieces."""

    def conclude(self) -> None:
        """Nothing more will happen. Called exactly once by the connection."""
        if not self.done.done():
            self.done.set_result(None)

    def evidence(self, duration_s: float, *, reused: bool) -> Evidence:
        response = None
        detail = self.detail
        if self.phase is _COMPLETE:
            response = self.parser.response()
            detail = f"answered {response.status_code}"
        return Evidence(
            self.phase,
            self.bytes_written,
            self.fault,
            response,
            detail,
            duration_s,
            reused,
            self.reset_by_us,
            self.listening_s,
            self.repeated,
        )
