"""Evidence: the facts about one attempt on the wire. How far it got, how much was written, which response came back.

No judgement lives here. `classify` says what the evidence means. When it is unsure which of two phases was the last one
reached, evidence records the later: a byte that may have left counts as having left.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from paywitness.core.record import record


class NetworkPhase(IntEnum):
    """How far an attempt got, in order. From SENDING on, the provider may have seen the request."""

    label: str

    RESOLVING = 0
    CONNECTING = 1
    HANDSHAKING = 2
    SENDING = 3
    AWAITING = 4
    RECEIVING = 5
    COMPLETE = 6


for _phase in NetworkPhase:
    _phase.label = _phase.name.lower()


class WireFault(StrEnum):
    """What went wrong on the wire. It explains; it does not decide: the phase and the bytes written do."""

    CIRCUIT_OPEN = "circuit_open"  # held back by us: the provider is down, or asked to be left alone
    NOT_ADMITTED = "not_admitted"  # held back by us: the provider has enough to do
    POOL_EXHAUSTED = "pool_exhausted"  # no connection became free in time; nothing was dialled
    DNS_FAILURE = "dns_failure"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_FAILED = "connect_failed"  # unreachable, reset while connecting, out of sockets
    TLS_FAILURE = "tls_failure"
    TLS_TIMEOUT = "tls_timeout"
    LEASE_OVER = "lease_over"  # connected, but the right to send had run out: not a byte was written
    WRITE_TIMEOUT = "write_timeout"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    BODY_TIMEOUT = "body_timeout"  # the answer stopped arriving
    CLOSED = "closed"  # the peer closed before a whole answer
    RESET = "reset"
    MALFORMED = "malformed"  # bytes that are no HTTP answer, or contradict themselves
    OVERSIZED = "oversized"  # headers or body beyond our bounds; nothing of it is kept


LIMIT_FAULTS = frozenset({WireFault.CIRCUIT_OPEN, WireFault.NOT_ADMITTED})


@record
class Response:
    """A complete response, byte for byte as the provider framed it, less the transfer coding."""

    status_code: int
    reason: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    close_delimited: bool = False  # its end was the end of the connection: nothing shows whether it is whole

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        wanted = name.lower().encode("latin-1")
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None


@record
class Evidence:
    """The facts about one attempt on the wire. `response` is set only when it is complete and well framed."""

    phase: NetworkPhase
    bytes_written: int
    fault: WireFault | None
    response: Response | None
    detail: str  # one line for a person; never a payload, never a header value
    duration_s: float
    reused_connection: bool = False
    reset_by_us: bool = False  # we reset the connection: nothing that we wrote can still be delivered by it
    late_response_window_s: float = (
        0.0  # at most so long after this the connection stays open, for a late answer; 0: it is over
    )
    repeats_previous: bool = False  # the response is byte for byte that to the request before, on the same connection

    @classmethod
    def refused_by_limits(cls, fault: WireFault, detail: str) -> Evidence:
        """The evidence of an attempt that our own limits kept from the wire."""
        return cls(NetworkPhase.RESOLVING, 0, fault, None, detail, 0.0)

    @property
    def sent(self) -> bool:
        """Whether a byte may have left. False is a proof; True is not."""
        return self.phase >= NetworkPhase.SENDING or self.bytes_written > 0 or self.response is not None

    @property
    def complete(self) -> bool:
        return self.response is not None
