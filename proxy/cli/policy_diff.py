"""`paywitness policy diff`: what an edit means, and what it would have changed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from proxy.clock import SystemClock
from proxy.core.errors import PaywitnessError
from proxy.settings import shown_address
from proxy.telemetry.lines import printable
from proxy.workbench.policy_diff import ProviderDiff, diff
from proxy.workbench.policy_diff_told import as_json, summary, told, told_in_hindsight
from proxy.workbench.policy_hindsight import Hindsight, LookBack
from proxy.workbench.recorded import recorded_at

_TROUBLE = 2
_HELP = """Tell what an edit of a policy means: not which lines differ, but which decisions.

OLD and NEW are two policy files or two directories of them. Told are the facts that differ (windows, keys, tries,
timeouts, how doubt is asked about), rows and codes that were added, removed, moved or changed, and the cases of
policies/tests/ that come to something else. Comments, order of keys and defaults written out are no difference.

With --against, the operations that a journal holds are replayed under both: which would have been retried, asked
about, put in review, read or recognised otherwise, and how much money that is. The journal is only read; a sidecar may
be at work on it. What cannot be replayed (an answer that is not kept, or that no key here opens) is counted, with the
reason. Keys are taken as a sidecar takes them: PAYWITNESS_ENCRYPTION_KEYS, or the file beside a SQLite journal.

\b
  git show HEAD:policies/stripe.yaml > /tmp/stripe.yaml
  paywitness policy diff /tmp/stripe.yaml policies/stripe.yaml
  paywitness policy diff /tmp/stripe.yaml policies/stripe.yaml --against sqlite:///.paywitness/journal.db

\b
Exit code 0: no difference. 1: there are some; with --against, in what was recorded. 2: it could not be told.
All of it: docs/policy-tools.md
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
    help="With --against: look at so many operations, newest first.",
)
@click.option("--json", "in_json", is_flag=True, help="For machines.")
def show_difference(old: Path, new: Path, against: str | None, limit: int, newest: int, in_json: bool) -> None:
    found: Hindsight | None = None
    try:
        diffs = diff(old, new)
        if against is not None:
            found = asyncio.run(_look_back(diffs, against, newest, limit))
    except (PaywitnessError, OSError) as error:
        for line in str(error).splitlines():
            click.echo(f"Error: {printable(line)}", err=True)
        raise SystemExit(_TROUBLE) from None
    if in_json:
        click.echo(json.dumps(as_json(diffs, limit, found), indent=2))
    elif found is None or against is None:
        for line in told(diffs, limit):
            click.echo(printable(line))
    else:
        click.echo(f"The policies differ in {summary(diffs)}; without --against they are told.")
        for line in told_in_hindsight(found, shown_address(against)):
            click.echo(printable(line))
    if found.differing if found is not None else any(one.differs for one in diffs):
        raise SystemExit(1)


async def _look_back(diffs: list[ProviderDiff], journal: str, newest: int, examples: int) -> Hindsight:
    async with recorded_at(journal, os.environ) as recorded:
        back = LookBack(diffs, recorded, SystemClock(), lambda text: click.echo(text, err=True))
        return await back.look(newest=newest, examples=examples)
