"""Payouts through the engine, with the sandbox's ledger as judge: references, caps, approvals, and the check hook."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.call import CallerOptions
from paywitness.core.circuit import CircuitState
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import Finding, FindingKind, State
from paywitness.core.reply import Reply
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.payout_approvals import ApprovalRefused, NoSuchApproval, PayoutApprovals
from paywitness.journal.base import Journal, OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.webhook_signatures.scheme import SignatureVerdict
from paywitness.webhook_signatures.standard_webhooks import StandardWebhooks
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.limits_world import force
from tests.engine.world import POLICY, World, header, make_world, outcome, problem_type, until
from tests.journal.redis_server import RedisServer

MATCH = "    match: POST /v1/payouts\n"
SECRET = "a secret of the check, long enough"
_prefixes = itertools.count(1)


def edits(*lines: str) -> tuple[tuple[str, str], ...]:
    """The sandbox's policy, with its payouts blocked after success, and with these lines in their operation."""
    of_payout = POLICY.read_text().partition(MATCH)[2].partition("\nanswers:")[0]
    block = () if "after_success: block" in of_payout else ("after_success: block",)
    return ((MATCH, MATCH + "".join(f"    {line}\n" for line in (*block, *lines))),)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    if request.param == "sqlite":
        return await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    server: RedisServer = request.getfixturevalue("redis_server")
    return await RedisJournal.open(f"{server.url}?prefix=payouts-{next(_prefixes)}:")


@dataclass
class Payouts:
    world: World

    async def send(
        self,
        key: str,
        *,
        amount: int = 1000,
        destination: str = "dest_ok",
        reference: str | None = "P-1",
        fault: str = "",
        options: CallerOptions | None = None,
        **more: Any,
    ) -> Reply:
        body = {"amount": amount, "currency": "EUR", "destination": destination, **more}
        if reference is not None:
            body["reference"] = reference
        headers = {"Authorization": "Bearer test", "Content-Type": "application/json", "Idempotency-Key": key}
        if fault:
            headers["Sandbox-Fault"] = fault
        return await self.world.post("/v1/payouts", body, headers, options or CallerOptions())

    @property
    def paid(self) -> int:
        return self.world.effects(kind="payout")

    async def shown(self, reply: Reply, result_class: ResultClass) -> None:
        """The provider's object shows this of the payout, as an inquiry or event would find it."""
        operation = await self.world.journal.read(header(reply, "Paywitness-Operation") or "")
        assert operation is not None
        policy = await self.world.parts.pinned.policy_from_book(operation, self.world.engine.book)
        assert policy is not None
        classification = Classification.of(result_class, "test")
        finding = Finding("webhook evt_1", FindingKind.HIT, classification=classification)
        await self.world.parts.external_evidence.apply(operation, policy, EvidenceSource.WEBHOOK, finding)

    async def kept(self) -> int:
        return len(await self.world.journal.find_operations(OperationQuery(limit=50)))


@pytest.fixture
async def payouts(sandbox: Sandbox, journal: Journal) -> AsyncIterator[Payouts]:
    world = await make_world(sandbox, *edits("failed_after_success: returned"), journal=journal)
    yield Payouts(world)
    await close(world)


# --- references


async def test_an_equal_payout_under_a_fresh_key_is_replayed_after_success(payouts: Payouts) -> None:
    first = await payouts.send("first")
    again = await payouts.send("fresh")
    assert (first.status_code, again.status_code, again.body) == (200, 200, first.body)
    assert header(again, "Paywitness-Replayed") == "true"
    assert payouts.paid == 1


@pytest.mark.parametrize("other", [{"amount": 1001}, {"destination": "acct_other"}])
async def test_another_amount_or_beneficiary_of_a_paid_reference_is_refused(
    payouts: Payouts, other: dict[str, Any]
) -> None:
    await payouts.send("first")
    refused = await payouts.send("second", **other)
    assert (refused.status_code, problem_type(refused)) == (409, "guarded")
    assert payouts.paid == 1


