"""One scenario for one group of lanes, from the start of its processes to their end. Every scenario has fresh ones.

The lanes of a group run side by side, each at a provider of its own: a noisy machine is noisy to all of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.compare.callers import Shop
from bench.compare.clients import API_KEY, client_of
from bench.compare.figures import Arrived, Observed
from bench.compare.lanes import Client, Lane
from bench.compare.peers import Peers, Place, start_lane
from bench.compare.scenarios import Pace, Scenario
from bench.processes import NotMeasured, start
from bench.rounds import scratch_folder
from paywitness.demo.processes import free_ports
from paywitness.demo.score import ReportedOutcome
from paywitness_sandbox.bank.ledger import EntryKind, LedgerEntry

Say = Callable[[str], None]
_STARTS_MAX = 3
_LATE_S = 4.0  # by then every commit that comes late has come
_LOOK_S = 1.0
_TELL_EVERY_S = 5.0
_ASK_S_MAX = 5.0
_ASKED_AT_ONCE = 20
_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Played:
    observed: list[Observed] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)  # lane -> why


@dataclass(frozen=True, slots=True)
class Act:
    lane: Lane
    provider_url: str
    shop: Shop
    found: dict[str, ReportedOutcome] = field(default_factory=dict)  # of orders left unknown: what was found out later


def play(scenario: Scenario, pace: Pace, lanes: Sequence[Lane], peers: Peers, top: Path, say: Say) -> Played:
    played = Played()
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        ports, broken_port = _start_providers(stack, scenario, pace, len(lanes), top, scratch)

        def begin(lane: Lane, port: int) -> list[str] | NotMeasured:
            return started(stack, lane, peers, Place(scratch / lane.name, port, broken_port, scenario.pods))

        with ThreadPoolExecutor(len(lanes)) as together:
            reached = list(together.map(begin, lanes, ports))
        ready: list[tuple[Lane, int, list[str]]] = []
        for lane, port, urls in zip(lanes, ports, reached, strict=True):
            if isinstance(urls, NotMeasured):
                played.not_measured[lane.title] = str(urls)
            else:
                ready.append((lane, port, urls))
        played.observed.extend(uvloop.run(_perform(scenario, pace, ready, peers, say)))
    return played


def started(stack: ExitStack, lane: Lane, peers: Peers, place: Place) -> list[str] | NotMeasured:
    """A port that was free may be somebody's connection by the time it is listened on: then with others."""
    failed = NotMeasured()
    for number in range(_STARTS_MAX):
        folder = place.folder.with_name(f"{place.folder.name}-{number}")
        try:
            return start_lane(stack, lane, peers, replace(place, folder=folder))
        except NotMeasured as error:
            failed = error
            if "address already in use" not in str(error).lower():
                break
    return failed


def _start_providers(
    stack: ExitStack, scenario: Scenario, pace: Pace, count: int, top: Path, scratch: Path
) -> tuple[list[int], int]:
    *ports, broken_port = stack.enter_context(free_ports(count + 1))
    told = {
        "ports": ports,
        "broken_port": broken_port,
        "requests_per_s": scenario.strength * pace.orders_per_s,
        "queue_s": scenario.queue_s,
    }
    command = [sys.executable, "-m", "bench.compare.provider", json.dumps(told)]
    start(stack, "the providers", ports[-1], command, top, scratch / "providers.log")
    return ports, broken_port


async def _perform(
    scenario: Scenario, pace: Pace, ready: list[tuple[Lane, int, list[str]]], peers: Peers, say: Say
) -> list[Observed]:
    # A stale connection is no fault of this story.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        acts = [
            Act(lane, f"http://127.0.0.1:{port}", _shop(scenario, lane, urls, session, peers))
            for lane, port, urls in ready
        ]
        await asyncio.gather(*(_begin(session, act, scenario.schedule(pace)) for act in acts))
        began_at = time.time()
        times_s, start_mono = scenario.order_times_s(pace), time.monotonic()
        paying = asyncio.gather(*(act.shop.pay_all(times_s, start_mono) for act in acts))
        await _while_telling(paying, scenario, acts, len(times_s), say)
        await _settle(session, acts, pace.settle_s)
        return [await _observe(session, act, scenario, began_at) for act in acts]


