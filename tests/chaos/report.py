"""Progress while it lasts, and the report at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.mishaps import STEPS, Mishap, Mishaps
from tests.chaos.shop import READ_FAULTS, Shop
from tests.chaos.verdict import Verdict
from tests.chaos.world import World

SHOWN_MAX = 20  # broken promises told in full


@dataclass
class Progress:
    """One line, written over itself at a terminal, and every ten seconds elsewhere."""

    shop: Shop
    mishaps: Mishaps
    began_mono: float = field(default_factory=time.monotonic)
    shown_mono: float = 0.0

    def show(self, last: Mishap | None = None) -> None:
        live, now_mono = sys.stderr.isatty(), time.monotonic()
        if now_mono - self.shown_mono < (0.5 if live else 10.0):
            return
        self.shown_mono = now_mono
        happened = self.mishaps.happened
        slowest_s = max((mishap.back_s for mishap in happened), default=0.0)
        line = (
            f"{now_mono - self.began_mono:5.0f} s  {len(self.shop.payments)} payments, {self.shop.open} open, "
            f"{sum(self.shop.told.values())} answers; {len(happened)} mishaps, back after {slowest_s:.1f} s at most"
            + (f"; last: {last.kind} ({last.detail})" if last else "")
        )
        sys.stderr.write(f"\r\x1b[K{line[:150]}" if live else f"{line}\n")
        sys.stderr.flush()


def late(happened: list[Mishap]) -> list[str]:
    return [str(mishap) for mishap in happened if mishap.late]


def names_of(faults: Iterable[str], read_faults: Iterable[str] = READ_FAULTS) -> list[str]:
    """What `met` may count: a fault with other numbers is the same fault."""
    written = sorted({_name(fault) for fault in faults})
    return written + sorted({f"{_name(fault)}, of an inquiry" for fault in read_faults})


def met(arrivals: Iterable[Mapping[str, object]]) -> Counter[str]:
    """How often each fault befell what reached the provider, as the provider says."""
    found = Counter[str]()
    for arrival in arrivals:
        if arrival["fault"] is not None:
            found[f"{arrival['fault']}" + (", of an inquiry" if arrival["method"] == "GET" else "")] += 1
    return found


def table_of(columns: Mapping[str, Counter[str]], names: Iterable[str]) -> str:
    """Each fault by each journal and contract: how often."""
    widths = {column: max(8, len(column) + 2) for column in columns}
    lines = [f"{'wire fault':<38}" + "".join(f"{column:>{width}}" for column, width in widths.items())]
    for name in names:
        lines.append(f"{name:<38}" + "".join(f"{columns[column][name]:>{width}}" for column, width in widths.items()))
    return "\n".join(lines)


def _name(fault: str) -> str:
    return fault.partition("(")[0]


def report(world: World, shop: Shop, mishaps: Mishaps, verdict: Verdict, operations: int, faults: Counter[str]) -> str:
    times_s: dict[str, list[float]] = defaultdict(list)
    for mishap in mishaps.happened:
        times_s[mishap.kind].append(mishap.back_s)
    lines = [
        f"journal {world.journal}, {len(world.sidecars)} sidecar(s), a provider whose contract is {world.contract}",
        f"{len(shop.payments)} payments, {sum(shop.told.values())} answers, {operations} operations",
        "",
        f"{'mishap':<16}{'times':>6}{'back after, median':>20}{'most':>9}",
    ]
    for kind, found in sorted(times_s.items()):
        found.sort()
        lines.append(f"{kind:<16}{len(found):>6}{found[len(found) // 2]:>18.2f} s{found[-1]:>7.2f} s")
    details = [mishap.detail for mishap in mishaps.happened if mishap.kind in {"kill_at_step", "pause_at_step"}]
    if details:
        reached = {detail for detail in details if detail in STEPS}
        never = ", ".join(sorted(set(STEPS) - reached)) or "none"
        lines += ["", f"steps met: {len(reached)} of {len(STEPS)}; not met: {never}"]
    expected = names_of(shop.faults)
    missing = ", ".join(name for name in expected if not faults[name]) or "none"
    lines.append(f"wire faults met: {sum(map(bool, map(faults.get, expected)))} of {len(expected)}; not met: {missing}")
    if not world.is_turnable:
        lines.append("left out, for want of a C compiler: slow disks and wrong clocks")
    told = ", ".join(f"{answer} x {count}" for answer, count in shop.told.most_common(12))
    lines += [f"answers: {told}", ""]
    lines.append(
        f"double effects {len(verdict.double_effects)}, lost {len(verdict.lost)}, stuck {len(verdict.stuck)}, "
        f"lies {len(verdict.lies)}, late {len(late(mishaps.happened))}"
    )
    broken = verdict.broken + late(mishaps.happened)
    lines += [line[:1500] for line in broken[:SHOWN_MAX]]
    if len(broken) > SHOWN_MAX:
        lines.append(f"and {len(broken) - SHOWN_MAX} more")
    return "\n".join(lines)
