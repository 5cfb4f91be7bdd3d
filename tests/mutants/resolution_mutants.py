"""The engine after the caller has left: resolver, inquiries, cancels, late and external evidence, webhooks, outbox."""

from __future__ import annotations

from typing import Any

from paywitness.core.result import Classification, ResultClass
from tests.mutants.changes import argument, left_out, mutant, swapped

_RESOLVER = "engine.resolution.resolver.Resolver."
_INQUIRIES = "engine.resolution.inquiries.InquiryClient."
_LATE = "engine.resolution.late_evidence."
_EXTERNAL = "engine.resolution.external_evidence."
_CREDENTIALS = "engine.resolution.background_credentials.CredentialSource."
_MATCHER = "engine.webhooks.matcher."
_INBOX = "engine.webhooks.inbox.WebhookInbox."
_APPLIER = "engine.webhooks.applier."

_CANCELLED: Any = Classification.of(ResultClass.CANCELLED, "planted")
_hedged_operations: set[str] = set()

RESOLUTION = (
    # --- the resolver
    mutant(
        "hedged_inquiry_counts_two_misses",
        "an inquiry that was asked twice, because it was slow, counts as two misses",
        swapped(
            _INQUIRIES + "_send_hedged",
            "return evidence, True",
            "return (_planted_hedged.add(operation.id), (evidence, True))[1]",
            _planted_hedged=_hedged_operations,
        ),
        swapped(
            _RESOLVER + "_reschedule",
            "after, _ = after_miss(current, proof, inquired_at)",
            """if True:
                after, _ = after_miss(current, proof, inquired_at)
                if current.id in _planted_hedged:
                    after, _ = after_miss(after, proof, inquired_at)""",
            _planted_hedged=_hedged_operations,
        ),
    ),
    mutant(
        "accepted_payment_missed",
        '"not found" counts also of what the provider is known to have accepted',
        swapped(
            "engine.resolution.resolver._miss_is_meaningful",
            "operation.state.in_doubt and bool(operation.doubt)",
            "operation.state.in_doubt",
        ),
    ),
    mutant(
        "reference_not_found_is_absent",
        "a payment that the provider has named, and does not find any more, counts as never executed",
        swapped(_RESOLVER + "_inquire", "finding.kind is FindingKind.MISSED or inquiry_result.gone", "True"),
    ),
    mutant(
        "one_stale_denial_ends_it",
        "the denial that a shared object shows counts at the first look",
        swapped(_RESOLVER + "_apply_hit", "seen.may_be_stale and _miss_is_meaningful(operation)", "False"),
    ),
    mutant(
        "quiet_by_the_wall_clock",
        "what has passed since the last byte is read off a clock that may have jumped",
        swapped(
            _RESOLVER + "_low_now",
            "self.pipeline.journal_writer.ages.low_now(quiet_since(operation))",
            "self.pipeline.journal_writer.journal_clock.now()",
        ),
    ),
    mutant(
        "miss_of_an_earlier_attempt",
        "a miss counts although the operation was sent again while it was asked about",
        swapped(
            _RESOLVER + "_reschedule",
            "proof is not None and current.attempts == attempts and inquired_at is not None",
            "proof is not None and inquired_at is not None",
        ),
    ),
    mutant(
        "inquiry_sooner_than_asked",
        "the Retry-After of an inquiry is not kept",
        left_out(
            _RESOLVER + "_reschedule",
            "due_at = max(due_at, now + min(inquiry_result.retry_after_s, _RETRY_AFTER_MAX_S))",
        ),
    ),
    mutant(
        "inquiry_never_again",
        "a provider that asks for a wait of a year is not asked before",
        swapped(
            _RESOLVER + "_reschedule",
            "min(inquiry_result.retry_after_s, _RETRY_AFTER_MAX_S)",
            "inquiry_result.retry_after_s",
        ),
    ),
    mutant(
        "resolver_keeps_its_place",
        "a re-send in the background that was not made keeps its place at the provider",
        left_out(_RESOLVER + "_resend", "await self.pipeline.gate.release(permit.attempt_permit)"),
    ),
    mutant(
        "resolver_keeps_its_grant",
        "a re-send in the background that was not made stays spent",
        left_out(_RESOLVER + "_resend_with_permit", "await self.pipeline.retry_budget.refund(grant)"),
    ),
    mutant(
        "lost_end_re_sent",
        "what somebody may have been told as failed before the journal forgot it is sent again in the background",
        swapped(_RESOLVER + "_resend", "self.pipeline.gate.end_may_be_lost(operation)", "False"),
    ),
    mutant(
        "background_re_sends_unlimited",
        "a re-send in the background uses up no look, so that it comes at the same short distance for ever",
        argument(
            _RESOLVER + "_resend_with_permit",
            "checks_done=operation.checks_done + 1",
            "checks_done=operation.checks_done",
        ),
    ),
    mutant(
        "schedule_ran_out_quietly",
        "a schedule that has run out puts nothing in front of a person",
        swapped(_RESOLVER + "_reschedule", "due_at is None and not last_check", "False"),
    ),
    mutant(
        "parked_without_a_reason",
        "what the resolver hands to a person says nothing of why",
        swapped(
            _RESOLVER + "_send_to_review",
            "after.changed(because=because, incident=after.incident or incident)",
            "after.changed(because=because)",
        ),
    ),
    mutant(
        "postponed_lease_stolen",
        "whoever was too slow to be held back puts off what another one holds by now",
        swapped(_RESOLVER + "_postpone", "current.lease is not None and current.lease.token == token", "True"),
    ),
    # --- cancels
    mutant(
        "empty_cancel_is_a_cancel",
        "an empty answer to a cancel counts as cancelled",
        swapped(
            _INQUIRIES + "cancel",
            'Finding(CANCEL_SOURCE, FindingKind.MISSED, response.status_code, None, "the response shows nothing")',
            'Finding(CANCEL_SOURCE, FindingKind.HIT, response.status_code, _planted_cancelled, "nothing")',
            _planted_cancelled=_CANCELLED,
        ),
    ),
    mutant(
        "cancel_not_noted",
        "that a cancel is sent is not written down before, so that it may be sent again, and a re-send after it",
        swapped(
            _RESOLVER + "_cancel",
            "operation.changed(cancel_sent=True, cancel_wanted=False, checks_done=checks_done)",
            "operation.changed(cancel_wanted=False, checks_done=checks_done)",
        ),
    ),
    mutant(
        "cancel_of_another_amount",
        "what a cancel shows is not held against the amount",
        swapped(
            _INQUIRIES + "cancel", "asked = operation.expected_payment", "asked = type(operation.expected_payment)()"
        ),
    ),
    mutant(
        "cancel_at_the_new_address",
        "a cancel goes to an address that never got the payment",
        swapped(_INQUIRIES + "cancel", "policy = _at_first_upstream(operation, policy)", "pass"),
    ),
    mutant(
        "cancel_to_a_dead_provider",
        "a cancel, which is sent once, is sent to a provider that is known to be down",
        swapped(_RESOLVER + "_cancel", "view.decision is CircuitDecision.REFUSE", "False"),
    ),
    mutant(
        "cancelled_though_paid",
        "a cancel is sent for what a schedule could not find, though one was sent before",
        swapped(
            _RESOLVER + "_should_cancel",
            "automatic and operation.state is State.UNKNOWN and not operation.cancel_sent",
            "automatic and operation.state is State.UNKNOWN",
        ),
    ),
    # --- inquiries
    mutant(
        "inquiry_without_an_amount",
        "what an inquiry finds is not held against the amount",
        swapped(
            _INQUIRIES + "_ask",
            "read_inquiry(inquiry, evidence, policy.classify, operation.expected_payment, values, time)",
            "read_inquiry(inquiry, evidence, policy.classify, "
            "type(operation.expected_payment)(None, operation.sent_stamp), values, time)",
        ),
    ),
    mutant(
        "inquiry_without_a_stamp",
        "what an inquiry finds is not held against the stamp",
        swapped(
            _INQUIRIES + "_ask",
            "read_inquiry(inquiry, evidence, policy.classify, operation.expected_payment, values, time)",
            "read_inquiry(inquiry, evidence, policy.classify, "
            "type(operation.expected_payment)(operation.money, None), values, time)",
        ),
    ),
    mutant(
        "one_way_of_several_missed",
        "one way to ask that finds nothing is enough, although another one failed",
        swapped(_INQUIRIES + "inquire", "failed is not None", "failed is not None and not missed"),
    ),
    mutant(
        "miss_at_another_address",
        '"not found" at an address that never got the payment counts',
        swapped(_INQUIRIES + "_ask", "elsewhere or not is_of_account", "not is_of_account"),
    ),
    mutant(
        "miss_by_a_stranger",
        '"not found" under a credential that may be another account\'s counts',
        swapped(_INQUIRIES + "_ask", "elsewhere or not is_of_account", "elsewhere"),
    ),
    mutant(
        "miss_without_the_account",
        '"not found" counts although the header that names the account could not be sent',
        swapped(_INQUIRIES + "_ask", "request is None and _account_headers(policy)", "False"),
    ),
    mutant(
        "anybodys_miss_of_the_payment",
        "a payment that another credential made proves that the asking one is of the same account",
        swapped(
            _INQUIRIES + "_shows_own_payment",
            "maker is not None and maker.credential == operation.credential",
            "maker is not None",
        ),
    ),
    mutant(
        "asked_with_a_key",
        "a credential that may not send is used for a cancel",
        swapped(_INQUIRIES + "_send_with_credentials", "not candidate.may_send and not is_inquiry", "False"),
    ),
    mutant(
        "first_credential_only",
        "an inquiry whose credential has expired is not tried under the next one",
        swapped(
            _INQUIRIES + "_send_with_credentials",
            "evidence.response is None or evidence.response.status_code not in _CREDENTIAL_REFUSED_STATUSES",
            "True",
        ),
    ),
    mutant(
        "strangers_credential_used",
        "a credential that the policy lists for another account is used for calls of our own",
        swapped(_CREDENTIALS + "_is_anothers", "bool(listing) and operation.named_account not in listing", "False"),
    ),
    mutant(
        "unknown_credential_trusted",
        "a credential of which nobody knows whose it is counts as the account's",
        swapped(
            _CREDENTIALS + "candidates",
            "CredentialCandidate(accepted, is_of_account=False, may_send=False)",
            "CredentialCandidate(accepted, is_of_account=True, may_send=True)",
        ),
    ),
    mutant(
        "expiring_token_used",
        "a token is used until the very moment in which it ends",
        swapped(
            _CREDENTIALS + "_oauth2_token",
            "self.clock.mono() + max(0.0, lifetime_s - _RENEW_BEFORE_S)",
            "self.clock.mono() + lifetime_s",
        ),
    ),
    mutant(
        "failed_inquiry_asks_no_budget",
        "inquiries that follow a failed one are not counted as retries",
        swapped(_INQUIRIES + "_inquire_with_permit", "failed is None", "True"),
    ),
    mutant(
        "hedge_left_running",
        "the slower one of two inquiries is not ended",
        left_out(_INQUIRIES + "_send_hedged", "task.cancel()"),
    ),
    # --- late and external evidence
    mutant(
        "late_answer_replaces_a_replay",
        "an answer that comes after the end replaces what is replayed",
        swapped(
            _LATE + "LateEvidenceRecorder.apply",
            "response_matches_state(after, attempt.classification) and not current.state.ended",
            "response_matches_state(after, attempt.classification)",
        ),
    ),
    mutant(
        "late_answer_ends_the_quiet",
        "an answer that comes late says that nothing of its attempt can arrive any more, whatever the spool knew",
        argument(
            _LATE + "LateEvidenceRecorder._write_context",
            "no_bytes_after_at=evidence.no_bytes_after_at if evidence.no_bytes_after_at is not None else now",
            "no_bytes_after_at=now",
        ),
    ),
    mutant(
        "late_answer_counts_as_told",
        "an answer that came when nobody waited counts as told",
        argument(
            _LATE + "LateEvidenceRecorder._write_context",
            "reached=awaited if evidence.undelivered is None else not evidence.undelivered",
            "reached=True",
        ),
    ),
    mutant(
        "late_refusal_waits_for_a_retry",
        "a refusal that comes late leaves its operation waiting for a try that nobody makes",
        swapped(_LATE + "_conclude", "after.state is State.BACKOFF and current.state is State.SENDING", "False"),
    ),
    mutant(
        "inquiry_of_an_earlier_attempt",
        "an inquiry that was made before the last attempt denies it",
        swapped(_EXTERNAL + "_check_inquiry_applies", "current.attempts != inquired.attempts", "False"),
    ),
    mutant(
        "success_of_a_later_generation",
        "what an inquiry finds is taken for an earlier operation of the same key",
        swapped(_EXTERNAL + "_check_inquiry_applies", "current.key_released and not is_last_generation", "False"),
    ),
    mutant(
        "settled_before_the_lease",
        "absence may be proven while a sidecar may still send",
        swapped(
            _EXTERNAL + "ExternalEvidenceRecorder.settle_s",
            "max(policy.resolve.settle_s, self.journal_writer.leases.lease_s + policy.timeouts.first_byte_s)",
            "policy.resolve.settle_s",
        ),
    ),
    mutant(
        "void_frees_another_account",
        "a void gives back the payment of another account that has the same reference",
        swapped(
            _EXTERNAL + "ExternalEvidenceRecorder.release_voided_payment",
            "one.account == after.account and one.kind.pays and is_paid(one)",
            "one.kind.pays and is_paid(one)",
        ),
    ),
    mutant(
        "part_void_frees_the_order",
        "a void of what was left after a capture frees the order to be paid again",
        swapped(
            _EXTERNAL + "ExternalEvidenceRecorder.release_voided_payment",
            "len(paid) != 1 or not await self._is_given_back(paid[0])",
            "len(paid) != 1",
        ),
    ),
    mutant(
        "old_reply_replayed",
        "what was kept for a replay stays, although an event has changed what is true",
        swapped(
            _EXTERNAL + "ExternalEvidenceRecorder._sealed_replay_response",
            "b'' if response is None else seal_response(self.vault, response, after.id)",
            "None if response is None else seal_response(self.vault, response, after.id)",
        ),
    ),
    mutant(
        "lagging_event_starts_over",
        'an event that says "accepted" after the decline makes the operation pending again',
        swapped(
            "core.external_evidence.conclude_external",
            "event is Event.WEBHOOK_TOLD_PENDING and operation.state is State.FAILED "
            "and operation.result_class in DENIALS",
            "False",
        ),
    ),
    # --- webhooks and announcements
    mutant(
        "event_under_another_tenants_secret",
        "an event that names another account than its address is applied",
        swapped(
            _MATCHER + "WebhookMatcher.find",
            "account and webhook_event.account and account != webhook_event.account",
            "False",
        ),
    ),
    mutant(
        "event_of_any_account",
        "an event is applied to an operation of another account",
        swapped(_MATCHER + "WebhookMatcher._candidate_of_account", "operation.account not in accounts", "False"),
    ),
    mutant(
        "event_with_another_reference",
        "an event that shows another payment's name is applied because of a copied stamp",
        swapped(
            _MATCHER + "WebhookMatcher._belongs",
            "webhook_event.shows_another(operation, stamped=policy.stamp is not None)",
            "False",
        ),
    ),
    mutant(
        "event_to_the_oldest_generation",
        "an event is applied to the first operation of a key, not to the newest that was sent",
        argument(_MATCHER + "_best_generation", "reverse=True", "reverse=False"),
    ),
    mutant(
        "unkept_event_acknowledged",
        "an event that the journal did not take is acknowledged, so that it never comes again",
        swapped(
            _INBOX + "_receive_genuine",
            "return self._report(provider, InboxResult.NOT_KEPT, replace(_UNAVAILABLE, genuine=True))",
            "return self._report(provider, InboxResult.NOT_KEPT, replace(reply, genuine=True))",
        ),
    ),
    mutant(
        "one_event_of_a_batch_lost",
        "a delivery of several events is acknowledged although one of them was not kept",
        swapped(_INBOX + "_store", "raise outcome", "pass"),
    ),
    mutant(
        "unsigned_event_believed",
        "an event without a signature is kept as a genuine one",
        swapped(
            _INBOX + "receive",
            "check.verdict is not SignatureVerdict.GENUINE",
            "check.verdict not in {SignatureVerdict.GENUINE, SignatureVerdict.NO_SIGNATURE}",
        ),
    ),
    mutant(
        "hints_without_end",
        "whoever sends hints makes us ask about one operation as often as they like",
        swapped(
            _APPLIER + "Hints._too_soon",
            "inquired_mono is not None and now_mono - inquired_mono < INQUIRY_INTERVAL_S",
            "False",
        ),
    ),
    mutant(
        "cursor_over_a_gap",
        "the outbox counts an event as delivered although an earlier one was not",
        swapped(
            "engine.outbox._Page.mark_delivered",
            "self._waiting and self._waiting[0] in self._delivered",
            "self._waiting",
        ),
    ),
    mutant(
        "event_offered_without_the_cursor",
        "a sidecar whose right to deliver has run out goes on offering events",
        swapped(
            "engine.outbox.Outbox._holds_cursor",
            "self._lease is lease and lease.expires_boot > self.clock.boot()",
            "self._lease is lease",
        ),
    ),
)
