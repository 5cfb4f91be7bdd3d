"""Where one request ends and the next begins, followed beside the parser. No socket, no clock.

The parser is lenient at the beginning of a request. It passes over every CR and LF before the request line: an empty
line is harmless there (RFC 9112 2.2), a bare CR or LF ends a line for some readers and not for others. And within the
line it takes many spaces for one. The rule: such a request is not served, nor what comes behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

from aiohttp.hdrs import CONTENT_LENGTH
from aiohttp.http import RawRequestMessage

_HEAD_ENDS = b"\r\n\r\n"
_LINE_ENDS = b"\r\n"
_SPACES = 2  # in a request line: before its target and behind it
_EMPTY_LINES = re.compile(rb"(?:\r\n)*(\n|\r[^\n])?")  # then a bare CR or LF; a CR that came last is none yet

Messages = Sequence[tuple[object, object]]  # aiohttp's queue: heads, or complaints, with their bodies


class BoundaryTracker:
    """Follows the bytes of one connection from request to request."""

    __slots__ = ("_bytes_left", "_unread", "is_ambiguous")

    def __init__(self) -> None:
        self.is_ambiguous = False  # a request began in a way that others read otherwise
        self._bytes_left: float = 0  # of the latest request; inf where only the parser knows its end
        self._unread = bytearray()  # what came behind it, up to the head that the parser has not found yet

    def request_ended(self) -> None:
        """The latest request has ended, and nothing came behind it."""
        self._bytes_left = 0

    def feed(self, data: bytes, messages: Messages, found: int) -> int:
        """Read on. The parser has read the same, and found the last so many messages: how many come before a tear."""
        if self._bytes_left:
            if len(data) <= self._bytes_left:
                self._bytes_left -= len(data)
                return found
            data = data[int(self._bytes_left) :]
            self._bytes_left = 0
        if found == 1 and not self._unread and data[0] not in _LINE_ENDS and has_plain_request_line(data):
            # Nearly every request: it begins where the read does, and nothing comes behind it.
            bytes_left = _request_end(messages[-1][0], data) - len(data)
            if bytes_left >= 0:
                self._bytes_left = bytes_left
                return 1
        self._unread += data
        return self._scan(messages, found)

    def _scan(self, messages: Messages, found: int) -> int:
        unread = self._unread
        self._skip_empty_lines()
        for index in range(-found, 0):
            head = messages[index][0]
            if isinstance(head, RawRequestMessage) and not has_plain_request_line(unread):
                self._mark_ambiguous()
            if self.is_ambiguous:
                return found + index
            end = _request_end(head, unread)
            if end > len(unread):
                self._bytes_left = end - len(unread)
                unread.clear()
                break
            del unread[: int(end)]
            self._skip_empty_lines()
        return found

    def _skip_empty_lines(self) -> None:
        lines = _EMPTY_LINES.match(self._unread)
        assert lines is not None
        if lines[1]:
            self._mark_ambiguous()
        else:
            del self._unread[: lines.end()]

    def _mark_ambiguous(self) -> None:
        self.is_ambiguous = True
        self._bytes_left = inf
        self._unread.clear()


def has_plain_request_line(head: bytes | bytearray) -> bool:
    """Whether its request line, which the parser has read, has no space too many."""
    return head.count(b" ", 0, head.find(_LINE_ENDS)) == _SPACES


def _request_end(head: object, data: bytes | bytearray) -> float:
    """Where the request ends that begins here. A length that is none, or comes twice, the parser has refused."""
    if not isinstance(head, RawRequestMessage) or head.chunked or head.upgrade:
        return inf
    return data.index(_HEAD_ENDS) + len(_HEAD_ENDS) + int(head.headers.get(CONTENT_LENGTH, 0))
