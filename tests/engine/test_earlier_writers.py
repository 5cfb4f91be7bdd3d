"""The earlier writers against `core.consequences`, over every operation and step that can come to be.

Each writer still spells out what a new state implies. Here each of them runs over all reachable operations, under every
lease that can be there, and `consequences` is called as the writer will call it. Where both differ, the difference is
named in `EXPLAINED`: it is a gap of the earlier writer that the one rule closes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paywitness.core.announcements import announcement_of
from paywitness.core.claim import drop_lease
from paywitness.core.consequences import Consequences, WriteContext, consequences
from paywitness.core.contract import ErrorsUnderKey
from paywitness.core.decide import END_DECISIONS, Action, Decision
from paywitness.core.errors import IllegalTransition
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import AttemptSummary, Lease, Operation, State
from paywitness.core.operator_actions import OperatorAction, resume_event
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.engine.calls.attempt_recorder import AttemptRecorder
from paywitness.engine.calls.pipeline import CallPipeline
from paywitness.engine.calls.shadow import _remembered_as
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.operator_commands import CommandExecutor
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.late_evidence import LateEvidence, LateEvidenceRecorder
from paywitness.engine.resolution.resolver import Resolver
from paywitness.journal.base import OperationChange
from paywitness.journal.transitions import lease_end_write
from paywitness.tools.policy_test.case_evaluation import _after_decision
from tests.core.reachable_operations import CONTRACTS, steps_of_the_world, what_moves_it
from tests.core.samples import policy, read

NOW = 2000.0
LATER = NOW + 7.0
OURS, OTHERS = "ours", "others"
EVERYTHING = tuple(one.name for one in fields(Operation))
WITH_EFFECT = {State.SUCCEEDED, State.PENDING}
CHECKED = {State.UNKNOWN, State.PENDING, State.REQUIRES_ACTION}
SHOWN = tuple(
    read(result_class)
    for result_class in (
        ResultClass.SUCCEEDED,
        ResultClass.PENDING,
        ResultClass.REQUIRES_ACTION,
        ResultClass.ISSUER_HARD_DECLINE,
        ResultClass.CANCELLED,
        ResultClass.REVERSED,
        ResultClass.ABSENT,
    )
)
# Why an earlier writer wrote another value. By writer, then by the field.
EXPLAINED = {
    ("recorder", "due_at"): "what an attempt's end parked kept the due time it had in doubt, and was checked once more",
    ("recorder", "undelivered"): "marked in the same write, not by a second one; not under another holder's attempt",
    ("recorder", "checks_done"): "what was in doubt and is accepted now is checked by a schedule of its own",
    ("recorder", "misses"): "misses of the doubt say nothing of what was accepted since",
    ("recorder", "first_miss_at"): "as misses",
    ("recorder", "key_released"): "decided by the first end alone",
    ("late", "due_at"): "what was accepted under an attempt, before it was ever due, was never checked",
    ("late", "no_bytes_after_at"): "kept while something is in doubt, which is all that asks for it",
    ("external", "undelivered"): "what is in review keeps it",
    ("abandoned", "due_at"): "an end is never due; an action keeps the time that its customer has",
    ("abandoned", "key_released"): "a decline that overtook the attempt was released, though its key is spent",
    ("abandoned", "undelivered"): "an event had overtaken the attempt, and nobody will reply",
    ("lease", "no_bytes_after_at"): "kept while something is in doubt, which is all that asks for it",
}


@cache
def reachable(errors: ErrorsUnderKey) -> tuple[Operation, ...]:
    """Every operation that can come to be, as its leases and its checks can stand."""
    found: dict[tuple[object, ...], Operation] = {}
    for step in steps_of_the_world(errors):
        for one in (step.before, step.after):
            key = (*what_moves_it(one), one.result_class, one.effect, one.incident)
            if one.attempts <= 3 and one.state is not State.PREPARED:
                found.setdefault(key, one)
    return tuple(varied for one in found.values() for varied in _varied(one))


def _varied(plain: Operation) -> Iterator[Operation]:
    tokens = [OURS, OTHERS]
    if plain.state not in {State.SENDING, State.BACKOFF} and not (plain.attempt_under_way and not plain.state.ended):
        tokens.append("")
    due: tuple[float | None, ...] = (None,)
    checked_once = plain.state in {State.REQUIRES_ACTION, State.REQUIRES_REVIEW}
    if checked_once or (plain.state in CHECKED and plain.attempt_under_way):
        due = (None, NOW - 5.0)
    elif plain.state in CHECKED:
        due = (NOW - 5.0, NOW + 5.0)  # what nobody sends is always due
    for token in tokens:
        for due_at in due:
            for undelivered in (False, True) if plain.state in WITH_EFFECT else (False,):
                if undelivered and token and plain.attempt_under_way:
                    continue  # while its reply is under way nobody has said so
                counters = {"checks_done": 2} if plain.state in CHECKED else {}
                yield plain.changed(
                    lease=Lease(token, NOW + 1.0) if token else None,
                    due_at=due_at,
                    undelivered=undelivered,
                    key_released=plain.state is State.FAILED
                    and plain.effect is Effect.NONE
                    and plain.result_class in {ResultClass.RATE_LIMITED, ResultClass.NETWORK_CONNECT_FAILURE},
                    misses=1 if plain.state is State.UNKNOWN else 0,
                    first_miss_at=NOW - 9.0 if plain.state is State.UNKNOWN else None,
                    no_bytes_after_at=NOW - 50.0 if plain.doubt else None,
                    **counters,
                )


def differences(earlier: Operation, now: Operation) -> set[str]:
    return {name for name in EVERYTHING if getattr(earlier, name) != getattr(now, name)}


def _brief(one: Operation) -> str:
    held = one.lease.token if one.lease is not None else None
    under_way = "under way" if one.attempt_under_way else ""
    read_as = f"{one.result_class}/{one.effect}"
    return f"[{one.state} {one.attempts} {set(one.doubt)} {under_way} {held} {one.due_at} {read_as} {one.undelivered}]"


class Comparison:
    """What was compared, and where the earlier writer differed."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.compared = 0
        self.found: Counter[str] = Counter()
        self.unexplained: list[str] = []

    def compare(self, change: OperationChange, now: Consequences, before: Operation) -> None:
        self.compared += 1
        different = differences(change.operation, now.operation)
        for name in different:
            self.found[name] += 1
            if (self.writer, name) not in EXPLAINED:
                values = getattr(change.operation, name), getattr(now.operation, name)
                self.unexplained.append(f"{name}: {values} {_brief(before)} -> {_brief(now.operation)}")
        if change.announcement != now.announcement:
            self.unexplained.append(f"announcement {_brief(before)}")
        if now.erase_request != change.operation.state.ended:
            self.unexplained.append("erase_request")
        if (change.lease_s is not None) != now.renews_lease:
            self.unexplained.append(f"renews_lease {_brief(before)} -> {_brief(now.operation)}")

    def check(self, at_least: int) -> None:
        if self.unexplained:
            pytest.fail(f"{len(self.unexplained)} unexplained: " + "\n".join(self.unexplained[:8]), pytrace=False)
        assert self.compared >= at_least
        expected = {name for writer, name in EXPLAINED if writer == self.writer}
        assert set(self.found) == expected  # an explanation that explains nothing is wrong


