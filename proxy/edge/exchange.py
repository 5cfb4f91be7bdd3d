"""One request from its head to its answer: read, refuse or carry, write. All the ifs of the edge's way in are here."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass
from pathlib import PurePath
from typing import cast

from aiohttp import StreamReader
from aiohttp.http import HttpVersion11, RawRequestMessage

from proxy.core.reply import Problem, Reply, problem
from proxy.edge.answers import reply_bytes
from proxy.edge.body import Body
from proxy.edge.carrier import Carrier, StreamedReply
from proxy.edge.connection import Connection
from proxy.edge.hall import Hall
from proxy.edge.limits import CALLER_LEFT
from proxy.edge.refused import CallerLeft, Refused
from proxy.edge.request import WELCOME, Asked, head_size, read_request
from proxy.edge.streaming import pass_on

_log = logging.getLogger("paywitness.edge")

_JOINED_BYTES_MAX = 64 * 1024  # of a body that is copied behind its head, to leave in one segment with it


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Serves the requests of all connections."""

    carrier: Carrier
    hall: Hall

    async def serve(self, message: RawRequestMessage, stream: StreamReader, connection: Connection) -> bool:
        """Answer one request; whether another may follow. Never raises for the caller's or the engine's sake."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self.hall.serving.add(task)
        self.hall.counters.requests += 1
        connection.begin(http11=message.version == HttpVersion11)
        goes_on = False
        try:
            reply, closes = await self._reply_to(message, stream, connection)
            goes_on = not closes and connection.may_go_on(message, stream)
            if isinstance(reply, Reply):
                await self._write(reply, message.method, connection, goes_on=goes_on)
            else:
                goes_on = await pass_on(reply, message.method, connection, self.hall, goes_on=goes_on)
            goes_on = goes_on and connection.is_wanted  # much can happen while an answer is taken
        except (CallerLeft, ConnectionError):
            self.hall.counters.broken[CALLER_LEFT] += 1
            goes_on = False
        finally:
            self.hall.serving.discard(task)
            connection.finish(goes_on=goes_on)
        return goes_on

    async def _reply_to(
        self, message: RawRequestMessage, stream: StreamReader, connection: Connection
    ) -> tuple[Reply | StreamedReply, bool]:
        """The answer, and whether the connection must end with it."""
        try:
            if connection.bulky and head_size(message) > self.hall.limits.head_bytes_max:
                limit = self.hall.limits.head_bytes_max
                raise Refused(Problem.TOO_LARGE, f"The head is larger than {limit} bytes.", 431)
            asked = read_request(message, connection.way, self.carrier.provider_at)
            if asked.is_welcome:
                return WELCOME, False
            if asked.is_ours:
                return await self._page(asked), False
            body = Body(connection, stream, asked.head, self.hall.limits)
            return await self._carried(asked, body, connection), False
        except Refused as refusal:
            self.hall.counters.refused[refusal.kind] += 1
            return refusal.reply, refusal.closes

    async def _carried(self, asked: Asked, body: Body, connection: Connection) -> Reply | StreamedReply:
        provider = asked.target.first
        if not self.carrier.knows(provider):
            detail = f"No policy names {provider[:40]!r}. Requests go to /{{provider}}/..., by the name in its policy."
            raise Refused(Problem.PROVIDER_NOT_ALLOWED, detail)
        unchanged = asked.by_proxy and self.carrier.observes(provider)
        if self.carrier.might_be_operation(provider, asked.method, asked.target.segments):
            call = asked.call(await body.whole(), unchanged=unchanged)
            try:
                return await self.carrier.answer(call, connection.still_there)
            except Exception as error:  # noqa: BLE001 - whatever it was, the money may have moved: say so
                _tell("answering a call", error)
                detail = "This sidecar failed while it carried the call. Repeat with the same key. Do not pay again."
                return problem(Problem.UNKNOWN, detail, sent=True, provider=provider)
        pieces = body.pieces() if body.present else None
        try:
            return await self.carrier.forward(asked.call(b"", unchanged=unchanged), pieces, body.length)
        except Refused as refusal:  # of the body, on its way through
            refusal.part_sent = True
            raise
        except CallerLeft:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            _tell("forwarding a call", error)
            detail = "This sidecar failed while it forwarded the call. It was not sent again."
            return problem(Problem.FORWARD_FAILED, detail, sent=True, provider=provider)

    async def _page(self, asked: Asked) -> Reply:
        try:
            return await asked.page(self.carrier)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - an answer all the same
            _tell("describing what is known", error)
            return problem(Problem.JOURNAL_UNAVAILABLE, "It could not be looked up. Ask again.")

    async def _write(self, reply: Reply, method: str, connection: Connection, *, goes_on: bool) -> None:
        line = connection.connection_line(goes_on=goes_on)
        head, body = reply_bytes(reply, method, line, self.hall.date_line.now())
        if len(body) <= _JOINED_BYTES_MAX:
            connection.write(head + body)
        else:
            connection.write(head)
            connection.write(body)
        if connection.writing_paused:
            await connection.taken()


def _tell(doing: str, error: Exception) -> None:
    """Its class and place. Never its text, which may hold a caller's data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    _log.error("%s failed by %s at %s", doing, type(error).__name__, place)
