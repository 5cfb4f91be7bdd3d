"""What a fault is: a small frozen value that plays one exchange its own way.

Each lives in its own file of `faults/`; its docstring says what it does to the money and to the wire, and its fields
are the parameters that a person may set. The catalogue finds them there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange


class Fault(ABC):
    name: ClassVar[str]

    @abstractmethod
    async def play(self, exchange: Exchange) -> None:
        """Carry the exchange to its end. An exchange left without a whole answer has its connection closed."""


@dataclass(frozen=True, slots=True)
class NoFault(Fault):
    """Does the work and answers, as a provider should."""

    name: ClassVar[str] = "-"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(await exchange.execute())
