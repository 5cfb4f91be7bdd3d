"""Notices: which events a delivery holds, what each names, and what is not taken for one."""

from __future__ import annotations

from typing import Any

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ResponseRule
from paywitness.core.result import ResultClass
from paywitness.core.webhook_event import EVENTS_MAX, MatchKey, WebhookRules, object_and_rules, webhook_events_in


def field(name: str) -> Any:
    def read(tree: Tree) -> Tree:
        return tree.get(name) if isinstance(tree, dict) else None

    return read


CHARGE_ROWS = (ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, when=field("paid")),)
PLAIN: dict[str, Any] = {
    "scheme": "hmac_sha256",
    "options": {},
    "secrets": {"": ("ACME_SECRET",)},
    "event_id": (field("id"),),
    "find": ((MatchKey.OPERATION_ID, field("stamp")), (MatchKey.REFERENCE, field("reference"))),
    "answers": {"charge": CHARGE_ROWS},
    "answer": "charge",
    "at": field("data"),
}


def rules(**changes: Any) -> WebhookRules:
    return WebhookRules(**{**PLAIN, **changes})


def test_a_delivery_is_one_event_unless_the_policy_says_where_several_are() -> None:
    assert [notice.event_id for notice in webhook_events_in(rules(), {"id": "evt_1"})] == ["evt_1"]
    batch = {"items": [{"id": "evt_1"}, {"id": "evt_2"}]}
    assert [notice.event_id for notice in webhook_events_in(rules(events=field("items")), batch)] == ["evt_1", "evt_2"]


def test_an_event_without_an_id_cannot_be_told_from_its_repetition() -> None:
    ids: tuple[Tree, ...] = (None, "", True, ["x"], "x" * 300, "a\nb")
    hopeless: tuple[Tree, ...] = ({}, None, [], *({"id": found} for found in ids))
    for tree in hopeless:
        assert webhook_events_in(rules(), tree) == ()


def test_several_parts_make_one_id() -> None:
    composite = rules(event_id=(field("id"), field("type")))
    assert webhook_events_in(composite, {"id": 7, "type": "paid"})[0].event_id == "7:paid"
    assert webhook_events_in(composite, {"id": 7}) == ()


def test_names_are_told_in_the_order_of_the_policy_and_missing_ones_left_out() -> None:
    found = webhook_events_in(rules(account=field("account")), {"id": "1", "reference": "ch_1", "account": "acct"})[0]
    assert found.match_values == ((MatchKey.REFERENCE, "ch_1"),)
    assert found.account == "acct"


def test_a_delivery_is_bounded() -> None:
    many = {"items": [{"id": str(number)} for number in range(EVENTS_MAX + 10)]}
    assert len(webhook_events_in(rules(events=field("items")), many)) == EVENTS_MAX


def test_the_object_and_its_rows() -> None:
    event = {"id": "1", "kind": "charge", "data": {"paid": True}}
    assert object_and_rules(rules(), event) == ({"paid": True}, CHARGE_ROWS)
    assert object_and_rules(rules(answer=None, answer_by=field("kind")), event)[1] == CHARGE_ROWS
    assert object_and_rules(rules(answer=None, answer_by=field("other")), event)[1] == ()
    assert object_and_rules(rules(at=None), event)[0] == event
