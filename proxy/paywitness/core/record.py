"""Frozen values: records that are never changed once they are made. A call makes some forty of them.

Frozen by the type checker, which reads every line of ours, and not again at run time: a frozen dataclass sets each of
its fields by a function call, and those of a call have three hundred. That was about a tenth of all the engine did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

Made = TypeVar("Made")


@overload
def record(cls: type[Made], /) -> type[Made]: ...
@overload
def record(*, slots: bool) -> Callable[[type[Made]], type[Made]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[Made] | None = None, /, *, slots: bool = True) -> object:
    """A dataclass whose fields are set once; it can be compared, hashed and `replace`d. Pass `slots=False` if the
    values are copied as a whole, or if the instance keeps something beside them."""
    made = dataclass(slots=slots, unsafe_hash=True)
    return made if cls is None else made(cls)
