"""A Call: the application's request, as the server read it off the wire. We change nothing in it."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from functools import lru_cache

from paywitness.core.record import record

Headers = tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=1024)
def _header_key(name: str) -> bytes:
    """A header's name as it is looked up by: the same few names, call after call."""
    return name.lower().encode("latin-1")


class Priority(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@record
class CallerOptions:
    """The caller's options for us alone, in `Paywitness-*` headers. None of them goes upstream."""

    key: str | None = None
    intent: str | None = None
    account: str | None = None
    timeout_s: float | None = None
    priority: Priority | None = None
    distinct: str | None = None


@record
class Call:
    provider: str
    method: str
    path: str  # below the provider's prefix, still percent-encoded, starting with "/"
    query: str  # without the question mark
    segments: tuple[str, ...]  # the path's segments, decoded; dot and empty segments and encoded slashes were refused
    headers: Headers  # as they came, less hop-by-hop headers and ours
    body: bytes
    options: CallerOptions = CallerOptions()
    headers_by_name: dict[bytes, bytes] = field(init=False, repr=False, compare=False)  # lower-case; the first of each
    target: str = field(init=False, repr=False, compare=False)  # path and query as they stand on the request line

    def __post_init__(self) -> None:
        by_name: dict[bytes, bytes] = {}  # headers are looked up by name a dozen times a call
        for name, value in self.headers:
            by_name.setdefault(name.lower(), value)
        object.__setattr__(self, "headers_by_name", by_name)
        object.__setattr__(self, "target", f"{self.path}?{self.query}" if self.query else self.path)

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        value = self.headers_by_name.get(_header_key(name))
        return value.decode("latin-1") if value is not None else None
