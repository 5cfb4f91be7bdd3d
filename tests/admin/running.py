"""The admin port in a thread of its own, and the commands that ask it: as at a keyboard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import click
from click.testing import CliRunner, Result

from paywitness.cli.ops.group import ops
from tests.admin.world import TOKEN, World, serve


class Running:
    """A world that is served from a thread of its own, so that the commands may block in this one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="admin", daemon=True)
        self._thread.start()
        self._close: Callable[[], Any] = self.do(serve(world))

    def do(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(10)

    def stop(self) -> None:
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def call(
    running: Running,
    *arguments: str,
    token: str | None = TOKEN,
    columns: int = 200,
    typed: str = "",
    command: click.Command = ops,
    user: str | None = "ada",
) -> Result:
    environment = {
        "PAYWITNESS_ADMIN": running.world.address,
        "PAYWITNESS_ADMIN_TOKEN": token,
        "COLUMNS": str(columns),
        "USER": user,
    }
    return CliRunner().invoke(command, list(arguments), env=environment, input=typed)
