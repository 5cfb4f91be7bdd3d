"""A server that a test leaves running is killed at the end of its worker, and is a failure if no test failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import children

TOP = Path(__file__).parent.parent
_TEST = """
import pathlib, subprocess, sys

def test_that_starts_a_server():
    script = "import time; print(flush=True); time.sleep(120)"
    server = subprocess.Popen([sys.executable, "-c", script, "a-server"], stdout=subprocess.PIPE)
    server.stdout.readline()
    pathlib.Path({left!r}).write_text(str(server.pid))
    globals()["held"] = server  # nobody collects it before the end
    assert {passes}
"""


def test_a_process_is_a_child_for_as_long_as_it_runs() -> None:
    before = set(children())
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", "a-server"])
    try:
        assert set(children()) - before == {process.pid}
    finally:
        process.kill()
        process.wait()
    assert process.pid not in children()


@pytest.mark.parametrize(("passes", "told"), [(True, "1 passed, 1 error"), (False, "1 failed")])
def test_what_a_run_left_behind_is_killed_and_told_unless_a_failure_explains_it(
    tmp_path: Path, passes: bool, told: str
) -> None:
    left = tmp_path / "left"
    test = tmp_path / "test_one.py"
    test.write_text(_TEST.format(left=str(left), passes=passes))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    path = os.pathsep.join((str(TOP / "proxy"), str(TOP)))
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-W", "ignore", str(test)],
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert told in done.stdout.splitlines()[-1]
    assert ("left running" in done.stdout and "a-server" in done.stdout) is passes
    assert not Path(f"/proc/{left.read_text()}").exists()
