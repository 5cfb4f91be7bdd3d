"""Ports for the processes that tests start."""

from __future__ import annotations

import itertools
import os
import socket

# Not those that the kernel gives out by itself: until ours is taken it could be given to another test's. And each
# worker has its own, one after the other.
_FIRST, _EACH, _WORKERS = 20_000, 1_500, 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_ports = itertools.cycle(range(_FIRST + _worker * _EACH, _FIRST + (_worker + 1) * _EACH))


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable: a cycle has no end")
