"""`paywitness circuits` against a running admin port: what a person at the keyboard reads and does."""

from __future__ import annotations

import getpass
import json

import click
import pytest
from click.testing import CliRunner, Result

from paywitness.cli.circuits import circuits
from paywitness.cli.journal import journal
from paywitness.cli.ops.group import ops
from paywitness.core.admission import TrafficClass
from paywitness.core.budget import AttemptOrigin, BudgetRules, RetryRequest
from paywitness.core.circuit import CallGroup, CircuitState
from paywitness.core.errors import StoreUnavailable
from paywitness.core.provider_health import Health, HealthSample
from paywitness.core.result import ResultClass
from paywitness.limits.circuits import CircuitCommand
from paywitness.policy.book import PolicyBook
from tests.admin.running import Running, call

FORCE = ("force", "acme", "write", "open", "--reason", "maintenance")


def type_in(running: Running, *arguments: str, columns: int = 200) -> Result:
    return call(running, *arguments, columns=columns, command=circuits)


def stands(running: Running) -> CircuitState:
    return running.world.circuits.view("acme", CallGroup.WRITE).state


def line_of(result: Result, start: str) -> str:
    [line] = [line for line in result.output.splitlines() if line.strip().startswith(start)]
    return " ".join(line.split())


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_the_list_shows_every_circuit(running: Running, arguments: tuple[str, ...]) -> None:
    result = type_in(running, *arguments)
    assert result.exit_code == 0, result.output
    assert line_of(result, "Circuit") == "Circuit State Since For whom Calls Retries left Forced by"
    assert line_of(result, "acme write") == "acme write closed the start for this sidecar all (own)"
    assert line_of(result, "acme inquiry") == "acme inquiry closed the start for this sidecar all (own)"


def test_the_list_shows_who_forced_it_how_full_it_is_and_what_is_left(running: Running) -> None:
    assert type_in(running, *FORCE, "--for", "15s").exit_code == 0
    running.do(running.world.admission.admit("acme", TrafficClass.HIGH, 10.0))
    where = AttemptOrigin("acme", "authorization", "main", BudgetRules())
    running.do(running.world.budgets.acquire(RetryRequest(where, ResultClass.NETWORK_CONNECT_FAILURE)))
    running.world.budgets.fleet = True
    running.world.clock.at += 5
    row = line_of(type_in(running), "acme write")
    assert row.startswith("acme write open 5s ago, 10s to go for this sidecar 1 of 20 provider 99.0, operation 49.0")
    assert row.endswith("ada: maintenance")
    narrow = type_in(running, columns=80).output.splitlines()
    assert narrow[0] == "acme write  open  5s ago, 10s to go"
    assert narrow[1].startswith("    for this sidecar, 1 of 20, retries left: provider 99.0, operation 49.0")
    assert narrow[2] == "    forced by ada: maintenance"


def test_who_was_asked_to_wait_is_counted(running: Running) -> None:
    told = HealthSample(Health.THROTTLED, retry_after_s=90.0)
    for party in ("c:5c1f0e77aa19", "c:9ad201", "a:77be30"):
        running.world.circuits.add_sample("acme", CallGroup.WRITE, told, party)
    shown = type_in(running, columns=200).output
    assert "2 credentials asked to wait, 1m 30s at most; 1 account asked to wait, 1m 30s at most" in shown
    assert "5c1f0e77aa19" not in shown


def test_the_lists_json_is_the_apis_own(running: Running) -> None:
    found = json.loads(type_in(running, "--json").output)
    assert set(found) == {"circuits", "admission", "budgets"}
    assert [row["group"] for row in found["circuits"]] == ["write", "inquiry"]
    assert found["budgets"][0]["window_s"] == 10.0


def test_a_book_without_providers_is_said_so(running: Running) -> None:
    running.world.book_in_force = PolicyBook.of([])
    assert type_in(running).output == "No policy names a provider yet.\n"


