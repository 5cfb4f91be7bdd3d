"""Applying: what one kept event makes of the operation it is about. Read under the policy pinned to that operation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxy.core.body import Tree
from proxy.core.classify import Asked, ClassifyRules, Row
from proxy.core.events import OUTSIDE_DENIALS
from proxy.core.evidence import Response
from proxy.core.inquiry import Seen, read_object
from proxy.core.notice import NoticeRules, notices_in, object_and_rows
from proxy.core.operation import Found, Operation, State
from proxy.core.outside import Source, event_of
from proxy.core.policy import Policy, Provider
from proxy.engine.delivery import Delivery
from proxy.engine.inquirer import Inquirer
from proxy.engine.matching import Matching
from proxy.engine.outside import Outside
from proxy.journal.base import Change, KeptNotice, NoticeResult
from proxy.policy.book import PolicyBook

_HINT_TRIES_MAX = 5  # a hint that asking in vain does not confirm is let go: the resolver asks by its own schedule


class _NoLongerDueError(Exception):
    """Somebody was faster: there is nothing to pull forward."""


@dataclass(frozen=True, slots=True)
class Applying:
    matching: Matching
    outside: Outside
    inquirer: Inquirer

    async def apply(
        self, kept: KeptNotice, delivery: Delivery, provider: Provider, book: PolicyBook
    ) -> tuple[NoticeResult, Operation | None]:
        """What became of the event, and the operation it was matched to. Raises JournalUnavailable."""
        rules = provider.notices
        named = notices_in(replace(rules, events=None), delivery.event, delivery.headers) if rules is not None else ()
        if rules is None or not named:
            return NoticeResult.WAITING, None  # the policy has changed since, and no longer knows such events
        shown, rows = object_and_rows(rules, delivery.event)
        reader = _Reader(f"webhook {kept.event_id}", rules, rows, delivery, shown)
        match = await self.matching.find(named[0], kept.account, provider, book, shown)
        if match.operation is None:
            if not rules.hint and not reader.tells:
                return NoticeResult.NOTHING_NEW, None  # whichever operation it is about: no row reads it
            if match.hopeless:
                return NoticeResult.UNMATCHED, None
            return NoticeResult.AMBIGUOUS if match.ambiguous else NoticeResult.WAITING, None
        if match.policy is None:
            return NoticeResult.WAITING, match.operation
        if rules.hint:
            return await self._hinted(match.operation, match.policy, kept.tries)
        return await self._conclude(match.operation, match.policy, reader, first_try=kept.tries == 0)

    async def _conclude(
        self, operation: Operation, policy: Policy, reader: _Reader, *, first_try: bool
    ) -> tuple[NoticeResult, Operation]:
        if not policy.contract.webhook_expected:
            return NoticeResult.NOTHING_NEW, operation  # its rows read another operation's object
        seen = reader.read(policy.classify, Asked(operation.money, operation.sent_stamp))
        if seen.finding.found not in {Found.HIT, Found.NOT_OURS}:
            return NoticeResult.NOTHING_NEW, operation
        if operation.state is State.SUCCEEDED and _denies(seen) and policy.inquiries:
            asked = await self.ask(operation, policy)
            return asked or (NoticeResult.WAITING, operation)  # until the provider has answered, the event waits
        applied = await self.outside.apply(operation, policy, Source.WEBHOOK, seen.finding, shown=seen.shown)
        if seen.finding.found is Found.NOT_OURS:
            return NoticeResult.DOES_NOT_FIT, applied.operation
        if applied.postponed:
            if first_try and _denies(seen):
                await self._look_now(applied.operation, policy)
            return NoticeResult.WAITING, applied.operation
        return NoticeResult.APPLIED if applied.event is not None else NoticeResult.NOTHING_NEW, applied.operation

    async def _hinted(self, operation: Operation, policy: Policy, tries: int) -> tuple[NoticeResult, Operation]:
        """The event itself is not believed. Where nobody can be asked, it is worth nothing."""
        asked = await self.ask(operation, policy) if policy.inquiries else (NoticeResult.NOTHING_NEW, operation)
        result = NoticeResult.WAITING if tries + 1 < _HINT_TRIES_MAX else NoticeResult.NOTHING_NEW
        return asked or (result, operation)

    async def ask(self, operation: Operation, policy: Policy) -> tuple[NoticeResult, Operation] | None:
        """The provider's own word, for an event that is not enough: one that only hints, or one that denies what was
        paid, which may be an older one that comes late, of a try before the one that paid. None: it showed nothing."""
        look = await self.inquirer.look(operation, policy, await self.inquirer.kept_request(operation))
        if look.seen.finding.found is not Found.HIT:
            return None
        finding, shown = look.seen.finding, look.seen.shown
        applied = await self.outside.apply(operation, policy, Source.INQUIRY, finding, shown=shown)
        return NoticeResult.APPLIED if applied.event is not None else NoticeResult.NOTHING_NEW, applied.operation

    async def _look_now(self, operation: Operation, policy: Policy) -> None:
        """One of several attempts in doubt was denied, which does not end the doubt. Asking may, so ask now."""
        records = self.outside.records

        def step_from(current: Operation) -> Change:
            now = records.time.now()
            waits = current.due_at is not None and current.due_at > now
            if not waits or current.attempt_under_way or len(current.doubt) < 2 or current.state.ended:
                raise _NoLongerDueError
            note = "a webhook denied one of several attempts: asked at once"
            return Change(current.changed(due_at=now), (), source=Source.WEBHOOK, because=current.because, note=note)

        if policy.inquiries:
            try:
                await records.write(operation, step_from)
            except _NoLongerDueError:
                return


def _denies(seen: Seen) -> bool:
    reading = seen.finding.classification.reading if seen.finding.classification is not None else None
    return reading is not None and event_of(Source.WEBHOOK, reading) in OUTSIDE_DENIALS


@dataclass(frozen=True, slots=True)
class _Reader:
    """One event and the rows that read it, ready for the rules of whichever operation it is about."""

    source: str
    rules: NoticeRules
    rows: tuple[Row, ...]
    delivery: Delivery
    shown: Tree

    @property
    def tells(self) -> bool:
        """Whether any row reads it as something that could move an operation."""
        return self.read(ClassifyRules(), Asked()).finding.found is Found.HIT

    def read(self, rules: ClassifyRules, asked: Asked) -> Seen:
        # Rows may test headers and the status code: what an event came with, and that it came.
        response = Response(200, b"", self.delivery.headers, b"")
        event, event_rows = self.delivery.event, self.rules.read
        return read_object(
            self.source, self.rows, rules, asked, response, self.shown, event=event, event_rows=event_rows
        )
