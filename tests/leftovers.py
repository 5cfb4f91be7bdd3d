"""Processes that a test left behind: a server that outlives its test takes a port and a core from others."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # Python's own, which end with us


def children() -> dict[int, str]:
    """The processes that this one started and that still run, each with its command line."""
    found = {}
    tasks = Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with suppress(OSError):  # a thread that has just ended
            for child in map(int, (task / "children").read_text().split()):
                command = _command_of(child)
                if _runs(child) and not any(helper in command for helper in _HELPERS):
                    found[child] = command
    return found


def _runs(process_id: int) -> bool:
    """Whether it has not ended. One that has ended stays in the list until somebody waits for it."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def _command_of(process_id: int) -> str:
    """Empty for a moment while it begins."""
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def kill_leftovers() -> list[str]:
    """Kill what still runs, and name it."""
    left = children()
    for child in left:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return sorted(left.values())
