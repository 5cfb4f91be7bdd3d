"""Who is asked before money moves, whose word counts, what an operator's action keeps, and what a log line shows."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from paywitness.core.circuit import CallGroup
from paywitness.core.credential_owners import OWNER_MARK, MarkSource, credential_key, owner_mark
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.operation import Guard, GuardKind
from paywitness.core.operator_actions import OperatorAction
from paywitness.core.payout_rules import CheckHook, PayoutRules
from paywitness.engine.calls.gate import RetryBudget
from paywitness.engine.calls.payout_check import PayoutCheck
from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.credential_owners import CredentialOwners, _merged
from paywitness.engine.operator_commands import InvalidCommand, OperatorCommand
from paywitness.engine.outbox import _why_not_taken
from paywitness.engine.payment_commands import PaymentCommands, PaymentKnown, _Account
from paywitness.engine.visibility import Visibility
from paywitness.journal.base import OperationQuery
from paywitness.upstream.late_responses import LateResponses
from tests.admin.world import World as AdminWorld
from tests.core.samples import operation
from tests.engine.world import World

SAID = "what-the-other-side-has-said"
UNHEARD = Evidence(NetworkPhase.AWAITING, 10, WireFault.FIRST_BYTE_TIMEOUT, None, "", 1.0)


def answered(status_code: int, body: bytes) -> Evidence:
    return Evidence(NetworkPhase.COMPLETE, 10, None, Response(status_code, b"", (), body), "", 0.1)


# --- the check before a payout


class Hook:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.waits_s = 0.0

    async def send(self, origin: object, request: object, timeouts: Any) -> Evidence:
        self.waits_s = timeouts.first_byte_s
        return self.evidence


async def allows(world: World, hook: Hook, left_s: float = 60.0) -> bool:
    rules = PayoutRules(check=CheckHook("http://127.0.0.1:1/ask", "HOOK", timeout_s=5.0))
    policy = SimpleNamespace(payout=rules, provider="acme", operation="payout")
    context: Any = SimpleNamespace(
        policy=policy,
        deadline_mono=world.clock.mono() + left_s,
        fresh=SimpleNamespace(id="op_1"),
        expected=SimpleNamespace(money=None),
        identity=SimpleNamespace(guard=None, account="a", client_key="k"),
        call=None,
    )
    check = PayoutCheck(hook, {"HOOK": "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="}, world.clock)  # type: ignore[arg-type]
    return await check.allows(context)


@pytest.mark.parametrize(
    ("evidence", "allowed"),
    [
        (answered(200, b'{"allow": true}'), True),
        (answered(200, b'{"allow": "no"}'), False),
        (answered(500, b'{"allow": true}'), False),
        (UNHEARD, False),
    ],
    ids=["yes", "a text", "an error", "silence"],
)
async def test_only_a_clear_yes_lets_a_payout_go(world: World, evidence: Evidence, allowed: bool) -> None:
    assert await allows(world, Hook(evidence)) is allowed


async def test_whoever_is_asked_has_no_more_time_than_the_caller(world: World) -> None:
    hook = Hook(answered(200, b'{"allow": true}'))
    await allows(world, hook, left_s=1.0)
    assert 0 < hook.waits_s <= 1.0


async def test_a_refusal_is_logged_without_what_was_answered(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "paywitness"):
        await allows(world, Hook(answered(503, SAID.encode())))
    assert "refused" in caplog.text
    assert SAID not in caplog.text


def test_a_sink_that_refuses_is_told_of_without_what_it_answered() -> None:
    assert _why_not_taken(answered(500, SAID.encode())) == "status 500"


# --- operators


async def test_an_action_for_many_keeps_who_did_it_and_why() -> None:
    world = AdminWorld()
    doubtful = [await world.in_doubt(client_key=f"key-{number}") for number in range(2)]
    park = OperatorCommand(OperatorAction.PARK, actor="ada", reason="ticket 4711")
    found = await world.review.execute_many(OperationQuery(), park, dry_run=False, limit=10)
    assert found.done == 2
    for one in doubtful:
        entry = (await world.journal.history(one.id))[-1]
        assert (entry.actor, entry.note) == ("ada", "ticket 4711")


async def test_a_payment_that_was_made_through_here_is_not_adopted_though_its_row_is_missing(world: World) -> None:
    made = operation(account="a")

    async def no_row(keys: tuple[str, ...]) -> list[None]:
        return [None]

    async def ours(query: OperationQuery) -> list[Any]:
        return [made]

    journal: Any = SimpleNamespace(ledger_rows=no_row, find_operations=ours)
    commands = PaymentCommands(None, journal, None, None, None, None, None)  # type: ignore[arg-type]
    provider: Any = world.engine.book.providers["acme"]
    with pytest.raises(PaymentKnown, match=made.id):
        await commands._check_not_ours(provider, _Account("a"), "ch_1")
    await commands._check_not_ours(provider, _Account("another"), "ch_1")


# --- credentials


@pytest.mark.parametrize(("provider", "told"), [("acme", None), ("other", frozenset({"g"}))])
async def test_an_order_is_not_told_to_a_credential_that_may_be_another_owners(
    world: World, monkeypatch: pytest.MonkeyPatch, provider: str, told: frozenset[str] | None
) -> None:
    """Its account is the same, and somebody else's credential made the payment. One of another provider of the merchant
    is told of."""

    async def own(self: Visibility, intent: str) -> dict[str, set[str]]:
        return {"g": {"acme"}}

    async def sees_none(self: Visibility, operations: list[Any]) -> bool:
        return False

    monkeypatch.setattr(Visibility, "_guards_of_accounts", own)
    monkeypatch.setattr(Visibility, "_sees_any", sees_none)
    asking = Visibility(world.journal, world.engine.book, b"", None)  # type: ignore[arg-type]
    made = operation(provider=provider, guard=Guard(GuardKind.INTENT, "g", "order-1"))
    assert await asking.guards_of("order-1", [made]) == told


async def test_an_operator_maps_no_credential_that_the_provider_calls_another_owners(world: World) -> None:
    replies = [
        await world.charge(name, order=name, headers={"Authorization": f"Bearer {name}"}) for name in ("alice", "bob")
    ]
    owners = world.engine.credential_owners
    commands = CredentialCommands(world.journal, world.parts.journal_writer, owners)
    ids = [reply.operation_id or "" for reply in replies]
    for name, operation_id in zip(("alice", "bob"), ids, strict=True):
        made = await world.journal.read(operation_id)
        assert made is not None
        key = credential_key(made.provider_in_keys, made.credential)
        await owners.add_marks(key, {owner_mark(name): MarkSource.PROVIDER})
    with pytest.raises(InvalidCommand, match="two owners"):
        await commands.map(*ids, actor="ada", reason="ticket 4711", evidence="the dashboard lists both")


def test_the_providers_latest_word_about_an_owner_counts() -> None:
    before, now = f"{OWNER_MARK}a", f"{OWNER_MARK}b"
    known: dict[str, str] = {before: MarkSource.PROVIDER, "peer": MarkSource.OPERATOR}
    assert _merged(known, {now: MarkSource.PROVIDER}) == {now: MarkSource.PROVIDER, "peer": MarkSource.OPERATOR}


async def test_an_owner_that_the_journal_did_not_take_is_not_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise JournalUnavailable("away")

    async def named(*_: object) -> Evidence:
        return answered(200, b'{"id": "acct_a"}')

    monkeypatch.setattr(CredentialOwners, "add_marks", fail)
    monkeypatch.setattr(CredentialOwners, "_ask", named)
    who_am_i: Any = SimpleNamespace(field=lambda tree: tree["id"])
    policy = world.engine.book.providers["acme"].policies[0]
    found = await world.engine.credential_owners._owner_of("w:acme:c", policy, who_am_i, ())
    assert found == (None, 0.0)


# --- limits


async def test_inquiries_have_budgets_of_their_own(world: World) -> None:
    policy = world.engine.book.providers["acme"].policies[0]
    budget: RetryBudget = world.engine.pipeline.retry_budget
    groups = [budget._origin(operation(), policy, group).group for group in CallGroup]
    assert groups == list(CallGroup)


def test_so_many_connections_at_most_listen_for_late_answers() -> None:
    late = LateResponses(5.0, 1, lambda: 0.0)
    exchange: Any = SimpleNamespace(
        done=None, parser=None, timeouts=None, phase=None, bytes_total=0, drained=True, expiry=None
    )
    given: Any = {"connection": None, "on_late": None, "began_mono": 0.0, "reused": False}
    first = late.take_over(exchange, 0.0, **given)
    assert first is not None
    assert late.take_over(exchange, 0.0, **given) is None
    late.remove(first)
    assert late.take_over(exchange, 0.0, **given) is not None
