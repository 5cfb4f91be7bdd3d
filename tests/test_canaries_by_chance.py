"""No test looks for a secret in what is written beside times and ids if that secret can stand there by chance.

"987" is found in a log once in a few hundred runs: as the milliseconds of a line's time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
_BY_CHANCE = re.compile(r"[0-9a-fA-F]{1,7}")  # digits of a time or of an id
# Texts that hold times, ports and ids.
_WRITTEN = re.compile(r"caplog|\.body|\.text|\.log\b|stdout|stderr|output|printed|shown|read_text|read_bytes|getvalue")


def _short(node: ast.expr) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes):
        return False
    text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
    return _BY_CHANCE.fullmatch(text) is not None and any(sign.isdigit() for sign in text)


def _searched(tree: ast.AST) -> Iterator[ast.Compare]:
    for node in ast.walk(tree):
        absent = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn)
        if absent and isinstance(node, ast.Compare) and _WRITTEN.search(ast.unparse(node.comparators[0])):
            yield node


def found_by_chance(source: str) -> list[int]:
    """The lines of a test file that look for something short."""
    tree = ast.parse(source)
    lines = [compare.lineno for compare in _searched(tree) if _short(compare.left)]
    for loop in ast.walk(tree):
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Tuple | ast.List)
            and any(map(_short, loop.iter.elts))
        ):
            name = ast.unparse(loop.target)
            lines += [compare.lineno for compare in _searched(loop) if ast.unparse(compare.left) == name]
    return lines


def test_what_can_stand_there_by_chance_is_told() -> None:
    assert found_by_chance('assert "987" not in caplog.text') == [1]
    assert found_by_chance('assert b"4242" not in answer.body') == [1]
    assert found_by_chance('assert "5c1f0e" not in (folder / "log").read_text()') == [1]
    assert found_by_chance('for secret in ("canary", "987"):\n    assert secret not in done.stdout') == [2]
    assert found_by_chance('assert "4242424242424242" not in caplog.text') == []
    assert found_by_chance('assert "987" not in message') == []


def test_no_test_looks_for_what_can_stand_there_by_chance() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    found = [f"{path.relative_to(TESTS)}:{line}" for path in paths for line in found_by_chance(path.read_text())]
    assert found == []
