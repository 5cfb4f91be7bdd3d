"""What is not found: who was asked, and where. Nothing is called absent by an address that never got the attempt, nor
what the provider itself has named to us."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any, cast

import aiohttp
import pytest

from paywitness.core.call import CallerOptions
from paywitness.core.inquiry import InquiryReason
from paywitness.core.operation import FindingKind, State
from paywitness.core.reply import Reply
from paywitness.core.result import ResultClass
from paywitness.journal.base import Journal
from paywitness_sandbox.server import Sandbox
from tests.engine.resolution.test_resolver import NOT_STORED, QUICK, SOON, ended, resolved, resolving
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, book_of, header, outcome, problem_type, sooner

NOTHING = {"data": [], "has_more": False}


class Scripted:
    """A provider whose answers a test gives: method and target to status and body."""

    def __init__(self, answer: Callable[[str, str], tuple[int, object]]) -> None:
        self.answer = answer
        self.arrivals: list[tuple[str, str]] = []
        self.url = ""
        self.date_at: Callable[[], float] | None = None  # its clock, if its responses show one

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        length = next((line[15:] for line in head.lower().split("\r\n") if line[:15] == "content-length:"), "0")
        await reader.readexactly(int(length))
        self.arrivals.append((method, target))
        status, shown = self.answer(method, target)
        body = json.dumps(shown).encode() if shown is not None else b""
        date = f"Date: {formatdate(self.date_at(), usegmt=True)}\r\n".encode() if self.date_at is not None else b""
        head_line = b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n" % (status, len(body))
        writer.write(head_line + date + b"\r\n" + body)
        await writer.drain()
        writer.close()


LOST = InquiryReason.LOST_RESPONSE


@asynccontextmanager
async def scripted(answer: Callable[[str, str], tuple[int, object]]) -> AsyncIterator[Scripted]:
    provider = Scripted(answer)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()


CHARGE: dict[str, Any] = {"object": "charge", "id": "ch_mine", "amount": 1099, "currency": "EUR"}


async def test_m13_p37_a_reference_that_the_provider_gave_us_is_an_incident_when_it_is_not_found_and_never_absent() -> (
    None
):
    """It answered 200 with the charge's id and a status that no row knows; its page is a 404 ever after."""

    def answer(method: str, target: str) -> tuple[int, object]:
        if method == "POST":
            return 200, {**CHARGE, "status": "on its way"}
        return (404, {"error": "no such charge"}) if "/ch_mine" in target else (200, NOTHING)

    async with scripted(answer) as provider, resolving(cast(Sandbox, provider), NOT_STORED) as world:
        lost = await world.charge(timeout_s=0.2)
        assert outcome(lost) == "unknown"
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda seen: seen.incident is not None)
        assert (found.state, found.incident) == (State.REQUIRES_REVIEW, "reference_not_found")
        assert (found.reference, found.key_released) == ("ch_mine", False)
        again = await world.charge(timeout_s=0.2)
        fresh = await world.charge("key-2", timeout_s=0.2)
        assert [outcome(again), fresh.status_code] == ["unknown", 504]
        assert [method for method, _ in provider.arrivals].count("POST") == 1
        looks = [entry.finding for entry in await world.journal.history(found.id) if entry.finding is not None]
        assert FindingKind.MISSED not in {look.kind for look in looks}


async def test_m22_what_was_sent_to_one_address_is_not_absent_because_another_one_does_not_know_it(
    sandbox: Sandbox,
) -> None:
    """The policy's `upstream` is edited while the outcome is unknown."""
    async with scripted(lambda method, target: (200, NOTHING)) as other, resolving(sandbox, NOT_STORED) as world:
        sandbox.set_schedule({"read_faults": "error_500*"})
        lost = await world.charge(fault="drop_after_commit", timeout_s=0.2)
        assert lost.status_code == 504
        world.engine.policies.book = sooner(book_of(other.url, *QUICK, NOT_STORED), SOON)
        sandbox.set_schedule({"read_faults": "-*"})
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, world.effects(order="order-1")) == (State.SUCCEEDED, 1)
        assert other.arrivals == []


