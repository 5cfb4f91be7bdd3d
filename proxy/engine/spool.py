"""The spool: evidence that the journal did not take in time, on the local disk until `replay` has brought it there.

What an attempt showed must not be lost because a store was down when it came in. One file a piece, sealed whole, so
that nothing of it is in the clear; durable before `keep` says so. A file leaves the spool only once its evidence is in
the journal. What cannot be read is set aside, and never deleted: it may be the only proof of a payment. A directory
belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.clock import Clock
from proxy.core.errors import SettingsError, UnreadableSecret
from proxy.core.evidence import Response
from proxy.core.operation import AttemptSummary, Operation
from proxy.core.reading import Classification, Effect, Reading
from proxy.engine.keeping import seal_response
from proxy.vault import Vault

_log = logging.getLogger("paywitness.spool")

FILES_MAX = 10_000  # a busy sidecar's answers of a minute or two: by then nothing new is sent, the journal being down
FILE_BYTES_MAX = 5 * 1024 * 1024  # an answer of 4 MiB, the largest that is kept, and what is said about it
_UNDER_WAY = ".tmp"
_UNREADABLE = ".unreadable"
_FORMAT = b"1"


@dataclass(frozen=True, slots=True)
class SpooledEvidence:
    """What one attempt showed, as the journal would have been told it. Times are wall time."""

    operation_id: str
    attempt: AttemptSummary
    recorded_at: float  # when it went to the spool
    sealed_response: bytes | None = (
        None  # the answer, sealed for its operation; kept where it turns out to speak for it
    )
    sealed_credential: bytes | None = None
    quiet_at: float | None = None  # from then on no byte of the attempt can leave any more
    unheard: bool = False  # nobody was there to be told


def _written(evidence: SpooledEvidence) -> bytes:
    """The format, the facts as one line of JSON, then the ciphertexts as they are: base64 would make them a third
    larger."""
    blobs = (evidence.sealed_response, evidence.sealed_credential)
    facts = {
        "operation_id": evidence.operation_id,
        "attempt": _attempt_value_of(evidence.attempt),
        "recorded_at": evidence.recorded_at,
        "quiet_at": evidence.quiet_at,
        "unheard": evidence.unheard,
        "lengths": [None if blob is None else len(blob) for blob in blobs],
    }
    return b"\n".join([_FORMAT, json.dumps(facts).encode(), b"".join(blob or b"" for blob in blobs)])


def _attempt_value_of(attempt: AttemptSummary) -> dict[str, Any]:
    """Stored keys never change; fields may get better names."""
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
            "reading": read_as.reading,
            "effect": read_as.effect,
            "rule": read_as.rule,
            "lost": read_as.lost,
            "reference": read_as.reference,
            "stored": read_as.stored,
        },
    }


def _classification_of(value: dict[str, Any]) -> Classification:
    return Classification(
        Reading(value["reading"]),
        Effect(value["effect"]),
        value["rule"],
        lost=value.get("lost", False),
        reference=value.get("reference"),
        stored=value.get("stored", True),
    )


def _read(plain: bytes) -> SpooledEvidence:
    """What `_written` wrote, or UnreadableSecret."""
    written_as, _, rest = plain.partition(b"\n")
    line, _, rest = rest.partition(b"\n")
    try:
        if written_as != _FORMAT:
            raise ValueError("another version's format")
        facts: dict[str, Any] = json.loads(line)
        response_length, credential_length = facts.pop("lengths")
        attempt = facts.pop("attempt")
        classification = _classification_of(attempt.pop("classification"))
        split_at = response_length or 0
        return SpooledEvidence(
            operation_id=facts["operation_id"],
            recorded_at=facts["recorded_at"],
            quiet_at=facts.get("quiet_at"),
            unheard=facts.get("unheard", False),
            attempt=AttemptSummary(**attempt, classification=classification),
            sealed_response=None if response_length is None else rest[:split_at],
            sealed_credential=None if credential_length is None else rest[split_at:],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableSecret("what was sealed is not what this version writes") from None


class Spool:
    """Evidence on the local disk. Opening it takes the directory for this process; `close` gives it back."""

    def __init__(self, directory: Path, vault: Vault, clock: Clock) -> None:
        self._directory = directory
        self._vault = vault
        self._clock = clock
        self._lock = threading.Lock()  # over what stands below: files are written in threads
        self._names: set[str] = set()
        self._under_way = 0
        self._latest_ms = 0
        self._in_trouble = False
        try:
            self._descriptor = _taken(directory)
            self._find_what_is_there()
        except OSError as error:
            raise SettingsError(f"--spool {directory}: {error.strerror or error}") from None

    def __len__(self) -> int:
        """How many pieces wait."""
        return len(self._names)

    def close(self) -> None:
        os.close(self._descriptor)

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        quiet_at: float | None = None,
        unheard: bool = False,
        sealed_credential: bytes | None = None,
    ) -> bool:
        """Keep what an attempt came to, whether or not the answer speaks for the operation: see `keep`."""
        answer = seal_response(self._vault, response, operation.id) if response is not None else None
        now = self._clock.now()
        return await self.keep(
            SpooledEvidence(operation.id, attempt, now, answer, sealed_credential, quiet_at, unheard)
        )

    async def keep(self, evidence: SpooledEvidence) -> bool:
        """Keep it; True once it is durable. False where it is not: the spool is full, or the disk fails."""
        return await asyncio.to_thread(self._keep, evidence)

    async def waiting(self) -> tuple[str, ...]:
        """The names of what waits, oldest first."""
        with self._lock:
            return tuple(sorted(self._names))

    async def read(self, name: str) -> SpooledEvidence | None:
        """One piece that waits. None where there is nothing to replay: it is gone, was set aside, or the disk fails."""
        return await asyncio.to_thread(self._read, name)

    async def done(self, name: str) -> None:
        """It is in the journal. A file that cannot be removed is replayed once more after the next start."""
        await asyncio.to_thread(self._done, name)

    def _keep(self, evidence: SpooledEvidence) -> bool:
        with self._lock:
            if len(self._names) + self._under_way >= FILES_MAX:
                return self._not_kept(f"{FILES_MAX} pieces of evidence wait already")
            self._under_way += 1
            self._latest_ms = max(self._latest_ms + 1, round(self._clock.now() * 1000))
            name = f"{self._latest_ms:015d}"
        try:
            sealed = self._vault.seal(_written(evidence), _bound_to(name))
            if len(sealed) > FILE_BYTES_MAX:
                return self._not_kept(f"a piece of evidence has {len(sealed)} bytes")
            self._write(name, sealed)
        except OSError as error:
            return self._not_kept(error.strerror or type(error).__name__)
        finally:
            with self._lock:
                self._under_way -= 1
        self._in_trouble = False
        return True

    def _write(self, name: str, sealed: bytes) -> None:
        path = self._directory / name
        under_way = path.with_name(name + _UNDER_WAY)
        try:
            descriptor = os.open(under_way, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(sealed)
                file.flush()
                os.fsync(file.fileno())
            under_way.rename(path)
        except OSError:
            with contextlib.suppress(OSError):  # what is left of it is looked at by the next start
                under_way.unlink()
            raise
        with self._lock:
            self._names.add(name)  # from here on it is replayed, whether or not we can promise that it would survive
        os.fsync(self._descriptor)

    def _not_kept(self, why: str) -> bool:
        if not self._in_trouble:  # once, until it goes well again: every call of an outage comes by here
            _log.error("evidence could not be kept in the spool %s: %s", self._directory, why)
        self._in_trouble = True
        return False

    def _read(self, name: str) -> SpooledEvidence | None:
        try:
            with (self._directory / name).open("rb") as file:
                sealed = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            _log.error("evidence is gone from the spool, and not by us: %s", self._directory / name)
            self._forget(name)
            return None
        except OSError as error:
            _log.error("evidence cannot be read now: %s: %s", self._directory / name, error.strerror)
            return None
        try:
            return _read(self._vault.open(sealed, _bound_to(name)))
        except UnreadableSecret as error:
            self._set_aside(name, str(error))
            return None

    def _set_aside(self, name: str, why: str) -> None:
        path = self._directory / name
        aside = path.with_name(name + _UNREADABLE)
        _log.error(
            "EVIDENCE OF A PAYMENT CANNOT BE READ: %s (%s). It is set aside and kept. If its key left the ring, put it "
            "back into PAYWITNESS_ENCRYPTION_KEYS and start again",
            aside,
            why,
        )
        with contextlib.suppress(OSError):  # then it is met again at the next start
            path.rename(aside)
        self._forget(name)

    def _done(self, name: str) -> None:
        self._forget(name)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("replayed evidence cannot be removed: %s: %s", self._directory / name, error.strerror)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._names.discard(name)

    def _find_what_is_there(self) -> None:
        """What an earlier process left: pieces that wait, pieces that only another key could read, and at most a few
        that it was writing when it was killed. Those nobody was promised; where they are whole they are true."""
        for path in sorted(self._directory.iterdir()):
            name, mark = path.stem, path.suffix
            if not name.isdigit() or mark not in {"", _UNDER_WAY, _UNREADABLE}:
                continue
            if mark == _UNDER_WAY and not self._is_whole(path):
                _log.warning("an earlier process was killed while it wrote %s: of no use, removed", path)
                path.unlink()
                continue
            if mark:
                path.rename(path.with_suffix(""))
            self._names.add(name)
            self._latest_ms = max(self._latest_ms, int(name))
        os.fsync(self._descriptor)
        if self._names:
            _log.warning("evidence waits in the spool %s: %d piece(s)", self._directory, len(self._names))

    def _is_whole(self, path: Path) -> bool:
        try:
            self._vault.open(path.read_bytes(), _bound_to(path.stem))
        except UnreadableSecret:
            return False
        return True


def _bound_to(name: str) -> str:
    return f"spool:{name}"


def _taken(directory: Path) -> int:
    """The directory, made where it is not there, readable by its owner alone and locked; as a descriptor. Another
    process would set our evidence aside, not having our keys."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        _make_durable(directory.parent)
    with contextlib.suppress(PermissionError):  # a mount that is not ours; what we write there is sealed, and 0600
        directory.chmod(0o700)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SettingsError(f"--spool {directory}: another process uses it; give each its own") from None
    return descriptor


def _make_durable(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
