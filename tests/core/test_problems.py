"""The body of our own answers: in JSON for most clients, in XML for one that reads XML."""

from __future__ import annotations

import json

import pytest

from paywitness.core.bodies.xml import decode_xml
from paywitness.core.limit_info import LimitInfo, with_limit_info
from paywitness.core.problems import Problem
from paywitness.core.reply import ErrorShape, problem_reply

SHAPE = {"api_error_response": {"errors": {"errors": []}, "message": "No: {detail}"}}
DETAIL = "<Nothing> & nobody was sent."


def test_a_client_of_xml_gets_our_members_inside_its_providers_root() -> None:
    reply = problem_reply(Problem.NOT_SENT, DETAIL, shape=ErrorShape(SHAPE, xml=True))
    assert (b"Content-Type", b"application/xml") in reply.headers
    told = decode_xml(reply.body)["api_error_response"]
    assert (told["errors"], told["message"]) == ({"errors": []}, f"No: {DETAIL}")
    assert (told["detail"], told["status"], told["sent"]) == (DETAIL, "503", False)
    assert told["type"] == "urn:paywitness:problem:not-sent"


@pytest.mark.parametrize(
    ("shape", "xml"),
    [(SHAPE, False), (None, True), ({"a": "1"}, True), ({"a": {}, "b": {}}, True)],
    ids=["another client", "no shape", "no root", "two roots"],
)
def test_everybody_else_gets_json(shape: dict[str, object] | None, *, xml: bool) -> None:
    reply = problem_reply(Problem.NOT_SENT, DETAIL, shape=ErrorShape(shape, xml=xml))
    assert (b"Content-Type", b"application/problem+json") in reply.headers
    told = json.loads(reply.body)
    assert (told["detail"], told["status"]) == (DETAIL, 503)
    assert set(shape or {}) <= set(told)


def test_a_detail_that_cannot_stand_in_xml_is_told_all_the_same() -> None:
    reply = problem_reply(Problem.NOT_SENT, "a \x00 b", shape=ErrorShape(SHAPE, xml=True))
    assert json.loads(reply.body)["detail"] == "a \x00 b"


def test_what_is_ours_is_not_replaced_by_a_shape() -> None:
    assert json.loads(problem_reply(Problem.NOT_SENT, DETAIL, shape=ErrorShape({"status": 200})).body)["status"] == 503
    rooted = ErrorShape({"error": {"status": "200"}}, xml=True)
    assert decode_xml(problem_reply(Problem.NOT_SENT, DETAIL, shape=rooted).body)["error"]["status"] == "503"


def test_a_client_of_xml_is_told_in_the_header_what_held_it_back() -> None:
    before = problem_reply(Problem.NOT_SENT, DETAIL, shape=ErrorShape(SHAPE, xml=True))
    after = with_limit_info(before, LimitInfo("circuit_open", 2.1))
    assert after.body == before.body
    assert (b"Paywitness-Limited-By", b"circuit_open; retry-after=2.1") in after.headers
