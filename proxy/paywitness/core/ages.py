"""Ages: how long ago something happened, measured in two ways. Pure.

No clock can be trusted alone. Somebody sets a store's clock, a machine is suspended, a host is down over a weekend. So
the journal keeps two counters of the time that passes:

- **low** counts only time that a living sidecar saw pass on two clocks at once: the store's and its own CLOCK_BOOTTIME.
  It measures a time that must have passed (`settle`, the spread of misses, retention, another sidecar's lease).
- **high** counts the most that any clock allows. It measures a permission that runs out (the re-send window,
  `resend_for`).

Both advance with the journal's time, except at jumps. So an `AgeTable` stores only the jumps: when each was, how much
of the journal's time low left out, and how much high added to it. The counters at any moment follow from the jumps,
also for rows that are older than the first table. An interval counts once, whichever sidecar saw it: a write must match
the table's version, and counts only the part after the table's last reading.

A gap is a time in which no sidecar read the clocks and that no clock covers. No clock of ours shows how long it was;
only a provider's `Date` does. Until it has, an attempt that was sent before the gap has an infinite high age, which
permits nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

from paywitness.core.record import record

TOLERANCE_S, TOLERANCE_SHARE = 1.0, 0.01  # two clocks may differ by this over an interval, and still agree
GAP_S = 30.0  # nobody read the clocks for longer than this: no sidecar was alive
DATE_TOLERANCE_S = 5.0  # a Date counts whole seconds, and takes time to arrive
_MERGED_WITHIN_S = 60.0  # jumps that follow each other this closely are merged
_JUMPS_MAX = 200
_PROVIDERS_MAX = 200


@record
class ClockReading:
    """One reading of all clocks by one sidecar. The store gave `at` and `raw_at` between `boot` and `answered_boot`."""

    at: float  # the journal's time
    raw_at: float  # the store's own clock, which may go back
    wall_at: float  # the sidecar's own wall clock
    boot: float  # its CLOCK_BOOTTIME
    answered_boot: float
    host: str  # names the boot of the machine that `boot` counts from; empty: not known


@record
class Jump:
    """A moment at which the counters left the journal's time."""

    at: float  # in the journal's time; the jump had happened by then
    low_s: float  # this much of the journal's time before `at` did not count for low
    high_s: float  # high counted this much more than the journal's time


@record
class AgeTable:
    """Both counters, as differences from the journal's time. For anything older than `since_at`, low counts from
    `since_at`, because nobody counted before that."""

    since_at: float
    seen: ClockReading  # everything up to this reading is counted
    jumps: tuple[Jump, ...] = ()
    gap_at: float | None = None  # the end of the last gap
    dated: tuple[str, ...] = ()  # providers that have shown a Date since the gap
    date_offsets: tuple[tuple[str, float], ...] = ()  # how far each provider's Date was ahead of the journal's time

    def low_age_s(self, at: float, now: float) -> float:
        """The smallest age of a moment: at least this much has passed since. Negative: the moment is still to come."""
        counted_from, left_out = max(at, self.since_at), 0.0
        for jump in self.jumps:
            if jump.at >= at:
                # Many jumps may be merged into this one. No more can be left out than has passed until then.
                left_out = min(left_out + jump.low_s, max(0.0, jump.at - counted_from))
        return now - counted_from - left_out

    def high_age_s(self, at: float, now: float, provider: str = "") -> float:
        """The largest age of a moment that any clock allows; infinite if no clock can show it."""
        if self.gap_at is not None and at < self.gap_at and provider not in self.dated:
            return math.inf
        return max(0.0, now - at) + sum(jump.high_s for jump in self.jumps if jump.at >= at)

    def journal_seconds(self, seconds: float, now: float) -> float:
        """How far back in the journal's time to go for a moment since which that many seconds have certainly passed."""
        at = now - seconds - self._left_out_s(seconds, now)
        return now - at if at >= self.since_at else max(now, now - at)

    def _left_out_s(self, seconds: float, now: float) -> float:
        """How much of the journal's time low left out within its last so many seconds."""
        left_out = 0.0
        for jump in reversed(self.jumps):
            if jump.at < now - seconds - left_out:
                break
            left_out += jump.low_s
        return left_out

    def leases_over_at(self, lease_s: float, now: float) -> float:
        """Leases of other sidecars that end at or before this time are over. After a jump this does not trust the
        journal's time for the length of one lease, because a lease that was held at the jump may still be held. A lease
        from before the first table is gone: a release without ages is stopped before one with ages starts."""
        return now - self._left_out_s(lease_s, now)


@record
class CountedReading:
    """The table after a reading, and the jump to report, if there was one."""

    table: AgeTable
    jump: Jump | None = None  # the clocks did not agree, or nobody had read them for a while
    is_gap: bool = False


def first_table(reading: ClockReading) -> AgeTable:
    return AgeTable(reading.at, reading)


