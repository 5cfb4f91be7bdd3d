"""Leases that this process holds: the right to send, measured on a clock that counts suspension.

A lease is counted from before it was asked for, so that our idea of it always ends before the journal's. One loop
renews all that are held; an operation whose lease could not be renewed simply runs out, and the attempt that has not
yet sent its first byte then does not send it.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable
from proxy.journal.base import Journal

RENEWALS_PER_LEASE = 3  # 30 s renewed every 10 s: two renewals may fail


@dataclass(slots=True)
class HeldLease:
    token: str
    until_boot: float


class Leases:
    """The leases held here. `lease_s` is what is asked for each time."""

    def __init__(self, journal: Journal, clock: Clock, lease_s: float) -> None:
        self._journal = journal
        self._clock = clock
        self._held: dict[str, HeldLease] = {}
        self.lease_s = lease_s

    def asked_at(self) -> float:
        """To be read before the journal is asked for a lease, and handed to `hold`."""
        return self._clock.boot()

    def hold(self, operation_id: str, token: str, asked_boot: float) -> None:
        self._held[operation_id] = HeldLease(token, asked_boot + self.lease_s)

    def let_go(self, operation_id: str) -> None:
        self._held.pop(operation_id, None)

    def lasts(self, operation_id: str, token: str, seconds: float) -> bool:
        """Whether that holder's lease has more than that left."""
        held = self._held.get(operation_id)
        return held is not None and held.token == token and held.until_boot - self._clock.boot() > seconds

    async def renew(self) -> None:
        """Renew everything that is held and has not run out by our own clock."""
        asked_boot = self.asked_at()
        tokens = {key: held.token for key, held in self._held.items() if held.until_boot > asked_boot}
        if not tokens:
            return
        renewed = await self._journal.renew(tuple(tokens), tokens, self.lease_s)
        for operation_id in renewed:
            held = self._held.get(operation_id)
            if held is not None and held.token == tokens[operation_id]:
                held.until_boot = asked_boot + self.lease_s

    async def keep_renewing(self) -> None:
        while True:
            await self._clock.sleep(self.lease_s / RENEWALS_PER_LEASE)
            try:
                await self.renew()
            except JournalUnavailable:
                continue  # the next round tries again; until then what is held runs down, which is the safe way
