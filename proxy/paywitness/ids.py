"""Operation ids: `op_`, then 26 characters as a ULID has them. Pure: the time and the random bytes are given.

The first ten characters are the time in milliseconds, so that ids sort by time. The last sixteen are random.
"""

from __future__ import annotations

OPERATION_ID_PREFIX = "op_"
RANDOM_BYTES = 16  # of which each gives one character: five bits, 80 together

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
