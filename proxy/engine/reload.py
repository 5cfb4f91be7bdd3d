"""Reload: the policy book in force, and the next one when an edit is whole. A bad edit changes nothing and says so."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable, PolicyError
from proxy.engine.engine import Engine
from proxy.journal.base import Journal
from proxy.policy.book import PolicyBook, load_content
from proxy.policy.identity import identity_changes
from proxy.policy.watch import PolicyWatch, Rejected, Reloaded
from proxy.telemetry.records import PolicyReloaded
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.policy")
_LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Reload:
    """Polls the policy directory, and at once when `look_now` is set (SIGHUP)."""

    watch: PolicyWatch
    engine: Engine
    journal: Journal
    clock: Clock
    telemetry: Telemetry
    problems: tuple[str, ...] = ()  # of the last edit that was not put in force; empty when all is well
    look_now: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: Reloaded | None = None  # a whole new book whose revisions the journal has not kept yet

    async def keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self.look_now.wait()
            self.look_now.clear()
            await self.look()

    async def look(self) -> None:
        """Look once; put a whole new book in force, after the journal has kept its revisions."""
        found = await asyncio.to_thread(self.watch.poll)
        if isinstance(found, Rejected):
            self._waiting = None
            self._say_rejected(found.problems)
        elif isinstance(found, Reloaded):
            self._waiting = found
        if self._waiting is not None:
            await self._put_in_force(self._waiting)

    async def _put_in_force(self, found: Reloaded) -> None:
        try:
            await keep_revisions(self.journal, found.book)
        except JournalUnavailable:
            if not self.problems:
                self._say_rejected(("the journal does not keep the new revision yet; the edit waits for it",))
            return
        self._waiting = None
        self.engine.book = found.book
        self.problems = ()
        for line in found.changes:
            _log.info("policy change: %s", line)
        self.telemetry.tell(reloaded(found.book))

    def _say_rejected(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        self.telemetry.tell(PolicyReloaded(self.engine.book.revision, ok=False, problems=problems))


def reloaded(book: PolicyBook) -> PolicyReloaded:
    names = {name: tuple(policy.operation for policy in entry.policies) for name, entry in book.providers.items()}
    return PolicyReloaded(book.revision, ok=True, operations=names)


async def keep_revisions(journal: Journal, book: PolicyBook) -> None:
    """What operations will be pinned to must outlive the file."""
    for provider in book.providers.values():
        await journal.keep_revision(provider.name, provider.revision, provider.content)


async def refuse_changed_identity(journal: Journal, book: PolicyBook) -> None:
    """At start: an edit made while we were down must not give known calls a new identity. Raises PolicyError."""
    problems: list[str] = []
    for provider in book.providers.values():
        kept = await journal.latest_revision(provider.name)
        if kept is None or kept.revision == provider.revision or provider.identity_change_accepted:
            continue
        try:
            before = load_content(kept.content.encode(), f"revision {kept.revision}")
        except PolicyError:
            continue  # written by a version that read other files; it cannot be compared
        problems += [f"{provider.source}: {line}" for line in identity_changes(before, provider)]
    if problems:
        raise PolicyError(tuple(problems))
