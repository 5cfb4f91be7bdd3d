"""`paywitness policy`: the group, and its commands `check`, `test`, `explain` and `diff`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from paywitness.cli.policy.new import new, print_schema
from paywitness.clock import SystemClock
from paywitness.core.errors import PaywitnessError, PolicyError
from paywitness.core.policy import Policy
from paywitness.core.result import FAILURE_CLASSES, ResultClass
from paywitness.option_defaults import redacted_url
from paywitness.policy.book import PolicyBook, load_directory
from paywitness.policy.check import check as check_policies
from paywitness.policy.explain import FailureScenario, explain
from paywitness.policy.reading.value_readers import InvalidValue, duration
from paywitness.telemetry.logs import printable
from paywitness.tools.policy_diff.backtest import Backtest, BacktestReport
from paywitness.tools.policy_diff.comparison import ProviderDiff, diff
from paywitness.tools.policy_diff.journal_reader import open_read_only
from paywitness.tools.policy_diff.report import as_json as diff_as_json
from paywitness.tools.policy_diff.report import backtest_lines, diff_lines, summary
from paywitness.tools.policy_explain import skipped_rule_lines
from paywitness.tools.policy_test.case_runner import as_json as cases_as_json
from paywitness.tools.policy_test.case_runner import report_lines, run_case_files

# --- policy diff
# `paywitness policy diff`: the effect of an edit on decisions, and on the operations of a journal.

_EXIT_ERROR = 2
_HELP = """Show what an edit of a policy changes: not which lines differ, but which decisions.

OLD and NEW are two policy files or two directories of them. The command shows the facts that differ (windows, keys,
tries, timeouts, inquiries), rows and codes that were added, removed, moved or changed, and the cases of policies/tests/
with another result. Comments, the order of keys and written-out defaults make no difference.

With --against, it replays the operations of a journal under both policies. It counts those that would have been
retried, inquired about, put in review, classified or recognised otherwise, and their money. It only reads the journal.
A sidecar may use it at the same time. An operation that cannot be replayed (its response is not stored, or no key here
opens it) is counted with the reason. Keys come from PAYWITNESS_ENCRYPTION_KEYS, or from the file beside a SQLite
journal, as for a sidecar.

\b
  git show HEAD:policies/stripe.yaml > /tmp/stripe.yaml
  paywitness policy diff /tmp/stripe.yaml policies/stripe.yaml
  paywitness policy diff /tmp/stripe.yaml policies/stripe.yaml --against sqlite:///.paywitness/journal.db

\b
Exit code 0: no difference. 1: there are differences; with --against, in recorded operations. 2: the comparison failed.
Details: docs/policy-tools.md
"""


@click.command("diff", help=_HELP)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--against", metavar="JOURNAL", help="A journal's URL, as for `paywitness run --journal`.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(0, 10_000), help="Examples to show.")
@click.option(
    "--newest",
    default=100_000,
    show_default=True,
    type=click.IntRange(1, 100_000_000),
    help="With --against: the largest number of operations, newest first.",
)
@click.option("--json", "in_json", is_flag=True, help="Print JSON.")
def show_difference(old: Path, new: Path, against: str | None, limit: int, newest: int, in_json: bool) -> None:
    found: BacktestReport | None = None
    try:
        diffs = diff(old, new)
        if against is not None:
            found = asyncio.run(_run_backtest(diffs, against, newest, limit))
    except (PaywitnessError, OSError) as error:
        for line in str(error).splitlines():
            click.echo(f"Error: {printable(line)}", err=True)
        raise SystemExit(_EXIT_ERROR) from None
    if in_json:
        click.echo(json.dumps(diff_as_json(diffs, limit, found), indent=2))
    elif found is None or against is None:
        for line in diff_lines(diffs, limit):
            click.echo(printable(line))
    else:
        click.echo(f"The policies differ in {summary(diffs)}; run it without --against to see them.")
        for line in backtest_lines(found, redacted_url(against)):
            click.echo(printable(line))
    if found.differing if found is not None else any(one.differs for one in diffs):
        raise SystemExit(1)


async def _run_backtest(diffs: list[ProviderDiff], journal: str, newest: int, examples: int) -> BacktestReport:
    async with open_read_only(journal, os.environ) as read_only_journal:
        backtest = Backtest(diffs, read_only_journal, SystemClock(), lambda text: click.echo(text, err=True))
        return await backtest.run(newest=newest, examples=examples)


# --- policy test

_TEST_HELP = """Run the cases of policies: each gives a request with its response or fault, and the expected decision.

PATH is a policy, a directory of them, or a case file; `policies` if none is given. The cases of policies/acme.yaml
stand in policies/tests/acme.yaml. A failing case is shown with its file and line, the expected value and the actual
one. Every operation, row and code of a table that no case reaches is listed. Nothing is sent, and no journal is needed.

