"""What the provider says: a value, made by the dialects and the faults, turned into bytes here and nowhere else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from http import HTTPStatus

Headers = tuple[tuple[str, str], ...]

# Said before any work began, so no contract stores them under a key.
REFUSALS = frozenset({400, 401, 403, 404, 405, 409, 413, 429, 431, 503, 507})


@dataclass(frozen=True, slots=True)
class Answer:
    status_code: int
    body: bytes
    content_type: str = "application/json"
    headers: Headers = ()
    failed: bool = False
    """The work was done and its result is a failure: a decline, whatever the status says."""

    @property
    def executed(self) -> bool:
        """The provider had begun the work when it said this."""
        return self.status_code not in REFUSALS

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status_code < 300 and not self.failed

    def with_headers(self, *more: tuple[str, str]) -> Answer:
        return replace(self, headers=self.headers + more)

    def head(self, *more: tuple[str, str], length: int | None = None) -> bytes:
        """Status line and headers; `length` may lie. A length below zero leaves Content-Length out."""
        lines = [f"HTTP/1.1 {self.status_code} {reason_phrase(self.status_code)}", f"Content-Type: {self.content_type}"]
        length = len(self.body) if length is None else length
        if length >= 0:
            lines.append(f"Content-Length: {length}")
        lines.extend(f"{name}: {value}" for name, value in self.headers + more)
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def reason_phrase(status_code: int) -> str:
    try:
        return HTTPStatus(status_code).phrase
    except ValueError:
        return "Unknown"


def json_answer(status_code: int, value: object, *, failed: bool = False, indent: int | None = None) -> Answer:
    text = json.dumps(value, indent=indent, separators=None if indent else (",", ":"))
    return Answer(status_code, (text + "\n" if indent else text).encode(), failed=failed)


def error_answer(status_code: int, kind: str, message: str, *, code: str | None = None, **more: object) -> Answer:
    """Both dialects complain in the same shape: `{"error": {"type": ..., "code": ..., "message": ...}}`."""
    error: dict[str, object] = {"type": kind, "message": message}
    if code is not None:
        error["code"] = code
    error.update(more)
    return json_answer(status_code, {"error": error})


def invalid(message: str, *, param: str | None = None, code: str = "parameter_invalid") -> Answer:
    more = {} if param is None else {"param": param}
    return error_answer(400, "invalid_request_error", message, code=code, **more)


def card_declined(decline_code: str, **more: object) -> Answer:
    message = f"The card was declined: {decline_code.replace('_', ' ')}."
    return error_answer(402, "card_error", message, code="card_declined", decline_code=decline_code, **more)


def internal_error() -> Answer:
    return error_answer(500, "api_error", "Something went wrong on our side.", code="internal_error")


def misuse(message: str, code: str, **more: object) -> Answer:
    """The person at the keyboard asked the sandbox itself for something it does not have."""
    return error_answer(400, "sandbox_error", message, code=code, **more)
