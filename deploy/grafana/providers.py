"""Provider health: which provider is ill, and in what way."""

from __future__ import annotations

from deploy.grafana.chart import (
    INSTANCE,
    OPERATION,
    PROVIDER,
    STARTED,
    Board,
    Chart,
    Kind,
    Query,
    Section,
    per_second,
    quantile,
    share,
)
from deploy.grafana.meanings import AMBER, BLUE, GREEN, RED

_ATTEMPTS = per_second("payment_attempts_total", "provider", OPERATION)
_UPSTREAM = "payment_upstream_duration_seconds"
# The worst that any sidecar reports: one with a broken network opens for itself only, and is worth seeing.
_STATES = (
    ("closed", GREEN),
    ("degraded", "yellow"),
    ("ramp", BLUE),
    ("half open", AMBER),
    ("open", RED),
)
_CIRCUIT = " or ".join(
    f'payment_circuit_state{{state="{state}", {PROVIDER}}} * {number}'
    for number, state in enumerate(("closed", "degraded", "ramp", "half_open", "open"))
)

_CIRCUITS = Section(
    "Circuits",
    (
        Chart(
            "Circuits",
            "How each circuit stands: `write` is payments, `inquiry` our own questions about them.",
            "Nothing has to be done: it probes and closes by itself. `paywitness "
            "circuits` says since when, and whether somebody forced it.",
            (Query(f"max by (provider, group) ({_CIRCUIT})", "{{provider}} {{group}}"),),
            red=4,
            runbook="circuit-open",
            kind=Kind.STATES,
            width=24,
            states=_STATES,
        ),
    ),
)

_ERRORS = Section(
    "What it answers",
    (
        Chart(
            "Error mix",
            "Attempts that did not succeed, by how they were read.",
            "`network_connect_failure`: not reached, nothing sent. Timeouts and `unknown_outcome`: doubt. "
            "`authentication_error`: credentials. `validation_error`: the service.",
            (
                Query(
                    per_second(
                        "payment_attempts_total", "failure_class", f'failure_class!~"succeeded|pending", {OPERATION}'
                    ),
                    "{{failure_class}}",
                ),
            ),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Attempts that failed",
            "The share of attempts that the provider or the network failed. Declines are not among them.",
            "The provider is ill: its status page first. From 20% on its circuit degrades, from 85% it opens.",
            (
                Query(
                    share(
                        per_second(
                            "payment_attempts_total",
                            "provider",
                            'failure_class=~"network_.*|provider_timeout|temporary_provider_error|unknown_outcome", '
                            + OPERATION,
                        ),
                        _ATTEMPTS,
                    ),
                    "{{provider}}",
                ),
            ),
            red=0.2,
            unit="percentunit",
        ),
        Chart(
            "Refused by rate limit (429)",
            "The share of attempts that the provider refused as too many.",
            "Fewer calls, or a higher limit. Low priority waits first.",
            (
                Query(
                    share(
                        per_second("payment_attempts_total", "provider", f'failure_class="rate_limited", {OPERATION}'),
                        _ATTEMPTS,
                    ),
                    "{{provider}}",
                ),
            ),
            red=0.1,
            runbook="rate-limit-spike",
            unit="percentunit",
        ),
        Chart(
            "Asked to wait (Retry-After)",
            "How many credentials or accounts the provider asked to wait; of `provider`, 1: all its calls.",
            "Only their calls are refused. Find who sends more than its limit allows.",
            (
                Query(
                    f"max by (provider, group, limited_by) (payment_holds{{{PROVIDER}}})",
                    "{{provider}} {{group}} {{limited_by}}",
                ),
            ),
            runbook="rate-limit-spike",
            width=6,
        ),
        Chart(
            "Came into doubt",
            "Of the operations that were started, the share that came into doubt.",
            "Answers get lost. Call the provider: nothing that we send again can hurt, but customers wait.",
            (
                Query(
                    share(
                        per_second("payment_operation_unknown_total", "provider", OPERATION),
                        per_second(STARTED, "provider", OPERATION),
                    ),
                    "{{provider}}",
                ),
            ),
            red=0.01,
            colour=AMBER,
            runbook="doubt-burn",
            unit="percentunit",
            width=6,
        ),
        Chart(
            "Calls held back",
            "Calls turned away before anything was sent, by reason.",
            "`circuit_*`, `throttled`: the provider is ill. `provider_*`, `shed`: it is slower than it is asked. "
            "`overloaded`: we are. The rest is the service's.",
            (Query(per_second("payment_refusals_total", "provider, reason", PROVIDER), "{{provider}} {{reason}}"),),
            unit="ops",
            width=6,
        ),
        Chart(
            "How full it is",
            "Calls in flight or waiting, of those that may be in flight at once, over all sidecars.",
            "Calls wait for a place, and are soon refused: the provider is too slow for what it is asked.",
            (
                Query(
                    f"(sum by (provider) (paywitness_admission_in_flight{{{PROVIDER}}}) + "
                    f"sum by (provider) (paywitness_admission_waiting{{{PROVIDER}}})) / "
                    f"sum by (provider) (paywitness_admission_limit{{{PROVIDER}}})",
                    "{{provider}}",
                ),
            ),
            red=1,
            unit="percentunit",
            width=6,
        ),
        Chart(
            "Who waits for a place",
            "Calls that wait for admission, by their priority, over all sidecars.",
            "`high` waits: there are more important payments than the provider takes. Only `low`: they make room, as "
            "they should.",
            (
                Query(
                    f"sum by (provider, priority) (paywitness_admission_waiting{{{PROVIDER}}})",
                    "{{provider}} {{priority}}",
                ),
            ),
            width=24,
        ),
    ),
)

