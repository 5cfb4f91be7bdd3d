"""What an inquiry, a cancel and late evidence may say, and of which attempt, account and address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paywitness.core.account_rules import BackgroundCredentials, OAuth2
from paywitness.core.classify import ResponseRule
from paywitness.core.credential_owners import CredentialRelation
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.inquiry import BelongsFields, Cancel, FoundObject, Inquiry, InquiryReason
from paywitness.core.lifecycle import Event, IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import AttemptSummary, Finding, FindingKind, Guard, GuardKind, Lease, Operation, State
from paywitness.core.payment import Payment
from paywitness.core.policy import Policy, ResolutionRules
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.core.template import Placeholder, Template
from paywitness.engine.calls.context import background_context
from paywitness.engine.calls.gate import RetryBudget
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.durability.journal_writer import JournalWriter
from paywitness.engine.resolution.background_credentials import CredentialCandidate, CredentialSource
from paywitness.engine.resolution.external_evidence import (
    ExternalEvidenceRecorder,
    _check_inquiry_applies,
    _NothingNewError,
)
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.engine.resolution.late_evidence import LateEvidence, _conclude
from paywitness.engine.resolution.resolver import _miss_is_meaningful
from paywitness.engine.webhooks.matcher import _best_generation, _Candidate
from paywitness.journal.base import OperationQuery
from paywitness.journal.ledger import payment_row
from tests.core.samples import operation, read
from tests.engine.world import World

LOST = InquiryReason.LOST_RESPONSE
CREDENTIAL = ((b"Authorization", b"Bearer test"),)


class Provider:
    """An upstream that answers whatever is asked with one response, and keeps what it was sent."""

    def __init__(self, status_code: int, body: bytes) -> None:
        self.response = Response(status_code, b"", ((b"Content-Type", b"application/json"),), body)
        self.sent: list[tuple[str, bytes]] = []

    async def send(self, origin: Any, request: Any, timeouts: Any, **_: Any) -> Evidence:
        self.sent.append((str(origin), dict(request.headers).get(b"Authorization", b"")))
        return Evidence(NetworkPhase.COMPLETE, 10, None, self.response, "", 0.1)


class Credentials:
    def __init__(self, *candidates: CredentialCandidate) -> None:
        self.given = candidates

    async def candidates(self, *_: object) -> AsyncIterator[CredentialCandidate]:
        for candidate in self.given:
            yield candidate


OWN = CredentialCandidate(CREDENTIAL, is_of_account=True, may_send=True)
STRANGERS = CredentialCandidate(CREDENTIAL, is_of_account=False, may_send=False)


def sale(world: World) -> Policy:
    return next(one for one in world.engine.book.providers["acme"].policies if one.operation == "sale")


def asking(world: World, provider: Provider, *candidates: CredentialCandidate) -> InquiryClient:
    client = world.parts.resolver.inquiry_client
    given: Any = Credentials(*(candidates or (OWN,)))
    return replace(client, upstream=provider, credentials=given)  # type: ignore[arg-type]


def doubtful(world: World, **changes: Any) -> Operation:
    at = world.clock.now() - 3600.0
    plain = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=1, first_sent_at=at, operation="sale")
    return plain.changed(upstream=sale(world).upstream, **changes)


# --- cancels

VOIDED = ResponseRule("cancel.read[0]", ResultClass.CANCELLED, when=lambda tree: True)
CANCEL = Cancel("POST", Template(("/v1/void",)), (VOIDED,))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"not json"])
async def test_an_empty_answer_to_a_cancel_cancels_nothing(world: World, body: bytes) -> None:
    client = asking(world, Provider(200, body))
    seen = await client.cancel(doubtful(world), sale(world), CANCEL, None)
    assert seen.finding.kind is not FindingKind.HIT
    assert seen.finding.classification is None


async def test_a_cancel_that_shows_another_amount_is_not_of_ours(world: World) -> None:
    asked = doubtful(world, money=Money(1099, "EUR"))
    for amount, kind in ((1099, FindingKind.HIT), (1, FindingKind.NOT_OURS)):
        client = asking(world, Provider(200, b'{"amount": %d, "currency": "EUR"}' % amount))
        assert (await client.cancel(asked, sale(world), CANCEL, None)).finding.kind is kind


async def test_a_cancel_goes_to_the_address_that_got_the_payment_and_under_a_credential_that_may_send(
    world: World,
) -> None:
    provider = Provider(200, b"{}")
    asked = doubtful(world).changed(upstream="http://first.test:81")
    await asking(world, provider, STRANGERS, OWN).cancel(asked, sale(world), CANCEL, None)
    assert [("first.test" in origin) for origin, _ in provider.sent] == [True]
    await asking(world, unasked := Provider(200, b"{}"), STRANGERS).cancel(asked, sale(world), CANCEL, None)
    assert unasked.sent == []


# --- inquiries


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"id": "ch_1", "status": "succeeded", "amount": 1099, "currency": "EUR"}', FindingKind.HIT),
        (b'{"id": "ch_1", "status": "succeeded", "amount": 1, "currency": "EUR"}', FindingKind.NOT_OURS),
        (
            b'{"id": "ch_1", "status": "succeeded", "amount": 1099, "currency": "EUR", '
            b'"metadata": {"paywitness": "op_other"}}',
            FindingKind.NOT_OURS,
        ),
    ],
)
async def test_what_an_inquiry_finds_is_held_against_amount_and_stamp(
    world: World, body: bytes, kind: FindingKind
) -> None:
    asked = doubtful(world, money=Money(1099, "EUR"), reference="ch_1", stamp="op_own")
    by_reference = replace(sale(world).inquiries[0], belongs=BelongsFields())
    policy = replace(sale(world), inquiries=(by_reference,))
    request = StoredRequest("POST", "/", (), b"")
    found = await asking(world, Provider(200, body)).inquire(asked, policy, request, LOST)
    assert found.seen.finding.kind is kind


async def test_a_miss_counts_under_the_accounts_own_credential_alone(world: World) -> None:
    nothing = b'{"data": [], "has_more": false}'
    policy = replace(sale(world), inquiries=sale(world).inquiries[1:2])
    request = StoredRequest("POST", "/", (), b"")
    for candidate, kind in ((OWN, FindingKind.MISSED), (STRANGERS, FindingKind.FAILED)):
        client = asking(world, Provider(200, nothing), candidate)
        found = await client.inquire(doubtful(world, stamp="op_own"), policy, request, LOST)
        assert found.seen.finding.kind is kind


async def test_one_way_that_finds_nothing_is_no_miss_while_another_one_failed(world: World) -> None:
    missing = Inquiry("missed", Template(("/v1/x/", Placeholder("operation_id"))), ())
    failing = replace(missing, name="failed", path=Template(("/v1/search",)))  # a search that answers 404 is none
    policy = replace(sale(world), inquiries=(missing, failing))
    found = await asking(world, Provider(404, b"")).inquire(
        doubtful(world), policy, StoredRequest("POST", "/", (), b""), LOST
    )
    assert (found.seen.finding.kind, found.missed_inquiries) == (FindingKind.FAILED, ())


async def test_an_inquiry_after_a_failed_one_asks_the_budget(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = asking(world, Provider(503, b"")), doubtful(world, stamp="op_own")
    policy = replace(sale(world), inquiries=sale(world).inquiries[1:2])
    budget, retries = type(client.retry_budget), []
    acquire = budget.acquire_for_inquiry

    async def counted(self: Any, *arguments: Any) -> Any:
        retries.append(arguments[2])
        return await acquire(self, *arguments)

    monkeypatch.setattr(budget, "acquire_for_inquiry", counted)
    for expected in (0, 1):
        await client.inquire(asked, policy, StoredRequest("POST", "/", (), b""), LOST)
        assert len(retries) == expected


def test_a_miss_says_nothing_of_what_was_accepted() -> None:
    parked = operation(state=State.REQUIRES_REVIEW, attempts=1)
    assert not _miss_is_meaningful(parked)
    assert _miss_is_meaningful(parked.changed(doubt=frozenset({1})))


def test_an_inquiry_that_was_made_before_the_last_attempt_cannot_deny_it() -> None:
    asked = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=1)
    now = asked.changed(attempts=2, doubt=frozenset({1, 2}))
    denied = Event.INQUIRY_FOUND_DENIAL
    _check_inquiry_applies(asked, asked, denied, is_last_generation=None)
    with pytest.raises(_NothingNewError):
        _check_inquiry_applies(now, asked, denied, is_last_generation=None)


def test_a_success_is_not_taken_for_an_earlier_generation_of_its_key() -> None:
    ended = operation(state=State.FAILED, attempts=1, key_released=True)
    success = Event.INQUIRY_FOUND_SUCCESS
    _check_inquiry_applies(ended, ended, success, is_last_generation=True)
    with pytest.raises(_NothingNewError):
        _check_inquiry_applies(ended, ended, success, is_last_generation=False)


async def test_nothing_is_settled_before_a_lease_and_an_answers_time_are_over(world: World) -> None:
    policy = replace(sale(world), resolve=ResolutionRules(settle_s=1.0))
    settle_s = world.parts.external_evidence.settle_s(policy)
    assert settle_s == world.leases.lease_s + policy.timeouts.first_byte_s > 1.0


# --- the resolver


async def test_what_somebody_may_have_been_told_as_failed_is_not_sent_again_in_the_background(world: World) -> None:
    resolver, asked = world.parts.resolver, doubtful(world)
    world.engine.gate.end_may_be_lost = lambda lost: True
    context: Any = SimpleNamespace(permit=None)
    assert await resolver._resend(context, asked, sale(world)) == world.leases.lease_s


async def test_a_second_cancel_is_not_sent_by_itself(world: World) -> None:
    policy = replace(sale(world), cancel=replace(CANCEL, when_schedule_ran_out=True))
    wanted = [world.parts.resolver._should_cancel(doubtful(world, cancel_sent=sent), policy) for sent in (False, True)]
    assert wanted == [True, False]


class Recorded:
    """A journal writer that takes one change, and shows it."""

    def __init__(self, world: World, stands: Operation) -> None:
        self.journal_clock = world.parts.journal_writer.journal_clock
        self.ages = world.parts.journal_writer.ages
        self.stands = stands
        self.change: Any = None

    async def write_with_retry(self, asked: Operation, change_from: Any) -> Operation:
        self.change = change_from(self.stands)
        return self.change.operation


def resolver_with(world: World, writer: Recorded) -> Any:
    resolver = world.parts.resolver
    return replace(resolver, pipeline=replace(resolver.pipeline, journal_writer=writer))  # type: ignore[arg-type]


async def test_what_another_holder_has_taken_is_not_put_off(world: World) -> None:
    at = world.clock.now() + 5.0
    held = doubtful(world, lease=Lease("another", at), due_at=at)
    writer = Recorded(world, held)
    await resolver_with(world, writer)._postpone(held, "ours", 30.0)
    assert writer.change.operation.due_at == at
    ours = Recorded(world, held.changed(lease=Lease("ours", at)))
    await resolver_with(world, ours)._postpone(held, "ours", 30.0)
    assert ours.change.operation.due_at != at


async def test_what_is_handed_to_a_person_says_why(world: World) -> None:
    writer = Recorded(world, doubtful(world))
    kind = IncidentKind.REFERENCE_NOT_FOUND
    await resolver_with(world, writer)._send_to_review(writer.stands, "ours", None, "in_doubt_not_found", kind)
    after = writer.change.operation
    assert (after.state, after.because, after.incident) == (State.REQUIRES_REVIEW, "in_doubt_not_found", kind)


@pytest.mark.parametrize(("attempts", "misses"), [(1, 1), (2, 0)])
async def test_a_miss_is_counted_once_and_only_if_nothing_was_sent_meanwhile(
    world: World, attempts: int, misses: int
) -> None:
    policy = replace(sale(world), inquiries=sale(world).inquiries[1:2])
    asked = doubtful(world, no_bytes_after_at=world.clock.now() - 3600.0)
    stands = asked.changed(attempts=attempts, doubt=frozenset(range(1, attempts + 1)))
    writer = Recorded(world, stands)
    missed = Finding("search", FindingKind.MISSED)
    result = InquiryResult(FoundObject(missed), policy.inquiries)
    at = world.clock.now()
    await resolver_with(world, writer)._reschedule(asked, policy, "ours", result, at)
    assert writer.change.operation.misses == misses


# --- late evidence


def test_a_refusal_that_comes_late_ends_what_nobody_tries_again(world_policy: Policy) -> None:
    sending = operation(state=State.SENDING, attempts=1, attempt_under_way=True)
    refused = read(ResultClass.RATE_LIMITED, Effect.NONE)
    evidence: Any = SimpleNamespace(attempt=SimpleNamespace(number=1, classification=refused), because="late")
    after, events = _conclude(sending, world_policy, evidence)
    assert (after.state, events[-1]) == (State.FAILED, Event.GIVEN_UP)


@pytest.fixture
def world_policy(world: World) -> Policy:
    return sale(world)


# --- credentials and what is logged of them


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, "paywitness"):
        yield caplog


SECRET = "client-secret-that-nobody-may-read"


TOKENS = OAuth2("POST", "/token", "ACME_ID", "ACME_SECRET")


async def token_of(world: World, provider: Any) -> Any:
    policy = replace(sale(world), credentials=BackgroundCredentials((), TOKENS))
    source = replace(
        world.parts.resolver.inquiry_client.credentials,
        upstream=provider,
        environment={"ACME_ID": "id", "ACME_SECRET": SECRET, "OTHER": SECRET},
    )
    return await source._oauth2_token(policy, TOKENS), source, policy


async def test_a_token_that_is_refused_leaves_no_secret_and_no_answer_in_a_line(
    world: World, lines: pytest.LogCaptureFixture
) -> None:
    token, _, _ = await token_of(world, Provider(400, b'{"leaks": "answer-of-the-provider"}'))
    assert token is None
    assert "gave no token" in lines.text
    assert SECRET not in lines.text
    assert "answer-of-the-provider" not in lines.text


async def test_a_missing_variable_is_named_and_no_other_is_shown(world: World, lines: pytest.LogCaptureFixture) -> None:
    _, source, policy = await token_of(world, Provider(400, b"{}"))
    missing = BackgroundCredentials((("Authorization", "NOT_SET_AT_ALL"),))
    assert await source._from_environment(policy, missing) == ()
    assert "NOT_SET_AT_ALL" in lines.text
    assert SECRET not in lines.text


async def test_a_token_is_renewed_before_it_ends(world: World) -> None:
    provider = Provider(200, b'{"access_token": "token", "expires_in": 30}')
    _, source, policy = await token_of(world, provider)
    await source._oauth2_token(policy, TOKENS)
    assert len(provider.sent) == 2  # 30 seconds may be over while a call is under way


async def test_of_a_credential_that_nobody_knows_a_miss_says_nothing_and_nothing_is_sent_under_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def accepted(self: CredentialSource, asked: Operation) -> list[Any]:
        return [CREDENTIAL]

    async def unknown(self: CredentialSource, *_: object) -> CredentialRelation:
        return CredentialRelation.UNKNOWN

    monkeypatch.setattr(CredentialSource, "_newest_accepted", accepted)
    monkeypatch.setattr(CredentialSource, "_relation", unknown)
    source = world.parts.resolver.inquiry_client.credentials
    found = [one async for one in source.candidates(operation(), sale(world), None)]
    assert found == [STRANGERS]


@pytest.mark.parametrize(("maker", "same"), [("c" * 32, True), ("another", False)])
async def test_a_payment_shows_whose_a_credential_is_only_if_that_one_has_made_it(
    world: World, maker: str, same: bool
) -> None:
    row = payment_row(Payment("op_1", "acme", "a", paid_by="op_0"), None)

    async def rows(keys: tuple[str, ...]) -> list[Any]:
        return [row]

    async def made(operation_id: str) -> Operation:
        return operation(id=operation_id, credential=maker)

    journal: Any = SimpleNamespace(ledger_rows=rows, read=made)
    client = replace(world.parts.resolver.inquiry_client, journal=journal)
    belongs = BelongsFields(reference=lambda tree: tree["id"])
    inquiry = Inquiry("ask", Template(("/v1/x",)), (), shared=True, belongs=belongs)
    missed = FoundObject(Finding("ask", FindingKind.MISSED), {"id": "ch_1"})
    assert await client._shows_own_payment(operation(payment="op_1"), inquiry, missed) is same


class SlowAtFirst(Provider):
    """The first question is never answered."""

    def __init__(self, status_code: int, body: bytes) -> None:
        super().__init__(status_code, body)
        self.asked = self.given_up = 0

    async def send(self, origin: Any, request: Any, timeouts: Any, **more: Any) -> Evidence:
        self.asked += 1
        if self.asked > 1:
            return await super().send(origin, request, timeouts, **more)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.given_up += 1


async def test_an_inquiry_that_was_asked_twice_is_one_miss_and_leaves_none_behind(world: World) -> None:
    provider = SlowAtFirst(200, b'{"data": [], "has_more": false}')
    given = sale(world)
    timeouts = replace(given.timeouts, first_byte_s=0.1)
    policy = replace(given, inquiries=given.inquiries[1:2], timeouts=timeouts)
    asked = doubtful(world, stamp="op_own", no_bytes_after_at=world.clock.now() - 3600.0)
    request = StoredRequest("POST", "/", (), b"")
    result = await asking(world, provider).inquire(asked, policy, request, LOST)
    await asyncio.sleep(0)
    assert (result.seen.finding.kind, provider.asked, provider.given_up) == (FindingKind.MISSED, 2, 1)
    writer = Recorded(world, asked)
    await resolver_with(world, writer)._reschedule(asked, policy, "ours", result, world.clock.now())
    assert writer.change.operation.misses == 1


async def test_one_look_that_may_show_an_earlier_denial_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[object] = []

    async def apply(self: ExternalEvidenceRecorder, *given: object, **_: object) -> None:
        applied.append(given)

    monkeypatch.setattr(ExternalEvidenceRecorder, "apply", apply)
    policy = replace(sale(world), inquiries=sale(world).inquiries[1:2])
    asked = doubtful(world, no_bytes_after_at=world.clock.now() - 3600.0)
    denied = Finding("search", FindingKind.HIT, 200, read(ResultClass.FAILED))
    result = InquiryResult(FoundObject(denied, may_be_stale=True), policy.inquiries)
    writer = Recorded(world, asked)
    at = world.clock.now()
    await resolver_with(world, writer)._apply_hit(asked, policy, None, "ours", result, at)
    assert (applied, writer.change.operation.state) == ([], State.UNKNOWN)


async def test_a_re_send_in_the_background_uses_up_a_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    async def granted(self: RetryBudget, *_: object) -> Any:
        return object()

    async def given_back(self: RetryBudget, grant: object) -> None:
        pass

    async def overtaken(self: JournalWriter, change: Any) -> None:
        written.append(change)

    monkeypatch.setattr(RetryBudget, "acquire", granted)
    monkeypatch.setattr(RetryBudget, "refund", given_back)
    monkeypatch.setattr(JournalWriter, "try_write", overtaken)
    asked = doubtful(world, checks_done=3, lease=Lease("ours", world.clock.now() + 30.0))
    context, permit = background_context(asked, sale(world), None, "ours", world.clock), SimpleNamespace()
    await world.parts.resolver._resend_with_permit(context, asked, sale(world), permit)  # type: ignore[arg-type]
    assert written[0].operation.checks_done == 4


@pytest.mark.parametrize("ended", [True, False])
async def test_an_answer_that_comes_after_the_end_does_not_replace_what_is_replayed(world: World, ended: bool) -> None:
    paid = read(ResultClass.SUCCEEDED, Effect.DONE)
    stands = doubtful(world)
    if ended:
        stands = stands.changed(
            state=State.SUCCEEDED, doubt=frozenset(), result_class=ResultClass.SUCCEEDED, effect=Effect.DONE
        )
    writer = Recorded(world, stands)
    recorder = replace(world.parts.late_evidence, journal_writer=writer)  # type: ignore[arg-type]
    attempt = AttemptSummary(1, "complete", 10, None, 200, "", 0.1, False, paid)
    await recorder.apply(stands, sale(world), LateEvidence(attempt, "harvest", "late", b"sealed"))
    assert writer.change.sealed_response == (None if ended else b"sealed")


# --- voids


@pytest.mark.parametrize(
    ("account", "whole", "reversed_"),
    [("its own", True, True), ("another", True, False), ("its own", False, False)],
    ids=["of the same account", "of another account", "of what a capture left"],
)
async def test_a_void_gives_back_the_whole_payment_of_its_own_account(
    world: World, monkeypatch: pytest.MonkeyPatch, account: str, whole: bool, reversed_: bool
) -> None:
    async def is_whole(self: ExternalEvidenceRecorder, paid: Operation) -> bool:
        return whole

    monkeypatch.setattr(ExternalEvidenceRecorder, "_is_given_back", is_whole)
    await world.charge()
    paid = await only_operation(world)
    of_account = paid.account if account == "its own" else "another account"
    void = operation(
        kind=OperationKind.VOID, provider="acme", state=State.SUCCEEDED, account=of_account, guard=guard_of(paid)
    )
    await world.parts.external_evidence.release_voided_payment(void.changed(state=State.SENDING), void)
    expected = ResultClass.REVERSED if reversed_ else ResultClass.SUCCEEDED
    assert (await only_operation(world)).result_class is expected


# --- webhook events


def test_an_event_is_about_the_newest_generation_of_its_key_that_was_sent() -> None:
    sent = [operation(id=f"op_{n}", generation=n, state=State.SUCCEEDED, attempts=1) for n in (1, 2, 3)]
    unsent = operation(id="op_4", generation=4, state=State.FAILED, attempts=1)
    candidates = [_Candidate(one, None) for one in (sent[1], unsent, sent[2], sent[0])]
    assert _best_generation(candidates, {}).operation.id == "op_3"


def guard_of(paid: Operation) -> Any:
    return Guard(GuardKind.TARGET, "g", paid.reference or "")


async def only_operation(world: World) -> Operation:
    (found,) = await world.journal.find_operations(OperationQuery())
    return found
