"""The check before a payout: a request to an address that the policy names decides whether it may be sent.

There is one request for each payout that would start, before it is claimed. A replay, or the re-send of an unknown
outcome, makes none. Only a 2xx with `{"allow": true}` within the policy's time allows the payout. Everything else
refuses: another status, a redirect, another body, no response, a secret that is not set.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paywitness.clock import Clock
from paywitness.core.bodies.tree import decode_json
from paywitness.core.errors import BodyError
from paywitness.core.operation import GuardKind
from paywitness.core.payout_claims import shown_at
from paywitness.core.payout_rules import CheckHook
from paywitness.core.policy import UpstreamTimeouts
from paywitness.engine.calls.context import CallContext
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import OPERATOR_GIVEN_TRUST, Origin, WireRequest
from paywitness.webhook_signatures.standard_webhooks import sign

_log = logging.getLogger("paywitness.payouts")

_RESPONSE_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class PayoutCheck:
    upstream: UpstreamClient
    environment: Mapping[str, str]
    clock: Clock

    async def allows(self, context: CallContext) -> bool:
        """Whether the payout that the call would start may be sent. Never raises because of the other side."""
        rules = context.policy.payout
        if rules is None or rules.check is None:
            return True
        why_not = await self._ask(rules.check, context)
        if why_not:
            policy = context.policy
            _log.warning("the check before %s of %s refused: %s", policy.operation, policy.provider, why_not)
        return not why_not

    async def _ask(self, hook: CheckHook, context: CallContext) -> str:
        """Send the request. Returns why the payout is not allowed; empty if it is."""
        timeout_s = min(hook.timeout_s, context.deadline_mono - self.clock.mono())
        if timeout_s <= 0:
            return "the caller's time is up"
        secret = self.environment.get(hook.secret)
        if not secret:
            return f"{hook.secret} is not set"
        operation, parts = context.fresh, urlsplit(hook.url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode("latin-1")
        body = json.dumps(_question(context), ensure_ascii=True, separators=(",", ":")).encode()
        message_id = f"check_{operation.id}"
        try:
            headers = (
                (b"Content-Type", b"application/json"),
                (b"User-Agent", b"paywitness"),
                *sign(message_id, int(self.clock.now()), body, secret.encode()),
            )
            origin = Origin.parse(f"{parts.scheme}://{parts.netloc}", OPERATOR_GIVEN_TRUST)
            async with asyncio.timeout(timeout_s):
                evidence = await self.upstream.send(
                    origin, WireRequest("POST", target, headers, body), _timeouts(timeout_s)
                )
        except TimeoutError:
            return f"no answer within {timeout_s:.1f} s"
        except ValueError:
            return "its address or secret cannot be used"
        response = evidence.response
        if response is None:
            return f"no answer ({evidence.fault})"
        if not 200 <= response.status_code < 300:
            return f"status {response.status_code}"
        return "" if _is_allowed(response.body) else "its answer does not allow it"


def _timeouts(timeout_s: float) -> UpstreamTimeouts:
    return UpstreamTimeouts(timeout_s, timeout_s, timeout_s, timeout_s, timeout_s, timeout_s)


def _is_allowed(body: bytes) -> bool:
    if len(body) > _RESPONSE_BYTES_MAX:
        return False
    try:
        answer = decode_json(body)  # strict: a body with both answers allows nothing
    except BodyError:
        return False
    return isinstance(answer, dict) and answer.get("allow") is True


def _question(context: CallContext) -> dict[str, Any]:
    """The body of the request. The beneficiary is in it as the payout's request names it, so that the other side can
    judge by that."""
    policy, money, guard = context.policy, context.expected.money, context.identity.guard
    rules, call, operation = policy.payout, context.call, context.fresh
    return {
        "operation": operation.id,
        "provider": policy.provider,
        "name": policy.operation,
        "account": context.identity.account,
        "client_key": context.identity.client_key,
        "reference": guard.label if guard is not None and guard.kind is GuardKind.TARGET else None,
        "amount": str(money.major) if money is not None else None,
        "currency": money.currency if money is not None else None,
        "minor_units": money.minor_units if money is not None else None,
        "beneficiary": {
            str(place): shown_at(place, call, context.tree, context.parameters) or None
            for place in (rules.beneficiary if rules is not None else ())
        },
    }
