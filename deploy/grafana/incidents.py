"""Fallback and incidents: other routes taken, and evidence that contradicts itself."""

from __future__ import annotations

from deploy.grafana.chart import (
    INSTANCE,
    OPERATION,
    PROVIDER,
    STARTED,
    Board,
    Chart,
    Query,
    Section,
    per_second,
    risen,
    share,
)
from deploy.grafana.meanings import RED

_ROUTE = "from_provider, to_provider"
_FROM = f'from_provider=~"$provider", {INSTANCE}'
_FROM_OF_OUTCOMES = f'from=~"$provider", {INSTANCE}'
# What was started there is counted under `provider`.
_RATE = f"rate(payment_fallback_total{{{_FROM}}}[$__rate_interval])"
_AS_PROVIDER = f'label_replace({_RATE}, "provider", "$1", "from_provider", "(.*)")'

_FALLBACK = Section(
    "Fallback",
    (
        Chart(
            "Fallbacks, by route",
            "Operations that ended provably without effect and were started again at another provider.",
            "The first route is refusing or not reached: *Provider health*. Nobody is charged twice by it.",
            (Query(per_second("payment_fallback_total", _ROUTE, _FROM), "{{from_provider}} to {{to_provider}}"),),
            unit="ops",
        ),
        Chart(
            "Fallbacks, by reason",
            "Why the first route was left.",
            "`circuit_open`: it is down. `rate_limited`: its limit. `network_connect_failure`: the way there. "
            "`absent`: it lost what it was sent. `validation_error`, `authentication_error`: it refused.",
            (
                Query(
                    per_second("payment_fallback_total", "from_provider, reason", _FROM), "{{from_provider}} {{reason}}"
                ),
            ),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Share that fell back",
            "Of the operations that were started at the first route.",
            "Can the second route bear it, and does it cost more?",
            (
                Query(
                    share(
                        f"sum by (provider) ({_AS_PROVIDER})",
                        per_second(STARTED, "provider", OPERATION),
                    ),
                    "{{provider}}",
                ),
            ),
            red=0.05,
            runbook="fallback-spike",
            unit="percentunit",
        ),
        Chart(
            "Did the fallback help?",
            "What became of the money of the operations that were started again at another provider, when they ended.",
            "Mostly `not_sent` or `failed`: the other route is ill as well. `declined`: the cards, not the route.",
            (Query(per_second("payment_fallback_outcomes_total", "outcome", _FROM_OF_OUTCOMES), "{{outcome}}"),),
            unit="ops",
            stacked=True,
            width=12,
        ),
        Chart(
            "Outcomes of fallbacks, by route and reason",
            "The same, by the two routes and by why the first one was left.",
            "A route or reason that hardly ever succeeds costs time and fees: take it out of the policy's `when`.",
            (
                Query(
                    per_second("payment_fallback_outcomes_total", "from, to, reason, outcome", _FROM_OF_OUTCOMES),
                    "{{from}} to {{to}} {{reason}} {{outcome}}",
                ),
            ),
            unit="ops",
            width=12,
        ),
    ),
)

_INCIDENTS = Section(
    "Incidents",
    (
        Chart(
            "Incidents, by kind",
            "Evidence that contradicts what was final; and `journal_rollback`, the journal's store went back.",
            "Every one: `paywitness ops list --incidents`. It proposes the void or refund; then `close-incident`.",
            (Query(risen("payment_incidents_total", "provider, kind", PROVIDER), "{{provider}} {{kind}}"),),
            red=0.5,
            colour=RED,
            runbook="incident",
            width=12,
        ),
        Chart(
            "Late or duplicate success",
            "A success after a failure was told, or a second success of one purchase.",
            "Somebody may have paid twice, or for what was cancelled. Read the runbook now.",
            (
                Query(
                    risen("payment_duplicate_late_success_total", "provider, operation", OPERATION),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=0.5,
            colour=RED,
            runbook="late-or-duplicate-success",
            width=12,
        ),
    ),
)

_PAYMENTS = Section(
    "Captures and refunds",
    (
        Chart(
            "Limit checks",
            "Captures and refunds that do not fit what is left of their payment, or cannot be compared with it.",
            "`exceeds`: read the runbook. `unknown`: the policy does not say what a success captures, or shows no "
            "totals.",
            (
                Query(
                    risen("payment_limit_checks_total", "provider, operation, result", OPERATION),
                    "{{provider}} {{operation}} {{result}}",
                ),
            ),
            red=0.5,
            runbook="limit-exceeded",
            width=12,
        ),
        Chart(
            "Authorizations that expire within two days",
            "Neither captured whole nor voided.",
            "Capture them, void them, or authorize anew.",
            (
                Query(
                    f"sum(max by (journal) (payment_authorizations_expiring{{{INSTANCE}}}))",
                    "expiring",
                ),
            ),
            red=1,
            runbook="authorizations-expiring",
            width=12,
        ),
    ),
)

_TELLING = Section(
    "Telling others",
    (
        Chart(
            "Events that wait for the sink",
            "Ends, doubts, resolutions and incidents that your own systems have not taken yet.",
            "The sink does not take them. Nothing is lost: they wait in the journal. Look at the sink.",
            (Query(f"sum(paywitness_outbox_pending{{{INSTANCE}}})", "waiting"),),
            red=1000,
            runbook="outbox-lagging",
            width=12,
        ),
        Chart(
            "Deliveries",
            "Events that the sink took, and deliveries that failed.",
            "`failed` that keeps rising: the sink's address, its certificate or its answers; the log says which.",
            (Query(per_second("paywitness_outbox_deliveries_total", "result", INSTANCE), "{{result}}"),),
            unit="ops",
            width=12,
        ),
    ),
)

INCIDENTS = Board(
    "incidents",
    "Paywitness / Fallback and incidents",
    "Which routes were left, and where does evidence contradict itself?",
    (_FALLBACK, _INCIDENTS, _PAYMENTS, _TELLING),
)
