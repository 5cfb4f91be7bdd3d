"""Two merchants, and rotated credentials, behind one sidecar: whose a credential is decides what it is told and sends.

The shipped Stripe policy against a provider double that knows accounts, keys and who may ask what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

import pytest

from paywitness.core.call import Call, CallerOptions
from paywitness.core.credential_owners import credential_key
from paywitness.core.identity import credential_in
from paywitness.core.reply import Reply
from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.operator_commands import InvalidCommand
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook, load_content
from paywitness_sandbox.server import Sandbox
from tests.engine.world import World, header, make_world, problem_type, roomy

PAYMENTS = "/v1/payment_intents"


@dataclass
class Merchants:
    """A provider with several accounts. `owners` says whose each key is; `silent` keys get no word of it."""

    owners: dict[str, str]
    forbidden: set[str] = field(default_factory=set)  # keys that may not ask who they are
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    paid: list[tuple[str, str, str]] = field(default_factory=list)  # owner, order, amount
    lose: bool = False
    declines: bool = False
    port: int = 0

    async def reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                line, *lines = head.split("\r\n")
                headers = dict(each.lower().split(": ", 1) for each in lines if each)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                key = next(each for each in lines if each.lower().startswith("authorization")).split(" ")[-1]
                answer = self.answer(line.split(" ")[1], key, dict(parse_qsl(body.decode())))
                if answer is None:
                    return
                status, shown = answer
                text = json.dumps(shown).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def answer(self, path: str, key: str, form: dict[str, str]) -> tuple[int, object] | None:
        if path == "/v1/account":
            self.asked.append(key)
            if self.silent:
                return None
            if key in self.forbidden:
                return 403, {"error": {"type": "invalid_request_error"}}
            return 200, {"id": self.owners[key], "object": "account"}
        owner = self.owners[key]
        if self.declines:
            return 402, {"error": {"type": "card_error", "code": "card_declined", "decline_code": "stolen_card"}}
        self.paid.append((owner, form.get("metadata[order_id]", ""), form["amount"]))
        if self.lose:
            return None
        number = f"pi_{len(self.paid)}"
        metadata = {"paywitness": form.get("metadata[paywitness]")}
        money = {"amount": int(form["amount"]), "currency": form["currency"]}
        return 200, {"id": number, "object": "payment_intent", "status": "succeeded", "metadata": metadata, **money}


@asynccontextmanager
async def behind_one_sidecar(
    sandbox: Sandbox, merchants: Merchants, more: str = "", journal: Journal | None = None
) -> AsyncIterator[World]:
    server = await asyncio.start_server(merchants.reply, "127.0.0.1", 0)
    merchants.port = server.sockets[0].getsockname()[1]
    world = await make_world(sandbox, journal=journal)
    address = f"upstream: http://127.0.0.1:{merchants.port}"
    text = f"extends: paywitness:stripe\n{address}\nretry: {{default: {{attempts: 1}}}}\n{more}"
    world.engine.policies.book = roomy(PolicyBook.of([load_content(text.encode(), "stripe.yaml")]))
    yield world
    await world.engine.tasks.close(5.0)
    await world.parts.upstream.close()
    await world.journal.close()
    server.close()


async def pay(
    world: World,
    credential: str,
    *,
    key: str,
    order: str | None = None,
    amount: int = 700,
    timeout_s: float | None = None,
    account: str | None = None,
) -> Reply:
    form = {"amount": amount, "currency": "eur", "confirm": "true", "payment_method": "pm_1"}
    if order is not None:
        form["metadata[order_id]"] = order
    headers = (
        (b"Authorization", f"Bearer {credential}".encode()),
        (b"Idempotency-Key", key.encode()),
        (b"Content-Type", b"application/x-www-form-urlencoded"),
    )
    segments = ("v1", "payment_intents")
    options = CallerOptions(timeout_s=timeout_s, account=account)
    call = Call("stripe", "POST", PAYMENTS, "", segments, headers, urlencode(form).encode(), options)
    return await world.engine.reply_to(call, lambda: True)


def names_nothing(reply: Reply) -> bool:
    told = json.loads(reply.body)
    return "operation" not in told and reply.operation_id is None and header(reply, "Paywitness-Operation") is None


async def test_m2a_a_rotated_key_of_the_same_owner_is_replayed_and_never_told_that_nothing_happened(
    sandbox: Sandbox,
) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_a"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        first = await pay(world, "k1", key="order-1")
        again = await pay(world, "k2", key="order-1")
        assert (again.status_code, again.replayed, again.operation_id) == (200, True, first.operation_id)
        assert len(merchants.paid) == 1


async def test_p2a_an_unknown_order_is_not_paid_again_under_a_rotated_key(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P2 A: the credential was a part of the account. After its rotation nothing guarded the order."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_a"}, lose=True)
    async with behind_one_sidecar(sandbox, merchants, journal=stored_journal) as world:
        lost = await pay(world, "k1", key="first", order="42", timeout_s=0.5)
        assert lost.status_code == 504
        merchants.lose = False
        operation = header(lost, "Paywitness-Operation")
        other = await pay(world, "k2", key="second", order="42", amount=900, timeout_s=0.5)
        assert (other.status_code, problem_type(other)) == (409, "guarded")
        assert json.loads(other.body)["operation"] == operation
        equal = await pay(world, "k2", key="third", order="42", timeout_s=0.5)
        assert header(equal, "Paywitness-Operation") == operation


async def test_m2b_another_merchant_with_equal_keys_and_orders_is_refused_and_told_of_nothing(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        await pay(world, "k1", key="inv-7", order="1001")
        for reply in (
            await pay(world, "k2", key="inv-7", order="1001"),
            await pay(world, "k2", key="other", order="1001"),
            await pay(world, "k2", key="third", order="1001", amount=900),
        ):
            assert (reply.status_code, problem_type(reply)) == (403, "credential-not-recognised")
            assert names_nothing(reply)
        assert merchants.paid == [("acct_a", "1001", "700")]


async def test_n6_until_the_provider_answers_fresh_orders_pass_and_others_are_unknown(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, silent=True)
    async with behind_one_sidecar(sandbox, merchants) as world:
        await pay(world, "k1", key="inv-7", order="1001")
        unknown = await pay(world, "k2", key="mine", order="1001", amount=900)
        assert (unknown.status_code, problem_type(unknown), names_nothing(unknown)) == (504, "account-unknown", True)
        fresh = await pay(world, "k2", key="fresh", order="2001")
        assert fresh.status_code == 200
        assert [owner for owner, _, _ in merchants.paid] == ["acct_a", "acct_b"]


async def test_n6d_a_restricted_key_is_asked_about_once_and_its_refusal_is_remembered(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "restricted": "acct_a"}, forbidden={"restricted"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        for number in range(3):
            assert (await pay(world, "restricted", key=f"fresh-{number}")).status_code == 200
        assert merchants.asked == ["restricted"]


async def test_many_calls_of_a_new_credential_ask_once(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        await asyncio.gather(*(pay(world, "k1", key=f"key-{number}", order=str(number)) for number in range(8)))
        assert (merchants.asked, len(merchants.paid)) == (["k1"], 8)


async def test_p8_a_repeat_under_another_owners_key_sends_nothing_for_an_unknown_outcome(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, lose=True)
    async with behind_one_sidecar(sandbox, merchants) as world:
        lost = await pay(world, "k1", key="order-1", timeout_s=0.5)
        assert lost.status_code == 504
        merchants.lose = False
        sent = len(merchants.paid)
        refused = await pay(world, "k2", key="order-1")
        assert (refused.status_code, names_nothing(refused), len(merchants.paid)) == (403, True, sent)


async def test_n6_under_one_merchant_a_credential_of_another_owner_is_refused_also_for_fresh_orders(
    sandbox: Sandbox,
) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b", "k3": "acct_a"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        assert (await pay(world, "k1", key="first", order="1")).status_code == 200
        stranger = await pay(world, "k2", key="fresh", order="2")
        assert (stranger.status_code, problem_type(stranger)) == (403, "credential-not-recognised")
        assert (await pay(world, "k3", key="rotated", order="3")).status_code == 200
        assert [owner for owner, _, _ in merchants.paid] == ["acct_a", "acct_a"]


async def test_n6c_the_owner_of_the_oldest_open_operation_owns_the_account_whoever_calls_first(
    sandbox: Sandbox,
) -> None:
    """After an upgrade nothing is known of credentials, and the other merchant's may come first."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, lose=True, silent=True)
    async with behind_one_sidecar(sandbox, merchants) as world:
        assert (await pay(world, "k1", key="first", order="1", timeout_s=0.5)).status_code == 504
        merchants.lose = merchants.silent = False
        world.engine.credential_owners._settled.clear()  # as after a restart
        await pay(world, "k1", key="second", order="2")
        stranger = await pay(world, "k2", key="third", order="3")
        assert (stranger.status_code, [owner for owner, _, _ in merchants.paid]) == (403, ["acct_a", "acct_a"])


