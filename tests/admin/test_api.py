"""The admin port over real HTTP: health, metrics, operations, policies."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paywitness.admin import server
from paywitness.admin.backend import Readiness
from paywitness.admin.server import AdminServer
from tests.admin.conftest import Asker
from tests.admin.world import ACCOUNT, CARD, SECRETS, World


async def test_health_answers_whatever_else_is_wrong(world: World, ask: Asker) -> None:
    await world.memory.close()
    world.book_in_force = None
    world.now_ready = Readiness(draining=True)
    answer = await ask("/healthz", token=None)
    assert (answer.status_code, answer.json) == (200, {"healthy": True})


async def test_ready_tells_its_detail(world: World, ask: Asker) -> None:
    await world.in_doubt()
    world.metrics.set_doubt(await world.journal.doubt_counts())
    world.now_ready = Readiness(reload_problems=("acme.yaml:3:1: found 'sk_live_canary'",))
    answer = await ask("/readyz", token=None)
    assert answer.status_code == 200
    assert world.book_in_force is not None
    assert answer.json == {
        "ready": True,
        "why_not": [],
        "draining": False,
        "journal_healthy": True,
        "journal_rolled_back_s": None,
        "policy_revision": world.book_in_force.revision,
        "reload": {"ok": False, "problems": ["acme.yaml:3:1: found '***'"]},
        "clocks": {"jumps": 0, "awaits_dates": False},
        "in_doubt": [{"provider": "acme", "operation": "authorization", "count": 1}],
    }


async def test_a_journal_that_is_down_is_detail_not_unreadiness(world: World, ask: Asker) -> None:
    await world.memory.close()
    answer = await ask("/readyz", token=None)
    assert (answer.status_code, answer.json["journal_healthy"]) == (200, False)


async def test_a_journal_that_hangs_keeps_nobody_waiting(
    world: World, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes waits a second by default, and would take every sidecar out of service for one frozen store."""

    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(world.memory, "healthy", hangs)
    monkeypatch.setattr(server, "_HEALTH_S", 0.01)
    answer = await ask("/readyz", token=None)
    assert (answer.status_code, answer.json["journal_healthy"]) == (200, False)


async def test_not_ready_before_it_listens_before_the_first_book_and_while_draining(world: World, ask: Asker) -> None:
    world.now_ready = Readiness(starting=True)
    answer = await ask("/readyz", token=None)
    assert (answer.status_code, answer.json["ready"], answer.json["why_not"]) == (503, False, ["starting"])
    world.now_ready = Readiness(draining=True)
    answer = await ask("/readyz", token=None)
    assert (answer.status_code, answer.json["ready"], answer.json["why_not"]) == (503, False, ["draining"])
    world.now_ready = Readiness()
    world.book_in_force = None
    answer = await ask("/readyz", token=None)
    assert (answer.status_code, answer.json["ready"], answer.json["why_not"]) == (503, False, ["no_policies"])
    assert answer.json["policy_revision"] is None


async def test_metrics_are_prometheus_text(world: World, ask: Asker) -> None:
    await world.in_doubt()
    world.metrics.learn_journal(world.journal.journal_id())
    world.metrics.set_doubt(await world.journal.doubt_counts())
    answer = await ask("/metrics", token=None)
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    [sample] = families["payment_money_in_doubt"].samples
    assert (sample.labels, sample.value) == ({"journal": "00000000", "provider": "acme", "currency": "EUR"}, 12.5)


