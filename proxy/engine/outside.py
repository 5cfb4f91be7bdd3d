"""Evidence from outside our own attempts, written down: by an inquiry, an event, a cancel or a person.

One brain for all of them: conclude, decide when to look again, record over the version that was read. Whoever brings
the evidence needs no lease: a lease is the right to send, not the right to know.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.body import Tree, encode_answer
from proxy.core.classify import evaluate
from proxy.core.contract import Kind
from proxy.core.errors import BodyError
from proxy.core.events import PENDINGS, REVERSALS, SUCCESSES, Event
from proxy.core.evidence import Response
from proxy.core.guard import is_paid, is_unheard
from proxy.core.inquiry import is_settled
from proxy.core.lifecycle import advance
from proxy.core.operation import Finding, Found, GuardKind, Operation, State
from proxy.core.outside import Source, conclude_outside, is_postponed, told_by
from proxy.core.policy import Policy
from proxy.core.reading import Reading
from proxy.engine.context import released_end
from proxy.engine.keeping import seal_response
from proxy.engine.records import Records
from proxy.engine.watch import Watch
from proxy.journal.base import Change, Listing
from proxy.telemetry.records import EvidenceKind, changes
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

# What an inquiry found was paid or accepted was, whichever attempt it was by.
_OF_ANY_ATTEMPT = frozenset({*SUCCESSES, *PENDINGS, *REVERSALS})
_JITTER = 0.2  # proportional: a thousand doubts of one outage are not looked at in one second


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a piece of evidence. Neither an event nor postponed: it said nothing new."""

    operation: Operation
    event: Event | None = None
    postponed: bool = False


class _MayBeLaterError(Exception):
    """What an inquiry found may be of a later generation of the key."""


class _NothingNewError(Exception):
    def __init__(self, operation: Operation) -> None:
        super().__init__(operation.id)
        self.operation = operation


