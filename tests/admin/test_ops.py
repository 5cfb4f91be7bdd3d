"""`paywitness ops` against a running admin port: what a person at the keyboard reads."""

from __future__ import annotations

import csv
import io
import json
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from paywitness.cli.ops.group import ops
from paywitness.cli.ops.text import moment_ahead
from paywitness.core.decide import Action
from paywitness.core.lifecycle import Event
from paywitness.core.money import Money
from paywitness.core.operation import OtherPayment
from paywitness.core.policy import ResolutionRules
from paywitness.core.result import ResultClass
from paywitness.journal.base import OperationChange
from paywitness.telemetry.logs import iso
from tests.admin.running import Running, call
from tests.admin.world import CARD, TOKEN


def test_the_list_answers_whether_it_was_charged(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    running.do(running.world.declined(client_key="order-18"))
    result = call(running, "list")
    assert result.exit_code == 0, result.output
    header, first, second = [line for line in result.output.splitlines() if "op_" in line or "Operation" in line]
    assert header.split()[0] == "Operation"
    assert "order-18" in first
    assert "DECLINED: nothing was authorised; the provider said no (issuer hard decline)" in first
    assert operation.id in second
    assert "2025-06-15 15:06:40" in second
    assert "UNKNOWN: 12.50 EUR may have moved; do not pay again" in second


def test_a_narrow_terminal_gets_two_lines_instead_of_folded_cells(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    assert call(running, "list", columns=80).output.splitlines() == [
        f"{operation.id}  2025-06-15 15:06:40  acme authorization, order-17",
        "    UNKNOWN: 12.50 EUR may have moved; do not pay again",
    ]


def test_the_list_takes_every_filter(running: Running) -> None:
    doubt = running.do(running.world.in_doubt(client_key="a"))
    review = running.do(running.world.in_review(client_key="b"))
    incident = running.do(running.world.with_incident(client_key="c"))

    def ids(*arguments: str) -> list[str]:
        result = call(running, "list", "--json", *arguments)
        assert result.exit_code == 0, result.output
        return [row["id"] for row in json.loads(result.output)["operations"]]

    assert ids() == [incident.id, review.id, doubt.id]
    assert ids("--doubt") == [review.id, doubt.id]
    assert ids("--review") == [review.id]
    assert ids("--incidents") == [incident.id]
    assert ids("--state", "failed", "--state", "unknown") == [incident.id, doubt.id]
    assert ids("--key", "a") == [doubt.id]
    assert ids("--provider", "acme", "--operation", "authorization", "--limit", "1") == [incident.id]
    assert ids("--before", review.id) == [doubt.id]
    assert ids("--reference", "ch_none") == []
    assert ids("--order", "order-17", "--state", "unknown") == [doubt.id]
    assert ids("--amount", "12.50 EUR", "--doubt") == [review.id, doubt.id]
    assert ids("--id", doubt.id) == [doubt.id]


def test_a_long_list_says_how_to_go_on(running: Running) -> None:
    running.do(running.world.succeeded())
    newest = running.do(running.world.succeeded())
    assert f"There are more: --before {newest.id}" in call(running, "list", "--limit", "1").output


def test_an_empty_list_says_why_it_is_empty(running: Running) -> None:
    assert call(running, "list").output == "The journal holds no operation yet.\n"
    assert call(running, "list", "--doubt").output == "No operation fits these filters.\n"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_spreadsheet_gets_every_row_and_a_link_to_each(running: Running) -> None:
    for number in range(205):
        running.do(running.world.in_review(client_key=f"key-{number}", reference="ch/1" if number == 7 else None))
    rows = rows_of(call(running, "list", "--review", "--csv").output)
    assert len(rows) == 205
    assert rows[-8]["dashboard"] == "https://dashboard.acme.test/payments/ch%2F1"
    assert rows[0]["key"] == "key-204"
    assert rows[0]["was_it_charged"].startswith("UNKNOWN, IN REVIEW: 12.50 EUR may have moved")
    assert (rows[0]["amount"], rows[0]["currency"], rows[0]["order"]) == ("12.50", "EUR", "order-17")
    assert len(rows_of(call(running, "list", "--csv", "--limit", "3").output)) == 3


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_no_cell_is_a_formula(running: Running, start: str) -> None:
    key = f"{start}HYPERLINK(1)"
    running.do(running.world.in_doubt(client_key=key, reference="\x1b[2J"))
    [row] = rows_of(call(running, "list", "--csv").output)
    assert row["key"] == f"'{key}"
    assert "\x1b" not in row["reference"]


def test_incidents_say_what_to_do(running: Running) -> None:
    running.do(running.world.with_incident(reference="ch_1"))
    for columns in (80, 200):
        assert "to do: Its caller was told" in call(running, "list", "--incidents", columns=columns).output


def test_show_answers_in_its_first_line_and_tells_the_rest_in_order(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    running.do(running.world.changed(operation, Event.PARKED, note="asked Acme, ticket 4711"))
    result = call(running, "show", operation.id)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert lines[0] == (
        f"{operation.id} UNKNOWN, IN REVIEW: 12.50 EUR may have moved; do not pay again; a person must look"
    )
    told = "\n".join(lines)
    order = [
        "order-17 (header:Idempotency-Key)",
        "1, in doubt: 1",
        "Timeline (UTC)",
        "2025-06-15 15:06:40  send recorded -> sending  (caller)",
        "2025-06-15 15:06:41  answer lost: money may have moved -> unknown  (caller)",
        "attempt 1: no whole response, first byte timeout; reached awaiting, 412 bytes written, 80 ms",
        "read as network read timeout, effect possible (rule rule_of_network_read_timeout)",
        "in doubt: attempt 1",
        "decided: status inquiry after 2 s, because in_doubt_ask",
        "2025-06-15 15:06:42  parked -> requires review  (webhook)",
        "note: asked Acme, ticket 4711",
    ]
    places = [told.find(line) for line in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert CARD not in told


def test_show_tells_an_error_that_arrived_and_what_the_provider_calls_the_request(running: Running) -> None:
    world = running.world
    started = running.do(world.started())
    facts = {"status_code": 500, "phase": "complete", "request_id": "req_4711"}
    error, wait = ResultClass.TEMPORARY_PROVIDER_ERROR, Action.STATUS_INQUIRY
    operation = running.do(world.attempted(started, error, wait, "in_doubt_ask", **facts))
    told = call(running, "show", operation.id).output
    assert "answered 500: money may have moved -> unknown" in told
    assert "answer lost" not in told
    assert "request id at the provider: req_4711" in told


def test_show_leaves_out_who_holds_it_if_nobody_asks(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    running.do(running.world.memory.record(OperationChange(operation.changed(due_at=1.0), ())))
    [held] = running.do(running.world.memory.take_due("canary-token", 30.0, limit=1))
    assert "lease taken" not in call(running, "show", held.id).output
    assert "lease taken" in call(running, "show", held.id, "--leases").output


def test_show_says_where_an_operation_stands_in_its_schedule(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    sent_at = operation.first_sent_at or 0.0
    waits = running.do(
        running.world.memory.record(OperationChange(operation.changed(due_at=sent_at + 60.0, checks_done=2), ()))
    )
    inquiry = json.loads(call(running, "show", waits.id, "--json").output)["inquiry"]
    schedule_s = ResolutionRules().schedule_s
    gives_up_at = iso(sent_at + max(60.0 + sum(schedule_s[3:]), 0.8 * sum(schedule_s)))
    assert inquiry == {"next": 3, "of": len(schedule_s), "gives_up_at": gives_up_at}
    shown = call(running, "show", waits.id).output
    assert f"3 of {len(schedule_s)}, gives up at {gives_up_at[:19].replace('T', ' ')}" in shown


def test_a_moment_says_how_far_ahead_it_is() -> None:
    assert moment_ahead("2025-06-15T15:06:40.000Z", 1_749_992_500.0) == "2025-06-15 15:06:40 (in 2 h 5 min)"
    assert moment_ahead("2025-06-15T15:06:40.000Z", 1_750_000_000.0) == "2025-06-15 15:06:40 (now)"


def test_an_incident_is_shown_with_both_amounts_and_the_other_payment(running: Running) -> None:
    other = OtherPayment("op_2", "globex", "ch_2", Money(4200, "EUR"))
    operation = running.do(running.world.succeeded(reference="ch_1"))
    running.do(
        running.world.memory.record(
            OperationChange(operation.changed(incident="another_amount", other_payment=other), ())
        )
    )
    told = " ".join(call(running, "show", operation.id).output.split())
    assert "amount 12.50 EUR" in told
    assert "other amount 42.00 EUR" in told
    assert "other payment op_2 ch_2 at globex" in told
    assert "12.50 EUR was requested, and ch_1 (12.50 EUR) at acme shows 42.00 EUR" in told
    assert "shows 42.00 EUR" in call(running, "list", "--incidents").output


def test_show_tells_which_other_routes_there_were_and_why_each_was_taken_or_not(running: Running) -> None:
    operation = running.do(running.world.fallen_back())
    told = call(running, "show", operation.id).output
    for line in (
        "op_second",
        "other routes: absent after 1 attempt, policy revision acme-revision",
        "acme_us: credentials missing; US_KEY",
        "acme_eu: taken",
    ):
        assert line in told, told
    second = running.do(
        running.world.succeeded(fallback_of=operation.id, fallback_from="acme", fallback_reason="absent")
    )
    assert f"{operation.id} at acme (absent)" in call(running, "show", second.id).output


def test_show_as_json_is_the_apis_own(running: Running) -> None:
    operation = running.do(running.world.succeeded())
    found = json.loads(call(running, "show", operation.id, "--json").output)
    assert (found["id"], found["timeline"][-1]["state"]) == (operation.id, "succeeded")


def test_what_a_provider_wrote_neither_commands_the_terminal_nor_is_markup(running: Running) -> None:
    operation = running.do(running.world.succeeded(reference="\x1b[2J[bold]ch[/bold]\n1"))
    for arguments in (("show", operation.id), ("list",), ("show", operation.id, "--json")):
        assert "\x1b" not in call(running, *arguments).output
    assert "[bold]ch[/bold]" in call(running, "show", operation.id).output


# --- the token, and what goes wrong


def test_the_token_is_found_where_run_keeps_it(running: Running, tmp_path: Path) -> None:
    home = tmp_path / ".paywitness"
    home.mkdir()
    (home / "admin-token").write_text(f"{TOKEN}\n")
    assert call(running, "list", token=None).exit_code == 0
    assert call(running, "list", "--home", "elsewhere", token=None).exit_code == 1
    assert call(running, "list", "--home", "elsewhere", "--token", TOKEN, token=None).exit_code == 0


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_wrong_token_says_where_the_right_one_is(running: Running, token: str | None) -> None:
    result = call(running, "list", token=token)
    assert result.exit_code == 1
    assert result.output.startswith("Error: The sidecar does not accept the admin token, or none was given.")
    assert "PAYWITNESS_ADMIN_TOKEN" in result.output


@pytest.mark.parametrize("running", [None], indirect=True)
def test_a_proxy_without_a_token_says_how_to_set_one(running: Running) -> None:
    assert "Set PAYWITNESS_ADMIN_TOKEN in its environment" in call(running, "list").output


def test_an_operation_that_is_not_there_is_said_so(running: Running) -> None:
    result = call(running, "show", "op_404")
    assert result.exit_code == 1
    assert result.output.startswith("Error: The journal holds no operation op_404.")


def test_a_proxy_that_is_not_running_is_said_so(running: Running) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        result = call(running, "list", "--admin", address)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: No sidecar replies at http://{address} (Connection refused).")
    assert "paywitness run" in result.output


def test_a_port_that_is_not_ours_is_said_so(running: Running) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        result = call(running, "list", "--admin", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)
    assert "is not an admin port" in result.output


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:1/path"])
def test_an_address_that_is_none_is_said_so(running: Running, address: str) -> None:
    result = call(running, "list", "--admin", address)
    assert result.exit_code == 1
    assert "is not the address of a sidecar" in result.output


@pytest.mark.parametrize("command", [(), ("list",), ("show",)])
def test_help_teaches(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(ops, [*command, "--help"])
    assert result.exit_code == 0
    assert "charged" in result.output
    assert "PAYWITNESS_ADMIN_TOKEN" in result.output
