"""`paywitness policy schema`: the JSON Schema (draft 2020-12) of a policy file, for editors.

It is made from `paywitness.policy.schema`, the one list of keys. There a text describes the values of each key, and
this module reads that text. A value that the text does not settle stays open: the schema must never refuse a file that
`policy check` accepts. Only `policy check` finds every problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from paywitness.core.result import Advice, ResultClass
from paywitness.policy.schema import BLOCKS, FILE, OPERATION, ROW, Block

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "Paywitness policy"
Schema = dict[str, Any]

# Editors see numbers and booleans where a policy means texts: a status, a code, `true`.
_TEXT: Schema = {"type": ["string", "number", "boolean"]}
_RESULT_CLASSES: Schema = {"enum": [str(result_class) for result_class in ResultClass]}
_ADVICE: Schema = {"enum": [str(advice) for advice in Advice]}
_DURATION: Schema = {"type": "string", "pattern": "^[0-9]{1,9}(ms|s|m|h|d)$"}
_PERCENTAGE: Schema = {"type": "string", "pattern": "^[0-9]{1,3}([.][0-9]{1,3})?%$"}
_BOOLEAN: Schema = {"enum": [True, False, "true", "false"]}
_ENV: Schema = {"type": "string", "pattern": "^env:[A-Za-z_][A-Za-z0-9_]{0,99}$"}

_FORMS: dict[str, Schema] = {
    "true or false": _BOOLEAN,
    "a reading": _RESULT_CLASSES,
    "a duration": _DURATION,
    "a percentage": _PERCENTAGE,
    "a name of lower-case letters, digits and _": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,39}$"},
    "env:NAME": _ENV,
}
_WORDS = re.compile(r"[a-z_]+(?:(?:, [a-z_]+)* or [a-z_]+)?")
_NOT_ENUM = frozenset({"text"})
_WHOLE = re.compile(r"a whole number(?: from ([0-9]+) to ([0-9]+))?")
# `extends` never merges entries of lists, nor the one-key mapping. In all other blocks a file may give only its
# differences.
_WHOLE_BLOCKS = frozenset({"ask", "priority", "fallback", "assumed"})
_BLOCK_OF: dict[str, Block] = {block.title: block for block in BLOCKS}


def policy_schema() -> Schema:
    """The whole schema. A file that extends a shipped policy need not repeat that policy's keys."""
    definitions = {block.title: _object(block) for block in BLOCKS if block is not FILE}
    return {
        "$schema": DRAFT,
        "title": TITLE,
        "description": "One provider: its calls, the meaning of its responses, its promises. See docs/policies.md.",
        **_object(FILE),
        "if": {"required": ["extends"]},
        "else": {
            "required": list(FILE.required),
            "properties": {"operations": {"additionalProperties": {"required": list(OPERATION.required)}}},
        },
        "$defs": definitions,
    }


def _object(block: Block) -> Schema:
    properties = {key: {**_value(block, key, takes), "description": takes} for key, takes in block.keys.items()}
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(block.required)} if block.title in _WHOLE_BLOCKS else found


def _value(block: Block, key: str, takes: str) -> Schema:
    """The schema of a key's value, by the text that describes the value."""
    special = _SPECIAL.get((block.title, key)) or _SPECIAL.get(("", key))
    if special is not None:
        return special()
    if takes.startswith("a mapping"):
        return _mapping(key, takes)
    if takes.startswith("a list of rows that read"):
        return _list_of(_ref(ROW.title))
    if takes.startswith("a list"):
        return _list_of(_ref(key) if key in _BLOCK_OF else _item(takes))
    if takes.endswith("or a list of them"):
        return {"anyOf": [_TEXT, _list_of(_TEXT)]}
    return _scalar(takes)


def _mapping(key: str, takes: str) -> Schema:
    listed = takes.removeprefix("a mapping: ").split(", ")
    named = next((block.title for block in BLOCKS if list(block.keys) == listed), key)
    return _ref(named) if named in _BLOCK_OF else {"type": "object"}


