"""Payments and intents on the admin port and at the keyboard: what stands, one timeline, what a person may state."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from click.testing import Result

from paywitness.admin.backend import Readiness
from paywitness.admin.server import AdminServer
from paywitness.core.call import CallerOptions, Priority
from paywitness.core.payment import PaidElsewhere, Payment
from paywitness.engine.credential_commands import CredentialCommands
from paywitness.engine.durability.levels import Levels
from paywitness.engine.intents import Intents
from paywitness.engine.operator_commands import CommandExecutor
from paywitness.engine.payment_commands import PaymentCommands
from paywitness.engine.payment_lookup import PaymentLookup
from paywitness.engine.payout_approvals import PayoutApprovals
from paywitness.journal.base import Journal
from paywitness.journal.ledger import payment_row
from paywitness.limits.admission import Admission
from paywitness.limits.budgets import Budgets
from paywitness.limits.circuits import Circuits
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.metrics import Metrics
from paywitness.wiring import SidecarParts
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.admin.running import Running, call
from tests.admin.world import TOKEN
from tests.engine.conftest import close
from tests.engine.world import World, make_world

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}

_IDS_DIFFER_S = 0.002  # lists are in the order of the ids, and ids of one millisecond are in none


@dataclass
class PayingBackend:
    """The real engine with the sandbox behind it, as the admin port sees it."""

    parts: SidecarParts
    journal: Journal
    telemetry: Telemetry
    metrics: Metrics
    review: CommandExecutor
    approvals: PayoutApprovals
    payment_commands: PaymentCommands
    circuits: Circuits
    budgets: Budgets
    admission: Admission

    @property
    def intents(self) -> Intents:
        return self.parts.engine.intents

    @property
    def payments(self) -> PaymentLookup:
        return self.intents.payments

    @property
    def levels(self) -> Levels | None:
        return self.parts.levels

    @property
    def credential_commands(self) -> CredentialCommands:
        return CredentialCommands(self.journal, self.parts.journal_writer, self.parts.engine.credential_owners)

    def readiness(self) -> Readiness:
        return Readiness()

    def book(self) -> PolicyBook | None:
        return self.parts.engine.book


def backend_of(world: World) -> PayingBackend:
    parts, engine = world.parts, world.engine
    telemetry = engine.telemetry
    review = CommandExecutor(
        parts.journal_writer,
        parts.external_evidence,
        world.journal,
        parts.pinned,
        lambda: engine.book,
        world.clock,
        telemetry,
    )
    commands = PaymentCommands(
        engine.intents.payments,
        world.journal,
        parts.resolver.inquiry_client,
        lambda: engine.book,
        parts.journal_writer.journal_clock,
        engine.randomness,
        telemetry,
    )
    limits = parts.limits
    return PayingBackend(
        parts,
        world.journal,
        telemetry,
        telemetry.metrics,
        review,
        PayoutApprovals(world.journal, parts.journal_writer.journal_clock),
        commands,
        limits.circuits,
        limits.budgets,
        limits.admission,
    )


class Shop:
    """A sidecar with its sandbox and its admin port, in a thread of its own, so that commands may block in this one."""

    def __init__(self) -> None:
        self.running = _Served(self._open)
        self.world = self.running.paying

    async def _open(self) -> tuple[World, str, Callable[[], Coroutine[Any, Any, None]]]:
        sandbox = Sandbox(SandboxOptions(hang_s=5.0, late_s=0.5))
        await sandbox.start()
        world = await make_world(sandbox)
        server = AdminServer(backend_of(world), TOKEN)
        port = await server.start("127.0.0.1", 0)

        async def stop() -> None:
            await server.close()
            await close(world)
            await sandbox.stop()

        return world, f"http://127.0.0.1:{port}", stop

    def ops(self, *arguments: str, typed: str = "") -> Result:
        return call(self.running, *arguments, typed=typed)

    def json(self, *arguments: str) -> Any:
        result = self.ops(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def authorised(self, amount: int = 10_000, order: str = "order-1", **options: Any) -> str:
        body = {
            "amount": amount,
            "currency": "EUR",
            "source": "tok_ok",
            "capture": False,
            "metadata": {"order_id": order},
        }
        headers = {**HEADERS, "Idempotency-Key": f"auth-{order}"}
        reply = self.running.do(self.world.post("/v1/charges", body, headers, CallerOptions(**options)))
        time.sleep(_IDS_DIFFER_S)
        assert reply.status_code == 200, reply.body
        return str(json.loads(reply.body)["id"])

    def follow(self, reference: str, action: str, amount: int | None = None, **headers: str) -> Any:
        given = {**HEADERS, "Idempotency-Key": f"{action}-{reference}-{amount}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = {} if amount is None else {"amount": amount}
        path = f"/v1/charges/{reference}/{action}"
        reply = self.running.do(self.world.post(path, body, given, CallerOptions()))
        time.sleep(_IDS_DIFFER_S)
        return reply


class _Served(Running):
    """As `Running`, of a world that is opened in the thread."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="admin", daemon=True)
        self._thread.start()
        self.paying, address, self._close = self.do(opening())
        self.world = _At(address)  # type: ignore[assignment]  # the commands only ask where it is


