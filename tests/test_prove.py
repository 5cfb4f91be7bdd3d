"""`make prove`: every part is run, also after one that failed, and the end says which it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import prove
from tests.prove import FULL, QUICK, Part, parts_of, table_of
from tests.simulation.focus import FOCUSES


def scripted(name: str, code: str) -> Part:
    return Part(name, "one", (sys.executable, "-c", code))


def test_a_part_that_fails_ends_none_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [scripted("good one", "print('first')"), scripted("bad", "raise SystemExit(1)"), scripted("last", "")]
    proved = prove.prove(parts, tmp_path / "new")
    assert [one.failed for one in proved] == [False, True, False]
    assert (tmp_path / "new" / "good_one.txt").read_text() == "first\n"
    assert "[3 of 3] last: one" in capsys.readouterr().out
    lines = table_of(proved).splitlines()
    assert len(lines) == 4
    assert ["FAILED" in line for line in lines] == [False, False, True, False]


@pytest.mark.parametrize(("code", "ends_with"), [("", 0), ("raise SystemExit(3)", 1)])
def test_it_ends_with_one_if_a_part_failed(
    code: str, ends_with: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "parts_of", lambda sizes: [scripted("only one", code)])
    told = CliRunner().invoke(prove.main, ["--quick", "--into", str(tmp_path)])
    assert told.exit_code == ends_with, told.output
    none = CliRunner().invoke(prove.main, ["--only", "no such part", "--into", str(tmp_path)])
    assert none.exit_code == 1


def test_every_size_reaches_the_command_that_it_is_for() -> None:
    parts = {part.name: " ".join(part.command) for part in parts_of(FULL)}
    assert "--seeds 1-1000 --payments 1000 --processes 2" in parts["simulation"]
    assert all(f"--focus {name} --seeds 1-60 --payments 300" in parts[f"focus on {name}"] for name in FOCUSES)
    assert parts["planted bugs"].endswith("tests.simulation.planted --seeds 50 --processes 2")
    assert "--kills 300" in parts["chaos on SQLite"]
    assert "--redis-kills 20" in parts["chaos on Redis"]
    assert "--movements 10000 --kills 20" in parts["movements on Redis"]
    assert "--keys 1000 --each 100" in parts["duplicates on SQLite"]
    assert parts["fuzz"].endswith("--seconds 60")
    assert len(parts_of(QUICK)) == len(parts)


def test_a_size_that_is_given_counts_also_in_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[prove.Sizes] = []

    def noted(sizes: prove.Sizes) -> list[Part]:
        seen.append(sizes)
        return [scripted("one", "")]

    monkeypatch.setattr(prove, "parts_of", noted)
    CliRunner().invoke(prove.main, ["--quick", "--seeds", "7", "--kills", "1", "--into", str(tmp_path)])
    assert (seen[0].seeds, seen[0].kills, seen[0].payments) == ("7", 1, QUICK.payments)
