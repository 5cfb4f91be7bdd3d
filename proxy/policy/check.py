"""`paywitness policy check`: files and directories read as they would be at start, and told about in plain lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from proxy.core.errors import PolicyError
from proxy.policy.book import across_files, compile_content, policy_files, read_policy_file
from proxy.policy.compile import Compiled
from proxy.policy.describe import describe_provider


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. `ok`: everything may be put in force as it is."""

    ok: bool
    lines: tuple[str, ...]


def check(paths: Iterable[Path]) -> CheckReport:
    """Check files and directories together. Never raises: whatever is wrong is a line."""
    files, lines = _files_of(paths)
    ok = not lines
    compiled: list[Compiled] = []
    for path in files:
        try:
            found = compile_content(read_policy_file(path), str(path))
        except PolicyError as error:
            ok = False
            lines += [f"{path}: {_counted(len(error.problems), 'error')}", *(f"  {line}" for line in error.problems)]
            continue
        compiled.append(found)
        lines += _told(found)
    between = across_files(compiled, complete=False)
    lines += [f"  {line}" for line in between]
    lines += _fallbacks_elsewhere(compiled)
    return CheckReport(ok and not between, tuple(lines))


def _files_of(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """The files to check, each once, and what is wrong with the paths themselves."""
    files: dict[Path, None] = {}
    problems: list[str] = []
    for path in paths:
        try:
            found = policy_files(path) if path.is_dir() else [path]
        except PolicyError as error:
            problems += error.problems
            continue
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror or type(error).__name__}")
            continue
        if not found:
            problems.append(f"{path}: found no policy file (*.yaml, *.yml)")
        files.update(dict.fromkeys(found))
    if not files and not problems:
        problems.append("found nothing to check: name a policy file or a directory of them")
    return list(files), problems


def _told(found: Compiled) -> list[str]:
    provider = found.provider
    lines = [f"{provider.source}: OK", *(f"  {line}" for line in describe_provider(provider))]
    lines += [f"  warning: {line}" for line in found.warnings]
    return lines


def _fallbacks_elsewhere(files: list[Compiled]) -> list[str]:
    """A fallback to a provider that is not among the files checked: an error only when a whole directory is loaded."""
    names = {found.provider.name for found in files}
    return [
        f"  warning: {entry.mark}: {entry.path}: '{entry.fallback.to}' is not among the files checked"
        for found in files
        for entry in found.fallbacks
        if entry.fallback.to not in names
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
