"""The lock files of the image: they are those of pyproject.toml, and every package in them has its hashes."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from packaging.requirements import Requirement

from tests.deploy.shipped import DEPLOY, TOP

locks = import_module("deploy.locks.__main__")
SETS: dict[str, list[str]] = locks.sets()


def pinned(name: str) -> dict[str, tuple[str, list[str]]]:
    """Each package of a lock: its version and hashes."""
    text = (DEPLOY / "locks" / f"{name}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            (package, version), *hashes = line.split()[0].split("=="), *re.findall(r"--hash=(\S+)", line)
            found[package] = (version, hashes)
    return found


def test_there_is_a_lock_for_every_set_of_extras_and_no_other() -> None:
    assert {path.stem for path in (DEPLOY / "locks").glob("*.txt")} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_a_lock_is_of_what_pyproject_asks_for(name: str) -> None:
    """S7: whoever changes a dependency runs `make lock`."""
    lines = (DEPLOY / "locks" / f"{name}.txt").read_text().splitlines()
    assert [line.removeprefix("#   ") for line in lines if line.startswith("#   ")] == sorted(SETS[name])
    locked = pinned(name)
    for wanted in map(Requirement, SETS[name]):
        version, _ = locked[locks.normal_name(wanted.name)]
        assert wanted.specifier.contains(version), wanted


@pytest.mark.parametrize("name", SETS)
def test_every_package_has_the_hashes_of_its_wheels(name: str) -> None:
    for package, (_, hashes) in pinned(name).items():
        assert hashes, package
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), package
    if name != "build":
        assert len(pinned(name)["aiohttp"][1]) == 2  # compiled: for amd64 and for arm64


def test_the_lock_is_for_the_python_of_the_image() -> None:
    assert f"python:{locks.PYTHON}-slim" in (DEPLOY / "Dockerfile").read_text()
    assert (TOP / "Makefile").read_text().count("-m deploy.locks") == 1
