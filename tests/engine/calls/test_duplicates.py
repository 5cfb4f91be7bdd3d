"""The same key again: replayed, waited for, refused, or resumed. The ledger judges."""

from __future__ import annotations

import asyncio
import json

from paywitness.clock import SystemClock
from paywitness.core.credential_owners import credential_key
from paywitness.core.identity import credential_in
from paywitness.core.operation import State
from paywitness.engine.calls.stored_messages import open_request
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, book_of, header, make_world, outcome, problem_type, until
from tests.journal.memory import MemoryJournal


async def test_a_hundred_identical_calls_at_once_are_one_send_and_a_hundred_equal_answers(world: World) -> None:
    replies = await asyncio.gather(*(world.charge(fault="slow(slow_s=0.2)") for _ in range(100)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 1)
    assert len([reply for reply in replies if header(reply, "Paywitness-Replayed") is None]) == 1


async def test_a_hundred_identical_calls_through_a_lost_answer_are_one_effect(world: World) -> None:
    replies = await asyncio.gather(*(world.charge(fault="drop_after_commit") for _ in range(100)))
    assert {(reply.status_code, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert (len(world.arrivals), world.effects(order="order-1")) == (2, 1)


async def test_the_same_key_with_another_amount_is_refused_and_nothing_is_sent(world: World) -> None:
    await world.charge()
    reply = await world.charge(amount=9999)
    assert (reply.status_code, problem_type(reply)) == (422, "key-reused")
    assert json.loads(reply.body)["sent"] is False
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 1)


async def test_a_duplicate_that_left_takes_no_reply_away_from_the_caller_who_got_it(world: World) -> None:
    """An equal charge under a fresh key was then told the first one's reply, as one that nobody had heard."""
    there = [True]
    first = asyncio.create_task(world.charge(fault="slow(slow_s=0.2)"))
    second = asyncio.create_task(world.charge(fault="slow(slow_s=0.2)", still_there=lambda: there[0]))
    await until(lambda: len(world.arrivals) == 1)
    there[0] = False
    assert [outcome(reply) for reply in await asyncio.gather(first, second)] == ["succeeded", "succeeded"]
    (operation,) = await world.journal.find_operations(OperationQuery())
    assert operation.undelivered is False


async def test_another_amount_is_refused_also_while_the_first_is_under_way_or_in_doubt(world: World) -> None:
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.3)"))
    await until(lambda: world.arrivals)
    assert (await world.charge(amount=9999)).status_code == 422
    await first
    await world.charge("doubted", order="doubted", fault="error_500_after_commit")
    assert (await world.charge("doubted", order="doubted", amount=9999)).status_code == 422


async def test_key_order_and_white_space_do_not_make_another_payload(world: World) -> None:
    headers = {"Idempotency-Key": "k", "Authorization": "Bearer test"}
    first = await world.post("/v1/charges", b'{"amount": 100, "currency": "EUR"}', headers)
    again = await world.post("/v1/charges", b'{ "currency":"EUR","amount":100 }', headers)
    assert (again.body, header(again, "Paywitness-Replayed")) == (first.body, "true")


async def test_a_field_that_the_policy_ignores_makes_no_difference(world: World) -> None:
    headers = {"Idempotency-Key": "k", "Authorization": "Bearer test"}
    await world.post("/v1/charges", {"amount": 100, "currency": "EUR", "client_time": 1}, headers)
    again = await world.post("/v1/charges", {"amount": 100, "currency": "EUR", "client_time": 2}, headers)
    assert header(again, "Paywitness-Replayed") == "true"


async def test_a_duplicate_waits_to_its_own_deadline_and_then_gets_504(world: World) -> None:
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=1)"))
    await until(lambda: world.arrivals)
    reply = await world.charge(timeout_s=0.2)
    assert (reply.status_code, outcome(reply), json.loads(reply.body)["sent"]) == (504, "unknown", False)
    assert (await first).status_code == 200


