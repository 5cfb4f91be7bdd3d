"""A dispute is announced once for each change of what is disputed, however many events tell of it."""

from __future__ import annotations

from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import AnnouncementKind, Finding, FindingKind, Operation
from paywitness.core.result import Classification, ResultClass
from tests.engine.world import World, header


async def tell(world: World, operation: Operation, reading: ResultClass, amount: int) -> None:
    """An event of the provider about a dispute of the payment."""
    policy = await world.parts.payment_sweep.pinned.policy_from_book(operation, world.parts.payment_sweep.book())
    assert policy is not None
    finding = Finding("webhook", FindingKind.HIT, 200, Classification.of(reading, "dispute"))
    current = await world.journal.read(operation.id)
    assert current is not None
    shown = {"amount": amount, "currency": "EUR"}
    await world.parts.external_evidence.apply(current, policy, EvidenceSource.WEBHOOK, finding, provider_object=shown)


async def announced(world: World, operation: Operation) -> list[AnnouncementKind]:
    entries = await world.journal.history(operation.id)
    return [
        kind
        for entry in entries
        if entry.announcement is not None
        for kind in entry.announcement.kinds
        if kind in {AnnouncementKind.DISPUTED, AnnouncementKind.DISPUTE_WON}
    ]


async def test_several_events_of_one_dispute_are_announced_once(stored_world: World) -> None:
    reply = await stored_world.charge()
    operation = await stored_world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    for _ in range(3):  # opened, evidence wanted, under review
        await tell(stored_world, operation, ResultClass.DISPUTED, 500)
    assert await announced(stored_world, operation) == [AnnouncementKind.DISPUTED]
    await tell(stored_world, operation, ResultClass.DISPUTED, 1099)  # it was widened
    for _ in range(2):
        await tell(stored_world, operation, ResultClass.DISPUTE_WON, 1099)
    expected = [AnnouncementKind.DISPUTED, AnnouncementKind.DISPUTED, AnnouncementKind.DISPUTE_WON]
    assert await announced(stored_world, operation) == expected