async def test_a_payout_that_came_back_frees_its_reference(payouts: Payouts) -> None:
    first = await payouts.send("first")
    await payouts.shown(first, ResultClass.FAILED)  # by the policy a failure after success is a return
    corrected = await payouts.send("second", destination="acct_corrected")
    assert corrected.status_code == 200
    assert payouts.paid == 2


async def test_a_payout_that_failed_frees_its_reference_for_any_body(payouts: Payouts) -> None:
    """P20 A: a corrected account number under the same reference was refused for ever."""
    rejected = await payouts.send("first", destination="dest_refused_account_closed")
    assert rejected.status_code == 402
    corrected = await payouts.send("second", destination="dest_ok")
    assert corrected.status_code == 200
    assert payouts.paid == 1


async def test_without_a_reference_an_equal_payout_passes_after_success(payouts: Payouts) -> None:
    """P20 B: a block by content would stop tomorrow's equal payout."""
    first = await payouts.send("today", reference=None)
    second = await payouts.send("tomorrow", reference=None)
    assert (first.status_code, second.status_code) == (200, 200)
    assert payouts.paid == 2


async def test_a_reference_may_be_made_of_several_places(sandbox: Sandbox, journal: Journal) -> None:
    """P20 C: two sellers of one order. The group alone took the second transfer for another one to the first's."""
    both = ("    target: body:reference  ", "    target: [body:reference, body:destination]  ")
    world = await make_world(sandbox, both, journal=journal)
    payouts = Payouts(world)
    assert (await payouts.send("first", destination="dest_ok")).status_code == 200
    assert (await payouts.send("second", destination="dest_pending")).status_code == 200
    again = await payouts.send("a fresh key", destination="dest_ok")
    assert (again.status_code, header(again, "Paywitness-Replayed")) == (200, "true")
    other = await payouts.send("another amount", destination="dest_ok", amount=1001)
    assert (other.status_code, problem_type(other)) == (409, "guarded")
    assert len(world.sandbox.ledger.entries) == 2
    await close(world)


async def test_the_intent_of_the_caller_is_the_reference_of_a_payout(payouts: Payouts) -> None:
    intent = CallerOptions(intent="transfer-7")
    first = await payouts.send("first", reference=None, options=intent)
    again = await payouts.send("fresh", reference=None, options=intent)
    refused = await payouts.send("other", reference=None, amount=5, options=intent)
    assert (again.status_code, again.body) == (200, first.body)
    assert (refused.status_code, problem_type(refused)) == (409, "guarded")
    assert payouts.paid == 1


async def test_the_intent_of_the_policy_is_the_reference_of_a_payout(sandbox: Sandbox) -> None:
    text = [line for line in POLICY.read_text().splitlines() if "target: body:reference" in line]
    world = await make_world(sandbox, *edits("intent: metadata.transfer"), (f"{text[0]}\n", ""))
    payouts = Payouts(world)
    first = await payouts.send("first", metadata={"transfer": "T-1"})
    again = await payouts.send("fresh", metadata={"transfer": "T-1"})
    other = await payouts.send("other", metadata={"transfer": "T-2"})
    assert (again.body, other.status_code, payouts.paid) == (first.body, 200, 2)
    await close(world)


async def test_an_unknown_payout_holds_its_reference(sandbox: Sandbox, journal: Journal) -> None:
    lost_for_good = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
    world = await make_world(sandbox, *edits(), lost_for_good, journal=journal)
    payouts = Payouts(world)
    lost = await payouts.send("first", fault="drop_after_commit")
    assert outcome(lost) == "unknown"
    refused = await payouts.send("second", amount=5)
    assert (refused.status_code, problem_type(refused)) == (409, "guarded")
    assert payouts.paid == 1
    await close(world)


# --- caps

CAPS = "payout: {beneficiary: body:destination, caps: [{per: beneficiary, window: 1d, amount: 20.00, currency: EUR}]}"


