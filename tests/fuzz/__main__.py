"""Fuzz every target for a time: `python -m tests.fuzz --seconds 60 [--only request]`. Ends with 1 where a claim fell.

What made it fall is told, made as small as it can be, and kept: where the target has a folder in the corpus, as a file
there, which every later run begins with and the suite replays.
"""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from pathlib import Path

import click
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.mutation import CORPUS
from tests.fuzz.targets import TARGETS, Target

_ROUND = 100  # examples between two looks at the clock


class Fuzzing:
    """Rounds of examples against one target, until its time is over or its claim falls."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.examples = 0
        self.fallen: tuple[object, ...] | None = None  # the last one that fell is the smallest
        self._database = DirectoryBasedExampleDatabase(folder / target.name)

    def run(self, seconds: float) -> BaseException | None:
        until_mono = time.monotonic() + seconds
        while time.monotonic() < until_mono:
            try:
                self._round(until_mono)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
                return error
        return None

    def _round(self, until_mono: float) -> None:
        @settings(
            max_examples=_ROUND,
            deadline=None,
            database=self._database,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            derandomize=False,
        )
        @given(st.tuples(*self.target.drawn))
        def attempt(drawn: tuple[object, ...]) -> None:
            if time.monotonic() > until_mono and self.fallen is None:
                return
            self.examples += 1
            try:
                self.target.claim(*drawn)
            except BaseException:
                self.fallen = drawn
                raise

        attempt()

    def keep(self) -> Path | None:
        """What fell, in the corpus."""
        if not self.target.corpus or self.fallen is None or not isinstance(self.fallen[0], bytes):
            return None
        folder = CORPUS / self.target.corpus
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"found-{hashlib.sha256(self.fallen[0]).hexdigest()[:12]}"
        file.write_bytes(self.fallen[0])
        return file


@click.command(help=__doc__)
@click.option("--seconds", default=60.0, show_default=True, help="For each target.")
@click.option("--only", default="", help="Targets whose names have this in them.")
@click.option("--database", type=click.Path(path_type=Path), default=Path(".hypothesis/fuzz"), show_default=True)
def main(seconds: float, only: str, database: Path) -> None:
    fell = 0
    for target in TARGETS:
        if only not in target.name:
            continue
        fuzzing = Fuzzing(target, database)
        began_mono = time.monotonic()
        error = fuzzing.run(seconds)
        took_s = time.monotonic() - began_mono
        click.echo(f"{'FELL' if error else 'held':<5} {target.name:<45} {fuzzing.examples:>8,} in {took_s:5.1f} s")
        if error is not None:
            fell += 1
            click.echo(f"  {fuzzing.fallen!r}")
            click.echo("".join(traceback.format_exception(error, limit=-6)))
            if (file := fuzzing.keep()) is not None:
                click.echo(f"  kept as {file}")
    sys.exit(1 if fell else 0)


if __name__ == "__main__":
    main()
