"""A world for chaos: a sandbox, a store and sidecars over it, real processes all. The sandbox judges, unharmed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.knobs import Knobs, compiled
from tests.e2e.conftest import FLEET_LEASE_S, FLEET_SECRETS, Provider, start_provider
from tests.e2e.contracts import SOON, STORES, WEBHOOK_SECRET, Edits
from tests.e2e.sidecar import TOP, Sidecar, listens, wait_until
from tests.journal.redis_server import RedisServer
from tests.ports import free_port

JOURNALS = ("sqlite", "redis")
CONTRACTS = tuple(STORES)
FLEET = 2  # sidecars over one Redis; a SQLite journal is one process' own
_POLICY = Path("policies", "acme.yaml")


@dataclass
class Victim(Sidecar):
    """A sidecar that can be told where to die, and whose clock and disk have knobs."""

    knobs: Knobs | None = None

    @property
    def fate(self) -> Path:
        return self.home / "fate"

    def meets(self, step: str, times: int, number: str) -> None:
        """From now on: at the step, for the so manieth time, it is killed or stopped by its own hand."""
        drafted = self.home / "fate.draft"
        drafted.write_text(f"{step} {times} {number}")
        drafted.rename(self.fate)

    def is_spared(self) -> None:
        self.fate.unlink(missing_ok=True)

    def start(self, *, step: str = "", on_step: str = "KILL", wait: bool = True) -> Victim:
        """Start it again, with no fate but what is written later."""
        assert not step, "its fate is written while it runs"
        self.is_spared()
        arguments = [
            *("--policies", str(self.home / "policies")),
            *("--listen", f"127.0.0.1:{self.port}"),
            *("--admin", f"127.0.0.1:{self.admin_port}"),
            *("--webhooks", f"127.0.0.1:{self.webhooks_port}"),
            *("--journal", f"sqlite:///{self.home / 'journal.db'}"),
            *("--home", str(self.home)),
            *self.options,
        ]
        preloaded = self.knobs.environment if self.knobs else {}
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.process", str(self.fate), "run", *arguments],
                cwd=TOP,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment, **preloaded},
            )
        if wait:
            wait_until(lambda: self.ended or listens(self.port), "the start of the sidecar")
            assert not self.ended, self.log[-4000:]
        return self

    @property
    def policy(self) -> Path:
        return self.home / _POLICY

    @property
    def process_id(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass
class World:
    folder: Path
    journal: str
    contract: str
    provider: Provider
    sidecars: list[Victim] = field(default_factory=list)
    redis: RedisServer | None = None
    redis_knobs: Knobs | None = None
    library: Path | None = None

    @property
    def is_turnable(self) -> bool:
        """Whether clocks and disks have knobs."""
        return self.library is not None

    @property
    def store_process_id(self) -> int:
        """Whose disk holds the journal."""
        return self.redis.process_id if self.redis is not None else self.sidecars[0].process_id

    @property
    def store_knobs(self) -> Knobs | None:
        return self.redis_knobs if self.redis is not None else self.sidecars[0].knobs

    def start_redis(self) -> None:
        assert self.redis is not None
        assert self.redis_knobs is not None
        with self.redis_knobs.given_to_children():
            self.redis.start()


@contextmanager
def world_of(folder: Path, journal: str, contract: str, edits: Edits = SOON, *, overlay: str = "") -> Iterator[World]:
    """All of it running, and ended afterwards. `overlay`: a policy of its own, instead of the edited one."""
    folder.mkdir(parents=True, exist_ok=True)
    _raise_the_limit_of_files()
    provider = start_provider(contract, free_port())
    world = World(folder, journal, contract, provider, library=compiled(folder))
    try:
        options: tuple[str, ...] = ("--lease-seconds", f"{FLEET_LEASE_S:.0f}")
        environment = {"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET}
        if journal == "redis":
            world.redis = RedisServer(folder / "redis")
            world.redis_knobs = Knobs(folder / "redis-knobs", world.library)
            world.start_redis()
            options += ("--journal", world.redis.url, "--limits", world.redis.url)
            environment |= FLEET_SECRETS
        for number in range(FLEET if world.redis is not None else 1):
            home = folder / f"sidecar-{number}"
            victim = Victim(home, provider.url, (*edits, *STORES[contract]), options, environment, overlay=overlay)
            victim.knobs = Knobs(home / "knobs", world.library)
            world.sidecars.append(victim.start())
        url = f"http://127.0.0.1:{world.sidecars[0].webhooks_port}/paywitness/webhooks/acme"
        provider.tell_webhooks(url, WEBHOOK_SECRET, tries_max=8)
        yield world
    finally:
        for victim in world.sidecars:
            victim.kill()
        if world.redis is not None:
            world.redis.kill()
        provider.process.kill()
        provider.process.wait()


def _raise_the_limit_of_files() -> None:
    """A flood of connections is as many open files, here and there."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
