"""What a trial says is what the engine does: the shipped cases and flows of acme through the real engine and real
sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paywitness.core.call import CallerOptions
from paywitness.core.payment import (
    payment_key,
)
from paywitness.journal.ledger import payment_from_row
from paywitness.policy.book import load_content
from paywitness.tools.policy_test.case import Case, GivenResponse, Precondition, body_bytes, fill_response, response_of
from paywitness.tools.policy_test.case_evaluation import evaluate_case
from paywitness.tools.policy_test.case_file import read_case_file
from paywitness.tools.policy_test.flow import BALANCE_NUMBERS, Flow, Step
from paywitness.tools.policy_test.flow_evaluation import FlowRun
from tests.engine.conftest import close
from tests.engine.world import make_world

TOP = Path(__file__).resolve().parents[2]
ACME = load_content((TOP / "policies" / "acme.yaml").read_bytes(), "acme.yaml")
FILE = TOP / "policies" / "tests" / "acme.yaml"


def answered_at_once(case: Case) -> bool:
    """An attempt with a whole answer, after which the engine answers its caller."""
    if case.attempt is None or case.attempt.response is None or case.precondition != Precondition():
        return False
    facts = evaluate_case(case, ACME).facts
    return facts["operation"] != "none" and facts["status"] != "none"


CASES = [case for case in read_case_file(FILE.read_bytes(), str(FILE)).cases if answered_at_once(case)]


class Provider:
    """Answers every request alike, with the stamp that it carries where the answer names it."""

    answer = GivenResponse()
    requests = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.json() if await request.read() else {}
        names = {"operation_id": body.get("metadata", {}).get("paywitness", "")}
        response = response_of(fill_response(self.answer, names))
        headers = {name.decode(): value.decode() for name, value in response.headers}
        return web.Response(status=response.status_code, body=response.body, headers=headers)


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, str]]:
    answering, application = Provider(), web.Application()
    application.router.add_route("*", "/{path:.*}", answering.handle)
    async with TestServer(application) as server:
        yield answering, str(server.make_url("")).rstrip("/")


def test_there_are_cases_enough_to_speak_for_the_rest() -> None:
    assert len(CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_engine_comes_to_what_the_trial_says(case: Case, provider: tuple[Provider, str]) -> None:
    answering, url = provider
    assert case.attempt is not None
    assert case.attempt.response is not None
    answering.answer = case.attempt.response
    world = await make_world(SimpleNamespace(url=url))  # type: ignore[arg-type]  # all that it asks of a sandbox
    try:
        headers = {name: value for name, value in case.request.headers.items() if not name.startswith("Paywitness-")}
        wishes = CallerOptions(key=case.request.headers.get("Paywitness-Key"))
        body = body_bytes(case.request.body, ACME.policies[0].encoding)
        reply = await world.post(case.request.target, body, headers, wishes)
        operation = await world.journal.read(reply.operation_id or "")
    finally:
        await close(world)
    assert operation is not None
    facts = evaluate_case(case, ACME).facts
    came = {
        "operation": operation.operation,
        "key_from": operation.key_source,
        "amount": str(operation.money) if operation.money is not None else "none",
        "class": operation.result_class,
        "effect": operation.effect,
        "state": operation.state,
        "because": operation.because,
        "reference": operation.reference or "none",
        "outcome": reply.outcome,
        "status": str(reply.status_code),
        "problem": reply.problem or "none",
    }
    assert came == {name: facts[name] for name in came}


# --- flows


def calls_at_the_beginning(flow: Flow) -> tuple[Step, ...]:
    """The steps up to the first that the engine would not take at once: an inquiry, an event, a lost response."""
    taken = []
    for step in flow.steps:
        unanswered = step.attempt is not None and step.attempt.response is None
        if step.request is None or step.pause_s or unanswered:
            break
        taken.append(step)
    return tuple(taken)


FLOWS = [
    (flow.name, calls_at_the_beginning(flow))
    for flow in read_case_file(FILE.read_bytes(), str(FILE)).flows
    if len(calls_at_the_beginning(flow)) > 1
]


def test_there_are_flows_enough_to_speak_for_the_rest() -> None:
    assert len(FLOWS) >= 5
    assert sum(len(steps) for _, steps in FLOWS) >= 20


@pytest.mark.parametrize("steps", [steps for _, steps in FLOWS], ids=[name for name, _ in FLOWS])
async def test_the_engine_takes_the_steps_of_a_flow_as_the_trial_says(
    steps: tuple[Step, ...], provider: tuple[Provider, str]
) -> None:
    answering, url = provider
    world = await make_world(SimpleNamespace(url=url))  # type: ignore[arg-type]  # all that it asks of a sandbox
    run = FlowRun(ACME)
    try:
        for step in steps:
            facts, request = run.run_step(step), step.request
            assert request is not None
            response = step.attempt.response if step.attempt is not None else None
            answering.answer, answering.requests = response or GivenResponse(599), 0
            headers = {name: value for name, value in request.headers.items() if not name.startswith("Paywitness-")}
            wishes = CallerOptions(distinct=request.headers.get("Paywitness-Distinct"))
            body = body_bytes(request.body, ACME.policies[0].encoding)
            reply = await world.post(request.target, body, headers, wishes)
            came = {
                "sent": "yes" if answering.requests else "no",
                "replayed": "yes" if reply.replayed else "no",
                "outcome": reply.outcome,
                "status": str(reply.status_code),
                "problem": reply.problem or "none",
            }
            operation = await world.journal.read(reply.operation_id or "")
            if operation is not None:
                came |= {"incident": operation.incident or "none", "state": operation.state}
                (row,) = await world.journal.ledger_rows((payment_key(operation.payment),))
                payment = payment_from_row(row) if row is not None else None
                assert (payment is not None) == ("balance.captured" in facts)
                if payment is not None:
                    numbers = {name: getattr(payment, name) for name in BALANCE_NUMBERS}
                    came |= {f"balance.{name}": "null" if of is None else str(of) for name, of in numbers.items()}
            assert came == {name: facts[name] for name in came}
    finally:
        await close(world)
