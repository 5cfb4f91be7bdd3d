"""What a repeated key means, under each contract."""

from __future__ import annotations

import asyncio

import pytest

from paywitness_sandbox.contract import Contract
from tests.sandbox.raw_client import RESET, call, charge, charge_body, until

STORING = [Contract.REPLAYED, Contract.REEXECUTED, Contract.NOT_STORED]


@pytest.mark.parametrize("contract", STORING)
async def test_a_success_is_replayed(sandbox, contract) -> None:
    sandbox.set_contract(contract)
    first, second = await charge(sandbox, key="k-1"), await charge(sandbox, key="k-1")
    assert first.body == second.body
    assert ("idempotent-replayed" in first.headers, second.headers["idempotent-replayed"]) == (False, "true")
    assert sandbox.ledger.effects(key="k-1") == 1


@pytest.mark.parametrize("contract", STORING)
async def test_a_lost_answer_is_replayed(sandbox, contract) -> None:
    sandbox.set_contract(contract)
    assert (await charge(sandbox, key="k-1", fault="reset_after_commit")).end == RESET
    assert (await charge(sandbox, key="k-1")).json["status"] == "succeeded"
    assert sandbox.ledger.effects(key="k-1") == 1


async def test_without_a_contract_every_arrival_charges(sandbox) -> None:
    sandbox.set_contract("none")
    first, second = await charge(sandbox, key="k-1"), await charge(sandbox, key="k-1")
    assert first.json["id"] != second.json["id"]
    assert sandbox.ledger.effects(key="k-1") == 2
    assert sandbox.ledger.duplicates_by_order() == {"o-1": 2}


@pytest.mark.parametrize(
    ("contract", "status_codes", "effects"),
    [
        (Contract.REPLAYED, [500, 500], 1),
        (Contract.REEXECUTED, [500, 200], 1),
        (Contract.NOT_STORED, [500, 200], 2),
        (Contract.NONE, [500, 200], 2),
    ],
)
async def test_what_a_500_after_the_commit_costs(sandbox, contract, status_codes, effects) -> None:
    sandbox.set_contract(contract)
    seen = [await charge(sandbox, key="k-1", fault="error_500_after_commit") for _ in range(2)]
    assert [answer.status_code for answer in seen] == status_codes
    assert sandbox.ledger.effects(order="o-1") == effects


@pytest.mark.parametrize(
    ("contract", "status_codes", "effects"),
    [
        (Contract.REPLAYED, [500, 500], 0),
        (Contract.REEXECUTED, [500, 200], 1),
        (Contract.NOT_STORED, [500, 200], 1),
        (Contract.NONE, [500, 200], 1),
    ],
)
async def test_what_a_500_before_the_commit_leaves(sandbox, contract, status_codes, effects) -> None:
    sandbox.set_contract(contract)
    seen = [await charge(sandbox, key="k-1", fault="error_500_before_commit") for _ in range(2)]
    assert [answer.status_code for answer in seen] == status_codes
    assert sandbox.ledger.effects(order="o-1") == effects


@pytest.mark.parametrize(
    ("contract", "executed"),
    [
        (Contract.REPLAYED, [True, False]),
        (Contract.REEXECUTED, [True, True]),
        (Contract.NOT_STORED, [True, True]),
        (Contract.NONE, [True, True]),
    ],
)
async def test_whether_a_decline_is_asked_again(sandbox, contract, executed) -> None:
    sandbox.set_contract(contract)
    for _ in range(2):
        assert (await charge(sandbox, key="k-1", source="tok_insufficient_funds")).status_code == 402
    assert [arrival.executed for arrival in sandbox.arrivals.arrivals] == executed
    assert sandbox.ledger.effects() == 0


