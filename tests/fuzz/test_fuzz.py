"""Every claim of the fuzzer over a few inputs, the same in every run; and over all that the corpus has kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import mutation
from tests.fuzz.__main__ import Fuzzing
from tests.fuzz.mutation import CORPUS, CUTS, in_pieces, kept, mutated
from tests.fuzz.targets import TARGETS, Target

CORPORA = [(target, file) for target in TARGETS if target.corpus for file in sorted((CORPUS / target.corpus).glob("*"))]
FEW = settings(max_examples=4, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_claim_holds(target: Target) -> None:
    @settings(max_examples=target.examples, database=None, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*target.drawn))
    def holds(drawn: tuple[object, ...]) -> None:
        target.claim(*drawn)

    holds()


@pytest.mark.parametrize(("target", "file"), CORPORA, ids=lambda each: getattr(each, "name", ""))
def test_the_claim_holds_of_what_was_kept(target: Target, file: Path) -> None:
    @FEW
    @given(st.tuples(*target.drawn[1:]))
    def holds(drawn: tuple[object, ...]) -> None:
        target.claim(file.read_bytes(), *drawn)

    holds()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= {target.corpus for target in TARGETS}


def test_a_claim_that_is_false_falls_and_what_made_it_fall_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_three_stars(data: bytes) -> None:
        assert b"***" not in data

    monkeypatch.setattr("tests.fuzz.__main__.CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(mutation, "CORPUS", tmp_path / "corpus")
    fuzzing = Fuzzing(Target(never_three_stars, (mutated([b"a"], [b"***"]),), "planted"), tmp_path / "database")
    assert isinstance(fuzzing.run(60.0), AssertionError)
    assert fuzzing.keep() is not None
    (found,) = kept("planted")
    assert b"***" in found


@given(st.binary(max_size=40), CUTS)
def test_pieces_are_the_same_bytes(data: bytes, cuts: list[int]) -> None:
    assert b"".join(in_pieces(data, cuts)) == data
