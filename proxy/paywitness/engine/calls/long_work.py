"""Long work: reading a large body takes milliseconds, in which nothing else would happen. It goes to a thread.

One thread at a time: it shares the interpreter with the event loop, and two of them would take two thirds of it. What
waits for its turn are calls that were admitted, so their number has a bound. A process would share nothing, but taking
a tree back from it costs as much as making it (`bench/hostile.py` measures what the others feel).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

INLINE_BYTES = 16 * 1024  # read in about a millisecond; nearly every body is smaller

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class LongWork:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def run(
        self, body: bytes, read: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """What reading the body comes to: at once if it is small, else beside the loop."""
        if len(body) <= INLINE_BYTES:
            return read(*arguments, **options)
        async with self._turn:
            return await asyncio.to_thread(read, *arguments, **options)
