"""A Redis: whether it can be reached, and whether it is safe for a journal or for limits. A journal needs more.

The checks use a connection of their own, made as the journal makes its own. They write only one key, which expires.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError, RedisError

from paywitness.clock import Clock
from paywitness.core.identity import check_value
from paywitness.redis.connection import CONNECTION_FAILURES, connect_primary, parse_info, unavailable
from paywitness.redis.url import RedisTarget
from paywitness.tools.doctor.runner import CheckRunner, DoctorFinding, ok, run_in_daemon_thread, unfit, warning

# --- INFO and CONFIG
# Judgements on the facts of INFO and CONFIG. Pure: facts in, findings out.

CONFIGURATION = ("appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory", "min-replicas-to-write")

_VERSION_MIN = (7, 0)  # the journal requires the same when it is opened
_FULL_WARN, _FULL_UNFIT = 0.80, 0.95  # of the memory limit
_MIB = 1 << 20

Facts = dict[str, str]


def _online_replicas(info: Facts) -> int:
    """The replicas that are connected and synchronised."""
    reported = (info.get(f"slave{number}", "") for number in range(_number(info, "connected_slaves")))
    return sum("state=online" in replica for replica in reported)


def journal_findings(info: Facts, configured: Facts | str, address: RedisTarget) -> Iterator[DoctorFinding]:
    yield _version("journal", info)
    yield from _one_primary(info)
    if isinstance(configured, str):
        yield from _asserted_persistence(info, configured, address)
        configured = {}
    else:
        yield from _persistence(configured)
        yield _eviction(configured.get("maxmemory-policy", ""))
    yield from _disk(info)
    yield _memory(info)
    yield _replicas(_online_replicas(info), configured.get("min-replicas-to-write", "0"), address)


def limits_findings(info: Facts, *, cluster: bool) -> Iterator[DoctorFinding]:
    """Persistence and eviction are not checked: budgets and circuits may be lost without harm."""
    yield _version("limits", info)
    enabled = info.get("cluster_enabled") == "1"
    if enabled == cluster:
        yield ok("limits mode", "a Redis Cluster" if cluster else "one primary")
    elif enabled:
        why = "other nodes hold most of the keys"
        yield unfit("limits mode", "it is a Redis Cluster", why, "Write --limits redis+cluster://...")
    else:
        why = "a cluster client needs slots, and it has none"
        yield unfit("limits mode", "it is no Redis Cluster", why, "Write --limits redis://...")
    if not cluster and info.get("role", "master") != "master":
        yield unfit("limits role", "it is a replica", "it takes no writes", "Name the primary, or its sentinels")


def cluster_finding(reported: Facts) -> DoctorFinding:
    state = reported.get("cluster_state", "unknown")
    if state == "ok":
        return ok("limits cluster", f"{reported.get('cluster_size', '?')} primaries, all slots served")
    return unfit("limits cluster", f"its state is {state}", "some slots are not served", "See CLUSTER INFO")


def _version(component: str, info: Facts) -> DoctorFinding:
    version = info.get("redis_version", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _VERSION_MIN:
        needed = f"{_VERSION_MIN[0]}.{_VERSION_MIN[1]}"
        return unfit(f"{component} version", version, f"its scripts need {needed}", f"Use Redis {needed} or newer")
    return ok(f"{component} version", version)


def _one_primary(info: Facts) -> Iterator[DoctorFinding]:
    if info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster":
        why = "a step uses keys that a cluster would spread over nodes"
        yield unfit("journal mode", "it is a Redis Cluster", why, "Use one primary, with replicas and sentinels")
    elif info.get("role") != "master":
        yield unfit("journal mode", "it is a replica", "it takes no writes", "Name the primary, or its sentinels")
    else:
        yield ok("journal mode", "one primary")


def _asserted_persistence(info: Facts, refusal: str, address: RedisTarget) -> Iterator[DoctorFinding]:
    subject = "journal persistence"
    if not address.persistence_asserted:
        why = "persistence and eviction cannot be checked, and a start is refused"
        remedy = "Check both by other means, then add ?assert_persistence=yes to the URL; or allow CONFIG GET"
        yield unfit(subject, f"CONFIG is forbidden ({refusal})", why, remedy)
        return
    why = "persistence and eviction were not checked"
    remedy = "Check both again when the plan at its provider changes"
    yield warning(
        subject, "CONFIG is forbidden; the operator vouches for both with assert_persistence=yes", why, remedy
    )
    if info.get("aof_enabled") == "0":
        why = "unless it is durable in another way, it loses acknowledged writes when it stops"
        yield warning(subject, "INFO shows no append-only file", why, "Check its durability")
    policy = info.get("maxmemory_policy")
    if policy is not None:
        yield _eviction(policy)


def _persistence(configured: Facts) -> Iterator[DoctorFinding]:
    subject, fsync = "journal persistence", configured.get("appendfsync", "unknown")
    if configured.get("appendonly") != "yes":
        snapshots = f"save is `{configured.get('save')}`" if configured.get("save") else "it makes no snapshots either"
        why = "it loses acknowledged payments when it stops"
        remedy = "Set `appendonly yes` (CONFIG SET, and in redis.conf)"
        yield unfit(subject, f"appendonly is no, {snapshots}", why, remedy)
        return
    if fsync == "always":
        yield ok(subject, "appendonly yes, appendfsync always")
    elif fsync == "everysec":
        why = "a power failure loses up to two seconds; so does a killed Redis with a slow disk"
        remedy = "Add a replica on another machine (we wait for it before a send), or set `appendfsync always`"
        yield warning(subject, "appendonly yes, appendfsync everysec", why, remedy)
    else:
        why = "a power failure loses everything that the system had not yet written, perhaps half a minute"
        yield unfit(subject, f"appendonly yes, appendfsync {fsync}", why, "Set `appendfsync everysec` or `always`")
    if configured.get("save"):
        yield ok("journal snapshots", f"save is `{configured['save']}`", "only the append-only file counts")


def _eviction(policy: str) -> DoctorFinding:
    if policy == "noeviction":
        return ok("journal eviction", "maxmemory-policy noeviction")
    why = "if its memory is full, it deletes payments, and they could be made again"
    remedy = "Set `maxmemory-policy noeviction` (CONFIG SET, and in redis.conf)"
    return unfit("journal eviction", f"maxmemory-policy {policy or 'unknown'}", why, remedy)


def _disk(info: Facts) -> Iterator[DoctorFinding]:
    """Failed writes that Redis reports. By default a failed snapshot stops writes, too."""
    for name, what in (
        ("aof_last_write_status", "append-only file"),
        ("rdb_last_bgsave_status", "last snapshot"),
        ("aof_last_bgrewrite_status", "last rewrite of the append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            why = "with a failing disk it refuses writes"
            yield unfit("journal disk", f"its {what} failed ({name})", why, "Check its log and its disk")


def _memory(info: Facts) -> DoctorFinding:
    subject, used = "journal memory", _number(info, "used_memory")
    limit, of_what = _number(info, "maxmemory"), "maxmemory"
    if not limit:
        limit, of_what = _number(info, "total_system_memory"), "the machine's (maxmemory is not set)"
    if not limit:
        return ok(subject, f"{used // _MIB:,} MiB used")
    share, found = used / limit, f"{used // _MIB:,} MiB used of {limit // _MIB:,} MiB, {of_what}"
    if share <= _FULL_WARN:
        return ok(subject, found)
    make_finding = unfit if share > _FULL_UNFIT else warning
    return make_finding(
        subject, found, "when it is full, no payment is accepted", "Raise maxmemory, or shorten --retention"
    )


def _replicas(connected: int, wanted_by_redis: str, address: RedisTarget) -> DoctorFinding:
    subject = "journal replicas"
    found = f"{connected} connected, min-replicas-to-write {wanted_by_redis}"
    needed = int(wanted_by_redis) if wanted_by_redis.isdecimal() else 0
    if address.replicas is not None:
        found += f", replicas={address.replicas} in the URL"
        needed = max(needed, address.replicas)
    if connected < needed:
        why = "fewer than required: nothing would be sent"
        return unfit(subject, found, why, "Start the replicas, or require fewer")
    if not connected and address.replicas is None:
        why = "if its machine is lost, the journal is lost"
        return warning(subject, found, why, "Add a replica on another machine; we then wait for it before a send")
    return ok(subject, found)


def _number(info: Facts, name: str) -> int:
    text = info.get(name, "0")
    return int(text) if text.isdecimal() else 0


# --- Checks

_ROUNDS = 100
_ROUNDS_S = 1.0  # a slow Redis shows within fewer rounds
_SLOW_MS = 5.0  # a call makes at least two round trips before its reply
_CLOCK_WARN_S = 1.0
_SCRIPT = "redis.call('SET', KEYS[1], '1', 'PX', 10000) return 1"  # ms, then it expires
_SCRIPT_WITHOUT_KEYS = "return 1"  # a node of a cluster holds only some keys


@dataclass(frozen=True, slots=True)
class RedisPurpose:
    """The purpose that a Redis is checked for: journal or limits."""

    component: str  # "journal", "limits"
    address: RedisTarget
    lease_s: float
    identity: bytes | None = None

    @property
    def holds_money(self) -> bool:
        return self.component == "journal"


async def check_redis(purpose: RedisPurpose, runner: CheckRunner) -> None:
    """Run all checks in order on one connection. If one ends without a reply, the rest is skipped."""
    opened: list[Connection] = []

    async def connect() -> list[DoctorFinding]:
        await run_in_daemon_thread(lambda: _resolve_names(purpose.address))
        try:
            opened.append(await connect_primary(purpose.address))
        except CONNECTION_FAILURES as error:
            return [_unreachable_finding(purpose, error)]
        return [ok(f"{purpose.component} reachable", f"Redis at {purpose.address}"), _tls_finding(purpose, opened[0])]

    await runner.check(f"{purpose.component} reachable", connect)
    if not opened:
        return
    redis_checks = _RedisChecks(purpose, opened[0], runner.clock)
    try:
        for name, check in redis_checks.checks():
            if not await runner.check(f"{purpose.component} {name}", redis_checks.errors_as_findings(name, check)):
                return  # the next reply on this connection could belong to an earlier command
    finally:
        await opened[0].disconnect(nowait=True)


def _resolve_names(address: RedisTarget) -> None:
    """Resolve the names in a thread, before the event loop does: at its end the loop would wait for a name server that
    hangs."""
    for host, port in address.hosts:
        with contextlib.suppress(OSError):  # the connection attempt reports it
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _unreachable_finding(purpose: RedisPurpose, error: Exception) -> DoctorFinding:
    found = f"Redis at {purpose.address}: {str(unavailable(error)).removeprefix('Redis: ')}"
    if purpose.holds_money:
        why = "without the journal nothing is sent"
    else:
        why = "every sidecar would limit only itself"
    return unfit(f"{purpose.component} reachable", found, why, "Start it, or correct address, user, password or TLS")


def _tls_finding(purpose: RedisPurpose, connection: Connection) -> DoctorFinding:
    subject = f"{purpose.component} TLS"
    if purpose.address.tls:
        return ok(subject, "encrypted, its certificate verified")
    if is_loopback(connection.host):
        return ok(subject, "none; it is on this machine")
    why = "its password and its data cross the network unencrypted"
    return warning(subject, "none", why, "Use rediss:// (with ca= for a private authority)")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_Check = Callable[[], Awaitable[Iterable[DoctorFinding]]]


class _RedisChecks:
    """The checks of one Redis, in order."""

    def __init__(self, purpose: RedisPurpose, connection: Connection, clock: Clock) -> None:
        self._purpose = purpose
        self._connection = connection
        self._clock = clock
        self._component = purpose.component

    def checks(self) -> tuple[tuple[str, _Check], ...]:
        common = (("facts", self.check_facts), ("scripts", self.check_scripts), ("latency", self.check_latency))
        if not self._purpose.holds_money:
            return common
        return (*common, ("clock", self.check_clock), ("identity", self.check_identity))

    def errors_as_findings(self, name: str, check: _Check) -> _Check:
        """The check, with a command that Redis refuses as a finding."""

        async def checked() -> Iterable[DoctorFinding]:
            try:
                return await check()
            except RedisError as error:
                found = str(unavailable(error)).removeprefix("Redis: ")
                return [unfit(f"{self._component} {name}", found, "every call needs this", "Correct that first")]

        return checked

    async def check_facts(self) -> Iterable[DoctorFinding]:
        info = parse_info(await self._execute("INFO"))
        if self._purpose.holds_money:
            return journal_findings(info, await self._configuration(), self._purpose.address)
        findings = list(limits_findings(info, cluster=self._purpose.address.cluster))
        if self._purpose.address.cluster and info.get("cluster_enabled") == "1":
            findings.append(cluster_finding(parse_info(await self._execute("CLUSTER", "INFO"))))
        return findings

    async def _configuration(self) -> dict[str, str] | str:
        """The answer to CONFIG GET, or the error if it is refused."""
        configuration: dict[str, str] = {}
        try:
            for name in CONFIGURATION:
                pair = await self._execute("CONFIG", "GET", name)
                configuration.update({pair[0].decode(): pair[1].decode()} if pair else {})
        except RedisError as error:
            return str(error)
        return configuration

    async def check_scripts(self) -> Iterable[DoctorFinding]:
        try:
            await self._run_script()
        except RedisError as error:
            found = str(unavailable(error)).removeprefix("Redis: ")
            why = "every step is a script that writes"
            return [unfit(f"{self._component} scripts", found, why, "Allow it: EVALSHA, SCRIPT LOAD, and writes")]
        return [ok(f"{self._component} scripts", "run, and write")]

    async def _run_script(self) -> None:
        cluster = self._purpose.address.cluster
        text = _SCRIPT_WITHOUT_KEYS if cluster else _SCRIPT
        colon = "" if self._purpose.holds_money else ":"  # a journal's prefix already ends with it
        keys = ("0",) if cluster else ("1", f"{self._purpose.address.prefix}{colon}doctor")
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        try:
            await self._execute("EVALSHA", sha, *keys)
        except NoScriptError:
            await self._execute("SCRIPT", "LOAD", text)
            await self._execute("EVALSHA", sha, *keys)

    async def check_latency(self) -> Iterable[DoctorFinding]:
        return [
            self._latency_finding("PING", await self._timed(lambda: self._execute("PING"))),
            self._latency_finding("a small script", await self._timed(self._run_script)),
        ]

    async def _timed(self, round_trip: Callable[[], Awaitable[object]]) -> list[float]:
        """The milliseconds of each round, sorted."""
        took: list[float] = []
        began = last = self._clock.mono()
        while len(took) < _ROUNDS and last - began < _ROUNDS_S:
            await round_trip()
            now = self._clock.mono()
            took.append((now - last) * 1000)
            last = now
        return sorted(took)

    def _latency_finding(self, what: str, took_ms: list[float]) -> DoctorFinding:
        middle, worst = took_ms[len(took_ms) // 2], took_ms[math.ceil(len(took_ms) * 0.99) - 1]
        found = f"{what}: p50 {middle:.2f} ms, p99 {worst:.2f} ms over {len(took_ms)}"
        if worst <= _SLOW_MS:
            return ok(f"{self._component} latency", found)
        remedy = "Move it nearer; check its disk, its slow commands (SLOWLOG GET) and its CPU"
        return warning(f"{self._component} latency", found, "every payment waits for it at least twice", remedy)

    async def check_clock(self) -> Iterable[DoctorFinding]:
        """Compare the clocks three times, and take the quickest round: its error is at most half its duration."""
        rounds = []
        for _ in range(3):
            before = self._clock.now()
            seconds, micros = await self._execute("TIME")
            after = self._clock.now()
            rounds.append((after - before, int(seconds) + int(micros) / 1e6 - (before + after) / 2))
        return [clock_finding(min(rounds)[1], self._purpose.lease_s)]

    async def check_identity(self) -> Iterable[DoctorFinding]:
        subject, key = f"{self._component} identity", f"{self._purpose.address.prefix}meta"
        stored = await self._execute("HGET", key, "identity_check")
        if stored is None:
            return [ok(subject, "it has none yet: the first start sets it")]
        if self._purpose.identity is None:
            return [ok(subject, "skipped: there is no identity secret to compare")]
        if stored.decode() != check_value(self._purpose.identity):
            why = "with another secret no earlier payment is recognised; a start is refused"
            remedy = "Set the secret of the other sidecars, or give this one a ?prefix= of its own"
            return [unfit(subject, "the journal was written with another secret", why, remedy)]
        return [ok(subject, "the journal was written with this secret")]

    async def _execute(self, *command: str) -> Any:
        await self._connection.send_command(*command, check_health=False)
        return await self._connection.read_response(disable_decoding=True)


def clock_finding(ahead_s: float, lease_s: float) -> DoctorFinding:
    """`ahead_s`: how far the clock of Redis is ahead of ours."""
    found = f"Redis is {abs(ahead_s):.3f} s {'ahead of' if ahead_s >= 0 else 'behind'} this machine"
    remedy = "Let both follow the same time servers (chrony, systemd-timesyncd)"
    if abs(ahead_s) > lease_s / 2:
        why = f"leases last {lease_s:g} s, and times of records, webhooks and signatures would contradict each other"
        return unfit("journal clock", found, why, remedy)
    if abs(ahead_s) > _CLOCK_WARN_S:
        return warning("journal clock", found, "timelines of several machines would be out of order", remedy)
    return ok("journal clock", found)
