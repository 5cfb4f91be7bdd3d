"""Calls of our own: under whose credentials we ask, how something in doubt is given up, and what a void frees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from paywitness.core.account_rules import BackgroundCredentials, OAuth2
from paywitness.core.call import CallerOptions
from paywitness.core.credential_owners import MarkSource, credential_key, owner_mark
from paywitness.core.identity import credential_in
from paywitness.core.inquiry import BelongsFields, InquiryReason
from paywitness.core.operation import FindingKind, Operation, State
from paywitness.core.policy import Policy
from paywitness.core.result import ResultClass
from paywitness.core.template import Placeholder, Template
from paywitness.engine.resolution.background_credentials import CredentialSource
from paywitness.journal.base import Journal, OperationChange
from paywitness.policy.book import PolicyBook
from paywitness.policy.reading.expressions import expression
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.calls.test_fallback import credentials_sent
from tests.engine.conftest import close
from tests.engine.resolution.test_resolver import ended, resolved, resolving
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, header, make_world, outcome

BEARER = {"Authorization": "Bearer test", "Content-Type": "application/json"}
AUTHORIZED = {"amount": 1000, "currency": "EUR", "capture": False, "source": "tok_ok"}


LOST = InquiryReason.LOST_RESPONSE


@asynccontextmanager
async def sandbox_with(*api_keys: str) -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxOptions(contract="none", api_keys=api_keys)) as running:
        yield running


def revoke(sandbox: Sandbox, *left: str) -> None:
    sandbox._provider.options = replace(sandbox.options, api_keys=left)  # as its dashboard would


async def test_when_the_callers_credential_is_gone_the_accounts_newest_accepted_one_asks() -> None:
    async with sandbox_with("old", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
        old = {"Authorization": "Bearer old"}
        lost = await world.charge(fault="drop_after_commit", headers=old, timeout_s=0.1)
        assert lost.status_code == 504
        await world.charge("other", order="other", headers={"Authorization": "Bearer new"})
        revoke(sandbox, "new")
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)


async def test_a_revoked_credential_that_was_recorded_last_does_not_hide_the_one_in_use() -> None:
    """A sidecar that had stood still recorded an old success: the revoked credential was the newest accepted one."""
    async with sandbox_with("old", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
        old, new = {"Authorization": "Bearer old"}, {"Authorization": "Bearer new"}
        lost = await world.charge(fault="drop_after_commit", headers=old, timeout_s=0.1)
        assert lost.status_code == 504
        await world.charge("in use", order="in use", headers=new)
        await world.charge("late", order="late", headers=old)
        revoke(sandbox, "new")
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)


async def test_what_is_known_to_be_another_owners_credential_asks_for_nobody_else(world: World) -> None:
    reply = await world.charge(headers={"Authorization": "Bearer alice"})
    operation = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    await world.charge("other", order="other", headers={"Authorization": "Bearer bob"})
    policy = replace(sale(world.engine.book), credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)))
    environment = {"ACME_KEY": "Bearer bob"}
    found = await credentials_of(world, policy, operation, environment)
    assert sorted(found) == ["Bearer alice", "Bearer bob"]
    owners, secret = world.engine.credential_owners, world.engine.vault.identity_secret
    for owner in ("alice", "bob"):
        credential = credential_in(((b"Authorization", f"Bearer {owner}".encode()),), secret)
        key = credential_key(policy.key_provider, credential)
        await owners.add_marks(key, {owner_mark(owner): MarkSource.PROVIDER})
    assert await credentials_of(world, policy, operation, environment) == ["Bearer alice"]


_PLACES = "account: [const:main, header:Acme-Account]"
_SHOPS = """
credentials: {header: {Authorization: env:KEY_B}}
accounts:
  shop_a: {merchant: alpha, selectors: {"header:Acme-Account": a-1}, credentials: {header: {Authorization: env:KEY_A}}}
  shop_b: {merchant: beta, selectors: {"header:Acme-Account": b-1}, credentials: {header: {Authorization: env:KEY_B}}}
