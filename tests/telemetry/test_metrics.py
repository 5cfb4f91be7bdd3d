"""What the counters, histograms and gauges show after records were told."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from paywitness.core.decide import Action
from paywitness.core.inquiry import InquiryReason
from paywitness.core.operation import DoubtCount, Finding, FindingKind, Outcome, State
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass
from paywitness.telemetry.events import (
    AttemptFinished,
    CallAnswered,
    CallForwarded,
    CallRefused,
    DoubtClosed,
    DoubtOpened,
    EvidenceKind,
    FellBack,
    IncidentOpened,
    InquiryFinished,
    JournalCalled,
    OperationEnded,
    OutboxDelivered,
    PolicyReloaded,
    ScheduleRanOut,
    WebhookDelayed,
    WebhookReceived,
    transition_events,
)
from paywitness.telemetry.gauges import QueueRow, queue_rows, reviews_by_reason
from paywitness.telemetry.prometheus import KnownNames
from tests.telemetry.conftest import Told
from tests.telemetry.samples import ACME, ACME_NAMES, CREATED_AT, attempt, decision, operation


def test_a_clean_call_counts_one_attempt_one_end_and_no_retry(told: Told) -> None:
    told.tell(AttemptFinished(operation(), attempt(), decision()))
    told.tell(OperationEnded(operation(), EvidenceKind.RESPONSE))
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.09))
    assert told.value("payment_attempts_total", **ACME, failure_class="succeeded") == 1
    assert told.value("payment_operations_total", **ACME, outcome="succeeded") == 1
    assert told.value("payment_upstream_duration_seconds_sum", **ACME) == 0.08
    assert told.value("payment_call_duration_seconds_bucket", **ACME, le="0.1") == 1
    assert told.value("payment_call_duration_seconds_bucket", **ACME, le="0.05") == 0
    assert b"payment_operation_retry_total{" not in generate_latest(told.metrics.registry)


@pytest.mark.parametrize("action", list(Action))
def test_only_retries_count_as_retries(told: Told, action: Action) -> None:
    failed = attempt(ResultClass.NETWORK_CONNECT_FAILURE, status_code=None)
    told.tell(AttemptFinished(operation(State.BACKOFF), failed, decision(action, "no_effect_try_again")))
    counted = told.value(
        "payment_operation_retry_total",
        **ACME,
        failure_class="network_connect_failure",
        decision="no_effect_try_again",
    )
    assert counted == (1 if action in {Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY} else None)


def test_the_measured_duration_wins_over_the_attempts_own(told: Told) -> None:
    told.tell(AttemptFinished(operation(), attempt(duration_s=9.0), decision(), upstream_duration_s=0.5))
    assert told.value("payment_upstream_duration_seconds_sum", **ACME) == 0.5


def test_a_doubt_is_counted_when_it_opens_and_when_it_closes(told: Told) -> None:
    told.tell(DoubtOpened(operation(State.UNKNOWN)))
    told.tell(DoubtClosed(operation(State.SUCCEEDED), EvidenceKind.INQUIRY, 42.0))
    assert told.value("payment_operation_unknown_total", **ACME) == 1
    assert told.value("payment_doubt_duration_seconds_bucket", provider="acme", le="60.0") == 1
    assert told.value("payment_doubt_duration_seconds_bucket", provider="acme", le="30.0") == 0
    resolved = told.value("payment_resolutions_total", provider="acme", evidence="inquiry", outcome="succeeded")
    assert resolved == 1


def test_incidents_refusals_and_forwarded_calls_are_counted(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.tell(IncidentOpened(operation(State.FAILED, incident="success_after_failure"), "success_after_failure"))
    told.tell(CallRefused("acme", Problem.KEY_REQUIRED))
    told.tell(CallForwarded("acme"))
    assert told.value("payment_incidents_total", provider="acme", kind="success_after_failure") == 1
    assert told.value("payment_refusals_total", provider="acme", reason="key-required") == 1
    assert told.value("payment_unmatched_calls_total", provider="acme") == 1


@pytest.mark.parametrize(
    ("kind", "counted"),
    [("duplicate_success", 1), ("success_after_failure", 1), ("another_amount", 0), ("failure_after_success", 0)],
)
def test_a_duplicate_or_late_success_is_counted_by_operation(told: Told, kind: str, counted: int) -> None:
    told.tell(IncidentOpened(operation(incident=kind), kind))
    assert (told.value("payment_duplicate_late_success_total", **ACME) or 0) == counted


def test_inquiries_are_counted_by_why_they_were_made_and_what_they_found(told: Told) -> None:
    doubtful, lost = operation(State.UNKNOWN), InquiryReason.LOST_RESPONSE
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    for found in (FindingKind.MISSED, FindingKind.MISSED, FindingKind.HIT):
        told.tell(InquiryFinished(doubtful, Finding("ask[0]", found, 200), 0.2, lost))
    told.tell(InquiryFinished(doubtful, Finding("ask[0]", FindingKind.HIT, 200), 0.2, InquiryReason.OPERATOR))
    told.tell(ScheduleRanOut(operation(State.REQUIRES_REVIEW)))
    assert told.value("payment_status_inquiry_total", provider="acme", reason=lost, outcome="missed") == 2
    assert told.value("payment_status_inquiry_total", provider="acme", reason=lost, outcome="hit") == 1
    assert told.value("payment_status_inquiry_total", provider="acme", reason="operator", outcome="hit") == 1
    assert told.value("payment_schedule_exhausted_total", **ACME) == 1


def test_webhooks_and_fallbacks_are_counted_and_strangers_names_folded(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": {}, "acme_eu": {}}))
    told.tell(WebhookReceived("acme", "accepted"))
    told.tell(WebhookReceived("made-up", "unknown_provider"))
    told.tell(FellBack("acme", "acme_eu", "not_sent", "op_1"))
    assert told.value("payment_webhooks_total", provider="acme", result="accepted") == 1
    assert told.value("payment_webhooks_total", provider="other", result="unknown_provider") == 1
    routes = {"from_provider": "acme", "to_provider": "acme_eu"}
    assert told.value("payment_fallback_total", **routes, reason="not_sent") == 1


def test_how_late_webhooks_come_is_measured(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": {}}))
    told.tell(WebhookDelayed("acme", 4.0))
    assert told.value("payment_webhook_delay_seconds_bucket", provider="acme", le="2.5") == 0
    assert told.value("payment_webhook_delay_seconds_bucket", provider="acme", le="5.0") == 1


def test_a_customer_who_did_not_act_in_time_is_counted_once(told: Told) -> None:
    waiting = operation(State.REQUIRES_ACTION)
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    assert told.value("payment_actions_expired_total", **ACME) == 0
    expired = waiting.changed(action_expired=True)
    for before, after in ((waiting, expired), (expired, expired.changed(checks_done=1))):
        for event in transition_events(before, after, EvidenceKind.INQUIRY, 0.0):
            told.tell(event)
    assert told.value("payment_actions_expired_total", **ACME) == 1


def test_the_end_of_a_fallback_is_counted_by_both_routes_and_why_the_first_was_left(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": {}, "acme_eu": {}, "acme_us": {}}))
    second = operation(provider="acme_eu", fallback_of="op_1", fallback_from="acme", fallback_reason="absent")
    told.tell(OperationEnded(second, EvidenceKind.RESPONSE))
    told.tell(OperationEnded(operation(), EvidenceKind.RESPONSE))  # it stands for no other
    routes = {"from": "acme", "to": "acme_eu", "reason": "absent"}
    assert told.value("payment_fallback_outcomes_total", **routes, outcome="succeeded") == 1
    # One that is left for a third route ends as well, and nothing else tells so.
    left = operation(State.FAILED, provider="acme_eu", fallback_from="acme", fallback_reason="absent")
    told.tell(FellBack("acme_eu", "acme_us", "network_connect_failure", "op_3", left))
    assert told.value("payment_fallback_outcomes_total", **routes, outcome=str(left.outcome)) == 1


def test_the_outbox_shows_what_waits_and_what_failed(told: Told) -> None:
    told.tell(OutboxDelivered(20, failed=True, lag=20))
    assert told.value("paywitness_outbox_pending") == 20
    told.tell(OutboxDelivered(20, failed=False, lag=0))
    assert told.value("paywitness_outbox_pending") == 0
    assert told.value("paywitness_outbox_deliveries_total", result="delivered") == 20
    assert told.value("paywitness_outbox_deliveries_total", result="failed") == 1


def test_the_queue_is_shown_as_counted_ages_and_empties_to_zero(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    assert told.value("payment_retry_queue_depth", **ACME) is None
    told.metrics.set_queue([QueueRow("acme", "authorization", 3, 40.0)])
    told.now += 5
    assert told.value("payment_retry_queue_depth", **ACME) == 3
    assert told.value("payment_retry_queue_oldest_age_seconds", **ACME) == 45
    told.metrics.set_queue([])
    assert told.value("payment_retry_queue_depth", **ACME) == 0
    assert told.value("payment_retry_queue_oldest_age_seconds", **ACME) == 0


def test_journal_calls_are_measured_and_their_errors_counted(told: Told) -> None:
    told.tell(JournalCalled("claim", 0.002))
    told.tell(JournalCalled("claim", 3.0, failed=True))
    assert told.value("paywitness_journal_duration_seconds_count", call="claim") == 2
    assert told.value("paywitness_journal_errors_total", call="claim") == 1
    assert told.value("paywitness_journal_errors_total", call="record") is None


def test_a_bad_reload_keeps_the_revision_and_shows_zero(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True))
    told.tell(PolicyReloaded("r2", ok=True))
    assert told.value("paywitness_policy_info", revision="r1") is None
    told.tell(PolicyReloaded("r2", ok=False, problems=("acme.yaml:1:1: broken",)))
    assert told.value("paywitness_policy_info", revision="r2") == 1
    assert told.value("paywitness_policy_last_reload_successful") == 0
    assert told.value("paywitness_build_info", version="1.2.3") == 1


# --- labels


def test_names_that_callers_make_up_are_folded(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    for number in range(50):
        told.tell(CallAnswered(f"made-up-{number}", None, Outcome.NONE, 403, Problem.PROVIDER_NOT_ALLOWED, 0.001))
        told.tell(CallAnswered("acme", f"made-up-{number}", Outcome.NONE, 403, None, 0.001))
        told.tell(CallRefused(f"made-up-{number}", Problem.PROVIDER_NOT_ALLOWED))
        told.tell(CallForwarded(f"made-up-{number}"))
    told.tell(CallAnswered(None, None, Outcome.NONE, 400, Problem.MALFORMED, 0.001))
    assert b"made-up" not in generate_latest(told.metrics.registry)
    no_operation = {"operation": "none", "kind": "none"}
    assert told.value("payment_call_duration_seconds_count", provider="other", **no_operation) == 50
    assert told.value("payment_call_duration_seconds_count", provider="acme", operation="other", kind="unknown") == 50
    assert told.value("payment_call_duration_seconds_count", provider="none", **no_operation) == 1
    assert told.value("payment_refusals_total", provider="other", reason="provider-not-allowed") == 50


def test_a_name_of_a_removed_policy_keeps_its_series(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.tell(PolicyReloaded("r2", ok=True, operations={"other_one": {"sale": OperationKind.SALE}}))
    told.tell(CallForwarded("acme"))
    assert told.value("payment_unmatched_calls_total", provider="acme") == 1


def test_words_of_our_own_are_bounded_too(told: Told) -> None:
    for number in range(300):
        told.tell(CallRefused(None, f"reason_{number}"))
        told.tell(JournalCalled(f"call_{number}", 0.001))
    text = generate_latest(told.metrics.registry).decode()
    assert text.count("payment_refusals_total{") == 1
    assert told.value("payment_refusals_total", provider="none", reason="other") == 300
    assert told.value("paywitness_journal_duration_seconds_count", call="other") == 200


def test_there_is_a_bound_on_names() -> None:
    names = KnownNames()
    names.learn({f"provider-{number}": {"pay": OperationKind.SALE} for number in range(2000)})
    assert len(names.providers()) + len(names.operations()) == 1000
    assert names.operation("provider-1999", "pay") == ("other", "other", "unknown")


def test_two_metrics_share_nothing(told: Told) -> None:
    other = Told()
    told.tell(CallForwarded("acme"))
    assert other.value("payment_unmatched_calls_total", provider="other") is None


def test_no_created_samples_double_the_series(told: Told) -> None:
    told.tell(AttemptFinished(operation(), attempt(), decision()))
    assert b"_created" not in generate_latest(told.metrics.registry)


# --- kinds


def ended(provider: str, name: str, kind: OperationKind) -> OperationEnded:
    return OperationEnded(operation(provider=provider, operation=name, kind=kind), EvidenceKind.RESPONSE)


def by_kind(told: Told, metric: str) -> dict[str, float]:
    """What a query shows that sums a metric by its kind, over all providers and operations."""
    summed: dict[str, float] = {}
    for family in told.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == metric:
                summed[sample.labels["kind"]] = summed.get(sample.labels["kind"], 0) + sample.value
    return summed


def test_payouts_of_two_providers_under_two_names_are_summed_by_kind(told: Told) -> None:
    names = {
        "acme": {"transfer": OperationKind.PAYOUT, "pay": OperationKind.SALE},
        "other_one": {"send_money": OperationKind.PAYOUT},
    }
    told.tell(PolicyReloaded("r1", ok=True, operations=names))
    told.tell(ended("acme", "transfer", OperationKind.PAYOUT))
    told.tell(ended("acme", "pay", OperationKind.SALE))
    told.tell(ended("other_one", "send_money", OperationKind.PAYOUT))
    told.tell(CallAnswered("acme", "transfer", Outcome.SUCCEEDED, 200, None, 0.09))
    told.tell(CallAnswered("other_one", "send_money", Outcome.SUCCEEDED, 200, None, 0.09))
    doubts = [counted(operation="transfer"), counted(provider="other_one", operation="send_money", count=3)]
    told.metrics.set_doubt(doubts)
    told.metrics.set_queue(queue_rows(doubts, [], CREATED_AT))
    assert by_kind(told, "payment_operations_total") == {"payout": 2, "sale": 1}
    assert by_kind(told, "payment_call_duration_seconds_count")["payout"] == 2
    assert by_kind(told, "payment_operations_in_doubt") == {"payout": 5, "sale": 0}
    assert by_kind(told, "payment_retry_queue_depth") == {"payout": 5, "sale": 0}


def test_a_policy_edit_that_changes_a_kind_holds_for_counters_and_gauges_alike(told: Told) -> None:
    """One name has one kind in a sidecar at a time, so that shares and joins over two metrics find each other."""
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": {"pay": OperationKind.SALE}}))
    told.tell(ended("acme", "pay", OperationKind.SALE))
    told.tell(PolicyReloaded("r2", ok=True, operations={"acme": {"pay": OperationKind.PAYOUT}}))
    told.tell(ended("acme", "pay", OperationKind.SALE))  # was journalled before the edit
    told.metrics.set_doubt([counted(operation="pay")])
    assert by_kind(told, "payment_operations_total") == {"sale": 1, "payout": 1}
    assert by_kind(told, "payment_operations_in_doubt") == {"payout": 2}
    assert by_kind(told, "payment_operation_unknown_total") == {"sale": 0, "payout": 0}


def test_a_refused_book_changes_no_kind(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.tell(PolicyReloaded("r1", ok=False, problems=("acme.yaml:1:1: broken",)))
    told.tell(OperationEnded(operation(), EvidenceKind.RESPONSE))
    assert told.value("payment_operations_total", **ACME, outcome="succeeded") == 1


def test_a_doubt_that_nobody_gave_a_kind_is_counted_as_unknown_until_an_operation_tells_it(told: Told) -> None:
    told.metrics.set_doubt([counted()])
    assert by_kind(told, "payment_operations_in_doubt") == {"unknown": 2}
    assert told.metrics.names_without_kind([counted()]) == {("acme", "authorization")}
    told.tell(DoubtOpened(operation(State.UNKNOWN)))
    assert told.metrics.names_without_kind([counted()]) == frozenset()
    told.metrics.set_doubt([counted()])
    assert by_kind(told, "payment_operations_in_doubt") == {"authorization": 2}


# --- doubt


def counted(**changes: object) -> DoubtCount:
    facts: dict[str, object] = {
        "provider": "acme",
        "operation": "authorization",
        "currency": "EUR",
        "state": State.UNKNOWN,
        "count": 2,
        "minor_units": 2550,
        "oldest_at": CREATED_AT - 90,
    }
    return DoubtCount(**{**facts, **changes})  # type: ignore[arg-type]


def test_before_the_first_count_nothing_is_claimed(told: Told) -> None:
    text = generate_latest(told.metrics.registry).decode()
    assert "# TYPE payment_operations_in_doubt gauge" in text
    assert "payment_operations_in_doubt{" not in text
    assert told.metrics.doubt_counts == ()


def test_doubt_is_shown_as_the_journal_counted_it(told: Told) -> None:
    yen = counted(currency="JPY", minor_units=900, count=1, oldest_at=CREATED_AT - 10)
    review = counted(state=State.REQUIRES_REVIEW, count=3, minor_units=300, oldest_at=CREATED_AT - 500)
    nameless = counted(currency="", count=1, minor_units=0)
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.metrics.set_doubt([counted(), yen, review, nameless])
    assert told.value("payment_operations_in_doubt", **ACME) == 7
    assert told.value("payment_money_in_doubt", provider="acme", currency="EUR") == 28.5
    assert told.value("payment_money_in_doubt", provider="acme", currency="JPY") == 900
    assert told.value("payment_money_in_doubt", provider="acme", currency="") is None
    assert told.value("payment_review_open", provider="acme", reason="other") == 3
    assert told.value("payment_operation_unknown_age_seconds", provider="acme") == 500


def test_what_is_counted_in_a_journal_bears_its_label(told: Told) -> None:
    """Sidecars that share it report the same; those with a journal each are told apart, and can be summed."""
    told.metrics.learn_journal("5eed0123456789abcdef0123456789ab")
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.metrics.set_doubt([counted(state=State.REQUIRES_REVIEW)])
    told.metrics.set_queue(queue_rows([counted()], [], CREATED_AT))
    told.metrics.set_expiring_authorizations(2)
    in_journal = {"journal": "5eed0123"}
    assert told.value("payment_operations_in_doubt", **in_journal, **ACME) == 2
    assert told.value("payment_money_in_doubt", **in_journal, provider="acme", currency="EUR") == 25.5
    assert told.value("payment_operation_unknown_age_seconds", **in_journal, provider="acme") == 90
    assert told.value("payment_review_open", **in_journal, provider="acme", reason="other") == 2
    assert told.value("payment_retry_queue_depth", **in_journal, **ACME) == 2
    assert told.value("payment_retry_queue_oldest_age_seconds", **in_journal, **ACME) == 90
    assert told.value("payment_authorizations_expiring", **in_journal) == 2


def test_nobody_in_review_is_a_zero_and_not_a_gap(told: Told) -> None:
    """Else the first five that come into review at once would not be seen to grow."""
    told.tell(PolicyReloaded("r1", ok=True, operations=ACME_NAMES))
    told.metrics.set_doubt([])
    assert told.value("payment_review_open", provider="acme", reason="other") == 0


def test_the_age_grows_between_two_counts(told: Told) -> None:
    told.metrics.set_doubt([counted()])
    told.now += 60
    assert told.value("payment_operation_unknown_age_seconds", provider="acme") == 150


def test_a_doubt_that_ended_is_a_zero_and_not_a_gap(told: Told) -> None:
    told.tell(PolicyReloaded("r1", ok=True, operations={**ACME_NAMES, "calm": {"pay": OperationKind.SALE}}))
    told.metrics.set_doubt([counted(state=State.REQUIRES_REVIEW)], {("acme", "in_doubt_nobody_to_ask"): 2})
    told.metrics.set_doubt([])
    assert told.value("payment_operations_in_doubt", **ACME) == 0
    assert told.value("payment_operations_in_doubt", provider="calm", operation="pay", kind="sale") == 0
    assert told.value("payment_money_in_doubt", provider="acme", currency="EUR") == 0
    assert told.value("payment_review_open", provider="acme", reason="in_doubt_nobody_to_ask") == 0
    assert told.value("payment_operation_unknown_age_seconds", provider="acme") == 0


def test_reviews_are_shown_by_reason_and_the_unlisted_as_other(told: Told) -> None:
    listed = [operation(State.REQUIRES_REVIEW, because="in_doubt_nobody_to_ask"), operation(State.UNKNOWN)]
    told.metrics.set_doubt([counted(state=State.REQUIRES_REVIEW, count=5)], reviews_by_reason(listed))
    assert told.value("payment_review_open", provider="acme", reason="in_doubt_nobody_to_ask") == 1
    assert told.value("payment_review_open", provider="acme", reason="other") == 4
