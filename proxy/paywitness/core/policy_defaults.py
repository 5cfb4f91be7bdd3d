"""The defaults of a policy: the values that hold if a policy file does not set others. Each is written only here.

Grouped by the file's blocks. A name is its block and its key, with the unit last, and the comment names the key as the
file writes it. The values of `core` and the parsers in `policy/block_parsers/` take their defaults from here. A word
stands as the file writes it; the code that uses it makes the enum's member of it.

Not here: which values are allowed (the parser checks that); keys that are off, empty or unknown unless they are given;
the other options of webhook schemes (`webhook_signatures/`); and a number that no key sets, which stands beside its
code. The share of the key window is the one exception, because it bounds `resend_for` and is looked for with it.
"""

from __future__ import annotations

# --- the file itself, and its operations

LIMITED_BY = "credential"  # limited_by: whom a 429 concerns
UNMATCHED = "forward"  # unmatched: calls that no operation matches
BODY = "json"  # body: how requests are encoded
ACCOUNT = "main"  # account: const:main
AFTER_SUCCESS = "flag"  # after_success: a second payment of an intent that is paid
DURING_ACTION = "flag"  # during_action: the same while the customer must act. Customers change cards: another may start

# --- idempotency

IDEMPOTENCY_MAX_LENGTH = 255  # max_length
IDEMPOTENCY_MIN_LENGTH = 1  # min_length

# No key sets it. A re-send later than this part of the window could meet a provider that has just forgotten the key.
WINDOW_SHARE_FOR_RESEND = 0.8

# --- timeouts

TIMEOUT_CONNECT_S = 2.0  # connect: waiting for a free connection, the name and the connect, all together
TIMEOUT_TLS_S = 3.0  # tls
TIMEOUT_WRITE_S = 5.0  # write: until the kernel has taken the whole request
TIMEOUT_FIRST_BYTE_S = 5.0  # first_byte: from then on; informational responses do not extend it
TIMEOUT_BODY_IDLE_S = 10.0  # body_idle: between two reads of the response
TIMEOUT_DEADLINE_S = 20.0  # deadline: bounds the caller's wait, never an attempt

# --- retry

RETRY_ATTEMPTS = 3  # attempts: tries, not retries
RETRY_JITTER = "full"  # backoff: the jitter of a wait
RETRY_BASE_S = 0.1  # base
RETRY_CAP_S = 5.0  # cap
# base of rate_limited: a provider that says "too many" is not called again within a tenth of a second
RETRY_RATE_LIMITED_BASE_S = 1.0

# --- resolve

RESOLVE_SETTLE_S = 600.0  # settle
RESOLVE_RESEND_FOR_S = 120.0  # resend_for
RESOLVE_SCHEDULE_S = (2.0, 10.0, 30.0, 120.0, 600.0, 3600.0, 21600.0, 86400.0)  # schedule
# action_expires: a customer who has not acted by then is asked about once, and set aside
RESOLVE_ACTION_EXPIRES_S = 86400.0

# --- ask: inquiries

ASK_LAG_S = 5.0  # lag: how far the look-up may be behind
ASK_MISSES = 3  # misses: that many inquiries in a row find nothing before a payment counts as absent

# --- budget. A floor is how many retries always fit into a window, by the whole fleet: ten a second at a provider.
# Attempts that all fail cut it (core/budget.py).

BUDGET_WINDOW_S = 10.0  # window
BUDGET_PROVIDER_FLOOR = 100  # provider.floor
BUDGET_OPERATION_FLOOR = 50  # operation.floor
BUDGET_ACCOUNT_FLOOR = 30  # account.floor
BUDGET_FAILURE_CLASS_FLOOR = 50  # failure_class.floor
BUDGET_RATIO = 0.05  # ratio: of first attempts, while it is not known whether retries help; the least of ratios too
BUDGET_CEILING = 1.0  # ceiling: as far as a ratio rises
BUDGET_PER_INTENT = 3  # per_intent

# --- circuit. Shares are parts of all calls in the window, from 0 to 1.

CIRCUIT_WINDOW_S = 10.0  # window
CIRCUIT_MINIMUM = 20  # minimum: calls before anything is judged
CIRCUIT_SLOW_AFTER_S = 8.0  # slow_after
CIRCUIT_OPEN_AT_BAD = 0.85  # open_at.bad
CIRCUIT_OPEN_AT_UNKNOWN = 0.5  # open_at.unknown
CIRCUIT_OPEN_AT_SLOW = 0.9  # open_at.slow
CIRCUIT_DEGRADE_AT_BAD = 0.2  # degrade_at.bad
CIRCUIT_DEGRADE_AT_UNKNOWN = 0.05  # degrade_at.unknown
CIRCUIT_DEGRADE_AT_SLOW = 0.5  # degrade_at.slow
CIRCUIT_DEGRADE_AT_THROTTLED = 0.1  # degrade_at.throttled

# --- priority

# `as`, if no row applies: a service that says nothing has one kind of payments, and nothing of it is worth less
PRIORITY = "high"

# --- webhook

WEBHOOK_TOLERANCE_S = 300.0  # tolerance: how far a signed timestamp may be from our clock
WEBHOOK_REFUSE_WITH = 401  # refuse_with: the status for a delivery that is not genuine
# header and timestamp_header of hmac_sha256 and hmac_sha512: the parser compares them before a scheme is made
WEBHOOK_SIGNATURE_HEADER = "Webhook-Signature"
WEBHOOK_TIMESTAMP_HEADER = "Webhook-Timestamp"

# --- connections

CONNECTIONS = "auto"  # kept ones only if the contract permits a re-send

# --- payout

PAYOUT_APPROVAL_VALID_S = 86_400.0  # approval_valid: how long an approval may be used
PAYOUT_CHECK_TIMEOUT_S = 2.0  # check.timeout: how long whoever is asked may take

# --- fallback has no number: without `after` another provider is tried when no try is left at the first
