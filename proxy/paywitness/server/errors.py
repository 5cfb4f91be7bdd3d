"""Refusals: how a request ends by the caller's fault. Each reply says whether something was sent to the provider."""

from __future__ import annotations

import json
from dataclasses import replace

from paywitness.core.errors import PaywitnessError
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply, problem_reply

_NOTHING_SENT = " Nothing was sent."
_PART_SENT = " The part of it that had come was passed on; it will not be sent again."

# After these problems the next bytes on the connection may not be a request, so the connection ends.
_CLOSING = frozenset({Problem.MALFORMED, Problem.TOO_LARGE, Problem.TOO_SLOW})


class RequestRejected(PaywitnessError):
    """The request goes no further. Its detail may quote the caller to itself; it is never logged."""

    def __init__(self, kind: Problem, detail: str, status_code: int | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail
        self.status_code = status_code
        self.part_sent = False  # true if the body was lost while it was being passed on

    @property
    def closes(self) -> bool:
        return self.kind in _CLOSING

    @property
    def reply(self) -> Reply:
        detail = self.detail + (_PART_SENT if self.part_sent else _NOTHING_SENT)
        reply = problem_reply(self.kind, detail, sent=self.part_sent)
        if self.status_code is None:
            return reply
        members = json.loads(reply.body) | {"status": self.status_code}
        return replace(reply, status_code=self.status_code, body=json.dumps(members).encode())


class CallerDisconnected(PaywitnessError):
    """The caller's connection was lost before its request was whole. There is nobody to reply to."""


def malformed(detail: str) -> RequestRejected:
    return RequestRejected(Problem.MALFORMED, detail)
