"""The life of a call, with the sandbox's ledger as the judge."""

from __future__ import annotations

import asyncio
import json

import pytest

from paywitness.core.call import CallerOptions
from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, header, make_world, outcome, problem_type, until

LOSING_FAULTS = [
    "drop_after_commit",
    "reset_after_commit",
    "close_before_commit",
    "reset_before_commit",
    "reset_before_read",
    "truncated_body",
    "truncated_head",
    "bad_chunk",
    "wrong_length",
    "garbage",
    "empty_200",
    "html_502",
    "html_504_after_commit",
]
NO_KEY = ("send_as: header:Idempotency-Key          # where Acme takes the key", "send_as: none")
NO_KEY_EDITS = (
    NO_KEY,
    ("  window: 24h ", "  # window: 24h "),
    ("  max_length: 255", "  # max_length"),
    ("  errors_under_key: replayed ", "  # errors_under_key: replayed "),
    ("  key_space: account ", "  # key_space: account "),
)


async def the_operation(world: World, reply_operation: str | None):
    found = await world.journal.read(reply_operation or "")
    assert found is not None
    return found


async def test_a_clean_call_is_passed_through_untouched_with_one_effect(world: World) -> None:
    reply = await world.charge()
    assert reply.status_code == 200
    assert json.loads(reply.body)["status"] == "succeeded"
    assert outcome(reply) == "succeeded"
    assert header(reply, "Paywitness-Attempts") == "1"
    assert world.effects(order="order-1") == 1


@pytest.mark.parametrize("fault", LOSING_FAULTS)
async def test_a_lost_answer_is_fetched_with_the_same_key_and_charges_once(world: World, fault: str) -> None:
    reply = await world.charge(fault=fault)
    assert (reply.status_code, outcome(reply)) == (200, "succeeded")
    assert header(reply, "Paywitness-Attempts") == "2"
    assert world.effects(order="order-1") == 1
    assert {arrival.key for arrival in world.arrivals if arrival.order == "order-1"} == {"key-1"}


