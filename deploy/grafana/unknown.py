"""Unknown outcomes: how doubt comes, ages, and by what it ends."""

from __future__ import annotations

from deploy.grafana.chart import (
    OPERATION,
    PROVIDER,
    Board,
    Chart,
    Query,
    Section,
    in_journals,
    oldest,
    per_second,
    quantile,
    risen,
)
from deploy.grafana.meanings import AMBER

_AGING = Section(
    "Aging",
    (
        Chart(
            "Oldest doubt",
            "Age of the oldest operation in doubt, by provider.",
            "It should fall back to 0 by itself; one that only grows needs a person.",
            (Query(oldest("payment_operation_unknown_age_seconds", "provider", PROVIDER), "{{provider}}"),),
            red=1800,
            colour=AMBER,
            runbook="unknown-age",
            unit="s",
        ),
        Chart(
            "In doubt",
            "How many, by provider and operation.",
            "`paywitness ops list --doubt --provider NAME` names them.",
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
            "Money in doubt",
            "The money behind them, in major units: lines of different currencies cannot be compared. Unknown amounts "
            "are not in it.",
            "Tell finance the number, and that it may have moved. None of it may be paid again. *Overview* has it by "
            "currency, red from where on it is much.",
            (
                Query(
                    in_journals("payment_money_in_doubt", "provider, currency", PROVIDER), "{{provider}} {{currency}}"
                ),
            ),
            colour=AMBER,
            runbook="money-in-doubt",
        ),
    ),
)

_ENDING = Section(
    "How it ends",
    (
        Chart(
            "Came into doubt",
            "Operations that came into doubt, within ten minutes.",
            "The provider or the network loses answers. Nothing needs to be done "
            "for one; a rising rate deserves a call.",
            (
                Query(
                    risen("payment_operation_unknown_total", "provider, operation", OPERATION, "10m"),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=10,
            colour=AMBER,
            runbook="doubt-burn",
        ),
        Chart(
            "Resolved, by evidence",
            "Doubts that ended, by the kind of evidence that ended them. Time is never among them.",
            "A kind that falls to zero while doubts open is broken. A growing share of `operator`: people do the "
            "resolver's work.",
            (Query(risen("payment_resolutions_total", "evidence", PROVIDER), "{{evidence}}"),),
            stacked=True,
        ),
        Chart(
            "Resolved, by outcome",
            "What it turned out to be.",
            "Mostly `failed`: the requests never arrived; look at the way to the provider.",
            (Query(risen("payment_resolutions_total", "provider, outcome", PROVIDER), "{{provider}} {{outcome}}"),),
            stacked=True,
        ),
        Chart(
            "How long doubt lasts",
            "From the first send to the end of the doubt: median, and 95 of 100.",
            "Evidence comes later than it did: re-sends are refused, webhooks or inquiries fail.",
            (
                Query(quantile(0.5, "payment_doubt_duration_seconds", "provider", PROVIDER), "{{provider}} median"),
                Query(quantile(0.95, "payment_doubt_duration_seconds", "provider", PROVIDER), "{{provider}} 95%"),
            ),
            red=1800,
            runbook="unknown-age",
            unit="s",
        ),
        Chart(
            "Inquiries",
            "What came of asking the provider, and why it was asked.",
            "Mostly `failed`: our credentials are refused, or it is down; the log line "
            "`inquiry_finished` has the status code.",
            (
                Query(
                    per_second("payment_status_inquiry_total", "provider, outcome", PROVIDER),
                    "{{provider}} {{outcome}}",
                ),
            ),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Why it is asked",
            "Inquiries by their reason: a lost response, a customer's time that is over, a webhook's hint, a person.",
            "One reason that grows is where the inquiries come from. `pending`: webhooks would spare most of them.",
            (
                Query(
                    per_second("payment_status_inquiry_total", "provider, reason", PROVIDER), "{{provider}} {{reason}}"
                ),
            ),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Webhooks",
            "Deliveries and what each came to.",
            "`bad_signature`: the secret changed. Nothing `accepted` while "
            "payments flow: the provider cannot reach us.",
            (Query(per_second("payment_webhooks_total", "provider, result", PROVIDER), "{{provider}} {{result}}"),),
            runbook="retired-paid",
            unit="ops",
        ),
        Chart(
            "How late webhooks come",
            "From what an event tells of, or our first send, to its arrival.",
            "Doubts and pending payments wait for them. Inquiries do the work meanwhile; deliveries that we refused "
            "come later.",
            (
                Query(quantile(0.5, "payment_webhook_delay_seconds", "provider", PROVIDER), "{{provider}} median"),
                Query(quantile(0.95, "payment_webhook_delay_seconds", "provider", PROVIDER), "{{provider}} 95%"),
            ),
            unit="s",
        ),
        Chart(
            "Customers who did not act in time",
            "Payments to be confirmed (3DS) whose time is over, and that no inquiry found paid.",
            "A share that rises: customers give up, or the redirect does not reach them. `paywitness ops list "
            "--expired`.",
            (
                Query(
                    per_second("payment_actions_expired_total", "provider, operation", PROVIDER),
                    "{{provider}} {{operation}}",
                ),
            ),
            unit="ops",
        ),
    ),
)

_PEOPLE = Section(
    "For a person",
    (
        Chart(
            "In review",
            "Operations that only a person or new evidence can end, by the rule that sent them there.",
            "`paywitness ops list --review`; look each up at the provider, then "
            "`paywitness ops resolve` with what you saw.",
            (Query(in_journals("payment_review_open", "provider, reason", PROVIDER), "{{provider}} {{reason}}"),),
            red=1,
            runbook="review-growing",
            width=12,
        ),
        Chart(
            "Schedules that ran out",
            "Doubts that outlasted every look of their schedule.",
            "Evidence does not come by itself. Do inquiries fail, do webhooks arrive?",
            (
                Query(
                    risen("payment_schedule_exhausted_total", "provider, operation", OPERATION),
                    "{{provider}} {{operation}}",
                ),
            ),
            red=0.5,
            runbook="schedule-exhausted",
            width=12,
        ),
    ),
)

UNKNOWN = Board(
    "unknown",
    "Paywitness / Unknown outcomes",
    "How does doubt come, age, and end?",
    (_AGING, _ENDING, _PEOPLE),
)
