"""`policy diff --against`: operations that the real engine recorded, replayed under an edit: what differs, how much."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paywitness.cli.main import main
from paywitness.clock import SystemClock
from paywitness.core.operation import Operation
from paywitness.journal.base import Journal, OperationQuery
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.option_defaults import ENCRYPTION_KEYS
from paywitness.tools.policy_diff.backtest import Backtest
from paywitness.tools.policy_diff.comparison import diff
from paywitness.tools.policy_diff.journal_reader import open_read_only
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import POLICY, World, make_world
from tests.journal.redis_server import RedisServer

KEYS = {ENCRYPTION_KEYS: f"k1:{base64.b64encode(b'0' * 32).decode()}"}  # the world's own
TEXT = POLICY.read_text()

# What each of them came to, and what the journal still holds of it.
PAID, DECLINED, LOST, ERROR = "paid", "declined", "lost", "error"


async def _record(journal: Journal) -> dict[str, str]:
    """One operation of each kind, by its name: its id."""
    async with Sandbox() as sandbox:
        world = await make_world(sandbox, journal=journal)
        await world.charge(PAID, order=PAID, amount=100)
        await world.charge(DECLINED, order=DECLINED, source="tok_stolen_card", amount=200)
        await world.charge(LOST, order=LOST, fault="drop_after_commit", amount=400)  # then sent again, and paid
        await world.charge(ERROR, order=ERROR, fault="error_500_after_commit", amount=800)  # doubt: to be asked about
        found = await _operations(world)
        await close(world)
    return {operation.client_key: operation.id for operation in found}


async def _operations(world: World) -> tuple[Operation, ...]:
    return await world.journal.find_operations(OperationQuery())


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, str]]:
    """A journal at rest: its address, its file, the operations in it."""
    path = tmp_path_factory.mktemp("recorded") / "journal.db"

    async def record() -> dict[str, str]:
        return await _record(await SqliteJournal.open(path, clock=SystemClock()))

    return f"sqlite:///{path}", path, asyncio.run(record())


def edited(*edits: tuple[str, str]) -> str:
    text = TEXT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture
def against(journal: tuple[str, Path, dict[str, str]], tmp_path: Path) -> Callable[..., Result]:
    def run(
        *edits: tuple[str, str],
        old: tuple[tuple[str, str], ...] = (),
        url: str = journal[0],
        more: tuple[str, ...] = (),
        keys: bool = True,
    ) -> Result:
        (tmp_path / "old.yaml").write_text(edited(*old))
        (tmp_path / "new.yaml").write_text(edited(*old, *edits))
        files = (str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml"))
        arguments = ["policy", "diff", *files, "--against", url, *more]
        result = CliRunner().invoke(main, arguments, env=KEYS if keys else {ENCRYPTION_KEYS: None})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


Against = Callable[..., Result]
NEVER_RESENT = ("errors_under_key: replayed", "errors_under_key: unknown ")
SOFTER = (
    (
        "    issuer_soft_decline: [insufficient_funds, do_not_honor, processing_error] ",
        "    issuer_soft_decline: [insufficient_funds, stolen_card, do_not_honor, processing_error] ",
    ),
    ("issuer_hard_decline: [stolen_card, expired_card,", "issuer_hard_decline: [expired_card,"),
)
FIRST_ROW = "classify:\n"
NO_EDIT = ("provider: acme ", "provider: acme  ")


def test_an_edit_that_nothing_recorded_meets_is_no_difference(against: Against) -> None:
    result = against(("attempts: 4", "attempts: 5"), ("first_byte: 5s", "first_byte: 6s"))
    assert result.exit_code == 0, result.output
    assert "examined 4 operations, all of them." in result.output
    assert "  4 would have been treated alike" in result.output
    assert "are recorded with another decision" not in result.output  # the engine decided as the replay does


def test_what_would_have_been_asked_about_is_told_with_its_money(
    against: Against, journal: tuple[str, Path, dict[str, str]]
) -> None:
    result = against(NEVER_RESENT)
    assert result.exit_code == 1
    assert "  3 would have been treated alike" in result.output
    assert "  1 would have been asked about instead of retried (4.00 EUR)" in result.output
    assert f"  {journal[2][LOST]} acme sale 4.00 EUR: asked about instead of retried, after attempt 1" in result.output
    assert (
        "    old: retry_same_operation by in_doubt_same_key_is_safe, read as unknown_outcome (possible)"
        in result.output
    )
    assert "    new: status_inquiry by in_doubt_ask, read as unknown_outcome (possible)" in result.output


def test_an_answer_that_is_kept_is_read_again(against: Against) -> None:
    output = against(*SOFTER).output
    assert "1 would have been read as issuer_soft_decline instead of issuer_hard_decline (2.00 EUR)" in output
    assert "  3 would have been treated alike" in output


def test_a_status_alone_decides_where_a_row_asks_for_no_more(against: Against) -> None:
    row = "  - {status: 500, as: temporary_provider_error, effect: none}\n"
    output = against((FIRST_ROW, FIRST_ROW + row)).output
    assert "1 would have been retried instead of asked about (8.00 EUR)" in output


def test_what_a_new_row_would_have_to_read_and_nobody_kept_is_said(against: Against) -> None:
    row = "  - {status: 500, when: \"error.code == 'x'\", as: validation_error}\n"
    result = against((FIRST_ROW, FIRST_ROW + row))
    assert result.exit_code == 0
    assert "  3 would have been treated alike" in result.output
    assert "  1 could not be replayed: an answer that a changed row would have to read is not kept" in result.output


def test_a_row_below_the_one_that_read_it_needs_no_answer(against: Against) -> None:
    last = "  - {status: 503, when: \"error.code == 'overloaded'\", as: temporary_provider_error, effect: none}\n"
    row = "  - {status: 404, when: \"error.code == 'x'\", as: rate_limited}\n"
    result = against((last, last + row))
    assert "  4 would have been treated alike" in result.output


def test_without_a_key_that_is_the_reason(against: Against) -> None:
    result = against(*SOFTER, keys=False)
    reason = "what is kept of it is encrypted, and there is no key here that opens it"
    assert f"could not be replayed: {reason}" in result.output
    assert "instead of" not in result.output


def test_an_operation_that_is_gone_is_not_recognised(against: Against) -> None:
    output = against(("  sale:\n", "  purchase:\n")).output
    assert "4 would have been not recognised" in output


def test_an_open_operation_is_recognised_again_by_its_request(against: Against) -> None:
    output = against(
        ("take_from: [header:Idempotency-Key, body:metadata.order_id]", "take_from: [body:metadata.order_id]")
    ).output
    assert "1 would have been keyed otherwise (8.00 EUR)" in output
    assert "  of 3 it is unknown whether they would be recognised under the same key" in output
    assert "key_from header:Idempotency-Key" in output
    assert "key_from body:metadata.order_id" in output


def test_an_old_policy_that_was_not_in_force_then_is_noticed(against: Against) -> None:
    result = against(("attempts: 4", "attempts: 5"), old=(NEVER_RESENT,))
    assert "  1 are recorded with another decision than the old policy makes" in result.output


def test_machines_are_told_the_same(against: Against, journal: tuple[str, Path, dict[str, str]]) -> None:
    found = json.loads(against(NEVER_RESENT, more=("--json",)).output)["against"]
    assert (found["looked_at"], found["same"], found["differ"], found["complete"]) == (4, 3, 1, True)
    assert found["kinds"] == [{"kind": "asked about instead of retried", "count": 1, "money": {"EUR": "4.00"}}]
    assert [example["operation_id"] for example in found["examples"]] == [journal[2][LOST]]


def test_examples_and_operations_are_bounded(against: Against) -> None:
    few = against(NEVER_RESENT, more=("--limit", "0"))
    assert "Examples:" not in few.output
    assert few.exit_code == 1
    newest = against(NEVER_RESENT, more=("--newest", "1"))
    assert "examined 1 operation, the newest (--newest)." in newest.output
    assert newest.exit_code == 0


def test_a_journal_at_rest_is_not_touched(against: Against, journal: tuple[str, Path, dict[str, str]]) -> None:
    folder = journal[1].parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert against(NEVER_RESENT).exit_code == 1
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


async def test_a_journal_that_is_held_is_read_beside_its_holder(against: Against, tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    async with Sandbox() as sandbox:
        world = await make_world(sandbox, journal=await SqliteJournal.open(path, clock=SystemClock()))
        await world.charge(LOST, fault="drop_after_commit")
        result = await asyncio.to_thread(against, NEVER_RESENT, url=f"sqlite:///{path}")
        assert (await world.charge("another", order="another")).status_code == 200
        await close(world)
    assert "1 would have been asked about instead of retried (10.99 EUR)" in result.output


async def test_a_request_that_was_not_stored_whole_is_not_recognised_by_what_is_left(
    against: Against, tmp_path: Path
) -> None:
    path = tmp_path / "secret.db"
    secret = (("never_store: [source.number, source.cvc]", "never_store: [metadata.order_id]"),)
    async with Sandbox() as sandbox:
        world = await make_world(sandbox, *secret, journal=await SqliteJournal.open(path, clock=SystemClock()))
        await world.charge(fault="error_500_after_commit")
        await close(world)
    edit = ("take_from: [header:Idempotency-Key, body:metadata.order_id]", "take_from: [body:metadata.order_id]")
    result = await asyncio.to_thread(against, edit, old=secret, url=f"sqlite:///{path}")
    assert "  1 would have been treated alike" in result.output
    assert "  of 1 it is unknown whether" in result.output


async def test_a_long_look_says_how_far_it_is(journal: tuple[str, Path, dict[str, str]]) -> None:
    class Slow(SystemClock):
        """Every look at it takes a second."""

        at = 0.0

        def mono(self) -> float:
            self.at += 1.0
            return self.at

    said: list[str] = []
    async with open_read_only(journal[0], KEYS) as recorded:
        found = await Backtest(diff(POLICY, POLICY), recorded, Slow(), said.append).run(newest=10, examples=0)
    assert (found.examined, found.same, found.complete) == (4, 4, True)
    assert said[0] == "examined 2 operations, 0 differ ..."


async def test_less_patience_gives_up_on_an_answer_that_came(against: Against, tmp_path: Path) -> None:
    url = await _recorded_slowly(tmp_path)
    result = await asyncio.to_thread(against, ("first_byte: 5s", "first_byte: 100ms"), url=url)
    assert "1 would have been retried instead of settled (10.99 EUR)" in result.output
    assert "read as network_read_timeout (possible)" in result.output


async def test_what_more_patience_would_have_heard_is_not_known(against: Against, tmp_path: Path) -> None:
    hasty = (("first_byte: 5s", "first_byte: 100ms"),)
    url = await _recorded_slowly(tmp_path, *hasty)
    more = ("first_byte: 100ms", "first_byte: 5s")
    result = await asyncio.to_thread(against, more, old=hasty, url=url)
    assert "1 could not be replayed: it was given up on sooner than the new policy would" in result.output


async def _recorded_slowly(folder: Path, *edits: tuple[str, str]) -> str:
    """One payment whose first answer begins after 300 ms."""
    path = folder / "slow.db"
    async with Sandbox() as sandbox:
        world = await make_world(sandbox, *edits, journal=await SqliteJournal.open(path, clock=SystemClock()))
        await world.charge(fault="slow(slow_s=0.3)")
        await close(world)
    return f"sqlite:///{path}"


FAULTS = (
    *("drop_after_commit", "close_before_commit", "error_500_before_commit", "error_500_after_commit", "error_503"),
    *("html_502", "html_504_after_commit", "rate_limited", "unauthorized", "truncated_body", "garbage", "empty_200"),
    *("wrong_amount", "reset_before_read", "reset_after_commit", "bad_chunk", "wrong_length", "truncated_head"),
)
QUICK = (("base: 1s", "base: 1ms"), ("base: 200ms", "base: 1ms"), ("base: 100ms", "base: 1ms"))


async def test_the_replay_decides_what_the_engine_decided(against: Against, tmp_path: Path) -> None:
    path = tmp_path / "faulty.db"
    async with Sandbox() as sandbox:
        world = await make_world(sandbox, *QUICK, journal=await SqliteJournal.open(path, clock=SystemClock()))

        async def pay_twice(fault: str) -> None:
            await world.charge(fault, order=fault, fault=fault)
            # A repeat of what is in doubt, or the next generation of what failed.
            await world.charge(fault, order=fault)

        await asyncio.gather(*(pay_twice(fault) for fault in FAULTS))
        recorded = len(await _operations(world))
        await close(world)
    result = await asyncio.to_thread(against, NO_EDIT, old=QUICK, url=f"sqlite:///{path}")
    assert recorded >= len(FAULTS)
    assert f"  {recorded} would have been treated alike" in result.output, result.output
    assert "are recorded with another decision" not in result.output, result.output


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


async def test_the_journal_of_a_fleet_is_read_alike(against: Against, redis: RedisServer) -> None:
    recorded = await _record(await RedisJournal.open(redis.url))
    result = await asyncio.to_thread(against, NEVER_RESENT, url=redis.url)
    assert "  3 would have been treated alike" in result.output
    assert f"{recorded[LOST]} acme sale 4.00 EUR: asked about instead of retried" in result.output


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///nowhere/journal.db", "there is no journal at"),
        ("redis://127.0.0.1:1/0", "Redis"),
        ("postgres://x", "give sqlite:///"),
    ],
)
def test_a_journal_that_cannot_be_read_is_an_error(against: Against, url: str, said: str) -> None:
    result = against(NEVER_RESENT, url=url)
    assert result.exit_code == 2
    assert said in result.output


def test_somebody_elses_file_is_an_error(against: Against, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("this is no database, and long enough to be looked at as one" * 20)
    result = against(NEVER_RESENT, url=f"sqlite:///{tmp_path / 'other.db'}")
    assert result.exit_code == 2
    assert "is not a SQLite database" in result.output
