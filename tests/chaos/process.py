"""The sidecar's own command, in a process that meets its fate at a step: it kills or stops itself there.

Its fate is a file in its home, written while it runs: `claim_done 3 KILL` is the third time from now. Beside the
engine's own steps there are two for every call of the journal, `<call>_asked` and `<call>_done`: so the steps of a
webhook, a sweep, a renewal and a reload have names too.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from paywitness import process
from paywitness.cli.main import main


class Fate:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._met = 0

    async def hit(self, name: str) -> None:
        try:
            step, times, number = self._file.read_text().split()
        except (FileNotFoundError, ValueError):
            self._met = 0
            return
        if step != name:
            return
        self._met += 1
        if self._met >= int(times):
            self._met = 0
            self._file.unlink(missing_ok=True)  # first: the next life has a fate of its own
            os.kill(os.getpid(), signal.Signals[f"SIG{number}"])


class SteppedJournal:
    """A journal whose calls are steps."""

    def __init__(self, journal: Any, fate: Fate) -> None:
        self._journal = journal
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        if not inspect.iscoroutinefunction(found):
            return found
        stepped = partial(self._stepped, name, found)
        setattr(self, name, stepped)
        return stepped

    async def _stepped(self, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        await self._fate.hit(f"{name}_asked")
        answer = await call(*given, **named)
        await self._fate.hit(f"{name}_done")
        return answer


def _opening(open_journal: Callable[..., Any], fate: Fate) -> Callable[..., Any]:
    async def open_stepped(*given: Any, **named: Any) -> Any:
        journal, shared = await open_journal(*given, **named)
        return SteppedJournal(journal, fate), shared

    return open_stepped


if __name__ == "__main__":
    fate = Fate(Path(sys.argv[1]))
    run: Any = import_module("paywitness.cli.run")
    run.serve = partial(run.serve, failpoints=fate)
    process.open_journal = _opening(process.open_journal, fate)
    main(sys.argv[2:])
