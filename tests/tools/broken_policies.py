"""Broken policy files, as people break them, and what `policy check` says of each. The words stand beside the files.

After a deliberate change of a message: `python -m tests.tools.broken_policies` writes them anew; read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from click.testing import CliRunner, Result

from paywitness.cli.main import main

FOLDER = Path(__file__).with_name("broken")
FILES = sorted(FOLDER.glob("*.yaml"))
_LISTED_MAX = 7  # a longer list of what is allowed grows with the schema and the pack: its beginning is enough


def checked(file: Path) -> Result:
    before = Path.cwd()
    os.chdir(FOLDER)  # so that the words name the file and nothing of this machine
    try:
        return CliRunner().invoke(main, ["policy", "check", file.name])
    finally:
        os.chdir(before)


def words_of(file: Path) -> str:
    """What is printed, with long lists of allowed names cut short."""
    return re.sub(r"(allowed(?: here)?: )((?:[\w:]+, )+[\w:]+)", _cut, checked(file).output)


def _cut(found: re.Match[str]) -> str:
    names = found[2].split(", ")
    grows = len(names) > _LISTED_MAX or names[0].startswith("paywitness:")
    return found[1] + (", ".join([*names[:2], "..."]) if grows else found[2])


if __name__ == "__main__":
    for each in FILES:
        each.with_suffix(".txt").write_text(words_of(each))
