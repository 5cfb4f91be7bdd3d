"""Where a Redis journal is, read from its URL:

redis://user:password@host:6379/0        rediss:// the same over TLS
redis+sentinel://user:password@host:26379,host:26379/service/0        rediss+sentinel:// the same over TLS

?prefix=paywitness:          before every key
&assert_persistence=yes      the operator vouches for persistence and eviction, where CONFIG is forbidden
&replicas=auto               auto, or how many must have a write before anything is sent on the strength of it
&ca=/path/ca.pem             whom TLS trusts
&sentinel_user= &sentinel_password=      of the sentinels themselves
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from paywitness.core.errors import SettingsError

SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
PREFIX = "paywitness:"
_HASH_TAG = "{j}:"  # all keys of a journal in one slot, wherever a proxy in between asks for it
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
    persistence_asserted: bool = False  # persistence and eviction are the operator's word
    replicas: int | None = None  # None: one, from when one has been seen
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)

    def __str__(self) -> str:
        where = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of the sentinels {where}" if self.service else where


def parse_redis_url(url: str) -> RedisTarget:
    """Read the URL, or raise SettingsError."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"it begins with none of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        return _parse(parts)
    except ValueError as error:
        raise SettingsError(f"the journal's URL cannot be used: {error}") from None


def _parse(parts: SplitResult) -> RedisTarget:
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    sentinel = parts.scheme.endswith("+sentinel")
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if sentinel and path else ""
    if sentinel and not service:
        raise ValueError("it names no service: redis+sentinel://host:26379/service")
    if len(path) > 1:
        raise ValueError("its path holds more than a database's number")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - _KNOWN_OPTIONS):
        raise ValueError(f"it asks for {', '.join(unknown)}; known are {', '.join(sorted(_KNOWN_OPTIONS))}")
    return RedisTarget(
        hosts=tuple(_host(host, _SENTINEL_PORT if sentinel else _PORT) for host in hosts.split(",")),
        service=service,
        database=int(path[0]) if path else 0,
        user=unquote(user),
        password=unquote(password),
        tls=parts.scheme.startswith("rediss"),
        ca=query.get("ca", ""),
        prefix=query.get("prefix", PREFIX) + _HASH_TAG,
        persistence_asserted=_is_yes(query.get("assert_persistence", "no")),
        replicas=_replicas(query.get("replicas", "auto")),
        sentinel_user=query.get("sentinel_user", ""),
        sentinel_password=query.get("sentinel_password", ""),
    )


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        named = parts.port
    except ValueError:  # whose own words show what stands there: perhaps a piece of a password
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
