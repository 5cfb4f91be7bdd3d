"""A pytest plugin: writes what each test took to the file that MUTANTS_DURATIONS names, for `reach.py`.

A test that did not pass is left out: it can catch nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_took_s: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Setup, call and teardown of one test, each with a report of its own; of all workers."""
    _took_s[report.nodeid] = _took_s.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):  # the controller hears of every worker's tests
        return
    passed = {test: round(took_s, 4) for test, took_s in _took_s.items() if test not in _failed}
    Path(os.environ["MUTANTS_DURATIONS"]).write_text(json.dumps(passed))