async def test_every_attempt_sends_the_bytes_of_the_first(sandbox: Sandbox) -> None:
    received: list[bytes] = []

    async def raw_provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split()[1]
        )
        received.append(head + await reader.readexactly(length))
        writer.close()

    server = await asyncio.start_server(raw_provider, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    world = await make_world(sandbox, (sandbox.url, f"http://127.0.0.1:{port}"))
    first = await world.charge()
    again = await world.charge(headers={"X-New": "a header of the repeat"})
    assert (first.status_code, again.status_code) == (504, 504)
    assert len(received) == 6
    assert len(set(received)) == 1
    await close(world)
    server.close()


async def test_each_attempt_keeps_what_the_provider_calls_the_request(world: World) -> None:
    """What its support asks for first. An attempt without an answer has none."""
    await world.charge(fault="drop_after_commit")
    [operation] = await world.journal.find_operations(OperationQuery())
    attempts = [entry.attempt for entry in await world.journal.history(operation.id) if entry.attempt is not None]
    assert [attempt.status_code for attempt in attempts] == [None, 200]
    lost, answered = (attempt.request_id for attempt in attempts)
    assert lost is None
    assert answered is not None
    assert answered.startswith("req_")


@pytest.mark.parametrize("fault", ["drop_after_commit", "truncated_body", "garbage", "html_502"])
async def test_without_idempotency_a_lost_answer_is_unknown_and_never_sent_again(sandbox: Sandbox, fault: str) -> None:
    world = await make_world(sandbox, *NO_KEY_EDITS)
    reply = await world.charge(fault=fault, contract="none")
    arrived = len(world.arrivals)
    assert (reply.status_code, outcome(reply), problem_type(reply)) == (504, "unknown", "unknown")
    assert json.loads(reply.body)["advice"] == "do_not_pay_again"
    repeat = await world.charge(contract="none")
    assert (repeat.status_code, outcome(repeat)) == (504, "unknown")
    assert json.loads(repeat.body)["sent"] is False
    assert len(world.arrivals) == arrived == 1
    assert world.effects(order="order-1") <= 1
    await close(world)


@pytest.mark.parametrize(
    ("script", "contract"),
    [
        ("drop_after_commit,unauthorized*", "replayed"),
        pytest.param("drop_after_commit,rate_limited(retry_after_s=0)*", "replayed", marks=pytest.mark.slow),
        ("close_before_commit,declined*", "reexecuted"),
    ],
)
async def test_the_refusal_of_a_re_send_is_never_passed_on(sandbox: Sandbox, script: str, contract: str) -> None:
    world = await make_world(sandbox, ("errors_under_key: replayed", f"errors_under_key: {contract}"))
    reply = await world.charge(fault=script, contract=contract)
    assert (reply.status_code, outcome(reply), problem_type(reply)) == (504, "unknown", "unknown")
    assert world.effects(order="order-1") <= 1
    operation = await the_operation(world, header(reply, "Paywitness-Operation"))
    assert operation.doubt == {1}
    await close(world)


async def test_after_a_decline_of_the_re_send_nothing_is_charged_again(sandbox: Sandbox) -> None:
    """Under `reexecuted` a third send would be a new charge after a decline."""
    world = await make_world(sandbox, ("errors_under_key: replayed", "errors_under_key: reexecuted"))
    await world.charge(fault="close_before_commit,declined", contract="reexecuted")
    repeat = await world.charge(contract="reexecuted")
    assert repeat.status_code == 504
    assert len(world.arrivals) == 2
    assert world.effects(order="order-1") == 0
    await close(world)


async def test_a_decline_of_the_re_send_settles_all_where_every_answer_is_stored(world: World) -> None:
    reply = await world.charge(fault="close_before_commit", source="tok_stolen_card")
    assert (reply.status_code, outcome(reply)) == (402, "declined")
    assert header(reply, "Paywitness-Attempts") == "2"


@pytest.mark.parametrize("fault", ["error_503", "html_502*", "html_504_after_commit*"])
async def test_a_doubtful_gateway_error_leaves_as_504(sandbox: Sandbox, fault: str) -> None:
    world = await make_world(sandbox, ("error.code == 'overloaded'", "error.code == 'another'"))
    reply = await world.charge(fault=fault)
    assert (reply.status_code, problem_type(reply), outcome(reply)) == (504, "unknown", "unknown")
    await close(world)


async def test_an_error_that_the_provider_promises_to_be_without_effect_is_tried_again(world: World) -> None:
    reply = await world.charge(fault="error_503")
    assert (reply.status_code, header(reply, "Paywitness-Attempts"), world.effects(order="order-1")) == (200, "2", 1)
    given_up = await world.charge("other", order="other", fault="error_503*")
    assert (given_up.status_code, outcome(given_up), given_up.problem) == (503, "failed", None)


async def test_a_500_that_the_provider_stores_is_not_hammered(world: World) -> None:
    reply = await world.charge(fault="error_500_after_commit")
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    repeat = await world.charge()
    assert (repeat.status_code, outcome(repeat)) == (504, "unknown")
    assert len(world.arrivals) == 1
    assert world.effects(order="order-1") == 1


async def test_a_500_is_sent_again_where_the_provider_executes_failed_work_again(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, ("errors_under_key: replayed", "errors_under_key: reexecuted"))
    reply = await world.charge(fault="error_500_before_commit", contract="reexecuted")
    assert (reply.status_code, outcome(reply)) == (200, "succeeded")
    assert world.effects(order="order-1") == 1
    await close(world)


async def test_where_only_successes_are_stored_doubt_is_never_re_sent(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, ("errors_under_key: replayed", "errors_under_key: not_stored"))
    reply = await world.charge(fault="drop_after_commit", contract="not_stored")
    assert (reply.status_code, outcome(reply), header(reply, "Paywitness-Because")) == (504, "unknown", "in_doubt_ask")
    assert len(world.arrivals) == 1
    await close(world)


async def test_a_hard_decline_is_passed_through_once_and_replayed(world: World) -> None:
    first = await world.charge(source="tok_stolen_card")
    again = await world.charge(source="tok_stolen_card")
    assert (first.status_code, outcome(first), header(first, "Paywitness-Attempts")) == (402, "declined", "1")
    assert (again.status_code, again.body) == (402, first.body)
    assert header(again, "Paywitness-Replayed") == "true"
    assert len(world.arrivals) == 1


async def test_a_retry_after_beyond_the_deadline_is_answered_at_once_and_not_shortened(world: World) -> None:
    began = asyncio.get_running_loop().time()
    reply = await world.charge(fault="rate_limited(retry_after_s=3600)", timeout_s=10)
    assert asyncio.get_running_loop().time() - began < 5
    assert (reply.status_code, header(reply, "Retry-After")) == (429, "3600")
    held = await world.charge()
    assert (held.status_code, header(held, "Retry-After"), len(world.arrivals)) == (503, "3600", 1)
    other = await world.charge(headers={"Authorization": "Bearer another"})  # which nobody asked to wait
    assert (other.status_code, world.effects(order="order-1")) == (200, 1)  # the key was released


async def test_a_retry_after_that_fits_is_waited_for(world: World) -> None:
    began = asyncio.get_running_loop().time()
    reply = await world.charge(fault="rate_limited(retry_after_s=1)", timeout_s=10)
    assert asyncio.get_running_loop().time() - began >= 0.99  # a loop may count whole milliseconds
    assert (reply.status_code, header(reply, "Paywitness-Attempts"), world.effects(order="order-1")) == (200, "2", 1)


async def test_a_provider_that_is_down_gives_not_sent_and_the_same_key_works_later(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    port = sandbox.port
    await sandbox.stop()
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply), outcome(reply)) == (503, "not-sent", "not_sent")
    assert json.loads(reply.body)["side_effect_may_exist"] is False
    assert header(reply, "Retry-After") is not None
    await sandbox.start(host="127.0.0.1", port=port)
    again = await world.charge()
    assert (again.status_code, world.effects(order="order-1")) == (200, 1)
    assert header(again, "Paywitness-Operation") != header(reply, "Paywitness-Operation")
    await close(world)


