"""The lifecycle drawn from its table: a Mermaid diagram and the table in words. What a page shows cannot disagree.

Pure: a table in, text out. `docs/lifecycle.md` holds both between markers, and a test fails when they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paywitness.core.lifecycle import ACTIONS, EXTERNAL_DENIALS, PENDINGS, REVERSALS, SUCCESSES, Event, Transition
from paywitness.core.operation import State

Table = Mapping[State, Mapping[Event, Transition]]

# Events that mean the same, whoever tells it: one word for all of them on an arrow.
GROUPS: dict[str, tuple[Event, ...]] = {
    "success": SUCCESSES,
    "reversal": REVERSALS,
    "pending": PENDINGS,
    "action": ACTIONS,
    "denial from outside": EXTERNAL_DENIALS,
}


def diagram(table: Table) -> str:
    """The moves from one state to another, as a Mermaid state diagram. What changes no state is not drawn."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.PREPARED}"]
    for state, row in table.items():
        for to in dict.fromkeys(move.to for move in row.values()):
            if to is not state:
                label = ", ".join(_words(event for event, move in row.items() if move.to is to))
                lines.append(f"    {state} --> {to}: {label}")
    lines.extend(f"    {state} --> [*]" for state in table if state.ended)
    return "\n".join(lines) + "\n"


def words(table: Table) -> str:
    """The whole table, as a Markdown table: every state and event that may meet, where it leads, and what it opens."""
    lines = ["| in | when | then | incident |", "|---|---|---|---|"]
    for state, row in table.items():
        for move in dict.fromkeys(row.values()):
            events = ", ".join(_words(event for event, found in row.items() if found == move))
            then = "stays" if move.to is state else str(move.to)
            lines.append(f"| {state} | {events} | {then} | {move.incident or ''} |")
    return "\n".join(lines) + "\n"


def groups() -> str:
    """What the words for several events stand for, as a Markdown list."""
    return "".join(f"- *{word}*: {', '.join(_plain(event) for event in events)}\n" for word, events in GROUPS.items())


def _words(events: Iterable[Event]) -> list[str]:
    """The events in words, whole groups by their own."""
    left = list(events)
    found = []
    for word, members in GROUPS.items():
        if set(members) <= set(left):
            found.append(word)
            left = [event for event in left if event not in members]
    return [*found, *(_plain(event) for event in left)]


def _plain(event: Event) -> str:
    return event.replace("_", " ")
