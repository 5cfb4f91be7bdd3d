"""A provider, or a cache in front of it, that answers an inquiry with the object of somebody else."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from paywitness_sandbox.messages import Request, SandboxResponse, error_response, json_response

_KEPT = 2  # objects of each kind


class StrangeObjects:
    """What was made last, of each kind, and who is shown it."""

    def __init__(self, share: float, dice: Random) -> None:
        self._share = share
        self._dice = dice
        self._made: dict[str, list[dict[str, Any]]] = {}

    def instead(self, request: Request, answer: SandboxResponse, *, calm: bool) -> SandboxResponse:
        """What is answered in the place of the right answer. What a write answers is always its own."""
        if not self._share or answer.status_code != 200:
            return answer
        if request.writes:
            self._keep(answer)
            return answer
        if calm or self._dice.random() >= self._share:
            return answer
        shown = json.loads(answer.body)
        is_search = "data" in shown
        kind = str(shown.get("object", "")) if not is_search else _kind_searched(request)
        others = [one for one in self._made.get(kind, ()) if not _is_asked_for(one, request)]
        if not others:
            return answer
        return json_response(200, {"data": others[:1], "has_more": False} if is_search else others[0])

    def _keep(self, answer: SandboxResponse) -> None:
        made = json.loads(answer.body)
        kept = self._made.setdefault(str(made.get("object", "")), [])
        kept.append(made)
        del kept[:-_KEPT]


class OddStatuses:
    """A provider that executes a payment, names it, and says of it what no policy knows. Then the page of that name is
    not found, for a while or for good."""

    def __init__(self, share: float, dice: Random) -> None:
        self._share = share
        self._dice = dice
        self._hidden: dict[str, int] = {}  # by names: so often it is not found

    def instead(self, request: Request, answer: SandboxResponse) -> SandboxResponse:
        if not self._share or answer.status_code != 200:
            return answer
        if not request.writes:
            return self._shown(request, answer)
        if request.path != "/v1/charges" or self._dice.random() >= self._share:
            return answer
        made = json.loads(answer.body)
        self._hidden.setdefault(made["id"], self._dice.choice((1, 3, 1_000)))
        return json_response(200, made | {"status": "in_screening"})

    def _shown(self, request: Request, answer: SandboxResponse) -> SandboxResponse:
        name = request.segments[-1]
        if self._hidden.get(name, 0) <= 0:
            return answer
        self._hidden[name] -= 1
        return error_response(404, "invalid_request_error", "No such charge.", code="resource_missing")


def _is_asked_for(made: dict[str, Any], request: Request) -> bool:
    """An old copy of what was asked for is another enemy, and never shown more often than a policy's misses."""
    stamp = (made.get("metadata") or {}).get("paywitness")
    return made.get("id") in request.segments or stamp == request.query.get("paywitness", "")


def _kind_searched(request: Request) -> str:
    plural = request.segments[-1]
    return _KINDS.get(plural, "") if request.segments[0] == "v2" or plural != "refunds" else "refund"


_KINDS = {
    "charges": "charge",
    "payouts": "payout",
    "refunds": "payment_refund",
    "payments": "payment",
    "captures": "payment_capture",
    "transfers": "transfer",
}
