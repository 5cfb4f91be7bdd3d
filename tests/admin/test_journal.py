"""The journal's level on the admin port and on the command line."""

from __future__ import annotations

from dataclasses import replace

from click.testing import CliRunner

from paywitness.cli.journal import journal
from paywitness.core.levels import LEVEL, JournalLevel
from tests.admin.conftest import Asker
from tests.admin.running import Running
from tests.admin.world import TOKEN, World

BY = {"actor": "ada", "reason": "all sidecars run the new release"}


async def test_the_status_names_level_and_sidecars(world: World, ask: Asker) -> None:
    await world.ages.count()
    found = (await ask("/v1/journal")).json
    assert (found["level"], found["newest_level"], found["older_lives"]) == (LEVEL, LEVEL, False)
    assert [(one["name"], one["release"], one["level"]) for one in found["sidecars"]] == [("pod-1:7", "1.2.3", LEVEL)]


async def test_an_upgrade_raises_the_level_and_needs_a_reason(world: World, ask: Asker) -> None:
    await world.ages.count()
    world.memory._tables.level = JournalLevel(1, 0.0)
    found = (await ask("/v1/journal")).json
    assert (found["level"], found["raises_in_s"] > 0) == (1, True)
    assert (await ask("/v1/journal/upgrade", method="POST", json={"actor": "ada"})).status_code == 400
    assert (await ask("/v1/journal")).json["level"] == 1
    raised = await ask("/v1/journal/upgrade", method="POST", json=BY)
    assert (raised.status_code, raised.json["level"]) == (200, LEVEL)
    assert (await world.memory.level()).level == LEVEL


async def test_while_an_older_one_lives_an_upgrade_wants_a_word(world: World, ask: Asker) -> None:
    await world.ages.count()
    world.memory._tables.level = JournalLevel(1, 0.0)
    await world.in_doubt()
    operation = next(iter(world.memory._tables.operations.values()))
    world.memory._tables.operations[operation.id] = replace(operation, payment="")  # as an older release writes it
    refused = await ask("/v1/journal/upgrade", method="POST", json=BY)
    assert (refused.status_code, refused.json["type"].rpartition(":")[2]) == (409, "older-sidecars")
    assert (await ask("/v1/journal")).json["level"] == 1
    raised = await ask("/v1/journal/upgrade", method="POST", json={**BY, "older_stopped": True})
    assert raised.json["level"] == LEVEL


def test_the_commands_say_it_in_words(running: Running) -> None:
    running.world.memory._tables.level = JournalLevel(1, 0.0)
    at = ["--admin", running.world.address, "--token", TOKEN]
    shown = CliRunner().invoke(journal, ["status", *at])
    assert shown.exit_code == 0, shown.output
    assert f"at level 1; this release keeps level {LEVEL}" in shown.output
    assert "pod-1:7" in shown.output
    raised = CliRunner().invoke(journal, ["upgrade", "--actor", "ada", "--reason", BY["reason"], *at])
    assert f"at level {LEVEL}" in raised.output, raised.output
