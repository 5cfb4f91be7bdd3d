"""`accounts:` through the engine over SQLite and Redis: whose account a call is of, and which merchants meet.

The ledgers of the sandbox and of the provider double are the judges. Each test names the trace that it plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from paywitness.core.call import Call, CallerOptions
from paywitness.core.credential_owners import credential_key
from paywitness.core.identity import credential_in
from paywitness.core.operation import Operation
from paywitness.core.reply import Reply
from paywitness.engine.earlier_rules import with_earlier_rules
from paywitness.engine.policy_start import refused_changes, store_revisions
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook, load_content
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.calls.test_fallback import credentials_sent, policy_text
from tests.engine.calls.test_payment_traces import elsewhere
from tests.engine.conftest import close
from tests.engine.test_credential_owners import Merchants, names_nothing, pay
from tests.engine.world import World, header, make_world, outcome, problem_type, roomy

LOST = "drop_after_commit*"
NOT_STORED = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
PLACES = "account: [const:main, header:Acme-Account]"
TWO_SHOPS = """\
accounts:
  shop_a: {merchant: alpha, selectors: {"header:Acme-Account": a-1}}
  shop_b: {merchant: beta, selectors: {"header:Acme-Account": b-1}}
"""
ONE_SHOP = "accounts:\n  shop_a2: {merchant: alpha, credentials: {header: {Authorization: env:OTHER_KEY}}}\n"
KEYS = {"KEY_A": "Bearer k1", "KEY_B": "Bearer k2"}
LISTED = """\
merchants: many
accounts:
  shop_a: {merchant: alpha, credentials: {header: {Authorization: env:KEY_A}}}
  shop_b: {merchant: beta, credentials: {header: {Authorization: env:KEY_B}}}
"""
OWNED = """\
merchants: many
accounts:
  shop_a: {merchant: alpha, owner: acct_a}
  shop_b: {merchant: beta, owner: acct_b}
