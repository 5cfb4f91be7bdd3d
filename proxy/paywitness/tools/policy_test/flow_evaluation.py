"""A flow: its steps in a row, and the facts after each, under the names by which a step expects them.

Nothing is sent, stored or waited for: a pause moves the flow's own clock. Nothing happens between steps: an inquiry
runs only if a step says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.credential_owners import MarkSource, credential_key, marks_to_text, named_mark
from paywitness.core.guard import is_paid
from paywitness.core.operation import GuardKind, Operation, Posting
from paywitness.core.payment import Payment
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.policy import Policy, Provider, UnmatchedCalls
from paywitness.core.problems import PROBLEMS, Problem
from paywitness.core.recognise import RecognitionRefusal, recognise
from paywitness.engine.intents import unsafe_reason
from paywitness.journal.base import LedgerRow
from paywitness.policy.book import PolicyBook
from paywitness.tools.policy_test.case import NONE, GivenRequest
from paywitness.tools.policy_test.flow import BALANCE_NUMBERS, UNKNOWN, Step
from paywitness.tools.policy_test.flow_calls import CallResult, FlowWorld, run_call
from paywitness.tools.policy_test.flow_evidence import run_event, run_inquiry
from paywitness.tools.policy_test.recognition import SECRET, CaseError, call_of, with_credentials_as_written

Facts = dict[str, str]


@dataclass(slots=True)
class FlowRun:
    """One flow while it runs."""

    provider: Provider
    world: FlowWorld = field(init=False)
    _steps: int = 0
    _operation_of_step: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.provider = with_credentials_as_written(self.provider)
        self.world = FlowWorld(self.provider)
        for policy in self.provider.policies[:1]:
            for account in policy.accounts.named:
                for credential in account.credential_hashes:
                    self._map_listed(policy, credential)

    def _map_listed(self, policy: Policy, credential: str) -> None:
        """Map the listed credentials, as a start does."""
        key = credential_key(policy.key_provider, credential)
        marks = {named_mark(name): MarkSource.POLICY for name in policy.accounts.listing(credential)}
        self.world.journal.rows[key] = LedgerRow(key, 1, marks_to_text(marks))

    def run_step(self, step: Step) -> Facts:
        """Run the next step, and return the facts after it. Raises CaseError if it cannot be run."""
        self._steps += 1
        self.world.now += step.pause_s
        self.world.journal.postings.clear()
        if step.request is not None:
            return self._call(step, step.request)
        if step.inquiry is not None:
            result = run_inquiry(self.world, self._operation_asked_about(step), step.inquiry)
        elif step.event is not None:
            result = run_event(self.world, step.event)
        else:
            return {}
        facts = {
            "found": result.found,
            "found_by": result.found_by,
            "class": result.result_class,
            "action": result.action,
        }
        outcome = {"outcome": result.operation.outcome} if result.operation is not None else {}
        return facts | outcome | self._facts_of(result.operation, None)

    def _call(self, step: Step, request: GivenRequest) -> Facts:
        call, book = call_of(request, self.provider), PolicyBook.of([self.provider])
        number = self._steps
        found = recognise(call, self.provider, book.candidates, SECRET, lambda: f"step-{number}")
        if found is None:
            refused = self.provider.unmatched is UnmatchedCalls.REFUSE
            return {"operation": NONE, **(_refused(Problem.OPERATION_NOT_ALLOWED) if refused else {"sent": "yes"})}
        if isinstance(found, RecognitionRefusal):
            return {"operation": found.policy.operation if found.policy else NONE, **_refused(found.problem)}
        result = run_call(self.world, found, f"op_{number:03}", step.attempt)
        if result.operation is not None:
            self._operation_of_step[number] = result.operation.id
        facts = _call_facts(result) | self._facts_of(result.operation, result.payment)
        return facts | {"operation": found.policy.operation}

    def _operation_asked_about(self, step: Step) -> Operation:
        asked = step.of if step.of is not None else max(self._operation_of_step, default=0)
        if asked not in self._operation_of_step:
            raise CaseError(f"step {asked} has no operation to inquire about")
        return self.world.journal.operations[self._operation_of_step[asked]]

    def _facts_of(self, operation: Operation | None, refused_on: Payment | None) -> Facts:
        facts = _posting_facts(self.world.journal.postings)
        if operation is not None:
            operation = self.world.journal.operations[operation.id]
            facts |= {
                "operation": operation.operation,
                "state": operation.state,
                "reference": operation.reference or NONE,
                "incident": operation.incident or NONE,
            }
        payment = self._payment(operation, refused_on)
        if payment is not None:
            facts |= _balance_facts(payment)
        intent = self._intent(operation, payment)
        return facts | ({"safe_to_pay": self._safe_to_pay(intent)} if intent is not None else {})

    def _payment(self, operation: Operation | None, refused_on: Payment | None) -> Payment | None:
        payment_id = refused_on.id if refused_on is not None else operation.payment if operation is not None else ""
        return self.world.journal.payment(payment_id) or refused_on

    def _intent(self, operation: Operation | None, payment: Payment | None) -> str | None:
        guard = operation.guard if operation is not None else None
        if payment is not None and payment.intent is not None:
            guard = payment.intent
        return guard.label if guard is not None and guard.kind is GuardKind.INTENT else None

    def _safe_to_pay(self, intent: str) -> str:
        """Whether no operation of the intent is, or can become, a payment that has not been given back."""
        for operation in self.world.journal.operations.values():
            guard = operation.guard
            if guard is None or guard.kind is not GuardKind.INTENT or guard.label != intent:
                continue
            if unsafe_reason(operation) is not None and not self._is_given_back(operation):
                return "no"
            payment = self.world.journal.payment(operation.payment)
            if (
                operation.paid_elsewhere
                and payment is not None
                and hold_of_payment(payment) in {IntentHold.PAID, IntentHold.GIVING_BACK}
            ):
                return "no"
        return "yes"

    def _is_given_back(self, operation: Operation) -> bool:
        payment = self.world.journal.payment(operation.payment)
        stands = operation.incident is None and is_paid(operation)
        return stands and payment is not None and hold_of_payment(payment) is IntentHold.REFUNDED


def _refused(problem: Problem) -> Facts:
    return {"sent": "no", "problem": problem, "status": str(PROBLEMS[problem].status_code), "outcome": NONE}


def _call_facts(result: CallResult) -> Facts:
    reply = result.reply
    return {
        "sent": "yes" if result.sent else "no",
        "replayed": "yes" if reply.replayed else "no",
        "outcome": reply.outcome,
        "status": str(reply.status_code),
        "problem": reply.problem or NONE,
        "class": result.classification.result_class if result.classification is not None else NONE,
        "action": result.decision.action if result.decision is not None else NONE,
    }


def _number(minor_units: int | None) -> str:
    return UNKNOWN if minor_units is None else str(minor_units)


def _balance_facts(payment: Payment) -> Facts:
    return {f"balance.{name}": _number(getattr(payment, name)) for name in BALANCE_NUMBERS}


def _posting_facts(postings: list[Posting]) -> Facts:
    """Kind and amount of the postings of the step."""
    if not postings:
        return {"posting": NONE}
    return {
        "posting": "some",
        "posting.kind": ", ".join(posting.kind for posting in postings),
        "posting.amount": ", ".join(_number(posting.minor_units) for posting in postings),
    }