def change_of(operation: Operation, before: Operation) -> OperationChange:
    return OperationChange(operation, (), announcement=announcement_of(before, operation))


def fake(**values: Any) -> Any:
    return SimpleNamespace(**values)


class Captured:
    """A journal writer that keeps the change it is given."""

    def __init__(self) -> None:
        self.change: OperationChange | None = None
        self.journal_clock = fake(now=lambda: NOW, known=True)
        self.leases = fake(lease_s=30.0)

    async def write_with_retry(self, operation: Operation, change_from: Callable[[Operation], Any]) -> Operation:
        return await self.try_write(change_from(operation))

    async def try_write(self, change: OperationChange) -> Operation:
        self.change = change
        return change.operation

    async def record(self, change: OperationChange) -> Operation:
        return await self.try_write(change)

    def credential_to_store(self, context: object) -> None:
        return None


def run(steps: Any) -> None:
    with pytest.MonkeyPatch.context():
        asyncio.run(steps)


# --- an attempt's end

RULES = policy().resolve
DECISIONS = {
    State.BACKOFF: (Action.RETRY_SAME_OPERATION, Action.MARK_TERMINAL_FAILURE, Action.FALLBACK_NEW_ATTEMPT),
    State.UNKNOWN: (
        Action.RETRY_SAME_OPERATION,
        Action.STATUS_INQUIRY,
        Action.SCHEDULE_RETRY,
        Action.WAIT_FOR_WEBHOOK,
        Action.SEND_TO_REVIEW,
        Action.CANCEL,
    ),
    State.PENDING: (Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SEND_TO_REVIEW),
    State.REQUIRES_ACTION: (Action.ASK_CUSTOMER_ACTION,),
    State.REQUIRES_REVIEW: (Action.STOP,),
}
CHECKS = {Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SCHEDULE_RETRY, Action.ASK_CUSTOMER_ACTION}
SENDS = {Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT}


