"""The worlds that the tests of the engine stand on: two sidecars of one test have nothing in common but the journal."""

from __future__ import annotations

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import Claim, ClaimRequest
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import make_world
from tests.journal.memory import MemoryJournal
from tests.randomness import SeededRandomness, own_randomness


class _ClaimsKept(MemoryJournal):
    """A journal that remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.claims: list[ClaimRequest] = []

    async def claim(self, request: ClaimRequest) -> Claim:
        self.claims.append(request)
        return await super().claim(request)


async def test_two_sidecars_of_one_test_draw_other_lease_tokens_and_operation_ids(sandbox: Sandbox) -> None:
    journal = _ClaimsKept()
    first, second = await make_world(sandbox, journal=journal), await make_world(sandbox, journal=journal)
    for number in range(20):
        await first.charge(f"first-{number}", order=f"first-{number}")
        await second.charge(f"second-{number}", order=f"second-{number}")
    await close(second)
    await close(first)
    tokens = [claim.token for claim in journal.claims]
    ids = [claim.fresh.id for claim in journal.claims]
    random_parts = [operation_id[-16:] for operation_id in ids]  # the rest is the time
    assert len(tokens) == len(set(tokens)) == len(set(random_parts)) == 40


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_test_draws_the_same_whichever_tests_ran_before(turn: str) -> None:
    drawn = [own_randomness().token() for _ in range(3)]
    assert drawn == [SeededRandomness(seed).token() for seed in (1, 2, 3)]
