"""The traces of the design about evidence, absence and credentials that have no room of their own, through the whole
engine. Each test names the trace or finding that it plays; the provider's own list of payments is the judge."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from paywitness.core.call import Call, CallerOptions
from paywitness.core.operation import Operation, State
from paywitness.core.reply import Reply
from paywitness.core.result import ResultClass
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.tasks import Tasks
from paywitness_sandbox.server import Sandbox
from tests.engine.calls.test_fallback import credentials_sent
from tests.engine.calls.test_gateways import http
from tests.engine.conftest import close
from tests.engine.resolution.test_absence import scripted
from tests.engine.resolution.test_background_calls import revoke, sandbox_with
from tests.engine.resolution.test_resolver import NOT_STORED, SOON, ended, resolved, resolving
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.test_credential_owners import Merchants, behind_one_sidecar, pay
from tests.engine.world import World, header, make_world, outcome, problem_type, roomy, sooner

JSON = {"Content-Type": "application/json", "Authorization": "Bearer test"}
OLD, NEW = {"Authorization": "Bearer old"}, {"Authorization": "Bearer new"}
SHOP_A = {"Acme-Account": "shop-a"}
LOST = "reset_before_commit*"  # read whole, and never executed


async def operation_of(world: World, reply: Reply) -> Operation:
    found = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert found is not None
    return found


async def authorised(world: World, headers: Mapping[str, str]) -> tuple[str, Operation]:
    body = {"amount": 1000, "currency": "EUR", "capture": False, "source": "tok_ok", "metadata": {"order_id": "42"}}
    made = await world.post("/v1/charges", body, {**JSON, "Idempotency-Key": "made", **headers})
    return str(json.loads(made.body)["id"]), await operation_of(world, made)


async def capture(world: World, charge: str, key: str, amount: int, headers: Mapping[str, str]) -> Reply:
    asked = {**JSON, "Idempotency-Key": key, **headers}
    return await world.post(f"/v1/charges/{charge}/capture", {"amount": amount}, asked, CallerOptions(timeout_s=2.0))


def until_told(operation: Operation) -> bool:
    return operation.state is not State.UNKNOWN


# --- One account, several credentials


async def test_p2b_what_another_credential_of_the_account_does_counts_against_the_same_payment(
    stored_world: World,
) -> None:
    """P2 B: checkout has one key, the warehouse a restricted one. They were two accounts, and no limit held."""
    world = stored_world
    charge, payment = await authorised(world, OLD)
    captured = await capture(world, charge, "first", 600, NEW)
    assert (captured.status_code, (await operation_of(world, captured)).payment) == (200, payment.id)
    refused = await capture(world, charge, "second", 500, OLD)
    assert (refused.status_code, problem_type(refused)) == (422, "exceeds-remaining")


async def test_p18_another_account_that_names_a_payment_neither_holds_nor_sees_it(stored_world: World) -> None:
    """P18: the account came from the parent. A stranger's capture reserved the remainder, and showed it in a 422."""
    world = stored_world
    charge, payment = await authorised(world, SHOP_A)
    strange = await capture(world, charge, "strange", 1000, {"Acme-Account": "shop-b", "Sandbox-Fault": LOST})
    operation = await operation_of(world, strange)
    assert (outcome(strange), operation.payment == payment.id) == ("unknown", False)
    assert payment.id not in strange.body.decode()
    own = await capture(world, charge, "own", 1000, SHOP_A)
    assert (own.status_code, (await operation_of(world, own)).payment) == (200, payment.id)


