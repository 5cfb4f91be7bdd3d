"""RSA signatures, checked with a public key or a certificate. All the arithmetic and parsing is the library's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from paywitness.webhook_signatures.scheme import decode_or_empty

_KEY_BITS_MIN = 2048
_PARSED_KEYS_MAX = 64  # kept parsed


@dataclass(frozen=True, slots=True)
class SignerCertificate:
    """What matters of one: its key, whose it is, and when it is good."""

    key: RSAPublicKey
    names: tuple[str, ...]  # its common names and DNS names, in lower case
    not_before_at: float
    not_after_at: float


@lru_cache(maxsize=_PARSED_KEYS_MAX)
def parse_public_key(text: bytes) -> RSAPublicKey | None:
    """The public key that is written in PEM, or in base64 on one line; None where there is none, or too short a one."""
    text = text.strip()
    try:
        if text.startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(text)
        else:
            key = serialization.load_der_public_key(decode_or_empty(text, "base64"))
    except Exception:  # noqa: BLE001  # whatever the library raises for odd text, it is no key
        return None
    return key if isinstance(key, RSAPublicKey) and key.key_size >= _KEY_BITS_MIN else None


@lru_cache(maxsize=_PARSED_KEYS_MAX)
def parse_certificate(pem: bytes) -> SignerCertificate | None:
    """The first certificate of the text, which is the signer's own; None where there is none that could sign."""
    try:
        first = x509.load_pem_x509_certificates(pem)[0]
        key = first.public_key()
        names = [str(name.value) for name in first.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        try:
            more = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names += more.get_values_for_type(x509.DNSName)
        except x509.ExtensionNotFound:
            pass  # an old one is named by its common name alone
        from_at, until_at = first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()
    except Exception:  # noqa: BLE001  # whatever the library raises for odd text, it is no certificate
        return None
    if not isinstance(key, RSAPublicKey) or key.key_size < _KEY_BITS_MIN:
        return None
    return SignerCertificate(key, tuple(name.lower() for name in names), from_at, until_at)


def verify_rsa(key: RSAPublicKey, signature: bytes, text: bytes) -> bool:
    """RSA with PKCS #1 v1.5 and SHA-256."""
    try:
        key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True