_SPEED = Section(
    "How long it takes",
    (
        Chart(
            "One attempt: median",
            "From looking up the name to the end of the answer.",
            "The provider or the way to it is slow. Write timeouts are never shortened for it: that would make doubt.",
            (Query(quantile(0.5, _UPSTREAM, "provider", OPERATION), "{{provider}}"),),
            red=2,
            unit="s",
        ),
        Chart(
            "One attempt: 95 of 100",
            "As before, the slow ones.",
            "Near `first_byte` of the policy attempts time out and become doubt. Call the provider.",
            (Query(quantile(0.95, _UPSTREAM, "provider", OPERATION), "{{provider}}"),),
            red=4,
            unit="s",
        ),
        Chart(
            "One attempt: 99 of 100",
            "As before, the slowest.",
            "A tail that grows alone is often one account or one operation: choose it above.",
            (Query(quantile(0.99, _UPSTREAM, "provider, operation", OPERATION), "{{provider}} {{operation}}"),),
            red=5,
            unit="s",
        ),
    ),
)

_BESIDE = Section(
    "Beside the operations",
    (
        Chart(
            "Calls that match no operation",
            "Passed on as they came, without a journal and without a retry.",
            "Reads are expected. A new kind of payment that nobody wrote a policy for shows up here first.",
            (Query(per_second("payment_unmatched_calls_total", "provider", PROVIDER), "{{provider}}"),),
            unit="reqps",
        ),
        Chart(
            "What observe mode would have done",
            "Calls of providers in `mode: observe`, by the action that would have been taken.",
            "Before such a policy is put in force nothing here should surprise you; "
            "the log line `call_observed` has each.",
            (
                Query(
                    per_second("payment_observed_decisions_total", "provider, action", OPERATION),
                    "{{provider}} {{action}}",
                ),
            ),
            unit="ops",
        ),
        Chart(
            "Rows that are only watched",
            "Answers that a row with `observe: true` would have read.",
            "A row that counts more than you expect matches too much; one that counts nothing matches nothing.",
            (Query(f"sum by (row) (rate(payment_observed_rows_total{{{OPERATION}}}[$__rate_interval]))", "{{row}}"),),
            unit="ops",
        ),
        Chart(
            "Limits are the fleet's",
            "1 where circuits and budgets are shared; 0 where a sidecar has only its own.",
            "In a fleet: the limits' Redis does not answer. Payments go on meanwhile, "
            "each sidecar within limits of its own.",
            (Query(f"min by (instance) (paywitness_limits_fleet{{{INSTANCE}}})", "{{instance}}"),),
            red=1,
            red_below=True,
            width=24,
        ),
    ),
)

PROVIDERS = Board(
    "providers",
    "Paywitness / Provider health",
    "Which provider is ill, and in what way?",
    (_CIRCUITS, _ERRORS, _SPEED, _BESIDE),
)
