"""What an operator makes a payment say: by an inquiry, or by what a person has seen. Nothing moves by it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paywitness.core.call import CallerOptions
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.payment import Payment, name_key
from paywitness.core.payment_corrections import CorrectionRefused
from paywitness.core.reply import Reply
from paywitness.engine.operator_commands import InvalidCommand
from paywitness.engine.payment_commands import (
    AdoptCommand,
    BalanceCommand,
    NoSuchPayment,
    NotAdopted,
    NotPaidCommand,
    PaymentChanged,
    PaymentCommands,
    PaymentKnown,
)
from paywitness.engine.payment_lookup import PaymentView
from paywitness.journal.base import OperationChange
from paywitness.journal.ledger import payment_from_row, payment_row
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, make_world

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}
EVIDENCE = "Acme's dashboard shows it"


def commands_of(world: World) -> PaymentCommands:
    parts = world.parts
    return PaymentCommands(
        parts.engine.intents.payments,
        world.journal,
        parts.resolver.inquiry_client,
        lambda: parts.engine.book,
        parts.journal_writer.journal_clock,
        parts.engine.randomness,
        parts.engine.telemetry,
    )


def adopting(reference: str, **changes: str) -> AdoptCommand:
    given = {"provider": "acme", "actor": "ada", "reason": "ticket 4711", **changes}
    return AdoptCommand(reference, **given)


def stating(currency: str | None = None, **amounts: str) -> BalanceCommand:
    return BalanceCommand(amounts, "ada", "ticket 4711", EVIDENCE, currency)


async def charged_elsewhere(world: World, amount: int = 2500, **more: Any) -> str:
    """A charge that went past us."""
    body = {"amount": amount, "currency": "EUR", "source": "tok_ok", **more}
    headers = {**HEADERS, "Idempotency-Key": f"elsewhere-{amount}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges", json=body, headers=headers) as response,
    ):
        return str((await response.json())["id"])


async def refund(world: World, reference: str, amount: int, **headers: str) -> Reply:
    given = {**HEADERS, "Idempotency-Key": f"refund-{reference}-{amount}", **headers}
    return await world.post(f"/v1/charges/{reference}/refunds", {"amount": amount}, given, CallerOptions())


async def timeline_words(world: World, view: PaymentView) -> list[str]:
    entries = await world.parts.engine.intents.payments.timeline((view,))
    return [f"{each.command.actor} {each.command.action}" for each in entries if each.command is not None]


# --- adopt


async def test_a_payment_that_went_past_us_is_adopted_with_the_numbers_that_the_provider_shows(
    stored_world: World,
) -> None:
    reference = await charged_elsewhere(stored_world)
    effects = stored_world.effects()
    view = await commands_of(stored_world).adopt(adopting(reference))
    payment = view.payment
    assert (payment.names, payment.currency, payment.elsewhere) == ((reference,), "EUR", "verified")
    assert (payment.authorised, payment.captured, payment.refunded) == (2500, 2500, 0)
    assert await timeline_words(stored_world, view) == ["ada adopt"]
    assert stored_world.effects() == effects
    found = await stored_world.parts.engine.intents.payments.find(reference)
    assert found == (payment.id,)
    # A refund of it is now one of this payment, and moves its balance.
    assert (await refund(stored_world, reference, 1000)).status_code == 200
    after = await stored_world.parts.engine.intents.payments.by_id(payment.id)
    assert after is not None
    assert (after.payment.refunded, len(after.operations)) == (1000, 1)


async def test_limits_hold_for_an_adopted_payment(world: World) -> None:
    reference = await charged_elsewhere(world)
    await commands_of(world).adopt(adopting(reference))
    exceeding = await refund(world, reference, 2600)
    assert (exceeding.status_code, json.loads(exceeding.body)["type"].rsplit(":", 1)[-1]) == (422, "exceeds-remaining")
    assert (await refund(world, reference, 2500)).status_code == 200


async def test_what_somebody_acted_on_through_us_is_adopted_under_the_payment_that_this_made(
    stored_world: World,
) -> None:
    reference = await charged_elsewhere(stored_world)
    assert (await refund(stored_world, reference, 500)).status_code == 200
    [payment_id] = await stored_world.parts.engine.intents.payments.find(reference)
    view = await commands_of(stored_world).adopt(adopting(reference))
    assert view.payment.id == payment_id
    assert (view.payment.captured, view.payment.refunded) == (2500, 500)


async def test_a_payment_of_ours_is_refused(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge()).body)["id"])
    with pytest.raises(PaymentKnown, match="made through here"):
        await commands_of(stored_world).adopt(adopting(reference))
    elsewhere = await charged_elsewhere(stored_world)
    await commands_of(stored_world).adopt(adopting(elsewhere))
    with pytest.raises(PaymentKnown, match="adopted before"):
        await commands_of(stored_world).adopt(adopting(elsewhere))


async def test_what_the_provider_does_not_know_changes_nothing_and_says_what_to_check(stored_world: World) -> None:
    with pytest.raises(NotAdopted, match="Check the reference and the account"):
        await commands_of(stored_world).adopt(adopting("ch_nobody"))
    assert await stored_world.parts.engine.intents.payments.find("ch_nobody") == ()


async def test_an_unclear_answer_changes_nothing(world: World) -> None:
    reference = await charged_elsewhere(world)
    await world.sandbox.stop()
    with pytest.raises(NotAdopted, match="no clear answer"):
        await commands_of(world).adopt(adopting(reference))
    assert await world.parts.engine.intents.payments.find(reference) == ()


async def test_what_was_not_paid_is_not_adopted(world: World) -> None:
    reference = await charged_elsewhere(world, capture=False)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges/{reference}/void", json={}, headers=HEADERS),
    ):
        pass
    with pytest.raises(NotAdopted, match="reads as cancelled"):
        await commands_of(world).adopt(adopting(reference))


async def test_a_named_account_is_told_to_the_provider_and_keeps_its_names_apart(world: World) -> None:
    reference = await charged_elsewhere(world)
    view = await commands_of(world).adopt(adopting(reference, account="shop-2"))
    other = await commands_of(world).adopt(adopting(reference))
    assert view.payment.account != other.payment.account
    payments = world.parts.engine.intents.payments
    assert await payments.find(reference, account="shop-2") == (view.payment.id,)
    assert await payments.find(reference) == (other.payment.id,)
    assert view.payment.account in payments.account_ids("shop-2")


async def test_the_inquiry_bears_the_header_of_the_account_and_no_other(sandbox: Sandbox) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Acme-Account"))
        return web.json_response({"error": {"type": "invalid_request_error"}}, status=404)

    server = TestServer(_app(answer))
    async with server:
        world = await make_world(sandbox, (sandbox.url, str(server.make_url("")).rstrip("/")))
        for account in ("shop-2", ""):
            with pytest.raises(NotAdopted):
                await commands_of(world).adopt(adopting("ch_1", account=account))
        await close(world)
    assert seen == ["shop-2", None]


def _app(answer: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/v1/charges/{charge}", answer)
    return app


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"provider": "nobody"}, "No policy names a provider"),
        ({"actor": " "}, "Say who does it"),
        ({"reason": "x"}, "Say why"),
        ({"account": "0" * 32}, "Give the account by its name"),
    ],
)
async def test_an_unfit_command_is_refused(world: World, changes: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidCommand, match=why):
        await commands_of(world).adopt(adopting("ch_1", **changes))


async def test_an_adopted_payment_keeps_its_intent_from_being_paid_again(world: World) -> None:
    reference = await charged_elsewhere(world, metadata={"order_id": "order-9"})
    await commands_of(world).adopt(adopting(reference))
    told = json.loads((await world.engine.intents.describe("order-9")).body)
    assert told["safe_to_pay"] is False
    assert told["why_not"][0]["reason"].startswith("Paid, but not by a call of ours: 25.00 EUR authorised")
    effects = world.effects()
    refused = await world.charge(key="again", order="order-9", amount=2500)
    assert (refused.status_code, world.effects()) == (409, effects)
    # Given back, it is free.
    assert (await refund(world, reference, 2500)).status_code == 200
    assert json.loads((await world.engine.intents.describe("order-9")).body)["safe_to_pay"] is True


# --- balance


async def test_a_stated_number_is_kept_with_who_saw_it_and_frees_the_intent(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    [payment_id] = await stored_world.parts.engine.intents.payments.find(reference)
    view = await commands_of(stored_world).state_balance(payment_id, stating(refunded="25.00"))
    assert (view.payment.refunded, view.payment.captured) == (2500, 2500)
    assert await timeline_words(stored_world, view) == ["ada balance"]
    told = json.loads((await stored_world.engine.intents.describe("order-1")).body)
    assert told["safe_to_pay"] is True


async def test_numbers_that_cannot_be_true_together_are_refused(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    [payment_id] = await stored_world.parts.engine.intents.payments.find(reference)
    commands = commands_of(stored_world)
    for amounts in ({"refunded": "25.01"}, {"captured": "30.00"}):
        with pytest.raises(CorrectionRefused):
            await commands.state_balance(payment_id, stating(**amounts))
    with pytest.raises(CorrectionRefused, match="in EUR"):
        await commands.state_balance(payment_id, stating("USD", refunded="1.00"))
    for amounts in ({}, {"refunded": "much"}, {"refunded": "1.001"}):
        with pytest.raises(InvalidCommand):
            await commands.state_balance(payment_id, stating(**amounts))
    with pytest.raises(InvalidCommand, match="evidence"):
        await commands.state_balance(payment_id, BalanceCommand({"refunded": "1.00"}, "ada", "ticket 4711", ""))
    with pytest.raises(NoSuchPayment):
        await commands.state_balance("op_nobody", stating(refunded="1.00"))


async def test_a_number_is_stated_over_the_version_that_was_seen(stored_world: World) -> None:
    reference = str(json.loads((await stored_world.charge(amount=2500)).body)["id"])
    [payment_id] = await stored_world.parts.engine.intents.payments.find(reference)
    seen = await stored_world.parts.engine.intents.payments.by_id(payment_id)
    assert seen is not None
    await refund(stored_world, reference, 100)
    with pytest.raises(PaymentChanged):
        await commands_of(stored_world).state_balance(payment_id, stating(refunded="2.00"), seen.version)


async def test_nothing_is_stated_while_a_movement_is_open(world: World) -> None:
    reply = await world.charge()
    reference = str(json.loads(reply.body)["id"])
    unknown = await refund(world, reference, 500, **{"Sandbox-Fault": "drop_after_commit*"})
    assert unknown.status_code == 504
    [payment_id] = await world.parts.engine.intents.payments.find(reference)
    with pytest.raises(CorrectionRefused, match=r"Its refund op_\w+ is open"):
        await commands_of(world).state_balance(payment_id, stating("EUR", captured="1.00"))


NOT_PAID = NotPaidCommand("ada", "ticket 4722", "Acme's dashboard shows it as cancelled")


async def already_done(world: World) -> str:
    """A charge that the provider calls "already voided" when we confirm it; its payment's id."""
    body = {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-1"}}
    created = await world.post("/v1/charges", body, {**HEADERS, "Idempotency-Key": "create"}, CallerOptions())
    charge = str(json.loads(created.body)["id"])
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges/{charge}/void", json={}, headers=HEADERS) as response,
    ):
        assert response.status == 200
    refused = await world.post(
        f"/v1/charges/{charge}/confirm", {"source": "tok_ok"}, {**HEADERS, "Idempotency-Key": "late"}, CallerOptions()
    )
    assert refused.outcome == "failed"
    [payment_id] = await world.parts.engine.intents.payments.find(charge)
    return payment_id


