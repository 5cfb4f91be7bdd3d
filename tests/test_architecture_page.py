"""docs/architecture.md names files and functions. Each of them exists, and a function is in the file named before it.
CONTRIBUTING.md's links lead somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
PAGE = (TOP / "docs" / "architecture.md").read_text("utf-8")
ROOTS = (TOP / "proxy" / "paywitness", TOP)
PATH = re.compile(r"`([\w./-]+(?:\.py|\.yaml|\.md|/))`")
FUNCTION = re.compile(r"`(\w+)\(\)`")
CHANGES_MIN = 30


def found(path: str) -> Path | None:
    return next((root / path for root in ROOTS if (root / path).exists()), None)


@cache
def functions_of(file: Path) -> frozenset[str]:
    text = file.read_text("utf-8") if file.suffix == ".py" else ""
    return frozenset(re.findall(r"(?m)^\s*(?:async )?def (\w+)\(", text))


def functions_named() -> list[tuple[str, tuple[str, ...]]]:
    """Each function with the files of its list item that stand before it."""
    named = []
    for item in re.split(r"(?m)^(?=\d+\. )", PAGE):
        for match in FUNCTION.finditer(item):
            named.append((match[1], tuple(PATH.findall(item[: match.start()]))))
    return named


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_every_file_of_the_page_exists(path: str) -> None:
    assert found(path) is not None


@pytest.mark.parametrize(("name", "paths"), functions_named())
def test_every_function_of_the_page_is_in_the_file_before_it(name: str, paths: tuple[str, ...]) -> None:
    assert paths, f"{name}() stands before any file"
    file = found(paths[-1])
    assert file is not None
    assert name in functions_of(file), f"{paths[-1]} has no function {name}"


def test_the_page_says_where_to_change_what() -> None:
    _, table = PAGE.split("## I want to change ...", 1)
    rows = re.findall(r"(?m)^\| (?!I want|---)[^|]+ \| .*`.*\|$", table.split("\n## ", 1)[0])
    assert len(rows) >= CHANGES_MIN


def test_every_room_has_a_line() -> None:
    _, table = PAGE.split("## Layers", 1)
    listed = set(re.findall(r"(?m)^\| \d+ \| `([\w./]+)` \|", table.split("\n## ", 1)[0]))
    top = ROOTS[0]
    rooms = {f"{path.name}/" for path in top.iterdir() if (path / "__init__.py").exists()}
    rooms |= {path.name for path in top.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert listed == rooms


def test_links_of_the_guide_for_contributors_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (TOP / "CONTRIBUTING.md").read_text("utf-8"))
    assert links
    assert [link for link in links if not (TOP / link).exists()] == []
