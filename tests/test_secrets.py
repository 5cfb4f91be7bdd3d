"""What is sealed opens only under its key and its operation; what is shown never shows a key."""

from __future__ import annotations

import base64

import pytest

from paywitness.core.errors import SettingsError, UnreadableSecret
from paywitness.randomness import SystemRandomness
from paywitness.secrets import RingKey, Vault, read_identity_secret, read_ring

NONCE = SystemRandomness().nonce
OLD, NEW = RingKey("old", b"o" * 32), RingKey("new", b"n" * 32)
SECRET = b"identity secret of the tests"


def test_what_is_sealed_opens_for_its_operation_alone() -> None:
    vault = Vault(SECRET, (OLD,), NONCE)
    sealed = vault.seal(b"card of somebody", "request:op_1")
    assert b"card" not in sealed
    assert vault.open(sealed, "request:op_1") == b"card of somebody"
    for other in ("request:op_2", "response:op_1"):
        with pytest.raises(UnreadableSecret):
            vault.open(sealed, other)


def test_the_first_key_seals_and_all_of_them_open() -> None:
    before = Vault(SECRET, (OLD,), NONCE).seal(b"x", "op")
    rotated = Vault(SECRET, (NEW, OLD), NONCE)
    assert rotated.open(before, "op") == b"x"
    with pytest.raises(UnreadableSecret):
        Vault(SECRET, (OLD,), NONCE).open(rotated.seal(b"x", "op"), "op")


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x03old", b"\x03old" + b"0" * 12, b"\xff" * 64])
def test_damage_is_told_and_never_opens(damage: bytes) -> None:
    with pytest.raises(UnreadableSecret):
        Vault(SECRET, (OLD,), NONCE).open(damage, "op")


def test_a_flipped_bit_does_not_open() -> None:
    vault = Vault(SECRET, (OLD,), NONCE)
    sealed = bytearray(vault.seal(b"x" * 100, "op"))
    sealed[-1] ^= 1
    with pytest.raises(UnreadableSecret):
        vault.open(bytes(sealed), "op")


def test_a_key_is_never_shown() -> None:
    assert "oooo" not in repr(OLD)
    assert "oooo" not in repr(Vault(SECRET, (OLD,), NONCE))


def test_a_ring_is_read_in_its_order() -> None:
    text = ", ".join(f"{name}:{base64.b64encode(bytes([number]) * 32).decode()}" for number, name in enumerate("ab"))
    assert [entry.id for entry in read_ring(text)] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    ["nocolon", ":aaaa", "a:!!!", "a:" + base64.b64encode(b"short").decode(), "k:{0},k:{0}".format("A" * 43 + "=")],
)
def test_a_bad_ring_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_ring(text)
    assert "AAAA" not in str(refused.value)


def test_a_short_identity_secret_is_refused() -> None:
    with pytest.raises(SettingsError):
        read_identity_secret("short")
    with pytest.raises(SettingsError):
        Vault(SECRET, (), NONCE)