@dataclass(frozen=True, slots=True)
class Outside:
    records: Records
    vault: Vault
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    watch: Watch

    async def apply(
        self,
        operation: Operation,
        policy: Policy,
        source: Source,
        finding: Finding,
        *,
        shown: Tree = None,
        holding: str | None = None,
        actor: str = "",
        note: str = "",
    ) -> Applied:
        """Write down what was found. `shown` is the provider's own object; `holding` the token of the lease that is
        given back with it. Raises JournalUnavailable; evidence that changes nothing writes nothing."""
        event: Event | None = None
        before = asked = operation
        alone: bool | None = None  # whether no later generation of its key is found by the same stamp

        def step_from(current: Operation) -> Change:
            nonlocal event, before
            before = current
            after, event = self._concluded(current, policy, source, finding)
            if source is Source.INQUIRY:
                _check_inquiry(current, asked, event, alone=alone)
            after = self._standing(current, after, policy, holding)
            if event is None and after.incident == current.incident and finding.found is not Found.NOT_OURS:
                raise _NothingNewError(current)
            if _says_nothing_new(current, after) and finding.found is Found.HIT:
                raise _NothingNewError(current)
            if event is not None and after.state is not current.state:
                after = after.changed(because=event.value)  # the evidence is the reason
            return Change(
                after,
                (event,) if event is not None else (),
                source=source,
                because=after.because,
                note=note,
                sealed_response=self._answer(current, after, policy, shown),
                erase_request=after.state.ended,
                finding=finding,
                told=told_by(current, after),
                actor=actor,
            )

        try:
            try:
                recorded = await self.records.write(operation, step_from)
            except _MayBeLaterError:
                alone = not await self._went_on(before)
                recorded = await self.records.write(operation, step_from)
        except _NothingNewError as nothing:
            classification = finding.classification
            waits = classification is not None and is_postponed(
                nothing.operation, source, classification.reading, policy.contract
            )
            return Applied(nothing.operation, None, waits)
        for record in changes(before, recorded, EvidenceKind(source), self.clock.now()):
            self.telemetry.tell(record)
        self.watch.tell(recorded.id)
        await self.free_what_was_voided(before, recorded)
        return Applied(recorded, event)

    async def _went_on(self, operation: Operation) -> bool:
        """Whether its key has started again under the same stamp. A later one that has not failed asks for itself."""
        listing = Listing(provider=operation.provider, stamp=operation.stamp, limit=10)
        found = await self.records.journal.listing(listing)
        later = [one for one in found if one.key == operation.key and one.generation > operation.generation]
        return any(one.state is not State.FAILED for one in later)

    async def free_what_was_voided(self, before: Operation, after: Operation) -> None:
        """A void that succeeded gave back what its target had paid: that intent may be paid again. Should we be killed
        in between, it stays blocked until an event or a person says so."""
        guard = after.guard
        first_time = after.state is State.SUCCEEDED and not before.state.ended
        if after.kind is not Kind.VOID or not first_time or guard is None or guard.kind is not GuardKind.TARGET:
            return
        listing = Listing(provider=after.provider, reference=guard.shown, limit=10)
        found = await self.records.journal.listing(listing)
        paid = [one for one in found if one.account == after.account and one.kind.pays and is_paid(one)]
        if len(paid) != 1:
            return

        def step_from(current: Operation) -> Change:
            if not is_paid(current):
                raise _NothingNewError(current)
            given_back = advance(current, Event.VOID_SUCCEEDED).changed(reading=Reading.REVERSED)
            note = f"voided by {after.id}"
            told = told_by(current, given_back)
            return Change(given_back, (Event.VOID_SUCCEEDED,), note=note, sealed_response=b"", told=told)

        with suppress(_NothingNewError):
            await self.records.write(paid[0], step_from)

    def _concluded(
        self, current: Operation, policy: Policy, source: Source, finding: Finding
    ) -> tuple[Operation, Event | None]:
        if finding.classification is None:
            return current, None
        time = self.records.time
        settled = time.known and is_settled(current, self.settle_s(policy), time.now())
        return conclude_outside(current, source, finding.classification, policy.contract, settled=settled)

    def _standing(self, before: Operation, after: Operation, policy: Policy, holding: str | None) -> Operation:
        """What the new state brings with it: when to look again, whether the key is free, whether anybody heard."""
        now = self.records.time.now()
        if after.state.ended:
            if not before.state.ended:
                after = after.changed(released=released_end(after))
            after = after.changed(due_at=None)
        elif after.state is not before.state:
            after = after.changed(due_at=now + self.first_look_s(after, policy), looks=0, misses=0, first_miss_at=None)
        if holding is not None and after.lease is not None and after.lease.token == holding:
            after = after.changed(lease=None)
        return after.changed(unheard=is_unheard(before, after, reached=self.watch.is_awaited(after.id)))

    def first_look_s(self, operation: Operation, policy: Policy) -> float:
        """How long after coming into its state an operation is looked at."""
        if operation.state is State.REQUIRES_ACTION:
            return policy.resolve.action_expires_s
        return policy.resolve.schedule_s[0] * self.jitter()

    def jitter(self) -> float:
        return 1.0 - _JITTER + 2 * _JITTER * self.chance.draw()

    def settle_s(self, policy: Policy) -> float:
        """From when on nothing can still arrive: never sooner than a lease and the kernel's own patience are over."""
        return max(policy.resolve.settle_s, self.records.leases.lease_s + policy.timeouts.first_byte_s)

    def _answer(self, before: Operation, after: Operation, policy: Policy, shown: Tree) -> bytes | None:
        """How a repeat will be answered: with the provider's own object, in the shape that the policy gives it. What
        was kept of an earlier state speaks for it no longer."""
        given_back = after.reading is Reading.REVERSED and before.reading is not Reading.REVERSED
        if after.state is before.state and not given_back:
            return None
        if after.state is State.FAILED or given_back:
            return b""  # the object of a failed or reversed payment under a 200 would pass for a paid one
        made = evaluate(policy.as_response, shown) if policy.as_response is not None and shown is not None else None
        if made is None:
            return b""
        try:
            body, media_type = encode_answer(made, policy.encoding)
        except BodyError:
            return b""
        headers = ((b"Content-Type", media_type.encode()),)
        return seal_response(self.vault, Response(200, b"OK", headers, body), after.id)


def _says_nothing_new(before: Operation, after: Operation) -> bool:
    return (
        after.state is before.state
        and after.doubt == before.doubt
        and after.reading is before.reading
        and after.reference == before.reference
        and after.incident == before.incident
    )


def _check_inquiry(current: Operation, asked: Operation, event: Event | None, *, alone: bool | None) -> None:
    """Whether an inquiry that was made for `asked` can say this of the operation as it now stands."""
    if event not in _OF_ANY_ATTEMPT:
        if current.attempts != asked.attempts:
            raise _NothingNewError(current)  # it was asked before the last attempt was sent, and cannot deny that
    elif current.released and alone is None:
        raise _MayBeLaterError
    elif current.released and not alone:
        raise _NothingNewError(current)  # a later generation's payment
