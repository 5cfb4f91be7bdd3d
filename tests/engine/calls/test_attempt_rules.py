"""Rules between the parts of a call that no single part shows: what is asked before a byte leaves, what is kept of an
answer, which amounts an answer is held against, and what the gate and the budgets are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paywitness.core.account_rules import BackgroundCredentials
from paywitness.core.admission import AdmissionRefusal, TrafficClass
from paywitness.core.circuit import CallGroup, CircuitDecision, CircuitState, CircuitView
from paywitness.core.claim import Claim, ClaimVerdict
from paywitness.core.credential_owners import PEER_MARK, MarkSource, credential_key
from paywitness.core.decide import Action, Decision
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.fallback import FallbackCause
from paywitness.core.identity import credential_in
from paywitness.core.operation import Guard, GuardKind, Operation, RepeatPaymentRule, State
from paywitness.core.payment import Payment
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import Effect, ResultClass
from paywitness.engine.calls.attempts import AttemptResult, AttemptSender, _FinishedAttempt
from paywitness.engine.calls.context import attempt_summary, background_context, decision_context_of
from paywitness.engine.calls.gate import Gate, GateDecision, RetryBudget, _falls_back_when_open
from paywitness.engine.calls.refused_lookups import RefusedLookups
from paywitness.engine.calls.stored_messages import StoredRequest, with_header
from paywitness.journal.base import OperationQuery
from paywitness.journal.ledger import payment_row
from paywitness.limits.admission import NotAdmitted
from paywitness.limits.circuits import Probe
from paywitness_sandbox.server import Sandbox
from tests.core.samples import answered, operation, read, response
from tests.engine.calls.test_fallback import credentials_sent
from tests.engine.conftest import close
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, make_world, outcome, problem_type, until, waiting_caller

BEARER = {"Authorization": "Bearer test", "Content-Type": "application/json"}
LIMITED = Evidence(NetworkPhase.RESOLVING, 0, WireFault.NOT_ADMITTED, None, "limits", 0.0)


async def only_operation(world: World) -> Operation:
    (found,) = await world.journal.find_operations(OperationQuery())
    return found


def sale(world: World) -> Policy:
    return next(one for one in world.engine.book.providers["acme"].policies if one.operation == "sale")


# --- before a byte leaves


class Wire:
    """An upstream that asks for the right to send, and sends nothing."""

    def __init__(self) -> None:
        self.allowed: bool | None = None
        self.reuse: bool | None = None
        self.headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(
        self, origin: Any, request: Any, timeouts: Any, *, may_send: Callable[[], bool], reuse: bool, on_late: Any
    ) -> Evidence:
        self.allowed, self.reuse, self.headers = may_send(), reuse, request.headers
        return LIMITED


class Ages:
    def __init__(self, age_s: float) -> None:
        self.age_s = age_s

    def high_age_s(self, at: float, provider: str) -> float:
        return self.age_s

    def note_response(self, provider: str, response: object) -> None:
        pass


async def sent(world: World, policy: Policy, age_s: float = 0.0, **changes: Any) -> Wire:
    """An attempt of something in doubt whose first send was so long ago."""
    wire, at = Wire(), world.clock.now()
    found = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=2, first_sent_at=at, **changes)
    headers = ((b"Accept-Encoding", b"gzip, br"), (b"Host", b"acme.test"))
    request = StoredRequest("POST", "/v1/charges", headers, b"{}")
    context = background_context(found, policy, request, "token", world.clock)
    leases = SimpleNamespace(outlasts=lambda *_: True)
    sender = AttemptSender(wire, leases, world.clock, Ages(age_s))  # type: ignore[arg-type]
    await sender.send(context, found, policy, lambda *_: None)
    return wire


async def test_a_re_send_whose_connection_took_too_long_does_not_leave_after_the_key_window(world: World) -> None:
    policy = sale(world)
    until_s = policy.contract.resend_until_s
    assert [(await sent(world, policy, age_s)).allowed for age_s in (until_s - 1, until_s)] == [True, False]


async def test_what_may_not_be_sent_twice_goes_over_a_connection_of_its_own(world: World) -> None:
    policy = sale(world)
    once = replace(policy, contract=replace(policy.contract, errors_under_key=ErrorsUnderKey.NOT_STORED))
    assert [(await sent(world, one)).reuse for one in (policy, once)] == [True, False]


async def test_a_provider_is_asked_only_for_codings_that_can_be_read(world: World) -> None:
    assert dict((await sent(world, sale(world))).headers)[b"Accept-Encoding"] == b"gzip"


def test_a_header_that_is_written_stands_there_once_however_often_it_came() -> None:
    given = ((b"Key", b"a"), (b"X", b"1"), (b"key", b"b"), (b"KEY", b"c"))
    assert with_header(given, b"Key", b"ours") == ((b"Key", b"ours"), (b"X", b"1"))


async def test_how_old_a_key_may_be_is_told_by_all_clocks_and_not_by_this_call(world: World) -> None:
    found = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=1, first_sent_at=world.clock.now())
    context = background_context(found, sale(world), None, "token", world.clock)
    asked = decision_context_of(found, sale(world), context, world.clock, Ages(9_000.0), tries=0)
    assert asked.first_send_age_s == 9_000.0


async def test_a_request_that_could_not_be_stored_whole_is_not_sent_by_the_resolver(world: World) -> None:
    request = StoredRequest("POST", "/v1/charges", (), b"")
    for request_hash, available in (("", True), ("hash", False)):
        found = operation(request_hash=request_hash)
        assert background_context(found, sale(world), request, "t", world.clock).request_available is available


async def test_a_repeat_is_sent_under_its_own_credential(world: World) -> None:
    """The first one's may have expired: then every repeat would be refused, and the outcome stay unknown."""
    lost = await world.charge(fault="drop_after_commit*", timeout_s=1.5)
    assert lost.status_code == 504
    world.sandbox.set_schedule({})
    secret = world.engine.vault.identity_secret
    old, new = (credential_in(((b"Authorization", f"Bearer {one}".encode()),), secret) for one in ("test", "new"))
    key = credential_key(sale(world).key_provider, new)
    await world.engine.credential_owners.add_marks(key, {PEER_MARK + old: MarkSource.OPERATOR})
    with credentials_sent(world.sandbox) as used:
        await world.charge(headers={"Authorization": "Bearer new"}, fault="-")
    assert set(used) == {b"Bearer new"}


