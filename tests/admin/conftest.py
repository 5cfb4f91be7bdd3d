"""The admin server on a real port, and somebody to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.admin.running import Running
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

    async def __call__(
        self, path: str, *, token: str | None = TOKEN, method: str = "GET", json: Any = None, **headers: str
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        async with self._session.request(method, self._world.address + path, headers=sent, json=json) as response:
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


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(World(token=getattr(request, "param", TOKEN)))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token of this machine is found by accident."""
    monkeypatch.chdir(tmp_path)
    for name in ("PAYWITNESS_ADMIN_TOKEN", "PAYWITNESS_HOME", "PAYWITNESS_ADMIN"):
        monkeypatch.delenv(name, raising=False)