async def test_whoever_called_first_does_not_own_the_account_if_nothing_came_of_it(sandbox: Sandbox) -> None:
    """Each sidecar remembered for a minute who had called it first, and of several sidecars each knew another owner."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"}, declines=True)
    async with behind_one_sidecar(sandbox, merchants) as world:
        assert (await pay(world, "k1", key="first", order="1")).status_code == 402
        merchants.declines = False
        assert (await pay(world, "k2", key="second", order="2")).status_code == 200
        assert (await pay(world, "k1", key="third", order="3")).status_code == 403
        assert merchants.paid == [("acct_b", "2", "700")]


async def test_an_account_that_only_a_header_names_belongs_to_one_owner_too(sandbox: Sandbox) -> None:
    """The provider's word goes before the header's: another owner's credential does not act for that account."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b", "k3": "acct_a"})
    async with behind_one_sidecar(sandbox, merchants) as world:
        assert (await pay(world, "k1", key="first", order="1", account="shop")).status_code == 200
        stranger = await pay(world, "k2", key="fresh", order="2", account="shop")
        assert (stranger.status_code, problem_type(stranger)) == (403, "credential-not-recognised")
        assert (await pay(world, "k2", key="fresh", order="2", account="other")).status_code == 200
        assert (await pay(world, "k3", key="rotated", order="3", account="shop")).status_code == 200
        assert [owner for owner, _, _ in merchants.paid] == ["acct_a", "acct_b", "acct_a"]


