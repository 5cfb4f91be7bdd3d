"""Expressions compile to plain callables, say what they mean, and cannot grow beyond their bounds."""

from __future__ import annotations

import pytest

from proxy.core.body import Encoding, decode
from proxy.policy.expressions import expression, form_expression
from proxy.policy.scalars import Wrong
from proxy.policy.templates import expression_template, request_template, template

NOTHING: frozenset[str] = frozenset()


def refusal(text: str) -> str:
    with pytest.raises(Wrong) as caught:
        expression(text)
    return caught.value.says


@pytest.mark.parametrize(
    ("text", "tree", "value"),
    [
        ("status == 'paid'", {"status": "paid"}, True),
        ('status == `"paid"`', {"status": "paid"}, True),
        ("confirm == `true`", {"confirm": True}, True),
        ("a.b[0].c", {"a": {"b": [{"c": 7}]}}, 7),
        ("\"content-type\" == 'x'", {"content-type": "x"}, True),
        ("a.\"b-c\" == 'x'", {"a": {"b-c": "x"}}, True),
        ('@."b-c"', {"b-c": 1}, 1),
        ("contains(\"a-b\", 'x')", {"a-b": "xyz"}, True),
        (
            "captures[] | [?status == 'DECLINED' || status == 'FAILED'] | [0]",
            {"captures": [{"status": "FAILED"}]},
            {"status": "FAILED"},
        ),
        ("sum(units[].value)", {"units": [{"value": 1}, {"value": 2}]}, 3),
    ],
)
def test_an_expression_is_a_plain_callable(text, tree, value):
    assert expression(text)(tree) == value


@pytest.mark.parametrize(
    "text",
    [
        'status == "paid"',
        'status != "paid"',
        '"paid" == status',
        '"paid" == "other"',
        'a && status == "paid"',
        '[?status == "paid"]',
        'contains(status, "paid")',
        'starts_with(status,"paid")',
    ],
)
def test_a_double_quoted_value_is_refused_because_it_names_a_field(text):
    assert "in JMESPath double quotes name a field; write 'paid' or `\"paid\"`" in refusal(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" * 1001, "found an expression of 1001 characters, allowed: at most 1000"),
        ("(" * 490 + "a" + ")" * 490, "nested too deeply"),
        (" || ".join(["a"] * 150), "parts, allowed: at most 200"),
        ("|".join(["[@,@]"] * 5), "repeat their input 32 times, allowed: at most 16"),
        ("to_string(to_string(@))", "to_string() once"),
        ("".join("abs(" for _ in range(9)) + "a" + ")" * 9, "found 9 function calls, allowed: at most 8"),
        ("nothing(a)", "found an unknown function nothing()"),
        ("a b", "at character 3: unexpected 'b'"),
        ("a == 'x", "at character 6: Unclosed ' delimiter"),
        ("a[?", "it ends too early"),
        ("a == `{bad`", "not a JMESPath expression"),
    ],
)
def test_an_expression_out_of_bounds_is_refused_in_words(text, said):
    assert said in refusal(text)


def test_the_largest_allowed_expression_is_quick_on_a_large_body():
    tree = {"a": [{"b": list(range(10))} for _ in range(5_000)]}
    assert len(expression("[a, a] | [] | [].b | []")(tree)) == 100_000


def test_a_form_is_compared_with_texts():
    tree = decode(b"confirm=true&metadata[order]=7", Encoding.FORM)
    assert form_expression("confirm == 'true' && metadata.order == '7'")(tree) is True
    for text in ("confirm == `true`", "amount > `5`", "a || confirm != `false`"):
        with pytest.raises(Wrong):
            form_expression(text)


def test_a_template_knows_its_placeholders():
    found = template(frozenset({"charge"}))("{reference} {path:charge} {header:X-Id} {body:metadata.order_id}")
    assert found.placeholders == (
        ("reference", ""),
        ("path", "charge"),
        ("header", "X-Id"),
        ("body", "metadata.order_id"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{charge}", "did you mean '{path:charge}'?"),
        ("{operation}", "did you mean 'operation_id'?"),
        ("{path:order}", "{path:order}: it is not in every 'match' of the operation"),
        ("{reference", "found a brace without its partner"),
        ("a } b", "found a brace without its partner"),
        ("{}", "found the placeholder {}"),
        ("{body:a ==}", "this is not a JMESPath expression"),
    ],
)
def test_a_placeholder_that_cannot_be_filled_is_refused(text, said):
    with pytest.raises(Wrong) as caught:
        template(frozenset({"charge"}))(text)
    assert said in caught.value.says


def test_only_what_tells_operations_apart_names_one():
    read = template(NOTHING)
    assert read("{reference}").names_the_operation
    assert read("{body:order}").names_the_operation
    assert not read("{amount} {currency} {header:X-Id}").names_the_operation


def test_an_expression_may_carry_placeholders_beside_braces_of_its_own():
    found = expression_template(NOTHING)("data[?m.id == '{operation_id}'] | [0].{a: b}")
    assert found.placeholders == (("operation_id", ""),)


def test_a_request_carries_no_query():
    with pytest.raises(Wrong):
        request_template(NOTHING, "GET")("GET /v1/charges?order={reference}")