async def test_a_provider_that_comes_back_within_the_tries_is_reached(sandbox: Sandbox) -> None:
    edits = ("default: {attempts: 3, backoff: full,", "default: {attempts: 5, backoff: equal,")
    world = await make_world(sandbox, edits, ("base: 100ms, cap: 5s", "base: 300ms, cap: 5s"))
    port = sandbox.port
    await sandbox.stop()
    pending = asyncio.ensure_future(world.charge())
    await until(lambda: [one for one in world.engine.in_flight.values() if one.operation.attempts >= 3])
    await sandbox.start(host="127.0.0.1", port=port)
    reply = await pending
    assert (reply.status_code, world.effects(order="order-1")) == (200, 1)
    assert header(reply, "Paywitness-Attempts") in {"4", "5"}
    await close(world)


async def test_an_amount_that_does_not_fit_is_doubt_and_is_not_passed_on(world: World) -> None:
    reply = await world.charge(fault="wrong_amount")
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    assert world.effects(order="order-1") == 1


async def test_pending_and_action_are_passed_on_and_replayed(world: World) -> None:
    pending = await world.charge("p", order="p", source="tok_processing")
    action = await world.charge("a", order="a", source="tok_3ds")
    assert (pending.status_code, outcome(pending)) == (200, "pending")
    assert (action.status_code, outcome(action)) == (200, "requires_action")
    repeat = await world.charge("p", order="p", source="tok_processing")
    assert (repeat.body, header(repeat, "Paywitness-Replayed")) == (pending.body, "true")


async def test_what_is_refused_before_execution_releases_its_key(world: World) -> None:
    refused = await world.charge(fault="unauthorized")
    assert (refused.status_code, outcome(refused)) == (401, "failed")
    again = await world.charge(amount=2500)
    assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_the_deadline_answers_504_and_the_attempt_runs_on_to_its_end(world: World) -> None:
    reply = await world.charge(fault="slow(slow_s=1)", timeout_s=0.4)
    assert (reply.status_code, problem_type(reply)) == (504, "unknown")
    operation_id = header(reply, "Paywitness-Operation") or ""
    await world.engine.tasks.close(5.0)
    operation = await the_operation(world, operation_id)
    assert (operation.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)


async def test_a_deadline_before_any_byte_is_not_sent_and_stays_so(sandbox: Sandbox) -> None:
    class SlowToConnect:
        async def hit(self, name: str) -> None:
            if name == "upstream_connected":
                await asyncio.sleep(0.5)

    world = await make_world(sandbox, failpoints=SlowToConnect())
    reply = await world.charge(timeout_s=0.2)
    assert (reply.status_code, problem_type(reply)) == (503, "not-sent")
    operation = await the_operation(world, header(reply, "Paywitness-Operation"))
    assert (operation.state, operation.key_released, len(world.arrivals)) == (State.FAILED, True, 0)
    await close(world)