@pytest.mark.parametrize("gone", [False, True])
def test_the_end_of_an_attempt(gone: bool) -> None:
    recorder = AttemptRecorder(
        journal_writer=cast(Any, Captured()),
        leases=fake(lease_s=30.0),
        retry_budget=fake(),
        vault=fake(),
        clock=fake(),
        randomness=fake(),
        telemetry=fake(),
        waiters=fake(has_waiter=lambda operation_id: False, resolver_running=False),
        late_evidence=fake(),
        spool=fake(),
    )
    context = fake(token=OURS, caller_gone=gone, limit_info=None)
    found = Comparison("recorder")
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            for step in steps_after(before, errors):
                for earlier, after, action in _earlier_ends(recorder, before, step, context):
                    sends = OURS if action in SENDS else None
                    check_at = earlier.due_at if action in CHECKS else None
                    now = consequences(
                        before,
                        after.changed(because=earlier.because),
                        WriteContext(
                            NOW,
                            sends_under=sends,
                            gives_back=OURS,
                            check_at=check_at,
                            no_bytes_after_at=NOW + 3.0,
                            reached=not gone,
                        ),
                    )
                    held = earlier.lease is not None and earlier.lease.token == OURS
                    change = OperationChange(
                        earlier, (), lease_s=30.0 if held else None, announcement=announcement_of(before, earlier)
                    )
                    found.compare(change, now, before)
    if not gone:
        found.found.setdefault("undelivered", 1)  # only of callers that have gone
    found.check(at_least=10_000)


def steps_after(before: Operation, errors: ErrorsUnderKey) -> Iterator[tuple[int, Classification, Any]]:
    from tests.core.reachable_operations import ANSWERS

    for attempt in range(1, before.attempts + 1):
        if attempt == before.attempts and before.attempt_under_way and _token(before) == OTHERS:
            continue  # the attempt under way is its holder's
        if before.attempt_under_way and attempt < before.attempts and _token(before) == OURS:
            continue  # a later attempt of ours: the earlier one was ours as well, and has ended
        for answer in ANSWERS:
            yield attempt, answer, CONTRACTS[errors]


def _token(operation: Operation) -> str | None:
    return operation.lease.token if operation.lease is not None else None


