"""Writes the lock files that the image is built from: `python -m deploy.locks`, or `make lock`.

For each set of extras: every package that pip chooses for the image's Python, with the hashes of its wheels for amd64
and arm64. `build.txt` is what builds our own wheel. Nothing is built from source, so nothing of a package runs before
it is installed. The hashes are those of pypi.org, whatever mirror this machine is set up for.

pip reads markers such as `python_version < "3.12"` by the Python that it runs under. If the image's Python needs a
package that this one does not, it is missing in the lock, and the build of the image fails: run this under the image's
Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOP = HERE.parents[1]
EXTRAS = ("speed", "speed,otel")  # what `--build-arg EXTRAS=` may be
PYTHON = "3.13"  # of the base image
_GLIBC = ("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
_MACHINES = ("x86_64", "aarch64")

Locked = dict[tuple[str, str], set[str]]  # name and version -> hashes


def requirements(extras: Iterable[str]) -> list[str]:
    """What pyproject.toml asks for, with these extras."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


def build_requirements() -> list[str]:
    return list(tomllib.loads((TOP / "pyproject.toml").read_text())["build-system"]["requires"])


def sets() -> dict[str, list[str]]:
    """The name of each lock file -> what it is made of."""
    return {"build": build_requirements()} | {extras: requirements(extras.split(",")) for extras in EXTRAS}


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(wanted: list[str]) -> Locked:
    """The packages for every machine. Raises SystemExit if pip finds none, or two versions of one."""
    found: Locked = defaultdict(set)
    for machine in _MACHINES:
        for package in _resolved(wanted, machine):
            name = (normal_name(package["metadata"]["name"]), package["metadata"]["version"])
            found[name].add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    if len({name for name, _ in found}) != len(found):
        raise SystemExit("pip chooses two versions of a package for two machines")
    return found


def _resolved(wanted: list[str], machine: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        platforms = [part for glibc in _GLIBC for part in ("--platform", f"{glibc}_{machine}")]
        command = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
        ]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, *platforms]
        command += ["--target", scratch, "--report", str(report), "--index-url", "https://pypi.org/simple", *wanted]
        subprocess.run(command, check=True)  # noqa: S603
        installed: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return installed


def text_of(name: str, wanted: list[str], found: Locked) -> str:
    lines = ["# Written by `make lock` from pyproject.toml. Do not edit.", f"# {name}, Python {PYTHON}, for:"]
    lines += [f"#   {each}" for each in sorted(wanted)]
    for (package, version), hashes in sorted(found.items()):
        marks = [f"    --hash=sha256:{digest}" for digest in sorted(hashes)]
        lines.append(" \\\n".join([f"{package}=={version}", *marks]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for file_name, asked in sets().items():
        path = HERE / f"{file_name}.txt"
        path.write_text(text_of(file_name, asked, lock(asked)))
        print(f"Wrote {path.relative_to(TOP)}.")
