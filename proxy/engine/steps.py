"""Steps: the named points in the life of a call. A no-op in production; crash tests stop or kill the process there."""

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
STEPS_OF_A_CALL = (
    CALL_RECEIVED,
    SENDING_RECORDED,
    UPSTREAM_CONNECTED,
    UPSTREAM_WRITTEN,
    UPSTREAM_ANSWERED,
    ANSWER_CLASSIFIED,
    ANSWER_RECORDED,
    RESEND_RECORDED,
)
STEPS_OF_A_LOOK = (DUE_TAKEN, INQUIRY_ANSWERED)


class Steps(Protocol):
    async def reached(self, name: str) -> None: ...


class NoSteps:
    """What runs in production."""

    async def reached(self, name: str) -> None:
        return None
