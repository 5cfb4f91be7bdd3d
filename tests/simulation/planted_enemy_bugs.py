"""The bugs that only an enemy shows (`enemies.py`): evidence that is another's, absence by wrong clocks and at wrong
addresses, replies that do not ask the guard, merchants who are taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paywitness.core.ages import AgeTable, ClockReading
from paywitness.core.call import Call
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.classify import ClassifyRules, ExpectedPayment
from paywitness.core.credential_owners import CredentialRelation
from paywitness.core.decide import DecisionContext
from paywitness.core.evidence import Response
from paywitness.core.identity import LABEL_LENGTH_MAX, credential_of, keyed_hash
from paywitness.core.inquiry import BelongsFields, FoundObject, Inquiry
from paywitness.core.operation import Finding, FindingKind, Operation, Outcome, State
from paywitness.core.policy import Policy
from paywitness.core.problems import Problem
from paywitness.core.reply import problem_reply
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.core.template import CLOCK_DRIFT_MAX_S, TemplateValues
from paywitness.journal.claim_answer import ClaimPlan
from tests.simulation.guard_checkers import NOT_SENT_IS_TRUE, SAFE_IS_TRUE
from tests.simulation.planting import Bug, Change, Function, Replaced

PAID_TWICE = ("one effect", "no re-send in doubt", "no re-send past the window", "an order is paid once")
UNTRUE = (
    *("no means none, for ever", "succeeded is one effect", "the right amount", "nobody else's answer"),
    *("doubt not guessed away", "a success has its own line", "one effect for one movement"),
)

GUARDS = (NOT_SENT_IS_TRUE, SAFE_IS_TRUE)
STUCK = ("nothing stuck", "everybody is told in the end", "a free order can be paid")
OWN_MERCHANT = ("everybody's own merchant",)

_CORE, _ENGINE = "paywitness.core.", "paywitness.engine."


def bug(
    name: str,
    what: str,
    *changes: Change,
    breaks: tuple[str, ...] = (*PAID_TWICE, *UNTRUE),
    between: bool = False,
    focus: str = "",
) -> Bug:
    return Bug(name, what, changes, breaks, between, focus)


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


def _pages_miss(right: Function) -> Function:
    def wrong(inquiry: Inquiry, evidence: Any, rules: Any, expected: Any, values: Any) -> FoundObject:
        seen: FoundObject = right(inquiry, evidence, rules, expected, values)
        is_page = seen.finding.kind is FindingKind.FAILED and seen.finding.detail == "no response that shows anything"
        if not is_page or seen.finding.status_code == 200:
            return seen
        return FoundObject(replace(seen.finding, kind=FindingKind.MISSED))

    return wrong


def _page_is_a_success(right: Function) -> Function:
    def wrong(status_code: int, *, readable: bool, kind_moves_money: bool) -> Classification:
        if 200 <= status_code < 300:
            return Classification.of(ResultClass.SUCCEEDED, f"http_{status_code}")
        found: Classification = right(status_code, readable=readable, kind_moves_money=kind_moves_money)
        return found

    return wrong


def _fits_by_its_stamp(right: Function) -> Function:
    def wrong(self: Any, rules: ClassifyRules, asked: Any) -> FoundObject:
        found: FoundObject = right(self, rules, ExpectedPayment(None, asked.stamp))
        return found

    return wrong


async def _is_always_ours(self: Any, webhook_event: Any, candidate: Any) -> bool:
    return True


def _every_event_is_ours(right: Function) -> Function:
    return _is_always_ours


def _keeps_the_copy(right: Function) -> Function:
    def wrong(request: Any, operation: Operation, policy: Policy, path_prefix: str) -> Any:
        copied = _COPIED_STAMP.search(request.body)
        if copied is not None:  # it is there already, so none is written
            operation = operation.changed(stamp=copied.group(1).decode())
        return right(request, operation, policy, path_prefix)

    return wrong


_COPIED_STAMP = re.compile(rb'"paywitness": "(op_[^"]+)"')


def _done_is_done(right: Function) -> Function:
    def wrong(
        classification: Classification, operation: Any, policy: Any, payment: Any, *, rolled_back: bool
    ) -> Classification:
        if classification.result_class is not ResultClass.ALREADY_DONE:
            return classification
        return replace(classification, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)

    return wrong


# --- guards


def _key_alone(right: Function) -> Function:
    def wrong(request: ClaimRequest, judgement: Any, before: Any, now: float, lookups: Any) -> Any:
        if not request.permitted:
            return ClaimPlan(ClaimVerdict.ABSENT, None, tuple(before))
        return right(request, judgement, before, now, lookups)

    return wrong


def _unasked(refused_so: Callable[[Any], bool]) -> Callable[[Function], Function]:
    """Whoever is refused in this way is told so at once, without a look at key and guard."""

    def make(right: Function) -> Function:
        async def wrong(self: Any, context: Any, leader: Any) -> Any:
            decision = await self.gate.admit(context, len(self.in_flight), waits=False)
            if not decision.granted and refused_so(decision):
                told = {"shape": context.shape, "provider": context.policy.provider, "sent": False}
                return problem_reply(Problem.NOT_SENT, decision.detail, **told)
            await self.gate.release(decision.attempt_permit)
            return await right(self, context, leader)

        return wrong

    return make


def _not_sent_without_journal(right: Function) -> Function:
    def wrong(self: Any, context: Any, detail: str = "") -> Any:
        if context.progress.has_sent or context.progress.may_have_sent:
            return right(self, context)
        told = {"shape": context.shape, "provider": context.policy.provider, "sent": False}
        return problem_reply(Problem.NOT_SENT, "Nothing was sent.", **told)

    return wrong


def _safe_in(*states: State) -> Callable[[Function], Function]:
    def make(right: Function) -> Function:
        def wrong(operation: Operation, hold: Any = None) -> str | None:
            found: str | None = None if operation.state in states else right(operation, hold)
            return found

        return wrong

    return make


def _asked_by_its_whole_name(right: Function) -> Function:
    async def wrong(self: Any, label: str, provider: str | None) -> tuple[Operation, ...]:
        found: tuple[Operation, ...] = await right(self, label, provider)
        return found if len(label) < LABEL_LENGTH_MAX else ()

    return wrong


# --- too strict


def _miss_says_nothing(right: Function) -> Function:
    def wrong(
        inquiry: Inquiry, evidence: Any, rules: Any, expected: Any, values: Any, provider_time: Any = None
    ) -> FoundObject:
        seen: FoundObject = right(inquiry, evidence, rules, expected, values, provider_time)
        if seen.finding.kind is FindingKind.MISSED:
            return FoundObject(replace(seen.finding, kind=FindingKind.FAILED))
        return seen

    return wrong


def _holds_nothing(right: Function) -> Function:
    def wrong(self: BelongsFields, provider_object: Any, values: Any) -> bool:
        return False

    return wrong


def _stale_for_ever(right: Function) -> Function:
    def wrong(operation: Operation, event: Any, contract: Any, *, settled: bool, may_be_stale: bool) -> bool:
        waits: bool = right(operation, event, contract, settled=settled, may_be_stale=may_be_stale)
        return waits or (may_be_stale and bool(operation.doubt) and not operation.state.ended)

    return wrong


def _absent_holds(right: Function) -> Function:
    def wrong(operation: Operation) -> bool:
        return bool(right(operation)) or operation.outcome is Outcome.ABSENT

    return wrong


def _asked_once(right: Function) -> Function:
    def wrong(inquiry_result: Any) -> bool:
        return False

    return wrong


# --- identity


def _owner_is_no_account(right: Function) -> Function:
    def wrong(self: Policy, owner: str) -> Policy:
        return self

    return wrong


def _everybody_is_the_same(right: Function) -> Function:
    def wrong(mine: str, marks: Any, other: str, other_marks: Any, account: str, named: str = "") -> CredentialRelation:
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
        "an inquiry's object counts as ours, whatever names it shows",
        Replaced(_CORE + "inquiry.BelongsFields.hold", _holds_everything),
        between=True,
        focus="strange_objects",
    ),
    bug(
        "stale_denial_believed",
        "a decline on an object that several calls share ends every call that inquires about it",
        Replaced(_CORE + "inquiry._is_of_attempt", _never_stale),
        between=True,
        focus="stale_declines",
    ),
    bug(
        "page_is_a_refusal",
        "a gateway's page with 400, 403 or 404 is read as the provider's refusal",
        Replaced(_CORE + "classify.is_foreign_page", _no_page_is_foreign),
    ),
    bug(
        "page_is_a_miss",
        "a gateway's page that answers an inquiry is read as not found",
        Replaced(_CORE + "inquiry._read_inquiry", _pages_miss),
    ),
    bug(
        "page_200_is_a_success",
        "a page with 200 that no row reads is read as a success",
        Replaced(_CORE + "classify._by_status", _page_is_a_success),
    ),
    bug(
        "event_of_a_copy_believed",
        "an event that names our stamp is believed, whatever reference and amount it shows",
        Replaced(_ENGINE + "webhooks.matcher.WebhookMatcher._belongs", _every_event_is_ours),
        Replaced(_ENGINE + "webhooks.applier._EventReader.read", _fits_by_its_stamp),
    ),
    bug(
        "copied_stamp_kept",
        "a stamp that the caller copied from another payment is sent in the place of ours",
        Replaced(_ENGINE + "calls.stored_messages.wire_request", _keeps_the_copy),
    ),
    bug(
        "already_done_is_a_success",
        "a first call that the provider calls already done counts as done by that call",
        Replaced(_CORE + "payment_evidence.without_doubt_of_others", _done_is_done),
        between=True,
    ),
    bug(
        "judged_by_its_key_alone",
        "a call that our limits refuse is looked up by its key, and not by its order",
        Replaced("paywitness.journal.claim_plan._plan_under_guard", _key_alone),
        breaks=GUARDS,
    ),
    bug(
        "refused_by_the_circuit_unasked",
        "a call that the circuit refuses gets not_sent without a look into the journal",
        Replaced(_ENGINE + "engine.Engine._admit_and_run", _unasked(lambda decision: decision.by_circuit)),
        breaks=GUARDS,
    ),
    bug(
        "refused_at_shutdown_unasked",
        "a call that comes while its sidecar shuts down gets not_sent without a look into the journal",
        Replaced(_ENGINE + "engine.Engine._admit_and_run", _unasked(lambda decision: decision.refusal == "draining")),
        breaks=GUARDS,
    ),
    bug(
        "journal_down_says_not_sent",
        "a call whose journal does not respond gets not_sent",
        Replaced(_ENGINE + "engine.Engine._reply_without_journal", _not_sent_without_journal),
        breaks=GUARDS,
    ),
    bug(
        "safe_to_pay_in_doubt",
        "an order whose payment is unknown is said to be safe to pay",
        Replaced(_ENGINE + "intents.unsafe_reason", _safe_in(State.UNKNOWN)),
        breaks=GUARDS,
    ),
    bug(
        "safe_to_pay_in_flight",
        "an order whose payment is under way is said to be safe to pay",
        Replaced(_ENGINE + "intents.unsafe_reason", _safe_in(State.PREPARED, State.SENDING, State.BACKOFF)),
        breaks=GUARDS,
    ),
    bug(
        "long_orders_are_not_found",
        "an order whose name is longer than what the journal keeps of it is said to be safe to pay",
        Replaced(_ENGINE + "intents.Intents._operations_of", _asked_by_its_whole_name),
        breaks=GUARDS,
    ),
    bug(
        "no_miss_counts",
        "a miss never counts, however many there are",
        Replaced(_CORE + "inquiry.read_inquiry", _miss_says_nothing),
        breaks=STUCK,
    ),
    bug(
        "no_object_is_ours",
        "every object that an inquiry shows counts as another's",
        Replaced(_CORE + "inquiry.BelongsFields.hold", _holds_nothing),
        breaks=STUCK,
    ),
    bug(
        "stale_for_ever",
        "a decline on an object that several calls share ends nothing, also when all has settled",
        Replaced(_CORE + "external_evidence._must_wait", _stale_for_ever),
        breaks=STUCK,
        between=True,
    ),
    bug(
        "absent_holds_the_order",
        "an order whose payment was never executed cannot be paid under another key",
        Replaced(_CORE + "guard._is_open", _absent_holds),
        breaks=STUCK,
    ),
    bug(
        "action_asked_about_once",
        "after the customer's time there is one inquiry, even if it fails",
        Replaced(_ENGINE + "resolution.next_checks.says_nothing", _asked_once),
        breaks=STUCK,
    ),
    bug(
        "account_ignores_the_owner",
        "two owners of one provider have one account, with one set of keys and orders",
        Replaced(_CORE + "policy.Policy.of_owner", _owner_is_no_account),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "replayed_to_another_merchant",
        "two owners have one account, and one gets the other's replies",
        Replaced(_CORE + "policy.Policy.of_owner", _owner_is_no_account),
        Replaced(_CORE + "credential_owners.related", _everybody_is_the_same),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "another_owner_is_the_same",
        "a constant account maps credentials: every owner that uses it sees and sends what another owner made",
        Replaced(_CORE + "credential_owners.related", _everybody_is_the_same),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "asked_under_another_owners",
        "an inquiry uses a credential that, as the provider said, is another owner's",
        Replaced(_ENGINE + "resolution.background_credentials.CredentialSource._relation", _asked_under_anothers),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "anothers_key_is_taken_up",
        "a key that another owner used without effect starts its next generation, under the same stamp",
        Replaced("paywitness.journal.claim_answer.with_credential", _starts_are_of_nobody),
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
        "the owner of the first credential counts as the owner of every credential",
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
        focus="rotations",
        breaks=("nothing stuck",),
    ),
    bug(
        "stored_reply_for_any_credential",
        "a duplicate that names the account gets the stored reply, whatever its credential",
        Replaced(_CORE + "credential_owners.may_see", _seen_by_all_of_the_account),
        breaks=OWN_MERCHANT,
    ),
    bug(
        "age_by_the_store_s_clock",
        "ages are counted by the clock of the store, even if it was set",
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
        focus="moves",
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
        "settle is counted from the first attempt, not from the last",
        Replaced(_CORE + "inquiry.quiet_since", _from_first_send),
        focus="late_resends",
    ),
    bug(
        "rollback_not_noticed",
        "no sidecar notices that the store came back without its keys",
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor.recently_rolled_back", _never_rolled_back),
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor.check", _nothing_put_back),
        focus="lost_stores",
    ),
    bug(
        "forgotten_and_not_put_back",
        "sidecars do not write again what the store has forgotten",
        Replaced(_ENGINE + "durability.rollback.RollbackMonitor._restore_forgotten", _nothing_put_back),
        focus="lost_stores",
    ),
)
