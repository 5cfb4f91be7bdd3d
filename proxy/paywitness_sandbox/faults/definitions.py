"""Every fault, by phase: before the commit, delays, after the commit, wrong responses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import ClassVar

from paywitness_sandbox.exchange import Fault, SandboxExchange
from paywitness_sandbox.messages import SandboxResponse, card_declined, error_response, internal_error

# --- Before the commit
# Faults before the commit: no money moves. The request is refused, dropped or left without a response.


@dataclass(frozen=True, slots=True)
class ResetBeforeRead(Fault):
    """No effect. The connection is reset after the head, before the body is read. If only the body identifies the
    request (no key, no order in the path), the body has been read by then."""

    name: ClassVar[str] = "reset_before_read"

    async def apply(self, exchange: SandboxExchange) -> None:
        exchange.reset()


@dataclass(frozen=True, slots=True)
class CloseBeforeCommit(Fault):
    """No effect. The whole request is read, then the connection is closed (FIN) without a byte."""

    name: ClassVar[str] = "close_before_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.close()


@dataclass(frozen=True, slots=True)
class ResetBeforeCommit(Fault):
    """No effect. The whole request is read, then the connection is reset (RST)."""

    name: ClassVar[str] = "reset_before_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.reset()


@dataclass(frozen=True, slots=True)
class HangBeforeCommit(Fault):
    """No effect. No response comes. After hang_s the connection is closed. The key is in use until the caller
    leaves."""

    name: ClassVar[str] = "hang_before_commit"
    hang_s: float = 60.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.hang(self.hang_s)


BAD_GATEWAY_PAGE = (
    b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1><hr>gate</body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Html502(Fault):
    """No effect. A gateway in front responds 502 with a page of HTML. The provider never saw the request."""

    name: ClassVar[str] = "html_502"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(SandboxResponse(502, BAD_GATEWAY_PAGE, "text/html"))


@dataclass(frozen=True, slots=True)
class Error500BeforeCommit(Fault):
    """No effect. The work begins, fails, and gets a 500, which the contract `replayed` stores."""

    name: ClassVar[str] = "error_500_before_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute(lambda commit: internal_error())
        exchange.respond(internal_error())


@dataclass(frozen=True, slots=True)
class Error503(Fault):
    """No effect. The provider sheds load: 503 before any work, stored by no contract."""

    name: ClassVar[str] = "error_503"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(error_response(503, "api_error", "We are busy. Try again later.", code="overloaded"))


@dataclass(frozen=True, slots=True)
class RateLimited(Fault):
    """No effect. 429 with Retry-After (retry_after_s), stored by no contract."""

    name: ClassVar[str] = "rate_limited"
    retry_after_s: int = 1

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = error_response(429, "rate_limit_error", "Too many requests.", code="rate_limit")
        exchange.respond(response.with_headers(("Retry-After", str(self.retry_after_s))))


@dataclass(frozen=True, slots=True)
class Unauthorized(Fault):
    """No effect. 401 for any API key; stored by no contract."""

    name: ClassVar[str] = "unauthorized"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(error_response(401, "authentication_error", "No such API key.", code="api_key_invalid"))


@dataclass(frozen=True, slots=True)
class Declined(Fault):
    """No effect. 402, a hard decline for any source. A stored response is replayed instead."""

    name: ClassVar[str] = "declined"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(await exchange.execute(lambda commit: card_declined("stolen_card")))


# --- Delays
# Faults of time: the money moves, but the commit or the response comes late, slowly or never.


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """The money moves after slow_s, with a proper response: latency only. The key is in use meanwhile."""

    name: ClassVar[str] = "slow"
    slow_s: float = 1.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await asyncio.sleep(self.slow_s)
        exchange.respond(await exchange.execute())


@dataclass(frozen=True, slots=True)
class Drip(Fault):
    """The money moves. The response comes a byte at a time, over drip_s in all."""

    name: ClassVar[str] = "drip"
    drip_s: float = 2.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        whole = exchange.head(response) + response.body
        for byte in whole:
            await asyncio.sleep(self.drip_s / len(whole))
            if not exchange.write(bytes((byte,))):
                return
        exchange.mark_responded(response.status_code)


@dataclass(frozen=True, slots=True)
class LateResponse(Fault):
    """The money moves at once. The response comes after late_s, if the caller still waits."""

    name: ClassVar[str] = "late_response"
    late_s: float = 10.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        await asyncio.sleep(self.late_s)
        exchange.respond(response)


@dataclass(frozen=True, slots=True)
class LateCommit(Fault):
    """The money moves after late_s, even if the caller has left. No response comes. Until then the key is in use, and
    an inquiry finds nothing. After hang_s the connection is closed."""

    name: ClassVar[str] = "late_commit"
    late_s: float = 10.0
    hang_s: float = 60.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await asyncio.sleep(self.late_s)
        await exchange.execute()
        await exchange.hang(self.hang_s)


@dataclass(frozen=True, slots=True)
class BlackHole(Fault):
    """The money moves after heal_s, even if the caller has left or was reset. No response comes. The connection is
    silent until hang_s, then reset (hang_s=0: at once). Until the commit an inquiry finds nothing. The key is in use
    from the start. With key_free=1 the request waits before the provider, and another request under its key is
    executed."""

    name: ClassVar[str] = "black_hole"
    heal_s: float = 10.0
    hang_s: float = 60.0
    key_free: int = 0

    async def apply(self, exchange: SandboxExchange) -> None:
        await (exchange.read() if self.key_free else exchange.receive())
        silent_s = min(self.hang_s, self.heal_s)
        await asyncio.sleep(silent_s)
        if self.hang_s < self.heal_s:
            exchange.reset()
            await asyncio.sleep(self.heal_s - silent_s)
        if self.key_free:
            await exchange.receive()
        await exchange.execute()
        await exchange.hang(self.hang_s - silent_s)
        exchange.reset()


# --- After the commit
# Faults after the commit: the money has moved, and the caller gets no response, or an error.


@dataclass(frozen=True, slots=True)
class DropAfterCommit(Fault):
    """The money moves. The connection is closed (FIN) without a byte of the response."""

    name: ClassVar[str] = "drop_after_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.close()


@dataclass(frozen=True, slots=True)
class ResetAfterCommit(Fault):
    """The money moves. The connection is reset (RST) without a byte of the response."""

    name: ClassVar[str] = "reset_after_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.reset()


@dataclass(frozen=True, slots=True)
class HangAfterCommit(Fault):
    """The money moves at once. No response comes. After hang_s the connection is closed. The key is in use only until
    the commit: a repeated request gets the stored response."""

    name: ClassVar[str] = "hang_after_commit"
    hang_s: float = 60.0

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        await exchange.hang(self.hang_s)


GATEWAY_TIMEOUT_PAGE = (
    b"<html><head><title>504 Gateway Timeout</title></head><body><h1>504 Gateway Timeout</h1><hr>gate</body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Html504AfterCommit(Fault):
    """The money moves. A gateway in front times out and responds 504 with a page of HTML. The provider's own response
    is stored under the key."""

    name: ClassVar[str] = "html_504_after_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.respond(SandboxResponse(504, GATEWAY_TIMEOUT_PAGE, "text/html"))


@dataclass(frozen=True, slots=True)
class Error500AfterCommit(Fault):
    """The money moves, then something breaks: 500. The contract decides about a re-send: `replayed` responds 500 again,
    `reexecuted` finds the work done, `not_stored` and `none` charge again."""

    name: ClassVar[str] = "error_500_after_commit"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(failed_after_commit(await exchange.execute(lambda commit: failed_after_commit(commit()))))


def failed_after_commit(response: SandboxResponse) -> SandboxResponse:
    """A 500 in place of the response. A request that was refused before any work keeps its response."""
    return internal_error() if response.executed else response


# --- Wrong responses


@dataclass(frozen=True, slots=True)
class Empty200(Fault):
    """The money moves. The response is a 200 without a body."""

    name: ClassVar[str] = "empty_200"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.respond(SandboxResponse(200, b""))


@dataclass(frozen=True, slots=True)
class WrongAmount(Fault):
    """The right amount moves. The response shows another one (by_minor more)."""

    name: ClassVar[str] = "wrong_amount"
    by_minor: int = 100

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        exchange.respond(self.with_wrong_amount(await exchange.execute()))

    def with_wrong_amount(self, response: SandboxResponse) -> SandboxResponse:
        if not response.succeeded:
            return response
        body = json.loads(response.body)
        for name in ("amount", "amount_captured", "amount_received", "amount_capturable"):
            if body.get(name):
                body[name] += self.by_minor
        return replace(response, body=json.dumps(body).encode())


@dataclass(frozen=True, slots=True)
class ForeignResponse(Fault):
    """The money moves. The response is another charge's: the latest one, or an invented one."""

    name: ClassVar[str] = "foreign_response"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        exchange.respond(
            (exchange.other_object_response(response) or invented_response(response))
            if response.succeeded
            else response
        )


