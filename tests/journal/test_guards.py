"""Guards: one operation at a time on the same money, whatever keys the calls came under."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import AliasKind, Claim, ClaimVerdict
from paywitness.core.guard import TAKEOVER_WITHIN_S
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    Guard,
    Operation,
    Outcome,
    RepeatPaymentRule,
    State,
)
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.journal.transitions import GUARDED_MAX
from tests.journal.conftest import Store
from tests.journal.samples import (
    FINGERPRINT,
    LEASE_S,
    TARGET,
    HandClock,
    acting,
    asking,
    declining,
    doubting,
    intent,
    owned,
    pending,
    read,
    reversing,
    succeeding,
    telling,
    touching,
    unheard,
    waiting,
)

ALL = [intent(), TARGET, FINGERPRINT]
of_each_kind = pytest.mark.parametrize("guard", ALL, ids=lambda guard: guard.kind.value)
but_intents = pytest.mark.parametrize("guard", ALL[1:], ids=lambda guard: guard.kind.value)


async def told(journal: Journal, key: str = "key-2", **changes: Any) -> tuple[ClaimVerdict, AliasKind | None]:
    claim = await journal.claim(asking(key, **changes))
    return claim.verdict, claim.alias


class TestOpen:
    @of_each_kind
    @pytest.mark.parametrize("standing", ["sending", "waiting", "in doubt", "in doubt for a year"])
    async def test_another_call_under_a_held_guard_is_refused_and_told_by_whom(
        self, journal: Journal, clock: HandClock, guard: Guard, standing: str
    ) -> None:
        first = await owned(journal, guard=guard)
        if standing == "waiting":
            first = await journal.record(waiting(first))
        if standing.startswith("in doubt"):
            first = await journal.record(doubting(first))
        if standing.endswith("year"):
            clock.move(365 * 86_400)
        request = asking("key-2", guard=guard, fingerprint="another body")
        claim = await journal.claim(request)
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.GUARDED, first, AliasKind.REFUSED)
        assert (claim.sealed_request, claim.sealed_response) == (None, None)
        assert await journal.read(request.fresh.id) is None
        assert await read(journal, first) == first

    async def test_an_equal_call_under_an_intent_joins(self, journal: Journal) -> None:
        first = await owned(journal, guard=intent())
        claim = await journal.claim(asking("key-2", guard=intent()))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, first, AliasKind.JOINED)

    async def test_one_that_joins_a_doubt_is_given_what_a_repeat_is(self, journal: Journal) -> None:
        first = await journal.record(doubting(await owned(journal, guard=intent())))
        claim = await journal.claim(asking("key-2", guard=intent()))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_DOUBT, first)
        assert claim.sealed_request == b"sealed request"

    @but_intents
    async def test_an_equal_call_under_a_target_or_a_fingerprint_is_refused(
        self, journal: Journal, guard: Guard
    ) -> None:
        await owned(journal, guard=guard)
        assert await told(journal, guard=guard) == (ClaimVerdict.GUARDED, AliasKind.REFUSED)

    @of_each_kind
    async def test_the_holders_own_repeat_is_not_asked(self, journal: Journal, guard: Guard) -> None:
        first = await owned(journal, guard=guard)
        claim = await journal.claim(asking(guard=guard))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, first, None)

    async def test_another_guard_and_none_are_free(self, journal: Journal) -> None:
        await owned(journal, guard=intent())
        await owned(journal, "key-2", guard=intent("intent-2"))
        await owned(journal, "key-3")

    async def test_pending_holds_an_intent_alone(self, journal: Journal) -> None:
        for number, guard in enumerate(ALL):
            await journal.record(pending(await owned(journal, f"key-{number}", guard=guard)))
        assert await told(journal, "other-1", guard=intent()) == (ClaimVerdict.REPLAY, AliasKind.JOINED)
        for number, guard in enumerate((TARGET, FINGERPRINT)):
            assert await told(journal, f"free-{number}", guard=guard) == (ClaimVerdict.OWNED, None)

    @pytest.mark.parametrize("during_action", RepeatPaymentRule)
    async def test_a_customer_who_must_act_holds_an_intent_where_its_policy_says(
        self, journal: Journal, during_action: RepeatPaymentRule
    ) -> None:
        guard = intent(during_action=during_action)
        first = await journal.record(acting(await owned(journal, guard=guard)))
        claim = await journal.claim(asking("key-2", guard=guard, fingerprint="another card"))
        if during_action is RepeatPaymentRule.BLOCK:
            assert (claim.verdict, claim.operation) == (ClaimVerdict.GUARDED, first)
            return
        assert claim.verdict is ClaimVerdict.OWNED
        assert claim.operation is not None
        (entry,) = await journal.history(claim.operation.id)
        assert entry.note == f"another payment of the same intent: {first.id}"

    async def test_a_look_up_that_may_not_start_is_told_who_holds_its_guard(self, journal: Journal) -> None:
        """P40: what our limits refuse is judged by its guard too, or "not sent" would be said of a paid purchase."""
        first = await owned(journal, guard=intent())
        claim = await journal.claim(asking("key-2", guard=intent(), permitted=False))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, first, AliasKind.JOINED)
        claim = await journal.claim(asking("key-3", guard=intent(), fingerprint="another", permitted=False))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.GUARDED, first, AliasKind.REFUSED)

    @of_each_kind
    async def test_a_look_up_that_may_not_start_is_told_of_a_doubt(self, journal: Journal, guard: Guard) -> None:
        first = await journal.record(doubting(await owned(journal, guard=guard)))
        claim = await journal.claim(asking("key-2", guard=guard, permitted=False))
        assert claim.operation == first
        assert claim.verdict in {ClaimVerdict.IN_DOUBT, ClaimVerdict.GUARDED}

    async def test_a_look_up_that_may_not_start_leaves_nothing_if_nobody_holds_its_guard(
        self, journal: Journal
    ) -> None:
        assert await told(journal, guard=intent(), permitted=False) == (ClaimVerdict.ABSENT, None)
        assert await journal.find_operations(OperationQuery()) == ()
        assert await told(journal, "key-2", guard=intent()) == (ClaimVerdict.OWNED, None)

    async def test_another_provider_with_an_equal_call_is_refused(self, journal: Journal) -> None:
        await owned(journal, guard=intent())
        assert await told(journal, guard=intent(), provider="other") == (ClaimVerdict.GUARDED, AliasKind.REFUSED)


class TestManyAtOnce:
    @of_each_kind
    async def test_of_a_hundred_fresh_keys_under_one_guard_exactly_one_is_owned(
        self, journal: Journal, guard: Guard
    ) -> None:
        requests = [asking(f"key-{number}", guard=guard) for number in range(100)]
        claims = await asyncio.gather(*map(journal.claim, requests))
        verdicts = [claim.verdict for claim in claims]
        assert verdicts.count(ClaimVerdict.OWNED) == 1
        others = ClaimVerdict.IN_FLIGHT if guard.kind == "intent" else ClaimVerdict.GUARDED
        assert verdicts.count(others) == 99
        assert len({claim.operation.id for claim in claims if claim.operation}) == 1

    async def test_what_is_open_is_found_after_many_that_were_paid(self, journal: Journal) -> None:
        """An intent that several payments belong to, each flagged: the open one must not hide behind the paid ones."""
        for number in range(GUARDED_MAX + 5):
            paid = await owned(journal, f"key-{number}", guard=intent(), distinct="another month")
            await journal.record(succeeding(paid))
        open_one = await owned(journal, "open", guard=intent())
        claim = await journal.claim(asking("late", guard=intent(), fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.GUARDED, open_one)

    async def test_m29_what_came_into_doubt_again_is_found_behind_many_that_were_meant(self, journal: Journal) -> None:
        """A customer who must act keeps nobody off, and others pay the purchase. Then the first one is accepted."""
        first = await journal.record(acting(await owned(journal, "first", guard=intent())))
        for number in range(GUARDED_MAX + 5):
            paid = await owned(journal, f"key-{number}", guard=intent(), distinct="another month")
            await journal.record(succeeding(paid))
        told = advance(first, Event.WEBHOOK_TOLD_PENDING).changed(result_class=ResultClass.PENDING, effect=Effect.DONE)
        assert (await journal.record(OperationChange(told, (Event.WEBHOOK_TOLD_PENDING,)))).state is State.PENDING
        claim = await journal.claim(asking("late", guard=intent(), fingerprint="another", distinct="another month"))
        assert (claim.verdict, claim.operation and claim.operation.id) == (ClaimVerdict.GUARDED, first.id)


class TestEnds:
    @of_each_kind
    async def test_an_end_without_effect_frees_it(self, journal: Journal, guard: Guard) -> None:
        await journal.record(declining(await owned(journal, guard=guard)))
        await owned(journal, "key-2", guard=guard)

    @but_intents
    async def test_equal_refunds_one_after_the_other_each_answered_pass(self, journal: Journal, guard: Guard) -> None:
        for number in range(3):
            await journal.record(succeeding(await owned(journal, f"key-{number}", guard=guard)))

    @pytest.mark.parametrize("fingerprint", ["fingerprint-1", "another card"])
    async def test_a_paid_intent_blocks(self, journal: Journal, fingerprint: str) -> None:
        guard = intent(after_success=RepeatPaymentRule.BLOCK)
        first = await journal.record(succeeding(await owned(journal, guard=guard)))
        claim = await journal.claim(asking("key-2", guard=guard, fingerprint=fingerprint))
        assert claim.operation == first
        if fingerprint == "fingerprint-1":
            assert (claim.verdict, claim.alias) == (ClaimVerdict.REPLAY, AliasKind.JOINED)
            assert claim.sealed_response == b"sealed response"
        else:
            assert (claim.verdict, claim.alias, claim.sealed_response) == (
                ClaimVerdict.GUARDED,
                AliasKind.REFUSED,
                None,
            )

    async def test_a_paid_intent_flags(self, journal: Journal) -> None:
        first = await journal.record(succeeding(await owned(journal, guard=intent())))
        second = await owned(journal, "key-2", guard=intent())
        (entry,) = await journal.history(second.id)
        assert entry.note == f"another payment of the same intent: {first.id}"

    async def test_a_paid_intent_allows(self, journal: Journal) -> None:
        guard = intent(after_success=RepeatPaymentRule.ALLOW)
        await journal.record(succeeding(await owned(journal, guard=guard)))
        second = await owned(journal, "key-2", guard=guard)
        assert (await journal.history(second.id))[0].note == ""
        assert (await journal.record(succeeding(second))).incident is None

    async def test_a_reversed_payment_frees_its_intent_for_all_but_an_equal_call(self, journal: Journal) -> None:
        """P34: a late duplicate of an order that was voided must not charge."""
        guard = intent(after_success=RepeatPaymentRule.BLOCK)
        paid = await journal.record(succeeding(await owned(journal, guard=guard)))
        await journal.record(reversing(paid))
        late = await journal.claim(asking("late", guard=guard))
        assert late.verdict is ClaimVerdict.REFUNDED
        assert late.operation is not None
        assert late.operation.id == paid.id
        second = await owned(journal, "key-2", guard=guard, fingerprint="another body")
        assert (await journal.record(succeeding(second))).incident is None

    async def test_an_equal_call_that_means_it_passes_after_a_reversal(self, journal: Journal) -> None:
        guard = intent(after_success=RepeatPaymentRule.BLOCK)
        await journal.record(reversing(await journal.record(succeeding(await owned(journal, guard=guard)))))
        second = await owned(journal, "key-2", guard=guard, distinct="ordered again")
        assert (await journal.record(succeeding(second))).incident is None

    async def test_guards_survive_a_restart(self, store: Store) -> None:
        first = await store.journal.record(doubting(await owned(store.journal, guard=TARGET)))
        journal = await store.reopen()
        claim = await journal.claim(asking("key-2", guard=TARGET))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.GUARDED, first)


class TestDistinct:
    @but_intents
    async def test_it_lifts_a_held_target_or_fingerprint(self, journal: Journal, guard: Guard) -> None:
        await owned(journal, guard=guard)
        second = await owned(journal, "key-2", guard=guard, distinct="a second parcel")
        assert second.distinct == "a second parcel"
        assert "meant twice: a second parcel" in (await journal.history(second.id))[0].note

    async def test_it_lifts_a_paid_intent_and_its_success_is_no_incident(self, journal: Journal) -> None:
        guard = intent(after_success=RepeatPaymentRule.BLOCK)
        await journal.record(succeeding(await owned(journal, guard=guard)))
        second = await owned(journal, "key-2", guard=guard, distinct="a tip")
        assert (await journal.record(succeeding(second))).incident is None

    @pytest.mark.parametrize("fingerprint", ["fingerprint-1", "another"])
    async def test_it_never_lifts_an_open_intent(self, journal: Journal, fingerprint: str) -> None:
        first = await owned(journal, guard=intent())
        claim = await journal.claim(asking("key-2", guard=intent(), distinct="a tip", fingerprint=fingerprint))
        assert claim.verdict is not ClaimVerdict.OWNED
        assert claim.operation == first


class TestUnheard:
    """An end with effect whose answer reached nobody: the next equal call takes it, once."""

    async def ended(self, journal: Journal, guard: Guard) -> Operation:
        return await journal.record(unheard(succeeding(await owned(journal, guard=guard))))

    @of_each_kind
    async def test_the_next_equal_call_takes_the_answer_once(self, journal: Journal, guard: Guard) -> None:
        first = await self.ended(journal, guard)
        claim = await journal.claim(asking("key-2", guard=guard))
        assert (claim.verdict, claim.alias) == (ClaimVerdict.REPLAY, AliasKind.TAKEN)
        assert claim.sealed_response == b"sealed response"
        assert claim.operation == replace(first, undelivered=False, takeover="taken", version=first.version + 1)
        entry = (await journal.history(first.id))[-1]
        assert (entry.events, entry.note, entry.announcement) == (("answer_taken",), "by key client-key-2", None)
        assert (await journal.claim(asking("key-3", guard=guard))).verdict is ClaimVerdict.OWNED

    @of_each_kind
    async def test_it_is_taken_also_while_a_resolver_holds_the_operation(self, journal: Journal, guard: Guard) -> None:
        """An event ends an operation while the resolver inquires. Whoever took the answer was told 504, as if it were
        under way, and the next equal call paid again."""
        change = doubting(await owned(journal, guard=guard))
        await journal.record(replace(change, operation=change.operation.changed(due_at=0.0)))
        [held] = await journal.take_due("resolver", LEASE_S, limit=1)
        found = advance(held, Event.WEBHOOK_TOLD_SUCCESS, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
        change = OperationChange(found, (Event.WEBHOOK_TOLD_SUCCESS,), sealed_response=b"sealed response")
        assert (await journal.record(unheard(change))).lease is not None
        claim = await journal.claim(asking("key-2", guard=guard))
        assert (claim.verdict, claim.alias) == (ClaimVerdict.REPLAY, AliasKind.TAKEN)
        assert claim.sealed_response == b"sealed response"

    @pytest.mark.parametrize("guard", [TARGET, FINGERPRINT])
    async def test_nobody_takes_the_answer_of_a_lost_holder_that_another_found(
        self, journal: Journal, clock: HandClock, guard: Guard
    ) -> None:
        """Its caller may have been told from the spool: an equal call is neither given that answer nor sent."""
        await owned(journal, guard=guard)
        clock.move(LEASE_S + 1)
        (lost,) = await journal.expire_leases()
        assert (lost.state, lost.delivery_unknown) == (State.UNKNOWN, True)
        found = advance(lost, Event.INQUIRY_FOUND_SUCCESS, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
        change = OperationChange(found, (Event.INQUIRY_FOUND_SUCCESS,), sealed_response=b"sealed response")
        await journal.record(unheard(change))
        claim = await journal.claim(asking("key-2", guard=guard))
        assert (claim.verdict, claim.alias) == (ClaimVerdict.GUARDED, AliasKind.REFUSED)
        first = await journal.claim(asking(guard=guard))
        assert (first.verdict, first.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")
        await owned(journal, "key-3", guard=guard)

    async def test_a_hundred_equal_calls_take_it_once(self, journal: Journal) -> None:
        await self.ended(journal, FINGERPRINT)
        claims: list[Claim] = await asyncio.gather(
            *(journal.claim(asking(f"other-{number}", guard=FINGERPRINT)) for number in range(100))
        )
        kinds = [(claim.verdict, claim.alias) for claim in claims]
        assert kinds.count((ClaimVerdict.REPLAY, AliasKind.TAKEN)) == 1
        assert kinds.count((ClaimVerdict.OWNED, None)) == 1
        assert kinds.count((ClaimVerdict.GUARDED, AliasKind.REFUSED)) == 98

    @of_each_kind
    async def test_another_body_is_free(self, journal: Journal, guard: Guard) -> None:
        await self.ended(journal, guard)
        await owned(journal, "key-2", guard=guard, fingerprint="another")

    async def test_one_that_is_meant_twice_does_not_take_it(self, journal: Journal) -> None:
        await self.ended(journal, TARGET)
        await owned(journal, "key-2", guard=TARGET, distinct="again")

    async def test_after_a_day_it_is_a_new_order(self, journal: Journal, clock: HandClock) -> None:
        await self.ended(journal, FINGERPRINT)
        clock.move(TAKEOVER_WITHIN_S)
        await owned(journal, "key-2", guard=FINGERPRINT)

    async def test_its_own_key_hears_it_and_then_nobody_takes_it(self, journal: Journal) -> None:
        first = await self.ended(journal, FINGERPRINT)
        claim = await journal.claim(asking(guard=FINGERPRINT))
        assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")
        assert claim.operation == replace(first, undelivered=False, version=first.version + 1)
        assert (await journal.history(first.id))[-1].events == ("answer_heard",)
        await owned(journal, "key-2", guard=FINGERPRINT)


class TestExpiredHolders:
    async def test_a_holder_whose_lease_is_over_while_sending_holds_as_a_doubt(
        self, journal: Journal, clock: HandClock
    ) -> None:
        first = await owned(journal, guard=TARGET)
        clock.move(LEASE_S)
        claim = await journal.claim(asking("key-2", guard=TARGET))
        assert claim.verdict is ClaimVerdict.GUARDED
        assert claim.operation == await read(journal, first)
        assert (claim.operation.state, claim.operation.due_at) == (State.UNKNOWN, clock.now())
        entry = (await journal.history(first.id))[-1]
        assert (entry.note, entry.announcement) == (
            "lease expired",
            Announcement((AnnouncementKind.DOUBT_OPENED,), Outcome.UNKNOWN, None, None, None),
        )

    async def test_a_holder_whose_lease_is_over_between_tries_holds_no_more(
        self, journal: Journal, clock: HandClock
    ) -> None:
        first = await journal.record(waiting(await owned(journal, guard=intent())))
        clock.move(LEASE_S)
        await owned(journal, "key-2", guard=intent())
        ended = await read(journal, first)
        assert (ended.state, ended.key_released) == (State.FAILED, True)

    async def test_a_keys_own_expired_holder_is_ended_once(self, journal: Journal, clock: HandClock) -> None:
        """It is found both under the key and under the guard."""
        first = await journal.record(waiting(await owned(journal, guard=intent())))
        clock.move(LEASE_S)
        second = await owned(journal, guard=intent())
        assert second.generation == 2
        assert (await read(journal, first)).version == first.version + 1


class TestDuplicateSuccess:
    """A second paying success of one intent is an incident."""

    async def test_the_second_success_is_an_incident_and_told(self, journal: Journal) -> None:
        first = await journal.record(succeeding(await owned(journal, guard=intent())))
        second = await owned(journal, "key-2", guard=intent(), fingerprint="another card")
        ended = await journal.record(telling(second, succeeding(second)))
        assert (ended.incident, first.incident) == ("duplicate_success", None)
        assert await read(journal, second) == ended
        entry = (await journal.history(second.id))[-1]
        assert entry.note == f"{first.id} paid the same intent"
        assert entry.announcement is not None
        assert (entry.announcement.kinds, entry.announcement.incident) == (
            (AnnouncementKind.ENDED, AnnouncementKind.INCIDENT_OPENED),
            "duplicate_success",
        )
        assert (await journal.claim(asking("key-2", fingerprint="another card"))).verdict is ClaimVerdict.REPLAY

    async def test_a_capture_of_the_same_order_is_none(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal, guard=intent())))
        second = await owned(journal, "key-2", guard=intent(), kind=OperationKind.CAPTURE, operation="capture")
        assert (await journal.record(succeeding(second))).incident is None

    async def test_a_later_change_of_the_first_is_none(self, journal: Journal) -> None:
        first = await journal.record(succeeding(await owned(journal, guard=intent())))
        second = await owned(journal, "key-2", guard=intent())
        await journal.record(succeeding(second))
        assert (await journal.record(touching(first))).incident is None

    async def test_both_at_once_open_exactly_one(self, journal: Journal) -> None:
        first = await journal.record(acting(await owned(journal, guard=intent())))
        second = await owned(journal, "key-2", guard=intent(), fingerprint="another card")
        late = OperationChange(
            advance(first, Event.WEBHOOK_TOLD_SUCCESS), (Event.WEBHOOK_TOLD_SUCCESS,), source="webhook"
        )
        ended = await asyncio.gather(journal.record(late), journal.record(succeeding(second)))
        assert sorted(operation.incident or "" for operation in ended) == ["", "duplicate_success"]
