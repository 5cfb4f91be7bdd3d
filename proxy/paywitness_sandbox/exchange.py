"""One request and its response, as the steps of which every fault is made; and the base class of faults.

    read      read the whole request; the provider does not know of it yet
    receive   read it, and claim its idempotency key (from here a second request under the key gets 409)
    execute   let the bank do the work once, store the response as the contract says, and publish webhook events
              (an early event has been sent when `execute` returns)
    respond   send a whole response; or write, close, reset for anything less

An exchange that ends without `execute` frees the key, because nothing happened.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from email.utils import formatdate
from typing import ClassVar

from paywitness_sandbox.connection import SandboxConnection
from paywitness_sandbox.messages import Request, SandboxArrival, SandboxResponse
from paywitness_sandbox.provider import CommitWrapper, KeyClaim, SandboxProvider, commit_normally


class SandboxExchange:
    def __init__(
        self,
        request: Request,
        connection: SandboxConnection,
        provider: SandboxProvider,
        arrival: SandboxArrival,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.request = request
        self.arrival = arrival
        self.responded = False
        """A whole response is out, so the connection may serve the next request."""
        self._connection = connection
        self._provider = provider
        self._delay_s = delay_s
        self._claim: KeyClaim | None = None

    # -- the provider's side --------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Raises CallerGone if the caller never finished its request."""
        await self._connection.read(self.request)
        self.arrival.order = self.request.order

    async def receive(self) -> None:
        """Raises CallerGone if the caller never finished its request."""
        await self.read()
        self._claim = self._provider.claim(self.request)
        if self._delay_s > 0:
            await asyncio.sleep(self._delay_s)

    async def execute(self, commit_wrapper: CommitWrapper = commit_normally) -> SandboxResponse:
        """The provider's own response: of the work done now, or stored from an earlier arrival."""
        if self._claim is None:
            raise RuntimeError("a fault must receive a request before it executes it")
        response = self._provider.execute(self._claim, self.request, self.arrival, commit_wrapper)
        await self._provider.publisher.publish(self.request)
        return response

    def release_key(self) -> None:
        """Free the key if the work was never done."""
        if self._claim is not None:
            self._provider.release(self._claim)

    def other_object_response(self, response: SandboxResponse) -> SandboxResponse | None:
        """The latest response to the same kind of request that was about another object."""
        return self._provider.other_object_response(self.request, response)

    # -- the wire's side ------------------------------------------------------------------------------------------

    def respond(self, response: SandboxResponse) -> None:
        self.write(self.head(response) + response.body)
        self.mark_responded(response.status_code)

    def head(self, response: SandboxResponse, *more: tuple[str, str], length: int | None = None) -> bytes:
        """The head of a response as this provider writes it. `length` may be wrong on purpose."""
        standard_headers = [("Date", formatdate(self._provider.clock(), usegmt=True)), ("Request-Id", self.request_id)]
        if not self.keeps_alive:
            standard_headers.append(("Connection", "close"))
        return response.head(*standard_headers, *more, length=length)

    def mark_responded(self, status_code: int) -> None:
        """Note that a whole response of this status was written, if the caller was still there."""
        if not self._connection.usable:
            return
        self.responded = True
        self.arrival.answered = status_code

    def write(self, data: bytes) -> bool:
        return self._connection.write(data)

    def close(self) -> None:
        self._connection.close()

    def reset(self) -> None:
        self._connection.reset()

    async def hang(self, seconds: float) -> None:
        """Send nothing until the caller leaves, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._connection.disconnected.wait()
        except TimeoutError:
            self.close()

    @property
    def keeps_alive(self) -> bool:
        return self.request.keep_alive and not self._connection.last_request

    @property
    def request_id(self) -> str:
        return f"req_{self.arrival.seq:08d}"


# --- Faults


class Fault(ABC):
    name: ClassVar[str]

    @abstractmethod
    async def apply(self, exchange: SandboxExchange) -> None:
        """Handle the exchange to its end. If no whole response was sent, the connection is closed."""


@dataclass(frozen=True, slots=True)
class NoFault(Fault):
    """Does the work and responds, as a provider should."""

    name: ClassVar[str] = "-"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(await exchange.execute())
