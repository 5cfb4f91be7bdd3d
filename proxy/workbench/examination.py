"""How checks are bounded: each for itself, and all together. What did not end in time is not known, and so unfit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from proxy.clock import Clock
from proxy.core.errors import PaywitnessError
from proxy.workbench.finding import Finding, Report, unfit

CHECK_S = 3.0
WHOLE_S = 14.0  # of 15: the rest is for the start of Python and for printing
_SLOW_S = 1.0  # from then on a person wonders

Say = Callable[[str], None]
Result = TypeVar("Result")


class Examination:
    """Collects findings. Used from one event loop, one check after the other: latencies are among them."""

    def __init__(self, clock: Clock, say: Say) -> None:
        self.clock = clock
        self._say = say
        self._findings: list[Finding] = []
        self._until_mono = clock.mono() + WHOLE_S

    @property
    def report(self) -> Report:
        return Report(tuple(self._findings))

    def add(self, *findings: Finding) -> None:
        self._findings.extend(findings)

    async def check(self, subject: str, looking: Callable[[], Awaitable[Iterable[Finding]]]) -> bool:
        """Run one check and keep what it says. False where it did not come to its end."""
        left_s = min(CHECK_S, self._until_mono - self.clock.mono())
        if left_s <= 0:
            self.add(unfit(subject, "not looked at", f"{WHOLE_S:g} s were over", "Run it again when the rest is well"))
            return False
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._say, f"still looking at: {subject} ...")
        try:
            async with asyncio.timeout(left_s):
                self.add(*await looking())
        except TimeoutError:
            why = "what does not answer a look will not answer a payment"
            self.add(unfit(subject, f"no answer in {left_s:.1f} s", why, "See why it is slow, then run this again"))
            return False
        except (PaywitnessError, OSError, ValueError) as error:
            told = str(error) or type(error).__name__
            self.add(unfit(subject, f"the check failed ({told})", "so nobody knows", "Mend that, then run this again"))
            return False
        finally:
            slow.cancel()
        return True

    async def check_aside(self, subject: str, looking: Callable[[], Iterable[Finding]]) -> bool:
        """The same for what blocks: a disk that hangs, a resolver of names."""
        return await self.check(subject, lambda: aside(lambda: list(looking())))


def aside(blocking: Callable[[], Result]) -> Awaitable[Result]:
    """In a thread that nobody waits for at the end: an executor's would hold up the exit for as long as its disk."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return  # given up
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the one or the other is there

    def work() -> None:
        try:
            outcome = blocking(), None
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised where the check is awaited
            outcome = None, error  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            pass  # the loop is closed: it came too late

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return future
