"""An answer passed on while it is still coming, at the caller's pace. What breaks off there breaks off here."""

from __future__ import annotations

from collections.abc import AsyncIterator

from proxy.edge.answers import CHUNKED, LAST_CHUNK, has_no_body, head_bytes, length_of
from proxy.edge.carrier import StreamedReply
from proxy.edge.connection import Connection
from proxy.edge.hall import Hall
from proxy.edge.limits import UPSTREAM_BROKE


async def pass_on(reply: StreamedReply, method: str, connection: Connection, hall: Hall, *, goes_on: bool) -> bool:
    """Write a reply whose body is still coming. Whether the connection can be used afterwards.

    Raises ConnectionError if the caller leaves. The body is closed in any case.
    """
    length = length_of(reply.headers)
    bodiless = has_no_body(method, reply.status_code)
    chunked = length is None and connection.http11 and not bodiless
    if length is None and not chunked and not bodiless:
        goes_on = False  # HTTP/1.0: only the end of the connection can end it
    framing = CHUNKED if chunked else b""
    if length is not None and reply.status_code != 204:
        framing = b"Content-Length: %d" % length
    line = connection.connection_line(goes_on=goes_on)
    try:
        connection.write(head_bytes(reply.status_code, reply.headers, framing, line, hall.date_line.now()))
        left_bytes = None if bodiless else length
        while (piece := await _next(reply.body)) is not None:
            if bodiless or not piece:
                continue
            if left_bytes is not None:
                left_bytes -= len(piece)
                if left_bytes < 0:
                    break
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await connection.taken()
        if left_bytes:
            raise _Broken  # more, or less, than the head had said
        if chunked:
            connection.write(LAST_CHUNK)
        return goes_on
    except _Broken:
        hall.counters.broken[UPSTREAM_BROKE] += 1
        connection.break_off()
        return False
    finally:
        await _close(reply.body)


class _Broken(Exception):
    """The body cannot be brought to its end."""


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(body, None)
    except Exception as error:
        raise _Broken from error  # whatever it was: not to be taken for the caller's leaving


async def _close(body: AsyncIterator[bytes]) -> None:
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()
