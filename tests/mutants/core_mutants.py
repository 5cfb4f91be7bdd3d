"""The rules without a clock or a socket: identity, claims and guards, evidence, lifecycle, decisions, budgets."""

from __future__ import annotations

from tests.mutants.changes import argument, mutant, swapped

_IDENTITY = "core.identity."
_CLAIM = "core.claim."
_GUARD = "core.guard."
_INQUIRY = "core.inquiry."
_CONSEQUENCES = "core.consequences."
_CLASSIFY = "core.classify."
_EXTERNAL = "core.external_evidence."
_LIFECYCLE = "core.lifecycle."
_BUDGET = "core.budget."

CORE = (
    # --- which operation a call is
    mutant(
        "keys_merged_by_case",
        "two keys that differ only in case are one",
        swapped(
            _IDENTITY + "identify",
            'keyed_hash(secret, "operation", provider_name, account, operation_name, client_key)',
            'keyed_hash(secret, "operation", provider_name, account, operation_name, client_key.lower())',
        ),
    ),
    mutant(
        "keys_of_two_operations_merged",
        "one key for a charge and for a refund is one operation",
        swapped(
            _IDENTITY + "identify",
            'keyed_hash(secret, "operation", provider_name, account, operation_name, client_key)',
            'keyed_hash(secret, "operation", provider_name, account, client_key)',
        ),
    ),
    mutant(
        "blank_query_parameters_lost",
        "a query parameter without a value does not count in the fingerprint",
        argument(_IDENTITY + "fingerprint_of", "keep_blank_values=True", "keep_blank_values=False"),
    ),
    mutant(
        "repeated_query_parameters_lost",
        "of a query parameter that is repeated the last one counts in the fingerprint",
        swapped(
            _IDENTITY + "fingerprint_of",
            "sorted(parse_qsl(call.query, keep_blank_values=True))",
            "sorted(dict(parse_qsl(call.query, keep_blank_values=True)).items())",
        ),
    ),
    mutant(
        "fingerprint_without_the_path",
        "the same body for two things is one call",
        swapped(
            _IDENTITY + "fingerprint_of",
            "[call.method, call.path, query, canonical(without_paths(tree, ignore))]",
            "[call.method, query, canonical(without_paths(tree, ignore))]",
        ),
    ),
    mutant(
        "what_the_tree_loses",
        "two bodies that a tree cannot tell apart share a fingerprint",
        swapped(_IDENTITY + "fingerprint_of", "lost := lost_in_tree(call.body, ignore)", "False"),
    ),
    mutant(
        "key_of_an_account_only_we_know",
        "two accounts that only we can tell apart send their equal keys to one provider account",
        swapped(
            _IDENTITY + "_provider_key",
            "field_ref == contract.send_as and contract.key_space_is_account and not only_we_know",
            "field_ref == contract.send_as and contract.key_space_is_account",
        ),
    ),
    mutant(
        "part_of_a_reference",
        "a payout whose reference is not whole is guarded by the part that it has",
        swapped(_IDENTITY + "_guard_of", "len(target) < len(places)", "False"),
    ),
    mutant(
        "long_order_numbers_merged",
        "order numbers that differ behind their 255th character are one",
        swapped(
            _IDENTITY + "intent_guard",
            'keyed_hash(secret, "intent", *payers, intent)',
            'keyed_hash(secret, "intent", *payers, intent[:255])',
        ),
    ),
    mutant(
        "keyed_calls_unguarded",
        "a call that brings a key of its provider is not guarded by its content",
        swapped(_IDENTITY + "_guard_of", "call.options.key is not None", "True"),
    ),
    mutant(
        "ambiguous_account_accepted",
        "a header that says whose call it is may stand there twice",
        swapped("core.recognise._refusal_of", "(twice := _ambiguous_header(call, policy)) is not None", "False"),
    ),
    mutant(
        "full_object_stamped",
        "an object that has as many keys as the provider takes gets the stamp too",
        swapped("core.recognise._is_full", "len(holder) >= limit", "len(holder) > limit"),
    ),
    mutant(
        "two_accounts_named",
        "a credential and a header that name two accounts do not contradict each other",
        swapped(
            "core.account_choice._is_of_another",
            "bool(account.owner) and owner is not None and owner != _owner_of(account, policy, secret)",
            "False",
        ),
    ),
    mutant(
        "owners_word_after_the_policy",
        "a credential that the provider calls another owner's is the same account's, if a mark says so",
        swapped(
            "core.credential_owners.related",
            "owner is not None and other_owner is not None and owner != other_owner",
            "False",
        ),
    ),
    # --- claims and guards
    mutant(
        "contradicted_key_starts_again",
        "a key whose failed payment was found after all starts anew",
        swapped(
            _CLAIM + "may_start_again",
            "existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent",
            "existing.state is not State.FAILED or existing.cancel_sent",
        ),
    ),
    mutant(
        "cancelled_key_starts_again",
        "a key whose payment was cancelled starts anew, while the cancel may still be on its way",
        swapped(
            _CLAIM + "may_start_again",
            "existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent",
            "existing.state is not State.FAILED or existing.incident is not None",
        ),
    ),
    mutant(
        "new_stamp_under_an_old_key",
        "the next generation under a kept key has a stamp of its own, so that its bytes differ",
        swapped(
            _CLAIM + "judge",
            "existing.stamp if equal and existing.key_released else request.fresh.stamp",
            "request.fresh.stamp",
        ),
    ),
    mutant(
        "released_key_renewed",
        "after an end without effect the provider sees another key",
        swapped(
            _CLAIM + "_provider_key",
            "existing.key_released or request.key_stem is None",
            "request.key_stem is None",
        ),
    ),
    mutant(
        "lost_attempt_known_to_be_told",
        "what the caller of a lost sidecar was told counts as known",
        swapped(_CLAIM + "drop_lease", "after.changed(delivery_unknown=True)", "after"),
    ),
    mutant(
        "meant_twice_while_open",
        "a call that is meant twice starts while the first payment of its intent may still be made",
        swapped(
            _CLAIM + "judge_guard", "fresh.distinct and not (is_intent and hold is GuardHold.OPEN)", "fresh.distinct"
        ),
    ),
    mutant(
        "equal_call_of_another_account",
        "an equal call of another account of the merchant gets the reply of the first",
        swapped(
            _CLAIM + "_same_call",
            "(first.fingerprint, first.provider, first.operation, first.account)",
            "(first.fingerprint, first.provider, first.operation, second.account)",
        ),
    ),
    mutant(
        "parts_without_a_sum",
        "parts of one order may be paid beyond its sum",
        swapped(_CLAIM + "is_covered", "sum(amounts) <= total.minor_units", "money.minor_units <= total.minor_units"),
    ),
    mutant(
        "contradiction_lifts_the_guard",
        "an order whose failed payment was found after all may be paid again",
        swapped(
            _GUARD + "_is_open",
            "operation.state in _OPEN or contradicted or is_reply_under_way(operation)",
            "operation.state in _OPEN or is_reply_under_way(operation)",
        ),
    ),
    mutant(
        "accepted_order_paid_again",
        "an order whose payment was accepted, and is not settled yet, may be paid again",
        swapped(_GUARD + "_hold_of_intent", "operation.state is State.PENDING", "False"),
    ),
    mutant(
        "refund_taken_twice",
        "a reply that was promised to one key is given to another one",
        swapped(_GUARD + "may_be_taken", "names_its_purchase(operation) or not is_promised", "True"),
    ),
    mutant(
        "taken_after_a_week",
        "a reply that nobody got is given to an equal call of a week later",
        swapped(
            _GUARD + "hold_of",
            "_awaits_takeover(operation) and now - ended_at < TAKEOVER_WITHIN_S",
            "_awaits_takeover(operation)",
        ),
    ),
    mutant(
        "returned_payout_not_repeatable",
        "a payout that came back keeps its reference for ever",
        swapped(_GUARD + "_is_kept_transfer", "operation.result_class not in GIVEN_BACK", "True"),
    ),
    # --- what a response and an inquiry mean
    mutant(
        "stray_copy_believed",
        "a second copy of the answer before is taken for the answer to this call",
        swapped(
            _CLASSIFY + "read_response",
            "evidence.repeats_previous and reference_in(rules, tree) is not None",
            "False",
        ),
    ),
    mutant(
        "gateway_page_is_the_provider",
        "a page of HTML with 400 counts as the provider's own refusal",
        swapped(
            _CLASSIFY + "_by_page_or_status",
            "foreign and (not 200 <= status_code < 300) and status_code < 500",
            "False",
        ),
    ),
    mutant(
        "cut_answer_believed",
        "the beginning of an answer counts by its status",
        swapped(_CLASSIFY + "_by_response", "response.close_delimited and not readable", "False"),
    ),
    mutant(
        "any_currency_fits",
        "an answer in another currency is the one that was asked for",
        swapped(
            _CLASSIFY + "matches_expected",
            "str(part).upper() != money.currency",
            "False",
        ),
    ),
    mutant(
        "success_with_an_error",
        "an error whose body shows a payment is a refusal without effect",
        swapped(
            _CLASSIFY + "_by_response", "by_row or _success_in_error(rules, response, tree, foreign=foreign)", "by_row"
        ),
    ),
    mutant(
        "no_page_is_a_miss",
        "an empty page of a payment that has a name proves that there is none",
        swapped(_INQUIRY + "_nothing_found", 'inquiry.at is None or inquiry.names_in_path("reference")', "False"),
    ),
    mutant(
        "first_page_is_all",
        "a search that shows one page of several proves that there is nothing",
        swapped(_INQUIRY + "_nothing_found", "more", "False"),
    ),
    mutant(
        "list_may_begin_later",
        "a search that begins after the payment was sent proves that there is none",
        swapped(
            _INQUIRY + "read_inquiry",
            "kind is FindingKind.MISSED and inquiry.bounded_by_time and not _covers_attempt(values, provider_time)",
            "False",
        ),
    ),
    mutant(
        "two_paid_is_one",
        "two objects that were both paid count as one",
        swapped(_INQUIRY + "_one_of_several", "len(moved) > 1", "False"),
    ),
    mutant(
        "another_object_is_ours",
        "an object with another key or reference is taken for ours",
        swapped(_INQUIRY + "BelongsFields.hold", "shown is None or wanted is None or shown == wanted", "True"),
    ),
    mutant(
        "misses_count_before_it_is_quiet",
        "a miss counts while an attempt may still arrive",
        swapped(_INQUIRY + "after_miss", "not is_settled(operation, proof.settle_s, now)", "False"),
    ),
    mutant(
        "lag_not_waited_for",
        "two misses in one second prove absence",
        swapped(
            _INQUIRY + "after_miss",
            "after.misses >= proof.misses and now - first_at >= proof.lag_s",
            "after.misses >= proof.misses",
        ),
    ),
    mutant(
        "loosest_way_proves",
        "of several ways to ask the one that needs the fewest misses counts",
        swapped(
            _INQUIRY + "AbsenceProof.of", "max((one.misses for one in expected))", "min(one.misses for one in expected)"
        ),
    ),
    mutant(
        "misses_survive_a_re_send",
        "misses of the attempts before count for one that was sent since",
        swapped(_CONSEQUENCES + "consequences", "after.attempts > before.attempts", "False"),
    ),
    mutant(
        "quiet_of_the_first_attempt",
        "the quiet period is that of the first attempt, not of the last one",
        swapped(
            _CONSEQUENCES + "consequences",
            "max(after.no_bytes_after_at or 0.0, context.no_bytes_after_at)",
            "after.no_bytes_after_at or context.no_bytes_after_at",
        ),
    ),
    mutant(
        "key_released_over_a_decline",
        "a key that the provider has a decline under starts anew",
        swapped(
            _CONSEQUENCES + "_releases_key",
            "without_effect and after.result_class not in _KEEPS_KEY",
            "without_effect",
        ),
    ),
    mutant(
        "key_released_in_doubt",
        "a key is released although an attempt under it may have paid",
        swapped(
            _CONSEQUENCES + "_releases_key",
            "after.doubt or after.fallback_to is not None",
            "after.fallback_to is not None",
        ),
    ),
    mutant(
        "lease_ends_with_evidence",
        "a webhook ends the lease of whoever is sending",
        swapped(
            _CONSEQUENCES + "_lease_after",
            "lease.token == context.gives_back and not after.attempt_under_way",
            "not after.attempt_under_way or lease.token == context.gives_back",
        ),
    ),
    mutant(
        "absent_though_accepted",
        "what the provider accepted before it was parked may turn out absent",
        swapped(_EXTERNAL + "_may_be_absent", "bool(operation.doubt) and not action_required", "not action_required"),
    ),
    mutant(
        "absent_before_it_settled_by_event",
        "absence counts before everything has settled",
        swapped(
            _EXTERNAL + "_must_wait",
            "not (settled and _may_be_absent(operation))",
            "not _may_be_absent(operation)",
        ),
    ),
    mutant(
        "decline_of_another_execution",
        "an event that denies one execution ends an operation that was sent twice",
        swapped(
            _EXTERNAL + "_must_wait",
            "denies and (several or of_earlier_call) and not covers_all and not operation.state.ended",
            "denies and of_earlier_call and not covers_all and not operation.state.ended",
        ),
    ),
    mutant(
        "answer_of_another_attempt",
        "the late refusal of one attempt ends an operation whose other attempt may have paid",
        swapped(_LIFECYCLE + "event_of_response", "operation.doubt and not others", "operation.doubt"),
    ),
    mutant(
        "two_references_unnoticed",
        "two payments of one call open no incident",
        swapped(_LIFECYCLE + "contradiction", "classification.effect is Effect.DONE and differ", "False"),
    ),
    mutant(
        "later_amount_unnoticed",
        "a payment that shows another amount afterwards opens no incident",
        swapped(_LIFECYCLE + "contradiction", "IncidentKind.ANOTHER_AMOUNT if not differ else None", "None"),
    ),
    # --- decisions and limits
    mutant(
        "re_send_after_a_cancel",
        "what was cancelled is sent again",
        swapped("core.decide.may_resend", "not context.cancel_sent", "True"),
    ),
    mutant(
        "re_send_elsewhere",
        "an unknown outcome is sent again at an address that does not know its key",
        swapped("core.decide.may_resend", "context.same_upstream", "True"),
    ),
    mutant(
        "re_send_over_a_decline",
        "what the provider has declined once is sent again",
        swapped("core.decide.may_resend", "context.result_class not in PROVIDER_SAID_NO", "True"),
    ),
    mutant(
        "re_send_of_an_old_order",
        "an order is sent again in the background long after anybody wants it",
        swapped(
            "core.decide._resend_later",
            "context.first_send_age_s + context.delay_s < context.resend_for_s",
            "True",
        ),
    ),
    mutant(
        "fallback_without_an_intent",
        "a payment without an intent is made at another provider, where its key is not known",
        swapped(
            "core.decide._has_other_route",
            "context.fallback_to is not None and context.guarded",
            "context.fallback_to is not None",
        ),
    ),
    mutant(
        "retry_after_shortened",
        "a provider's Retry-After is shortened by the backoff's jitter",
        swapped(
            "core.retry.at_least_retry_after_s",
            "max(wait_s, retry_after_s * (1 + _RETRY_AFTER_SPREAD * draw))",
            "max(wait_s, retry_after_s * (1 - _RETRY_AFTER_SPREAD * draw))",
        ),
    ),
    mutant(
        "refund_of_a_retry_forgotten",
        "a retry that was given back in a later window is lost",
        swapped(_BUDGET + "_counted", "max(0, before + spent)", "before"),
    ),
    mutant(
        "intent_retried_without_end",
        "an intent may be retried beyond its cap",
        swapped(_BUDGET + "evaluate_budget", "room.spent + 1 > room.most", "False"),
    ),
    mutant(
        "grant_ends_twice",
        "a retry that was given back counts as one that failed too",
        swapped("limits.budgets.LocalBudgets.refund", "self._open.end(grant)", "True"),
    ),
)
