"""docs/policy-tools.md explains every key of a case, and what it shows comes out so."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from paywitness.core.decide import Action
from paywitness.core.money import Money
from paywitness.tools.policy_diff.backtest import (
    NO_SUCH_OPERATION,
    NOT_COMPARED,
    NOT_DECRYPTED,
    BacktestReport,
    DifferenceTotal,
    OperationDifference,
)
from paywitness.tools.policy_diff.comparison import diff
from paywitness.tools.policy_diff.replay import (
    GIVEN_UP_SOONER,
    NOT_REACHABLE,
    NOTHING_DECIDED,
    RESPONSE_NOT_STORED,
    UNKNOWN_VOCABULARY,
    ReplayStep,
)
from paywitness.tools.policy_diff.report import backtest_lines
from paywitness.tools.policy_diff.report import diff_lines as told_of_diff
from paywitness.tools.policy_test.case import BLOCKS
from paywitness.tools.policy_test.case_runner import report_lines, run_case_files
from paywitness.tools.policy_test.flow import FLOW_BLOCKS
from tests.policy.texts import an_operation

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "policy-tools.md").read_text()


@pytest.mark.parametrize(
    ("title", "key"), [(block.title, key) for block in (*BLOCKS, *FLOW_BLOCKS) for key in block.keys]
)
def test_every_key_is_explained_under_its_block(title: str, key: str) -> None:
    section = re.search(rf"^### [^\n]*`{title}`.*?(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, title
    assert re.search(rf"^\| (?:`\w+`, )*`{key}`", section.group(0), re.MULTILINE), f"{title}.{key}"


def test_the_cases_of_the_page_pass_and_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (policy,) = re.findall(r"```yaml\n(provider: bank.*?)```", (TOP / "docs" / "policies.md").read_text(), re.DOTALL)
    (cases,) = re.findall(r"```yaml\n(requests:.*?)```", PAGE, re.DOTALL)
    (tmp_path / "policies" / "tests").mkdir(parents=True)
    (tmp_path / "policies" / "bank.yaml").write_text(policy)
    (tmp_path / "policies" / "tests" / "bank.yaml").write_text(cases)
    monkeypatch.chdir(tmp_path)
    found = run_case_files([Path("policies")])
    lines = list(report_lines(found))
    assert all(one.ok for one in found), lines
    (shown,) = re.findall(r"```\n(policies/bank.yaml: .*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        assert without_number(line) in map(without_number, lines)


def test_the_flow_of_the_page_comes_to_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (flows,) = re.findall(r"```yaml\n(flows:.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```\n(policies/acme.yaml: .*?)```", PAGE, re.DOTALL)
    shipped = (TOP / "policies" / "tests" / "acme.yaml").read_text()
    (tmp_path / "policies" / "tests").mkdir(parents=True)
    (tmp_path / "policies" / "acme.yaml").write_text((TOP / "policies" / "acme.yaml").read_text())
    (tmp_path / "policies" / "tests" / "acme.yaml").write_text(shipped.partition("\ncases:")[0] + "\n" + flows)
    monkeypatch.chdir(tmp_path)
    lines = [without_number(line) for line in report_lines(run_case_files([Path("policies/acme.yaml")]))]
    assert lines[:3] == [without_number(line) for line in shown.splitlines()]
    assert "FAILED" not in "".join(lines[3:])


def test_the_diff_of_the_page_comes_out_so(tmp_path: Path) -> None:
    (policy,) = re.findall(r"```yaml\n(provider: bank.*?)```", (TOP / "docs" / "policies.md").read_text(), re.DOTALL)
    (cases,) = re.findall(r"```yaml\n(requests:.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```\n(bank: /tmp/bank.yaml.*?)```", PAGE, re.DOTALL)
    edited = policy.replace("24h", "12h").replace("[stolen_card, expired_card]", "[stolen_card]")
    edited = edited.replace("[insufficient_funds]", "[insufficient_funds, expired_card]")
    edited = edited.replace("classify:\n", "classify:\n  - {status: 5xx, as: temporary_provider_error}\n")
    (tmp_path / "policies" / "tests").mkdir(parents=True)
    (tmp_path / "policies" / "bank.yaml").write_text(edited)
    (tmp_path / "policies" / "tests" / "bank.yaml").write_text(cases)
    (tmp_path / "bank.yaml").write_text(policy)
    lines = list(told_of_diff(diff(tmp_path / "bank.yaml", tmp_path / "policies" / "bank.yaml"), 20))
    told_here = [line.replace(f"{tmp_path}/policies/", "policies/").replace(f"{tmp_path}/", "/tmp/") for line in lines]
    assert told_here == shown.splitlines()


def test_what_the_page_shows_of_a_journal_is_written_so() -> None:
    (shown,) = re.findall(r"```\n(sqlite:///.*?)```", PAGE, re.DOTALL)
    paid = an_operation(money=Money(1099, "EUR"))
    lost = ReplayStep("network_read_timeout", "possible", Action.RETRY_SAME_OPERATION, "in_doubt_same_key_is_safe")
    asked = ReplayStep("network_read_timeout", "possible", Action.STATUS_INQUIRY, "in_doubt_ask")
    softer = "read as issuer_soft_decline instead of issuer_hard_decline"
    found = BacktestReport(
        examined=1204,
        same=1180,
        totals={
            "asked about instead of retried": DifferenceTotal(14, Counter({"EUR": 131250, "USD": 8000})),
            softer: DifferenceTotal(1, Counter({"EUR": 1099})),
        },
        examples=[
            OperationDifference(paid, "asked about instead of retried", "after attempt 1", str(lost), str(asked)),
        ],
        not_replayed=Counter({RESPONSE_NOT_STORED: 9}),
    )
    assert list(backtest_lines(found, "sqlite:///.paywitness/journal.db")) == shown.splitlines()


@pytest.mark.parametrize(
    "reason",
    [
        RESPONSE_NOT_STORED,
        GIVEN_UP_SOONER,
        NOTHING_DECIDED,
        UNKNOWN_VOCABULARY,
        NOT_REACHABLE,
        NOT_DECRYPTED,
        NOT_COMPARED,
        NO_SUCH_OPERATION,
    ],
)
def test_every_reason_not_to_replay_is_explained(reason: str) -> None:
    assert f"| {reason.partition(',')[0]}" in PAGE


def without_number(line: str) -> str:
    """The policy stands on another page, whose lines may move."""
    return re.sub(r":\d+:", ":", line)
