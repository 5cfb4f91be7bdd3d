"""Many keys, each called many times at once: `python -m tests.chaos.duplicates --keys 1000 --each 100`.

As many charges as keys, and every caller of a key is told the same bytes. Ends with 1 where that is not so.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import click

from tests.chaos.shop import session_of_the_shop
from tests.chaos.world import JOURNALS, World, world_of
from tests.e2e.callers import NOBODY_ANSWERED

CALLS_AT_ONCE = 500  # over all sidecars; each takes 1,000
TRIES_MAX, PAUSE_S = 60, 0.5
_LATENCY = {
    "kind": "uniform",
    "low_s": 0.02,
    "high_s": 0.2,
}  # so that the others come while the first is at the provider


@dataclass
class Told:
    """What the callers of one key were told, by how many."""

    key: str
    answers: Counter[tuple[int, bytes]] = field(default_factory=Counter)
    again: int = 0  # times that a caller was told to come again under the same key, and did


@dataclass(frozen=True)
class Duplicates:
    told: list[Told]
    charges: Counter[str]  # by order
    took_s: float

    @property
    def broken(self) -> list[str]:
        found = []
        for told in self.told:
            if self.charges[told.key] != 1:
                found.append(f"{told.key} was charged {self.charges[told.key]} times")
            if len(told.answers) != 1 or next(iter(told.answers))[0] != 200:
                found.append(f"{told.key} was told {dict(told.answers)}")
        strays = sorted(set(self.charges) - {told.key for told in self.told})
        return found + [f"{stray} was charged and nobody asked for it" for stray in strays]


async def called(world: World, keys: int, each: int, show: Callable[[int], None] = lambda done: None) -> Duplicates:
    world.provider.weather(seed=1, latency=_LATENCY, apply_to="writes")
    told = [Told(f"twin-{number}") for number in range(keys)]
    at_once, began_mono, done = asyncio.Semaphore(max(1, CALLS_AT_ONCE // each)), time.monotonic(), 0
    async with session_of_the_shop() as session:

        async def all_of(one: Told) -> None:
            nonlocal done
            async with at_once:
                await asyncio.gather(*(_call(world, session, one, number) for number in range(each)))
            done += 1
            show(done)

        await asyncio.gather(*map(all_of, told))
    took_s = time.monotonic() - began_mono
    charges = Counter(entry["order"] for entry in world.provider.ledger("&kind=charge"))
    return Duplicates(told, charges, took_s)


async def _call(world: World, session: aiohttp.ClientSession, told: Told, number: int) -> None:
    sidecar = world.sidecars[number % len(world.sidecars)]
    headers = {"Authorization": "Bearer test", "Idempotency-Key": told.key, "Sandbox-Webhook": "never"}
    body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": told.key}}
    for _ in range(TRIES_MAX):
        try:
            async with session.post(f"{sidecar.url}/v1/charges", json=body, headers=headers) as response:
                answer = response.status, await response.read()
        except NOBODY_ANSWERED as error:
            answer = 0, repr(error).encode()
        if answer[0] not in {0, 409, 503, 504}:
            break
        told.again += 1
        await asyncio.sleep(PAUSE_S)
    told.answers[answer] += 1


@click.command(help=__doc__)
@click.option("--journal", type=click.Choice(JOURNALS), default="redis", show_default=True)
@click.option("--keys", default=1000, show_default=True)
@click.option("--each", default=100, show_default=True, help="Calls of one key, all at once.")
def main(journal: str, keys: int, each: int) -> None:
    def show(done: int) -> None:
        if done % max(1, keys // 10) == 0:
            click.echo(f"{done} of {keys} keys", err=True)

    with tempfile.TemporaryDirectory() as folder, world_of(Path(folder), journal, "replayed", edits=()) as world:
        found = asyncio.run(called(world, keys, each, show))
        sidecars = len(world.sidecars)
    click.echo(
        f"{keys} keys x {each} calls at once over {journal} and {sidecars} sidecar(s), in {found.took_s:.0f} s: "
        f"{found.charges.total()} charges, {sum(len(told.answers) == 1 for told in found.told)} keys with one answer, "
        f"{sum(told.again for told in found.told)} times asked to come again"
    )
    for line in found.broken[:20]:
        click.echo(line[:1000])
    sys.exit(1 if found.broken else 0)


if __name__ == "__main__":
    main()
