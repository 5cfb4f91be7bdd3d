"""The journal's file: only its owner can read it, only one process can hold it, and commits are durable.

Erasure: `secure_delete` overwrites deleted data within the file. The write-ahead log beside it still holds older pages
until it is overwritten or truncated. The writer truncates it when it has been idle for a moment, and at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path

from paywitness.core.errors import JournalUnavailable, JournalUnusable
from paywitness.journal.sqlite.schema import migrate

BUSY_TIMEOUT_S = 2.0  # for a person's SQLite shell on the file: shorter than a call may take, longer than a short query
_STATEMENTS_KEPT = 128  # prepared statements; we have fewer
_WAL_BYTES_KEPT = 8 << 20  # about twice the usual size of the log between two checkpoints


class FileLock:
    """Keeps the journal to one process: an exclusive lock on a file beside it, for as long as the journal is open.

    The lock is not on the database file itself, because closing any descriptor of that would drop SQLite's own locks.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + ".lock")
        self._descriptor = -1
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnusable(f"the journal's lock {self._path} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            self.release()
            raise JournalUnusable(_held_message(journal, holder)) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def __del__(self) -> None:
        self.release()  # if opening failed half-way

    def release(self) -> None:
        """Release the lock. The file stays, because removing it could let two processes lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _held_message(journal: Path, holder: str) -> str:
    if holder == str(os.getpid()):
        return f"the journal {journal} is open in this process already: close it first"
    who = f"process {holder}" if holder else "another process"
    return f"the journal {journal} is held by {who}: stop that one, or give this one a journal of its own (--journal)"


def make_file(path: Path) -> None:
    """Create the file and its directory, readable by their owner alone. An older file gets the same permissions."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if not path.is_file():
                raise JournalUnusable(f"the journal {path} is not a file") from None
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
    except OSError as error:
        raise JournalUnusable(f"the journal {path} cannot be made: {error.strerror}") from error


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection that commits durably. The tables are created or migrated."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",  # never creates: an empty journal in place of a lost one would charge again
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # made here, then used by the writer's thread alone
        cached_statements=_STATEMENTS_KEPT,
    )
    try:
        _set_up(connection, path)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise JournalUnusable(f"the journal {path} lies on a file system without shared memory, which its log needs")
    for pragma in (
        "synchronous = FULL",  # the log reaches the disk before COMMIT returns
        "fullfsync = ON",  # and, on macOS, not only the disk's cache
        "foreign_keys = OFF",
        "secure_delete = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",  # SQLite reports damage instead of reading it as data
        f"journal_size_limit = {_WAL_BYTES_KEPT}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. The file must have been opened for writing before: its log exists then."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS_KEPT,
    )


def truncate_wal(connection: sqlite3.Connection) -> None:
    """Move the log into the file and truncate it. If another connection's long read prevents that, the log stays until
    the next time."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


def move_wal_into_file(connection: sqlite3.Connection) -> bool:
    """Move all of the log into the file, durably. Returns whether nothing is left in the log."""
    busy, in_log, moved = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    return not busy and in_log == moved


_MEANINGS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "the disk failed",
    "SQLITE_READONLY": "the file or its disk is read-only",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_BUSY": "another program holds the file",
    "SQLITE_LOCKED": "another program holds the file",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_PERM": "the file may not be used",
    "SQLITE_AUTH": "the file may not be used",
    "SQLITE_INTERRUPT": "it took too long",
}
_UNFIT_CODES = ("SQLITE_READONLY", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")


def unavailable(error: sqlite3.Error) -> JournalUnavailable:
    """The error to raise in place of the driver's, in words for the person on call."""
    return JournalUnavailable(f"the journal cannot be used now: {_described(error)}")


def unfit(error: sqlite3.Error, path: Path) -> JournalUnavailable | JournalUnusable:
    """The error to raise at the start: JournalUnusable if the failure will not pass by itself, else
    JournalUnavailable."""
    name = _name_of(error)
    if name.startswith(_UNFIT_CODES):
        return JournalUnusable(f"the journal {path} cannot be used: {_described(error)}")
    return JournalUnavailable(f"the journal {path} cannot be used now: {_described(error)}")


def _name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "")


def _described(error: sqlite3.Error) -> str:
    name = _name_of(error)
    for prefix, words in _MEANINGS.items():
        if name.startswith(prefix):
            return f"{words} ({name}: {error})"
    return f"{name or type(error).__name__}: {error}"
