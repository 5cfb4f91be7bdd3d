"""The steps of the Redis journal: one script looks up, Python judges (`claiming`, `steps`), another script writes over
exactly what was read, or says what is known now and Python judges again.

The two that every clean call makes need no second trip: a claim of which nothing is known, and a change that says all
by itself, are judged beforehand, and their script writes them where that judgement holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.core.claim import Alias, Claim, ClaimRequest
from proxy.core.errors import JournalUnavailable
from proxy.core.operation import Operation
from proxy.journal import claiming, redis_scripts, steps
from proxy.journal.base import Change
from proxy.journal.redis_connection import Argument
from proxy.journal.redis_lane import Binding, Lane
from proxy.journal.redis_restoring import put_back
from proxy.journal.redis_sheets import (
    LATER,
    Row,
    Sheet,
    alias_text_of,
    blob_of,
    dated,
    row_of,
    sheet_of,
    start_of,
)
from proxy.journal.redis_shelf import LookedUp, Nothing, NotLookedUp, Question

TRIES_MAX = 32  # each one that is lost was won by somebody else, or read one thing more
JUDGED_FOR_S = 1.0  # a judgement that comes to be written later than that is made again, at the time it then is
_SWEPT_AT_ONCE = 100  # operations in one script: about 5 ms of Redis' time
_KNOWN_CREDENTIALS_MAX = 10_000  # pairs remembered, to save writing them again with every success


@dataclass(frozen=True, slots=True)
class _Written:
    """What a judgement comes to: what is to be written, and the answer once it is. Nothing to write: the answer."""

    answer: Any
    sheets: tuple[Sheet, ...] = ()
    start: Sheet | None = None
    alias: Alias | None = None
    acceptance: tuple[Argument, ...] = ("", "", "")

    @property
    def is_nothing(self) -> bool:
        return not self.sheets and self.start is None and self.alias is None


class Writer:
    """Everything that changes an operation."""

    def __init__(self, lane: Lane, clock: steps.WallClock | None) -> None:
        self._lane = lane
        self._clock = clock
        self._accepted: dict[tuple[str, str], steps.Accepted] = {}
        self._latest_at = 0.0  # the last time that an answer told

    def time(self) -> str:
        """For the scripts: empty, and they ask Redis itself."""
        return "" if self._clock is None else repr(self._clock.now())

    def run(
        self, script: redis_scripts.Script, *arguments: Argument, moot: bool = False, binding: Binding | None = None
    ) -> Awaitable[Any]:
        """Run a script that begins by telling the time."""
        return self._lane.run(script, self.time(), *arguments, moot=moot, binding=binding)

    # Claims.

    async def claim(self, request: ClaimRequest) -> Claim:
        question = Question.of_claim(request)
        unknown = claiming.claim_steps(request, LATER, Nothing())
        start: Sheet = []
        if unknown.started is not None:
            start = start_of(unknown.started, request.sealed_request, request.lease_s)
        owns = _owns(request)
        reply = await self.run(redis_scripts.CLAIM, *question.arguments(), *start, moot=True, binding=owns)
        if reply[0] == b"owned" and unknown.started is not None:
            now = self._told(reply[1])
            return Claim(unknown.verdict, dated(unknown.started.operation, now, request.lease_s), now)
        if reply[0] == b"another":
            raise _another()
        claim: Claim = await self._judged(question, lambda found: self._claimed(request, found), owns, reply)
        return claim

    def _claimed(self, request: ClaimRequest, found: LookedUp) -> _Written:
        taken = claiming.claim_steps(request, found.now, found)
        accepted = found.accepts(taken, request.fresh.credential)
        answer = claiming.answer(taken, found.now, found.sealed(taken), accepted=accepted)
        return _Written(
            answer,
            tuple(sheet_of(step) for step in taken.before),
            _start(taken, request),
            taken.alias,
        )

    async def fall_back(self, change: Change, request: ClaimRequest) -> tuple[Operation, Claim]:
        question = Question(request.fresh.key, ids=(change.operation.id, request.fresh.id))

        def judge(found: LookedUp) -> _Written:
            taken = claiming.fall_back_steps(change, request, found.now, found)
            second = taken.second
            accepted = found.accepts(second, request.fresh.credential)
            answer = claiming.answer(second, found.now, found.sealed(second), accepted=accepted)
            if taken.ended is None:
                return _Written((taken.first, answer))
            ended = sheet_of(taken.ended, sealed_response=change.sealed_response)
            return _Written(
                (taken.first, answer),
                (ended,),
                _start(second, request),
                acceptance=self._acceptance(change),
            )

        both: tuple[Operation, Claim] = await self._judged(question, judge, _owns(request))
        self._has_accepted(change)
        return both

    # Changes.

    async def record(self, change: Change) -> Operation:
        if steps.needs_stored_lease(change):
            return await self._record_judged(change)
        step = steps.recorded(change, None, LATER)
        lease_s = change.lease_s or 0.0
        guard = change.operation.guard
        paid = guard.value if guard is not None and steps.needs_paid_before(change) else ""
        reply = await self.run(
            redis_scripts.RECORD,
            paid,
            *self._acceptance(change),
            *sheet_of(step, lease_s=lease_s, sealed_response=change.sealed_response),
            binding=_binding(change),
        )
        if reply[0] == b"stale":
            raise steps.stale(change.operation.id, change.operation.version)
        if reply[0] == b"judge":
            return await self._record_judged(change)
        now = self._told(reply[1])
        self._has_accepted(change)
        return dated(step.operation, now, lease_s)

    async def _record_judged(self, change: Change) -> Operation:
        """A change that needs what the journal holds: the lease, or who else paid the intent."""
        asked = change.operation
        guard = asked.guard.value if asked.guard is not None and steps.needs_paid_before(change) else ""

        def judge(found: LookedUp) -> _Written:
            stored = found.by_id(asked.id)
            if stored is None or stored.version != asked.version:
                raise steps.stale(asked.id, asked.version)
            step = steps.recorded(change, stored.lease, found.now, found.guarded(guard) if guard else ())
            return _Written(
                step.operation,
                (sheet_of(step, sealed_response=change.sealed_response),),
                acceptance=self._acceptance(change),
            )

        recorded: Operation = await self._judged(Question(guard=guard, ids=(asked.id,)), judge, _binding(change))
        self._has_accepted(change)
        return recorded

    async def restore(
        self, operation: Operation, sealed: tuple[bytes | None, bytes | None], lease_s: float | None
    ) -> Operation:
        request, response = sealed
        guard = operation.guard.value if operation.guard is not None else ""

        def judge(found: LookedUp) -> _Written:
            stored, newest = found.by_id(operation.id), found.newest(operation.key)
            under_guard = found.guarded(guard) if guard else ()
            again = put_back(operation, stored, newest, under_guard, lease_s, found.now)
            if again is None:
                return _Written(stored)
            step = again.step
            if stored is not None:
                return _Written(step.operation, (sheet_of(step, sealed_response=response),))
            kept = None if step.erase_request else request
            start = start_of(step, kept, lease_s or 0.0, sealed_response=response)
            return _Written(step.operation, start=[*start, "1" if again.in_front else ""])

        stands: Operation = await self._judged(Question(operation.key, guard, ids=(operation.id,)), judge)
        return stands

    # Leases.

    async def take_lease(self, operation: Operation, token: str, lease_s: float, source: str) -> Operation:
        def judge(found: LookedUp) -> _Written:
            stored = found.by_id(operation.id)
            step = steps.leased(stored, operation, token, lease_s, found.now, source)
            return _Written(stored) if step is None else _Written(step.operation, (sheet_of(step),))

        held: Operation = await self._judged(Question(ids=(operation.id,)), judge)
        return held

    async def take_due(self, token: str, lease_s: float, limit: int, full: frozenset[str]) -> tuple[Operation, ...]:
        taken: list[Operation] = []
        foreign = 0
        for _ in range(TRIES_MAX):
            wanted = min(limit - len(taken), _SWEPT_AT_ONCE)
            if wanted <= 0:
                break
            now, due = await self.run(redis_scripts.DUE, str(wanted + foreign), *sorted(full), moot=True)
            read = [row_of(values) for values in due]
            rows = [row for row in read if not row.foreign]
            passed, foreign = foreign, len(read) - len(rows)
            if not rows and foreign <= passed:  # else there may be others behind them
                break
            held = steps.taken((row.operation for row in rows), token, lease_s, self._told(now))
            taken.extend(await self._each(now, rows, held))
        return tuple(taken)

    async def expire_leases(self) -> tuple[Operation, ...]:
        acted_upon: list[Operation] = []
        passed = 0
        for _ in range(steps.EXPIRED_LEASES_MAX // _SWEPT_AT_ONCE + TRIES_MAX):
            wanted = min(steps.EXPIRED_LEASES_MAX - len(acted_upon), _SWEPT_AT_ONCE)
            if wanted <= 0:
                break
            now, over = await self.run(redis_scripts.EXPIRED, str(passed), str(wanted), moot=True)
            rows = [row_of(values) for values in over]
            if not rows:
                break
            expired = steps.expired((row.operation for row in rows if not row.foreign), self._told(now))
            passed += len(rows) - len(expired)  # what cannot be acted upon does not hold up the rest
            acted_upon.extend(await self._each(now, rows, expired))
        return tuple(acted_upon)

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        held = [(operation_id, token_of[operation_id]) for operation_id in operation_ids if operation_id in token_of]
        renewed: set[str] = set()
        for first in range(0, len(held), _SWEPT_AT_ONCE):
            pairs = [text for pair in held[first : first + _SWEPT_AT_ONCE] for text in pair]
            renewed.update(found.decode() for found in await self.run(redis_scripts.RENEW, repr(lease_s), *pairs))
        return frozenset(renewed)

    # What the steps are made of.

    async def _each(self, now: bytes, rows: list[Row], taken: Iterable[steps.Step]) -> list[Operation]:
        """Write each of the steps that nobody was faster than; their operations."""
        held = {row.operation.id: row.held for row in rows}
        written = {step.operation.id: step.operation for step in taken}
        sheets = [argument for step in taken for argument in sheet_of(step, held=held[step.operation.id])]
        if not sheets:
            return []
        ids = await self.run(redis_scripts.EACH, now, repr(JUDGED_FOR_S), *sheets)
        return [written[found.decode()] for found in ids]

    async def _judged(
        self,
        question: Question,
        judge: Callable[[LookedUp], _Written],
        binding: Binding | None = None,
        reply: Any = None,
    ) -> Any:
        """Look up, judge, write over what was looked up; again where somebody was faster."""
        for _ in range(TRIES_MAX):
            if reply is None:
                reply = await self.run(redis_scripts.LOOK, *question.arguments(), moot=True, binding=binding)
            found = LookedUp(question, reply[1])
            self._told(found.now_text)
            try:
                written = judge(found)
            except NotLookedUp as missing:
                question, reply = missing.ask(question), None
                continue
            if written.is_nothing:
                return written.answer
            reply = await self._commit(found, written, binding)
            if reply[0] == b"written":
                return written.answer
        raise JournalUnavailable(f"others were faster {TRIES_MAX} times: nothing was written")

    async def _commit(self, found: LookedUp, written: _Written, binding: Binding | None) -> Any:
        alias = written.alias
        reply = await self.run(
            redis_scripts.COMMIT,
            *found.question.arguments(),
            found.token,
            found.now_text,
            repr(JUDGED_FOR_S),
            *written.acceptance,
            "" if alias is None else alias.key,
            b"" if alias is None else alias_text_of(alias),
            str(len(written.sheets)),
            *(argument for sheet in written.sheets for argument in sheet),
            *(written.start or ()),
            binding=binding,
        )
        if reply[0] == b"another":
            raise _another()
        return reply

    def _told(self, now: bytes) -> float:
        at = float(now)
        if at > self._latest_at:
            self._latest_at = at
        return at

    def _acceptance(self, change: Change) -> tuple[Argument, ...]:
        """What is to be written of a credential that the provider accepted, where what is written will not do."""
        operation, sealed = change.operation, change.sealed_credential
        if not change.accepted_credential:
            return ("", "", "")
        before = self._accepted.get((operation.account, operation.credential))
        if steps.accepted_again(before, sealed, self._latest_at) is None:
            return ("", "", "")
        return (operation.account, operation.credential, blob_of(sealed))

    def _has_accepted(self, change: Change) -> None:
        if not change.accepted_credential:
            return
        pair = (change.operation.account, change.operation.credential)
        accepted = steps.accepted_again(self._accepted.get(pair), change.sealed_credential, self._latest_at)
        if accepted is not None:
            if len(self._accepted) >= _KNOWN_CREDENTIALS_MAX:
                self._accepted.clear()
            self._accepted[pair] = accepted


def _start(taken: claiming.ClaimSteps, request: ClaimRequest) -> Sheet | None:
    return None if taken.started is None else start_of(taken.started, request.sealed_request, request.lease_s)


def _another() -> JournalUnavailable:
    return JournalUnavailable("the journal holds another operation of the id that would start")


def _owns(request: ClaimRequest) -> Binding:
    """Whether an answer lets the claimer send. Also what it owns already, and comes back for after a lost reply: that
    the replicas have it was not known then."""
    token = request.token.encode()

    def binding(reply: Any) -> bool:
        return reply[0] in {b"owned", b"written"} or (
            reply[0] == b"found" and any(values[3] == token for values in reply[1][2])
        )

    return binding


def _binding(change: Change) -> Binding | None:
    """A change that leaves an attempt under way precedes a send, whatever is answered: one that comes back stale may
    be known again by its writer, whose first reply was lost."""
    return (lambda reply: True) if change.operation.attempt_under_way else None
