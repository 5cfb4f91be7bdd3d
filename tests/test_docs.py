"""The documentation tells the truth: its commands are run, its tables are compared with the code, its links exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from paywitness.core.problems import PROBLEMS, Problem
from paywitness.core.result import Advice
from tests.e2e.sidecar import listens, wait_until
from tests.ports import free_port

TOP = Path(__file__).resolve().parents[1]
README = (TOP / "README.md").read_text()
ANSWERS = (TOP / "docs" / "answers.md").read_text()
PAGES = sorted([TOP / "README.md", TOP / "SECURITY.md", *(TOP / "docs").glob("*.md")])


@dataclass(frozen=True)
class Command:
    text: str
    shows: tuple[str, ...]  # lines that its output must contain, in this order


def commands_of(page: str) -> list[Command]:
    found: list[Command] = []
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            text, *shows = part.strip().split("\n")
            found.append(Command(text, tuple(shows)))
    return found


def runnable(command: Command) -> bool:
    """Clones, and what `make` does, are tried by hand and by the other tests."""
    return not command.text.startswith(("git ", "make "))


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The README's `make run`, on free ports: where it says 8700 to 8703."""
    home = tmp_path_factory.mktemp("readme")
    chosen = {number: str(free_port()) for number in ("8700", "8701", "8702", "8703")}
    policies = home / "policies"
    policies.mkdir()
    for file in (TOP / "policies").glob("*.yaml"):
        (policies / file.name).write_text(file.read_text().replace("127.0.0.1:8702", f"127.0.0.1:{chosen['8702']}"))
    command = [sys.executable, "-m", "paywitness", "run", "--with-sandbox", "--policies", str(policies)]
    for flag, number in (("--listen", "8700"), ("--admin", "8701"), ("--sandbox", "8702"), ("--webhooks", "8703")):
        command += [flag, f"127.0.0.1:{chosen[number]}"]
    command += ["--journal", f"sqlite:///{home / 'journal.db'}", "--home", str(home)]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=TOP, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or listens(int(chosen["8700"])), "the start of the sidecar")
        assert process.poll() is None, (home / "log").read_text()
        yield {**chosen, "home": str(home)}
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "at_least"), [("README.md", 8), ("docs/transparent.md", 5)])
def test_the_commands_of_a_page_do_what_it_says(ports: dict[str, str], page: str, at_least: int) -> None:
    commands = [command for command in commands_of((TOP / page).read_text()) if runnable(command)]
    assert len(commands) >= at_least
    for command in commands:
        text = command.text.replace(".venv/bin/paywitness", f"{sys.executable} -m paywitness")
        for number in ("8700", "8701", "8702", "8703"):
            text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{ports[number]}")
        admin = f"http://127.0.0.1:{ports['8701']}"
        environment = {**os.environ, "PAYWITNESS_HOME": ports["home"], "PAYWITNESS_ADMIN_URL": admin, "COLUMNS": "160"}
        if " ops " in text:
            text += f" --admin {admin}"
        done = subprocess.run(
            ["bash", "-c", text], cwd=TOP, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command.text}\n{done.stdout}\n{done.stderr}"
        rest = done.stdout
        for line in command.shows:
            assert line in rest, f"{command.text}\ndid not show {line!r}, but:\n{done.stdout}"
            rest = rest[rest.index(line) + len(line) :]


def test_the_smallest_policy_of_the_readme_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    file = tmp_path / "acme.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "paywitness", "policy", "check", str(file)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", list(Problem))
def test_every_problem_is_listed_with_its_status(kind: Problem) -> None:
    assert f"| `{kind}` | {PROBLEMS[kind].status_code} |" in ANSWERS


def test_no_problem_is_listed_that_does_not_exist() -> None:
    listed = set(re.findall(r"(?m)^\| `([a-z-]+)` \| \d{3} \|", ANSWERS))
    assert listed == set(Problem)


@pytest.mark.parametrize("advice", list(Advice))
def test_every_advice_is_listed(advice: Advice) -> None:
    assert f"`{advice}`" in ANSWERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_documentation_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_lists_every_page() -> None:
    index = TOP / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+\.md)\)", index.read_text())}
    pages = {page.resolve() for page in (TOP / "docs").rglob("*.md")} - {index.resolve()}
    assert pages - linked == set()
    assert "(docs/README.md)" in README
