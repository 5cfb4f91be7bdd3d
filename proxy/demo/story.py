"""The story from its beginning to its end: set the stage, let the lanes run, stop, and read the ledgers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rich.console import Console
from rich.text import Text

from proxy.admin.client import AdminClient
from proxy.core.errors import PaywitnessError
from proxy.demo import show
from proxy.demo.lanes import Lane, pay_all
from proxy.demo.show import Act
from proxy.demo.stage import DEADLINE_S, FIRST_BYTE_S, Sidecar, idle, sidecar_for
from proxy.demo.telling import chosen, seen_by_provider, seen_by_witness
from proxy.demo.verdict import Verdict, judge
from proxy.demo.weather import outage, payments
from proxy.sandbox.server import Sandbox


class BrokenOff(PaywitnessError):
    """Somebody asked us to end before the end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended: the lanes with their logs and ledgers, the verdict on each, and one payment told in words."""

    seed: int
    acts: list[Act]
    verdicts: list[Verdict]
    tale: list[tuple[str, str]]
    took_s: float

    def as_json(self) -> dict[str, Any]:
        lanes = {
            act.lane.name: {
                "title": act.lane.title,
                "verdict": verdict.as_json(),
                "requests_arrived": act.provider.arrivals.total,
                "told": [line.as_json() for line in act.log],
                "ledger": [entry.as_json() for entry in act.provider.ledger.entries],
            }
            for act, verdict in zip(self.acts, self.verdicts, strict=True)
        }
        return {"seed": self.seed, "took_s": self.took_s, "lanes": lanes, "tale": [list(line) for line in self.tale]}


def tell(count: int, seed: int, console: Console) -> Ending:
    """The whole story. Leaves nothing behind: no process, no file, also when it is broken off."""
    try:
        return asyncio.run(_tell(count, seed, console))
    except asyncio.CancelledError:
        raise BrokenOff("The demo was stopped. Nothing of it is left.") from None


async def _tell(count: int, seed: int, console: Console) -> Ending:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    began = monotonic()
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(Sandbox()) for _ in range(3)]
        sidecar = await stack.enter_async_context(sidecar_for(providers[-1].url))
        acts = _cast(providers, sidecar)
        console.print(show.opening(count, seed, [act.lane for act in acts]))
        await _act(acts, count, seed, console)
        tale = await _tale(acts, sidecar)
        await sidecar.stop()  # from here on nothing reaches a provider any more
        await idle(providers)
        verdicts = [judge(act.log, act.provider.ledger.entries) for act in acts]
        return Ending(seed, acts, verdicts, tale, round(monotonic() - began, 1))


def _cast(providers: list[Sandbox], sidecar: Sidecar) -> list[Act]:
    plain, keyed, _ = providers
    plain_how = f"straight to the provider, {FIRST_BYTE_S} s a try; every call of the SDK mints its own key"
    keyed_how = "the same, but the application hands the SDK the order's number as the key, always"
    carried_how = (
        "the first way's SDK with its own keys, pointed at the proxy (which waits as long for a try); the application "
        "adds Paywitness-Key: the order's number, and goes by Paywitness-Outcome"
    )
    patience_s = DEADLINE_S + 1.0  # for the proxy's last word
    lanes = [
        Lane("sdk", "SDK retries", plain_how, plain.url, FIRST_BYTE_S),
        Lane("sdk_key_per_order", "SDK, key per order", keyed_how, keyed.url, FIRST_BYTE_S, key_per_order=True),
        Lane("paywitness", "Paywitness", carried_how, sidecar.url, patience_s, through_paywitness=True),
    ]
    return [Act(lane, provider) for lane, provider in zip(lanes, providers, strict=True)]


async def _act(acts: list[Act], count: int, seed: int, console: Console) -> None:
    over = asyncio.Event()
    orders = payments(count, seed)

    async def play() -> None:
        try:
            for act in acts:
                act.provider.set_schedule(outage(count))
            await asyncio.gather(*(pay_all(act.lane, orders, seed, act.log) for act in acts))
        finally:
            over.set()

    await asyncio.gather(play(), show.follow(console, acts, count, over))


async def _tale(acts: list[Act], sidecar: Sidecar) -> list[tuple[str, str]]:
    """One payment, as the providers saw it in each lane, and as the journal has it. Empty when none is telling."""
    plain, carried = acts[0], acts[-1]
    twice = set(plain.provider.ledger.duplicates_by_order())
    found = chosen(carried.log, carried.provider.arrivals.arrivals, twice)
    if found is None or found.operation is None:
        return []
    order = found.order
    told = next(line.told for line in plain.log if line.order == order)
    charges = [Counter(entry.order for entry in act.provider.ledger.entries)[order] for act in (plain, carried)]
    client = AdminClient(sidecar.admin_url, sidecar.admin_token)
    try:
        operation = await asyncio.to_thread(client.operation, found.operation)
    except PaywitnessError as error:
        return [(order, f"The journal could not be asked: {error}")]
    return [
        (f"{order}, {plain.lane.title}", seen_by_provider(plain.provider.arrivals.find(order=order), told, charges[0])),
        (f"{order}, {carried.lane.title}", seen_by_witness(operation, found.told, charges[1])),
    ]


def print_ending(ending: Ending, console: Console) -> None:
    console.print(show.final_table(ending.acts, ending.verdicts))
    if any(verdict.told_unknown for verdict in ending.verdicts):
        console.print(Text(show.UNKNOWN_MEANS, "dim"))
    for title, line in ending.tale:
        console.print(Text.assemble("\n", (title, "bold"), ": ", line))
    console.print(
        Text(f"\n{ending.took_s:.0f} s. Real servers, a real proxy, real faults; nothing of them is left.", "dim")
    )