# --- what is kept and told of an answer


async def test_the_refusal_of_a_re_send_is_not_kept_for_replays(world: World) -> None:
    await world.charge(fault="drop_after_commit,unauthorized*")
    found = await only_operation(world)
    assert (found.state, found.attempts > 1) == (State.UNKNOWN, True)
    assert (await world.journal.sealed(found.id))[1] is None


async def test_a_credential_that_was_refused_is_not_noted_for_the_account(world: World) -> None:
    await world.charge(fault="unauthorized*")
    found = await only_operation(world)
    assert not await world.journal.accepts_credential(found.account, found.credential)


async def test_an_answer_to_a_follow_up_is_held_against_the_amount_of_its_payment(world: World) -> None:
    """The request names no currency, so that only the payment knows what was asked for."""
    await world.charge(order="refunded")
    charge = next(iter(world.sandbox.ledger.find(order="refunded"))).charge
    headers = {**BEARER, "Idempotency-Key": "refund", "Sandbox-Fault": "wrong_amount"}
    reply = await world.post(f"/v1/charges/{charge}/refunds", {"amount": 500}, headers)
    assert outcome(reply) == "unknown"


async def test_what_may_still_arrive_of_a_timed_out_attempt_is_waited_for(sandbox: Sandbox) -> None:
    timeouts = ("  connect: 2s\n  first_byte: 5s ", "  connect: 2s\n  write: 300ms\n  first_byte: 300ms ")
    world = await make_world(sandbox, timeouts, *WITHOUT_KEYS, harvest_s=30.0)
    sandbox.set_contract("none")
    lost = await world.charge(fault="hang_after_commit", timeout_s=1.0)
    assert outcome(lost) == "unknown"
    found = await only_operation(world)
    assert found.no_bytes_after_at is not None
    assert found.no_bytes_after_at - found.updated_at > 25.0
    await close(world)


async def test_a_repeat_of_a_doubt_that_the_journal_does_not_take_is_unknown_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.charge(fault="drop_after_commit*", timeout_s=1.0)

    async def fail(change: object) -> None:
        raise JournalUnavailable("down")

    monkeypatch.setattr(world.journal, "record", fail)
    reply = await world.charge()
    assert (reply.status_code, problem_type(reply)) == (504, "unknown")


async def test_an_error_of_one_attempt_does_not_end_the_waiting_for_another(world: World) -> None:
    duplicates, at = world.engine.pipeline.duplicates, world.clock.now() - 1000.0
    both = operation(state=State.UNKNOWN, doubt=frozenset({1, 2}), attempts=2, checks_done=1, updated_at=at + 900)
    both = both.changed(no_bytes_after_at=at, answered_attempts=frozenset({2}), reference="ch_1")
    context = waiting_caller(world, both)
    assert not duplicates._has_told_all(context, both, 0.0, None)
    assert duplicates._has_told_all(context, both.changed(doubt=frozenset({2})), 0.0, None)


