"""The engine: the only room that both decides and acts.

engine             the entry: recognise a call, start it, keep the caller's deadline
calls/             the life of one call, from the claim to a reply; `calls.pipeline` is the page to read first
resolution/        unknown outcomes: inquiries, late and external evidence, the background resolver
webhooks/          webhook events: receive, verify, match, apply, relay
durability/        leases, journal writes, recovery after a crash or a rollback, the spool, retention
account_access     finds the account that a call acts for, before it is claimed
credential_owners  asks providers for the owners of credentials, and stores their answers
credential_commands  commands of an operator on credentials: map, unmap
earlier_rules      finds operations that were made under earlier rules for accounts
operator_commands  commands of an operator: resolve, park, inquire, cancel
payout_approvals   payouts that wait for a person's approval
intents            whether a purchase may be paid
visibility         which operations and intents a credential may see
payment_lookup     payments by id, by name, by their intent, with one timeline
payment_commands   commands of an operator on a payment: adopt, state a number of its balance
outbox             publishes announcements to the event sink
policy_revisions   the policy that each operation was started under
policy_start       the policy book at start, or the one that was in force last
policy_reload      the policy book in force, and its replacement after an edit
limits_sync        exchanges counters with the limit stores; expedites inquiries when a provider has recovered
failpoints         named points at which crash tests stop or kill the process; a no-op in production
"""
