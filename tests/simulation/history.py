"""The history of a world: every event as a line, in the order in which it happened. The same seed gives the same lines
to the byte. What the checkers object to is kept beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.simulation.loop import SimLoop

VIOLATIONS_MAX = 20
Detail = str | tuple[object, ...]  # words that are put together when somebody reads them
_NAMES = ("op_", "ch_", "po_", "re_", "pi_", "cp_", "tr_")
Line = tuple[float, str, str, str, Detail]  # at, who, what, whose payment


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
        self._lines: list[Line] = []
        self.violations: list[Violation] = []

    def say(self, who: str, what: str, about: str = "", detail: Detail = "") -> None:
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
        return [_line(line) for line in self._lines if about is None or line[3] in {about, ""}]

    def life_of(self, violation: Violation, most: int) -> list[str]:
        """What led to it: the life of that payment with every look at its operations, or, of a violation without a
        payment, everything; the latest lines up to it."""
        told = [(line, _line(line)) for line in self._lines if line[0] <= violation.at_s]
        if violation.about:
            own = [text for line, text in told if _is_about(line, violation.about)]
            names = {word for text in own for word in text.split() if word.startswith(_NAMES)}
            told = [
                (line, text)
                for line, text in told
                if _is_about(line, violation.about)
                or (not line[3] and (line[4] == "" or any(name in text for name in names) or _befalls(line[2])))
            ]
        return [text for _, text in told[-most:]]

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def _is_about(line: Line, order: str) -> bool:
    """What an order was asked for in several calls is named after it: `m7`, `m7.pay1`."""
    return line[3] == order or line[3].startswith(f"{order}.")


def _line(line: Line) -> str:
    at, who, what, whom, detail = line
    return f"{at:10.3f}  {who:<10} {what:<28} {whom:<10} {_said(detail)}".rstrip()


def _befalls(what: str) -> bool:
    """Whether it befell a whole sidecar, or everybody."""
    return not what.startswith(("sends", "sees", "answers", "could not", "may not", "journal:"))


def _said(detail: Detail) -> str:
    return detail if isinstance(detail, str) else " ".join(str(word) for word in detail)