async def test_a_duplicate_waits_for_the_operation_as_soon_as_that_is_known(world: World) -> None:
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=1)"))
    await until(lambda: world.arrivals)
    second = asyncio.ensure_future(world.charge())
    (operation_id,) = world.engine.in_flight
    await until(lambda: world.engine.pipeline.duplicates.waiters.is_awaited(operation_id) or first.done())
    assert not first.done()
    assert [reply.status_code for reply in await asyncio.gather(first, second)] == [200, 200]


# --- calls that our limits refuse


async def test_only_that_nothing_is_known_is_shared_and_only_with_equal_calls() -> None:
    asked: list[str] = []
    answered = asyncio.Event()
    verdicts = {"a": ClaimVerdict.ABSENT, "b": ClaimVerdict.REPLAY}

    async def claim(context: Any, *, permitted: bool) -> Claim:
        asked.append(context.identity.key + context.identity.fingerprint)
        await answered.wait()
        return Claim(verdicts[context.identity.key], None, 0.0)

    def of(key: str, fingerprint: str) -> Any:
        return SimpleNamespace(identity=SimpleNamespace(key=key, fingerprint=fingerprint, credential="c"))

    lookups = RefusedLookups(SimpleNamespace(claim=claim))  # type: ignore[arg-type]
    calls = [asyncio.ensure_future(lookups.claim(of(*one))) for one in ("a1", "a1", "a2", "b1", "b1")]
    for _ in range(10):
        await asyncio.sleep(0)  # all have asked by now, or wait for one that has
    assert sorted(asked) == ["a1", "a2", "b1"]
    answered.set()
    assert [found.verdict for found in await asyncio.gather(*calls)] == [verdicts[key] for key in "aaabb"]
    assert sorted(asked) == ["a1", "a2", "b1", "b1"]


# --- the gate and the budgets


async def test_while_the_journal_may_have_forgotten_nothing_new_goes_to_a_provider_that_dedupes_nothing(
    sandbox: Sandbox,
) -> None:
    world = await make_world(sandbox, *WITHOUT_KEYS)
    world.engine.gate.recently_rolled_back = lambda: True
    reply = await world.charge()
    assert (reply.status_code, outcome(reply), len(world.arrivals)) == (503, "not_sent", 0)
    await close(world)


async def test_while_an_end_may_be_forgotten_the_background_sends_nothing(world: World) -> None:
    found, gate = operation(state=State.UNKNOWN, doubt=frozenset({1})), world.engine.gate
    context = background_context(found, sale(world), None, "token", world.clock)
    gate.end_may_be_lost = lambda lost: True
    decision = await gate.before_attempt(context, found, sale(world))
    assert isinstance(decision, GateDecision)
    assert not decision.as_evidence().sent
    assert decision.limit_info.by == "journal_rolled_back"


async def test_a_call_whose_caller_left_in_the_queue_does_not_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, acquire = [True], Gate.acquire

    async def late(self: Gate, *arguments: Any) -> Any:
        there[0] = False
        return replace(await acquire(self, *arguments), waited=True)

    monkeypatch.setattr(Gate, "acquire", late)
    await world.charge(still_there=lambda: there[0])
    assert len(world.arrivals) == 0
    assert sum(one.in_flight for one in world.engine.gate.admission.stats()) == 0


async def test_a_probe_that_gets_no_place_is_given_back(world: World) -> None:
    probe, ended = Probe("acme", CallGroup.WRITE, "lease", fleet=False), []

    class Circuits:
        def view(self, *_: object) -> CircuitView:
            return CircuitView(CircuitDecision.PROBE, CircuitState.HALF_OPEN)

        async def take_probe(self, *_: object, repeatable: bool) -> Probe:
            return probe

        async def end_probe(self, one: Probe, sample: object) -> None:
            ended.append(one)

    class Full:
        async def admit(self, *_: object, degraded: bool) -> NotAdmitted:
            return NotAdmitted(AdmissionRefusal.QUEUE_FULL, 1.0)

    gate = Gate(Circuits(), Full(), lambda: world.engine.book, world.clock, 10)  # type: ignore[arg-type]
    decision = await gate.acquire(sale(world), CallGroup.WRITE, TrafficClass.HIGH, 1.0, "")
    assert (decision.granted, ended) == (False, [probe])


