"""The real process: start, stop, drain, a second one on the same journal, callers that leave."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import TOP, Sidecar, ask, free, listens, wait_until

MakeSidecar = Callable[..., Sidecar]


@pytest.fixture
def sidecar(sandbox: Provider, make_sidecar: MakeSidecar) -> Sidecar:
    return make_sidecar(sandbox.url).start()


def test_a_charge_survives_a_lost_response_with_one_effect(sandbox: Provider, sidecar: Sidecar) -> None:
    answer = sidecar.charge(fault="drop_after_commit")
    assert (answer.status_code, answer.outcome, answer.headers["Paywitness-Attempts"]) == (200, "succeeded", "2")
    assert sandbox.effects() == 1
    assert {arrival["key"] for arrival in sandbox.arrivals()} == {"key-1"}


def test_a_hundred_callers_at_once_get_equal_answers_from_one_send(sandbox: Provider, sidecar: Sidecar) -> None:
    with ThreadPoolExecutor(100) as callers:
        answers = list(callers.map(lambda _: sidecar.charge(fault="slow(slow_s=0.5)"), range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert (sandbox.effects(), len(sandbox.arrivals())) == (1, 1)


@pytest.mark.slow
def test_a_caller_that_hangs_up_leaves_an_operation_that_ends_and_is_replayed(
    sandbox: Provider, sidecar: Sidecar
) -> None:
    body = json.dumps({"amount": 1099, "currency": "EUR", "metadata": {"order_id": "order-1"}}).encode()
    with socket.create_connection(("127.0.0.1", sidecar.port)) as caller:
        caller.sendall(
            b"POST /acme/v1/charges HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer test\r\nIdempotency-Key: key-1\r\nSandbox-Fault: slow(slow_s=0.5)\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_until(sandbox.arrivals, "the arrival at the provider")
    wait_until(lambda: sandbox.effects() == 1, "the effect")
    replay = sidecar.charge()
    assert (replay.status_code, replay.headers.get("Paywitness-Replayed")) == (200, "true")
    assert sandbox.effects() == 1


@pytest.mark.slow
def test_sigterm_lets_calls_finish_and_exits_cleanly(sandbox: Provider, sidecar: Sidecar) -> None:
    answers = []
    caller = threading.Thread(target=lambda: answers.append(sidecar.charge(fault="slow(slow_s=1)")))
    caller.start()
    wait_until(sandbox.arrivals, "the arrival at the provider")
    sidecar.send(signal.SIGTERM)
    wait_until(lambda: free(sidecar.port), "the closing of the door")
    caller.join(10)
    assert answers
    assert answers[0].status_code == 200
    assert sidecar.wait_for_end(10) == 0
    assert sandbox.effects() == 1


@pytest.mark.slow
def test_sigterm_records_doubt_for_what_does_not_finish_in_the_grace_time(
    sandbox: Provider, make_sidecar: MakeSidecar
) -> None:
    edit = ("first_byte: 5s ", "first_byte: 60s ")
    sidecar = make_sidecar(sandbox.url, edit, ("deadline: 20s ", "deadline: 90s "), options=("--grace-seconds", "4"))
    sidecar.start()
    caller = threading.Thread(target=lambda: _ignore_errors(lambda: sidecar.charge(fault="hang_after_commit")))
    caller.start()
    wait_until(lambda: sandbox.effects() == 1, "the effect")
    sidecar.send(signal.SIGTERM)
    assert sidecar.wait_for_end(12) == 0
    caller.join(10)
    sidecar.start()
    assert sidecar.charge().status_code == 200
    assert sandbox.effects() == 1
    assert "cancelling" in sidecar.log


def _ignore_errors(call: Callable[[], object]) -> None:
    try:
        call()
    except OSError:
        return


@pytest.mark.slow
def test_a_second_process_on_the_same_journal_does_not_start(sandbox: Provider, sidecar: Sidecar) -> None:
    second = Sidecar(sidecar.home, sandbox.url)
    second.start(wait=False)
    assert second.wait_for_end(15) != 0
    assert listens(sidecar.port)
    assert "Traceback" not in sidecar.log


@pytest.mark.slow
def test_a_journal_of_another_identity_secret_is_refused(sandbox: Provider, sidecar: Sidecar) -> None:
    sidecar.charge()
    sidecar.stop()
    (sidecar.home / "journal.db.identity").write_text("another secret altogether, long enough\n")
    sidecar.start(wait=False)
    assert sidecar.wait_for_end(15) != 0
    assert "identity secret" in sidecar.log
    assert "Traceback" not in sidecar.log


@pytest.mark.slow
def test_the_timeline_tells_what_became_of_the_money(sandbox: Provider, sidecar: Sidecar) -> None:
    answer = sidecar.charge(fault="drop_after_commit")
    operation_id = answer.headers["Paywitness-Operation"]
    told = sidecar.admin(f"/v1/operations/{operation_id}").json
    readings = [entry["attempt"]["reading"] for entry in told["timeline"] if entry.get("attempt")]
    assert readings == ["unknown_outcome", "succeeded"]
    shown = subprocess.run(
        [sys.executable, "-m", "paywitness", "ops", "show", operation_id, "--admin", sidecar.admin_url],
        cwd=TOP,
        env={"PAYWITNESS_HOME": str(sidecar.home), "PATH": "/usr/bin:/bin", "COLUMNS": "140"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "10.99 EUR" in shown
    credential = {"Authorization": "Bearer test"}
    public = ask(f"http://127.0.0.1:{sidecar.port}/paywitness/operations/{operation_id}", None, credential).json
    assert (public["outcome"], public["attempts"]) == ("succeeded", 2)


@pytest.mark.slow
def test_an_edited_policy_is_in_force_within_moments_and_a_bad_edit_is_not(sandbox: Provider, sidecar: Sidecar) -> None:
    file = sidecar.home / "policies" / "acme.yaml"
    good = file.read_text()
    file.write_text(good.replace("unmatched: forward ", "unmatched: refuse "))
    wait_until(lambda: ask(f"{sidecar.url}/v1/charges/none").status_code == 403, "the new policy")
    file.write_text(good + "\nnonsense: true\n")
    wait_until(lambda: ask(f"{sidecar.admin_url}/readyz").json["reload"]["ok"] is False, "the refusal of the edit")
    ready = ask(f"{sidecar.admin_url}/readyz")
    assert (ready.status_code, "nonsense" in json.dumps(ready.json)) == (200, True)
    assert ask(f"{sidecar.url}/v1/charges/none").status_code == 403
    assert sidecar.charge().status_code == 200
    metrics = ask(f"{sidecar.admin_url}/metrics").body.decode()
    assert "paywitness_policy_last_reload_successful 0.0" in metrics
    file.write_text(good)
    wait_until(lambda: ask(f"{sidecar.url}/v1/charges/none").status_code == 404, "the good policy again")


@pytest.mark.slow
def test_an_edit_that_would_change_identity_is_refused_while_running_and_at_start(
    sandbox: Provider, sidecar: Sidecar
) -> None:
    sidecar.charge()
    file = sidecar.home / "policies" / "acme.yaml"
    file.write_text(file.read_text().replace("ignore: [client_time]", "ignore: [client_time, description]"))
    wait_until(lambda: ask(f"{sidecar.admin_url}/readyz").json["reload"]["ok"] is False, "the refusal of the edit")
    assert sidecar.charge().headers.get("Paywitness-Replayed") == "true"
    sidecar.stop()
    sidecar.start()  # the last book that was accepted is in force
    reload = ask(f"{sidecar.admin_url}/readyz").json["reload"]
    assert reload["ok"] is False
    assert "ignore: was [client_time], is [client_time, description]" in str(reload)
    assert sidecar.charge().headers.get("Paywitness-Replayed") == "true"


def test_metrics_count_what_happened(sandbox: Provider, sidecar: Sidecar) -> None:
    sidecar.charge("a", "a")
    sidecar.charge("b", "b", fault="drop_after_commit")
    sidecar.charge("c", "c", fault="error_500_after_commit")
    text = ask(f"{sidecar.admin_url}/metrics").body.decode()
    assert 'payment_operations_total{kind="sale",operation="sale",outcome="succeeded",provider="acme"} 3.0' in text
    assert 'payment_operation_unknown_total{kind="sale",operation="sale",provider="acme"} 2.0' in text
    assert "payment_operation_retry_total{" in text
    assert 'payment_resolutions_total{evidence="replay",outcome="succeeded",provider="acme"} 1.0' in text
    assert 'payment_resolutions_total{evidence="inquiry",outcome="succeeded",provider="acme"} 1.0' in text
    assert 'payment_status_inquiry_total{outcome="hit",provider="acme",reason="error_response"} 1.0' in text


def test_a_clean_payment_is_in_the_log_where_that_is_asked_for(sandbox: Provider, make_sidecar: MakeSidecar) -> None:
    quiet = make_sidecar(sandbox.url).start()
    talking = make_sidecar(sandbox.url, options=("--log-calls", "all")).start()
    for sidecar in (quiet, talking):
        assert sidecar.charge(sidecar.home.name, sidecar.home.name).status_code == 200
    wait_until(lambda: "call_answered" in talking.log, "its line")
    lines = [json.loads(line) for line in talking.log.splitlines() if line.startswith("{")]
    told = [(line["event"], line["level"]) for line in lines if "operation_id" in line]
    assert told == [("attempt_finished", "info"), ("call_answered", "info")]
    assert "operation_id" not in quiet.log
