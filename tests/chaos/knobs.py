"""Knobs: a running process' wall clock and disk, turned from outside. A small library is compiled and preloaded.

Without a C compiler there are none: clocks and disks are then left alone, and the report says so.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("knobs.c")
_SHAPE = struct.Struct("dd")


def compiled(folder: Path) -> Path | None:
    """The library, or None where nothing can compile it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "knobs.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)], capture_output=True, check=False
    )
    return library if done.returncode == 0 else None


@dataclass
class Knobs:
    """Of one process, through all its lives."""

    file: Path
    library: Path | None
    ahead_s: float = 0.0
    sync_s: float = 0.0

    def __post_init__(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(_SHAPE.pack(0.0, 0.0).ljust(mmap.PAGESIZE, b"\0"))

    @property
    def environment(self) -> dict[str, str]:
        if self.library is None:
            return {}
        return {"LD_PRELOAD": str(self.library), "CHAOS_KNOBS": str(self.file)}

    def turn(self, *, ahead_s: float = 0.0, sync_s: float = 0.0) -> None:
        self.ahead_s, self.sync_s = ahead_s, sync_s
        with self.file.open("r+b") as file, mmap.mmap(file.fileno(), _SHAPE.size) as shared:
            shared[:] = _SHAPE.pack(ahead_s, sync_s)

    @contextmanager
    def given_to_children(self) -> Iterator[None]:
        """For a process whose start takes no environment: ours, for that moment."""
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name in self.environment:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    del os.environ[name]
