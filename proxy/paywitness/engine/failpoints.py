"""Failpoints: the named points in the life of a call. In production they are a no-op; crash tests stop or kill the
process at them."""

from __future__ import annotations

from typing import Protocol

# In the order of a call's life. The upstream client reaches the three in the middle.
CALL_RECEIVED = "call_received"
SENDING_RECORDED = "sending_recorded"
UPSTREAM_CONNECTED = "upstream_connected"
UPSTREAM_WRITTEN = "upstream_written"
UPSTREAM_ANSWERED = "upstream_answered"
ANSWER_CLASSIFIED = "answer_classified"
ANSWER_RECORDED = "answer_recorded"
RESEND_RECORDED = "resend_recorded"
DUE_TAKEN = "due_taken"  # the resolver holds an operation
INQUIRY_ANSWERED = "inquiry_answered"
CALL_FAILPOINTS = (
    CALL_RECEIVED,
    SENDING_RECORDED,
    UPSTREAM_CONNECTED,
    UPSTREAM_WRITTEN,
    UPSTREAM_ANSWERED,
    ANSWER_CLASSIFIED,
    ANSWER_RECORDED,
    RESEND_RECORDED,
)
RESOLUTION_FAILPOINTS = (DUE_TAKEN, INQUIRY_ANSWERED)


class Failpoints(Protocol):
    async def hit(self, name: str) -> None: ...


class NoFailpoints:
    """The failpoints of production."""

    async def hit(self, name: str) -> None:
        return None
