"""Levels: which rules every sidecar of a journal keeps. Pure.

Neighbouring releases run side by side. A rule that an older release cannot keep begins when the journal's level is
raised: by an operator, or by a sidecar once no older sidecar has lived for ten leases. From then on the journal refuses
a sidecar that states a lower level. A level is never lowered.

- Level 1: the rules of releases without levels. They state no level, and announce nothing.
- Level 2: every sidecar keeps the balances of payments, so limits may be enforced. Before that limits only warn. They
  also only warn, for ever, for payments that an older sidecar may have moved without counting the movement.
"""

from __future__ import annotations

import json
from dataclasses import replace

from paywitness.core.record import record

LEVEL = 2  # of this release
LEVEL_WITHOUT_NAME = 1  # of releases that know no levels
ENFORCES_LIMITS = 2  # the level from which on limits are enforced
LEASES_WITHOUT_OLDER = 10
SIDECARS_MAX = 1_000  # announced at a time


@record
class JournalLevel:
    """The level of a journal, and since when, in its own time. Zero: from its first day on."""

    level: int
    raised_at: float


@record
class SidecarPresence:
    name: str
    release: str
    level: int
    seen_at: float


@record
class Fleet:
    """The sidecars that have announced themselves to a journal lately."""

    began_at: float  # when the first one announced itself
    older_at: float | None = None  # when a sidecar of a lower level than the newest was last seen
    sidecars: tuple[SidecarPresence, ...] = ()

    def with_sidecar(self, announced: SidecarPresence, kept_s: float) -> Fleet:
        """The fleet after a sidecar has announced itself. Sidecars that have not for `kept_s` are removed."""
        others = (one for one in self.sidecars if one.name != announced.name)
        living = [one for one in others if announced.seen_at - one.seen_at < kept_s]
        sidecars = tuple(sorted((*living[-(SIDECARS_MAX - 1) :], announced), key=lambda one: one.name))
        newest = max(one.level for one in sidecars)
        older = [one.seen_at for one in sidecars if one.level < newest]
        return replace(self, sidecars=sidecars, older_at=max(older) if older else self.older_at)

    def with_older(self, seen_at: float) -> Fleet:
        """The fleet after somebody found a trace of a sidecar that announces nothing."""
        return self if self.older_at is not None and self.older_at >= seen_at else replace(self, older_at=seen_at)

    @property
    def without_older_since(self) -> float:
        """The time since which no sign of an older sidecar is known."""
        return max(self.began_at, self.older_at if self.older_at is not None else self.began_at)


def may_raise(journal: JournalLevel, own_level: int, without_older_s: float, lease_s: float) -> bool:
    """Whether a sidecar raises the level by itself. `without_older_s`: how long certainly no older one has lived."""
    return journal.level < own_level and without_older_s >= LEASES_WITHOUT_OLDER * lease_s


def fleet_to_text(fleet: Fleet) -> str:
    sidecars = [[one.name, one.release, one.level, one.seen_at] for one in fleet.sidecars]
    return json.dumps({"began": fleet.began_at, "older": fleet.older_at, "sidecars": sidecars}, separators=(",", ":"))


def fleet_from_text(text: str) -> Fleet:
    stored = json.loads(text)
    return Fleet(stored["began"], stored["older"], tuple(SidecarPresence(*one) for one in stored["sidecars"]))
