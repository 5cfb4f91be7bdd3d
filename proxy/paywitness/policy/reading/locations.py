"""Locations in a file, and the list of all problems of the files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

_QUOTED_LENGTH_MAX = 60  # characters of a found value in a message: enough to recognise it


@dataclass(frozen=True, slots=True, order=True)
class SourceLocation:
    """A place in a file; line and column count from 1, as editors do."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


_OPERATIONS = "{operations}"  # in a text: replaced by the operations that have the problem, each named once


@dataclass(slots=True)
class _Problem:
    # The keys with the problem: several, if YAML's aliases repeat the value.
    paths: dict[str, None] = field(default_factory=dict)
    operations: dict[str, None] = field(default_factory=dict)


_Problems = dict[tuple[SourceLocation, str, str], _Problem]  # by location, key and text


@dataclass(slots=True)
class FileProblems:
    """All problems and warnings of the files being read: collected, not raised one by one.

    The same problem counts once. A value of the provider's level is read with each operation, and an aliased value at
    each of its places. A text that depends on the operation has `{operations}` in it. It is reported once, with the
    names of all operations that have the problem.
    """

    _errors: _Problems = field(default_factory=dict)
    _warnings: _Problems = field(default_factory=dict)

    def add(self, location: SourceLocation, path: str, text: str, *, operation: str = "") -> None:
        _put(self._errors, location, path, text, operation)

    def warn(self, location: SourceLocation, path: str, text: str, *, operation: str = "") -> None:
        _put(self._warnings, location, path, text, operation)

    @property
    def count(self) -> int:
        return len(self._errors)

    @property
    def errors(self) -> tuple[str, ...]:
        """In the order of the file, each once."""
        return _in_order(self._errors)

    @property
    def warnings(self) -> tuple[str, ...]:
        return _in_order(self._warnings)


def _put(found: _Problems, location: SourceLocation, path: str, text: str, operation: str) -> None:
    # If two keys of one block lack the same kind of value, these are two problems, although both are located at the
    # block.
    problem = found.setdefault((location, path.rpartition(".")[2], text), _Problem())
    problem.paths[path] = None
    problem.operations[operation] = None


def _in_order(found: _Problems) -> tuple[str, ...]:
    lines = sorted(found.items(), key=lambda each: each[0][0])
    return tuple(_line(location, problem, text) for (location, _, text), problem in lines)


def _line(location: SourceLocation, problem: _Problem, text: str) -> str:
    path, *others = problem.paths
    text = text.replace(_OPERATIONS, operation_names(problem.operations))
    also = f"; the same at {listed(others)}" if others else ""
    line = f"{location}: {path}: {text}{also}" if path else f"{location}: {text}{also}"
    # A key may hold line breaks or terminal escapes, but a problem must be one plain line.
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in line)


def operation_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def quoted(text: str) -> str:
    """A value for a message: quoted, on one line, and not longer than needed to recognise it."""
    return repr(text if len(text) <= _QUOTED_LENGTH_MAX else text[:_QUOTED_LENGTH_MAX] + "...")


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is near, else nothing."""
    by_fold = {name.lower().replace("-", "_"): name for name in known}
    near = difflib.get_close_matches(found.lower().replace("-", "_"), by_fold, n=1, cutoff=0.7)
    return f"; did you mean '{by_fold[near[0]]}'?" if near else ""