def _earlier_ends(
    recorder: AttemptRecorder, before: Operation, step: tuple[int, Classification, Any], context: Any
) -> Iterator[tuple[Operation, Operation, Action]]:
    """As the earlier writer leaves it; as the events leave it; and the decision."""
    from paywitness.core.lifecycle import conclusion_changes

    attempt, answer, contract = step
    changed, _ = conclusion_changes(before, attempt, answer, contract)
    after = before.changed(**changed)
    if (end := END_DECISIONS.get(after.state)) is not None:
        yield recorder._ended_operation(before, dict(changed), end, context), after, end.action
        return
    quiet = after
    if after.doubt:
        quiet = after.changed(no_bytes_after_at=max(before.no_bytes_after_at or 0.0, NOW + 3.0))
    actions = (Action.STOP,) if after.attempt_under_way else DECISIONS[after.state]
    for action in actions:
        if action is Action.RETRY_SAME_OPERATION and _token(before) == OTHERS:
            continue  # who holds it sends
        earlier, events = recorder._apply_decision(
            quiet, Decision(action, "test", 0.0, effect_may_exist=True), policy(), context
        )
        following = after
        for event in events:
            following = advance(following, event)
        yield earlier, following, action


# --- late, external, lost and given up


def test_late_evidence() -> None:
    external = fake(waiters=fake(has_waiter=lambda operation_id: False), first_check_delay_s=lambda *given: 7.0)
    recorder = LateEvidenceRecorder(cast(Any, Captured()), external, fake(), fake())
    found = Comparison("late")
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            for attempt, answer, contract in steps_after(before, errors):
                summary = cast(AttemptSummary, fake(number=attempt, classification=answer))
                evidence = LateEvidence(summary, "harvest", "late", no_bytes_after_at=NOW + 3.0)
                earlier, events = recorder._conclude(before, policy(contract=contract), evidence)
                after, _ = conclude(before, attempt, answer, contract)
                if Event.GIVEN_UP in events:
                    after = advance(after, Event.GIVEN_UP)
                now = consequences(
                    before,
                    after.changed(because="late"),
                    WriteContext(
                        NOW,
                        first_check_at=lambda operation: LATER,
                        check_doubt_now=True,
                        no_bytes_after_at=NOW + 3.0,
                        reached=False,
                    ),
                )
                found.compare(change_of(earlier, before), now, before)
    found.check(at_least=10_000)


def _at(time: float, operation: Operation) -> float:
    return time


@pytest.mark.parametrize("holding", [None, OURS])
def test_external_evidence(holding: str | None) -> None:
    waiters = fake(has_waiter=lambda operation_id: False)
    recorder = ExternalEvidenceRecorder(
        cast(Any, Captured()), fake(), fake(), fake(draw=lambda: 0.5), fake(), cast(Any, waiters)
    )
    rules = policy().resolve
    found = Comparison("external")
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            if holding is not None and (_token(before) != OURS or before.attempt_under_way):
                continue
            for source in EvidenceSource:
                for shown in SHOWN:
                    for settled in (False, True):
                        after, event = conclude_external(before, source, shown, CONTRACTS[errors], settled=settled)
                        if event is None:
                            continue
                        earlier = recorder._with_consequences(before, after, policy(), holding)
                        waits_s = (
                            rules.action_expires_s if after.state is State.REQUIRES_ACTION else rules.schedule_s[0]
                        )
                        now = consequences(
                            before,
                            after,
                            WriteContext(
                                NOW,
                                gives_back=holding,
                                first_check_at=partial(_at, NOW + waits_s),
                                reached=False,
                            ),
                        )
                        found.compare(change_of(earlier, before), now, before)
    found.found.setdefault("undelivered", 1)  # in review it can be set, where it was parked as accepted: see below
    found.check(at_least=1_000)


