"""One attempt at the wire: the operation's bytes to the provider, and the evidence of it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from paywitness.clock import Clock
from paywitness.core.errors import BodyError
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider, UpstreamTimeouts, UpstreamTrust
from paywitness.engine.calls.context import AttemptContext, first_send_age_s
from paywitness.engine.calls.stored_messages import wire_request
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.leases import Leases
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin

_SHORTEST_CONNECT_S = 0.05
LateResponseCallback = Callable[
    [Operation, Policy, Evidence], None
]  # told of an answer that comes after its attempt timed out


def address_of(policy: Policy | Provider) -> tuple[Origin, str]:
    """A policy's upstream as an origin and the path that goes in front of every target."""
    return _address_of(policy.upstream, policy.trust)


@lru_cache(maxsize=256)
def _address_of(upstream: str, trust: UpstreamTrust) -> tuple[Origin, str]:
    parts = urlsplit(upstream)
    return replace(Origin.parse(f"{parts.scheme}://{parts.netloc}"), trust=trust), parts.path.rstrip("/")


@dataclass(frozen=True, slots=True)
class AttemptSender:
    upstream: UpstreamClient
    leases: Leases
    clock: Clock
    ages: Ages

    async def send(
        self, context: AttemptContext, operation: Operation, policy: Policy, on_late_response: LateResponseCallback
    ) -> Evidence:
        """Send one attempt. Right before its first byte, with the connection up, the right to send is checked again."""
        origin, path_prefix = address_of(policy)
        write_s = policy.timeouts.write_s

        def may_send() -> bool:
            nothing_in_doubt = not operation.doubt
            if nothing_in_doubt and self.clock.mono() >= context.deadline_mono:
                return False  # the caller will be told that nothing was sent; so nothing is
            if not self.leases.outlasts(operation.id, context.token, write_s):
                return False
            if operation.doubt and first_send_age_s(operation, self.ages) >= policy.contract.resend_until_s:
                return False  # we slept since it was decided, and the provider may have forgotten the key
            context.progress.start_byte()
            return True

        try:
            request = wire_request(context.request, operation, policy, path_prefix)
            evidence = await self.upstream.send(
                origin,
                request,
                self._timeouts(context, operation, policy),
                may_send=may_send,
                reuse=policy.reuses_connections,
                on_late=lambda evidence: on_late_response(operation, policy, evidence),
            )
            self.ages.note_response(operation.provider, evidence.response)
            return evidence
        except (ValueError, BodyError):
            if context.progress.byte_started:
                raise  # a fault of ours with the request on the wire: whatever it was, it is no proof that nothing left
            detail = "the request cannot be written as the policy says"
            return Evidence(NetworkPhase.RESOLVING, 0, WireFault.CONNECT_FAILED, None, detail, 0.0)

    def _timeouts(self, context: AttemptContext, operation: Operation, policy: Policy) -> UpstreamTimeouts:
        """The policy's; but while nothing can have left, getting connected must not outlast the caller."""
        given = policy.timeouts
        time_left_s = max(_SHORTEST_CONNECT_S, context.deadline_mono - self.clock.mono())
        bounded = time_left_s if not operation.doubt else given.deadline_s
        if given.connect_s <= bounded and given.tls_s <= bounded:
            return given
        return replace(given, connect_s=min(given.connect_s, bounded), tls_s=min(given.tls_s, bounded))
