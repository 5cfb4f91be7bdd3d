"""Both event loops, certificates, and a client that the test closes."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest
from paywitness.upstream.tls import tls_context

CHARGE = WireRequest("POST", b"/v1/charges", ((b"Host", b"api.acme.test"),), b'{"amount":1000}')


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test of this room runs on both loops: what a socket does at its end differs between them."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and what it says about servers."""

    folder: Path
    name: str

    @property
    def root(self) -> str:
        return str(self.folder / f"{self.name}.pem")

    def server(self, name: str = "localhost") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key")
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return _found(tmp_path_factory.mktemp("authority"), "trusted")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no client of ours trusts."""
    return _found(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture
async def client(authority: Authority) -> AsyncIterator[UpstreamClient]:
    made = UpstreamClient(ssl_context=tls_context(cafile=authority.root))
    yield made
    await made.close()


def origin(port: int, scheme: str = "http") -> Origin:
    return Origin(scheme, "localhost" if scheme == "https" else "127.0.0.1", port)


def _found(folder: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    root = _certificate(name, key, issuer=name, issuer_key=key, alternatives=(), is_authority=True)
    (folder / f"{name}.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    for server, address in (("localhost", "127.0.0.1"), ("other.test", "127.0.0.9")):
        server_key = ec.generate_private_key(ec.SECP256R1())
        alternatives = (x509.DNSName(server), x509.IPAddress(ipaddress.ip_address(address)))
        issued = _certificate(server, server_key, issuer=name, issuer_key=key, alternatives=alternatives)
        (folder / f"{name}-{server}.pem").write_bytes(issued.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}-{server}.key").write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return Authority(folder, name)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    alternatives: tuple[x509.GeneralName, ...],
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
