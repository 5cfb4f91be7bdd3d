"""What keeps an operation known: leases, journal writes, recovery, the spool, rollbacks, ages, policy revisions, and
the journal's own rules for claims, writes and tombstones."""

from __future__ import annotations

from tests.mutants.changes import argument, mutant, swapped

_LEASES = "engine.durability.leases.Leases."
_WRITER = "engine.durability.journal_writer.JournalWriter."
_SPOOL = "engine.durability.spool."
_ROLLBACK = "engine.durability.rollback.RollbackMonitor."
_AGES = "engine.durability.ages.Ages."
_PLAN = "journal.claim_plan."
_ANSWER = "journal.claim_answer."
_TRANSITIONS = "journal.transitions."
_TOMBSTONES = "journal.tombstones."
_REDIS = "journal.redis.retention."
_SQLITE = "journal.sqlite.retention."

DURABILITY = (
    # --- leases
    mutant(
        "lease_from_the_answer",
        "a renewed lease is counted from the journal's answer, not from before it was asked",
        swapped(
            _LEASES + "renew",
            "held.until_boot = requested_boot + self.lease_s",
            "held.until_boot = self._clock.boot() + self.lease_s",
        ),
    ),
    mutant(
        "incident_of_a_rollback_removed",
        "the record of an attempt removes the incident with which its operation was restored meanwhile",
        swapped(_WRITER + "_record", "self.leases.take_dispute(change.operation.id)", "False"),
    ),
    mutant(
        "merged_jumps_left_out_again",
        "more is left out of the smallest age than has passed until a jump",
        swapped(
            "core.ages.AgeTable.low_age_s",
            "min(left_out + jump.low_s, max(0.0, jump.at - counted_from))",
            "left_out + jump.low_s",
        ),
    ),
    mutant(
        "any_lease_is_ours",
        "an attempt is sent under a lease that another holder of the operation has",
        swapped(
            _LEASES + "outlasts",
            "held is not None and held.token == token and held.until_boot - self._clock.boot() > seconds",
            "held is not None and held.until_boot - self._clock.boot() > seconds",
        ),
    ),
    mutant(
        "lease_ends_while_writing",
        "an attempt is sent under a lease that ends before the request is written",
        swapped(
            _LEASES + "outlasts",
            "held.until_boot - self._clock.boot() > seconds",
            "held.until_boot - self._clock.boot() > 0",
        ),
    ),
    mutant(
        "ended_lease_renewed",
        "a lease that has run out by our own clock is renewed",
        swapped(_LEASES + "renew", "held.until_boot > requested_boot", "True"),
    ),
    mutant(
        "journal_renews_what_is_over",
        "the journal renews a lease that is over",
        swapped(
            _TRANSITIONS + "renewed_lease",
            "stored is None or stored.token != token or stored.until_at <= now",
            "stored is None or stored.token != token",
        ),
    ),
    mutant(
        "renewal_shortens",
        "a writer that has read the lease before its renewal moves its end back",
        swapped(_TRANSITIONS + "_lease_after", "max(stored.until_at, lease.until_at)", "lease.until_at"),
    ),
    mutant(
        "late_evidence_takes_the_lease",
        "evidence of an earlier attempt takes the lease from whoever sends a later one",
        swapped(
            _TRANSITIONS + "record_write",
            "stored_lease if is_being_sent else None",
            "None",
        ),
        swapped(_TRANSITIONS + "record_write", "lease is None and is_being_sent", "False"),
    ),
    mutant(
        "sends_on_after_a_rollback",
        "a sidecar goes on sending for an operation that others went on with while it was forgotten",
        swapped(_LEASES + "restore", "self.release(operation.id)", "None"),
    ),
    mutant(
        "restored_reply_promised",
        "a reply that the journal may have given away before it forgot it is given to another key",
        swapped(_LEASES + "restore", "operation.undelivered", "False"),
    ),
    # --- journal writes
    mutant(
        "conflict_not_seen_as_ours",
        "a write whose reply was lost is taken for somebody else's, and made a second time",
        swapped(_WRITER + "write_with_retry", "reply_lost and _was_written(latest, change)", "False"),
    ),
    mutant(
        "anybodys_write_is_ours",
        "somebody else's write is taken for the one whose reply was lost",
        swapped(_WRITER + "write_with_retry", "reply_lost and _was_written(latest, change)", "reply_lost"),
    ),
    mutant(
        "forgotten_attempt_ignored",
        "a journal that forgot an attempt of ours is gone on with",
        swapped(_WRITER + "write_with_retry", "latest.attempts < current.attempts", "False"),
    ),
    mutant(
        "never_store_stored",
        "what a policy says must not be stored is kept in the journal",
        swapped(
            _WRITER + "_claim_request",
            "context.request.without_body() if context.holds_unstorable_data else context.request",
            "context.request",
        ),
    ),
    mutant(
        "other_policy_other_payload",
        "an equal repeat counts as another payload after the policy ignores other fields",
        swapped(
            _WRITER + "claim",
            "claim.verdict is ClaimVerdict.MISMATCH and holder is not None "
            "and holder.ignore != context.identity.ignore",
            "False",
        ),
    ),
    mutant(
        "abandoned_while_sending",
        "an attempt that was cancelled while its bytes left is recorded as never sent",
        swapped(_WRITER + "record_abandoned", "context.progress.byte_started or current.doubt", "current.doubt"),
    ),
    mutant(
        "abandoned_for_another",
        "a call that fails gives up the attempt of whoever has taken it over",
        swapped(
            _WRITER + "record_abandoned",
            "current.lease is None or current.lease.token != context.token",
            "False",
        ),
    ),
    mutant(
        "claimed_before_it_was_put_back",
        "a call that was let in before the journal rolled back is sent after it",
        swapped(_WRITER + "claim", "self._rolled_back_since_admission(context)", "False"),
    ),
    mutant(
        "deliveries_known_after_a_rollback",
        "a journal that has just forgotten its last writes is believed who got which reply",
        argument(
            _WRITER + "_claim_request",
            "deliveries_known=self.rollback is None or not self.rollback.recently_rolled_back()",
            "deliveries_known=True",
        ),
    ),
    # --- recovery, the spool, rollbacks, ages
    mutant(
        "lease_ended_while_the_journal_was_away",
        "holders that could not renew lose their leases as soon as the journal is back",
        swapped(
            "engine.durability.recovery.Recovery._expire_leases",
            "min(available_s, rolled_back_s if rolled_back_s is not None else available_s) < self.lease_s",
            "False",
        ),
    ),
    mutant(
        "living_holders_ended",
        "a sidecar that starts ends the leases of those that run",
        argument(
            "engine.durability.recovery.Recovery.at_start",
            "all_of_earlier_holders=only_holder",
            "all_of_earlier_holders=True",
        ),
    ),
    mutant(
        "unreadable_evidence_deleted",
        "evidence that cannot be read is deleted",
        swapped(_SPOOL + "Spool._quarantine", "path.rename(quarantined)", "path.unlink()"),
    ),
    mutant(
        "spooled_quiet_lost",
        "the spool forgets until when a byte of the attempt may still leave",
        argument(_SPOOL + "_decode", 'no_bytes_after_at=facts.get("quiet_at")', "no_bytes_after_at=None"),
    ),
    mutant(
        "spooled_caller_told",
        "what the spool kept as told to nobody is replayed as told",
        argument(_SPOOL + "_decode", 'undelivered=facts.get("unheard", False)', "undelivered=False"),
    ),
    mutant(
        "spool_overwrites",
        "two pieces of evidence of one millisecond get one name",
        swapped(
            _SPOOL + "Spool._store",
            "max(self._latest_ms + 1, round(self._clock.now() * 1000))",
            "round(self._clock.now() * 1000)",
        ),
    ),
    mutant(
        "rollback_over_at_once",
        "a journal that rolled back is trusted again at once",
        swapped(_ROLLBACK + "recently_rolled_back", "since_s is not None and since_s < self._leases.lease_s", "False"),
    ),
    mutant(
        "lost_ends_forgotten",
        "no end is thought to be among what a journal has forgotten",
        swapped(
            _ROLLBACK + "end_may_be_lost",
            "self._journal_clock.now() - sent_at > since_s - self._leases.lease_s",
            "False",
        ),
    ),
    mutant(
        "put_back_without_its_request",
        "what a journal forgot is put back without its request, so that nobody can ask about it",
        swapped(
            _WRITER + "_restore",
            "self.rollback.messages_of(operation.id) if self.rollback is not None else (None, None)",
            "(None, None)",
        ),
    ),
    mutant(
        "age_unknown_is_none",
        "a key of unknown age counts as new",
        swapped(_AGES + "high_age_s", "return math.inf", "return 0.0"),
    ),
    mutant(
        "unknown_time_has_passed",
        "before the clocks were read everything counts as long ago",
        swapped(_AGES + "low_age_s", "return 0.0", "return math.inf"),
    ),
    # --- policies that are edited
    mutant(
        "unread_revision_is_today",
        "an operation whose policy cannot be read any more goes by today's",
        swapped("engine.policy_revisions.PinnedPolicies.policy_of", "return None", "return current"),
    ),
    mutant(
        "revision_in_force_before_it_is_kept",
        "a new policy is in force although the journal did not keep it",
        swapped(
            "engine.policy_reload.PolicyReload._apply",
            "book = await self.engine.credential_owners.listed(book)",
            "book = self.engine.policies.book = await self.engine.credential_owners.listed(book)",
        ),
    ),
    mutant(
        "pinned_address",
        "a re-send goes to the address of its old policy",
        argument(
            "engine.policy_revisions.PinnedPolicies.policy_of", "upstream=current.upstream", "upstream=policy.upstream"
        ),
    ),
    mutant(
        "bad_edit_clears_the_book",
        "an edit that cannot be read is not told",
        swapped("engine.policy_reload.PolicyReload.poll", "self._report_rejected(found.problems)", "None"),
    ),
    # --- claims in the journal
    mutant(
        "disputed_generation_forgotten",
        "a key starts anew although an earlier operation of it may have paid after all",
        swapped(
            _PLAN + "plan_claim",
            "existing is not None and (earlier := lookups.disputed(existing.key)) is not None",
            "(earlier := None) is not None",
        ),
    ),
    mutant(
        "fallback_answers_another_payload",
        "a key that fell back is answered whatever its payload is",
        swapped(_PLAN + "_plan_for_fallback", "fingerprint_of(request) != first.fingerprint", "False"),
    ),
    mutant(
        "both_keys_unnoticed",
        "two keys that were given one reply come back, and nobody is told",
        swapped(
            _PLAN + "_after_key_returned",
            'holder.changed(takeover="both", incident=IncidentKind.BOTH_KEYS_RETURNED.value)',
            'holder.changed(takeover="both")',
        ),
    ),
    mutant(
        "retired_payment_forgotten",
        "an order whose paid operation was retired is paid again",
        swapped(
            _PLAN + "_plan_under_guard",
            "guard.holder is None and (payer := _payer_before(fresh, lookups, behind)) is not None",
            "(payer := None) is not None",
        ),
    ),
    mutant(
        "another_owner_replayed",
        "a credential that the provider calls another owner's gets a claim's answer",
        swapped(_ANSWER + "with_credential", "relation is CredentialRelation.OTHER", "False"),
    ),
    mutant(
        "stranger_takes_the_reply",
        "an undelivered reply goes to a key whose credential may not be shown it",
        swapped(
            _ANSWER + "with_credential",
            "(known.separates and not is_same) or (takes_reply and not seen)",
            "known.separates and not is_same",
        ),
    ),
    mutant(
        "header_account_accepted",
        "whoever names an account to us alone is shown what was accepted for it",
        swapped(
            "core.credential_owners.may_see",
            "not accepted or source is AccountSource.HEADER",
            "not accepted",
        ),
    ),
    mutant(
        "enforced_though_older_sidecars_run",
        "limits refuse movements that an older sidecar may have moved unseen",
        swapped(
            _PLAN + "_limits_of",
            "claim.limits is not LimitMode.ENFORCE or payment.id >= request.limits_from",
            "True",
        ),
    ),
    mutant(
        "second_payment_unnoticed",
        "an order that was paid twice opens no incident",
        swapped(
            _TRANSITIONS + "record_write",
            "twin is not None and operation.incident in {None, IncidentKind.SUCCESS_AFTER_FAILURE}",
            "False",
        ),
    ),
    # --- retention
    mutant(
        "disputed_operation_retired",
        "an operation with an open incident is retired",
        swapped(
            _TOMBSTONES + "may_retire",
            "operation.incident is not None or operation.lease is not None",
            "operation.lease is not None",
        ),
    ),
    mutant(
        "tombstone_of_the_own_key_only",
        "a key that was given another one's answer is executed once that one is retired",
        swapped(_TOMBSTONES + "tombstones_of", "alias.kind is not AliasKind.REFUSED", "False"),
    ),
    mutant(
        "tombstone_without_the_fallback",
        "the tombstone of a key that fell back tells the outcome of the first route",
        argument(_TOMBSTONES + "tombstones_of", "outcome=last.outcome", "outcome=operation.outcome"),
    ),
    mutant(
        "unread_change_retired_in_redis",
        "Redis retires an operation whose end the outbox has not told yet",
        swapped(
            _REDIS + "_ExpiredRows.may_retire",
            "self._read_to is None or self.rows[operation.id].last_announced_seq <= self._read_to",
            "True",
        ),
    ),
    mutant(
        "redis_retires_without_remembering",
        "Redis retires a paid operation and forgets that its order is paid",
        swapped(
            _REDIS + "RedisRetention._write_tombstones",
            "not await self._keep_rows([operation for group in groups for operation in group])",
            "False",
        ),
    ),
    mutant(
        "redis_buries_the_first_alone",
        "of a group of operations that go together Redis buries the first only",
        swapped(
            _REDIS + "_ExpiredRows.arguments",
            "tombstones_of(operation, self.aliases[operation.id], group[0])",
            "tombstones_of(group[0], self.aliases[group[0].id], group[0])",
        ),
    ),
    mutant(
        "fallback_retired_before_its_first_in_redis",
        "Redis retires an operation that fell back while what stands for it stays",
        swapped(
            _REDIS + "RedisRetention._write_tombstones",
            "operation.fallback_to is not None and expired.by_id(operation.fallback_to) is not None",
            "False",
        ),
    ),
    mutant(
        "unread_change_retired_in_sqlite",
        "SQLite retires an operation whose end the outbox has not told yet",
        swapped(
            _SQLITE + "SqliteRetention._retire_operations",
            "read_to is None or bool(self._writer.rows.scalar(_LAST_SEQ, operation.id) <= read_to)",
            "True",
        ),
    ),
    mutant(
        "retention_by_a_jumped_clock",
        "a clock that jumped forward retires what is young",
        swapped(_SQLITE + "SqliteRetention.retire", "counted_at = min(now, now_max)", "counted_at = now"),
    ),
)
