"""docs/policies.md explains every key that the schema knows, and its example loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paywitness.core.provider_contract import ErrorsUnderKey, OperationKind
from paywitness.core.result import ResultClass
from paywitness.policy.block_parsers.webhook import SCHEMES
from paywitness.policy.reading.templates import PLACEHOLDERS
from paywitness.policy.schema import BLOCKS, FILE, OPERATION
from tests.policy.texts import changed, load

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


def section(title: str) -> str:
    """The text under the heading of a block."""
    found = re.search(rf"^#+ [^\n]*`{re.escape(title)}`.*?(?=^#+ |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/policies.md has no heading for `{title}`"
    return found.group(0)


@pytest.mark.parametrize(("block", "key"), [(block.title, key) for block in BLOCKS for key in block.keys])
def test_every_key_is_explained_under_its_block(block, key):
    assert re.search(rf"^\| `{re.escape(key)}` \|", section(block), re.MULTILINE), f"{block}.{key}"


def test_words_with_a_meaning_are_explained():
    for word in [*ResultClass, *OperationKind, *ErrorsUnderKey, *(f"{{{word}}}" for word in PLACEHOLDERS)]:
        assert f"`{word}`" in DOCUMENT, word


FULL = "stamp: body:metadata.paywitness\n" + changed("    kind: sale\n", "    kind: sale\n    intent: order\n")


@pytest.mark.parametrize(
    "block",
    ["ask", "balance", "belongs", "cancel", "webhook", "credentials", "merchant", "budget", "circuit", "priority"],
)
def test_the_example_of_a_block_loads(block):
    (example,) = re.findall(rf"```yaml\n({block}:.*?)```", DOCUMENT, re.DOTALL)
    if block in OPERATION.keys and block not in FILE.keys:
        text = "".join(f"    {line}\n" for line in example.splitlines())
        ask = '    ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
        without = changed(ask, "", FULL) if block == "ask" else FULL
        load(changed("    reference: id\n", "    reference: id\n" + text, without))
    else:
        load(example + FULL)


def test_the_schemes_are_listed():
    for name, options in SCHEMES.items():
        row = re.search(rf"^\|[^|]*`{name}`[^|]*\|.*$", section("webhook"), re.MULTILINE)
        assert row is not None
        assert all(f"`{option}`" in row.group(0) for option in options), name
    assert all(f"`{name}`" in section("webhook") for name in SCHEMES)


def test_the_worked_example_loads():
    (example,) = re.findall(r"```yaml\n(provider: .*?)```", DOCUMENT, re.DOTALL)
    assert [policy.operation for policy in load(example).policies] == ["pay", "refund"]
