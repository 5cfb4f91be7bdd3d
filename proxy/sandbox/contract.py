"""What the provider promises about a repeated idempotency key, and the book in which it keeps that promise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.sandbox.answer import Answer, error_answer
from proxy.sandbox.clock import Clock

KEYS_MAX = 1_000_000
KEY_LENGTH_MAX = 255


class Contract(StrEnum):
    REPLAYED = "replayed"
    REEXECUTED = "reexecuted"
    NOT_STORED = "not_stored"
    NONE = "none"


CONTRACTS_HELP = {
    Contract.REPLAYED: "every executed answer is stored and replayed: successes, declines, and 500s too",
    Contract.REEXECUTED: "work that succeeded is replayed, whatever was answered; work that failed is done again",
    Contract.NOT_STORED: "only 2xx are stored: a 500 after the commit is forgotten, and a re-send charges AGAIN",
    Contract.NONE: "the key is ignored: every arrival is executed",
}


def contract_named(name: str) -> Contract:
    try:
        return Contract(name.strip().lower())
    except ValueError:
        raise ValueError(f"unknown contract {name!r}; known: {', '.join(Contract)}") from None


def kept(contract: Contract, committed: Answer | None, answered: Answer) -> Answer | None:
    """What is stored under the key: `committed` is what the bank did, `answered` what the provider said about it.

    They differ only in a 500 (said after the commit, or instead of it). Refusals are stored by nobody.
    """
    if contract is Contract.REPLAYED:
        return answered if answered.executed else None
    if contract is Contract.REEXECUTED:
        return committed if committed is not None and committed.succeeded else None
    if contract is Contract.NOT_STORED:
        return answered if 200 <= answered.status_code < 300 else None
    return None


@dataclass(slots=True)
class Record:
    fingerprint: str
    first_used_at: float
    answer: Answer | None = None
    """None while the first request is still running."""


class KeyBook:
    """Every key that was claimed is either settled or released; a released one is as if never used."""

    def __init__(self, clock: Clock, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._records: dict[str, Record] = {}

    def claim(self, key: str, fingerprint: str) -> Answer | None:
        """None: the key is yours, do the work. Otherwise what to answer instead."""
        if len(key) > KEY_LENGTH_MAX:
            return error_answer(
                400,
                "invalid_request_error",
                f"an idempotency key has at most {KEY_LENGTH_MAX} characters",
                code="idempotency_key_too_long",
            )
        self._forget_old()
        record = self._records.get(key)
        if record is not None and self._is_over(record):
            del self._records[key]
            record = None
        if record is None:
            if len(self._records) >= KEYS_MAX:
                message = f"the sandbox holds its {KEYS_MAX} keys; POST /_sandbox/reset empties it"
                return error_answer(507, "sandbox_error", message, code="too_many_keys")
            self._records[key] = Record(fingerprint, self._clock())
            return None
        if record.fingerprint != fingerprint:
            return error_answer(
                400, "idempotency_error", "This key was first used with another request.", code="idempotency_key_reused"
            )
        if record.answer is None:
            message = "A request with this key is still being worked on."
            return error_answer(409, "idempotency_error", message, code="idempotency_key_in_use")
        return record.answer.with_headers(("Idempotent-Replayed", "true"))

    def settle(self, key: str, answer: Answer | None) -> None:
        """Store the answer, or free the key where nothing is stored."""
        record = self._records.get(key)
        if record is not None and answer is not None:
            record.answer = answer
        elif record is not None:
            del self._records[key]

    def clear(self) -> None:
        self._records.clear()

    def _is_over(self, record: Record) -> bool:
        """Past the window. A running one never is."""
        return record.answer is not None and record.first_used_at <= self._clock() - self._window_s

    def _forget_old(self) -> None:
        """Records stand in the order of their first use, so the old ones are in front."""
        while self._records:
            key, record = next(iter(self._records.items()))
            if not self._is_over(record):
                return
            del self._records[key]
