"""What a change implies, over every step that can be made, under every lease, and whatever its writer knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import product

import pytest

from paywitness.core.consequences import Consequences, WriteContext, announcement_of, consequences
from paywitness.core.guard import is_reply_under_way
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import AnnouncementKind, FallbackLink, Lease, Operation, OtherPayment, State
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import DENIALS, Effect, ResultClass
from tests.core.reachable_operations import steps_of_the_world
from tests.core.samples import operation

NOW = 2000.0
SCHEDULED, FIRST, QUIET = NOW + 100.0, NOW + 7.0, NOW + 3.0
OURS, ANOTHERS = "ours", "another's"
BEING_SENT = {State.PREPARED, State.SENDING, State.BACKOFF}
CHECKED = {State.UNKNOWN, State.PENDING, State.REQUIRES_ACTION}
WITH_EFFECT = {State.SUCCEEDED, State.PENDING}
IMPLIED = {
    *("due_at", "lease", "key_released", "undelivered", "delivery_unknown", "no_bytes_after_at"),
    *("checks_done", "misses", "first_miss_at", "action_since_at", "action_expired", "check_asked_by", "other_payment"),
}


@dataclass(frozen=True)
class Change:
    """One change, as its events and its writer left it, and what it implies."""

    before: Operation
    after: Operation
    context: WriteContext
    implied: Consequences

    @property
    def operation(self) -> Operation:
        return self.implied.operation

    @property
    def is_new_state(self) -> bool:
        return self.after.state is not self.before.state

    @property
    def attempt_ended(self) -> bool:
        return self.before.attempt_under_way and not self.after.attempt_under_way

    @property
    def ends(self) -> bool:
        return self.after.state.ended and not self.before.state.ended


def contexts() -> Iterator[WriteContext]:
    """Every kind of writer: one that sends next, one that gives its lease back, one that only knows something."""
    leases = ((OURS, None), (None, OURS), (None, None))
    checks = ((None, None), (SCHEDULED, None), (None, FIRST))
    for (sends, gives), (check_at, first), at_once, last, reached in product(
        leases, checks, (False, True), (False, True), (None, False, True)
    ):
        yield WriteContext(
            NOW,
            sends_under=sends,
            gives_back=gives,
            check_at=check_at,
            first_check_at=None if first is None else _first_check,
            check_doubt_now=at_once,
            last_check=last,
            no_bytes_after_at=QUIET if reached is not None else None,
            reached=reached,
        )


def _first_check(after: Operation) -> float:
    return FIRST


def held(before: Operation) -> Iterator[Operation]:
    """The operation under every lease that it can be under, with the checks that it may have behind it."""
    must_be_held = before.state in BEING_SENT or (before.attempt_under_way and not before.state.ended)
    for token in (OURS, ANOTHERS) if must_be_held else (OURS, ANOTHERS, None):
        yield before.changed(
            lease=Lease(token, NOW + 1.0) if token is not None else None,
            due_at=NOW - 5.0 if before.state in CHECKED else None,
            checks_done=2 if before.state in CHECKED else 0,
            misses=1 if before.state is State.UNKNOWN else 0,
            first_miss_at=NOW - 9.0 if before.state is State.UNKNOWN else None,
            no_bytes_after_at=NOW - 50.0 if before.doubt else None,
        )


@cache
def changes() -> tuple[Change, ...]:
    """Every step that can be made, each once. All that a rule may look at tells two steps apart."""
    every_context = tuple(contexts())
    seen: set[tuple[object, ...]] = set()
    found: list[Change] = []
    turn = 0
    for errors in ErrorsUnderKey:
        for step in steps_of_the_world(errors):
            key = tuple(_seen_by_rules(one) for one in (step.before, step.after))
            if key in seen or step.after.attempts > 3:
                continue
            seen.add(key)
            for before in held(step.before):
                after = before.changed(
                    **{name: getattr(step.after, name) for name in _CHANGED_BY_EVENTS},
                )
                # Each step meets a fifth of the writers, by turns: with thousands of steps, all kinds meet all.
                turn += 1
                for context in every_context[turn % 5 :: 5]:
                    found.append(Change(before, after, context, consequences(before, after, context)))
    return tuple(found)


_CHANGED_BY_EVENTS = (
    *("state", "doubt", "answered_attempts", "attempts", "attempt_under_way"),
    *("incident", "result_class", "effect", "reference"),
)


def _seen_by_rules(one: Operation) -> tuple[object, ...]:
    said_no = one.result_class in DENIALS | {ResultClass.REQUIRES_ACTION}
    return one.state, bool(one.doubt), one.attempts, one.attempt_under_way, one.effect, said_no, one.incident


def test_every_state_and_every_kind_of_end_is_among_the_changes() -> None:
    assert len(changes()) > 20_000
    assert {change.after.state for change in changes()} == set(State) - {State.PREPARED}
    assert {(change.ends, change.operation.key_released) for change in changes()} >= {(True, True), (True, False)}


def test_only_what_is_implied_is_changed() -> None:
    others = [one.name for one in fields(Operation) if one.name not in IMPLIED]
    for change in changes():
        assert all(getattr(change.operation, name) == getattr(change.after, name) for name in others)


# --- ends


def test_an_end_is_never_due_and_erases_the_request() -> None:
    for change in changes():
        assert change.implied.erase_request == change.operation.state.ended
        if change.operation.state.ended:
            assert change.operation.due_at is None


def test_a_key_is_released_by_a_failure_without_effect_that_the_provider_did_not_decide() -> None:
    for change in changes():
        if not change.ends:
            continue
        decided = change.after.result_class in DENIALS | {ResultClass.REQUIRES_ACTION}
        without_effect = change.after.effect is Effect.NONE or change.before.state in {State.PREPARED, State.BACKOFF}
        failed = change.after.state is State.FAILED
        assert change.operation.key_released == (failed and without_effect and not decided)


def test_nothing_in_doubt_is_ever_released() -> None:
    for change in changes():
        if change.operation.doubt or not change.operation.state.ended:
            assert not change.operation.key_released


@pytest.mark.parametrize("released", [False, True])
def test_what_ended_before_keeps_its_key_as_the_first_end_left_it(*, released: bool) -> None:
    for change in changes():
        if change.before.state.ended and change.after.state.ended:
            kept = consequences(
                change.before.changed(key_released=released),
                change.after.changed(key_released=released),
                change.context,
            )
            assert kept.operation.key_released == released


def test_a_doubt_that_ends_by_a_fallback_is_told_to_be_over_and_its_end_by_the_fallback() -> None:
    unknown = operation(state=State.UNKNOWN, attempts=1, doubt=frozenset({1}), absence_shown=True)
    absent = advance(unknown, Event.INQUIRY_CONFIRMED_ABSENT, result_class=ResultClass.ABSENT, effect=Effect.NONE)
    link = FallbackLink("acme_eu", "op_02", "absent")
    implied = consequences(unknown, absent.changed(fallback_to="op_02"), WriteContext(NOW, fallback=link))
    assert (implied.operation.key_released, implied.operation.absence_shown) == (False, False)
    assert implied.announcement is not None
    assert implied.announcement.kinds == (AnnouncementKind.RESOLVED, AnnouncementKind.FALLBACK)
    assert implied.announcement.fallback == link
    alone = consequences(unknown, absent, WriteContext(NOW))
    assert alone.operation.key_released
    assert alone.announcement is not None
    assert alone.announcement.kinds == (AnnouncementKind.RESOLVED, AnnouncementKind.ENDED)


def test_what_was_shown_absent_is_not_so_once_it_is_sent_again() -> None:
    unknown = operation(state=State.UNKNOWN, attempts=1, doubt=frozenset({1}), absence_shown=True)
    again = advance(unknown, Event.RESEND_RECORDED)
    assert not consequences(unknown, again, WriteContext(NOW, sends_under=OURS)).operation.absence_shown


def test_an_end_by_a_fallback_keeps_its_key_and_is_announced_by_the_fallback() -> None:
    waiting = operation(
        state=State.BACKOFF,
        attempts=1,
        result_class=ResultClass.NETWORK_CONNECT_FAILURE,
        effect=Effect.NONE,
        lease=Lease(OURS, NOW + 1.0),
    )
    ended = advance(waiting, Event.GIVEN_UP, fallback_to="op_02")
    implied = consequences(waiting, ended, WriteContext(NOW, gives_back=OURS))
    assert not implied.operation.key_released
    assert implied.announcement is None
    assert implied.operation.lease is None
    disputed = implied.operation.changed(incident="success_after_failure")
    later = consequences(implied.operation, disputed, WriteContext(NOW)).announcement
    assert later is not None
    assert later.kinds == (AnnouncementKind.INCIDENT_OPENED,)


def test_every_other_change_announces_what_it_is() -> None:
    for change in changes():
        assert change.implied.announcement == announcement_of(change.before, change.operation)


# --- due times


def test_what_is_being_sent_first_or_waits_between_tries_is_not_due() -> None:
    for change in changes():
        if change.operation.state in BEING_SENT:
            assert change.operation.due_at is None


def test_what_is_unknown_or_accepted_and_held_by_nobody_is_always_due() -> None:
    for change in changes():
        if change.operation.state in {State.UNKNOWN, State.PENDING} and change.operation.lease is None:
            assert change.operation.due_at is not None


def test_doubt_that_nobody_works_on_is_checked_now() -> None:
    for change in changes():
        if change.operation.state is State.UNKNOWN and change.context.check_doubt_now:
            assert change.operation.due_at == (NOW if change.context.check_at is None else SCHEDULED)


def test_a_writer_that_sends_next_leaves_the_due_time_alone() -> None:
    sending = operation(state=State.SENDING, attempts=1, attempt_under_way=True, lease=Lease(OURS, NOW + 1.0))
    lost = advance(advance(sending, Event.ANSWER_LOST, 1), Event.RESEND_RECORDED)
    assert consequences(sending, lost, WriteContext(NOW, sends_under=OURS)).operation.due_at is None


def test_what_was_accepted_under_an_attempt_is_due_when_the_attempt_is_over() -> None:
    accepted = operation(state=State.PENDING, attempts=2, attempt_under_way=True, lease=Lease(OURS, NOW + 1.0))
    after = advance(accepted, Event.ANSWER_LOST, 2)
    assert consequences(accepted, after, WriteContext(NOW, gives_back=OURS)).operation.due_at == NOW


def test_an_explicit_check_is_made_then() -> None:
    for change in changes():
        if change.operation.state in CHECKED and change.context.check_at is not None and not change.context.last_check:
            assert change.operation.due_at == SCHEDULED


def test_a_new_open_state_is_first_checked_when_the_writer_says_or_at_once() -> None:
    for change in changes():
        context = change.context
        free = context.check_at is None and not context.last_check and not context.check_doubt_now
        if change.is_new_state and change.operation.state in CHECKED and free and context.sends_under is None:
            assert change.operation.due_at == (NOW if context.first_check_at is None else FIRST)


def test_review_is_not_due_until_an_operator_asks_for_a_check() -> None:
    for change in changes():
        if change.operation.state is State.REQUIRES_REVIEW and change.context.check_at is None and change.is_new_state:
            assert change.operation.due_at is None
    parked = operation(state=State.REQUIRES_REVIEW, attempts=1, doubt=frozenset({1}))
    assert consequences(parked, parked, WriteContext(NOW, check_at=NOW)).operation.due_at == NOW
    asked = parked.changed(due_at=NOW)
    assert consequences(asked, asked, WriteContext(NOW)).operation.due_at == NOW
    assert consequences(asked, asked, WriteContext(NOW, last_check=True)).operation.due_at is None


def test_an_action_keeps_its_customers_time_when_a_lease_is_dropped() -> None:
    waiting = operation(state=State.REQUIRES_ACTION, attempts=1, due_at=NOW + 900.0, lease=Lease(OURS, NOW))
    context = WriteContext(NOW, gives_back=OURS, check_doubt_now=True, reached=False)
    assert consequences(waiting, waiting, context).operation.due_at == NOW + 900.0


def test_the_last_check_never_leaves_a_doubt_without_a_due_time() -> None:
    for change in changes():
        if change.context.last_check and change.operation.state is State.UNKNOWN:
            assert change.operation.due_at is not None or change.operation.lease is not None


# --- leases


def test_a_lease_runs_anew_only_for_a_writer_that_sends_next() -> None:
    for change in changes():
        lease = change.operation.lease
        assert change.implied.renews_lease == (
            change.context.sends_under is not None and lease is not None and lease.token == OURS
        )
        if change.implied.renews_lease and not change.operation.state.ended:
            assert lease == Lease(OURS, 0.0)


def test_a_lease_is_over_with_its_attempt_unless_a_send_follows() -> None:
    for change in changes():
        if change.attempt_ended and (change.context.sends_under is None or change.operation.state.ended):
            assert change.operation.lease is None


def test_no_lease_is_taken_from_an_attempt_that_is_under_way() -> None:
    for change in changes():
        if change.operation.attempt_under_way and change.before.lease is not None:
            assert change.operation.lease is not None


def test_another_holders_lease_stays() -> None:
    for change in changes():
        lease = change.before.lease
        if lease is not None and lease.token == ANOTHERS and not change.attempt_ended:
            assert change.operation.lease == lease


def test_a_lease_that_is_given_back_is_given_back() -> None:
    for change in changes():
        if change.context.gives_back == OURS and not change.operation.attempt_under_way:
            assert change.operation.lease is None or change.operation.lease.token == ANOTHERS


# --- who was told


def test_only_what_was_paid_or_accepted_can_be_undelivered() -> None:
    for change in changes():
        if change.operation.undelivered:
            assert change.operation.state in WITH_EFFECT
            assert change.context.reached is False


def test_what_is_paid_or_accepted_and_reaches_nobody_is_undelivered() -> None:
    for change in changes():
        first = change.before.state not in {*WITH_EFFECT, State.REQUIRES_ACTION}
        if first and change.operation.state in WITH_EFFECT and change.context.reached is False:
            assert change.operation.undelivered != is_reply_under_way(change.operation)


def test_a_holder_that_an_event_overtook_says_whether_somebody_was_told() -> None:
    overtaken = 0
    for change in changes():
        if is_reply_under_way(change.before) and not is_reply_under_way(change.operation):
            overtaken += 1
            paid = change.operation.state in WITH_EFFECT
            assert change.operation.undelivered == (paid and change.context.reached is False)
    assert overtaken


def test_what_was_parked_as_accepted_and_reached_nobody_stays_so() -> None:
    accepted = operation(state=State.PENDING, attempts=1, undelivered=True, due_at=NOW)
    parked = consequences(accepted, advance(accepted, Event.PARKED), WriteContext(NOW)).operation
    assert parked.undelivered
    disputed = parked.changed(incident="another_amount")
    assert consequences(parked, disputed, WriteContext(NOW, reached=False)).operation.undelivered
    resumed = advance(parked, Event.OPERATOR_RESUMED_WAITING)
    assert consequences(parked, resumed, WriteContext(NOW)).operation.undelivered


@pytest.mark.parametrize("before", [State.SENDING, State.SUCCEEDED])
def test_what_may_still_be_delivered_is_neither_taken_nor_free(before: State) -> None:
    """The caller's deadline is near: whether it gets the reply is recorded when its call has ended."""
    found = before is State.SUCCEEDED
    sent = operation(state=before, attempts=1, undelivered=found, delivery_unknown=found)
    ended = sent.changed(state=State.SUCCEEDED)
    pending = WriteContext(NOW, reached=False, delivery_pending=True, reports_attempt=True)
    after = consequences(sent, ended, pending).operation
    assert (after.undelivered, after.delivery_unknown) == (True, True)