def _scalar(takes: str) -> Schema:
    if "{assumed:" in takes:
        return _assumable(takes)
    # "none: no event reports it": the value, and its reason
    head = takes.partition(": ")[0]
    for begins, schema in _FORMS.items():
        if head == begins or (begins.startswith("a ") and head.startswith(begins)):
            return schema
    whole = _WHOLE.fullmatch(head)
    if whole is not None:
        bounds = {"minimum": int(whole[1]), "maximum": int(whole[2])} if whole[1] else {"minimum": 0}
        # a quoted number is a whole number too
        return {"type": ["integer", "string"], "pattern": "^[0-9]{1,9}$", **bounds}
    words = _WORDS.fullmatch(head)
    return {"enum": re.split(", | or ", head)} if words is not None and head not in _NOT_ENUM else _TEXT


def _assumable(takes: str) -> Schema:
    """A fact, or `{assumed: the fact}`. Only a duration may be plainly `unknown`; it cannot be assumed to be."""
    words = re.findall(r"[a-z_]+", takes.partition(", or")[0])
    fact: Schema = _DURATION if takes.startswith("a duration") else {"enum": words}
    plain = [fact, {"const": "unknown"}] if "unknown" in takes and fact is _DURATION else [fact]
    assumed = {
        "type": "object",
        "properties": {"assumed": fact},
        "required": ["assumed"],
        "additionalProperties": False,
    }
    return {"anyOf": [*plain, assumed]}


def _item(takes: str) -> Schema:
    return _DURATION if takes.startswith("a list of durations") else {}


def _ref(title: str) -> Schema:
    return {"$ref": f"#/$defs/{title}"}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map_of(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def _retry() -> Schema:
    return {
        "type": "object",
        "propertyNames": {"enum": ["default", *(str(result_class) for result_class in ResultClass)]},
        "additionalProperties": _ref("retry"),
    }


def _tables() -> Schema:
    return _map_of(_codes_by(_RESULT_CLASSES))


def _codes_by(names: Schema) -> Schema:
    return {"type": "object", "propertyNames": names, "additionalProperties": _list_of(_TEXT)}


def _headers() -> Schema:
    return _map_of(_TEXT)


# Schemas that the descriptions alone do not give: by block and key, or by key in every block.
_SPECIAL: dict[tuple[str, str], Callable[[], Schema]] = {
    ("file", "operations"): lambda: _map_of(_ref(OPERATION.title)),
    ("file", "accounts"): lambda: _map_of(_ref("accounts")),
    ("operation", "fits"): lambda: {"anyOf": [_ref("fits"), {"const": "none"}]},
    ("accounts", "selectors"): _headers,
    ("accounts", "credentials"): lambda: {"anyOf": [_ref("credentials"), _list_of(_ref("credentials"))]},
    ("file", "answers"): lambda: _map_of(_list_of(_ref(ROW.title))),
    ("file", "tables"): _tables,
    ("file", "advice"): lambda: _codes_by(_ADVICE),
    ("row", "advice"): lambda: _ADVICE,
    ("file", "problem"): lambda: {"type": "object"},
    ("", "retry"): _retry,
    ("", "headers"): _headers,
    ("", "give_up_headers"): _headers,
    ("", "header"): _headers,
    ("", "query"): _headers,
    ("webhook", "scheme"): lambda: {"anyOf": [{"type": "string"}, _map_of({"type": "object"})]},
    ("webhook", "secrets"): lambda: {"anyOf": [_list_of(_ENV), _map_of(_list_of(_ENV))]},
    ("webhook", "event_id"): lambda: {"anyOf": [_TEXT, _list_of(_TEXT)]},
    ("webhook", "find"): lambda: _list_of(_map_of(_TEXT)),
    # An editor with YAML 1.1 reads `yes`, `no` and `off` as booleans.
    ("", "limits"): lambda: {"enum": ["enforce", "warn", "off", False]},
    ("operation", "continues"): lambda: {"enum": ["yes", "no", *_BOOLEAN["enum"]]},
    ("operation", "once_per_target"): lambda: {"enum": ["yes", "no", *_BOOLEAN["enum"]]},
    ("row", "status"): lambda: {"anyOf": [_TEXT, _list_of(_TEXT)]},
    ("cancel", "body"): lambda: {"type": "object"},
}
