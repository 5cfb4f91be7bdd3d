"""What is drawn has the shape, the order and the unguessability that its users rely on."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.randomness import Randomness, SystemRandomness, operation_id
from tests.randomness import SeededRandomness

OPERATION_ID = re.compile(r"op_[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
WALL_TIMES = st.floats(min_value=0, max_value=2**47 / 1000)


class FixedChance(Randomness):
    """Every byte the same: the edges of the range."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    def random_bytes(self, count: int) -> bytes:
        return bytes([self._byte]) * count


@pytest.fixture(params=[SystemRandomness, lambda: SeededRandomness(7)], ids=["system", "seeded"])
def chance(request) -> Randomness:
    return request.param()


def test_the_smallest_draw_is_zero_and_the_largest_is_under_one():
    assert FixedChance(0x00).draw() == 0.0
    assert 0.999 < FixedChance(0xFF).draw() < 1.0


def test_draws_are_spread_evenly(chance):
    tenths = [0] * 10
    for _ in range(10_000):
        tenths[int(chance.draw() * 10)] += 1
    assert min(tenths) > 800  # 1000 expected, standard deviation 30
    assert max(tenths) < 1200


@given(now=WALL_TIMES)
def test_an_operation_id_is_a_prefixed_ulid(now):
    assert OPERATION_ID.match(SystemRandomness().operation_id(now))


@given(now=WALL_TIMES, later_s=st.floats(min_value=0.002, max_value=10**9))
def test_operation_ids_sort_by_time_whatever_is_drawn(now, later_s):
    assert FixedChance(0xFF).operation_id(now) < FixedChance(0x00).operation_id(now + later_s)


def test_the_same_random_bytes_make_the_same_operation_id():
    assert operation_id(1760000000.123, bytes(range(0, 256, 16))) == "op_01K742SG3V" + "0G" * 8
    assert SeededRandomness(1).operation_id(1760000000.123) == "op_01K742SG3VNH52ARQHZAHRGY1D"


def test_an_operation_id_spells_its_time_as_a_ulid_does():
    assert FixedChance(0x00).operation_id(1469918176.385) == "op_01ARYZ6S41" + "0" * 16  # the ULID specification's own
    assert FixedChance(0xFF).operation_id((2**48 - 1) / 1000) == "op_7" + "Z" * 25


@pytest.mark.parametrize(
    "make",
    [lambda chance: chance.operation_id(1.0), Randomness.token, Randomness.nonce, Randomness.key, Randomness.draw],
)
def test_ten_thousand_of_a_kind_are_all_different(chance, make):
    assert len({make(chance) for _ in range(10_000)}) == 10_000


def test_tokens_nonces_and_keys_have_their_length(chance):
    assert re.fullmatch("[0-9a-f]{32}", chance.token())
    assert len(chance.nonce()) == 12
    assert len(chance.key()) == 32


def test_the_same_seed_tells_the_same_story_and_another_seed_another():
    def story(seed):
        chance = SeededRandomness(seed)
        return [chance.draw(), chance.operation_id(1.0), chance.token(), chance.nonce(), chance.key()]

    assert story(1) == story(1)
    assert not set(story(1)) & set(story(2))
