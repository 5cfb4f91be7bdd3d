"""One Redis for the whole session; each test finds it empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits.redis_server import RedisServer


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    """Empty, and without scripts: every test also meets NOSCRIPT."""
    running_redis.call("FLUSHALL")
    running_redis.call("SCRIPT", "FLUSH", "SYNC")
    return running_redis


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One of its own, for a test that stops it."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()
