"""Webhooks through a real listener, journal and signature: kept before they are acknowledged, applied after."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from paywitness.clock import SystemClock
from paywitness.core.announcements import cloud_events
from paywitness.core.call import CallerOptions
from paywitness.core.errors import JournalUnavailable
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import AnnouncementKind, HistoryEntry, Operation, OtherPayment, Outcome, State
from paywitness.core.payment import payment_key
from paywitness.core.result import Effect, ResultClass
from paywitness.engine.policy_reload import reload_event
from paywitness.engine.webhooks.applier import WebhookApplier
from paywitness.engine.webhooks.inbox import WebhookInbox
from paywitness.engine.webhooks.matcher import WebhookMatcher
from paywitness.engine.webhooks.relay import Relay, next_relay_at
from paywitness.journal.base import Journal, OperationChange, OperationQuery, StoredWebhookEvent
from paywitness.journal.ledger import payment_from_row
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.server.webhooks import WebhookServer
from paywitness.tasks import Tasks
from paywitness_sandbox.bank.objects import ChargeStatus
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, make_world, problem_type
from tests.journal.memory import MemoryJournal
from tests.server.raw_client import Answer, Caller, request

SECRET = "whsec_of_the_shop"
OTHER_SECRET = "whsec_of_somebody_else"
ENVIRONMENT = {"ACME_WEBHOOK_SECRET": SECRET, "OTHER_SECRET": OTHER_SECRET}
ONE_TRY = ("default: {attempts: 3, backoff: full", "default: {attempts: 1, backoff: full")
SECRETS = "  secrets: [env:ACME_WEBHOOK_SECRET]"


class Time(SystemClock):
    """The machine's clock, which can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def boot(self) -> float:
        return super().boot() + max(0.0, self.ahead_s)


class ShakyJournal(MemoryJournal):
    """A journal that is down when it is told to be."""

    down = False

    async def store_webhook_event(self, notice: StoredWebhookEvent) -> bool:
        if self.down:
            raise JournalUnavailable("down")
        return await super().store_webhook_event(notice)

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        if self.down:
            raise JournalUnavailable("down")
        return await super().due_webhook_events(limit=limit)


@dataclass
class Hooks:
    """A sidecar that is told things by its provider."""

    world: World
    webhooks: WebhookInbox
    address: tuple[str, int]
    time: Time
    background: Tasks = field(default_factory=Tasks)

    def apply_from_now_on(self) -> None:
        self.background.start(self.webhooks.keep_applying(), "webhooks")

    async def tell(
        self,
        event: object,
        *,
        path: str = "acme",
        secret: str = SECRET,
        age_s: float = 0.0,
        headers: tuple[str, ...] = (),
    ) -> Answer:
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        at = str(int(self.time.now() - age_s))
        signature = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        signed = (f"Webhook-Timestamp: {at}", f"Webhook-Signature: sha256={signature}", *headers)
        return await self.post(path, body, *signed)

    async def post(self, path: str, body: bytes, *headers: str) -> Answer:
        caller = await Caller.open(self.address)
        try:
            return await caller.ask(request(f"/paywitness/webhooks/{path}", body, *headers))
        finally:
            caller.close()

    def count(self, result: str, provider: str = "acme") -> float:
        labels = {"provider": provider, "result": result}
        registry = self.world.engine.telemetry.metrics.registry
        return registry.get_sample_value("payment_webhooks_total", labels) or 0

    def delays(self, within_s: float | None = None) -> float:
        """How many webhooks' delays were measured, or were no longer than this."""
        labels = {"provider": "acme"} if within_s is None else {"provider": "acme", "le": str(within_s)}
        name = f"payment_webhook_delay_seconds_{'count' if within_s is None else 'bucket'}"
        return self.world.engine.telemetry.metrics.registry.get_sample_value(name, labels) or 0

    async def until_counted(self, result: str, times: int = 1) -> None:
        async with asyncio.timeout(15):
            while self.count(result) < times:  # noqa: ASYNC110  # the world is real sockets
                await asyncio.sleep(0.01)
        assert self.count(result) == times

    async def operation(self, key: str = "key-1", generation: int = 0) -> Operation:
        """The one under this key; of several generations the newest, or the one that is asked for."""
        found = await self.world.journal.find_operations(OperationQuery(key=key))
        return next(each for each in found if not generation or each.generation == generation)

    async def until(self, condition: Callable[[Operation], bool], key: str = "key-1") -> Operation:
        async with asyncio.timeout(15):
            while True:
                found = await self.world.journal.find_operations(OperationQuery(key=key))
                if found and condition(found[0]):
                    return found[0]
                await asyncio.sleep(0.01)

    async def unknown(self, key: str = "key-1", **charge: Any) -> Operation:
        """A charge that reached the provider and whose answer was lost."""
        await self.world.charge(key, fault="drop_after_commit", **charge)
        options: CallerOptions | None = charge.get("options")
        operation = await self.operation(options.key if options is not None and options.key is not None else key)
        assert operation.state is State.UNKNOWN
        return operation