async def test_under_many_merchants_equal_keys_and_orders_are_each_owners_own(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b", "k3": "acct_a"})
    async with behind_one_sidecar(sandbox, merchants, "merchants: many\n") as world:
        first = await pay(world, "k1", key="inv-7", order="1001")
        second = await pay(world, "k2", key="inv-7", order="1001")
        assert (first.status_code, second.status_code) == (200, 200)
        assert first.operation_id != second.operation_id
        again = await pay(world, "k3", key="inv-7", order="1001")
        assert (again.replayed, again.operation_id) == (True, first.operation_id)
        assert merchants.paid == [("acct_a", "1001", "700"), ("acct_b", "1001", "700")]


async def test_under_many_merchants_nothing_is_claimed_before_the_owner_is_known(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a"}, silent=True)
    async with behind_one_sidecar(sandbox, merchants, "merchants: many\n") as world:
        reply = await pay(world, "k1", key="inv-7", order="1001")
        assert (reply.status_code, problem_type(reply), merchants.paid) == (504, "account-unknown", [])


async def test_n22_an_operator_maps_a_credential_that_the_provider_says_nothing_of(sandbox: Sandbox) -> None:
    merchants = Merchants({"k1": "acct_a", "k2": "acct_a"}, silent=True)
    async with behind_one_sidecar(sandbox, merchants) as world:
        first = await pay(world, "k1", key="order-1", order="1")
        other = await pay(world, "k2", key="order-2", order="2")
        assert (await pay(world, "k2", key="order-1", order="1")).status_code == 504
        owners = world.engine.credential_owners
        commands = CredentialCommands(world.journal, world.parts.journal_writer, owners)
        said = {"actor": "ada", "reason": "key rolled, ticket 4730", "evidence": "the dashboard lists both keys"}
        with pytest.raises(InvalidCommand, match="evidence"):
            await commands.map(other.operation_id or "", first.operation_id or "", **{**said, "evidence": " "})
        view = await commands.map(other.operation_id or "", first.operation_id or "", **said)
        assert list(view.marks.values()) == ["operator"]
        again = await pay(world, "k2", key="order-1", order="1")
        assert (again.status_code, again.replayed, len(merchants.paid)) == (200, True, 2)
        told = await world.journal.history(other.operation_id or "")
        assert (told[-1].events, told[-1].actor) == (("credential_mapped",), "ada")
        await commands.unmap(other.operation_id or "", **said)
        assert (await pay(world, "k2", key="order-1", order="1")).status_code == 504


async def ask(world: World, credential: str, method: str, path: str, form: dict[str, str]) -> Reply:
    headers = (
        (b"Authorization", f"Bearer {credential}".encode()),
        (b"Idempotency-Key", b"a-key"),
        (b"Content-Type", b"application/x-www-form-urlencoded"),
    )
    segments = tuple(path.strip("/").split("/"))
    call = Call("stripe", method, path, "", segments, headers, urlencode(form).encode(), CallerOptions())
    return await world.engine.reply_to(call, lambda: True)


async def test_n24_observe_mode_asks_nobody_whose_a_credential_is_and_maps_nothing(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """N24: it changes nothing. Two owners pay, equal in everything, and both calls pass."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"})
    async with behind_one_sidecar(sandbox, merchants, "mode: observe\n", stored_journal) as world:
        replies = [await pay(world, key, key="inv-7", order="1001") for key in ("k1", "k2")]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert merchants.paid == [("acct_a", "1001", "700"), ("acct_b", "1001", "700")]
        assert merchants.asked == []
        assert await marks(world, "k1", "k2") == [{}, {}]


@pytest.mark.parametrize("path", ["/v1/payment_intents/pi_1", "/v1/customers"])
async def test_n24_what_moves_no_money_passes_whoever_asks_and_maps_nothing(
    sandbox: Sandbox, stored_journal: Journal, path: str
) -> None:
    """N24: a stranger's read, and a call that is no operation, are the provider's to judge."""
    merchants = Merchants({"k1": "acct_a", "k2": "acct_b"})
    async with behind_one_sidecar(sandbox, merchants, journal=stored_journal) as world:
        assert (await pay(world, "k1", key="inv-7", order="1001")).status_code == 200
        assert (await pay(world, "k2", key="fresh", order="2001")).status_code == 403  # it is known to be a stranger
        before = await marks(world, "k2", "new")
        merchants.owners["new"] = "acct_c"
        asked = list(merchants.asked)
        for credential in ("k2", "new"):
            reply = await ask(world, credential, "GET", path, {"amount": "1", "currency": "eur"})
            assert reply.status_code == 200
        assert merchants.asked == asked
        assert await marks(world, "k2", "new") == before


async def marks(world: World, *credentials: str) -> list[dict[str, str]]:
    """What the journal has of these credentials: the account or owner that each is mapped to, and by whose word."""
    secret, owners = world.engine.vault.identity_secret, world.engine.credential_owners
    headers = [((b"Authorization", f"Bearer {credential}".encode()),) for credential in credentials]
    return [await owners.marks(credential_key("stripe", credential_in(each, secret))) for each in headers]
