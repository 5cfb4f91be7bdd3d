"""The Lua scripts of the Redis journal: one a file, each run by the hash of its text. `shelf.lua` is put in front of
all of them, and of each what else it needs: Redis makes every function anew whenever a script runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from proxy.journal.steps import GUARDED_MAX

_FOLDER = Path(__file__).parent / "lua"
_NUMBERS_SKIPPED = 1_000_000  # after a rollback: more than a Redis can have acknowledged and forgotten
# What Python decides, and scripts have to know.
_BOUNDS = f"local GUARDED_MAX, NUMBERS_SKIPPED = {GUARDED_MAX}, {_NUMBERS_SKIPPED}"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def _script(name: str, *before: str) -> Script:
    text = "\n".join((_BOUNDS, *((_FOLDER / f"{part}.lua").read_text("utf-8") for part in ("shelf", *before, name))))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


CLAIM = _script("claim", "looking", "writing")
LOOK = _script("look", "looking")
RECORD = _script("record", "writing", "accepting")
COMMIT = _script("commit", "looking", "writing", "aliases", "accepting")
EACH = _script("each", "writing")
DUE = _script("due")
EXPIRED = _script("expired")
RENEW = _script("renew")
ROWS = _script("rows")
HISTORY = _script("history")
OUTCOMES = _script("outcomes")
WALK = _script("walk")
GRAVE = _script("grave")
BURY = _script("bury", "writing", "aliases")
FORGET = _script("forget")
NOTICE_KEEP = _script("notice_keep", "notice")
NOTICE_MOVE = _script("notice_move", "notice")
NOTICES_DUE = _script("notices_due", "notice")
HASTEN = _script("hasten")
CURSOR_TAKE = _script("cursor_take", "cursor")
CURSOR_MOVE = _script("cursor_move", "cursor")
REVISION = _script("revision")
LATEST_REVISION = _script("latest_revision")
NEWEST_CREDENTIAL = _script("newest_credential")
TIME = _script("time")
HISTORY_TOLD = _script("history_told")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Script))
