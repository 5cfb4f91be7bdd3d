"""The faults there are, found in `faults/`, and how one is called for: `name` or `name(parameter=value, ...)`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from proxy.sandbox import faults
from proxy.sandbox.calling import BadCall, Parameters, read_parameters, split_call, written_call
from proxy.sandbox.fault import Fault


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
        described[written_call(name, parameters)] = doc_of(fault)
    return described


def doc_of(fault: type[Fault]) -> str:
    """The fault's docstring, as one line."""
    return " ".join((inspect.getdoc(fault) or "").split())


def defaults_of(fault: type[Fault]) -> dict[str, float | int]:
    blank = fault()
    return {field.name: getattr(blank, field.name) for field in fields(blank)}  # type: ignore[arg-type]  # all are dataclasses


def fault_called(text: str, defaults: Mapping[str, float]) -> Fault:
    """`rate_limited(retry_after_s=30)` -> the fault. `defaults` are parameters set for the whole sandbox."""
    call = split_call(text)
    if call is None or call[0] not in FAULTS:
        raise UnknownFault(f"unknown fault {text.strip()!r}")
    fault = FAULTS[call[0]]
    known = defaults_of(fault)
    given: Parameters = {name: value for name, value in defaults.items() if name in known}
    try:
        return fault(**given | read_parameters(*call, known))
    except BadCall as error:
        raise UnknownFault(str(error)) from None
