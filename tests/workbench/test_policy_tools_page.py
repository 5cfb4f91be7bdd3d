"""docs/policy-tools.md explains every key of a case, and what it shows comes out so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.workbench.case import BLOCKS
from proxy.workbench.policy_cases import run_policies, told

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "policy-tools.md").read_text()


@pytest.mark.parametrize(("title", "key"), [(block.title, key) for block in BLOCKS for key in block.keys])
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
    found = run_policies([Path("policies")])
    lines = list(told(found))
    assert all(one.ok for one in found), lines
    (shown,) = re.findall(r"```\n(policies/bank.yaml: .*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        assert without_number(line) in map(without_number, lines)


def without_number(line: str) -> str:
    """The policy stands on another page, whose lines may move."""
    return re.sub(r":\d+:", ":", line)
