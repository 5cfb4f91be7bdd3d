"""The `idempotency` block: what the provider promises about its keys, and the places of the caller's key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from paywitness.core import policy_defaults
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind, FieldRef
from paywitness.policy.reading.document import MapNode
from paywitness.policy.reading.section import Layers, Section
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    Reader,
    boolean,
    choice_of,
    duration,
    field_ref,
    one_of,
    whole_number,
)
from paywitness.policy.schema import ASSUMED

T = TypeVar("T")

# The keys that Paywitness makes are UUIDs: 36 characters.
_KEY_LENGTH = 36
_YEAR_S = 366 * 86400.0
_UNKNOWN_S = -1.0

_KEY_CHARACTERS = frozenset("0123456789abcdef-")
_RANGE = re.compile(r"(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9])\Z")

_key_field = field_ref(FieldKind.HEADER, FieldKind.BODY)
_source_field = field_ref(FieldKind.HEADER, FieldKind.BODY, FieldKind.PATH)


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The block of one operation, merged with its provider's."""

    send_as: FieldRef | None
    take_from: tuple[FieldRef, ...]
    window_s: float | None
    errors_under_key: ErrorsUnderKey
    max_length: int
    min_length: int
    characters: frozenset[str] | None
    required: bool
    key_space_is_account: bool
    assumed: frozenset[str]


def read_key_rules(layers: Layers, *, moves_money: bool) -> KeyRules:
    send_as = layers.read("send_as", key_field_or_none) if layers.having("send_as") else NO_FIELD
    keyed = send_as is not None and send_as is not NO_FIELD
    window = _read_assumable(layers, "window", _window)
    errors = _read_assumable(layers, "errors_under_key", one_of(ErrorsUnderKey))
    if send_as is not None:
        _check_key_facts(layers, keyed=keyed, moves_money=moves_money)
    given = layers.read_list("take_from", _source_field)
    _warn_of_own_header(layers, given)
    sent_place = send_as if keyed else None
    return KeyRules(
        send_as=sent_place,
        take_from=given or ((sent_place,) if sent_place is not None else ()),
        window_s=window[0] if keyed and window is not None and window[0] != _UNKNOWN_S else None,
        errors_under_key=errors[0] if keyed and errors is not None else ErrorsUnderKey.UNKNOWN,
        max_length=layers.read_or(
            "max_length", whole_number(_KEY_LENGTH, 1000), policy_defaults.IDEMPOTENCY_MAX_LENGTH
        ),
        min_length=layers.read_or("min_length", whole_number(1, _KEY_LENGTH), policy_defaults.IDEMPOTENCY_MIN_LENGTH),
        characters=layers.read("characters", _characters),
        required=layers.read_or("required", boolean, default=False),
        key_space_is_account=layers.read_or("key_space", choice_of("account", "wider"), "account") == "account",
        assumed=_assumed(window, errors) if keyed else frozenset(),
    )


def _assumed(window: tuple[float, bool] | None, errors: tuple[ErrorsUnderKey, bool] | None) -> frozenset[str]:
    facts = {"window": window is not None and window[1], "errors_under_key": errors is not None and errors[1]}
    return frozenset(name for name, is_assumed in facts.items() if is_assumed)


NO_FIELD = FieldRef(FieldKind.CONST, "none")


def key_field_or_none(value: str) -> FieldRef:
    """A place in the request, or `none`, which gives NO_FIELD."""
    return NO_FIELD if value == "none" else _key_field(value)


def _window(value: str) -> float:
    return _UNKNOWN_S if value == "unknown" else duration(1.0, _YEAR_S)(value)


def _characters(value: str) -> frozenset[str]:
    """`A-Z a-z 0-9 _ -`: ranges and single characters, with spaces between them; a space itself is written `space`."""
    found: set[str] = set()
    for part in value.split():
        if _RANGE.match(part) and part[0] < part[2]:
            found.update(map(chr, range(ord(part[0]), ord(part[2]) + 1)))
        elif part == "space":
            found.add(" ")
        elif len(part) == 1 and part.isascii() and part.isprintable():
            found.add(part)
        else:
            raise InvalidValue("ranges and single characters with spaces between them, such as A-Z a-z 0-9 _ -")
    if not found >= _KEY_CHARACTERS:
        raise InvalidValue("at least 0-9 a-f -, because the keys that Paywitness makes consist of these")
    return frozenset(found)


def _read_assumable(layers: Layers, key: str, reader: Reader[T]) -> tuple[T, bool] | None:
    """The value, and whether it is written as {assumed: value}: a fact that the provider does not document."""
    section = layers.having(key)
    if section is None:
        return None
    if isinstance(section.node(key), MapNode):
        inner = section.child(key, ASSUMED)
        found = inner.read("assumed", reader) if inner is not None else None
        return None if found is None else (found, True)
    found = section.read(key, reader)
    return None if found is None else (found, False)


def _check_key_facts(layers: Layers, *, keyed: bool, moves_money: bool) -> None:
    """A key needs both facts about it; the facts need a key."""
    sending = layers.having("send_as")
    if not keyed:
        for key in ("window", "errors_under_key"):
            section = layers.having(key)
            # An operation with `send_as: none` ignores the provider's facts; facts of its own would contradict it.
            if section is not None and (sending is None or section is sending):
                section.add_problem(key, "found without 'send_as': a provider that takes no key remembers none")
        return
    if sending is not None and moves_money:
        _require(layers, sending, "window", "how long the provider remembers a key")
        _require(layers, sending, "errors_under_key", "what the provider keeps under a key beside a success")


def _require(layers: Layers, sending: Section, key: str, why: str) -> None:
    if layers.having(key) is None:
        sending.problems.add(
            sending.location,
            sending.key_path(key),
            f"found nothing beside 'send_as', it is required: {sending.block.keys[key]} ({why})",
        )


def _warn_of_own_header(layers: Layers, sources: tuple[FieldRef, ...]) -> None:
    section = layers.having("take_from")
    if section is not None and any(source.name.lower() == "paywitness-key" for source in sources):
        section.add_warning("take_from", "lists Paywitness-Key, which is always read first; leave it out")
