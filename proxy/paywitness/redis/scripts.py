"""A Lua script and its hash: Redis runs it by the hash, and is sent the text only if it does not know it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LuaScript:
    name: str
    text: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> LuaScript:
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, directory: Path, name: str, *, head: str = "", includes: tuple[str, ...] = ()) -> LuaScript:
        """The script of `{name}.lua`. Before it stand `head` and the files that it includes, in this order."""
        parts = [(directory / f"{part}.lua").read_text("utf-8") for part in (*includes, name)]
        return cls.of(name, "\n".join([head, *parts] if head else parts))
