"""A policy that tells accounts otherwise than before still finds what was made before, without anybody's acceptance."""

from __future__ import annotations

import pytest

from paywitness.core.account_rules import EarlierRule
from paywitness.core.operation import State
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.engine.earlier_rules import with_earlier_rules
from paywitness.engine.policy_start import refuse_changed_identity
from paywitness_sandbox.server import Sandbox
from tests.engine.world import World, book_of, header, make_world, problem_type, roomy

OLD = ("account: [const:main, header:Acme-Account]", "account: [const:main]")
TENANT = {"Acme-Account": "tenant-1"}


async def before(sandbox: Sandbox) -> World:
    """A sidecar of the earlier release: its policy does not read the header."""
    return await make_world(sandbox, OLD)


async def upgraded(sandbox: Sandbox, world: World) -> World:
    """The next release over the same journal: its policy reads the header."""
    book = roomy(book_of(sandbox.url))
    known = await with_earlier_rules(world.journal, book)  # before anything of the new book is stored
    other = await make_world(sandbox, journal=world.journal)
    other.engine.policies.book = known
    return other


async def test_p2c_a_repeat_after_the_upgrade_is_replayed_and_executes_nothing(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    first = await old.charge()
    new = await upgraded(sandbox, old)
    again = await new.charge()
    assert (again.status_code, again.replayed, again.operation_id) == (200, True, first.operation_id)
    assert new.effects() == 1


async def test_p2c_an_open_order_of_before_the_upgrade_guards_a_fresh_key(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    lost = await old.charge("first", fault="drop_after_commit,drop_after_commit,drop_after_commit", timeout_s=0.5)
    new = await upgraded(sandbox, old)
    again = await new.charge("second", amount=2000, timeout_s=0.5)
    assert (again.status_code, again.operation_id) == (409, lost.operation_id)
    assert new.effects() == 1


async def test_a_capture_after_the_upgrade_finds_its_payment(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    body = {"amount": 1000, "currency": "EUR", "source": "tok_ok", "capture": False, "metadata": {"order_id": "o-1"}}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer test"}
    paid = await old.post("/v1/charges", body, {**headers, "Idempotency-Key": "auth"})
    operation = await old.journal.read(header(paid, "Paywitness-Operation") or "")
    assert operation is not None
    assert operation.state is State.SUCCEEDED
    new = await upgraded(sandbox, old)
    path = f"/v1/charges/{operation.reference}/capture"
    captured = await new.post(path, {"amount": 1000}, {**headers, "Idempotency-Key": "capture"})
    made = await new.journal.read(header(captured, "Paywitness-Operation") or "")
    assert made is not None
    assert (made.account, made.payment) == (operation.account, operation.payment)


async def test_what_may_be_another_accounts_under_the_earlier_rule_is_not_told(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    await old.charge()
    new = await upgraded(sandbox, old)
    tenant = await new.charge(headers=TENANT)
    assert (tenant.status_code, problem_type(tenant), tenant.operation_id) == (504, "account-unknown", None)
    fresh = await new.charge("fresh", order="fresh", headers=TENANT)
    assert (fresh.status_code, new.effects()) == (200, 2)


async def test_fresh_calls_go_by_the_new_rule(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    first = await old.journal.read(header(await old.charge(), "Paywitness-Operation") or "")
    new = await upgraded(sandbox, old)
    second = await new.journal.read(header(await new.charge("fresh", order="o-2"), "Paywitness-Operation") or "")
    assert first is not None
    assert second is not None
    assert first.account != second.account
    again = await new.charge("fresh", order="o-2")
    assert (again.replayed, new.effects(order="o-2")) == (True, 1)


async def test_rules_are_remembered_through_several_edits_and_none_refuses_the_start(sandbox: Sandbox) -> None:
    old = await before(sandbox)
    await old.charge()
    new = await upgraded(sandbox, old)
    edits = ("account: [const:main, header:Acme-Account]", "account: [const:other]")
    third = await with_earlier_rules(new.journal, book_of(sandbox.url, edits))
    main, tenant = FieldRef(FieldKind.CONST, "main"), FieldRef(FieldKind.HEADER, "Acme-Account")
    [policy, *_] = third.providers["acme"].policies
    assert policy.accounts.earlier == (EarlierRule((main, tenant)), EarlierRule((main,)))


@pytest.mark.parametrize("edit", [OLD, ("provider: acme ", "merchant: another\nprovider: acme ")])
async def test_a_changed_account_or_merchant_is_no_changed_identity(sandbox: Sandbox, edit: tuple[str, str]) -> None:
    old = await make_world(sandbox, edit)
    await refuse_changed_identity(old.journal, book_of(sandbox.url))