"""


async def put_in_force(world: World, *texts: str) -> None:
    """As a start over this journal does."""
    book = roomy(PolicyBook.of([load_content(text.encode(), "test.yaml") for text in texts]))
    book = await with_earlier_rules(world.journal, book)
    await store_revisions(world.journal, book)
    world.engine.policies.book = await world.engine.credential_owners.listed(book)


def acme_text(world: World, more: str = "", *edits: tuple[str, str]) -> str:
    plain = policy_text("acme", world.sandbox.url, NOT_STORED, *edits).replace("merchant: shop\n", "")
    return plain + more


def other_text(world: World, more: str = ONE_SHOP) -> str:
    edits = (NOT_STORED, (PLACES, "account: [const:other]"))
    return policy_text("other", world.sandbox.url, *edits).replace("merchant: shop\n", "") + more


async def charge_at(
    world: World,
    provider: str,
    key: str,
    account: str = "",
    *,
    named: str | None = None,
    amount: int = 1099,
    fault: str = "-",
) -> Reply:
    body = {"amount": amount, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": "42"}}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": key}
    headers |= {"Sandbox-Fault": fault} | ({"Acme-Account": account} if account else {})
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    options = CallerOptions(timeout_s=0.5, account=named)
    call = Call(provider, "POST", "/v1/charges", "", ("v1", "charges"), pairs, json.dumps(body).encode(), options)
    return await world.engine.reply_to(call, lambda: True)


async def operation_of(world: World, reply: Reply) -> Operation:
    found = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert found is not None
    return found


# --- By selectors, and across providers


async def test_p3_an_order_in_doubt_refuses_the_other_provider_of_the_same_merchant(stored_world: World) -> None:
    """P3: the merchant has an account at each. The other merchant of the first provider is not held up."""
    world = stored_world
    await put_in_force(world, acme_text(world, TWO_SHOPS), other_text(world))
    assert outcome(await charge_at(world, "acme", "first", "a-1", fault=LOST)) == "unknown"
    for refused in (
        await charge_at(world, "other", "second"),
        await charge_at(world, "other", "third", amount=5),
    ):
        assert (refused.status_code, problem_type(refused)) == (409, "guarded")
        assert json.loads(refused.body)["side_effect_may_exist"] is True
    assert (await charge_at(world, "acme", "first", "b-1")).status_code == 200
    assert world.effects(order="42") == 2


async def test_two_merchants_of_one_provider_are_told_apart_by_selector(stored_world: World) -> None:
    """Equal keys and orders. The merchant of the whole file joins neither of them."""
    world = stored_world
    await put_in_force(world, "merchant: shop\n" + acme_text(world, TWO_SHOPS))
    first, second = [await charge_at(world, "acme", "key", each) for each in ("a-1", "b-1")]
    assert [each.status_code for each in (first, second)] == [200, 200]
    assert (second.replayed, second.operation_id == first.operation_id) == (False, False)
    unlisted = await charge_at(world, "acme", "key", "c-1")
    assert (unlisted.status_code, unlisted.replayed) == (200, False)
    again = await charge_at(world, "acme", "another", "a-1", amount=5)
    assert (again.status_code, json.loads(again.body)["operation"]) == (409, first.operation_id)
    assert [(await operation_of(world, each)).named_account for each in (first, second, unlisted)] == [
        "shop_a",
        "shop_b",
        "",
    ]


async def test_n5_a_header_that_contradicts_the_selector_is_refused_and_one_that_agrees_changes_nothing(
    stored_world: World,
) -> None:
    world = stored_world
    await put_in_force(world, acme_text(world, TWO_SHOPS))
    first = await charge_at(world, "acme", "key", "a-1")
    arrivals = len(world.arrivals)
    for selector, named in (("a-1", "shop_b"), ("a-1", "nobody"), ("c-1", "shop_a")):
        refused = await charge_at(world, "acme", "fresh", selector, named=named)
        assert (refused.status_code, problem_type(refused)) == (403, "credential-not-recognised")
    agreed = await charge_at(world, "acme", "key", "a-1", named="shop_a")
    assert (agreed.replayed, agreed.operation_id, len(world.arrivals)) == (True, first.operation_id, arrivals)


async def test_n5_a_credential_that_only_the_header_placed_is_shown_nothing_of_the_account(
    stored_world: World,
) -> None:
    world = stored_world
    await put_in_force(world, acme_text(world, TWO_SHOPS))
    first = await charge_at(world, "acme", "key", "a-1")
    by_header = await charge_at(world, "acme", "key", named="shop_a")
    assert (by_header.status_code, by_header.replayed) == (409, False)  # the merchant's order, and nothing of the reply
    assert (await operation_of(world, first)).named_account == "shop_a"
    assert world.effects(order="42") == 1


# --- By credential and by owner


@asynccontextmanager
async def stripe(
    sandbox: Sandbox, merchants: Merchants, journal: Journal, more: str, environment: dict[str, str] | None = None
) -> AsyncIterator[World]:
    """The shipped Stripe policy against the double."""
    server = await asyncio.start_server(merchants.reply, "127.0.0.1", 0)
    merchants.port = server.sockets[0].getsockname()[1]
    world = await make_world(sandbox, journal=journal, environment=environment or KEYS)
    await put_in_force(world, stripe_text(merchants, more))
    try:
        yield world
    finally:
        await close(world)
        server.close()


def stripe_text(merchants: Merchants, more: str) -> str:
    address = f"upstream: http://127.0.0.1:{merchants.port}"
    return f"extends: paywitness:stripe\n{address}\nretry: {{default: {{attempts: 1}}}}\n{more}"


@pytest.mark.parametrize(("more", "silent"), [(OWNED, False), (LISTED, False), (LISTED, True)])
async def test_two_merchants_are_told_apart_by_owner_and_by_credential(
    sandbox: Sandbox, stored_journal: Journal, more: str, silent: bool
) -> None:
    """Equal keys, orders and amounts. What the policy lists does not wait for the provider's word."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, silent=silent)
    async with stripe(sandbox, merchants, stored_journal, more) as world:
        first, second = [await pay(world, key, key="inv-7", order="1001") for key in ("k1", "k2")]
        assert [each.status_code for each in (first, second)] == [200, 200]
        assert (second.replayed, second.operation_id == first.operation_id) == (False, False)
        assert merchants.paid == [("acct_a", "1001", "700"), ("acct_b", "1001", "700")]
        again = await pay(world, "k1", key="inv-7", order="1001")
        assert (again.replayed, again.operation_id) == (True, first.operation_id)
        refused = await pay(world, "k2", key="other", order="1001", amount=900)
        assert (refused.status_code, json.loads(refused.body)["operation"]) == (409, second.operation_id)


