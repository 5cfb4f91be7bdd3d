"""What the journal's Redis is to its replicas, and whether it came back as another one, and forgot something.

- Once a replica was seen, one must have a write before anything is sent on the strength of it: a primary that was cut
  off from its replicas must not go on alone. The journal itself remembers that, for sidecars that start while it is so.
  One that has been idle since before they joined is told by it with its next write.
- Another replication id is another history. A replica that was promoted may lack what the primary had acknowledged, a
  Redis that started again what was not yet on its disk. The journal remembers the id it was written under, so that also
  a sidecar that starts afterwards notices.
- Not every other id means that: a running primary takes one when its first replica joins, and when its last one has
  been away for an hour. It is the same process then, and has taken over from nobody.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError

from proxy.journal.redis_connection import Replication
from proxy.journal.redis_scripts import HISTORY_TOLD
from proxy.journal.redis_url import Place

_log = logging.getLogger("paywitness.journal")


class Standing:
    """What one journal knows of its Redis."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._remembered = place.replicas is not None  # whether the journal remembers what we know of replicas
        self._rolled_back_mono: float | None = None
        self.replicas_wanted = place.replicas or 0
        self.replication_id = ""

    @property
    def rolled_back_s(self) -> float | None:
        """How long ago this Redis came back as another one; None: not as far as anybody remembers."""
        if self._rolled_back_mono is None:
            return None
        return asyncio.get_running_loop().time() - self._rolled_back_mono

    @property
    def may_learn(self) -> bool:
        """Whether we count upon no replica, and somebody else may have seen one."""
        return self._place.replicas is None and not self.replicas_wanted

    def learn(self) -> None:
        """The journal says that somebody has."""
        _log.info("the journal's Redis has had replicas: one must have a write before a send")
        self.replicas_wanted, self._remembered = 1, True

    async def hear(self, connection: Connection, told: Replication) -> None:
        """What it says of itself. Where that is new, the journal is told, and tells what others knew."""
        if told.replicas and self._place.replicas is None and not self.replicas_wanted:
            _log.info("the journal's Redis has %d replicas: one must have a write before a send", told.replicas)
            self.replicas_wanted = 1
        news = self.replicas_wanted > 0 and not self._remembered
        if told.history == self.replication_id and not news:
            return
        seen, ago_s = await self._tell(connection, told, "1" if news else "")
        if seen and self._place.replicas is None:
            self.replicas_wanted = 1
            self._remembered = True
        if told.history != self.replication_id and ago_s:
            self._rolled_back_mono = asyncio.get_running_loop().time() - float(ago_s)
        self.replication_id = told.history

    async def _tell(self, connection: Connection, told: Replication, seen: str) -> Any:
        named = (told.history, told.process, "1" if told.promoted else "", seen)
        for command, script in (("EVALSHA", HISTORY_TOLD.sha), ("EVAL", HISTORY_TOLD.text)):
            await connection.send_command(command, script, 1, self._place.prefix, *named, check_health=False)
            try:
                return await connection.read_response(disable_decoding=True)
            except NoScriptError:
                continue
        raise AssertionError("a script that was sent whole is known")
