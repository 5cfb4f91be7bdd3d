"""TLS to the provider: what it adds to a call, for us and for those beside us.

The provider shows a certificate from an authority of this run; whoever connects checks it. Connections are kept, so
handshakes are hardly in it. Each proxy is measured with and without, in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from bench.capture import capture
from bench.figures import (
    DIRECT,
    NGINX,
    PASS_THROUGH,
    PAYWITNESS_REDIS,
    PLAIN,
    Cell,
    Ratio,
    Summary,
    added_ms,
    cpu_ratio,
    summaries,
)
from bench.nginx import start_nginx
from bench.processes import (
    LoadProcess,
    NotMeasured,
    Secured,
    Started,
    start_passthrough,
    start_paywitness_on_redis,
    start_provider,
    start_redis,
)
from bench.proxies import fetched, start_proxies
from bench.rounds import PATH, PATH_OF_PAYWITNESS, Plan, Route, Say, Turns, scratch_folder
from paywitness.transparent.local_ca import make_host_certificate, make_local_ca

CONCURRENCY = 64
_ROUTES = (PASS_THROUGH, *PLAIN, NGINX, PAYWITNESS_REDIS)
_HOST = "localhost"
_WARM_S, _WINDOW_S, _FIRST_S = 0.6, 0.6, 0.5  # handshakes come first: idle connections may have been given up


@dataclass(slots=True)
class Measured:
    rounds: int
    routes: dict[str, Summary] = field(default_factory=dict)  # with TLS to the provider
    over_plain: dict[str, Ratio] = field(default_factory=dict)  # CPU, over the same proxy without
    over_pass_through: dict[str, Ratio] = field(default_factory=dict)  # CPU, both with
    added_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # p50 and p99, beside a direct call by TLS
    notes: list[str] = field(default_factory=list)


def measure(plan: Plan, top: Path, say: Say) -> Measured:
    measured = Measured(plan.side_rounds)
    cells = []
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        secured = certified(scratch)
        routes = [
            *_routes(stack, top, scratch, measured.notes, say),
            *_routes(stack, top, scratch, measured.notes, say, secured),
        ]
        turns = Turns(LoadProcess(stack, top), routes, measured.notes)
        for route in tuple(routes):
            turns.drive(route, route.job(CONCURRENCY, 0.1, _FIRST_S))
        for number, turned in turns.rounds(plan.side_rounds, "TLS to the provider: round", say):
            for route in turned:
                result = turns.drive(route, route.job(CONCURRENCY, _WARM_S, _WINDOW_S))
                if result is not None:
                    cells.append(Cell(number, route.name, CONCURRENCY, result))
    summarise(cells, measured)
    return measured


def summarise(cells: list[Cell], measured: Measured) -> None:
    found = summaries(cells)
    for name in _ROUTES:
        if with_tls(name) not in found:
            continue
        measured.routes[name] = found[with_tls(name)]
        if name in found:
            measured.over_plain[name] = cpu_ratio(cells, with_tls(name), name)
        measured.over_pass_through[name] = cpu_ratio(cells, with_tls(name), with_tls(PASS_THROUGH))
        if with_tls(DIRECT) in found:
            measured.added_ms[name] = added_ms(cells, with_tls(name), with_tls(DIRECT))


def lines(measured: Measured) -> Iterator[str]:
    yield (
        f"TLS to the provider, {CONCURRENCY} concurrent (medians of {measured.rounds} rounds in turns; "
        "x pass: CPU over the pass-through with TLS; x plain: over the same proxy without; "
        "added: to a call that goes to the provider directly, by TLS)"
    )
    columns = "  {:<24}{:>9}{:>9}{:>8}{:>15}{:>9}{:>10}{:>9}{:>9}{:>11}{:>11}"
    heads = ("calls/s", "CPU us", "x pass", "in the rounds", "x plain", "Redis us", "p50 ms", "p99 ms")
    yield columns.format("", *heads, "added p50", "added p99")
    for name, route in measured.routes.items():
        over, plain = measured.over_pass_through[name], measured.over_plain.get(name)
        yield columns.format(
            name,
            f"{route.calls_per_s:.0f}",
            f"{route.cpu_us:.0f}",
            f"x {over.median:.2f}",
            f"{over.least:.2f} - {over.greatest:.2f}",
            "" if plain is None else f"x {plain.median:.2f}",
            f"{route.redis_us:.0f}" if route.redis_us else "",
            f"{route.p50_ms:.2f}",
            f"{route.p99_ms:.2f}",
            *(f"{added:.2f}" for added in measured.added_ms.get(name, ())),
        )
    yield from (f"  {note}" for note in measured.notes)


def with_tls(name: str) -> str:
    return f"{name}, TLS"


def certified(folder: Path) -> Secured:
    """A certificate for the provider from an authority of its own."""
    now = datetime.now(UTC)
    authority = make_local_ca([_HOST], now)
    roots, certificate = folder / "roots.pem", folder / "provider.pem"
    roots.write_bytes(authority.pem)
    certificate.write_bytes(make_host_certificate(authority, _HOST, ec.generate_private_key(ec.SECP256R1()), now).pem)
    return Secured(certificate, roots)


def _routes(
    stack: ExitStack, top: Path, scratch: Path, notes: list[str], say: Say, secured: Secured | None = None
) -> Iterator[Route]:
    def named(name: str) -> str:
        return with_tls(name) if secured else name

    provider = start_provider(stack, top, scratch, secured)
    if secured:
        yield Route(named(DIRECT), PATH, provider, roots=str(secured.roots))
    yield Route(named(PASS_THROUGH), PATH, start_passthrough(stack, top, scratch, provider, secured))
    started, missing = start_proxies(PLAIN, stack, scratch, provider, fetched(top, say), secured)
    notes += [note for note in missing if secured]
    for name, process in started.items():
        yield Route(named(name), PATH, process)
    try:
        yield from _on_redis(stack, top, scratch, provider, named, secured)
    except NotMeasured as error:
        notes += [f"{with_tls(NGINX)}, {with_tls(PAYWITNESS_REDIS)}: not all measured: {error}"] if secured else []


def _on_redis(
    stack: ExitStack,
    top: Path,
    scratch: Path,
    provider: Started,
    named: Callable[[str], str],
    secured: Secured | None,
) -> Iterator[Route]:
    """Both in one Redis, which take turns with it."""
    folder = scratch / ("fleet-with-tls" if secured else "fleet")
    folder.mkdir()
    redis = start_redis(stack, folder)
    paywitness, _ = start_paywitness_on_redis(stack, top, folder, provider, redis, secured)
    yield Route(named(PAYWITNESS_REDIS), PATH_OF_PAYWITNESS, paywitness, redis)
    captured = capture(redis, paywitness, PATH_OF_PAYWITNESS)
    yield Route(named(NGINX), PATH, start_nginx(stack, folder, provider, redis, captured, secured), redis)