def invented_response(response: SandboxResponse) -> SandboxResponse:
    """Invent the response of another charge. The first charge of a sandbox has no other one."""
    body = json.loads(response.body)
    prefix, _, name = str(body.get("id", "")).rpartition("_")
    invented_fields: dict[str, object] = {"id": f"{prefix}_{name[::-1]}", "metadata": {}}
    invented_fields.update(order=None, idempotency_key=None)
    body.update({field: value for field, value in invented_fields.items() if field in body})
    if isinstance(body.get("amount"), int):
        body["amount"] += 4_200
    return replace(response, body=json.dumps(body).encode())


@dataclass(frozen=True, slots=True)
class TruncatedHead(Fault):
    """The money moves. Half of the head is sent, then FIN."""

    name: ClassVar[str] = "truncated_head"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        head = exchange.head(await exchange.execute())
        exchange.write(head[: len(head) // 2])
        exchange.close()


@dataclass(frozen=True, slots=True)
class TruncatedBody(Fault):
    """The money moves. Half of the body is sent, less than Content-Length says, then FIN."""

    name: ClassVar[str] = "truncated_body"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        exchange.write(exchange.head(response) + response.body[: len(response.body) // 2])
        exchange.close()


@dataclass(frozen=True, slots=True)
class WrongLength(Fault):
    """The money moves. Content-Length is shorter than the body. The rest stays on the open connection."""

    name: ClassVar[str] = "wrong_length"
    short_by_bytes: int = 10

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        length = max(0, len(response.body) - self.short_by_bytes)
        exchange.write(exchange.head(response, length=length) + response.body)
        exchange.mark_responded(response.status_code)


@dataclass(frozen=True, slots=True)
class BadChunk(Fault):
    """The money moves. The response is chunked, the size of its second chunk is not a number, then FIN."""

    name: ClassVar[str] = "bad_chunk"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        half = response.body[: len(response.body) // 2]
        head = exchange.head(response, ("Transfer-Encoding", "chunked"), length=-1)
        exchange.write(head + b"%x\r\n%b\r\n" % (len(half), half) + b"zz\r\n" + response.body[len(half) :])
        exchange.close()


@dataclass(frozen=True, slots=True)
class ExtraResponse(Fault):
    """The money moves. The response is sent twice. The second one stays on the open connection."""

    name: ClassVar[str] = "extra_response"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        response = await exchange.execute()
        exchange.write((exchange.head(response) + response.body) * 2)
        exchange.mark_responded(response.status_code)


NOT_HTTP = b"\x16\x03\x01\x02\x00 this is not HTTP \xff\xfe\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Garbage(Fault):
    """The money moves. The response is bytes that are not HTTP, then FIN."""

    name: ClassVar[str] = "garbage"

    async def apply(self, exchange: SandboxExchange) -> None:
        await exchange.receive()
        await exchange.execute()
        exchange.write(NOT_HTTP)
        exchange.close()
