"""What happens to the processes, one mishap at a time, each after the last one's victims were back in service.

In service is who carries a payment of its own to its end. From when on that is measured, each mishap says: from the
kill, from the end of the pause, from the moment there is room on the disk again.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from paywitness.engine.failpoints import CALL_FAILPOINTS, RESOLUTION_FAILPOINTS
from tests.chaos.shop import Shop
from tests.chaos.world import Victim, World
from tests.e2e.conftest import FLEET_LEASE_S
from tests.e2e.sidecar import wait_until

STEPS_OF_A_WEBHOOK = (
    "store_webhook_event_asked",
    "store_webhook_event_done",
    "due_webhook_events_done",
    "update_webhook_event_asked",
    "update_webhook_event_done",
)
STEPS_OF_A_SWEEP = ("expire_leases_asked", "expire_leases_done", "take_due_asked", "take_due_done", "doubt_counts_done")
STEPS_OF_THE_JOURNAL = (
    *("claim_asked", "claim_done", "record_asked", "record_done", "renew_asked", "renew_done", "read_done"),
    "sealed_done",
)
STEPS = (*CALL_FAILPOINTS, *RESOLUTION_FAILPOINTS, *STEPS_OF_A_WEBHOOK, *STEPS_OF_A_SWEEP, *STEPS_OF_THE_JOURNAL)

BACK_WITHIN_S = 5.0
LIVES_S = (0.1, 0.8)  # between being back in service and the next mishap
STEP_WITHIN_S = 6.0  # a step that is not reached by then: killed as it stands
SERVED_WITHIN_S = 30.0  # after that it is not back at all
FLOOD = 600  # connections; a sidecar takes 1,024
SLEEPS_S = (0.3, FLEET_LEASE_S + 2)
POLICY_EDIT = ("  first_byte: 2s ", "  first_byte: 1500ms ")


@dataclass(frozen=True)
class Mishap:
    kind: str
    detail: str
    back_s: float  # infinite: it never came back
    within_s: float = BACK_WITHIN_S  # it should
    ready_s: float = 0.0  # of that, until its process listened, or what it stands on was there
    heard: str = ""  # what was heard before the payment that went through
    starved_s: float = 0.0  # how long the worst of its victims waited for a processor that others used

    @property
    def late(self) -> bool:
        """The time in which others used the processor does not count: a machine that does other work is no fault."""
        return self.back_s - self.starved_s > self.within_s

    def __str__(self) -> str:
        how = f"ready after {self.ready_s:.1f} s, {self.starved_s:.1f} s without a processor"
        heard = f", heard before: {self.heard}" if self.heard else ""
        return f"back after {self.back_s:.1f} s: {self.kind} ({self.detail}); {how}{heard}"


@dataclass
class Mishaps:
    world: World
    shop: Shop
    dice: Random
    happened: list[Mishap] = field(default_factory=list)
    _steps: list[str] = field(default_factory=list)
    _edited: bool = False

    def kinds(self) -> dict[str, int]:
        """What can happen here, and how often in one round."""
        found = {"kill": 7, "kill_at_step": 7, "pause": 1, "pause_at_step": 1, "flood": 1, "restart": 1, "edit": 1}
        found |= {"full_disk": 1}
        if self.world.redis is not None:
            found |= {"kill_redis": 1, "pause_redis": 1}
        if self.world.is_turnable:
            found |= {"slow_disk": 1, "skew": 1}
        return found

    async def happen(self, kind: str) -> Mishap:
        doing: dict[str, Callable[[], Awaitable[tuple[str, float, list[Victim]]]]] = {
            "kill": self._kill,
            "kill_at_step": self._kill_at_step,
            "pause": self._pause,
            "pause_at_step": self._pause_at_step,
            "kill_redis": self._kill_redis,
            "pause_redis": self._pause_redis,
            "full_disk": self._full_disk,
            "slow_disk": self._slow_disk,
            "skew": self._skew,
            "flood": self._flood,
            "restart": self._restart,
            "edit": self._edit,
        }
        before = {victim.process_id: _starved_s(victim) for victim in self.world.sidecars}
        detail, since_mono, victims = await doing[kind]()
        ready_s = time.monotonic() - since_mono
        found = [await self.shop.served_by(victim, SERVED_WITHIN_S) for victim in victims]
        back_s = time.monotonic() - since_mono if all(served for served, _ in found) else float("inf")
        heard = sum((counted for _, counted in found), Counter[str]())
        told = ", ".join(f"{answer} x {count}" for answer, count in heard.most_common())
        starved_s = max(_starved_s(victim) - before.get(victim.process_id, 0.0) for victim in victims)
        self.happened.append(Mishap(kind, detail, back_s, self._within_s(kind), ready_s, told, starved_s))
        return self.happened[-1]

    def _within_s(self, kind: str) -> float:
        """A Redis that was started again may have forgotten its last moments. Where the provider would not notice a
        payment made twice, nothing new is sent for one lease."""
        careful = kind in {"kill_redis", "full_disk"} and self.world.redis is not None and self.world.contract == "none"
        return BACK_WITHIN_S + (FLEET_LEASE_S if careful else 0.0)

    def count(self, *kinds: str) -> int:
        return sum(mishap.kind in kinds for mishap in self.happened)

    def _one(self) -> Victim:
        return self.dice.choice(self.world.sidecars)

    async def _live(self) -> None:
        await asyncio.sleep(self.dice.uniform(*LIVES_S))  # a mishap comes when it comes

    # Sidecars.

    async def _kill(self) -> tuple[str, float, list[Victim]]:
        victim = self._one()
        await self._live()
        return "at random", *await self._killed_now(victim)

    async def _killed_now(self, victim: Victim) -> tuple[float, list[Victim]]:
        since_mono = time.monotonic()
        victim.kill()
        await asyncio.to_thread(victim.start)
        return since_mono, [victim]

    async def _kill_at_step(self) -> tuple[str, float, list[Victim]]:
        victim, step = self._one_at_step()
        victim.meets(step, self.dice.choice((1, 2, 5)) if step in CALL_FAILPOINTS else 1, "KILL")
        if not await _comes_true(lambda: victim.ended, STEP_WITHIN_S):
            victim.is_spared()
            return f"{step}, which was not reached", *await self._killed_now(victim)
        since_mono = time.monotonic()
        await asyncio.to_thread(victim.start)
        return step, since_mono, [victim]

    def _one_at_step(self) -> tuple[Victim, str]:
        """All steps, one after the other, in an order of chance. The first sidecar is the one that is told events."""
        if not self._steps:
            self._steps = self.dice.sample(STEPS, len(STEPS))
        step = self._steps.pop()
        return self.world.sidecars[0] if step in STEPS_OF_A_WEBHOOK else self._one(), step

    async def _pause(self) -> tuple[str, float, list[Victim]]:
        victim, sleeps_s = self._one(), self.dice.uniform(*SLEEPS_S)
        await self._live()
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(sleeps_s)
        victim.send(signal.SIGCONT)
        return f"{sleeps_s:.1f} s", time.monotonic(), [victim]

    async def _pause_at_step(self) -> tuple[str, float, list[Victim]]:
        """Past its lease, with the work half done: the others take it up meanwhile."""
        victim, step = self._one_at_step()
        victim.meets(step, 1, "STOP")
        if not await _comes_true(lambda: victim.stopped, STEP_WITHIN_S):
            victim.is_spared()
            return f"{step}, which was not reached", time.monotonic(), [victim]
        await asyncio.sleep(self.dice.uniform(*SLEEPS_S))
        victim.send(signal.SIGCONT)
        return step, time.monotonic(), [victim]

    async def _restart(self) -> tuple[str, float, list[Victim]]:
        """One after the other, each told to leave and awaited."""
        since_mono = time.monotonic()
        for victim in self.world.sidecars:
            ended = await asyncio.to_thread(victim.stop)
            assert ended == 0, f"a sidecar that was told to leave ended with {ended}:\n{victim.log[-4000:]}"
            since_mono = time.monotonic()
            await asyncio.to_thread(victim.start)
        return f"all {len(self.world.sidecars)}", since_mono, list(self.world.sidecars)

    async def _flood(self) -> tuple[str, float, list[Victim]]:
        """Connections that say nothing, or half a head: whoever pays is served meanwhile."""
        victim, since_mono = self._one(), time.monotonic()
        with ExitStack() as held:
            for number in range(FLOOD):
                connection = held.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", victim.port))
                if number % 20 == 0:
                    await asyncio.sleep(0.005)
                if number % 2:
                    try:
                        connection.send(b"POST /acme/v1/charges HTTP/1.1\r\nHost: x\r\n")
                    except OSError:
                        pass  # not connected yet: then it says nothing
            await self.shop.served_by(victim, SERVED_WITHIN_S)
        return f"{FLOOD} connections", since_mono, [victim]

    async def _edit(self) -> tuple[str, float, list[Victim]]:
        """The edit and its undoing by turns, and between them a file that cannot be read: the last good book stays."""
        for victim in self.world.sidecars:
            text = victim.policy.read_text()
            victim.policy.write_text(text[: len(text) // 2] + "\n: [")
        await asyncio.sleep(0.5)
        old, new = POLICY_EDIT if not self._edited else reversed(POLICY_EDIT)
        for victim in self.world.sidecars:
            assert old in text, f"the policy has no {old!r}"
            victim.policy.write_text(text.replace(old, new))
        self._edited = not self._edited
        return new.strip(), time.monotonic(), list(self.world.sidecars)

    # What they stand on.

    async def _kill_redis(self) -> tuple[str, float, list[Victim]]:
        redis = self.world.redis
        assert redis is not None
        away_s = self.dice.choice((0.0, 0.0, 0.5, 2.0))
        await self._live()
        redis.kill()
        await asyncio.sleep(away_s)
        since_mono = time.monotonic()
        await asyncio.to_thread(self.world.start_redis)
        return f"away for {away_s:g} s", since_mono, list(self.world.sidecars)

    async def _pause_redis(self) -> tuple[str, float, list[Victim]]:
        redis, sleeps_s = self.world.redis, self.dice.uniform(0.2, 3.0)
        assert redis is not None
        await self._live()
        redis.freeze()
        await asyncio.sleep(sleeps_s)
        redis.thaw()
        return f"{sleeps_s:.1f} s", time.monotonic(), list(self.world.sidecars)

    async def _full_disk(self) -> tuple[str, float, list[Victim]]:
        """No file of the store's process may grow any more; sometimes not a byte may be written at all."""
        process_id, room_bytes = self.world.store_process_id, self.dice.choice((0, 4096, 1 << 20))
        _, hard = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, (room_bytes, hard))
        await asyncio.sleep(self.dice.uniform(0.5, 2.0))
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, (hard, hard))
        return f"{room_bytes} bytes a file", time.monotonic(), list(self.world.sidecars)

    async def _slow_disk(self) -> tuple[str, float, list[Victim]]:
        knobs, sync_s = self.world.store_knobs, self.dice.choice((0.02, 0.1, 0.5))
        assert knobs is not None
        knobs.turn(sync_s=sync_s)
        await asyncio.sleep(self.dice.uniform(0.5, 2.0))
        knobs.turn()
        return f"{sync_s:g} s a sync", time.monotonic(), list(self.world.sidecars)

    async def _skew(self) -> tuple[str, float, list[Victim]]:
        """One sidecar's wall clock jumps, and back again."""
        victim, ahead_s = self._one(), self.dice.choice((-60.0, -5.0, -0.5, 0.5, 5.0, 20.0))
        assert victim.knobs is not None
        victim.knobs.turn(ahead_s=ahead_s)
        await asyncio.sleep(self.dice.uniform(0.5, 2.0))
        victim.knobs.turn()
        return f"{ahead_s:+g} s", time.monotonic(), [victim]


def _starved_s(victim: Victim) -> float:
    """How long it was ready to run in its life, and did not: the machine had other things to do."""
    try:
        return int(Path(f"/proc/{victim.process_id}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # it has just been killed, or this kernel does not count
        return 0.0


async def _comes_true(condition: Callable[[], bool], within_s: float) -> bool:
    try:
        await asyncio.to_thread(wait_until, condition, "it", within_s)
    except AssertionError:
        return False
    return True
