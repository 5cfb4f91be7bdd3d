"""Reading a large body: beside the loop, one at a time, and what it raises comes back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from paywitness.core.errors import BodyError
from paywitness.tasks import INLINE_BYTES, LongWork

SMALL, LARGE = b"x" * INLINE_BYTES, b"x" * (INLINE_BYTES + 1)


async def test_a_small_body_is_read_at_once_and_a_large_one_beside_the_loop() -> None:
    work = LongWork()
    assert await work.run(SMALL, threading.get_ident) == threading.get_ident()
    assert await work.run(LARGE, threading.get_ident) != threading.get_ident()


async def test_large_bodies_are_read_one_at_a_time_and_the_loop_goes_on() -> None:
    work, reading, begun, go = LongWork(), list[int](), threading.Event(), threading.Event()

    def read() -> int:
        reading.append(len(reading))
        begun.set()
        go.wait(10)
        return len(reading)

    both = asyncio.gather(work.run(LARGE, read), work.run(LARGE, read))
    await asyncio.to_thread(begun.wait, 10)  # the loop is free while it is read
    assert await work.run(SMALL, lambda: "small") == "small"
    assert reading == [0]
    go.set()
    assert tuple(await both) == (1, 2)


async def test_what_reading_raises_comes_back() -> None:
    def read() -> None:
        raise BodyError("it cannot be read")

    with pytest.raises(BodyError):
        await LongWork().run(LARGE, read)