async def test_a_payout_over_its_cap_is_refused_until_the_window_ends(sandbox: Sandbox, journal: Journal) -> None:
    world = await make_world(sandbox, *edits(CAPS), journal=journal)
    payouts = Payouts(world)
    assert (await payouts.send("first", reference="P-1")).status_code == 200
    assert (await payouts.send("second", reference="P-2")).status_code == 200
    refused = await payouts.send("third", reference="P-3", amount=1)
    assert (refused.status_code, problem_type(refused)) == (409, "cap-exceeded")
    assert 0 < int(header(refused, "Retry-After") or 0) <= 86_400
    assert json.loads(refused.body)["sent"] is False
    other = await payouts.send("other", reference="P-4", destination="acct_other")
    assert other.status_code == 200
    assert payouts.paid == 3
    again = await payouts.send("second", reference="P-2")
    assert (again.status_code, header(again, "Paywitness-Replayed")) == (200, "true")
    await close(world)


async def test_a_declined_payout_gives_its_amount_back_and_an_unknown_one_does_not(
    sandbox: Sandbox, journal: Journal
) -> None:
    per_account = CAPS.replace("per: beneficiary", "per: account")
    lost_for_good = ("errors_under_key: replayed ", "errors_under_key: not_stored ")
    world = await make_world(sandbox, *edits(per_account), lost_for_good, journal=journal)
    payouts = Payouts(world)
    declined = await payouts.send("declined", reference="P-1", amount=2000, destination="dest_refused_closed")
    assert declined.status_code == 402
    unknown = await payouts.send("unknown", reference="P-2", amount=1500, fault="drop_after_commit")
    assert outcome(unknown) == "unknown"
    refused = await payouts.send("refused", reference="P-3", amount=501)
    assert problem_type(refused) == "cap-exceeded"
    assert (await payouts.send("fits", reference="P-4", amount=500)).status_code == 200
    await close(world)


async def test_a_hundred_payouts_at_once_stop_at_the_cap(sandbox: Sandbox, journal: Journal) -> None:
    world = await make_world(sandbox, *edits(CAPS.replace("20.00", "10.00")), journal=journal)
    payouts = Payouts(world)
    replies = await asyncio.gather(
        *(payouts.send(f"key-{number}", reference=f"P-{number}", amount=50) for number in range(100))
    )
    assert sorted({reply.status_code for reply in replies}) == [200, 409]
    assert payouts.paid == 20
    await close(world)


# --- approvals

APPROVAL = "payout: {beneficiary: body:destination, approval_above: [{amount: 5.00, currency: EUR}]}"


def approvals_of(world: World) -> PayoutApprovals:
    return PayoutApprovals(world.journal, world.parts.journal_writer.journal_clock)


@pytest.mark.parametrize("key", ["first", "a-fresh-key"])
async def test_a_repeat_passes_once_approved_and_exactly_once(sandbox: Sandbox, journal: Journal, key: str) -> None:
    """P20 D and N18: nothing but the request is stored, and one claim uses the approval up, whatever its key is."""
    world = await make_world(sandbox, *edits(APPROVAL), journal=journal)
    payouts, approvals = Payouts(world), approvals_of(world)
    refused = await payouts.send("first", reference=None)
    assert (refused.status_code, problem_type(refused)) == (409, "approval-needed")
    assert (payouts.paid, await payouts.kept(), len(world.arrivals)) == (0, 0, 0)
    [waiting] = await approvals.listed()
    assert waiting.terms.id in json.loads(refused.body)["detail"]
    approved = await approvals.approve(waiting.terms.id, "ada", "invoice 88")
    assert await approvals.approve(waiting.terms.id, "bob", "once more") == approved
    assert (await payouts.send(key, reference=None)).status_code == 200
    assert payouts.paid == 1
    again = await payouts.send("another", reference=None)
    assert (again.status_code, problem_type(again)) == (409, "approval-needed")
    assert payouts.paid == 1
    await close(world)


async def test_what_is_not_above_the_amount_passes_and_other_content_needs_its_own_approval(sandbox: Sandbox) -> None:
    world = await make_world(sandbox, *edits(APPROVAL))
    payouts, approvals = Payouts(world), approvals_of(world)
    assert (await payouts.send("small", reference="P-0", amount=500)).status_code == 200
    await payouts.send("large")
    [waiting] = await approvals.listed()
    await approvals.approve(waiting.terms.id, "ada", "invoice 88")
    for other in ({"amount": 1001}, {"destination": "acct_other"}, {"reference": "P-2"}):
        refused = await payouts.send(f"other-{sorted(other)}", **other)
        assert problem_type(refused) == "approval-needed"
    assert (await payouts.send("large")).status_code == 200
    assert payouts.paid == 2
    with pytest.raises(ApprovalRefused):
        await approvals.approve(waiting.terms.id, "ada", "invoice 88")
    with pytest.raises(NoSuchApproval):
        await approvals.approve("ap_0", "ada", "invoice 88")
    await close(world)


