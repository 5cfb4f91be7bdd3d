"""The judge: the sandbox's ledger beside what the callers were told and what the journal says became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.e2e.callers import Payment
from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Sidecar

NO_EFFECT = {"failed", "declined", "not_sent", "absent"}
OPEN_STATES = ("prepared", "sending", "backoff", "unknown", "pending")


def is_at_rest(operation: dict) -> bool:
    """Ended, or in front of a person; nobody holds it, and nothing is due."""
    at_rest = operation["state"] in {"succeeded", "failed", "requires_review"}
    return at_rest and operation["next_check_at"] is None and operation["held_until"] is None


def is_free(operation: dict) -> bool:
    """Ended with nothing done: the next call under its key was another operation."""
    return operation["state"] == "failed" and operation["released"]


def all_at_rest(sidecar: Sidecar) -> bool:
    query = "".join(f"&state={state}" for state in OPEN_STATES)
    return not sidecar.admin(f"/v1/operations?limit=1{query}").json["operations"]


def timeline(sidecar: Sidecar, operation_id: str) -> list[dict]:
    return list(sidecar.operation(operation_id)["timeline"])


def posts(provider: Provider) -> list[dict]:
    return [arrival for arrival in provider.arrivals() if arrival["method"] == "POST"]


def paid_by_order(provider: Provider) -> Counter[str]:
    return Counter(entry["order"] for entry in provider.ledger("&kind=charge"))


def complaints(payments: Iterable[Payment], operations: list[dict], provider: Provider) -> list[str]:
    paid = paid_by_order(provider)
    by_order: dict[str, list[dict]] = {}
    for operation in operations:
        by_order.setdefault(operation["guard"]["shown"], []).append(operation)
    charged = {entry["charge"] for entry in provider.ledger("&kind=charge")}
    found = [f"{operation['id']} is stuck: {operation}" for operation in operations if not is_at_rest(operation)]
    found += [f"{operation['id']}: {operation['incident']}" for operation in operations if operation["incident"]]
    for payment in payments:
        order, outcomes = payment.order, [answer.outcome for answer in payment.told]
        if paid[order] > 1:
            found.append(f"{order} was paid {paid[order]} times: {outcomes}")
        if "succeeded" in outcomes and paid[order] != 1:
            found.append(f"{order} was told paid, and it is not: {outcomes}")
        if outcomes and outcomes[-1] in NO_EFFECT and paid[order]:
            found.append(f"{order} was told not paid, and it is: {outcomes}")
        ends = Counter(operation["state"] for operation in by_order.get(order, []))
        if ends["succeeded"] + ends["requires_review"] != (1 if paid[order] else 0):
            found.append(f"{order} is paid {paid[order]} times and ends as {dict(ends)}")
        if ends["succeeded"] and not {each["reference"] for each in by_order[order] if each["reference"]} <= charged:
            found.append(f"{order} names a charge that the provider does not know")
    return found