@asynccontextmanager
async def hooked(
    sandbox: Sandbox,
    *edits: tuple[str, str],
    journal: Journal | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> AsyncIterator[Hooks]:
    time = Time()
    world = await make_world(sandbox, *edits, clock=time, journal=journal or MemoryJournal(clock=time))
    telemetry = world.engine.telemetry
    telemetry.emit(reload_event(world.engine.book))
    webhooks = webhooks_of(world, environment)
    server = WebhookServer(webhooks)
    hooks = Hooks(world, webhooks, await server.start("127.0.0.1", 0), time)
    try:
        yield hooks
    finally:
        await hooks.background.stop()
        await server.close()
        await webhooks.close()
        await close(world)


def webhooks_of(world: World, environment: Mapping[str, str] = ENVIRONMENT) -> WebhookInbox:
    parts, vault = world.parts, world.engine.vault
    return WebhookInbox(
        journal=world.journal,
        vault=vault,
        clock=world.clock,
        telemetry=world.engine.telemetry,
        applier=WebhookApplier(
            WebhookMatcher(world.journal, parts.pinned, vault), parts.external_evidence, parts.resolver.inquiry_client
        ),
        relay=Relay(parts.upstream),
        book=lambda: world.engine.book,
        environment=environment,
        due_times=parts.ages.due_times,
    )


@pytest.fixture
async def hooks(sandbox: Sandbox) -> AsyncIterator[Hooks]:
    """Every charge is tried once."""
    async with hooked(sandbox, ONE_TRY) as hooked_up:
        hooked_up.apply_from_now_on()
        yield hooked_up


def event(
    operation: Operation | None = None, status: str = "succeeded", *, event_id: str = "evt_1", **data: Any
) -> dict[str, Any]:
    """What the provider tells of the operation's charge."""
    name = (operation.reference if operation is not None else None) or "ch_1"
    charge: dict[str, Any] = {"object": "charge", "id": name, "status": status, "amount": 1099, "currency": "EUR"}
    if operation is not None:
        charge["metadata"] = {"paywitness": operation.stamp}
    if status == "failed":
        charge["failure_code"] = "insufficient_funds"
    return {"id": event_id, "type": f"charge.{status}", "account": None, "data": {**charge, **data}}


# --- what is told becomes true


async def test_a_success_told_of_an_unknown_operation_ends_it(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    answer = await hooks.tell(event(operation))
    assert (answer.status_code, answer.body) == (200, b"")
    await hooks.until_counted("applied")
    ended = await hooks.operation()
    assert (ended.state, ended.result_class, ended.reference) == (State.SUCCEEDED, ResultClass.SUCCEEDED, "ch_1")
    history = await hooks.world.journal.history(ended.id)
    assert history[-1].source == "webhook"
    assert history[-1].finding is not None
    assert history[-1].finding.source == "webhook evt_1"
    repeat = await hooks.world.charge()
    assert repeat.operation_id == ended.id
    assert repeat.status_code != 504
    assert hooks.world.effects(order="order-1") == 1


async def test_the_sandbox_tells_it_itself_before_its_answer_is_lost(hooks: Hooks) -> None:
    """The provider's own event, signed by the referee, overtakes the answer, which then never comes."""
    url = f"http://{hooks.address[0]}:{hooks.address[1]}/paywitness/webhooks/acme"
    hooks.world.sandbox.webhooks.set_endpoint({"url": url, "secret": SECRET, "mode": "early"})
    await hooks.world.charge(fault="drop_after_commit")
    operation = await hooks.until(lambda found: found.state is State.SUCCEEDED)
    await asyncio.sleep(0.05)
    assert operation.incident is None
    assert hooks.count("applied") == 1


async def test_an_event_that_overtakes_the_response_is_true_and_so_is_the_response(hooks: Hooks) -> None:
    url = f"http://{hooks.address[0]}:{hooks.address[1]}/paywitness/webhooks/acme"
    hooks.world.sandbox.webhooks.set_endpoint({"url": url, "secret": SECRET, "mode": "early"})
    reply = await hooks.world.charge()
    assert reply.status_code == 200
    await hooks.until_counted("accepted")
    operation = await hooks.operation()
    assert (operation.state, operation.incident) == (State.SUCCEEDED, None)


async def test_an_event_after_the_end_says_nothing_new(hooks: Hooks) -> None:
    reply = await hooks.world.charge()
    before = await hooks.operation()
    await hooks.tell(event(before, id=json.loads(reply.body)["id"]))
    await hooks.until_counted("nothing_new")
    assert await hooks.operation() == before


async def test_ten_deliveries_of_one_event_are_one_event(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    answers = await asyncio.gather(*(hooks.tell(event(operation)) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    await hooks.until_counted("applied")
    assert (hooks.count("accepted"), hooks.count("duplicate")) == (1, 9)
    assert len(await hooks.world.journal.history((await hooks.operation()).id)) == 3  # claimed, lost, told


async def test_events_in_reverse_end_where_they_would_have_in_order(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    await hooks.tell(event(operation, "succeeded", event_id="evt_3"))
    await hooks.until_counted("applied")
    await hooks.tell(event(operation, "processing", event_id="evt_2"))
    await hooks.tell(event(operation, "requires_action", event_id="evt_1"))
    await hooks.until_counted("nothing_new", 2)
    ended = await hooks.operation()
    assert (ended.state, ended.incident) == (State.SUCCEEDED, None)


async def test_what_was_given_back_is_neither_told_as_paid_nor_taken_nor_in_the_way(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    await hooks.tell(event(operation, "succeeded", event_id="evt_1"))
    await hooks.until_counted("applied")
    await hooks.tell(event(operation, "reversed", event_id="evt_2"))
    await hooks.until_counted("applied", 2)
    reversed_since = await hooks.operation()
    assert (reversed_since.state, reversed_since.result_class) == (State.SUCCEEDED, ResultClass.REVERSED)
    again = await hooks.world.charge()
    assert (again.status_code, b"given back" in again.body) == (409, True)
    equal = await hooks.world.charge("a late duplicate")
    assert (equal.status_code, b"refunded" in equal.body) == (409, True)
    fresh = await hooks.world.charge("a fresh key", amount=1100)
    assert (fresh.status_code, fresh.operation_id != operation.id) == (200, True)


async def test_an_older_denial_that_comes_late_is_checked_with_the_provider_and_is_no_incident(hooks: Hooks) -> None:
    reply = await hooks.world.charge()
    operation = await hooks.operation()
    assert (reply.status_code, operation.state) == (200, State.SUCCEEDED)
    await hooks.tell(event(operation, "failed"))
    await hooks.until_counted("nothing_new")
    after = await hooks.operation()
    assert (after.state, after.incident) == (State.SUCCEEDED, None)


async def test_a_denial_while_an_attempt_is_under_way_waits_for_its_end(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY, ("first_byte: 5s", "first_byte: 700ms")) as hooks:
        hooks.apply_from_now_on()
        charge = asyncio.ensure_future(hooks.world.charge(fault="hang_before_commit"))
        operation = await hooks.until(lambda found: found.state is State.SENDING)
        await hooks.tell(event(operation, "failed"))
        await asyncio.sleep(0.2)
        assert (await hooks.operation()).state is State.SENDING
        await charge
        await hooks.until_counted("applied")
        ended = await hooks.operation()
        assert (ended.state, ended.result_class) == (State.FAILED, ResultClass.ISSUER_SOFT_DECLINE)


async def test_a_denial_of_one_of_several_attempts_ends_nothing_but_is_asked_about_now(sandbox: Sandbox) -> None:
    """Where answers are not stored, the other attempt may still be executed."""
    two_tries = ("default: {attempts: 3, backoff: full", "default: {attempts: 2, backoff: full")
    reexecuted = ("errors_under_key: replayed", "errors_under_key: reexecuted")
    async with hooked(sandbox, two_tries, reexecuted) as hooks:
        await hooks.world.charge(fault="drop_after_commit*", contract="reexecuted")
        operation = await hooks.operation()
        assert (operation.state, len(operation.doubt)) == (State.UNKNOWN, 2)
        assert operation.due_at is not None
        assert operation.due_at > hooks.time.now()
        await hooks.tell(event(operation, "failed"))
        await hooks.webhooks.apply_due()
        now_due = await hooks.operation()
        assert (now_due.state, now_due.doubt) == (State.UNKNOWN, operation.doubt)
        assert now_due.due_at is not None
        assert now_due.due_at <= hooks.time.now()
        assert hooks.count("applied") == 0


async def test_an_event_that_no_row_reads_waits_for_nothing(hooks: Hooks) -> None:
    await hooks.tell(event(None, "archived"))
    await hooks.until_counted("nothing_new")


# --- how late they come


async def test_how_late_an_event_comes_is_measured_by_its_own_time_once(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    told = {**event(operation), "created": int(hooks.time.now()) - 40}
    for _ in range(2):
        await hooks.tell(told)
    await hooks.until_counted("duplicate")
    await hooks.until(lambda seen: seen.state is State.SUCCEEDED)
    await hooks.until_counted("applied")
    assert (hooks.delays(), hooks.delays(30.0), hooks.delays(60.0)) == (1, 0, 1)


async def test_an_event_without_a_time_is_measured_from_our_first_send(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    told = event(operation)
    assert "created" not in told
    hooks.time.ahead_s += 100.0
    await hooks.tell(told)
    await hooks.until_counted("applied")
    assert (hooks.delays(), hooks.delays(60.0), hooks.delays(300.0)) == (1, 0, 1)


# --- what our cancel has undone since


@pytest.mark.parametrize("stands", [ChargeStatus.VOIDED, ChargeStatus.SUCCEEDED])
async def test_a_success_told_after_a_cancel_is_confirmed_before_it_contradicts(
    hooks: Hooks, stands: ChargeStatus
) -> None:
    """The customer acted, then our cancel arrived, and the event of the first came last. Only what stands counts."""
    await hooks.world.charge(source="tok_3ds")
    asked = await hooks.operation()
    charge = hooks.world.sandbox.bank.charge(asked.reference or "")
    if stands is ChargeStatus.VOIDED:
        hooks.world.sandbox.bank.void(charge, None)
    else:
        hooks.world.sandbox.bank.settle(charge, stands)
    cancelled = advance(asked, Event.CANCEL_SHOWN, result_class=ResultClass.CANCELLED, effect=Effect.NONE)
    await hooks.world.journal.record(OperationChange(cancelled.changed(cancel_sent=True, due_at=None), ()))
    await hooks.tell(event(asked, "succeeded"))
    await hooks.until_counted("nothing_new" if stands is ChargeStatus.VOIDED else "applied")
    after = await hooks.operation()
    assert after.state is State.FAILED
    assert after.incident == (None if stands is ChargeStatus.VOIDED else "success_after_failure")


# --- what was retired while its customer had still to act


async def retired_action(hooks: Hooks) -> Operation:
    """S5: a charge whose customer never acted, inquired about in vain, and retired after that."""
    reply = await hooks.world.charge(source="tok_3ds")
    asked = await hooks.operation()
    assert (reply.status_code, asked.state) == (200, State.REQUIRES_ACTION)
    abandoned = await hooks.world.journal.record(OperationChange(asked.changed(due_at=None), ()))
    hooks.time.ahead_s += 31 * 86400.0
    assert await hooks.world.journal.retire(retention_s=30 * 86400.0, tombstone_s=90 * 86400.0, limit=10) == 1
    assert await hooks.world.journal.read(asked.id) is None
    return abandoned


@pytest.mark.parametrize("named_by", ["stamp", "reference"])
async def test_s5_a_payment_told_of_a_retired_action_is_noticed(
    hooks: Hooks, named_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    retired = await retired_action(hooks)
    told = event(retired)
    if named_by == "reference":
        del told["data"]["metadata"]
    await hooks.tell(told)
    await hooks.until_counted("retired")
    assert [record.levelname for record in caplog.records if retired.id in record.getMessage()] == ["ERROR"]
    again = await hooks.world.charge(source="tok_3ds")
    assert (again.status_code, retired.id.encode() in again.body) == (410, True)


async def test_s5_a_denial_told_of_a_retired_action_is_nothing_new(hooks: Hooks) -> None:
    retired = await retired_action(hooks)
    await hooks.tell(event(retired, "failed"))
    await hooks.until_counted("nothing_new")


async def test_s5_an_event_of_another_payment_is_not_taken_for_the_retired_one(hooks: Hooks) -> None:
    await retired_action(hooks)
    await hooks.tell(event(None, id="ch_of_somebody_else"))
    await hooks.until_counted("accepted")
    await asyncio.sleep(0.05)
    assert hooks.count("retired") == 0


# --- what does not fit


async def test_another_amount_is_never_a_success(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    await hooks.tell(event(operation, amount=5))
    await hooks.until_counted("does_not_fit")
    after = await hooks.operation()
    assert (after.state, after.doubt, after.incident) == (State.UNKNOWN, operation.doubt, None)


def _told(entry: HistoryEntry) -> tuple[str, ...]:
    return entry.announcement.kinds if entry.announcement is not None else ()


async def test_another_amount_of_a_paid_operation_is_an_incident(hooks: Hooks) -> None:
    await hooks.world.charge()
    paid = await hooks.operation()
    await hooks.tell(event(paid, amount=5, id=paid.reference))
    await hooks.until_counted("does_not_fit")
    after = await hooks.operation()
    assert (after.state, after.incident) == (State.SUCCEEDED, "another_amount")
    shown = OtherPayment("", "acme", None, Money(5, "EUR"))
    assert after.other_payment == shown
    assert paid.money is not None
    [told] = [entry for entry in await hooks.world.journal.history(after.id) if "incident_opened" in _told(entry)]
    assert told.finding is not None
    assert told.finding.classification is not None
    assert told.finding.classification.shown_money == shown.money
    [first] = [event for event in cloud_events(after, told) if event["data"]["incident"]]
    assert first["data"]["other_payment"]["amount"] == "0.05"
    assert f"{paid.money} was requested" in first["data"]["proposal"]
    assert "shows 0.05 EUR" in first["data"]["proposal"]


async def test_another_currency_or_stamp_does_not_fit_either(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    key: dict[str, Any] = {"idempotency_key": operation.provider_key}
    await hooks.tell(event(operation, currency="USD"))
    await hooks.tell(event(None, event_id="evt_2", metadata={"paywitness": "op_of_another_system"}, **key))
    await hooks.until_counted("does_not_fit")
    assert (await hooks.operation()).state is State.UNKNOWN


async def test_m21_an_event_of_another_payment_that_carries_our_stamp_ends_nothing(hooks: Hooks) -> None:
    """A caller copied the stamp of an unknown operation into its next payment. The reference tells whose it is."""
    await hooks.world.charge("key-2", order="2")
    paid, unknown = await hooks.operation("key-2"), await hooks.unknown()
    assert paid.reference is not None
    await hooks.tell(event(unknown, id=paid.reference))
    await hooks.tell(event(unknown, event_id="evt_2", id="ch_of_nobody_else"))
    await hooks.until_counted("applied")
    after = await hooks.operation()
    assert (after.state, after.reference) == (State.SUCCEEDED, "ch_of_nobody_else")
    assert (await hooks.operation("key-2")).incident is None


async def test_p28_an_event_that_shows_a_part_of_the_payment_ends_it_by_the_name_that_the_policy_finds_it_by(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P28 A: PayPal's event shows the capture of an order, Adyen's the modification of a payment. Neither carries the
    reference as its own name, and both operations stayed pending for ever."""
    finder = ("    - {reference: data.id}", "    - {reference: data.id}\n    - {reference: data.part_of}")
    part = ("answers:\n", "answers:\n  part: [{when: \"status == 'done'\", as: succeeded}]\n")
    own_name = ("    reference: id\n    also_known_as: error.charge\n", "    reference: \"object == 'charge' && id\"\n")
    async with hooked(sandbox, ONE_TRY, finder, part, own_name, journal=stored_journal) as hooks:
        hooks.apply_from_now_on()
        await hooks.world.charge(source="tok_processing")
        pending = await hooks.operation()
        assert (pending.state, pending.reference is None) == (State.PENDING, False)
        money = {"amount": 1099, "currency": "EUR"}
        other = {"object": "part", "id": "part_9", "part_of": "ch_of_another", "status": "done", **money}
        await hooks.tell({"id": "evt_0", "account": None, "data": other})
        assert (await hooks.operation()).state is State.PENDING
        shown = {**other, "id": "part_1", "part_of": pending.reference}
        await hooks.tell({"id": "evt_1", "account": None, "data": shown})
        ended = await hooks.until(lambda seen: seen.state is not State.PENDING)
        assert (ended.state, ended.reference, ended.incident) == (State.SUCCEEDED, pending.reference, None)


async def test_p28_an_event_of_a_payment_whose_reference_nobody_has_seen_ends_it(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P28 B: after a lost response there is no reference that the event could carry. It fits as far as is known."""
    async with hooked(sandbox, ONE_TRY, journal=stored_journal) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        assert operation.reference is None
        await hooks.tell(event(operation, id="ch_9"))
        ended = await hooks.until(lambda seen: seen.state is not State.UNKNOWN)
        assert (ended.state, ended.reference, ended.incident) == (State.SUCCEEDED, "ch_9", None)


async def test_p28_an_event_that_shows_what_an_increment_of_ours_made_of_the_amount_is_no_incident(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P28 B: the object of an authorization that was incremented shows another amount than was asked for."""
    async with hooked(sandbox, ONE_TRY, journal=stored_journal) as hooks:
        hooks.apply_from_now_on()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer test"}
        order = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "capture": False}
        made = await hooks.world.post("/v1/charges", order, {**headers, "Idempotency-Key": "key-1"})
        charge = json.loads(made.body)["id"]
        more = await hooks.world.post(
            f"/v1/charges/{charge}/increment", {"amount": 1500}, {**headers, "Idempotency-Key": "more"}
        )
        assert (made.status_code, more.status_code) == (200, 200)
        authorised = await hooks.operation()
        await hooks.tell(event(authorised, "authorized", amount=1500))
        await hooks.until_counted("does_not_fit")
        after = await hooks.operation()
        assert (after.state, after.incident) == (State.SUCCEEDED, None)


async def test_m21_an_event_of_a_copy_ends_nothing_of_an_operation_without_a_payment(hooks: Hooks) -> None:
    """A payout is part of no payment. Its object was copied at the provider, stamp and all, and the copy failed."""
    await hooks.world.charge(source="tok_processing")
    accepted = await hooks.operation()
    accepted = await hooks.world.journal.record(OperationChange(accepted.changed(payment=""), ()))
    await hooks.tell(event(accepted, "failed", id="ch_copy"))
    await hooks.tell(event(accepted, "succeeded", event_id="evt_2"))
    await hooks.until_counted("applied")
    after = await hooks.operation()
    assert (after.state, after.reference, after.incident) == (State.SUCCEEDED, accepted.reference, None)


async def test_an_event_of_a_copy_is_not_given_to_a_generation_that_was_never_sent(hooks: Hooks) -> None:
    """The second generation was accepted. Its object was copied, stamp and all, and the copy's event was taken for a
    success of the first generation, which had never left."""
    sandbox, port = hooks.world.sandbox, hooks.world.sandbox.port
    await sandbox.stop()
    await hooks.world.charge(source="tok_processing")
    await sandbox.start(host="127.0.0.1", port=port)
    await hooks.world.charge(source="tok_processing")
    first, second = await hooks.operation(generation=1), await hooks.operation(generation=2)
    assert (first.outcome, second.state) == (Outcome.NOT_SENT, State.PENDING)
    await hooks.tell(event(second, "succeeded", id="ch_copy"))
    await hooks.tell(event(second, "succeeded", event_id="evt_2"))
    await hooks.until_counted("applied")
    assert [(await hooks.operation(generation=number)).incident for number in (1, 2)] == [None, None]


async def test_evidence_of_a_shared_key_goes_to_the_generation_that_it_fits(hooks: Hooks) -> None:
    """The first generation was told failed and its key released; its late success is an incident, not the second's."""
    another = {"Authorization": "Bearer another"}  # it is held from then on
    await hooks.world.charge(fault="rate_limited(retry_after_s=3600)", timeout_s=5, headers=another)
    await hooks.unknown(amount=2000)
    first, second = await hooks.operation(generation=1), await hooks.operation(generation=2)
    assert (first.state, first.provider_key) == (State.FAILED, second.provider_key)
    await hooks.tell(event(None, idempotency_key="key-1"))
    await hooks.until_counted("applied")
    assert (await hooks.operation(generation=1)).incident == "success_after_failure"
    assert (await hooks.operation(generation=2)).state is State.UNKNOWN


# --- who told it


async def test_what_is_not_genuine_is_refused_and_nothing_of_it_is_kept(hooks: Hooks) -> None:
    operation = await hooks.unknown()
    forged = await hooks.tell(event(operation), secret=OTHER_SECRET)
    old = await hooks.tell(event(operation), age_s=301)
    early = await hooks.tell(event(operation), age_s=-400)
    unsigned = await hooks.post("acme", json.dumps(event(operation)).encode())
    assert {answer.status_code for answer in (forged, old, early, unsigned)} == {401}
    assert len({answer.body for answer in (forged, old, early, unsigned)}) == 1  # a stranger learns nothing
    assert (hooks.count("bad_signature"), hooks.count("too_old"), hooks.count("no_signature")) == (1, 2, 1)
    assert (await hooks.operation()).state is State.UNKNOWN
    hooks.time.ahead_s += 10
    assert await hooks.world.journal.due_webhook_events(limit=10) == ()
    assert (await hooks.tell(event(operation))).status_code == 200  # the same event, genuine: not taken for known


async def test_an_address_that_no_policy_gives_is_not_found(hooks: Hooks) -> None:
    for path in ("nobody", "acme/shop-a", "acme/shop-a/more"):
        assert (await hooks.tell(event(), path=path)).status_code == 404
    assert hooks.count("unknown_address") == 1
    assert hooks.count("unknown_address", "other") == 1


async def test_a_secret_that_is_not_set_lets_the_provider_try_again(sandbox: Sandbox) -> None:
    for environment in ({}, {"ACME_WEBHOOK_SECRET": ""}):
        async with hooked(sandbox, environment=environment) as hooks:
            assert (await hooks.tell(event(), secret="")).status_code == 503
            assert hooks.count("no_secret") == 1


async def test_only_if_no_secret_of_a_list_is_set_a_line_says_so(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    exchanged = (SECRETS, "  secrets: [env:ACME_WEBHOOK_SECRET, env:ACME_WEBHOOK_SECRET_OLD]")
    async with hooked(sandbox, exchanged) as hooks:
        assert (await hooks.tell(event())).status_code == 200
    assert "ACME_WEBHOOK_SECRET_OLD" not in caplog.text
    async with hooked(sandbox, exchanged, environment={}) as hooks:
        assert (await hooks.tell(event())).status_code == 503
    [said] = [line for line in caplog.messages if "ACME_WEBHOOK_SECRET" in line]
    assert said.endswith("set ACME_WEBHOOK_SECRET or ACME_WEBHOOK_SECRET_OLD")


async def test_both_secrets_fit_while_they_are_exchanged(sandbox: Sandbox) -> None:
    both = (SECRETS, "  secrets: [env:ACME_WEBHOOK_SECRET, env:OTHER_SECRET, env:NOT_SET]")
    async with hooked(sandbox, both) as hooks:
        for number, secret in enumerate((SECRET, OTHER_SECRET)):
            assert (await hooks.tell(event(event_id=f"evt_{number}"), secret=secret)).status_code == 200


async def test_a_platforms_event_reaches_only_the_account_that_it_names(hooks: Hooks) -> None:
    operation = await hooks.unknown(headers={"Acme-Account": "shop-a"})
    told = event(operation)
    await hooks.tell({**told, "id": "evt_main"})
    await hooks.tell({**told, "id": "evt_b", "account": "shop-b"})
    await asyncio.sleep(0.3)
    assert (await hooks.operation()).state is State.UNKNOWN
    await hooks.tell({**told, "id": "evt_a", "account": "shop-a"})
    await hooks.until_counted("applied")
    assert (await hooks.operation()).state is State.SUCCEEDED


async def test_an_event_finds_a_payment_by_a_further_name_of_it(sandbox: Sandbox) -> None:
    """A dispute names the capture of an order, and not the order. Here the currency is such a name."""
    named = (
        "    also_known_as: error.charge\n    captures: automatic",
        "    also_known_as: currency\n    captures: automatic",
    )
    async with hooked(sandbox, ONE_TRY, named) as hooks:
        hooks.apply_from_now_on()
        await hooks.world.charge()
        operation = await hooks.operation()
        disputed = {"id": "dp_1", "object": "dispute", "charge": "EUR", "amount": 500, "currency": "EUR"}
        await hooks.tell({"id": "evt_1", "type": "dispute", "data": {**disputed, "status": "needs_response"}})
        await hooks.until_counted("nothing_new")  # of the operation: a dispute is a fact of its payment
        [row] = await hooks.world.journal.ledger_rows((payment_key(operation.payment),))
        assert row is not None
        assert payment_from_row(row).disputed == 500


async def test_a_refund_that_nobody_made_through_us_is_read_from_its_payment_and_frees_its_order(hooks: Hooks) -> None:
    """Made in the provider's dashboard. The event itself posts nothing: what it says of an amount is not believed."""
    await hooks.world.charge()
    sale = await hooks.operation()
    assert sale.reference is not None
    async with aiohttp.ClientSession() as provider:
        address = f"{hooks.world.sandbox.url}/v1/charges/{sale.reference}/refunds"
        async with provider.post(address, json={}, headers={"Idempotency-Key": "dashboard"}) as answer:
            assert answer.status == 200
            refund = await answer.json()
    assert problem_type(await hooks.world.charge("key-2", amount=900)) == "guarded"
    told = {**refund, "amount": 1}
    await hooks.tell({"id": "evt_1", "type": "refund.succeeded", "data": told})

    async def is_due() -> bool:
        [row] = await hooks.world.journal.ledger_rows((payment_key(sale.payment),))
        return row is not None and payment_from_row(row).verify_at is not None

    async with asyncio.timeout(15):
        while not await is_due():  # noqa: ASYNC110  # the world is real sockets
            await asyncio.sleep(0.01)
    assert await hooks.world.parts.payment_sweep.sweep() == 1
    [row] = await hooks.world.journal.ledger_rows((payment_key(sale.payment),))
    assert row is not None
    assert payment_from_row(row).refunded == 1099
    announced = [entry.announcement for entry in await hooks.world.journal.history(sale.id) if entry.announcement]
    assert announced[-1].kinds == (AnnouncementKind.MOVED_ELSEWHERE,)
    posting = announced[-1].posting
    assert posting is not None
    assert (posting.kind, posting.minor_units, posting.currency, posting.of) == ("refund", 1099, "EUR", sale.payment)
    assert (await hooks.world.charge("key-3", amount=900)).status_code == 200


# A create that bears the stamp and moves nothing. The confirm pays, and bears none.
_CREATE = """operations:
  create:
    kind: none
    match: POST /v1/charges
    where: "confirm == `false`"
    reference: id
    intent: metadata.order_id
    after_success: block
    answer: created_charge

"""
_CREATED = "answers:\n  created_charge:\n    - {when: \"status == 'created'\", as: succeeded}\n"


@pytest.mark.parametrize(("refunded", "status_code"), [(1099, 200), (1000, 409)])
async def test_totals_told_of_the_step_that_opened_a_payment_are_those_of_the_step_that_paid(
    sandbox: Sandbox, refunded: int, status_code: int
) -> None:
    """A dashboard refunded it. The event bore the stamp of the create, which moves nothing, and its totals were lost:
    the order was held for ever."""
    async with hooked(sandbox, ONE_TRY, ("operations:\n", _CREATE), ("answers:\n", _CREATED)) as hooks:
        hooks.apply_from_now_on()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": "create"}
        body = {"amount": 1099, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-1"}}
        assert (await hooks.world.post("/v1/charges", body, headers, CallerOptions())).status_code == 200
        create = await hooks.operation("create")
        path, headers = f"/v1/charges/{create.reference}/confirm", {**headers, "Idempotency-Key": "confirm"}
        assert (await hooks.world.post(path, {"source": "tok_ok"}, headers, CallerOptions())).status_code == 200
        assert (await hooks.world.charge("key-2", amount=900)).status_code == 409
        shown: dict[str, Any] = {"amount_captured": 1099, "amount_refunded": refunded}
        await hooks.tell(event(create, **shown))
        await hooks.until_counted("applied")
        [row] = await hooks.world.journal.ledger_rows((payment_key(create.payment),))
        assert row is not None
        assert payment_from_row(row).refunded == refunded
        assert (await hooks.world.charge("key-3", amount=900)).status_code == status_code
        older = event(create, event_id="evt_2", **{**shown, "amount_refunded": 0})
        await hooks.tell(older)
        await hooks.until_counted("nothing_new")


async def test_an_event_reaches_a_step_whose_request_names_no_account(sandbox: Sandbox) -> None:
    """The details of a 3DS check name neither payment nor account; the event names both."""
    continued = ("  sale:\n    kind: sale\n", "  sale:\n    kind: sale\n    continues: yes\n")
    async with hooked(sandbox, ONE_TRY, continued) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        await hooks.tell({**event(operation), "account": "shop-a"})
        await hooks.until_counted("applied")
        assert (await hooks.operation()).state is State.SUCCEEDED


async def test_an_accounts_secret_speaks_for_that_account_alone(sandbox: Sandbox) -> None:
    by_account = (SECRETS, "  secrets: {shop-a: [env:ACME_WEBHOOK_SECRET], shop-b: [env:OTHER_SECRET]}")
    async with hooked(sandbox, ONE_TRY, by_account) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown(headers={"Acme-Account": "shop-a"})
        told = event(operation)
        assert (await hooks.tell(told)).status_code == 404
        assert (await hooks.tell(told, path="acme/shop-a", secret=OTHER_SECRET)).status_code == 401
        assert (await hooks.tell({**told, "id": "1"}, path="acme/shop-b", secret=OTHER_SECRET)).status_code == 200
        crossed = {**told, "id": "2", "account": "shop-a"}
        assert (await hooks.tell(crossed, path="acme/shop-b", secret=OTHER_SECRET)).status_code == 200
        await hooks.until_counted("unmatched")  # it names another account than its secret's
        await asyncio.sleep(0.3)
        assert (await hooks.operation()).state is State.UNKNOWN
        await hooks.tell({**told, "id": "3"}, path="acme/shop-a")
        await hooks.until_counted("applied")


async def test_the_secret_of_an_account_of_the_policy_speaks_for_that_account_alone(sandbox: Sandbox) -> None:
    """The provider's calls name no account: credentials tell them apart."""
    by_account = (SECRETS, "  secrets: {shop_a: [env:ACME_WEBHOOK_SECRET], shop_b: [env:OTHER_SECRET]}")
    named = """account: [const:main]
merchants: many
accounts:
  shop_a: {merchant: alpha, credentials: {header: {Authorization: env:KEY_A}}}
  shop_b: {merchant: beta, owner: b, credentials: {header: {Authorization: env:KEY_B}}}
"""
    edits = (ONE_TRY, by_account, ("account: [const:main, header:Acme-Account]", named))
    async with hooked(sandbox, *edits) as hooks:
        owners = hooks.world.engine.credential_owners
        owners.environment = {"KEY_A": "Bearer test", "KEY_B": "Bearer b"}
        hooks.world.engine.policies.book = await owners.listed(hooks.world.engine.book)
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        assert operation.named_account == "shop_a"
        told = event(operation)
        assert (await hooks.tell({**told, "id": "1"}, path="acme/shop_b", secret=OTHER_SECRET)).status_code == 200
        await asyncio.sleep(0.3)
        assert (await hooks.operation()).state is State.UNKNOWN
        await hooks.tell({**told, "id": "2"}, path="acme/shop_a")
        await hooks.until_counted("applied")
        assert (await hooks.operation()).state is State.SUCCEEDED


MANY_OWNERS = """account: [const:main, header:Acme-Account]
merchants: many
who_am_i: {request: GET /v1/charges, query: {paywitness: none}, field: "'acct_a'"}
"""


PLACES = "account: [const:main, header:Acme-Account]"


@pytest.mark.parametrize(("selector", "name"), [({}, "acct_a"), ({"Acme-Account": "shop-a"}, "shop-a")])
async def test_under_many_merchants_an_owners_secret_speaks_for_that_owner_alone(
    sandbox: Sandbox, selector: dict[str, str], name: str
) -> None:
    """Without `accounts` the owner is part of the identity, and no event matched anything."""
    by_owner = (SECRETS, f"  secrets: {{{name}: [env:ACME_WEBHOOK_SECRET], b: [env:OTHER_SECRET]}}")
    async with hooked(sandbox, ONE_TRY, by_owner, (PLACES, MANY_OWNERS)) as hooks:
        told = event(await hooks.unknown(headers=selector))
        assert (await hooks.tell({**told, "id": "1"}, path="acme/b", secret=OTHER_SECRET)).status_code == 200
        await hooks.webhooks.apply_due()
        assert ((await hooks.operation()).state, hooks.count("applied")) == (State.UNKNOWN, 0)
        await hooks.tell({**told, "id": "2"}, path=f"acme/{name}")
        await hooks.webhooks.apply_due()
        assert ((await hooks.operation()).state, hooks.count("applied")) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize(("selector", "name"), [({}, "acct_a"), ({"Acme-Account": "shop-a"}, "shop-a")])
async def test_under_many_merchants_an_event_that_names_nobody_is_nobodys(
    sandbox: Sandbox, selector: dict[str, str], name: str
) -> None:
    """One secret for all owners, as of a platform: the event itself must name whose it is."""
    async with hooked(sandbox, ONE_TRY, (PLACES, MANY_OWNERS)) as hooks:
        told = event(await hooks.unknown(headers=selector))
        for number, account in enumerate((None, "b", "acct_b")):
            await hooks.tell({**told, "id": str(number), "account": account})
        await hooks.webhooks.apply_due()
        assert ((await hooks.operation()).state, hooks.count("applied")) == (State.UNKNOWN, 0)
        await hooks.tell({**told, "id": "9", "account": name})
        await hooks.webhooks.apply_due()
        assert ((await hooks.operation()).state, hooks.count("applied")) == (State.SUCCEEDED, 1)


async def test_an_event_of_no_account_is_not_found_by_a_name_that_another_merchant_may_have_chosen(
    sandbox: Sandbox,
) -> None:
    """Two merchants behind one address for events. The other one has paid past the sidecar, under an equal key and
    order: its event ended our merchant's payment, which was never made."""
    named = """account: [const:main]
merchants: many
accounts:
  shop_a: {merchant: alpha, owner: a, credentials: {header: {Authorization: env:KEY_A}}}
  shop_b: {merchant: beta, owner: b, credentials: {header: {Authorization: env:KEY_B}}}
"""
    by_order = ("    - {reference: data.id}", "    - {reference: data.id}\n    - {intent: data.metadata.order_id}")
    edits = (ONE_TRY, by_order, ("account: [const:main, header:Acme-Account]", named))
    async with hooked(sandbox, *edits) as hooks:
        owners = hooks.world.engine.credential_owners
        owners.environment = {"KEY_A": "Bearer test", "KEY_B": "Bearer b"}
        hooks.world.engine.policies.book = await owners.listed(hooks.world.engine.book)
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        assert (operation.named_account, operation.provider_key) == ("shop_a", "key-1")
        theirs: dict[str, Any] = {"idempotency_key": "key-1", "id": "ch_theirs", "metadata": {"order_id": "order-1"}}
        await hooks.tell(event(None, event_id="evt_theirs", **theirs))
        await hooks.tell(event(operation, event_id="evt_ours"))  # it bears our stamp
        ended = await hooks.until(lambda found: found.state is State.SUCCEEDED)
        assert (ended.reference, ended.incident, hooks.count("applied")) == ("ch_1", None, 1)


async def test_an_account_may_also_be_named_to_us_alone(sandbox: Sandbox) -> None:
    by_account = (SECRETS, "  secrets: {shop-a: [env:ACME_WEBHOOK_SECRET]}")
    async with hooked(sandbox, ONE_TRY, by_account) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown(options=CallerOptions(account="shop-a"))
        await hooks.tell(event(operation), path="acme/shop-a")
        await hooks.until_counted("applied")


# --- which operation it is about


async def test_an_event_that_comes_before_its_operation_waits_for_it(hooks: Hooks) -> None:
    await hooks.tell(event(None, idempotency_key="key-1"))
    await asyncio.sleep(0.1)
    assert (hooks.count("accepted"), hooks.count("applied")) == (1, 0)
    await hooks.unknown()
    await hooks.until_counted("applied")
    assert (await hooks.operation()).state is State.SUCCEEDED


async def test_a_callers_key_is_not_taken_for_the_providers(hooks: Hooks) -> None:
    """What the caller calls `paid` went to the provider under a key of ours; its `paid` is somebody else's."""
    await hooks.unknown("theirs", options=CallerOptions(key="paid"))
    await hooks.tell(event(None, idempotency_key="paid"))
    await asyncio.sleep(0.3)
    assert hooks.count("applied") == 0
    assert (await hooks.operation("paid")).state is State.UNKNOWN


async def test_two_candidates_match_none(hooks: Hooks) -> None:
    """A sale and an authorization under one key at the provider."""
    await hooks.unknown()
    body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": "o-2"}}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": "key-1"}
    await hooks.world.post("/v1/charges", body, {**headers, "Sandbox-Fault": "drop_after_commit"})
    both = await hooks.world.journal.find_operations(OperationQuery(key="key-1"))
    assert {each.operation for each in both} == {"sale", "authorization"}
    await hooks.tell(event(None, idempotency_key="key-1", id=None))
    await hooks.until_counted("ambiguous")
    after = await hooks.world.journal.find_operations(OperationQuery(key="key-1"))
    assert [each.state for each in after] == [each.state for each in both]
    await hooks.tell(event(both[0], event_id="evt_2", idempotency_key="key-1"))  # the stamp names one: the first wins
    await hooks.until_counted("applied")


async def test_an_intent_finds_its_only_payment(sandbox: Sandbox) -> None:
    finder = ("    - {reference: data.id}", "    - {reference: data.id}\n    - {intent: data.metadata.order_id}")
    async with hooked(sandbox, ONE_TRY, finder) as hooks:
        hooks.apply_from_now_on()
        await hooks.unknown()
        await hooks.tell(event(None, metadata={"order_id": "order-1"}))
        await hooks.until_counted("applied")


async def test_waiting_ends_after_seven_days(hooks: Hooks) -> None:
    await hooks.tell(event(None, idempotency_key="of somebody else"))
    await asyncio.sleep(0.1)
    hooks.time.ahead_s += 6.9 * 86400
    await asyncio.sleep(1.2)
    assert hooks.count("unmatched") == 0
    hooks.time.ahead_s += 0.5 * 86400
    await hooks.until_counted("unmatched")


# --- what a delivery may be


async def test_a_delivery_of_several_events_is_kept_event_by_event(sandbox: Sandbox) -> None:
    several = (SECRETS, f"  events: items\n  reply: '[accepted]'\n{SECRETS}")
    async with hooked(sandbox, ONE_TRY, several) as hooks:
        hooks.apply_from_now_on()
        first, second = await hooks.unknown("one", order="1"), await hooks.unknown("two", order="2")
        told = {"items": [event(first, event_id="1"), event(second, event_id="2", id="ch_2")]}
        answer = await hooks.tell(told)
        assert (answer.status_code, answer.body) == (200, b"[accepted]")
        await hooks.until_counted("applied", 2)
        assert (await hooks.tell({"items": []})).status_code == 200  # the policy leaves nothing of it
        assert hooks.count("ignored") == 1
        nameless = {"items": [event(first, event_id="3"), {"data": {}}]}
        assert (await hooks.tell(nameless)).status_code == 422
        assert hooks.count("accepted") == 3  # what can be kept is


@pytest.mark.parametrize(
    ("body", "status_code", "result"),
    [
        (b"not json", 400, "unreadable"),
        (b"", 400, "unreadable"),
        (b"[" * 100_000, 400, "unreadable"),
        (b"{}", 422, "no_event_id"),
        (b"null", 422, "no_event_id"),
        (b'{"id": {"a": 1}}', 422, "no_event_id"),
        (b'{"id": "' + b"x" * 300 + b'"}', 422, "no_event_id"),
    ],
)
async def test_a_genuine_delivery_that_cannot_be_kept_is_not_acknowledged(
    hooks: Hooks, body: bytes, status_code: int, result: str
) -> None:
    assert (await hooks.tell(body)).status_code == status_code
    assert hooks.count(result) == 1


# --- trouble


async def test_a_journal_that_is_down_acknowledges_nothing_and_loses_nothing(sandbox: Sandbox) -> None:
    journal = ShakyJournal(clock=SystemClock())
    async with hooked(sandbox, ONE_TRY, journal=journal) as hooks:
        hooks.apply_from_now_on()
        operation = await hooks.unknown()
        journal.down = True
        refused = await hooks.tell(event(operation))
        assert (refused.status_code, refused.header("Retry-After")) == (503, "5")
        assert hooks.count("not_kept") == 1
        journal.down = False
        assert (await hooks.tell(event(operation))).status_code == 200
        journal.down = True  # between the acknowledgement and the applying, for a while
        await asyncio.sleep(0.1)
        journal.down = False
        await hooks.until_counted("applied")


async def test_what_was_acknowledged_is_applied_by_the_next_process(sandbox: Sandbox) -> None:
    async with hooked(sandbox, ONE_TRY) as hooks:  # nobody applies anything here
        operation = await hooks.unknown()
        assert (await hooks.tell(event(operation))).status_code == 200
        assert (await hooks.operation()).state is State.UNKNOWN
        await webhooks_of(hooks.world).apply_due()
        assert (await hooks.operation()).state is State.SUCCEEDED


async def test_a_journal_on_disk_keeps_finds_and_applies_alike(sandbox: Sandbox, tmp_path: Path) -> None:
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    finder = ("    - {reference: data.id}", "    - {reference: data.id}\n    - {intent: data.metadata.order_id}")
    async with hooked(sandbox, ONE_TRY, finder, journal=journal) as hooks:
        hooks.apply_from_now_on()
        for name in ("stamp", "key", "intent", "reference"):
            await hooks.unknown(name, order=name)
        by_stamp = await hooks.operation("stamp")
        await hooks.tell(event(by_stamp, event_id="1", id="ch_stamp"))
        await hooks.tell(event(None, event_id="2", id="ch_key", idempotency_key="key"))
        await hooks.tell(event(None, event_id="3", id="ch_intent", metadata={"order_id": "intent"}))
        pending = {"idempotency_key": "reference"}
        await hooks.tell(event(None, "processing", event_id="4", id="ch_reference", **pending))
        await hooks.until_counted("applied", 4)
        await hooks.tell(event(None, event_id="5", id="ch_reference"))
        await hooks.until_counted("applied", 5)
        for name in ("stamp", "key", "intent", "reference"):
            ended = await hooks.operation(name)
            assert (ended.state, ended.reference) == (State.SUCCEEDED, f"ch_{name}")
        assert (await hooks.tell(event(by_stamp, event_id="1"))).status_code == 200
        assert hooks.count("duplicate") == 1


async def test_many_at_once_are_all_applied_and_each_once(hooks: Hooks) -> None:
    keys = [f"key-{number}" for number in range(100)]
    charges = await asyncio.gather(*(hooks.unknown(key, order=key) for key in keys))
    told = [hooks.tell(event(charge, event_id=charge.id, id=f"ch_{charge.id}")) for charge in charges]
    assert {answer.status_code for answer in await asyncio.gather(*told)} == {200}
    await hooks.until_counted("applied", 100)
    states = {(await hooks.operation(key)).state for key in keys}
    assert states == {State.SUCCEEDED}


# --- the relay


@dataclass
class Service:
    """The shop's own webhook address, which fails as often as it is told to."""

    fails: int = 0
    taken: list[bytes] = field(default_factory=list)
    refused: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = await reader.readexactly(length)
        if self.fails > 0:
            self.fails -= 1
            self.refused += 1
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            self.taken.append(head + body)
            writer.write(b"HTTP/1.1 204 Fine\r\nConnection: close\r\n\r\n")
        writer.close()


@asynccontextmanager
async def relaying(sandbox: Sandbox, service: Service, *edits: tuple[str, str]) -> AsyncIterator[Hooks]:
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    relay = (SECRETS, f"  relay: http://127.0.0.1:{port}/hooks?from=acme\n{SECRETS}")
    async with hooked(sandbox, ONE_TRY, relay, *edits) as hooks:
        hooks.apply_from_now_on()
        yield hooks
    server.close()


async def test_a_relayed_delivery_is_the_providers_own_with_what_we_know_beside_it(sandbox: Sandbox) -> None:
    service = Service()
    async with relaying(sandbox, service) as hooks:
        operation = await hooks.unknown()
        body = json.dumps(event(operation), indent=3).encode()
        await hooks.tell(body, headers=("X-Acme: yes", "Paywitness-Account: forged", "Keep-Alive: timeout=5"))
        await hooks.tell(body)
        await hooks.until_counted("relayed")
        (taken,) = service.taken
        head, _, relayed = taken.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /hooks?from=acme HTTP/1.1\r\n")
        assert relayed == body
        assert b"X-Acme: yes" in head
        assert b"Webhook-Signature: sha256=" in head
        assert b"forged" not in head
        assert b"timeout=5" not in head
        assert f"Paywitness-Operation: {operation.id}".encode() in head
        assert b"Paywitness-Outcome: succeeded" in head


async def test_a_service_that_fails_is_told_again_until_it_takes_it(sandbox: Sandbox) -> None:
    service = Service(fails=2)
    async with relaying(sandbox, service) as hooks:
        operation = await hooks.unknown()
        await hooks.tell(event(operation))
        await hooks.until_counted("applied")  # the money does not wait for the service
        await hooks.until_counted("relayed")
        assert (service.refused, len(service.taken)) == (2, 1)
        hooks.time.ahead_s += 3600
        await asyncio.sleep(0.3)
        assert len(service.taken) == 1


async def test_what_matches_nothing_is_relayed_all_the_same(sandbox: Sandbox) -> None:
    service = Service()
    async with relaying(sandbox, service) as hooks:
        await hooks.tell(event(None, idempotency_key="of another system"))
        await hooks.until_counted("relayed")
        assert b"Paywitness-Operation" not in service.taken[0]


async def test_a_delivery_of_several_is_relayed_once_and_one_that_is_not_for_us_too(sandbox: Sandbox) -> None:
    service = Service()
    async with relaying(sandbox, service, (SECRETS, f"  events: items\n{SECRETS}")) as hooks:
        await hooks.tell({"items": [event(event_id="1"), event(event_id="2")]})
        await hooks.tell({"items": [event(event_id="2"), event(event_id="1")]})
        await hooks.until_counted("relayed")
        for _ in range(2):
            await hooks.tell({"items": [], "of": "another kind"})
        await hooks.until_counted("relayed", 2)
        assert service.taken[1].endswith(b'{"items": [], "of": "another kind"}')


async def test_what_we_cannot_read_is_refused_and_still_relayed(sandbox: Sandbox) -> None:
    """Before we came between, the service heard of it; it shall not lose it by us."""
    service = Service()
    async with relaying(sandbox, service) as hooks:
        for _ in range(2):
            assert (await hooks.tell(b"id=tr_1&ping=1")).status_code == 400
            assert (await hooks.tell(b'{"ping": 1}')).status_code == 422
        await hooks.until_counted("relayed", 2)
        assert sorted(taken.partition(b"\r\n\r\n")[2] for taken in service.taken) == [b"id=tr_1&ping=1", b'{"ping": 1}']


def test_the_relay_waits_as_long_as_it_has_waited_and_gives_up_after_three_days() -> None:
    assert next_relay_at(100.0, 100.0) == 101.0
    assert next_relay_at(100.0, 130.0) == 160.0
    assert next_relay_at(100.0, 5000.0) == 5300.0
    assert next_relay_at(100.0, 100.0 + 3 * 86400) is None
