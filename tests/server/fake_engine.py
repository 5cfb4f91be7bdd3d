"""A fake world behind the edge: it records every call, and answers as it was told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from paywitness.core.call import Call, Headers
from paywitness.core.operation import Outcome
from paywitness.core.reply import Reply

FINE = Reply(
    200,
    ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", b"succeeded")),
    b'{"status":"succeeded"}',
    Outcome.SUCCEEDED,
)


@dataclass
class Streamed:
    status_code: int
    headers: Headers
    body: AsyncIterator[bytes]
    reason: bytes | None = None
    trailers: Callable[[], Headers] = tuple


@dataclass
class Forwarded:
    call: Call
    length: int | None
    pieces: list[bytes] | None


@dataclass
class FakeCarrier:
    """Operations are those under v1/charges; all else is forwarded. `hold()` keeps answers back until `release()`."""

    reply: Reply = FINE
    streamed: Callable[[], Streamed] | None = None
    error: Exception | None = None
    reads_bodies: bool = True
    calls: list[Call] = field(default_factory=list)
    forwarded: list[Forwarded] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    described_intents: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    still_there: Callable[[], bool] | None = None
    answered: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def hold(self) -> None:
        self.gate.clear()

    def release(self) -> None:
        self.gate.set()

    def knows(self, provider: str) -> bool:
        return provider in {"acme", "globex"}

    def provider_at(self, host: str) -> str | None:
        return {"api.acme.test": "acme", "api.globex.test": "globex"}.get(host)

    def in_shadow_mode(self, provider: str) -> bool:
        return provider == "globex"

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        return segments[:2] == ("v1", "charges")

    async def reply_to(self, call: Call, still_there: Callable[[], bool]) -> Reply:
        self.calls.append(call)
        self.still_there = still_there
        self.arrived.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.answered += 1
        return self.reply

    async def forward(self, call: Call, body: AsyncIterator[bytes] | None, length: int | None) -> Reply | Streamed:
        seen = Forwarded(call, length, None if body is None else [])
        self.forwarded.append(seen)
        self.arrived.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if body is not None and seen.pieces is not None and self.reads_bodies:
            async for piece in body:
                seen.pieces.append(piece)
        return self.reply if self.streamed is None else self.streamed()

    async def describe(self, operation_id: str, call: Call) -> Reply:
        self.described.append(operation_id)
        if self.error is not None:
            raise self.error
        return self.reply

    async def describe_intent(self, intent: str, merchant: str | None, provider: str | None, call: Call) -> Reply:
        self.described_intents.append((intent, merchant, provider))
        if self.error is not None:
            raise self.error
        return self.reply

    @property
    def call(self) -> Call:
        """The one call that came."""
        (call,) = self.calls
        return call

    @property
    def forward_seen(self) -> Forwarded:
        (forwarded,) = self.forwarded
        return forwarded
