"""Who moves a cursor, pure: one reader at a time, and one that has lost it cannot move it any more.

A token holds a cursor once. When its time has run out it is over, even where nobody else came: whoever had it asks with
a new one, and starts from what the journal says.
"""

from __future__ import annotations

from proxy.core.operation import Lease


def held_on(stored: Lease | None, token: str, lease_s: float, now: float) -> Lease | None:
    """The lease after the token asked for it, for the first time or again; None where it may not have it. Zero seconds
    give it back."""
    if stored is not None and (stored.token == token) != (stored.until_at > now):
        return None  # another's that runs, or its own that has run out
    return Lease(token, now + lease_s)


def holds(stored: Lease | None, token: str, now: float) -> bool:
    return stored is not None and stored.token == token and stored.until_at > now
