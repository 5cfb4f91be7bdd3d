"""A decline that the journal did not take: told only where the provider would say the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.core.operation import State
from paywitness.engine.durability.spool import Spool
from paywitness_sandbox.server import Sandbox
from tests.engine.durability.test_spool import VAULT, FallsSilent, end, replay_in, stands
from tests.engine.resolution.test_resolver import NOT_STORED, REEXECUTED
from tests.engine.world import header, make_world, outcome


async def test_a_decline_that_a_re_send_might_turn_into_a_charge_is_not_told_before_the_journal_has_it(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Whoever finds the key in doubt may send it again, and be charged: the caller must not have been told no."""
    sandbox.set_contract("reexecuted")
    journal = FallsSilent(clock=SystemClock())
    spool = Spool(tmp_path / "spool", VAULT, SystemClock())
    world = await make_world(sandbox, REEXECUTED, journal=journal, spool=spool)
    reply = await world.charge(source="tok_stolen_card")
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    assert (await stands(world)).state is State.SENDING
    journal.down = False
    assert await replay_in(world, spool).replay_all() == 1
    assert ((await stands(world)).state, world.effects(order="order-1")) == (State.FAILED, 0)
    await end(world, spool)


@pytest.mark.parametrize("contract", ["replayed", "not_stored"])
async def test_a_decline_that_no_re_send_can_change_passes_once_the_spool_has_it(
    sandbox: Sandbox, tmp_path: Path, contract: str
) -> None:
    """It would be replayed, or nobody sends it again."""
    sandbox.set_contract(contract)
    journal = FallsSilent(clock=SystemClock())
    spool = Spool(tmp_path / "spool", VAULT, SystemClock())
    edits = (NOT_STORED,) if contract == "not_stored" else ()
    world = await make_world(sandbox, *edits, journal=journal, spool=spool)
    reply = await world.charge(source="tok_stolen_card")
    assert (reply.status_code, header(reply, "Paywitness-Because")) == (402, "journal_unavailable_spooled")
    await end(world, spool)
