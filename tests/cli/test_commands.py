"""The command line teaches, and refuses in one line without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paywitness.cli.main import main

TOP = Path(__file__).resolve().parents[2]
POLICIES = str(TOP / "policies")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("run",),
        ("demo",),
        ("sandbox",),
        ("policy",),
        ("doctor",),
        ("policy", "check"),
        ("policy", "explain"),
        ("policy", "test"),
        ("policy", "new"),
        ("policy", "schema"),
        ("journal",),
        ("journal", "status"),
        ("journal", "upgrade"),
        ("ops",),
        ("ops", "list"),
        ("ops", "resolve"),
    ],
)
def test_every_command_has_help_that_says_what_it_does(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) >= 5


def test_check_tells_what_is_only_observed(tmp_path: Path) -> None:
    file = tmp_path / "acme.yaml"
    file.write_text((TOP / "policies" / "acme.yaml").read_text() + "\nmode: observe\n")
    result = run("policy", "check", str(file))
    assert result.exit_code == 0, result.output
    assert "mode: observe: calls pass unchanged" in result.output
    assert "not in force yet" not in result.output


def test_check_of_a_broken_file_names_the_place_and_fails(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("provider: acme\nupstream: http://127.0.0.1:1\noperatoins: {}\n")
    result = run("policy", "check", str(file))
    assert result.exit_code == 1
    assert f"{file}:3:1" in result.output
    assert "did you mean 'operations'" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--failure", "network_read_timeout", "--sent"), "in_doubt_same_key_is_safe"),
        (("--failure", "network_read_timeout", "--sent", "--age", "23h"), "in_doubt_ask"),
        (("--failure", "network_read_timeout", "--sent", "--background"), "in_doubt_ask"),
        (("--failure", "temporary_provider_error"), "in_doubt_ask"),
        (("--failure", "network_connect_failure"), "no_effect_try_again"),
        (("--failure", "network_connect_failure", "--tries", "5"), "no_effect_tries_used_up"),
        (("--failure", "issuer_hard_decline"), "provider_said_no"),
        (("--failure", "validation_error"), "trying_again_cannot_help"),
        (("--failure", "rate_limited", "--time-left", "100ms"), "no_effect_wait_beyond_deadline"),
    ],
)
def test_explain_gives_the_decision_and_its_rule(arguments: tuple[str, ...], rule: str) -> None:
    result = run("policy", "explain", "--policies", POLICIES, "--provider", "acme", "--operation", "refund", *arguments)
    assert result.exit_code == 0, result.output
    assert f"because:  {rule}\n" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--provider", "nobody", "--operation", "refund", "--failure", "pending"), "there are: acme, "),
        (("--provider", "acme", "--operation", "nothing", "--failure", "pending"), "it has: authorization, sale"),
        (("--provider", "acme", "--operation", "refund", "--failure", "bad"), "network_read_timeout"),
        (
            ("--provider", "acme", "--operation", "refund", "--failure", "pending", "--age", "soon"),
            "a duration such as",
        ),
    ],
)
def test_explain_says_what_there_is_instead(arguments: tuple[str, ...], says: str) -> None:
    result = run("policy", "explain", "--policies", POLICIES, *arguments)
    assert result.exit_code != 0
    assert says in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "nowhere"), "give host:port"),
        (("--journal", "postgres://localhost"), "sqlite:///"),
        (("--limits", "postgres://localhost"), "give local, redis://"),
        (("--reuse-port",), "--journal redis://"),
        (("--lease-seconds", "3"), "more than the 5 s"),
        (("--policies", "/nonexistent"), "/nonexistent"),
        (("--config", "/nonexistent.yaml"), "not a file"),
    ],
)
def test_a_start_that_cannot_be_says_why_in_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    home = ("--home", str(tmp_path), "--policies", POLICIES)
    journal = () if "--journal" in arguments else ("--journal", f"sqlite:///{tmp_path}/journal.db")
    result = run("run", *home, *journal, *arguments)
    assert result.exit_code != 0
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_configuration_file_gives_defaults_that_flags_win_over(tmp_path: Path) -> None:
    file = tmp_path / "paywitness.yaml"
    file.write_text(f"policies: {POLICIES}\nlisten: nowhere\njournal: sqlite:///{tmp_path}/journal.db\n")
    assert "--listen 'nowhere'" in run("run", "--config", str(file)).output
    assert "--listen 'elsewhere'" in run("run", "--config", str(file), "--listen", "elsewhere").output


def test_an_unknown_key_in_the_configuration_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "paywitness.yaml"
    file.write_text("listne: 127.0.0.1:1\n")
    result = run("run", "--config", str(file))
    assert result.exit_code != 0
    assert "'listne'" in result.output
    assert "lease-seconds" in result.output