def test_a_lease_that_expired() -> None:
    found = Comparison("lease")
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            if before.lease is None:
                continue
            write = lease_end_write(before, drop_lease(before), NOW)
            lost = before.state in {State.PREPARED, State.BACKOFF} or before.attempt_under_way
            after = advance(before, Event.LEASE_EXPIRED) if lost else before
            now = consequences(
                before,
                after,
                WriteContext(NOW, gives_back=_token(before), check_doubt_now=True, no_bytes_after_at=NOW, reached=False)
                if before.attempt_under_way
                else WriteContext(NOW, gives_back=_token(before), check_doubt_now=True, reached=False),
            )
            earlier = write.operation.changed(
                version=before.version, updated_at=before.updated_at, ended_at=before.ended_at
            )
            change = OperationChange(earlier, (), announcement=write.entry.announcement)
            found.compare(change, now, before)
    found.check(at_least=300)


def test_a_call_that_is_abandoned() -> None:
    async def all_of_them() -> None:
        found = Comparison("abandoned")
        for errors in ErrorsUnderKey:
            for before in reachable(errors):
                for byte_started in (False, True):
                    await one(found, before, errors, byte_started=byte_started)
        found.check(at_least=100)

    async def one(found: Comparison, before: Operation, errors: ErrorsUnderKey, *, byte_started: bool) -> None:
        journal = Captured()
        clock = fake(mono=lambda: 0.0)
        leases = fake(request_boot=lambda: 0.0, hold=lambda *given: None)
        telemetry = fake(emit=lambda event: None)
        time = fake(now=lambda: NOW, update=lambda at: None)
        writer = JournalWriter(
            cast(Any, journal), leases, cast(Any, None), cast(Any, clock), cast(Any, telemetry), cast(Any, time)
        )
        context = fake(token=OURS, byte_started=byte_started, policy=policy(contract=CONTRACTS[errors]))
        await writer.record_abandoned(context, before)
        if journal.change is None:
            return
        change = journal.change
        after = _abandoned(before, errors, byte_started=byte_started)
        now = consequences(
            before,
            after,
            WriteContext(NOW, gives_back=OURS, check_doubt_now=True, no_bytes_after_at=NOW, reached=False),
        )
        found.compare(change, now, before)

    run(all_of_them())


