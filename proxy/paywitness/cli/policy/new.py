"""`paywitness policy new` and `policy schema`: a starting policy, and a JSON Schema for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paywitness.core.errors import PolicyError
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass
from paywitness.policy.book import compile_content
from paywitness.tools.policy_new.draft import PAID_STATUSES, Draft, DraftOperation, policy_text
from paywitness.tools.policy_new.json_schema import policy_schema
from paywitness.tools.policy_new.openapi import FILE_BYTES_MAX, NotOpenApi, draft_from, read_openapi

_SCHEMA_HELP = """Print the JSON Schema (draft 2020-12) of a policy file, for editors.

It gives completion, and marks unknown keys and words while you type. Only `policy check` finds every problem.

\b
  paywitness policy schema > policies/schema.json
Then, as the first line of a policy, for editors that speak to yaml-language-server:
  # yaml-language-server: $schema=schema.json
"""


@click.command("schema", help=_SCHEMA_HELP)
def print_schema() -> None:
    click.echo(json.dumps(policy_schema(), indent=2))


_NEW_HELP = """Write a starting policy, with comments that say what to verify.

Without --provider and --openapi it asks questions. The policy that it writes passes `policy check`, and is careful: as
long as you have not filled in what the provider promises, nothing is sent again once a byte may have left.

\b
  paywitness policy new
  paywitness policy new --provider bank --upstream https://api.bank.example --pay "POST /v1/payments" \\
      --refund "POST /v1/payments/{payment}/refunds" --key header:Idempotency-Key --output policies/bank.yaml
  paywitness policy new --openapi bank.openapi.yaml --provider bank --output policies/bank.yaml
"""
_CALLS = {
    "pay": OperationKind.SALE,
    "authorize": OperationKind.AUTHORIZATION,
    "capture": OperationKind.CAPTURE,
    "refund": OperationKind.REFUND,
    "void": OperationKind.VOID,
    "payout": OperationKind.PAYOUT,
}


_EXAMPLES = {
    "capture": "/v1/payments/{payment}/capture",
    "refund": "/v1/payments/{payment}/refunds",
    "void": "/v1/payments/{payment}/void",
    "payout": "/v1/payouts",
}


def _call_options(command: click.Command) -> click.Command:
    for name, kind in reversed(_CALLS.items()):
        text = f"A call of kind {kind}: its method and path, such as POST {_EXAMPLES.get(name, '/v1/payments')}."
        command.params.insert(2, click.Option([f"--{name}"], metavar="CALL", help=text))
    return command


@click.command("new", help=_NEW_HELP)
@click.option("--provider", help="The provider's name: lower-case letters, digits and _.")
@click.option("--upstream", help="The provider's address, such as https://api.bank.example.")
@click.option("--body", type=click.Choice(["json", "form"]), help="How request bodies are encoded.  [default: json]")
@click.option("--key", metavar="PLACE", help="The place of the idempotency key: header:NAME, body:PATH or none.")
@click.option("--amount", help="The amount in a request: a JMESPath expression, such as amount.value.")
@click.option("--unit", type=click.Choice(["minor", "major"]), help="1099 is minor, 10.99 is major.  [default: minor]")
@click.option("--currency", help="The currency in a request.")
@click.option("--order", help="The order's id in a request, such as metadata.order_id.")
@click.option("--status", help="The status in a response.  [default: status]")
@click.option("--paid", help="The status of a paid payment.  [default: succeeded]")
@click.option("--openapi", type=click.Path(path_type=Path), help="Take the calls from this OpenAPI file.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the policy there, unless the file exists.")
def new(openapi: Path | None, output: Path | None, **given: str | None) -> None:
    if output is not None and output.exists():
        raise click.ClickException(f"{output} exists; name another file, or move it away")
    if openapi is not None:
        draft = _from_openapi(openapi, given)
    else:
        draft = _from_options(given if given["provider"] else _prompted(given))
    text = policy_text(draft)
    try:
        compile_content(text.encode(), f"{draft.provider}.yaml")
    except PolicyError as error:
        raise click.ClickException("\n  ".join(("these values do not make a policy:", *error.problems))) from None
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from None
    click.echo(
        f"{output}: written. Next: go through its {text.count('VERIFY')} VERIFY, then paywitness policy check {output}"
    )


_call_options(new)


def _from_openapi(path: Path, given: dict[str, str | None]) -> Draft:
    try:
        with path.open("rb") as file:
            document = read_openapi(file.read(FILE_BYTES_MAX + 1))
        return draft_from(
            document,
            provider=given["provider"] or "",
            upstream=given["upstream"] or "",
            key=given["key"] or "",
            origin=path.name,
        )
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None
    except NotOpenApi as error:
        raise click.ClickException(f"{path}: {error}") from None


def _prompted(given: dict[str, str | None]) -> dict[str, str | None]:
    """The options, and the user's input for those that are missing."""
    click.echo("A policy for which provider? Ctrl-C stops without writing anything.", err=True)

    def prompt(name: str, question: str, default: str | None = None) -> None:
        if not given[name]:
            given[name] = click.prompt(question, default=default, err=True) or None

    prompt("provider", "The provider's name (lower-case letters, digits and _)")
    prompt("upstream", "The provider's address (https://...)")
    prompt("pay", "The call that makes a payment", "POST /v1/payments")
    prompt("refund", "The call that makes a refund (empty: none)", "")
    prompt("key", "The place of the idempotency key (header:NAME, body:PATH or none)", "header:Idempotency-Key")
    prompt("amount", "The amount in a request", "amount")
    prompt("unit", "Amounts in minor units (1099) or major ones (10.99)", "minor")
    prompt("currency", "The currency in a request", "currency")
    prompt("status", "The status in a response", "status")
    prompt("paid", "The status of a paid payment", "succeeded")
    return given


def _from_options(given: dict[str, str | None]) -> Draft:
    calls = [(kind, given[name] or "") for name, kind in _CALLS.items() if given[name]]
    if not calls:
        names = ", ".join(f"--{name}" for name in _CALLS)
        raise click.ClickException(
            f'name at least one call that moves money, such as --pay "POST /v1/payments": {names}'
        )
    if not given["upstream"]:
        raise click.ClickException("--upstream is missing: the provider's address, such as https://api.bank.example")
    operations = tuple(
        DraftOperation(
            name=str(kind),
            kind=kind,
            match=call,
            amount=given["amount"] or "" if kind is not OperationKind.VOID else "",
            unit=given["unit"] or "minor",
            unit_is_known=given["unit"] is not None,
            currency=given["currency"] or "" if kind is not OperationKind.VOID else "",
            intent=given["order"] or "",
            status=given["status"] or "status",
            result_classes=(((given["paid"] if kind.pays else None) or PAID_STATUSES[kind], ResultClass.SUCCEEDED),),
        )
        for kind, call in calls
    )
    key = given["key"] or ""
    return Draft(
        provider=given["provider"] or "",
        upstream=given["upstream"],
        operations=operations,
        body=given["body"] or "json",
        key="" if key == "none" else key,
    )
