"""A connection to the primary, found by its address or through its sentinels, and what it says of itself.

Nothing here is tried again by itself: a script whose reply was lost may have run, so whoever asked must decide.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from proxy.core.errors import JournalUnavailable
from proxy.journal.redis_url import Place

CONNECT_TIMEOUT_S = 1.0
_SENTINEL_TIMEOUT_S = 0.3  # one that does not answer must leave time to ask the next within the same call
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}  # seconds, seconds, times
_PROTOCOL = 2  # scripts answer alike under both; this one needs no greeting

Argument = str | bytes
Command = tuple[Argument | int, ...]

_CLUSTER = "it is a Redis Cluster; the journal needs one primary"
_FORBIDDEN = (
    "its user may not do this: it needs +@read +@write +@scripting +@connection +info +time +wait, and all keys that "
    "begin with the prefix"
)
# What an error's first words mean to whoever reads the log at three in the morning.
_MEANINGS: tuple[tuple[type[RedisError], str], ...] = (
    (ReadOnlyError, "it is a replica, after a failover perhaps; we connect again"),
    (BusyLoadingError, "it is loading its data after a start; we connect again"),
    (MasterDownError, "it is a replica that has lost its primary; we connect again"),
    (OutOfMemoryError, "its memory is full: raise maxmemory, or shorten the retention"),
    (NoPermissionError, _FORBIDDEN),
    *((kind, _CLUSTER) for kind in (AskError, ClusterCrossSlotError, ClusterDownError)),  # MOVED is a kind of ASK
    (AuthenticationError, "it does not take this user and password"),
    (AuthorizationError, "it does not take this user and password"),
)
_MEANING_OF_WORD = {
    "MISCONF": "it cannot write to its disk, and so takes no writes",
    "NOREPLICAS": "too few replicas are connected to it, by its own min-replicas-to-write",
    "BUSY": "a script of somebody else holds it up",
}
ELSEWHERE = (ReadOnlyError, MasterDownError)  # another connection may find the primary


def _packed_here(command: Command) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


packed: Callable[[Command], bytes]  # a command as it goes over the wire
try:
    import hiredis
except ImportError:  # the extra `speed` brings it
    packed = _packed_here
else:
    packed = hiredis.pack_command  # type: ignore[assignment]  # it takes tuples of any length


def unavailable(error: BaseException) -> JournalUnavailable:
    """The error in words. Whether the write happened is not known."""
    if isinstance(error, JournalUnavailable):
        return error
    if isinstance(error, TimeoutError) and not str(error):
        return JournalUnavailable("Redis did not answer in time")
    text = str(error)
    meaning = next((words for kind, words in _MEANINGS if isinstance(error, kind)), None)
    if text.startswith("The user executing the script can't"):
        meaning = _FORBIDDEN
    if meaning is None and isinstance(error, ResponseError):
        meaning = _MEANING_OF_WORD.get(text.split(" ", 1)[0])
    return JournalUnavailable(f"Redis: {meaning} ({text})" if meaning else f"Redis: {text or type(error).__name__}")


def made(place: Place, host: str, port: int) -> Connection:
    asked = _asked(place, place.user, place.password)
    return _connection(place, host=host, port=port, db=place.database, **asked)


def _sentinel(place: Place, host: str, port: int) -> Connection:
    return _connection(place, host=host, port=port, **_asked(place, place.sentinel_user, place.sentinel_password))


def _asked(place: Place, user: str, password: str) -> dict[str, Any]:
    return {
        "username": user or None,
        "password": password or None,
        "socket_timeout": None,  # whoever asks bounds the whole exchange
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": _PROTOCOL,
        "driver_info": None,
        "health_check_interval": 0,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }


def _connection(place: Place, **asked: Any) -> Connection:
    if place.tls:
        return SSLConnection(ssl_ca_certs=place.ca or None, ssl_check_hostname=True, **asked)
    return Connection(**asked)


async def connected(place: Place) -> Connection:
    """A connection to the primary, or an error of redis-py or JournalUnavailable."""
    if place.service:
        host, port = await _primary_of(place)
    else:
        host, port = place.hosts[0]
    connection = made(place, host, port)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def _primary_of(place: Place) -> tuple[str, int]:
    """Ask the sentinels, one after the other, who the primary is."""
    told: list[str] = []
    for host, port in place.hosts:
        sentinel = _sentinel(place, host, port)
        try:
            async with asyncio.timeout(_SENTINEL_TIMEOUT_S):
                await sentinel.connect()  # type: ignore[no-untyped-call]
                await sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", place.service)
                address = await sentinel.read_response(disable_decoding=True)
        except (RedisError, OSError, TimeoutError) as error:
            told.append(f"{host}:{port}: {str(error) or 'no answer'}")
            continue
        finally:
            await sentinel.disconnect(nowait=True)
        if address:
            return address[0].decode(), int(address[1])
        told.append(f"{host}:{port}: it knows no {place.service}")
    raise JournalUnavailable(f"no sentinel names the primary: {'; '.join(told)}")


@dataclass(frozen=True, slots=True)
class Replication:
    """What a Redis says of its part in replication."""

    primary: bool
    replicas: int  # that have all and say so; not those that are still being filled
    history: str  # the replication id: another one after a failover, or a start
    process: str = ""  # another one after each start
    promoted: bool = False  # it took over the history of another primary


ASK_REPLICATION: Command = ("INFO", "server", "replication")


def replication_in(info: bytes) -> Replication:
    """Read from the answer to ASK_REPLICATION."""
    told = facts_in(info)
    replicas = (told.get(f"slave{number}", "") for number in range(int(told.get("connected_slaves", "0"))))
    ready = sum("state=online" in replica and "offset=0," not in replica for replica in replicas)
    return Replication(
        told.get("role") == "master",
        ready,
        told.get("master_replid", ""),
        told.get("run_id", ""),
        bool(told.get("master_replid2", "").strip("0")),
    )


def facts_in(info: bytes) -> dict[str, str]:
    """Any section of INFO."""
    pairs: Iterable[list[str]] = (line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    return {name: value for name, value in pairs}  # noqa: C416  # a list of lists is no argument that mypy takes
