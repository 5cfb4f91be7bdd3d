"""One request and what is done about it: the moves of which every fault is made.

    read      read all of it; the provider knows nothing of it yet
    receive   read it, and claim its key (a second request under the key is told 409 from here on)
    execute   let the bank do the work, once; its answer is stored under the key as the contract says, and webhooks go
              out (an early one is out when `execute` returns)
    answer    send a whole response; or write, close, reset for anything less

An exchange that ends without `execute` frees the key: nothing happened.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate

from proxy.sandbox.answer import Answer
from proxy.sandbox.arrivals import Arrival
from proxy.sandbox.provider import Claim, Ending, Provider, honest
from proxy.sandbox.request import Request
from proxy.sandbox.wire import Connection


class Exchange:
    def __init__(
        self,
        request: Request,
        connection: Connection,
        provider: Provider,
        arrival: Arrival,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.request = request
        self.arrival = arrival
        self.answered = False
        """A whole response is out, so the connection may serve the next request."""
        self._connection = connection
        self._provider = provider
        self._delay_s = delay_s
        self._claim: Claim | None = None

    # -- the provider's side --------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Raises CallerGone when the caller never finished its request."""
        await self._connection.read(self.request)
        self.arrival.order = self.request.order

    async def receive(self) -> None:
        """Raises CallerGone when the caller never finished its request."""
        await self.read()
        self._claim = self._provider.claim(self.request)
        if self._delay_s > 0:
            await asyncio.sleep(self._delay_s)

    async def execute(self, ending: Ending = honest) -> Answer:
        """The provider's own answer: of the work done now, or stored from an earlier arrival."""
        if self._claim is None:
            raise RuntimeError("a fault executes only what it has received")
        answer = self._provider.execute(self._claim, self.request, self.arrival, ending)
        await self._provider.announcer.announce(self.request)
        return answer

    def abandon(self) -> None:
        """Free the key if the work was never done."""
        if self._claim is not None:
            self._provider.release(self._claim)

    def someone_elses(self, answer: Answer) -> Answer | None:
        """The latest answer to the same kind of request that was about another object."""
        return self._provider.someone_elses(self.request, answer)

    # -- the wire's side ------------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        self.write(self.head(answer) + answer.body)
        self.mark_answered(answer.status_code)

    def head(self, answer: Answer, *more: tuple[str, str], length: int | None = None) -> bytes:
        """The head of an answer as this provider writes it; `length` may lie."""
        standing = [("Date", formatdate(self._provider.clock(), usegmt=True)), ("Request-Id", self.request_id)]
        if not self.keeps_alive:
            standing.append(("Connection", "close"))
        return answer.head(*standing, *more, length=length)

    def mark_answered(self, status_code: int) -> None:
        """What was written amounts to a whole response of this status, if there was anybody to write to."""
        if not self._connection.usable:
            return
        self.answered = True
        self.arrival.answered = status_code

    def write(self, data: bytes) -> bool:
        return self._connection.write(data)

    def close(self) -> None:
        self._connection.close()

    def reset(self) -> None:
        self._connection.reset()

    async def hang(self, seconds: float) -> None:
        """Say nothing until the caller leaves, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._connection.gone.wait()
        except TimeoutError:
            self.close()

    @property
    def keeps_alive(self) -> bool:
        return self.request.keep_alive and not self._connection.last_request

    @property
    def request_id(self) -> str:
        return f"req_{self.arrival.seq:08d}"
