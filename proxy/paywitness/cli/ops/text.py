"""Texts for a terminal. Foreign text cannot control it, and names and times are printed as people write them."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from paywitness.core.timeline_words import duration_text
from paywitness.telemetry.logs import printable


def text_of(value: str, style: str = "") -> Text:
    """The text as it is: no markup in it is read, and nothing in it controls the terminal."""
    return Text(printable(value), style=style)


def words(name: str) -> str:
    return name.replace("_", " ")


def numbers(attempts: list[int]) -> str:
    return ", ".join(str(number) for number in attempts)


def moment(iso: str) -> str:
    """2026-01-31T12:00:00.123Z becomes 2026-01-31 12:00:00."""
    return iso[:19].replace("T", " ")


def moment_ahead(iso: str, now: float) -> str:
    """A moment, and the time until then: 2026-01-31 12:00:00 (in 2 h 5 min)."""
    ahead_s = datetime.fromisoformat(iso).timestamp() - now
    return f"{moment(iso)} (in {duration_text(ahead_s)})" if ahead_s >= 1 else f"{moment(iso)} (now)"
