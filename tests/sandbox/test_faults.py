"""Every fault, twice: what the caller sees on the wire, and what the ledger says about the money."""

from __future__ import annotations

import asyncio

import httptools
import pytest

from paywitness_sandbox.faults.registry import FAULTS, describe_faults, parse_fault
from tests.sandbox.raw_client import (
    FIN,
    RESET,
    SILENCE,
    Seen,
    call,
    charge,
    charge_body,
    read_response,
    request_bytes,
    until,
)

BEFORE_COMMIT = {
    "reset_before_read",
    "close_before_commit",
    "reset_before_commit",
    "hang_before_commit",
    "html_502",
    "error_500_before_commit",
    "error_503",
    "rate_limited",
    "unauthorized",
    "declined",
}
PUBLIC_NAMES = BEFORE_COMMIT | {
    "drop_after_commit",
    "reset_after_commit",
    "hang_after_commit",
    "late_response",
    "late_commit",
    "black_hole",
    "truncated_body",
    "truncated_head",
    "bad_chunk",
    "wrong_length",
    "garbage",
    "empty_200",
    "html_504_after_commit",
    "error_500_after_commit",
    "wrong_amount",
    "foreign_response",
    "drip",
    "slow",
    "extra_response",
}
QUICK = {
    "drip": "drip(drip_s=0.05)",
    "slow": "slow(slow_s=0.01)",
    "late_commit": "late_commit(late_s=0.01,hang_s=0.02)",
    "black_hole": "black_hole(heal_s=0.02,hang_s=0.01)",
}


class Parsed:
    """What an HTTP client would make of the bytes."""

    def __init__(self, raw: bytes) -> None:
        self.complete = 0
        self.broken = False
        try:
            httptools.HttpResponseParser(self).feed_data(raw)
        except httptools.HttpParserError:
            self.broken = True

    def on_message_complete(self) -> None:
        self.complete += 1


def test_the_public_names_are_all_there_in_order() -> None:
    assert list(FAULTS) == sorted(PUBLIC_NAMES)


def test_every_fault_says_what_it_does_to_the_money() -> None:
    for name, does in describe_faults({}).items():
        expected = (
            "No effect." if name.partition("(")[0] in BEFORE_COMMIT else ("The money moves", "The right amount moves")
        )
        assert does.startswith(expected), name


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
async def test_the_ledger_agrees_with_what_the_fault_says_about_the_money(sandbox, name) -> None:
    await charge(sandbox, key="k-1", fault=QUICK.get(name, name), wait_s=0.3)
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.ledger.effects(key="k-1") == (0 if name in BEFORE_COMMIT else 1)
    assert [(arrival.fault, arrival.effects) for arrival in sandbox.arrivals.arrivals] == [
        (name, sandbox.ledger.effects())
    ]


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
async def test_the_next_arrival_under_the_key_is_served_and_never_charges_a_second_time(sandbox, name) -> None:
    await charge(sandbox, key="k-1", fault=QUICK.get(name, name), wait_s=0.3)
    await until(lambda: sandbox.under_way == 0)
    again = await charge(sandbox, key="k-1")
    stored = {"error_500_before_commit": 500, "error_500_after_commit": 500, "declined": 402}.get(name, 200)
    assert again.status_code == stored
    assert sandbox.ledger.effects(order="o-1") == (1 if stored == 200 or name == "error_500_after_commit" else 0)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("close_before_commit", FIN),
        ("reset_before_commit", RESET),
        ("drop_after_commit", FIN),
        ("reset_after_commit", RESET),
        ("reset_before_read", RESET),
    ],
)
async def test_a_broken_connection_brings_no_byte(sandbox, name, end) -> None:
    seen = await charge(sandbox, key="k-1", fault=name)
    assert (seen.raw, seen.end) == (b"", end)
    assert sandbox.arrivals.arrivals[0].answered is None


