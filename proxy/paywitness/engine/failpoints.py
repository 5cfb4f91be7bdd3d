"""Failpoints: the named points in the life of a call. A no-op in production; crash tests stop or kill the process
there."""

from __future__ import annotations

from typing import Protocol

# In the order of a call's life. The three in the middle are reached inside the upstream client.
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
    """What runs in production."""

    async def hit(self, name: str) -> None:
        return None
