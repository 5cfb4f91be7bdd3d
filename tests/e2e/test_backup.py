"""A backup as docs/deployment.md takes it, of a journal in use, and a sidecar that starts over what was restored."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import FLEET_SECRETS, Provider
from tests.e2e.sidecar import TOP, Sidecar, wait_until
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow
PAGE = (TOP / "docs" / "deployment.md").read_text()
EDITS = (
    ("schedule: [2s, 10s, 30s, 2m, 10m, 1h, ", "schedule: [1h, "),  # the doubt stays one
    ("first_byte: 5s ", "first_byte: 1s "),
)
PAID, LOST = "paid", "lost"


def pay_and_lose(sidecar: Sidecar) -> None:
    """One payment that is known, and one in doubt."""
    assert sidecar.charge(PAID, PAID).status_code == 200
    lost = sidecar.charge(
        LOST, LOST, fault="black_hole(heal_s=300, hang_s=300)", headers={"Paywitness-Timeout-Ms": "500"}
    )
    assert (lost.status_code, lost.outcome) == (504, "unknown")
    wait_until(lambda: len(sidecar.operations("&doubt=true")) == 1, "its being in doubt")


def told_again(sidecar: Sidecar) -> tuple[int, str | None, int]:
    """What a repeat of the first is told, and how many are in doubt."""
    repeat = sidecar.charge(PAID, PAID)
    return repeat.status_code, repeat.headers.get("Paywitness-Replayed"), len(sidecar.operations("&doubt=true"))


def test_a_sqlite_journal_is_backed_up_while_it_runs_and_restored_with_its_secrets(
    sandbox: Provider, make_sidecar: Callable[..., Sidecar]
) -> None:
    sidecar = make_sidecar(sandbox.url, *EDITS).start()
    pay_and_lose(sidecar)
    (command,) = re.findall(r"(?m)^python3 (-c .* journal\.db backup\.db)$", PAGE)
    subprocess.run([sys.executable, *shlex.split(command)], cwd=sidecar.home, check=True)
    assert sidecar.charge("after", "after").status_code == 200
    sidecar.kill()
    restored = make_sidecar(sandbox.url, *EDITS)
    shutil.copy(sidecar.home / "backup.db", restored.home / "journal.db")
    for secret in ("journal.db.identity", "journal.db.keys"):
        shutil.copy(sidecar.home / secret, restored.home)
    restored.start()
    assert told_again(restored) == (200, "true", 1)
    assert restored.operations("&key=after") == []  # as the page says: it is forgotten
    assert sandbox.effects(PAID) == 1


def test_a_redis_journal_is_backed_up_while_it_runs_and_restored(
    sandbox: Provider, make_sidecar: Callable[..., Sidecar], redis: RedisServer, tmp_path: Path
) -> None:
    assert "redis-cli --rdb backup.rdb" in PAGE
    sidecar = make_sidecar(sandbox.url, *EDITS, options=("--journal", redis.url), environment=FLEET_SECRETS).start()
    pay_and_lose(sidecar)
    backup = tmp_path / "backup.rdb"
    redis.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")  # else it waits five seconds for others
    subprocess.run(["redis-cli", "-p", str(redis.port), "--rdb", str(backup)], check=True, capture_output=True)
    assert sidecar.charge("after", "after").status_code == 200  # who took the backup was no replica to wait for
    sidecar.kill()
    other = RedisServer(tmp_path / "restored", "--appendonly", "no")
    other.folder.mkdir()
    shutil.copy(backup, other.folder / "dump.rdb")
    other.start()
    try:
        other.ask("CONFIG", "SET", "appendonly", "yes")
        wait_until(
            lambda: "aof_rewrite_in_progress:0" in str(other.ask("INFO", "persistence")), "the log's being whole"
        )
        restored = make_sidecar(
            sandbox.url, *EDITS, options=("--journal", other.url), environment=FLEET_SECRETS
        ).start()
        assert told_again(restored) == (200, "true", 1)
        assert sandbox.effects(PAID) == 1
    finally:
        other.stop()
