"""The only source of randomness. Jitter draws, operation ids, lease tokens, nonces and new keys all come from here.

Code that needs randomness is given a Randomness. SystemRandomness calls the operating system each time. It keeps
nothing in the process, so a fork or a snapshot of it repeats nothing. Tests use one that repeats itself.

An operation id is `op_`, then 26 characters as a ULID has them. The first ten are the time in milliseconds, so that ids
sort by time. The last sixteen are random.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

OPERATION_ID_PREFIX = "op_"
RANDOM_BYTES = 16  # each gives one character: five bits, 80 together

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # no I, L, O, U: an id can be read out over the telephone
_CROCKFORD_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)  # ten bits a look-up: half the time
_CROCKFORD_OF_BYTE = (_CROCKFORD * 8).encode()  # a random byte's last five bits as a character
_TIME_BITS = 48  # milliseconds, until the year 10889
_TIME_SHIFTS = (40, 30, 20, 10, 0)  # five pairs hold 50 bits: 48 of time, two always zero


def operation_id(now: float, random_bytes: bytes) -> str:
    """The id of an operation that was made at this wall time, with RANDOM_BYTES random bytes."""
    milliseconds = int(now * 1000) & ((1 << _TIME_BITS) - 1)
    time = "".join([_CROCKFORD_PAIRS[milliseconds >> shift & 1023] for shift in _TIME_SHIFTS])
    return f"{OPERATION_ID_PREFIX}{time}{random_bytes.translate(_CROCKFORD_OF_BYTE).decode('ascii')}"


class Randomness(ABC):
    """Everything is made from `random_bytes`, so an implementation is one method."""

    @abstractmethod
    def random_bytes(self, count: int) -> bytes:
        """That many bytes, independent of all given before."""

    def draw(self) -> float:
        """A uniform number in [0, 1), for jitter."""
        return (int.from_bytes(self.random_bytes(7), "big") >> 3) * 2.0**-53  # 53 bits: the precision of a float

    def operation_id(self, now: float) -> str:
        """A new operation's id: sortable by the wall time given, to the millisecond, and unguessable by 80 bits."""
        return operation_id(now, self.random_bytes(RANDOM_BYTES))

    def token(self) -> str:
        """An owner token: 128 bits in hex. Its holder is the one that claimed."""
        return self.random_bytes(16).hex()

    def nonce(self) -> bytes:
        """12 bytes for one AES-GCM message. Random, so one key must not seal more than 2**32 of them."""
        return self.random_bytes(12)

    def key(self) -> bytes:
        """32 bytes for a new secret or encryption key."""
        return self.random_bytes(32)


class SystemRandomness(Randomness):
    """The operating system's randomness: unguessable, about a microsecond a call."""

    random_bytes = staticmethod(os.urandom)  # type: ignore[assignment]  # called like the method, with one frame less
