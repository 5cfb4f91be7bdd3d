"""What a long memory costs: a sidecar over a journal of a million ended operations, beside one over an empty journal.

Scrapes, clean calls and starts of both, in turns. The journal is filled by copies of one real operation that a sidecar
carried: all its rows, index entries and changes, under keys and references of their own.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis as redis_client

from bench.aims import SCRAPE_MS
from bench.load import Job
from bench.processes import BenchError, LoadProcess, NotMeasured, Started, end, free_port, start, start_provider
from bench.processes import start_redis as start_redis_server
from bench.rounds import PATH_OF_PAYWITNESS, Say, scratch_folder

OPERATIONS, OPERATIONS_QUICK = 1_000_000, 50_000
SQLITE, REDIS = "SQLite", "Redis"

_ROUNDS, _STARTS, _SCRAPES = 5, 3, 50
_CALLERS, _WARM_S, _WINDOW_S = 16, 0.3, 1.0
_READY_S = 120.0
_LOOK_S = 0.1
_PREFIX = "paywitness:{j}:"
_TAIL = 12  # of an id: what tells the copies apart
_BYTES_EACH = 6_000  # of memory, for an operation in Redis and the copy of its log that is being written
_ACCEPTED = "application/openmetrics-text;version=1.0.0"  # what Prometheus asks for
_WORDS = ("key", "client_key", "provider_key", "guard", "subject", "stamp", "reference")  # of a row: its index entries


@dataclass(slots=True)
class Side:
    """A sidecar over one journal. Lists have a value a round, or a scrape."""

    operations: int
    calls_per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    scrapes_ms: list[float] = field(default_factory=list)
    busy_scrapes_ms: list[float] = field(default_factory=list)  # while callers keep it as busy as it can be
    scrape_bytes: int = 0


@dataclass(slots=True)
class Store:
    name: str
    empty: Side
    full: Side
    fill_s: float


@dataclass(slots=True)
class Measured:
    stores: list[Store] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)


# --- a sidecar


@dataclass(slots=True)
class Sidecar:
    """`paywitness run` in a folder, over its journal there or in Redis; can be started again."""

    top: Path
    folder: Path
    provider: Started
    journal: str
    environment: dict[str, str]
    admin_port: int = 0
    process: Started | None = None

    def start(self, stack: ExitStack) -> float:
        """Seconds until it is ready."""
        if not self.folder.exists():
            (self.folder / "policies").mkdir(parents=True)
            shipped = (self.top / "policies" / "acme.yaml").read_text().splitlines()
            ours = f"upstream: http://127.0.0.1:{self.provider.port}"
            written = [ours if line.startswith("upstream:") else line for line in shipped]
            (self.folder / "policies" / "acme.yaml").write_text("\n".join(written))
        port, self.admin_port = free_port(), free_port()
        command = [str(Path(sys.executable).with_name("paywitness")), "run", "--policies", "policies"]
        command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{self.admin_port}", "--home", "home"]
        command += ["--webhooks", "off", "--journal", self.journal, "--limits", "local"]
        began_mono = time.monotonic()
        log = self.folder / "paywitness.log"
        self.process = start(stack, "paywitness", port, command, self.folder, log, self.environment)
        while self._ask("/readyz")[0] != 200:
            if time.monotonic() - began_mono > _READY_S:
                raise BenchError(f"paywitness is not ready:\n{log.read_text()[-2000:]}")
        return time.monotonic() - began_mono

    def stop(self) -> None:
        if self.process is not None:
            end(self.process.process)

    def scrape(self) -> tuple[float, int]:
        """Milliseconds and bytes, on a connection of its own."""
        began_mono = time.monotonic()
        status_code, body = self._ask("/metrics")
        if status_code != 200:
            raise BenchError(f"a scrape was answered {status_code}")
        return (time.monotonic() - began_mono) * 1e3, len(body)

    def _ask(self, path: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=30)) as connection:
            connection.request("GET", path, headers={"Accept": _ACCEPTED})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def job(self, window_s: float) -> Job:
        assert self.process is not None
        return Job(self.process.port, PATH_OF_PAYWITNESS, self.process.pid, _CALLERS, _WARM_S, window_s)


# --- filling a journal


# In the place of an operation's keys and references: a word of its own for each copy, anywhere in the index.
_COUNTED = """WITH RECURSIVE
    counted (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM counted WHERE i < {operations}),
    copies (i, word) AS MATERIALIZED (SELECT i, lower(hex(randomblob(16))) FROM counted)"""


def fill_sqlite(journal: Path, operations: int) -> None:
    """Copies of the newest ended operation. Nobody else may hold the file."""
    with closing(sqlite3.connect(journal, isolation_level=None)) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            connection.execute(f"PRAGMA {pragma}")
        indexes = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql > ''").fetchall()
        for name, _ in indexes:  # made once at the end, in a tenth of the time
            connection.execute(f"DROP INDEX {name}")
        last = connection.execute("SELECT max(number) FROM operations WHERE state = 'succeeded'").fetchone()[0]
        columns = [row[1] for row in connection.execute("PRAGMA table_info(operations)") if row[1] != "number"]
        copied = ", ".join(_copied(column) for column in columns)
        counted = _COUNTED.format(operations=operations)
        connection.execute("BEGIN")
        connection.execute(
            f"{counted} INSERT INTO operations ({', '.join(columns)}) "
            f"SELECT {copied} FROM copies CROSS JOIN operations ON number = {last}"
        )
        connection.execute(
            f"{counted} INSERT INTO changes (operation_id, version, at, entry, told) "
            f"SELECT {_copied('id', 'operation_id')}, version, at, entry, told FROM copies CROSS JOIN changes "
            f"ON operation_id = (SELECT id FROM operations WHERE number = {last})"
        )
        for _, sql in indexes:
            connection.execute(sql)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")


def _copied(column: str, named: str = "") -> str:
    name = named or column
    if column == "id":
        return f"substr({name}, 1, length({name}) - {_TAIL}) || printf('%0{_TAIL}x', i)"
    return f"substr(word || word || word, 1, length({name}))" if column in _WORDS else name


# Copies of one operation: its row, its entries in the index (where, how long a word, what follows it), its key. What
# goes to one place goes there together: a call from Lua costs more than a member.
_COPY = """
local P, from, first, last, entries, key_bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], cjson.decode(ARGV[5]), ARGV[6]
local fields, seq_at, number_at = redis.call('HGETALL', P .. 'o:' .. from), nil, nil
local version
for i = 1, #fields, 2 do
  if fields[i] == 's' then seq_at = i + 1 end
  if fields[i] == 'n' then number_at = i + 1 end
  if fields[i] == 'v' then version = fields[i + 1] end
