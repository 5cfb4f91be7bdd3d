"""A connection to the primary, found by its address or through its sentinels, and the facts that it reports about
itself.

Nothing here retries. A script whose reply was lost may have run, so the caller must decide.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as NotConnected

from paywitness.core.errors import PaywitnessError
from paywitness.redis.url import RedisTarget

# --- Reading responses
# Reads the replies of one connection by the packet. redis-py reads one reply at a time, and that takes longer than all
# the rest of a call.
#
# redis-py connects and greets, then this reader takes over. A reply is a value, or the error that Redis sent in its
# place. The end of the connection is raised.

try:
    import hiredis
except ImportError:  # comes with the `speed` extra
    hiredis = None  # type: ignore[assignment]

_READ_BYTES = 64 * 1024
_INCOMPLETE = object()


class RedisResponseReader:
    """Reads the replies of one connection, in order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parser: Any = None
        if hiredis is not None:
            parse_error = type(connection._parser).parse_error  # from redis-py: maps an error's first word to its class
            self._parser = hiredis.Reader(
                protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE
            )

    async def read_available(self, limit: int) -> list[Any]:
        """The replies that have arrived: at least one, at most `limit`."""
        if self._parser is None:
            return [await self._read_with_redis_py()]
        found = self._parse_available(limit)
        while not found:
            stream = self._connection._reader
            data = await stream.read(_READ_BYTES) if isinstance(stream, asyncio.StreamReader) else b""
            if not data:
                raise NotConnected("Connection closed by server.")
            self._parser.feed(data)
            found = self._parse_available(limit)
        return found

    async def read_one(self) -> Any:
        return (await self.read_available(1))[0]

    def _parse_available(self, limit: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < limit and (response := self._parser.gets(False)) is not _INCOMPLETE:
            found.append(response)
        return found

    async def _read_with_redis_py(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error


# --- Connections

CONNECT_TIMEOUT_S = 1.0
JOURNAL_CALL_TIMEOUT_S = 1.0  # a caller gets its error within a second
LIMITS_CALL_TIMEOUT_S = 0.05  # a script takes a tenth of a millisecond; at 25 to 100 ms a Redis is in trouble
_SENTINEL_TIMEOUT_S = 0.3  # if one sentinel does not reply, the call must have time for the next
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}  # seconds, seconds, times
_PROTOCOL = 2  # scripts reply alike under both versions; this one needs no greeting

Argument = str | bytes
Command = tuple[Argument | int, ...]

_CLUSTER = "it is a Redis Cluster; one primary is needed"
_FORBIDDEN = (
    "its user may not do this: it needs +@read +@write +@scripting +@connection +info +time +wait, and all keys that "
    "begin with the prefix"
)
# By the first word of an error: what it means to an operator who reads the log.
_MEANINGS: tuple[tuple[type[RedisError], str], ...] = (
    (ReadOnlyError, "it is a replica, perhaps after a failover; we connect again"),
    (BusyLoadingError, "it is loading its data after a start; we connect again"),
    (MasterDownError, "it is a replica that has lost its primary; we connect again"),
    (OutOfMemoryError, "its memory is full: raise maxmemory, or shorten the retention"),
    (NoPermissionError, _FORBIDDEN),
    *((kind, _CLUSTER) for kind in (AskError, ClusterCrossSlotError, ClusterDownError)),  # MOVED is a kind of ASK
    (AuthenticationError, "it does not take this user and password"),
    (AuthorizationError, "it does not take this user and password"),
)
_MEANING_OF_CODE = {
    "MISCONF": "it cannot write to its disk, so it refuses writes",
    "NOREPLICAS": "too few replicas are connected to it, by its own min-replicas-to-write",
    "BUSY": "a script of another program blocks it",
}
NOT_PRIMARY_ERRORS = (ReadOnlyError, MasterDownError)  # another connection may find the primary


def _pack_in_python(command: Command) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


pack_command: Callable[[Command], bytes]  # encodes a command for the wire
try:
    import hiredis
except ImportError:  # comes with the `speed` extra
    pack_command = _pack_in_python
else:
    pack_command = hiredis.pack_command  # type: ignore[assignment]  # it takes tuples of any length


class RedisUnavailable(PaywitnessError):
    """Redis did not confirm a call. The call may have run."""

    def __init__(self, text: str, cause: str = "TimeoutError") -> None:
        super().__init__(text)
        self.cause = cause  # the class of the first error, for counting


# The errors of a failed connection. RuntimeError is uvloop's, for a write to a connection that was reset meanwhile.
# asyncio drops such a write and reports it as an OSError.
CONNECTION_FAILURES = (RedisError, OSError, TimeoutError, RuntimeError, RedisUnavailable)


def unavailable(error: BaseException) -> RedisUnavailable:
    """The error with an explanation."""
    if isinstance(error, RedisUnavailable):
        return error
    text, cause = str(error), type(error).__name__
    if isinstance(error, TimeoutError) and not text:
        return RedisUnavailable("Redis did not answer in time", cause)
    meaning = next((words for kind, words in _MEANINGS if isinstance(error, kind)), None)
    if text.startswith("The user executing the script can't"):
        meaning = _FORBIDDEN
    if meaning is None and isinstance(error, ResponseError):
        meaning = _MEANING_OF_CODE.get(text.split(" ", 1)[0])
    return RedisUnavailable(f"Redis: {meaning} ({text})" if meaning else f"Redis: {text or cause}", cause)


def new_connection(target: RedisTarget, host: str, port: int) -> Connection:
    options = _connection_options(target, target.user, target.password)
    return _connection(target, host=host, port=port, db=target.database, **options)


def _sentinel_connection(target: RedisTarget, host: str, port: int) -> Connection:
    return _connection(
        target, host=host, port=port, **_connection_options(target, target.sentinel_user, target.sentinel_password)
    )


def _connection_options(target: RedisTarget, user: str, password: str) -> dict[str, Any]:
    return {
        "username": user or None,
        "password": password or None,
        "socket_timeout": None,  # the caller bounds the whole exchange
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": _PROTOCOL,
        "driver_info": None,
        "health_check_interval": 0,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }


def _connection(target: RedisTarget, **options: Any) -> Connection:
    if target.tls:
        return SSLConnection(ssl_ca_certs=target.ca or None, ssl_check_hostname=True, **options)
    return Connection(**options)


async def connect_primary(target: RedisTarget) -> Connection:
    """A connection to the primary. Raises an error of redis-py or RedisUnavailable."""
    if target.service:
        host, port = await _find_primary(target)
    else:
        host, port = target.hosts[0]
    connection = new_connection(target, host, port)
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await disconnect(connection)
        raise
    return connection


async def disconnect(connection: Connection) -> None:
    """Close the connection at once, in any state."""
    with contextlib.suppress(*CONNECTION_FAILURES):
        await connection.disconnect(nowait=True)


def has_ended(connection: Connection) -> bool:
    """Whether we have noticed the end of the connection. Anything written to it now could not arrive."""
    reader, writer = connection._reader, connection._writer
    if reader is None or writer is None:
        return True
    return writer.is_closing() or reader.at_eof() or reader.exception() is not None


async def _find_primary(target: RedisTarget) -> tuple[str, int]:
    """Ask the sentinels, one after the other, for the primary's address."""
    found: list[str] = []
    for host, port in target.hosts:
        sentinel = _sentinel_connection(target, host, port)
        try:
            async with asyncio.timeout(_SENTINEL_TIMEOUT_S):
                await sentinel.connect()  # type: ignore[no-untyped-call]
                await sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.service)
                address = await sentinel.read_response(disable_decoding=True)
        except CONNECTION_FAILURES as error:
            found.append(f"{host}:{port}: {str(error) or 'no answer'}")
            continue
        finally:
            await disconnect(sentinel)
        if address:
            return address[0].decode(), int(address[1])
        found.append(f"{host}:{port}: it knows no {target.service}")
    raise RedisUnavailable(f"no sentinel names the primary: {'; '.join(found)}")


@dataclass(frozen=True, slots=True)
class ReplicationInfo:
    """The facts that a Redis reports about its replication."""

    is_primary: bool
    replicas_online: int  # that are synchronised; not those still loading
    replication_id: str  # changes after a failover or a start
    run_id: str = ""  # changes after each start
    promoted: bool = False  # it took over the history of another primary


REPLICATION_INFO_COMMAND: Command = ("INFO", "server", "replication")


def parse_replication_info(info: bytes) -> ReplicationInfo:
    """Parse the reply to ASK_REPLICATION."""
    found = parse_info(info)
    replicas = (found.get(f"slave{number}", "") for number in range(int(found.get("connected_slaves", "0"))))
    ready = sum("state=online" in replica and "offset=0," not in replica for replica in replicas)
    return ReplicationInfo(
        found.get("role") == "master",
        ready,
        found.get("master_replid", ""),
        found.get("run_id", ""),
        bool(found.get("master_replid2", "").strip("0")),
    )


def parse_info(info: bytes) -> dict[str, str]:
    """Parse any section of INFO."""
    pairs: Iterable[list[str]] = (line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    return {name: value for name, value in pairs}  # noqa: C416  # a list of lists is no argument that mypy takes
