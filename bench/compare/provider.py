"""The sandbox as a process of its own: one on each port given, each with its own ledger.

    python -m bench.compare.provider '{"ports": [8801, 8802], "broken_port": 8803, "requests_per_s": 40, "queue_s": 3}'

Where `requests_per_s` is given it has only that much strength. It does one request after the other, in the order in
which they came, also those whose callers have left; what would wait longer than `queue_s` is refused with 503.
What comes to the broken port is read and reset, and reaches nobody: there end the ways of a broken network.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import cast

import uvloop

from paywitness_sandbox.connection import RESET_ON_CLOSE, SandboxConnection
from paywitness_sandbox.faults.registry import parse_fault
from paywitness_sandbox.faults.selection import FaultChoice
from paywitness_sandbox.messages import Request, SandboxResponse
from paywitness_sandbox.server import Sandbox


@dataclass(slots=True)
class Strength:
    """A queue without memory of who is in it: when its last request will be done is all it knows."""

    requests_per_s: float
    queue_s: float
    done_mono: float = 0.0

    def wait_s(self, now_mono: float) -> float | None:
        """How long a request that comes now takes to be worked on; None: it is refused, and costs nothing."""
        wait_s = max(self.done_mono - now_mono, 0.0)
        if wait_s > self.queue_s:
            return None
        self.done_mono = now_mono + wait_s + 1 / self.requests_per_s
        return wait_s


class Bounded(Sandbox):
    """A sandbox with so much strength and no more."""

    def __init__(self, strength: Strength) -> None:
        super().__init__()
        self._strength = strength

    async def _choose(
        self, connection: SandboxConnection, request: Request, by_chance: FaultChoice
    ) -> FaultChoice | SandboxResponse:
        choice = await super()._choose(connection, request, by_chance)
        if isinstance(choice, SandboxResponse):
            return choice
        wait_s = self._strength.wait_s(time.monotonic())
        if wait_s is None:
            return FaultChoice(parse_fault("error_503", {}))
        return FaultChoice(choice.fault, choice.delay_s + wait_s)


class Resetting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()


async def serve(ports: list[int], broken_port: int, requests_per_s: float, queue_s: float) -> None:
    async with AsyncExitStack() as stack:
        server = await asyncio.get_running_loop().create_server(Resetting, "127.0.0.1", broken_port)
        stack.callback(server.close)
        for port in ports:
            sandbox = Bounded(Strength(requests_per_s, queue_s)) if requests_per_s else Sandbox()
            await sandbox.start(port=port)
            stack.push_async_callback(sandbox.stop)
        await asyncio.Event().wait()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    uvloop.run(serve(told["ports"], told["broken_port"], told.get("requests_per_s", 0.0), told.get("queue_s", 0.0)))
