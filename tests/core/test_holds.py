"""Whom a provider asked to wait: parties, and what is remembered of them."""

from __future__ import annotations

from paywitness.core.holds import (
    ASKED_WITHIN_MS,
    EVERYONE,
    HOLDS_MAX,
    Hold,
    HoldStatus,
    LimitedBy,
    asked_lately,
    hold_statuses,
    limited_by_of,
    party_of,
    with_asks,
)

NOW = 1_700_000_000_000


def test_the_party_is_whom_the_policy_says() -> None:
    here = ("0123456789abcdef" * 4, "main")
    there = ("fedcba9876543210" * 4, "main")
    assert party_of(LimitedBy.CREDENTIAL, *here) != party_of(LimitedBy.CREDENTIAL, *there)
    assert party_of(LimitedBy.ACCOUNT, *here) == party_of(LimitedBy.ACCOUNT, *there)
    assert party_of(LimitedBy.PROVIDER, *here) == EVERYONE
    assert [limited_by_of(party_of(kind, *here)) for kind in LimitedBy] == list(LimitedBy)


def test_what_a_caller_calls_an_account_is_no_part_of_its_partys_name() -> None:
    assert "main" not in party_of(LimitedBy.ACCOUNT, "", "main")
    assert party_of(LimitedBy.ACCOUNT, "", "\ud800") != party_of(LimitedBy.ACCOUNT, "", "main")


def test_a_hold_never_ends_sooner_because_of_a_shorter_retry_after() -> None:
    holds = with_asks({}, {"c:1": NOW + 120_000}, NOW)
    holds = with_asks(holds, {"c:1": NOW + 1_500}, NOW + 500)
    assert holds == {"c:1": Hold(NOW + 120_000, NOW + 500)}


def test_no_two_holds_were_asked_for_at_the_same_time_so_each_change_is_told_once() -> None:
    holds = with_asks({}, dict.fromkeys(("c:1", "c:2", "c:3"), NOW + 9), NOW)
    holds = with_asks(holds, {"c:4": NOW + 9}, NOW)
    assert sorted(hold.asked_ms for hold in holds.values()) == [NOW, NOW + 1, NOW + 2, NOW + 3]


def test_what_is_over_is_forgotten_once_it_counts_for_nothing() -> None:
    holds = with_asks({}, {"c:1": NOW, "c:2": NOW + 60_000}, NOW)
    assert len(asked_lately(holds, NOW + ASKED_WITHIN_MS)) == 2
    later = with_asks(holds, {}, NOW + ASKED_WITHIN_MS + 5)
    assert (set(later), asked_lately(later, NOW + ASKED_WITHIN_MS + 5)) == ({"c:2"}, [])
    assert with_asks(later, {}, NOW + 60_001) == {}


def test_there_are_never_more_than_so_many() -> None:
    holds = with_asks({}, {f"c:{number}": NOW + 60_000 for number in range(HOLDS_MAX + 5)}, NOW)
    assert len(holds) == HOLDS_MAX
    assert "c:4" not in holds
    assert "c:5" in holds


def test_holds_are_told_by_kind_and_never_by_name() -> None:
    held = {"c:1": NOW + 5_000, "c:2": NOW + 90_000, "c:3": NOW, "a:1": NOW + 1_000}
    assert hold_statuses(held, NOW) == (
        HoldStatus(LimitedBy.CREDENTIAL, 2, 90.0),
        HoldStatus(LimitedBy.ACCOUNT, 1, 1.0),
    )
