"""Whose a credential is: what two credentials are to each other, by what is known of them."""

from __future__ import annotations

import itertools

import pytest

from paywitness.core.credential_owners import (
    CredentialRelation,
    marks_from_text,
    marks_to_text,
    related,
)

SAME, OTHER, UNKNOWN = CredentialRelation
ALICE, BOB = {"=alice": "provider"}, {"=bob": "provider"}


def relation(mine: dict[str, str], others: dict[str, str], account: str = "acct") -> CredentialRelation:
    return related("c2", mine, "c1", others, account)


def test_a_credential_is_its_own_whatever_is_known_of_it() -> None:
    for marks in ({}, ALICE, BOB):
        assert related("c1", marks, "c1", {}, "acct") is SAME


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        ({}, {}, UNKNOWN),
        (ALICE, {}, UNKNOWN),
        ({}, ALICE, UNKNOWN),
        (ALICE, ALICE, SAME),
        (ALICE, BOB, OTHER),
        ({"~c1": "control"}, {}, SAME),
        ({}, {"~c2": "operator"}, SAME),
        ({"~c0": "control"}, {"~c0": "control"}, SAME),
        ({"@acct": "operator"}, {}, SAME),
        ({"@elsewhere": "operator"}, {}, UNKNOWN),
    ],
)
def test_two_credentials_are_of_one_owner_if_they_share_a_mark(
    mine: dict[str, str], others: dict[str, str], expected: CredentialRelation
) -> None:
    assert relation(mine, others) is expected


def test_n5_the_providers_word_goes_before_an_operators_and_a_control_question() -> None:
    for said in ({"~c1": "operator"}, {"@acct": "operator"}, {"~c1": "control"}):
        assert relation({**BOB, **said}, ALICE) is OTHER


def test_a_mark_that_only_the_other_has_for_its_account_says_nothing() -> None:
    assert relation({}, {"@acct": "operator"}) is UNKNOWN


def test_marks_are_read_as_they_were_written_whatever_their_order() -> None:
    marks = {"=alice": "provider", "~c9": "control", "@acct": "operator"}
    for order in itertools.permutations(marks.items()):
        assert marks_to_text(dict(order)) == marks_to_text(marks)
    assert marks_from_text(marks_to_text(marks)) == marks