def test_a_circuit_is_forced_and_released(running: Running) -> None:
    forced = type_in(running, *FORCE, "--for", "2h")
    assert forced.exit_code == 0, forced.output
    assert forced.output == "acme write is open, for this sidecar. It ends by itself in 2h.\n"
    assert stands(running) is CircuitState.OPEN
    released = type_in(running, "release", "acme", "write", "--reason", "it is over")
    assert (released.exit_code, released.output) == (0, "acme write is half open, for this sidecar.\n")
    assert stands(running) is CircuitState.HALF_OPEN


@pytest.mark.parametrize(
    ("given", "shown"),
    [("1s", "1s"), ("90s", "1m 30s"), ("60m", "1h"), ("5400s", "1h 30m"), ("7d", "7d"), ("26h", "1d 2h")],
)
def test_how_long_is_said_as_people_say_it(running: Running, given: str, shown: str) -> None:
    assert f"It ends by itself in {shown}.\n" in type_in(running, *FORCE, "--for", given).output


def test_who_does_it_is_who_says_so_and_json_is_the_apis_own(running: Running) -> None:
    found = json.loads(type_in(running, *FORCE, "--actor", "bob", "--json").output)
    assert found["forced"] == {"actor": "bob", "reason": "maintenance"}
    assert found["retry_after_s"] == 3600.0


@pytest.mark.parametrize(
    ("command", "arguments", "exit_code"),
    [
        (circuits, FORCE, 0),
        (circuits, ("release", "acme", "write", "--reason", "it is over"), 0),
        (journal, ("upgrade", "--reason", "all are new"), 0),
        (ops, ("park", "op_0", "--reason", "ticket 4711"), 1),
    ],
)
def test_without_a_user_variable_the_actor_is_the_name_of_the_login(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    command: click.Command,
    arguments: tuple[str, ...],
    exit_code: int,
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "grace")
    result = call(running, *arguments, command=command, user=None)
    assert result.exit_code == exit_code, result.output
    if arguments is FORCE:
        assert json.loads(type_in(running, "list", "--json").output)["circuits"][0]["forced"]["actor"] == "grace"
    nobody = call(running, *arguments, "--actor", " ", command=command, user=None)
    assert nobody.exit_code == 2
    assert "Say who does it: --actor." in nobody.output


def test_an_order_that_was_not_confirmed_fails_and_says_what_to_do(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(provider: str, group: CallGroup, order: CircuitCommand) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(running.world.circuits, "force", down)
    result = type_in(running, *FORCE)
    assert result.exit_code == 1
    assert "unknown whether the command took effect" in result.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("force", "nobody", "write", "open", "--reason", "why not"), 1, "Providers: acme."),
        (("force", "acme", "reads", "open", "--reason", "why not"), 2, "'write', 'inquiry'"),
        (("force", "acme", "write", "ramp", "--reason", "why not"), 2, "'closed', 'degraded', 'open'"),
        (("force", "acme", "write", "open"), 2, "--reason"),
        (("force", "acme", "write", "open", "--reason", "x"), 1, "Say why: reason has 3 to 1000 characters"),
        ((*FORCE, "--for", "8d"), 1, "give 1s to 7d"),
        ((*FORCE, "--actor", " "), 2, "Say who does it"),
        (("release", "acme", "write"), 2, "--reason"),
        (("explode",), 2, "No such command 'explode'"),
    ],
)
def test_a_mistake_says_what_to_do_next(
    running: Running, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    result = type_in(running, *arguments)
    assert (result.exit_code, says in result.output) == (exit_code, True), result.output
    assert "paywitness ops list" not in result.output
    assert stands(running) is CircuitState.CLOSED


def test_a_wrong_token_says_where_the_right_one_is(running: Running) -> None:
    result = call(running, "list", token="wrong", command=circuits)
    assert (result.exit_code, "PAYWITNESS_ADMIN_TOKEN" in result.output) == (1, True)


@pytest.mark.parametrize("command", [(), ("list",), ("force",), ("release",)])
def test_help_teaches_by_example(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(circuits, [*command, "--help"])
    assert result.exit_code == 0
    assert f"paywitness circuits {' '.join(command)}".rstrip() in result.output
    assert "PAYWITNESS_ADMIN_TOKEN" in result.output