def test_what_others_found_first_is_delivered_if_its_own_caller_was_told() -> None:
    found = operation(state=State.SUCCEEDED, attempts=1, undelivered=True, delivery_unknown=True)
    told = consequences(found, found, WriteContext(NOW, reached=True, reports_attempt=True)).operation
    assert (told.undelivered, told.delivery_unknown) == (False, False)
    left = consequences(found, found, WriteContext(NOW, reached=False, reports_attempt=True)).operation
    assert (left.undelivered, left.delivery_unknown) == (True, False)


def test_only_the_report_of_the_only_attempt_says_that_nobody_was_told() -> None:
    """An inquiry does not know what the lost holder told its caller; of two attempts another holder may have told."""
    found = operation(state=State.SUCCEEDED, attempts=1, undelivered=True, delivery_unknown=True)
    assert consequences(found, found, WriteContext(NOW, reached=False)).operation.delivery_unknown
    twice = found.changed(attempts=2)
    reported = WriteContext(NOW, reached=False, reports_attempt=True)
    assert consequences(twice, twice, reported).operation.delivery_unknown


# --- counters


def test_a_new_attempt_voids_the_misses_before_it() -> None:
    for change in changes():
        if change.after.attempts > change.before.attempts:
            assert (change.operation.misses, change.operation.first_miss_at) == (0, None)


