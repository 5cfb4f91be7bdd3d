"""Admission, in this process: a call goes in at once, waits a little, or is refused early. Nothing was sent by then.

Every Admitted is released exactly once, with what its attempt showed (None: nothing of the provider). A caller that is
cancelled while it waits leaves no trace. The arithmetic, and who goes first, is `core/admission.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.admission import Acceptance, AdmissionRefusal, Bounds, Floor, Lane, patience_s
from proxy.core.observation import Health, Observation


@dataclass(slots=True)
class Admitted:
    provider: str
    lane: Lane
    waited_s: float = 0.0
    released: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    reason: AdmissionRefusal
    retry_after_s: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """How full it is at one provider, for gauges and people."""

    provider: str
    limit: float
    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class _Turn:
    lane: Lane
    admitted: asyncio.Future[bool]


@dataclass(slots=True)
class _Hall:
    floor: Floor
    acceptance: dict[Lane, Acceptance] = field(default_factory=lambda: {lane: Acceptance() for lane in Lane})
    turns: dict[int, _Turn] = field(default_factory=dict)


class Admission:
    def __init__(self, clock: Clock, chance: Chance, bounds: Bounds = Bounds()) -> None:
        self._clock = clock
        self._chance = chance
        self._bounds = bounds
        self._halls: dict[str, _Hall] = {}
        self._numbers = itertools.count()

    async def admit(
        self,
        provider: str,
        lane: Lane,
        deadline_s: float,
        *,
        degraded: bool = False,
    ) -> Admitted | Refused:
        """A place among the provider's calls in flight. `degraded`: its circuit is, so some of low is not worth it."""
        hall = self._hall(provider)
        now_mono = self._clock.mono()
        if degraded and self._sheds(hall, lane, now_mono):
            return Refused(AdmissionRefusal.SHED, hall.floor.retry_after_s())
        if hall.floor.enter(lane, now_mono):
            return Admitted(provider, lane)
        number = next(self._numbers)
        arrival = hall.floor.arrive(lane, number, now_mono, patience_s(deadline_s, hall.floor.limit.usual_s))
        if not arrival.queued:
            return Refused(AdmissionRefusal.QUEUE_FULL, hall.floor.retry_after_s())
        if arrival.evicted is not None:
            self._tell(hall, arrival.evicted, admitted=False)
        return await self._wait(hall, provider, lane, number, deadline_s)

    def release(self, admitted: Admitted, observation: Observation | None) -> None:
        if admitted.released:
            return
        admitted.released = True
        hall, now_mono = self._hall(admitted.provider), self._clock.mono()
        if observation is not None:
            taken = observation.health is Health.OK
            hall.acceptance[admitted.lane].count(taken, now_mono)
        hall.floor.leave(admitted.lane, observation, now_mono)
        if hall.turns:
            self._admit_next(hall, now_mono)

    def crowds(self) -> tuple[Crowd, ...]:
        return tuple(
            Crowd(provider, hall.floor.limit.value, hall.floor.in_flight, hall.floor.waiting)
            for provider, hall in sorted(self._halls.items())
        )

    def _hall(self, provider: str) -> _Hall:
        hall = self._halls.get(provider)
        if hall is None:
            hall = self._halls[provider] = _Hall(Floor(self._bounds))
        return hall

    def _sheds(self, hall: _Hall, lane: Lane, now_mono: float) -> bool:
        share = hall.acceptance[lane].shed_share(lane, now_mono)
        if share <= 0 or self._chance.draw() >= share:
            return False
        hall.acceptance[lane].count(False, now_mono)
        return True

    async def _wait(self, hall: _Hall, provider: str, lane: Lane, number: int, deadline_s: float) -> Admitted | Refused:
        came_mono, loop = self._clock.mono(), asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        hall.turns[number] = _Turn(lane, turn)
        timer = loop.call_later(patience_s(deadline_s, hall.floor.limit.usual_s), self._tire, hall, number)
        try:
            admitted = await turn
        except asyncio.CancelledError:
            self._depart(hall, provider, lane, number, turn)
            raise
        finally:
            timer.cancel()
            hall.turns.pop(number, None)
        waited_s = self._clock.mono() - came_mono
        if admitted:
            return Admitted(provider, lane, waited_s)
        return Refused(AdmissionRefusal.WAITED, hall.floor.retry_after_s(), waited_s)

    def _depart(self, hall: _Hall, provider: str, lane: Lane, number: int, turn: asyncio.Future[bool]) -> None:
        """The caller has gone while it waited, or in the moment its turn came."""
        if not hall.floor.give_up(number) and turn.done() and not turn.cancelled() and turn.result():
            self.release(Admitted(provider, lane), None)

    def _tire(self, hall: _Hall, number: int) -> None:
        if hall.floor.give_up(number):
            self._tell(hall, number, admitted=False)

    def _admit_next(self, hall: _Hall, now_mono: float) -> None:
        for number in hall.floor.admit_next(now_mono):
            turn = hall.turns[number]
            if not self._tell(hall, number, admitted=True):
                hall.floor.leave(turn.lane, None, now_mono)  # cancelled just now, and not yet told

    def _tell(self, hall: _Hall, number: int, *, admitted: bool) -> bool:
        turn = hall.turns[number].admitted
        if turn.done():
            return False
        turn.set_result(admitted)
        return True
