"""The money moves. A gateway in front loses patience and answers 504 with a page of HTML.

The provider's own answer is stored under the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import Answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault

PAGE = (
    b"<html><head><title>504 Gateway Timeout</title></head><body><h1>504 Gateway Timeout</h1><hr>gate</body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Html504AfterCommit(Fault):
    """The money moves. A gateway in front loses patience and answers 504 with a page of HTML. The provider's own answer
    is stored under the key."""

    name: ClassVar[str] = "html_504_after_commit"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.answer(Answer(504, PAGE, "text/html"))
