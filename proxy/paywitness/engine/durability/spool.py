"""The spool: evidence that the journal did not take in time, on the local disk until it is replayed into the journal.

There is one file per attempt, sealed whole, and durable before `store` returns True. A file leaves the spool only after
its evidence is in the journal. A file that cannot be read is quarantined and never deleted, because it may be the only
proof of a payment. A directory belongs to one process at a time.

`SpoolReplayer` concludes and records the evidence like a response that has just come, and never sends. If the process
crashes in between and replays the same file again, nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paywitness.clock import Clock
from paywitness.core.errors import IllegalTransition, JournalUnavailable, SettingsError, UnreadableSecret
from paywitness.core.evidence import Response
from paywitness.core.money import Money
from paywitness.core.operation import AttemptSummary, Operation
from paywitness.core.result import Advice, Classification, Effect, ResultClass
from paywitness.engine.calls.stored_messages import seal_response
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.engine.resolution.late_evidence import LateEvidence, LateEvidenceRecorder
from paywitness.policy.book import PolicyBook
from paywitness.repeated_lines import repeats
from paywitness.secrets import Vault

_log = logging.getLogger("paywitness.spool")

# A busy sidecar's responses of a minute or two: by then nothing new is sent, because the journal is down.
FILES_MAX = 10_000
FILE_BYTES_MAX = 5 * 1024 * 1024  # a response of 4 MiB, the largest that is stored, and its facts
_PARTIAL_SUFFIX = ".tmp"
_UNREADABLE_SUFFIX = ".unreadable"
_FORMAT = b"1"


@dataclass(frozen=True, slots=True)
class SpooledEvidence:
    """The evidence of one attempt, with what the journal would have stored. Times are wall time."""

    operation_id: str
    attempt: AttemptSummary
    recorded_at: float  # when it went to the spool
    # The response, sealed for its operation; stored if it turns out to decide the operation.
    sealed_response: bytes | None = None
    sealed_credential: bytes | None = None
    no_bytes_after_at: float | None = None  # from then on no byte of the attempt can leave
    undelivered: bool = False  # no caller was there to get the reply


def _encode(evidence: SpooledEvidence) -> bytes:
    """The format number, the facts as one line of JSON, then the ciphertexts as they are: base64 would make them a
    third larger."""
    blobs = (evidence.sealed_response, evidence.sealed_credential)
    facts = {
        "operation_id": evidence.operation_id,
        "attempt": _attempt_value_of(evidence.attempt),
        "recorded_at": evidence.recorded_at,
        "quiet_at": evidence.no_bytes_after_at,
        "unheard": evidence.undelivered,
        # Not in `attempt`, because an earlier release could not read it there.
        "request_id": evidence.attempt.request_id,
        "lengths": [None if blob is None else len(blob) for blob in blobs],
    }
    return b"\n".join([_FORMAT, json.dumps(facts).encode(), b"".join(blob or b"" for blob in blobs)])


def _attempt_value_of(attempt: AttemptSummary) -> dict[str, Any]:
    """The stored form. Its keys never change, although the fields may get better names."""
    read_as = attempt.classification
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "detail": attempt.detail,
        "duration_s": attempt.duration_s,
        "reset_by_us": attempt.reset_by_us,
        "classification": {
            "reading": read_as.result_class,
            "effect": read_as.effect,
            "rule": read_as.rule,
            "lost": read_as.lost,
            "reference": read_as.reference,
            "stored": read_as.stored,
            "advice": read_as.advice,
            "shown": None if (money := read_as.shown_money) is None else [money.minor_units, money.currency],
        },
    }


def _classification_of(value: dict[str, Any]) -> Classification:
    return Classification(
        ResultClass(value["reading"]),
        Effect(value["effect"]),
        value["rule"],
        lost=value.get("lost", False),
        reference=value.get("reference"),
        stored=value.get("stored", True),
        advice=Advice(value["advice"]) if value.get("advice") else None,
        shown_money=Money(*value["shown"]) if value.get("shown") else None,
    )


def _decode(plain: bytes) -> SpooledEvidence:
    """The evidence that `_encode` wrote. Raises UnreadableSecret."""
    format_line, _, rest = plain.partition(b"\n")
    line, _, rest = rest.partition(b"\n")
    try:
        if format_line != _FORMAT:
            raise ValueError("another version's format")
        facts: dict[str, Any] = json.loads(line)
        response_length, credential_length = facts.pop("lengths")
        attempt = facts.pop("attempt")
        classification = _classification_of(attempt.pop("classification"))
        split_at = response_length or 0
        return SpooledEvidence(
            operation_id=facts["operation_id"],
            recorded_at=facts["recorded_at"],
            no_bytes_after_at=facts.get("quiet_at"),
            undelivered=facts.get("unheard", False),
            attempt=AttemptSummary(**attempt, classification=classification, request_id=facts.get("request_id")),
            sealed_response=None if response_length is None else rest[:split_at],
            sealed_credential=None if credential_length is None else rest[split_at:],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableSecret("what was sealed is not what this version writes") from None


class Spool:
    """The evidence on the local disk. Opening it takes the directory for this process; `close` releases it."""

    def __init__(self, directory: Path, vault: Vault, clock: Clock) -> None:
        self._directory = directory
        self._vault = vault
        self._clock = clock
        self._lock = threading.Lock()  # for the fields below: files are written in threads
        self._names: set[str] = set()
        self._writes_in_progress = 0
        self._latest_ms = 0
        self._failing = False
        try:
            self._descriptor = _open_locked(directory)
            self._load_existing()
        except OSError as error:
            raise SettingsError(f"--spool {directory}: {error.strerror or error}") from None

    def __len__(self) -> int:
        """How many pieces of evidence wait."""
        return len(self._names)

    def close(self) -> None:
        os.close(self._descriptor)

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        no_bytes_after_at: float | None = None,
        undelivered: bool = False,
        sealed_credential: bytes | None = None,
    ) -> bool:
        """Store the evidence of an attempt, whether or not its response decides the operation: see `store`."""
        sealed_response = seal_response(self._vault, response, operation.id) if response is not None else None
        now = self._clock.now()
        return await self.store(
            SpooledEvidence(
                operation.id, attempt, now, sealed_response, sealed_credential, no_bytes_after_at, undelivered
            )
        )

    async def store(self, evidence: SpooledEvidence) -> bool:
        """Store a piece of evidence. True once it is durable; False if the spool is full or the disk fails."""
        return await asyncio.to_thread(self._store, evidence)

    async def pending(self) -> tuple[str, ...]:
        """The names of the waiting pieces, oldest first."""
        with self._lock:
            return tuple(sorted(self._names))

    async def read(self, name: str) -> SpooledEvidence | None:
        """One waiting piece. None if there is nothing to replay: it is gone or quarantined, or the disk fails."""
        return await asyncio.to_thread(self._read, name)

    async def remove(self, name: str) -> None:
        """Remove a piece that is in the journal. If the file cannot be removed, it is replayed again after the next
        start."""
        await asyncio.to_thread(self._remove, name)

    def _store(self, evidence: SpooledEvidence) -> bool:
        with self._lock:
            if len(self._names) + self._writes_in_progress >= FILES_MAX:
                return self._report_not_stored(f"{FILES_MAX} pieces of evidence wait already")
            self._writes_in_progress += 1
            self._latest_ms = max(self._latest_ms + 1, round(self._clock.now() * 1000))
            name = f"{self._latest_ms:015d}"
        try:
            sealed = self._vault.seal(_encode(evidence), _associated_data(name))
            if len(sealed) > FILE_BYTES_MAX:
                return self._report_not_stored(f"a piece of evidence has {len(sealed)} bytes")
            self._write(name, sealed)
        except OSError as error:
            return self._report_not_stored(error.strerror or type(error).__name__)
        finally:
            with self._lock:
                self._writes_in_progress -= 1
        self._failing = False
        return True

    def _write(self, name: str, sealed: bytes) -> None:
        path = self._directory / name
        partial_path = path.with_name(name + _PARTIAL_SUFFIX)
        try:
            descriptor = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(sealed)
                file.flush()
                os.fsync(file.fileno())
            partial_path.rename(path)
        except OSError:
            with contextlib.suppress(OSError):  # the next start checks what is left of it
                partial_path.unlink()
            raise
        with self._lock:
            # From here on it is replayed, even if we cannot promise that it would survive a crash.
            self._names.add(name)
        os.fsync(self._descriptor)

    def _report_not_stored(self, reason: str) -> bool:
        if not self._failing:  # once, until a write succeeds again: every call of an outage comes by here
            _log.error("evidence could not be kept in the spool %s: %s", self._directory, reason)
        self._failing = True
        return False

    def _read(self, name: str) -> SpooledEvidence | None:
        try:
            with (self._directory / name).open("rb") as file:
                sealed = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            _log.error("evidence is gone from the spool, but not by this sidecar: %s", self._directory / name)
            self._forget(name)
            return None
        except OSError as error:
            path, why = self._directory / name, error.strerror
            _log.error("evidence cannot be read now: %s: %s", path, why, extra=repeats(name))
            return None
        try:
            return _decode(self._vault.open(sealed, _associated_data(name)))
        except UnreadableSecret as error:
            self._quarantine(name, str(error))
            return None

    def _quarantine(self, name: str, reason: str) -> None:
        path = self._directory / name
        quarantined = path.with_name(name + _UNREADABLE_SUFFIX)
        _log.error(
            "EVIDENCE OF A PAYMENT CANNOT BE READ: %s (%s). It is set aside and kept. If its key left the ring, put it "
            "back into PAYWITNESS_ENCRYPTION_KEYS and start again",
            quarantined,
            reason,
        )
        with contextlib.suppress(OSError):  # otherwise the next start finds it again
            path.rename(quarantined)
        self._forget(name)

    def _remove(self, name: str) -> None:
        self._forget(name)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("replayed evidence cannot be removed: %s: %s", self._directory / name, error.strerror)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._names.discard(name)

    def _load_existing(self) -> None:
        """Load what an earlier process left: waiting pieces, pieces that only another key could read, and at most a
        few that it was writing when it was killed. Nobody relied on those last ones, but if they are whole they are
        true."""
        for path in sorted(self._directory.iterdir()):
            name, suffix = path.stem, path.suffix
            if not name.isdigit() or suffix not in {"", _PARTIAL_SUFFIX, _UNREADABLE_SUFFIX}:
                continue
            if suffix == _PARTIAL_SUFFIX and not self._is_intact(path):
                _log.warning("an earlier process was killed while it wrote %s: it is incomplete and was removed", path)
                path.unlink()
                continue
            if suffix:
                path.rename(path.with_suffix(""))
            self._names.add(name)
            self._latest_ms = max(self._latest_ms, int(name))
        os.fsync(self._descriptor)
        if self._names:
            _log.warning("evidence waits in the spool %s: %d piece(s)", self._directory, len(self._names))

    def _is_intact(self, path: Path) -> bool:
        try:
            self._vault.open(path.read_bytes(), _associated_data(path.stem))
        except UnreadableSecret:
            return False
        return True


def _associated_data(name: str) -> str:
    return f"spool:{name}"


def _open_locked(directory: Path) -> int:
    """A descriptor of the directory, made if it does not exist, readable by its owner alone and locked. A second
    process does not have our keys and would quarantine our evidence."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        _fsync_directory(directory.parent)
    with contextlib.suppress(PermissionError):  # a mount that is not ours; our files in it are sealed, and 0600
        directory.chmod(0o700)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SettingsError(f"--spool {directory}: another process uses it; give each process its own") from None
    return descriptor


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Replay


