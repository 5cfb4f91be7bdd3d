"""docs/sandbox.md names every route, header, mode, token and setting there is."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from paywitness_sandbox.bank.ledger import EntryKind
from paywitness_sandbox.bank.objects import DESTINATIONS_HELP, OUTCOMES_HELP, TOKENS_HELP
from paywitness_sandbox.control import ACTIONS, HEADERS_HELP, ROUTES_HELP
from paywitness_sandbox.faults.selection import SCHEDULE_KEYS as SCHEDULE_KEYS
from paywitness_sandbox.webhooks.events import DISPUTE_TYPES, INTENT_TYPES, REFUND_TYPES, describe_modes
from paywitness_sandbox.webhooks.events import ENDPOINT_KEYS as ENDPOINT_KEYS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sandbox.md").read_text("utf-8")
ROWS = [*ROUTES_HELP, *HEADERS_HELP, *describe_modes(), *ENDPOINT_KEYS]


@pytest.mark.parametrize("name", ROWS)
def test_there_is_a_row_for_it(name) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("name", [*TOKENS_HELP, *DESTINATIONS_HELP, *OUTCOMES_HELP])
def test_every_token_is_explained(name) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", SCHEDULE_KEYS)
def test_every_key_of_a_schedule_is_shown(name) -> None:
    assert f'"{name}"' in PAGE


@pytest.mark.parametrize("kind", EntryKind)
def test_every_kind_of_line_is_named(kind) -> None:
    assert f"`{kind}`" in PAGE


@pytest.mark.parametrize("type", sorted({*INTENT_TYPES.values(), *REFUND_TYPES.values(), *DISPUTE_TYPES.values()}))
def test_every_type_of_stripes_is_named(type) -> None:
    assert f"`.{type.partition('.')[2]}`" in PAGE or f"`{type}`" in PAGE


def commands() -> list[str]:
    """The commands of the page, each block in one shell."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


async def test_the_commands_do_what_the_page_says(sandbox) -> None:
    blocks = [block for block in commands() if "8700" not in block]
    assert len(blocks) >= 2
    for block in blocks:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-e", "-c", block.replace("curl -s ", "curl -sf ")), env={**os.environ, "SANDBOX": sandbox.url}
        )
        assert await shell.wait() == 0, block
    assert [(entry.kind.value, entry.amount) for entry in sandbox.ledger.entries] == [
        *(("payout", 700), ("authorization", 2500), ("authorization", 500), ("capture", 1000)),
        *(("refund", 1000), ("void", 2000)),
    ]


def test_every_control_route_stands_in_the_help() -> None:
    def shape(method: str, path: str) -> str:
        holes = ("{}" if segment.startswith("{") else segment for segment in path.partition("?")[0].split("/"))
        return f"{method} {'/'.join(holes)}"

    helped = {shape(*line.split(" ", 1)) for line in ROUTES_HELP}
    assert helped == {f"{method} /_sandbox/{path}" for method, path in ACTIONS}
