"""`paywitness policy test`: cases beside each policy, and what they cover."""

from __future__ import annotations

import json
from pathlib import Path

import click

from proxy.telemetry.lines import printable
from proxy.workbench.policy_cases import as_json, run_policies, told

_HELP = """Run the cases of policies: a request and what came of it in, what we make of it out.

PATH is a policy, a directory of them, or a case file; `policies` where none is given. The cases of policies/acme.yaml
stand in policies/tests/acme.yaml. A failing case is told with its file and line, what was expected and what came. What
no case reaches (an operation, a row, a code of a table) is listed. Nothing is sent, and no journal is needed.

\b
A case:
  requests:
    pay: {send: POST /v1/charges, headers: {Idempotency-Key: k1}, body: {amount: 1099, currency: eur}}
  cases:
    - {request: pay, response: 429, expect: {class: rate_limited, action: retry_same_operation}}
    - {request: pay, fault: first_byte_timeout, expect: {because: in_doubt_same_key_is_safe}}

\b
Exit code 1 where a case fails or a file cannot be read; with --strict also where a rule is not reached.
  paywitness policy test policies/acme.yaml
  paywitness policy test --strict policies/
All keys: docs/policy-tools.md
"""


@click.command("test", help=_HELP)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Fail where a rule is not reached, or a policy has no cases.")
@click.option("--json", "in_json", is_flag=True, help="For machines.")
def run_cases(paths: tuple[Path, ...], strict: bool, in_json: bool) -> None:
    found = run_policies(paths or (Path("policies"),))
    if in_json:
        click.echo(json.dumps(as_json(found), indent=2))
    else:
        for line in told(found):
            click.echo(printable(line))
    if not all(one.ok and (one.covered or not strict) for one in found):
        raise SystemExit(1)