def _abandoned(before: Operation, errors: ErrorsUnderKey, *, byte_started: bool) -> Operation:
    lost = Classification.of(ResultClass.UNKNOWN_OUTCOME, "abandoned", lost=True)
    if before.state is State.BACKOFF:
        return advance(before, Event.GIVEN_UP)
    if byte_started or before.doubt:
        return conclude(before, before.attempts, lost, CONTRACTS[errors])[0]
    waiting = advance(before, Event.NO_EFFECT_SEEN, before.attempts)
    waiting = waiting.changed(result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
    return advance(waiting, Event.GIVEN_UP)


# --- the call's own steps, the resolver and the operator


def test_what_is_given_up_between_tries_and_tried_again() -> None:
    async def all_of_them() -> None:
        found = Comparison("pipeline")
        for errors in ErrorsUnderKey:
            for before in reachable(errors):
                if before.state is not State.BACKOFF or _token(before) != OURS:
                    continue
                journal = Captured()
                await CallPipeline.give_up(fake(journal_writer=journal), before, "test")
                assert journal.change is not None
                after = advance(before, Event.GIVEN_UP).changed(because="test")
                found.compare(journal.change, consequences(before, after, WriteContext(NOW, gives_back=OURS)), before)
        found.check(at_least=3)

    run(all_of_them())


def test_the_resolver() -> None:
    async def all_of_them() -> None:
        found = Comparison("resolver")
        waiters = fake(notify=lambda operation_id: None)
        for errors in ErrorsUnderKey:
            for before in reachable(errors):
                if before.attempt_under_way or before.state in {State.SENDING, State.BACKOFF}:
                    continue
                journal = Captured()
                resolver = fake(
                    pipeline=fake(journal_writer=journal),
                    external_evidence=fake(waiters=waiters),
                    clock=fake(now=lambda: NOW),
                    telemetry=fake(emit=lambda event: None),
                    _postpone_delay_s=lambda wait_s: 7.0,
                    _journal_now=lambda operation: NOW,
                )
                await Resolver._send_to_review(resolver, before, OURS, None, "test")
                assert journal.change is not None
                parks = before.state in {State.UNKNOWN, State.PENDING}
                after = (advance(before, Event.PARKED) if parks else before).changed(because="test")
                now = consequences(before, after, WriteContext(NOW, gives_back=OURS, last_check=True))
                found.compare(journal.change, now, before)
                await Resolver._postpone(resolver, before, OURS, 1.0)
                holds = _token(before) == OURS
                if before.due_at is None and not holds:
                    continue  # nothing unheld is checked without a time
                context = WriteContext(NOW, gives_back=OURS, check_at=LATER if holds else None)
                found.compare(journal.change, consequences(before, before, context), before)
        found.check(at_least=500)

    run(all_of_them())


def test_an_operator() -> None:
    executor = fake(journal_writer=Captured())
    found = Comparison("operator")
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            if before.attempt_under_way or before.state in {State.SENDING, State.BACKOFF}:
                continue
            if before.due_at is None and before.state in {State.UNKNOWN, State.PENDING}:
                continue  # nothing unheld is checked without a time
            for action in OperatorAction:
                if action is OperatorAction.RESOLVE or (action is OperatorAction.INQUIRE and before.state.ended):
                    continue
                if action is OperatorAction.CANCEL and before.state.ended:
                    continue
                try:
                    earlier, _ = CommandExecutor._changed_by(executor, before, action)
                except IllegalTransition:
                    continue
                after = _ordered(before, action).changed(because=earlier.because)
                checks = action in {OperatorAction.INQUIRE, OperatorAction.CANCEL}
                now = consequences(before, after, WriteContext(NOW, check_at=NOW if checks else None))
                found.compare(change_of(earlier, before), now, before)
    found.check(at_least=300)


def _ordered(before: Operation, action: OperatorAction) -> Operation:
    match action:
        case OperatorAction.PARK:
            return advance(before, Event.OPERATOR_PARKED)
        case OperatorAction.RESUME:
            return advance(before, resume_event(before))
        case OperatorAction.CANCEL:
            return before.changed(cancel_wanted=True)
        case OperatorAction.CLOSE_INCIDENT:
            return before.changed(incident=None)
        case _:
            return before


# --- shadow mode and the policy tools: the key alone, and who was told


def test_shadow_mode_and_the_policy_tools_release_the_same_keys() -> None:
    compared = 0
    for errors in ErrorsUnderKey:
        for before in reachable(errors):
            for attempt, answer, contract in steps_after(before, errors):
                if attempt != before.attempts or not before.attempt_under_way or before.state.ended:
                    continue
                after, _ = conclude(before, attempt, answer, contract)
                for action in (Action.SEND_TO_REVIEW, Action.MARK_TERMINAL_FAILURE):
                    if action is Action.SEND_TO_REVIEW and Event.PARKED not in _parks(after.state):
                        continue
                    decision = Decision(action, "test", 0.0, effect_may_exist=True)
                    for earlier in (
                        _remembered_as(after, decision, undelivered=True),
                        _after_decision(after, decision),
                    ):
                        if earlier.state is not after.state and earlier.state is State.FAILED:
                            following = advance(after, Event.GIVEN_UP)
                        elif earlier.state is not after.state:
                            following = advance(after, Event.PARKED)
                        else:
                            following = after
                        now = consequences(before, following, WriteContext(NOW)).operation
                        assert (now.state, now.key_released) == (earlier.state, earlier.key_released)
                        compared += 1
    assert compared > 200


def _parks(state: State) -> tuple[Event, ...]:
    return (Event.PARKED,) if state in {State.UNKNOWN, State.PENDING} else ()
