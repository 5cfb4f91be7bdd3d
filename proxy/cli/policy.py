"""`paywitness policy`: what policies say, what is wrong with them, what they decide; and the tools to write them."""

from __future__ import annotations

from pathlib import Path

import click

from proxy.cli.policy_cases import run_cases
from proxy.cli.policy_diff import show_difference
from proxy.cli.policy_new import new, print_schema
from proxy.core.errors import PolicyError
from proxy.core.policy import Policy
from proxy.core.reading import FAILURE_CLASSES, Reading
from proxy.policy.book import PolicyBook, load_directory
from proxy.policy.check import check as check_policies
from proxy.policy.explain import Supposed, explain
from proxy.policy.scalars import Wrong, duration
from proxy.workbench.supposition import told_of_the_others

_LONGEST_S = 366 * 86_400.0
_FAILURES = sorted(reading.value for reading in FAILURE_CLASSES)


@click.group()
def policy() -> None:
    """Write policy files, check and test them, and ask what they decide.

    \b
    On the way to a policy of your own:
      paywitness policy new --openapi bank.yaml --output policies/bank.yaml     a beginning
      paywitness policy check policies/bank.yaml                                what it says, and what is wrong with it
      paywitness policy test policies/bank.yaml                                 what it makes of answers and faults
      paywitness policy explain --provider bank --operation sale --failure network_read_timeout
      paywitness policy diff old.yaml policies/bank.yaml                        what an edit of it means
    """


@policy.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> None:
    """Check policy files or directories: every problem at once, each with file:line:column.

    Exit code 1 where something is wrong.

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
    except Wrong as wrong:
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
@click.option("--sent/--not-sent", default=True, help="Whether a byte may have left.  [default: sent]")
@click.option("--tries", default=1, help="Tries made so far in this call.")
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
    """Tell what would be decided for a failure, by which rule, and why the rules above that one did not apply.

    \b
    Example:
      paywitness policy explain --provider acme --operation refund --failure network_read_timeout --sent
    """
    try:
        book = load_directory(policies)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    chosen = _find(book, provider, operation)
    reading = Reading(failure)
    sent = sent and reading is not Reading.NETWORK_CONNECT_FAILURE
    supposed = Supposed(reading, sent, tries, age_s, time_left_s, background)
    explained = explain(chosen, supposed)
    for line in (*explained.lines, *told_of_the_others(explained)):
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
