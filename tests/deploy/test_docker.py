"""The Dockerfile. There is no Docker here: it is linted, and what it does is done without it as far as that goes."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from paywitness.policy.shipped_policies import shipped_directory
from tests.deploy.shipped import DEPLOY, OUR_USER, TOP, told, unknown_variables
from tests.ports import free_port

pytestmark = pytest.mark.slow

TEXT = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = {
    (name or "last"): body
    for name, body in re.findall(r"(?ms)^FROM \S+(?: AS (\w+))?\n(.*?)(?=^FROM |\Z)", TEXT + "\n")
}


def test_hadolint_finds_nothing() -> None:
    assert told("hadolint", str(DEPLOY / "Dockerfile")) == ""


def test_what_is_built_by_default_is_the_runtime_and_nothing_else() -> None:
    assert list(STAGES) == ["build", "runtime", "redirect", "last"]
    assert STAGES["last"].strip() == ""
    assert TEXT.rstrip().endswith("FROM runtime")


def test_the_runtime_is_not_root_and_has_no_tools_of_the_build() -> None:
    runtime = STAGES["runtime"]
    assert re.findall(r"(?m)^USER (.*)$", runtime) == [f"{OUR_USER}:{OUR_USER}"]
    assert not re.search(r"pip install|apt-get|COPY (?!--from=build)", runtime)
    assert "apt-get" not in STAGES["build"]  # every dependency comes as a wheel


def test_its_base_is_a_version_and_not_the_latest() -> None:
    bases = re.findall(r"(?m)^FROM (\S+)", TEXT)
    assert {base for base in bases if base not in STAGES} == {"${PYTHON_IMAGE}"}
    assert re.findall(r"(?m)^ARG PYTHON_IMAGE=(\S+)", TEXT) == ["python:3.13-slim-bookworm"]
    assert TEXT.index("ARG PYTHON_IMAGE") < TEXT.index("FROM ")


@pytest.mark.parametrize("image", ["", "python:3.13-slim-bookworm", "python:latest@sha256:" + "a" * 64])
def test_make_builds_it_only_over_a_base_by_digest(image: str) -> None:
    """S7."""
    made = subprocess.run(
        ["make", "image", f"PYTHON_IMAGE={image}"], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert made.returncode != 0
    assert "imagetools inspect" in made.stdout
    assert "docker build --build-arg" not in made.stdout


def test_every_package_comes_by_its_hash() -> None:
    """S7."""
    installs = re.findall(r"pip install (.*?)(?=&&|$)", STAGES["build"], re.MULTILINE)
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps --no-index dist/*.whl" in each for each in installs)


def test_its_variables_are_ours() -> None:
    assert unknown_variables(set(re.findall(r"PAYWITNESS_\w+(?==)", TEXT))) == set()


def test_what_is_copied_is_enough_to_build_from(tmp_path: Path) -> None:
    """With what the builder is sent: all else is ignored."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = [word for line in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", STAGES["build"]) for word in line.split()]
    assert set(copied) == sent
    for name in copied:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(TOP / name, tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for wanted in ("paywitness/policies/stripe.yaml", "paywitness/journal/redis/lua/*.lua", "paywitness/cli/run.py"):
        assert fnmatch.filter(names, wanted), f"the wheel has no {wanted}"
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"paywitness", "paywitness_sandbox"}  # `proxy` is another project's package
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shipped = "from paywitness.policy.shipped_policies import shipped_directory; print(shipped_directory())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    found = subprocess.run(
        [sys.executable, "-c", shipped], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    assert Path(found.stdout.decode().strip()) == tmp_path / "installed" / "paywitness" / "policies"


def test_a_checkout_reads_its_own_policies_and_not_the_copy_of_an_editable_install() -> None:
    assert shipped_directory() == TOP / "policies"


@pytest.fixture
def health() -> Iterator[int]:
    """An admin port that knows one path."""

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_its_healthcheck_tells_a_living_process_from_none(health: int) -> None:
    (command,) = re.findall(r"CMD (\[\"python\".*\])", STAGES["runtime"])
    program = [sys.executable, *json.loads(command)[1:]]

    def result(port: int) -> int:
        environment = {"PAYWITNESS_ADMIN": f"0.0.0.0:{port}"}
        return subprocess.run(program, env=environment, stderr=subprocess.DEVNULL, check=False).returncode

    assert result(health) == 0
    assert result(free_port()) != 0
