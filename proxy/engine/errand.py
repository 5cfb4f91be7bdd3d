"""An Errand: one call on its way through the engine. What the engine knows of it beside the operation itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from proxy.core.body import Tree
from proxy.core.call import Call
from proxy.core.classify import Asked
from proxy.core.identity import Identity
from proxy.core.operation import Operation
from proxy.core.policy import Policy
from proxy.core.reply import ErrorShape, Reply
from proxy.engine.keeping import KeptRequest


@dataclass(slots=True)
class Errand:
    call: Call
    policy: Policy
    tree: Tree
    identity: Identity
    asked: Asked
    shape: ErrorShape
    token: str
    deadline_mono: float
    still_there: Callable[[], bool]
    request: KeptRequest
    answer: asyncio.Future[Reply]  # what the caller is told; at the deadline, whether or not the errand is over
    over: asyncio.Future[Reply]  # how the errand ended; what waits for it is told this
    tries: int = 1
    last_delay_s: float = 0.0
    byte_started: bool = False  # of this attempt: from here on it belongs to the operation, not to the caller
    has_sent: bool = False  # whether any attempt of this errand started a byte
    journal_at: float = 0.0  # the journal's time when it answered the claim, and our own then: ages are counted so,
    journal_boot: float = 0.0  #   because the journal's time never goes back and this clock counts suspension
    never_stored: bool = False  # the request holds what must not be kept
    refusal: str = ""  # why the gate did not permit anything new
    operation: Operation | None = None  # first the one it would start, then as it last stood

    def tell(self, reply: Reply) -> None:
        """Answer the caller, unless it has been answered."""
        if not self.answer.done():
            self.answer.set_result(reply)

    @property
    def may_have_sent(self) -> bool:
        """Whether a byte of the operation may have left, by this errand or by one before it."""
        return self.byte_started or (self.operation is not None and bool(self.operation.doubt))
