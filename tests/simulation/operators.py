"""The operators of a world: people who look at what is open, ask about it, park it, resume it, or say how it ended.

What they say is true: they look into the provider's own books, and say "failed" only when nothing can still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from paywitness.core.errors import JournalUnavailable, PaywitnessError
from paywitness.core.operation import Operation, State
from paywitness.core.operator_actions import OperatorAction
from paywitness.engine.operator_commands import CommandExecutor, OperatorCommand
from paywitness.journal.base import OperationQuery
from tests.simulation.history import History
from tests.simulation.payment_policy import CANCELLED
from tests.simulation.sidecars import Sidecar

_OPEN = OperationQuery(states=frozenset({State.UNKNOWN, State.PENDING, State.REQUIRES_REVIEW}), limit=20)
_IN_REVIEW = OperationQuery(states=frozenset({State.REQUIRES_REVIEW}), limit=500)
_ACTS = (
    OperatorAction.INQUIRE,
    OperatorAction.PARK,
    OperatorAction.RESUME,
    OperatorAction.RESUME,
    OperatorAction.RESOLVE,
)
Truth = Callable[[Operation], bool | None]  # whether it is paid; None: it may still change
Naming = Callable[[Operation], str | None]  # the provider's name for what it made


class Operators:
    def __init__(self, truth: Truth, naming: Naming, history: History, dice: Random) -> None:
        self._truth = truth
        self._naming = naming
        self._history = history
        self._dice = dice
        self.cancels = False  # whether somebody also gives up what can be given up

    async def look(self, sidecar: Sidecar) -> None:
        """Somebody picks one of what is open, and does something about it."""
        acts = (*_ACTS, OperatorAction.CANCEL, OperatorAction.CANCEL) if self.cancels else _ACTS
        try:
            found = await sidecar.ground.journal.find_operations(_OPEN)
            if found:
                operation, act = self._dice.choice(found), self._dice.choice(acts)
                if act is OperatorAction.CANCEL:
                    operation = next((one for one in found if one.operation in CANCELLED), operation)
                await self._act(_review(sidecar), operation, act)
        except JournalUnavailable:
            return

    async def resume_all(self, sidecar: Sidecar) -> None:
        """What was parked is taken up again."""
        try:
            for operation in await sidecar.ground.journal.find_operations(_IN_REVIEW):
                await self._act(_review(sidecar), operation, OperatorAction.RESUME)
        except JournalUnavailable:
            return

    async def _act(self, review: CommandExecutor, operation: Operation, act: OperatorAction) -> None:
        order = OperatorCommand(act, "ann", "looks after what is open")
        if act is OperatorAction.RESOLVE:
            paid = self._truth(operation)
            if paid is None:
                return
            seen, name = "seen in the books of the provider itself", self._naming(operation) if paid else None
            order = OperatorCommand(act, "ann", "looked it up", paid, seen, name)
        about = operation.guard.label if operation.guard is not None else ""
        try:
            after = await review.execute(operation.id, order, operation.version)
        except JournalUnavailable:
            raise
        except PaywitnessError as error:
            self._history.say("operator", f"may not {act}", about, (operation.id, type(error).__name__))
        else:
            self._history.say("operator", f"{act}s", about, (operation.id, order.succeeded, "now", after.state))


def _review(sidecar: Sidecar) -> CommandExecutor:
    parts, ground = sidecar.parts, sidecar.ground
    return CommandExecutor(
        parts.journal_writer,
        parts.external_evidence,
        ground.journal,
        parts.pinned,
        lambda: parts.engine.book,
        sidecar.clock,
        ground.telemetry,
    )
