"""Expressions compile to plain callables, say what they mean, and cannot grow beyond their bounds."""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.template import TemplateValues
from paywitness.policy.reading.expressions import expression, form_expression
from paywitness.policy.reading.templates import (
    expression_template,
    identifies_operation,
    identifies_operation_uniquely,
    link_template,
    request_template,
    template,
    template_text,
)
from paywitness.policy.reading.value_readers import InvalidValue
from tests.policy.texts import an_operation

NOTHING: frozenset[str] = frozenset()


def refusal(text: str) -> str:
    with pytest.raises(InvalidValue) as caught:
        expression(text)
    return caught.value.message


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
        ("paid == true", "write `true` for the value, or @.true for the field"),
        ("true == paid", "write `true` for the value"),
        ("paid != false", "write `false` for the value"),
        ("error == null", "write `null` for the value"),
        ("null == error.code", "write `null` for the value"),
        ("status == paid", "write 'paid' for the text, or @.paid for the field"),
        ("a.status == paid", "write 'paid' for the text"),
        ("amount > limit", "write 'limit' for the text"),
        ("a && (status == 'x' || paid == true)", "write `true` for the value"),
        ("data[?paid == true]", "write `true` for the value"),
        ("to_string(amount) == wanted", "or @.wanted for the field"),
        ("!false", "write `false` for the value"),
        ("paid && true", "write `true` for the value"),
        ("contains(flags, true)", "write `true` for the value"),
        ("not_null(paid, false)", "write `false` for the value"),
        ("data[?true].id", "write `true` for the value"),
        ("true", "write `true` for the value, or @.true for the field"),
        ("paid == True", "write `true` for the value"),
        ("error == None", "write `null` for the value"),
    ],
)
def test_a_bare_word_as_an_operand_is_refused_because_it_names_a_field(text, said):
    assert said in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "amount == @.captured",
        "'paid' == status",
        "wanted == charge.amount",
        "a == `true`",
        "a.true",
        "data[].null",
        "@.true",
    ],
)
def test_a_field_may_be_compared_with_a_field_that_is_named_as_one(text):
    assert expression(text).text == text


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
        with pytest.raises(InvalidValue):
            form_expression(text)


def test_a_template_knows_its_placeholders():
    found = template(frozenset({"charge"}))("{reference} {path:charge} {header:X-Id} {body:metadata.order_id}")
    assert [(blank.head, blank.name) for blank in found.placeholders] == [
        ("reference", ""),
        ("path", "charge"),
        ("header", "X-Id"),
        ("body", "metadata.order_id"),
    ]
    assert template_text(found) == "{reference} {path:charge} {header:X-Id} {body:metadata.order_id}"


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
    with pytest.raises(InvalidValue) as caught:
        template(frozenset({"charge"}))(text)
    assert said in caught.value.message


def test_only_what_tells_operations_apart_names_one():
    read = template(NOTHING)
    assert identifies_operation(read("{reference}"))
    assert identifies_operation(read("{body:order}"))
    assert not identifies_operation(read("{amount} {currency} {since} {header:X-Id}"))
    assert identifies_operation_uniquely(read("{operation_id}"))
    assert not identifies_operation_uniquely(read("{body:order} {client_key} {amount}"))


def test_an_expression_may_carry_placeholders_beside_braces_of_its_own():
    found = expression_template(NOTHING)("data[?m.id == '{operation_id}'] | [0].{a: b}")
    assert [blank.head for blank in found.template.placeholders] == ["operation_id"]


def values(**changes: object) -> TemplateValues:
    return TemplateValues(an_operation(**changes), {}, {"order": {"number": 7, "name": "O'Hara"}})


def looked_up(text: str, tree: object, **changes: object) -> object:
    found = expression_template(NOTHING)(text)(values(**changes))
    return None if found is None else found(tree)


def test_an_expression_without_placeholders_is_compiled_once():
    found = expression_template(NOTHING)("data[0]")
    assert found(values()) is found(values(id="op_2"))


def test_a_value_stands_in_an_expression_as_a_text():
    tree = {"data": [{"id": "op_1", "n": "7"}, {"id": "op_2", "n": "O'Hara"}]}
    assert looked_up("data[?id == '{operation_id}'] | [0].n", tree) == "7"
    assert looked_up("data[?n == '{body:order.number}'] | [0].id", tree) == "op_1"
    assert looked_up("data[?n == '{body:order.name}'] | [0].id", tree) == "op_2"
    assert looked_up("data[?id == 'op_{body:order.number}']", tree) == []


@pytest.mark.parametrize("reference", ["a' || 'a'=='a", "'] | [0] | @ || '", "x'", "''", "`1`", '"', "{reference}"])
def test_a_value_never_becomes_a_part_of_the_expression(reference):
    tree = {"data": [{"id": "another"}, {"id": reference}]}
    assert looked_up("data[?id == '{reference}']", tree, reference=reference) == [{"id": reference}]


@pytest.mark.parametrize("reference", [None, "a\\", "\\'", "a\nb", "\ud800", "x" * 1000])
def test_a_value_that_cannot_stand_in_quotes_makes_the_expression_unavailable(reference):
    found = expression_template(NOTHING)("data[?id == '{reference}']")
    assert found(values(reference=reference)) is None


@pytest.mark.parametrize(
    "text",
    [
        "data[?id == {reference}]",
        'data[?id == "{reference}"]',
        "data[?id == `{reference}`]",
        "data[?id == 'a'].{body:b}",
        "data[?a == 'it\\'s'] | {reference}",
        "data[?id == '\\{reference}']",
    ],
)
def test_a_placeholder_outside_of_single_quotes_is_refused(text):
    with pytest.raises(InvalidValue) as caught:
        expression_template(NOTHING)(text)
    assert "outside of single quotes, allowed: inside a text" in caught.value.message


def test_a_misspelt_placeholder_in_an_expression_is_no_text():
    with pytest.raises(InvalidValue) as caught:
        expression_template(NOTHING)("data[?id == '{refrence}']")
    assert "did you mean 'reference'?" in caught.value.message


@pytest.mark.parametrize("text", ["dashboard.test/{reference}", "https:///x", "https://{reference}/x", "https://a b/x"])
def test_a_link_begins_with_an_address(text):
    with pytest.raises(InvalidValue):
        link_template(NOTHING)(text)


def test_a_request_carries_no_query():
    with pytest.raises(InvalidValue):
        request_template(NOTHING, "GET")("GET /v1/charges?order={reference}")