"""


async def test_p8_when_the_callers_credential_is_gone_the_accounts_own_asks(stored_journal: Journal) -> None:
    """P8: the file's own credential is another account's, and the provider would have taken it."""
    environment = {"KEY_A": "Bearer a", "KEY_B": "Bearer b"}
    edits = (*WITHOUT_KEYS, (_PLACES, _PLACES + _SHOPS))
    async with (
        sandbox_with("caller", "a", "b") as sandbox,
        resolving(sandbox, *edits, journal=stored_journal, environment=environment) as world,
    ):
        world.engine.policies.book = await world.engine.credential_owners.listed(world.engine.book)
        sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
        headers = {"Authorization": "Bearer caller", "Acme-Account": "a-1"}
        lost = await world.charge(fault="drop_after_commit", headers=headers, timeout_s=0.1)
        assert lost.status_code == 504
        revoke(sandbox, "a", "b")
        with credentials_sent(sandbox) as sent:
            found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, found.named_account) == (State.SUCCEEDED, "shop_a")
        assert b"Bearer a" in sent
        assert b"Bearer b" not in sent


async def test_p14_a_credential_that_finds_what_the_other_made_is_of_the_same_account(world: World) -> None:
    """The control question: then its misses count, and it may send."""
    operation = await some_operation(world)
    known = await world.journal.read(operation.id)
    assert known is not None
    policy = replace(sale(world.engine.book), credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)))
    lost = await world.charge("lost", order="lost", fault="drop_after_commit", timeout_s=0.3)
    unknown = await world.journal.read(header(lost, "Paywitness-Operation") or "")
    assert unknown is not None
    environment = {"ACME_KEY": "Bearer rotated"}
    owners = world.engine.credential_owners
    source = CredentialSource(world.journal, world.engine.vault, environment, world.parts.upstream, world.clock, owners)
    rotated = ((b"Authorization", b"Bearer rotated"),)
    found = [each async for each in source.candidates(unknown, policy, None)]
    assert [each.is_of_account for each in found if each.headers == rotated] == [True]
    stranger = unknown.changed(credential="of somebody who has made nothing")
    source = CredentialSource(world.journal, world.engine.vault, environment, world.parts.upstream, world.clock, owners)
    found = [each async for each in source.candidates(stranger, policy, None)]
    assert [each.is_of_account for each in found if dict(each.headers)[b"Authorization"] == b"Bearer rotated"] == [
        False
    ]


async def test_the_control_question_is_not_hidden_by_newer_payments(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once so many payments had been made under the renewed credential, none of the first was found, and it was left
    to a person what had become of its last one."""
    monkeypatch.setattr("paywitness.engine.resolution.control_question._KNOWN_MAX", 1)
    await world.charge("known", order="known")
    lost = await world.charge("lost", order="lost", fault="drop_after_commit", timeout_s=0.3)
    unknown = await world.journal.read(header(lost, "Paywitness-Operation") or "")
    assert unknown is not None
    await world.charge("newer", order="newer", headers={"Authorization": "Bearer rotated"})
    owners = world.engine.credential_owners
    source = CredentialSource(world.journal, world.engine.vault, {}, world.parts.upstream, world.clock, owners)
    found = [each async for each in source.candidates(unknown, sale(world.engine.book), None)]
    rotated = ((b"Authorization", b"Bearer rotated"),)
    assert [each.is_of_account for each in found if each.headers == rotated] == [True]


async def lost_void(world: World, sandbox: Sandbox, *, under: str) -> str | None:
    """A void that never reached the provider. Its credential is revoked after that; `new` is the one in use."""
    made = await world.post(
        "/v1/charges", AUTHORIZED, {**BEARER, "Authorization": "Bearer old", "Idempotency-Key": "made"}
    )
    charge = json.loads(made.body)["id"]
    await world.charge("in use", order="in use", headers={"Authorization": "Bearer new"})
    sandbox.set_schedule({"read_faults": "error_500,error_500,error_500,-*"})
    headers = {
        **BEARER,
        "Authorization": f"Bearer {under}",
        "Idempotency-Key": "void",
        "Sandbox-Fault": "reset_before_commit",
    }
    lost = await world.post(f"/v1/charges/{charge}/void", {}, headers, CallerOptions(timeout_s=0.1))
    assert (lost.status_code, outcome(lost)) == (504, "unknown")
    revoke(sandbox, "new")
    return header(lost, "Paywitness-Operation")


async def test_a_miss_that_shows_the_payment_itself_is_an_answered_control_question() -> None:
    """The credential in use finds the charge that the revoked one had made, so it is of the same account. The charge is
    as it was before the void: no other object could be asked for, as no void had succeeded yet."""
    async with sandbox_with("old", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        operation_id = await lost_void(world, sandbox, under="old")
        found = await resolved(world, operation_id, lambda seen: seen.state is not State.UNKNOWN)
        assert (found.state, found.result_class) == (State.FAILED, ResultClass.ABSENT)
        assert found.misses >= 2


async def test_a_miss_that_shows_a_payment_of_another_credential_proves_nothing() -> None:
    """Nobody knows whether the one that sent the void is of the charge's account."""
    async with sandbox_with("old", "other", "new") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        operation_id = await lost_void(world, sandbox, under="other")
        found = await resolved(world, operation_id, lambda seen: seen.state is not State.UNKNOWN)
        assert (found.state, found.misses, found.key_released) == (State.REQUIRES_REVIEW, 0, False)


async def test_without_any_credential_that_is_accepted_it_stays_in_doubt_and_reaches_a_person() -> None:
    async with sandbox_with("old") as sandbox, resolving(sandbox, *WITHOUT_KEYS) as world:
        sandbox.set_schedule({"read_faults": "error_500,-*"})
        lost = await world.charge(fault="drop_after_commit", headers={"Authorization": "Bearer old"}, timeout_s=0.05)
        revoke(sandbox, "nobody has this one")
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda seen: seen.due_at is None)
        assert (found.state, found.because) == (State.REQUIRES_REVIEW, "schedule_ran_out")


