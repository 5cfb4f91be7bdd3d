"""Concurrent partial captures and refunds, and kill -9 in between: `python -m tests.chaos.movements --kills 20`.

Never more is captured than was authorised, nor more refunded than was captured. Every success has its ledger line. No
remainder is lost: at the end exactly what the ledger leaves can be captured and refunded, and not one minor unit more.
Ends with 1 if that is not so.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from paywitness.engine.failpoints import CALL_FAILPOINTS
from tests.chaos.movement_calls import Charge, Movement, Plan, Services, drawn
from tests.chaos.movement_verdict import Kill, Totals, Verdict, balances_of, judge_balances, totals_of, verdict_of
from tests.chaos.shop import session_of_the_shop
from tests.chaos.world import JOURNALS, Victim, World, world_of
from tests.e2e.judge import all_at_rest
from tests.e2e.sidecar import wait_until

SHOWN_MAX = 30
STEP_WITHIN_S = 3.0
LEASE_DEFAULT_S = 30
POLICY = """
extends: paywitness:acme
upstream: {upstream}
limits: enforce
timeouts: {first_byte: FIRST_BYTEs}
operations:
  capture:
    balance: {captured: amount_captured, refunded: amount_refunded, currency: currency, unit: minor}
    as_response: "@"
budget:
  provider: {floor: 10000}
  operation: {floor: 10000}
  account: {floor: 10000}
  failure_class: {floor: 10000}
  per_intent: 100
circuit: {minimum: 10000}
resolve:
  schedule: [300ms, 600ms, 1s, 1500ms, 2s, 2500ms, 3s, 4s, 5s, 6s, 7s, 8s, 9s, 10s, 20s, 30s]
  settle: SETTLEs