def count_reading(
    table: AgeTable, earlier: ClockReading | None, reading: ClockReading, *, shared: bool
) -> CountedReading:
    """Count the time up to a reading. `earlier` is a reading of the same sidecar. Without it the table's last reading
    serves, if the same machine made it and has not been started again since. `shared`: several sidecars may use the
    journal."""
    observed = earlier or _of_same_host(table.seen, reading)
    if observed is None:
        return _count_unobserved(table, reading, shared=shared)
    began_at = max(table.seen.at, observed.at)
    part_s = max(0.0, reading.at - began_at)
    unseen_s = max(0.0, observed.at - table.seen.at)
    low_s = unseen_s if unseen_s > TOLERANCE_S else 0.0
    # How much more the store's own clock advanced than the journal's time, which may lag. Every sidecar reads the same.
    high_s = max(0.0, reading.raw_at - table.seen.raw_at - (reading.at - table.seen.at))
    agrees = _agree(observed, reading)
    if not agrees:
        low_s += part_s
        high_s = max(high_s, reading.answered_boot - observed.boot - max(0.0, reading.at - observed.at))
    if low_s <= 0.0 and high_s <= TOLERANCE_S:
        # A lag that is still too small to report does not move `raw_at` on. So it is reported once it has grown.
        seen = replace(reading, raw_at=reading.raw_at - high_s)
        return CountedReading(replace(table, seen=seen))
    jump = Jump(reading.at, low_s, high_s)
    moved = replace(table, seen=reading, jumps=_with_jump(table.jumps, jump))
    return CountedReading(moved, None if agrees else jump)


def _of_same_host(seen: ClockReading, reading: ClockReading) -> ClockReading | None:
    return seen if seen.host and seen.host == reading.host and seen.answered_boot <= reading.boot else None


def _agree(earlier: ClockReading, reading: ClockReading) -> bool:
    """Whether the store's clock, the journal's time and CLOCK_BOOTTIME advanced equally. The journal's time may lag."""
    least_s, most_s = reading.boot - earlier.answered_boot, reading.answered_boot - earlier.boot
    tolerance_s = max(TOLERANCE_S, TOLERANCE_SHARE * most_s)
    store_s = reading.raw_at - earlier.raw_at
    is_store_right = least_s - tolerance_s <= store_s <= most_s + tolerance_s
    return is_store_right and reading.at - earlier.at <= most_s + tolerance_s


def _count_unobserved(table: AgeTable, reading: ClockReading, *, shared: bool) -> CountedReading:
    """No sidecar saw this interval. Low leaves it out; high counts the most that a clock allows."""
    seen = table.seen
    passed_s = max(0.0, reading.at - seen.at)
    most_s = max(passed_s, reading.raw_at - seen.raw_at, reading.wall_at - seen.wall_at)
    is_gap = not shared or passed_s > GAP_S or reading.raw_at < seen.raw_at - TOLERANCE_S
    if passed_s <= TOLERANCE_S and most_s - passed_s <= TOLERANCE_S and not is_gap:
        return CountedReading(replace(table, seen=reading))
    jump = Jump(reading.at, passed_s, most_s - passed_s)
    moved = replace(table, seen=reading, jumps=_with_jump(table.jumps, jump))
    if is_gap:
        moved = replace(moved, gap_at=reading.at, dated=())
    return CountedReading(moved, jump, is_gap)


def count_date(table: AgeTable, provider: str, date_at: float, now: float) -> AgeTable:
    """The table after a response of the provider has shown a `Date`. After a gap the `Date` shows how long the gap
    was."""
    offset_s = date_at - now
    offsets = dict(table.date_offsets)
    known_s = offsets.get(provider)
    if table.gap_at is not None and provider not in table.dated:
        lost_s = offset_s - (known_s if known_s is not None else 0.0)
        if lost_s > DATE_TOLERANCE_S:
            jumps = _sorted(*table.jumps, Jump(table.gap_at, 0.0, lost_s))
            table = replace(table, jumps=jumps)
        table = replace(table, dated=(*table.dated, provider)[-_PROVIDERS_MAX:])
    if known_s is not None and abs(known_s - offset_s) <= DATE_TOLERANCE_S:
        return table
    offsets[provider] = offset_s
    return replace(table, date_offsets=tuple(sorted(offsets.items()))[-_PROVIDERS_MAX:])


def _with_jump(jumps: tuple[Jump, ...], jump: Jump) -> tuple[Jump, ...]:
    """The list with one more jump, bounded. Two jumps that are merged count at the later moment. So for the time
    between them low is never too large, and high never too small."""
    if jumps and jump.at - jumps[-1].at <= _MERGED_WITHIN_S:
        return (*jumps[:-1], _merged(jumps[-1], jump))
    return _sorted(*jumps, jump)


def _merged(first: Jump, second: Jump) -> Jump:
    return Jump(max(first.at, second.at), first.low_s + second.low_s, first.high_s + second.high_s)


def _sorted(*jumps: Jump) -> tuple[Jump, ...]:
    in_order = sorted(jumps, key=lambda jump: jump.at)
    while len(in_order) > _JUMPS_MAX:
        in_order[:2] = [_merged(in_order[0], in_order[1])]
    return tuple(in_order)


# --- The stored format


def table_to_text(table: AgeTable) -> str:
    seen = table.seen
    return json.dumps(
        {
            "since": table.since_at,
            "seen": [seen.at, seen.raw_at, seen.wall_at, seen.boot, seen.answered_boot, seen.host],
            "jumps": [[jump.at, jump.low_s, jump.high_s] for jump in table.jumps],
            "gap": table.gap_at,
            "dated": list(table.dated),
            "offsets": dict(table.date_offsets),
        },
        separators=(",", ":"),
    )


def table_from_text(text: str) -> AgeTable:
    stored = json.loads(text)
    return AgeTable(
        stored["since"],
        ClockReading(*stored["seen"]),
        tuple(Jump(*jump) for jump in stored["jumps"]),
        stored["gap"],
        tuple(stored["dated"]),
        tuple(sorted(stored["offsets"].items())),
    )
