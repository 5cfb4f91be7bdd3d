"""Opening: whether a Redis is fit to hold money."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable, JournalUnusable
from paywitness.journal.redis.journal import RedisJournal
from paywitness.redis import connection
from tests.journal.redis_server import RedisServer
from tests.journal.samples import asking


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("fitness"))
    server.start()
    yield server
    server.stop()


async def refused(url: str) -> str:
    with pytest.raises(JournalUnusable) as refusal:
        await RedisJournal.open(url)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("setting", "bad", "good", "advice"),
    [
        ("appendonly", "no", "yes", "set `appendonly yes`"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", "set maxmemory-policy noeviction"),
    ],
)
async def test_an_unfit_redis_is_refused_and_told_what_to_change(
    server: RedisServer, setting: str, bad: str, good: str, advice: str
) -> None:
    server.ask("CONFIG", "SET", setting, bad)
    try:
        assert advice in await refused(server.url)
    finally:
        server.ask("CONFIG", "SET", setting, good)
    await (await RedisJournal.open(server.url)).close()


async def test_where_config_is_forbidden_the_operator_vouches(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a managed Redis. The user may do what the journal needs, and no more."""
    rights = ["~paywitness:*", "+@read", "+@write", "+@scripting", "+info", "+time", "+wait", "+@connection"]
    server.ask("ACL", "SETUSER", "sidecar", "on", ">secret", "resetkeys", "-@all", *rights)
    url = server.url.replace("//", "//sidecar:secret@")
    assert "assert_persistence=yes" in await refused(url)
    journal = await RedisJournal.open(f"{url}?assert_persistence=yes")
    assert "the operator's word" in caplog.text
    assert (await journal.claim(asking())).verdict is ClaimVerdict.OWNED
    await journal.close()
    assert "may not do this" in await unavailable(f"{url}?assert_persistence=yes&prefix=foreign:")


async def unavailable(url: str) -> str:
    with pytest.raises(JournalUnavailable) as refusal:
        await RedisJournal.open(url)
    return str(refusal.value)


async def test_a_wrong_password_is_unfit_not_unavailable(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "ada", "on", ">right", "~*", "+@all")
    assert "user and password" in await refused(server.url.replace("//", "//ada:wrong@"))
    journal = await RedisJournal.open(server.url.replace("//", "//ada:right@"))
    await journal.close()


async def test_a_journal_of_a_newer_version_is_left_alone(server: RedisServer) -> None:
    server.ask("HSET", "newer:{j}:meta", "schema", "99")
    assert "newer paywitness" in await refused(f"{server.url}?prefix=newer:")


async def test_two_prefixes_are_two_journals(server: RedisServer) -> None:
    for name in ("one", "two"):
        journal = await RedisJournal.open(f"{server.url}?prefix={name}:")
        await journal.check_identity(f"identity of {name}")
        assert (await journal.claim(asking("the same key"))).verdict is ClaimVerdict.OWNED
        await journal.close()


async def test_over_tls_with_a_certificate_that_is_asked_for(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    plain = RedisServer(tmp_path / "tls", "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    plain.start_with_tls()
    try:
        url = f"rediss://127.0.0.1:{plain.tls_port}"
        journal = await RedisJournal.open(f"{url}?ca={certificate}")
        assert (await journal.claim(asking())).verdict is ClaimVerdict.OWNED
        await journal.close()
        with pytest.raises(JournalUnavailable, match=r"(?i)certificate"):
            await RedisJournal.open(url)
    finally:
        plain.kill()


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    places = folder / "certificate.pem", folder / "key.pem"
    places[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    places[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return places


def test_commands_look_the_same_with_and_without_the_extra() -> None:
    command = ("EVALSHA", "f" * 40, 1, "paywitness:{j}:", b"\x00\xff", "grün")
    assert connection.pack_command(command) == connection._pack_in_python(command)
