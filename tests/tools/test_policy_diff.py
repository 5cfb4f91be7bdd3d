"""`policy diff`: what two policies mean is compared, whatever they look like; nothing that they say is left out."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paywitness.cli.main import main
from paywitness.core.classify import ResponseRule
from paywitness.core.fallback import Fallback, FallbackCause
from paywitness.core.policy import Policy, Provider, Route
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.core.result import ResultClass
from paywitness.policy.reading.expressions import expression
from paywitness.tools.policy_diff.comparison import ProviderDiff, diff
from paywitness.tools.policy_diff.facts import operation_facts, provider_facts, row_text
from paywitness.tools.policy_diff.report import diff_lines
from tests.policy.texts import MINIMAL, changed, load

CASES = """\
requests:
  pay: {send: POST /v1/payments, headers: {Idempotency-Key: k1}, body: {amount: 1099, currency: EUR}}
cases:
  - {name: paid, request: pay, response: {body: {status: paid}}, expect: {class: succeeded}}
  - {name: stolen, request: pay, response: {status: 402, body: {error: {code: stolen_card}}}, expect: {status: 402}}
  - {name: late, request: pay, after: {fault: reset, age: 10h}, expect: {outcome: unknown}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "new.yaml").write_text(CASES)
    return tmp_path


def compared(folder: Path, new: str, old: str = MINIMAL) -> ProviderDiff:
    (folder / "old.yaml").write_text(old)
    (folder / "new.yaml").write_text(new)
    (found,) = diff(folder / "old.yaml", folder / "new.yaml")
    return found


def facts(found: ProviderDiff) -> dict[tuple[str, str], tuple[str, str]]:
    return {(change.operation, change.fact): (change.old, change.new) for change in found.facts}


# --- what is no difference


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("provider: bank\n", "# a comment\nprovider: bank\n"),
        ("  window: 24h\n", "  window: 1440m\n"),
        ("retry:\n  default: {attempts: 3, base: 100ms}\n", ""),
        ("timeouts: {first_byte: 5s, deadline: 20s}\n", "timeouts: {deadline: 20s, connect: 2s}\n"),
        ("    - {when: \"status == 'paid'\", as: succeeded}\n", "    - {as: succeeded, body: \"status == 'paid'\"}\n"),
        ("  - {status: 402, code", "  - {status: [402], code"),
        ("account: [const:main]\n", ""),
    ],
)
def test_what_means_the_same_is_no_difference(folder: Path, old: str, new: str) -> None:
    found = compared(folder, changed(old, new))
    assert not found.differs, list(diff_lines([found], 10))
    assert found.cases_run == 3


# --- what is


@pytest.mark.parametrize(
    ("old", "new", "fact", "values"),
    [
        ("window: 24h", "window: 1h", "idempotency.window", ("24h", "1h")),
        ("window: 24h", "window: {assumed: 24h}", "idempotency.assumed", ("nothing", "[window]")),
        ("under_key: replayed", "under_key: reexecuted", "idempotency.errors_under_key", ("replayed", "reexecuted")),
        (
            "send_as: header:Idempotency-Key",
            "send_as: body:key",
            "idempotency.send_as",
            ("header:Idempotency-Key", "body:key"),
        ),
        ("attempts: 3", "attempts: 5", "retry.default.attempts", ("3", "5")),
        ("first_byte: 5s", "first_byte: 9s", "timeouts.first_byte", ("5s", "9s")),
        ("settle: 10m", "settle: 20m", "resolve.settle", ("10m", "20m")),
        ("currency: currency", "currency: money.currency", "currency", ("currency", "money.currency")),
        ("    kind: sale\n", "    kind: sale\n    webhook: none\n", "webhook expected", None),
        ("    reference: id\n", "    reference: charge.id\n", "reference", ("id", "charge.id")),
        ('"GET /v1/payments/{reference}"', '"GET /v2/payments/{reference}"', "ask[0]", None),
    ],
)
def test_a_fact_of_an_operation_is_told(
    folder: Path, old: str, new: str, fact: str, values: tuple[str, str] | None
) -> None:
    webhook = (
        "webhook: {scheme: hmac_sha256, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment}\n"
    )
    found = facts(compared(folder, changed(old, new, webhook + MINIMAL), webhook + MINIMAL))
    assert ("pay", fact) in found
    assert values is None or found["pay", fact] == values


