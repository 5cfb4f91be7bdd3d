"""The two scripts of a clean call as Paywitness sends them to Redis: seen with MONITOR, not written down here, so that
they are always those of the code beside us. And as templates: what differs from call to call is left open.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import BinaryIO

from bench.load import Job, Tally
from bench.processes import BenchError, Started
from paywitness.journal.redis import scripts

_PATIENCE_S = 5.0
_LINES_MAX = 10_000
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_SHORT = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}

OPERATION_ID, KEY, GUARD, CLIENT_KEY = 1, 2, 3, 4  # what is left open in a template, by number
Argument = list[bytes | int]  # its pieces, in order: as they are, or the number of what is left open


@dataclass(frozen=True, slots=True)
class Captured:
    """The commands of one clean call, EVALSHA left out."""

    claim: tuple[bytes, ...]
    record: tuple[bytes, ...]
    client_key: bytes

    def templates(self) -> tuple[list[Argument], list[Argument]]:
        # sha, number of keys, prefix, time, question (key, guard, ids, credentials), start (id, ...): see claim.lua
        open_values = {OPERATION_ID: self.claim[8], KEY: self.claim[4], GUARD: self.claim[5]}
        open_values[CLIENT_KEY] = self.client_key
        return (
            [template_of(argument, open_values) for argument in self.claim],
            [template_of(argument, open_values) for argument in self.record],
        )


def template_of(argument: bytes, open_values: dict[int, bytes]) -> Argument:
    numbers = {value: number for number, value in open_values.items() if value}
    parts = (
        re.split(b"(" + b"|".join(re.escape(value) for value in numbers) + b")", argument) if numbers else [argument]
    )
    return [numbers.get(part, part) for part in parts if part]


def capture(redis: Started, paywitness: Started, path: str) -> Captured:
    """Make one call, and see what Redis is asked for it."""
    _call(paywitness, path)  # the first one of a credential writes it down too
    with (
        socket.create_connection(("127.0.0.1", redis.port), timeout=_PATIENCE_S) as monitor,
        monitor.makefile("rb") as reader,
    ):
        monitor.sendall(b"MONITOR\r\n")
        if reader.readline() != b"+OK\r\n":
            raise BenchError("Redis does not let itself be watched")
        client_key = _call(paywitness, path)
        claim = _command(reader, scripts.CLAIM.sha)
        return Captured(claim, _command(reader, scripts.RECORD.sha), client_key)


def _call(paywitness: Started, path: str) -> bytes:
    """One clean call; the key it was made under."""
    tally = Tally(Job(paywitness.port, path, 0, 1, 0, 0))
    with socket.create_connection(("127.0.0.1", paywitness.port), timeout=_PATIENCE_S) as connection:
        request = tally.next_request()
        connection.sendall(request)
        if not connection.recv(65536).startswith(b"HTTP/1.1 200 "):
            raise BenchError("a first call through paywitness on Redis was not answered 200")
    key = re.search(rb"\r\nIdempotency-Key: (\S+)", request)
    assert key is not None
    return key[1]


def _command(reader: BinaryIO, sha: str) -> tuple[bytes, ...]:
    for _ in range(_LINES_MAX):
        words = words_in(reader.readline())
        if words[:1] == (b"EVALSHA",) and words[1] == sha.encode():
            return words[1:]
    raise BenchError("a clean call did not run the scripts that the bench knows: claim and record")


def words_in(line: bytes) -> tuple[bytes, ...]:
    """A command as MONITOR shows it: +time [database address] "word" "word" ..."""
    return tuple(_ESCAPE.sub(_unescaped, word) for word in _QUOTED.findall(line))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    byte, letter = escape.groups()
    return bytes.fromhex(byte.decode()) if byte is not None else _SHORT.get(letter, letter)
