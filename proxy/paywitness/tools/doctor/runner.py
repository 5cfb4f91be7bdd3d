"""Findings of a check, and how checks are bounded: each for itself, and all together. A check that did not end in time
counts as unfit.
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
# What a check of the doctor says: how fit, what was found, why it matters, what to do. Never a secret.

# A last line of defence: messages from other rooms may quote an address whole.
_LOGIN = re.compile(r"(\w://)[^\s'\"]*@")
_PASSWORD = re.compile(r"(password=)[^&\s'\"]+")


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report."""

    subject: str  # room and thing: "journal eviction"
    severity: Severity
    found: str
    why: str = ""  # half a sentence
    remedy: str = ""  # what to do; empty where there is nothing

    @property
    def line(self) -> str:
        """All of it but the subject, as one sentence and an advice."""
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
    """The text in one line, addresses in it without user and password."""
    return _PASSWORD.sub(r"\1...", _LOGIN.sub(r"\1...@", " ".join(text.split())))


# --- Running checks

CHECK_S = 3.0
WHOLE_S = 14.0  # of 15: the rest is for the start of Python and for printing
_SLOW_S = 1.0  # from then on a person wonders

ProgressWriter = Callable[[str], None]
Result = TypeVar("Result")


class CheckRunner:
    """Collects findings. Used from one event loop, one check after the other: latencies are among them."""

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
        """Run one check and keep what it says. False where it did not come to its end."""
        left_s = min(CHECK_S, self._until_mono - self.clock.mono())
        if left_s <= 0:
            self.add(unfit(subject, "not looked at", f"{WHOLE_S:g} s were over", "Run it again when the rest is well"))
            return False
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._progress, f"still looking at: {subject} ...")
        try:
            async with asyncio.timeout(left_s):
                self.add(*await run_check())
        except TimeoutError:
            why = "what does not answer a look will not answer a payment"
            self.add(unfit(subject, f"no answer in {left_s:.1f} s", why, "See why it is slow, then run this again"))
            return False
        except (PaywitnessError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            self.add(unfit(subject, f"the check failed ({text})", "so nobody knows", "Mend that, then run this again"))
            return False
        finally:
            slow.cancel()
        return True

    async def check_in_thread(self, subject: str, run_check: Callable[[], Iterable[DoctorFinding]]) -> bool:
        """The same for what blocks: a disk that hangs, a resolver of names."""
        return await self.check(subject, lambda: run_in_daemon_thread(lambda: list(run_check())))


def run_in_daemon_thread(blocking: Callable[[], Result]) -> Awaitable[Result]:
    """In a thread that nobody waits for at the end: an executor's would hold up the exit for as long as its disk."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return  # given up
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the one or the other is there

    def work() -> None:
        try:
            outcome = blocking(), None
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised where the check is awaited
            outcome = None, error  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(deliver, *outcome)
        except RuntimeError:
            pass  # the loop is closed: it came too late

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return future
