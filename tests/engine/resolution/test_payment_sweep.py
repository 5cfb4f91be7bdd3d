"""The sweep of payments: what nobody can verify reaches a person, and is counted where an alert sees it."""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import State
from paywitness.core.payment import PaidElsewhere, Payment
from paywitness.engine.durability.recovery import Recovery
from paywitness.journal.base import OperationChange
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world

SCHEDULE_LENGTH_MAX = 20


async def declined_and_paid_elsewhere(world: World) -> Payment:
    """An operation of ours ended without effect, and the provider says that its payment was made, not by us."""
    reply = await world.charge(source="tok_stolen_card")
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


async def test_the_gauge_counts_authorizations_that_expire_within_two_days(world: World) -> None:
    now = world.clock.now()
    recovery = Recovery(world.journal, world.clock, world.engine.telemetry, 30.0)
    assert counted(world, "payment_authorizations_expiring") is None
    await recovery._update_gauges()
    assert counted(world, "payment_authorizations_expiring") == 0
    paid = Payment("op_1", "acme", "account-1", ("ch_1",), paid=True, authorised=100, captured=0)
    announced = replace(paid, id="op_2", expires_at=now + 3_600, expiry_announced="soon")
    tomorrow = replace(paid, id="op_3", expires_at=now + 47 * 3_600)
    later = replace(paid, id="op_4", expires_at=now + 49 * 3_600)
    over = replace(paid, id="op_5", expires_at=now - 60, expiry_announced="expired")
    await world.journal.write_ledger_rows(tuple(payment_row(each, None) for each in (announced, tomorrow, later, over)))
    await recovery._update_gauges()
    assert counted(world, "payment_authorizations_expiring") == 2
