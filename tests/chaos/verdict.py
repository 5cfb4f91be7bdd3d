"""The verdict: the sandbox's ledger beside what the callers were told, and what the journal says became of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.shop import Payment
from tests.e2e.conftest import Provider
from tests.e2e.judge import NO_EFFECT, is_at_rest

EXCUSED = {"journal_rollback"}  # Redis said that it may have forgotten something, as it should
# A provider that answers with another amount, or another's charge, and tells the truth when it is asked, contradicts
# itself. Where its answer is recorded last, by a spool or after a kill, that is rightly an incident.
CONTRADICTIONS = {"another_amount", "two_references"}


@dataclass
class Verdict:
    """What is wrong, by the promise that it breaks. Each is a line for a person to read."""

    double_effects: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        named = {"double effect": self.double_effects, "lost": self.lost, "stuck": self.stuck, "a lie": self.lies}
        return [f"{promise}: {line}" for promise, lines in named.items() for line in lines]


def verdict_of(payments: Sequence[Payment], operations: list[dict], provider: Provider) -> Verdict:
    verdict = Verdict()
    charges: dict[str, list[dict]] = defaultdict(list)
    for entry in provider.ledger("&kind=charge"):
        charges[entry["order"]].append(entry)
    by_order: dict[str, list[dict]] = defaultdict(list)
    contradicted = {payment.order for payment in payments if payment.is_contradicted}
    for operation in operations:
        order = operation["guard"]["shown"]
        by_order[order].append(operation)
        if not is_at_rest(operation) or operation["state"] == "requires_review":
            verdict.stuck.append(f"{operation['id']} is {operation['state']}: {operation}")
        excused = EXCUSED | (CONTRADICTIONS if order in contradicted else set())
        if operation["incident"] and operation["incident"] not in excused:
            verdict.lies.append(f"{operation['id']} is an incident, {operation['incident']}: {operation}")
    for payment in payments:
        _judge(payment, charges.pop(payment.order, []), by_order[payment.order], verdict)
    verdict.double_effects += [f"{order} was paid and nobody asked for it" for order in charges]
    return verdict


def _judge(payment: Payment, paid: list[dict], operations: list[dict], verdict: Verdict) -> None:
    order, outcomes = payment.order, Counter(answer.outcome for answer in payment.told)
    ends = Counter(operation["state"] for operation in operations)
    about = f"{order} ({payment.script or 'no fault'}) was told {dict(outcomes)}, ended as {dict(ends)}"
    if len(paid) > 1:
        verdict.double_effects.append(f"{about}, and was paid {len(paid)} times")
    if paid and ends["succeeded"] != 1:
        verdict.lost.append(f"{about}, and was paid: the journal does not say so")
    if not paid and (outcomes["succeeded"] or ends["succeeded"]):
        verdict.lies.append(f"{about}, and was not paid")
    if paid and payment.told[-1:] and payment.told[-1].outcome in NO_EFFECT:
        verdict.lies.append(f"{about}, at last {payment.told[-1].outcome}, and was paid")
    if not payment.ended and not any(operation["incident"] in CONTRADICTIONS for operation in operations):
        verdict.stuck.append(f"{about}: nobody was told how it ended")
    shown = {answer.json.get("id") for answer in payment.told if answer.status_code == 200 and not answer.problem}
    if shown - {entry["charge"] for entry in paid}:
        verdict.lies.append(f"{about}, and was shown {shown}, which is not its charge")
