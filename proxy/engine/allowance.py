"""Allowances: what the engine asks of the retry budgets, and tells them.

A retry is debited at its decision, before its wait; given back if it never went to the wire; and judged by what its
attempt showed, for the budget's ratio follows how often retries help.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from proxy.core.budget import COST_AMBIGUOUS, COST_UNAMBIGUOUS, Origin, RetryAsk, Scope, cost_of
from proxy.core.circuit import Group
from proxy.core.evidence import Evidence, WireFault
from proxy.core.limited import Limited
from proxy.core.observation import Health, Observation
from proxy.core.operation import GuardKind, Operation
from proxy.core.policy import Policy
from proxy.core.reading import Classification, Reading
from proxy.engine.errand import Errand
from proxy.limits.budgets import STORE_GONE, Budgets, Grant, Refusal
from proxy.telemetry.records import RetryRefused
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.limits")

# What kept an attempt from the wire without the provider having a part in it.
_NEVER_TRIED = frozenset(
    {WireFault.CIRCUIT_OPEN, WireFault.NOT_ADMITTED, WireFault.POOL_EXHAUSTED, WireFault.LEASE_OVER}
)


@dataclass(frozen=True, slots=True)
class Allowances:
    budgets: Budgets
    telemetry: Telemetry

    async def ask(self, errand: Errand, operation: Operation, policy: Policy, last: Classification) -> bool:
        """Whether the retry that was decided on may be made. If so it is spent; the errand holds it."""
        ask = RetryAsk(
            self._origin(operation, policy),
            last.reading,
            cost_of(last),
            errand.priority,
            _intent_of(operation),
            policy.contract.dedupes,
        )
        try:
            found = await self.budgets.acquire(ask)
        except Exception as error:  # noqa: BLE001  # a fault of the limits costs the retry, never what is known
            _log.error("the retry budget failed by %s; nothing is tried again", type(error).__name__)
            found = Refusal(Scope.PROVIDER, policy.budget.window_s, 0.0, fleet=False, because=STORE_GONE)
        if isinstance(found, Grant):
            errand.grant, errand.limited = found, None
            return True
        errand.limited = Limited(found.because, found.wait_s, found.scope, found.remaining)
        self.telemetry.tell(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return False

    def count(self, errand: Errand, operation: Operation, policy: Policy) -> None:
        """An attempt goes to the wire. A first one, or what a caller repeats by itself, asks nobody."""
        if errand.grant is not None:
            return
        origin = self._origin(operation, policy)
        if operation.attempts > 1:
            self.budgets.count_repeat(origin, COST_AMBIGUOUS)
        elif operation.generation > 1:
            self.budgets.count_repeat(origin, COST_UNAMBIGUOUS)
        else:
            self.budgets.count_first(origin)

    async def judge(self, errand: Errand, evidence: Evidence, observation: Observation | None) -> None:
        """The attempt is over."""
        if evidence.fault in _NEVER_TRIED and not evidence.sent:
            await self.give_back(errand)
            return
        grant, errand.grant = errand.grant, None
        if grant is None:
            return
        if observation is not None and observation.health is Health.OK:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    async def give_back(self, errand: Errand) -> None:
        """The retry that the errand holds will not be made."""
        grant, errand.grant = errand.grant, None
        if grant is not None:
            await self.budgets.refund(grant)

    async def ask_for_read(self, operation: Operation, policy: Policy, last: Reading) -> Grant | Refusal:
        """Inquiries have budgets of their own: those that follow a failed one, and second ones beside a slow one."""
        ask = RetryAsk(self._origin(operation, policy, Group.INQUIRY), last, COST_UNAMBIGUOUS)
        found = await self.budgets.acquire(ask)
        if isinstance(found, Refusal):
            self.telemetry.tell(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return found

    def count_read(self, operation: Operation, policy: Policy) -> None:
        self.budgets.count_first(self._origin(operation, policy, Group.INQUIRY))

    async def give_back_read(self, grant: Grant) -> None:
        """Nobody was asked after all."""
        await self.budgets.refund(grant)

    def judge_hedge(self, grant: Grant, *, helped: bool) -> None:
        """Whether the second inquiry was the one that answered."""
        if helped:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    def judge_read(self, grant: Grant, observation: Observation | None) -> None:
        if observation is not None and observation.health is Health.OK:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    def _origin(self, operation: Operation, policy: Policy, group: Group = Group.WRITE) -> Origin:
        rules = policy.budget if group is Group.WRITE else policy.budget.of_inquiries
        return Origin(policy.provider, policy.operation, operation.account, rules, group)


def _intent_of(operation: Operation) -> str | None:
    guard = operation.guard
    return guard.value if guard is not None and guard.kind is GuardKind.INTENT else None
