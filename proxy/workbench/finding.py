"""What a check of the doctor says: how fit, what was found, why it matters, what to do. Never a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

# A last line of defence: messages from other rooms may quote an address whole.
_LOGIN = re.compile(r"(\w://)[^\s'\"]*@")
_PASSWORD = re.compile(r"(password=)[^&\s'\"]+")


class Fitness(StrEnum):
    OK = "ok"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str  # room and thing: "journal eviction"
    fitness: Fitness
    found: str
    why: str = ""  # half a sentence
    remedy: str = ""  # what to do; empty where there is nothing

    @property
    def line(self) -> str:
        """All of it but the subject, as one sentence and an advice."""
        told = f"{self.found.rstrip('.')}: {self.why}" if self.why else self.found
        return f"{told}. {self.remedy}" if self.remedy else told

    def as_json(self) -> dict[str, str]:
        return {
            "subject": self.subject,
            "fitness": self.fitness.value,
            "found": self.found,
            "why": self.why,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        return not self.count(Fitness.UNFIT)

    def count(self, fitness: Fitness) -> int:
        return sum(finding.fitness is fitness for finding in self.findings)

    @property
    def verdict(self) -> str:
        unfit, warnings = self.count(Fitness.UNFIT), self.count(Fitness.WARNING)
        told = f"{unfit} unfit, {warnings} {'warning' if warnings == 1 else 'warnings'}, {self.count(Fitness.OK)} ok"
        return f"{'Fit to hold money' if self.fit else 'NOT fit to hold money'}: {told}."

    def as_json(self) -> dict[str, object]:
        return {
            "fit": self.fit,
            "unfit": self.count(Fitness.UNFIT),
            "warnings": self.count(Fitness.WARNING),
            "findings": [finding.as_json() for finding in self.findings],
        }


def ok(subject: str, found: str, why: str = "") -> Finding:
    return Finding(subject, Fitness.OK, scrubbed(found), why)


def warning(subject: str, found: str, why: str, remedy: str) -> Finding:
    return Finding(subject, Fitness.WARNING, scrubbed(found), scrubbed(why), scrubbed(remedy))


def unfit(subject: str, found: str, why: str, remedy: str) -> Finding:
    return Finding(subject, Fitness.UNFIT, scrubbed(found), scrubbed(why), scrubbed(remedy))


def scrubbed(text: str) -> str:
    """The text in one line, addresses in it without user and password."""
    return _PASSWORD.sub(r"\1...", _LOGIN.sub(r"\1...@", " ".join(text.split())))
