"""Each bad file fails with its file, line, column and key, what was found and what is allowed."""

from __future__ import annotations

import re

import pytest

from tests.policy.bad_files import CASES, golden, problems_of
from tests.policy.texts import MINIMAL, changed

GOLDEN = golden()


@pytest.mark.parametrize(("case", "old", "new"), CASES, ids=[case for case, _, _ in CASES])
def test_a_bad_file_is_told_in_these_words(case, old, new):
    assert problems_of(changed(old, new)) == GOLDEN[case]


def test_every_case_has_its_words_and_every_word_its_case():
    assert list(GOLDEN) == [case for case, _, _ in CASES]
    assert all(GOLDEN.values())


def test_every_problem_names_file_line_and_column():
    for problems in GOLDEN.values():
        for problem in problems:
            assert re.match(r"bank\.yaml:[1-9][0-9]*:[1-9][0-9]*: ", problem), problem


def test_all_problems_of_a_file_are_told_at_once_in_its_order():
    text = changed("provider: bank", "provider: Bank")
    text = changed("kind: sale", "kind: sail", text)
    text = changed("attempts: 3", "attempts: 0", text)
    keys = [problem.split(": ")[1] for problem in problems_of(text)]
    assert keys == ["provider", "operations.pay.kind", "retry.default.attempts"]


def test_a_form_value_is_never_a_boolean():
    text = "body: form\n" + changed("    amount:", '    where: "confirm == `true`"\n    amount:')
    assert problems_of(text) == (
        "bank.yaml:14:12: operations.pay.where: "
        "found a comparison with `true`, but form values are texts: write 'true'",
    )


def test_a_problem_in_one_operation_does_not_hide_one_in_another():
    second = "  back:\n    kind: refund\n    match: POST /v1/refunds\n"
    text = changed("kind: sale", "kind: sail", changed("answers:\n", second + "answers:\n"))
    assert [problem.split(": ")[1] for problem in problems_of(text)] == [
        "operations.pay.kind",
        "operations.back.answer",
    ]


def test_what_every_operation_overrides_must_still_be_readable():
    text = changed("window: 24h", "window: never")
    text = changed("    kind: sale\n", "    kind: sale\n    idempotency: {window: 1h}\n", text)
    assert [problem.split(": ")[1] for problem in problems_of(text)] == ["idempotency.window"]


def test_a_secret_is_not_repeated_in_the_message():
    text = changed("resolve: {", 'credentials: {header: {Authorization: "Bearer sk_live_1"}}\nresolve: {')
    assert "sk_live_1" not in "".join(problems_of(text))


def test_the_minimal_file_itself_is_good():
    assert problems_of(MINIMAL) == ()


TWO_MORE = """  back:
    kind: refund
    match: "POST /v1/payments/{payment}/refunds"
    target: path:payment
    answer: payment
  undo:
    kind: void
    match: "POST /v1/payments/{payment}/void"
    target: path:payment
    answer: payment
"""


def test_one_fault_that_an_alias_repeats_is_told_once_with_all_its_places():
    ask = '    ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
    pay = MINIMAL[MINIMAL.index("  pay:") : MINIMAL.index("answers:")]
    others = "".join(
        pay.replace("  pay:", f"  {name}:").replace("/v1/payments\n", f"/v1/{name}\n").replace(ask, "    ask: *asked\n")
        for name in ("sell", "book")
    )
    text = changed("answers:\n  payment:", f"{others}answers:\n  payment:")
    text = changed(ask, ask.replace("ask:", "ask: &asked").replace("answer: payment", "answer: paymnt"), text)
    (told,) = problems_of(text)
    assert told.count("found 'paymnt'") == 1
    assert told.endswith("; the same at operations.sell.ask[0].answer, operations.book.ask[0].answer")


def test_two_keys_that_one_block_lacks_are_two_problems():
    told = problems_of(changed("amount: {at: amount, unit: minor}", "cancel: {}"))
    keys = {line.split(": ")[1] for line in told}
    assert {"operations.pay.cancel.request", "operations.pay.cancel.read"} <= keys


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("resolve: {settle: 5s}\n", "resolve.settle"),
        ("resolve: {resend_for: 30d}\n", "resolve.resend_for"),
        ("account: [path:nowhere]\n", "account"),
    ],
)
def test_one_fault_of_a_file_with_three_operations_is_told_once_and_names_all_three(fault, key):
    text = changed("answers:\n", TWO_MORE + "answers:\n")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(fault.split()[0]))
    (problem,) = problems_of(text + fault)
    assert problem.split(": ")[1] == key
    assert "'pay', 'back', 'undo'" in problem