# --- the check

ALLOW = b'{"allow": true}'


@dataclass
class Hook:
    """Whoever is asked: answers as it is told, and remembers what it was asked."""

    status: str = "200 OK"
    body: bytes = ALLOW
    headers: str = ""
    hang: bool = False
    waits_for: asyncio.Event | None = None  # before it answers
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line]
        headers = {name.lower(): value for name, value in lines}
        self.asked.append((headers, await reader.readexactly(int(headers["content-length"]))))
        if self.waits_for is not None:
            await self.waits_for.wait()
        if not self.hang:
            told = f"HTTP/1.1 {self.status}\r\n{self.headers}Content-Length: {len(self.body)}\r\n\r\n"
            writer.write(told.encode() + self.body)
            await writer.drain()
            writer.close()


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    yield hook
    server.close()


async def checked(sandbox: Sandbox, hook: Hook, *more: str, within: str = "2s", **given: Any) -> Payouts:
    check = f"check: {{url: 'http://127.0.0.1:{hook.port}/check?a=b', secret: env:CHECK_SECRET, timeout: {within}}}"
    block = f"payout: {{beneficiary: body:destination, {check}}}"
    environment = given.pop("environment", {"CHECK_SECRET": SECRET})
    return Payouts(await make_world(sandbox, *edits(block, *more), environment=environment, **given))


async def test_the_check_is_asked_signed_before_the_first_byte(sandbox: Sandbox, hook: Hook) -> None:
    payouts = await checked(sandbox, hook)
    assert (await payouts.send("first")).status_code == 200
    [(headers, body)] = hook.asked
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    verdict = StandardWebhooks().check(pairs, body, [SECRET.encode()], SystemClock().now(), 60.0)
    assert verdict.verdict is SignatureVerdict.GENUINE
    asked = json.loads(body)
    assert (asked["amount"], asked["currency"], asked["reference"]) == ("10.00", "EUR", "P-1")
    assert asked["beneficiary"] == {"body:destination": "dest_ok"}
    await close(payouts.world)


def in_flight(world: World) -> int:
    """Places at the provider that are taken."""
    return sum(each.in_flight for each in world.parts.limits.admission.stats())


async def test_a_payout_that_waits_for_its_check_keeps_no_place_at_the_provider(sandbox: Sandbox, hook: Hook) -> None:
    """Whoever is asked may hang, and payments of others went without a place."""
    hook.waits_for = asyncio.Event()
    payouts = await checked(sandbox, hook, within="10s")
    waiting = asyncio.ensure_future(payouts.send("first"))
    await until(lambda: hook.asked)
    assert (in_flight(payouts.world), await payouts.kept()) == (0, 0)
    assert (await payouts.world.charge("meanwhile")).status_code == 200
    hook.waits_for.set()
    assert (await waiting).status_code == 200
    assert (payouts.paid, len(hook.asked), in_flight(payouts.world)) == (1, 1, 0)
    await close(payouts.world)


async def test_a_payout_that_gets_no_place_after_its_check_is_not_sent_and_its_key_is_free(
    sandbox: Sandbox, hook: Hook
) -> None:
    """The provider was given up while somebody thought about the payout. A later call asks again."""
    hook.waits_for = asyncio.Event()
    payouts = await checked(sandbox, hook, within="10s", limited=True)
    waiting = asyncio.ensure_future(payouts.send("first"))
    await until(lambda: hook.asked)
    await force(payouts.world, CircuitState.OPEN)
    hook.waits_for.set()
    refused = await waiting
    assert (refused.status_code, outcome(refused)) == (503, "not_sent")
    assert (payouts.paid, await payouts.kept(), in_flight(payouts.world)) == (0, 0, 0)
    await force(payouts.world, CircuitState.CLOSED)
    assert (await payouts.send("first")).status_code == 200
    assert (payouts.paid, len(hook.asked)) == (1, 2)
    await close(payouts.world)


