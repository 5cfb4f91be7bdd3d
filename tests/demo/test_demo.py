"""The real demo as a person runs it: real processes and sockets, counted once more from its ledgers and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DEMO = (sys.executable, "-c", "from paywitness.cli.demo import demo; demo()")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the demo puts what it needs for a while; afterwards nothing of it may be there, nor any process."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    assert processes_naming(tmp_path) == []


def processes_naming(path: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(path) in command:
            found.append(command)
    return found


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DEMO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        # Whoever runs the tests in the background of a script has Ctrl-C ignored, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    )


def counted(lane: dict[str, Any]) -> dict[str, int]:
    """The verdict once more, from nothing but the ledger and what callers were told."""
    charges = Counter(entry["order"] for entry in lane["ledger"] if entry["kind"] == "charge")
    told = {line["order"]: line["told"] for line in lane["told"]}
    first: dict[str, int] = {}
    for entry in lane["ledger"]:
        first.setdefault(entry["order"], entry["amount"])
    return {
        "payments": len(told),
        "charged_twice": len([order for order in charges if charges[order] > 1]),
        "charged_but_told_failed": len([order for order in charges if told[order] in ("failed", "declined")]),
        "told_paid_but_not_charged": len([order for order in told if told[order] == "paid" and not charges[order]]),
        "told_unknown": list(told.values()).count("unknown"),
        "told_unknown_and_charged": len([order for order in charges if told[order] == "unknown"]),
        "paid_and_told_paid": len([order for order in told if told[order] == "paid" and charges[order] == 1]),
        "declined": len([order for order in told if told[order] == "declined" and not charges[order]]),
        "failed_and_told_failed": len([order for order in told if told[order] == "failed" and not charges[order]]),
        "overcharged": sum(entry["amount"] for entry in lane["ledger"]) - sum(first.values()),
    }


def test_the_numbers_are_the_ledgers_and_paywitness_harms_nobody(folder: Path) -> None:
    process = start(folder, "--payments", "30", "--seed", "5", "--json")
    output, progress = process.communicate(timeout=90)
    assert process.returncode == 0, progress
    result = json.loads(output)
    assert set(result["lanes"]) == {"sdk", "sdk_key_per_order", "paywitness"}
    for lane in result["lanes"].values():
        assert lane["verdict"] == counted(lane)
        assert lane["verdict"]["payments"] == 30
    carried = result["lanes"]["paywitness"]["verdict"]
    assert carried["charged_twice"] == 0
    assert carried["charged_but_told_failed"] == 0
    assert carried["told_paid_but_not_charged"] == 0
    assert carried["paid_and_told_paid"] > 15  # it does carry payments, too
    assert "30 payments on a bad day" in progress
    assert result["took_s"] < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_broken_off_it_leaves_nothing_behind(folder: Path, number: signal.Signals) -> None:
    process = start(folder, "--payments", "100")
    assert process.stdout is not None
    while "told (" not in process.stdout.readline():  # the first line of progress: everything runs
        assert process.poll() is None
    assert processes_naming(folder)
    process.send_signal(number)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in complaint
