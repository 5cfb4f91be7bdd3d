"""The Lua scripts of the Redis journal: one a file, each run by the hash of its text. `lib.lua` is put in front of each
script, and then the other libraries that the script needs. A script includes no more than that, because Redis creates
every function again whenever a script runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paywitness.core import levels
from paywitness.core.errors import JournalLevelError, JournalUnavailable
from paywitness.journal.transitions import GUARDED_MAX
from paywitness.redis.connection import JOURNAL_CALL_TIMEOUT_S, RedisUnavailable
from paywitness.redis.pipeline import LuaScript, PipelineOptions

_LEVEL_REFUSED = "PWLEVEL"  # begins a script's answer to a sidecar of a level below the journal's
_BATCH_MAX = 256  # scripts in one pipeline: about 10 ms of Redis' time
_LUA_DIRECTORY = Path(__file__).parent / "lua"
_SEQS_SKIPPED = 1_000_000  # after a rollback: more than a Redis can have acknowledged and forgotten
# Numbers that Python decides and the scripts need.
_LUA_CONSTANTS = f"local GUARDED_MAX, NUMBERS_SKIPPED = {GUARDED_MAX}, {_SEQS_SKIPPED}"


def journal_unavailable(error: RedisUnavailable) -> JournalUnavailable:
    if _LEVEL_REFUSED in str(error):
        return JournalLevelError(f"this release keeps level {levels.LEVEL}: {error}. Upgrade it; nothing was written")
    return JournalUnavailable(str(error))


def pipeline_options(
    call_timeout_s: float = JOURNAL_CALL_TIMEOUT_S,
    to_error: Callable[[RedisUnavailable], Exception] = journal_unavailable,
) -> PipelineOptions:
    return PipelineOptions(call_timeout_s, _BATCH_MAX, to_error)


def _script(name: str, *includes: str) -> LuaScript:
    return LuaScript.load(_LUA_DIRECTORY, name, head=_LUA_CONSTANTS, includes=("lib", *includes))


CLAIM = _script("claim", "lib_ledger", "lib_lookup", "lib_write")
LOOKUP = _script("lookup", "lib_ledger", "lib_lookup")
RECORD = _script("record", "lib_ledger", "lib_write", "lib_credentials")
COMMIT = _script("commit", "lib_ledger", "lib_lookup", "lib_write", "lib_aliases", "lib_credentials")
WRITE_MANY = _script("write_many", "lib_write")
DUE = _script("due")
EXPIRED_LEASES = _script("expired_leases")
RENEW = _script("renew")
ROWS = _script("rows")
HISTORY = _script("history")
ANNOUNCEMENTS = _script("announcements")
SCAN_EXPIRED = _script("scan_expired")
EXPIRED_ROWS = _script("expired_rows")
TOMBSTONE = _script("tombstone", "lib_write", "lib_aliases")
PURGE = _script("purge", "lib_aliases")
WEBHOOK_EVENT_STORE = _script("webhook_event_store", "lib_webhook_events")
WEBHOOK_EVENT_UPDATE = _script("webhook_event_update", "lib_webhook_events")
WEBHOOK_EVENTS_DUE = _script("webhook_events_due", "lib_webhook_events")
EXPEDITE = _script("expedite")
CURSOR_TAKE = _script("cursor_take", "lib_cursor")
CURSOR_MOVE = _script("cursor_move", "lib_cursor")
LEDGER_ROWS = _script("ledger_rows", "lib_ledger")
LEDGER_STORE = _script("ledger_store", "lib_ledger")
LEDGER_DUE = _script("ledger_due", "lib_ledger")
LEDGER_DUE_COUNT = _script("ledger_due_count")
LEDGER_OLD = _script("ledger_old", "lib_ledger")
LEDGER_FORGET = _script("ledger_forget", "lib_ledger")
STORE_REVISION = _script("store_revision")
LATEST_REVISION = _script("latest_revision")
NEWEST_CREDENTIALS = _script("newest_credentials")
TIME = _script("time")
LEVEL = _script("level")
CLOCK = _script("clock", "lib_ledger")
REPLICATION_SEEN = _script("replication_seen")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, LuaScript))
