"""Texts for a terminal: what somebody else wrote never controls it, and names and times are as people write them."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from paywitness.core.timeline_words import duration_text
from paywitness.telemetry.logs import printable


def text_of(value: str, style: str = "") -> Text:
    """As it is: no markup is read in it, and nothing in it commands the terminal."""
    return Text(printable(value), style=style)


def words(name: str) -> str:
    return name.replace("_", " ")


def numbers(attempts: list[int]) -> str:
    return ", ".join(str(number) for number in attempts)


def moment(iso: str) -> str:
    """2026-01-31T12:00:00.123Z as people write it."""
    return iso[:19].replace("T", " ")


def moment_ahead(iso: str, now: float) -> str:
    """A moment, and how long it is until then: 2026-01-31 12:00:00 (in 2 h 5 min)."""
    ahead_s = datetime.fromisoformat(iso).timestamp() - now
    return f"{moment(iso)} (in {duration_text(ahead_s)})" if ahead_s >= 1 else f"{moment(iso)} (now)"
