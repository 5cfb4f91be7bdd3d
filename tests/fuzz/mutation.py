"""Mutations: known inputs, cut, joined, doubled and sprinkled with pieces that mean something to whoever reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

CORPUS = Path(__file__).with_name("corpus")
_EDITS_MAX = 6


def kept(target: str) -> list[bytes]:
    """What the corpus has for this target: where to begin, and whatever was once found."""
    return [file.read_bytes() for file in sorted((CORPUS / target).glob("*")) if file.is_file()]


def mutated(seeds: Sequence[bytes], pieces: Sequence[bytes], bytes_max: int = 20_000) -> st.SearchStrategy[bytes]:
    """One of the seeds after a few edits, or none of them at all."""
    edits = st.lists(
        st.tuples(
            st.integers(0, 1 << 16),  # where, modulo the length
            st.sampled_from([0, 0, 1, 1, 2, 4, 16, 64]),  # how much is taken out
            st.sampled_from(list(pieces)) | st.binary(max_size=4) | st.just(b""),  # what comes in
            st.sampled_from([1, 1, 1, 1, 2, 70]),  # so many times
        ),
        max_size=_EDITS_MAX,
    )

    def edited(seed: bytes, changes: list[tuple[int, int, bytes, int]]) -> bytes:
        for where, taken, piece, times in changes:
            place = where % (len(seed) + 1)
            seed = seed[:place] + piece * times + seed[place + taken :]
        return seed[:bytes_max]

    return st.builds(edited, st.sampled_from(list(seeds)), edits)


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The same bytes, cut wherever they are told to be."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 1 << 16), max_size=4)
