"""Limited: how an answer tells what held its call back, or another try of it, and when to come again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from proxy.core.reply import Reply

_HEADER = b"Paywitness-Limited-By"


@dataclass(frozen=True, slots=True)
class Limited:
    """What held this call, or another try of it, back: a name from our code, and of a retry budget the scope."""

    by: str
    retry_after_s: float
    scope: str = ""
    remaining: float | None = None

    def __str__(self) -> str:
        words = [self.by]
        if self.scope:
            words.append(f"scope={self.scope}")
        if self.remaining is not None:
            words.append(f"remaining={max(0.0, self.remaining):.1f}")
        return "; ".join((*words, f"retry-after={self.retry_after_s:.1f}"))


def limited_by(reply: Reply, limited: Limited) -> Reply:
    """The reply, with what held it back: in a header, and in the members of a problem of ours."""
    told = tuple(pair for pair in reply.headers if pair[0] != _HEADER)  # a repeat may have been told the first's answer
    headers = (*told, (_HEADER, str(limited).encode()))
    if reply.problem is None:
        return replace(reply, headers=headers)
    if not limited.scope:  # a budget holds our own retries back; the caller's next call asks none
        seconds = str(max(1, math.ceil(limited.retry_after_s))).encode()
        headers = tuple((name, seconds if name == b"Retry-After" else value) for name, value in headers)
    if (b"Content-Type", b"application/problem+json") not in headers:
        return replace(reply, headers=headers)  # a client of XML has the header
    members = {"by": limited.by, "retry_after_s": round(limited.retry_after_s, 1)}
    if limited.scope:
        members |= {"scope": limited.scope, "remaining": round(max(0.0, limited.remaining or 0.0), 1)}
    body = json.dumps({**json.loads(reply.body), "limited_by": members}).encode()
    return replace(reply, headers=headers, body=body)
