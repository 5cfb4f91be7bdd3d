"""A run's tables and pictures in docs/benchmarks.md, between its markers. Pure: texts in, texts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench import secure, waiting
from bench.aims import CONCURRENCY
from bench.compare.pictures import bars
from bench.compare.verdicts import Aim
from bench.figures import DIRECT, OURS, Comparison, Figures

BEGIN, END = "<!-- made by make bench WRITE=1: begin -->", "<!-- made by make bench WRITE=1: end -->"
Rows = list[tuple[str, Sequence[float], bool]]


@dataclass(frozen=True, slots=True)
class Drawn:
    title: str
    svg: str


def rewritten(page: str, made: str) -> str:
    """The page with what is between its markers replaced. Raises ValueError for a page without them."""
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"the page has no {BEGIN if not begun else END}")
    return f"{before}{BEGIN}\n{made.strip()}\n{END}{after}"


def made(
    command: str, minutes: float, aims: Sequence[Aim], pictures: Mapping[str, Drawn], texts: Sequence[Sequence[str]]
) -> str:
    """`texts`: as they were printed, a part each."""
    parts = [
        f"`{command}`, {minutes:.0f} minutes. The command writes this part of the page, with its verdicts.",
        "",
        "| aim | measured | |",
        "|---|---|---|",
        *(f"| {aim.text} | {aim.measured} | {aim.verdict} |" for aim in aims),
        "",
    ]
    for name, drawn in pictures.items():
        parts += [f"![{drawn.title}](pictures/{name})", ""]
    for text in texts:
        parts += ["```text", *(line.rstrip() for line in text), "```", ""]
    return "\n".join(parts)


def pictures(
    comparisons: Sequence[Comparison], tls: secure.Measured | None, held: waiting.Measured | None
) -> dict[str, Drawn]:
    """File name -> picture."""
    by_concurrency = {one.concurrency: one for one in comparisons}
    drawn = {}
    if (crowded := by_concurrency.get(CONCURRENCY)) is not None:
        title = f"CPU a call at {CONCURRENCY} concurrent, us"
        rows = _rows(crowded, lambda figures: (figures.cpu_us, figures.redis_us), 0)
        drawn["benchmarks-cpu.svg"] = Drawn(title, bars(title, rows, ("the proxy", "its Redis")))
    if (alone := by_concurrency.get(1)) is not None:
        title = "Latency added to a call by itself, ms"
        rows = _rows(alone, lambda figures: (figures.added_p50_ms, figures.added_p99_ms), 2)
        drawn["benchmarks-latency.svg"] = Drawn(title, bars(title, rows, ("p50", "p99")))
    if tls is not None and tls.routes:
        title = f"CPU a call with TLS to the provider, {secure.CONCURRENCY} concurrent, us"
        rows = [(name, (round(one.cpu_us),), name in OURS) for name, one in tls.routes.items()]
        drawn["benchmarks-tls.svg"] = Drawn(title, bars(title, rows, ("CPU",)))
    if held is not None and held.rss_mb:
        title = "Memory of a call that waits for its provider, KB"
        rows = [(name, (round(held.bytes_each(name) / 1e3, 1),), name in OURS) for name in held.rss_mb]
        drawn["benchmarks-memory.svg"] = Drawn(title, bars(title, rows, ("KB",)))
    return drawn


def _rows(comparison: Comparison, values: Callable[[Figures], tuple[float, ...]], digits: int) -> Rows:
    return [
        (name, [max(0.0, round(value, digits)) for value in values(figures)], name in OURS)
        for name, figures in comparison.routes.items()
        if name != DIRECT
    ]
