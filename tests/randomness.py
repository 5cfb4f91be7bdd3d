"""Randomness that repeats itself: the same draws for the same seed. Never for real money, for all of it can be guessed.

Two sidecars never share a seed. With equal lease tokens one would pass for the other, and a test that two sidecars
stand in each other's way would prove nothing. So a test takes the randomness of each sidecar by `own_randomness`.
"""

from __future__ import annotations

from itertools import count
from random import Random

from paywitness.randomness import Randomness


class SeededRandomness(Randomness):
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


class _Seeds:
    """The seeds of one test, in the order in which they are taken."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._numbers = count(1)

    def take(self) -> int:
        return next(self._numbers)


_seeds = _Seeds()


def own_randomness() -> SeededRandomness:
    """The randomness of one more sidecar of this test: the first of a test has seed 1, the second seed 2."""
    return SeededRandomness(_seeds.take())


def restart_seeds() -> None:
    """A test begins. `tests/conftest.py` calls it before the test's first fixture."""
    _seeds.restart()
