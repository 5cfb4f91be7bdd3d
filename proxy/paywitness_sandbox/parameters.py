"""The syntax `name` or `name(parameter=value, ...)`, for faults and for webhook modes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

PARAMETER_MAX = 3600.0  # an hour, for parameters in seconds; other values are far below it
NAME_AND_PARAMETERS = re.compile(r"\s*(?P<name>[a-z0-9_]+)\s*(?:\((?P<parameters>[^()]*)\))?\s*")

Parameters = dict[str, float | int]


class InvalidParameter(ValueError):
    """The name is unknown, or it has no such parameter."""


def split_name(text: str) -> tuple[str, str] | None:
    """The name, and the text in its parentheses."""
    call = NAME_AND_PARAMETERS.fullmatch(text)
    return None if call is None else (call["name"], call["parameters"] or "")


def read_parameters(name: str, text: str, known: Mapping[str, float | int]) -> Parameters:
    """`retry_after_s=30` -> {"retry_after_s": 30}. The number must be whole if the default in `known` is whole."""
    given: Parameters = {}
    for part in filter(str.strip, text.split(",")):
        parameter, _, value = (piece.strip() for piece in part.partition("="))
        if parameter not in known:
            raise InvalidParameter(f"{name} has no parameter {parameter!r}; it has: {', '.join(known) or 'none'}")
        whole = isinstance(known[parameter], int)
        given[parameter] = _number(value, whole=whole, where=f"{name}({parameter}=...)")
    return given


def format_with_parameters(name: str, parameters: Mapping[str, float | int]) -> str:
    """The text for a name with these parameters: `hang_after_commit(hang_s=60)`."""
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