async def test_reset_before_read_does_not_wait_for_the_body(sandbox) -> None:
    head = request_bytes("POST", "/v1/charges", charge_body("o-1"), key="k-1", fault="reset_before_read")
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    assert sandbox.ledger.effects() == 0


@pytest.mark.parametrize("name", ["hang_before_commit", "hang_after_commit", "late_commit"])
async def test_a_hang_says_nothing_and_is_bounded(sandbox, name) -> None:
    assert (await charge(sandbox, key="k-1", fault=f"{name}(hang_s=30)", wait_s=0.1)) == Seen(b"", SILENCE)
    assert (await charge(sandbox, key="k-2", fault=f"{name}(hang_s=0.05)")) == Seen(b"", FIN)


async def test_a_late_response_comes_after_the_money_moved(sandbox) -> None:
    waiting = asyncio.create_task(charge(sandbox, fault="late_response(late_s=60)"))
    await until(lambda: sandbox.ledger.effects() == 1)
    assert not waiting.done()
    waiting.cancel()
    assert (await charge(sandbox, fault="late_response(late_s=0.01)")).status_code == 200


async def test_until_a_late_commit_there_is_nothing_to_find_but_the_key_is_in_use(sandbox) -> None:
    await charge(sandbox, key="k-1", fault="late_commit(late_s=60)", wait_s=0.05)
    assert (await call(sandbox, "GET", "/v1/charges?order=o-1")).json["data"] == []
    again = await charge(sandbox, key="k-1")
    assert (again.status_code, again.error["code"]) == (409, "idempotency_key_in_use")
    assert sandbox.ledger.effects() == 0


async def test_a_late_commit_happens_although_the_caller_left(sandbox) -> None:
    await charge(sandbox, key="k-1", fault="late_commit(late_s=0.2)", wait_s=0.01)
    await until(lambda: sandbox.ledger.effects(key="k-1") == 1)
    assert (await charge(sandbox, key="k-1")).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("hang_s", "end"), [(0, RESET), (60, SILENCE)])
async def test_a_black_hole_is_silent_or_resets_and_commits_after_inquiries_found_nothing(sandbox, hang_s, end) -> None:
    seen = await charge(sandbox, key="k-1", fault=f"black_hole(heal_s=0.4,hang_s={hang_s})", wait_s=0.1)
    assert seen == Seen(b"", end)
    for query in ("order=o-1", "key=k-1"):
        assert (await call(sandbox, "GET", f"/v1/charges?{query}")).json["data"] == []
    assert sandbox.ledger.effects() == 0
    assert (await charge(sandbox, key="k-1")).error["code"] == "idempotency_key_in_use"
    await until(lambda: sandbox.ledger.effects(key="k-1") == 1)
    assert len((await call(sandbox, "GET", "/v1/charges?order=o-1")).json["data"]) == 1
    assert (await charge(sandbox, key="k-1")).headers["idempotent-replayed"] == "true"
    assert sandbox.ledger.effects() == 1


async def test_a_black_hole_in_front_of_the_door_leaves_the_key_free(sandbox) -> None:
    await charge(sandbox, key="k-1", fault="black_hole(heal_s=0.3,hang_s=0,key_free=1)")
    again = await charge(sandbox, key="k-1")
    assert (again.status_code, sandbox.ledger.effects()) == (200, 1)
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.ledger.effects() == 1
    assert sandbox.arrivals.arrivals[0].replayed


async def test_what_comes_out_of_a_black_hole_charges_again_where_keys_mean_nothing(sandbox) -> None:
    await charge(sandbox, key="k-1", contract="none", fault="black_hole(heal_s=0.1,hang_s=0,key_free=1)")
    await charge(sandbox, key="k-1", contract="none")
    await until(lambda: sandbox.under_way == 0)
    assert sandbox.ledger.duplicates_by_order() == {"o-1": 2}