async def test_a_scraper_may_ask_for_openmetrics(ask: Asker) -> None:
    answer = await ask("/metrics", token=None, Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


# --- operations


async def test_operations_are_listed_newest_first(world: World, ask: Asker) -> None:
    first, second = await world.succeeded(), await world.in_doubt()
    answer = await ask("/v1/operations")
    assert answer.status_code == 200
    assert [row["id"] for row in answer.json["operations"]] == [second.id, first.id]
    assert answer.json["next"] is None


async def test_a_row_says_what_became_of_the_money(world: World, ask: Asker) -> None:
    await world.in_doubt()
    [row] = (await ask("/v1/operations")).json["operations"]
    assert row == {
        "id": "op_00000000000000000000000001",
        "provider": "acme",
        "operation": "authorization",
        "kind": "authorization",
        "verdict": "UNKNOWN: 12.50 EUR may have moved; do not pay again",
        "state": "unknown",
        "outcome": "unknown",
        "side_effect_may_exist": True,
        "advice": "do_not_pay_again",
        "amount": "12.50",
        "currency": "EUR",
        "payment": None,
        "account": ACCOUNT,
        "priority": "high",
        "customer": None,
        "client_key": "order-17",
        "key_source": "header:Idempotency-Key",
        "provider_key": "order-17-upstream",
        "reference": None,
        "generation": 1,
        "attempts": 1,
        "attempt_under_way": False,
        "doubt": [1],
        "reading": "network_read_timeout",
        "effect": "possible",
        "because": "in_doubt_ask",
        "incident": None,
        "other_payment": None,
        "proposal": None,
        "dashboard": None,
        "released": False,
        "guard": {"kind": "intent", "shown": "order-17"},
        "distinct": None,
        "fallback_of": None,
        "fallback_to": None,
        "fallback_from": None,
        "fallback_reason": None,
        "cancel_wanted": False,
        "action_expired": False,
        "upstream": "http://127.0.0.1:8702",
        "revision": "acme-revision",
        "version": 2,
        "created_at": "2025-06-15T15:06:40.000Z",
        "updated_at": "2025-06-15T15:06:41.000Z",
        "first_sent_at": "2025-06-15T15:06:40.000Z",
        "ended_at": None,
        "next_check_at": None,
        "held_until": None,
    }


async def test_pages_follow_each_other_without_gap_or_repeat(world: World, ask: Asker) -> None:
    made = [(await world.succeeded()).id for _ in range(5)]
    seen: list[str] = []
    target = "/v1/operations?limit=2"
    pages = 0
    while target:
        page = (await ask(target)).json
        seen += [row["id"] for row in page["operations"]]
        target = f"/v1/operations?limit=2&before={page['next']}" if page["next"] else ""
        pages += 1
    assert seen == made[::-1]
    assert pages == 3


async def test_filters_narrow_the_list(world: World, ask: Asker) -> None:
    succeeded = await world.succeeded(client_key="a", reference="ch_1")
    doubt = await world.in_doubt(client_key="b", provider="other")
    review = await world.in_review(client_key="c", operation="refund")
    incident = await world.with_incident(client_key="d")

    async def ids(query: str) -> list[str]:
        answer = await ask(f"/v1/operations?{query}")
        assert answer.status_code == 200, answer.text
        return [row["id"] for row in answer.json["operations"]]

    assert await ids("provider=other") == [doubt.id]
    assert await ids("operation=refund") == [review.id]
    assert await ids("state=succeeded") == [succeeded.id]
    assert await ids("state=succeeded&state=unknown") == [doubt.id, succeeded.id]
    assert await ids("doubt=true") == [review.id, doubt.id]
    assert await ids("review=true") == [review.id]
    assert await ids("incidents=true") == [incident.id]
    assert await ids("key=a") == [succeeded.id]
    assert await ids("key=a-upstream") == [succeeded.id]
    assert await ids("reference=ch_1") == [succeeded.id]
    assert await ids("doubt=false&review=false&limit=1") == [incident.id]
    assert await ids("order=order-17&state=unknown") == [doubt.id]
    assert await ids("order=order-18") == []
    assert await ids("amount=12.50%20EUR&key=b") == [doubt.id]
    assert await ids("amount=12.51%20EUR") == []
    assert await ids(f"id={review.id}") == [review.id]
    assert await ids(f"id={review.id[3:-1]}&limit=2") == [incident.id, review.id]
    assert await ids(f"id={review.id[:-1]}&before={review.id}") == [doubt.id, succeeded.id]
    assert await ids("id=op_Z") == []


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("state=lost", "There is no state 'lost'. States: prepared, sending,"),
        ("stat=unknown", "There is no filter 'stat'. Filters: provider,"),
        ("limit=0", "limit is a number from 1 to 200"),
        ("limit=201", "limit is a number from 1 to 200"),
        ("limit=many", "limit is a number from 1 to 200"),
        ("limit=" + "9" * 400, "limit is a number from 1 to 200"),
        ("doubt=yes", "doubt is true or false"),
        ("provider=a&provider=b", "provider may be given once"),
        ("key=" + "x" * 600, "key is longer than 512 characters"),
        ("amount=12", "amount is a number and a currency, such as 10.99 EUR"),
        ("amount=12.505%20EUR", "the amount has more decimals than EUR has"),
        ("id=op_%25", "id is the start of an operation's id"),
    ],
)
async def test_a_filter_that_is_not_understood_is_refused(ask: Asker, query: str, told: str) -> None:
    answer = await ask(f"/v1/operations?{query}")
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json["type"] == "urn:paywitness:problem:bad-query"
    assert told in answer.json["detail"]


