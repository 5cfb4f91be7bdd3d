"""The systemd unit. No systemd runs here: it is verified, and its hardening is scored, offline."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.shipped import DEPLOY, GRACE_S, OUR_USER, parse, told, unknown_variables

pytestmark = pytest.mark.slow

UNIT = DEPLOY / "systemd" / "paywitness.service"
TEXT = UNIT.read_text()
PROGRAM = "/opt/paywitness/bin/paywitness"
EXPOSURE_MAX = 15  # of 100; what is left is that it may use the network


def value(name: str) -> str:
    (found,) = re.findall(rf"(?m)^{name}=(.*)$", TEXT)
    return str(found)


def test_systemd_takes_it(tmp_path: Path) -> None:
    assert PROGRAM in TEXT
    installed = tmp_path / UNIT.name
    installed.write_text(TEXT.replace(PROGRAM, "/bin/true"))  # it must exist to be verified
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr  # what it does not know it passes over, and only says so


def test_it_is_hardened() -> None:
    assert told("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT)) == ""


def test_it_starts_our_command_with_settings_of_ours() -> None:
    program, *arguments = value("ExecStart").split()
    assert program == PROGRAM
    assert parse(arguments) == "run"
    assert unknown_variables(set(re.findall(r"\b(PAYWITNESS_\w+)=/", TEXT))) == set()


def test_it_is_given_the_time_to_drain() -> None:
    assert float(value("TimeoutStopSec")) > GRACE_S


def test_its_user_is_the_one_that_a_redirect_lets_pass() -> None:
    kind, name, number, *_ = (DEPLOY / "systemd" / "paywitness.sysusers").read_text().splitlines()[1].split()
    assert (kind, name, number) == ("u", value("User"), str(OUR_USER))
