"""What the figures stand on: processor, versions, how busy the machine is, the disk and what its fsync costs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bench.nginx import version_of_nginx
from bench.rounds import scratch_folder

_SYNCS = 50
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    load_average: float
    python: str
    aiohttp: str
    uvloop: str
    sqlite: str
    redis: str
    nginx: str
    file_system: str
    fdatasync_ms: float

    @property
    def on_disk(self) -> bool:
        return self.file_system not in _IN_MEMORY


def look_at(top: Path) -> Machine:
    with ExitStack() as stack:
        folder = scratch_folder(stack, top)
        return Machine(
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            load_average=os.getloadavg()[0],
            python=platform.python_version(),
            aiohttp=version("aiohttp"),
            uvloop=version("uvloop"),
            sqlite=sqlite3.sqlite_version,
            redis=_redis(),
            nginx=version_of_nginx(),
            file_system=file_system_of(folder, Path("/proc/mounts").read_text()),
            fdatasync_ms=_fdatasync_ms(folder),
        )


def file_system_of(folder: Path, mounts: str) -> str:
    """The type of the file system that a folder stands on: of all mounts above it, the deepest."""
    path = str(folder.resolve())
    found, depth = "unknown", -1
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split(" ")
        above = place.rstrip("/") + "/"
        if path.startswith(above) and len(above) >= depth:
            found, depth = kind, len(above)
    return found


def _fdatasync_ms(folder: Path) -> float:
    """What one appended page costs to make durable: a call waits for two of these at least."""
    took_s = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            began_mono = time.perf_counter()
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - began_mono)
    return median(took_s) * 1e3


def _redis() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "none"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    told = re.search(r"v=(\S+)", said)
    return told[1] if told else "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
