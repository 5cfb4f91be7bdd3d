"""Certificates, made by `cryptography`: the CA's own, bound to names, and short-lived ones for single hosts, with their
TLS contexts.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paywitness.clock import Clock
from paywitness.core.errors import SettingsError

LOCAL_CA_DAYS = 365
HOST_CERTIFICATE_S = 24 * 3600.0
_BACKDATED = timedelta(hours=1)  # a client's clock may be behind ours
_EVERY_ADDRESS = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class LocalCa:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it may vouch for: these, and those below them."""
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
        """The hosts of a policy, wildcards among them, that it may not vouch for."""
        return tuple(sorted(host for host in hosts if not self.covers(host.removeprefix("*"))))


@dataclass(frozen=True, slots=True)
class HostCertificate:
    """The certificate that we present as one host. It lives for a day at most."""

    host: str
    pem: bytes  # certificate and key, as OpenSSL loads them
    ends_at: datetime


def permitted_names(hosts: Iterable[str]) -> tuple[str, ...]:
    """The names that an authority for these hosts must cover. `*.example.com` and `*-live.example.com` need
    example.com."""
    found = {host.partition(".")[2] if host.startswith("*") else host for host in hosts}
    return tuple(sorted(found))


def make_local_ca(hosts: Iterable[str], now: datetime, *, key: ec.EllipticCurvePrivateKey | None = None) -> LocalCa:
    """An authority for these hosts. With `key` it is the same authority for other hosts, so clients that trust it keep
    their trust."""
    names = permitted_names(hosts)
    if not names:
        raise SettingsError("no policy names a host that clients could call, so there is nothing to vouch for")
    key = key or ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _common_name(f"Paywitness local authority {identifier.digest.hex()[:8]}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=LOCAL_CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_key_usage(), critical=True)
        .add_extension(_name_constraints(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return LocalCa(certificate, key)


def make_host_certificate(
    local_ca: LocalCa, host: str, key: ec.EllipticCurvePrivateKey, now: datetime
) -> HostCertificate:
    """A certificate for one host. The authority must cover the host. Otherwise clients would refuse the certificate."""
    ends_at = min(now + timedelta(seconds=HOST_CERTIFICATE_S), local_ca.ends_at)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_common_name(host))
        .issuer_name(local_ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends_at)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(local_ca.key.public_key()), critical=False)
        .sign(local_ca.key, hashes.SHA256())
    )
    return HostCertificate(host, certificate.public_bytes(serialization.Encoding.PEM) + _key_pem(key), ends_at)


def load_local_ca(certificate_pem: bytes, key_pem: bytes) -> LocalCa:
    """Load a stored authority. Raises ValueError if it is not one of ours, or if certificate and key do not belong
    together."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("certificate and key are not of one pair")
    try:
        certificate.extensions.get_extension_for_class(x509.NameConstraints)
    except x509.ExtensionNotFound:
        raise ValueError("the certificate is bound to no names") from None
    return LocalCa(certificate, key)


def utc_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _name_constraints(names: Iterable[str]) -> x509.NameConstraints:
    """These names and those below them. No IP address at all, which a list of names alone would permit."""
    return x509.NameConstraints(
        [x509.DNSName(name) for name in names], [x509.IPAddress(addresses) for addresses in _EVERY_ADDRESS]
    )


def _ca_key_usage() -> x509.KeyUsage:
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


# --- Host certificates
# TLS contexts of single hosts. They are made on the first request, and again well before they end.

_CACHED_MAX = 256  # hosts at a time; a wildcard in a policy may match any number
_RENEWED_BEFORE = timedelta(seconds=HOST_CERTIFICATE_S / 2)


@dataclass(slots=True)
class _CachedHostCertificate:
    local_ca: LocalCa
    certificate: HostCertificate
    context: ssl.SSLContext


class HostCertificates:
    """The server's TLS contexts for the hosts of policies."""

    def __init__(self, local_ca: Callable[[], LocalCa | None], clock: Clock) -> None:
        self._current_ca = local_ca  # the CA in force; it may change while we run
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())  # one for all leaves of this process; never stored
        self._cached: OrderedDict[str, _CachedHostCertificate] = OrderedDict()

    def context_for(self, host: str) -> ssl.SSLContext | None:
        """The TLS context for the host. None if no authority covers it: clients would refuse any certificate of
        ours."""
        local_ca = self._current_ca()
        if local_ca is None or not local_ca.covers(host):
            return None
        now = utc_datetime(self._clock.now())
        cached = self._cached.get(host)
        if cached is None or cached.local_ca is not local_ca or cached.certificate.ends_at - now < _RENEWED_BEFORE:
            certificate = make_host_certificate(local_ca, host, self._key, now)
            cached = self._cached[host] = _CachedHostCertificate(local_ca, certificate, _server_context(certificate))
            if len(self._cached) > _CACHED_MAX:
                self._cached.popitem(last=False)
        self._cached.move_to_end(host)
        return cached.context


def _require_sni(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    """Refuse any other name on a connection that was opened for this host."""

    def answer(session: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int | None:
        same = name is None or name.lower().removesuffix(".") == host
        return None if same else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    return answer


def _server_context(certificate: HostCertificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])  # without HTTP/2, clients speak 1.1
    context.sni_callback = _require_sni(certificate.host)
    descriptor = os.memfd_create("leaf")  # OpenSSL loads only from files; this one is in memory, and only ours
    try:
        os.write(descriptor, certificate.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
