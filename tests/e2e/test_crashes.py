"""kill -9 at each step of the life of a call, then a restart and a repeat by the caller. The ledger judges."""

from __future__ import annotations

import signal
import threading
import time
import urllib.error
from collections.abc import Callable
from http.client import HTTPException

import pytest

from proxy.engine.steps import ALL_STEPS, CALL_RECEIVED, RESEND_RECORDED, UPSTREAM_CONNECTED
from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Sidecar, wait_until

MakeSidecar = Callable[..., Sidecar]
pytestmark = pytest.mark.slow


def call_and_lose(sidecar: Sidecar, fault: str = "") -> None:
    """A call whose sidecar dies under it."""
    with pytest.raises((urllib.error.URLError, HTTPException, ConnectionError, TimeoutError)):
        sidecar.charge(fault=fault)


@pytest.mark.parametrize("fault", ["", "drop_after_commit"])
@pytest.mark.parametrize("step", ALL_STEPS)
def test_a_kill_at_any_step_ends_in_one_charge_after_the_callers_repeat(
    sandbox: Provider, make_sidecar: MakeSidecar, step: str, fault: str
) -> None:
    sidecar = make_sidecar(sandbox.url).start(step=step)
    if step == RESEND_RECORDED:
        # Reached only when a caller repeats what is in doubt: so leave a doubt first.
        lost = sidecar.charge(fault="drop_after_commit,drop_after_commit,drop_after_commit")
        assert lost.outcome == "unknown"
        fault = ""
    call_and_lose(sidecar, fault)
    assert sidecar.wait_for_end() == -signal.SIGKILL
    before = sandbox.effects()
    assert before <= 1
    sidecar.start()
    repeat = sidecar.charge()
    assert (repeat.status_code, repeat.outcome) == (200, "succeeded"), repeat.body
    assert sandbox.effects() == 1
    operations = sidecar.admin("/v1/operations").json["operations"]
    assert {operation["state"] for operation in operations} <= {"succeeded", "failed"}
    assert step == CALL_RECEIVED or len(operations) == 1
    assert {arrival["key"] for arrival in sandbox.arrivals()} == {"key-1"}


def test_without_idempotency_a_kill_leaves_doubt_and_nothing_is_sent_again(
    start_sandbox: Callable[..., Provider], make_sidecar: MakeSidecar
) -> None:
    sandbox = start_sandbox("none")
    edits = (
        ("send_as: header:Idempotency-Key          # where Acme takes the key", "send_as: none"),
        ("  window: 24h ", "  # window: 24h "),
        ("  max_length: 255", "  # max_length"),
        ("  errors_under_key: replayed ", "  # errors_under_key: replayed "),
        ("  key_space: account ", "  # key_space: account "),
    )
    sidecar = make_sidecar(sandbox.url, *edits).start(step="upstream_answered")
    call_and_lose(sidecar)
    assert sidecar.wait_for_end() == -signal.SIGKILL
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
    wait_until(lambda: _stopped(sidecar), "the stop at the step")
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


def _stopped(sidecar: Sidecar) -> bool:
    assert sidecar.process is not None
    with open(f"/proc/{sidecar.process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"
