"""No effect. A gateway in front answers 502 with a page of HTML; the provider never saw the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.answer import Answer
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault

PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1><hr>gate</body></html>\n"


@dataclass(frozen=True, slots=True)
class Html502(Fault):
    """No effect. A gateway in front answers 502 with a page of HTML; the provider never saw the request."""

    name: ClassVar[str] = "html_502"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        exchange.answer(Answer(502, PAGE, "text/html"))
