"""Admission, in this process: a call goes in at once, waits a little, or is refused early. Nothing was sent by then.

Every Admitted is released exactly once, with the health sample of its attempt (None: the attempt showed nothing of the
provider). A caller that is cancelled while it waits leaves no trace. The arithmetic and the order are in
`core/admission.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.admission import (
    AcceptRate,
    AdmissionQueue,
    AdmissionRefusal,
    AdmissionStats,
    ConcurrencyBounds,
    TrafficClass,
    queue_wait_max_s,
)
from paywitness.core.provider_health import Health, HealthSample
from paywitness.randomness import Randomness


@dataclass(slots=True)
class Admitted:
    provider: str
    priority: TrafficClass
    waited_s: float = 0.0
    released: bool = False


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    reason: AdmissionRefusal
    retry_after_s: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _QueuedCaller:
    priority: TrafficClass
    admitted: asyncio.Future[bool]


@dataclass(slots=True)
class _ProviderQueue:
    queue: AdmissionQueue
    accept_rates: dict[TrafficClass, AcceptRate] = field(
        default_factory=lambda: {priority: AcceptRate() for priority in TrafficClass}
    )
    callers: dict[int, _QueuedCaller] = field(default_factory=dict)


class Admission:
    def __init__(self, clock: Clock, chance: Randomness, bounds: ConcurrencyBounds = ConcurrencyBounds()) -> None:
        self._clock = clock
        self._chance = chance
        self._bounds = bounds
        self._queues: dict[str, _ProviderQueue] = {}
        self._numbers = itertools.count()

    async def admit(
        self,
        provider: str,
        priority: TrafficClass,
        deadline_s: float,
        *,
        degraded: bool = False,
    ) -> Admitted | NotAdmitted:
        """A slot among the provider's calls in flight. `degraded`: its circuit is degraded, so some low-priority calls
        are refused."""
        provider_queue = self._queues.get(provider) or self._new_queue(provider)
        now_mono = self._clock.mono()
        if degraded and self._sheds(provider_queue, priority, now_mono):
            return NotAdmitted(AdmissionRefusal.SHED, provider_queue.queue.retry_after_s())
        if provider_queue.queue.try_admit(priority, now_mono):
            return Admitted(provider, priority)
        number = next(self._numbers)
        arrival = provider_queue.queue.admit_or_queue(
            priority, number, now_mono, queue_wait_max_s(deadline_s, provider_queue.queue.limit.baseline_s)
        )
        if not arrival.queued:
            return NotAdmitted(AdmissionRefusal.QUEUE_FULL, provider_queue.queue.retry_after_s())
        if arrival.evicted is not None:
            self._notify(provider_queue, arrival.evicted, admitted=False)
        return await self._wait(provider_queue, provider, priority, number, deadline_s)

    def release(self, admitted: Admitted, sample: HealthSample | None) -> None:
        if admitted.released:
            return
        admitted.released = True
        provider_queue = self._queues.get(admitted.provider) or self._new_queue(admitted.provider)
        now_mono = self._clock.mono()
        if sample is not None:
            taken = sample.health is Health.OK
            provider_queue.accept_rates[admitted.priority].count(taken, now_mono)
        provider_queue.queue.release(admitted.priority, sample, now_mono)
        if provider_queue.callers:
            self._admit_next(provider_queue, now_mono)

    def stats(self) -> tuple[AdmissionStats, ...]:
        return tuple(
            AdmissionStats(provider, queue.limit.value, queue.in_flight, queue.waiting, queue.waiting_by_priority)
            for provider, queue in sorted((provider, each.queue) for provider, each in self._queues.items())
        )

    def _new_queue(self, provider: str) -> _ProviderQueue:
        provider_queue = self._queues[provider] = _ProviderQueue(AdmissionQueue(self._bounds))
        return provider_queue

    def _sheds(self, provider_queue: _ProviderQueue, priority: TrafficClass, now_mono: float) -> bool:
        share = provider_queue.accept_rates[priority].shed_share(priority, now_mono)
        if share <= 0 or self._chance.draw() >= share:
            return False
        provider_queue.accept_rates[priority].count(False, now_mono)
        return True

    async def _wait(
        self, provider_queue: _ProviderQueue, provider: str, priority: TrafficClass, number: int, deadline_s: float
    ) -> Admitted | NotAdmitted:
        queued_mono, loop = self._clock.mono(), asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        provider_queue.callers[number] = _QueuedCaller(priority, waiter)
        timer = loop.call_later(
            queue_wait_max_s(deadline_s, provider_queue.queue.limit.baseline_s), self._time_out, provider_queue, number
        )
        try:
            admitted = await waiter
        except asyncio.CancelledError:
            self._withdraw(provider_queue, provider, priority, number, waiter)
            raise
        finally:
            timer.cancel()
            provider_queue.callers.pop(number, None)
        waited_s = self._clock.mono() - queued_mono
        if admitted:
            return Admitted(provider, priority, waited_s)
        return NotAdmitted(AdmissionRefusal.WAITED, provider_queue.queue.retry_after_s(), waited_s)

    def _withdraw(
        self,
        provider_queue: _ProviderQueue,
        provider: str,
        priority: TrafficClass,
        number: int,
        waiter: asyncio.Future[bool],
    ) -> None:
        """The caller left while it waited, or in the moment in which it was admitted."""
        if not provider_queue.queue.cancel(number) and waiter.done() and not waiter.cancelled() and waiter.result():
            self.release(Admitted(provider, priority), None)

    def _time_out(self, provider_queue: _ProviderQueue, number: int) -> None:
        if provider_queue.queue.cancel(number):
            self._notify(provider_queue, number, admitted=False)

    def _admit_next(self, provider_queue: _ProviderQueue, now_mono: float) -> None:
        for number in provider_queue.queue.admit_next(now_mono):
            waiter = provider_queue.callers[number]
            if not self._notify(provider_queue, number, admitted=True):
                provider_queue.queue.release(waiter.priority, None, now_mono)  # cancelled just now, before it knew

    def _notify(self, provider_queue: _ProviderQueue, number: int, *, admitted: bool) -> bool:
        waiter = provider_queue.callers[number].admitted
        if waiter.done():
            return False
        waiter.set_result(admitted)
        return True