async def test_m22_if_the_first_address_is_gone_only_what_the_new_one_finds_counts() -> None:
    shown: dict[str, object] = {"now": NOTHING}

    def lost(method: str, target: str) -> tuple[int, object]:
        return (502, {}) if method == "POST" else (500, {})

    async with (
        scripted(lambda method, target: (200, shown["now"])) as new,
        scripted(lost) as old,
        resolving(cast(Sandbox, old), NOT_STORED) as world,
    ):
        reply = await world.charge(timeout_s=0.2)
        operation_id = header(reply, "Paywitness-Operation")
        # The old address is one that nobody listens on any more.
        unknown = await world.journal.read(operation_id or "")
        assert unknown is not None
        policy = sooner(book_of(new.url, *QUICK, NOT_STORED), SOON).providers["acme"].policies[0]
        gone = unknown.changed(upstream="http://127.0.0.1:9")
        client = world.parts.resolver.inquiry_client
        request = await client.stored_request(unknown)
        assert (await client.inquire(gone, policy, request, LOST)).seen.finding.kind is FindingKind.FAILED
        paid = {**CHARGE, "status": "succeeded", "metadata": {"paywitness": unknown.stamp}}
        shown["now"] = {"data": [paid], "has_more": False}
        assert (await client.inquire(gone, policy, request, LOST)).seen.finding.kind is FindingKind.HIT


JSON = {"Content-Type": "application/json", "Authorization": "Bearer test"}
SHOWN_BEFORE: dict[str, dict[str, Any]] = {
    "confirm": {"confirm": False},
    "capture": {"capture": False, "source": "tok_ok"},
    "void": {"capture": False, "source": "tok_ok"},
}


async def follow(
    world: World, charge: str, step: str, key: str, fault: str = "-", timeout_s: float | None = None
) -> Reply:
    body = {"source": "tok_ok"} if step == "confirm" else {}
    headers = {**JSON, "Idempotency-Key": key, "Sandbox-Fault": fault}
    return await world.post(f"/v1/charges/{charge}/{step}", body, headers, CallerOptions(timeout_s=timeout_s))


@pytest.mark.parametrize("step", SHOWN_BEFORE)
async def test_p13_a_target_that_is_shown_as_it_was_before_our_attempt_is_a_miss_like_any_other(
    sandbox: Sandbox, stored_journal: Journal, step: str
) -> None:
    """P13: "never absent if its target was shown" kept every lost confirm, capture and void for ever, and the void
    behind it. After `settle` and `misses` it is absent, and its own key makes it."""
    async with resolving(sandbox, NOT_STORED, journal=stored_journal) as world:
        order = {"amount": 1000, "currency": "EUR", "metadata": {"order_id": "order-1"}, **SHOWN_BEFORE[step]}
        made = await world.post("/v1/charges", order, {**JSON, "Idempotency-Key": "made"})
        charge = json.loads(made.body)["id"]
        lost = await follow(world, charge, step, "key", "reset_before_commit")
        found = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert (found.state, found.result_class, found.key_released) == (State.FAILED, ResultClass.ABSENT, True)
        assert found.misses >= 2
        assert [entry.kind for entry in sandbox.ledger.entries] == ([] if step == "confirm" else ["authorization"])
        again = await follow(world, charge, step, "key")
        assert (again.status_code, outcome(again)) == (200, "succeeded")


