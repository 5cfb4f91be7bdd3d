"""Sessions of pytest that have collected already, and run tests with a mutant planted whenever they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from tests.mutants.reach import TOP, environment

_TEST_TIMEOUT_S = 60


class OutOfTimeError(Exception):
    """The tests did not end in their time."""


@dataclass
class TestRuns:
    """One session. Close it when nothing more is run."""

    __test__ = False

    process: subprocess.Popen[bytes]
    requests: TextIO
    replies: TextIO
    collected: tuple[str, ...] = field(init=False)  # the tests

    def __post_init__(self) -> None:
        started = self.replies.readline()
        if not started:
            raise RuntimeError("pytest ended before it had collected; run it on tests/ to see why")
        self.collected = tuple(json.loads(started)["collected"])

    @classmethod
    def of(cls, files: Iterable[str]) -> TestRuns:
        """A session that has collected these files."""
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
        command += ["-p", "tests.mutants.forked_tests", "--timeout", str(_TEST_TIMEOUT_S), *files]
        process = subprocess.Popen(
            command,
            cwd=TOP,
            env=environment(MUTANTS_REQUESTS=str(theirs_in), MUTANTS_REPLIES=str(theirs_out)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        return cls(process, os.fdopen(ours_out, "w"), os.fdopen(ours_in))

    def run(self, tests: Sequence[str], mutant: str, within_s: float) -> tuple[list[str], int]:
        """The first of these tests that fails with the mutant planted ("" for none), and how many passed before it."""
        request = {"mutant": mutant, "tests": list(tests), "within_s": max(1.0, within_s)}
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        reply: dict[str, Any] = json.loads(self.replies.readline() or '{"error": "pytest has ended"}')
        if "out_of_time" in reply:
            raise OutOfTimeError
        if "error" in reply:
            raise RuntimeError(f"{mutant}: {reply['error']}")
        return reply["failed"], reply["passed"]

    def tests_of(self, file: str) -> list[str]:
        return [test for test in self.collected if test.partition("::")[0] == file]

    def close(self) -> None:
        self.requests.close()
        self.replies.close()
        self.process.wait()
