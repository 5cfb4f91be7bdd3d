"""What became of each mutant, kept in a file so that a run goes on where the last one stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.hunt import Ending, Hunted
from tests.simulation.planting import Bug


@dataclass(frozen=True)
class Results:
    """One line for each hunt; of a mutant the last one counts."""

    path: Path

    def read(self) -> dict[str, Hunted]:
        if not self.path.exists():
            return {}
        found: dict[str, Hunted] = {}
        for line in self.path.read_text().splitlines():
            stored = json.loads(line)
            found[stored["name"]] = Hunted(**{**stored, "ending": Ending(stored["ending"])})
        return found

    def add(self, one: Hunted) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def read_caught_by(path: Path) -> dict[str, str]:
    """The test that caught each mutant when somebody last wrote that down."""
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_caught_by(path: Path, known: Mapping[str, Hunted]) -> None:
    caught = {name: one.by for name, one in sorted(known.items()) if one.ending is Ending.CAUGHT_BY_TEST}
    path.write_text(json.dumps(caught, indent=1) + "\n")


def product_version(product: Path) -> str:
    """A hash of the product's code: a result of another one may be outdated."""
    digest = hashlib.sha256()
    for file in sorted(product.rglob("*.py")):
        digest.update(str(file.relative_to(product)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def left_to_hunt(
    mutants: Iterable[Bug], known: Mapping[str, Hunted], *, of_product: str = "", survivors: bool = False
) -> list[Bug]:
    """Those without a result: with `of_product` without one of this code of the product. With `survivors` also those
    that were not caught."""

    def is_left(one: Hunted | None) -> bool:
        return one is None or (bool(of_product) and one.product != of_product) or (survivors and not one.caught)

    return [planted for planted in mutants if is_left(known.get(planted.name))]


def room_of(planted: Bug) -> str:
    """The room of the product that it changes."""
    parts = planted.changes[0].reference.split(".")
    return f"{parts[1]}/{parts[2]}" if parts[1] == "engine" and len(parts) > 4 else parts[1]


def table_of(mutants: Sequence[Bug], known: Mapping[str, Hunted]) -> str:
    """What was caught in each room, then every mutant that was not."""
    rooms: dict[str, list[Hunted | None]] = {}
    for planted in mutants:
        rooms.setdefault(room_of(planted), []).append(known.get(planted.name))
    lines = ["| room | mutants | by a test | by a world | survived | not hunted yet |", "|---|---|---|---|---|---|"]
    everything = [one for some in rooms.values() for one in some]
    for room, some in [*sorted(rooms.items()), ("all", everything)]:
        hunted = [one for one in some if one is not None]
        by_test = sum(one.ending is Ending.CAUGHT_BY_TEST for one in hunted)
        by_world = sum(one.ending is Ending.CAUGHT_BY_WORLD for one in hunted)
        survived = len(hunted) - by_test - by_world
        lines.append(f"| {room} | {len(some)} | {by_test} | {by_world} | {survived} | {len(some) - len(hunted)} |")
    alive = [planted for planted in mutants if planted.name in known and not known[planted.name].caught]
    if alive:
        lines += ["", "| not caught | what the product then does | tests that were run |", "|---|---|---|"]
        lines += [f"| {one.name} | {one.what} | {_how(known[one.name])} |" for one in alive]
    return "\n".join(lines)


def _how(one: Hunted) -> str:
    return f"{one.tests}, out of time" if one.ending is Ending.OUT_OF_TIME else f"{one.tests}"
