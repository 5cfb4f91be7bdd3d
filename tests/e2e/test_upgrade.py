"""Today's sidecar opens a journal that an earlier release wrote, and goes on with every operation in it.

The earlier sidecar was killed with calls under way: tests/journal/earlier/README.md says what its journal holds. The
provider of these tests knows three of the payments, as the earlier one would: all others it has never seen. So a
second send of any of them would be a second effect in its ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.sidecar import Answer, ask, wait_until
from tests.journal.earlier.fixture import (
    GOES_ON,
    Earlier,
    Fixture,
    advised_since,
    as_described_then,
    fixtures,
    refused_since,
    without_proposals,
)
from tests.journal.earlier.processes import REDIS_SECRETS, WEBHOOK_SECRET, Proxy, Receiver, Sandbox
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow

# The fixtures grow old. What has ended stays whole, and so do the tombstones.
OPTIONS = ("--retention", "7000d", "--tombstones", "7000d")
KNOWN_TO_THE_PROVIDER = ("unknown", "in-review", "killed")


@dataclass
class Upgrade:
    """Today's sidecar over a copy of the earlier one's journal."""

    earlier: Earlier
    proxy: Proxy
    sandbox: Sandbox
    receiver: Receiver

    def posts(self, key: str) -> int:
        """How often this sidecar sent the payment."""
        return sum(
            arrival["method"] == "POST" and arrival["order"] == key and key not in KNOWN_TO_THE_PROVIDER
            for arrival in self.sandbox.arrivals()
        )

    def until(self, key: str, state: str) -> dict:
        wait_until(lambda: self.proxy.of_key(key)["state"] == state, f"{key} {state}", 20)
        return self.proxy.of_key(key)


def _remember(sandbox: Sandbox, operation: dict) -> None:
    """Make the payment known to the provider, as it would be had the earlier sandbox gone on."""
    metadata = {"order_id": operation["client_key"], "paywitness": operation["id"]}
    body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "metadata": metadata}
    key = {"Idempotency-Key": operation["provider_key"]}
    assert ask(f"{sandbox.url}/v1/charges", body, key).status_code == 200


@pytest.fixture(scope="module", params=fixtures(), ids=lambda fixture: fixture.name)
def upgrade(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    fixture: Fixture = request.param
    folder = tmp_path_factory.mktemp("upgrade")
    earlier = fixture.unpack(folder)
    assert time.time() > earlier.leases_over_at, "a lease of the fixture is not over: is this machine's clock right?"
    redis = None
    if fixture.journal == "redis":
        redis = RedisServer(folder / "redis")
        redis.folder.mkdir()
        shutil.move(folder / "appendonly.aof", redis.folder)
        redis.start()
    sandbox = Sandbox(folder).start()
    for key in KNOWN_TO_THE_PROVIDER:
        _remember(sandbox, earlier.of_key(key))
    receiver = Receiver().start()
    proxy = Proxy(folder, sandbox, "sqlite:///journal.db" if redis is None else redis.url)
    proxy.environment = {} if redis is None else REDIS_SECRETS
    proxy.write_policies(("hosts: [api.spare.test]", "hosts: [api.spare.test]\nsame_credentials_as: acme"))
    try:
        proxy.start("--events", receiver.url, *OPTIONS)
        yield Upgrade(earlier, proxy, sandbox, receiver)
    finally:
        proxy.kill()
        sandbox.kill()
        receiver.stop()
        if redis is not None:
            redis.stop()


def test_every_operation_stands_as_before_and_its_timeline_goes_on(upgrade: Upgrade) -> None:
    for before in upgrade.earlier.operations:
        after = upgrade.proxy.operation(before["id"])
        told = len(before["timeline"])
        timeline = [as_described_then(entry) for entry in after["timeline"][:told]]
        assert timeline == before["timeline"], before["client_key"]
        if before["client_key"] not in GOES_ON:
            since = after.keys() - before.keys()  # what this release shows besides
            shown = {name: value for name, value in _without_timeline(after).items() if name not in since}
            shown_then = _without_timeline(before) | advised_since(before)
            assert without_proposals(shown) == without_proposals(shown_then)
    listed = {operation["id"] for operation in upgrade.proxy.operations()}
    assert {before["id"] for before in upgrade.earlier.operations} <= listed


def _without_timeline(operation: dict) -> dict:
    found = {name: value for name, value in operation.items() if name != "timeline"}
    if (contradiction := found["contradiction"]) is not None:
        entries = {
            name: entry if entry is None or "summary" not in entry else as_described_then(entry)
            for name in ("stood_by", "contradicted_by")
            for entry in [contradiction[name]]
        }
        found["contradiction"] = contradiction | entries
    return found


@pytest.mark.parametrize("key", ["paid", "declined", "fell-back", "sent-later", "first-revision"])
def test_a_repeat_is_answered_as_the_first_call_was(upgrade: Upgrade, key: str) -> None:
    source = {"source": "tok_insufficient_funds"} if key == "declined" else {}
    repeat, first = upgrade.proxy.charge(key, **source), upgrade.earlier.answer(key)
    assert (repeat.status_code, repeat.body.decode()) == (first["status_code"], first["body"])
    assert repeat.headers["Paywitness-Replayed"] == "true"
    assert repeat.headers["Paywitness-Operation"] == first["headers"]["Paywitness-Operation"]
    assert upgrade.posts(key) == 0


@pytest.mark.parametrize(
    ("key", "how"),
    [
        ("joined", {"order": "paid"}),
        ("took-over", {"order": "undelivered", "provider": "spare"}),
    ],
)
def test_a_key_that_led_to_anothers_operation_still_does(upgrade: Upgrade, key: str, how: dict[str, str]) -> None:
    repeat, first = upgrade.proxy.charge(key, **how), upgrade.earlier.answer(key)
    assert (repeat.status_code, repeat.body.decode()) == (first["status_code"], first["body"])
    assert upgrade.posts(how["order"]) == 0


def test_a_key_that_a_guard_refused_still_is(upgrade: Upgrade) -> None:
    repeat, first = upgrade.proxy.charge("refused", order="paid", amount="1"), upgrade.earlier.answer("refused")
    assert (repeat.status_code, repeat.problem) == (first["status_code"], "guarded")
    assert repeat.json == refused_since(json.loads(first["body"]), "This was paid already, by another call")
    assert upgrade.posts("paid") == 0


def test_another_body_under_the_key_is_refused(upgrade: Upgrade) -> None:
    repeat, first = upgrade.proxy.charge("paid", amount="2"), json.loads(upgrade.earlier.answer("mismatch")["body"])
    assert (repeat.status_code, repeat.problem) == (422, "key-reused")
    assert repeat.json == refused_since(first, first["title"])


@pytest.mark.parametrize("key", ["old", "old-joined"])
def test_a_tombstone_still_answers_gone(upgrade: Upgrade, key: str) -> None:
    repeat = upgrade.proxy.charge(key, order="old")
    assert (repeat.status_code, upgrade.posts("old")) == (410, 0)


def test_what_was_never_sent_is_sent_under_the_same_provider_key(upgrade: Upgrade) -> None:
    before = upgrade.earlier.of_key("not-sent")
    assert upgrade.proxy.charge("not-sent").status_code == 200
    after = upgrade.proxy.of_key("not-sent")
    assert (after["generation"], after["provider_key"]) == (2, before["provider_key"])
    assert upgrade.sandbox.effects("not-sent") == 1


def test_an_unknown_outcome_is_resolved_by_an_inquiry_and_not_sent_again(upgrade: Upgrade) -> None:
    if (before := upgrade.proxy.of_key("unknown"))["state"] == "unknown":  # a young fixture: not due yet
        command = {"actor": "on-call", "reason": "after the upgrade"}
        assert upgrade.proxy.admin(f"/v1/operations/{before['id']}/inquire", command).status_code == 200
    operation = upgrade.until("unknown", "succeeded")
    assert (operation["because"], operation["attempts"], operation["doubt"]) == ("inquiry_found_success", 1, [])
    repeat = upgrade.proxy.charge("unknown")
    assert (repeat.status_code, repeat.json["id"]) == (200, operation["reference"])
    assert upgrade.sandbox.effects("unknown") == 1


@pytest.mark.parametrize("key", ["unknown-without-key", "killed-without-key"])
def test_an_unknown_outcome_is_never_sent_again_without_idempotency(upgrade: Upgrade, key: str) -> None:
    repeat = upgrade.proxy.charge(key, provider="plain", timeout_ms="300")
    assert (repeat.status_code, repeat.outcome, repeat.sent) == (504, "unknown", False)
    operation = upgrade.proxy.of_key(key)
    assert (operation["state"], operation["attempts"], operation["doubt"]) == ("unknown", 1, [1])
    assert upgrade.posts(key) == 0


def test_an_operation_whose_holder_was_killed_becomes_unknown_and_is_resolved(upgrade: Upgrade) -> None:
    operation = upgrade.until("killed", "succeeded")
    states = [entry["state"] for entry in operation["timeline"]]
    assert (states[:2], states[-1], set(states[2:-1]) <= {"unknown"}) == (["sending", "unknown"], "succeeded", True)
    assert operation["timeline"][1]["events"] == ["lease_expired"]
    assert upgrade.sandbox.effects("killed") == 1


def test_the_evidence_in_the_spool_is_replayed(upgrade: Upgrade) -> None:
    operation = upgrade.until("spooled", "succeeded")
    assert "spool" in {entry["source"] for entry in operation["timeline"]}
    repeat = upgrade.proxy.charge("spooled")
    assert (repeat.status_code, repeat.json["id"]) == (200, operation["reference"])
    assert upgrade.posts("spooled") == 0
    wait_until(lambda: not list((upgrade.earlier.folder / "spool").iterdir()), "the removal of the evidence", 5)


def test_the_webhook_event_that_waits_is_applied(upgrade: Upgrade) -> None:
    operation = upgrade.until("denied-by-webhook", "failed")
    assert (operation["because"], operation["reading"]) == ("webhook_told_denial", "failed")
    assert ("webhook", "failed") in {(entry["source"], entry["state"]) for entry in operation["timeline"]}
    assert operation["timeline"][1]["state"] == "unknown"


def _send_event(upgrade: Upgrade, event: dict) -> Answer:
    body, at = json.dumps(event).encode(), str(int(time.time()))
    signature = hmac.new(WEBHOOK_SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    headers = {"Webhook-Timestamp": at, "Webhook-Signature": f"sha256={signature}"}
    return ask(f"http://127.0.0.1:{upgrade.proxy.webhooks_port}/paywitness/webhooks/acme", body, headers)


def test_a_pending_operation_is_ended_by_a_webhook_event_that_names_its_reference(upgrade: Upgrade) -> None:
    pending = upgrade.earlier.of_key("pending")
    charge = json.loads(upgrade.earlier.answer("pending")["body"]) | {"status": "succeeded"}
    assert charge["id"] == pending["reference"]
    event = {"id": "evt_of_the_pending_one", "type": "charge.succeeded", "data": charge}
    assert _send_event(upgrade, event).status_code == 200
    operation = upgrade.until("pending", "succeeded")
    assert operation["timeline"][-1]["source"] == "webhook"


def test_what_waits_for_the_customer_still_does(upgrade: Upgrade) -> None:
    repeat, first = upgrade.proxy.charge("requires-action", source="tok_3ds"), upgrade.earlier.answer("requires-action")
    assert (repeat.status_code, repeat.outcome, repeat.body.decode()) == (200, "requires_action", first["body"])
    assert upgrade.proxy.of_key("requires-action")["state"] == "requires_action"
    assert upgrade.posts("requires-action") == 0


def test_an_incident_stays_open(upgrade: Upgrade) -> None:
    repeat = upgrade.proxy.charge("contradicted")
    assert (repeat.status_code, upgrade.posts("contradicted")) == (200, 0)  # it was paid: its reply stands
    assert repeat.headers["Paywitness-Incident"] == "another_amount"
    (incident,) = upgrade.proxy.admin("/v1/incidents").json["operations"]
    assert (incident["client_key"], incident["incident"]) == ("contradicted", "another_amount")


def test_an_operator_resumes_what_was_parked(upgrade: Upgrade) -> None:
    parked = upgrade.proxy.of_key("in-review")
    assert (parked["state"], parked["timeline"][-1]["actor"]) == ("requires_review", "on-call")
    command = {"actor": "on-call", "reason": "after the upgrade"}
    assert upgrade.proxy.admin(f"/v1/operations/{parked['id']}/resume", command).status_code == 200
    assert upgrade.until("in-review", "succeeded")["doubt"] == []
    assert upgrade.sandbox.effects("in-review") == 1


def test_events_go_on_after_the_last_that_was_accepted(upgrade: Upgrade) -> None:
    expected, accepted = upgrade.earlier.undelivered_events, upgrade.receiver.accepted
    assert expected
    wait_until(lambda: set(expected) <= {event["id"] for event in accepted}, "the events", 20)
    before = {event["id"] for event in upgrade.earlier.expected["events_accepted"]}
    assert not before & {event["id"] for event in accepted}
    for operation in {event["subject"] for event in accepted}:  # those of one operation keep their order
        versions = [event["data"]["version"] for event in accepted if event["subject"] == operation]
        assert versions == sorted(set(versions))


def test_the_feed_of_outcomes_begins_as_before(upgrade: Upgrade) -> None:
    outcomes = upgrade.proxy.admin("/v1/outcomes?limit=500").json["outcomes"]
    for outcome, before in zip(outcomes, upgrade.earlier.outcomes, strict=False):
        data = {name: value for name, value in outcome["event"]["data"].items() if name in before["event"]["data"]}
        shown = {**outcome, "event": {**outcome["event"], "data": data}}
        assert without_proposals(shown) == without_proposals(before)
    assert len(outcomes) >= len(upgrade.earlier.outcomes)


def test_a_new_payment_is_made_once(upgrade: Upgrade) -> None:
    first, second = upgrade.proxy.charge("new"), upgrade.proxy.charge("new")
    assert (first.status_code, second.status_code, first.body) == (200, 200, second.body)
    assert upgrade.sandbox.effects("new") == 1
    errors = [line for line in upgrade.proxy.log.splitlines() if '"level":"error"' in line]
    # A Redis that was started from a file is another one than before: it says so, and nothing else.
    assert [line for line in errors if "journal_rolled_back" not in line] == []
