"""The gate: whether a call may go to its provider now. It decides locally, before the journal is called. A refusal has
a name.

Refused means that nothing new is written or sent. A call whose key is already known still gets its reply. A call that
is admitted has an AttemptPermit: a slot among the provider's calls in flight and, if its circuit is half open, a probe.
A permit is for one attempt. It is released once, with the health sample of that attempt.

`RetryBudget` says whether a retry may be made. A retry is debited when it is decided, before its wait. It is refunded
if it never went to the wire. The result of its attempt is reported, because the budget's ratio follows how often
retries help.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.admission import AdmissionRefusal, TrafficClass, queue_wait_max_s
from paywitness.core.budget import COST_AMBIGUOUS, COST_UNAMBIGUOUS, AttemptOrigin, BudgetScope, RetryRequest, cost_of
from paywitness.core.call import Priority
from paywitness.core.circuit import CallGroup, CircuitDecision, CircuitRefusal, CircuitRules, CircuitView
from paywitness.core.evidence import Evidence, WireFault
from paywitness.core.fallback import FallbackCause
from paywitness.core.holds import LimitedBy, party_of
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import GuardKind, Operation
from paywitness.core.policy import Policy
from paywitness.core.provider_health import (
    UNHEALTHY_CLASSES,
    Health,
    HealthSample,
    health_sample_of,
    health_sample_of_inquiry,
)
from paywitness.core.record import record
from paywitness.core.result import Classification, ResultClass
from paywitness.core.retry import retry_after_of
from paywitness.engine.calls.context import AttemptContext, AttemptPermit, CallContext
from paywitness.limits.admission import Admission, NotAdmitted
from paywitness.limits.budgets import STORE_UNAVAILABLE, BudgetRefusal, Budgets, Grant
from paywitness.limits.circuits import Circuits, Probe
from paywitness.policy.book import PolicyBook
from paywitness.repeated_lines import REPEATS
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import RetryRefused

_log = logging.getLogger("paywitness.limits")
_FAILURES_OF_AN_OUTAGE = (
    3  # after so many failures a success means that it was down, even if too few calls failed to open the circuit
)
_NOTHING_SENT = "Nothing was sent."
_TRAFFIC_CLASSES = {priority: TrafficClass(priority) for priority in Priority}


@record
class GateDecision:
    granted: bool
    refusal: str = ""  # the name of the refusal, for the reply and the metric
    detail: str = ""
    retry_after_s: float = 1.0
    attempt_permit: AttemptPermit | None = (
        None  # the permit, if the call is admitted; None: it is held back at once, and goes on by another route
    )
    waited: bool = False  # the call had to wait first
    limited_by: str = ""  # the party that the provider told to wait, if that is the reason

    @property
    def limit_info(self) -> LimitInfo:
        return LimitInfo(self.refusal, self.retry_after_s, self.limited_by)

    @property
    def by_circuit(self) -> bool:
        return self.refusal in _BY_CIRCUIT

    @property
    def queue_full(self) -> bool:
        return self.refusal == AdmissionRefusal.QUEUE_FULL

    def as_evidence(self) -> Evidence:
        """The evidence of an attempt that this refusal kept from the wire."""
        fault = WireFault.CIRCUIT_OPEN if self.by_circuit else WireFault.NOT_ADMITTED
        return Evidence.refused_by_limits(fault, self.refusal)


_BY_CIRCUIT = frozenset(CircuitRefusal)
_DRAINING = GateDecision(
    False, "draining", f"This sidecar is shutting down. {_NOTHING_SENT} Try again, another will answer."
)
_CALLER_LEFT = GateDecision(False, "caller_left", f"Its caller left while it waited for its turn. {_NOTHING_SENT}")
_ROLLED_BACK = GateDecision(
    False,
    "journal_rolled_back",
    f"The journal may have forgotten its last moments, and this provider would not notice a payment made twice. "
    f"{_NOTHING_SENT} Try again in a minute.",
    60.0,
)


def never(*_: object) -> bool:
    """Always False: for a journal that cannot roll back."""
    return False


@dataclass(slots=True)
class Gate:
    circuits: Circuits
    admission: Admission
    book: Callable[[], PolicyBook]
    clock: Clock
    calls_max: int
    recently_rolled_back: Callable[[], bool] = never  # whether the journal may have lost records
    end_may_be_lost: Callable[[Operation], bool] = never  # whether one of them may be an end that a caller was told
    draining: bool = False
    recovered: set[str] = field(default_factory=set)  # providers that respond again; cleared when the journal knows
    _failures_in_a_row: Counter[str] = field(default_factory=Counter)

    async def admit(self, context: CallContext, calls_in_flight: int, *, waits: bool = True) -> GateDecision:
        """Whether this call may start a new operation. Waits a little for a slot, unless `waits` is False."""
        policy = context.policy
        if self.draining:
            return _DRAINING
        if calls_in_flight >= self.calls_max:
            detail = f"{self.calls_max} calls are under way already. {_NOTHING_SENT}"
            return GateDecision(False, "overloaded", detail)
        if not policy.contract.dedupes and self.recently_rolled_back():
            return _ROLLED_BACK
        time_left_s = self._time_left_s(context) if waits else 0.0
        identity = context.identity
        party = party_of(policy.limited_by, identity.credential, identity.account)
        decision = await self.acquire(policy, CallGroup.WRITE, _TRAFFIC_CLASSES[context.priority], time_left_s, party)
        if not decision.granted and decision.by_circuit and _falls_back_when_open(context, policy):
            return GateDecision(True)  # the operation starts, is held back at once, and goes on by another route
        if decision.attempt_permit is not None and decision.waited and not context.still_there():
            await self.release(decision.attempt_permit)
            return _CALLER_LEFT
        return decision

    async def acquire(
        self, policy: Policy, group: CallGroup, traffic_class: TrafficClass, time_left_s: float, party: str
    ) -> GateDecision:
        """A permit for the provider, or the refusal. Waits a little for a slot, or for the end of a hold."""
        provider = policy.provider
        view, held_s = await self._view_after_hold(provider, group, party, time_left_s)
        if view.decision is CircuitDecision.REFUSE:
            return _refused_by_circuit(provider, view)
        probe = None
        if view.decision is CircuitDecision.PROBE:
            probe = await self._probe(policy, group)
            if probe is None:
                return _refused_by_circuit(provider, view)
        try:
            admitted = await self.admission.admit(provider, traffic_class, time_left_s - held_s, degraded=view.degraded)
        except BaseException:
            if probe is not None:
                await self.circuits.end_probe(probe, None)
            raise
        if isinstance(admitted, NotAdmitted):
            if probe is not None:
                await self.circuits.end_probe(probe, None)
            detail = f"{provider} has as many calls as it can take. {_NOTHING_SENT}"
            return GateDecision(False, admitted.reason, detail, admitted.retry_after_s)
        attempt_permit = AttemptPermit(policy, group, admitted, probe, party)
        if probe is None and admitted.waited_s > 0:  # the provider may have gone down meanwhile
            view = self.circuits.view(provider, group, party)
            if view.decision is not CircuitDecision.PERMIT:
                await self.release(attempt_permit)
                return _refused_by_circuit(provider, view)
        return GateDecision(True, "", "", 0.0, attempt_permit, waited=held_s > 0 or admitted.waited_s > 0)

    async def _view_after_hold(
        self, provider: str, group: CallGroup, party: str, time_left_s: float
    ) -> tuple[CircuitView, float]:
        """The circuit's view for a call of this party, and how long this method waited. It waits for a hold that is
        over soon, if it was given time. A new call is given none, because many waiting calls would all go when the hold
        ends."""
        view = self.circuits.view(provider, group, party)
        held_s = view.retry_after_s if view.reason is CircuitRefusal.THROTTLED else 0.0
        if not 0 < held_s <= queue_wait_max_s(time_left_s, 0.0):
            return view, 0.0
        await self.clock.sleep(held_s)
        return self.circuits.view(provider, group, party), held_s

    async def _probe(self, policy: Policy, group: CallGroup) -> Probe | None:
        timeouts, repeatable = policy.timeouts, group is CallGroup.INQUIRY or policy.contract.dedupes
        per_try_s = timeouts.connect_s + timeouts.tls_s + timeouts.first_byte_s
        return await self.circuits.take_probe(policy.provider, group, per_try_s, repeatable=repeatable)

    async def before_attempt(
        self, context: AttemptContext, operation: Operation, policy: Policy, held: AttemptPermit | None = None
    ) -> AttemptPermit | GateDecision:
        """The permit of the next attempt: the one that the call holds already, or a new one, or the refusal."""
        if context.in_background and self.end_may_be_lost(operation):
            await self.release(held)
            return _ROLLED_BACK
        if held is not None:
            return held
        traffic_class = TrafficClass.RESOLUTION if context.caller_gone else _TRAFFIC_CLASSES[context.priority]
        time_left_s = self._time_left_s(context) if not operation.doubt else policy.timeouts.deadline_s
        decision = await self.acquire(
            policy, CallGroup.WRITE, traffic_class, time_left_s, held_party(policy, operation)
        )
        return decision.attempt_permit or decision

    def sample_of(
        self, attempt_permit: AttemptPermit, evidence: Evidence, classification: Classification
    ) -> HealthSample | None:
        """The health sample of an attempt."""
        reading = classification.result_class
        requested_s = retry_after_of(evidence.response, self.clock.now()) if reading in UNHEALTHY_CLASSES else None
        return health_sample_of(reading, evidence, self._slow_after_s(attempt_permit), requested_s)

    async def release_inquiry_permit(
        self, attempt_permit: AttemptPermit, evidence: Evidence | None
    ) -> HealthSample | None:
        """Release an inquiry's permit. None: the provider was not asked."""
        if evidence is None:
            await self.release(attempt_permit)
            return None
        requested_s = retry_after_of(evidence.response, self.clock.now())
        health_sample = health_sample_of_inquiry(evidence, self._slow_after_s(attempt_permit), requested_s)
        await self.release(attempt_permit, health_sample)
        return health_sample

    async def release(self, attempt_permit: AttemptPermit | None, health_sample: HealthSample | None = None) -> None:
        """Release a permit, with the health sample of its attempt. No sample: nothing was sent. Never raises because of
        the limits, because the attempt's evidence about the payment matters more."""
        if attempt_permit is None or attempt_permit.is_released:
            return
        attempt_permit.is_released = True
        provider = attempt_permit.policy.provider
        try:
            self.admission.release(attempt_permit.admitted, health_sample)
            self.circuits.add_sample(provider, attempt_permit.group, health_sample, attempt_permit.party)
            if health_sample is not None and not health_sample.healthy:
                self._failures_in_a_row[provider] += 1
            elif health_sample is not None and self._failures_in_a_row.pop(provider, 0) >= _FAILURES_OF_AN_OUTAGE:
                self.recovered.add(provider)
            if attempt_permit.probe is not None:
                await self.circuits.end_probe(attempt_permit.probe, health_sample)
        except Exception as error:  # noqa: BLE001  # lose the vote, never the reply
            _log.error("what %s showed was not counted: %s", provider, type(error).__name__, extra=REPEATS)

    def _slow_after_s(self, attempt_permit: AttemptPermit) -> float:
        provider = self.book().providers.get(attempt_permit.policy.provider)
        return (provider.circuit if provider is not None else CircuitRules()).slow_after_s

    def _time_left_s(self, context: AttemptContext) -> float:
        return max(0.0, context.deadline_mono - self.clock.mono())


