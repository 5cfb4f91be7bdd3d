"""The Sandbox-Fault header: a script by arrival of one request's identity."""

from __future__ import annotations

import pytest

from paywitness_sandbox.faults.registry import FAULTS, UnknownFault, parse_script
from tests.sandbox.raw_client import call, charge, charge_body


async def status_codes(sandbox, times: int, **more) -> list[int | None]:
    return [(await charge(sandbox, **more)).status_code for _ in range(times)]


async def test_each_arrival_gets_its_item_and_then_none(sandbox) -> None:
    script = "error_503, rate_limited(retry_after_s=7)"
    assert await status_codes(sandbox, 4, key="k-1", fault=script) == [503, 429, 200, 200]


async def test_a_dash_lets_one_arrival_through(sandbox) -> None:
    assert await status_codes(sandbox, 3, key="k-1", fault="error_503,-,html_502") == [503, 200, 502]


async def test_a_star_goes_on_for_ever(sandbox) -> None:
    assert await status_codes(sandbox, 4, key="k-1", fault="-,error_503*") == [200, 503, 503, 503]


async def test_identity_is_the_key_before_the_order(sandbox) -> None:
    assert await status_codes(sandbox, 1, key="k-1", fault="error_503") == [503]
    assert await status_codes(sandbox, 1, key="k-2", fault="error_503") == [503]


async def test_without_a_key_identity_is_the_order(sandbox) -> None:
    first = await call(sandbox, "POST", "/v1/charges", charge_body("o-1"), fault="error_503")
    second = await call(sandbox, "POST", "/v1/charges", charge_body("o-1", note="other bytes"), fault="error_503")
    third = await call(sandbox, "POST", "/v1/orders/o-1/pay", charge_body(), fault="error_503")
    other = await call(sandbox, "POST", "/v1/charges", charge_body("o-2"), fault="error_503")
    assert [seen.status_code for seen in (first, second, third, other)] == [503, 200, 200, 503]


async def test_without_key_and_order_identity_is_the_bytes(sandbox) -> None:
    one, two = charge_body(amount=1), charge_body(amount=2)
    seen = [await call(sandbox, "POST", "/v1/charges", body, fault="error_503") for body in (one, two, one)]
    assert [answer.status_code for answer in seen] == [503, 503, 200]


async def test_another_script_for_the_same_identity_begins_anew(sandbox) -> None:
    assert await status_codes(sandbox, 2, key="k-1", fault="error_503") == [503, 200]
    assert await status_codes(sandbox, 1, key="k-1", fault="html_502") == [502]


async def test_an_arrival_without_the_header_is_not_counted(sandbox) -> None:
    await charge(sandbox, key="k-1")
    assert (await charge(sandbox, key="k-1", fault="html_502")).status_code == 502


async def test_an_unknown_fault_is_refused_with_the_list_and_changes_nothing(sandbox) -> None:
    seen = await charge(sandbox, fault="drop_after_comit")
    assert (seen.status_code, seen.error["code"]) == (400, "unknown_fault")
    assert seen.error["known_faults"] == sorted(FAULTS)
    assert sandbox.ledger.effects() == 0


async def test_the_header_wins_over_the_schedule(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"faults": {"error_503": 1.0}})
    assert await status_codes(sandbox, 1) == [503]
    assert await status_codes(sandbox, 3, key="k-1", fault="-,html_502") == [200, 502, 200]


@pytest.mark.parametrize("text", ["error_503*,-", "", "error_503,,", "*", ",".join(["-"] * 101)])
def test_a_script_that_makes_no_sense_is_refused(text) -> None:
    with pytest.raises(UnknownFault):
        parse_script(text, {})
