"""The bounds on size and time of everything that a caller sends or takes, and the names of the refusals for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds on every wait for a caller and on everything it may send. The engine bounds its own time."""

    # From the opening of a connection, its CONNECT and TLS included, or from the first byte of a later request, to its
    # last header. With one tick more and the lingering, a caller that sends too slowly is cut after ten seconds.
    head_s: float = 6.0
    body_s: float = 30.0  # of waiting for the body, all together; time in which we do not read does not count
    body_start_s: float = 6.0  # how much of that a body has at first; it gains a second by this many bytes:
    body_bytes_per_s_min: int = 500  # a hundredth of the slowest mobile line; Apache's default too
    body_idle_s: float = 10.0  # between two pieces of the body
    keep_alive_s: float = 75.0  # between two requests; longer than the 60 s after which common client pools close
    reply_idle_s: float = 30.0  # without the caller taking a byte of its reply
    linger_s: float = 2.0  # for a refused body that is still coming, so that the caller can read the refusal
    connections_max: int = 1024
    head_bytes_max: int = 32 * 1024
    headers_max: int = 100
    line_bytes_max: int = 8 * 1024
    body_bytes_max: int = 1024 * 1024  # of a body that the engine must see whole
    piece_bytes_max: int = 64 * 1024  # of a body that is passed on as it comes

    @property
    def tick_s(self) -> float:
        """How often timeouts are checked: an overdue caller is cut at most half a second, or a quarter, too late."""
        shortest_s = min(self.head_s, self.body_s, self.body_idle_s, self.keep_alive_s, self.reply_idle_s)
        return min(0.5, shortest_s / 4)


# Reasons that are not the name of a problem, because no reply could be sent.
TOO_MANY_CONNECTIONS = "too-many-connections"
IDLE = "idle"  # a connection that was opened, or kept, and sent no request in time
ANSWER_NOT_TAKEN = "answer-not-taken"
TLS_FAILED = "tls-failed"  # the TLS handshake between the caller and us
CALLER_LEFT = "caller-left"
UPSTREAM_BROKE = "upstream-broke"