async def test_a_caller_that_leaves_after_the_first_byte_changes_nothing(world: World) -> None:
    left = asyncio.Event()

    def still_there() -> bool:
        return not left.is_set()

    call = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.5)", still_there=still_there))
    await until(lambda: world.arrivals)
    left.set()
    await call
    again = await world.charge()
    assert (again.status_code, header(again, "Paywitness-Replayed")) == (200, "true")
    assert world.effects(order="order-1") == 1


async def test_a_caller_that_left_with_nothing_in_doubt_gets_no_further_attempt(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    reply = await world.charge(fault="rate_limited(retry_after_s=1)*", still_there=lambda: False)
    assert (reply.status_code, len(world.arrivals)) == (429, 1)
    await close(world)


async def test_a_key_is_generated_and_told_where_the_caller_gives_none(world: World) -> None:
    reply = await world.charge(None, order=None)
    key = header(reply, "Paywitness-Key")
    assert reply.status_code == 200
    assert key
    operation = await the_operation(world, header(reply, "Paywitness-Operation"))
    assert (operation.key_source, operation.client_key) == ("generated", key)


async def test_paywitness_key_overwrites_the_key_in_the_request(world: World) -> None:
    await world.charge("from the header", options=CallerOptions(key="ours"), fault="drop_after_commit")
    keys = {arrival.key for arrival in world.arrivals}
    assert len(keys) == 1
    assert keys.isdisjoint({"ours", "from the header"})
    again = await world.charge("another one", options=CallerOptions(key="ours"))
    assert (header(again, "Paywitness-Replayed"), world.effects(order="order-1")) == ("true", 1)


async def test_a_call_that_matches_no_operation_by_its_body_is_forwarded_once(sandbox: Sandbox) -> None:
    """Its path is an operation's; only the body tells that it is none."""
    edits = (("    match: [POST /v1/charges, ", "    where: \"currency == 'EUR'\"\n    match: [POST /v1/charges, "),)
    world = await make_world(sandbox, *edits)
    reply = await world.post("/v1/charges", {"amount": 100, "currency": "USD"}, {"Idempotency-Key": "k"})
    assert (reply.status_code, outcome(reply)) == (200, "none")
    assert (len(world.arrivals), await world.journal.find_operations(OperationQuery())) == (1, ())
    await close(world)


async def test_an_unreadable_body_is_refused_and_nothing_is_sent(world: World) -> None:
    for body in (b"{", b'{"amount": 1, "amount": 2}', b"\xff\xfe"):
        reply = await world.post("/v1/charges", body, {"Idempotency-Key": "k"})
        assert (reply.status_code, problem_type(reply)) == (400, "body-unreadable")
    assert not world.arrivals


async def test_a_body_without_room_for_the_stamp_goes_out_as_it_is_and_a_lost_answer_is_fetched(
    sandbox: Sandbox,
) -> None:
    """The place is a text of the caller's own, as metadata may be at Mollie: nothing can be written into it."""
    world = await make_world(sandbox, ("stamp: body:metadata.paywitness", "stamp: body:source.paywitness"))
    reply = await world.charge(fault="drop_after_commit")
    operation = await the_operation(world, header(reply, "Paywitness-Operation"))
    assert (reply.status_code, operation.state, operation.unstamped) == (200, State.SUCCEEDED, True)
    assert world.effects(order="order-1") == 1
    await close(world)


async def test_a_body_without_room_for_the_key_is_refused_and_nothing_is_sent(sandbox: Sandbox) -> None:
    key = ("send_as: header:Idempotency-Key          # where Acme takes the key", "send_as: body:source.key")
    world = await make_world(sandbox, key)
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply)) == (400, "body-unreadable")
    assert not world.arrivals
    await close(world)


async def test_a_full_gate_refuses_what_is_new_and_still_answers_what_is_known(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    known = await world.charge("known", order="known")
    world.engine.gate.draining = True
    refused = await world.charge("new", order="new")
    replayed = await world.charge("known", order="known")
    assert (refused.status_code, problem_type(refused)) == (503, "not-sent")
    assert (replayed.body, header(replayed, "Paywitness-Replayed")) == (known.body, "true")
    assert world.effects(order="new") == 0
    await close(world)
