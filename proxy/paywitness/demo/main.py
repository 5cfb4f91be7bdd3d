"""The whole demo: start the parts, let the contestants run, stop, and read the ledgers."""

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

from paywitness.admin.client import AdminClient
from paywitness.core.errors import PaywitnessError
from paywitness.demo import screen
from paywitness.demo.clients import Contestant, outage, pay_all, payments
from paywitness.demo.processes import DEADLINE_S, FIRST_BYTE_S, DemoSidecar, sidecar_for, wait_until_idle
from paywitness.demo.score import Score, score_payments
from paywitness.demo.screen import ContestantRun, choose_payment, journal_narrative, provider_narrative
from paywitness_sandbox.server import Sandbox


class DemoInterrupted(PaywitnessError):
    """The demo was interrupted."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result: the contestants with their logs and ledgers, the score of each, and the story of one payment."""

    seed: int
    runs: list[ContestantRun]
    scores: list[Score]
    narrative: list[tuple[str, str]]
    took_s: float

    def as_json(self) -> dict[str, Any]:
        contestants = {
            run.contestant.name: {
                "title": run.contestant.title,
                "verdict": score.as_json(),
                "requests_arrived": run.provider.arrivals.total,
                "told": [line.as_json() for line in run.log],
                "ledger": [entry.as_json() for entry in run.provider.ledger.entries],
            }
            for run, score in zip(self.runs, self.scores, strict=True)
        }
        return {
            "seed": self.seed,
            "took_s": self.took_s,
            "lanes": contestants,
            "tale": [list(line) for line in self.narrative],
        }


def run_demo(count: int, seed: int, console: Console) -> DemoResult:
    """Run the whole demo. It leaves no process and no file, even if it is interrupted."""
    try:
        return asyncio.run(_run(count, seed, console))
    except asyncio.CancelledError:
        raise DemoInterrupted("The demo was stopped. Nothing of it is left.") from None


async def _run(count: int, seed: int, console: Console) -> DemoResult:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    began = monotonic()
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(Sandbox()) for _ in range(3)]
        sidecar = await stack.enter_async_context(sidecar_for(providers[-1].url))
        runs = _contestant_runs(providers, sidecar)
        console.print(screen.intro(count, seed, [run.contestant for run in runs]))
        await _pay_all_contestants(runs, count, seed, console)
        narrative = await _narrative(runs, sidecar)
        await sidecar.stop()  # from here on nothing reaches a provider
        await wait_until_idle(providers)
        scores = [score_payments(run.log, run.provider.ledger.entries) for run in runs]
        return DemoResult(seed, runs, scores, narrative, round(monotonic() - began, 1))


def _contestant_runs(providers: list[Sandbox], sidecar: DemoSidecar) -> list[ContestantRun]:
    plain, keyed, _ = providers
    plain_how = f"straight to the provider, {FIRST_BYTE_S} s a try; every call of the SDK mints its own key"
    keyed_how = "the same, but the application hands the SDK the order's number as the key, always"
    carried_how = (
        "the first way's SDK with its own keys, pointed at the proxy (which waits as long for a try); the application "
        "adds Paywitness-Key: the order's number, and goes by Paywitness-Outcome"
    )
    timeout_s = DEADLINE_S + 1.0  # the sidecar's deadline, and time for its reply
    contestants = [
        Contestant("sdk", "SDK retries", plain_how, plain.url, FIRST_BYTE_S),
        Contestant("sdk_key_per_order", "SDK, key per order", keyed_how, keyed.url, FIRST_BYTE_S, key_per_order=True),
        Contestant("paywitness", "Paywitness", carried_how, sidecar.url, timeout_s, through_paywitness=True),
    ]
    return [ContestantRun(contestant, provider) for contestant, provider in zip(contestants, providers, strict=True)]


async def _pay_all_contestants(runs: list[ContestantRun], count: int, seed: int, console: Console) -> None:
    finished = asyncio.Event()
    demo_payments = payments(count, seed)

    async def pay() -> None:
        try:
            for run in runs:
                run.provider.set_schedule(outage(count))
            await asyncio.gather(*(pay_all(run.contestant, demo_payments, seed, run.log) for run in runs))
        finally:
            finished.set()

    await asyncio.gather(pay(), screen.show_progress(console, runs, count, finished))


async def _narrative(runs: list[ContestantRun], sidecar: DemoSidecar) -> list[tuple[str, str]]:
    """One payment, as the providers saw it with each contestant, and as the journal recorded it. Empty if none is worth
    showing."""
    plain, carried = runs[0], runs[-1]
    twice = set(plain.provider.ledger.duplicates_by_order())
    found = choose_payment(carried.log, carried.provider.arrivals.arrivals, twice)
    if found is None or found.operation is None:
        return []
    order = found.order
    reported = next(line.told for line in plain.log if line.order == order)
    charges = [Counter(entry.order for entry in run.provider.ledger.entries)[order] for run in (plain, carried)]
    client = AdminClient(sidecar.admin_url, sidecar.admin_token)
    try:
        operation = await asyncio.to_thread(client.operation, found.operation)
    except PaywitnessError as error:
        return [(order, f"The journal could not be read: {error}")]
    return [
        (
            f"{order}, {plain.contestant.title}",
            provider_narrative(plain.provider.arrivals.find(order=order), reported, charges[0]),
        ),
        (f"{order}, {carried.contestant.title}", journal_narrative(operation, found.told, charges[1])),
    ]


def print_result(result: DemoResult, console: Console) -> None:
    console.print(screen.final_table(result.runs, result.scores))
    if any(score.told_unknown for score in result.scores):
        console.print(Text(screen.UNKNOWN_EXPLANATION, "dim"))
    for title, line in result.narrative:
        console.print(Text.assemble("\n", (title, "bold"), ": ", line))
    console.print(
        Text(f"\n{result.took_s:.0f} s. Real servers, a real proxy, real faults; nothing of them is left.", "dim")
    )
