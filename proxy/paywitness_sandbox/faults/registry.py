"""All faults by name, `name` or `name(parameter=value, ...)`, and the script of faults in the `Sandbox-Fault` header.

drop_after_commit                       the first arrival; later ones are served properly
error_503, -, rate_limited(retry_after_s=30)    the first and the third
hang_after_commit*                      every arrival

A new fault is a class in `definitions`. `GET /_sandbox/` shows its docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from paywitness_sandbox.exchange import Fault, NoFault
from paywitness_sandbox.faults import definitions
from paywitness_sandbox.parameters import (
    InvalidParameter,
    Parameters,
    format_with_parameters,
    read_parameters,
    split_name,
)


class UnknownFault(ValueError):
    """There is no fault of this name, or it has no such parameter."""


def _find() -> Mapping[str, type[Fault]]:
    found: dict[str, type[Fault]] = {}
    for _, value in inspect.getmembers(definitions, inspect.isclass):
        if issubclass(value, Fault) and value.__module__ == definitions.__name__:
            found[value.name] = value
    return MappingProxyType(dict(sorted(found.items())))


FAULTS: Mapping[str, type[Fault]] = _find()


def describe_faults(defaults: Mapping[str, float]) -> dict[str, str]:
    """From `hang_after_commit(hang_s=60)` to the description, for every fault. `defaults` as for `parse_fault`."""
    described: dict[str, str] = {}
    for name, fault in sorted(FAULTS.items()):
        parameters = {**defaults_of(fault), **{key: defaults[key] for key in defaults_of(fault) if key in defaults}}
        described[format_with_parameters(name, parameters)] = description_of(fault)
    return described


def description_of(fault: type[Fault]) -> str:
    """The fault's docstring, as one line."""
    return " ".join((inspect.getdoc(fault) or "").split())


def defaults_of(fault: type[Fault]) -> dict[str, float | int]:
    blank = fault()
    return {field.name: getattr(blank, field.name) for field in fields(blank)}  # type: ignore[arg-type]  # all are dataclasses


def parse_fault(text: str, defaults: Mapping[str, float]) -> Fault:
    """Parse `rate_limited(retry_after_s=30)`. `defaults` are parameters set for the whole sandbox."""
    call = split_name(text)
    if call is None or call[0] not in FAULTS:
        raise UnknownFault(f"unknown fault {text.strip()!r}")
    fault = FAULTS[call[0]]
    known = defaults_of(fault)
    given: Parameters = {name: value for name, value in defaults.items() if name in known}
    try:
        return fault(**given | read_parameters(*call, known))
    except InvalidParameter as error:
        raise UnknownFault(str(error)) from None


# --- Scripts

SCRIPT_ITEMS_MAX = 100
NO_FAULT = NoFault()
NO_SHORT_NAMES: Mapping[str, str] = MappingProxyType({})

ITEM_SEPARATOR = re.compile(r",(?![^()]*\))")  # a comma that is not inside parentheses


class FaultScript:
    def __init__(self, faults: tuple[Fault, ...], repeats_last: bool) -> None:
        self._faults = faults
        self._repeats_last = repeats_last

    def fault_for(self, arrival_number: int) -> Fault:
        """Arrivals are numbered from 1."""
        if arrival_number <= len(self._faults):
            return self._faults[arrival_number - 1]
        return self._faults[-1] if self._repeats_last else NO_FAULT


def parse_script(
    text: str, defaults: Mapping[str, float], short_names: Mapping[str, str] = NO_SHORT_NAMES
) -> FaultScript:
    items = [item.strip() for item in ITEM_SEPARATOR.split(text)]
    if len(items) > SCRIPT_ITEMS_MAX:
        raise UnknownFault(f"a script has at most {SCRIPT_ITEMS_MAX} items")
    if any(item.endswith("*") for item in items[:-1]):
        raise UnknownFault("an item with * never ends, so it must be the last one")
    repeats_last = items[-1].endswith("*")
    items[-1] = items[-1].removesuffix("*")
    faults = (
        NO_FAULT if item == NO_FAULT.name else parse_fault(short_names.get(item, item), defaults) for item in items
    )
    return FaultScript(tuple(faults), repeats_last)
