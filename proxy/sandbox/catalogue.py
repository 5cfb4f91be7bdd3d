"""The faults there are, found in `faults/`, and how one is called for: `name` or `name(parameter=value, ...)`."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from proxy.sandbox import faults
from proxy.sandbox.fault import Fault

PARAMETER_MAX = 3600.0  # an hour, for what is in seconds; nothing else comes near it
FAULT_CALL = re.compile(r"\s*(?P<name>[a-z0-9_]+)\s*(?:\((?P<parameters>[^()]*)\))?\s*")


class UnknownFault(ValueError):
    """Not the name of a fault, or not a parameter of it."""


def _found() -> Mapping[str, type[Fault]]:
    found: dict[str, type[Fault]] = {}
    for module_info in pkgutil.iter_modules(faults.__path__):
        module = importlib.import_module(f"{faults.__name__}.{module_info.name}")
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, Fault) and value.__module__ == module.__name__:
                found[value.name] = value
    return MappingProxyType(found)


FAULTS: Mapping[str, type[Fault]] = _found()


def describe_faults(defaults: Mapping[str, float]) -> dict[str, str]:
    """`hang_after_commit(hang_s=60)` -> what it does, for every fault; `defaults` as for `fault_called`."""
    described: dict[str, str] = {}
    for name, fault in sorted(FAULTS.items()):
        parameters = {**defaults_of(fault), **{key: defaults[key] for key in defaults_of(fault) if key in defaults}}
        listed = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
        described[f"{name}({listed})" if listed else name] = doc_of(fault)
    return described


def doc_of(fault: type[Fault]) -> str:
    """The docstring of the fault's file, as one line."""
    return " ".join((inspect.getdoc(inspect.getmodule(fault)) or "").split())


def defaults_of(fault: type[Fault]) -> dict[str, float | int]:
    blank = fault()
    return {field.name: getattr(blank, field.name) for field in fields(blank)}  # type: ignore[arg-type]  # all are dataclasses


def fault_called(text: str, defaults: Mapping[str, float]) -> Fault:
    """`rate_limited(retry_after_s=30)` -> the fault. `defaults` are parameters set for the whole sandbox."""
    call = FAULT_CALL.fullmatch(text)
    if call is None or call["name"] not in FAULTS:
        raise UnknownFault(f"unknown fault {text.strip()!r}")
    fault = FAULTS[call["name"]]
    known = defaults_of(fault)
    given: dict[str, float | int] = {name: value for name, value in defaults.items() if name in known}
    for part in filter(str.strip, (call["parameters"] or "").split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise UnknownFault(f"{call['name']} has no parameter {name!r}; it has: {', '.join(known) or 'none'}")
        given[name] = _number(value, whole=isinstance(known[name], int), where=f"{call['name']}({name}=...)")
    return fault(**given)


def _number(text: str, *, whole: bool, where: str) -> float | int:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        raise UnknownFault(f"{where}: {text!r} is not a {'whole ' if whole else ''}number") from None
    if not math.isfinite(number) or not 0 <= number <= PARAMETER_MAX:
        raise UnknownFault(f"{where} is a number from 0 to {PARAMETER_MAX:g}")
    return number