def test_only_a_call_with_an_intent_falls_back_when_the_circuit_is_open() -> None:
    policy: Any = SimpleNamespace(fallbacks=[SimpleNamespace(when={FallbackCause.CIRCUIT_OPEN})])
    found = []
    for kind in (GuardKind.INTENT, GuardKind.TARGET, None):
        guard = SimpleNamespace(kind=kind) if kind is not None else None
        context: Any = SimpleNamespace(identity=SimpleNamespace(guard=guard))
        found.append(_falls_back_when_open(context, policy))
    assert found == [True, False, False]


async def test_a_retry_that_our_limits_kept_from_the_wire_is_given_back_and_did_not_fail() -> None:
    told: list[str] = []

    class Budgets:
        async def refund(self, grant: object) -> None:
            told.append("refund")

        def failed(self, grant: object) -> None:
            told.append("failed")

    grant: Any = object()
    await RetryBudget(Budgets(), None).report_result(grant, LIMITED, None)  # type: ignore[arg-type]
    assert told == ["refund"]


# --- fallbacks


async def test_another_accounts_route_never_sees_the_callers_credential(world: World) -> None:
    headers = ((b"Authorization", b"Bearer caller"), (b"X", b"1"))
    of_route = world.engine.fallbacks._headers_for_route
    assert of_route(BackgroundCredentials((("Authorization", "NOT_SET"),)), headers) == ((b"X", b"1"),)
    assert of_route(None, headers) == headers


# --- who knows what, and who is told


def finished(world: World, *, number: int, still_there: bool = True) -> Any:
    """An attempt that our provider has refused without effect."""
    refused = read(ResultClass.RATE_LIMITED, Effect.NONE)
    evidence = answered(response(429))
    summary = attempt_summary(number, evidence, refused, sale(world))
    context = waiting_caller(world, operation(), still_there=still_there)
    return _FinishedAttempt(context, sale(world), AttemptResult(evidence, refused), summary, 1, 0.0)


async def test_an_attempt_that_a_repeat_has_overtaken_decides_nothing(world: World) -> None:
    recorder = world.engine.pipeline.attempt_recorder
    current = operation(state=State.UNKNOWN, doubt=frozenset({1, 2}), attempts=2, attempt_under_way=True)
    _, _, decision = recorder._decide(current, finished(world, number=1), budget_allows=True)
    assert (decision.action, decision.because) == (Action.STOP, "attempt_still_under_way")


async def test_what_the_caller_of_a_lost_sidecar_was_told_stays_unknown(world: World) -> None:
    recorder = world.engine.pipeline.attempt_recorder
    guard = Guard(GuardKind.INTENT, "g", "order-1", RepeatPaymentRule.BLOCK)
    after = operation(state=State.SUCCEEDED, attempts=2, guard=guard)
    stop = Decision(Action.STOP, "succeeded", 0.0, effect_may_exist=True)
    for lost, pending in ((False, True), (True, False)):
        one = finished(world, number=2)
        context = replace(one.context, deadline_mono=world.clock.mono() + 1.0)  # the write may take longer
        before = operation(delivery_unknown=lost, attempts=2)
        recorder._write_context(before, after, stop, replace(one, context=context), None)
        assert context.progress.delivery_pending is pending


async def test_a_caller_that_was_told_something_else_has_not_heard_of_the_payment(world: World) -> None:
    duplicates = world.engine.pipeline.duplicates
    guard = Guard(GuardKind.INTENT, "g", "order-1", RepeatPaymentRule.BLOCK)
    made = operation(state=State.SUCCEEDED, undelivered=True, guard=guard)
    context = waiting_caller(world, made)
    told: Any = SimpleNamespace(operation_id="op_of_another", outcome="succeeded")
    await duplicates.record_whether_delivered(context, told, is_delivered=True)
    assert not duplicates.waiters.was_heard(made.id)


@pytest.mark.parametrize("refunded", [0, 100])
async def test_a_call_that_waited_for_a_payment_that_was_given_back_is_told_so(world: World, refunded: int) -> None:
    payment = Payment("op_1", "acme", "a", currency="EUR", authorised=100, captured=100, refunded=refunded, voided=0)
    row = payment_row(
        replace(payment, disputed=0, paid=True, created=True, given_back=bool(refunded), final=True), None
    )

    async def rows(keys: tuple[str, ...]) -> list[Any]:
        return [row]

    journal: Any = SimpleNamespace(ledger_rows=rows)
    duplicates = replace(world.engine.pipeline.duplicates, journal=journal)
    made = operation(state=State.SUCCEEDED, payment="op_1", key="the first one's")
    context = waiting_caller(world, operation(key="another"))
    assert await duplicates._is_given_back(context, made) is bool(refunded)