async def was_asked_in_vain(world: World, payment_id: str) -> None:
    [row] = await world.journal.ledger_rows((f"p:{payment_id}",))
    assert row is not None
    assert await world.journal.write_ledger_rows((payment_row(replace(payment_from_row(row), verifications=1), row),))


async def test_nothing_is_declared_not_paid_before_the_provider_was_asked_once(stored_world: World) -> None:
    """A charge was paid in the browser, and our confirm was told "already paid". An operator declared within a second
    that nobody had paid it: the inquiry that would have shown it was called off, and the order was paid twice."""
    world = stored_world
    body = {"amount": 1000, "currency": "EUR", "confirm": False, "metadata": {"order_id": "order-1"}}
    created = await world.post("/v1/charges", body, {**HEADERS, "Idempotency-Key": "create"}, CallerOptions())
    charge = str(json.loads(created.body)["id"])
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges/{charge}/confirm", json={"source": "tok_ok"}) as response,
    ):
        assert response.status == 200
    given = {**HEADERS, "Idempotency-Key": "late"}
    refused = await world.post(f"/v1/charges/{charge}/confirm", {"source": "tok_ok"}, given, CallerOptions())
    assert refused.outcome == "failed"
    [payment_id] = await world.parts.engine.intents.payments.find(charge)
    with pytest.raises(CorrectionRefused, match="about to be asked"):
        await commands_of(world).declare_unpaid(payment_id, NOT_PAID)
    assert (await world.charge("anew", amount=1100)).status_code == 409
    assert len(world.sandbox.ledger.entries) == 1


