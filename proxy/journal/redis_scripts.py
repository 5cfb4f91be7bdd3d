"""The Lua scripts of the Redis journal: one a file, each run by the hash of its text. `shelf.lua` is put in front of
all of them, `notice.lua` in front of those about notices, `cursor.lua` of those about cursors.
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
    text = "\n".join((_BOUNDS, *((_FOLDER / f"{part}.lua").read_text("utf-8") for part in (*before, name))))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


CLAIM = _script("claim", "shelf")
LOOK = _script("look", "shelf")
RECORD = _script("record", "shelf")
COMMIT = _script("commit", "shelf")
EACH = _script("each", "shelf")
DUE = _script("due", "shelf")
EXPIRED = _script("expired", "shelf")
RENEW = _script("renew", "shelf")
ROWS = _script("rows", "shelf")
HISTORY = _script("history", "shelf")
OUTCOMES = _script("outcomes", "shelf")
WALK = _script("walk", "shelf")
GRAVE = _script("grave", "shelf")
BURY = _script("bury", "shelf")
FORGET = _script("forget", "shelf")
NOTICE_KEEP = _script("notice_keep", "shelf", "notice")
NOTICE_MOVE = _script("notice_move", "shelf", "notice")
NOTICES_DUE = _script("notices_due", "shelf", "notice")
HASTEN = _script("hasten", "shelf")
CURSOR_TAKE = _script("cursor_take", "shelf", "cursor")
CURSOR_MOVE = _script("cursor_move", "shelf", "cursor")
REVISION = _script("revision", "shelf")
LATEST_REVISION = _script("latest_revision", "shelf")
NEWEST_CREDENTIAL = _script("newest_credential", "shelf")
TIME = _script("time", "shelf")
HISTORY_TOLD = _script("history_told", "shelf")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Script))
