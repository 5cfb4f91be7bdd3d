"""The limit that held back a call, or a retry of it. A header of the reply names it, and a member of our problems.

`Retry-After` and `limited_by` have one meaning: when the same call may be sent again. A retry budget bounds only our
own retries, and the caller's next call does not need it. So its time is under a name of its own: when our retries
resume.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from paywitness.core.reply import Reply

_LIMITED_BY_HEADER = b"Paywitness-Limited-By"


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """The limit that held back this call, or a retry of it. The scope is the retry budget's, or that of the calls that
    the provider asked to wait."""

    by: str
    retry_after_s: float
    scope: str = ""
    remaining: float | None = None  # of a retry budget

    @property
    def bounds_own_retries(self) -> bool:
        """Whether it is a retry budget."""
        return self.remaining is not None

    def __str__(self) -> str:
        words = [self.by]
        if self.scope:
            words.append(f"scope={self.scope}")
        if self.remaining is not None:
            words.append(f"remaining={max(0.0, self.remaining):.1f}")
        waits = "own-retries-in" if self.bounds_own_retries else "retry-after"
        return "; ".join((*words, f"{waits}={self.retry_after_s:.1f}"))


def with_limit_info(reply: Reply, limit_info: LimitInfo) -> Reply:
    """The reply with the limit: in a header, and in the members of a problem of ours."""
    other_headers = tuple(
        pair for pair in reply.headers if pair[0] != _LIMITED_BY_HEADER
    )  # a repeat may have been told the first's answer
    headers = (*other_headers, (_LIMITED_BY_HEADER, str(limit_info).encode()))
    if reply.problem is None:
        return replace(reply, headers=headers)
    if not limit_info.bounds_own_retries:  # a budget holds our own retries back; the caller's next call asks none
        seconds = str(max(1, math.ceil(limit_info.retry_after_s))).encode()
        headers = tuple((name, seconds if name == b"Retry-After" else value) for name, value in headers)
    if (b"Content-Type", b"application/problem+json") not in headers:
        return replace(reply, headers=headers)  # a client of XML has the header
    wait_s = round(limit_info.retry_after_s, 1)
    members: dict[str, Any] = {"by": limit_info.by}
    if limit_info.scope:
        members["scope"] = limit_info.scope
    if limit_info.remaining is not None:
        members["remaining"] = round(max(0.0, limit_info.remaining), 1)
    members["own_retries_in_s" if limit_info.bounds_own_retries else "retry_after_s"] = wait_s
    body = json.dumps({**json.loads(reply.body), "limited_by": members}).encode()
    return replace(reply, headers=headers, body=body)
