"""Overview: is money safe now?"""

from __future__ import annotations

from deploy.grafana.chart import (
    OPERATION,
    PROVIDER,
    STARTED,
    Board,
    Chart,
    Kind,
    Query,
    Section,
    in_journals,
    oldest,
    per_second,
    risen,
    share,
)
from deploy.grafana.meanings import AMBER
from deploy.grafana.much_money import MUCH_MONEY

_ENDED = per_second("payment_operations_total", "provider", OPERATION)
_CALLS = per_second("payment_call_duration_seconds_count", "provider", OPERATION)
_STARTED = per_second(STARTED, "provider", OPERATION)
_ATTEMPTS = per_second("payment_attempts_total", "provider", OPERATION)
_MONEY = in_journals("payment_money_in_doubt", "provider, currency", PROVIDER, "currency")
# Nobody knows a currency before the first doubt. A zero then, and nothing at all if no sidecar is seen.
_NO_MONEY = f"0 * {in_journals('payment_operations_in_doubt', 'provider, operation', OPERATION, '')}"

_NOW = Section(
    "Is money safe now?",
    (
        Chart(
            "In doubt now",
            "Operations whose outcome nobody knows yet, those in review among them.",
            "Look at *Unknown outcomes*. If it falls by itself, wait; if not, `paywitness ops list --doubt`.",
            (Query(in_journals("payment_operations_in_doubt", "provider, operation", OPERATION, ""), "operations"),),
            red=20,
            yellow=1,
            runbook="unknown-count",
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Money in doubt",
            "What may have moved and may not, by currency, in major units (12.5 is 12.50 EUR). From where on it is red "
            "stands in deploy/prometheus/rules.yaml for each currency; one that is not listed there is never red.",
            "This is the number for finance. It is what may have moved, not what was lost. Do not pay any of it again.",
            (
                Query(_MONEY, "{{currency}}"),
                Query(f"{_NO_MONEY} unless on () {_MONEY}", "none"),
            ),
            yellow=0.01,
            red_of=MUCH_MONEY,
            runbook="money-in-doubt",
            unit="locale",
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Oldest doubt",
            "Age of the oldest operation in doubt.",
            "`paywitness ops list --doubt`, then `paywitness ops show` the oldest.",
            (Query(oldest("payment_operation_unknown_age_seconds", "", PROVIDER), "oldest"),),
            runbook="unknown-age",
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
            (Query(in_journals("payment_review_open", "provider, reason", PROVIDER, ""), "in review"),),
            runbook="review-waiting",
            red=1,
            kind=Kind.NUMBER,
            width=4,
        ),
        Chart(
            "Incidents in this range",
            "Evidence that contradicted what was final.",
            "First of all: `paywitness ops list --incidents`. It says what to do about each.",
            (Query(f"sum(increase(payment_incidents_total{{{PROVIDER}}}[$__range]))", "incidents"),),
            runbook="incident",
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
            runbook="success-burn",
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
            "Attempts for each operation that was started at the provider. 1 is no retries; the budgets hold it down "
            "in an outage.",
            "Retries do more harm than good: *Retries and budgets* says which class. "
            "`paywitness circuits` says what is held back.",
            (Query(share(_ATTEMPTS, _STARTED), "{{provider}}"),),
            red=1.5,
            runbook="retry-budget-exhausted",
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
                    in_journals("payment_operations_in_doubt", "provider, operation", OPERATION),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=20,
            colour=AMBER,
            runbook="unknown-count",
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
                    in_journals("payment_operations_in_doubt", "provider, operation, kind", OPERATION, "kind"),
                    "{{kind}}",
                ),
            ),
            red=20,
            colour=AMBER,
            runbook="unknown-count",
            width=12,
        ),
    ),
)

OVERVIEW = Board("overview", "Paywitness / Overview", "Is money safe now?", (_NOW, _COURSE, _KINDS))
