"""The page about the lifecycle shows the table as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paywitness.core.lifecycle import TABLE, Event, IncidentKind, Transition
from paywitness.core.operation import State
from tests.core.diagram import GROUPS, diagram, groups, words

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
BLOCKS = {"diagram": f"```mermaid\n{diagram(TABLE)}```\n", "groups": groups(), "table": words(TABLE)}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_shows_what_the_table_says(name: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert found.group(1) == BLOCKS[name], f"the block '{name}' of docs/lifecycle.md should read:\n\n{BLOCKS[name]}"


def test_the_page_names_every_state() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"\n| {state} | " in page for state in State)


def test_every_move_to_another_state_is_drawn() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+): ", diagram(TABLE), re.MULTILINE))
    assert drawn == {(state, move.to) for state, row in TABLE.items() for move in row.values() if move.to is not state}


def test_every_event_of_every_row_is_told_in_words() -> None:
    for state, row in TABLE.items():
        told = " ".join(line for line in words(TABLE).splitlines() if line.startswith(f"| {state} |"))
        for event in row:
            grouped = [word for word, events in GROUPS.items() if event in events]
            assert any(word in told for word in (event.replace("_", " "), *grouped)), (state, event)


def test_only_a_whole_group_is_told_by_its_word() -> None:
    move = Transition(State.SUCCEEDED, IncidentKind.TWO_REFERENCES)
    one = {State.UNKNOWN: {Event.SUCCESS_SEEN: move}}
    assert diagram(one) == ("stateDiagram-v2\n    [*] --> prepared\n    unknown --> succeeded: success seen\n")
    assert words(one).splitlines()[-1] == "| unknown | success seen | succeeded | two_references |"
    whole = {State.UNKNOWN: dict.fromkeys(GROUPS["success"], move)}
    assert "unknown --> succeeded: success\n" in diagram(whole)


def test_what_stays_is_told_but_not_drawn() -> None:
    staying = {State.UNKNOWN: {Event.INQUIRY_MISSED: Transition(State.UNKNOWN)}}
    assert "inquiry" not in diagram(staying)
    assert "| unknown | inquiry missed | stays |  |" in words(staying)
