"""The control routes: what a person with curl sees and chooses."""

from __future__ import annotations

import asyncio

import pytest

from paywitness_sandbox.faults.registry import FAULTS
from tests.sandbox.raw_client import SILENCE, call, charge, until


async def control(sandbox, method: str, path: str, body: object = None):
    return await call(sandbox, method, f"/_sandbox/{path}", body)


async def test_the_help_names_routes_faults_contracts_and_sources(sandbox) -> None:
    seen = await control(sandbox, "GET", "")
    assert {name.partition("(")[0] for name in seen.json["faults"]} == set(FAULTS)
    assert "hang_after_commit(hang_s=0.5)" in seen.json["faults"]
    assert seen.json["contract"] == "replayed"
    assert "tok_3ds" in seen.json["sources"]
    assert "POST /v1/charges" in seen.json["provider_routes"]
    assert seen.body.endswith(b"}\n")


async def test_the_ledger_shows_effects_duplicates_and_totals(sandbox) -> None:
    for _ in range(2):
        await charge(sandbox, "o-1", key="k-1", contract="none")
    await charge(sandbox, "o-2", key="k-2")
    seen = (await control(sandbox, "GET", "ledger")).json
    assert [entry["seq"] for entry in seen["entries"]] == [1, 2, 3]
    names = {"seq", "at", "kind", "id", "charge", "key", "order", "amount", "currency", "account"}
    assert set(seen["entries"][0]) == names
    assert seen["charges_by_order"] == {"o-1": 2, "o-2": 1}
    assert seen["duplicates_by_order"] == {"o-1": 2}
    assert seen["totals"]["charge"] == {"count": 3, "amount": {"EUR": 3000}}


async def test_the_ledger_is_searched_by_order_key_charge_and_kind(sandbox) -> None:
    name = (await charge(sandbox, "o-1", key="k-1")).json["id"]
    await charge(sandbox, "o-2", key="k-2")
    await call(sandbox, "POST", f"/v1/charges/{name}/refunds", {}, key="k-3")

    async def found(query: str) -> list[int]:
        return [entry["seq"] for entry in (await control(sandbox, "GET", f"ledger?{query}")).json["entries"]]

    assert await found("order=o-1") == [1, 3]
    assert await found("key=k-2") == [2]
    assert await found(f"charge={name}") == [1, 3]
    assert await found("order=o-1&kind=refund") == [3]
    assert await found("order=none") == []
    assert await found("limit=1") == [3]
    assert (await control(sandbox, "GET", "ledger?limit=0")).status_code == 400


async def test_the_requests_tell_what_became_of_each_arrival(sandbox) -> None:
    await charge(sandbox, "o-1", key="k-1", fault="drop_after_commit")
    await charge(sandbox, "o-1", key="k-1")
    await charge(sandbox, "o-2", fault="error_503")
    seen = (await control(sandbox, "GET", "requests")).json
    wanted = ("seq", "method", "path", "key", "order", "fault", "executed", "replayed", "answered")
    assert [tuple(item[name] for name in wanted) for item in seen["requests"]] == [
        (1, "POST", "/v1/charges", "k-1", "o-1", "drop_after_commit", True, False, None),
        (2, "POST", "/v1/charges", "k-1", "o-1", None, False, True, 200),
        (3, "POST", "/v1/charges", None, "o-2", "error_503", False, False, 503),
    ]
    by_order = (await control(sandbox, "GET", "requests?order=o-2&limit=5")).json
    assert [item["seq"] for item in by_order["requests"]] == [3]


async def test_the_log_of_requests_keeps_the_newest_and_says_what_it_dropped(make_sandbox) -> None:
    sandbox = await make_sandbox(arrivals_max=2)
    for number in range(3):
        await charge(sandbox, f"o-{number}")
    seen = (await control(sandbox, "GET", "requests")).json
    assert [item["order"] for item in seen["requests"]] == ["o-1", "o-2"]
    assert (seen["total"], seen["dropped"], seen["requests_max"]) == (3, 1, 2)


