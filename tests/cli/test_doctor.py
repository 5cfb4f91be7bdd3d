"""`paywitness doctor` at the keyboard: lines, JSON, exit codes, the options of `run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paywitness.cli.doctor import doctor
from paywitness.cli.main import main
from paywitness.cli.run import run
from paywitness.tools.doctor import runner

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, and with time enough: a check that is too slow is unfit, and the machine may be busy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "CHECK_S", 30.0)
    monkeypatch.setattr(runner, "WHOLE_S", 100.0)


def ask(*arguments: str) -> Result:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--webhooks", "127.0.0.1:0")
    return CliRunner().invoke(main, ["doctor", "--policies", str(TOP / "policies"), *ports, *arguments])


def test_a_fit_installation_ends_with_0_and_a_verdict() -> None:
    result = ask()
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("Fit to hold money: 0 unfit")


def test_an_unfit_one_ends_with_1_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "acme.yaml").write_text("provider: acme\nupstream: http://h\noperatoins: {}\n")
    result = ask("--policies", str(tmp_path / "bad"))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("NOT fit to hold money")
    (line,) = [line for line in result.output.splitlines() if "acme.yaml:3:1" in line]
    assert line.startswith("unfit")
    assert "paywitness policy check" in line


def test_the_admin_address_may_be_the_url_that_the_ops_commands_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYWITNESS_ADMIN", "http://127.0.0.1:0")
    result = CliRunner().invoke(
        main,
        ["doctor", "--policies", str(TOP / "policies"), "--listen", "127.0.0.1:0", "--webhooks", "127.0.0.1:0"],
    )
    assert result.exit_code == 0, result.output
    assert "port admin           127.0.0.1:0 is free" in result.output


def test_json_holds_every_finding() -> None:
    result = ask("--json")
    told = json.loads(result.stdout)
    assert told["fit"] is True
    assert {"subject", "fitness", "found", "why", "remedy"} == set(told["findings"][0])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--journal", "redsi://ada:hidden@h"),
        ("--journal", "redis://ada:hidden@127.0.0.1:1?sentinel_password=hidden"),
        ("--limits", "http://ada:hidden@h"),
        ("--limits", "redis://ada:hidden@127.0.0.1:1"),
        ("--listen", "nowhere"),
    ],
)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_bad_options_are_findings_without_passwords(arguments: tuple[str, ...], how: tuple[str, ...]) -> None:
    result = ask(*arguments, *how)
    assert result.exit_code == 1
    assert "hidden" not in result.output
    assert "unfit" in result.output
    assert "Traceback" not in result.output


def test_it_takes_the_options_of_run_and_its_file(tmp_path: Path) -> None:
    assert {parameter.name for parameter in doctor.params} == {parameter.name for parameter in run.params} | {"as_json"}
    (tmp_path / "paywitness.yaml").write_text("retention: 5d\nhome: kept-here\nwebhooks: off\n")
    result = ask()
    assert result.exit_code == 0, result.output
    assert "kept-here/spool" in result.output
    help_of_run = CliRunner().invoke(main, ["run", "--help"]).output
    assert "--retention" in help_of_run  # what is hidden here stays shown there
    assert "--retention" not in CliRunner().invoke(main, ["doctor", "--help"]).output
