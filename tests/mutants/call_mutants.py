"""The engine's calls: pipeline, attempts, duplicates, gate, retry budgets, fallbacks, stored messages, deadlines."""

from __future__ import annotations

from tests.mutants.changes import argument, left_out, mutant, swapped

_PIPELINE = "engine.calls.pipeline.CallPipeline."
_RECORDER = "engine.calls.attempts.AttemptRecorder."
_SENDER = "engine.calls.attempts.AttemptSender."
_DUPLICATES = "engine.calls.duplicates."
_CONTEXT = "engine.calls.context."
_GATE = "engine.calls.gate.Gate."
_BUDGET = "engine.calls.gate.RetryBudget."
_FALLBACKS = "engine.calls.fallback.Fallbacks."
_MESSAGES = "engine.calls.stored_messages."
_ENGINE = "engine.engine.Engine."

CALLS = (
    # --- from the claim to the reply
    mutant(
        "later_attempt_under_a_reloaded_policy",
        "the second attempt of a call goes by the policies that were loaded meanwhile",
        swapped(
            _PIPELINE + "run_attempts",
            "tries, last_delay_s = tries + 1, decision.delay_s",
            """if True:
                tries, last_delay_s = tries + 1, decision.delay_s
                policy = next(
                    one
                    for one in self.gate.book().providers[policy.provider].policies
                    if one.operation == policy.operation
                )""",
        ),
    ),
    mutant(
        "re_send_under_a_policy_of_today",
        "a repeat of an unknown outcome is sent by today's policy, not by the one it was started under",
        swapped("engine.policy_revisions.PinnedPolicies.policy_of", "operation.revision == current.revision", "True"),
    ),
    mutant(
        "re_send_for_a_stranger",
        "a repeat under a credential that may be another account's sends an unknown outcome again",
        swapped(_PIPELINE + "_plan_resend", "stored is None or not claim.credential_mapped", "stored is None"),
    ),
    mutant(
        "followers_wait_for_the_whole_call",
        "calls behind the first one of their key are let go only when that one has ended",
        left_out(_PIPELINE + "run", "leader.release_followers()"),
    ),
    mutant(
        "retry_without_a_record",
        "a retry after a wait is sent without having been written down",
        swapped(_PIPELINE + "run_attempts", "operation.state is State.BACKOFF", "False"),
    ),
    mutant(
        "lease_kept_after_the_call",
        "a call that has ended keeps its lease, which is renewed for ever",
        left_out(_PIPELINE + "run_attempts", "self.leases.release(operation.id)"),
    ),
    mutant(
        "grant_kept_after_the_call",
        "a retry that was granted and never sent is not given back when its call ends",
        left_out(_PIPELINE + "run_attempts", "await self.retry_budget.refund(grant)"),
    ),
    mutant(
        "amount_of_the_payment_not_expected",
        "the response to a follow-up that names no amount is not held against its payment's",
        swapped(
            _PIPELINE + "_attempt",
            "context.expected.money or operation.expected_payment.money",
            "context.expected.money",
        ),
    ),
    mutant(
        "late_response_of_another_amount",
        "an answer that came after its attempt had timed out is not held against the amount",
        swapped(
            _PIPELINE + "_record_late_response",
            "expected = operation.expected_payment",
            "expected = ExpectedPayment(None, operation.sent_stamp)",
        ),
    ),
    mutant(
        "late_response_of_another_stamp",
        "an answer that came after its attempt had timed out is not held against the stamp",
        swapped(
            _PIPELINE + "_record_late_response",
            "expected = operation.expected_payment",
            "expected = ExpectedPayment(operation.money, None)",
        ),
    ),
    mutant(
        "retry_after_the_deadline",
        "a retry is sent after the caller's deadline",
        swapped(
            _PIPELINE + "resume_after_backoff",
            "context.still_there() and self.clock.mono() < context.deadline_mono",
            "context.still_there()",
        ),
    ),
    mutant(
        "retry_for_nobody",
        "a retry is sent although its caller hung up while it waited",
        swapped(
            _PIPELINE + "resume_after_backoff",
            "context.still_there() and self.clock.mono() < context.deadline_mono",
            "self.clock.mono() < context.deadline_mono",
        ),
    ),
    mutant(
        "forgetful_journal_believed",
        "a journal that has just lost its last writes is believed that nothing was sent",
        swapped(_ENGINE + "_run", "reply.problem in _SAYS_NO_EFFECT", "False"),
    ),
    mutant(
        "payout_claimed_without_the_check",
        "a payout whose policy asks somebody first is claimed before that one has allowed it",
        swapped(_PIPELINE + "run", "await self.payout_check.allows(context)", "True"),
    ),
    # --- what an attempt came to
    mutant(
        "response_of_a_re_send_kept",
        "a response that does not speak for the operation is kept for replays",
        swapped(
            _RECORDER + "_sealed_response",
            "response is None or not response_matches_state(operation, result.classification)",
            "response is None",
        ),
    ),
    mutant(
        "quiet_at_once",
        "what may still arrive of an attempt that timed out is not waited for",
        argument(
            _RECORDER + "_write_context",
            "no_bytes_after_at=now + finished.result.evidence.late_response_window_s",
            "no_bytes_after_at=now",
        ),
    ),
    mutant(
        "lost_callers_told",
        "an earlier attempt's caller, of which nothing is known, counts as told",
        swapped(_RECORDER + "_write_context", "current.delivery_unknown and after.attempts > 1", "False"),
    ),
    mutant(
        "told_for_sure_at_the_last_moment",
        "an end is recorded as told although its caller's time is up before the write has ended",
        swapped(_CONTEXT + "AttemptContext.outlasts_record", "self.deadline_mono - now_mono > record_s", "True"),
    ),
    mutant(
        "decline_from_the_spool",
        "a decline that only the spool has is told, though the provider would charge the next re-send",
        swapped(
            _RECORDER + "_spool_evidence",
            "after.state is State.BACKOFF or (after.state is State.FAILED and _resend_may_charge(policy.contract))",
            "after.state is State.BACKOFF",
        ),
    ),
    mutant(
        "undelivered_from_the_spool",
        "what the spool has as told to nobody is told",
        swapped(_RECORDER + "_spool_evidence", "undelivered and after.state in _WITH_EFFECT_STATES", "False"),
    ),
    mutant(
        "retry_after_not_kept",
        "a retry comes sooner than the provider has asked for",
        swapped(
            _RECORDER + "_backoff_s",
            "at_least_retry_after_s(wait, retry_after_of(response, self.clock.now()), self.randomness.draw())",
            "wait",
        ),
    ),
    mutant(
        "decides_for_another_attempt",
        "an attempt whose lease ran out decides what follows, while a repeat sends a later one",
        swapped(_RECORDER + "_decide", "after.attempt_under_way", "False"),
    ),
    mutant(
        "accepted_credential_not_noted",
        "a credential that the provider has accepted is not noted for the account",
        argument(_RECORDER + "_record", "accepted_credential=executed", "accepted_credential=False"),
    ),
    mutant(
        "refused_credential_noted",
        "a credential that the provider has refused is noted for the account",
        argument(_RECORDER + "_record", "accepted_credential=executed", "accepted_credential=True"),
    ),
    mutant(
        "refused_retry_goes_anyway",
        "a retry that the budget refused is decided upon as if it had been granted",
        argument(_RECORDER + "_decide", "budget_allows=budget_allows", "budget_allows=True"),
    ),
    # --- the wire
    mutant(
        "sent_after_the_deadline",
        "a first attempt is sent although its caller was told that nothing was",
        swapped(_SENDER + "send", "nothing_in_doubt and self.clock.mono() >= context.deadline_mono", "False"),
    ),
    mutant(
        "sent_after_the_key_window",
        "a re-send whose connection took too long is sent after the provider has forgotten the key",
        swapped(
            _SENDER + "send",
            "operation.doubt and first_send_age_s(operation, self.ages) >= policy.contract.resend_until_s",
            "False",
        ),
    ),
    mutant(
        "connections_always_reused",
        "a provider that may not be sent anything twice is reached over connections that may be closing",
        argument(_SENDER + "send", "reuse=policy.reuses_connections", "reuse=True"),
    ),
    mutant(
        "re_send_lower_cases_the_key",
        "the provider key of a re-send is in lower case",
        swapped(
            _MESSAGES + "wire_request",
            "operation.provider_key",
            "operation.provider_key and (operation.provider_key.lower() if operation.attempts > 1 "
            "else operation.provider_key)",
        ),
    ),
    mutant(
        "copied_stamp_sent",
        "a request without a stamp of its own carries the one that its caller copied",
        swapped(_MESSAGES + "wire_request", "policy.stamp is None or stamp is None", "False"),
    ),
    mutant(
        "repeated_header_kept",
        "a header that is written into a request stands there a second time",
        swapped(
            _MESSAGES + "with_header",
            "(*headers[:at], (headers[at][0], value), *after)",
            "(*headers[:at], (headers[at][0], value), *headers[at + 1 :])",
        ),
    ),
    mutant(
        "unreadable_codings_accepted",
        "a provider may answer in a coding that nobody here can read",
        swapped(_MESSAGES + "wire_request", "with_readable_codings(headers)", "headers"),
    ),
    mutant(
        "old_credential_re_sent",
        "a repeat is sent under the expired credential of the first call, not under its own",
        swapped(
            _DUPLICATES + "DuplicateCalls.stored_policy_and_request",
            "stored.with_credentials_of(context.call.headers)",
            "stored",
        ),
    ),
    mutant(
        "other_bytes_re_sent",
        "a repeat whose bytes differ from those that were sent is sent, if those could not be stored",
        swapped(_DUPLICATES + "DuplicateCalls.stored_policy_and_request", "repeated == operation.request_hash", "True"),
    ),
    # --- duplicates
    mutant(
        "joined_by_another_credential",
        "the response reaches another credential while the call is in flight",
        swapped(
            _DUPLICATES + "DuplicateCalls._joined_reply",
            "reply.problem is None and not context.credential_accepted",
            "False",
        ),
    ),
    mutant(
        "replayed_to_another_credential",
        "what was kept is replayed to a credential that may not see it",
        swapped(_DUPLICATES + "DuplicateCalls.replay", "not credential_matches", "False"),
    ),
    mutant(
        "recorded_end_told_to_another_credential",
        "a call that waited for another process is told what that one recorded, whoever it is",
        swapped(
            _DUPLICATES + "DuplicateCalls._reply_as_recorded",
            "credential_matches = context.credential_accepted",
            "credential_matches = True",
        ),
    ),
    mutant(
        "contradiction_replayed",
        "a payment that an incident disputes is replayed as it once was",
        swapped(_DUPLICATES + "DuplicateCalls.replay", "blocks_replay(operation)", "False"),
    ),
    mutant(
        "taken_reply_not_given_back",
        "a reply that a caller took, and left without, is lost to the next one",
        swapped(
            _DUPLICATES + "DuplicateCalls._keep_undelivered",
            "not claim.took_undelivered or (claim.credential_accepted and not context.caller_gone)",
            "True",
        ),
    ),
    mutant(
        "in_flight_told_as_unsent",
        "a duplicate whose time is up is told 409, although the first call may have sent",
        swapped(_DUPLICATES + "DuplicateCalls.join", "may_have_sent = owner.may_have_sent", "may_have_sent = False"),
    ),
    mutant(
        "in_flight_elsewhere_told_as_unsent",
        "a duplicate of a call that another process sends is told that nothing was sent yet",
        swapped(
            _DUPLICATES + "DuplicateCalls.join",
            "may_have_sent = operation.state is not State.BACKOFF",
            "may_have_sent = operation.state is State.UNKNOWN",
        ),
    ),
    mutant(
        "one_stored_error_is_all",
        "one whole error ends the waiting of a caller, although another attempt is still in doubt",
        swapped(
            _DUPLICATES + "DuplicateCalls._has_told_all",
            "not operation.doubt or not operation.doubt <= operation.answered_attempts",
            "not operation.answered_attempts",
        ),
    ),
    mutant(
        "unheard_though_it_was_heard",
        "what one caller heard is noted as heard by nobody when another one leaves",
        swapped(
            _DUPLICATES + "DuplicateCalls.mark_undelivered",
            "self.waiters.was_heard(operation.id) or self.waiters.has_waiter(operation.id)",
            "self.waiters.has_waiter(operation.id)",
        ),
    ),
    mutant(
        "any_reply_counts_as_heard",
        "a caller that was told something else counts as one that was told of the payment",
        swapped(
            _DUPLICATES + "DuplicateCalls.record_whether_delivered",
            "tells_it = reply.operation_id == operation.id and reply.outcome in _WITH_EFFECT_OUTCOMES",
            "tells_it = True",
        ),
    ),
    mutant(
        "refunded_payment_told_as_paid",
        "a call that waited for a payment that was refunded meanwhile is told that it is paid",
        swapped(
            _DUPLICATES + "DuplicateCalls._is_given_back",
            "row is not None and hold_of_payment(payment_from_row(row)) is IntentHold.REFUNDED",
            "False",
        ),
    ),
    mutant(
        "looked_up_for_another_payload",
        "a refused call shares the look-up of one that asks for something else under its key",
        swapped(
            "engine.calls.refused_lookups.RefusedLookups.claim",
            "(identity.key, identity.fingerprint, identity.credential)",
            "(identity.key, '', identity.credential)",
        ),
    ),
    mutant(
        "any_look_up_shared",
        "a refused call is given the claim of an equal one, whatever that claim says and to whom",
        swapped(
            "engine.calls.refused_lookups.RefusedLookups.claim",
            "shared is not None and shared.verdict is ClaimVerdict.ABSENT",
            "shared is not None",
        ),
    ),
    mutant(
        "disputed_operation_paid_elsewhere",
        "an operation that was restored with an incident takes another route, which removes the incident",
        swapped(_FALLBACKS + "_start", "self.leases.is_disputed(first.id)", "False"),
    ),
    mutant(
        "leader_shown_to_another_credential",
        "a call that waits behind another credential's is told that one's operation",
        swapped(
            _DUPLICATES + "SingleFlight.join_or_lead",
            "ahead.credential != context.identity.credential",
            "False",
        ),
    ),
    # --- what the engine knows of a call
    mutant(
        "repeat_of_a_doubt_never_sent",
        "a repeat of what is in doubt may be told that nothing was sent",
        swapped(
            _CONTEXT + "CallProgress.may_have_sent",
            "self.byte_started or bool(self.operation.doubt)",
            "self.byte_started",
        ),
    ),
    mutant(
        "unstorable_request_re_sent",
        "what is left of a request that must not be stored is sent again in the background",
        argument(
            _CONTEXT + "background_context",
            "request_available=request is not None and not operation.request_hash",
            "request_available=request is not None",
        ),
    ),
    mutant(
        "age_of_the_key_by_this_call",
        "how old a key is at the provider is counted by the sidecar's clock alone, which somebody may have set",
        argument(
            _CONTEXT + "decision_context_of",
            "first_send_age_s=first_send_age_s(operation, ages)",
            "first_send_age_s=clock.now() - _first_sent_at(operation)",
        ),
    ),
    mutant(
        "everybody_heard_it",
        "every caller counts as told, also those that left",
        swapped(_CONTEXT + "CallContext.send_reply", "is_delivered = not self.caller_gone", "is_delivered = True"),
    ),
    mutant(
        "doubt_not_told_without_a_journal",
        "if the journal fails, a repeat of what is in doubt is told that its call did nothing",
        swapped(_ENGINE + "_reply_without_journal", "progress.may_have_sent or progress.has_sent", "progress.has_sent"),
    ),
    mutant(
        "flight_never_ends",
        "the first call of a key stays the first one after it was answered",
        left_out(_ENGINE + "_run", "self.single_flight.leave(leader)"),
    ),
    mutant(
        "operation_told_to_anybody",
        "an operation's state is told to any credential that knows its id",
        swapped(_ENGINE + "describe", "operation is not None and not await visibility.sees(operation)", "False"),
    ),
    # --- the gate and the retry budgets
    mutant(
        "sent_after_a_rollback",
        "a provider that dedupes nothing is sent new payments while the journal may have forgotten some",
        swapped(_GATE + "admit", "not policy.contract.dedupes and self.recently_rolled_back()", "False"),
    ),
    mutant(
        "background_after_a_rollback",
        "what may have been told as failed is sent again in the background",
        swapped(_GATE + "before_attempt", "context.in_background and self.end_may_be_lost(operation)", "False"),
    ),
    mutant(
        "admitted_after_its_caller_left",
        "a call whose caller left while it waited for its turn starts",
        swapped(
            _GATE + "admit",
            "decision.attempt_permit is not None and decision.waited and not context.still_there()",
            "False",
        ),
    ),
    mutant(
        "place_not_given_back",
        "a call that was let in and has ended keeps its place at the provider",
        left_out(_GATE + "release", "self.admission.release(attempt_permit.admitted, health_sample)"),
    ),
    mutant(
        "probe_not_given_back",
        "a probe that was refused a place is never over",
        swapped(
            _GATE + "acquire",
            "isinstance(admitted, NotAdmitted)",
            "isinstance(admitted, NotAdmitted) and (probe := None) is None",
        ),
    ),
    mutant(
        "open_circuit_lets_keyless_pay_elsewhere",
        "a call without an intent falls back to another route while the circuit is open",
        swapped("engine.calls.gate._falls_back_when_open", "guard.kind is not GuardKind.INTENT", "False"),
    ),
    mutant(
        "retry_not_refunded",
        "a retry that was never sent stays spent",
        left_out(_BUDGET + "refund", "await self.budgets.refund(grant)"),
    ),
    mutant(
        "unsent_retry_failed",
        "a retry that our own limits kept from the wire counts as one that failed",
        swapped(_BUDGET + "report_result", "evidence.fault in _NOT_ATTEMPTED and not evidence.sent", "False"),
    ),
    mutant(
        "retry_granted_when_limits_fail",
        "a retry is sent if the budgets cannot be asked",
        swapped(_BUDGET + "acquire", "isinstance(found, Grant)", "True"),
    ),
    # --- fallbacks
    mutant(
        "credential_shown_to_the_fallback",
        "a fallback's provider is sent the caller's credential of the first one",
        swapped(
            _FALLBACKS + "_headers_for_route",
            "headers = tuple(pair for pair in headers if pair[0].lower() not in CREDENTIAL_HEADERS)",
            "pass",
        ),
    ),
    mutant(
        "follow_up_for_a_stranger",
        "anybody who knows a reference acts on what a fallback made, under that route's credentials",
        swapped(
            _FALLBACKS + "route_follow_up",
            "credentials is not None and not await self._is_of_first_account(call, made)",
            "False",
        ),
    ),
    mutant(
        "fallback_with_another_amount",
        "a fallback is recorded without the amount that its first route has read",
        argument(_FALLBACKS + "_second", "money=context.expected.money", "money=None"),
    ),
)
