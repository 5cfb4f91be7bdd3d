"""Review: what a person does with an operation. Every action has an actor and a reason, and is a line of its timeline.

The rule that must hold: an action is taken over exactly the version that its operator saw. Where somebody was faster,
be it another operator, a webhook or the resolver, nothing is written and the operator is told what is now true. None of
them sends anything itself: `inquire` and `cancel` make the operation due, and the resolver does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable, PaywitnessError, StaleWrite
from proxy.core.events import Event
from proxy.core.lifecycle import advance
from proxy.core.money import Money
from proxy.core.operation import Finding, Found, HistoryEntry, Operation
from proxy.core.outside import Source, told_by
from proxy.core.policy import Policy
from proxy.core.proposal import Act, actions_for, resuming, why_not
from proxy.core.reading import Classification, Reading
from proxy.core.redact import redact
from proxy.engine.outside import Outside
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.records import Records
from proxy.journal.base import Change, Journal, Listing
from proxy.policy.book import PolicyBook
from proxy.telemetry.records import EvidenceKind, changes
from proxy.telemetry.telemetry import Telemetry

REASON_LENGTH_MIN, REASON_LENGTH_MAX = 3, 1000
EVIDENCE_LENGTH_MIN = 10  # "checked" is no evidence; what was seen, and where, takes a few words
ACTOR_LENGTH_MAX = 100
REFERENCE_LENGTH_MAX = 255
BULK_MAX = 500
_PAGE = 200
_RULE = "operator"  # the rule's name of what a person found


class UnfitOrder(PaywitnessError):
    """The order itself cannot be followed: something is missing from it, or too long."""


class NotOffered(PaywitnessError):
    """The operation does not allow the action as it stands."""

    def __init__(self, operation: Operation, why: str, offered: tuple[Act, ...]) -> None:
        super().__init__(why)
        self.operation = operation
        self.why = why
        self.offered = offered


class Overtaken(PaywitnessError):
    """Somebody was faster. Nothing was written; `entry` is the change that now stands last."""

    def __init__(self, operation: Operation, entry: HistoryEntry | None) -> None:
        super().__init__(operation.id)
        self.operation = operation
        self.entry = entry


class NoSuchOperation(PaywitnessError):
    """The journal does not hold it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a person wants done, by whom and why."""

    act: Act
    actor: str
    reason: str
    succeeded: bool | None = None  # of `resolve`: how it ended
    evidence: str = ""  # of `resolve`: what was seen, and where
    reference: str | None = None  # of `resolve`: the provider's name for it

    def checked(self) -> Order:
        """The order, fit to be kept: nothing missing, nothing endless, no card number in what a person pasted."""
        texts = {"actor": self.actor, "reason": self.reason, "evidence": self.evidence}
        for name, text in texts.items():
            if not all(character.isprintable() or character in "\n\t" for character in text):
                raise UnfitOrder(f"{name} holds characters that cannot be printed.")
        if not 1 <= len(self.actor.strip()) <= ACTOR_LENGTH_MAX:
            raise UnfitOrder(f"Say who does it: actor has 1 to {ACTOR_LENGTH_MAX} characters.")
        if not REASON_LENGTH_MIN <= len(self.reason.strip()) <= REASON_LENGTH_MAX:
            raise UnfitOrder(
                f"Say why: reason has {REASON_LENGTH_MIN} to {REASON_LENGTH_MAX} characters, kept in the timeline."
            )
        self._check_resolution()
        return replace(
            self,
            actor=redact(self.actor.strip()),
            reason=redact(self.reason.strip()),
            evidence=redact(self.evidence.strip()),
        )

    def _check_resolution(self) -> None:
        if self.act is not Act.RESOLVE:
            if self.succeeded is not None or self.evidence or self.reference is not None:
                raise UnfitOrder(f"as, evidence and reference belong to resolve; {self.act} takes none of them.")
            return
        if self.succeeded is None:
            raise UnfitOrder("Say how it ended: as is succeeded or failed.")
        if not EVIDENCE_LENGTH_MIN <= len(self.evidence.strip()) <= REASON_LENGTH_MAX:
            raise UnfitOrder(
                "Only evidence ends a doubt: evidence says what was seen and where, in "
                f"{EVIDENCE_LENGTH_MIN} to {REASON_LENGTH_MAX} characters, such as 'dashboard shows ch_123 captured'."
            )
        reference = self.reference
        if reference is not None and not (
            1 <= len(reference) <= REFERENCE_LENGTH_MAX and reference.isprintable() and reference == reference.strip()
        ):
            raise UnfitOrder(f"reference has 1 to {REFERENCE_LENGTH_MAX} printable characters, no spaces around it.")


@dataclass(frozen=True, slots=True)
class Refusal:
    operation_id: str
    why: str


@dataclass(slots=True)
class Bulk:
    """What an order for many came to, or would come to."""

    operations: list[Operation] = field(default_factory=list)  # that it is offered for
    done: int = 0
    refused: list[Refusal] = field(default_factory=list)
    more: bool = False  # others fit the filters, beyond the limit

    @property
    def money(self) -> dict[str, Money]:
        """What is at stake, by currency."""
        totals: dict[str, Money] = {}
        for money in (operation.money for operation in self.operations if operation.money is not None):
            earlier = totals.get(money.currency, Money(0, money.currency))
            totals[money.currency] = Money(earlier.minor_units + money.minor_units, money.currency)
        return dict(sorted(totals.items()))


@dataclass(frozen=True, slots=True)
class Review:
    """The hands of an operator."""

    records: Records
    outside: Outside
    journal: Journal
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook | None]  # the one in force
    clock: Clock
    telemetry: Telemetry

    async def policy_of(self, operation: Operation) -> Policy | None:
        """What the operation is pinned to; None where that cannot be read."""
        return await self.pinned.of(operation, self.book() or PolicyBook.of(()))

    async def act(self, operation_id: str, order: Order, version: int | None = None) -> Operation:
        """Follow one order over exactly this version, or over the one that is read now. Raises UnfitOrder, NotOffered,
        Overtaken, NoSuchOperation, JournalUnavailable."""
        order = order.checked()
        operation = await self.journal.read(operation_id)
        if operation is None:
            raise NoSuchOperation(operation_id)
        if version is not None and version != operation.version:
            raise await self._overtaken(operation)
        return await self._follow(operation, order)

    async def act_on_many(
        self, listing: Listing, order: Order, *, dry_run: bool, limit: int, only: Collection[str] | None = None
    ) -> Bulk:
        """Follow an order for all that fit the filters, one after the other. `only`: those that the operator has seen;
        what fits and was not seen is left alone. What cannot be done is told; the rest is done."""
        order = order.checked()
        bulk = await self._selected(listing, order, limit, only)
        if dry_run:
            return bulk
        for operation in bulk.operations:
            try:
                await self._follow(operation, order)
                bulk.done += 1
            except NotOffered as error:
                bulk.refused.append(Refusal(operation.id, error.why))
            except Overtaken as error:
                bulk.refused.append(Refusal(operation.id, f"somebody was faster: {overtaken_by(error)}"))
            except JournalUnavailable:
                bulk.refused.append(Refusal(operation.id, "the journal did not answer: look at it before trying again"))
        return bulk

    async def _selected(self, listing: Listing, order: Order, limit: int, only: Collection[str] | None) -> Bulk:
        bulk, before = Bulk(), listing.before
        seen: set[str] = set()
        while not bulk.more:
            page = await self.journal.listing(replace(listing, limit=_PAGE, before=before))
            for operation in page:
                if only is not None and operation.id not in only:
                    continue
                if len(seen) >= min(limit, BULK_MAX):
                    bulk.more = True
                    break
                seen.add(operation.id)
                why = why_not(order.act, operation, await self.policy_of(operation))
                if why is None:
                    bulk.operations.append(operation)
                else:
                    bulk.refused.append(Refusal(operation.id, why))
            if len(page) < _PAGE or (only is not None and len(seen) >= len(only)):
                break
            before = page[-1].id
        for missing in sorted(set(only or ()) - seen):
            bulk.refused.append(Refusal(missing, "it no longer fits the filters"))
        return bulk

    async def _follow(self, operation: Operation, order: Order) -> Operation:
        policy = await self.policy_of(operation)
        why = why_not(order.act, operation, policy)
        if why is not None:
            raise NotOffered(operation, why, actions_for(operation, policy))
        if order.act is Act.RESOLVE and policy is not None:
            return await self._resolve(operation, policy, order)
        after, events = self._after(operation, order.act)
        change = Change(
            after,
            events,
            source=Source.OPERATOR,
            action=order.act,
            because=f"operator_{order.act.replace('-', '_')}",
            note=order.reason,
            told=told_by(operation, after),
            actor=order.actor,
        )
        recorded = await self.records.take(change)
        if recorded is None:
            raise await self._overtaken(operation)
        for record in changes(operation, recorded, EvidenceKind.OPERATOR, self.clock.now()):
            self.telemetry.tell(record)
        self.outside.watch.tell(recorded.id)
        return recorded

    def _after(self, operation: Operation, act: Act) -> tuple[Operation, tuple[Event, ...]]:
        """The operation as the action leaves it, and the events that the action is."""
        now = self.records.time.now()
        match act:
            case Act.PARK:
                after = advance(operation, Event.OPERATOR_PARKED)
                return after.changed(due_at=None, because=Event.OPERATOR_PARKED), (Event.OPERATOR_PARKED,)
            case Act.RESUME:
                event = resuming(operation)
                after = advance(operation, event)
                return after.changed(due_at=now, looks=0, misses=0, first_miss_at=None, because=event), (event,)
            case Act.CANCEL:
                return operation.changed(cancel_wanted=True, due_at=now), ()
            case Act.CLOSE_INCIDENT:
                return operation.changed(incident=None), ()
            case _:
                return operation.changed(due_at=now), ()

    async def _resolve(self, operation: Operation, policy: Policy, order: Order) -> Operation:
        reading = Reading.SUCCEEDED if order.succeeded else Reading.FAILED
        shown = replace(Classification.of(reading, _RULE), reference=order.reference)
        finding = Finding(Source.OPERATOR, Found.HIT, classification=shown, detail=order.evidence)
        exactly = replace(self.outside, records=replace(self.records, at_one_version=True))
        try:
            applied = await exactly.apply(
                operation, policy, Source.OPERATOR, finding, actor=order.actor, note=order.reason
            )
        except StaleWrite:
            raise await self._overtaken(operation) from None
        if applied.event is None:
            raise NotOffered(operation, "an attempt may still arrive: wait for its end", actions_for(operation, policy))
        return applied.operation

    async def _overtaken(self, operation: Operation) -> Overtaken:
        current = await self.records.current(operation)
        history = await self.journal.history(operation.id)
        last = next((entry for entry in reversed(history) if entry.version <= current.version), None)
        return Overtaken(current, last)


def overtaken_by(error: Overtaken) -> str:
    """What is now true, and who made it so."""
    state = error.operation.state.replace("_", " ")
    entry = error.entry
    if entry is None:
        return f"it is now {state} (version {error.operation.version})"
    who = f"{entry.actor} ({entry.source})" if entry.actor else f"the {entry.source}"
    what = ", ".join(event.replace("_", " ") for event in entry.events) or entry.action or "a note"
    reason = f", saying: {redact(entry.note)}" if entry.note and entry.actor else ""
    return f"it is now {state} (version {error.operation.version}), by {who}: {what}{reason}"