"""


@dataclass(frozen=True)
class Outcome:
    plan: Plan
    verdict: Verdict
    counted: Counter[tuple[str, str]]
    totals: dict[str, Totals]
    lines: int
    kills: int
    took_s: float

    @property
    def report(self) -> str:
        plan, moved = self.plan, Counter[str]()
        for sums in self.totals.values():
            moved["captured"] += sums.captured
            moved["refunded"] += sums.refunded
            moved["authorised"] += sums.authorised
        lines = [
            f"{plan.movements} captures and refunds of {plan.payments} payments over {plan.journal}, "
            f"{self.kills} times kill -9, in {self.took_s:.0f} s",
            "",
            f"{'told':<32}{'captures':>10}{'refunds':>10}",
        ]
        told = Counter[str]()
        for (_, what), count in self.counted.items():
            told[what] += count
        for what, _ in told.most_common():
            lines.append(f"{what:<32}{self.counted['capture', what]:>10}{self.counted['refund', what]:>10}")
        verdict = self.verdict
        lines += [
            "",
            f"{self.lines} lines in the ledger: authorised {moved['authorised']}, captured {moved['captured']}, "
            f"refunded {moved['refunded']}",
            f"over the limit {len(verdict.over_limit)}, untrue {len(verdict.untrue)}, lost {len(verdict.lost)}, "
            f"stuck {len(verdict.stuck)}; excused {len(verdict.excused)}",
            *(f"excused: {line[:1500]}" for line in verdict.excused[:SHOWN_MAX]),
            *(line[:1500] for line in verdict.broken[:SHOWN_MAX]),
        ]
        return "\n".join(lines)


def _policy(plan: Plan) -> str:
    settle_s = LEASE_DEFAULT_S + plan.first_byte_s  # the least that a policy may ask for
    return POLICY.replace("FIRST_BYTE", str(plan.first_byte_s)).replace("SETTLE", str(settle_s))


async def move(plan: Plan, folder: Path, show: Callable[[int], None] = lambda done: None) -> Outcome:
    """All of it: authorise, move and kill, wait until nothing is open, judge, and take what is left."""
    began_mono, charges = time.monotonic(), drawn(plan)
    with world_of(folder, plan.journal, "replayed", overlay=_policy(plan)) as world:
        async with session_of_the_shop() as session:
            services = Services(world, session, Random(plan.seed + 1), show=show)
            await asyncio.gather(*map(services.authorise, charges))
            if plan.captured_first:
                await asyncio.gather(*map(services.capture_half, charges))
            killing = asyncio.ensure_future(_kill(plan, world, services))
            await asyncio.gather(*map(services.move, charges))
            kills = await killing
            await asyncio.to_thread(_wait_for_rest, world, plan.calm_s)
            verdict = await _judged(world, charges, kills)
            counted = services.counted.copy()
            lines = await asyncio.to_thread(world.provider.ledger)
            before = totals_of(lines)
            if not verdict.stuck:
                await _take_what_is_left(services, charges, before, verdict)
                after = totals_of(world.provider.ledger())
                operations = await asyncio.to_thread(world.sidecars[0].operations)
                judge_balances(charges, await balances_of(world, charges), after, operations, verdict)
    return Outcome(plan, verdict, counted, before, len(lines), len(kills), time.monotonic() - began_mono)


async def _judged(world: World, charges: list[Charge], kills: list[Kill]) -> Verdict:
    operations = await asyncio.to_thread(world.sidecars[0].operations)
    lines = await asyncio.to_thread(world.provider.ledger)
    arrivals = await asyncio.to_thread(world.provider.arrivals)
    verdict = verdict_of(charges, operations, lines, arrivals, kills)
    judge_balances(charges, await balances_of(world, charges), totals_of(lines), operations, verdict)
    return verdict


def _wait_for_rest(world: World, within_s: float) -> None:
    """Until nothing is open; what then still is, is judged."""
    with suppress(AssertionError):
        wait_until(lambda: all_at_rest(world.sidecars[0]), "the end of all", within_s)


# --- Kills


async def _kill(plan: Plan, world: World, services: Services) -> list[Kill]:
    """kill -9 of one sidecar after every so many movements, at any time or at a step of a call; and its start."""
    dice, kills = Random(plan.seed + 2), list[Kill]()
    each = plan.movements / (plan.kills + 1)
    while len(kills) < plan.kills:
        await services.has_done((len(kills) + 1) * each)
        victim = dice.choice(world.sidecars)
        if dice.random() < 0.5:
            await asyncio.to_thread(_meet_fate, victim, dice.choice(CALL_FAILPOINTS))
        victim.kill()
        kills.append(Kill(world.sidecars.index(victim), time.monotonic()))
        await asyncio.to_thread(victim.start)
    return kills


def _meet_fate(victim: Victim, step: str) -> None:
    """Until it has killed itself at the step. If the step is not reached, it is killed as it stands."""
    victim.meets(step, 1, "KILL")
    with suppress(AssertionError):
        wait_until(lambda: victim.ended, "its fate", STEP_WITHIN_S)


# --- What is left


async def _take_what_is_left(
    services: Services, charges: list[Charge], totals: dict[str, Totals], verdict: Verdict
) -> None:
    """Of each payment exactly the remainder passes, and not one minor unit more."""
    at_once = asyncio.Semaphore(10)

    async def take(charge: Charge) -> None:
        sums = totals[charge.id]
        steps = [
            ("capture", sums.capturable + 1, 422),
            ("capture", sums.capturable, 200),
            ("capture", 1, 422),
            ("refund", sums.refundable + sums.capturable + 1, 422),
            ("refund", sums.refundable + sums.capturable, 200),
            ("refund", 1, 422),
        ]
        for place, (kind, amount, expected) in enumerate(steps):
            if amount:
                async with at_once:
                    await _expect(services, charge, Movement(place, kind, amount), expected, verdict)

    await asyncio.gather(*map(take, charges))


async def _expect(services: Services, charge: Charge, movement: Movement, expected: int, verdict: Verdict) -> None:
    key = f"rest-{charge.number}-{movement.number}"
    told = await services.call(charge, movement, key)
    for _ in range(3):
        if told is not None and told.answer.status_code not in {503, 504}:
            break
        await asyncio.sleep(1.0)  # a busy machine: repeated under the same key
        told = await services.call(charge, movement, key)
    status = None if told is None else told.answer.status_code
    if status != expected:
        said = "nothing" if told is None else told.answer.body.decode(errors="replace")[:300]
        verdict.lost.append(f"{charge.id}: {movement.kind} of {movement.amount} was told {status}, {said}")


@click.command(help=__doc__)
@click.option("--journal", type=click.Choice(JOURNALS), default="redis", show_default=True)
@click.option("--payments", default=100, show_default=True)
@click.option("--movements", default=10_000, show_default=True, help="Captures and refunds, over all payments.")
@click.option("--kills", default=20, show_default=True, help="Of sidecars, while they move.")
@click.option("--seed", default=1, show_default=True, help="Of the plan; what the machine makes of it is its own.")
@click.option("--keep", is_flag=True, help="Leave journals and logs where they are, also if nothing is broken.")
def main(journal: str, payments: int, movements: int, kills: int, seed: int, keep: bool) -> None:
    def show(done: int) -> None:
        if done % max(1, movements // 10) == 0:
            click.echo(f"{done} of {movements} movements", err=True)

    folder = Path(tempfile.mkdtemp(prefix="paywitness-movements-"))
    outcome = asyncio.run(move(Plan(journal, payments, movements, kills, seed), folder, show))
    click.echo(outcome.report)
    if outcome.verdict.broken or keep:
        click.echo(f"journals and logs: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(1 if outcome.verdict.broken else 0)


if __name__ == "__main__":
    main()
