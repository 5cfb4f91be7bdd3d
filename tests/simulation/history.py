"""The history of a world: every event as a line, in the order in which it happened. The same seed gives the same lines
to the byte. What the checkers object to is kept beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.simulation.loop import SimLoop

VIOLATIONS_MAX = 20


@dataclass(frozen=True)
class Violation:
    at_s: float
    promise: str  # the name of the checker
    about: str  # whose payment
    detail: str

    def __str__(self) -> str:
        return f"{self.at_s:10.3f} s  {self.promise}: {self.about}: {self.detail}"


class History:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._began_mono = loop.now_mono
        self._lines: list[tuple[float, str, str, str, str]] = []
        self.violations: list[Violation] = []

    def say(self, who: str, what: str, about: str = "", detail: str = "") -> None:
        self._lines.append((self._loop.now_mono - self._began_mono, who, what, about, detail))

    def violated(self, promise: str, about: str, detail: str) -> None:
        self.say("checker", f"VIOLATED {promise}", about, detail)
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(self._loop.now_mono - self._began_mono, promise, about, detail))

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def at_s(self) -> float:
        return self._loop.now_mono - self._began_mono

    def lines(self, about: str | None = None) -> list[str]:
        """As text; of one payment alone, with what befell everybody."""
        return [
            f"{at:10.3f}  {who:<10} {what:<28} {whom:<10} {detail}".rstrip()
            for at, who, what, whom, detail in self._lines
            if about is None or whom in {about, ""}
        ]

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()
