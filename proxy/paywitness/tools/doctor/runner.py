"""Findings, and the time limits of checks: each check has its own, and all together have one. A check that does not end
in time counts as unfit.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from paywitness.clock import Clock
from paywitness.core.errors import PaywitnessError

# --- Findings
# A finding holds severity, subject, fact, reason and remedy. It never holds a secret.

# The last safeguard: messages from other rooms may quote a whole address.
_LOGIN = re.compile(r"(\w://)[^\s'\"]*@")
_PASSWORD = re.compile(r"(password=)[^&\s'\"]+")


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report."""

    subject: str  # component and topic: "journal eviction"
    severity: Severity
    found: str
    why: str = ""  # a clause, without a full stop
    remedy: str = ""  # the next step; empty if there is none

    @property
    def line(self) -> str:
        """The finding without its subject, as one sentence and the remedy."""
        text = f"{self.found.rstrip('.')}: {self.why}" if self.why else self.found
        return f"{text}. {self.remedy}" if self.remedy else text

    def as_json(self) -> dict[str, str]:
        return {
            "subject": self.subject,
            "fitness": self.severity.value,
            "found": self.found,
            "why": self.why,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class DoctorReport:
    findings: tuple[DoctorFinding, ...]

    @property
    def fit(self) -> bool:
        return not self.count(Severity.UNFIT)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def summary(self) -> str:
        unfit, warnings = self.count(Severity.UNFIT), self.count(Severity.WARNING)
        text = f"{unfit} unfit, {warnings} {'warning' if warnings == 1 else 'warnings'}, {self.count(Severity.OK)} ok"
        return f"{'Fit to hold money' if self.fit else 'NOT fit to hold money'}: {text}."

    def as_json(self) -> dict[str, object]:
        return {
            "fit": self.fit,
            "unfit": self.count(Severity.UNFIT),
            "warnings": self.count(Severity.WARNING),
            "findings": [finding.as_json() for finding in self.findings],
        }


def ok(subject: str, found: str, why: str = "") -> DoctorFinding:
    return DoctorFinding(subject, Severity.OK, redacted(found), why)


def warning(subject: str, found: str, why: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(subject, Severity.WARNING, redacted(found), redacted(why), redacted(remedy))


def unfit(subject: str, found: str, why: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(subject, Severity.UNFIT, redacted(found), redacted(why), redacted(remedy))


def redacted(text: str) -> str:
    """The text in one line, with user and password cut from the addresses in it."""
    return _PASSWORD.sub(r"\1...", _LOGIN.sub(r"\1...@", " ".join(text.split())))


# --- Running checks

CHECK_S = 3.0
WHOLE_S = 14.0  # of 15; the rest is for the start of Python and for printing
_SLOW_S = 1.0  # then a progress line is printed

ProgressWriter = Callable[[str], None]
Result = TypeVar("Result")


class CheckRunner:
    """Collects findings. It runs one check after the other in one event loop, because checks measure latencies."""

    def __init__(self, clock: Clock, progress: ProgressWriter) -> None:
        self.clock = clock
        self._progress = progress
        self._findings: list[DoctorFinding] = []
        self._until_mono = clock.mono() + WHOLE_S

    @property
    def report(self) -> DoctorReport:
        return DoctorReport(tuple(self._findings))

    def add(self, *findings: DoctorFinding) -> None:
        self._findings.extend(findings)

    async def check(self, subject: str, run_check: Callable[[], Awaitable[Iterable[DoctorFinding]]]) -> bool:
        """Run one check and keep its findings. Returns False if the check did not end."""
        left_s = min(CHECK_S, self._until_mono - self.clock.mono())
        if left_s <= 0:
            self.add(unfit(subject, "not checked", f"the {WHOLE_S:g} s were over", "Run it again when the rest is ok"))
            return False
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._progress, f"still checking: {subject} ...")
        try:
            async with asyncio.timeout(left_s):
                self.add(*await run_check())
        except TimeoutError:
            why = "a payment would get no answer either"
            self.add(unfit(subject, f"no answer in {left_s:.1f} s", why, "Find the cause, then run this again"))
            return False
        except (PaywitnessError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            self.add(
                unfit(subject, f"the check failed ({text})", "its result is unknown", "Correct it and run this again")
            )
            return False
        finally:
            slow.cancel()
        return True

    async def check_in_thread(self, subject: str, run_check: Callable[[], Iterable[DoctorFinding]]) -> bool:
        """The same for a blocking check: a disk or a name server may hang."""
        return await self.check(subject, lambda: run_in_daemon_thread(lambda: list(run_check())))


def run_in_daemon_thread(blocking: Callable[[], Result]) -> Awaitable[Result]:
    """Run it in a daemon thread. An executor's thread would hold up the exit for as long as its disk hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return  # the check has timed out
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # one of the two is set

    def work() -> None:
        try:
            outcome = blocking(), None
        except Exception as error:  # noqa: BLE001  # any error is raised in the awaiting check
            outcome = None, error  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(deliver, *outcome)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits for the result

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return future
