"""The doctor looks at a real Redis."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis.asyncio.connection import Connection

from paywitness.clock import SystemClock
from paywitness.core.identity import check_value
from paywitness.option_defaults import IDENTITY_SECRET
from paywitness.redis.url import RedisTarget
from paywitness.tools.doctor import runner as check_runner
from paywitness.tools.doctor.redis_checks import RedisPurpose, _RedisChecks, _tls_finding, journal_findings
from paywitness.tools.doctor.runner import Severity
from tests.journal.redis_server import RedisServer
from tests.tools.conftest import SECRETS, Installation, everything, found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("doctor"), "--appendfsync", "always")
    server.start()
    yield server
    server.stop()


@contextmanager
def configured(server: RedisServer, name: str, value: str) -> Iterator[None]:
    before = server.ask("CONFIG", "GET", name).split(b"\r\n")[4].decode()
    assert server.ask("CONFIG", "SET", name, value) == b"+OK\r\n"
    yield
    server.ask("CONFIG", "SET", name, before)


async def test_a_healthy_redis_is_fit(installation: Installation, server: RedisServer) -> None:
    report = await installation.examined(journal=server.url, limits=server.url)
    assert report.fit, everything(report)
    for subject in ("version", "mode", "persistence", "eviction", "scripts", "clock", "identity", "TLS"):
        assert found(report, f"journal {subject}").severity is Severity.OK
    assert found(report, "journal replicas").severity is Severity.WARNING
    assert sum(finding.subject == "journal latency" for finding in report.findings) == 2
    assert found(report, "limits mode").severity is Severity.OK
    assert "limits persistence" not in everything(report)
    assert server.ask("EXISTS", "paywitness:{j}:meta") == b":0\r\n"  # it left the journal as it was


@pytest.mark.parametrize(
    ("name", "value", "subject", "fitness", "advice"),
    [
        ("maxmemory-policy", "allkeys-lru", "eviction", Severity.UNFIT, "noeviction"),
        ("maxmemory-policy", "volatile-ttl", "eviction", Severity.UNFIT, "noeviction"),
        ("appendonly", "no", "persistence", Severity.UNFIT, "appendonly yes"),
        ("appendfsync", "everysec", "persistence", Severity.WARNING, "appendfsync always"),
        ("appendfsync", "no", "persistence", Severity.UNFIT, "everysec"),
        ("min-replicas-to-write", "1", "replicas", Severity.UNFIT, "replicas"),
    ],
)
async def test_what_is_wrong_is_told_with_what_to_change(
    installation: Installation,
    server: RedisServer,
    name: str,
    value: str,
    subject: str,
    fitness: Severity,
    advice: str,
) -> None:
    with configured(server, name, value):
        finding = found(await installation.examined(journal=server.url), f"journal {subject}")
    assert finding.severity is fitness
    assert advice in finding.remedy


async def test_limits_need_neither_persistence_nor_memory_that_stays(
    installation: Installation, server: RedisServer
) -> None:
    with configured(server, "appendonly", "no"), configured(server, "maxmemory-policy", "allkeys-lru"):
        assert (await installation.examined(limits=server.url)).fit


@pytest.mark.parametrize("room", ["journal", "limits"])
async def test_one_that_cannot_be_reached_is_unfit(installation: Installation, room: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    report = await installation.examined(**{room: f"redis://ada:hidden@127.0.0.1:{port}"})
    assert found(report, f"{room} reachable").severity is Severity.UNFIT
    assert "hidden" not in everything(report)


async def test_one_that_takes_connections_and_says_nothing_is_unfit(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_runner, "CHECK_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        report = await installation.examined(journal=f"redis://127.0.0.1:{mute.getsockname()[1]}")
    silent = [finding for finding in report.findings if "no answer in" in finding.found]
    assert [finding.subject for finding in silent] == ["journal facts"]


async def test_a_wrong_password_is_unfit_and_not_shown(installation: Installation, server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "ada", "on", ">right", "~*", "+@all")
    report = await installation.examined(journal=server.url.replace("//", "//ada:mistaken@"))
    finding = found(report, "journal reachable")
    assert finding.severity is Severity.UNFIT
    assert "user and password" in finding.found
    assert "mistaken" not in everything(report)
    assert "ada" not in finding.line


@pytest.mark.parametrize(
    "url",
    ["redis://ada:hid/den@h:1", "redis://ada:hid#den@h", "redis://ada:hidden@h?colour=red", "redsi://ada:hidden@h"],
)
async def test_a_url_that_cannot_be_read_shows_no_password(installation: Installation, url: str) -> None:
    report = await installation.examined(journal=url, limits=url)
    assert not report.fit
    assert "hid" not in everything(report)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://h:many", "its port is no number"),
        ("redis://h/first", "its database is no number"),
        ("redis+sentinel://h", "it names no service"),
        ("redis://", "it names no host"),
    ],
)
async def test_a_url_that_cannot_be_read_is_told_with_the_reason(
    installation: Installation, url: str, why: str
) -> None:
    report = await installation.examined(journal=url, limits=url)
    for component in ("journal", "limits"):
        assert why in found(report, f"{component} URL").found


async def test_limits_take_a_scheme_that_a_journal_does_not(installation: Installation) -> None:
    report = await installation.examined(limits="redsi://h")
    assert "redis+cluster://" in found(report, "limits URL").found


async def test_where_config_is_forbidden_the_operators_word_is_told(
    installation: Installation, server: RedisServer
) -> None:
    rights = ["~paywitness:*", "+@read", "+@write", "+@scripting", "+info", "+time", "+wait", "+@connection"]
    server.ask("ACL", "SETUSER", "sidecar", "on", ">secret", "resetkeys", "-@all", *rights)
    url = server.url.replace("//", "//sidecar:secret@")
    finding = found(await installation.examined(journal=url), "journal persistence")
    assert finding.severity is Severity.UNFIT
    assert "assert_persistence=yes" in finding.remedy
    report = await installation.examined(journal=f"{url}?assert_persistence=yes")
    assert report.fit, everything(report)
    assert found(report, "journal persistence").severity is Severity.WARNING
    assert found(report, "journal eviction").severity is Severity.OK


async def test_a_user_that_may_not_run_scripts_is_unfit(installation: Installation, server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-@scripting")
    report = await installation.examined(journal=server.url.replace("//", "//reader:secret@"))
    assert found(report, "journal scripts").severity is Severity.UNFIT


async def test_its_identity_is_compared(installation: Installation, server: RedisServer) -> None:
    url = f"{server.url}?prefix=mine:"
    server.ask("HSET", "mine:{j}:meta", "identity_check", check_value(SECRETS[IDENTITY_SECRET].encode()))
    assert "with this secret" in found(await installation.examined(journal=url), "journal identity").found
    installation.environment[IDENTITY_SECRET] = "the identity of quite another journal, 9876543210"
    assert found(await installation.examined(journal=url), "journal identity").severity is Severity.UNFIT


async def test_a_cluster_may_hold_limits_and_no_journal(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = RedisServer(tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes")
    cluster.start()
    try:
        report = await installation.examined(journal=cluster.url, limits=cluster.url)
        assert found(report, "journal mode").severity is Severity.UNFIT
        assert "redis+cluster://" in found(report, "limits mode").remedy
        url = cluster.url.replace("redis://", "redis+cluster://").removesuffix("/0")
        report = await installation.examined(limits=url)
        assert found(report, "limits mode").severity is Severity.OK
        assert found(report, "limits cluster").severity is Severity.UNFIT  # it has no slots yet
    finally:
        cluster.kill()


HEALTHY = {"redis_version": "7.0.15", "role": "master", "used_memory": "100", "maxmemory": "1000"}
CONFIGURED = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


@pytest.mark.parametrize(
    ("changed", "subject", "fitness"),
    [
        ({"redis_version": "6.2.7"}, "version", Severity.UNFIT),
        ({"redis_version": "8.0.0"}, "version", Severity.OK),
        ({"role": "slave"}, "mode", Severity.UNFIT),
        ({"used_memory": "850"}, "memory", Severity.WARNING),
        ({"used_memory": "960"}, "memory", Severity.UNFIT),
        ({"aof_last_write_status": "err"}, "disk", Severity.UNFIT),
        ({"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=5,lag=0"}, "replicas", Severity.OK),
        ({"connected_slaves": "1", "slave0": "ip=h,port=1,state=wait_bgsave,offset=0"}, "replicas", Severity.WARNING),
    ],
)
def test_what_redis_says_of_itself(changed: dict[str, str], subject: str, fitness: Severity) -> None:
    findings = journal_findings({**HEALTHY, **changed}, CONFIGURED, RedisTarget((("h", 1),)))
    assert [one.severity for one in findings if one.subject == f"journal {subject}"] == [fitness]


@pytest.mark.parametrize(
    ("host", "tls", "fitness"),
    [
        ("10.0.0.1", False, Severity.WARNING),
        ("redis.internal", False, Severity.WARNING),
        ("redis.internal", True, Severity.OK),
        ("localhost", False, Severity.OK),
        ("::1", False, Severity.OK),
    ],
)
def test_what_crosses_the_network_in_the_clear_is_told(host: str, tls: bool, fitness: Severity) -> None:
    purpose = RedisPurpose("journal", RedisTarget(((host, 1),), tls=tls), 30.0)
    assert _tls_finding(purpose, Connection(host=host)).severity is fitness


def test_a_slow_redis_is_a_warning() -> None:
    look = _RedisChecks(RedisPurpose("journal", RedisTarget((("h", 1),)), 30.0), Connection(), SystemClock())
    assert look._latency_finding("PING", [0.1] * 99 + [6.0]).severity is Severity.OK
    assert look._latency_finding("PING", [0.1] * 98 + [6.0] * 2).severity is Severity.WARNING
    assert look._latency_finding("PING", [600.0]).severity is Severity.WARNING
