"""The address of a Redis for a journal or for limits, from its URL:

redis://user:password@host:6379/0        rediss:// the same over TLS
redis+sentinel://user:password@host:26379,host:26379/service/0        rediss+sentinel:// the same over TLS
redis+cluster://user:password@host:6379        only for limits; rediss+cluster:// the same over TLS

?prefix=paywitness:          before every key
&ca=/path/ca.pem             the CA that TLS trusts
&sentinel_user= &sentinel_password=      of the sentinels themselves

Only for a journal:
&assert_persistence=yes      the operator vouches for persistence and eviction, if CONFIG is forbidden
&replicas=auto               auto, or how many replicas must have a write before anything is sent because of it
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from paywitness.core.errors import SettingsError

SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_LIMITS_SCHEMES = (*SCHEMES, "redis+cluster", "rediss+cluster")
PREFIX = "paywitness:"
_HASH_TAG = "{j}:"  # puts all keys of a journal in one slot, for proxies that require it
_PORT, _SENTINEL_PORT = 6379, 26379
_KNOWN_OPTIONS = frozenset({"prefix", "assert_persistence", "replicas", "ca", "sentinel_user", "sentinel_password"})


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """A Redis and how to reach it. Its text never shows a password."""

    hosts: tuple[tuple[str, int], ...]  # of the primary, or of its sentinels
    service: str = ""  # the sentinels' name for the primary; empty without them
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    prefix: str = PREFIX + _HASH_TAG
    cluster: bool = False  # a Redis Cluster; the hosts are some of its nodes
    persistence_asserted: bool = False  # the operator vouches for persistence and eviction
    replicas: int | None = None  # None: one, once a replica has been seen
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)

    def __str__(self) -> str:
        where = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of the sentinels {where}" if self.service else where


def parse_redis_url(url: str) -> RedisTarget:
    """Parse a journal's URL. Raises SettingsError, also for an unknown option."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"it begins with none of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        query = _query(parts)
        if unknown := sorted(query.keys() - _KNOWN_OPTIONS):
            raise ValueError(f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(_KNOWN_OPTIONS))}")
        return replace(
            _parse(parts),
            prefix=query.get("prefix", PREFIX) + _HASH_TAG,
            persistence_asserted=_is_yes(query.get("assert_persistence", "no")),
            replicas=_replicas(query.get("replicas", "auto")),
        )
    except ValueError as error:
        raise SettingsError(f"the journal's URL cannot be used: {error}") from error


def parse_limits_url(url: str) -> RedisTarget:
    """Parse a `--limits` URL. Raises SettingsError. The prefix is a name, without a colon at its end."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in _LIMITS_SCHEMES:
            allowed = "local, redis://, redis+sentinel://, redis+cluster://, or those with rediss"
            raise SettingsError(f"--limits {parts.scheme}://: give {allowed}")
        # a template without a value makes an empty `?prefix=`
        prefix = (_query(parts).get("prefix") or PREFIX).rstrip(":")
        if not prefix.isprintable() or {"{", "}", " "} & set(prefix):
            raise SettingsError(f"--limits: prefix {prefix!r}: give a name without braces and spaces")
        target = replace(_parse(parts), prefix=prefix, cluster=parts.scheme.endswith("+cluster"))
        if target.cluster and target.database:
            raise ValueError("a Redis Cluster has database 0 alone")
        return target
    except ValueError as error:
        raise SettingsError(f"--limits: the URL cannot be used: {error}") from error


def _query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _parse(parts: SplitResult) -> RedisTarget:
    """The parts that journal and limits share."""
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    sentinel = parts.scheme.endswith("+sentinel")
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if sentinel and path else ""
    if sentinel and not service:
        raise ValueError("it names no service: redis+sentinel://host:26379/service")
    if len(path) > 1:
        raise ValueError("its path holds more than a database's number")
    query = _query(parts)
    return RedisTarget(
        hosts=tuple(_host(host, _SENTINEL_PORT if sentinel else _PORT) for host in hosts.split(",")),
        service=service,
        database=_database(path),
        user=unquote(user),
        password=unquote(password),
        tls=parts.scheme.startswith("rediss"),
        ca=query.get("ca", ""),
        sentinel_user=query.get("sentinel_user", ""),
        sentinel_password=query.get("sentinel_password", ""),
    )


def _database(path: list[str]) -> int:
    if path and not path[0].isdecimal():  # not quoted in the error: it may be part of a password with a slash
        raise ValueError("its database is no number; a password is to be percent-encoded")
    return int(path[0]) if path else 0


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        named = parts.port
    except ValueError:  # its message would show the text, which may be part of a password
        raise ValueError("its port is no number; a password is to be percent-encoded") from None
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, named or port


def _is_yes(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(f"assert_persistence is yes or no, not {text}")
    return text == "yes"


def _replicas(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise ValueError(f"replicas is auto or a number, not {text}")
    return int(text)
