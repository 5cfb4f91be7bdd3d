"""What an inquiry, a cancel and late evidence may say, and of which attempt, account and address."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paywitness.core.account_rules import BackgroundCredentials, OAuth2
from paywitness.core.classify import ResponseRule
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.inquiry import BelongsFields, Cancel, FoundObject, Inquiry
from paywitness.core.lifecycle import Event, IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Finding, FindingKind, Guard, GuardKind, Lease, Operation, State
from paywitness.core.policy import Policy, ResolutionRules
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import Effect, ResultClass
from paywitness.core.template import Placeholder, Template
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.resolution.background_credentials import CredentialCandidate
from paywitness.engine.resolution.external_evidence import _check_inquiry_applies, _NothingNewError
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.engine.resolution.late_evidence import _conclude
from paywitness.engine.resolution.resolver import _miss_is_meaningful
from paywitness.journal.base import OperationQuery
from tests.core.samples import operation, read
from tests.engine.world import World

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
    seen = (await asking(world, Provider(200, body)).inquire(asked, policy, StoredRequest("POST", "/", (), b""))).seen
    assert seen.finding.kind is kind


async def test_a_miss_counts_under_the_accounts_own_credential_alone(world: World) -> None:
    nothing = b'{"data": [], "has_more": false}'
    policy = replace(sale(world), inquiries=sale(world).inquiries[1:2])
    request = StoredRequest("POST", "/", (), b"")
    for candidate, kind in ((OWN, FindingKind.MISSED), (STRANGERS, FindingKind.FAILED)):
        client = asking(world, Provider(200, nothing), candidate)
        found = await client.inquire(doubtful(world, stamp="op_own"), policy, request)
        assert found.seen.finding.kind is kind


async def test_one_way_that_finds_nothing_is_no_miss_while_another_one_failed(world: World) -> None:
    missing = Inquiry("missed", Template(("/v1/x/", Placeholder("operation_id"))), ())
    failing = replace(missing, name="failed", path=Template(("/v1/search",)))  # a search that answers 404 is none
    policy = replace(sale(world), inquiries=(missing, failing))
    found = await asking(world, Provider(404, b"")).inquire(
        doubtful(world), policy, StoredRequest("POST", "/", (), b"")
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
        await client.inquire(asked, policy, StoredRequest("POST", "/", (), b""))
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


# --- voids


async def test_a_void_gives_back_the_payment_of_its_own_account_alone(world: World) -> None:
    await world.charge()
    paid = await only_operation(world)
    void = operation(
        kind=OperationKind.VOID, provider="acme", state=State.SUCCEEDED, account="another account", guard=guard_of(paid)
    )
    await world.parts.external_evidence.release_voided_payment(void.changed(state=State.SENDING), void)
    assert (await only_operation(world)).result_class is ResultClass.SUCCEEDED


def guard_of(paid: Operation) -> Any:
    return Guard(GuardKind.TARGET, "g", paid.reference or "")


async def only_operation(world: World) -> Operation:
    (found,) = await world.journal.find_operations(OperationQuery())
    return found
