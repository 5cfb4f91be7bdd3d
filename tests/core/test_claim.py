"""Who may carry an operation: every holder of a key that can be met, and every way of asking for it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from paywitness.core.claim import (
    REPLAY_BEFORE_NEXT_GENERATION_S,
    ClaimJudgement,
    ClaimRequest,
    ClaimVerdict,
    after_expired_lease,
    drop_lease,
    generation_key,
    judge,
)
from paywitness.core.operation import Lease, Operation, State
from tests.core.samples import operation

NOW = 5000.0
STEM = "0123456789abcdef" * 4
BOTH = (False, True)
LEASES = {
    "none": None,
    "live": Lease("another", NOW + 1),
    "expired": Lease("another", NOW),
    "own": Lease("mine", NOW + 1),
    "own, expired": Lease("mine", NOW - 1),
}
AGES_S = (0.0, REPLAY_BEFORE_NEXT_GENERATION_S - 0.1, REPLAY_BEFORE_NEXT_GENERATION_S)
UNSENT = {State.PREPARED, State.BACKOFF}


class Case(NamedTuple):
    existing: Operation
    request: ClaimRequest
    judgement: ClaimJudgement
    equal: bool
    lease: str
    age_s: float


def asking(**changes: object) -> ClaimRequest:
    fresh = operation(id="op_02")
    plain = ClaimRequest(fresh, "mine", permitted=True, lease_s=30.0, sealed_request=None, key_stem=STEM)
    return replace(plain, **changes)  # type: ignore[arg-type]  # whatever field a test names


def holding(state: State, *, under_way: bool = False) -> Operation:
    return operation(
        state=state,
        generation=3,
        attempts=0 if state is State.PREPARED else 1,
        doubt=frozenset({1}) if state.in_doubt else frozenset(),
        attempt_under_way=state is State.SENDING or under_way,
        ended_at=NOW if state.ended else None,
        provider_key="the-key-of-3",
    )


def holders() -> Iterator[tuple[Operation, str, float]]:
    hindrances = ((None, False), ("contradiction", False), (None, True))
    choices = product(State, BOTH, LEASES, BOTH, BOTH, AGES_S[1:], hindrances)
    for state, under_way, lease, released, purchase, age_s, (incident, cancelled) in choices:
        if (under_way and state in UNSENT) or (not state.ended and (age_s > AGES_S[1] or released)):
            continue
        yield (
            replace(
                holding(state, under_way=under_way),
                lease=LEASES[lease],
                key_released=released,
                key_names_purchase=purchase,
                ended_at=NOW - age_s if state.ended else None,
                incident=incident,
                cancel_sent=cancelled,
            ),
            lease,
            age_s,
        )


@cache
def every_case() -> list[Case]:
    requests = [
        (asking(permitted=permitted, fresh=operation(id="op_02", fingerprint=("f" if equal else "g") * 64)), equal)
        for permitted, equal in product(BOTH, BOTH)
    ]
    return [
        Case(existing, request, judge(existing, request, NOW), equal, lease, age_s)
        for existing, lease, age_s in holders()
        for request, equal in requests
    ]


def started() -> list[Case]:
    return [case for case in every_case() if case.judgement.start_generation is not None]


# --- nothing known


def test_an_unknown_key_starts_its_first_generation_under_its_own_provider_key() -> None:
    assert judge(None, asking(), NOW) == ClaimJudgement(ClaimVerdict.OWNED, None, 1, "order-1")


def test_an_unknown_key_that_may_not_start_is_absent_as_far_as_its_guard_allows() -> None:
    assert judge(None, asking(permitted=False), NOW) == ClaimJudgement(ClaimVerdict.ABSENT, None, 1, "order-1")


# --- properties over every holder


def test_a_new_generation_starts_only_after_an_end_that_provably_had_no_effect() -> None:
    assert started()
    for case in started():
        stands = case.judgement.existing
        assert stands is not None
        assert (stands.state, stands.doubt, stands.incident, stands.cancel_sent) == (
            State.FAILED,
            frozenset(),
            None,
            False,
        )
        assert (case.judgement.verdict is ClaimVerdict.OWNED) == case.request.permitted
        assert not (stands.lease is not None and stands.attempt_under_way)
        waited = not case.equal or case.age_s >= REPLAY_BEFORE_NEXT_GENERATION_S
        assert stands.key_released or (stands.key_names_purchase and waited)


def test_nothing_starts_from_doubt_or_from_what_is_being_sent() -> None:
    for case in every_case():
        if case.existing.state.in_doubt or case.existing.state is State.SENDING:
            assert case.judgement.start_generation is None


def test_a_key_from_a_header_is_spent_by_a_definite_end() -> None:
    for case in started():
        stands = case.judgement.existing
        assert stands is not None
        assert stands.key_names_purchase or stands.key_released


def test_generations_are_counted_one_by_one() -> None:
    for case in started():
        assert case.judgement.start_generation == 4


def test_a_released_end_keeps_the_key_that_the_provider_saw_and_a_stored_one_changes_it() -> None:
    kept = {
        case.judgement.provider_key
        for case in started()
        if case.judgement.existing and case.judgement.existing.key_released
    }
    changed = {
        case.judgement.provider_key
        for case in started()
        if case.judgement.existing and not case.judgement.existing.key_released
    }
    assert kept == {"the-key-of-3"}
    assert changed == {generation_key(STEM, 4)}


def test_under_a_kept_key_an_equal_payload_keeps_its_stamp_too() -> None:
    released = replace(holding(State.FAILED), key_released=True, stamp="first")
    fresh = operation(id="op_02", stamp="second")
    other = replace(fresh, fingerprint="g" * 64)
    declined = replace(released, key_released=False, key_names_purchase=True, ended_at=1.0)
    assert judge(released, asking(fresh=fresh), NOW).stamp == "first"
    assert judge(released, asking(fresh=other), NOW).stamp == "second"
    assert judge(declined, asking(fresh=fresh), NOW).stamp == "second"
    assert judge(None, asking(fresh=fresh), NOW).stamp == "second"


def test_a_provider_without_keys_is_given_none() -> None:
    ended = replace(holding(State.FAILED), key_released=False, key_names_purchase=True, provider_key=None, ended_at=1.0)
    assert judge(ended, asking(key_stem=None), NOW).provider_key is None


def test_whoever_asks_again_with_its_token_gets_the_same_answer() -> None:
    """Until something has happened to it: a holder whose attempt has ended does not get a right to send back."""
    for until_at in (NOW + 1, NOW - 1):
        claimed = replace(holding(State.SENDING), version=1, lease=Lease("mine", until_at))
        assert judge(claimed, asking(), NOW) == ClaimJudgement(ClaimVerdict.OWNED, claimed)
    for case in every_case():
        if case.lease.startswith("own") and case.existing.version != 1 and case.judgement.start_generation is None:
            assert case.judgement.verdict is not ClaimVerdict.OWNED


def test_no_one_else_owns_what_somebody_holds() -> None:
    for case in every_case():
        if case.lease == "live" and case.existing.state is not State.FAILED:
            assert case.judgement.verdict in {ClaimVerdict.IN_FLIGHT, ClaimVerdict.MISMATCH}


def test_another_payload_under_the_key_is_a_mismatch_unless_the_key_may_start_again() -> None:
    for case in every_case():
        if not case.equal and not case.lease.startswith("own"):
            again = case.judgement.start_generation is not None
            assert again or case.judgement.verdict is ClaimVerdict.MISMATCH
        if case.equal:
            assert case.judgement.verdict is not ClaimVerdict.MISMATCH


def test_a_caller_that_may_start_nothing_starts_nothing() -> None:
    for case in every_case():
        if not case.request.permitted and not case.lease.startswith("own"):
            assert case.judgement.verdict is not ClaimVerdict.OWNED


def test_what_may_start_again_is_absent_to_a_caller_that_may_not() -> None:
    permitted = {
        (case.existing, case.equal): case.judgement.start_generation is not None
        for case in every_case()
        if case.request.permitted
    }
    for case in every_case():
        if not case.request.permitted:
            assert (case.judgement.verdict is ClaimVerdict.ABSENT) == permitted[case.existing, case.equal]


def test_doubt_that_nobody_holds_is_told_as_doubt() -> None:
    for case in every_case():
        stands = case.judgement.existing
        if case.judgement.verdict is ClaimVerdict.IN_DOUBT:
            assert stands is not None
            assert stands.state.in_doubt
            assert stands.lease is None
        if case.equal and case.lease in {"none", "expired"} and stands is not None and stands.state.in_doubt:
            assert case.judgement.verdict is ClaimVerdict.IN_DOUBT


def test_only_what_has_ended_or_stands_is_replayed() -> None:
    stands = {State.SUCCEEDED, State.FAILED, State.PENDING, State.REQUIRES_ACTION}
    for case in every_case():
        if case.judgement.verdict is ClaimVerdict.REPLAY:
            assert case.judgement.existing is not None
            assert case.judgement.existing.state in stands


def test_an_expired_lease_is_acted_upon_before_it_is_judged() -> None:
    for case in every_case():
        if case.lease == "expired":
            assert case.judgement.existing == drop_lease(case.existing, NOW)
        elif case.lease != "own, expired":
            assert case.judgement.existing is case.existing


# --- single claims


@pytest.mark.parametrize("age_s", AGES_S)
@pytest.mark.parametrize("equal", BOTH)
def test_a_declined_purchase_is_replayed_for_a_minute_and_then_starts_again(age_s: float, *, equal: bool) -> None:
    declined = replace(holding(State.FAILED), key_names_purchase=True, ended_at=NOW - age_s)
    request = asking(fresh=operation(fingerprint=("f" if equal else "g") * 64))
    starts = judge(declined, request, NOW).start_generation is not None
    assert starts == (not equal or age_s >= REPLAY_BEFORE_NEXT_GENERATION_S)


def test_a_repeat_is_compared_under_the_rule_of_the_first() -> None:
    request = asking(fresh=operation(fingerprint="g" * 64))
    paid = holding(State.SUCCEEDED)
    assert judge(paid, request, NOW).verdict is ClaimVerdict.MISMATCH
    assert judge(paid, replace(request, compare_fingerprint="f" * 64), NOW).verdict is ClaimVerdict.REPLAY


@pytest.mark.parametrize("state", [State.PREPARED, State.SENDING, State.BACKOFF])
def test_what_is_open_without_a_holder_is_in_flight_not_answered(state: State) -> None:
    assert judge(holding(state), asking(), NOW).verdict is ClaimVerdict.IN_FLIGHT


def test_a_declined_purchase_does_not_start_again_under_an_attempt_of_the_first() -> None:
    under_way = replace(
        holding(State.FAILED, under_way=True), key_names_purchase=True, ended_at=1.0, lease=Lease("another", NOW + 1)
    )
    assert judge(under_way, asking(), NOW).verdict is ClaimVerdict.IN_FLIGHT


# --- leases


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("under_way", BOTH)
@pytest.mark.parametrize("released", BOTH)
def test_a_dropped_lease_decides_what_is_now_true(state: State, *, under_way: bool, released: bool) -> None:
    if under_way and state in UNSENT:
        return
    before = replace(holding(state, under_way=under_way), lease=LEASES["expired"], key_released=released)
    after = drop_lease(before, NOW)
    assert after.lease is None
    assert not after.attempt_under_way
    if state in UNSENT:
        assert (after.state, after.key_released) == (State.FAILED, True)
    elif state is State.SENDING:
        assert (after.state, after.doubt, after.key_released) == (State.UNKNOWN, frozenset({1}), released)
    else:
        assert (after.state, after.doubt, after.key_released) == (state, before.doubt, released)


def test_a_decline_is_not_released_by_a_lease_that_was_still_out() -> None:
    declined = replace(holding(State.FAILED), lease=LEASES["expired"])
    assert not drop_lease(declined, NOW).key_released
    assert judge(declined, asking(), NOW).verdict is ClaimVerdict.REPLAY


@pytest.mark.parametrize("lease", ["none", "live", "own"])
def test_a_lease_that_has_not_run_out_changes_nothing(lease: str) -> None:
    held = replace(holding(State.SENDING), lease=LEASES[lease])
    assert after_expired_lease(held, NOW) is held


def test_a_re_send_whose_holder_is_gone_is_in_doubt() -> None:
    resent = operation(
        state=State.UNKNOWN, doubt=frozenset({1, 2}), attempts=2, attempt_under_way=True, lease=LEASES["expired"]
    )
    after = drop_lease(resent, NOW)
    assert (after.doubt, after.attempt_under_way) == (frozenset({1, 2}), False)


# --- keys of generations


def test_keys_of_generations_are_short_lower_case_and_all_different() -> None:
    keys = [generation_key(STEM, generation) for generation in range(1, 2000)]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", key)
        assert len(key) == 36


def test_keys_of_different_stems_differ_in_every_generation() -> None:
    other = "f" + STEM[1:]
    assert all(generation_key(STEM, n) != generation_key(other, m) for n in range(1, 9) for m in range(1, 9))


def test_the_key_of_a_generation_never_changes() -> None:
    assert generation_key(STEM, 1) == "01234567-89ab-4def-8123-456789ab0001"
    assert generation_key(STEM, 300) == "01234567-89ab-4def-8123-456789ab012c"


def test_the_key_of_a_generation_is_a_uuid_that_any_provider_takes() -> None:
    for generation in (1, 2, 0xFFFF):
        read = uuid.UUID(generation_key(STEM, generation))
        assert (read.version, read.variant) == (4, uuid.RFC_4122)
