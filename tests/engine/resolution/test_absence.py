"""What is not found: who was asked, and where. Nothing is called absent by an address that never got the attempt, nor
what the provider itself has named to us."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any, cast

from paywitness.core.operation import FindingKind, State
from paywitness_sandbox.server import Sandbox
from tests.engine.resolution.test_resolver import NOT_STORED, QUICK, SOON, ended, resolved, resolving
from tests.engine.world import book_of, header, outcome, sooner

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
        body = json.dumps(shown).encode()
        date = f"Date: {formatdate(self.date_at(), usegmt=True)}\r\n".encode() if self.date_at is not None else b""
        head_line = b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n" % (status, len(body))
        writer.write(head_line + date + b"\r\n" + body)
        await writer.drain()
        writer.close()


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
        world.engine.book = sooner(book_of(other.url, *QUICK, NOT_STORED), SOON)
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
        assert (await client.inquire(gone, policy, request)).seen.finding.kind is FindingKind.FAILED
        paid = {**CHARGE, "status": "succeeded", "metadata": {"paywitness": unknown.stamp}}
        shown["now"] = {"data": [paid], "has_more": False}
        assert (await client.inquire(gone, policy, request)).seen.finding.kind is FindingKind.HIT
