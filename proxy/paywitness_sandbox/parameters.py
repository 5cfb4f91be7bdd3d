"""How a person calls for something by name: `name` or `name(parameter=value, ...)`. Faults and webhook modes alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

PARAMETER_MAX = 3600.0  # an hour, for what is in seconds; nothing else comes near it
NAME_AND_PARAMETERS = re.compile(r"\s*(?P<name>[a-z0-9_]+)\s*(?:\((?P<parameters>[^()]*)\))?\s*")

Parameters = dict[str, float | int]


class InvalidParameter(ValueError):
    """Not a name that is known here, or not a parameter of it."""


def split_name(text: str) -> tuple[str, str] | None:
    """The name and what stands in its parentheses."""
    call = NAME_AND_PARAMETERS.fullmatch(text)
    return None if call is None else (call["name"], call["parameters"] or "")


def read_parameters(name: str, text: str, known: Mapping[str, float | int]) -> Parameters:
    """`retry_after_s=30` -> {"retry_after_s": 30}; whole where the default in `known` is whole."""
    given: Parameters = {}
    for part in filter(str.strip, text.split(",")):
        parameter, _, value = (piece.strip() for piece in part.partition("="))
        if parameter not in known:
            raise InvalidParameter(f"{name} has no parameter {parameter!r}; it has: {', '.join(known) or 'none'}")
        whole = isinstance(known[parameter], int)
        given[parameter] = _number(value, whole=whole, where=f"{name}({parameter}=...)")
    return given


def format_with_parameters(name: str, parameters: Mapping[str, float | int]) -> str:
    """As it would be called for with these parameters: `hang_after_commit(hang_s=60)`."""
    listed = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
    return f"{name}({listed})" if listed else name


def _number(text: str, *, whole: bool, where: str) -> float | int:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        raise InvalidParameter(f"{where}: {text!r} is not a {'whole ' if whole else ''}number") from None
    if not math.isfinite(number) or not 0 <= number <= PARAMETER_MAX:
        raise InvalidParameter(f"{where} is a number from 0 to {PARAMETER_MAX:g}")
    return number
