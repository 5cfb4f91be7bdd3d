"""Overview: is money safe now?"""

from __future__ import annotations

from deploy.grafana.chart import (
    CARRIED,
    OPERATION,
    PROVIDER,
    Board,
    Chart,
    Kind,
    Query,
    Section,
    fleet,
    per_second,
    risen,
    share,
    total,
)

_ENDED = per_second("payment_operations_total", "provider", OPERATION)
_CALLS = per_second("payment_call_duration_seconds_count", "provider", OPERATION)
_CARRIED = per_second("payment_call_duration_seconds_count", "provider", CARRIED)
_ATTEMPTS = per_second("payment_attempts_total", "provider", OPERATION)

_NOW = Section(
    "Is money safe now?",
    (
        Chart(
            "In doubt now",
            "Operations whose outcome nobody knows yet, those in review among them.",
            "Look at *Unknown outcomes*. If it falls by itself, wait; if not, `paywitness ops list --doubt`.",
            (Query(total(fleet("payment_operations_in_doubt", "provider, operation", OPERATION)), "operations"),),
            red=20,
            yellow=1,
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Money in doubt",
            "What may have moved and may not, by currency, in major units (12.5 is 12.50 EUR).",
            "This is the number for finance. It is what may have moved, not what was lost. Do not pay any of it again.",
            (
                Query(
                    total(fleet("payment_money_in_doubt", "provider, currency", PROVIDER), "currency"),
                    "{{currency}}",
                ),
            ),
            red=10_000,
            yellow=0.01,
            unit="locale",
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Oldest doubt",
            "Age of the oldest operation in doubt.",
            "Runbook unknown-age: `paywitness ops list --doubt`, then `paywitness ops show` the oldest.",
            (Query(f"max(payment_operation_unknown_age_seconds{{{PROVIDER}}})", "oldest"),),
            red=1800,
            yellow=300,
            unit="s",
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Waiting for a person",
            "Operations in review: only a person or new evidence can end them.",
            "Somebody's task, today: `paywitness ops list --review`.",
            (Query(total(fleet("payment_review_open", "provider, reason", PROVIDER)), "in review"),),
            red=1,
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Incidents in this range",
            "Evidence that contradicted what was final.",
            "First of all: `paywitness ops list --incidents`. It says what to do about each.",
            (Query(f"sum(increase(payment_incidents_total{{{PROVIDER}}}[$__range]))", "incidents"),),
            red=0.5,
            decimals=0,
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Alerts firing",
            "Alerts of deploy/prometheus that fire now, by severity. `none` also where Prometheus has not loaded them.",
            "Open the alert: it names its runbook in docs/runbooks.",
            (Query('sum by (severity) (ALERTS{alertname=~"Paywitness.*", alertstate="firing"})', "{{severity}}"),),
            red=1,
            nothing="none",
            kind=Kind.NUMBER,
            width=4,
        ),
    ),
)

_COURSE = Section(
    "How it goes",
    (
        Chart(
            "Success rate",
            "Of the operations that ended, the share that was paid. Declines count against it: compare with yesterday.",
            "See *What became of operations*: declines are the issuer's, `failed` "
            "the service's, `not_sent` the network's.",
            (
                Query(
                    share(
                        per_second("payment_operations_total", "provider", f'outcome="succeeded", {OPERATION}'), _ENDED
                    ),
                    "{{provider}}",
                ),
            ),
            red=0.8,
            red_below=True,
            unit="percentunit",
        ),
        Chart(
            "What became of operations",
            "Operations that ended, by outcome.",
            "`not_sent`: the provider is not reached (*Provider health*). `absent`: it was sent, and not executed. "
            "`failed`: what we send is not accepted.",
            (Query(per_second("payment_operations_total", "outcome", OPERATION), "{{outcome}}"),),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Amplification",
            "Attempts at the provider for each call. 1 is no retries, below 1 are calls that were replayed or refused; "
            "the budgets hold it down in an outage.",
            "Retries do more harm than good: *Retries and budgets* says which class. "
            "`paywitness circuits` says what is held back.",
            (Query(share(_ATTEMPTS, _CARRIED), "{{provider}}"),),
            red=1.5,
        ),
        Chart(
            "Doubt: opened and closed",
            "Operations that came into doubt, and doubts that evidence ended.",
            "Opened above closed for long: answers are lost faster than they are found. *Unknown outcomes*.",
            (
                Query(risen("payment_operation_unknown_total", "provider", OPERATION), "{{provider}} opened"),
                Query(risen("payment_resolutions_total", "provider", PROVIDER), "{{provider}} closed"),
            ),
        ),
        Chart(
            "In doubt, by operation",
            "The same as above, over time.",
            "One that only grows is not being resolved: is the provider up, does its policy know how to ask?",
            (
                Query(
                    fleet("payment_operations_in_doubt", "provider, operation", OPERATION), "{{provider}} {{operation}}"
                ),
            ),
            red=20,
        ),
        Chart(
            "Calls",
            "Calls by provider, whatever became of them.",
            "A fall to nothing with no change of ours: the services do not reach us, or have nothing to sell.",
            (Query(_CALLS, "{{provider}}"),),
            unit="reqps",
        ),
    ),
)

_KINDS = Section(
    "By kind, over all providers",
    (
        Chart(
            "Ended, by kind",
            "Operations that ended: sales, captures, refunds, payouts, whatever the policies call them.",
            "A kind that stops while the others go on: look at the service that sends it, and at the provider. "
            "Choose the kind above.",
            (Query(per_second("payment_operations_total", "kind, outcome", OPERATION), "{{kind}} {{outcome}}"),),
            unit="ops",
            stacked=True,
            width=12,
        ),
        Chart(
            "In doubt, by kind",
            "Operations whose outcome nobody knows yet, by what they do to money.",
            "A payout in doubt may have left the account, and a refund may have been paid: do not send either again. "
            "`paywitness ops list --doubt`.",
            (
                Query(
                    total(fleet("payment_operations_in_doubt", "provider, operation, kind", OPERATION), "kind"),
                    "{{kind}}",
                ),
            ),
            red=20,
            width=12,
        ),
    ),
)

OVERVIEW = Board("overview", "Paywitness / Overview", "Is money safe now?", (_NOW, _COURSE, _KINDS))
