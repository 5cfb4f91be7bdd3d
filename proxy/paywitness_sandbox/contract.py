"""The provider's promise for a repeated idempotency key, and the store of keys that keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness_sandbox.clock import Clock
from paywitness_sandbox.messages import SandboxResponse, error_response

KEYS_MAX = 1_000_000
KEY_LENGTH_MAX = 255


class Contract(StrEnum):
    REPLAYED = "replayed"
    REEXECUTED = "reexecuted"
    NOT_STORED = "not_stored"
    NONE = "none"


CONTRACTS_HELP = {
    Contract.REPLAYED: "every executed response is stored and replayed: successes, declines, and 500s too",
    Contract.REEXECUTED: "work that succeeded is replayed, whatever its response was; work that failed is done again",
    Contract.NOT_STORED: "only 2xx are stored: a 500 after the commit is forgotten, and a re-send charges AGAIN",
    Contract.NONE: "the key is ignored: every arrival is executed",
}


def parse_contract(name: str) -> Contract:
    try:
        return Contract(name.strip().lower())
    except ValueError:
        raise ValueError(f"unknown contract {name!r}; known: {', '.join(Contract)}") from None


def stored_response(
    contract: Contract, committed: SandboxResponse | None, response_sent: SandboxResponse
) -> SandboxResponse | None:
    """The response to store under the key. `committed` is the result of the bank, `response_sent` the response that the
    provider sent about it.

    They differ only for a 500 (sent after the commit, or instead of it). No contract stores refusals.
    """
    if contract is Contract.REPLAYED:
        return response_sent if response_sent.executed else None
    if contract is Contract.REEXECUTED:
        return committed if committed is not None and committed.succeeded else None
    if contract is Contract.NOT_STORED:
        return response_sent if 200 <= response_sent.status_code < 300 else None
    return None


@dataclass(slots=True)
class KeyRecord:
    fingerprint: str
    first_used_at: float
    response: SandboxResponse | None = None
    """None while the first request is still running."""


class KeyStore:
    """The keys in use. Every claimed key is later finished, with a response or free again, as if it had never been
    used.

    Each sub-account has keys of its own: the same key of two accounts is two keys.
    """

    def __init__(self, clock: Clock, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._records: dict[tuple[str | None, str], KeyRecord] = {}

    def claim(self, key: str, fingerprint: str, account: str | None = None) -> SandboxResponse | None:
        """Claim the key. None: it is free, do the work. Otherwise the response to send instead."""
        if len(key) > KEY_LENGTH_MAX:
            return error_response(
                400,
                "invalid_request_error",
                f"an idempotency key has at most {KEY_LENGTH_MAX} characters",
                code="idempotency_key_too_long",
            )
        self._drop_expired()
        record = self._records.get((account, key))
        if record is not None and self._is_expired(record):
            del self._records[account, key]
            record = None
        if record is None:
            if len(self._records) >= KEYS_MAX:
                message = f"the sandbox holds its {KEYS_MAX} keys; POST /_sandbox/reset empties it"
                return error_response(507, "sandbox_error", message, code="too_many_keys")
            self._records[account, key] = KeyRecord(fingerprint, self._clock())
            return None
        if record.fingerprint != fingerprint:
            return error_response(
                400, "idempotency_error", "This key was first used with another request.", code="idempotency_key_reused"
            )
        if record.response is None:
            message = "A request with this key is still being worked on."
            return error_response(409, "idempotency_error", message, code="idempotency_key_in_use")
        return record.response.with_headers(("Idempotent-Replayed", "true"))

    def finish(self, key: str, response: SandboxResponse | None, account: str | None = None) -> None:
        """Store the response, or free the key if nothing is stored."""
        record = self._records.get((account, key))
        if record is not None and response is not None:
            record.response = response
        elif record is not None:
            del self._records[account, key]

    def clear(self) -> None:
        self._records.clear()

    def _is_expired(self, record: KeyRecord) -> bool:
        """Whether the key window is over. A running request's key never expires."""
        return record.response is not None and record.first_used_at <= self._clock() - self._window_s

    def _drop_expired(self) -> None:
        """Drop old records. They are in the order of their first use, so the oldest are in front."""
        while self._records:
            name, record = next(iter(self._records.items()))
            if not self._is_expired(record):
                return
            del self._records[name]
