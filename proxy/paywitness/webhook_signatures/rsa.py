"""RSA signatures, checked with a public key or a certificate. The library does all arithmetic and parsing."""

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
_PARSED_KEYS_MAX = 64  # parsed keys in the cache


@dataclass(frozen=True, slots=True)
class SignerCertificate:
    """The facts about a certificate that a check needs: its key, its owner's names, its validity."""

    key: RSAPublicKey
    names: tuple[str, ...]  # common names and DNS names, in lower case
    not_before_at: float
    not_after_at: float


@lru_cache(maxsize=_PARSED_KEYS_MAX)
def parse_public_key(text: bytes) -> RSAPublicKey | None:
    """A public key in PEM, or in base64 on one line. None if it is not valid or too short."""
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
    """The first certificate of the text, which is the signer's own. None if none could sign."""
    try:
        first = x509.load_pem_x509_certificates(pem)[0]
        key = first.public_key()
        names = [str(name.value) for name in first.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        try:
            more = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names += more.get_values_for_type(x509.DNSName)
        except x509.ExtensionNotFound:
            pass  # an old certificate has only a common name
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
