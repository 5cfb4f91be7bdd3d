"""Looking at what a redirected caller says first without taking it: whether it is TLS, and whom it wants to talk to.

OpenSSL reads the ClientHello; the kernel keeps it, for whoever serves the connection afterwards.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct

_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6
_PEEK_BYTES_MAX = 32 * 1024  # a ClientHello is one or two kilobytes, with the largest key shares four
TLS_HANDSHAKE = 0x16


def original_destination(accepted: socket.socket) -> tuple[str, int] | None:
    """Where the caller wanted to go, if the kernel redirected it to us; None where it came by itself."""
    try:
        if accepted.family == socket.AF_INET6 and not _is_mapped(accepted):
            raw = accepted.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
            found = socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from("!H", raw, 2)[0]
        else:
            raw = accepted.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
            found = socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack_from("!H", raw, 2)[0]
    except OSError:
        return None  # no such rule, or no connection tracking at all
    name = accepted.getsockname()
    return None if found == (name[0].removeprefix("::ffff:"), name[1]) else found


def _is_mapped(accepted: socket.socket) -> bool:
    return str(accepted.getsockname()[0]).startswith("::ffff:")


async def first_words(accepted: socket.socket) -> bytes:
    """What it says first, as much as is needed to tell what it is; empty where it ended. It stays unread.

    Cancelled from outside where it takes too long.
    """
    loop = asyncio.get_running_loop()
    watched = socket.socket(fileno=os.dup(accepted.fileno()))
    try:
        seen = 0
        while True:
            await _until_readable(loop, watched, seen + 1)
            words = watched.recv(_PEEK_BYTES_MAX, socket.MSG_PEEK)
            if not words or words[0] != TLS_HANDSHAKE or len(words) == _PEEK_BYTES_MAX or len(words) <= seen:
                return words
            if server_name(words) is not INCOMPLETE:
                return words
            seen = len(words)
    finally:
        watched.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        watched.close()


async def _until_readable(loop: asyncio.AbstractEventLoop, watched: socket.socket, size: int) -> None:
    """Until so many bytes wait, or it ended: the kernel counts, we do not look again and again."""
    watched.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    readable: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(watched.fileno(), tell)
    try:
        await readable
    finally:
        loop.remove_reader(watched.fileno())


INCOMPLETE = object()


def server_name(hello: bytes) -> str | object | None:
    """The name in a ClientHello, in lower case; None where there is none, or it is no ClientHello; or INCOMPLETE."""
    found: list[str | None] = []

    def hear(session: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        found.append(name)
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # no further: it was only to be read

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = hear
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return INCOMPLETE
    except ssl.SSLError:
        pass  # by the alert, or because it is no TLS
    return found[0].lower().removesuffix(".") if found and found[0] else None
