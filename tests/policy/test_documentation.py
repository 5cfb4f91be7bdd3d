"""docs/policies.md explains every key that the schema knows, and its example loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.core.contract import ErrorsUnderKey, Kind
from proxy.core.reading import Reading
from proxy.policy.schema import BLOCKS, FILE, OPERATION
from proxy.policy.templates import WORDS
from tests.policy.texts import load

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


def section(title: str) -> str:
    """The text under the heading of a block."""
    found = re.search(rf"^#+ [^\n]*`{re.escape(title)}`.*?(?=^#+ |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/policies.md has no heading for `{title}`"
    return found.group(0)


@pytest.mark.parametrize(("block", "key"), [(block.title, key) for block in BLOCKS for key in block.keys])
def test_every_key_is_explained_under_its_block(block, key):
    assert re.search(rf"^\| `{re.escape(key)}` \|", section(block), re.MULTILINE), f"{block}.{key}"


@pytest.mark.parametrize("block", [FILE, OPERATION], ids=lambda block: block.title)
def test_keys_that_act_later_say_so_and_the_others_do_not(block):
    for key in block.keys:
        row = re.search(rf"^\| `{re.escape(key)}` \|.*$", section(block.title), re.MULTILINE)
        assert row is not None
        assert ("*later*" in row.group(0)) == (key in block.later), key


def test_words_with_a_meaning_are_explained():
    for word in [*Reading, *Kind, *ErrorsUnderKey, *(f"{{{word}}}" for word in WORDS)]:
        assert f"`{word}`" in DOCUMENT, word


def test_the_worked_example_loads():
    (example,) = re.findall(r"```yaml\n(provider: .*?)```", DOCUMENT, re.DOTALL)
    assert [policy.operation for policy in load(example).policies] == ["pay", "refund"]