async def credentials_of(world: World, policy: Policy, operation: Operation, environment: dict[str, str]) -> list[str]:
    parts = world.parts
    background = CredentialSource(
        world.journal, world.engine.vault, environment, parts.upstream, world.clock, world.engine.credential_owners
    )
    found = [dict(each.headers) async for each in background.candidates(operation, policy, None)]
    return [headers.get(b"Authorization", b"").decode() for headers in found]


async def some_operation(world: World) -> Operation:
    reply = await world.charge()
    operation = await world.journal.read(header(reply, "Paywitness-Operation") or "")
    assert operation is not None
    return operation.changed(account="another account, which no credential was accepted for")


async def test_credentials_come_from_the_environment_where_the_policy_names_them(world: World) -> None:
    operation = await some_operation(world)
    policy = replace(sale(world.engine.book), credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)))
    assert await credentials_of(world, policy, operation, {"ACME_KEY": "Bearer env"}) == ["Bearer env"]
    assert await credentials_of(world, policy, operation, {}) == [""]


async def test_a_token_is_fetched_once_and_used_again(sandbox: Sandbox, world: World) -> None:
    asked = 0

    async def token_endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Authorization: Basic aWQ6c2VjcmV0" in head  # id:secret
        asked += 1
        body = json.dumps({"access_token": f"token-{asked}", "expires_in": 3600}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(token_endpoint, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    oauth2 = OAuth2("POST", "/oauth2/token", "ACME_ID", "ACME_SECRET")
    policy = replace(
        sale(world.engine.book), upstream=f"http://127.0.0.1:{port}", credentials=BackgroundCredentials((), oauth2)
    )
    operation = await some_operation(world)
    background = CredentialSource(
        world.journal,
        world.engine.vault,
        {"ACME_ID": "id", "ACME_SECRET": "secret"},
        world.parts.upstream,
        world.clock,
        world.engine.credential_owners,
    )
    for _ in range(2):
        found = [each.headers async for each in background.candidates(operation, policy, None)]
        assert found == [((b"Authorization", b"Bearer token-1"),)]
    assert asked == 1
    server.close()


async def test_an_inquirys_own_headers_go_out_and_never_in_place_of_the_credential(world: World) -> None:
    heads: list[bytes] = []

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(provider, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    operation = await some_operation(world)
    given = sale(world.engine.book)
    own = (("Accept", "application/hal+json"), ("X-Version", "2"))
    policy = replace(
        given,
        upstream=f"http://127.0.0.1:{port}",
        headers=(("X-Version", "1"),),
        inquiries=(replace(given.inquiries[0], headers=own),),
        credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)),
    )
    inquirer = world.parts.resolver.inquiry_client
    credentials = replace(inquirer.credentials, environment={"ACME_KEY": "Bearer env"})
    sent_there = operation.changed(upstream=policy.upstream)
    look = await replace(inquirer, credentials=credentials).inquire(sent_there, policy, None, LOST)
    server.close()
    # M9: nobody knows whether it is of the account that made the operation, so that it found nothing says nothing.
    assert (look.seen.finding.kind, look.missed_inquiries) == (FindingKind.FAILED, ())
    (head,) = heads
    assert b"\r\nAccept: application/hal+json\r\n" in head
    assert b"\r\nX-Version: 2\r\n" in head
    assert b"\r\nAuthorization: Bearer env\r\n" in head
    assert head.count(b"X-Version") == head.count(b"Accept:") == 1


@pytest.mark.parametrize(("kept", "kind"), [(True, FindingKind.MISSED), (False, FindingKind.FAILED)])
async def test_m29_a_miss_counts_only_under_the_account_that_a_header_named(
    sandbox: Sandbox, kept: bool, kind: FindingKind
) -> None:
    """M29: PayPal's merchant is named by a header. An inquiry without it asks about the platform's own payments. If the
    request cannot be read any more, nobody knows what the header was."""
    seen: list[str] = []

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = b'{"data": [], "has_more": false}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(provider, "127.0.0.1", 0)
    world = await make_world(sandbox, ("errors_under_key: replayed ", "errors_under_key: not_stored "))
    lost = await world.charge(fault="drop_after_commit", headers={"Acme-Account": "shop-a"}, timeout_s=0.3)
    unknown = await world.journal.read(header(lost, "Paywitness-Operation") or "")
    assert unknown is not None
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = world.parts.resolver.inquiry_client
    policy = replace(
        sale(world.engine.book),
        upstream=address,
        credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)),
    )
    credentials = replace(client.credentials, environment={"ACME_KEY": "Bearer test"})
    request = await client.stored_request(unknown) if kept else None
    there = unknown.changed(upstream=address)
    look = await replace(client, credentials=credentials).inquire(there, policy, request, LOST)
    assert look.seen.finding.kind is kind
    assert ("\r\nAcme-Account: shop-a\r\n" in seen[-1]) is kept
    server.close()
    await close(world)


