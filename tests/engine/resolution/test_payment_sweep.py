"""The sweep of payments: what nobody can verify reaches a person, and is counted where an alert sees it."""

from __future__ import annotations

import json
from dataclasses import replace

import aiohttp

from paywitness.core.call import CallerOptions
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import State
from paywitness.core.payment import PaidElsewhere, Payment
from paywitness.core.policy import ResolutionRules
from paywitness.core.reply import Reply
from paywitness.engine.durability.recovery import Recovery
from paywitness.journal.base import OperationChange
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world

SCHEDULE_LENGTH_MAX = 20


SETTLED = ResolutionRules(settle_s=-1.0)  # every look comes after everything has settled


async def declined_and_paid_elsewhere(world: World, fault: str | None = None) -> Payment:
    """An operation of ours ended without effect, and the provider says that its payment was made, not by us."""
    reply = await world.charge(source="tok_stolen_card", fault=fault)
    operation = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    assert operation.state is State.FAILED
    await world.journal.record(OperationChange(operation.changed(paid_elsewhere=True), ()))
    payment = Payment(
        operation.id,
        operation.provider,
        operation.account,
        ("ch_unknown",),
        elsewhere=PaidElsewhere.UNVERIFIED,
        verify_at=world.clock.now() - 1.0,
        verifications=SCHEDULE_LENGTH_MAX,
        steps=(operation.id,),
    )
    [stored] = await world.journal.ledger_rows((f"p:{payment.id}",))
    assert await world.journal.write_ledger_rows((payment_row(payment, stored),))
    return payment


def counted(world: World, name: str, **labels: str) -> float | None:
    return world.engine.telemetry.metrics.registry.get_sample_value(name, labels)


