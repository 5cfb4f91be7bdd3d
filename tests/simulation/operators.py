"""The operators of a world: people who look at what is open, ask about it, park it, resume it, or say how it ended.

What they say is true: they look into the provider's own books, and say "failed" only when nothing can still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from proxy.core.errors import JournalUnavailable, PaywitnessError
from proxy.core.operation import Operation, State
from proxy.core.proposal import Act
from proxy.engine.review import Order, Review
from proxy.journal.base import Listing
from tests.simulation.history import History
from tests.simulation.sidecars import Sidecar

_OPEN = Listing(states=frozenset({State.UNKNOWN, State.PENDING, State.REQUIRES_REVIEW}), limit=20)
_IN_REVIEW = Listing(states=frozenset({State.REQUIRES_REVIEW}), limit=500)
_ACTS = (Act.INQUIRE, Act.PARK, Act.RESUME, Act.RESUME, Act.RESOLVE)
Truth = Callable[[Operation], bool | None]  # whether it is paid; None: it may still change


class Operators:
    def __init__(self, truth: Truth, history: History, dice: Random) -> None:
        self._truth = truth
        self._history = history
        self._dice = dice

    async def look(self, sidecar: Sidecar) -> None:
        """Somebody picks one of what is open, and does something about it."""
        try:
            found = await sidecar.ground.journal.listing(_OPEN)
            if found:
                await self._act(_review(sidecar), self._dice.choice(found), self._dice.choice(_ACTS))
        except JournalUnavailable:
            return

    async def resume_all(self, sidecar: Sidecar) -> None:
        """What was parked is taken up again."""
        try:
            for operation in await sidecar.ground.journal.listing(_IN_REVIEW):
                await self._act(_review(sidecar), operation, Act.RESUME)
        except JournalUnavailable:
            return

    async def _act(self, review: Review, operation: Operation, act: Act) -> None:
        order = Order(act, "ann", "looks after what is open")
        if act is Act.RESOLVE:
            paid = self._truth(operation)
            if paid is None:
                return
            order = Order(act, "ann", "looked it up", paid, "seen in the books of the provider itself")
        about = operation.guard.shown if operation.guard is not None else ""
        try:
            after = await review.act(operation.id, order, operation.version)
        except JournalUnavailable:
            raise
        except PaywitnessError as error:
            self._history.say("operator", f"may not {act}", about, (operation.id, type(error).__name__))
        else:
            self._history.say("operator", f"{act}s", about, (operation.id, order.succeeded, "now", after.state))


def _review(sidecar: Sidecar) -> Review:
    parts, ground = sidecar.parts, sidecar.ground
    return Review(
        parts.records,
        parts.outside,
        ground.journal,
        parts.pinned,
        lambda: parts.engine.book,
        sidecar.clock,
        ground.telemetry,
    )
