"""Journal look-ups for calls that our limits refuse, with a bound on how many run at once."""

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
    """Looks up key and guard of refused calls, because the reply "not sent" is right only if nothing else may have paid
    the purchase. An outage refuses thousands of calls at once. So equal calls share one look-up, and the number of
    look-ups under way is bounded."""

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
