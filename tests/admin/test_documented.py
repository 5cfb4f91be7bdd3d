"""The pages for operators and for receivers of events name everything that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paywitness.admin.listings import read_listing_query
from paywitness.admin.server import AdminApi
from paywitness.core.announcements import TYPE_PREFIX
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import AnnouncementKind
from paywitness.core.operator_actions import OperatorAction
from paywitness.webhook_signatures.standard_webhooks import sign
from tests.admin.world import World
from tests.engine.sink import SECRET

DOCS = Path(__file__).resolve().parents[2] / "docs"
ON_CALL = (DOCS / "on-call.md").read_text()
EVENTS = (DOCS / "events.md").read_text()


@pytest.mark.parametrize("route", AdminApi(World()).routes(), ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_documented(route: Any) -> None:
    assert f"`{route.method} {route.path.replace(':.+', '')}`" in ON_CALL


@pytest.mark.parametrize("act", list(OperatorAction))
def test_every_action_is_documented(act: OperatorAction) -> None:
    assert f"| `{act}` |" in ON_CALL


@pytest.mark.parametrize("kind", list(IncidentKind))
def test_every_incident_is_documented(kind: IncidentKind) -> None:
    assert f"| `{kind}` |" in ON_CALL


@pytest.mark.parametrize("word", list(AnnouncementKind))
def test_every_type_of_event_is_documented(word: AnnouncementKind) -> None:
    assert f"| `{TYPE_PREFIX}{word}` |" in EVENTS


def test_every_filter_is_documented() -> None:
    with pytest.raises(Exception, match="query") as refused:
        read_listing_query({"nothing": ["x"]})
    listed = str(getattr(refused.value, "detail", "")).partition("Filters: ")[2].removesuffix(".").split(", ")
    assert len(listed) > 10
    for name in listed:
        assert f"`{name}`" in ON_CALL


def test_the_sample_that_checks_a_signature_does() -> None:
    code = EVENTS.partition("```python\n")[2].partition("```")[0]
    room: dict[str, Any] = {}
    exec(code, room)  # the page's own words, tried
    now, body = int(room["time"].time()), b'{"id":"op_1:2"}'
    for secret in (SECRET.decode(), "a plain secret of some length"):
        headers = {name.decode(): value.decode() for name, value in sign("op_1:2", now, body, secret.encode())}
        assert room["is_genuine"](headers, body, secret)
        assert not room["is_genuine"](headers, body + b" ", secret)
        assert not room["is_genuine"](headers, body, "whsec_" + "A" * 44)
        assert not room["is_genuine"]({**headers, "webhook-timestamp": str(now - 1)}, body, secret)
        old = {name.decode(): value.decode() for name, value in sign("op_1:2", now - 999, body, secret.encode())}
        assert not room["is_genuine"](old, body, secret)