\b
A case:
  requests:
    pay: {send: POST /v1/charges, headers: {Idempotency-Key: k1}, body: {amount: 1099, currency: eur}}
  cases:
    - {request: pay, response: 429, expect: {class: rate_limited, action: retry_same_operation}}
    - {request: pay, fault: first_byte_timeout, expect: {because: in_doubt_same_key_is_safe}}

\b
A flow, several calls in a row:
  flows:
    - name: a lost payment is not paid again
      steps:
        - {request: pay, lost: yes, expect: {outcome: unknown, safe_to_pay: no}}
        - {request: {like: pay, headers: {Idempotency-Key: k2}, body: {note: b}}, expect: {sent: no, problem: guarded}}

\b
Exit code 1 if a case or a flow fails or a file cannot be read; with --strict also if a rule is not reached.
  paywitness policy test policies/acme.yaml
  paywitness policy test --strict policies/
All keys: docs/policy-tools.md
"""


@click.command("test", help=_TEST_HELP)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Fail if a rule is not reached, or a policy has no cases.")
@click.option("--json", "in_json", is_flag=True, help="Print JSON.")
def run_cases(paths: tuple[Path, ...], strict: bool, in_json: bool) -> None:
    found = run_case_files(paths or (Path("policies"),))
    if in_json:
        click.echo(json.dumps(cases_as_json(found), indent=2))
    else:
        for line in report_lines(found):
            click.echo(printable(line))
    if not all(one.ok and (one.covered or not strict) for one in found):
        raise SystemExit(1)


# --- The group

_LONGEST_S = 366 * 86_400.0
_FAILURES = sorted(result_class.value for result_class in FAILURE_CLASSES)


@click.group()
def policy() -> None:
    """Write policy files, check and test them, and explain their decisions.

    \b
    On the way to a policy of your own:
      paywitness policy new --openapi bank.yaml --output policies/bank.yaml     a starting policy
      paywitness policy check policies/bank.yaml                                its summary, and every problem in it
      paywitness policy test policies/bank.yaml                                 its decisions about responses and faults
      paywitness policy explain --provider bank --operation sale --failure network_read_timeout
      paywitness policy diff old.yaml policies/bank.yaml                        the effect of an edit
    """


@policy.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> None:
    """Check policy files or directories: every problem at once, each with file:line:column.

    Exit code 1 if there is a problem.

    \b
    Example:
      paywitness policy check policies/acme.yaml
    """
    report = check_policies(paths or (Path("policies"),))
    for line in report.lines:
        click.echo(line)
    if not report.ok:
        raise SystemExit(1)


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else duration(0.0, _LONGEST_S)(value)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{value!r} is not {wrong.allowed}") from None


@policy.command("explain")
@click.option("--policies", default=Path("policies"), type=click.Path(path_type=Path), help="The policy directory.")
@click.option("--provider", required=True, help="As in the policy file.")
@click.option("--operation", required=True, help="As in the policy file.")
@click.option(
    "--failure",
    required=True,
    type=click.Choice(_FAILURES),
    metavar="CLASS",
    help=f"Why the attempt did not succeed: {', '.join(_FAILURES)}.",
)
@click.option("--sent/--not-sent", default=True, help="Whether the provider may have got a byte.  [default: sent]")
@click.option("--tries", default=1, help="Attempts made so far in this call.")
@click.option("--age", "age_s", default="1s", callback=_seconds, help="Since the first send.")
@click.option("--time-left", "time_left_s", callback=_seconds, help="Until the caller's deadline.")
@click.option("--background", is_flag=True, help="The caller has left.")
def explain_command(
    policies: Path,
    provider: str,
    operation: str,
    failure: str,
    sent: bool,
    tries: int,
    age_s: float,
    time_left_s: float | None,
    background: bool,
) -> None:
    """Show the decision for a failure, the rule that makes it, and why the rules above it do not apply.

    \b
    Example:
      paywitness policy explain --provider acme --operation refund --failure network_read_timeout --sent
    """
    try:
        book = load_directory(policies)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    chosen = _find(book, provider, operation)
    result_class = ResultClass(failure)
    sent = sent and result_class is not ResultClass.NETWORK_CONNECT_FAILURE
    supposed = FailureScenario(result_class, sent, tries, age_s, time_left_s, background)
    explained = explain(chosen, supposed)
    for line in (*explained.lines, *skipped_rule_lines(explained)):
        click.echo(line)


def _find(book: PolicyBook, provider: str, operation: str) -> Policy:
    found = book.providers.get(provider)
    if found is None:
        raise click.ClickException(f"no policy for {provider!r}; there are: {', '.join(sorted(book.providers))}")
    for candidate in found.policies:
        if candidate.operation == operation:
            return candidate
    names = ", ".join(candidate.operation for candidate in found.policies)
    raise click.ClickException(f"{provider} has no operation {operation!r}; it has: {names}")


for command in (run_cases, show_difference, new, print_schema):
    policy.add_command(command)
