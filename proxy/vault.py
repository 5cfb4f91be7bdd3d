"""The vault: the identity secret and the encryption ring. What is sealed here is opaque everywhere else.

Sealing is AES-256-GCM with the operation's id as associated data: a ciphertext moved to another operation does not
open. The first key of the ring seals, all of them open, so that keys can be rotated: put the new one in front, and drop
the old one when nothing sealed with it is kept any more. The identity secret is apart from the ring and never rotates:
changing it under a journal would give every repeat a new identity, and charge it again.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.core.errors import SettingsError, UnreadableSecret

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
    """Seals and opens what the journal keeps, and holds the identity secret."""

    def __init__(self, identity_secret: bytes, ring: tuple[RingKey, ...], nonce: Callable[[], bytes]) -> None:
        if not ring:
            raise SettingsError("the encryption ring is empty: give at least one key as id:base64")
        self.identity_secret = identity_secret
        self._nonce = nonce
        self._ciphers = {entry.id: AESGCM(entry.key) for entry in ring}
        self._writing = self._ciphers[ring[0].id]
        self._written_by = bytes([len(ring[0].id)]) + ring[0].id.encode()

    def seal(self, plain: bytes, bound_to: str) -> bytes:
        nonce = self._nonce()
        return self._written_by + nonce + self._writing.encrypt(nonce, plain, bound_to.encode())

    def open(self, sealed: bytes, bound_to: str) -> bytes:
        """The plain bytes, or UnreadableSecret: what cannot be opened is neither re-sent nor executed."""
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
        entries.append(RingKey(key_id, _decoded(encoded, f"PAYWITNESS_ENCRYPTION_KEYS: key {key_id!r}")))
    if len({entry.id for entry in entries}) != len(entries):
        raise SettingsError("PAYWITNESS_ENCRYPTION_KEYS: two keys have the same id")
    return tuple(entries)


def _decoded(encoded: str, name: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise SettingsError(f"{name} is not base64") from None
    if len(key) != _KEY_BYTES:
        raise SettingsError(f"{name} has {len(key)} bytes; {_KEY_BYTES} are needed (openssl rand -base64 32)")
    return key


def read_identity_secret(text: str) -> bytes:
    """Any text of enough length; the same for the whole fleet."""
    secret = text.strip().encode()
    if len(secret) < _SECRET_BYTES_MIN:
        raise SettingsError(f"PAYWITNESS_IDENTITY_SECRET is shorter than {_SECRET_BYTES_MIN} characters")
    return secret
