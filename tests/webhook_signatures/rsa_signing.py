"""How senders sign with RSA: keys, certificates and signatures, made for a test."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.webhook_signatures.signing import NOW

SIGNER = "messageverificationcerts.paypal.com"


def key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """The same one for the same number."""
    return _made(number, bits)


@cache
def _made(number: int, bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def rsa_of(text: bytes, private: rsa.RSAPrivateKey, algorithm: hashes.HashAlgorithm | None = None) -> str:
    return base64.b64encode(private.sign(text, padding.PKCS1v15(), algorithm or hashes.SHA256())).decode()


def public_pem(private: rsa.RSAPrivateKey) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def certificate(
    private: rsa.RSAPrivateKey, name: str = SIGNER, *, at: float = NOW, alternative: str | None = None
) -> bytes:
    """Good for a day before and after."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    day, moment = timedelta(days=1), datetime.fromtimestamp(at, UTC)
    builder = x509.CertificateBuilder(subject, subject, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(moment - day).not_valid_after(moment + day)
    if alternative is not None:
        names = x509.SubjectAlternativeName([x509.DNSName(alternative)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