async def test_n6a_the_identity_stays_what_it_was_when_the_owner_becomes_known(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """N6 (a): the second call under a key was another account's by then, and was executed as well."""
    merchants = Merchants({"k1": "acct_a"}, silent=True)
    async with behind_one_sidecar(sandbox, merchants, journal=stored_journal) as world:
        first = await pay(world, "k1", key="inv-7", order="1001")
        merchants.silent = False
        world.engine.credential_owners._settled.clear()  # as after the half minute for which silence is remembered
        again = await pay(world, "k1", key="inv-7", order="1001")
        assert (again.status_code, again.replayed, again.operation_id) == (200, True, first.operation_id)
        assert merchants.paid == [("acct_a", "1001", "700")]
        assert set(merchants.asked) == {"k1"}


async def test_n5b_a_credential_that_only_our_header_placed_asks_about_nobody_elses_payment() -> None:
    """N5 (b): "not found" under it ended the payment of the account that its header had named, which was paid again."""
    async with sandbox_with("old", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
        named = CallerOptions(account="shop-a", timeout_s=0.2)
        lost = await world.charge(fault="drop_after_commit", headers=OLD, options=named)
        assert outcome(lost) == "unknown"
        placed = replace(named, timeout_s=None)
        assert (await world.charge("other", order="other", headers=NEW, options=placed)).status_code == 200
        revoke(sandbox, "new")
        with credentials_sent(sandbox) as sent:
            found = await resolved(world, header(lost, "Paywitness-Operation"), until_told)
        assert (found.state, found.misses, found.key_released) == (State.REQUIRES_REVIEW, 0, False)
        assert b"Bearer new" not in sent
        assert world.effects(order="order-1") == 1


@pytest.mark.parametrize(
    ("account", "state"), [(SHOP_A, State.FAILED), ({}, State.REQUIRES_REVIEW)], ids=["selector", "constant"]
)
async def test_n16_a_call_that_was_executed_for_an_account_lets_its_credential_ask_for_it(
    account: Mapping[str, str], state: State
) -> None:
    """N16: Adyen has nobody to ask whose a credential is. After each rotation no miss counted, and all that was in
    doubt went to a person. A constant account says nothing of who may act for it."""
    async with sandbox_with("old", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
        lost = await world.charge(fault="reset_before_commit", headers={**OLD, **account}, timeout_s=0.1)
        assert outcome(lost) == "unknown"
        await world.charge("other", order="other", headers={**NEW, **account})
        revoke(sandbox, "new")
        found = await resolved(world, header(lost, "Paywitness-Operation"), until_told)
        assert (found.state, found.key_released) == (state, state is State.FAILED)


# --- Absent


async def test_p21_who_still_waits_is_told_that_it_was_sent_and_never_executed(sandbox: Sandbox) -> None:
    """P21: 503 "not sent" was false, and 504 "unknown" too. The same key makes it."""
    async with resolving(sandbox, NOT_STORED) as world:
        absent = await world.charge(fault="reset_before_commit", timeout_s=20.0)
        told = json.loads(absent.body)
        assert (absent.status_code, problem_type(absent), outcome(absent)) == (503, "absent", "absent")
        assert (told["sent"], told["side_effect_may_exist"]) == (True, False)
        again = await world.charge()
        assert (again.status_code, world.effects(order="order-1")) == (200, 1)


async def test_m29_a_search_that_does_not_exist_there_makes_nothing_absent(stored_journal: Journal) -> None:
    """M29: Stripe's search is a 404 where it is not available."""

    def answer(method: str, target: str) -> tuple[int, object]:
        return (500, {}) if method == "POST" else (404, {"error": {"type": "invalid_request_error"}})

    async with (
        scripted(answer) as provider,
        resolving(cast("Sandbox", provider), NOT_STORED, journal=stored_journal) as world,
    ):
        lost = await world.charge(timeout_s=0.2)
        found = await resolved(world, header(lost, "Paywitness-Operation"), until_told)
        assert (found.state, found.misses, found.key_released) == (State.REQUIRES_REVIEW, 0, False)
        assert [method for method, _ in provider.arrivals].count("POST") == 1


# --- Words


async def test_an_unknown_outcome_is_told_as_it_came_about(sandbox: Sandbox) -> None:
    """A success over another amount was told as an error of the provider, and a payment that was asked about in vain as
    one that cannot be asked about."""

    def answer(method: str, target: str) -> tuple[int, object]:
        other = {"id": "ch_1", "object": "charge", "status": "succeeded", "amount": 5, "currency": "EUR"}
        return (200, other) if method == "POST" else (500, {})

    async with scripted(answer) as provider, resolving(cast("Sandbox", provider), NOT_STORED) as world:
        unknown = await world.charge(timeout_s=0.2)
        detail = json.loads(unknown.body)["detail"]
        assert detail.startswith("The provider answered, and its response leaves open whether it executed this")
        await resolved(world, header(unknown, "Paywitness-Operation"), until_told)
        asked_in_vain = await world.charge(timeout_s=0.2)
        assert "no evidence shows the outcome" in json.loads(asked_in_vain.body)["detail"]


# --- Evidence of another attempt, and of another call


@asynccontextmanager
async def shipped(name: str, answer: Any, more: str = "") -> AsyncIterator[tuple[World, list[tuple[str, str]]]]:
    """A shipped policy in front of a provider that a test scripts."""
    async with scripted(answer) as provider:
        world, background = await make_world(cast("Sandbox", provider)), Tasks()
        text = f"extends: paywitness:{name}\nupstream: {provider.url}\n{more}"
        world.engine.policies.book = sooner(roomy(PolicyBook.of([load_content(text.encode(), f"{name}.yaml")])), SOON)
        background.start(world.parts.resolver.keep_resolving(), "resolver")
        try:
            yield world, provider.arrivals
        finally:
            await background.stop()
            await close(world)


async def send(
    world: World, provider: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float = 2.0
) -> Reply:
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    segments = tuple(path.strip("/").split("/"))
    call = Call(provider, "POST", path, "", segments, pairs, body, CallerOptions(timeout_s=timeout_s))
    return await world.engine.reply_to(call, lambda: True)


DECLINED = {"type": "card_error", "code": "card_declined", "decline_code": "insufficient_funds"}


@pytest.mark.parametrize("earlier", ["declined", "requires_action"])
async def test_m1_m29_what_an_earlier_confirm_came_to_does_not_end_a_later_one_that_is_under_way(earlier: str) -> None:
    """M1: the PaymentIntent still showed the decline. The caller was told `declined, try_again_later`, and the card was
    charged after that. M29: likewise the action that an earlier confirm asked for."""
    intent: dict[str, Any] = {"id": "pi_1", "object": "payment_intent", "amount": 5000, "currency": "eur"}
    shown = {**intent, "status": "requires_payment_method", "last_payment_error": DECLINED}
    if earlier == "requires_action":
        shown = {**intent, "status": "requires_action", "next_action": {"type": "redirect_to_url"}}
    paid = {**intent, "status": "succeeded", "last_payment_error": None, "amount_received": 5000}
    looks, confirms = 0, 0

    def answer(method: str, target: str) -> tuple[int, object]:
        nonlocal looks, confirms
        if target == "/v1/account":
            return 200, {"id": "acct_1", "object": "account"}
        if method == "GET":
            looks += 1
            return 200, (shown if looks < 4 else paid)
        confirms += 1
        if confirms == 1:
            return (402, {"error": {**DECLINED, "payment_intent": shown}}) if earlier == "declined" else (200, shown)
        return 502, None  # somebody in front of it gave up; the work goes on

    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": "Bearer sk_1"}
    path = "/v1/payment_intents/pi_1/confirm"
    async with shipped("stripe", answer, "retry: {default: {attempts: 1}}\n") as (world, _):
        first = await send(world, "stripe", path, b"payment_method=pm_bad", {**form, "Idempotency-Key": "k1"})
        assert outcome(first) == earlier
        body = urlencode({"payment_method": "pm_good"}).encode()
        second = await send(world, "stripe", path, body, {**form, "Idempotency-Key": "k2"}, timeout_s=0.5)
        assert outcome(second) in {"unknown", "succeeded"}
        found = await resolved(world, header(second, "Paywitness-Operation"), ended)
        assert (found.state, found.result_class) == (State.SUCCEEDED, ResultClass.SUCCEEDED)
        assert (looks >= 4, confirms) == (True, 2)


async def test_m29_the_stamp_is_left_out_where_there_is_no_room_for_it(sandbox: Sandbox) -> None:
    """M29: as the 51st key of Stripe's metadata it was refused, and the payment could never be made."""
    merchants = Merchants({"k1": "acct_a"})
    form = {"amount": "700", "currency": "eur", "confirm": "true", "payment_method": "pm_1"}
    full = {f"metadata[key_{number}]": "x" for number in range(50)}
    headers = {"Authorization": "Bearer k1", "Content-Type": "application/x-www-form-urlencoded"}
    async with behind_one_sidecar(sandbox, merchants) as world:
        stamps = []
        for key, metadata in (("full", full), ("room", dict(list(full.items())[1:]))):
            body = urlencode({**form, **metadata}).encode()
            asked = {**headers, "Idempotency-Key": key}
            reply = await send(world, "stripe", "/v1/payment_intents", body, asked)
            assert reply.status_code == 200
            stamps.append(json.loads(reply.body)["metadata"]["paywitness"])
        assert (stamps[0], bool(stamps[1])) == (None, True)


async def test_m12_merchants_that_a_platform_names_by_paypals_assertion_share_no_invoices() -> None:
    """M12: the second merchant's equal invoice was answered with the first one's order, and never paid."""
    orders: list[str] = []

    def answer(method: str, target: str) -> tuple[int, object]:
        if method == "GET":
            return 404, {"name": "RESOURCE_NOT_FOUND"}
        orders.append(target)
        captured = {"id": f"C-{len(orders)}", "status": "COMPLETED", "amount": AMOUNT}
        unit = {"amount": AMOUNT, "payments": {"captures": [captured]}}
        return 201, {"id": f"O-{len(orders)}", "status": "COMPLETED", "purchase_units": [unit]}

    unit = {"invoice_id": "INV-1001", "amount": AMOUNT}
    body = {"intent": "CAPTURE", "payment_source": {"card": {"vault_id": "v1"}}, "purchase_units": [unit]}
    async with shipped("paypal", answer) as (world, _):
        ids = []
        for key, merchant in (("r1", "one"), ("r2", "two"), ("r1", "two"), ("r1", "one")):
            headers = {**JSON, "PayPal-Request-Id": key, "PayPal-Auth-Assertion": merchant}
            reply = await send(world, "paypal", "/v2/checkout/orders", json.dumps(body).encode(), headers)
            assert reply.status_code == 201, reply.body
            ids.append(json.loads(reply.body)["id"])
        # The third call has the key of the first and the invoice of the second: it is the second's payment.
        assert ids == ["O-1", "O-2", "O-2", "O-1"]
        assert len(orders) == 2


AMOUNT = {"value": "20.00", "currency_code": "EUR"}


@dataclass
class Stuttering:
    """A provider that answers its second request twice over: with a copy of the first answer, then with its own. It
    dedupes, and names no stamp."""

    executed: Counter[str] = field(default_factory=Counter)
    stored: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    previous: bytes = b""
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = json.loads(await reader.readexactly(int(fields["content-length"])))
                order, key = body["metadata"]["order_id"], fields["idempotency-key"]
                if key not in self.stored:
                    self.executed[order] += 1
                    money = {"amount": body["amount"], "currency": body["currency"]}
                    self.stored[key] = http(
                        200, json.dumps({"id": f"ch_{order}", "status": "succeeded", **money}).encode()
                    )
                self.requests += 1
                if self.requests == 2:
                    writer.write(self.previous)
                    await writer.drain()
                self.previous = self.stored[key]
                writer.write(self.previous)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def test_m11_a_stray_copy_of_an_answer_is_told_to_nobody_and_no_reference_is_recorded_twice(
    sandbox: Sandbox,
) -> None:
    """M11: every later call on the connection was given the answer of the one before it, for ever. Equal amounts, no
    stamp: nothing in an answer says whose it is."""
    provider = Stuttering()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    world = await make_world(cast("Sandbox", provider))
    try:
        for order in ("a", "b", "c", "d"):
            reply = await world.charge(f"key-{order}", order=order, timeout_s=5.0)
            assert (reply.status_code, json.loads(reply.body)["id"]) == (200, f"ch_{order}")
        kept = await world.journal.find_operations(OperationQuery(limit=10))
        assert sorted(each.reference or "" for each in kept) == ["ch_a", "ch_b", "ch_c", "ch_d"]
        assert set(provider.executed.values()) == {1}
        assert {each.incident for each in kept} == {None}
    finally:
        await close(world)
        server.close()
