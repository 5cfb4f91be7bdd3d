"""Refusals: how a request ends before the engine has heard of it. Nothing was sent, and the answer says so."""

from __future__ import annotations

import json
from dataclasses import replace

from proxy.core.errors import PaywitnessError
from proxy.core.reply import Problem, Reply, problem

_NOTHING_SENT = " Nothing was sent."

# After these, what follows on the connection cannot be trusted to be a request.
_CLOSING = frozenset({Problem.MALFORMED, Problem.TOO_LARGE, Problem.TOO_SLOW})


class Refused(PaywitnessError):
    """The request goes no further. Its detail may quote the caller to itself; it is never logged."""

    def __init__(self, kind: Problem, detail: str, status_code: int | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail
        self.status_code = status_code

    @property
    def closes(self) -> bool:
        return self.kind in _CLOSING

    @property
    def reply(self) -> Reply:
        reply = problem(self.kind, self.detail + _NOTHING_SENT)
        if self.status_code is None:
            return reply
        members = json.loads(reply.body) | {"status": self.status_code}
        return replace(reply, status_code=self.status_code, body=json.dumps(members).encode())


class BodyLost(Refused, TimeoutError):
    """The caller's body will not be whole.

    A TimeoutError too, because that is what aiohttp expects of a body it reads only to throw away.
    """


class CallerLeft(PaywitnessError):
    """The caller's connection is lost before its request was whole. There is nobody to answer."""


def malformed(detail: str) -> Refused:
    return Refused(Problem.MALFORMED, detail)