@pytest.mark.parametrize(
    "refusal",
    [
        {"body": b'{"allow": false}'},
        {"body": b'{"allow": "true"}'},
        {"body": b'{"allow": 1}'},
        {"body": b'{"allow": false, "allow": true}'},  # says both
        {"body": b"[]"},
        {"body": b"yes"},
        {"body": b""},
        {"status": "500 Broken"},
        {"status": "302 Found", "headers": "Location: http://127.0.0.1:1/\r\n"},
        {"hang": True},
    ],
)
async def test_anything_but_a_clear_yes_refuses(sandbox: Sandbox, hook: Hook, refusal: dict[str, Any]) -> None:
    for name, value in refusal.items():
        setattr(hook, name, value)
    payouts = await checked(sandbox, hook, within="200ms")
    refused = await payouts.send("first")
    assert (refused.status_code, problem_type(refused)) == (409, "refused-by-check")
    assert (payouts.paid, await payouts.kept(), len(payouts.world.arrivals)) == (0, 0, 0)
    assert len(hook.asked) == 1
    hook.__init__(port=hook.port)  # type: ignore[misc]  # as it was at the start: it allows
    assert (await payouts.send("first")).status_code == 200  # the key is free
    assert payouts.paid == 1
    await close(payouts.world)


async def test_a_check_that_is_not_there_or_has_no_secret_refuses(sandbox: Sandbox, hook: Hook) -> None:
    without = await checked(sandbox, hook, environment={})
    assert problem_type(await without.send("first")) == "refused-by-check"
    await close(without.world)
    gone = await checked(sandbox, replace(hook, port=1))
    assert problem_type(await gone.send("first")) == "refused-by-check"
    assert hook.asked == []
    await close(gone.world)


async def test_replays_and_guarded_calls_ask_nobody(sandbox: Sandbox, hook: Hook, journal: Journal) -> None:
    payouts = await checked(sandbox, hook, journal=journal)
    first = await payouts.send("first")
    hook.body = b'{"allow": false}'
    for key in ("first", "fresh"):
        again = await payouts.send(key)
        assert (again.status_code, again.body) == (200, first.body)
    assert problem_type(await payouts.send("other", amount=5)) == "guarded"
    assert len(hook.asked) == 1
    await close(payouts.world)


async def test_a_re_send_under_doubt_does_not_ask_again(sandbox: Sandbox, hook: Hook) -> None:
    payouts = await checked(sandbox, hook)
    lost = await payouts.send("first", fault="drop_after_commit", options=CallerOptions(timeout_s=0.5))
    hook.body = b'{"allow": false}'
    if outcome(lost) == "unknown":
        lost = await payouts.send("first")
    assert (lost.status_code, payouts.paid, len(hook.asked)) == (200, 1, 1)
    await close(payouts.world)


async def test_calls_at_once_under_one_key_are_paid_once(sandbox: Sandbox, hook: Hook) -> None:
    payouts = await checked(sandbox, hook)
    replies = await asyncio.gather(*(payouts.send("one-key") for _ in range(10)))
    assert {reply.status_code for reply in replies} == {200}
    assert payouts.paid == 1
    await close(payouts.world)


# --- what is announced


async def test_the_money_of_a_payout_is_told_from_its_claim_to_its_return(payouts: Payouts) -> None:
    """P20 E: a ledger that counts on `released` must be able to."""
    first = await payouts.send("first")
    await payouts.shown(first, ResultClass.RETURNED)
    await payouts.send("refused", reference="P-2", destination="dest_refused_closed")
    rows = await payouts.world.journal.announcements(0, limit=20)
    told = [(row.entry.announcement.payout, row.entry.state) for row in rows if row.entry.announcement is not None]
    assert told == [
        ("reserved", State.SENDING),
        ("committed", State.SUCCEEDED),
        (None, State.SUCCEEDED),
        ("reserved", State.SENDING),
        ("released", State.FAILED),
    ]
