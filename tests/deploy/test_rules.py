"""The alerts, by promtool: each is silent while all is well and fires when it should, and each has its runbook."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from paywitness.cli.main import main
from tests.deploy.rules import ALERTS, RULES, TOP, promtool, rules_in

RUNBOOKS = TOP / "docs" / "runbooks"
METRICS = (TOP / "docs" / "metrics.md").read_text("utf-8")
LIMIT = 'payment_limit_checks_total{{provider="acme",operation="refund",kind="refund",result="{}"}}'
ACME = {"provider": "acme"}
SALE = {"provider": "acme", "operation": "sale"}
SIDECAR = {"instance": "a:8701"}


@dataclass(frozen=True)
class Case:
    """Series, a value a minute from 0 on; when the alert is still silent, when it fires, and with which labels."""

    series: dict[str, str]
    silent_at: str
    fires_at: str
    labels: dict[str, str]
    severity: str = "warning"


UNKNOWN = 'payment_operation_unknown_total{provider="acme",operation="sale",instance="a:8701"}'
STARTED = 'payment_operations_started_total{provider="acme",operation="sale",instance="a:8701"}'
FAILED = 'payment_operations_total{provider="acme",operation="sale",outcome="not_sent",instance="a:8701"}'
PAID = 'payment_operations_total{provider="acme",operation="sale",outcome="succeeded",instance="a:8701"}'
SHUT = 'payment_circuit_state{{provider="acme",group="write",state="{}",instance="a:8701"}}'
BUCKET = 'paywitness_journal_duration_seconds_bucket{{call="claim",instance="a:8701",le="{}"}}'


def calm(series: str) -> str:
    """The same of a provider that nobody should be woken for."""
    return series.replace('"acme"', '"calm"')


CASES: dict[str, Case] = {
    "PaywitnessUnknownAge": Case(
        {
            'payment_operation_unknown_age_seconds{provider="acme",instance="a:8701"}': "0+60x60",
            'payment_operation_unknown_age_seconds{provider="acme",instance="b:8701"}': "0+60x60",
        },
        "31m",
        "33m",
        ACME,
        "critical",
    ),
    "PaywitnessUnknownCount": Case(
        {  # two sidecars of one journal that report the same six, and one with a journal of its own: twelve, then 21
            'payment_operations_in_doubt{journal="1f",provider="acme",operation="sale",instance="a"}': "6x20 15x20",
            'payment_operations_in_doubt{journal="1f",provider="acme",operation="sale",instance="b"}': "6x20 15x20",
            'payment_operations_in_doubt{journal="2e",provider="acme",operation="sale",instance="c"}': "6x40",
        },
        "30m",
        "32m",
        ACME,
    ),
    "PaywitnessMoneyInDoubt": Case(
        {  # much more in number, and much less in value
            'payment_money_in_doubt{journal="1f",provider="acme",currency="EUR",instance="a:8701"}': "6000x40",
            'payment_money_in_doubt{journal="2e",provider="acme",currency="EUR",instance="b:8701"}': "0x10 6000x30",
            'payment_money_in_doubt{journal="1f",provider="calm",currency="JPY",instance="a:8701"}': "900000x40",
        },
        "20m",
        "23m",
        {"currency": "EUR"},
    ),
    "PaywitnessScheduleExhausted": Case(
        {'payment_schedule_exhausted_total{provider="acme",operation="sale",instance="a:8701"}': "0x10 1x20"},
        "10m",
        "12m",
        SALE,
    ),
    "PaywitnessLateOrDuplicateSuccess": Case(
        {'payment_duplicate_late_success_total{provider="acme",operation="sale",instance="a:8701"}': "0x10 1x20"},
        "10m",
        "12m",
        SALE,
        "critical",
    ),
    "PaywitnessRetiredPaid": Case(
        {
            'payment_webhooks_total{provider="acme",result="retired",instance="a:8701"}': "0x10 1x20",
            'payment_webhooks_total{provider="acme",result="unmatched",instance="a:8701"}': "0x5 1x25",
        },
        "10m",
        "12m",
        ACME,
        "critical",
    ),
    "PaywitnessIncident": Case(
        {
            'payment_incidents_total{provider="acme",kind="another_amount",instance="a:8701"}': "0x10 1x20",
            'payment_incidents_total{provider="acme",kind="duplicate_success",instance="a:8701"}': "0x5 1x25",
        },
        "10m",
        "12m",
        {**ACME, "kind": "another_amount"},
    ),
    "PaywitnessLimitExceeded": Case(
        {
            LIMIT.format("exceeds"): "0x10 1x20",
            LIMIT.format("unknown"): "0x5 1x25",  # nothing was compared: no reason to wake anybody
        },
        "10m",
        "12m",
        {**ACME, "operation": "refund"},
    ),
    "PaywitnessAuthorizationsExpiring": Case(
        {
            'payment_authorizations_expiring{job="paywitness",journal="1f",instance="a:8701"}': "0x10 3x90",
            'payment_authorizations_expiring{job="paywitness",journal="1f",instance="b:8701"}': "0x10 3x90",
        },
        "69m",
        "73m",
        {"job": "paywitness"},
    ),
    "PaywitnessReviewGrowing": Case(
        {
            'payment_review_open{provider="acme",reason="nobody_to_ask",instance="a:8701"}': "3x70 6x20",
            'payment_review_open{provider="acme",reason="other",instance="a:8701"}': "0x70 2x20",
        },
        "74m",
        "78m",
        ACME,
    ),
    "PaywitnessReviewWaiting": Case(
        {'payment_review_open{provider="acme",reason="nobody_to_ask",instance="a:8701"}': "0x10 1x300"},
        "250m",
        "252m",
        ACME,
    ),
    "PaywitnessCircuitOpen": Case(
        {  # it goes to and fro between open and half open, and lets nothing through
            SHUT.format("closed"): "1x5 0x20",
            SHUT.format("open"): "0x5 1 0 1 0 1 0 1 0 1 0",
            SHUT.format("half_open"): "0x5 0 1 0 1 0 1 0 1 0 1",
        },
        "5m",
        "10m",
        {**ACME, "group": "write"},
        "critical",
    ),
    "PaywitnessRetryBudgetExhausted": Case(
        {'payment_retry_budget_exhausted_total{provider="acme",operation="sale",scope="provider"}': "0x10 0+4x30"},
        "17m",
        "25m",
        {**ACME, "scope": "provider"},
    ),
    "PaywitnessRateLimitSpike": Case(
        {
            'payment_attempts_total{provider="acme",operation="sale",failure_class="succeeded"}': "0+60x40",
            'payment_attempts_total{provider="acme",operation="sale",failure_class="rate_limited"}': "0x15 0+20x25",
        },
        "21m",
        "28m",
        ACME,
    ),
    "PaywitnessFallbackSpike": Case(
        {
            STARTED: "0+60x40",
            'payment_fallback_total{from_provider="acme",to_provider="acme_eu",reason="not_sent"}': "0x15 0+6x25",
        },
        "22m",
        "28m",
        {**ACME, "to_provider": "acme_eu"},
    ),
    # A few events are no rate, however large their share; and many are none where the share is small.
    "PaywitnessSuccessBurn critical": Case(
        {PAID: "0+1x40", FAILED: "0+1x40", calm(PAID): "0+100x40", calm(FAILED): "0+9x40"},
        "8m",
        "20m",
        ACME,
        "critical",
    ),
    "PaywitnessSuccessBurn warning": Case(
        {PAID: "0+1x40", FAILED: "0+1x40", calm(PAID): "0+100x40", calm(FAILED): "0+4x40"}, "8m", "20m", ACME
    ),
    "PaywitnessDoubtBurn critical": Case(
        {STARTED: "0+9x40", UNKNOWN: "0+1x40", calm(STARTED): "0+100x40", calm(UNKNOWN): "0+1x40"},
        "3m",
        "12m",
        ACME,
        "critical",
    ),
    "PaywitnessDoubtBurn warning": Case(
        {STARTED: "0+9x40", UNKNOWN: "0+1x40", calm(STARTED): "0+1000x40", calm(UNKNOWN): "0+5x40"}, "3m", "12m", ACME
    ),
    "PaywitnessDown": Case(
        {'up{job="shop/paywitness",instance="a:8701"}': "1x5 0x10", 'up{job="else",instance="c:1"}': "0x15"},
        "7m",
        "9m",
        {**SIDECAR, "job": "shop/paywitness"},
        "critical",
    ),
    "PaywitnessAbsent": Case(
        {'paywitness_build_info{version="1",instance="a:8701"}': "1x5"},
        "18m",  # five minutes until Prometheus forgets it, and ten of patience
        "22m",
        {},
        "critical",
    ),
    "PaywitnessJournalDown": Case(
        {'paywitness_journal_errors_total{call="look",instance="a:8701"}': "0x10 1x5 1+12x15"},
        "18m",  # neither one lost call nor a single bad minute is a journal that is down
        "22m",
        SIDECAR,
        "critical",
    ),
    "PaywitnessJournalSlow": Case(
        {
            BUCKET.format("0.1"): "0+100x10 1000+50x30",
            BUCKET.format("0.25"): "0+100x10 1000+50x30",
            BUCKET.format("1.0"): "0+100x40",
            BUCKET.format("+Inf"): "0+100x40",
        },
        "15m",
        "25m",
        {**SIDECAR, "call": "claim"},
    ),
    "PaywitnessJournalRollback": Case(
        {'payment_incidents_total{provider="",kind="journal_rollback",instance="a:8701"}': "0x10 1x20"},
        "10m",
        "12m",
        {},
        "critical",
    ),
    "PaywitnessPolicyReloadFailed": Case(
        {'paywitness_policy_last_reload_successful{instance="a:8701",job="paywitness"}': "1x5 0x10"},
        "5m",
        "7m",
        {**SIDECAR, "job": "paywitness"},
    ),
    "PaywitnessPolicyRevisionsDiffer": Case(
        {  # another team's sidecars have another book, which is as it should be
            'paywitness_policy_info{job="paywitness",instance="a:8701",revision="r1"}': "1x50",
            'paywitness_policy_info{job="paywitness",instance="b:8701",revision="r1"}': "1x10 stale",
            'paywitness_policy_info{job="paywitness",instance="b:8701",revision="r2"}': "_x10 1x40",
            'paywitness_policy_info{job="theirs",instance="c:8701",revision="r3"}': "1x50",
        },
        "20m",
        "30m",
        {"job": "paywitness"},
    ),
    "PaywitnessOutboxLagging": Case(
        {
            'paywitness_outbox_pending{job="paywitness",instance="a:8701"}': "0x5 40x45",
            'paywitness_outbox_deliveries_total{job="paywitness",result="failed"}': "0x10 0+1x40",
        },
        "24m",
        "30m",
        {"job": "paywitness"},
    ),
}


def name_of(rule: dict) -> str:
    """Two alerts of one name differ in their severity."""
    alike = [each for each in rules_in(ALERTS) if each["alert"] == rule["alert"]]
    return rule["alert"] if len(alike) == 1 else f"{rule['alert']} {rule['labels']['severity']}"


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    assert promtool("check", "rules", str(RULES), str(ALERTS)) == ""


def test_every_alert_has_its_case() -> None:
    assert set(CASES) == {name_of(rule) for rule in rules_in(ALERTS)}


@pytest.mark.slow
def test_every_alert_is_silent_before_and_fires_when_it_should(tmp_path: Path) -> None:
    """All in one world, each case with a provider and a sidecar of its own: a world costs promtool half a second."""
    series: list[dict] = []
    asked: list[dict] = []
    for number, (name, case) in enumerate(CASES.items()):
        series += [{"series": own(labels, number), "values": values} for labels, values in case.series.items()]
        labels = {"alertname": name.split()[0], "alertstate": "firing", "severity": case.severity, **case.labels}
        alert = own("ALERTS{" + ", ".join(f'{label}="{value}"' for label, value in labels.items()) + "}", number)
        asked.append({"expr": alert, "eval_time": case.silent_at, "exp_samples": []})
        asked.append({"expr": alert, "eval_time": case.fires_at, "exp_samples": [{"labels": alert, "value": 1}]})
        if any("calm" in labels for labels in case.series) and "provider" in case.labels:
            calm_alert = alert.replace('"acme_', '"calm_')
            asked.append({"expr": calm_alert, "eval_time": case.fires_at, "exp_samples": []})
    asked.append({"expr": NOT_MUCH, "eval_time": "30m", "exp_samples": []})
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES), str(ALERTS)], "tests": [test]}))
    assert promtool("test", "rules", str(file)) == ""


NOT_MUCH = 'ALERTS{alertname="PaywitnessMoneyInDoubt",currency="JPY"}'


@pytest.mark.slow
def test_what_is_recorded_is_right_for_one_redis_and_for_many_files(tmp_path: Path) -> None:
    """Journal 1f has two sidecars that report the same; 2e and 3d have one each."""
    each = {("1f", "a"): 4, ("1f", "b"): 4, ("2e", "c"): 2, ("3d", "d"): 1}
    gauges = {
        "payment_operations_in_doubt": 'operation="sale"',
        "payment_review_open": 'reason="other"',
        "payment_money_in_doubt": 'currency="JPY"',
        "payment_authorizations_expiring": 'job="paywitness"',
    }
    series = {
        f'{gauge}{{journal="{journal}",provider="acme",{label},instance="{sidecar}:8701"}}': f"{number}x20"
        for gauge, label in gauges.items()
        for (journal, sidecar), number in each.items()
    }
    expected = {
        'provider:payment_operations_in_doubt:sum{provider="acme"}': 7,
        'provider:payment_review_open:sum{provider="acme"}': 7,
        'currency:payment_money_in_doubt:sum{currency="JPY"}': 7,
        'job:payment_authorizations_expiring:sum{job="paywitness"}': 7,
    }
    assert recorded_as(tmp_path, series, expected, "10m") == ""


@pytest.mark.slow
def test_shares_are_of_what_was_started_at_the_provider_that_was_used(tmp_path: Path) -> None:
    """`mirror` gets nothing but what falls back from `acme`: no call names it. A share of nothing would be +Inf."""
    sale = 'provider="{}",operation="sale"'
    acme, mirror = sale.format("acme"), sale.format("mirror")
    series = {
        f"payment_call_duration_seconds_count{{{acme}}}": "0+10x30",
        f"payment_call_duration_seconds_count{{{mirror}}}": "0x30",
        f"payment_operations_started_total{{{acme}}}": "0+10x30",
        f"payment_operations_started_total{{{mirror}}}": "0+10x30",
        f'payment_attempts_total{{{acme},failure_class="network_connect_failure"}}': "0+20x30",
        f'payment_attempts_total{{{mirror},failure_class="succeeded"}}': "0+15x30",
        f"payment_operation_unknown_total{{{mirror}}}": "0+1x30",
        'payment_fallback_total{from_provider="acme",to_provider="mirror",reason="not_sent"}': "0+10x30",
        # Started by a sidecar that died before it was scraped, and found in doubt by another.
        'payment_operations_started_total{provider="orphaned"}': "0x30",
        'payment_operation_unknown_total{provider="orphaned"}': "0+1x30",
    }
    expected = {
        'provider:payment_operations_unknown:ratio_rate5m{provider="mirror"}': 0.1,
        'provider:payment_operations_unknown:ratio_rate5m{provider="orphaned"}': 1,
        'provider:payment_attempts_per_operation:ratio_rate5m{provider="acme"}': 2,
        'provider:payment_attempts_per_operation:ratio_rate5m{provider="mirror"}': 1.5,
        'provider_to_provider:payment_fallback:ratio_rate5m{provider="acme",to_provider="mirror"}': 1,
    }
    assert recorded_as(tmp_path, series, expected, "20m") == ""


def recorded_as(tmp_path: Path, series: dict[str, str], expected: Mapping[str, float], at: str) -> str:
    """What promtool finds different from what is expected at that time."""
    rounded = [
        {"expr": f"round({each}, 0.001)", "eval_time": at, "exp_samples": [{"labels": labels_of(each), "value": value}]}
        for each, value in expected.items()
    ]
    given = [{"series": labels, "values": values} for labels, values in series.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": rounded}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    return promtool("test", "rules", str(file))


def labels_of(series: str) -> str:
    return series[series.index("{") :]


def test_a_currency_of_little_value_needs_more_to_be_much() -> None:
    much = {
        rule["labels"]["currency"]: float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in rules_in(RULES)
        if rule["record"] == "currency:payment_money_in_doubt:much"
    }
    assert len(much) == len([rule for rule in rules_in(RULES) if rule["record"].endswith(":much")])
    assert much["JPY"] > 50 * much["EUR"]
    assert much["KRW"] > 500 * much["EUR"]


def own(text: str, number: int) -> str:
    for shared, single in (("acme", f"acme_{number}"), ("calm", f"calm_{number}"), ("a:8701", f"a{number}:8701")):
        text = text.replace(f'"{shared}"', f'"{single}"')
    return text


@pytest.mark.parametrize("rule", rules_in(ALERTS), ids=name_of)
def test_an_alert_says_how_bad_it_is_what_it_is_and_where_to_read_on(rule: dict) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    words = re.findall("[A-Z][a-z]+", rule["alert"].removeprefix("Paywitness"))
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{'-'.join(words).lower()}.md"
    page = (TOP / rule["annotations"]["runbook_url"]).read_text("utf-8")
    assert page.startswith(f"# {rule['alert']}\n")
    sections = re.findall(r"(?m)^## (.+)$", page)
    assert sections == ["What it means", "What to look at", "What to do", "What not to do"]


def test_no_runbook_is_without_its_alert() -> None:
    linked = {Path(rule["annotations"]["runbook_url"]).name for rule in rules_in(ALERTS)}
    assert {page.name for page in RUNBOOKS.glob("*.md")} == linked


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_the_commands_and_links_of_a_runbook_are_real(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    monkeypatch.setenv("USER", "ada")  # who gives an order, where nobody else is named
    text = page.read_text("utf-8")
    for line in re.findall(r"(?m)^\s*paywitness (.+)$", text):
        parse(main, shlex.split(line))
    for line in re.findall(r"`paywitness ([^`]+)`", text):
        command: click.Command = main
        for word in shlex.split(line):
            if isinstance(command, click.Group) and not word.startswith("-"):
                command = named(command, word)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def parse(command: click.Command, words: list[str]) -> None:
    """As the command line would, without running anything: raises where an option is unknown or missing."""
    while isinstance(command, click.Group) and words:
        command, words = named(command, words[0]), words[1:]
    command.make_context(command.name, words)


def named(group: click.Group, name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


def test_rules_name_only_metrics_that_are_documented_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules_in(RULES)}
    for rule in (*rules_in(RULES), *rules_in(ALERTS)):
        named = set(re.findall(r"\b(?:\w+:)*(?:payment|paywitness|process)_\w+(?::\w+)*", bare(rule["expr"])))
        unknown = {
            name for name in named - recorded if f"### {re.sub('_(bucket|count|sum)$', '', name)}\n" not in METRICS
        }
        assert not unknown, rule


def bare(expression: str) -> str:
    """Without label values, which are no metrics."""
    return re.sub(r'"[^"]*"', '""', expression)
