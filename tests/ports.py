"""Ports for the processes that tests start."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Not one of those that the kernel gives out by itself: until ours is taken it could be given to another test's."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