@dataclass
class _At:
    address: str


@pytest.fixture
def shop() -> Iterator[Shop]:
    opened = Shop()
    yield opened
    opened.running.stop()


def test_captures_and_refunds_have_an_amount_everywhere(shop: Shop) -> None:
    reference = shop.authorised()
    shop.follow(reference, "capture", 6000)
    shop.follow(reference, "refunds", 1000)
    lost = shop.follow(reference, "refunds", 500, Sandbox_Fault="drop_after_commit*")
    assert lost.status_code == 504
    listed = shop.json("list")["operations"]
    assert [(row["kind"], row["amount"], row["currency"]) for row in listed] == [
        ("refund", "5.00", "EUR"),
        ("refund", "10.00", "EUR"),
        ("capture", "60.00", "EUR"),
        ("authorization", "100.00", "EUR"),
    ]
    assert "UNKNOWN: 5.00 EUR may have been refunded" in shop.ops("list", "--doubt").output
    [count] = shop.running.do(shop.world.journal.doubt_counts())
    assert (count.minor_units, count.currency) == (500, "EUR")


def test_a_payment_is_shown_by_its_name_with_one_timeline_of_all_its_operations(shop: Shop) -> None:
    reference = shop.authorised(priority=Priority.LOW)
    shop.follow(reference, "capture", 6000)
    shop.follow(reference, "refunds", 1000)
    assert shop.follow(reference, "refunds", 0).status_code == 400  # leaves no movement
    found = shop.json("show", reference)
    assert found["explanation"].startswith(
        "Paid: 100.00 EUR authorised, 60.00 captured, 10.00 refunded. 50.00 EUR stand."
    )
    assert [row["kind"] for row in found["operations"]] == ["authorization", "capture", "refund", "refund"]
    assert (found["priority"], found["customer"], len(found["account"])) == ("low", None, 32)
    times = [entry["at"] for entry in found["timeline"]]
    assert times == sorted(times)
    assert {entry["kind"] for entry in found["timeline"]} == {"authorization", "capture", "refund"}
    assert {entry["operation"] for entry in found["timeline"]} == {row["id"] for row in found["operations"]}
    printed = shop.ops("show", reference).output
    assert printed.startswith(f"{reference} at acme\n  Paid: 100.00 EUR authorised")
    assert "50.00 EUR" in printed
    capture = found["operations"][1]["id"]
    assert f"capture {capture}: " in printed


def test_an_operation_is_shown_with_its_payment(shop: Shop) -> None:
    reference = shop.authorised()
    shop.follow(reference, "capture", 6000)
    capture = shop.json("list", "--kind", "capture")["operations"][0]
    found = shop.json("show", capture["id"])
    assert (found["balance"]["captured"], found["balance"]["payment"]) == ("60.00", capture["payment"])
    assert {entry["source"] for entry in found["timeline"]}  # its own, as before
    printed = shop.ops("show", capture["id"]).output
    assert printed.startswith(f"{capture['id']} SUCCEEDED: 60.00 EUR was captured")
    assert "Payment\n  Paid: 100.00 EUR authorised, 60.00 captured" in printed
    assert f"authorization {capture['payment']}: " in printed


def test_an_order_is_shown_with_what_keeps_it_from_being_paid(shop: Shop) -> None:
    reference = shop.authorised(order="order-17")
    shop.follow(reference, "void")
    found = shop.json("show", "order-17")
    assert found["safe_to_pay"] is True
    assert "Voided in full" in found["explanation"]
    assert [row["kind"] for row in found["operations"]] == ["void", "authorization"]
    assert {entry["kind"] for entry in found["timeline"]} == {"authorization", "void"}
    printed = shop.ops("show", "order-17").output
    assert printed.startswith("order-17 may be paid\n")
    assert f"\n\n{reference} at acme\n" in printed
    assert "\N{REPLACEMENT CHARACTER}" not in printed
    by_credential = shop.ops("credential", "show", found["operations"][0]["id"])
    assert by_credential.output.startswith(f"the credential that made {found['operations'][0]['id']}\n  ")
    assert "\N{REPLACEMENT CHARACTER}" not in by_credential.output
    nothing = shop.ops("show", "order-18")
    assert nothing.exit_code == 1
    assert "knows no operation, payment or order of this name" in nothing.output


