"""Certificates, made by `cryptography`: the authority's own, bound to names, and short-lived ones of single hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxy.core.errors import SettingsError

AUTHORITY_DAYS = 365
LEAF_S = 24 * 3600.0
_BACKDATED = timedelta(hours=1)  # clients' clocks are not ours
_EVERY_ADDRESS = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def names(self) -> tuple[str, ...]:
        """What it may vouch for: these names, and those below them."""
        constraints = self.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        return tuple(name.value for name in constraints.permitted_subtrees or () if isinstance(name, x509.DNSName))

    @property
    def ends_at(self) -> datetime:
        return self.certificate.not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        """SHA-256, as `openssl x509 -fingerprint -sha256` prints it."""
        return self.certificate.fingerprint(hashes.SHA256()).hex(":").upper()

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self.key)

    def covers(self, host: str) -> bool:
        return any(host == name or host.endswith(f".{name}") for name in self.names)

    def missing(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Those of a policy's hosts, wildcards among them, that it may not vouch for."""
        return tuple(sorted(host for host in hosts if not self.covers(host.removeprefix("*"))))


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one host is impersonated with, for a day at most."""

    host: str
    pem: bytes  # certificate and key, as OpenSSL loads them
    ends_at: datetime


def names_of(hosts: Iterable[str]) -> tuple[str, ...]:
    """What an authority must be allowed to vouch for. `*.example.com` needs example.com, `*-live.example.com` too."""
    found = {host.partition(".")[2] if host.startswith("*") else host for host in hosts}
    return tuple(sorted(found))


def make_authority(hosts: Iterable[str], now: datetime, *, key: ec.EllipticCurvePrivateKey | None = None) -> Authority:
    """An authority for these hosts. With `key` the same one again, for other hosts: whoever trusted it goes on."""
    names = names_of(hosts)
    if not names:
        raise SettingsError("no policy names a host that clients could call, so there is nothing to vouch for")
    key = key or ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _named(f"Paywitness local authority {identifier.digest.hex()[:8]}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .add_extension(_bound_to(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def make_leaf(authority: Authority, host: str, key: ec.EllipticCurvePrivateKey, now: datetime) -> Leaf:
    """A certificate for one host. The authority must cover it: clients would refuse it otherwise."""
    ends_at = min(now + timedelta(seconds=LEAF_S), authority.ends_at)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_named(host))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends_at)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Leaf(host, certificate.public_bytes(serialization.Encoding.PEM) + _key_pem(key), ends_at)


def read_authority(certificate_pem: bytes, key_pem: bytes) -> Authority:
    """What was kept. Raises ValueError where it is not one of ours, or certificate and key are not of one pair."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("certificate and key are not of one pair")
    try:
        certificate.extensions.get_extension_for_class(x509.NameConstraints)
    except x509.ExtensionNotFound:
        raise ValueError("the certificate is bound to no names") from None
    return Authority(certificate, key)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _bound_to(names: Iterable[str]) -> x509.NameConstraints:
    """These names and those below them; no address whatever, which a list of names alone would leave open."""
    return x509.NameConstraints(
        [x509.DNSName(name) for name in names], [x509.IPAddress(addresses) for addresses in _EVERY_ADDRESS]
    )


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
