"""A Redis: whether it can be reached, and whether it may hold what it is given. A journal asks more than limits do.

Looks on a connection of its own, made as the journal makes its own. All it writes is one key that goes by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import math
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError, RedisError

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable
from proxy.core.identity import check_value
from proxy.journal.redis_connection import connected, facts_in, unavailable
from proxy.journal.redis_url import Place
from proxy.workbench import doctor_redis_facts as facts
from proxy.workbench.examination import Examination, aside
from proxy.workbench.finding import Finding, ok, unfit, warning

_ROUNDS = 100
_ROUNDS_S = 1.0  # a slow one is known to be slow before the hundredth round
_SLOW_MS = 5.0  # a call makes at least two round trips before its answer leaves
_CLOCK_WARN_S = 1.0
_SCRIPT = "redis.call('SET', KEYS[1], '1', 'PX', 10000) return 1"  # ms: it goes by itself
_SCRIPT_WITHOUT_KEYS = "return 1"  # of a cluster, a node holds some keys only


@dataclass(frozen=True, slots=True)
class Purpose:
    """What the Redis is for."""

    room: str  # "journal", "limits"
    place: Place
    lease_s: float
    identity: bytes | None = None
    cluster: bool = False  # its URL says that it is one

    @property
    def holds_money(self) -> bool:
        return self.room == "journal"


async def examine_redis(purpose: Purpose, examination: Examination) -> None:
    """All checks, one after the other, on one connection; the rest is left out once it does not answer."""
    opened: list[Connection] = []

    async def reach() -> list[Finding]:
        await aside(lambda: _look_up_names(purpose.place))
        try:
            opened.append(await connected(purpose.place))
        except (RedisError, JournalUnavailable, OSError) as error:
            return [_unreachable(purpose, error)]
        return [ok(f"{purpose.room} reachable", f"Redis at {purpose.place}"), _tls_finding(purpose, opened[0])]

    await examination.check(f"{purpose.room} reachable", reach)
    if not opened:
        return
    look = _Look(purpose, opened[0], examination.clock)
    try:
        for name, check in look.checks():
            if not await examination.check(f"{purpose.room} {name}", look.told(name, check)):
                return  # what comes next on this connection could be an answer to what was asked before
    finally:
        await opened[0].disconnect(nowait=True)


def _look_up_names(place: Place) -> None:
    """Before the event loop does: it would wait for a name server that hangs even at the end."""
    for host, port in place.hosts:
        with contextlib.suppress(OSError):  # connecting will tell
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _unreachable(purpose: Purpose, error: Exception) -> Finding:
    found = f"Redis at {purpose.place}: {str(unavailable(error)).removeprefix('Redis: ')}"
    if purpose.holds_money:
        why = "without its journal nothing is sent"
    else:
        why = "every sidecar would limit for itself alone"
    return unfit(f"{purpose.room} reachable", found, why, "Start it, or correct address, user, password or TLS")


def _tls_finding(purpose: Purpose, connection: Connection) -> Finding:
    subject = f"{purpose.room} TLS"
    if purpose.place.tls:
        return ok(subject, "encrypted, its certificate verified")
    if is_loopback(connection.host):
        return ok(subject, "none; it is on this machine")
    why = "its password and what it holds cross the network in the clear"
    return warning(subject, "none", why, "Use rediss:// (with ca= for a private authority)")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_Check = Callable[[], Awaitable[Iterable[Finding]]]


class _Look:
    """The checks of one Redis."""

    def __init__(self, purpose: Purpose, connection: Connection, clock: Clock) -> None:
        self._purpose = purpose
        self._connection = connection
        self._clock = clock
        self._room = purpose.room

    def checks(self) -> tuple[tuple[str, _Check], ...]:
        common = (("facts", self.of_facts), ("scripts", self.of_scripts), ("latency", self.of_latency))
        if not self._purpose.holds_money:
            return common
        return (*common, ("clock", self.of_clock), ("identity", self.of_identity))

    def told(self, name: str, check: _Check) -> _Check:
        """The check, with what Redis refuses as a finding."""

        async def checked() -> Iterable[Finding]:
            try:
                return await check()
            except RedisError as error:
                found = str(unavailable(error)).removeprefix("Redis: ")
                return [unfit(f"{self._room} {name}", found, "this is needed for every call", "Mend that first")]

        return checked

    async def of_facts(self) -> Iterable[Finding]:
        info = facts_in(await self._ask("INFO"))
        if self._purpose.holds_money:
            return facts.of_journal(info, await self._configuration(), self._purpose.place)
        findings = list(facts.of_limits(info, cluster=self._purpose.cluster))
        if self._purpose.cluster and info.get("cluster_enabled") == "1":
            findings.append(facts.of_cluster(facts_in(await self._ask("CLUSTER", "INFO"))))
        return findings

    async def _configuration(self) -> dict[str, str] | str:
        """What CONFIG tells, or why it does not."""
        told: dict[str, str] = {}
        try:
            for name in facts.CONFIGURATION:
                pair = await self._ask("CONFIG", "GET", name)
                told.update({pair[0].decode(): pair[1].decode()} if pair else {})
        except RedisError as error:
            return str(error)
        return told

    async def of_scripts(self) -> Iterable[Finding]:
        try:
            await self._script()
        except RedisError as error:
            found = str(unavailable(error)).removeprefix("Redis: ")
            why = "every step is a script that writes"
            return [unfit(f"{self._room} scripts", found, why, "Allow it: EVALSHA, SCRIPT LOAD, and writes")]
        return [ok(f"{self._room} scripts", "run, and write")]

    async def _script(self) -> None:
        cluster = self._purpose.cluster
        text = _SCRIPT_WITHOUT_KEYS if cluster else _SCRIPT
        keys = ("0",) if cluster else ("1", f"{self._purpose.place.prefix}doctor")
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        try:
            await self._ask("EVALSHA", sha, *keys)
        except NoScriptError:
            await self._ask("SCRIPT", "LOAD", text)
            await self._ask("EVALSHA", sha, *keys)

    async def of_latency(self) -> Iterable[Finding]:
        return [
            self._latency_finding("PING", await self._timed(lambda: self._ask("PING"))),
            self._latency_finding("a small script", await self._timed(self._script)),
        ]

    async def _timed(self, act: Callable[[], Awaitable[object]]) -> list[float]:
        """Milliseconds of each round, in order of size."""
        took: list[float] = []
        began = last = self._clock.mono()
        while len(took) < _ROUNDS and last - began < _ROUNDS_S:
            await act()
            now = self._clock.mono()
            took.append((now - last) * 1000)
            last = now
        return sorted(took)

    def _latency_finding(self, what: str, took_ms: list[float]) -> Finding:
        middle, worst = took_ms[len(took_ms) // 2], took_ms[math.ceil(len(took_ms) * 0.99) - 1]
        found = f"{what}: p50 {middle:.2f} ms, p99 {worst:.2f} ms over {len(took_ms)}"
        if worst <= _SLOW_MS:
            return ok(f"{self._room} latency", found)
        remedy = "Move it nearer; look at its disk, at slow commands (SLOWLOG GET) and at its CPU"
        return warning(f"{self._room} latency", found, "every payment waits for it at least twice", remedy)

    async def of_clock(self) -> Iterable[Finding]:
        """The quickest of three rounds says most: half of it is the most that the difference can be wrong by."""
        rounds = []
        for _ in range(3):
            before = self._clock.now()
            seconds, micros = await self._ask("TIME")
            after = self._clock.now()
            rounds.append((after - before, int(seconds) + int(micros) / 1e6 - (before + after) / 2))
        return [clock_finding(min(rounds)[1], self._purpose.lease_s)]

    async def of_identity(self) -> Iterable[Finding]:
        subject, key = f"{self._room} identity", f"{self._purpose.place.prefix}meta"
        kept = await self._ask("HGET", key, "identity_check")
        if kept is None:
            return [ok(subject, "it has none yet: it takes that of the first start")]
        if self._purpose.identity is None:
            return [ok(subject, "skipped: there is no identity secret to compare")]
        if kept.decode() != check_value(self._purpose.identity):
            why = "under another secret no earlier payment is recognised; a start is refused"
            remedy = "Set the secret of the other sidecars, or give this one a ?prefix= of its own"
            return [unfit(subject, "the journal was written under another one", why, remedy)]
        return [ok(subject, "the journal was written under this one")]

    async def _ask(self, *command: str) -> Any:
        await self._connection.send_command(*command, check_health=False)
        return await self._connection.read_response(disable_decoding=True)


def clock_finding(ahead_s: float, lease_s: float) -> Finding:
    """`ahead_s`: how much later it is there than here."""
    found = f"Redis is {abs(ahead_s):.3f} s {'ahead of' if ahead_s >= 0 else 'behind'} this machine"
    remedy = "Let both follow the same time servers (chrony, systemd-timesyncd)"
    if abs(ahead_s) > lease_s / 2:
        why = f"leases last {lease_s:g} s, and dates in records, webhooks and signatures would contradict each other"
        return unfit("journal clock", found, why, remedy)
    if abs(ahead_s) > _CLOCK_WARN_S:
        return warning("journal clock", found, "timelines of several machines would be out of order", remedy)
    return ok("journal clock", found)
