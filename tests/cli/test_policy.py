"""`paywitness policy`: test, explain, schema and new at the keyboard. Exit codes, and what to do next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paywitness.cli.main import main

TOP = Path(__file__).resolve().parents[2]
ACME = TOP / "policies" / "acme.yaml"
OPENAPI = TOP / "tests" / "tools" / "openapi" / "bank.yaml"


def policy(*arguments: str | Path, answers: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["policy", *map(str, arguments)], input=answers)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A policy with one case that reaches one rule of two."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "mine.yaml").write_text(
        "extends: paywitness:acme\n"
        "classify:\n  - {status: 418, as: validation_error}\n  - {status: 419, as: rate_limited}\n"
    )
    case(tmp_path, "validation_error")
    return tmp_path / "mine.yaml"


def case(folder: Path, expected: str) -> None:
    (folder / "tests" / "mine.yaml").write_text(
        f"cases: [{{request: {{send: POST /v1/payouts, body: {{}}}}, response: 418, expect: {{class: {expected}}}}}]\n"
    )


# --- test


def test_cases_that_pass_are_counted_and_so_is_what_they_reach() -> None:
    result = policy("test", ACME, "--strict")
    assert result.exit_code == 0, result.output
    assert "acme.yaml: 1" in result.output
    assert "operations 9 of 9" in result.output
    assert result.output.endswith("0 failed, every rule reached.\n")


def test_a_rule_that_no_case_reaches_is_listed_and_fails_only_when_strict(mine: Path) -> None:
    result = policy("test", mine)
    assert result.exit_code == 0, result.output
    assert f"not reached: {mine}:4: classify[1] (rate_limited)" in result.output
    assert policy("test", mine, "--strict").exit_code == 1


def test_a_failing_case_is_told_with_its_line_and_fails(mine: Path) -> None:
    case(mine.parent, "rate_limited")
    result = policy("test", mine)
    assert result.exit_code == 1
    expected = "class: expected rate_limited, came validation_error (read by classify[0])"
    assert f"{mine.parent}/tests/mine.yaml:1: {expected}" in result.output


def test_a_policy_without_cases_fails_only_when_strict(mine: Path) -> None:
    (mine.parent / "tests" / "mine.yaml").unlink()
    result = policy("test", mine.parent)
    assert result.exit_code == 0
    assert "no cases: write" in result.output
    assert policy("test", mine.parent, "--strict").exit_code == 1


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_path_without_policies_fails_in_words(tmp_path: Path, path: str) -> None:
    result = policy("test", tmp_path / path)
    assert result.exit_code == 1
    assert str(tmp_path / path) in result.output


def test_machines_get_the_same(mine: Path) -> None:
    found = json.loads(policy("test", mine, "--json").output)
    assert found["ok"] is True
    assert found["covered"] is False
    assert found["files"][0]["not_reached"][0]["line"] == 4


# --- explain


def test_explain_says_why_each_rule_above_did_not_apply() -> None:
    result = policy(
        *("explain", "--policies", TOP / "policies", "--provider", "acme", "--operation", "refund"),
        *("--failure", "temporary_provider_error"),
    )
    lines = result.output.splitlines()
    above = [line.split()[0] for line in lines[lines.index("  not by:") + 1 :]]
    assert above[0] == "succeeded"
    assert above[-1] == "in_doubt_same_key_is_safe"
    assert "would only repeat it (replayed)" in lines[-1]


# --- schema


def test_the_schema_is_json() -> None:
    assert json.loads(policy("schema").output)["title"] == "Paywitness policy"


# --- new


def checked(file: Path) -> Result:
    return policy("check", file)


def test_options_make_a_policy_that_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "bank.yaml"
    options = (
        *("--provider", "bank", "--upstream", "https://api.bank.example", "--pay", "POST /v1/payments"),
        *("--authorize", "POST /v1/holds", "--refund", "POST /v1/payments/{payment}/refunds"),
        *("--capture", "POST /v1/holds/{hold}/capture", "--void", "POST /v1/holds/{hold}/void"),
        *("--payout", "POST /v1/payouts", "--key", "body:key", "--amount", "amount.value", "--unit", "major"),
        *("--currency", "amount.currency", "--order", "metadata.order_id", "--paid", "PAID", "--body", "form"),
    )
    result = policy("new", *options, "--output", file)
    assert result.exit_code == 0, result.output
    assert "VERIFY, then paywitness policy check" in result.output
    assert checked(file).exit_code == 0, checked(file).output
    assert "never re-sent in doubt" in checked(file).output


def test_an_openapi_file_makes_one_too(tmp_path: Path) -> None:
    file = tmp_path / "bank.yaml"
    assert policy("new", "--openapi", OPENAPI, "--provider", "bank", "--output", file).exit_code == 0
    assert checked(file).exit_code == 0, checked(file).output


def test_without_options_it_asks(tmp_path: Path) -> None:
    file = tmp_path / "bank.yaml"
    result = policy("new", "--output", file, answers="bank\nhttps://api.bank.example\n" + "\n" * 8)
    assert result.exit_code == 0, result.output
    assert checked(file).exit_code == 0, checked(file).output


def test_without_an_output_it_prints_the_policy_alone() -> None:
    result = policy("new", "--openapi", OPENAPI)
    assert result.output.startswith("# bank_payments_api: a starting policy.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--provider", "Bank", "--upstream", "https://b.example", "--pay", "POST /p"), "lower-case letters"),
        (("--provider", "bank", "--upstream", "https://b.example", "--pay", "/p"), "a method and a path"),
        (("--provider", "bank", "--upstream", "https://b.example"), '--pay "POST /v1/payments"'),
        (("--provider", "bank", "--pay", "POST /p"), "--upstream is missing"),
        (("--openapi", "/nonexistent.yaml"), "cannot be read: No such file"),
        (("--openapi", str(ACME)), "no 'paths'"),
        (("--openapi", str(OPENAPI), "--output", str(ACME)), "exists; name another file"),
        (("--openapi", str(OPENAPI), "--output", "/nonexistent/bank.yaml"), "cannot be written"),
    ],
)
def test_what_cannot_be_written_says_what_to_do(options: tuple[str, ...], says: str) -> None:
    result = policy("new", *options)
    assert result.exit_code == 1
    assert says in result.output
    assert "Traceback" not in result.output