def _falls_back_when_open(context: CallContext, policy: Policy) -> bool:
    guard = context.identity.guard
    if guard is None or guard.kind is not GuardKind.INTENT:
        return False
    return any(FallbackCause.CIRCUIT_OPEN in fallback.when for fallback in policy.fallbacks)


def held_party(policy: Policy, operation: Operation) -> str:
    """The party that is held if the provider tells this operation to wait."""
    return party_of(policy.limited_by, operation.credential, operation.account)


def _refused_by_circuit(provider: str, view: CircuitView) -> GateDecision:
    reason = view.reason or CircuitRefusal.PROBING
    why = _CIRCUIT_REASONS[reason] if view.limited_by is None else _HOLD_REASONS[view.limited_by]
    detail = f"{provider} {why}. {_NOTHING_SENT}"
    return GateDecision(False, reason, detail, view.retry_after_s, limited_by=view.limited_by or "")


_CIRCUIT_REASONS = {
    CircuitRefusal.OPEN: "is down, as the last calls showed",
    CircuitRefusal.FORCED: "was closed to new calls by an operator",
    CircuitRefusal.PROBING: "was down, and is being tried with a few calls",
    CircuitRefusal.RAMP: "was down, and is given a part of its calls until it has held",
}
_HOLD_REASONS = {
    LimitedBy.CREDENTIAL: "asked the credential of this call to wait (Retry-After)",
    LimitedBy.ACCOUNT: "asked the account of this call to wait (Retry-After)",
    LimitedBy.PROVIDER: "asked to be left alone for a while (Retry-After)",
}


