"""Storms: whatever happens at once, the ledger shows at most one effect, and nobody was told a lie.

Every claim is judged from the sandbox's ledger and from what callers were told; the journal only says which operation
an answer spoke of. A failing storm names its seed: `storm(seed, dials)` runs it alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness.core.identity import credential_of
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import HistoryEntry, Operation, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.core.result import DENIALS, DOES_NOT_FIT, Effect, ResultClass
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness_sandbox.bank.ledger import PAYING, LedgerEntry
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.conftest import close
from tests.engine.storm import CONTRACTS, FAST, Dials, Storm, StormClock, Told, edits_for
from tests.engine.world import SECRET, World, header, make_world, outcome, until
from tests.journal.memory import MemoryJournal

DEFINITE = {Outcome.SUCCEEDED, Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT}
LATE_S = 6.0  # past its deadline: a journal that loses replies is asked five times


def shown(operation: Operation) -> str:
    standing = f"{operation.state} {operation.result_class} {operation.effect} released={operation.key_released}"
    doubt = f"doubt={sorted(operation.doubt)} attempts={operation.attempts} incident={operation.incident}"
    return f"{operation.id} {operation.client_key} g{operation.generation} {standing} {doubt} {operation.because}"


def told_by(history: tuple[HistoryEntry, ...]) -> str:
    return " | ".join(
        f"v{entry.version} {entry.source} {'+'.join(entry.events)} -> {entry.state} {sorted(entry.doubt)}"
        + (f" [{entry.attempt.number}: {entry.attempt.classification.rule}]" if entry.attempt else "")
        for entry in history
    )


# They name the operation that holds the key or the guard, which is not the caller's.
OF_ANOTHER_PAYMENT = frozenset({Problem.KEY_REUSED, Problem.GUARDED})


class Judge:
    """What the ledger says, laid beside what was told. Each check yields what is wrong."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.operations = {operation.id: operation for operation in storm.operations}
        self.by_key: dict[str, list[Operation]] = defaultdict(list)
        for operation in storm.operations:
            self.by_key[operation.key].append(operation)
        for generations in self.by_key.values():
            generations.sort(key=lambda operation: operation.generation)
        self.entries: dict[str, list[LedgerEntry]] = defaultdict(list)  # by the key whose stamp they carry
        stamped = {operation.stamp: operation.key for operation in storm.operations}
        self.strays: list[LedgerEntry] = []
        for entry in storm.sandbox.ledger.entries[len(storm.charges) :]:  # the first were made beforehand
            if (stamp := self.stamp_of(entry)) in stamped:
                self.entries[stamped[stamp]].append(entry)
            else:
                self.strays.append(entry)
        call = storm.payments[0].call(amount=1, source="", credential="first", timeout_s=None)
        self.first_credential = credential_of(call, SECRET)
        self.told_of: dict[str, list[Told]] = defaultdict(list)
        for told in storm.tellings:
            if told.reply is not None and told.reply.operation_id is not None:
                self.told_of[told.reply.operation_id].append(told)

    def stamp_of(self, entry: LedgerEntry) -> str:
        bank = self.storm.sandbox.bank
        paid = entry.kind in PAYING
        metadata = bank.charge(entry.charge).terms.metadata if paid else bank.refund_by_id(entry.id).metadata
        return str(metadata.get("paywitness"))

    def complaints(self) -> list[str]:
        checks = (
            self.every_call_is_answered,
            self.no_task_died,
            self.at_most_one_effect,
            self.what_succeeded_was_paid_once,
            self.what_failed_was_not_paid,
            self.only_what_may_is_followed,
            self.every_503_is_true,
            self.definite_answers_stay,
            self.replays_are_equal,
            self.keys_are_constant,
            self.nothing_is_sent_after_a_decline,
            self.failures_rest_on_evidence,
            self.nothing_is_left_under_way,
            self.doubt_has_its_reason,
            self.nothing_contradicts_itself,
            self.everything_is_found_out,
            self.a_job_pays_once,
        )
        return [f"{check.__name__}: {line}" for check in checks for line in check()]

    def every_call_is_answered(self) -> Iterator[str]:
        yield from self.storm.unanswered
        for told in self.storm.tellings:
            if told.reply is not None and told.over_mono - told.began_mono > told.waits_s + LATE_S:
                yield f"{told.payment} waited {told.over_mono - told.began_mono:.1f} s for {told.reply.status_code}"

    def no_task_died(self) -> Iterator[str]:
        yield from self.storm.deaths.told

    def at_most_one_effect(self) -> Iterator[str]:
        yield from (f"{entry} is of no operation that the journal knows" for entry in self.strays)
        for key, entries in self.entries.items():
            if len(entries) > 1:
                yield f"{[shown(operation) for operation in self.by_key[key]]} has {len(entries)} effects"
        meant_once: dict[str, set[str]] = defaultdict(set)  # by order: the operations that paid it, unless meant twice
        for key, generations in self.by_key.items():
            for entry in self.entries[key]:
                if entry.order is not None and entry.kind in PAYING and not generations[-1].distinct:
                    meant_once[entry.order].add(generations[-1].id)
        yield from (f"order {order}: paid by {paid}" for order, paid in meant_once.items() if len(paid) > 1)

    def what_succeeded_was_paid_once(self) -> Iterator[str]:
        for operation_id, tellings in self.told_of.items():
            entries = self.entries[self.operations[operation_id].key]
            for told in tellings:
                if told.reply is None or told.reply.outcome not in {Outcome.SUCCEEDED, Outcome.PENDING}:
                    continue
                # It is told of the payment that holds the key, or the guard.
                reused = told.reply.problem in OF_ANOTHER_PAYMENT
                if not entries and told.reply.outcome is Outcome.PENDING and self.storm.dials.webhooks:
                    continue  # an event told an older truth; how it ended is asked elsewhere
                if len(entries) != 1 or (entries[0].amount != told.amount and not reused):
                    yield f"{told} but the ledger has {entries}"

    def what_failed_was_not_paid(self) -> Iterator[str]:
        """An effect belongs to the newest generation under its key. All before it ended without one."""
        for key, generations in self.by_key.items():
            newest = generations[-1]
            for entry in self.entries[key]:
                if newest.state in {State.FAILED, State.REQUIRES_ACTION}:
                    yield f"{shown(newest)} but the ledger has {entry}"
                if entry.at < newest.created_at:
                    yield f"{entry} was paid before {shown(newest)}, by an earlier generation"
                if newest.money is not None and entry.amount != newest.money.minor_units:
                    yield f"{entry} is not the money of {shown(newest)}"
        failed = {Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT}
        for operation_id, tellings in self.told_of.items():
            operation = self.operations[operation_id]
            for told in tellings:
                if told.reply is not None and told.reply.outcome in failed and operation.state is not State.FAILED:
                    yield f"{told} but it is {shown(operation)}"

    def only_what_may_is_followed(self) -> Iterator[str]:
        for generations in self.by_key.values():
            for earlier in generations[:-1]:
                if earlier.state is not State.FAILED:
                    yield f"{shown(earlier)} was followed"
                if earlier.result_class in DENIALS and not earlier.key_names_purchase:
                    yield f"{shown(earlier)} had spent its key, and was followed"

    def every_503_is_true(self) -> Iterator[str]:
        for told in self.storm.tellings:
            if told.reply is None or told.reply.problem is not Problem.NOT_SENT:
                continue
            operation = self.operations.get(told.reply.operation_id or "")
            if told.problem["sent"] or told.problem["side_effect_may_exist"]:
                yield f"{told} is a 503 that says more"
            if operation is not None and (operation.state is not State.FAILED or operation.effect is Effect.POSSIBLE):
                yield f"{told} but it is {shown(operation)}"

    def definite_answers_stay(self) -> Iterator[str]:
        """Once somebody was told what became of an operation, nobody who asks later is told anything else."""
        for operation_id, tellings in self.told_of.items():
            operation = self.operations[operation_id]
            if self.met_a_strange_answer(operation):
                continue
            if operation.incident == IncidentKind.BOTH_KEYS_RETURNED:
                continue  # one answer was taken, then both keys came back: 504 until a person has looked
            said = [told for told in tellings if told.reply is not None and told.reply.outcome in DEFINITE]
            for first in said:
                assert first.reply is not None
                for later in tellings:
                    assert later.reply is not None
                    if later.reply.problem in OF_ANOTHER_PAYMENT and later.reply.outcome is Outcome.NONE:
                        if later.problem["holder"]["outcome"] != first.reply.outcome:
                            yield f"{operation_id}: told {first}, later, as the holder, {later}"
                        continue  # that call's own payment was not made; what it says of this one is in `holder`
                    asked_later = later.began_mono > first.over_mono
                    said_otherwise = later.reply.outcome is not first.reply.outcome
                    if said_otherwise and (asked_later or later.reply.outcome in DEFINITE):
                        yield f"{operation_id}: told {first}, later {later}"

    def replays_are_equal(self) -> Iterator[str]:
        for operation_id, tellings in self.told_of.items():
            passed_on = {
                (told.reply.status_code, _same(told.reply.body) if self.storm.dials.resolver else told.reply.body)
                for told in tellings
                if told.reply is not None and told.reply.problem is None and told.reply.outcome is not Outcome.UNKNOWN
            }
            if len(passed_on) > 1:
                yield f"{operation_id}: {passed_on}"

    def keys_are_constant(self) -> Iterator[str]:
        known = {operation.provider_key for operation in self.storm.operations}
        for arrival in self.storm.sandbox.arrivals.arrivals:
            if self.storm.dials.contract != "none" and arrival.method == "POST" and arrival.key not in known:
                yield f"{arrival} came under a key that no operation has"
        if self.storm.dials.contract == "none":
            return
        attempts: dict[str | None, int] = defaultdict(int)
        for operation in self.storm.operations:
            attempts[operation.provider_key] += operation.attempts
        for key in known:
            if len(self.storm.sandbox.arrivals.find(key=key)) > attempts[key]:
                yield f"{key}: more arrivals than the {attempts[key]} attempts that were written down"

    def nothing_is_sent_after_a_decline(self) -> Iterator[str]:
        for operation_id, history in self.storm.histories.items():
            denied = False
            for entry in history:
                if denied and {"send_recorded", "resend_recorded"} & set(entry.events):
                    yield f"{operation_id}: {told_by(history)}"
                denied = denied or bool({"denial_seen", "denial_seen_in_doubt"} & set(entry.events))

    def failures_rest_on_evidence(self) -> Iterator[str]:
        """An end without effect that is no denial accounts for each of its attempts."""
        for operation in self.storm.operations:
            if operation.state is not State.FAILED or operation.result_class in DENIALS:
                continue
            history = self.storm.histories[operation.id]
            if any("inquiry_confirmed_absent" in entry.events for entry in history):
                continue  # what became of its attempts was asked; that the ledger has none of it is asked elsewhere
            last = {entry.attempt.number: entry.attempt for entry in history if entry.attempt is not None}
            attempts = list(last.values())  # a late answer says more than that none had come
            unseen = set(range(1, operation.attempts + 1)) - {attempt.number for attempt in attempts}
            if any(entry.note.startswith("the sidecar was shut down") for entry in history):
                unseen -= {operation.attempts}  # it knew that it had not sent it
            possible = [
                attempt
                for attempt in attempts
                if attempt.classification.effect is not Effect.NONE
                and attempt.classification.result_class
                is not ResultClass.IDEMPOTENCY_IN_FLIGHT  # it speaks of another attempt
            ]
            if unseen or possible:
                yield f"{shown(operation)} after {told_by(history)}"

    def nothing_is_left_under_way(self) -> Iterator[str]:
        open_states = {State.PREPARED, State.SENDING, State.BACKOFF}
        for operation in self.storm.operations:
            if operation.lease is not None or operation.state in open_states:
                yield shown(operation)
            if operation.attempt_under_way and not operation.state.ended:
                yield f"{shown(operation)} is still being sent by nobody"

    def doubt_has_its_reason(self) -> Iterator[str]:
        """What could be found out by a repeat was found out by the calm ones."""
        contract = self.storm.dials.contract
        revision = self.storm.book.providers["acme"].revision
        for operation in self.storm.operations:
            told = self.told_of[operation.id]
            reasons = (
                contract in {"not_stored", "none"},  # doubt is never re-sent there
                contract == "replayed"
                and bool(operation.answered_attempts),  # a re-send would only bring the same answer
                operation.result_class
                in DENIALS | {ResultClass.REQUIRES_ACTION},  # another try would be a charge after a no
                operation.key_source == "generated",  # nobody could repeat it
                operation.revision != revision,  # started under the edit, which believes in no re-send
                operation.credential != self.first_credential,
                any("*" in one.payment.script for one in told),
                any(one.reply and one.reply.problem is Problem.KEY_REUSED for one in told if one.calmly),
            )
            if self.storm.dials.resolver:
                continue  # then there is none at all: see everything_is_found_out
            if operation.state.in_doubt and not any(reasons):
                yield f"{shown(operation)} after {told_by(self.storm.histories[operation.id])}"

    def nothing_contradicts_itself(self) -> Iterator[str]:
        for operation in self.storm.operations:
            if operation.incident is None:
                continue
            # One answer that reached nobody was taken, and then both keys came back: a person's, as it should be.
            taken = operation.incident == IncidentKind.BOTH_KEYS_RETURNED
            if not taken and not self.met_a_strange_answer(operation):
                yield f"{shown(operation)} after {told_by(self.storm.histories[operation.id])}"

    def met_a_strange_answer(self, operation: Operation) -> bool:
        """Somebody else's answer came to a payment that its event had shown: an incident, as it should be. Of a refund
        such an answer shows no stamp and no amount that could be compared."""
        strange = operation.incident in {IncidentKind.ANOTHER_AMOUNT, IncidentKind.TWO_REFERENCES}
        foreign = any("foreign_response" in told.payment.script for told in self.told_of[operation.id])
        attempts = [entry.attempt for entry in self.storm.histories[operation.id] if entry.attempt is not None]
        return strange and (foreign or any(attempt.classification.rule == DOES_NOT_FIT for attempt in attempts))

    def everything_is_found_out(self) -> Iterator[str]:
        """Where the resolver runs, no doubt outlasts the faults."""
        yield from self.storm.stuck

    def a_job_pays_once(self) -> Iterator[str]:
        """Whoever tries under a fresh key each time, until it is told, has paid once. A process that is killed between
        its record and its answer cannot know that nobody heard; there only an intent's guard holds."""
        for payment in self.storm.payments:
            if not payment.job or (self.storm.dials.crashes and payment.key == "none"):
                continue
            ids = {entry.id for entry in self.storm.sandbox.ledger.entries if entry.amount == payment.amount}
            if len(ids) > 1:
                tellings = [str(told) for told in self.storm.tellings if told.payment is payment]
                yield f"{payment} paid {len(ids)} times: {tellings}"