async def test_p13_a_target_that_was_shown_and_is_not_found_any_more_is_never_absent(stored_journal: Journal) -> None:
    """P13: a 404 of it is a failed inquiry."""
    created = {**CHARGE, "status": "created", "metadata": {"order_id": "order-1"}}
    gone = {"now": False}

    def answer(method: str, target: str) -> tuple[int, object]:
        if method == "GET":
            return (404, {"error": "no such charge"}) if gone["now"] else (200, created)
        return (200, created) if target == "/v1/charges" else (500, {})

    async with (
        scripted(answer) as provider,
        resolving(cast(Sandbox, provider), NOT_STORED, journal=stored_journal) as world,
    ):
        order = {"amount": 1099, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-1"}}
        await world.post("/v1/charges", order, {**JSON, "Idempotency-Key": "made"})
        gone["now"] = True
        lost = await follow(world, "ch_mine", "confirm", "key")
        assert (lost.status_code, outcome(lost)) == (504, "unknown")
        found = await resolved(world, header(lost, "Paywitness-Operation"), lambda seen: seen.state != State.UNKNOWN)
        assert (found.state, found.key_released) == (State.REQUIRES_REVIEW, False)
        anew = await world.charge("key-2", amount=1100, timeout_s=0.2)
        assert (anew.status_code, problem_type(anew)) == (409, "guarded")
        assert [each for each in provider.arrivals if each[0] == "POST"] == [
            ("POST", "/v1/charges"),
            ("POST", "/v1/charges/ch_mine/confirm"),
        ]


@pytest.mark.parametrize(("status_code", "told"), [(204, "succeeded"), (502, "unknown"), (200, "unknown")])
async def test_p28_a_void_that_is_answered_without_a_body_has_ended_if_a_row_names_its_status(
    stored_journal: Journal, status_code: int, told: str
) -> None:
    """P28 C and D: PayPal, Mollie and Klarna answer 204. It shows neither reference nor stamp, and it is whole, on a
    connection with one request: proof. The row says nothing of another empty response."""
    row = ("  voided_charge:\n", "  voided_charge:\n    - {status: 204, as: succeeded}\n")

    def answer(method: str, target: str) -> tuple[int, object]:
        if method == "GET":
            return 500, {}
        return (status_code, None) if target.endswith("/void") else (200, {**CHARGE, "status": "authorized"})

    async with (
        scripted(answer) as provider,
        resolving(cast(Sandbox, provider), NOT_STORED, row, journal=stored_journal) as world,
    ):
        order = {"amount": 1099, "currency": "EUR", "capture": False, "metadata": {"order_id": "order-1"}}
        await world.post("/v1/charges", order, {**JSON, "Idempotency-Key": "made"})
        headers = {**JSON, "Idempotency-Key": "void"}
        void = await world.post("/v1/charges/ch_mine/void", {}, headers, CallerOptions(timeout_s=0.5))
        assert outcome(void) == told


async def test_p12b_already_captured_after_a_generation_that_was_called_absent_is_no_refusal(
    sandbox: Sandbox, stored_journal: Journal
) -> None:
    """P12 B: the provider captured after everything had settled. The next generation's first attempt is told "already
    captured", by what our own earlier attempt has done: it is asked about, and never told as failed."""
    sandbox.set_contract("none")
    async with resolving(sandbox, *WITHOUT_KEYS, journal=stored_journal) as world:
        order = {"amount": 1000, "currency": "EUR", "metadata": {"order_id": "order-1"}, **SHOWN_BEFORE["capture"]}
        made = await world.post("/v1/charges", order, {**JSON, "Idempotency-Key": "made"})
        charge = json.loads(made.body)["id"]
        lost = await follow(world, charge, "capture", "key", "reset_before_commit", timeout_s=0.3)
        first = await resolved(world, header(lost, "Paywitness-Operation"), ended)
        assert first.result_class is ResultClass.ABSENT
        stamped = {"metadata": {"paywitness": first.stamp}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{sandbox.url}/v1/charges/{charge}/capture", json=stamped, headers=JSON) as late,
        ):
            assert late.status == 200  # a proxy between us held the request back for so long
        again = await follow(world, charge, "capture", "key", timeout_s=0.3)
        assert outcome(again) in {"unknown", "succeeded"}
        second = await resolved(world, header(again, "Paywitness-Operation"), ended)
        assert (second.state, [entry.kind for entry in sandbox.ledger.entries]) == (
            State.SUCCEEDED,
            ["authorization", "capture"],
        )
