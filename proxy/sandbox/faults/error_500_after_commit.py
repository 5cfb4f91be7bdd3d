"""The money moves, then something breaks: 500. What a re-send does is the contract's affair.

`replayed` answers 500 again, `reexecuted` finds the work done, `not_stored` and `none` charge again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import Answer, internal_error
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class Error500AfterCommit(Fault):
    """The money moves, then something breaks: 500. What a re-send does is the contract's affair. `replayed` answers 500
    again, `reexecuted` finds the work done, `not_stored` and `none` charge again."""

    name: ClassVar[str] = "error_500_after_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(spoilt(await exchange.execute(lambda commit: spoilt(commit()))))


def spoilt(answer: Answer) -> Answer:
    """A request that was refused before any work has no commit to break after."""
    return internal_error() if answer.executed else answer
