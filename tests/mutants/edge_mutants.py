"""What faces others: operators, the server, the wire, webhook signatures, limits of the fleet, logs."""

from __future__ import annotations

from tests.mutants.changes import argument, left_out, mutant, swapped

_COMMANDS = "engine.operator_commands."
_EXECUTOR = _COMMANDS + "CommandExecutor."
_PAYMENTS = "engine.payment_commands.PaymentCommands."
_OWNERS = "engine.credential_owners."
_ACCESS = "engine.account_access.AccountAccess."
_CHECK = "engine.calls.payout_check."
_HEADERS = "server.heads."
_CONNECTION = "upstream.connection.UpstreamConnection."
_SIGNATURES = "webhook_signatures.scheme."
_CIRCUIT = "core.circuit."

EDGES = (
    # --- operators
    mutant(
        "bulk_action_without_its_reason",
        "an action for many operations is kept without the reason that its operator gave",
        swapped(
            _EXECUTOR + "execute_many",
            "await self._execute(operation, command)",
            "await self._execute(operation, replace(command, reason=''))",
        ),
    ),
    mutant(
        "bulk_action_without_its_actor",
        "an action for many operations is kept without who did it",
        swapped(
            _EXECUTOR + "execute_many",
            "await self._execute(operation, command)",
            "await self._execute(operation, replace(command, actor=''))",
        ),
    ),
    mutant(
        "bulk_action_beyond_what_was_seen",
        "an action for many operations is done to some that its operator has not seen",
        swapped(_EXECUTOR + "_select", "only_ids is not None and operation.id not in only_ids", "False"),
    ),
    mutant(
        "bulk_action_beyond_its_limit",
        "an action for many operations is done to more than its limit",
        swapped(_EXECUTOR + "_select", "len(seen) >= min(limit, BULK_MAX)", "len(seen) >= BULK_MAX"),
    ),
    mutant(
        "dry_run_done",
        "an action that was only to be tried is done",
        swapped(_EXECUTOR + "execute_many", "dry_run", "False"),
    ),
    mutant(
        "action_over_another_version",
        "an action is done to an operation that has changed since its operator looked",
        swapped(_EXECUTOR + "execute", "version is not None and version != operation.version", "False"),
    ),
    mutant(
        "resolved_over_a_webhook",
        "what an operator resolves is written over what a webhook has told meanwhile",
        argument(_EXECUTOR + "_resolve", "fail_on_conflict=True", "fail_on_conflict=False"),
    ),
    mutant(
        "resolved_without_its_evidence",
        "how an operator knows what became of an operation is not kept",
        argument(_EXECUTOR + "_resolve", "detail=command.evidence", "detail=''"),
    ),
    mutant(
        "card_number_kept_in_a_reason",
        "a card number that an operator pastes into a reason is kept",
        swapped(
            _COMMANDS + "valid_actor_and_reason",
            "return redact(actor.strip()), redact(reason.strip())",
            "return actor.strip(), reason.strip()",
        ),
    ),
    mutant(
        "incident_closed_without_an_end",
        "an incident is closed without saying how it ended, so that its key may pay again",
        swapped("core.operator_actions.close_refusal", "paid is None", "False"),
    ),
    mutant(
        "closed_as_paid_stays_reusable",
        "a key whose incident was closed as paid starts anew",
        swapped("core.operator_actions.close_incident", 'changed["key_released"] = False', "pass"),
    ),
    mutant(
        "operators_old_reply",
        "the reply of a payment that an operator found given back is replayed",
        argument(
            _EXECUTOR + "_execute",
            "sealed_response=b'' if changes_replay(operation, after) and operation.state.ended else None",
            "sealed_response=None",
        ),
    ),
    mutant(
        "not_paid_over_another_version",
        "that nobody has paid is said of a payment that has changed since",
        swapped(_PAYMENTS + "_read", "version is not None and version != row.version", "False"),
    ),
    mutant(
        "adopted_over_our_own",
        "a payment that was made through here is adopted a second time",
        swapped(_PAYMENTS + "_check_not_ours", "ours is not None and row is None", "False"),
    ),
    mutant(
        "adopted_payment_forgotten",
        "an order whose payment was adopted may be paid again",
        swapped(
            _PAYMENTS + "_kept_rows",
            "intent is None or intent.after_success is not RepeatPaymentRule.BLOCK",
            "True",
        ),
    ),
    mutant(
        "approval_without_its_actor",
        "nobody can tell who approved a payout",
        argument("engine.payout_approvals.PayoutApprovals.approve", "approved_by=actor", "approved_by=''"),
    ),
    mutant(
        "approval_renewed_after_use",
        "an approval that was used is given once more",
        swapped(
            "engine.payout_approvals.PayoutApprovals.approve",
            'raise ApprovalRefused(f"it was used by {known.used_by}; a further payout asks for its own approval")',
            "known = replace(known, used_by='')",
        ),
    ),
    mutant(
        "mapped_over_the_provider",
        "an operator maps a credential that the provider calls another owner's",
        swapped("engine.credential_commands.CredentialCommands.map", "relation is CredentialRelation.OTHER", "False"),
    ),
    mutant(
        "mapped_for_ever",
        "a credential whose mapping was taken back stays mapped",
        swapped(
            _OWNERS + "CredentialOwners.remove_peers",
            "{mark: known[mark] for mark in known if mark.startswith(stay)}",
            "known",
        ),
    ),
    mutant(
        "providers_earlier_word_kept",
        "a credential that the provider calls another owner's now has two owners",
        swapped(
            _OWNERS + "_merged", "{mark: known[mark] for mark in known if not mark.startswith(OWNER_MARK)}", "known"
        ),
    ),
    mutant(
        "owner_not_recorded",
        "a call goes on as its owner's before the journal knows that owner",
        swapped(_OWNERS + "CredentialOwners._owner_of", "return None, 0.0", "return mark, _KNOWN_FOR_S"),
    ),
    mutant(
        "unknown_account_goes_on",
        "a call of which nobody knows whose it is goes on as the policy's account",
        swapped(_ACCESS + "enter", "not chosen.is_known", "False"),
    ),
    mutant(
        "another_owner_pays",
        "a credential of another owner pays from the account of the first",
        swapped(_ACCESS + "enter", "of_account not in {None, owner}", "False"),
    ),
    mutant(
        "stranger_told_of_an_order",
        "whether an order is paid is told to a credential that may be another owner's",
        swapped(
            "engine.visibility.Visibility.guards_of",
            "any((operation.provider in own[guard] for operation in group))",
            "False",
        ),
    ),
    # --- the check before a payout
    mutant(
        "silent_check_allows",
        "a payout is sent if whoever is to be asked does not answer",
        swapped(_CHECK + "PayoutCheck._ask", 'return f"no answer ({evidence.fault})"', 'return ""'),
    ),
    mutant(
        "truthy_check_allows",
        'a payout is sent if the answer says "allow": "no"',
        swapped(_CHECK + "_is_allowed", 'answer.get("allow") is True', 'bool(answer.get("allow"))'),
    ),
    mutant(
        "check_answers_late",
        "a payout is sent after its caller's time was up, because it was allowed late",
        swapped(
            _CHECK + "PayoutCheck._ask",
            "min(hook.timeout_s, context.deadline_mono - self.clock.mono())",
            "hook.timeout_s",
        ),
    ),
    # --- the server
    mutant(
        "option_sent_twice",
        "of a header of ours that is sent twice the last one counts",
        swapped(_HEADERS + "read_head", "name in control", "False"),
    ),
    mutant(
        "unknown_option_ignored",
        "a header of ours that is misspelt is ignored",
        swapped(_HEADERS + "read_caller_options", "name not in _ALLOWED_VALUES", "False"),
    ),
    mutant(
        "option_sent_upstream",
        "a header of ours goes on to the provider",
        swapped(
            _HEADERS + "read_head", "control[name] = pair[1]", "control[name] = (forwarded.append(pair), pair[1])[1]"
        ),
    ),
    mutant(
        "body_without_end",
        "a body that comes in pieces may have any size",
        swapped("server.dispatch.read_whole", "body.received_bytes > limit", "False"),
    ),
    mutant(
        "our_failure_is_a_failure",
        "a call that we fail to carry is told that nothing was sent",
        swapped(
            "server.dispatch.RequestDispatcher._reply_to",
            "problem_reply(Problem.UNKNOWN, detail, sent=True, provider=provider)",
            "problem_reply(Problem.NOT_SENT, detail, sent=False, provider=provider)",
        ),
    ),
    mutant(
        "two_requests_read_as_one",
        "a request whose end others read elsewhere is served",
        swapped(
            "server.request_parser.RequestParser.begins_ambiguously",
            'end >= 0 and self._unread.count(b" ", 0, end) != _SPACES',
            "False",
        ),
    ),
    mutant(
        "page_of_another_origin",
        "a web page of another origin may ask",
        swapped(
            "core.allowed_hosts.AllowedHosts.allows_origin",
            "any((site.strip().lower() not in _OWN_PAGE for site in fetch_sites))",
            "False",
        ),
    ),
    mutant(
        "null_origin_is_ours",
        "a page without an origin counts as one of ours",
        swapped(
            "core.allowed_hosts.AllowedHosts._is_own_origin", "found is None", "found is None and origin != 'null'"
        ),
    ),
    # --- the wire
    mutant(
        "late_lease_sends",
        "an attempt is sent though the right to send ran out while it connected",
        swapped("upstream.client.UpstreamClient.send", "not may_send()", "False"),
    ),
    mutant(
        "stray_bytes_read",
        "an answer with more bytes behind it is believed on a connection that was used before",
        swapped(_CONNECTION + "data_received", "parser.complete and parser.leftover and self._calls > 1", "False"),
    ),
    mutant(
        "copy_not_noticed",
        "an answer that is the one before it on its connection is not noticed",
        swapped(_CONNECTION + "_is_copy", "return before == self._last_answer", "return False"),
    ),
    mutant(
        "half_written_connection_kept",
        "a connection is used again although the request before was not written to its end",
        swapped(_CONNECTION + "_complete", "not exchange.drained", "False"),
    ),
    mutant(
        "close_ends_any_body",
        "a body that is cut short counts as whole when the peer closes",
        swapped(
            "upstream.exchange.ResponseParser.finish",
            "self._stage == _UNTIL_CLOSE and self.fault is None",
            "self.fault is None",
        ),
    ),
    mutant(
        "idle_as_long_as_the_peer",
        "a connection is used in the very moment in which the provider closes it",
        swapped(_CONNECTION + "_keep_idle", "min(idle_s, peer_keeps_s - 1.0)", "peer_keeps_s"),
    ),
    mutant(
        "turn_lost_with_its_caller",
        "a connection that a caller was given in the moment it left is nobody's any more",
        left_out(
            "upstream.client.OriginPool._wait",
            "self.release(grant if isinstance(grant, UpstreamConnection) else None)",
        ),
    ),
    mutant(
        "fresh_connection_not_fresh",
        "who may not reuse a connection is handed one that another call gives back",
        swapped("upstream.client.OriginPool.release", "connection is not None and not reuse", "False"),
    ),
    mutant(
        "late_listening_without_end",
        "any number of connections listen for late answers",
        swapped(
            "upstream.late_responses.LateResponses.take_over",
            "self._closed or ends_mono <= now or len(self._listening) >= self._connections_max",
            "self._closed or ends_mono <= now",
        ),
    ),
    # --- webhook signatures
    mutant(
        "old_webhook_genuine",
        "a webhook that was signed long ago is genuine",
        swapped(
            _SIGNATURES + "check_age",
            "found.verdict is not SignatureVerdict.GENUINE or abs(age_s) <= tolerance_s",
            "True",
        ),
    ),
    mutant(
        "webhook_of_the_future",
        "a webhook that was signed for later is genuine",
        swapped(_SIGNATURES + "check_age", "abs(age_s) <= tolerance_s", "age_s <= tolerance_s"),
    ),
    mutant(
        "empty_secret_signs",
        "a webhook that was signed with an empty secret is genuine",
        swapped(_SIGNATURES + "is_usable_key", "bool(key.strip(_BLANK))", "True"),
    ),
    mutant(
        "first_signature_only",
        "during a rotation only the first of two signatures is compared",
        swapped(_SIGNATURES + "_matches", "any(matches)", "matches[0]"),
    ),
    mutant(
        "two_signature_headers",
        "of a signature that comes twice the first one counts",
        swapped(_SIGNATURES + "single_header", "len(values) > 1", "False"),
    ),
    # --- limits of the fleet
    mutant(
        "late_probe_votes",
        "a probe whose lease is over has a vote",
        swapped(_CIRCUIT + "end_probe", "in_time = held.pop(lease, 0) > now_ms", "in_time = held.pop(lease, 0) >= 0"),
    ),
    mutant(
        "one_sidecar_opens_for_all",
        "one sidecar that fails by itself closes the provider to all",
        swapped(_CIRCUIT + "quorum", "1 if reporting <= 1 else max(2, math.ceil(QUORUM_SHARE * speaking))", "1"),
    ),
    mutant(
        "forced_for_ever",
        "what an operator forced stays in force after its time",
        swapped(_CIRCUIT + "advance", "_end_of_force(fleet, now_ms) if now_ms >= circuit.until_ms else fleet", "fleet"),
    ),
    mutant(
        "throttled_is_down",
        "a probe that is throttled votes that the provider is down",
        swapped("limits.circuits.probe_vote", "sample is None or sample.health is Health.THROTTLED", "sample is None"),
    ),
    mutant(
        "hold_ends_sooner",
        "a shorter Retry-After ends a longer one",
        swapped(
            "core.holds.with_asks",
            "Hold(max(until_ms, before.until_ms if before is not None else 0), latest_ms)",
            "Hold(until_ms, latest_ms)",
        ),
    ),
    mutant(
        "place_lost_with_its_caller",
        "a place that was given to a call in the moment its caller left is nobody's any more",
        left_out("limits.admission.Admission._withdraw", "self.release(Admitted(provider, priority), None)"),
    ),
    mutant(
        "place_given_back_twice",
        "a place that is given back twice makes room for two",
        swapped("limits.admission.Admission.release", "admitted.released", "False"),
    ),
    mutant(
        "inquiries_share_the_write_budget",
        "inquiries spend the budget of retries",
        swapped(
            "engine.calls.gate.RetryBudget._origin",
            "AttemptOrigin(policy.provider, policy.operation, operation.account, rules, group)",
            "AttemptOrigin(policy.provider, policy.operation, operation.account, rules)",
        ),
    ),
    mutant(
        "dns_failure_is_the_provider",
        "a name that our resolver does not find counts against the provider",
        swapped(
            "core.provider_health.health_sample_of", "evidence.fault in _OUR_OWN_FAULTS and not evidence.sent", "False"
        ),
    ),
    # --- logs
    mutant(
        "secret_in_a_missing_token_line",
        "the line that says that a provider gave no token shows the client's secret",
        swapped(
            "engine.resolution.background_credentials.CredentialSource._oauth2_token",
            '_log.warning("%s gave no token at %s", *place, extra=repeats(*place))',
            '_log.warning("%s gave no token at %s to %s", *place, secret)',
        ),
    ),
    mutant(
        "answer_in_a_missing_token_line",
        "the line that says that a provider gave no token shows its answer",
        swapped(
            "engine.resolution.background_credentials.CredentialSource._oauth2_token",
            '_log.warning("%s gave no token at %s", *place, extra=repeats(*place))',
            '_log.warning("%s gave no token at %s: %s", *place, evidence.response)',
        ),
    ),
    mutant(
        "environment_in_a_line",
        "the line about a missing variable shows the ones that are set",
        swapped(
            "engine.resolution.background_credentials.CredentialSource._from_environment",
            'names = " nor ".join(name for name in credentials.variables if not self.environment.get(name))',
            'names = " nor ".join([*credentials.variables, *map(str, self.environment.values())])',
        ),
    ),
    mutant(
        "failure_with_its_message",
        "the line about a failure of ours shows the message of the exception",
        swapped(
            "server.dispatch._log_failure",
            '_log.error("%s failed by %s at %s", activity, type(error).__name__, place, '
            "extra=repeats(activity, place))",
            '_log.error("%s failed by %s at %s", activity, error, place)',
        ),
    ),
    mutant(
        "check_refusal_with_its_answer",
        "the line about a payout that was not allowed shows what was answered",
        swapped(
            _CHECK + "PayoutCheck._ask",
            'return f"status {response.status_code}"',
            'return f"status {response.status_code}: {response.body!r}"',
        ),
    ),
    mutant(
        "outbox_line_with_its_event",
        "the line about an event that was not taken shows what the sink answered",
        swapped(
            "engine.outbox._why_not_taken",
            'f"status {response.status_code}"',
            'f"status {response.status_code} {response.body!r}"',
        ),
    ),
    mutant(
        "error_message_logged",
        "an exception is logged by its message",
        swapped(
            "telemetry.logs._event_fields",
            "type(record.exc_info[1]).__name__",
            "str(record.exc_info[1])",
        ),
    ),
    mutant(
        "line_not_redacted",
        "a line for machines is written as it came",
        swapped(
            "telemetry.logs.JsonLogFormatter.format",
            "redact_tree(line)",
            "line",
        ),
    ),
)
