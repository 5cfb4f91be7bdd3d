"""The money moves. The answer is chunked, its second chunk has a size that is no number, then FIN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import Fault


@dataclass(frozen=True, slots=True)
class BadChunk(Fault):
    """The money moves. The answer is chunked, its second chunk has a size that is no number, then FIN."""

    name: ClassVar[str] = "bad_chunk"

    async def play(self, exchange: Exchange) -> None:
        await exchange.receive()
        answer = await exchange.execute()
        half = answer.body[: len(answer.body) // 2]
        head = exchange.head(answer, ("Transfer-Encoding", "chunked"), length=-1)
        exchange.write(head + b"%x\r\n%b\r\n" % (len(half), half) + b"zz\r\n" + answer.body[len(half) :])
        exchange.close()
