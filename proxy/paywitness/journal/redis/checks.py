"""Checks whether a Redis is fit to hold money: its version, that it writes to disk, that it evicts nothing, and that it
is one primary. The checks run once, when the journal is opened.
"""

from __future__ import annotations

import logging
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import ResponseError

from paywitness.core.errors import JournalUnusable
from paywitness.redis.connection import parse_info
from paywitness.redis.url import RedisTarget

_log = logging.getLogger("paywitness.journal")

_VERSION_MIN = (7, 0)
_SCHEMA = 1  # of the keys; a newer version whose keys this version cannot read has a higher number

_HOW_TO_ASSERT = "add ?assert_persistence=yes to the journal's URL once you have made sure of both by other means"


async def check(connection: Connection, target: RedisTarget, level: int) -> None:
    """Raise JournalUnusable with the settings to change, or an error of redis-py."""
    problems = [*_server_problems(parse_info(await _execute(connection, "INFO", "server")))]
    if target.persistence_asserted:
        _log.warning("persistence and eviction of the journal's Redis are the operator's word: nobody has looked")
    else:
        problems.extend(await _configuration_problems(connection))
    if problems:
        raise JournalUnusable(f"Redis at {target} is not fit to hold the journal: {'; '.join(problems)}")
    await _check_schema(connection, target, level)


def _server_problems(facts: dict[str, str]) -> list[str]:
    problems = []
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _VERSION_MIN:
        problems.append(f"it is version {version}: use {_VERSION_MIN[0]}.{_VERSION_MIN[1]} or newer")
    if facts.get("redis_mode") == "cluster":
        problems.append("it is a Redis Cluster: use one primary, with replicas and sentinels")
    return problems


async def _configuration_problems(connection: Connection) -> list[str]:
    try:
        answer = await _execute(connection, "CONFIG", "GET", "appendonly")
        answer += await _execute(connection, "CONFIG", "GET", "maxmemory-policy")
    except ResponseError as error:
        return [
            f"CONFIG is forbidden here ({error}), so nobody can look at its persistence and eviction: {_HOW_TO_ASSERT}"
        ]
    facts = {name.decode(): value.decode() for name, value in zip(answer[::2], answer[1::2], strict=True)}
    problems = []
    if facts.get("appendonly") != "yes":
        problems.append("it forgets acknowledged writes when it stops: set `appendonly yes`")
    policy = facts.get("maxmemory-policy", "")
    if policy.startswith("allkeys"):
        problems.append(
            f"it may throw payments away when its memory is full ({policy}): set maxmemory-policy noeviction"
        )
    return problems


async def _check_schema(connection: Connection, target: RedisTarget, level: int) -> None:
    is_new = await _execute(connection, "HSETNX", f"{target.prefix}meta", "schema", str(_SCHEMA))
    if is_new:  # no older release has written to it
        await _execute(connection, "SET", f"{target.prefix}level", f"{level} 0", "NX")
    schema = int(await _execute(connection, "HGET", f"{target.prefix}meta", "schema"))
    if schema > _SCHEMA:
        raise JournalUnusable(
            f"the journal was written by a newer paywitness (its version {schema}, this one knows up to {_SCHEMA}): "
            "run that one again, or give this one a prefix of its own"
        )


async def _execute(connection: Connection, *command: str) -> Any:
    await connection.send_command(*command, check_health=False)
    return await connection.read_response(disable_decoding=True)
