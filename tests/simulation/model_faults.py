"""Faults planted into the model's use of the core, one function in place of another. Each must lead to a
counterexample: one that survives would mean that the model cannot see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paywitness.core.claim import drop_lease
from paywitness.core.decide import Action, Decision, DecisionContext, decide
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.inquiry import AbsenceProof
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import Operation, State
from paywitness.core.provider_contract import ErrorsUnderKey, ProviderContract
from paywitness.core.result import DENIALS, REFUSALS, Classification
from tests.simulation.model_engine import Bounds, Core
from tests.simulation.model_provider import Scenario, scenario

_NO_DOUBT: frozenset[int] = frozenset()


def _failed(operation: Operation, **changes: Any) -> Operation:
    return operation.changed(state=State.FAILED, doubt=_NO_DOUBT, attempt_under_way=False, **changes)


def _expired_is_free(operation: Operation, now: float) -> Operation:
    if operation.state is State.SENDING:
        return _failed(operation, lease=None, key_released=True)
    return drop_lease(operation, now)


def _expired_and_forgotten(operation: Operation, now: float) -> Operation:
    return drop_lease(operation, now).changed(state=operation.state, doubt=operation.doubt, attempt_under_way=False)


def _refusal_empties_doubt(
    operation: Operation, attempt: int, read: Classification, contract: ProviderContract
) -> tuple[Operation, Event]:
    after, event = conclude(operation, attempt, read, contract)
    if operation.doubt and read.result_class in REFUSALS and not operation.state.ended:
        return _failed(after, result_class=read.result_class, effect=read.effect), event
    return after, event


def _decline_of_one_is_of_all(
    operation: Operation, attempt: int, read: Classification, contract: ProviderContract
) -> tuple[Operation, Event]:
    return conclude(operation, attempt, read, replace(contract, errors_under_key=ErrorsUnderKey.REPLAYED))


def _late_decline_overwrites(
    operation: Operation, attempt: int, read: Classification, contract: ProviderContract
) -> tuple[Operation, Event]:
    after, event = conclude(operation, attempt, read, contract)
    return (_failed(after), event) if read.result_class in DENIALS else (after, event)


def _resend_forgets_doubt(operation: Operation, event: Event, attempt: int | None = None) -> Operation:
    after = advance(operation, event, attempt)
    if event is Event.RESEND_RECORDED:
        return after.changed(doubt=frozenset({after.attempts}))
    return after


def _timer_ends_it(operation: Operation, event: Event, attempt: int | None = None) -> Operation:
    if event is Event.SCHEDULE_RAN_OUT:
        return _failed(operation)
    return advance(operation, event, attempt)


def _first_miss_is_absence(operation: Operation, proof: AbsenceProof, asked_at: float) -> tuple[Operation, bool]:
    return operation.changed(misses=operation.misses + 1), True


def _always_settled(operation: Operation, settle_s: float, now: float) -> bool:
    return True


def _denial_under_way(
    operation: Operation, source: EvidenceSource, read: Classification, contract: ProviderContract, *, settled: bool
) -> tuple[Operation, Event | None]:
    if operation.state is State.UNKNOWN and operation.attempt_under_way and read.result_class in DENIALS:
        return _failed(operation, result_class=read.result_class, effect=read.effect), Event.WEBHOOK_TOLD_DENIAL
    return conclude_external(operation, source, read, contract, settled=settled)


def _always_sends_again(context: DecisionContext) -> Decision:
    decision = decide(context)
    if context.state is State.UNKNOWN and context.tries < context.tries_max and not context.background:
        return replace(decision, action=Action.RETRY_SAME_OPERATION)
    return decision


def _window_never_ends(context: DecisionContext) -> Decision:
    return decide(replace(context, first_send_age_s=0.0))


def _lease_does_not_matter(held: Operation, token: str, lapsed: bool) -> bool:
    return True


def _window_does_not_matter(held: Operation, contract: ProviderContract) -> bool:
    return True


@dataclass(frozen=True)
class Planted:
    name: str
    core: Core
    scenario: Scenario
    bounds: Bounds = Bounds(crashes=0)


_SILENT = {errors: scenario(errors, asked=False, webhook=False) for errors in ("replayed", "reexecuted", "none")}
_HOOKED = scenario("reexecuted", asked=False, webhook=True)
_ASKED = scenario("none", asked=True, webhook=False)
_ALONE = Bounds(repeats=0, crashes=0)
_AGAIN = Bounds(generations=2, crashes=0)

_NO_WINDOW = Core(decide=_window_never_ends, in_window=_window_does_not_matter)
PLANTED = (
    Planted("an expired lease is free to execute", Core(drop_lease=_expired_is_free), _SILENT["none"]),
    Planted("an expired lease changes nothing", Core(drop_lease=_expired_and_forgotten), _SILENT["none"], _ALONE),
    Planted("a refused re-send empties the doubt", Core(conclude=_refusal_empties_doubt), _SILENT["replayed"], _ALONE),
    Planted(
        "the decline of one attempt is taken for all",
        Core(conclude=_decline_of_one_is_of_all),
        _SILENT["reexecuted"],
        _ALONE,
    ),
    Planted("a late decline overwrites a success", Core(conclude=_late_decline_overwrites), _HOOKED),
    Planted("a re-send forgets the doubt before it", Core(advance=_resend_forgets_doubt), _SILENT["replayed"], _ALONE),
    Planted("the end of the schedule ends the operation", Core(advance=_timer_ends_it), _ASKED, _ALONE),
    Planted(
        "a miss before all has settled proves absence",
        Core(after_miss=_first_miss_is_absence, is_settled=_always_settled),
        _ASKED,
        _ALONE,
    ),
    Planted("a webhook's denial ends what is under way", Core(conclude_outside=_denial_under_way), _HOOKED, _ALONE),
    Planted("a provider without keys is sent to again", Core(decide=_always_sends_again), _SILENT["none"], _ALONE),
    Planted(
        "a re-send after the window",
        Core(decide=_window_never_ends, in_window=_window_does_not_matter),
        _SILENT["reexecuted"],
    ),
    Planted("a holder sends without its lease", Core(lasts=_lease_does_not_matter), _ASKED, _ALONE),
    Planted("a step is written over what others wrote", Core(compares=False), _SILENT["none"], _AGAIN),
)