def test_a_new_state_is_checked_by_a_schedule_of_its_own() -> None:
    for change in changes():
        counters = (change.operation.checks_done, change.operation.misses, change.operation.first_miss_at)
        if change.is_new_state and change.operation.state in CHECKED:
            assert counters == (0, 0, None)
        elif change.after.attempts == change.before.attempts:
            assert counters == (change.after.checks_done, change.after.misses, change.after.first_miss_at)


def test_the_time_of_the_last_byte_never_goes_back_and_covers_what_is_in_doubt() -> None:
    for change in changes():
        known = change.operation.no_bytes_after_at
        assert (known or 0.0) >= (change.before.no_bytes_after_at or 0.0)
        if change.context.no_bytes_after_at is not None:
            assert known == (QUIET if change.operation.doubt else change.before.no_bytes_after_at)
    listened_to = operation(state=State.UNKNOWN, attempts=1, doubt=frozenset({1}), no_bytes_after_at=NOW + 60.0)
    context = WriteContext(NOW, no_bytes_after_at=NOW)
    assert consequences(listened_to, listened_to, context).operation.no_bytes_after_at == NOW + 60.0


# --- nothing new


def test_a_change_that_changes_nothing_implies_nothing() -> None:
    for change in changes():
        stands = change.operation
        again = consequences(stands, stands, WriteContext(NOW + 1.0))
        assert again.operation == stands
        assert again.announcement is None