def test_lists_are_narrowed_by_payment_account_and_kind(shop: Shop) -> None:
    first, second = shop.authorised(order="order-1"), shop.authorised(order="order-2")
    shop.follow(first, "capture", 100)
    shop.follow(second, "capture", 200)

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in shop.json("list", *arguments)["operations"]]

    every = shop.json("list")["operations"]
    assert ids("--payment", first) == [every[1]["id"], every[3]["id"]]
    assert ids("--payment", every[3]["id"]) == [every[1]["id"], every[3]["id"]]
    assert ids("--payment", "ch_nobody") == []
    assert ids("--kind", "capture") == [every[0]["id"], every[1]["id"]]
    assert ids("--kind", "capture", "--payment", second) == [every[0]["id"]]
    assert ids("--account", every[0]["account"]) == [row["id"] for row in every]
    assert ids("--account", "nobody") == []


def test_a_payment_that_went_past_us_is_adopted_and_a_number_of_it_stated(shop: Shop) -> None:
    reference = shop.running.do(_charged_elsewhere(shop.world))
    refused = shop.ops("adopt", "ch_nobody", "--provider", "acme", "--reason", "ticket 4720")
    assert refused.exit_code == 1
    assert "acme knows no ch_nobody. Check the reference and the account" in refused.output
    adopted = shop.ops("adopt", reference, "--provider", "acme", "--reason", "ticket 4720")
    assert adopted.exit_code == 0, adopted.output
    assert f"{reference} is adopted as payment op_" in adopted.output
    assert "Paid, but not by a call of ours: 25.00 EUR authorised, 25.00 captured, 0.00 refunded." in adopted.output
    again = shop.ops("adopt", reference, "--provider", "acme", "--reason", "ticket 4720")
    assert (again.exit_code, "adopted before" in again.output) == (1, True)
    stating = ["balance", reference, "--refunded", "5.00", "--reason", "ticket 4721"]
    assert shop.ops(*stating).exit_code == 2  # no evidence
    evidence = ["--evidence", "Acme's dashboard shows 5.00 EUR refunded"]
    assert shop.ops(*stating, *evidence, typed="n\n").exit_code == 1
    stated = shop.ops(*stating, *evidence, typed="y\n")
    assert stated.exit_code == 0, stated.output
    assert stated.output.splitlines()[-1].endswith("5.00 refunded. 20.00 EUR stand.")
    shown = shop.ops("show", reference).output
    assert "adopt: Paid, but not by a call of ours" in shown
    assert "balance: 5.00 EUR refunded  (operator ada)" in shown
    assert "evidence: Acme's dashboard shows 5.00 EUR refunded" in shown
    assert shop.ops("balance", reference, "--reason", "ticket", *evidence, "--yes").exit_code == 2  # no number


async def _charged_elsewhere(world: World) -> str:
    body = {"amount": 2500, "currency": "EUR", "source": "tok_ok"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.sandbox.url}/v1/charges", json=body, headers=HEADERS) as response,
    ):
        return str((await response.json())["id"])


def test_what_nobody_has_paid_is_declared_so_with_evidence(shop: Shop) -> None:
    given = ["--reason", "ticket 4722", "--evidence", "Acme's dashboard shows it as cancelled"]
    shop.authorised()
    ours = shop.json("list")["operations"][0]
    refused = shop.ops("not-paid", ours["payment"], *given, "--yes")
    assert (refused.exit_code, "It was paid through here" in refused.output) == (1, True)
    doubted = Payment("op_7", "acme", "account", ("ch_7",), elsewhere=PaidElsewhere.UNVERIFIED)
    assert shop.running.do(shop.world.journal.write_ledger_rows((payment_row(doubted, None),)))
    assert shop.ops("not-paid", "op_7", "--reason", "ticket 4722").exit_code == 2  # no evidence
    assert shop.ops("not-paid", "op_7", *given, typed="n\n").exit_code == 1
    declared = shop.ops("not-paid", "op_7", *given, typed="y\n")
    assert declared.exit_code == 0, declared.output
    assert declared.output.splitlines()[-1] == "op_7  Nothing is recorded as authorised or captured."
    shown = shop.ops("show", "op_7").output
    assert "not-paid: nobody has paid it  (operator ada)" in shown
    assert "evidence: Acme's dashboard shows it as cancelled" in shown


def test_what_a_person_pastes_is_masked(shop: Shop) -> None:
    shop.authorised()
    row = shop.json("list")["operations"][0]
    given = ["--evidence", "seen with card 4242 4242 4242 4242", "--reason", "Bearer abcdefgh12345678", "--yes"]
    assert shop.ops("balance", row["payment"], "--captured", "1.00", *given).exit_code == 0
    text = json.dumps(shop.json("show", row["reference"]))
    assert "4242 4242" not in text
    assert "abcdefgh12345678" not in text
