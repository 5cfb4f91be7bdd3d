"""`paywitness ops inquire | park | resume | resolve | cancel | close-incident`, as at a keyboard at 3 am."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from paywitness.cli.ops.group import ops
from paywitness.core.lifecycle import Event
from paywitness.core.operation import Operation, State
from paywitness.core.operator_actions import OperatorAction
from tests.admin.running import Running, call

WHY = ("--reason", "ticket 4711")
EVIDENCE = ("--evidence", "Acme's dashboard shows ch_9 captured")


def stands(running: Running, operation: Operation) -> Operation:
    found = running.do(running.world.journal.read(operation.id))
    assert isinstance(found, Operation)
    return found


def test_one_operation_is_parked_and_the_timeline_says_by_whom(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    result = call(running, "park", operation.id, *WHY)
    assert result.exit_code == 0, result.output
    assert f"{operation.id}  is in review: UNKNOWN, IN REVIEW: 12.50 EUR may have moved" in result.output
    shown = call(running, "show", operation.id).output
    assert "operator parked -> requires review  (operator ada)" in shown
    assert "reason: ticket 4711" in shown
    assert "inquire, resume, resolve, cancel" in shown


def test_several_are_asked_about_at_once(running: Running) -> None:
    operations = [running.do(running.world.in_doubt(client_key=key)) for key in "ab"]
    result = call(running, "inquire", *(operation.id for operation in operations), *WHY, "--actor", "bob")
    assert result.exit_code == 0, result.output
    assert {stands(running, operation).due_at for operation in operations} == {running.world.clock.at}
    entries = running.do(running.world.journal.history(operations[0].id))
    assert entries[-1].actor == "bob"


def test_a_resolution_asks_first_and_shows_the_money(running: Running) -> None:
    operation = running.do(running.world.in_review())
    arguments = ("resolve", operation.id, "--as", "succeeded", *EVIDENCE, "--reference", "ch_9", *WHY)
    refused = call(running, *arguments, typed="n\n")
    assert refused.exit_code == 1
    assert "To resolve: 1 operation, 12.50 EUR.\nGo on? [y/N]: n" in refused.output
    assert "Nothing was done." in refused.output
    assert stands(running, operation) == operation
    nobody = call(running, *arguments)
    assert (nobody.exit_code, "Without a terminal, give --yes." in nobody.output) == (1, True)
    agreed = call(running, *arguments, typed="y\n")
    assert agreed.exit_code == 0, agreed.output
    after = stands(running, operation)
    assert (after.state, after.reference) == (State.SUCCEEDED, "ch_9")
    assert "is resolved: SUCCEEDED: 12.50 EUR was authorised" in agreed.output
    assert "operator: hit; Acme's dashboard shows ch_9 captured" in call(running, "show", operation.id).output


def test_yes_does_not_ask_and_json_is_the_apis_own(running: Running) -> None:
    operation = running.do(running.world.with_incident())
    result = call(running, "close-incident", operation.id, *WHY, "--as", "failed", "--yes", "--json")
    assert result.exit_code == 0, result.output
    [after] = json.loads(result.output)["operations"]
    assert (after["id"], after["incident"], after["state"]) == (operation.id, None, "failed")


def test_an_incident_is_closed_by_saying_how_it_ended(running: Running) -> None:
    operation = running.do(running.world.with_incident())
    result = call(running, "close-incident", operation.id, *WHY, "--yes")
    assert (result.exit_code, "say how it ended" in result.output) == (1, True)
    result = call(running, "close-incident", operation.id, *WHY, "--as", "succeeded", "--yes")
    assert result.exit_code == 0, result.output
    assert "has no open incident any more: SUCCEEDED: 12.50 EUR was authorised" in result.output
    assert (stands(running, operation).state, stands(running, operation).incident) == (State.SUCCEEDED, None)


def test_an_incident_that_needs_its_end_is_refused_before_the_person_is_asked(running: Running) -> None:
    operation = running.do(running.world.with_incident())
    result = call(running, "close-incident", operation.id, *WHY, typed="y\n")
    assert (result.exit_code, "say how it ended" in result.output) == (1, True)
    assert "Go on?" not in result.output
    tried = call(running, "close-incident", operation.id, *WHY, "--dry-run")
    assert "say how it ended" in tried.output
    assert "To close-incident: 0 operations" in tried.output
    assert stands(running, operation) == operation
    agreed = call(running, "close-incident", operation.id, *WHY, "--as", "succeeded", typed="y\n")
    assert (agreed.exit_code, "Go on?" in agreed.output) == (0, True)


def test_a_dry_run_does_nothing_and_says_what_is_not_offered(running: Running) -> None:
    operation, paid = running.do(running.world.in_doubt()), running.do(running.world.succeeded())
    result = call(running, "cancel", operation.id, paid.id, *WHY, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "SUCCEEDED: 12.50 EUR was authorised  [cancel is not allowed]" in result.output
    assert "To cancel: 1 operation, 12.50 EUR.\nNothing was done." in result.output
    assert stands(running, operation) == operation


def test_what_is_refused_is_said_and_the_rest_is_done(running: Running) -> None:
    paid, operation = running.do(running.world.succeeded()), running.do(running.world.in_doubt())
    result = call(running, "park", paid.id, operation.id, *WHY)
    assert result.exit_code == 1
    assert f"{paid.id}  Not done: it is succeeded: only an unknown or pending operation can be parked." in result.output
    assert stands(running, operation).state is State.REQUIRES_REVIEW


def test_somebody_who_was_faster_is_named(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = running.do(running.world.in_doubt())

    def overtaken(*_: object, **__: object) -> bool:
        running.do(running.world.changed(operation, Event.WEBHOOK_TOLD_SUCCESS))
        return True

    monkeypatch.setattr("click.confirm", overtaken)
    result = call(running, "resolve", operation.id, "--as", "failed", *EVIDENCE, *WHY)
    assert result.exit_code == 1
    assert "Not done: it is now succeeded (version 3), by the webhook: webhook told success." in result.output
    assert stands(running, operation).incident is None


# --- many


def test_many_are_shown_with_their_money_before_anything_is_done(running: Running) -> None:
    operations = [running.do(running.world.in_doubt(client_key=f"key-{number}")) for number in range(3)]
    parked = running.do(running.world.in_review())
    arguments = ("park", "--all", "--provider", "acme", "--doubt", *WHY)
    dry = call(running, *arguments, "--dry-run")
    assert dry.output.splitlines() == [
        "To park: 3 operations, 37.50 EUR.",
        f"  not {parked.id}: it is in review already",
        "Nothing was done.",
    ]
    refused = call(running, *arguments, typed="n\n")
    assert refused.exit_code == 1
    assert stands(running, operations[0]) == operations[0]
    done = call(running, *arguments, typed="y\n")
    assert done.exit_code == 0, done.output
    assert "Go on? [y/N]: y\nDone: 3 of 3." in done.output
    assert {stands(running, operation).state for operation in operations} == {State.REQUIRES_REVIEW}


def test_what_comes_after_the_question_is_left_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.do(running.world.in_doubt())
    late: list[Operation] = []

    def meanwhile(*_: object, **__: object) -> bool:
        late.append(running.do(running.world.in_doubt(client_key="late")))
        return True

    monkeypatch.setattr("click.confirm", meanwhile)
    result = call(running, "park", "--all", "--state", "unknown", *WHY)
    assert "Done: 1 of 1." in result.output
    assert stands(running, late[0]).state is State.UNKNOWN


def test_a_limit_says_that_there_are_more(running: Running) -> None:
    for number in range(3):
        running.do(running.world.in_doubt(client_key=f"key-{number}"))
    result = call(running, "inquire", "--all", "--state", "unknown", *WHY, "--limit", "2", "--yes")
    assert "There are more than 2" in result.output
    assert "Done: 2 of 2." in result.output


def test_nothing_to_do_is_said_so(running: Running) -> None:
    assert "There is nothing to do." in call(running, "park", "--all", "--state", "unknown", *WHY).output


def test_a_dry_run_as_json_is_the_apis_own(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    result = call(running, "park", "--all", "--state", "unknown", *WHY, "--dry-run", "--json")
    assert json.loads(result.output)["operations"] == [operation.id]


# --- what is missing


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("park", *WHY), "Give the ids of operations, or --all with filters."),
        (("park", "--all", *WHY), "--all needs at least one filter"),
        (("park", "--provider", "acme", *WHY), "Give the ids of operations, or --all with filters."),
        (("park", "op_1", "--all", "--provider", "acme", *WHY), "not both"),
        (("park", "op_1"), "--reason"),
        (("park", "op_1", *WHY, "--actor", " "), "Say who does it"),
        (("resolve", "op_1", *WHY, *EVIDENCE), "--as"),
        (("resolve", "op_1", *WHY, "--as", "succeeded"), "--evidence"),
        (("resolve", "op_1", "op_2", *WHY, "--as", "failed", *EVIDENCE, "--reference", "x"), "give one id"),
        (("park", "op_404", *WHY), "The journal holds no operation op_404."),
    ],
)
def test_a_mistake_says_what_to_do_next(running: Running, arguments: tuple[str, ...], says: str) -> None:
    result = call(running, *arguments)
    assert result.exit_code != 0
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_reason_that_is_too_short_is_refused_by_the_proxy(running: Running) -> None:
    operation = running.do(running.world.in_doubt())
    result = call(running, "park", operation.id, "--reason", "x")
    assert result.exit_code == 1
    assert "Say why: reason has 3 to 1000 characters" in result.output


@pytest.mark.parametrize("act", list(OperatorAction))
def test_help_teaches_by_example(act: OperatorAction) -> None:
    result = CliRunner().invoke(ops, [act, "--help"])
    assert result.exit_code == 0
    assert f"paywitness ops {act} op_01J..." in result.output
    assert f"paywitness ops {act} --all --provider acme" in result.output
    assert "PAYWITNESS_ADMIN_TOKEN" in result.output