async def test_a_duplicate_of_what_has_not_left_yet_gets_409(sandbox: Sandbox) -> None:
    gone = asyncio.Event()

    class NotYetConnected:
        async def hit(self, name: str) -> None:
            if name == "upstream_connected":
                await gone.wait()

    world = await make_world(sandbox, failpoints=NotYetConnected())
    first = asyncio.ensure_future(world.charge())
    await until(lambda: world.engine.in_flight)
    reply = await world.charge(timeout_s=0.2)
    assert (reply.status_code, problem_type(reply)) == (409, "in-flight")
    assert header(reply, "Retry-After") is not None
    gone.set()
    assert (await first).status_code == 200
    await close(world)


async def test_a_repeat_of_doubt_re_sends_the_first_bytes_and_gets_the_answer(world: World) -> None:
    lost = await world.charge(fault="drop_after_commit*", timeout_s=3)
    assert (lost.status_code, world.effects(order="order-1")) == (504, 1)
    again = await world.charge()
    assert again.status_code == 504  # the script goes on losing answers
    world.sandbox.reset()
    fresh = await world.charge("other", order="other", fault="drop_after_commit,drop_after_commit,drop_after_commit")
    assert fresh.status_code == 504
    answered = await world.charge("other", order="other")
    assert (answered.status_code, outcome(answered), world.effects(order="other")) == (200, "succeeded", 1)


async def test_two_repeats_of_doubt_at_once_are_one_re_send(world: World) -> None:
    script = "drop_after_commit,drop_after_commit,drop_after_commit,slow(slow_s=0.3)"
    await world.charge(fault=script)
    before = len(world.arrivals)
    replies = await asyncio.gather(*(world.charge() for _ in range(10)))
    assert {reply.status_code for reply in replies} == {200}
    assert (len(world.arrivals) - before, world.effects(order="order-1")) == (1, 1)


async def test_a_re_send_never_goes_to_another_upstream(world: World) -> None:
    """A key store may be regional: the same key elsewhere is a new charge."""
    await world.charge(fault="drop_after_commit,drop_after_commit,drop_after_commit")
    async with Sandbox() as elsewhere:
        moved = book_of(elsewhere.url)
        await store_revisions(world.journal, moved)
        world.engine.policies.book = moved
        reply = await world.charge()
        assert (reply.status_code, len(elsewhere.arrivals.arrivals)) == (504, 0)


async def test_the_policy_that_started_an_operation_decides_about_it(world: World) -> None:
    """An edit that believes in re-sends must not re-send what was started under a contract that forbids them."""
    careful = book_of(world.sandbox.url, ("errors_under_key: replayed", "errors_under_key: not_stored"))
    await store_revisions(world.journal, careful)
    bold = world.engine.book
    world.engine.policies.book = careful
    await world.charge(fault="drop_after_commit")
    world.engine.policies.book = bold
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply), len(world.arrivals)) == (504, "unknown", 1)


async def test_a_request_that_may_not_be_stored_is_re_sent_only_with_equal_bytes(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, ("never_store: [source.number, source.cvc]", "never_store: [card.cvc]"))
    headers = {
        "Idempotency-Key": "k",
        "Authorization": "Bearer test",
        "Sandbox-Fault": "drop_after_commit,drop_after_commit,drop_after_commit",
    }
    body = b'{"amount": 100, "currency": "EUR", "card": {"cvc": "123"}}'
    lost = await world.post("/v1/charges", body, headers)
    operation_id = header(lost, "Paywitness-Operation") or ""
    sealed, _ = await world.journal.sealed(operation_id)
    assert sealed is not None
    assert open_request(world.engine.vault, sealed, operation_id).body == b""  # enough to ask, not to send again
    other_bytes = await world.post("/v1/charges", body.replace(b": ", b":"), headers)
    assert (other_bytes.status_code, len(world.arrivals)) == (504, 3)
    same_bytes = await world.post("/v1/charges", body, headers)
    assert (same_bytes.status_code, world.effects(key="k")) == (200, 1)
    await close(world)


