"""The bugs that only an enemy shows (`enemies.py`): evidence that is another's, absence by wrong clocks and at wrong
addresses, replies that do not ask the guard, merchants who are taken for one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paywitness.core.ages import AgeTable, ClockReading
from paywitness.core.credential_owners import CredentialRelation
from paywitness.core.decide import DecisionContext
from paywitness.core.evidence import Response
from paywitness.core.inquiry import BelongsFields, FoundObject, Inquiry
from paywitness.core.operation import Finding, FindingKind
from paywitness.core.policy import Policy
from paywitness.core.template import CLOCK_DRIFT_MAX_S, TemplateValues
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


def _always_agreeing(right: Function) -> Function:
    def wrong(earlier: ClockReading, reading: ClockReading) -> bool:
        return True

    return wrong


def _at_today_s_address(right: Function) -> Function:
    def wrong(operation: Any, policy: Policy) -> Policy:
        return policy

    return wrong


def _as_if_same_address(right: Function) -> Function:
    def wrong(context: DecisionContext) -> bool:
        return bool(right(replace(context, same_upstream=True)))

    return wrong


def _by_our_clock(right: Function) -> Function:
    def wrong(self: TemplateValues) -> float | None:
        sent_at = self.operation.first_sent_at
        return None if sent_at is None else sent_at - CLOCK_DRIFT_MAX_S

    return wrong


def _every_list_covers(right: Function) -> Function:
    def wrong(values: TemplateValues, provider_time: Any) -> bool:
        return True

    return wrong


def _not_found_is_missed(right: Function) -> Function:
    def wrong(inquiry: Inquiry) -> FoundObject:
        return FoundObject(Finding(inquiry.name, FindingKind.MISSED, 404, None, "not found"))

    return wrong


def _no_gap(right: Function) -> Function:
    def wrong(self: AgeTable, at: float, now: float, provider: str = "") -> float:
        return float(right(replace(self, gap_at=None), at, now, provider))

    return wrong


def _from_first_send(right: Function) -> Function:
    def wrong(operation: Any) -> float:
        return float(operation.first_sent_at if operation.first_sent_at is not None else right(operation))

    return wrong


def _never_rolled_back(right: Function) -> Function:
    def wrong(self: Any) -> bool:
        return False

    return wrong


def _nothing_put_back(right: Function) -> Function:
    async def wrong(self: Any) -> int:
        return 0

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
    bug(
        "jump_counts_as_age",
        "a jump of the store's clock counts as time that has passed",
        Replaced(_CORE + "ages._agree", _always_agreeing),
    ),
    bug(
        "miss_at_the_new_address",
        "an inquiry goes to the address that the policy names today, which did not get the attempt",
        Replaced(_ENGINE + "resolution.inquiries._at_first_upstream", _at_today_s_address),
    ),
    bug(
        "resent_to_the_new_address",
        "what is in doubt is sent again to the address that the policy names today, which does not know the key",
        Replaced(_CORE + "decide.may_resend", _as_if_same_address),
    ),
    bug(
        "since_by_our_clock",
        "a list begins when we sent it, by our own clock, and what it does not show is missed",
        Replaced(_CORE + "template.TemplateValues.since_at", _by_our_clock),
        Replaced(_CORE + "inquiry._covers_attempt", _every_list_covers),
    ),
    bug(
        "named_payment_is_absent",
        "a 404 for a name that the provider gave us counts as a miss",
        Replaced(_CORE + "inquiry._not_found", _not_found_is_missed),
    ),
    bug(
        "resent_after_a_gap",
        "what was sent before nobody looked is sent again before a `Date` has told how long that was",
        Replaced(_CORE + "ages.AgeTable.high_age_s", _no_gap),
    ),
    bug(
        "settled_since_the_first_send",
        "what must have settled is counted from the first attempt, not from the last",
        Replaced(_CORE + "inquiry.quiet_since", _from_first_send),
    ),
    bug(
        "rollback_not_noticed",
        "a store that came back without its keys goes on as if nothing had happened",
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor.recently_rolled_back", _never_rolled_back),
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor.check", _nothing_put_back),
    ),
    bug(
        "forgotten_and_not_put_back",
        "what a store has forgotten is not put back by those who know it",
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor._restore_forgotten", _nothing_put_back),
    ),
)
