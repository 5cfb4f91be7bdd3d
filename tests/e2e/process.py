"""The sidecar's own command, with a step at which the process kills or stops itself. Run as a module by the tests."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from importlib import import_module
from typing import Any

from paywitness.cli.main import main


class EndAt:
    """Ends or stops this process when a step is reached for the first time."""

    def __init__(self, step: str, number: signal.Signals) -> None:
        self._step = step
        self._number = number
        self._reached = False

    async def hit(self, name: str) -> None:
        if name == self._step and not self._reached:
            self._reached = True
            os.kill(os.getpid(), self._number)


if __name__ == "__main__":
    step, number = sys.argv[1], signal.Signals[f"SIG{sys.argv[2]}"]
    run: Any = import_module("paywitness.cli.run")
    run.serve = partial(run.serve, failpoints=EndAt(step, number))
    main(sys.argv[3:])