end
local count = last - first + 1
local number = redis.call('INCRBY', P .. 'number', count) - count
local seq = seq_at and redis.call('INCRBY', P .. 'seq', count) - count
local keys, members = {}, {}
for at = 1, #entries do members[at] = {} end
for i = first, last do
  local id = string.sub(from, 1, -13) .. string.format('%012x', i)
  local nth = i - first + 1
  fields[number_at] = string.format('%012.0f', number + nth)
  if seq_at then
    fields[seq_at] = string.format('%.0f', seq + nth)
    redis.call('XADD', P .. 'told', fields[seq_at] .. '-0', 'o', id .. ' ' .. version)
  end
  redis.call('HSET', P .. 'o:' .. id, unpack(fields))
  for at, entry in ipairs(entries) do
    local drawn = string.sub(string.rep(redis.sha1hex(entry[1] .. i), 4), 1, entry[2])
    members[at][2 * nth - 1], members[at][2 * nth] = 0, drawn .. entry[3] .. id
  end
  keys[2 * nth - 1] = 'k' .. string.sub(string.rep(redis.sha1hex(i), 4), 1, key_bytes)
  keys[2 * nth] = id
end
for at, entry in ipairs(entries) do
  redis.call('ZADD', entry[1], unpack(members[at]))
end
redis.call('HSET', P .. 'keys', unpack(keys))
"""
_COPIED_AT_ONCE = 1_000  # Lua hands over some thousands of values at once, and no more


def fill_redis(client: Any, operations: int) -> None:
    """Copies of one operation that has ended and told all it will."""
    (newest,) = client.zrevrange(f"{_PREFIX}x:i", 0, 0)
    template = newest.rsplit(b"\0", 1)[1].decode()
    entries = []
    for index in client.scan_iter(f"{_PREFIX}x:*"):
        for member in client.zrange(index, 0, -1):
            if member.endswith(b"\0" + template.encode()):
                before = member.removesuffix(template.encode())
                word, found, rest = before.partition(b"\0")
                entries.append([index.decode(), len(word), (found + rest).decode()])
    (key,) = [name for name, ids in client.hscan_iter(f"{_PREFIX}keys") if ids == template.encode()]
    copy = client.register_script(_COPY)
    client.config_set("appendonly", "no")  # written once at the end, in half the time
    for first in range(1, operations + 1, _COPIED_AT_ONCE):
        last = min(operations, first + _COPIED_AT_ONCE - 1)
        copy(args=[_PREFIX, template, first, last, json.dumps(entries), len(key) - 1])
    client.config_set("appendonly", "yes")
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(_LOOK_S)


# --- measuring


def measure(top: Path, say: Say, operations: int = OPERATIONS) -> Measured:
    measured = Measured()
    for name in (SQLITE, REDIS):
        with ExitStack() as stack:
            try:
                measured.stores.append(_store(name, stack, top, say, operations))
            except NotMeasured as error:
                measured.not_measured.append(f"{name}: not measured: {error}")
    return measured


def _store(name: str, stack: ExitStack, top: Path, say: Say, operations: int) -> Store:
    scratch = scratch_folder(stack, top)
    provider = start_provider(stack, top, scratch)
    load = LoadProcess(stack, top)
    if name == SQLITE:
        urls, environment = ["sqlite:///journal.db"] * 2, {}
    else:
        redis = _redis(stack, scratch, operations)
        urls, environment = [f"redis://127.0.0.1:{redis.port}/{number}" for number in (1, 0)], _keys()
    empty, full = (
        Sidecar(top, scratch / folder, provider, url, environment)
        for folder, url in zip(("empty", "full"), urls, strict=True)
    )
    full.start(stack)
    load.drive(full.job(_WINDOW_S))  # some real operations, to copy one
    full.stop()
    say(f"a long memory: {operations} operations into {name}")
    began_mono = time.monotonic()
    if name == SQLITE:
        fill_sqlite(full.folder / "journal.db", operations)
    else:
        with closing(redis_client.Redis(port=redis.port)) as client:
            fill_redis(client, operations)
    sides = Store(name, Side(0), Side(operations), time.monotonic() - began_mono)
    pairs = [(empty, sides.empty), (full, sides.full)]
    for number in range(_STARTS):
        say(f"a long memory, {name}: start {number + 1} of {_STARTS}")
        for sidecar, side in pairs:
            sidecar.stop()
            side.start_s.append(sidecar.start(stack))
    _take_turns(pairs, load, say, name)
    return sides


def _take_turns(pairs: list[tuple[Sidecar, Side]], load: LoadProcess, say: Say, name: str) -> None:
    for sidecar, _ in pairs:  # series, connections, the first pages: none of it counts
        load.drive(sidecar.job(_WINDOW_S))
    for number in range(_ROUNDS):
        say(f"a long memory, {name}: round {number + 1} of {_ROUNDS}")
        for sidecar, side in pairs if number % 2 else pairs[::-1]:
            result = load.drive(sidecar.job(_WINDOW_S))
            if result.failed or not result.calls:
                raise BenchError(f"{name}: {result.failed} calls failed: no clean path\n{result.first_failed}".rstrip())
            side.calls_per_s.append(result.calls / result.window_s)
            side.cpu_us.append(1e6 * result.cpu_s / result.calls)
    for _ in range(_SCRAPES):
        for sidecar, side in pairs:
            took_ms, side.scrape_bytes = sidecar.scrape()
            side.scrapes_ms.append(took_ms)
    for sidecar, side in pairs:
        _scrape_while_busy(sidecar, side, load)


def _scrape_while_busy(sidecar: Sidecar, side: Side, load: LoadProcess) -> None:
    with ThreadPoolExecutor(1) as beside:
        while len(side.busy_scrapes_ms) < _SCRAPES:
            driving = beside.submit(load.drive, sidecar.job(2 * _WINDOW_S))
            time.sleep(_WARM_S)
            while not driving.done() and len(side.busy_scrapes_ms) < _SCRAPES:
                side.busy_scrapes_ms.append(sidecar.scrape()[0])
            driving.result()


def _redis(stack: ExitStack, scratch: Path, operations: int) -> Started:
    needed, free = operations * _BYTES_EACH, _free_bytes()
    if needed > free:
        raise NotMeasured(f"it takes {needed >> 20} MiB of memory, and {free >> 20} MiB are free")
    return start_redis_server(stack, scratch)


def _free_bytes() -> int:
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) << 10


def _keys() -> dict[str, str]:
    def secret() -> str:
        return base64.b64encode(secrets.token_bytes(32)).decode()

    return {"PAYWITNESS_IDENTITY_SECRET": secret(), "PAYWITNESS_ENCRYPTION_KEYS": f"bench:{secret()}"}


# --- telling


def flat_ratio(store: Store) -> float:
    """CPU of a clean call over the full journal, over that over the empty one: the median of the rounds."""
    return statistics.median(full / bare for full, bare in zip(store.full.cpu_us, store.empty.cpu_us, strict=True))


def scrape_ms(store: Store) -> float:
    """What all but one of a hundred scrapes over the full journal take at most."""
    return _quantile(store.full.scrapes_ms, 0.99)


def lines(measured: Measured) -> Iterator[str]:
    yield f"A long memory ({_CALLERS} callers; medians of {_ROUNDS} rounds in turns; scrapes as Prometheus asks)"
    for store in measured.stores:
        for side in (store.empty, store.full):
            calls, cpu = statistics.median(side.calls_per_s), statistics.median(side.cpu_us)
            yield (
                f"  {store.name:<7} {side.operations:>9,} operations: {calls:5.0f} calls/s, "
                f"{cpu:4.0f} us of CPU a call, ready after {statistics.median(side.start_s):.2f} s"
            )
            yield (
                f"          scrape {_shown(side.scrapes_ms)}; while busy {_shown(side.busy_scrapes_ms)}; "
                f"{side.scrape_bytes / 1024:.0f} KiB"
            )
        kept = "met" if scrape_ms(store) < SCRAPE_MS else "missed"
        yield (
            f"          CPU a call x {flat_ratio(store):.2f}; the aim, a scrape under {SCRAPE_MS:.0f} ms at p99, "
            f"is {kept}; filled in {store.fill_s:.0f} s"
        )
    for note in measured.not_measured:
        yield f"  {note}"


def _shown(took_ms: list[float]) -> str:
    return f"{statistics.median(took_ms):.1f} ms, p99 {_quantile(took_ms, 0.99):.1f} ms"


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> None:
    """`python -m bench.scrape [operations]`: this part alone."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else OPERATIONS

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for line in lines(measure(Path(__file__).resolve().parent.parent, say, operations)):
        print(line)


if __name__ == "__main__":
    main()