@pytest.mark.parametrize(
    ("line", "fact", "values"),
    [
        ("unmatched: refuse\n", "unmatched", ("forward", "refuse")),
        ("mode: observe\n", "only observed", ("no", "yes")),
        ("circuit: {minimum: 50}\n", "circuit.minimum", ("20", "50")),
        ("budget: {provider: {floor: 20}}\n", "budget.provider.floor", ("100", "20")),
        ("listen: 127.0.0.1:8711\n", "listen", ("nothing", "127.0.0.1:8711")),
        ("merchant: shop\n", "merchant", ("nothing", "shop")),
        ("problem: {error: {text: '{detail}'}}\n", "problem.error.text", ("nothing", "{detail}")),
        (
            "credentials: {header: {Authorization: env:KEY}}\n",
            "credentials.headers",
            ("nothing", "[Authorization: KEY]"),
        ),
    ],
)
def test_a_fact_of_the_provider_is_told(folder: Path, line: str, fact: str, values: tuple[str, str]) -> None:
    assert facts(compared(folder, line + MINIMAL))["", fact] == values


def test_what_changes_in_all_operations_is_told_once(folder: Path) -> None:
    second = "  refund:\n    kind: refund\n    match: 'POST /v1/payments/{id}/refunds'\n    answer: payment\nanswers:\n"
    old = changed("answers:\n", second)
    found = facts(compared(folder, changed("window: 24h", "window: 1h", old), old))
    assert found == {("every operation", "idempotency.window"): ("24h", "1h")}


def test_an_edit_of_identity_is_told_as_one(folder: Path) -> None:
    found = compared(folder, "ignore: [client_time]\n" + MINIMAL)
    assert found.identity == ["operations.pay.ignore: was [], is [client_time]"]
    assert any("identity_change: accepted" in line for line in diff_lines([found], 10))


def test_operations_that_come_and_go_are_named(folder: Path) -> None:
    found = compared(folder, changed("  pay:\n", "  buy:\n"))
    assert (found.operations_added, found.operations_removed) == (["buy"], ["pay"])


def test_a_provider_that_is_renamed_is_compared_with_its_former_self(folder: Path) -> None:
    found = compared(folder, changed("provider: bank", "formerly: bank\nprovider: house"))
    assert facts(found)["", "provider"] == ("bank", "house")
    assert not found.identity


def test_the_order_in_which_operations_are_matched_is_told(folder: Path) -> None:
    second = "  refund:\n    kind: refund\n    match: 'POST /v1/payments/{id}/refunds'\n    answer: payment\n"
    first = "operations:\n"
    found = facts(compared(folder, changed(first, first + second), changed("answers:\n", second + "answers:\n")))
    assert found == {("", "order of operations"): ("pay, refund", "refund, pay")}


# --- rows and tables

