"""Secrets: the vault that seals stored messages, and the secrets that a sidecar is given or creates.

Sealing is AES-256-GCM with the operation's id as associated data, so that a ciphertext moved to another operation does
not open. The first key of the ring seals, and all of them open. To rotate keys, put the new one in front, and drop the
old one when nothing sealed with it is stored any more. The identity secret is apart from the ring and never rotates: if
it changed under a journal, every duplicate would get a new identity and would be charged again.

Secrets come from the environment. A sidecar with a SQLite journal creates the missing ones once and stores them in
files that only their owner can read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from paywitness.core.errors import SettingsError, UnreadableSecret
from paywitness.option_defaults import (
    ADMIN_TOKEN,
    ENCRYPTION_KEYS,
    EVENTS_SECRET,
    IDENTITY_SECRET,
    Settings,
    load_or_create_secret,
)
from paywitness.randomness import Randomness

_KEY_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID_LENGTH_MAX = 32
_SECRET_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class RingKey:
    id: str
    key: bytes

    def __repr__(self) -> str:
        return f"RingKey(id={self.id!r})"  # the key itself is never shown


class Vault:
    """Seals and opens the messages that the journal keeps, and holds the identity secret."""

    def __init__(self, identity_secret: bytes, ring: tuple[RingKey, ...], nonce: Callable[[], bytes]) -> None:
        if not ring:
            raise SettingsError("the encryption ring is empty: give at least one key as id:base64")
        self.identity_secret = identity_secret
        self._nonce = nonce
        self._ciphers = {entry.id: AESGCM(entry.key) for entry in ring}
        self._sealing_cipher = self._ciphers[ring[0].id]
        self._key_id_prefix = bytes([len(ring[0].id)]) + ring[0].id.encode()

    def seal(self, plain: bytes, bound_to: str) -> bytes:
        nonce = self._nonce()
        return self._key_id_prefix + nonce + self._sealing_cipher.encrypt(nonce, plain, bound_to.encode())

    def open(self, sealed: bytes, bound_to: str) -> bytes:
        """The plain bytes. Raises UnreadableSecret; a request that cannot be opened is never re-sent."""
        id_end = 1 + (sealed[0] if sealed else 0)
        cipher = self._ciphers.get(sealed[1:id_end].decode("ascii", "replace"))
        if cipher is None:
            raise UnreadableSecret("no key of the ring has the id that sealed this")
        nonce, body = sealed[id_end : id_end + _NONCE_BYTES], sealed[id_end + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, body, bound_to.encode())
        except (InvalidTag, ValueError):
            raise UnreadableSecret("the ciphertext is damaged or belongs to another operation") from None


def read_ring(text: str) -> tuple[RingKey, ...]:
    """`id:base64,id:base64`: 32 bytes a key, the first one seals."""
    entries = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key_id, colon, encoded = part.partition(":")
        if not colon or not key_id.isascii() or not 0 < len(key_id) <= _KEY_ID_LENGTH_MAX:
            raise SettingsError("PAYWITNESS_ENCRYPTION_KEYS: each key is id:base64, separated by commas")
        entries.append(RingKey(key_id, _decode_key(encoded, f"PAYWITNESS_ENCRYPTION_KEYS: key {key_id!r}")))
    if len({entry.id for entry in entries}) != len(entries):
        raise SettingsError("PAYWITNESS_ENCRYPTION_KEYS: two keys have the same id")
    return tuple(entries)


def _decode_key(encoded: str, name: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise SettingsError(f"{name} is not base64") from None
    if len(key) != _KEY_BYTES:
        raise SettingsError(f"{name} has {len(key)} bytes; {_KEY_BYTES} are needed (openssl rand -base64 32)")
    return key


def read_identity_secret(text: str) -> bytes:
    """The identity secret: any text of enough length, the same for the whole fleet."""
    secret = text.strip().encode()
    if len(secret) < _SECRET_BYTES_MIN:
        raise SettingsError(f"PAYWITNESS_IDENTITY_SECRET is shorter than {_SECRET_BYTES_MIN} characters")
    return secret


# --- Secrets of a sidecar


def open_vault(settings: Settings, environment: Mapping[str, str], randomness: Randomness) -> Vault:
    """The vault of this journal: secrets from the environment, or those that the journal keeps beside itself."""

    def text_of_key() -> str:
        return base64.b64encode(randomness.key()).decode()

    path = settings.journal_path
    if path is None:
        missing = [name for name in (IDENTITY_SECRET, ENCRYPTION_KEYS) if not environment.get(name)]
        if missing:
            raise SettingsError(
                f"--journal {settings.journal_redacted_url}: set {' and '.join(missing)}, the "
                "same for every sidecar that shares it: else none would recognise another's payments"
            )
        ring = read_ring(environment[ENCRYPTION_KEYS])
        return Vault(read_identity_secret(environment[IDENTITY_SECRET]), ring, randomness.nonce)
    secret = environment.get(IDENTITY_SECRET) or load_or_create_secret(
        path.with_name(f"{path.name}.identity"), text_of_key
    )
    keys = environment.get(ENCRYPTION_KEYS) or load_or_create_secret(
        path.with_name(f"{path.name}.keys"), lambda: f"k1:{text_of_key()}"
    )
    return Vault(read_identity_secret(secret), read_ring(keys), randomness.nonce)


def admin_token(settings: Settings, environment: Mapping[str, str], randomness: Randomness) -> str:
    """The token of the admin port: from the environment, or made once and kept where `paywitness ops` looks for it."""
    return environment.get(ADMIN_TOKEN) or load_or_create_secret(settings.home / "admin-token", randomness.token)


def events_secret(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """The secret that signs events. Anybody could send unsigned ones, so a sink needs its secret."""
    if settings.events is None:
        return None
    secret = environment.get(EVENTS_SECRET)
    if not secret:
        raise SettingsError(f"--events {settings.events}: set {EVENTS_SECRET}, by which its receiver knows us")
    return secret.encode()