@pytest.mark.parametrize(
    ("contract", "replayed"), [(Contract.REPLAYED, True), (Contract.REEXECUTED, False), (Contract.NOT_STORED, True)]
)
async def test_a_decline_told_in_a_200_is_failed_work_in_a_stored_status(sandbox, contract, replayed) -> None:
    sandbox.set_contract(contract)
    for _ in range(2):
        seen = await charge(sandbox, key="k-1", source="tok_failed_200_do_not_honor")
        assert (seen.status_code, seen.json["failure_code"]) == (200, "do_not_honor")
    assert sandbox.arrivals.arrivals[1].replayed is replayed


@pytest.mark.parametrize("fault", ["rate_limited", "unauthorized", "error_503", "html_502"])
async def test_what_was_refused_in_front_is_stored_by_nobody(sandbox, fault) -> None:
    await charge(sandbox, key="k-1", fault=fault)
    assert (await charge(sandbox, key="k-1")).status_code == 200
    assert sandbox.ledger.effects(key="k-1") == 1


async def test_an_invalid_request_is_not_stored_so_the_key_takes_a_better_one(sandbox) -> None:
    assert (await call(sandbox, "POST", "/v1/charges", {"currency": "EUR"}, key="k-1")).status_code == 400
    assert (await charge(sandbox, key="k-1")).status_code == 200


async def test_another_body_under_the_key_is_refused(sandbox) -> None:
    await charge(sandbox, key="k-1")
    seen = await charge(sandbox, "o-2", key="k-1")
    assert (seen.status_code, seen.error["type"]) == (400, "idempotency_error")
    assert sandbox.ledger.effects() == 1


async def test_another_path_under_the_key_is_refused(sandbox) -> None:
    first = await charge(sandbox, key="k-1")
    seen = await call(sandbox, "POST", f"/v1/charges/{first.json['id']}/refunds", {}, key="k-1")
    assert (seen.status_code, seen.error["type"]) == (400, "idempotency_error")


@pytest.mark.parametrize("contract", STORING)
async def test_a_second_request_is_told_that_the_first_is_running(sandbox, contract) -> None:
    sandbox.set_contract(contract)
    first = asyncio.create_task(charge(sandbox, key="k-1", fault="slow(slow_s=60)"))
    await until(lambda: sandbox.under_way == 1 and sandbox.arrivals.arrivals[0].order == "o-1")
    second = await charge(sandbox, key="k-1")
    assert (second.status_code, second.error["code"]) == (409, "idempotency_key_in_use")
    assert sandbox.ledger.effects(key="k-1") == 0
    first.cancel()


async def test_a_hang_after_the_commit_holds_the_key_no_longer(sandbox) -> None:
    hanging = asyncio.create_task(charge(sandbox, key="k-1", fault="hang_after_commit"))
    await until(lambda: sandbox.ledger.effects() == 1)
    assert (await charge(sandbox, key="k-1")).headers["idempotent-replayed"] == "true"
    await hanging


async def test_a_hang_before_the_commit_frees_the_key_when_the_caller_leaves(sandbox) -> None:
    await charge(sandbox, key="k-1", fault="hang_before_commit(hang_s=30)", wait_s=0.05)
    await until(lambda: sandbox.under_way == 0)
    assert (await charge(sandbox, key="k-1")).status_code == 200


async def test_a_hundred_at_once_under_one_key_charge_once(sandbox) -> None:
    seen = await asyncio.gather(*(charge(sandbox, key="k-1") for _ in range(100)))
    assert {answer.status_code for answer in seen} <= {200, 409}
    assert sandbox.ledger.effects(key="k-1") == 1


async def test_after_its_window_a_key_is_forgotten(make_sandbox) -> None:
    now = [1_000_000.0]
    sandbox = await make_sandbox(key_window_s=3600, clock=lambda: now[0])
    await charge(sandbox, key="k-1")
    now[0] += 3599
    await charge(sandbox, key="k-1")
    assert sandbox.ledger.effects(key="k-1") == 1
    now[0] += 2
    await charge(sandbox, key="k-1")
    assert sandbox.ledger.effects(key="k-1") == 2