def _shop(scenario: Scenario, lane: Lane, urls: list[str], session: aiohttp.ClientSession, peers: Peers) -> Shop:
    tenacity = peers.tenacity() if lane.client is Client.TENACITY else None
    return Shop(client_of(lane, session, tenacity), urls, scenario.name)


async def _begin(session: aiohttp.ClientSession, act: Act, schedule: dict[str, object]) -> None:
    """A few orders in calm weather, which are then forgotten: imports and first connections are no part of a call."""
    for url in act.shop.urls:
        await act.shop.client.run(f"calm-{url.rpartition(':')[2].partition('/')[0]}", url)
    async with session.post(f"{act.provider_url}/_sandbox/reset") as response:
        response.raise_for_status()
    async with session.put(f"{act.provider_url}/_sandbox/faults", json=schedule) as response:
        response.raise_for_status()


async def _while_telling(paying: Awaitable[Any], scenario: Scenario, acts: list[Act], orders: int, say: Say) -> None:
    task = asyncio.ensure_future(paying)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_TELL_EVERY_S)
            done = ", ".join(f"{act.lane.name} {len(act.shop.orders)}" for act in acts)
            say(f"{scenario.title}: of {orders} orders ended: {done}")
    except asyncio.CancelledError:  # broken off by a person
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    await task


# -- afterwards -------------------------------------------------------------------------------------------------------


async def _settle(session: aiohttp.ClientSession, acts: list[Act], settle_s: float) -> None:
    """Until nothing can reach a ledger any more, and no doubt is left; or the time is up."""
    began_mono = time.monotonic()
    while True:
        for act in acts:
            await _ask_about_unknown(session, act)
        waited_s = time.monotonic() - began_mono
        if waited_s >= _LATE_S and (waited_s >= settle_s or not any(_open(act) for act in acts)):
            return
        await asyncio.sleep(_LOOK_S)


def _open(act: Act) -> list[str]:
    """Orders left unknown that somebody is still finding out about. Only our lanes have such a somebody."""
    if not act.lane.is_ours:
        return []
    return [
        order.name for order in act.shop.orders if order.told is ReportedOutcome.UNKNOWN and order.name not in act.found
    ]


async def _ask_about_unknown(session: aiohttp.ClientSession, act: Act) -> None:
    at_once = asyncio.Semaphore(_ASKED_AT_ONCE)
    base = act.shop.urls[0].removesuffix("/acme")
    credential = {"Authorization": f"Bearer {API_KEY}"}  # as its payments carry it

    async def ask(order: str) -> None:
        timeout = aiohttp.ClientTimeout(total=_ASK_S_MAX)
        asked = session.get(f"{base}/paywitness/intents/{order}", timeout=timeout, headers=credential)
        async with at_once, asked as response:
            known = known_of(await response.json())
        if known is not None:
            act.found[order] = known

    await asyncio.gather(*(ask(order) for order in _open(act)), return_exceptions=True)  # asked again, if not now


def known_of(intent: dict[str, Any]) -> ReportedOutcome | None:
    """What a shop may go by: paid, not paid, or not known yet."""
    if intent.get("safe_to_pay"):
        return ReportedOutcome.FAILED
    outcomes = {reason.get("outcome") for reason in intent.get("why_not", ())}
    return ReportedOutcome.PAID if outcomes == {"succeeded"} else None


async def _observe(session: aiohttp.ClientSession, act: Act, scenario: Scenario, began_at: float) -> Observed:
    async with session.get(f"{act.provider_url}/_sandbox/ledger?limit={_LIMIT}") as response:
        ledger = await response.json()
    async with session.get(f"{act.provider_url}/_sandbox/requests?limit={_LIMIT}") as response:
        arrived = await response.json()
    own = f"{scenario.name}-"  # and not the calm orders, should one of them come late
    entries = [
        LedgerEntry(**{**entry, "kind": EntryKind(entry["kind"])})
        for entry in ledger["entries"]
        if str(entry["order"]).startswith(own)
    ]
    return Observed(
        act.lane,
        scenario,
        began_at,
        act.shop.orders,
        act.found,
        entries,
        [Arrived(arrival["at"] - began_at, arrival["order"]) for arrival in arrived["requests"]],
        act.shop.late_s,
    )