# --- customers who must act, and who asked for a check


def test_the_customers_time_begins_when_the_customer_must_act_and_is_over_in_every_other_state() -> None:
    for change in changes():
        if change.after.state is not State.REQUIRES_ACTION:
            assert (change.operation.action_since_at, change.operation.action_expired) == (None, False)
        elif change.is_new_state:
            assert change.operation.action_since_at == NOW


def test_what_is_told_of_a_customers_time_stays_until_the_state_changes() -> None:
    expired = operation(state=State.REQUIRES_ACTION, action_since_at=5.0, action_expired=True)
    again = consequences(expired, expired.changed(because="asked"), WriteContext(NOW)).operation
    assert (again.action_since_at, again.action_expired) == (5.0, True)
    paid = consequences(expired, advance(expired, Event.INQUIRY_FOUND_SUCCESS), WriteContext(NOW)).operation
    assert (paid.action_since_at, paid.action_expired) == (None, False)


def test_who_asked_for_a_check_is_known_until_it_is_due_at_another_time() -> None:
    waiting = operation(state=State.PENDING, due_at=NOW + 50.0)
    asked = consequences(waiting, waiting, WriteContext(NOW, check_at=NOW, check_asked_by="operator")).operation
    assert (asked.due_at, asked.check_asked_by) == (NOW, "operator")
    noted = consequences(asked, asked.changed(because="a note"), WriteContext(NOW)).operation
    assert noted.check_asked_by == "operator"
    later = consequences(asked, asked, WriteContext(NOW, check_at=SCHEDULED)).operation
    assert (later.due_at, later.check_asked_by) == (SCHEDULED, "")


def test_what_falls_back_tells_where_to_and_not_that_it_ended() -> None:
    first = operation(state=State.BACKOFF, effect=Effect.NONE, result_class=ResultClass.RATE_LIMITED)
    link = FallbackLink("acme_eu", "op_2", "rate_limited")
    ended = advance(first, Event.GIVEN_UP, fallback_to="op_2")
    told = consequences(first, ended, WriteContext(NOW, fallback=link)).announcement
    assert told is not None
    assert (told.kinds, told.fallback) == ((AnnouncementKind.FALLBACK,), link)


def test_what_an_incident_was_with_is_forgotten_with_it() -> None:
    disputed = next(one.before for one in changes() if one.before.state is State.SUCCEEDED).changed(
        incident="another_amount", other_payment=OtherPayment("op_2", "acme", "ch_2", None)
    )
    assert consequences(disputed, disputed, WriteContext(0.0)).operation.other_payment == disputed.other_payment
    closed = disputed.changed(incident=None)
    assert consequences(disputed, closed, WriteContext(0.0)).operation.other_payment is None