async def test_a_key_is_forgotten_also_behind_one_that_is_still_running(make_sandbox) -> None:
    now = [1_000_000.0]
    sandbox = await make_sandbox(key_window_s=3600, clock=lambda: now[0])
    running = asyncio.create_task(charge(sandbox, "o-0", key="k-0", fault="slow(slow_s=60)"))
    await until(lambda: sandbox.arrivals.total == 1 and sandbox.arrivals.arrivals[0].order == "o-0")
    await charge(sandbox, key="k-1")
    now[0] += 3601
    await charge(sandbox, key="k-1")
    assert sandbox.ledger.effects(key="k-1") == 2
    assert (await charge(sandbox, "o-0", key="k-0")).status_code == 409
    running.cancel()


async def test_a_header_chooses_the_contract_of_one_request(sandbox) -> None:
    await charge(sandbox, key="k-1")
    assert "idempotent-replayed" not in (await charge(sandbox, key="k-1", contract="none")).headers
    assert "idempotent-replayed" in (await charge(sandbox, key="k-1")).headers
    seen = await charge(sandbox, contract="eventually")
    assert (seen.status_code, seen.error["type"]) == (400, "sandbox_error")
    assert seen.error["known_contracts"] == list(Contract)


async def test_a_key_on_a_read_means_nothing(sandbox) -> None:
    await charge(sandbox, key="k-1")
    assert (await call(sandbox, "GET", "/v1/charges?order=o-1", key="k-1")).status_code == 200


async def test_a_key_of_256_characters_is_too_long(sandbox) -> None:
    assert (await charge(sandbox, key="k" * 255)).status_code == 200
    assert (await charge(sandbox, key="k" * 256)).error["code"] == "idempotency_key_too_long"


async def test_without_a_key_two_equal_requests_are_two_charges(sandbox) -> None:
    for _ in range(2):
        await call(sandbox, "POST", "/v1/charges", charge_body("o-1"))
    assert sandbox.ledger.duplicates_by_order() == {"o-1": 2}


@pytest.mark.parametrize("header", ["Acme-Account", "Stripe-Account"])
async def test_the_same_key_of_two_accounts_is_two_keys(sandbox, header) -> None:
    async def paid(account: str | None, order: str):
        return await charge(sandbox, order, key="k-1", headers={} if account is None else {header: account})

    first = [await paid(account, order) for account, order in (("m-1", "o-1"), ("m-2", "o-2"), (None, "o-3"))]
    again = [await paid(account, order) for account, order in (("m-1", "o-1"), ("m-2", "o-2"), (None, "o-3"))]
    assert [seen.json["id"] for seen in again] == [seen.json["id"] for seen in first]
    assert [seen.headers["idempotent-replayed"] for seen in again] == ["true"] * 3
    assert (await paid("m-1", "o-2")).error["code"] == "idempotency_key_reused"
    assert [entry.account for entry in sandbox.ledger.find(key="k-1")] == ["m-1", "m-2", None]
    assert sandbox.ledger.effects(key="k-1", account="m-2") == 1


async def test_a_key_in_use_by_one_account_is_free_for_another(sandbox) -> None:
    waiting = asyncio.create_task(
        charge(sandbox, key="k-1", fault="late_commit(late_s=0.3)", headers={"Acme-Account": "m-1"})
    )
    await until(lambda: sandbox.under_way == 1)
    assert (await charge(sandbox, key="k-1", headers={"Acme-Account": "m-1"})).error["code"] == "idempotency_key_in_use"
    assert (await charge(sandbox, key="k-1", headers={"Acme-Account": "m-2"})).status_code == 200
    await waiting


async def test_a_script_of_faults_counts_the_arrivals_of_each_account(sandbox) -> None:
    seen = [
        await charge(sandbox, key="k-1", fault="error_503,-", headers={"Acme-Account": account})
        for account in ("m-1", "m-2", "m-1", "m-2")
    ]
    assert [answer.status_code for answer in seen] == [503, 503, 200, 200]
