"""Evidence that the journal did not take is kept on disk, sealed, until it did; and tells the same then as before."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.clock import JournalClock, SystemClock
from paywitness.core.claim import AliasKind, Claim, ClaimRequest, ClaimVerdict
from paywitness.core.classify import UNREAD_SUCCESS
from paywitness.core.consequences import WriteContext
from paywitness.core.errors import JournalUnavailable, SettingsError
from paywitness.core.evidence import Response
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import AnnouncementKind, Operation, State
from paywitness.core.result import Effect, ResultClass
from paywitness.engine.calls.attempts import EvidenceSpool
from paywitness.engine.calls.stored_messages import open_response, seal_response
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.durability import spool as spool_module
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.spool import FILE_BYTES_MAX, Spool, SpooledEvidence, SpoolReplayer
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.policy_start import store_revisions
from paywitness.engine.resolution.external_evidence import ExternalEvidenceRecorder
from paywitness.engine.resolution.late_evidence import LateEvidenceRecorder
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.secrets import RingKey, Vault
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import SECRET, World, book_of, header, make_world, outcome, telemetry_for
from tests.journal.memory import MemoryJournal
from tests.journal.samples import LEASE_S, TARGET, asking, owned, read, resending, succeeding, summary
from tests.randomness import SeededRandomness, own_randomness

BOOK = book_of("http://127.0.0.1:1")
RESPONSE = Response(200, b"OK", ((b"Content-Type", b"application/json"),), b'{"id":"ch_1"}')


class Time(SystemClock):
    """Nobody waits: a sleep moves the time on."""

    def __init__(self) -> None:
        self.moved_s = 0.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.moved_s

    def mono(self) -> float:
        return self.moved_s

    def boot(self) -> float:
        return self.moved_s

    async def sleep(self, seconds: float) -> None:
        self.moved_s += seconds
        await asyncio.sleep(0)


class DownJournal(MemoryJournal):
    """Takes nothing while it is down; loses replies after the write as often as the test says."""

    down = False
    replies_lost = 0

    async def record(self, change: OperationChange) -> Operation:
        if self.down:
            raise JournalUnavailable("down")
        operation = await super().record(change)
        if self.replies_lost:
            self.replies_lost -= 1
            raise JournalUnavailable("the reply was lost")
        return operation

    async def healthy(self) -> bool:
        return not self.down


def vault_of(key_id: str = "k1", key: bytes = b"0" * 32) -> Vault:
    return Vault(SECRET, (RingKey(key_id, key),), SeededRandomness(1).nonce)


VAULT = vault_of()


def evidence_of(
    operation_id: str, reading: ResultClass = ResultClass.SUCCEEDED, number: int = 1, **more: object
) -> SpooledEvidence:
    attempt = summary(reading, number)
    shown = "ch_1" if reading is ResultClass.SUCCEEDED else None
    attempt = replace(attempt, classification=replace(attempt.classification, reference=shown))
    given = {"sealed_response": seal_response(VAULT, RESPONSE, operation_id), "recorded_at": 5.0, **more}
    return SpooledEvidence(operation_id, attempt, **given)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "home" / "spool"


@pytest.fixture
def spool(directory: Path, clock: Time) -> Iterator[Spool]:
    opened = Spool(directory, VAULT, clock)
    yield opened
    opened.close()


@pytest.fixture
async def journal(clock: Time) -> DownJournal:
    built = DownJournal(clock=clock)
    await store_revisions(built, BOOK)
    return built


@pytest.fixture
def replay(spool: Spool, journal: DownJournal, clock: Time) -> SpoolReplayer:
    return replay_of(spool, journal, clock)


def replay_of(spool: Spool, journal: DownJournal, clock: Time) -> SpoolReplayer:
    telemetry = telemetry_for(clock)
    journal_clock = JournalClock(clock)
    ages = Ages(journal, clock, journal_clock, telemetry)
    leases = Leases(journal, clock, LEASE_S)
    records = JournalWriter(journal, leases, VAULT, clock, telemetry, journal_clock, ages)
    outside = ExternalEvidenceRecorder(records, VAULT, clock, own_randomness(), telemetry, OperationWaiters())
    late = LateEvidenceRecorder(records, outside, clock, telemetry)
    return SpoolReplayer(spool, records, PinnedPolicies(journal), lambda: BOOK, clock, late)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def sending(journal: DownJournal, key: str = "key-1") -> Operation:
    return await owned(journal, key, revision=BOOK.providers["acme"].revision)


# --- the files


async def test_what_was_put_is_read_back_the_same_oldest_first(spool: Spool) -> None:
    pieces = [
        evidence_of("op_1", sealed_credential=b"\n sealed", no_bytes_after_at=7.5, undelivered=True),
        evidence_of("op_2", ResultClass.NETWORK_READ_TIMEOUT, sealed_response=None),
        evidence_of("op_3", ResultClass.ISSUER_HARD_DECLINE, sealed_response=b""),
    ]
    for piece in pieces:
        assert await spool.store(piece)
    names = await spool.pending()
    assert [await spool.read(name) for name in names] == pieces


async def test_nothing_is_in_the_clear_and_only_its_owner_may_look(spool: Spool, directory: Path) -> None:
    assert await spool.store(evidence_of("op_visible"))
    (name,) = names_in(directory)
    content = (directory / name).read_bytes()
    assert not [word for word in (b"op_visible", b"succeeded", b"ch_1") if word in content]
    assert "op_visible" not in name
    assert (mode_of(directory / name), mode_of(directory)) == (0o600, 0o700)


async def test_the_next_process_finds_what_waits_and_names_nothing_twice(directory: Path, clock: Time) -> None:
    first = Spool(directory, VAULT, clock)
    await first.store(evidence_of("op_1"))
    first.close()
    clock.moved_s -= 3600  # its clock was set back
    second = Spool(directory, VAULT, clock)
    await second.store(evidence_of("op_2"))
    found = [await second.read(name) for name in await second.pending()]
    assert [piece.operation_id for piece in found if piece is not None] == ["op_1", "op_2"]
    second.close()


async def test_a_directory_belongs_to_one_process(spool: Spool, directory: Path, clock: Time) -> None:
    with pytest.raises(SettingsError, match="another process"):
        Spool(directory, VAULT, clock)


def test_a_directory_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path, clock: Time) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--spool .*: File exists"):
        Spool(tmp_path / "file" / "spool", VAULT, clock)


async def test_what_is_done_is_gone(spool: Spool, directory: Path) -> None:
    await spool.store(evidence_of("op_1"))
    (name,) = await spool.pending()
    await spool.remove(name)
    assert (await spool.pending(), names_in(directory), len(spool)) == ((), [], 0)


class Killed(BaseException):
    """The process is gone at this point."""


async def test_a_kill_before_the_rename_loses_no_promise_and_the_whole_file_counts(
    directory: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, piece = Spool(directory, VAULT, clock), evidence_of("op_1")

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            await first.store(piece)
    first.close()
    assert [name.endswith(".tmp") for name in names_in(directory)] == [True]
    second = Spool(directory, VAULT, clock)
    (name,) = await second.pending()
    assert await second.read(name) == piece
    second.close()


async def test_a_file_that_was_half_written_when_the_process_was_killed_is_removed(
    directory: Path, clock: Time
) -> None:
    Spool(directory, VAULT, clock).close()
    (directory / "000000000000001.tmp").write_bytes(VAULT.seal(b"whole", "spool:000000000000001")[:-3])
    spool = Spool(directory, VAULT, clock)
    assert (await spool.pending(), names_in(directory)) == ((), [])
    spool.close()


async def test_a_damaged_file_is_set_aside_told_once_and_stops_nobody(
    spool: Spool, directory: Path, replay: SpoolReplayer, journal: DownJournal, caplog: pytest.LogCaptureFixture
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of("op_damaged"))
    await spool.store(evidence_of(operation.id))
    damaged = directory / (await spool.pending())[0]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with caplog.at_level(logging.ERROR, "paywitness.spool"):
        assert await replay.replay_all() == 1
        assert await replay.replay_all() == 0
    assert (await read(journal, operation)).state is State.SUCCEEDED
    assert names_in(directory) == [f"{damaged.name}.unreadable"]
    assert sum("CANNOT BE READ" in record.getMessage() for record in caplog.records) == 1


async def test_what_another_key_sealed_is_kept_and_read_when_its_key_is_back(directory: Path, clock: Time) -> None:
    first, piece = Spool(directory, VAULT, clock), evidence_of("op_1")
    await first.store(piece)
    first.close()
    without = Spool(directory, vault_of("k2", b"2" * 32), clock)
    (name,) = await without.pending()
    assert await without.read(name) is None
    assert await without.pending() == ()
    without.close()
    again = Spool(directory, VAULT, clock)
    assert await again.read(name) == piece
    again.close()


async def test_a_file_moved_to_another_name_does_not_open(spool: Spool, directory: Path, clock: Time) -> None:
    await spool.store(evidence_of("op_1"))
    (name,) = await spool.pending()
    spool.close()
    (directory / name).rename(directory / "000000000000007")
    other = Spool(directory, VAULT, clock)
    assert await other.read("000000000000007") is None
    spool._descriptor = other._descriptor  # the fixture closes it


async def test_a_full_spool_says_no_and_takes_more_when_there_is_room(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "FILES_MAX", 2)
    taken = await asyncio.gather(*(spool.store(evidence_of(f"op_{number}")) for number in range(5)))
    assert sorted(taken) == [False, False, False, True, True]
    await spool.remove((await spool.pending())[0])
    assert await spool.store(evidence_of("op_9"))


async def test_too_large_a_piece_is_not_taken(spool: Spool, directory: Path) -> None:
    assert not await spool.store(evidence_of("op_1", sealed_response=b"x" * FILE_BYTES_MAX))
    assert names_in(directory) == []
    largest_answer = b"x" * (4 * 1024 * 1024 + 64 * 1024)
    assert await spool.store(evidence_of("op_1", sealed_response=largest_answer))


@pytest.mark.parametrize("call", ["open", "fsync"])
async def test_a_disk_that_fails_says_no_leaves_nothing_and_is_told_once(
    spool: Spool, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def fails(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        assert not await spool.store(evidence_of("op_1"))
        assert not await spool.store(evidence_of("op_1"))
    assert names_in(directory) == []
    assert [record.getMessage().endswith("No space left on device") for record in caplog.records] == [True]
    assert await spool.store(evidence_of("op_1"))


async def test_a_directory_that_cannot_be_made_durable_promises_nothing_yet_what_it_holds_counts(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = os.fsync

    def fails_for_the_directory(descriptor: int) -> None:
        if descriptor == spool._descriptor:
            raise OSError(5, "Input/output error")
        durable(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails_for_the_directory)
        assert not await spool.store(evidence_of("op_1"))
    assert len(spool) == 1


# --- the replay


async def test_what_is_put_comes_back_with_the_answer_sealed_for_its_operation(
    spool: Spool, journal: DownJournal, clock: Time
) -> None:
    takes: EvidenceSpool = spool  # what the life of a call asks for
    operation = await sending(journal)
    strange = replace(summary(ResultClass.SUCCEEDED).classification, shown_money=Money(4200, "EUR"))
    attempt = replace(summary(ResultClass.SUCCEEDED), request_id="req_1", classification=strange)
    assert await takes.put(operation, attempt, RESPONSE, no_bytes_after_at=None, undelivered=False)
    assert await spool.put(
        operation, attempt, None, no_bytes_after_at=3.0, undelivered=True, sealed_credential=b"sealed"
    )
    first, second = [await spool.read(name) for name in await spool.pending()]
    assert first is not None
    assert first.sealed_response is not None
    assert open_response(VAULT, first.sealed_response, operation.id) == RESPONSE
    assert replace(first, sealed_response=None) == SpooledEvidence(operation.id, attempt, clock.now())
    assert second == SpooledEvidence(operation.id, attempt, clock.now(), None, b"sealed", 3.0, True)


async def test_a_success_that_was_spooled_ends_the_operation_as_if_it_had_been_recorded(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    piece = evidence_of(operation.id)
    await spool.store(piece)
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.reference, after.lease, after.due_at) == (State.SUCCEEDED, "ch_1", None, None)
    assert (after.effect, after.undelivered, after.key_released) == (Effect.DONE, False, False)
    request, response = await journal.sealed(operation.id)
    assert request is None
    assert response is not None
    assert open_response(VAULT, response, operation.id) == RESPONSE
    entry = (await journal.history(operation.id))[-1]
    assert (entry.source, entry.events, entry.attempt) == ("spool", (Event.SUCCESS_SEEN,), piece.attempt)
    assert entry.announcement is not None
    assert entry.announcement.kinds == (AnnouncementKind.ENDED,)
    assert len(spool) == 0


async def test_late_evidence_resolves_what_recovery_has_taken_for_doubt(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, undelivered=True))
    await replay.clock.sleep(2 * LEASE_S)
    (doubted,) = await journal.expire_leases()
    assert doubted.state is State.UNKNOWN
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.doubt, after.incident, after.undelivered) == (State.SUCCEEDED, frozenset(), None, True)
    told = (await journal.history(operation.id))[-1].announcement
    assert told is not None
    assert set(told.kinds) == {AnnouncementKind.RESOLVED, AnnouncementKind.ENDED}


@pytest.mark.parametrize("told", [True, False], ids=["told", "left"])
async def test_a_2xx_that_was_passed_on_from_the_spool_is_not_given_to_the_next_equal_call(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, told: bool
) -> None:
    """No row knows it, and its caller has had it. An inquiry finds later that it was paid."""
    operation = await owned(journal, revision=BOOK.providers["acme"].revision, guard=TARGET)
    piece = evidence_of(operation.id, ResultClass.UNKNOWN_OUTCOME, undelivered=not told)
    unread = replace(piece.attempt.classification, rule=UNREAD_SUCCESS)
    await spool.store(replace(piece, attempt=replace(piece.attempt, classification=unread)))
    await replay.clock.sleep(2 * LEASE_S)
    await journal.expire_leases()
    assert await replay.replay_all() == 1
    passed_on = await read(journal, operation)
    found = advance(passed_on, Event.INQUIRY_FOUND_SUCCESS, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    events = (Event.INQUIRY_FOUND_SUCCESS,)
    await journal.record(change_of(passed_on, found, events, WriteContext(replay.clock.now(), reached=False)))
    claim = await journal.claim(asking("key-2", guard=TARGET))
    assert (claim.verdict, claim.alias) == (
        (ClaimVerdict.GUARDED, AliasKind.REFUSED) if told else (ClaimVerdict.REPLAY, AliasKind.TAKEN)
    )


@pytest.mark.parametrize("told", [True, False], ids=["told", "left"])
async def test_the_spool_says_whether_the_caller_of_what_an_inquiry_found_was_told(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, told: bool
) -> None:
    """A caller is told from the spool, the lease runs out, and another sidecar's inquiry finds the success. An equal
    capture under a fresh key was then given that reply: one movement too few, and nobody knew."""
    operation = await owned(journal, revision=BOOK.providers["acme"].revision, guard=TARGET)
    await spool.store(evidence_of(operation.id, undelivered=not told))
    await replay.clock.sleep(2 * LEASE_S)
    (doubted,) = await journal.expire_leases()
    found = advance(doubted, Event.INQUIRY_FOUND_SUCCESS, result_class=ResultClass.SUCCEEDED, effect=Effect.DONE)
    events = (Event.INQUIRY_FOUND_SUCCESS,)
    await journal.record(change_of(doubted, found, events, WriteContext(replay.clock.now(), reached=False)))
    refused = await journal.claim(asking("key-2", guard=TARGET))
    assert (refused.verdict, refused.alias) == (ClaimVerdict.GUARDED, AliasKind.REFUSED)
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.undelivered, after.delivery_unknown) == (not told, False)
    claim = await journal.claim(asking("key-2", guard=TARGET))
    assert (claim.verdict, claim.alias) == (
        (ClaimVerdict.OWNED, None) if told else (ClaimVerdict.REPLAY, AliasKind.TAKEN)
    )


async def test_a_lost_answer_is_doubt_to_be_looked_at_now(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, clock: Time
) -> None:
    operation = await sending(journal)
    lost = evidence_of(operation.id, ResultClass.NETWORK_READ_TIMEOUT, sealed_response=None, no_bytes_after_at=9.0)
    await spool.store(lost)
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.doubt, after.due_at) == (State.UNKNOWN, frozenset({1}), clock.now())
    assert (after.lease, after.no_bytes_after_at) == (None, 9.0)
    assert (await journal.sealed(operation.id))[0] is not None  # still needed to re-send


async def test_a_refusal_without_effect_is_given_up_and_frees_its_key(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, ResultClass.RATE_LIMITED))
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.key_released, after.lease) == (State.FAILED, True, None)
    entry = (await journal.history(operation.id))[-1]
    assert entry.events == (Event.NO_EFFECT_SEEN, Event.GIVEN_UP)


async def test_a_decline_ends_it_and_frees_nothing(spool: Spool, replay: SpoolReplayer, journal: DownJournal) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, ResultClass.ISSUER_HARD_DECLINE))
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.key_released) == (State.FAILED, False)
    assert (await journal.sealed(operation.id))[1] is not None


@pytest.mark.parametrize(
    ("reading", "state", "looked_at_after_s"),
    [(ResultClass.PENDING, State.PENDING, 2.0), (ResultClass.REQUIRES_ACTION, State.REQUIRES_ACTION, 86400.0)],
)
async def test_what_is_not_final_is_looked_at_on_its_schedule(
    spool: Spool,
    replay: SpoolReplayer,
    journal: DownJournal,
    clock: Time,
    reading: ResultClass,
    state: State,
    looked_at_after_s: float,
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, reading))
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert after.state is state
    assert after.due_at == pytest.approx(clock.now() + looked_at_after_s, abs=0.2 * looked_at_after_s)


async def test_evidence_that_contradicts_an_end_is_an_incident_and_overwrites_nothing(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    await journal.record(succeeding(operation))
    await spool.store(evidence_of(operation.id))  # with another reference
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.reference, after.incident) == (
        State.SUCCEEDED,
        f"ch_{operation.id}",
        "two_references",
    )


async def test_what_the_journal_had_taken_after_all_is_not_written_twice(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    piece = evidence_of(operation.id)
    journal.replies_lost = 1
    with pytest.raises(JournalUnavailable):
        await journal.record(replace(succeeding(operation), attempt=piece.attempt))
    length = len(await journal.history(operation.id))
    await spool.store(piece)
    assert await replay.replay_all() == 1
    assert len(await journal.history(operation.id)) == length
    assert len(spool) == 0


async def test_while_the_journal_is_down_everything_waits_and_then_goes_in(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operations = [await sending(journal, f"key-{number}") for number in range(3)]
    for operation in operations:
        await spool.store(evidence_of(operation.id))
    journal.down = True
    assert (await replay.replay_all(), len(spool)) == (0, 3)
    journal.down = False
    assert (await replay.replay_all(), len(spool)) == (3, 0)
    assert {(await read(journal, operation)).state for operation in operations} == {State.SUCCEEDED}


async def test_the_loop_waits_for_the_journal_and_then_empties_the_spool(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id))
    journal.down = True
    loop = asyncio.ensure_future(replay.keep_replaying())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(spool) == 1
    journal.down = False
    while len(spool):  # noqa: ASYNC110  # files are written by threads: there is no event to wait for
        await asyncio.sleep(0.001)
    loop.cancel()
    assert (await read(journal, operation)).state is State.SUCCEEDED


async def test_an_operation_that_the_journal_does_not_know_keeps_its_evidence_and_is_told_once(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    known = await sending(journal)
    await spool.store(evidence_of("op_of_nobody"))
    await spool.store(evidence_of(known.id))
    assert (await replay.replay_all(), len(spool)) == (1, 1)
    clock.moved_s += 61
    assert (await replay.replay_all(), len(spool)) == (0, 1)
    told = [record for record in caplog.records if "does not know op_of_nobody" in record.getMessage()]
    assert len(told) == 1


async def test_evidence_of_an_attempt_that_the_journal_has_forgotten_is_kept(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, caplog: pytest.LogCaptureFixture
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, number=2))
    assert (await replay.replay_all(), len(spool)) == (0, 1)
    assert "does not fit" in caplog.text
    assert (await read(journal, operation)).state is State.SENDING


async def test_two_who_replay_at_once_replay_each_piece_once(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, caplog: pytest.LogCaptureFixture
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id))
    assert sorted(await asyncio.gather(replay.replay_all(), replay.replay_all())) == [0, 1]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_evidence_whose_policy_is_not_known_any_more_is_kept(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, caplog: pytest.LogCaptureFixture
) -> None:
    operation = await owned(journal, revision="a revision of nobody")
    await spool.store(evidence_of(operation.id))
    assert (await replay.replay_all(), len(spool)) == (0, 1)
    assert "no policy" in caplog.text


@pytest.mark.parametrize("trouble", [JournalUnavailable("not this one"), RuntimeError("a fault of ours")])
async def test_one_piece_that_cannot_go_in_keeps_none_of_the_others_and_is_tried_again(
    spool: Spool,
    replay: SpoolReplayer,
    journal: DownJournal,
    clock: Time,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
) -> None:
    first, second = await sending(journal, "key-1"), await sending(journal, "key-2")
    await spool.store(evidence_of(first.id))
    await spool.store(evidence_of(second.id))
    takes = journal.record

    async def refuses_the_first(change: OperationChange) -> Operation:
        if change.operation.id == first.id:
            raise trouble
        return await takes(change)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "record", refuses_the_first)
        assert (await replay.replay_all(), len(spool)) == (1, 1)
        assert (await read(journal, second)).state is State.SUCCEEDED
    clock.moved_s += 61
    assert (await replay.replay_all(), len(spool)) == (1, 0)
    assert (await read(journal, first)).state is State.SUCCEEDED


async def test_a_repeat_that_sends_right_now_keeps_its_lease_when_evidence_of_an_earlier_attempt_comes(
    spool: Spool, replay: SpoolReplayer, journal: DownJournal, clock: Time
) -> None:
    operation = await sending(journal)
    await spool.store(evidence_of(operation.id, ResultClass.NETWORK_READ_TIMEOUT, sealed_response=None))
    clock.moved_s += 2 * LEASE_S
    (doubted,) = await journal.expire_leases()
    await journal.record(resending(doubted, "token of the repeat"))
    assert await replay.replay_all() == 1
    after = await read(journal, operation)
    assert (after.state, after.doubt, after.attempt_under_way) == (State.UNKNOWN, frozenset({1, 2}), True)
    assert after.lease is not None
    assert after.lease.token == "token of the repeat"


# --- a call whose record the journal did not take


class FallsSilent(DownJournal):
    """Takes the claim, and then nothing more until it is told to."""

    async def claim(self, request: ClaimRequest) -> Claim:
        claim = await super().claim(request)
        self.down = True
        return claim


@pytest.mark.parametrize(
    ("source", "status_code", "state"),
    [("tok_ok", 200, State.SUCCEEDED), ("tok_stolen_card", 402, State.FAILED)],
)
async def test_the_providers_own_answer_passes_once_the_spool_has_it(
    sandbox: Sandbox, tmp_path: Path, source: str, status_code: int, state: State
) -> None:
    world, spool, journal = await silent_world(sandbox, tmp_path)
    reply = await world.charge(source=source)
    assert reply.status_code == status_code
    assert header(reply, "Paywitness-Because") == "journal_unavailable_spooled"
    assert (await stands(world)).state is State.SENDING  # the journal knows nothing of it yet
    journal.down = False
    assert await replay_in(world, spool).replay_all() == 1
    assert (await stands(world)).state is state
    await end(world, spool)


async def test_that_nothing_will_be_sent_is_not_said_before_the_journal_has_it(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    world, spool, journal = await silent_world(sandbox, tmp_path)
    await sandbox.stop()
    reply = await world.charge(timeout_s=5.0)
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    assert len(spool) == 1
    journal.down = False
    assert await replay_in(world, spool).replay_all() == 1
    ended = await stands(world)
    assert (ended.state, ended.key_released) == (State.FAILED, True)
    await end(world, spool)


async def silent_world(sandbox: Sandbox, folder: Path) -> tuple[World, Spool, FallsSilent]:
    journal = FallsSilent(clock=SystemClock())
    spool = Spool(folder / "spool", VAULT, SystemClock())
    return await make_world(sandbox, journal=journal, spool=spool), spool, journal


def replay_in(world: World, spool: Spool) -> SpoolReplayer:
    parts = world.parts
    return SpoolReplayer(
        spool, parts.journal_writer, parts.pinned, lambda: world.engine.book, world.clock, parts.late_evidence
    )


async def stands(world: World) -> Operation:
    (operation,) = await world.journal.find_operations(OperationQuery())
    return operation


async def end(world: World, spool: Spool) -> None:
    spool.close()
    await close(world)
