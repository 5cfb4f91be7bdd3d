"""Cursors of the embedded journal: how far readers of outcomes have come, and who moves them.

Who does is not in the file: only this process can hold it, and a reader that is gone must not hold up the next start.
"""

from __future__ import annotations

from proxy.core.operation import Lease
from proxy.journal import holding
from proxy.journal.sqlite_writes import Writer

_MOVE = """INSERT INTO cursors (name, seq) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET seq = max(seq, excluded.seq)"""


class Cursors:
    """Steps of the writer, run in its thread and within its transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._leases: dict[str, Lease] = {}

    def take(self, asked: tuple[str, str, float]) -> int | None:
        name, token, lease_s = asked
        lease = holding.held_on(self._leases.get(name), token, lease_s, self._writer.time.now())
        if lease is None:
            return None
        self._leases[name] = lease
        return int(self._writer.shelf.scalar("SELECT seq FROM cursors WHERE name = ?", name) or 0)

    def move(self, asked: tuple[str, int, str]) -> bool:
        name, seq, token = asked
        if token and not holding.holds(self._leases.get(name), token, self._writer.time.now()):
            return False
        self._writer.cursor.execute(_MOVE, (name, seq))
        return True
