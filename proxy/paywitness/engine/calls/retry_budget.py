"""RetryBudget: what the engine asks of the retry budgets, and tells them.

A retry is debited at its decision, before its wait; given back if it never went to the wire; and judged by what its
attempt showed, for the budget's ratio follows how often retries help.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from paywitness.core.budget import COST_AMBIGUOUS, COST_UNAMBIGUOUS, AttemptOrigin, BudgetScope, RetryRequest, cost_of
from paywitness.core.call import Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.evidence import Evidence, WireFault
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import GuardKind, Operation
from paywitness.core.policy import Policy
from paywitness.core.provider_health import Health, HealthSample
from paywitness.core.result import Classification, ResultClass
from paywitness.limits.budgets import STORE_UNAVAILABLE, BudgetRefusal, Budgets, Grant
from paywitness.repeated_lines import REPEATS
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import RetryRefused

_log = logging.getLogger("paywitness.limits")

# What kept an attempt from the wire without the provider having a part in it.
_NOT_ATTEMPTED = frozenset(
    {WireFault.CIRCUIT_OPEN, WireFault.NOT_ADMITTED, WireFault.POOL_EXHAUSTED, WireFault.LEASE_OVER}
)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    budgets: Budgets
    telemetry: Telemetry

    async def acquire(
        self, priority: Priority, operation: Operation, policy: Policy, last: Classification
    ) -> Grant | LimitInfo:
        """The grant of the retry that was decided on, already spent; or what holds the retry back."""
        request = RetryRequest(
            self._origin(operation, policy),
            last.result_class,
            cost_of(last),
            priority,
            _intent_of(operation),
            policy.contract.dedupes,
        )
        try:
            found = await self.budgets.acquire(request)
        except Exception as error:  # noqa: BLE001  # a fault of the limits costs the retry, never what is known
            _log.error("the retry budget failed by %s; nothing is tried again", type(error).__name__, extra=REPEATS)
            found = BudgetRefusal(
                BudgetScope.PROVIDER, policy.budget.window_s, 0.0, fleet=False, because=STORE_UNAVAILABLE
            )
        if isinstance(found, Grant):
            return found
        self.telemetry.emit(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return LimitInfo(found.because, found.wait_s, found.scope, found.remaining)

    def count_attempt(self, operation: Operation, policy: Policy) -> None:
        """An attempt without a grant goes to the wire: a first one, or what a caller repeats by itself."""
        origin = self._origin(operation, policy)
        if operation.attempts > 1:
            self.budgets.count_caller_retry(origin, COST_AMBIGUOUS)
        elif operation.generation > 1:
            self.budgets.count_caller_retry(origin, COST_UNAMBIGUOUS)
        else:
            self.budgets.count_first_attempt(origin)

    async def report_result(self, grant: Grant, evidence: Evidence, health_sample: HealthSample | None) -> None:
        """The attempt that the grant allowed is over."""
        if evidence.fault in _NOT_ATTEMPTED and not evidence.sent:
            await self.budgets.refund(grant)
        elif health_sample is not None and health_sample.health is Health.OK:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    async def refund(self, grant: Grant | None) -> None:
        """The retry will not be made. None: there was no grant."""
        if grant is not None:
            await self.budgets.refund(grant)

    async def acquire_for_inquiry(
        self, operation: Operation, policy: Policy, last: ResultClass
    ) -> Grant | BudgetRefusal:
        """Inquiries have budgets of their own: those that follow a failed one, and second ones beside a slow one."""
        request = RetryRequest(self._origin(operation, policy, CallGroup.INQUIRY), last, COST_UNAMBIGUOUS)
        found = await self.budgets.acquire(request)
        if isinstance(found, BudgetRefusal):
            self.telemetry.emit(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return found

    def count_inquiry(self, operation: Operation, policy: Policy) -> None:
        self.budgets.count_first_attempt(self._origin(operation, policy, CallGroup.INQUIRY))

    async def refund_inquiry(self, grant: Grant) -> None:
        """Nobody was asked after all."""
        await self.budgets.refund(grant)

    def report_hedge_result(self, grant: Grant, *, helped: bool) -> None:
        """Whether the second inquiry was the one that answered."""
        if helped:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    def report_inquiry_result(self, grant: Grant, health_sample: HealthSample | None) -> None:
        if health_sample is not None and health_sample.health is Health.OK:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    def _origin(self, operation: Operation, policy: Policy, group: CallGroup = CallGroup.WRITE) -> AttemptOrigin:
        rules = policy.budget if group is CallGroup.WRITE else policy.budget.for_inquiries
        return AttemptOrigin(policy.provider, policy.operation, operation.account, rules, group)


def _intent_of(operation: Operation) -> str | None:
    guard = operation.guard
    return guard.value if guard is not None and guard.kind is GuardKind.INTENT else None
