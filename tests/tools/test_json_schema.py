"""The JSON Schema takes every policy that loads, and refuses what an editor should mark."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paywitness.core.provider_contract import OperationKind
from paywitness.policy.schema import BLOCKS, FILE
from paywitness.tools.policy_new.json_schema import DRAFT, policy_schema

TOP = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(json.dumps(policy_schema()))
GOOD = sorted([*(TOP / "policies").glob("*.yaml"), TOP / "tests" / "policy" / "design_example.yaml"])
ACME = (TOP / "policies" / "acme.yaml").read_text()
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}


def errors(schema: dict[str, Any], value: Any, path: str = "$") -> Iterator[str]:
    """The part of JSON Schema that ours uses; a keyword beyond it is an error of this test."""
    known = {"type", "properties", "additionalProperties", "items", "enum", "const", "pattern", "minimum", "maximum"}
    known |= {"required", "anyOf", "$ref", "propertyNames", "if", "else", "description", "title", "$schema", "$defs"}
    assert set(schema) <= known, set(schema) - known
    for title in re.findall(r"^#/[$]defs/(.+)", schema.get("$ref", "")):
        yield from errors(SCHEMA["$defs"][title], value, path)
    if "type" in schema and not any(_is(value, name) for name in _listed(schema["type"])):
        yield f"{path}: not {schema['type']}"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield f"{path}: {value!r} is not allowed"
    if "anyOf" in schema and all(list(errors(one, value, path)) for one in schema["anyOf"]):
        yield f"{path}: none of the forms"
    if "if" in schema and list(errors(schema["if"], value, path)):
        yield from errors(schema["else"], value, path)
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} does not fit"
    if not isinstance(value, str | list | dict) and not _within(schema, value):
        yield f"{path}: {value} is out of bounds"
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from errors(schema.get("items", {}), item, f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _errors_of_object(schema, value, path)


def _errors_of_object(schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, child in value.items():
        if "propertyNames" in schema:
            yield from errors(schema["propertyNames"], name, f"{path}.{name}")
        if name in schema.get("properties", {}):
            yield from errors(schema["properties"][name], child, f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path}: {name} is unknown"
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from errors(schema["additionalProperties"], child, f"{path}.{name}")


def _within(schema: dict[str, Any], value: Any) -> bool:
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _listed(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def _is(value: Any, name: str) -> bool:
    if name in {"integer", "number"}:
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])


def errors_of(text: str) -> list[str]:
    """By the validator above, and by jsonschema where it is installed: the two must agree."""
    document = yaml.safe_load(text)
    found = list(errors(SCHEMA, document))
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        return found
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    theirs = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(document))
    assert bool(theirs) == bool(found), (theirs, found)
    return found


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_policy_that_loads_is_valid(file: Path) -> None:
    assert errors_of(file.read_text()) == []


@pytest.mark.parametrize("page", ["policies.md"])
def test_the_documentation_s_examples_are_valid(page: str) -> None:
    found = re.findall(r"```yaml\n((?:provider|extends): .*?)```", (TOP / "docs" / page).read_text(), re.DOTALL)
    assert len(found) >= 2
    for example in found:
        assert errors_of(example) == []


def test_a_file_that_extends_need_not_repeat_what_it_builds_on() -> None:
    assert errors_of("extends: paywitness:stripe\nwebhook: {secrets: [env:MINE]}\n") == []
    assert errors_of("provider: bank\nupstream: https://bank.example\n") == ["$: operations is missing"]


def test_words_that_an_editor_takes_for_booleans_are_valid() -> None:
    sale = "operations: {sale: {once_per_target: yes, limits: off, captures: manual}, capture: {final: no}}"
    assert errors_of(f"extends: paywitness:stripe\nlimits: off\n{sale}\n") == []
    assert errors_of("extends: paywitness:stripe\nlimits: on\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("provider: acme ", "provider: Acme "),
        ("provider: acme ", "merchnt: shop\nprovider: acme "),
        ("kind: sale", "kind: sail"),
        ("first_byte: 5s", "first_bite: 5s"),
        ("first_byte: 5s", "first_byte: 5 seconds"),
        ("errors_under_key: replayed", "errors_under_key: kept"),
        ("window: 24h", "window: {asumed: 24h}"),
        ("required: false", "required: maybe"),
        ("unit: minor", "unit: cents"),
        ("attempts: 3", "attempts: 30"),
        ("attempts: 3", "attempts: three"),
        ("rate_limited: {attempts", "rate_limted: {attempts"),
        ("issuer_soft_decline: [insufficient_funds,", "soft_decline: [insufficient_funds,"),
        ("  contact_issuer: [do_not_honor]", "  call_issuer: [do_not_honor]"),
        ("as: succeeded", "as: success"),
        ("open_at: {bad: 85%", "open_at: {bad: many"),
        ("env:ACME_WEBHOOK_SECRET", "whsec_1"),
        ("unmatched: forward", "unmatched: drop"),
        ("    kind: capture\n", ""),
        ("needs: reference, request:", "need: reference, request:"),
    ],
)
def test_what_an_editor_should_mark_is_not_valid(old: str, new: str) -> None:
    assert old in ACME
    assert errors_of(ACME.replace(old, new, 1))


def test_every_key_of_the_schema_is_there_with_what_it_takes() -> None:
    assert SCHEMA["$schema"] == DRAFT
    for block in BLOCKS:
        found = SCHEMA if block is FILE else SCHEMA["$defs"][block.title]
        assert list(found["properties"]) == list(block.keys)
        assert all(key_schema["description"] for key_schema in found["properties"].values())
        assert found["additionalProperties"] is False


def test_words_that_a_key_takes_are_offered() -> None:
    assert SCHEMA["$defs"]["operation"]["properties"]["kind"]["enum"] == list(OperationKind)
    assert SCHEMA["properties"]["mode"]["enum"] == ["enforce", "observe"]
    assert SCHEMA["$defs"]["operation"]["properties"]["webhook"]["enum"] == ["none"]
    assert SCHEMA["$defs"]["operation"]["properties"]["partial"]["enum"] == ["single", "sequence"]
    assert SCHEMA["$defs"]["operation"]["properties"]["balance"]["$ref"] == "#/$defs/balance"
    assert SCHEMA["$defs"]["ask"]["properties"]["belongs"]["$ref"] == "#/$defs/belongs"
