"""kill -9 at each step of the life of a call, then a restart and a repeat by the caller. The ledger judges."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from paywitness.engine.failpoints import (
    CALL_FAILPOINTS,
    CALL_RECEIVED,
    RESEND_RECORDED,
    RESOLUTION_FAILPOINTS,
    UPSTREAM_CONNECTED,
)
from tests.e2e.conftest import Provider
from tests.e2e.judge import posts
from tests.e2e.sidecar import Sidecar, wait_until
from tests.engine.storm import WITHOUT_KEYS

MakeSidecar = Callable[..., Sidecar]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", ["", "drop_after_commit"])
@pytest.mark.parametrize("step", CALL_FAILPOINTS)
def test_a_kill_at_any_step_ends_in_one_charge_after_the_callers_repeat(
    sandbox: Provider, make_sidecar: MakeSidecar, step: str, fault: str
) -> None:
    # Re-sent in the background, or by a repeat, only where nobody can be asked: so nobody can.
    unasked = (("    ask: *ask_for_a_charge ", "    # nobody to ask "),)
    edits = unasked if step == RESEND_RECORDED else ()
    sidecar = make_sidecar(sandbox.url, *edits).start(step=step)
    if step == RESEND_RECORDED:
        fault = "drop_after_commit,drop_after_commit,drop_after_commit"
    sidecar.charge_and_die(fault=fault)
    before = sandbox.effects()
    assert before <= 1
    sidecar.start()
    repeat = sidecar.charge()
    assert (repeat.status_code, repeat.outcome) == (200, "succeeded"), repeat.body
    assert sandbox.effects() == 1
    operations = sidecar.admin("/v1/operations").json["operations"]
    assert {operation["state"] for operation in operations} <= {"succeeded", "failed"}
    assert step == CALL_RECEIVED or len(operations) == 1
    assert {arrival["key"] for arrival in posts(sandbox)} == {"key-1"}


@pytest.mark.parametrize("step", RESOLUTION_FAILPOINTS)
def test_a_kill_while_the_provider_is_asked_is_resolved_with_no_operator(
    start_sandbox: Callable[..., Provider], make_sidecar: MakeSidecar, step: str
) -> None:
    sandbox = start_sandbox("none")
    sidecar = make_sidecar(sandbox.url, *WITHOUT_KEYS).start(step=step)
    sidecar.charge_and_die(fault="drop_after_commit")
    sidecar.start()
    wait_until(lambda: states(sidecar) == {"succeeded"}, "the resolution")
    repeat = sidecar.charge()
    assert (repeat.status_code, repeat.outcome, repeat.json["status"]) == (200, "succeeded", "succeeded")
    assert (sandbox.effects(), len(posts(sandbox))) == (1, 1)


def states(sidecar: Sidecar) -> set[str]:
    return {operation["state"] for operation in sidecar.admin("/v1/operations").json["operations"]}


def test_without_a_key_and_with_nobody_to_ask_a_kill_leaves_doubt_and_nothing_is_sent_again(
    start_sandbox: Callable[..., Provider], make_sidecar: MakeSidecar
) -> None:
    sandbox = start_sandbox("none")
    edits = (
        *WITHOUT_KEYS,
        ("    match: [POST /v1/charges, ", "    webhook: none\n    match: [POST /v1/charges, "),
        ("    ask: *ask_for_a_charge ", "    # nobody to ask "),
    )
    sidecar = make_sidecar(sandbox.url, *edits).start(step="upstream_answered")
    sidecar.charge_and_die()
    sidecar.start()
    for _ in range(3):
        repeat = sidecar.charge()
        assert (repeat.status_code, repeat.outcome, repeat.json["sent"]) == (504, "unknown", False)
    assert (sandbox.effects(), len(sandbox.arrivals())) == (1, 1)


def test_a_sidecar_that_slept_past_its_lease_does_not_send(sandbox: Provider, make_sidecar: MakeSidecar) -> None:
    """SIGSTOP with the connection up and SENDING recorded; SIGCONT after the lease: not a byte of that attempt leaves.
    What follows runs under a lease of its own."""
    sidecar = make_sidecar(sandbox.url, options=("--lease-seconds", "6"))
    sidecar.start(step=UPSTREAM_CONNECTED, on_step="STOP")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(sidecar.charge(timeout=60)))
    caller.start()
    wait_until(lambda: sidecar.stopped, "the stop at the step")
    time.sleep(6.5)  # the lease: nothing but time ends it
    assert sandbox.effects() == 0
    sidecar.send(signal.SIGCONT)
    caller.join(30)
    assert answers
    told = sidecar.admin(f"/v1/operations/{answers[0].headers['Paywitness-Operation']}").json
    attempts = [entry["attempt"] for entry in told["timeline"] if entry.get("attempt")]
    assert (attempts[0]["fault"], attempts[0]["bytes_written"]) == ("lease_over", 0)
    assert len(sandbox.arrivals()) == len(attempts) - 1
    assert sidecar.charge().status_code == 200
    assert sandbox.effects() == 1
