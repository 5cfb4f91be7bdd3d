"""Retries and budgets: what is tried again, why, and what is held back."""

from __future__ import annotations

from deploy.grafana.chart import (
    OPERATION,
    PROVIDER,
    STARTED,
    Board,
    Chart,
    Query,
    Section,
    in_journals,
    oldest,
    per_second,
    risen,
    share,
)

_RETRIES = "payment_operation_retry_total"

_TRIED = Section(
    "Tried again",
    (
        Chart(
            "Retries, by the rule that allowed them",
            "Retries that were decided, at once or for later.",
            "Many `in_doubt_same_key_is_safe`: answers get lost. Many `no_effect_try_again`: the provider refuses or "
            "is not reached.",
            (Query(per_second(_RETRIES, "decision", OPERATION), "{{decision}}"),),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Retries, by what had failed",
            "The same, by how the attempt before was read.",
            "The class says where to look: `rate_limited` at the limit, `network_*` "
            "at the way there, 5xx at the provider.",
            (Query(per_second(_RETRIES, "provider, failure_class", OPERATION), "{{provider}} {{failure_class}}"),),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Amplification",
            "Attempts for each operation that was started, by provider and operation.",
            "The budgets should hold it under 2, and near 1 in an outage. If not: "
            "are `--limits` shared by all sidecars?",
            (
                Query(
                    share(
                        per_second("payment_attempts_total", "provider, operation", OPERATION),
                        per_second(STARTED, "provider, operation", OPERATION),
                    ),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=2,
            runbook="retry-budget-exhausted",
        ),
    ),
)

_HELD = Section(
    "Held back",
    (
        Chart(
            "Budget that is left",
            "What is left for retries, in units of cost, in the tightest of each scope. If sidecars share no limits, "
            "that of the sidecar that has least.",
            "At 0 retries are refused, which in an outage is its purpose. The runbook says what each scope means.",
            (
                Query(
                    f"min by (provider, scope) (payment_retry_budget_remaining{{{PROVIDER}}})", "{{provider}} {{scope}}"
                ),
            ),
            red=0.001,
            red_below=True,
            runbook="retry-budget-exhausted",
            width=12,
        ),
        Chart(
            "Retries without allowance",
            "Retries that were safe and found no budget left, within ten minutes.",
            "`provider`: nothing, it spares the provider. `account`: its credentials and limits. `failure_class`: a "
            "timeout too short?",
            (
                Query(
                    risen("payment_retry_budget_exhausted_total", "provider, scope", OPERATION, "10m"),
                    "{{provider}} {{scope}}",
                ),
            ),
            red=10,
            runbook="retry-budget-exhausted",
            width=12,
        ),
    ),
)

_WAITING = Section(
    "Waiting",
    (
        Chart(
            "Waiting to be looked at again",
            "Operations in doubt or pending that are on a schedule.",
            "It grows in an outage and drains after it. One that only grows: inquiries fail (*Unknown outcomes*).",
            (
                Query(
                    in_journals("payment_retry_queue_depth", "provider, operation", OPERATION),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=100,
            runbook="unknown-count",
            width=12,
        ),
        Chart(
            "The oldest of them",
            "Age of the one that waits longest.",
            "Compare it with the last step of the policy's schedule: older than that it is not being looked at. Is a "
            "sidecar running?",
            (
                Query(
                    oldest("payment_retry_queue_oldest_age_seconds", "provider, operation", OPERATION),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=86_400,
            runbook="unknown-age",
            unit="s",
            width=12,
        ),
    ),
)

RETRIES = Board(
    "retries",
    "Paywitness / Retries and budgets",
    "What is tried again, why, and what is held back?",
    (_TRIED, _HELD, _WAITING),
)
