"""The bugs of fallbacks: another route is taken for what may have been paid, or a caller is told of the wrong one."""

from __future__ import annotations

from typing import Any

from paywitness.core.decide import Action, DecisionRule
from paywitness.core.inquiry import AbsenceProof
from paywitness.core.operation import Operation, State
from paywitness.core.reply import Reply, absent_reply
from paywitness.core.result import ResultClass
from tests.simulation.guard_checkers import FALLBACK_ANSWERS
from tests.simulation.planting import Bug, CannotPlantError, Function, Replaced, Valued

_CORE, _ENGINE = "paywitness.core.", "paywitness.engine."
_PAID_TWICE = ("one effect", "no re-send in doubt", "no re-send past the window")
_UNTRUE = ("no means none, for ever", "succeeded is one effect", "doubt not guessed away")
_NO_DOUBT = frozenset[int]()


def _pays_elsewhere_in_doubt(rules: tuple[DecisionRule, ...]) -> tuple[DecisionRule, ...]:
    at = [number for number, rule in enumerate(rules) if rule.name == "in_doubt_same_key_is_safe"]
    if len(at) != 1:
        raise CannotPlantError(f"found {len(at)} rules that re-send what is in doubt")
    elsewhere = DecisionRule(
        "elsewhere", lambda c: c.state is State.UNKNOWN and bool(c.fallback_to), Action.FALLBACK_NEW_ATTEMPT
    )
    return (*rules[: at[0]], elsewhere, *rules[at[0] :])


def _timeout_is_not_sent(right: Function) -> Function:
    def wrong(result_class: ResultClass, effect: Any, *, circuit_refused: bool, absent: bool, falls_back: bool) -> Any:
        timed_out = result_class is ResultClass.NETWORK_READ_TIMEOUT
        as_if = ResultClass.NETWORK_CONNECT_FAILURE if timed_out else result_class
        return right(as_if, effect, circuit_refused=circuit_refused, absent=absent, falls_back=falls_back)

    return wrong


def _falls_back_in_doubt(right: Function) -> Function:
    async def wrong(self: Any, context: Any, first: Operation, decision: Any, result: Any, payment: Any) -> Any:
        if first.doubt:
            first = first.changed(state=State.BACKOFF, doubt=_NO_DOUBT)
        return await right(self, context, first, decision, result, payment)

    return wrong


def _first_miss_proves(right: Function) -> Function:
    def wrong(operation: Operation, proof: AbsenceProof, now: float) -> tuple[Operation, bool]:
        after, _ = right(operation, proof, now)
        return after, True

    return wrong


def _only_where_it_is_made_elsewhere(right: Function) -> Function:
    async def wrong(
        self: Any, operation: Operation, counted: Operation, policy: Any, finding: Any, lease_token: str
    ) -> bool:
        if operation.absence_shown or not self._may_be_made_elsewhere(operation, policy):
            return False
        left: bool = await right(self, operation, counted, policy, finding, lease_token)
        return left

    return wrong


def _always_settled(right: Function) -> Function:
    def wrong(operation: Operation, settle_s: float, now: float) -> bool:
        return not operation.attempt_under_way

    return wrong


def _tells_of_the_first(right: Function) -> Function:
    async def wrong(self: Any, context: Any, first: Operation, fallback_id: str) -> Reply:
        return absent_reply(first, context.shape)

    return wrong


FALLBACK_BUGS: tuple[Bug, ...] = (
    Bug(
        "fallback_from_doubt",
        "a payment whose response was lost is made by another route",
        (
            Valued(_CORE + "decide.RULES", _pays_elsewhere_in_doubt),
            Replaced(_CORE + "fallback.cause_of", _timeout_is_not_sent),
            Replaced(_ENGINE + "calls.pipeline.CallPipeline._fall_back", _falls_back_in_doubt),
        ),
        (*_PAID_TWICE, *_UNTRUE),
    ),
    Bug(
        "fallback_at_the_first_miss",
        "a payment that one inquiry does not find is made by another route at once",
        (
            Replaced(_CORE + "inquiry.after_miss", _first_miss_proves),
            Replaced(_CORE + "inquiry.is_settled", _always_settled),
            Replaced(
                _ENGINE + "resolution.external_evidence.ExternalEvidenceRecorder.apply_absence",
                _only_where_it_is_made_elsewhere,
            ),
        ),
        _PAID_TWICE,
        focus="other_routes",
    ),
    Bug(
        "repeat_told_of_the_first_route",
        "a call that waited for another one of its key is told that nothing was executed, and another route has paid",
        (Replaced(_ENGINE + "calls.duplicates.DuplicateCalls._reply_of_fallback", _tells_of_the_first),),
        (FALLBACK_ANSWERS,),
        focus="other_routes",
    ),
)
