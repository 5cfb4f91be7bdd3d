"""A refusal that the journal did not take: told only if the provider would say the same again, and it means the same
later as in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.operation import State
from paywitness.core.payment import PaidElsewhere
from paywitness.engine.durability.spool import Spool
from paywitness_sandbox.server import Sandbox
from tests.engine.calls.test_payment_traces import ORDER, confirm, create, elsewhere, lines, operation_of, payment_of
from tests.engine.durability.test_spool import VAULT, FallsSilent, end, replay_in, stands
from tests.engine.resolution.test_resolver import NOT_STORED, REEXECUTED
from tests.engine.world import header, make_world, outcome, problem_type


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


class FallsSilentOnceTold(FallsSilent):
    falls_silent = False

    async def claim(self, request: ClaimRequest) -> Claim:
        claim = await super().claim(request)
        self.down = self.falls_silent
        return claim


async def test_a_payment_made_elsewhere_holds_its_intent_also_if_the_spool_kept_the_refusal_that_says_so(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The browser has confirmed the charge, the job's confirm is refused, and the journal is down. Once it has the
    refusal, the order counts as paid like after a refusal that the journal took in time."""
    journal = FallsSilentOnceTold(clock=SystemClock())
    spool = Spool(tmp_path / "spool", VAULT, SystemClock())
    world = await make_world(sandbox, journal=journal, spool=spool)
    charge = await create(world, "create")
    await elsewhere(world, f"/v1/charges/{charge}/confirm", {"source": "tok_ok"})
    journal.falls_silent = True
    refused = await confirm(world, charge, "job")
    journal.falls_silent = journal.down = False
    assert await replay_in(world, spool).replay_all() == 1
    operation = await operation_of(world, refused)
    assert (operation.state, operation.paid_elsewhere) == (State.FAILED, True)
    payment = await payment_of(world, charge)
    assert (payment.elsewhere, payment.verify_at is not None) == (PaidElsewhere.UNVERIFIED, True)
    anew = await world.charge("anew", amount=1000)
    assert (anew.status_code, problem_type(anew)) == (409, "guarded")
    assert json.loads((await world.engine.intents.describe(ORDER)).body)["safe_to_pay"] is False
    assert lines(world) == [("charge", 1000)]
    await end(world, spool)