async def test_another_payments_object_is_passed_over_and_the_next_way_is_asked(world: World) -> None:
    operation = await some_operation(world)
    paid = {"status": "succeeded", "amount": 1099, "currency": "EUR"}
    answers = [{**paid, "id": "ch_of_another"}, {**paid, "id": operation.reference}, {**paid, "id": "ch_of_another"}]

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(answers.pop(0)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(provider, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    given = replace(
        sale(world.engine.book),
        upstream=f"http://127.0.0.1:{port}",
        credentials=BackgroundCredentials((("Authorization", "ACME_KEY"),)),
    )
    operation = operation.changed(upstream=given.upstream)
    named = BelongsFields(reference=expression("id"), asked=Template((Placeholder("reference"),)))
    by_name = replace(given.inquiries[0], belongs=named)
    inquirer = world.parts.resolver.inquiry_client
    inquirer = replace(inquirer, credentials=replace(inquirer.credentials, environment={"ACME_KEY": "Bearer env"}))
    twice = await inquirer.inquire(operation, replace(given, inquiries=(by_name, by_name)), None, LOST)
    assert (twice.seen.finding.kind, twice.seen.provider_object) == (
        FindingKind.HIT,
        {**paid, "id": operation.reference},
    )
    once = await inquirer.inquire(operation, replace(given, inquiries=(by_name,)), None, LOST)
    assert (once.seen.finding.kind, once.missed_inquiries) == (FindingKind.FAILED, ())
    server.close()


def sale(book: PolicyBook) -> Policy:
    return next(policy for policy in book.providers["acme"].policies if policy.operation == "sale")


# --- cancel


async def test_a_cancel_that_is_shown_ends_the_doubt_and_one_that_is_not_leaves_it(sandbox: Sandbox) -> None:
    """An authorization whose answer was doubtful, but named it: an operator gives it up."""
    async with resolving(sandbox) as world:
        body = {"amount": 500, "currency": "EUR", "capture": False, "metadata": {"order_id": "hold"}}
        headers = {**BEARER, "Idempotency-Key": "hold", "Sandbox-Fault": "wrong_amount"}
        sandbox.set_schedule({"read_faults": "error_500*"})
        reply = await world.post("/v1/charges", body, headers)
        assert outcome(reply) == "unknown"
        operation_id = header(reply, "Paywitness-Operation")
        found = await resolved(world, operation_id, lambda seen: seen.state is State.REQUIRES_REVIEW)
        charge = next(iter(sandbox.ledger.find(order="hold"))).charge
        wanted = found.changed(reference=charge, cancel_wanted=True, due_at=world.clock.now())
        await world.journal.record(OperationChange(wanted, (), source="operator", actor="ann", note="given up"))
        gone = await resolved(world, operation_id, ended)
        assert (gone.state, gone.result_class, gone.cancel_sent, gone.key_released) == (
            State.FAILED,
            ResultClass.CANCELLED,
            True,
            False,
        )
        assert sandbox.bank.charge(charge).status == "voided"
        again = await world.post("/v1/charges", body, {**BEARER, "Idempotency-Key": "hold"})
        assert again.status_code == 409  # a cancelled key is never released


# --- void


async def test_a_voided_payment_frees_its_intent(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    body = {"amount": 500, "currency": "EUR", "capture": False, "metadata": {"order_id": "hold"}}
    first = await world.post("/v1/charges", body, {**BEARER, "Idempotency-Key": "hold-1"})
    charge = json.loads(first.body)["id"]
    blocked = await world.post("/v1/charges", {**body, "amount": 600}, {**BEARER, "Idempotency-Key": "hold-2"})
    assert blocked.status_code == 409
    voided = await world.post(f"/v1/charges/{charge}/void", {}, {**BEARER, "Idempotency-Key": "void-1"})
    assert voided.status_code == 200
    operation = await world.journal.read(header(first, "Paywitness-Operation") or "")
    assert operation is not None
    assert (operation.state, operation.result_class, operation.incident) == (
        State.SUCCEEDED,
        ResultClass.REVERSED,
        None,
    )
    free = await world.post("/v1/charges", {**body, "amount": 600}, {**BEARER, "Idempotency-Key": "hold-3"})
    assert free.status_code == 200
    await close(world)
