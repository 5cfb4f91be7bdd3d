"""The words of a timeline: the text for each change, which changes get no line, and durations in words. Pure."""

from __future__ import annotations

from paywitness.core.lifecycle import Event
from paywitness.core.operation import HistoryEntry

_MAY_HAVE_MOVED = "money may have moved"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def change_text(entry: HistoryEntry) -> str:
    """The text for a change. Its stored events keep their names; a response that arrived is not shown as lost."""
    told = ", ".join(_event_text(event, entry) for event in entry.events)
    if told:
        return told
    if entry.actor and entry.action:
        return entry.action.replace("_", " ")
    return "checked" if entry.finding is not None else "updated"


def _event_text(event: str, entry: HistoryEntry) -> str:
    attempt = entry.attempt
    if event != Event.ANSWER_LOST or attempt is None:
        return event.replace("_", " ")
    text = "answer lost" if attempt.status_code is None else f"answered {attempt.status_code}"
    return f"{text}: {_MAY_HAVE_MOVED}" if attempt.number in entry.doubt else text


def is_lease_only(entry: HistoryEntry) -> bool:
    """Whether a change only moves the lease, and no fact about the operation has changed."""
    told = entry.events or entry.attempt or entry.finding or entry.announcement or entry.action or entry.actor
    return not told and entry.note in _LEASE_NOTES


_LEASE_NOTES = frozenset({"lease taken", "lease expired"})


def duration_text(seconds: float) -> str:
    """2 h 5 min: the two largest units that say something. Below ten seconds with a decimal, below one in ms."""
    if seconds < 0.9995:
        return f"{round(max(0.0, seconds) * 1000)} ms"
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    left = round(seconds)
    for place, (unit, length_s) in enumerate(_UNITS):
        if left < length_s:
            continue
        whole, rest = divmod(left, length_s)
        smaller, smaller_s = _UNITS[min(place + 1, len(_UNITS) - 1)]
        parts = rest // smaller_s if smaller != unit else 0
        return f"{whole} {unit} {parts} {smaller}" if parts else f"{whole} {unit}"
    return "0 s"
