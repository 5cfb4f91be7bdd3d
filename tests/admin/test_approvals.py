"""Payouts that wait for approval, on the admin port and at the keyboard."""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.claim import ClaimVerdict
from paywitness.core.money import Money
from paywitness.core.payout import ApprovalTerms, PayoutClaim
from paywitness.core.provider_contract import OperationKind
from tests.admin.conftest import Asker
from tests.admin.running import Running, call
from tests.admin.world import World
from tests.journal.samples import asking

TERMS = ApprovalTerms(
    "ap_0a1b", "acme", "payout", "canary-account", "canary-fingerprint", "P-7", "canary-payee", Money(150_000, "EUR")
)


async def asked(world: World, key: str = "key-1") -> ClaimVerdict:
    request = asking(key, kind=OperationKind.PAYOUT, money=TERMS.money)
    claim = await world.journal.claim(replace(request, payout=PayoutClaim(approval=TERMS, approval_valid_s=3600.0)))
    return claim.verdict


async def test_a_request_is_listed_approved_and_used_once(world: World, ask: Asker) -> None:
    assert (await ask("/v1/approvals")).json == {"approvals": []}
    assert await asked(world) is ClaimVerdict.NEEDS_APPROVAL
    listed = await ask("/v1/approvals")
    [approval] = listed.json["approvals"]
    assert (approval["id"], approval["status"], approval["amount"]) == ("ap_0a1b", "waiting", "1500.00")
    assert (approval["reference"], approval["approved_at"], approval["valid_until"]) == ("P-7", None, None)
    assert "canary" not in listed.text
    given = {"actor": "ada", "reason": "invoice 88, card 4242 4242 4242 4242"}
    approved = await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=given)
    assert (approved.status_code, approved.json["status"], approved.json["approved_by"]) == (200, "approved", "ada")
    assert "4242 4242" not in approved.text
    assert await asked(world) is ClaimVerdict.OWNED
    assert (await ask("/v1/approvals")).json == {"approvals": []}
    used = await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=given)
    assert (used.status_code, used.json["type"]) == (409, "urn:paywitness:problem:not-offered")


async def test_an_approval_needs_who_and_why_and_a_request(world: World, ask: Asker) -> None:
    await asked(world)
    for body in (
        {"actor": "ada"},
        {"reason": "because"},
        {"actor": "ada", "reason": "x"},
        {"actor": 1, "reason": "abc"},
    ):
        refused = await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=body)
        assert (refused.status_code, refused.json["type"]) == (400, "urn:paywitness:problem:invalid-command")
    given = {"actor": "ada", "reason": "invoice 88"}
    for unknown in ("ap_ffff", "op_1", "a:waiting", "waiting"):
        assert (await ask(f"/v1/approvals/{unknown}/approve", method="POST", json=given)).status_code == 404
    assert await asked(world) is ClaimVerdict.NEEDS_APPROVAL


async def test_an_approval_that_lapsed_is_given_anew(world: World, ask: Asker) -> None:
    await asked(world)
    given = {"actor": "ada", "reason": "invoice 88"}
    await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=given)
    world.clock.at += 3600.0
    [lapsed] = (await ask("/v1/approvals")).json["approvals"]
    assert lapsed["status"] == "lapsed"
    await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=given)
    assert await asked(world) is ClaimVerdict.OWNED


async def test_without_the_token_nothing_is_listed_or_approved(world: World, ask: Asker) -> None:
    await asked(world)
    given = {"actor": "eve", "reason": "invoice 88"}
    assert (await ask("/v1/approvals", token=None)).status_code == 401
    assert (await ask("/v1/approvals/ap_0a1b/approve", method="POST", json=given, token="x")).status_code == 401
    assert await asked(world) is ClaimVerdict.NEEDS_APPROVAL


def test_the_commands_list_and_approve(running: Running) -> None:
    assert call(running, "approvals").output == "No payout waits for approval.\n"
    running.do(asked(running.world))
    listed = call(running, "approvals").output
    assert listed.startswith("ap_0a1b  waiting  acme payout, 1500.00 EUR, reference P-7, requested 2025-")
    missing = call(running, "approve", "ap_0a1b")
    assert missing.exit_code == 2
    approved = call(running, "approve", "ap_0a1b", "--reason", "invoice 88")
    assert approved.exit_code == 0, approved.output
    assert "ap_0a1b  approved  " in approved.output
    assert "approved by ada, good until " in approved.output
    assert running.do(asked(running.world)) is ClaimVerdict.OWNED
    assert call(running, "approve", "ap_0a1b", "--reason", "invoice 88").exit_code == 1