# --- Retry budgets


# Reasons on our side that kept an attempt from the wire. They show nothing about the provider.
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
        """The grant of the retry that was decided on, already debited; or the limit that holds the retry back."""
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
        except Exception as error:  # noqa: BLE001  # a fault of the limits costs the retry, never the evidence
            _log.error("the retry budget failed by %s; nothing is tried again", type(error).__name__, extra=REPEATS)
            found = BudgetRefusal(
                BudgetScope.PROVIDER, policy.budget.window_s, 0.0, fleet=False, because=STORE_UNAVAILABLE
            )
        if isinstance(found, Grant):
            return found
        self.telemetry.emit(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return LimitInfo(found.because, found.wait_s, found.scope, found.remaining)

    def count_attempt(self, operation: Operation, policy: Policy) -> None:
        """Count an attempt that goes to the wire without a grant: a first attempt, or a caller's own duplicate."""
        origin = self._origin(operation, policy)
        if operation.attempts > 1:
            self.budgets.count_caller_retry(origin, COST_AMBIGUOUS)
        elif operation.generation > 1:
            self.budgets.count_caller_retry(origin, COST_UNAMBIGUOUS)
        else:
            self.budgets.count_first_attempt(origin)

    async def report_result(self, grant: Grant, evidence: Evidence, health_sample: HealthSample | None) -> None:
        """Report the result of the attempt that the grant allowed."""
        if evidence.fault in _NOT_ATTEMPTED and not evidence.sent:
            await self.budgets.refund(grant)
        elif health_sample is not None and health_sample.health is Health.OK:
            self.budgets.succeeded(grant)
        else:
            self.budgets.failed(grant)

    async def refund(self, grant: Grant | None) -> None:
        """Refund a retry that will not be made. None: there was no grant."""
        if grant is not None:
            await self.budgets.refund(grant)

    async def acquire_for_inquiry(
        self, operation: Operation, policy: Policy, last: ResultClass
    ) -> Grant | BudgetRefusal:
        """Inquiries have budgets of their own: for those that follow a failed one, and for hedges beside a slow one."""
        request = RetryRequest(self._origin(operation, policy, CallGroup.INQUIRY), last, COST_UNAMBIGUOUS)
        found = await self.budgets.acquire(request)
        if isinstance(found, BudgetRefusal):
            self.telemetry.emit(RetryRefused(policy.provider, policy.operation, found.scope, operation.id))
        return found

    def count_inquiry(self, operation: Operation, policy: Policy) -> None:
        self.budgets.count_first_attempt(self._origin(operation, policy, CallGroup.INQUIRY))

    async def refund_inquiry(self, grant: Grant) -> None:
        """Refund an inquiry that was not sent after all."""
        await self.budgets.refund(grant)

    def report_hedge_result(self, grant: Grant, *, helped: bool) -> None:
        """Report whether the second inquiry was the one that got the response."""
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
