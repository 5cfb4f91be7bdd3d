"""The bench: what it captures of Redis, what it makes of rounds, and that it says what it could not measure."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import classifying, intercepted, nginx
from bench.capture import CLIENT_KEY, KEY, OPERATION_ID, Captured, template_of, words_in
from bench.engine_alone import drive, engine_of
from bench.figures import DIRECT, NGINX, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, Cell, compare
from bench.load import Result
from bench.memory import measure_memory
from bench.processes import NotMeasured, Started
from bench.report import table
from bench.rounds import Plan, run
from proxy.core.operation import Outcome
from proxy.journal.base import Listing
from proxy.journal.redis_connection import packed
from tests.journal.redis_server import RedisServer
from tests.policy.pack import BOOK

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
        client.sendall(packed(sent))
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
    assert comparison.over_nginx is not None
    assert comparison.over_nginx.median == pytest.approx(6.0)
    assert PASS_THROUGH not in comparison.ratios


def test_the_processor_time_of_redis_is_told_apart() -> None:
    routes = {DIRECT: result(1), PASS_THROUGH: result(100), PAYWITNESS_REDIS: result(300, redis_us=70)}
    (comparison,) = compare(cells(routes))
    figures = comparison.routes[PAYWITNESS_REDIS]
    assert (figures.cpu_us, figures.redis_us) == pytest.approx((300, 70))
    assert comparison.routes[PASS_THROUGH].redis_us == 0


def test_a_missed_aim_is_said_to_be_missed() -> None:
    def verdict(redis_us: float) -> str:
        routes = {DIRECT: result(1), PASS_THROUGH: result(100), PAYWITNESS: result(100)}
        return "\n".join(table(compare(cells({**routes, PAYWITNESS_REDIS: result(redis_us)})), []))

    assert "paywitness, Redis: x 1.30. The aim, at most x 1.2, is missed." in verdict(130)
    assert "paywitness, Redis: x 1.10. The aim, at most x 1.2, is met." in verdict(110)


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
def test_a_short_run_measures_every_route_or_says_why_not() -> None:
    measured = run(Plan(1, 0.05, {2: 0.2}, 0), TOP, lambda text: None)
    (comparison,) = compare(measured.cells)
    unsaid = {DIRECT, PASS_THROUGH, PAYWITNESS, PAYWITNESS_REDIS, NGINX} - comparison.routes.keys()
    assert unsaid <= {NGINX}
    assert all(any(note.startswith(f"{route}: not measured: ") for note in measured.notes) for route in unsaid)
    assert comparison.routes[PAYWITNESS_REDIS].redis_us > 0
    assert any("limits: " in note for note in measured.notes)


@pytest.mark.slow
def test_memory_is_measured_over_as_many_operations_as_were_asked_for() -> None:
    memory = measure_memory(50, TOP, lambda text: None)
    assert memory.operations >= 50
    assert 500 < memory.bytes_each < 20_000
    assert memory.keys_each == pytest.approx(1.0, abs=0.2)


async def test_the_engine_alone_makes_whole_payments() -> None:
    engine = engine_of(TOP / "policies")
    await drive(engine, 0, 20)
    operations = await engine.journal.listing(Listing())
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
