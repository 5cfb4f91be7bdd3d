"""The listening socket: open, closed during an outage that refuses connections, and open again at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl as tls
from collections.abc import Callable

from paywitness_sandbox.connection import SandboxConnection
from paywitness_sandbox.faults.selection import ActiveSchedule

BACKLOG = 1024
WAIT_S_MIN = 0.001  # a clock slightly behind its timer must not make the loop spin


class SandboxListener:
    def __init__(
        self,
        new_connection: Callable[[], SandboxConnection],
        active_schedule: Callable[[], ActiveSchedule],
        close_idle: Callable[[], None],
    ) -> None:
        self._new_connection = new_connection
        self._active_schedule = active_schedule
        self._close_idle = close_idle
        self._changed = asyncio.Event()
        self._ssl: tls.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._schedule_task: asyncio.Task[None] | None = None
        self.host = ""
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._ssl is None else 'https'}://{host}:{self.port}"

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def open(self, host: str, port: int, ssl: tls.SSLContext | None) -> None:
        self.host, self.port, self._ssl = host, port, ssl
        await self._listen()
        self._schedule_task = asyncio.get_running_loop().create_task(self._follow_schedule(), name="sandbox door")

    async def close(self) -> None:
        if self._schedule_task is not None:
            self._schedule_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # we have just cancelled it
                await self._schedule_task
        if self._server is not None:
            await _close_server(self._server)
        if self._placeholder is not None:
            self._placeholder.close()

    def schedule_changed(self) -> None:
        self._changed.set()

    async def _follow_schedule(self) -> None:
        """Open or close as the schedule in force says. Check again when it changes, or when a window begins or ends."""
        while True:
            self._changed.clear()
            refuses = self._active_schedule().refuses()
            if refuses and self._server is not None:
                await self._stop_listening()
            elif not refuses and self._server is None:
                await self._listen()
            wait_s = self._active_schedule().next_change_s()
            with contextlib.suppress(TimeoutError):  # the time has come
                async with asyncio.timeout(None if wait_s is None else max(wait_s, WAIT_S_MIN)):
                    await self._changed.wait()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._new_connection, self.host, self.port, ssl=self._ssl, backlog=BACKLOG, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    async def _stop_listening(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        family, address = server.sockets[0].family, server.sockets[0].getsockname()
        await _close_server(server)
        # Bound but not listening: callers are refused, and no other process takes the port meanwhile.
        self._placeholder = socket.socket(family, socket.SOCK_STREAM)
        self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._placeholder.bind(address)
        self._close_idle()


async def _close_server(server: asyncio.Server) -> None:
    """Close the server after its accepted connections have started. Otherwise asyncio would lose their sockets."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()