async def test_an_operation_tells_its_timeline(world: World, ask: Asker) -> None:
    operation = await world.in_doubt()
    found = (await ask(f"/v1/operations/{operation.id}")).json
    assert found["verdict"] == "UNKNOWN: 12.50 EUR may have moved; do not pay again"
    first, second = found["timeline"]
    assert (first["events"], first["state"], first["attempt"], first["decision"]) == (
        ["send_recorded"],
        "sending",
        None,
        None,
    )
    assert second == {
        "at": "2025-06-15T15:06:41.000Z",
        "version": second["version"],
        "source": "caller",
        "actor": None,
        "events": ["answer_lost"],
        "summary": "answer lost: money may have moved",
        "lease_only": False,
        "state": "unknown",
        "doubt": [1],
        "attempt": {
            "number": 1,
            "phase": "awaiting",
            "bytes_written": 412,
            "fault": "first_byte_timeout",
            "status_code": None,
            "request_id": None,
            "reading": "network_read_timeout",
            "effect": "possible",
            "rule": "rule_of_network_read_timeout",
            "shown_amount": None,
            "duration_ms": 80.3,
            "reset_by_us": False,
            "detail": "no answer within 5 s; card *** was in it",
        },
        "finding": None,
        "decision": {"action": "status_inquiry", "because": "in_doubt_ask", "delay_s": 2.0},
        "told": ["doubt_opened"],
        "fallback": None,
        "note": None,
    }


async def test_the_timeline_keeps_each_route_that_was_considered(world: World, ask: Asker) -> None:
    operation = await world.fallen_back()
    found = (await ask(f"/v1/operations/{operation.id}")).json
    assert found["timeline"][-1]["fallback"] == {
        "cause": "absent",
        "revision": "acme-revision",
        "attempts": 1,
        "candidates": [
            {"to": "acme_us", "verdict": "credentials_missing", "detail": "US_KEY"},
            {"to": "acme_eu", "verdict": "taken", "detail": None},
        ],
    }


@pytest.mark.parametrize("operation_id", ["op_00000000000000000000000404", "order-17", "op_", "op_%2e%2e", "x" * 2000])
async def test_an_operation_that_is_not_there_is_404(ask: Asker, operation_id: str) -> None:
    answer = await ask(f"/v1/operations/{operation_id}")
    assert (answer.status_code, answer.json["type"]) == (404, "urn:paywitness:problem:not-found")
    assert len(answer.text) < 500


async def test_no_answer_holds_what_is_sealed_or_secret(world: World, ask: Asker) -> None:
    made = [
        await world.succeeded(),
        await world.in_doubt(),
        await world.in_review(),
        await world.with_incident(),
        await world.started(),  # holds a lease
    ]
    paths = [f"/v1/operations/{operation.id}" for operation in made]
    for path in [*paths, "/v1/operations", "/v1/policies", "/readyz", "/metrics"]:
        text = (await ask(path)).text
        for secret in ("canary", CARD, *SECRETS.values()):
            assert secret not in text, (path, secret)


async def test_policies_tell_what_is_in_force_and_what_is_not(world: World, ask: Asker) -> None:
    found = (await ask("/v1/policies")).json
    assert world.book_in_force is not None
    assert found["revision"] == world.book_in_force.revision
    assert found["reload"] == {"ok": True, "problems": []}
    [provider] = found["providers"]
    assert provider["upstream"] == "http://127.0.0.1:8702"
    operation = provider["operations"][0]
    assert operation["match"] == ["POST /v1/charges"]
    assert operation["contract"]["window_s"] == 86_400.0
    world.book_in_force = None
    assert (await ask("/v1/policies")).json["providers"] == []


# --- what goes wrong


async def test_a_journal_that_does_not_answer_is_503(world: World, ask: Asker) -> None:
    await world.memory.close()
    answer = await ask("/v1/operations")
    assert (answer.status_code, answer.json["type"]) == (503, "urn:paywitness:problem:journal-unavailable")


async def test_a_mistake_of_ours_is_500_without_its_message(
    world: World, ask: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("canary")

    monkeypatch.setattr(world, "book", broken)
    answer = await ask("/v1/policies")
    assert (answer.status_code, answer.json["type"]) == (500, "urn:paywitness:problem:mistake")
    assert "canary" not in answer.text
    assert "canary" not in caplog.text
    assert "RuntimeError at test_api.py" in caplog.text


async def test_a_port_that_is_taken_is_an_error_at_the_start(world: World, ask: Asker) -> None:
    port = int(world.address.rpartition(":")[2])
    second = AdminServer(world, None)
    with pytest.raises(OSError, match="in use"):
        await second.start("127.0.0.1", port)
    await second.close()
