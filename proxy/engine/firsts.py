"""Firsts: of the calls under one key that this process carries at once, one alone asks for a place at the provider.

The others wait until its claim is answered, and then look: what holds the key answers them, and no place is needed for
that. So a hundred callers of one key are one call to the provider's admission, before the claim as after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.reply import Problem, Reply, problem
from proxy.engine.errand import Errand, First
from proxy.engine.repeats import NOT_YET_SENT

Look = Callable[[Errand], Awaitable[Reply | None]]  # None: nothing is known that answers it, and it may send


@dataclass(frozen=True, slots=True)
class Firsts:
    _ahead: dict[str, First] = field(default_factory=dict)  # by key, until its call is answered

    async def answer_behind(self, errand: Errand, look: Look, clock: Clock) -> Reply | None:
        """What whoever is ahead under the key comes to. None: nothing that answers this one, which goes by itself, and
        is ahead of those who come from now on."""
        key, passed = errand.identity.key, None
        while (ahead := self._ahead.get(key)) is not None and ahead is not passed:
            in_time = await ahead.wait(errand.deadline_mono - clock.mono())
            if (reply := await look(errand)) is not None:
                return reply
            if not in_time:  # nothing was found, not even a doubt; "not sent" may yet become a lie by the one ahead
                return problem(Problem.IN_FLIGHT, NOT_YET_SENT, operation=ahead.operation, shape=errand.shape)
            passed = ahead  # that one was refused, or has ended without effect, or what it left is in doubt
        self._ahead[key] = errand.first = First(errand.operation)
        return None

    def leave(self, errand: Errand) -> None:
        """Its call is answered."""
        first, errand.first = errand.first, None
        if first is None:
            return
        first.tell()
        if self._ahead.get(errand.identity.key) is first:
            del self._ahead[errand.identity.key]
