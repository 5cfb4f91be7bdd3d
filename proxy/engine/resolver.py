"""The resolver: goes on finding out what is unknown after the caller has left. The same brain as a call's, with an
inquiry in place of a send.

    take what is due -> decide -> ask | send again under the same key | cancel | wait | hand to a person -> record

Doubt ends by evidence alone. A schedule that runs out ends in front of a person, loudly; never as a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.admission import Lane
from proxy.core.circuit import Group
from proxy.core.decide import Action, decide
from proxy.core.errors import JournalUnavailable, StaleWrite
from proxy.core.events import Event
from proxy.core.inquiry import Proof, after_miss, next_look_at
from proxy.core.lifecycle import advance
from proxy.core.operation import Finding, Found, Lease, Operation, State
from proxy.core.outside import Source, told_by
from proxy.core.passage import Passage
from proxy.core.policy import Policy
from proxy.core.reading import Classification, Reading
from proxy.engine import steps as step
from proxy.engine.carry import Carry
from proxy.engine.context import context_of
from proxy.engine.errand import RESOLVER, Errand, background_errand
from proxy.engine.inquirer import Inquirer, Look
from proxy.engine.keeping import KeptRequest
from proxy.engine.outside import Outside
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.steps import Steps
from proxy.journal.base import Change, Journal
from proxy.policy.book import PolicyBook
from proxy.tasks import TaskRefused, Tasks
from proxy.telemetry.records import EvidenceKind, ScheduleRanOut, changes
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.resolver")
_LOOK_EVERY_S = 0.25
_HELD_BACK_S = 1.0
_HELD_BACK_MAX_S = 60.0  # an intent's retries are back after a day, an operator's word may be taken back at any time
_ASKED_FOR_MAX_S = 86_400.0  # a provider that asks for a longer wait does not put a doubt off for ever
_LOST = Classification.of(Reading.UNKNOWN_OUTCOME, "in_doubt", lost=True)
_ABSENT = Classification.of(Reading.ABSENT, "absent_confirmed")


@dataclass(slots=True)
class Resolver:
    journal: Journal
    carry: Carry
    outside: Outside
    inquirer: Inquirer
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook]
    clock: Clock
    chance: Chance
    steps: Steps
    telemetry: Telemetry
    tasks: Tasks
    workers_max: int = 16
    per_provider_max: int = 8
    _busy: Counter[str] = field(default_factory=Counter)

    async def keep_resolving(self, first: Callable[[], Awaitable[object]] | None = None) -> None:
        """Look for ever. `first` is done before each look: what a spool kept is known, and must not be asked for."""
        watch = self.outside.watch
        watch.resolving = True
        while True:
            try:
                if first is not None:
                    await first()
                await self.look()
            except JournalUnavailable:
                _log.warning("the journal does not answer; what is due waits")
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the resolving for ever
                _log.error("looking for what is due failed by %s; it is tried again", type(error).__name__)
                await self.clock.sleep(_LOOK_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await watch.due.wait()
            watch.due.clear()

    async def look(self) -> int:
        """Take up what is due, as far as there are hands for it. How many."""
        room = self.workers_max - self._busy.total()
        if room <= 0:
            return 0
        busy = {name for name, count in self._busy.items() if count >= self.per_provider_max}
        full = frozenset(busy | self._not_to_be_asked())
        token = self.chance.token()
        asked_boot = self.carry.leases.asked_at()
        limit = min(room, self.per_provider_max)
        taken = await self.journal.take_due(token, self.carry.leases.lease_s, limit=limit, full=full)
        for operation in taken:
            self.carry.records.time.heard(operation.updated_at)  # when it was taken
            self.carry.leases.hold(operation.id, token, asked_boot, operation)
            self._busy[operation.provider] += 1
            try:
                self.tasks.start(self._see_to(operation, token), "resolve")
            except TaskRefused:  # we are shutting down: its lease runs out, and it is due all the same
                self._busy[operation.provider] -= 1
                self.carry.leases.let_go(operation.id)
        return len(taken)

    def _not_to_be_asked(self) -> set[str]:
        """Providers whose inquiries are held back: what is due waits where it is, and costs nothing."""
        circuits = self.carry.gate.circuits
        return {name for name in self.book().providers if circuits.view(name, Group.INQUIRY).passage is Passage.REFUSE}

    async def _see_to(self, operation: Operation, token: str) -> None:
        try:
            await self.steps.reached(step.DUE_TAKEN)
            await self.resolve(operation, token)
        except (JournalUnavailable, StaleWrite):
            _log.warning("%s: what was found was not taken by the journal; it is looked at again", operation.id)
        finally:
            self._busy[operation.provider] -= 1
            if self._busy[operation.provider] <= 0:
                del self._busy[operation.provider]
            self.carry.leases.let_go(operation.id)
            self.outside.watch.due.set()

    async def resolve(self, operation: Operation, token: str) -> None:
        """One look at one operation that we hold."""
        policy = await self.pinned.of(operation, self.book())
        if policy is None:
            await self._park(operation, token, Finding("policy", Found.FAILED, detail="its policy is not to be had"))
            return
        request = await self.inquirer.kept_request(operation)
        errand = background_errand(operation, policy, request, token, self.clock)
        decision = decide(context_of(operation, policy, errand, self.clock, delay_s=0.0))
        match decision.action:
            case Action.CANCEL:
                await self._cancel(operation, policy, request, token)
            case Action.SCHEDULE_RETRY | Action.RETRY_SAME_OPERATION:
                held_back_s = await self._resend(errand, operation, policy)
                if held_back_s is not None:
                    await self._later(operation, token, held_back_s)
            case Action.SEND_TO_REVIEW:
                await self._park(operation, token, None, because=decision.because)
            case _ if policy.inquiries:
                await self._ask(errand, operation, policy, request)
            case _:
                await self._look_again(operation, policy, token, None)

    async def _ask(self, errand: Errand, operation: Operation, policy: Policy, request: KeptRequest | None) -> None:
        asked_at = self._now(operation)
        look = await self.inquirer.look(operation, policy, request)
        if look.held_back_s is not None:
            await self._later(operation, errand.token, look.held_back_s)
            return
        await self.steps.reached(step.INQUIRY_ANSWERED)
        finding = look.seen.finding
        if finding.found is Found.HIT:
            applied = await self.outside.apply(
                operation, policy, Source.INQUIRY, finding, shown=look.seen.shown, holding=errand.token
            )
            if applied.event is None or (not applied.operation.state.ended and applied.operation.lease is not None):
                await self._look_again(applied.operation, policy, errand.token, look, asked_at)
            return
        if look.nobody_to_ask:
            await self._send_or_look_again(errand, operation, policy, look, asked_at)
            return
        if finding.found is not Found.MISSED or not _may_be_missed(operation):
            await self._look_again(operation, policy, errand.token, look, asked_at)
            return
        proof = Proof.of(look.missed, self.outside.settle_s(policy))
        after, absent = after_miss(operation, proof, asked_at)
        if absent:
            detail = f"{after.misses} misses after all had settled"
            proven = Finding(finding.source, Found.MISSED, None, _ABSENT, detail)
            applied = await self.outside.apply(operation, policy, Source.INQUIRY, proven, holding=errand.token)
            if applied.event is None:
                await self._look_again(operation, policy, errand.token, look, asked_at)
            return
        await self._send_or_look_again(errand, operation, policy, look, asked_at)

    async def _send_or_look_again(
        self, errand: Errand, operation: Operation, policy: Policy, look: Look, asked_at: float
    ) -> None:
        """Asking told nothing: the re-send that is safe, while somebody still wants the order; else the next look."""
        errand.asked_in_vain = True
        decision = decide(context_of(operation, policy, errand, self.clock, delay_s=0.0))
        resends = decision.action is Action.SCHEDULE_RETRY and operation.state is State.UNKNOWN
        held_back_s = await self._resend(errand, operation, policy) if resends else None
        if not resends or held_back_s is not None:  # what may not be sent is asked about
            await self._look_again(operation, policy, errand.token, look, asked_at, held_back_s=held_back_s)

    async def _resend(self, errand: Errand, operation: Operation, policy: Policy) -> float | None:
        """The same bytes under the same key, and under the credential of the first send: another one could be another
        account's, where the key is not known. Should it have expired, the re-send is refused, and we ask. A retry like
        any other: it needs a turn at the provider, and its budget; where it has none, how long that may last."""
        if self.carry.gate.may_have_ended(operation):
            return self.carry.leases.lease_s  # somebody may have been told "failed", which the journal forgot
        permit = await self.carry.gate.turn(policy, Group.WRITE, Lane.RESOLUTION, policy.timeouts.deadline_s)
        if permit.turn is None:
            return permit.retry_after_s
        errand.turn = permit.turn
        try:
            return await self._resend_in_turn(errand, operation, policy)
        finally:  # whatever became of it, also where the journal did not answer
            await self.carry.gate.leave(errand)
            await self.carry.allowances.give_back(errand)

    async def _resend_in_turn(self, errand: Errand, operation: Operation, policy: Policy) -> float | None:
        if not await self.carry.allowances.ask(errand, operation, policy, _LOST):
            return errand.limited.retry_after_s if errand.limited else 0.0
        resent = advance(operation, Event.RESEND_RECORDED).changed(
            lease=Lease(errand.token, 0.0), misses=0, first_miss_at=None, looks=operation.looks + 1
        )
        change = Change(
            resent,
            (Event.RESEND_RECORDED,),
            source=RESOLVER,
            action=Action.SCHEDULE_RETRY,
            because="in_doubt_same_key_later",
            lease_s=self.carry.leases.lease_s,
        )
        taken = await self.carry.records.take(change)
        if taken is None:  # somebody knew more, or was faster
            return None
        await self.steps.reached(step.RESEND_RECORDED)
        try:
            errand.over.set_result(await self.carry.see_through(errand, taken, policy))
            await self.carry.repeats.unheard_or(errand.operation, errand)
        finally:
            if not errand.over.done():
                errand.over.cancel()  # a repeat may wait for it
            self.outside.watch.tell(operation.id)
        return None

    async def _cancel(self, operation: Operation, policy: Policy, request: KeptRequest | None, token: str) -> None:
        """Give it up at the provider. That it was tried is durable before a byte of it leaves: no re-send after it."""
        cancel = policy.cancel
        if cancel is None:
            await self._park(operation, token, Finding("cancel", Found.FAILED, detail="the policy knows no cancel"))
            return
        view = self.carry.gate.circuits.view(policy.provider, Group.WRITE)
        if view.passage is Passage.REFUSE:  # it is sent once: not to a provider that is known to be down
            await self._later(operation, token, view.retry_after_s)
            return
        sent = await self.carry.records.take(
            Change(
                operation.changed(cancel_sent=True, cancel_wanted=False),
                (),
                source=RESOLVER,
                action=Action.CANCEL,
                because="in_doubt_cancel_wanted",
                lease_s=self.carry.leases.lease_s,
            )
        )
        if sent is None:
            return
        seen = await self.inquirer.cancel(sent, policy, cancel, request)
        if seen.finding.found is Found.HIT:
            applied = await self.outside.apply(
                sent, policy, Source.CANCEL, seen.finding, shown=seen.shown, holding=token
            )
            if applied.event is not None:
                return
        await self._look_again(sent, policy, token, Look(seen))

    async def _look_again(
        self,
        operation: Operation,
        policy: Policy,
        token: str,
        look: Look | None,
        asked_at: float | None = None,
        *,
        held_back_s: float | None = None,
    ) -> None:
        """Nothing ended it: note what was found, and when to look next; or that nobody will, by themselves. `asked_at`:
        when it was asked, which is what a miss is worth. `held_back_s`: a re-send was due, and our limits kept it back;
        it is young for a short time only, and must not wait for the schedule's next look."""
        ran_out = False
        sooner_s = self._held_back_s(held_back_s) if held_back_s is not None else None
        before, attempts = operation, operation.attempts

        def step_from(current: Operation) -> Change:
            nonlocal ran_out, before
            before, ran_out = current, False
            now = self._now(current)
            after = current
            events: tuple[Event, ...] = ()
            missed = look is not None and look.seen.finding.found is Found.MISSED and _may_be_missed(current)
            proof = Proof.of(look.missed, self.outside.settle_s(policy)) if missed and look and look.missed else None
            if proof is not None:
                events = (Event.INQUIRY_MISSED,)
            if proof is not None and current.attempts == attempts and asked_at is not None:
                after, _ = after_miss(current, proof, asked_at)
            counted = after.changed(looks=after.looks + (0 if after.misses > current.misses else 1))
            due_at = next_look_at(counted, policy.resolve.schedule_s, now, self.outside.jitter(), proof=proof)
            after, due_at = _moved(after, counted, due_at, now + sooner_s if sooner_s is not None else None)
            if due_at is not None and look is not None and look.retry_after_s is not None:
                due_at = max(due_at, now + min(look.retry_after_s, _ASKED_FOR_MAX_S))
            if current.state.ended or current.state in {State.REQUIRES_REVIEW, State.REQUIRES_ACTION}:
                due_at = None  # a person asked, once; or the customer's time is over: kept, and off the lists
            elif due_at is None and self._cancels(after, policy):
                after, due_at = after.changed(cancel_wanted=True), now
            elif due_at is None:
                ran_out = True
                after, events = advance(after, Event.SCHEDULE_RAN_OUT), (*events, Event.SCHEDULE_RAN_OUT)
            after = _given_back(after, token)
            after = after.changed(due_at=due_at, because="schedule_ran_out" if ran_out else after.because)
            finding = look.seen.finding if look is not None else None
            return Change(
                after, events, source=RESOLVER, because=after.because, finding=finding, told=told_by(current, after)
            )

        recorded = await self.carry.records.write(operation, step_from)
        for record in changes(before, recorded, EvidenceKind.INQUIRY, self.clock.now()):
            self.telemetry.tell(record)
        if ran_out:
            _log.error("%s: the schedule has run out, and nothing told what became of it", operation.id)
            self.telemetry.tell(ScheduleRanOut(recorded))
            self.outside.watch.tell(recorded.id)

    async def _later(self, operation: Operation, token: str, wait_s: float) -> None:
        """Our own limits hold it back: that was no look, and says nothing. When the provider is back, what is due later
        is pulled forward, so there is no hurry to look again before."""
        wait_s = self._held_back_s(wait_s)

        def step_from(current: Operation) -> Change:
            later = _given_back(current, token)
            if not current.state.ended and current.lease != later.lease:
                later = later.changed(due_at=self._now(current) + wait_s)
            return Change(later, (), source=RESOLVER, because=current.because, note="held back by our limits")

        await self.carry.records.write(operation, step_from)

    def _held_back_s(self, wait_s: float) -> float:
        return min(max(wait_s, _HELD_BACK_S), _HELD_BACK_MAX_S) * (1.0 + self.chance.draw())

    def _now(self, operation: Operation) -> float:
        """The journal said that it is due, by its own clock, which never goes back; ours may be behind."""
        return max(self.carry.records.time.now(), operation.updated_at)

    def _cancels(self, operation: Operation, policy: Policy) -> bool:
        automatic = policy.cancel is not None and policy.cancel.when_schedule_ran_out
        return automatic and operation.state is State.UNKNOWN and not operation.cancel_sent

    async def _park(
        self, operation: Operation, token: str, finding: Finding | None, because: str = "in_doubt_nobody_to_ask"
    ) -> None:
        """Only a person or new evidence can go on."""
        before = operation

        def step_from(current: Operation) -> Change:
            nonlocal before
            before = current
            after = current
            events: tuple[Event, ...] = ()
            if Event.PARKED in _PARKS.get(current.state, ()):
                after, events = advance(current, Event.PARKED), (Event.PARKED,)
            after = _given_back(after, token).changed(due_at=None, because=because)
            told = told_by(current, after)
            return Change(after, events, source=RESOLVER, because=because, finding=finding, told=told)

        recorded = await self.carry.records.write(operation, step_from)
        for record in changes(before, recorded, EvidenceKind.INQUIRY, self.clock.now()):
            self.telemetry.tell(record)
        self.outside.watch.tell(recorded.id)


def _moved(
    before: Operation, counted: Operation, due_at: float | None, resend_at: float | None
) -> tuple[Operation, float | None]:
    """The next look: by the schedule, or before that when our limits may let a re-send go. That one is not counted."""
    if resend_at is None or (due_at is not None and due_at <= resend_at):
        return counted, due_at
    return before, resend_at


def _given_back(operation: Operation, token: str) -> Operation:
    """Without the lease, where it is ours and nothing is being sent under it."""
    ours = operation.lease is not None and operation.lease.token == token
    return operation.changed(lease=None) if ours and not operation.attempt_under_way else operation


def _may_be_missed(operation: Operation) -> bool:
    """Whether "not found" says anything: not of what the provider is known to have accepted, in review or not."""
    return operation.state.in_doubt and bool(operation.doubt)


_PARKS = {State.UNKNOWN: (Event.PARKED,), State.PENDING: (Event.PARKED,)}