async def test_what_the_policy_lists_and_the_provider_denies_is_refused(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """The provider's word goes first. Nothing goes out as the account that the file says."""
    more = LISTED.replace("merchant: alpha", "merchant: alpha, owner: acct_z")
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"})
    async with stripe(sandbox, merchants, stored_journal, more) as world:
        reply = await pay(world, "k1", key="inv-7", order="1001")
        assert (reply.status_code, problem_type(reply), merchants.paid) == (403, "credential-not-recognised", [])
        assert names_nothing(reply)


async def test_a_credential_that_nobody_lists_is_not_claimed_for_anybody(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b", "k9": "acct_c"}, silent=True)
    async with stripe(sandbox, merchants, stored_journal, LISTED) as world:
        reply = await pay(world, "k9", key="inv-7", order="1001")
        assert (reply.status_code, problem_type(reply), merchants.paid) == (504, "account-unknown", [])


async def test_a_listed_credential_is_rotated(sandbox: Sandbox, stored_journal: Journal) -> None:
    """P2: the variable has another value after a restart. The journal knows whose the old one was."""
    merchants = Merchants({"k1": "acct_a", "k3": "acct_a", "k2": "acct_b"}, silent=True)
    async with stripe(sandbox, merchants, stored_journal, LISTED) as world:
        merchants.lose = True
        lost = await pay(world, "k1", key="first", order="42", timeout_s=0.5)
        assert lost.status_code == 504
        merchants.lose = False
        rotated = await make_world(sandbox, journal=stored_journal, environment={**KEYS, "KEY_A": "Bearer k3"})
        await put_in_force(rotated, stripe_text(merchants, LISTED))
        other = await pay(rotated, "k3", key="second", order="42", amount=900, timeout_s=0.5)
        assert (other.status_code, problem_type(other)) == (409, "guarded")
        assert json.loads(other.body)["operation"] == header(lost, "Paywitness-Operation")
        assert (await pay(rotated, "k2", key="first", order="42", timeout_s=0.5)).status_code == 200
        await rotated.engine.tasks.close(5.0)
        await rotated.parts.upstream.close()


async def test_the_journal_maps_what_the_policy_lists_and_the_provider_is_believed_first(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"})
    async with stripe(sandbox, merchants, stored_journal, LISTED) as world:
        secret, owners = world.engine.vault.identity_secret, world.engine.credential_owners
        credential = credential_in(((b"Authorization", b"Bearer k1"),), secret)
        assert await owners.marks(credential_key("stripe", credential)) == {"@:shop_a": "policy"}
        moved = LISTED.replace("shop_a:", "shop_c:")
        await put_in_force(world, stripe_text(merchants, moved))
        assert await owners.marks(credential_key("stripe", credential)) == {"@:shop_c": "policy"}


@pytest.mark.parametrize("accounts", ["", "accounts:\n  shop_a: {merchant: alpha, owner: acct_a}\n"])
async def test_n15_the_intent_that_an_object_shows_guards_the_order_of_the_owner(
    stored_world: World, accounts: str
) -> None:
    """N15: it was read before the owner was known, and forgotten when the call went on as the owner's."""
    world = stored_world
    asks = "merchants: many\nwho_am_i: {request: GET /v1/charges, query: {paywitness: none}, field: \"'acct_a'\"}\n"
    await put_in_force(world, acme_text(world, asks + accounts))
    body = {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": "42"}}
    seen = await elsewhere(world, "/v1/charges", body)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": "confirm"}
    path, lost = f"/v1/charges/{seen['id']}/confirm", {"Sandbox-Fault": "reset_before_commit*"}
    options = CallerOptions(timeout_s=1.0)
    reply = await world.post(path, {"source": "tok_ok"}, {**headers, **lost}, options)
    assert outcome(reply) == "unknown"
    guard = (await operation_of(world, reply)).guard
    assert guard is not None
    assert (guard.kind, guard.label) == ("intent", "42")
    anew = await charge_at(world, "acme", "anew")
    assert (anew.status_code, problem_type(anew)) == (409, "guarded")


# --- Calls of our own


async def candidates_of(world: World, reply: Reply) -> list[bytes]:
    """The credentials under which the operation is asked about, in their order."""
    operation = await operation_of(world, reply)
    source = world.parts.resolver.inquiry_client.credentials
    policy = world.engine.book.providers[operation.provider].policies[0]
    found = [each async for each in source.candidates(operation, policy, None)]
    return [value for each in found for name, value in each.headers if name.lower() == b"authorization"]


async def test_p8_an_account_is_asked_about_under_its_own_credential_and_never_under_anothers(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P8: the file's own credential is shop_b's. It asks for shop_b, and for nobody else."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, silent=True, lose=True)
    more = LISTED + "credentials: {header: {Authorization: env:KEY_B}}\n"
    async with stripe(sandbox, merchants, stored_journal, more) as world:
        replies = [await pay(world, key, key="inv-7", order="1001", timeout_s=0.3) for key in ("k1", "k2")]
        assert [outcome(each) for each in replies] == ["unknown", "unknown"]
        assert [await candidates_of(world, each) for each in replies] == [[b"Bearer k1"], [b"Bearer k2"]]


async def test_n17_a_fallback_acts_for_the_merchant_of_its_first_operation_under_its_own_credential(
    stored_journal: Journal,
) -> None:
    """N17: the other merchant has no account on the second route, and is not paid there."""
    routed = ("\nunmatched: forward", "\nfallback: [{to: other, when: [not_sent]}]\nunmatched: forward")
    gamma = "  shop_g: {merchant: gamma, credentials: {header: {Authorization: env:GAMMA_KEY}}}\n"
    environment = {"OTHER_KEY": "Bearer alphas", "GAMMA_KEY": "Bearer gammas"}
    async with Sandbox(SandboxOptions()) as first, Sandbox(SandboxOptions()) as second:
        world = await make_world(first, journal=stored_journal, environment=environment)
        there = other_text(replace(world, sandbox=second), "merchants: many\n" + ONE_SHOP + gamma)
        await put_in_force(world, acme_text(world, TWO_SHOPS, routed), there)
        await first.stop()
        with credentials_sent(second) as sent:
            refused = await charge_at(world, "acme", "key", "b-1")
            paid = await charge_at(world, "acme", "key", "a-1")
        assert (refused.status_code, outcome(refused)) == (503, "not_sent")
        assert (paid.status_code, header(paid, "Paywitness-Provider")) == (200, "other")
        assert (await operation_of(world, paid)).named_account == "shop_a2"
        assert (sent, second.ledger.effects(order="42")) == ({b"Bearer alphas"}, 1)
        await close(world)


# --- Files that gain `accounts:`


async def test_an_order_of_before_the_file_had_accounts_still_guards(stored_world: World) -> None:
    """N17: guards look under the earlier rules of merchants as of accounts."""
    world = stored_world
    await put_in_force(world, "merchant: shop\n" + acme_text(world))
    lost = await charge_at(world, "acme", "first", "a-1", fault=LOST)
    paid = await charge_at(world, "acme", "paid", "b-1", amount=7)  # the old scope: one merchant's
    assert (outcome(lost), paid.status_code) == ("unknown", 409)
    gained = "merchant: shop\n" + acme_text(world, TWO_SHOPS)
    new = PolicyBook.of([load_content(gained.encode(), "test.yaml")])
    assert await refused_changes(world.journal, new) == ()
    await put_in_force(world, gained)
    equal = await charge_at(world, "acme", "second", "a-1")
    assert header(equal, "Paywitness-Operation") == header(lost, "Paywitness-Operation")
    another = await charge_at(world, "acme", "third", "a-1", amount=5)
    assert (another.status_code, problem_type(another)) == (409, "guarded")
    assert world.effects(order="42") == 1


async def test_an_order_of_before_the_file_told_merchants_by_credential_still_guards(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """Under the old rule both credentials acted for one account. Each finds its own, and is not held up by the
    other's."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, silent=True, lose=True)
    async with stripe(sandbox, merchants, stored_journal, "") as world:
        lost = await pay(world, "k1", key="first", order="42", timeout_s=0.3)
        assert lost.status_code == 504
        merchants.lose = False
        await put_in_force(world, stripe_text(merchants, LISTED))
        sent = len(merchants.paid)
        same = await pay(world, "k1", key="second", order="42", amount=900, timeout_s=0.3)
        assert (same.status_code, problem_type(same)) == (409, "guarded")
        assert len(merchants.paid) == sent
        assert (await pay(world, "k2", key="first", order="42")).status_code == 200


async def test_a_merchant_that_was_renamed_is_looked_for_under_both_names(stored_world: World) -> None:
    world = stored_world
    await put_in_force(world, acme_text(world, TWO_SHOPS), other_text(world))
    assert outcome(await charge_at(world, "acme", "first", "a-1", fault=LOST)) == "unknown"
    renamed = [each.replace("alpha", "gamma") for each in (acme_text(world, TWO_SHOPS), other_text(world))]
    await put_in_force(world, *renamed)
    for refused in (
        await charge_at(world, "acme", "second", "a-1", amount=5),
        await charge_at(world, "other", "third"),
    ):
        assert (refused.status_code, problem_type(refused)) == (409, "guarded")
    assert world.effects(order="42") == 1
