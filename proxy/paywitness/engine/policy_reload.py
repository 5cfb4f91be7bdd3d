"""PolicyReload: holds the policy book in force, and replaces it after an edit that is valid as a whole. A bad edit
changes nothing and is reported."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.engine.earlier_rules import with_earlier_rules
from paywitness.engine.engine import Engine
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook
from paywitness.policy.watch import BookRejected, BookReloaded, PolicyWatch
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import PolicyReloaded

_log = logging.getLogger("paywitness.policy")
_POLL_EVERY_S = 1.0


@dataclass(slots=True)
class PolicyReload:
    """Reads the policy directory every second, and at once when `poll_now` is set (SIGHUP)."""

    watch: PolicyWatch
    engine: Engine
    journal: Journal
    clock: Clock
    telemetry: Telemetry
    problems: tuple[str, ...] = ()  # of the last edit that was not put in force; empty when all is well
    poll_now: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: BookReloaded | None = None  # a valid new book whose revisions the journal has not stored yet

    async def keep_polling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_EVERY_S):
                    await self.poll_now.wait()
            self.poll_now.clear()
            await self.poll()

    async def poll(self) -> None:
        """Read the files once. Put a valid new book in force after the journal has stored its revisions."""
        found = await asyncio.to_thread(self.watch.poll)
        if isinstance(found, BookRejected):
            self._pending = None
            self._report_rejected(found.problems)
        elif isinstance(found, BookReloaded):
            self._pending = found
        if self._pending is not None:
            await self._apply(self._pending)

    async def _apply(self, found: BookReloaded) -> None:
        try:
            book = await with_earlier_rules(self.journal, found.book)
            book = await self.engine.credential_owners.listed(book)
            await store_revisions(self.journal, book)
        except JournalUnavailable:
            if not self.problems:
                self._report_rejected(("the journal does not keep the new revision yet; the edit waits for it",))
            return
        self._pending = None
        self.engine.policies.book = book
        self.problems = ()
        for line in found.changes:
            _log.info("policy change: %s", line)
        self.telemetry.emit(reload_event(found.book))

    async def begin(self, book: PolicyBook, problems: tuple[str, ...]) -> None:
        """Put the book of the start in force, with the credentials that it lists. With problems: report that the files
        were refused, and that the book that was in force last is in force again."""
        self.engine.policies.book = await self.engine.credential_owners.listed(book)
        self.telemetry.emit(reload_event(book))
        if problems:
            self._report_rejected(problems)

    def _report_rejected(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        self.telemetry.emit(PolicyReloaded(self.engine.book.revision, ok=False, problems=problems))


def reload_event(book: PolicyBook) -> PolicyReloaded:
    names = {
        name: {policy.operation: policy.kind for policy in entry.policies} for name, entry in book.providers.items()
    }
    return PolicyReloaded(book.revision, ok=True, operations=names)
