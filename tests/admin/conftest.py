"""The admin server on a real port, and somebody to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.admin.world import TOKEN, World, serve


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: dict[str, str]
    text: str
    json: Any


class Asker:
    """Asks over HTTP, with the token unless told otherwise."""

    def __init__(self, session: aiohttp.ClientSession, world: World) -> None:
        self._session = session
        self._world = world

    async def __call__(self, path: str, *, token: str | None = TOKEN, method: str = "GET", **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        async with self._session.request(method, self._world.address + path, headers=sent) as response:
            text = await response.text()
            is_json = "json" in response.content_type
            content = await response.json(content_type=None) if is_json and text else None
            return Answer(response.status, dict(response.headers), text, content)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def ask(world: World) -> AsyncIterator[Asker]:
    close = await serve(world)
    async with aiohttp.ClientSession() as session:
        yield Asker(session, world)
    await close()
