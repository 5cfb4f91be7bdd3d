"""What a shop was told against what the ledger shows, as figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from bench.compare.callers import Order
from bench.compare.lanes import Lane
from bench.compare.scenarios import BAD_POD, Pace, Scenario
from paywitness.demo.score import CallerResult, ReportedOutcome, score_payments
from paywitness_sandbox.bank.ledger import PAYING, LedgerEntry

BUCKET_S = 0.5
WELL = 0.9  # of the orders placed in a bucket are paid at their first run
OUTSET_S = 1.0  # of an outage: no circuit can have opened, for it wants 20 calls
OPENS_WITHIN_S = 4.0  # the circuit's short window is 3 s, and it is reported twice a second
REST_S_LEAST = 3.0  # two rounds of probes: of less one of them says everything, or nothing


@dataclass(frozen=True, slots=True)
class Arrived:
    at_s: float  # from the beginning
    order: str | None


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is known of one lane in one scenario."""

    lane: Lane
    scenario: Scenario
    began_at: float
    orders: Sequence[Order]
    found: Mapping[str, ReportedOutcome]  # of orders left unknown: what was found out later, without the shop's doing
    entries: Sequence[LedgerEntry]
    arrivals: Sequence[Arrived]
    late_s: Sequence[float] = ()  # how late each order was placed


@dataclass(frozen=True, slots=True)
class Figures:
    orders: int
    doubles: int
    """Orders that were charged twice or more."""
    lost: int
    """Orders that were charged and whose shop does not know it, in the end; or that it has as paid and are not."""
    told_wrongly: int
    """Of these, the ones whose shop believes the opposite; of the others it only does not know."""
    known_unpaid: int
    """Orders that are not charged and whose shop knows it: it may try again whenever it likes."""
    goodput: float
    """Of the orders, the share that was charged once and told so by their job."""
    amplification: float
    """Requests at the provider, inquiries too, for each run of a job."""
    amplification_outset: float | None
    """In an outage, before a circuit can have opened; while one opens; and after."""
    amplification_early: float | None
    amplification_late: float | None
    recovery_s: float | None
    """From the end of the trouble until orders are paid at their first run again; infinite: not in this run."""
    p50_s: float
    p99_s: float
    """Of what was told paid: from the order to the word."""
    unknown: int
    resolved_rightly: int
    resolved_wrongly: int
    others_goodput: float | None
    """Where one sidecar is bad: of the orders that began at another one."""
    others_p99_s: float | None
    requests_per_s: tuple[float, ...]
    """At the provider, second by second."""
    placed_late_s: float
    """The 99th percentile: what the machine, and no lane, added to every wait."""


def figures_of(observed: Observed, pace: Pace) -> Figures:
    orders, scenario = observed.orders, observed.scenario
    charges = _charges(observed.entries)
    verdict = score_payments(_final(observed), observed.entries)
    unknown = [order for order in orders if order.told is ReportedOutcome.UNKNOWN]
    found = [
        (observed.found[order.name], charges.get(order.name, 0)) for order in unknown if order.name in observed.found
    ]
    right = sum(charged == (told is ReportedOutcome.PAID) for told, charged in found)
    others = [order for order in orders if order.number % scenario.pods != BAD_POD] if scenario.pods else None
    waits_s = _waits_s(orders)
    told_wrongly = verdict.charged_but_told_failed + verdict.told_paid_but_not_charged
    return Figures(
        orders=len(orders),
        doubles=verdict.charged_twice,
        lost=told_wrongly + verdict.told_unknown_and_charged,
        told_wrongly=told_wrongly,
        known_unpaid=verdict.failed_and_told_failed + verdict.declined,
        goodput=_goodput(orders, charges),
        amplification=_amplification(observed, 0.0, float("inf")) or 0.0,
        amplification_outset=_in_outage(observed, pace, 0.0, OUTSET_S),
        amplification_early=_in_outage(observed, pace, 0.0, OPENS_WITHIN_S),
        amplification_late=_in_outage(observed, pace, OPENS_WITHIN_S, pace.trouble_s),
        recovery_s=recovery_s(observed, pace) if scenario.has_edges else None,
        p50_s=quantile(waits_s, 0.5),
        p99_s=quantile(waits_s, 0.99),
        unknown=len(unknown),
        resolved_rightly=right,
        resolved_wrongly=len(found) - right,
        others_goodput=None if others is None else _goodput(others, charges),
        others_p99_s=None if others is None else quantile(_waits_s(others), 0.99),
        requests_per_s=_per_second(observed, pace),
        placed_late_s=quantile(sorted(observed.late_s), 0.99) if observed.late_s else 0.0,
    )


def _charges(entries: Sequence[LedgerEntry]) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for entry in entries:
        if entry.kind in PAYING:
            counts[entry.order] = counts.get(entry.order, 0) + 1
    return counts


def _final(observed: Observed) -> list[CallerResult]:
    """What each shop knows in the end: told by its job, or found out since."""
    return [
        CallerResult(
            order.name,
            observed.found.get(order.name, order.told),
            requests=len(order.run_at),
            keys=0,
            took_s=order.told_at - order.placed_at,
        )
        for order in observed.orders
    ]


def _goodput(orders: Sequence[Order], charges: Mapping[str | None, int]) -> float:
    good = sum(order.told is ReportedOutcome.PAID and charges.get(order.name, 0) == 1 for order in orders)
    return good / len(orders) if orders else 0.0


def _waits_s(orders: Sequence[Order]) -> list[float]:
    return sorted(order.told_at - order.placed_at for order in orders if order.told is ReportedOutcome.PAID)


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _amplification(observed: Observed, from_s: float, to_s: float) -> float | None:
    runs = sum(from_s <= at - observed.began_at < to_s for order in observed.orders for at in order.run_at)
    arrivals = sum(from_s <= arrived.at_s < to_s for arrived in observed.arrivals)
    return arrivals / runs if runs else None


def _in_outage(observed: Observed, pace: Pace, from_s: float, to_s: float) -> float | None:
    """Only where the provider counts what comes: where nobody listens, nobody counts."""
    to_s = min(to_s, pace.trouble_s)
    if observed.scenario.outage in ("", "refuse") or to_s - from_s < (REST_S_LEAST if from_s else OUTSET_S):
        return None
    return _amplification(observed, pace.lead_s + from_s, pace.lead_s + to_s)


def recovery_s(observed: Observed, pace: Pace) -> float:
    """The start of the first bucket from which on all are well."""
    buckets: dict[int, list[bool]] = {}
    for order in observed.orders:
        since_s = order.placed_at - observed.began_at - pace.trouble_over_s
        if since_s >= 0:
            buckets.setdefault(int(since_s / BUCKET_S), []).append(order.first_told is ReportedOutcome.PAID)
    numbers = sorted(buckets, reverse=True)
    well = list(takewhile(lambda number: sum(buckets[number]) >= WELL * len(buckets[number]), numbers))
    if not well:
        return float("inf")
    return 0.0 if len(well) == len(numbers) else well[-1] * BUCKET_S


def _per_second(observed: Observed, pace: Pace) -> tuple[float, ...]:
    counts = [0.0] * (int(pace.load_s) + 5)
    for arrived in observed.arrivals:
        if 0 <= arrived.at_s < len(counts):
            counts[int(arrived.at_s)] += 1
    return tuple(counts)