async def test_a_replay_is_not_shown_to_a_credential_that_the_provider_has_not_accepted(world: World) -> None:
    await world.charge()
    stranger = await world.charge(headers={"Authorization": "Bearer somebody else"})
    assert (stranger.status_code, problem_type(stranger)) == (504, "account-unknown")
    told = json.loads(stranger.body)  # M2a: the payment was made
    assert (told["outcome"], told["side_effect_may_exist"], "operation" in told) == ("unknown", True, False)
    await world.charge("another", order="another", headers={"Authorization": "Bearer rotated"})
    rotated = await world.charge(headers={"Authorization": "Bearer rotated"})
    assert (rotated.status_code, header(rotated, "Paywitness-Replayed")) == (200, "true")


async def test_a_key_from_the_body_starts_again_after_a_decline_with_another_payload(world: World) -> None:
    declined = await world.charge(None, order="basket", source="tok_stolen_card")
    paid = await world.charge(None, order="basket", source="tok_ok")
    assert (declined.status_code, paid.status_code, world.effects(order="basket")) == (402, 200, 1)
    keys = [arrival.key for arrival in world.arrivals]
    assert len(set(keys)) == 2  # the decline is stored under the first key


async def test_what_cannot_be_decrypted_is_neither_re_sent_nor_executed(world: World) -> None:
    await world.charge("doubted", order="doubted", fault="drop_after_commit,drop_after_commit,drop_after_commit")
    paid = await world.charge("paid", order="paid")
    arrived = len(world.arrivals)
    without_keys = await make_world(world.sandbox, journal=world.journal, ring_key="another")
    doubted = await without_keys.charge("doubted", order="doubted")
    replayed = await without_keys.charge("paid", order="paid")
    assert (doubted.status_code, problem_type(doubted)) == (504, "unknown")
    assert (replayed.status_code, problem_type(replayed)) == (409, "closed-without-response")
    assert json.loads(replayed.body)["outcome"] == "succeeded"
    assert json.loads(paid.body)["id"] in json.loads(replayed.body)["detail"]
    assert len(world.arrivals) == arrived


async def test_what_a_dead_holder_left_is_doubt_and_the_repeat_resumes_it(sandbox: Sandbox) -> None:
    """Another process takes over the journal while the first still waits for its answer."""
    clock = SystemClock()
    journal = MemoryJournal(clock=clock)
    dying = await make_world(sandbox, journal=journal)
    call = asyncio.ensure_future(dying.charge(fault="hang_after_commit"))
    await until(lambda: dying.arrivals)
    heir = await make_world(sandbox, journal=journal.reopened(clock))
    found = await heir.journal.expire_leases(all_of_earlier_holders=True)
    assert [(operation.state, operation.doubt) for operation in found] == [(State.UNKNOWN, frozenset({1}))]
    reply = await heir.charge()
    assert (reply.status_code, heir.effects(order="order-1")) == (200, 1)
    call.cancel()
    await dying.engine.tasks.close(0.0)
    await close(heir)


async def test_doubt_is_not_re_sent_under_a_credential_that_the_provider_has_not_accepted(world: World) -> None:
    """It may belong to another account, where the same key is another charge."""
    await world.charge(fault="drop_after_commit,drop_after_commit,drop_after_commit")
    arrived = len(world.arrivals)
    stranger = await world.charge(headers={"Authorization": "Bearer somebody else"})
    assert (stranger.status_code, problem_type(stranger), len(world.arrivals)) == (504, "unknown", arrived)
    await world.charge("another", order="another", headers={"Authorization": "Bearer rotated"})
    rotated = await world.charge(headers={"Authorization": "Bearer rotated"}, timeout_s=0.3)
    # P8: a constant account may be shared. That a call of it was executed does not say whose it is.
    assert (rotated.status_code, world.effects(order="order-1")) == (504, 1)
    secret, first = world.engine.vault.identity_secret, ((b"Authorization", b"Bearer test"),)
    renewed = credential_in(((b"Authorization", b"Bearer rotated"),), secret)
    owners = world.engine.credential_owners
    await owners.add_marks(credential_key("acme", renewed), {"~" + credential_in(first, secret): "operator"})
    rotated = await world.charge(headers={"Authorization": "Bearer rotated"})
    assert (rotated.status_code, world.effects(order="order-1")) == (200, 1)
