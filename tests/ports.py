"""Ports for the processes that tests start."""

from __future__ import annotations

import fcntl
import itertools
import socket
import tempfile
from pathlib import Path
from typing import IO

# Not those that the kernel gives out by itself: until ours is taken it could be given to another test's. And each
# process that runs tests has a range of its own, held by a lock for as long as it lives: not only each worker of one
# run, but those of two runs at once.
_FIRST, _EACH, _RANGES = 20_000, 500, 24
_held: list[IO[bytes]] = []


def _range() -> range:
    for number in range(_RANGES):
        lock = (Path(tempfile.gettempdir()) / f"paywitness-test-ports-{number}").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _held.append(lock)  # closing it would let it go
        return range(_FIRST + number * _EACH, _FIRST + (number + 1) * _EACH)
    raise AssertionError(f"more than {_RANGES} processes run these tests")


_ports = itertools.cycle(_range())


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable: a cycle has no end")
