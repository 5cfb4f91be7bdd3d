"""Calls that our limits refuse: what the journal knows of them, asked so many at once and no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from paywitness.core.claim import Claim, ClaimVerdict
from paywitness.core.errors import JournalNotAsked
from paywitness.core.problems import TOO_MANY_LOOKUPS
from paywitness.engine.calls.context import CallContext
from paywitness.engine.durability.journal_writer import JournalWriter

LOOKUPS_MAX = 256  # at once: one pipeline of a Redis, one transaction of a SQLite


@dataclass(frozen=True, slots=True)
class RefusedLookups:
    """Asks key and guard of refused calls: "not sent" is said only of a purchase that nothing else may have paid. An
    outage refuses thousands at once, so equal calls share one look-up, and so many are under way at most."""

    journal_writer: JournalWriter
    lookups_max: int = LOOKUPS_MAX
    _under_way: dict[tuple[str, str, str], asyncio.Future[Claim | None]] = field(default_factory=dict)

    async def claim(self, context: CallContext) -> Claim:
        """The claim of a call that may start nothing. Raises JournalUnavailable, also if too many are under way."""
        identity = context.identity
        same = (identity.key, identity.fingerprint, identity.credential)
        if (first := self._under_way.get(same)) is not None:
            shared = await first
            if shared is not None and shared.verdict is ClaimVerdict.ABSENT:
                return shared
        if len(self._under_way) >= self.lookups_max:
            raise JournalNotAsked(TOO_MANY_LOOKUPS)
        found: asyncio.Future[Claim | None] = asyncio.get_running_loop().create_future()
        self._under_way.setdefault(same, found)
        claim = None
        try:
            claim = await self.journal_writer.claim(context, permitted=False)
        finally:
            found.set_result(claim)
            if self._under_way.get(same) is found:
                del self._under_way[same]
        return claim
