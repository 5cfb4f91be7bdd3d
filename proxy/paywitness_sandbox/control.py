"""The routes under /_sandbox/, for a person with curl: read what happened, and choose what happens next.

Control requests are no arrivals: they are not logged or counted, and no fault touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import Ledger, charges_by_order, payouts_by_order, totals
from paywitness_sandbox.bank.objects import (
    DESTINATIONS_HELP,
    OUTCOMES_HELP,
    TOKENS_HELP,
    BankRefused,
    ChargeStatus,
    DisputeStatus,
    ObjectNotFound,
    PayoutStatus,
    RefundStatus,
)
from paywitness_sandbox.contract import CONTRACTS_HELP, Contract
from paywitness_sandbox.dialects.acme import charge_json, dispute_json, optional_amount, payout_json, refund_json
from paywitness_sandbox.dialects.base import InvalidField
from paywitness_sandbox.faults.registry import FAULTS, UnknownFault, describe_faults
from paywitness_sandbox.faults.selection import InvalidSchedule, Schedule
from paywitness_sandbox.messages import (
    ArrivalLog,
    InvalidBody,
    Request,
    SandboxResponse,
    error_response,
    json_response,
    misuse,
)
from paywitness_sandbox.options import SandboxOptions
from paywitness_sandbox.provider import ROUTES
from paywitness_sandbox.webhooks.events import UnknownMode, describe_modes
from paywitness_sandbox.webhooks.publisher import EventPublisher

PREFIX = "_sandbox"
LEDGER_LIMIT_DEFAULT = 100_000
REQUESTS_LIMIT_DEFAULT = 1_000
EVENTS_LIMIT_DEFAULT = 1_000

ROUTES_HELP = {
    "GET /_sandbox/": "this page",
    "GET /_sandbox/ledger?order=&key=&charge=&kind=&account=&limit=": "every effect on the money",
    "GET /_sandbox/requests?order=&key=&limit=": "every arrival, and its result",
    "GET /_sandbox/faults": "the schedule in force",
    "PUT /_sandbox/faults": 'a new schedule: {"seed": 7, "faults": {"drop_after_commit": 0.1}, "latency": ..., '
    '"slow_reads_s": 0.5, "read_faults": "error_500,-,hang*" | {"unauthorized": 0.2}, ...}',
    "DELETE /_sandbox/faults": "no schedule: only Sandbox-Fault headers cause faults",
    "PUT /_sandbox/contract": 'the contract of a repeated key: {"contract": "replayed"}',
    "POST /_sandbox/outage": 'an outage from now on: {"mode": "refuse" | "hang" | a fault, "duration_s": 5}',
    "POST /_sandbox/charges/{charge}/settle": 'end processing or 3DS: {"status": "succeeded" | "failed"}',
    "POST /_sandbox/charges/{charge}/reverse": "the provider takes back a charge that had succeeded",
    "POST /_sandbox/charges/{charge}/dispute": 'open a dispute: {"amount": 500}, or the rest of the charge',
    "POST /_sandbox/disputes/{dispute}/settle": 'end a dispute: {"status": "won" | "lost"}',
    "POST /_sandbox/refunds/{refund}/settle": 'end a pending refund: {"status": "succeeded" | "failed"}',
    "POST /_sandbox/refunds/{refund}/fail": "a refund that had succeeded fails after all",
    "POST /_sandbox/payouts/{payout}/settle": 'end a pending payout: {"status": "paid" | "failed"}',
    "POST /_sandbox/payouts/{payout}/reverse": "a payout that was paid comes back",
    "GET /_sandbox/webhooks?type=&object=&limit=": "the endpoint, the events sent, and their results",
    "PUT /_sandbox/webhooks": 'send events: {"url": "http://...", "secret": "whsec_test", '
    '"scheme": "hmac_sha256" | "stripe", "mode": "normal", "delay_s": 0, "events": ["charge.*"], "tries_max": 5}',
    "DELETE /_sandbox/webhooks": "send no more events; those sent stay listed",
    "POST /_sandbox/webhooks/{event}/resend": "send an event once more, properly signed",
    "POST /_sandbox/reset": "empty the ledger and everything else, back to the options of the start",
}
HEADERS_HELP = {
    "Sandbox-Fault": "the fault of each arrival: `drop_after_commit`, `error_503,-,slow(slow_s=0.5)`, `html_502*`",
    "Sandbox-Webhook": "how the events of this request are sent: `early`, `late(delay_s=2)`, `twice`, `forged`, ...",
    "Sandbox-Contract": "the contract for this request: " + ", ".join(Contract),
}


class ControlledSandbox(Protocol):
    """The parts of the sandbox that the control routes use."""

    @property
    def options(self) -> SandboxOptions: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def arrivals(self) -> ArrivalLog: ...
    @property
    def bank(self) -> Bank: ...
    @property
    def contract(self) -> Contract: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def webhooks(self) -> EventPublisher: ...
    def set_contract(self, name: str) -> None: ...
    def set_schedule(self, source: Mapping[str, object]) -> None: ...
    def add_outage(self, source: Mapping[str, object]) -> None: ...
    def reset(self) -> None: ...


ControlAction = Callable[[ControlledSandbox, Request], SandboxResponse]


def control(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    path = request.segments[1:]
    pattern = "/".join((path[0], "{}", path[2]) if len(path) == 3 else path)
    action = ACTIONS.get((request.method, pattern))
    if action is None:
        message = f"There is no {request.method} {request.path} here."
        return error_response(404, "sandbox_error", message, code="route_missing", routes=list(ROUTES_HELP))
    try:
        sandbox.webhooks.mode_of(request)  # before anything is done
        return action(sandbox, request)
    except UnknownMode as error:
        return misuse(str(error), error.code, known_modes=describe_modes())
    except UnknownFault as error:
        return misuse(str(error), "unknown_fault", known_faults=sorted(FAULTS))
    except ObjectNotFound as error:
        return error_response(404, "sandbox_error", str(error), code="resource_missing")
    except BankRefused as error:
        return error_response(409, "sandbox_error", error.message, code=error.code)
    except (InvalidBody, InvalidField, InvalidSchedule, ValueError) as error:
        return misuse(str(error), "invalid_control")


def show_help(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    return page_response(
        {
            "what": "A payment provider that fails on demand, and a ledger of every effect.",
            "contract": sandbox.contract,
            "contracts": CONTRACTS_HELP,
            "routes": ROUTES_HELP,
            "request_headers": HEADERS_HELP,
            "provider_routes": [f"{route.method} {route.pattern}" for route in ROUTES],
            "sources": TOKENS_HELP,
            "destinations": DESTINATIONS_HELP,
            "refund_outcomes": OUTCOMES_HELP,
            "faults": describe_faults(sandbox.options.fault_defaults),
            "webhook_modes": describe_modes(),
        }
    )


def show_ledger(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    query = request.query
    wanted = {name: query[name] for name in ("key", "order", "charge", "kind", "account") if name in query}
    found = sandbox.ledger.find(**wanted)
    by_order, paid_out = charges_by_order(found), payouts_by_order(found)
    newest = found[-limit_in(query, LEDGER_LIMIT_DEFAULT) :]
    return page_response(
        {
            "entries": [entry.as_json() for entry in newest],
            "entries_found": len(found),
            "charges_by_order": by_order,
            "duplicates_by_order": {order: count for order, count in by_order.items() if count > 1},
            "payouts_by_order": paid_out,
            "duplicate_payouts_by_order": {order: count for order, count in paid_out.items() if count > 1},
            "totals": totals(found),
            "entries_max": sandbox.ledger.entries_max,
        }
    )


def show_requests(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    log, query = sandbox.arrivals, request.query
    found = log.find(query.get("key"), query.get("order"))
    newest = found[-limit_in(query, REQUESTS_LIMIT_DEFAULT) :]
    return page_response(
        {
            "requests": [arrival.as_json() for arrival in newest],
            "requests_found": len(found),
            "total": log.total,
            "dropped": log.dropped,
            "requests_max": log.arrivals_max,
        }
    )


def show_faults(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    schedule = sandbox.schedule
    outages = [
        {"start_s": round(outage.start_s, 3), "duration_s": outage.duration_s, "mode": outage.mode}
        for outage in schedule.outages
    ]
    return page_response({"schedule": schedule.source, "seed": schedule.seed, "outages": outages})


def put_faults(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    sandbox.set_schedule(request.tree)
    return show_faults(sandbox, request)


def delete_faults(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    sandbox.set_schedule({})
    return show_faults(sandbox, request)


def put_contract(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    name = request.tree.get("contract")
    if not isinstance(name, str):  # None must not become the contract "none"
        raise ValueError(f"contract is one of {', '.join(Contract)}")
    sandbox.set_contract(name)
    return page_response({"contract": sandbox.contract, "means": CONTRACTS_HELP[sandbox.contract]})


def post_outage(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    sandbox.add_outage(request.tree)
    return show_faults(sandbox, request)


def post_reset(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    sandbox.reset()
    return page_response({"reset": True, "contract": sandbox.contract})


def settle_charge(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    status = ChargeStatus(status_in(request, "succeeded", "failed"))
    charge = sandbox.bank.charge(request.segments[2])
    sandbox.bank.settle(charge, status)
    return page_response(charge_json(charge, request))


def reverse_charge(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    charge = sandbox.bank.charge(request.segments[2])
    sandbox.bank.reverse(charge)
    return page_response(charge_json(charge, request))


def dispute_charge(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    charge = sandbox.bank.charge(request.segments[2])
    return page_response(dispute_json(sandbox.bank.open_dispute(charge, optional_amount(request.tree))))


def settle_dispute(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    status = DisputeStatus(status_in(request, "won", "lost"))
    dispute = sandbox.bank.dispute(request.segments[2])
    sandbox.bank.close_dispute(dispute, status)
    return page_response(dispute_json(dispute))


def settle_refund(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    status = RefundStatus(status_in(request, "succeeded", "failed"))
    refund = sandbox.bank.refund_by_id(request.segments[2])
    sandbox.bank.settle_refund(refund, status)
    return page_response(refund_json(refund))


def fail_refund(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    refund = sandbox.bank.refund_by_id(request.segments[2])
    sandbox.bank.fail_refund(refund)
    return page_response(refund_json(refund))


def settle_payout(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    status = PayoutStatus(status_in(request, "paid", "failed"))
    payout = sandbox.bank.payouts.get(request.segments[2])
    sandbox.bank.payouts.settle(payout, status)
    return page_response(payout_json(payout))


def reverse_payout(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    payout = sandbox.bank.payouts.get(request.segments[2])
    sandbox.bank.payouts.reverse(payout)
    return page_response(payout_json(payout))


def status_in(request: Request, good: str, bad: str) -> str:
    """The end that the request names; the good one by default."""
    status = request.tree.get("status", good)
    if status not in (good, bad):
        raise ValueError(f"status is {good} or {bad}")
    return str(status)


def show_webhooks(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    webhooks, query = sandbox.webhooks, request.query
    found = [
        record
        for record in webhooks.records
        if query.get("type") in (None, record.event.type) and query.get("object") in (None, record.event.data.get("id"))
    ]
    newest = found[-limit_in(query, EVENTS_LIMIT_DEFAULT) :]
    return page_response(
        {
            "endpoint": None if webhooks.endpoint is None else webhooks.endpoint.as_json(),
            "waiting": webhooks.waiting,
            "events": [record.as_json() for record in newest],
            "events_found": len(found),
            "dropped": webhooks.dropped,
        }
    )


def put_webhooks(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    if not request.tree:
        raise ValueError("an endpoint has a url and a secret; DELETE /_sandbox/webhooks turns events off")
    sandbox.webhooks.set_endpoint(request.tree)
    return show_webhooks(sandbox, request)


def delete_webhooks(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    sandbox.webhooks.set_endpoint(None)
    return show_webhooks(sandbox, request)


def resend_webhook(sandbox: ControlledSandbox, request: Request) -> SandboxResponse:
    return page_response(sandbox.webhooks.resend(request.segments[2]).as_json())


def page_response(value: object) -> SandboxResponse:
    return json_response(200, value, indent=2)


def limit_in(query: Mapping[str, str], default: int) -> int:
    limit = int(query.get("limit", default))
    if limit < 1:
        raise ValueError("limit is a number from 1 on")
    return limit


ACTIONS: Mapping[tuple[str, str], ControlAction] = {
    ("GET", ""): show_help,
    ("GET", "ledger"): show_ledger,
    ("GET", "requests"): show_requests,
    ("GET", "faults"): show_faults,
    ("PUT", "faults"): put_faults,
    ("DELETE", "faults"): delete_faults,
    ("PUT", "contract"): put_contract,
    ("POST", "outage"): post_outage,
    ("POST", "charges/{}/settle"): settle_charge,
    ("POST", "charges/{}/reverse"): reverse_charge,
    ("POST", "charges/{}/dispute"): dispute_charge,
    ("POST", "disputes/{}/settle"): settle_dispute,
    ("POST", "refunds/{}/settle"): settle_refund,
    ("POST", "refunds/{}/fail"): fail_refund,
    ("POST", "payouts/{}/settle"): settle_payout,
    ("POST", "payouts/{}/reverse"): reverse_payout,
    ("GET", "webhooks"): show_webhooks,
    ("PUT", "webhooks"): put_webhooks,
    ("DELETE", "webhooks"): delete_webhooks,
    ("POST", "webhooks/{}/resend"): resend_webhook,
    ("POST", "reset"): post_reset,
}
