"""The bugs that only an enemy shows (`enemies.py`): evidence that is another's, absence by wrong clocks and at wrong
addresses, replies that do not ask the guard, merchants who are taken for one.
"""

from __future__ import annotations

from typing import Any

from paywitness.core.ages import AgeTable
from paywitness.core.call import Call
from paywitness.core.credential_owners import CredentialRelation
from paywitness.core.evidence import Response
from paywitness.core.identity import credential_of, keyed_hash
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


def _asked_under_anothers(right: Function) -> Function:
    async def wrong(self: Any, operation: Any, policy: Any, headers: Any) -> CredentialRelation:
        relation = await right(self, operation, policy, headers)
        return CredentialRelation.UNKNOWN if relation is CredentialRelation.OTHER else relation

    return wrong


def _starts_are_of_nobody(right: Function) -> Function:
    def wrong(plan: Any, request: Any, lookups: Any) -> Any:
        return plan if plan.insert is not None else right(plan, request, lookups)

    return wrong


def _credential_is_the_account(right: Function) -> Function:
    def wrong(call: Call, policy: Any, tree: Any, parameters: Any, secret: bytes) -> str:
        return keyed_hash(secret, "account", right(call, policy, tree, parameters, secret), credential_of(call, secret))

    return wrong


def _guard_of_the_provider(right: Function) -> Function:
    def wrong(policy: Any, account: str, intent: str, secret: bytes) -> str:
        return str(right(policy, "", intent, secret))

    return wrong


def _first_answer_for_all(right: Function) -> Function:
    answered: list[tuple[str | None, float]] = []

    async def wrong(self: Any, key: str, policy: Any, who_am_i: Any, credential: Any) -> tuple[str | None, float]:
        owner = answered[0] if answered else await right(self, key, policy, who_am_i, credential)
        if owner[0] is not None and not answered:
            answered.append(owner)
        return owner[0], owner[1]

    return wrong


def _as_if_the_provider_knew(right: Function) -> Function:
    def wrong(client_key: str, field_ref: Any, contract: Any, stem: Any, *, only_we_know: bool) -> Any:
        return right(client_key, field_ref, contract, stem, only_we_know=False)

    return wrong


def _newest_alone(right: Function) -> Function:
    async def wrong(self: Any, operation: Any) -> Any:
        return (await right(self, operation))[:1]

    return wrong


def _seen_by_all_of_the_account(right: Function) -> Function:
    def wrong(relation: CredentialRelation, *, accepted: bool, source: Any, separates: bool) -> bool:
        return True

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
        "another_owner_is_the_same",
        "a constant account maps credentials: whoever uses it is told and sends what another owner made",
        Replaced(_CORE + "credential_owners.related", _everybody_is_the_same),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "asked_under_another_owners",
        "an inquiry is sent under a credential that the provider has named another owner's",
        Replaced(_ENGINE + "resolution.background_credentials.CredentialSource._relation", _asked_under_anothers),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "anothers_key_is_taken_up",
        "a key that another owner used in vain starts its next generation, under the same stamp",
        Replaced("paywitness.journal.claim_answer._with_credential", _starts_are_of_nobody),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "rotation_changes_the_identity",
        "the credential is a part of the account: after a rotation the same key and order are new",
        Replaced(_CORE + "identity.account_of", _credential_is_the_account),
    ),
    bug(
        "order_guard_ignores_the_account",
        "an order number is guarded for all accounts of the provider, and the 409 names another merchant's operation",
        Replaced(_CORE + "identity.intent_guard", _guard_of_the_provider),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "first_answer_for_all",
        "whose a credential is is answered once, and taken for every credential",
        Replaced(_ENGINE + "credential_owners.CredentialOwners._owner_of", _first_answer_for_all),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "raw_key_of_an_account_that_only_we_know",
        "the caller's own key goes out though only our header names the account: two merchants share it there",
        Replaced(_CORE + "identity._provider_key", _as_if_the_provider_knew),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "revoked_credential_hides_the_one_in_use",
        "only the credential that was accepted last is tried, also if it was recorded late and is revoked",
        Replaced(_ENGINE + "resolution.background_credentials.CredentialSource._newest_accepted", _newest_alone),
        breaks=("nothing stuck",),
    ),
    bug(
        "stored_reply_for_any_credential",
        "whoever names an account and repeats a key is shown the stored reply, whatever its credential",
        Replaced(_CORE + "credential_owners.may_see", _seen_by_all_of_the_account),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "age_by_the_store_s_clock",
        "what must have passed is counted by the clock of the store, whoever set it",
        Replaced(_CORE + "ages.AgeTable.low_age_s", _by_the_store_alone),
        Replaced(_ENGINE + "durability.ages.Ages._low_now", _never_bounded),
    ),
)