async def test_a_truncated_body_is_shorter_than_it_says(sandbox) -> None:
    seen = await charge(sandbox, fault="truncated_body")
    assert seen.status_code == 200
    assert 0 < len(seen.body) < int(seen.headers["content-length"])
    assert Parsed(seen.raw).complete == 0
    assert sandbox.arrivals.arrivals[0].answered is None


async def test_a_truncated_head_never_ends(sandbox) -> None:
    seen = await charge(sandbox, fault="truncated_head")
    assert seen.raw.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\n\r\n" not in seen.raw
    assert seen.end == FIN


@pytest.mark.parametrize("name", ["bad_chunk", "garbage"])
async def test_what_is_no_http_does_not_parse(sandbox, name) -> None:
    parsed = Parsed((await charge(sandbox, fault=name)).raw)
    assert parsed.broken
    assert parsed.complete == 0


async def test_a_wrong_length_leaves_bytes_on_the_open_connection(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(request_bytes("POST", "/v1/charges", charge_body("o-1"), fault="wrong_length", keep_alive=True))
    first = await read_response(reader)
    assert len(await reader.readexactly(10)) == 10
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
        _ = first.json
    writer.write(request_bytes("GET", "/v1/charges?order=o-1", keep_alive=True))
    assert (await read_response(reader)).status_code == 200
    writer.close()


async def test_an_extra_response_waits_on_the_open_connection(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(request_bytes("POST", "/v1/charges", charge_body("o-1"), fault="extra_response", keep_alive=True))
    first, second = await read_response(reader), await read_response(reader)
    assert first == second
    assert first.json["status"] == "succeeded"
    writer.close()


async def test_an_empty_200_has_no_body(sandbox) -> None:
    seen = await charge(sandbox, fault="empty_200")
    assert (seen.status_code, seen.headers["content-length"], seen.body) == (200, "0", b"")


@pytest.mark.parametrize(("name", "status_code"), [("html_502", 502), ("html_504_after_commit", 504)])
async def test_a_gateway_answers_with_a_page(sandbox, name, status_code) -> None:
    seen = await charge(sandbox, fault=name)
    assert (seen.status_code, seen.headers["content-type"]) == (status_code, "text/html")
    assert seen.body.startswith(b"<html>")


@pytest.mark.parametrize(
    ("name", "status_code", "kind"),
    [
        ("error_500_before_commit", 500, "api_error"),
        ("error_500_after_commit", 500, "api_error"),
        ("error_503", 503, "api_error"),
        ("rate_limited", 429, "rate_limit_error"),
        ("unauthorized", 401, "authentication_error"),
        ("declined", 402, "card_error"),
    ],
)
async def test_an_error_is_told_in_the_providers_shape(sandbox, name, status_code, kind) -> None:
    seen = await charge(sandbox, fault=name)
    assert (seen.status_code, seen.error["type"]) == (status_code, kind)
    assert sandbox.arrivals.arrivals[0].answered == status_code


async def test_a_rate_limit_says_when_to_come_back(sandbox) -> None:
    assert (await charge(sandbox, fault="rate_limited")).headers["retry-after"] == "1"
    assert (await charge(sandbox, fault="rate_limited(retry_after_s=30)")).headers["retry-after"] == "30"


async def test_a_wrong_amount_is_only_in_the_answer(sandbox) -> None:
    seen = await charge(sandbox, fault="wrong_amount(by_minor=5)")
    assert seen.json["amount"] == 1005
    assert [entry.amount for entry in sandbox.ledger.entries] == [1000]


async def test_a_foreign_response_is_another_orders_charge(sandbox) -> None:
    other = await charge(sandbox, "o-other")
    seen = await charge(sandbox, "o-1", fault="foreign_response")
    assert seen.json["id"] == other.json["id"]
    assert sandbox.ledger.charges_by_order() == {"o-other": 1, "o-1": 1}


async def test_the_first_foreign_response_is_invented(sandbox) -> None:
    seen = await charge(sandbox, "o-1", fault="foreign_response")
    assert seen.json["id"] != sandbox.ledger.entries[0].charge
    assert (seen.json["order"], seen.json["amount"]) == (None, 5200)


async def test_a_dripped_answer_is_whole_in_the_end(sandbox) -> None:
    seen = await charge(sandbox, fault="drip(drip_s=0.05)")
    assert seen.json["status"] == "succeeded"


async def test_a_slow_answer_is_a_good_one(sandbox) -> None:
    started = asyncio.get_running_loop().time()
    assert (await charge(sandbox, fault="slow(slow_s=0.05)")).status_code == 200
    assert asyncio.get_running_loop().time() - started >= 0.04  # a loop may count whole milliseconds


@pytest.mark.parametrize("name", ["drop_after_commit", "html_504_after_commit", "truncated_body", "reset_after_commit"])
async def test_a_fault_on_a_stored_answer_spoils_the_wire_but_charges_nothing(sandbox, name) -> None:
    await charge(sandbox, key="k-1")
    spoilt = await charge(sandbox, key="k-1", fault=name)
    assert Parsed(spoilt.raw).complete == 0 or spoilt.status_code == 504
    assert sandbox.ledger.effects() == 1
    assert [arrival.replayed for arrival in sandbox.arrivals.arrivals] == [False, True]


async def test_a_stored_success_is_not_turned_into_a_decline(sandbox) -> None:
    await charge(sandbox, key="k-1")
    assert (await charge(sandbox, key="k-1", fault="declined")).status_code == 200


@pytest.mark.parametrize("name", ["error_500_after_commit", "wrong_amount", "foreign_response"])
async def test_what_was_never_executed_is_refused_as_ever(sandbox, name) -> None:
    seen = await call(sandbox, "POST", "/v1/charges", {"currency": "EUR"}, fault=name)
    assert (seen.status_code, seen.error["param"]) == (400, "amount")


async def test_faults_befall_reads_too(sandbox) -> None:
    await charge(sandbox)
    assert (await call(sandbox, "GET", "/v1/charges?order=o-1", fault="html_502")).status_code == 502
    assert (await call(sandbox, "GET", "/v1/charges?order=o-1", fault="reset_before_commit")).end == RESET


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no_such_fault", "unknown fault"),
        ("slow(fast=1)", "no parameter 'fast'; it has: slow_s"),
        ("slow(slow_s=soon)", "not a number"),
        ("slow(slow_s=nan)", "from 0 to 3600"),
        ("slow(slow_s=-1)", "from 0 to 3600"),
        ("rate_limited(retry_after_s=1.5)", "not a whole number"),
        ("slow(", "unknown fault"),
    ],
)
def test_a_call_for_a_fault_that_is_none_says_why(text, complaint) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        parse_fault(text, {})


def test_the_sandboxes_own_defaults_are_the_faults() -> None:
    assert parse_fault("hang_after_commit", {"hang_s": 7.0}) == parse_fault("hang_after_commit(hang_s=7)", {})
    assert "hang_after_commit(hang_s=7)" in describe_faults({"hang_s": 7.0})


@pytest.mark.slow
async def test_in_any_weather_the_ledger_and_the_log_of_arrivals_agree(make_sandbox) -> None:
    quick = {name: name for name in PUBLIC_NAMES} | QUICK
    schedule = {"faults": {call_for: 1 / len(quick) for call_for in quick.values()}}
    sandbox = await make_sandbox(seed=11, hang_s=0.02, late_s=0.02, schedule=schedule)
    for _ in range(4):
        await asyncio.gather(*(charge(sandbox, f"o-{number}", key=f"k-{number}") for number in range(100)))
        await until(lambda: sandbox.under_way == 0)
    assert sum(arrival.effects for arrival in sandbox.arrivals.arrivals) == len(sandbox.ledger)
    assert sandbox.arrivals.total == 400
    assert sandbox.ledger.duplicates_by_order() == {}
    assert {arrival.fault for arrival in sandbox.arrivals.arrivals} == PUBLIC_NAMES
