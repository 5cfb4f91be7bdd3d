"""What the clean path aims at, and what a run reached. Pure, and it says what is missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.compare.verdicts import Aim
from bench.figures import ENVOY, MITMPROXY, PASS_THROUGH, Comparison

CONCURRENCY = 64
MOST = {PASS_THROUGH: 0.8, ENVOY: 2.2, MITMPROXY: 0.1}  # of their CPU a call, for the whole job on Redis
TITLES = {PASS_THROUGH: "the bare aiohttp pass-through", ENVOY: "plain Envoy", MITMPROXY: "mitmproxy"}
FLAT_MOST = 1.1  # what two sidecars over equal journals may differ by on a quiet machine
SCRAPE_MS = 50.0


def aims(
    comparisons: Sequence[Comparison], flat: Mapping[str, float], scrapes_ms: Mapping[str, float]
) -> Iterator[Aim]:
    """`flat`: CPU a call over a journal of a million operations, over that over an empty one, by store; `scrapes_ms`:
    what a scrape there takes at p99."""
    at = next((one for one in comparisons if one.concurrency == CONCURRENCY), None)
    for route, most in MOST.items():
        text = f"CPU a call on Redis, {CONCURRENCY} concurrent: at most x {most:.2g} of {TITLES[route]}"
        ratio = None if at is None else at.ours_over.get(route)
        if ratio is None:
            yield Aim(text, "", None)
        else:
            said = f"x {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f} in the rounds)"
            yield Aim(text, said, ratio.median <= most)
    text = f"flat at a million journalled operations: CPU a call at most x {FLAT_MOST:.1f} of an empty journal's"
    said = ", ".join(f"{store} x {ratio:.2f}" for store, ratio in flat.items())
    yield Aim(text, said, max(flat.values()) <= FLAT_MOST if flat else None)
    text = f"a scrape with a million journalled operations: under {SCRAPE_MS:.0f} ms at p99"
    said = ", ".join(f"{store} {took_ms:.1f} ms" for store, took_ms in scrapes_ms.items())
    yield Aim(text, said, max(scrapes_ms.values()) < SCRAPE_MS if scrapes_ms else None)


def lines(found: Sequence[Aim]) -> Iterator[str]:
    yield "Aims"
    for aim in found:
        yield f"  {aim.text}: {', '.join(filter(None, (aim.measured, aim.verdict.strip('*'))))}"
