"""Rounds to figures: the median of each route over all rounds, and the median of the rounds' own ratios. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.load import Result

DIRECT = "direct to the provider"
PASS_THROUGH = "aiohttp pass-through"
PLAIN_NGINX = "nginx"
HAPROXY = "HAProxy"
ENVOY = "Envoy"
MITMPROXY = "mitmproxy"
NGINX = "nginx + Lua, Redis"
PAYWITNESS = "paywitness, SQLite"
PAYWITNESS_REDIS = "paywitness, Redis"

PLAIN = (PLAIN_NGINX, HAPROXY, ENVOY, MITMPROXY)  # they pass calls on, as the pass-through does
ROUTES = (DIRECT, PASS_THROUGH, *PLAIN, NGINX, PAYWITNESS, PAYWITNESS_REDIS)  # in the order of the tables
OURS = (PAYWITNESS, PAYWITNESS_REDIS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One route at one concurrency in one round."""

    round: int
    route: str
    concurrency: int
    result: Result


@dataclass(frozen=True, slots=True)
class Figures:
    """One route at one concurrency: medians over the rounds."""

    calls_per_s: float
    cpu_us: float
    redis_us: float  # processor time of Redis itself; zero on routes without
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    added_p99_ms: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """One route over another: the median of the rounds, and the least and the greatest of them."""

    median: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """A route over the pass-through."""

    throughput: Ratio
    cpu: Ratio
    added_p50: Ratio
    added_p99: Ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is said about one concurrency."""

    concurrency: int
    routes: dict[str, Figures]
    ratios: dict[str, Ratios]  # of every route but the provider itself and the pass-through
    ours_over: dict[str, Ratio]  # CPU of Paywitness on Redis over that of each other route


Rounds = list[dict[str, Result]]  # one mapping a round: route -> result
Value = Callable[[dict[str, Result], str], float]


def compare(cells: list[Cell]) -> list[Comparison]:
    comparisons = []
    for concurrency in sorted({cell.concurrency for cell in cells}):
        rounds = _by_round([cell for cell in cells if cell.concurrency == concurrency])
        comparisons.append(_comparison(concurrency, rounds))
    return comparisons


@dataclass(frozen=True, slots=True)
class Summary:
    """One route of a smaller table: medians over the rounds."""

    calls_per_s: float
    cpu_us: float
    redis_us: float
    p50_ms: float
    p99_ms: float
    rss_mb: float


def summaries(cells: list[Cell]) -> dict[str, Summary]:
    """By route, in the order of their first cells; what was not measured in every round is left out."""
    rounds = _by_round(cells)
    routes = dict.fromkeys(cell.route for cell in cells)
    return {route: _summary(rounds, route) for route in routes if all(route in results for results in rounds)}


def cpu_ratio(cells: list[Cell], route: str, base_route: str) -> Ratio:
    return _ratio(_by_round(cells), _cpu_us, route, base_route)


def calls_ratio(cells: list[Cell], route: str, base_route: str) -> Ratio:
    return _ratio(_by_round(cells), _calls_per_s, route, base_route)


def added_ms(cells: list[Cell], route: str, direct: str) -> tuple[float, float]:
    """What the route adds to the p50 and the p99 of a call that goes directly: medians of the rounds."""
    rounds = _by_round(cells)
    p50_ms = median((results[route].p50_s - results[direct].p50_s) * 1e3 for results in rounds)
    p99_ms = median((results[route].p99_s - results[direct].p99_s) * 1e3 for results in rounds)
    return p50_ms, p99_ms


def _by_round(cells: list[Cell]) -> Rounds:
    rounds: dict[int, dict[str, Result]] = {}
    for cell in cells:
        rounds.setdefault(cell.round, {})[cell.route] = cell.result
    return list(rounds.values())


def _summary(rounds: Rounds, route: str) -> Summary:
    def middle(value: Value) -> float:
        return median(value(results, route) for results in rounds)

    return Summary(
        calls_per_s=middle(_calls_per_s),
        cpu_us=middle(_cpu_us),
        redis_us=middle(_redis_us),
        p50_ms=middle(lambda results, name: results[name].p50_s * 1e3),
        p99_ms=middle(lambda results, name: results[name].p99_s * 1e3),
        rss_mb=middle(lambda results, name: results[name].rss_bytes / 1e6),
    )


def _comparison(concurrency: int, rounds: Rounds) -> Comparison:
    measured = [route for route in ROUTES if all(route in results for results in rounds)]
    others = [route for route in measured if route not in (DIRECT, *OURS)] if PAYWITNESS_REDIS in measured else []
    return Comparison(
        concurrency,
        {route: _figures(rounds, route) for route in measured},
        {route: _ratios(rounds, route) for route in measured if route not in (DIRECT, PASS_THROUGH)},
        {route: _ratio(rounds, _cpu_us, PAYWITNESS_REDIS, route) for route in others},
    )


def _figures(rounds: Rounds, route: str) -> Figures:
    def middle(value: Value) -> float:
        return median(value(results, route) for results in rounds)

    return Figures(
        calls_per_s=middle(_calls_per_s),
        cpu_us=middle(_cpu_us),
        redis_us=middle(_redis_us),
        p50_ms=middle(lambda results, name: results[name].p50_s * 1e3),
        p99_ms=middle(lambda results, name: results[name].p99_s * 1e3),
        added_p50_ms=middle(_added_p50_ms),
        added_p99_ms=middle(_added_p99_ms),
    )


def _ratios(rounds: Rounds, route: str) -> Ratios:
    values = (_calls_per_s, _cpu_us, _added_p50_ms, _added_p99_ms)
    return Ratios(*(_ratio(rounds, value, route, PASS_THROUGH) for value in values))


def _ratio(rounds: Rounds, value: Value, route: str, base_route: str) -> Ratio:
    """Round by round, for the two routes of one round saw the same machine."""
    ratios = []
    for results in rounds:
        base = value(results, base_route)
        if base > 0:
            ratios.append(value(results, route) / base)
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else Ratio(0.0, 0.0, 0.0)


def _calls_per_s(results: dict[str, Result], route: str) -> float:
    return results[route].calls / results[route].window_s


def _cpu_us(results: dict[str, Result], route: str) -> float:
    return results[route].cpu_s / results[route].calls * 1e6


def _redis_us(results: dict[str, Result], route: str) -> float:
    return results[route].beside_cpu_s / results[route].calls * 1e6


def _added_p50_ms(results: dict[str, Result], route: str) -> float:
    return (results[route].p50_s - results[DIRECT].p50_s) * 1e3


def _added_p99_ms(results: dict[str, Result], route: str) -> float:
    return (results[route].p99_s - results[DIRECT].p99_s) * 1e3