async def test_a_schedule_is_put_shown_and_deleted(sandbox) -> None:
    source = {"seed": 9, "faults": {"rate_limited(retry_after_s=3)": 1.0}}
    put = await control(sandbox, "PUT", "faults", source)
    assert (put.json["schedule"], put.json["seed"]) == (source, 9)
    assert (await charge(sandbox)).headers["retry-after"] == "3"
    assert (await control(sandbox, "GET", "faults")).json["schedule"] == source
    assert (await control(sandbox, "DELETE", "faults")).json["schedule"] == {}
    assert (await charge(sandbox)).status_code == 200


async def test_a_bad_schedule_leaves_the_one_in_force(sandbox) -> None:
    await control(sandbox, "PUT", "faults", {"faults": {"error_503": 1.0}})
    seen = await control(sandbox, "PUT", "faults", {"faults": {"no_such": 1.0}})
    assert (seen.status_code, seen.error["code"]) == (400, "unknown_fault")
    assert seen.error["known_faults"] == sorted(FAULTS)
    assert (await charge(sandbox)).status_code == 503


async def test_the_contract_is_put(sandbox) -> None:
    assert (await control(sandbox, "PUT", "contract", {"contract": "none"})).json["contract"] == "none"
    for _ in range(2):
        await charge(sandbox, key="k-1")
    assert sandbox.ledger.effects(key="k-1") == 2
    assert (await control(sandbox, "PUT", "contract", {"contract": "some"})).status_code == 400
    assert (await control(sandbox, "PUT", "contract", {})).status_code == 400


async def test_an_outage_begins_now_and_its_announcement_is_answered(sandbox) -> None:
    seen = await control(sandbox, "POST", "outage", {"mode": "refuse", "duration_s": 0.4})
    assert seen.status_code == 200
    await until(lambda: not sandbox.listening)
    await until(lambda: sandbox.listening)
    await control(sandbox, "POST", "outage", {"mode": "hang", "duration_s": 60})
    assert (await charge(sandbox, wait_s=0.05)).end == SILENCE
    assert (await control(sandbox, "POST", "outage", {"mode": "sulk", "duration_s": 1})).status_code == 400
    assert (await control(sandbox, "POST", "outage", {"mode": "hang"})).status_code == 400


async def test_a_reset_begins_anew_and_no_late_commit_reaches_the_fresh_ledger(sandbox) -> None:
    await charge(sandbox, key="k-1")
    sandbox.set_contract("none")
    late = asyncio.create_task(charge(sandbox, key="k-2", fault="late_commit(late_s=60)"))
    await until(lambda: sandbox.under_way == 1)
    assert (await control(sandbox, "POST", "reset")).json == {"reset": True, "contract": "replayed"}
    await late
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.ledger.effects() == 0
    assert len(sandbox.arrivals.arrivals) == 0
    assert "idempotent-replayed" not in (await charge(sandbox, key="k-1")).headers


@pytest.mark.parametrize(("method", "path"), [("GET", "nothing"), ("POST", "ledger"), ("GET", "charges/ch_1/settle")])
async def test_a_control_route_that_is_none_lists_those_there_are(sandbox, method, path) -> None:
    seen = await control(sandbox, method, path)
    assert seen.status_code == 404
    assert "GET /_sandbox/" in seen.error["routes"]


async def test_settling_names_its_mistakes(sandbox) -> None:
    assert (await control(sandbox, "POST", "charges/ch_none/settle")).status_code == 404
    name = (await charge(sandbox, source="tok_3ds")).json["id"]
    assert (await control(sandbox, "POST", f"charges/{name}/settle", {"status": "maybe"})).status_code == 400
    assert (await control(sandbox, "POST", f"charges/{name}/settle", b"{")).status_code == 400


async def test_control_requests_are_no_arrivals_and_meet_no_faults(sandbox) -> None:
    await control(sandbox, "PUT", "faults", {"faults": {"error_503": 1.0}})
    assert (await control(sandbox, "GET", "ledger")).status_code == 200
    assert sandbox.arrivals.total == 0
