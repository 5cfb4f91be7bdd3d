"""The gauges of doubt have the operation's kind on every journal, although what a journal counts has none."""

from __future__ import annotations

from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.operation import Operation
from paywitness.core.provider_contract import OperationKind
from paywitness.engine.durability.recovery import Recovery
from paywitness.journal.base import Journal, OperationQuery
from paywitness.telemetry.events import PolicyReloaded
from paywitness.telemetry.prometheus import JOURNAL_LABEL_LETTERS
from tests.ages import ages_for
from tests.journal.samples import doubting, owned, pending
from tests.telemetry.conftest import Told
from tests.telemetry.test_gauges import Enough, FewSleeps

PAYOUT: dict[str, Any] = {"provider": "acme", "operation": "transfer", "kind": OperationKind.PAYOUT}
# What is listed at every look: operations in review, and pending ones.
PAGES = 2


def in_journal(journal: Journal, **labels: Any) -> dict[str, Any]:
    return {**labels, "journal": journal.journal_id()[:JOURNAL_LABEL_LETTERS]}


async def look(journal: Journal, told: Told, times: int = 1) -> None:
    ages = ages_for(journal, SystemClock())
    with pytest.raises(Enough):
        await Recovery(journal, FewSleeps(times - 1), told.telemetry, 30.0, ages).keep_updating_gauges()


async def test_the_book_says_the_kind(journal: Journal) -> None:
    told = Told()
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": {"transfer": OperationKind.PAYOUT}}))
    await journal.record(doubting(await owned(journal, **PAYOUT)))
    await look(journal, told)
    labels = in_journal(journal, **PAYOUT)
    assert told.value("payment_operations_in_doubt", **labels) == 1
    assert told.value("payment_retry_queue_depth", **labels) == 1


async def test_the_operation_says_it_if_its_policy_was_removed(journal: Journal) -> None:
    told = Told()
    told.tell(PolicyReloaded("r1", ok=True, operations={"other": {"pay": OperationKind.SALE}}))
    for number in range(3):
        await journal.record(doubting(await owned(journal, f"key-{number}", **PAYOUT)))
    await journal.record(pending(await owned(journal, "key-4", **{**PAYOUT, "operation": "slow_transfer"})))
    await look(journal, told)
    labels = in_journal(journal, **PAYOUT)
    assert told.value("payment_operations_in_doubt", **labels) == 3
    assert told.value("payment_retry_queue_depth", **labels) == 3
    assert told.value("payment_retry_queue_depth", **{**labels, "operation": "slow_transfer"}) == 1


async def test_an_operation_is_read_for_its_kind_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[OperationQuery] = []
    find = journal.find_operations

    async def counting(query: OperationQuery) -> tuple[Operation, ...]:
        asked.append(query)
        return await find(query)

    monkeypatch.setattr(journal, "find_operations", counting)
    told = Told()
    await journal.record(doubting(await owned(journal, **PAYOUT)))
    await look(journal, told, times=3)
    assert len(asked) == 3 * PAGES + 1
