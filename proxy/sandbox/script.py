"""The `Sandbox-Fault` header: what happens to the first arrival of a request, to the second, and so on.

drop_after_commit                       the first arrival; later ones are served properly
error_503, -, rate_limited(retry_after_s=30)    the first and the third
hang_after_commit*                      every arrival
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from proxy.sandbox.catalogue import UnknownFault, fault_called
from proxy.sandbox.fault import Fault, NoFault

SCRIPT_ITEMS_MAX = 100
NO_FAULT = NoFault()
NO_SHORT_NAMES: Mapping[str, str] = MappingProxyType({})

BETWEEN_ITEMS = re.compile(r",(?![^()]*\))")  # a comma that is not inside parentheses


class Script:
    def __init__(self, faults: tuple[Fault, ...], repeats_last: bool) -> None:
        self._faults = faults
        self._repeats_last = repeats_last

    def fault_for(self, arrival_number: int) -> Fault:
        """Arrivals are numbered from 1."""
        if arrival_number <= len(self._faults):
            return self._faults[arrival_number - 1]
        return self._faults[-1] if self._repeats_last else NO_FAULT


def parse_script(text: str, defaults: Mapping[str, float], short_names: Mapping[str, str] = NO_SHORT_NAMES) -> Script:
    items = [item.strip() for item in BETWEEN_ITEMS.split(text)]
    if len(items) > SCRIPT_ITEMS_MAX:
        raise UnknownFault(f"a script has at most {SCRIPT_ITEMS_MAX} items")
    if any(item.endswith("*") for item in items[:-1]):
        raise UnknownFault("an item with * goes on for ever, so it is the last one")
    repeats_last = items[-1].endswith("*")
    items[-1] = items[-1].removesuffix("*")
    faults = (
        NO_FAULT if item == NO_FAULT.name else fault_called(short_names.get(item, item), defaults) for item in items
    )
    return Script(tuple(faults), repeats_last)