_POLL_EVERY_S = 1.0
_RETRY_UNFIT_AFTER_S = 60.0  # until a piece that does not fit the journal is tried again
_RETRY_NOT_TAKEN_AFTER_S = 5.0  # until a piece is tried again that the journal did not take, although it answers


@dataclass(frozen=True, slots=True)
class SpoolReplayer:
    spool: Spool
    journal_writer: JournalWriter
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook]
    clock: Clock
    late_evidence: LateEvidenceRecorder
    _postponed_until_mono: dict[str, float] = field(default_factory=dict)  # by the names of pieces
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # the resolver replays too, before each turn

    async def keep_replaying(self) -> None:
        while True:
            await self.clock.sleep(_POLL_EVERY_S)
            if len(self.spool) and await self.journal_writer.journal.healthy():
                await self.replay_all()

    async def replay_all(self) -> int:
        """Replay the waiting pieces, oldest first. Returns how many are now in the journal. Stops if the journal is
        down."""
        async with self._lock:
            return await self._replay_all()

    async def _replay_all(self) -> int:
        replayed = 0
        for name in await self.spool.pending():
            if self._postponed_until_mono.get(name, 0.0) > self.clock.mono():
                continue
            try:
                kept_reason = await self._replay(name)
            except JournalUnavailable:
                if not await self.journal_writer.journal.healthy():
                    break
                self._postponed_until_mono[name] = self.clock.mono() + _RETRY_NOT_TAKEN_AFTER_S
                continue
            except Exception as error:  # noqa: BLE001  # one piece must not keep the others, or the loop, from going on
                kept_reason = f"a fault of ours, {type(error).__name__}"
            if kept_reason is not None:
                self._postpone(name, kept_reason)
                continue
            await self.spool.remove(name)
            self._postponed_until_mono.pop(name, None)
            replayed += 1
        if replayed:
            _log.warning("replayed from the spool: %d piece(s) of evidence; %d wait", replayed, len(self.spool))
        return replayed

    def _postpone(self, name: str, reason: str) -> None:
        if name not in self._postponed_until_mono:
            _log.error("evidence %s stays in the spool: %s", name, reason)
        self._postponed_until_mono[name] = self.clock.mono() + _RETRY_UNFIT_AFTER_S

    async def _replay(self, name: str) -> str | None:
        """Bring one piece into the journal. None once it is there; else the reason why it stays in the spool."""
        evidence = await self.spool.read(name)
        if evidence is None:
            return "it cannot be read"
        journal = self.journal_writer.journal
        operation = await journal.read(evidence.operation_id)
        if operation is None:
            return f"the journal does not know {evidence.operation_id}"
        if any(entry.attempt == evidence.attempt for entry in await journal.history(operation.id)):
            return None  # the journal had taken it: only the answer was lost, or we crashed before the file was removed
        policy = await self.pinned.policy_from_book(operation, self.book())
        if policy is None:
            return f"no policy can classify it for {operation.id}"
        try:
            await self.late_evidence.apply(operation, policy, _late_evidence_of(evidence))
        except IllegalTransition as error:  # of an attempt that the journal has forgotten
            return f"it does not fit {operation.id} as the journal has it: {error}"
        return None


def _late_evidence_of(evidence: SpooledEvidence) -> LateEvidence:
    return LateEvidence(
        evidence.attempt,
        source="spool",
        because="evidence_from_spool",
        sealed_response=evidence.sealed_response,
        sealed_credential=evidence.sealed_credential,
        no_bytes_after_at=evidence.no_bytes_after_at,
        undelivered=evidence.undelivered,
        note=f"kept in the spool at {evidence.recorded_at:.3f}",
    )
