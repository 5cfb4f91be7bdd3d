"""How much and how long: the bounds on everything a caller sends or takes, and the names of what breaks them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Every wait for a caller and everything it may send. Waiting for the engine is bounded by the engine."""

    # From the opening of a connection, with CONNECT and TLS where it has them, or from the first byte of a later
    # request, to its last header. With a tick before and the lingering after it, whoever dribbles is gone in ten.
    head_s: float = 6.0
    body_s: float = 30.0  # of waiting for the body, all together; time in which we do not read does not count
    body_start_s: float = 6.0  # of that at first; the rest must be earned, a second by so many bytes:
    body_bytes_per_s_min: int = 500  # a hundredth of the slowest mobile line; Apache's default too
    body_idle_s: float = 10.0  # between two pieces of the body
    keep_alive_s: float = 75.0  # between two requests; longer than the 60 s after which common client pools let go
    reply_idle_s: float = 30.0  # without the caller taking a byte of its answer
    linger_s: float = 2.0  # for a refused body that is still coming, so that the caller can read the refusal
    connections_max: int = 1024
    head_bytes_max: int = 32 * 1024
    headers_max: int = 100
    line_bytes_max: int = 8 * 1024
    body_bytes_max: int = 1024 * 1024  # of a body that the engine must see whole
    piece_bytes_max: int = 64 * 1024  # of a body that is passed on as it comes

    @property
    def tick_s(self) -> float:
        """How often the waits are looked at: an overdue caller is cut at most a quarter late, or half a second."""
        shortest_s = min(self.head_s, self.body_s, self.body_idle_s, self.keep_alive_s, self.reply_idle_s)
        return min(0.5, shortest_s / 4)


# Reasons that are no problem's name: there was nobody, or no way, to answer.
TOO_MANY_CONNECTIONS = "too-many-connections"
IDLE = "idle"  # a connection that was opened, or kept, and asked nothing in time
ANSWER_NOT_TAKEN = "answer-not-taken"
TLS_FAILED = "tls-failed"  # between the caller and us
CALLER_LEFT = "caller-left"
UPSTREAM_BROKE = "upstream-broke"
