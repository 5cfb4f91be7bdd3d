"""Notices in the embedded journal: what providers told us, kept before it was acknowledged. Used by the writer's
thread, within its transaction.
"""

from __future__ import annotations

from proxy.journal.base import KeptNotice, NoticeResult
from proxy.journal.sqlite_writes import Writer

_COLUMNS = "number, provider, account, event_id, received_at, sealed, result, operation_id, tries, due_at, relay_due_at"
_KEEP = """INSERT OR IGNORE INTO notices
    (provider, account, event_id, received_at, sealed, result, operation_id, tries, due_at, relay_due_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_MOVE = "UPDATE notices SET result = ?, operation_id = ?, tries = ?, due_at = ?, relay_due_at = ? WHERE number = ?"
_DUE = "SELECT due_at, number FROM notices INDEXED BY notices_due WHERE due_at <= ? ORDER BY due_at, number LIMIT ?"
_TO_RELAY = (
    "SELECT relay_due_at, number FROM notices INDEXED BY notices_to_relay WHERE relay_due_at <= ? "
    "ORDER BY relay_due_at, number LIMIT ?"
)


class Notices:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def keep(self, notice: KeptNotice) -> bool:
        what = (notice.provider, notice.account, notice.event_id, notice.received_at, notice.sealed)
        return self._writer.cursor.execute(_KEEP, (*what, *_standing_of(notice))).rowcount == 1

    def due(self, limit: int) -> tuple[KeptNotice, ...]:
        """Here and not in the reader's thread: what is due is a question to the journal's own clock."""
        now = self._writer.time.now()
        cursor = self._writer.cursor
        found: dict[int, float] = {}
        for query in (_DUE, _TO_RELAY):
            for due_at, number in cursor.execute(query, (now, limit)).fetchall():
                found[number] = min(due_at, found.get(number, due_at))
        oldest_first = sorted(found, key=lambda number: (found[number], number))[:limit]
        query = f"SELECT {_COLUMNS} FROM notices WHERE number = ?"
        return tuple(_notice_of(*cursor.execute(query, (number,)).fetchone()) for number in oldest_first)

    def move(self, notice: KeptNotice) -> None:
        self._writer.cursor.execute(_MOVE, (*_standing_of(notice), notice.number))


def _standing_of(notice: KeptNotice) -> tuple[object, ...]:
    return (notice.result.value, notice.operation_id, notice.tries, notice.due_at, notice.relay_due_at)


def _notice_of(
    number: int,
    provider: str,
    account: str,
    event_id: str,
    received_at: float,
    sealed: bytes,
    result: str,
    operation_id: str | None,
    tries: int,
    due_at: float | None,
    relay_due_at: float | None,
) -> KeptNotice:
    what = (number, provider, account, event_id, received_at, sealed)
    return KeptNotice(*what, NoticeResult(result), operation_id, tries, due_at, relay_due_at)
