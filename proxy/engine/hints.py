"""Hints: deliveries that prove nothing. Anybody can send one, so nothing of it is kept and nothing of it is believed.
It is a reason to ask the provider about an operation that we know, and the provider's answer is the evidence.

It is asked before the delivery is acknowledged: what could not be asked is not acknowledged, and comes again. A
stranger can make us ask about what he can name, a few at a time and each now and then; no more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.notice import Notice, NoticeRules, object_and_rows
from proxy.core.policy import Provider
from proxy.engine.applying import Applying
from proxy.policy.book import PolicyBook

HINTS_MAX = 10  # of one delivery; Mollie sends one
EVERY_S = 5.0  # one operation is asked about so often; a hint that comes sooner comes again
_AT_A_TIME = 8
_ASK_S = 10.0  # providers wait for about 15 s
_REMEMBERED_MAX = 4096


@dataclass(slots=True)
class Hints:
    applying: Applying
    clock: Clock
    _asked_mono: OrderedDict[str, float] = field(default_factory=OrderedDict)  # by operation
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))

    async def take(
        self, notices: tuple[Notice, ...], account: str, provider: Provider, rules: NoticeRules, book: PolicyBook
    ) -> bool:
        """Ask about what is hinted at; whether that is done with, or should be hinted again. Raises
        JournalUnavailable."""
        done = True
        for notice in notices[:HINTS_MAX]:
            shown, _ = object_and_rows(rules, notice.event)
            match = await self.applying.matching.find(notice, account, provider, book, shown)
            if match.operation is None or match.policy is None or not match.policy.inquiries:
                continue
            if self._turns.locked() or self._too_soon(match.operation.id):
                done = False
                continue
            async with self._turns:
                try:
                    async with asyncio.timeout(_ASK_S):
                        asked = await self.applying.ask(match.operation, match.policy)
                    done = asked is not None and done
                except TimeoutError:
                    done = False
        return done

    def _too_soon(self, operation_id: str) -> bool:
        now_mono = self.clock.mono()
        asked_mono = self._asked_mono.get(operation_id)
        if asked_mono is not None and now_mono - asked_mono < EVERY_S:
            return True
        self._asked_mono[operation_id] = now_mono
        self._asked_mono.move_to_end(operation_id)
        while len(self._asked_mono) > _REMEMBERED_MAX:
            self._asked_mono.popitem(last=False)
        return False