async def test_what_an_operator_declares_not_paid_frees_its_intent_and_closes_the_incident(stored_world: World) -> None:
    """15.12. The provider said "already done", and no inquiry could read the object."""
    world = stored_world
    payment_id = await already_done(world)
    view = await world.parts.engine.intents.payments.by_id(payment_id)
    assert view is not None
    step = next(each for each in view.operations if each.paid_elsewhere)
    await world.journal.record(OperationChange(step.changed(incident=IncidentKind.UNVERIFIED_PAYMENT), ()))
    assert (await world.charge("anew", amount=1100)).status_code == 409
    await was_asked_in_vain(world, payment_id)
    after = await commands_of(world).declare_unpaid(payment_id, NOT_PAID)
    assert after.payment.elsewhere == ""
    assert [each.incident for each in after.operations] == [None, None]
    assert await timeline_words(world, after) == ["ada not-paid"]
    assert (await world.charge("anew", amount=1100)).status_code == 200
    assert len(world.sandbox.ledger.entries) == 1
    with pytest.raises(CorrectionRefused, match="keeps nothing from being paid"):
        await commands_of(world).declare_unpaid(payment_id, NOT_PAID)


async def test_only_what_may_have_been_paid_elsewhere_is_declared_not_paid(world: World) -> None:
    reference = str(json.loads((await world.charge()).body)["id"])
    [ours] = await world.parts.engine.intents.payments.find(reference)
    with pytest.raises(CorrectionRefused, match="paid through here"):
        await commands_of(world).declare_unpaid(ours, NOT_PAID)
    seen = await commands_of(world).adopt(adopting(await charged_elsewhere(world)))
    with pytest.raises(CorrectionRefused, match="shown it as paid"):
        await commands_of(world).declare_unpaid(seen.payment.id, NOT_PAID)
    with pytest.raises(NoSuchPayment):
        await commands_of(world).declare_unpaid("op_0", NOT_PAID)
    with pytest.raises(InvalidCommand, match="evidence"):
        await commands_of(world).declare_unpaid(ours, replace(NOT_PAID, evidence="looked"))
    with pytest.raises(PaymentChanged):
        await commands_of(world).declare_unpaid(ours, NOT_PAID, 99)


async def test_a_payment_known_by_name_alone_can_be_said_to_be_paid_or_not(world: World) -> None:
    await world.journal.write_ledger_rows((payment_row(Payment("op_1", "acme", "account", ("ch_1",)), None),))
    with pytest.raises(InvalidCommand, match="currency"):
        await commands_of(world).state_balance("op_1", stating(captured="1.00"))
    view = await commands_of(world).state_balance("op_1", stating("EUR", captured="1.00"))
    assert (view.payment.elsewhere, view.payment.captured) == ("verified", 100)
    view = await commands_of(world).state_balance("op_1", stating(captured="0", authorised="0"))
    assert view.payment.elsewhere == ""


def test_names_of_two_accounts_never_meet() -> None:
    assert name_key("acme", "a", "ch_1") != name_key("acme", "b", "ch_1")