async def test_a_payment_that_no_inquiry_verifies_is_an_incident_that_is_counted(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    payment = await declined_and_paid_elsewhere(world)
    sandbox.set_schedule({"read_faults": "error_500*"})
    await world.parts.payment_sweep.sweep()
    operation = await world.journal.read(payment.id)
    assert operation is not None
    assert operation.incident == IncidentKind.UNVERIFIED_PAYMENT
    assert counted(world, "payment_incidents_total", provider="acme", kind="unverified_payment") == 1
    [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
    assert row is not None
    assert payment_from_row(row).elsewhere is PaidElsewhere.UNVERIFIED  # its intent stays held
    await close(world)


async def test_an_inquiry_that_failed_is_no_miss_and_frees_nothing(sandbox: Sandbox) -> None:
    """Two looks at a replica that lags, and one that failed, freed an order that was paid in the browser."""
    world = await make_world(sandbox, resolve=SETTLED)
    payment = await declined_and_paid_elsewhere(world, fault="unauthorized*")  # nothing was made that could be found

    async def verified(verifications: int, misses: int) -> PaidElsewhere:
        [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
        again = replace(payment, verify_at=world.clock.now() - 1.0, verifications=verifications, verify_misses=misses)
        assert await world.journal.write_ledger_rows((payment_row(again, row),))
        await world.parts.payment_sweep.sweep()
        [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
        assert row is not None
        return payment_from_row(row).elsewhere

    assert await verified(verifications=2, misses=0) is PaidElsewhere.UNVERIFIED
    assert await verified(verifications=4, misses=2) is PaidElsewhere.NO
    await close(world)


async def looked_at_thrice(world: World) -> list[PaidElsewhere]:
    """What three inquiries in a row make of a payment whose charge was declined."""
    payment = await declined_and_paid_elsewhere(world)  # the inquiry shows the charge that was declined
    seen = []
    for _ in range(3):
        [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
        assert row is not None
        due = replace(payment_from_row(row), verify_at=world.clock.now() - 1.0, verifications=0)
        assert await world.journal.write_ledger_rows((payment_row(due, row),))
        await world.parts.payment_sweep.sweep()
        [row] = await world.journal.ledger_rows((f"p:{payment.id}",))
        assert row is not None
        seen.append(payment_from_row(row).elsewhere)
    return seen


async def test_one_look_that_shows_a_decline_frees_nothing(sandbox: Sandbox) -> None:
    """A replica that lags showed the decline from before the payment in the browser, and the order was paid again."""
    world = await make_world(sandbox, resolve=SETTLED)
    assert await looked_at_thrice(world) == [PaidElsewhere.UNVERIFIED, PaidElsewhere.UNVERIFIED, PaidElsewhere.NO]
    await close(world)


async def test_looks_before_everything_has_settled_free_nothing(sandbox: Sandbox) -> None:
    """Two looks at a replica that lags and an empty response freed an order that the provider had called paid a minute
    before. It was paid a second time."""
    world = await make_world(sandbox)
    assert await looked_at_thrice(world) == [PaidElsewhere.UNVERIFIED] * 3
    await close(world)


HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}


async def authorised(world: World, key: str, **more: object) -> Reply:
    body = {
        "amount": 1000,
        "currency": "EUR",
        "source": "tok_ok",
        "capture": False,
        "metadata": {"order_id": "order-9"},
    }
    return await world.post("/v1/charges", {**body, **more}, {**HEADERS, "Idempotency-Key": key}, CallerOptions())


async def test_an_authorization_that_expired_frees_its_intent_once_the_provider_says_so(stored_world: World) -> None:
    """N12, P24: our own date frees nothing. At that time the provider is asked, and its word counts."""
    world = stored_world
    reference = json.loads((await authorised(world, "first")).body)["id"]
    [payment_id] = await world.engine.intents.payments.find(reference)

    async def expired_and_swept() -> Payment:
        [row] = await world.journal.ledger_rows((f"p:{payment_id}",))
        assert row is not None
        over = replace(payment_from_row(row), expires_at=world.clock.now() - 5.0, expiry_announced="", verify_at=None)
        assert await world.journal.write_ledger_rows((payment_row(over, row),))
        for _ in range(2):  # it is announced, and then asked about
            await world.parts.payment_sweep.sweep()
        [row] = await world.journal.ledger_rows((f"p:{payment_id}",))
        assert row is not None
        return payment_from_row(row)

    still_open = await expired_and_swept()
    assert (still_open.expiry_announced, still_open.capturable) == ("expired", 1000)
    assert still_open.verify_at is not None  # and is asked about again
    assert (await authorised(world, "second", amount=1100)).status_code == 409
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges/{reference}/void", json={}, headers=HEADERS) as response,
    ):
        assert response.status == 200
    assert (await expired_and_swept()).capturable == 0
    effects = world.effects()
    equal = await authorised(world, "late")
    assert (equal.status_code, json.loads(equal.body)["type"].rsplit(":", 1)[-1]) == (409, "refunded")
    assert world.effects() == effects
    assert (await authorised(world, "third", amount=1100)).status_code == 200


async def test_the_gauge_counts_authorizations_that_expire_within_two_days(world: World) -> None:
    now, name, journal = world.clock.now(), "payment_authorizations_expiring", world.journal.journal_id()[:8]
    recovery = Recovery(world.journal, world.clock, world.engine.telemetry, 30.0, world.parts.ages)
    assert counted(world, name, journal=journal) is None
    await recovery._update_gauges()
    assert counted(world, name, journal=journal) == 0
    paid = Payment("op_1", "acme", "account-1", ("ch_1",), paid=True, authorised=100, captured=0)
    announced = replace(paid, id="op_2", expires_at=now + 3_600, expiry_announced="soon")
    tomorrow = replace(paid, id="op_3", expires_at=now + 47 * 3_600)
    later = replace(paid, id="op_4", expires_at=now + 49 * 3_600)
    over = replace(paid, id="op_5", expires_at=now - 60, expiry_announced="expired")
    await world.journal.write_ledger_rows(tuple(payment_row(each, None) for each in (announced, tomorrow, later, over)))
    await recovery._update_gauges()
    assert counted(world, name, journal=journal) == 2
