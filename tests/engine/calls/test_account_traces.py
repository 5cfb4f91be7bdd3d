"""The traces of the design about accounts and merchants, through the engine over SQLite and Redis.

The sandbox's ledger is the judge. Each test names the trace or finding that it plays."""

from __future__ import annotations

import json
from collections.abc import Mapping

import aiohttp

from paywitness.core.call import Call, CallerOptions
from paywitness.core.reply import Reply
from paywitness.engine.policy_start import store_revisions
from paywitness.policy.book import PolicyBook, load_content
from tests.engine.calls.test_fallback import policy_text
from tests.engine.world import World, header, outcome, problem_type, roomy

LOST = "drop_after_commit*"
NOT_STORED = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}


async def with_two_providers(world: World, *, merchant: bool) -> None:
    """Two providers, each with a constant account of its own; perhaps of one merchant."""
    texts = [
        policy_text(name, world.sandbox.url, ("account: [const:main, header:Acme-Account]", f"account: [const:{name}]"))
        for name in ("acme", "other")
    ]
    files = [text if merchant else text.replace("merchant: shop\n", "") for text in texts]
    edited = [text.replace(*NOT_STORED) for text in files]
    book = roomy(PolicyBook.of([load_content(text.encode(), "test.yaml") for text in edited]))
    await store_revisions(world.journal, book)
    world.engine.policies.book = book


async def charge_at(world: World, provider: str, key: str, source: str = "tok_ok", fault: str = "-") -> Reply:
    body = {"amount": 1099, "currency": "EUR", "source": source, "metadata": {"order_id": "42"}}
    headers = {**HEADERS, "Idempotency-Key": key, "Sandbox-Fault": fault}
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    raw, options = json.dumps(body).encode(), CallerOptions(timeout_s=0.5)
    call = Call(provider, "POST", "/v1/charges", "", ("v1", "charges"), pairs, raw, options)
    return await world.engine.reply_to(call, lambda: True)


async def test_p3_an_order_in_doubt_at_one_provider_is_not_paid_at_another_of_the_same_merchant(
    stored_world: World,
) -> None:
    """P3: the service falls back by itself. Accounts are apart by provider; the intent is the merchant's."""
    world = stored_world
    await with_two_providers(world, merchant=True)
    assert outcome(await charge_at(world, "acme", "first", fault=LOST)) == "unknown"
    equal = await charge_at(world, "other", "second")
    another = await charge_at(world, "other", "third", source="tok_visa")
    for refused in (equal, another):
        assert (refused.status_code, problem_type(refused)) == (409, "guarded")
        assert json.loads(refused.body)["side_effect_may_exist"] is True
    told = json.loads((await world.engine.intents.describe("42")).body)
    assert told["safe_to_pay"] is False
    assert world.effects(order="42") == 1


async def test_p3_without_a_common_merchant_equal_order_numbers_are_two_purchases(stored_world: World) -> None:
    """P3: by default an account is a merchant of its own."""
    world = stored_world
    await with_two_providers(world, merchant=False)
    assert (await charge_at(world, "acme", "key")).status_code == 200
    second = await charge_at(world, "other", "key-2")
    assert (second.status_code, second.replayed) == (200, False)
    assert world.effects(order="42") == 2


async def test_b5_two_merchants_behind_one_sidecar_share_neither_keys_nor_orders(stored_world: World) -> None:
    """B5: the equal key was refused by the provider after the whole deadline, the equal order by the other's guard."""
    world = stored_world

    async def pay(merchant: str, key: str, amount: int = 1099) -> Reply:
        return await world.charge(key, amount=amount, headers={"Acme-Account": merchant}, timeout_s=3.0)

    first, second = await pay("m1", "key"), await pay("m2", "key")
    assert [reply.status_code for reply in (first, second)] == [200, 200]
    assert (second.replayed, second.operation_id == first.operation_id) == (False, False)
    other = await pay("m2", "another", amount=5)
    assert (other.status_code, json.loads(other.body)["operation"]) == (409, second.operation_id)
    assert world.effects(order="order-1") == 2


async def test_m17_two_headers_that_name_the_account_are_refused_and_nothing_is_sent(stored_world: World) -> None:
    """M17: identity took the first of them, and both went to the provider."""
    world = stored_world
    body = json.dumps({"amount": 1099, "currency": "EUR", "source": "tok_ok"}).encode()
    named = tuple((b"Acme-Account", each) for each in (b"shop-a", b"shop-b"))
    pairs = (*((name.encode(), value.encode()) for name, value in HEADERS.items()), (b"Idempotency-Key", b"k"), *named)
    call = Call("acme", "POST", "/v1/charges", "", ("v1", "charges"), pairs, body, CallerOptions())
    refused = await world.engine.reply_to(call, lambda: True)
    assert (refused.status_code, len(world.arrivals)) == (400, 0)


async def at_the_provider(world: World, key: str) -> Mapping[str, object]:
    """What a client sends that goes past a sidecar which is down."""
    body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": "order-1"}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{world.sandbox.url}/v1/charges", json=body, headers={**HEADERS, "Idempotency-Key": key}
        ) as response,
    ):
        found: dict[str, object] = await response.json()
        return found


async def test_p42_a_reply_names_the_derived_key_so_that_a_bypass_does_not_pay_again(stored_world: World) -> None:
    """P42: under `Paywitness-Account` the provider saw another key than the caller's, and took a bypass for new."""
    world = stored_world
    options = CallerOptions(account="shop-a", timeout_s=0.5)
    lost = await world.charge("key-1", fault=LOST, options=options)
    derived = header(lost, "Paywitness-Provider-Key")
    assert (outcome(lost), derived is None, derived == "key-1") == ("unknown", False, False)
    assert {arrival.key for arrival in world.arrivals} == {derived}
    await at_the_provider(world, derived or "")
    assert world.effects(order="order-1") == 1
    await at_the_provider(world, "key-1")  # what the reply is there to prevent
    assert world.effects(order="order-1") == 2


async def test_p42_the_callers_own_key_is_not_told_again(stored_world: World) -> None:
    """P42: without a derived key a bypass is deduplicated as it is."""
    reply = await stored_world.charge("key-1")
    assert (reply.status_code, header(reply, "Paywitness-Provider-Key")) == (200, None)