PAID = """    - {when: "status == 'paid'", as: succeeded}\n"""
REFUSED = """    - {when: "status == 'refused'", code: reason, table: declines}\n"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (PAID, PAID + '    - {when: "odd", as: pending}\n', ["answers.payment[1] added: when odd => pending"]),
        (REFUSED, "", ["answers.payment[1] removed: when status == 'refused' => reason by declines"]),
        (
            PAID + REFUSED,
            REFUSED + PAID,
            ["answers.payment[1] moved to answers.payment[0]: when status == 'refused' => reason by declines"],
        ),
        (
            PAID,
            PAID.replace("succeeded", "succeeded, effect: done"),
            ["answers.payment[0] changed: when status == 'paid' => succeeded -> succeeded, effect done"],
        ),
        (
            "classify:\n",
            "classify:\n  - {status: 5xx, header: {Hint: no}, as: rate_limited}\n",
            ["classify[0] added: status 5xx and hint: no => rate_limited"],
        ),
    ],
)
def test_rows_that_were_added_removed_moved_or_changed_are_told(
    folder: Path, old: str, new: str, lines: list[str]
) -> None:
    found = compared(folder, changed(old, new))
    assert [str(change) for change in found.rows] == lines


def test_a_code_that_is_read_otherwise_is_told(folder: Path) -> None:
    new = changed(
        "issuer_hard_decline: [stolen_card]", "issuer_hard_decline: [lost_card]\n    risk_decline: [no_funds]"
    )
    found = compared(folder, changed("    issuer_soft_decline: [no_funds]\n", "", new))
    assert [str(change) for change in found.codes] == [
        "tables.declines: lost_card: nothing -> issuer_hard_decline",
        "tables.declines: no_funds: issuer_soft_decline -> risk_decline",
        "tables.declines: stolen_card: issuer_hard_decline -> nothing",
    ]


def test_a_table_that_no_row_looks_into_means_nothing(folder: Path) -> None:
    unused = "tables:\n  spare: {failed: [one]}\n"
    old, new = (changed("tables:\n", text) for text in (unused, unused.replace("one", "two")))
    assert not compared(folder, new, old).differs


def test_every_part_of_a_row_is_in_its_text() -> None:
    """A part that another hand adds to rows must be told of too."""
    row = ResponseRule("classify[0]", ResultClass.RATE_LIMITED)
    for field in fields(row):
        if field.name in {"name", "table"}:
            continue
        other = replace(row, **{field.name: another(getattr(row, field.name), field.name)})
        assert row_text(other) != row_text(row), field.name


# --- nothing is left out

_TOLD_ELSEWHERE = {
    Policy: {"provider", "operation", "revision", "classify"},
    Provider: {
        *("name", "revision", "content", "source", "policies", "identity", "identity_change_accepted", "key_name"),
        *("timeouts", "webhook_rules"),
    },
}
_EXAMPLES: dict[str, Any] = {
    "where": expression("a"),
    "currency": expression("a"),
    "intent": expression("a"),
    "as_response": expression("a"),
    "amount": None,
    "routes": (Route("GET", ("a",)),),
    "account": (FieldRef(FieldKind.CONST, "another"),),
    "take_from": (FieldRef(FieldKind.HEADER, "A"),),
    "stamp": FieldRef(FieldKind.HEADER, "A"),
    "target": FieldRef(FieldKind.HEADER, "A"),
    "fallbacks": (Fallback("a", frozenset({FallbackCause.NOT_SENT})),),
    "when": expression("a"),
    "code": expression("a"),
    "status_codes": frozenset({418}),
    "otherwise": ResultClass.FAILED,
    "effect": "done",
    "problem": {"a": "b"},
}


def another(value: Any, name: str) -> Any:
    """Another value of the same kind."""
    if name in _EXAMPLES:
        return _EXAMPLES[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(kind for kind in type(value) if kind is not value)
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str) or value is None:
        return f"{value} another"
    if isinstance(value, dict):
        return {**value, "another": "one"}
    if is_dataclass(value) and not isinstance(value, type):
        first = next(field for field in fields(value) if field.init)
        return replace(value, **{first.name: another(getattr(value, first.name), first.name)})
    return (("another", "one"),)


FULL = load(
    "credentials: {header: {Authorization: env:KEY}}\n"
    + changed(
        "    kind: sale\n",
        "    kind: sale\n    cancel: {request: 'POST /v1/{provider_key}/void', read: [{status: 200, as: cancelled}]}\n",
    )
)


@pytest.mark.parametrize(
    "field", [field for field in fields(Policy) if field.init and field.name not in _TOLD_ELSEWHERE[Policy]]
)
def test_no_field_of_a_policy_is_left_out(field: Any) -> None:
    (policy,) = FULL.policies
    changed: Any = ("other", "pay") if field.name == "names" else another(getattr(policy, field.name), field.name)
    other = replace(policy, **{field.name: changed})
    before = {**provider_facts(FULL), **operation_facts(policy)}
    after = {**provider_facts(replace(FULL, policies=(other,))), **operation_facts(other)}
    assert before != after


@pytest.mark.parametrize("field", [field for field in fields(Provider) if field.name not in _TOLD_ELSEWHERE[Provider]])
def test_no_field_of_a_provider_is_left_out(field: Any) -> None:
    empty = replace(FULL, policies=())
    other = replace(empty, **{field.name: another(getattr(empty, field.name), field.name)})
    assert provider_facts(other) != provider_facts(empty)


def test_no_field_of_a_contract_is_left_out() -> None:
    (policy,) = FULL.policies
    for field in fields(policy.contract):
        if not field.init or field.name == "supports_inquiry":
            continue  # `ask` is compared
        value = getattr(policy.contract, field.name)
        changes: dict[str, Any] = {
            field.name: frozenset({"a"}) if field.name in {"assumed", "characters"} else another(value, field.name)
        }
        changes |= {"send_as": None} if field.name == "send_as" else {}
        other = replace(policy, contract=replace(policy.contract, **changes))
        assert operation_facts(other) != operation_facts(policy), field.name


@pytest.mark.parametrize("name", ["acme", "stripe"])
def test_a_shipped_policy_is_the_same_as_itself(name: str) -> None:
    file = Path(__file__).resolve().parents[2] / "policies" / f"{name}.yaml"
    (found,) = diff(file, file)
    assert not found.differs


# --- cases


def test_cases_that_come_to_something_else_are_told_by_fact(folder: Path) -> None:
    found = compared(folder, changed("window: 24h", "window: 12h"))
    (late,) = found.cases
    assert late.case.name == "late"
    assert ("because", "in_doubt_same_key_is_safe", "in_doubt_ask") in late.facts
    lines = list(diff_lines([found], 10))
    assert "    late" in lines
    assert "      because: in_doubt_same_key_is_safe -> in_doubt_ask" in lines
    assert lines[-1] == "1 of 1 provider differs: 1 fact, 0 rows, 0 codes; 1 of 3 cases have another result."


def test_the_limit_bounds_the_cases_shown(folder: Path) -> None:
    found = compared(folder, changed("POST /v1/payments", "POST /v9/payments"))
    assert len(found.cases) == 3
    lines = list(diff_lines([found], 1))
    assert "    and 2 more (--limit)" in lines
    assert "    late" not in lines


# --- the command


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["policy", "diff", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_exit_codes_are_those_of_diff(folder: Path) -> None:
    compared(folder, changed("window: 24h", "window: 12h"))
    assert run(folder / "old.yaml", folder / "old.yaml").exit_code == 0
    assert run(folder / "old.yaml", folder / "new.yaml").exit_code == 1
    (folder / "new.yaml").write_text("provider: bank\n")
    broken = run(folder / "old.yaml", folder / "new.yaml")
    assert broken.exit_code == 2
    assert "new.yaml:1:1: operations: found nothing" in broken.output
    assert run(folder / "old.yaml", folder).exit_code == 2
    assert run(folder / "old.yaml", folder / "none.yaml").exit_code == 2


def test_directories_are_compared_by_provider(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    other = changed("provider: bank", "provider: other")
    third = changed("provider: bank", "provider: third")
    for name, text in (("bank", MINIMAL), ("other", other)):
        (old / f"{name}.yaml").write_text(text)
    for name, text in (("moved", changed("window: 24h", "window: 1h")), ("third", third)):
        (new / f"{name}.yaml").write_text(text)
    output = run(old, new).output
    assert f"bank: {old}/bank.yaml -> {new}/moved.yaml" in output
    assert f"other: removed ({old}/other.yaml)" in output
    assert f"third: added ({new}/third.yaml)" in output
    assert "cases: neither policy has any" in output
    assert run(old, old).exit_code == 0


def test_machines_are_told_the_same(folder: Path) -> None:
    compared(folder, changed("window: 24h", "window: 12h"))
    found = json.loads(run(folder / "old.yaml", folder / "new.yaml", "--json").output)
    assert found["differs"] is True
    (provider,) = found["providers"]
    assert provider["facts"] == [{"operation": "pay", "fact": "idempotency.window", "old": "24h", "new": "12h"}]
    assert provider["cases"]["differ"] == 1
    assert provider["cases"]["examples"][0]["facts"]["because"]["new"] == "in_doubt_ask"
