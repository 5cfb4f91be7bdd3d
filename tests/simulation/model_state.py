"""The values of the model: a world as it stands, what a sidecar is doing, what is on the wire. Plain and hashable.

Operations are kept as numbers of a `Ledger`, in which two that no step could tell apart are one. Versions are left out
of it: what a sidecar holds is either what the journal holds, or an older one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from paywitness.core.operation import Lease, Operation
from tests.simulation.model_engine import LEASE_S, MISSES, NOW, Bounds, Promise
from tests.simulation.model_provider import Truth

TICK_S = 1_000.0  # longer than all that settles; a day is a tick after which the provider has forgotten the key
DAY_S = 90_000.0
AS_STORED = -1  # what a sidecar holds is what the journal holds
OLDER = -2  # others have moved it on since; a planted fault that does not compare holds that older one by its number


class Wire(NamedTuple):
    """One attempt at the wire."""

    in_air: bool = False  # it may still be delivered and executed
    answer: str = ""  # on its way back
    heard_by: int = -1  # the sidecar whose connection it is; -1: nobody listens


class Hand(NamedTuple):
    """What a sidecar is doing."""

    doing: str = "idle"  # sending, awaiting, answered, waiting (between tries), resuming, asked
    generation: int = 0
    attempt: int = 0
    word: str = ""  # what the attempt came to, or what the inquiry found
    held: int = AS_STORED
    caller: bool = False  # somebody waits for it
    asked_before: bool = False  # time has passed since it asked
    lapsed: bool = False  # its lease ran out before it sent: whoever renews that in the journal, it does not send
    too_old: bool = False  # a re-send, and by now beyond the window: it is not sent


class World(NamedTuple):
    operations: tuple[int, ...]  # one a generation
    wires: tuple[tuple[Wire, ...], ...]
    truth: Truth
    hands: tuple[Hand, ...]
    told: tuple[Promise, ...]
    repeats: int  # that may still come
    crashes: int


IDLE, SILENT = Hand(), Wire()


class Ledger:
    """Operations by number. Two that differ in nothing that a step could ask are one."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._quiet_before = NOW - (2 if bounds.slow_inquiries else 1) * TICK_S
        self.operations: list[Operation] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, stands: Operation) -> int:
        lease = stands.lease
        ended = stands.state.ended
        sent_at = stands.first_sent_at
        if sent_at is not None and sent_at < NOW:
            sent_at = NOW - (DAY_S if sent_at <= NOW - DAY_S else TICK_S)
        plain = stands.changed(
            version=7,
            created_at=NOW,
            updated_at=NOW,
            ended_at=NOW if ended else None,
            because="",
            checks_done=0 if ended else min(stands.checks_done, self._bounds.looks),
            misses=0 if ended else min(stands.misses, MISSES),
            first_miss_at=None if ended or not stands.misses else NOW,
            first_sent_at=NOW if ended else sent_at,
            no_bytes_after_at=None
            if ended or stands.no_bytes_after_at is None
            else max(stands.no_bytes_after_at, self._quiet_before),
            due_at=None if stands.due_at is None else NOW,
            undelivered=False,
            lease=lease and Lease(lease.token, NOW + LEASE_S if lease.until_at > NOW else NOW - 1.0),
        )
        key = tuple(plain.__dict__.values())
        number = self._numbers.setdefault(key, len(self.operations))
        if number == len(self.operations):
            self.operations.append(plain)
        return number


def put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """The tuple with another value at that place."""
    return (*values[:place], value, *values[place + 1 :])
