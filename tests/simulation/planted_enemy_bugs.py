"""The bugs that only an enemy shows (`enemies.py`): evidence that is another's, absence by wrong clocks and at wrong
addresses, replies that do not ask the guard, merchants who are taken for one.
"""

from __future__ import annotations

from typing import Any

from paywitness.core.ages import AgeTable
from paywitness.core.credential_owners import CredentialRelation
from paywitness.core.evidence import Response
from paywitness.core.inquiry import BelongsFields, FoundObject
from paywitness.core.policy import Policy
from tests.simulation.planting import Bug, Change, Function, Replaced

PAID_TWICE = ("one effect", "no re-send in doubt", "no re-send past the window", "an order is paid once")
UNTRUE = (
    *("no means none, for ever", "succeeded is one effect", "the right amount", "nobody else's answer"),
    *("doubt not guessed away", "a success has its own line", "one effect for one movement"),
)

OWN_MERCHANT = ("everybody's own merchant",)

_CORE, _ENGINE = "paywitness.core.", "paywitness.engine."


def bug(
    name: str, what: str, *changes: Change, breaks: tuple[str, ...] = (*PAID_TWICE, *UNTRUE), between: bool = False
) -> Bug:
    return Bug(name, what, changes, breaks, between)


# --- evidence


def _holds_everything(right: Function) -> Function:
    def wrong(self: BelongsFields, provider_object: Any, values: Any) -> bool:
        return True

    return wrong


def _never_stale(right: Function) -> Function:
    def wrong(belongs: BelongsFields, seen: FoundObject, operation: Any, provider_time: Any) -> bool:
        return True

    return wrong


def _no_page_is_foreign(right: Function) -> Function:
    def wrong(response: Response, tree: Any, *, readable: bool) -> bool:
        return False

    return wrong


# --- identity


def _owner_is_no_account(right: Function) -> Function:
    def wrong(self: Policy, owner: str) -> Policy:
        return self

    return wrong


def _everybody_is_the_same(right: Function) -> Function:
    def wrong(mine: str, marks: Any, other: str, other_marks: Any, account: str) -> CredentialRelation:
        return CredentialRelation.SAME

    return wrong


# --- absence and clocks


def _by_the_store_alone(right: Function) -> Function:
    def wrong(self: AgeTable, at: float, now: float) -> float:
        return now - at

    return wrong


def _never_bounded(right: Function) -> Function:
    def wrong(self: Any) -> float:
        told_at = self._journal_clock.told_at
        return told_at if told_at is not None else right(self)

    return wrong


ENEMY_BUGS = (
    bug(
        "belongs_not_compared",
        "an inquiry's object is taken for ours, whatever names it shows",
        Replaced(_CORE + "inquiry.BelongsFields.hold", _holds_everything),
        between=True,
    ),
    bug(
        "stale_denial_believed",
        "a decline on an object that several calls share ends whichever call asks about it",
        Replaced(_CORE + "inquiry._is_of_attempt", _never_stale),
        between=True,
    ),
    bug(
        "page_is_a_refusal",
        "a gateway's page with 400, 403 or 404 is read as the provider's refusal",
        Replaced(_CORE + "classify.is_foreign_page", _no_page_is_foreign),
    ),
    bug(
        "account_ignores_the_owner",
        "two owners of one provider have one account, with one set of keys and orders",
        Replaced(_CORE + "policy.Policy.of_owner", _owner_is_no_account),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "replayed_to_another_merchant",
        "two owners have one account, and what one was answered is told to the other",
        Replaced(_CORE + "policy.Policy.of_owner", _owner_is_no_account),
        Replaced(_CORE + "credential_owners.related", _everybody_is_the_same),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "age_by_the_store_s_clock",
        "what must have passed is counted by the clock of the store, whoever set it",
        Replaced(_CORE + "ages.AgeTable.low_age_s", _by_the_store_alone),
        Replaced(_ENGINE + "durability.ages.Ages._low_now", _never_bounded),
    ),
)
