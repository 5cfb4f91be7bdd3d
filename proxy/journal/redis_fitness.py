"""Whether a Redis is fit to hold money: its version, that it writes to disk, that it throws nothing away, and that it
is one primary. Asked once, when the journal is opened.
"""

from __future__ import annotations

import logging
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import ResponseError

from proxy.core.errors import JournalUnfit
from proxy.journal.redis_connection import facts_in
from proxy.journal.redis_url import Place

_log = logging.getLogger("paywitness.journal")

_OLDEST = (7, 0)
_SCHEMA = 1  # of the keys: a later version that cannot be read by this one has a higher number

_ASSERTED = "add ?assert_persistence=yes to the journal's URL once you have made sure of both by other means"


async def check(connection: Connection, place: Place) -> None:
    """Raise JournalUnfit, saying what to change; or an error of redis-py."""
    problems = [*_of_server(facts_in(await _ask(connection, "INFO", "server")))]
    if place.asserted:
        _log.warning("persistence and eviction of the journal's Redis are the operator's word: nobody has looked")
    else:
        problems.extend(await _of_configuration(connection))
    if problems:
        raise JournalUnfit(f"Redis at {place} is not fit to hold the journal: {'; '.join(problems)}")
    await _check_schema(connection, place)


def _of_server(told: dict[str, str]) -> list[str]:
    problems = []
    version = told.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        problems.append(f"it is version {version}: use {_OLDEST[0]}.{_OLDEST[1]} or newer")
    if told.get("redis_mode") == "cluster":
        problems.append("it is a Redis Cluster: use one primary, with replicas and sentinels")
    return problems


async def _of_configuration(connection: Connection) -> list[str]:
    try:
        answer = await _ask(connection, "CONFIG", "GET", "appendonly")
        answer += await _ask(connection, "CONFIG", "GET", "maxmemory-policy")
    except ResponseError as error:
        return [f"CONFIG is forbidden here ({error}), so nobody can look at its persistence and eviction: {_ASSERTED}"]
    told = {name.decode(): value.decode() for name, value in zip(answer[::2], answer[1::2], strict=True)}
    problems = []
    if told.get("appendonly") != "yes":
        problems.append("it forgets acknowledged writes when it stops: set `appendonly yes`")
    policy = told.get("maxmemory-policy", "")
    if policy.startswith("allkeys"):
        problems.append(
            f"it may throw payments away when its memory is full ({policy}): set maxmemory-policy noeviction"
        )
    return problems


async def _check_schema(connection: Connection, place: Place) -> None:
    await _ask(connection, "HSETNX", f"{place.prefix}meta", "schema", str(_SCHEMA))
    schema = int(await _ask(connection, "HGET", f"{place.prefix}meta", "schema"))
    if schema > _SCHEMA:
        raise JournalUnfit(
            f"the journal was written by a newer paywitness (its version {schema}, this one knows up to {_SCHEMA}): "
            "run that one again, or give this one a prefix of its own"
        )


async def _ask(connection: Connection, *command: str) -> Any:
    await connection.send_command(*command, check_health=False)
    return await connection.read_response(disable_decoding=True)
