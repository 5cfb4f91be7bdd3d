"""Caps and approvals of payouts in every store: counted with the claim, given back with the record, used up once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import Claim, ClaimRequest, ClaimVerdict
from paywitness.core.consequences import announcement_of
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import Operation, PayoutStage, State
from paywitness.core.payout import (
    APPROVALS_WAITING_KEY,
    ApprovalTerms,
    CapClaim,
    PayoutClaim,
    cap_key,
    spent_change,
)
from paywitness.core.payout_rules import CapScope, PayoutCap
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass
from paywitness.journal.base import Journal, OperationChange
from paywitness.journal.payouts import REQUEST_KEPT_S, WAITING_MAX, approval_from_row, approval_row, waiting_ids
from paywitness.journal.redis import writer
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    asking,
    declining,
    doubting,
    pending,
    read,
    reversing,
    succeeding,
    telling,
    waiting,
)

DAY_S = 86_400.0
CAP = PayoutCap(CapScope.ACCOUNT, DAY_S, Money(5000, "EUR"))
CAPS = PayoutClaim((CapClaim(cap_key(CAP, "acme", "account-1"), CAP),))
TERMS = ApprovalTerms("ap_1", "acme", "payout", "account-1", "fingerprint-1", "P-1", "beneficiary", Money(1000, "EUR"))
APPROVAL = PayoutClaim(approval=TERMS, approval_valid_s=3600.0)


def payout(key: str, claim: PayoutClaim | None = CAPS, *, amount: int = 1000, **changes: Any) -> ClaimRequest:
    made = {"kind": OperationKind.PAYOUT, "operation": "payout", "money": Money(amount, "EUR"), **changes}
    return replace(asking(key, **made), payout=claim)


async def started(journal: Journal, key: str, claim: PayoutClaim | None = CAPS, **changes: Any) -> Operation:
    taken = await journal.claim(payout(key, claim, **changes))
    assert (taken.verdict, taken.operation is not None) == (ClaimVerdict.OWNED, True)
    assert taken.operation is not None
    return taken.operation


async def is_over(journal: Journal, key: str, amount: int) -> Claim:
    taken = await journal.claim(payout(key, amount=amount))
    assert taken.verdict is ClaimVerdict.OVER_CAP
    return taken


async def spent(journal: Journal) -> int:
    [row] = await journal.ledger_rows((CAPS.caps[0].key,))
    return 0 if row is None else int(row.text.split(" ")[1])


async def record(journal: Journal, before: Operation, change: OperationChange) -> Operation:
    """As the engine writes it: with what it moves of the caps, and what it tells."""
    told = telling(before, change)
    return await journal.record(replace(told, spent_change=spent_change(before, change.operation)))


# --- caps


async def test_payouts_pass_up_to_the_cap_and_the_next_one_is_refused_unwritten(journal: Journal) -> None:
    for number in range(5):
        operation = await started(journal, f"key-{number}")
        assert operation.caps == (CAPS.caps[0].key,)
        assert (await read(journal, operation)).caps == operation.caps
    refused = await is_over(journal, "one-more", 1)
    assert refused.operation is None
    assert refused.payout is not None
    assert refused.payout.cap is not None
    assert refused.payout.cap.left == 0
    assert 0 < refused.payout.cap.ends_in_s <= DAY_S
    assert await spent(journal) == 5000
    assert (await journal.claim(replace(payout("one-more"), permitted=False))).verdict is ClaimVerdict.ABSENT


async def test_a_refused_key_passes_in_the_next_window(journal: Journal, clock: HandClock) -> None:
    await started(journal, "first", amount=5000)
    refused = await is_over(journal, "second", 5000)
    assert refused.payout is not None
    assert refused.payout.cap is not None
    clock.move(refused.payout.cap.ends_in_s)
    await started(journal, "second", amount=5000)
    await is_over(journal, "third", 1)


async def test_open_unknown_and_paid_payouts_count_and_an_end_without_effect_gives_back(journal: Journal) -> None:
    sending = await started(journal, "sending")
    unknown = await started(journal, "unknown")
    await record(journal, unknown, doubting(unknown))
    on_its_way = await started(journal, "pending")
    await record(journal, on_its_way, pending(on_its_way))
    paid = await started(journal, "paid")
    paid = await record(journal, paid, succeeding(paid))
    await started(journal, "other")
    await is_over(journal, "full", 1)
    await record(journal, sending, declining(sending))
    assert await spent(journal) == 4000
    await started(journal, "again")
    await is_over(journal, "full", 1)
    await record(journal, paid, reversing(paid))
    assert await spent(journal) == 4000


async def test_a_confirmed_absence_gives_back_and_a_late_effect_counts_again(journal: Journal) -> None:
    operation = await started(journal, "key")
    operation = await record(journal, operation, doubting(operation))
    gone = advance(operation, Event.INQUIRY_CONFIRMED_ABSENT).changed(result_class=ResultClass.ABSENT)
    operation = await record(journal, operation, OperationChange(gone, (Event.INQUIRY_CONFIRMED_ABSENT,)))
    assert await spent(journal) == 0
    late = advance(operation, Event.WEBHOOK_TOLD_SUCCESS)
    operation = await record(journal, operation, OperationChange(late, (Event.WEBHOOK_TOLD_SUCCESS,)))
    assert operation.incident == "success_after_failure"
    assert await spent(journal) == 1000


async def test_what_is_given_back_after_its_window_changes_nothing(journal: Journal, clock: HandClock) -> None:
    old = await started(journal, "old")
    clock.move(DAY_S)
    await started(journal, "new", amount=3000)
    await record(journal, old, declining(old))
    assert await spent(journal) == 3000


async def test_a_stale_record_gives_nothing_back(journal: Journal) -> None:
    operation = await started(journal, "key")
    change = declining(operation)
    await record(journal, operation, change)
    with pytest.raises(Exception, match="no longer at version"):
        await record(journal, operation, change)
    assert await spent(journal) == 0


async def test_a_claim_whose_reply_was_lost_counts_once(journal: Journal) -> None:
    request = payout("key")
    first = await journal.claim(request)
    again = await journal.claim(request)
    assert (first.verdict, again.verdict) == (ClaimVerdict.OWNED, ClaimVerdict.OWNED)
    assert await spent(journal) == 1000


async def test_a_lease_that_ends_between_two_tries_gives_back_in_the_sweep(journal: Journal, clock: HandClock) -> None:
    operation = await started(journal, "key")
    await record(journal, operation, waiting(operation))
    unknown = await started(journal, "another")
    clock.move(LEASE_S + 1)
    expired = await journal.expire_leases()
    assert {each.id: each.state for each in expired} == {operation.id: State.FAILED, unknown.id: State.UNKNOWN}
    assert await spent(journal) == 1000
    assert await journal.expire_leases() == ()


async def test_a_lease_that_ends_between_two_tries_gives_back_in_the_next_claim(
    journal: Journal, clock: HandClock
) -> None:
    operation = await started(journal, "key", amount=5000)
    await record(journal, operation, waiting(operation))
    clock.move(LEASE_S + 1)
    again = await journal.claim(payout("key", amount=5000))
    assert again.verdict is ClaimVerdict.OWNED  # the amount that its first generation gives back is its own
    assert await spent(journal) == 5000
    assert (await read(journal, operation)).state is State.FAILED


async def test_a_replay_counts_nothing(journal: Journal) -> None:
    operation = await started(journal, "key")
    await record(journal, operation, succeeding(operation))
    assert (await journal.claim(payout("key"))).verdict is ClaimVerdict.REPLAY
    assert await spent(journal) == 1000


@pytest.mark.parametrize("released", [True, False])
async def test_a_hundred_claims_and_ends_leave_the_count_of_what_stands(journal: Journal, released: bool) -> None:
    async def one(number: int) -> int:
        taken = await journal.claim(payout(f"key-{number}", amount=100))
        if taken.verdict is not ClaimVerdict.OWNED or taken.operation is None:
            assert taken.verdict is ClaimVerdict.OVER_CAP
            return 0
        if number % 2:
            await record(journal, taken.operation, declining(taken.operation, released=released))
            return 0
        return 100

    counted = sum(await asyncio.gather(*(one(number) for number in range(100))))
    assert await spent(journal) == counted <= 5000


async def test_two_sidecars_at_the_cap_never_exceed_it(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_CAPS_TURN_S", 60.0)  # on a busy machine each turn takes longer
    clock = HandClock()
    fleet = [await RedisJournal.open(redis_url, clock=clock) for _ in range(2)]
    try:
        requests = [payout(f"key-{number}", amount=100) for number in range(120)]
        claims = await asyncio.gather(*(fleet[number % 2].claim(request) for number, request in enumerate(requests)))
        verdicts = [claim.verdict for claim in claims]
        assert set(verdicts) == {ClaimVerdict.OWNED, ClaimVerdict.OVER_CAP}
        assert verdicts.count(ClaimVerdict.OWNED) == 50
        assert await spent(fleet[0]) == 5000
        held = [claim.operation for claim in claims if claim.verdict is ClaimVerdict.OWNED and claim.operation]
        # Half of them end without effect at the other sidecar, while others ask for what is given back.
        ends = [record(fleet[(number + 1) % 2], each, declining(each)) for number, each in enumerate(held[:25])]
        more = [fleet[number % 2].claim(payout(f"more-{number}", amount=100)) for number in range(60)]
        results = await asyncio.gather(*ends, *more)
        owned = [each for each in results if isinstance(each, Claim) and each.verdict is ClaimVerdict.OWNED]
        assert await spent(fleet[1]) == (25 + len(owned)) * 100 <= 5000
    finally:
        for journal in fleet:
            await journal.close()


async def test_what_a_rolled_back_store_has_lost_is_counted_when_it_is_put_back(redis_url: str) -> None:
    clock = HandClock()
    journal = await RedisJournal.open(redis_url, clock=clock)
    try:
        lost = (await started(journal, "key")).changed(id="op_lost", stamp="op_lost", key="another-key")
        assert await spent(journal) == 1000
        await journal.restore(lost, b"sealed request", lease_s=LEASE_S)
        assert await spent(journal) == 2000
        await journal.restore(lost, b"sealed request", lease_s=LEASE_S)
        assert await spent(journal) == 2000
    finally:
        await journal.close()


# --- approvals


async def waits_for_approval(journal: Journal, key: str, claim: PayoutClaim = APPROVAL) -> None:
    taken = await journal.claim(payout(key, claim))
    assert (taken.verdict, taken.operation) == (ClaimVerdict.NEEDS_APPROVAL, None)
    assert taken.payout is not None
    assert taken.payout.approval is not None
    assert taken.payout.approval.terms == TERMS


async def approve(journal: Journal, at: float) -> None:
    [row] = await journal.ledger_rows((TERMS.key,))
    assert row is not None
    approved = replace(approval_from_row(row), approved_at=at, approved_by="ada", reason="invoice 88")
    assert await journal.write_ledger_rows((approval_row(approved, row),))


async def listed(journal: Journal) -> list[str]:
    [row] = await journal.ledger_rows((APPROVALS_WAITING_KEY,))
    return [each[0] for each in waiting_ids(row)]


async def test_nothing_is_stored_but_the_request_until_it_is_approved(journal: Journal) -> None:
    await waits_for_approval(journal, "key")
    await waits_for_approval(journal, "a-fresh-key")
    assert await listed(journal) == ["ap_1"]
    [row] = await journal.ledger_rows((TERMS.key,))
    assert row is not None
    assert row.version == 1  # a repeat writes nothing
    assert (await journal.claim(replace(payout("key", APPROVAL), permitted=False))).verdict is ClaimVerdict.ABSENT


async def test_one_claim_uses_an_approval_up_whatever_its_key(store: Store) -> None:
    journal = store.journal
    await waits_for_approval(journal, "key")
    await approve(journal, store.clock.now())
    operation = await started(journal, "a-fresh-key", APPROVAL)
    assert (await journal.history(operation.id))[0].note == "approved by ada: invoice 88"
    assert await listed(journal) == []
    await waits_for_approval(journal, "key")
    assert await listed(journal) == ["ap_1"]
    assert (await journal.claim(payout("a-fresh-key", APPROVAL))).verdict is ClaimVerdict.IN_FLIGHT


async def test_of_many_claims_at_once_one_uses_the_approval(store: Store) -> None:
    journal = store.journal
    await waits_for_approval(journal, "key")
    await approve(journal, store.clock.now())
    claims = await asyncio.gather(*(journal.claim(payout(f"key-{number}", APPROVAL)) for number in range(20)))
    assert [claim.verdict for claim in claims].count(ClaimVerdict.OWNED) == 1
    assert {claim.verdict for claim in claims} == {ClaimVerdict.OWNED, ClaimVerdict.NEEDS_APPROVAL}


async def test_an_approval_lapses_by_the_journals_time(store: Store) -> None:
    journal = store.journal
    await waits_for_approval(journal, "key")
    await approve(journal, store.clock.now())
    store.clock.move(APPROVAL.approval_valid_s)
    await waits_for_approval(journal, "key")
    [row] = await journal.ledger_rows((TERMS.key,))
    assert row is not None
    assert approval_from_row(row).approved_at is None  # asked for anew


async def test_an_approval_is_for_exactly_its_terms(store: Store) -> None:
    journal = store.journal
    await waits_for_approval(journal, "key")
    await approve(journal, store.clock.now())
    other = replace(APPROVAL, approval=replace(TERMS, beneficiary="another"))
    taken = await journal.claim(payout("key", other))
    assert taken.verdict is ClaimVerdict.NEEDS_APPROVAL


async def test_a_payout_over_its_cap_uses_no_approval_up(store: Store) -> None:
    journal = store.journal
    both = replace(APPROVAL, caps=CAPS.caps)
    await waits_for_approval(journal, "key", both)
    await approve(journal, store.clock.now())
    await started(journal, "another", amount=4500)
    await is_over(journal, "key", 1000)
    assert (await journal.claim(payout("key", both))).verdict is ClaimVerdict.OVER_CAP
    [row] = await journal.ledger_rows((TERMS.key,))
    assert row is not None
    assert approval_from_row(row).used_by == ""


async def test_the_list_of_requests_is_bounded_and_forgets_old_ones(store: Store) -> None:
    journal = store.journal

    async def ask(number: int) -> None:
        terms = replace(TERMS, id=f"ap_{number}")
        taken = await journal.claim(payout(f"key-{number}", replace(APPROVAL, approval=terms)))
        assert taken.verdict is ClaimVerdict.NEEDS_APPROVAL

    for number in range(WAITING_MAX + 2):
        await ask(number)
    found = await listed(journal)
    assert (len(found), found[0], found[-1]) == (WAITING_MAX, "ap_2", f"ap_{WAITING_MAX + 1}")
    store.clock.move(REQUEST_KEPT_S)
    await ask(7)
    assert await listed(journal) == ["ap_7"]


# --- the check, and what is told


async def test_a_payout_that_is_to_be_checked_first_is_judged_and_not_written(store: Store) -> None:
    journal = store.journal
    first = replace(CAPS, check_first=True, approval=TERMS, approval_valid_s=3600.0)
    await waits_for_approval(journal, "key", first)
    await approve(journal, store.clock.now())
    assert (await journal.claim(payout("key", first))).verdict is ClaimVerdict.ABSENT
    assert await spent(journal) == 0
    operation = await started(journal, "key", replace(first, check_first=False))
    await record(journal, operation, succeeding(operation))
    assert (await journal.claim(payout("key", first))).verdict is ClaimVerdict.REPLAY


async def test_the_claim_of_a_payout_is_told_in_its_order(journal: Journal) -> None:
    operation = await started(journal, "key", None)
    await record(journal, operation, succeeding(operation))
    rows = await journal.announcements(0, limit=10)
    told = [(row.entry.version, row.entry.announcement.payout) for row in rows if row.entry.announcement is not None]
    assert told == [(1, PayoutStage.RESERVED), (2, PayoutStage.COMMITTED)]
    assert rows[0].entry.announcement == announcement_of(None, operation)


async def test_an_expired_lease_between_two_tries_is_told_as_released(journal: Journal, clock: HandClock) -> None:
    operation = await started(journal, "key")
    await record(journal, operation, waiting(operation))
    clock.move(LEASE_S + 1)
    await journal.expire_leases()
    rows = await journal.announcements(0, limit=10)
    last = rows[-1].entry.announcement
    assert last is not None
    assert last.payout is PayoutStage.RELEASED