def _same(body: bytes) -> bytes:
    """The provider's own object, whether it came as an answer, by an inquiry or by an event."""
    try:
        return json.dumps(json.loads(body)).encode()
    except ValueError:
        return body


async def storm(seed: int, dials: Dials, directory: Path) -> None:
    blown = Storm(seed, dials, directory)
    await blown.blow()
    complaints = Judge(blown).complaints()
    assert not complaints, f"seed {seed}, {dials}:\n" + "\n".join(complaints)


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_in_a_storm_nobody_pays_twice_and_nobody_is_told_a_lie(contract: str, tmp_path: Path) -> None:
    await storm(1, Dials(contract, lost_replies=0.03, crashes=1, sweeps=2, outages=1, reloads=2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["reexecuted", "none"])
async def test_a_journal_on_disk_that_is_closed_and_opened_in_the_storm_forgets_nothing(
    contract: str, tmp_path: Path
) -> None:
    await storm(2, Dials(contract, sqlite=True, lost_replies=0.03, crashes=3, sweeps=2, outages=1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["replayed", "reexecuted"])
async def test_thirty_callers_a_payment_over_two_sidecars_whose_leases_run_out_are_one_effect_each(
    contract: str, tmp_path: Path
) -> None:
    await storm(3, Dials(contract, payments=8, calls_max=30, sidecars=2, sweeps=15, lost_replies=0.03), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_while_the_resolver_and_events_find_out_fresh_keys_and_jobs_pay_once_and_nothing_is_left_in_doubt(
    contract: str, tmp_path: Path
) -> None:
    dials = Dials(contract, payments=20, jobs=15, fresh=0.4, distinct=0.05, sidecars=2, outages=1)
    await storm(4, replace(dials, resolver=True, webhooks=True), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("contract", ["replayed", "none"])
async def test_a_resolver_that_is_killed_with_its_lease_out_and_loses_replies_leaves_nothing_in_doubt(
    contract: str, tmp_path: Path
) -> None:
    dials = Dials(contract, payments=20, jobs=10, fresh=0.3, crashes=2, lost_replies=0.02, outages=1)
    await storm(5, replace(dials, resolver=True, webhooks=contract == "none"), tmp_path)


# Single blows, each where a storm seldom hits.


class Turns:
    """Counts the moments at which a call may be ended from outside, and ends it at one of them."""

    def __init__(self, end_at: int) -> None:
        self._end_at = end_at
        self._count = 0
        self.ended_at = ""

    async def hit(self, name: str) -> None:
        self._count += 1
        task = asyncio.current_task()
        if self._count == self._end_at and task is not None:
            self.ended_at = name
            task.cancel()
            await asyncio.sleep(0)


DELIVERY = "the record of a delivery"  # comes after the reply, if the deadline was near


class TurningJournal(MemoryJournal):
    def __init__(self, turns: Turns) -> None:
        super().__init__(clock=SystemClock())
        self.turns = turns

    async def claim(self, request: ClaimRequest) -> Claim:
        await self.turns.hit("a claim is asked for")
        claim = await super().claim(request)
        await self.turns.hit("a claim was written")
        return claim

    async def record(self, change: OperationChange) -> Operation:
        what = DELIVERY if change.events == ("answer_heard",) else "a record"
        await self.turns.hit(f"{what} is asked for")
        recorded = await super().record(change)
        await self.turns.hit(f"{what} was written")
        return recorded


@pytest.mark.parametrize(
    ("contract", "source", "script"),
    [
        ("replayed", "tok_ok", "drop_after_commit"),
        ("none", "tok_ok", None),
        ("none", "tok_stolen_card", None),
    ],
)
async def test_a_call_ended_at_any_moment_is_told_and_its_repeat_pays_once(
    contract: str, source: str, script: str | None
) -> None:
    for end_at in itertools.count(1):
        async with Sandbox(SandboxOptions(contract=contract)) as sandbox:
            turns = Turns(end_at)
            journal = TurningJournal(turns)
            ending = await make_world(sandbox, *edits_for(contract), journal=journal, failpoints=turns)
            first = await ending.charge(source=source, fault=script)
            is_told_before = turns.ended_at == "" or turns.ended_at.startswith(DELIVERY)
            assert is_told_before or outcome(first) == "unknown"
            await ending.engine.tasks.close(5.0)
            await ending.engine.pipeline.sender.upstream.close()
            heir = await make_world(sandbox, *edits_for(contract), journal=journal.reopened(SystemClock()))
            await heir.journal.expire_leases(all_of_earlier_holders=True)
            told = outcome(await heir.charge(source=source, fault=script))
            ends = {"declined" if source == "tok_stolen_card" else "succeeded"}
            assert told in ends | ({"unknown"} if contract == "none" else set()), turns.ended_at
            assert heir.effects(order="order-1") <= 1
            assert heir.effects(order="order-1") == 1 or told != "succeeded"
            incidents = await heir.journal.find_operations(OperationQuery(incidents_only=True))
            assert not incidents, turns.ended_at
            await close(heir)
        if turns.ended_at == "":
            return


class SweptJournal(MemoryJournal):
    """Its leases run out when the test says so, whoever holds them."""

    def __init__(self) -> None:
        self.time = StormClock()
        super().__init__(clock=self.time)

    async def sweep(self) -> None:
        self.time.ahead_s += 31
        await self.expire_leases()


@pytest.mark.parametrize(
    "fault",
    [
        "hang_after_commit(hang_s=1),hang_after_commit(hang_s=1)",  # the first is given up while the second goes on
        "slow(slow_s=0.2)",
        "late_response(late_s=0.2)",
    ],
)
async def test_a_repeat_that_takes_up_what_is_still_being_sent_is_one_effect_and_nobody_fails(
    sandbox: Sandbox, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    journal = SweptJournal()
    world = await make_world(sandbox, *FAST, journal=journal)
    first = asyncio.ensure_future(world.charge(fault=fault))
    await until(lambda: world.arrivals)
    await journal.sweep()
    repeat = asyncio.ensure_future(world.charge(fault=fault))
    await until(lambda: len(world.arrivals) > 1 or repeat.done())
    told = {outcome(await first), outcome(await repeat)}
    assert told <= {"succeeded", "unknown"}
    assert outcome(await world.charge()) == "succeeded"
    assert world.effects(order="order-1") == 1
    (operation,) = await journal.find_operations(OperationQuery())
    assert (operation.state, operation.lease, operation.incident) == (State.SUCCEEDED, None, None)
    assert not world.engine.in_flight
    assert "died" not in caplog.text
    await close(world)


async def declining(world: World, script: str) -> Reply:
    return await world.charge(contract="reexecuted", source="tok_stolen_card", fault=script)


async def test_a_holder_that_hears_nothing_charges_nobody_after_a_repeat_was_declined(sandbox: Sandbox) -> None:
    """Where failed work is done again, another re-send would be a new charge after a no."""
    journal = SweptJournal()
    world = await make_world(sandbox, *edits_for("reexecuted"), journal=journal)
    call = partial(declining, world, "hang_after_commit(hang_s=1)")
    first = asyncio.ensure_future(call())
    await until(lambda: any(arrival.executed for arrival in world.arrivals))
    await journal.sweep()
    replies = (await call(), await first, await call())
    assert [outcome(reply) for reply in replies] == ["unknown"] * 3
    assert (len(world.arrivals), world.effects(order="order-1")) == (2, 0)
    await close(world)


async def test_a_shutdown_does_not_forget_that_another_attempt_was_declined(sandbox: Sandbox) -> None:
    journal = SweptJournal()
    believed = ("errors_under_key: replayed ", "errors_under_key: reexecuted ")
    world = await make_world(sandbox, believed, journal=journal)
    script = "slow(slow_s=0.2),hang_before_commit"
    first = asyncio.ensure_future(declining(world, script))
    await until(lambda: world.arrivals)
    await journal.sweep()
    repeat = asyncio.ensure_future(declining(world, script))
    await until(lambda: len(world.arrivals) == 2)
    await first  # declined, while the repeat's attempt is still under way
    await world.engine.tasks.close(0.0)
    assert outcome(await repeat) == "unknown"
    heir = await make_world(sandbox, believed, journal=journal.reopened(journal.time))
    assert outcome(await declining(heir, script)) == "unknown"
    assert (len(world.arrivals), world.effects(order="order-1")) == (2, 0)
    await world.engine.pipeline.sender.upstream.close()
    await close(heir)


async def test_a_holder_does_not_send_under_the_lease_of_whoever_took_its_operation_up(sandbox: Sandbox) -> None:
    """Both are in one process, so that the second one's lease stands where the first one's stood."""
    connected = asyncio.Event()

    class FirstIsSlow:
        callers = 0

        async def hit(self, name: str) -> None:
            if name == "upstream_connected":
                self.callers += 1
                if self.callers == 1:
                    await connected.wait()

    journal = SweptJournal()
    world = await make_world(sandbox, *FAST, journal=journal, failpoints=FirstIsSlow())
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.2)"))
    await until(lambda: world.engine.in_flight)
    await journal.sweep()
    repeat = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.2)"))
    await until(lambda: world.arrivals)
    connected.set()
    assert outcome(await repeat) == "succeeded"
    await first
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 1)
    await close(world)


@pytest.mark.parametrize("step", ["upstream_written", "upstream_answered", "answer_classified"])
async def test_a_fault_of_ours_with_the_request_on_the_wire_is_doubt_at_once_and_is_not_sent_again(
    sandbox: Sandbox, step: str
) -> None:
    class Broken:
        async def hit(self, name: str) -> None:
            if name == step:
                raise ValueError("a fault of ours, of the class that an unwritable request has")

    world = await make_world(sandbox, *edits_for("none"), failpoints=Broken())
    first = await world.charge(contract="none")
    repeat = await world.charge(contract="none")
    assert {outcome(first), outcome(repeat)} == {"unknown"}
    await until(lambda: not sandbox.under_way)
    assert (len(world.arrivals), world.effects(order="order-1") <= 1) == (1, True)
    (operation,) = await world.journal.find_operations(OperationQuery())
    assert (operation.state, operation.doubt, operation.lease) == (State.UNKNOWN, frozenset({1}), None)
    await close(world)


async def test_a_record_whose_reply_was_lost_is_asked_again_as_it_was(sandbox: Sandbox) -> None:
    """Decided anew the re-send would no longer fit the deadline, and nobody would see the recorded one through."""

    class LosesOneReply(MemoryJournal):
        lost = False

        async def record(self, change: OperationChange) -> Operation:
            recorded = await super().record(change)
            if not self.lost:
                self.lost = True
                raise JournalUnavailable("the reply was lost")
            return recorded

    journal = LosesOneReply(clock=SystemClock())
    world = await make_world(sandbox, *FAST, journal=journal)
    await world.charge(fault="drop_after_commit", timeout_s=0.4)
    await until(lambda: not world.engine.in_flight)
    (operation,) = await journal.find_operations(OperationQuery())
    assert (operation.state, operation.attempts, operation.lease) == (State.SUCCEEDED, 2, None)
    assert world.effects(order="order-1") == 1
    await close(world)


async def test_a_sidecar_that_shuts_down_re_sends_nothing_and_says_that_it_does_not_know(world: World) -> None:
    await world.charge(fault="drop_after_commit,drop_after_commit,drop_after_commit")
    arrived = len(world.arrivals)
    world.engine.gate.draining = True
    repeat = await world.charge()
    assert (repeat.status_code, repeat.problem, len(world.arrivals)) == (504, Problem.UNKNOWN, arrived)
    world.engine.gate.draining = False
    assert outcome(await world.charge()) == "succeeded"
    assert world.effects(order="order-1") == 1


async def test_who_only_waited_is_not_told_that_its_call_was_sent(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, *edits_for("none"))
    replies = await asyncio.gather(*(world.charge(fault="hang_after_commit(hang_s=1)") for _ in range(5)))
    assert {outcome(reply) for reply in replies} == {"unknown"}
    assert sorted(json.loads(reply.body)["sent"] for reply in replies) == [False] * 4 + [True]
    assert world.effects(order="order-1") == 1
    await close(world)


UNUSUAL_BODIES = {
    "not a number": b'{"amount": NaN, "currency": "EUR"}',
    "infinite": b'{"amount": -Infinity, "currency": "EUR"}',
    "beyond floats": b'{"amount": 1e999, "currency": "EUR"}',
    "400 digits": b'{"amount": %b, "currency": "EUR"}' % (b"9" * 400),
    "5000 digits": b'{"amount": %b, "currency": "EUR"}' % (b"9" * 5000),
    "half a character as order": b'{"amount": 100, "currency": "EUR", "metadata": {"order_id": "\\ud800"}}',
    "half a character as name": b'{"amount": 100, "currency": "EUR", "\\udfff": 1}',
    "half a character as currency": b'{"amount": 100, "currency": "\\ud800"}',
    "a line break in the order": b'{"amount": 100, "currency": "EUR", "metadata": {"order_id": "a\\r\\nB: c"}}',
    "a zero byte in the order": b'{"amount": 100, "currency": "EUR", "metadata": {"order_id": "a\\u0000"}}',
    "a long order": b'{"amount": 100, "currency": "EUR", "metadata": {"order_id": "%b"}}' % (b"x" * 5000),
    "an order of another alphabet": '{"amount": 100, "currency": "EUR", "metadata": {"order_id": "žluť-🦊"}}'.encode(),
    "a large number as order": b'{"amount": 100, "currency": "EUR", "metadata": {"order_id": 123456789012345678901}}',
    "two amounts": b'{"amount": 100, "amount": 200, "currency": "EUR"}',
    "a list": b"[1, 2]",
    "a word": b'"pay"',
    "null": b"null",
    "nothing": b"",
    "a list where the stamp goes": b'{"amount": 100, "currency": "EUR", "metadata": []}',
    "an object where the stamp goes": b'{"amount": 100, "currency": "EUR", "metadata": {"paywitness": {}}}',
    "our stamp already": b'{"amount": 100, "currency": "EUR", "metadata": {"paywitness": "op_somebody_elses"}}',
    "sixty deep": b'{"amount": 100, "currency": "EUR", "x": %b%b}' % (b"[" * 60, b"]" * 60),
    "endlessly deep": b"[" * 100_000 + b"]" * 100_000,
    "not UTF-8": b'{"amount": 100, "currency": "EUR", "name": "\xff"}',
    "UTF-16": '{"amount": 100, "currency": "EUR"}'.encode("utf-16"),
    "more behind it": b'{"amount": 100, "currency": "EUR"} {"amount": 200}',
}


@pytest.mark.parametrize("keyed", [True, False])
async def test_whatever_a_body_holds_the_call_is_answered_cleanly_and_pays_at_most_once(
    sandbox: Sandbox, tmp_path: Path, keyed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    world = await make_world(sandbox, *FAST, journal=journal)
    for name, body in UNUSUAL_BODIES.items():
        headers = {"Content-Type": "application/json", "Authorization": "Bearer test"}
        if keyed:
            headers["Idempotency-Key"] = f"key of {name}"
        before = len(sandbox.ledger)
        reply = await world.post("/v1/charges", body, headers)
        assert reply.status_code in {200, 400, 413}, name
        assert len(sandbox.ledger) - before == (reply.status_code == 200), name
        assert not any(byte in line for pair in reply.headers for line in pair for byte in b"\r\n"), name
        if keyed:
            again = await world.post("/v1/charges", body, headers)
            assert (again.status_code, len(sandbox.ledger) - before) == (reply.status_code, reply.status_code == 200)
    assert "died" not in caplog.text
    await close(world)


@pytest.mark.parametrize("key", ["x" * 255, "x" * 256, " ", "ä", "a\tb", "a\x00b", "\x7f", '"; drop', "a, b", "%0d%0a"])
async def test_whatever_a_key_holds_it_is_refused_or_goes_by_one_name(world: World, key: str) -> None:
    replies = [await world.charge(key, fault="drop_after_commit") for _ in range(2)]
    if replies[0].status_code == 400:
        assert (replies[0].problem, len(world.arrivals)) == (Problem.KEY_INVALID, 0)
        return
    assert [outcome(reply) for reply in replies] == ["succeeded", "succeeded"]
    assert (len({arrival.key for arrival in world.arrivals}), world.effects(order="order-1")) == (1, 1)
    told = header(replies[0], "Paywitness-Key")
    assert told in {key, None}
