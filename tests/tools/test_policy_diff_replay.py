"""One operation under two policies: what is known of an answer that is gone, and where the policies part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.decide import Action
from paywitness.core.lifecycle import Event
from paywitness.core.money import Money
from paywitness.core.operation import AttemptSummary, HistoryEntry, State
from paywitness.core.policy import Policy
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.tools.policy_diff.replay import (
    NOT_REACHABLE,
    NOTHING_DECIDED,
    RESPONSE_NOT_STORED,
    UNKNOWN_VOCABULARY,
    NotReplayed,
    RecordedOperation,
    ReplayResult,
    replay,
)
from tests.policy.texts import MINIMAL, an_operation, changed, load

PAID = """    - {when: "status == 'paid'", as: succeeded}\n"""
CLASSIFY = "classify:\n"


def pay(text: str = MINIMAL) -> Policy:
    (policy,) = load(text).policies
    return policy


def read(status_code: int, reading: ResultClass, rule: str, **more: object) -> Classification:
    return replace(Classification.of(reading, rule), **more)  # type: ignore[arg-type]


def attempt(number: int, status_code: int | None, said: Classification, fault: str | None = None) -> AttemptSummary:
    phase = "complete" if status_code is not None else "awaiting"
    return AttemptSummary(number, phase, 10, fault, status_code, "", 0.1, reset_by_us=False, classification=said)


def entry(found: AttemptSummary | None, at: float = 1.0, **more: object) -> HistoryEntry:
    made = HistoryEntry(at, 1, "caller", (), State.UNKNOWN, frozenset(), attempt=found)
    return replace(made, **more)  # type: ignore[arg-type]


def past(*entries: HistoryEntry, text: str = MINIMAL) -> RecordedOperation:
    operation = an_operation(money=Money(1099, "EUR"), first_sent_at=0.0, upstream=pay(text).upstream)
    return RecordedOperation(operation, entries, rules=pay(text).classify)


LOST = Classification.of(ResultClass.NETWORK_READ_TIMEOUT, "answer_timed_out", lost=True)
ERROR = read(500, ResultClass.TEMPORARY_PROVIDER_ERROR, "http_500")


def same(found: ReplayResult) -> bool:
    return found.divergence is None


# --- an answer that is gone


@pytest.mark.parametrize(
    ("status_code", "said"),
    [
        (402, read(402, ResultClass.ISSUER_SOFT_DECLINE, "classify[0]")),  # the row that read it is still there
        (
            402,
            read(402, ResultClass.ISSUER_HARD_DECLINE, "http_402"),
        ),  # the row above knew its code not, and knows it still not
        (200, read(200, ResultClass.SUCCEEDED, "answers.payment[0]")),
        (500, ERROR),
    ],
)
def test_a_row_elsewhere_changes_nothing(status_code: int, said: Classification) -> None:
    new = pay(changed(CLASSIFY, CLASSIFY + '  - {status: 404, when: "x", as: rate_limited}\n'))
    assert same(replay(past(entry(attempt(1, status_code, said))), pay(), new))


def test_the_row_that_read_it_may_say_something_else_now() -> None:
    new = pay(changed(PAID, PAID.replace("succeeded", "pending") + PAID.replace("paid", "done")))
    found = replay(past(entry(attempt(1, 200, read(200, ResultClass.SUCCEEDED, "answers.payment[0]")))), pay(), new)
    assert found.divergence is not None
    assert (found.divergence.old.result_class, found.divergence.new.result_class) == (
        ResultClass.SUCCEEDED,
        ResultClass.PENDING,
    )


@pytest.mark.parametrize(
    "row",
    [
        '  - {status: 402, when: "x", as: validation_error}\n',
        "  - {status: 402, header: {Hint: no}, as: validation_error}\n",
        "  - {code: other.code, table: declines}\n",
    ],
)
def test_a_row_that_would_have_to_see_it_ends_the_replay(row: str) -> None:
    new = pay(changed(CLASSIFY, CLASSIFY + row))
    said = read(402, ResultClass.ISSUER_SOFT_DECLINE, "classify[0]")
    with pytest.raises(NotReplayed, match=RESPONSE_NOT_STORED):
        replay(past(entry(attempt(1, 402, said))), pay(), new)


def test_a_row_that_is_only_watched_needs_to_see_nothing() -> None:
    row = '  - {status: 500, when: "x", as: validation_error, observe: true}\n'
    assert same(replay(past(entry(attempt(1, 500, ERROR))), pay(), pay(changed(CLASSIFY, CLASSIFY + row))))


def test_what_must_fit_must_be_seen() -> None:
    fits = "    currency: currency\n    fits: {amount: amount, unit: minor}\n"
    new = pay(changed("    currency: currency\n", fits))
    paid = past(entry(attempt(1, 200, read(200, ResultClass.SUCCEEDED, "answers.payment[0]"))))
    with pytest.raises(NotReplayed, match=RESPONSE_NOT_STORED):
        replay(paid, pay(), new)
    declined = past(entry(attempt(1, 402, read(402, ResultClass.RATE_LIMITED, "classify[0]"))))
    assert same(replay(declined, pay(), new))


def test_without_the_rules_of_then_only_the_status_is_known() -> None:
    forgotten = replace(past(entry(attempt(1, 500, ERROR))), rules=None)
    with pytest.raises(NotReplayed, match=RESPONSE_NOT_STORED):
        replay(forgotten, pay(), pay())


# --- the way of an operation


def test_tries_are_counted_anew_for_a_repeat() -> None:
    """Three lost answers use up the first call's tries; the repeat has three of its own."""
    lost = [entry(attempt(number, None, LOST, "first_byte_timeout"), at=number * 1.0) for number in (1, 2, 3)]
    lost = [replace(one, action=Action.RETRY_SAME_OPERATION) for one in lost[:2]] + [
        replace(lost[2], action=Action.STATUS_INQUIRY)
    ]
    repeat = entry(None, at=60.0, events=(Event.RESEND_RECORDED,), action=Action.RETRY_SAME_OPERATION)
    again = entry(attempt(4, None, LOST, "first_byte_timeout"), at=61.0, action=Action.RETRY_SAME_OPERATION)
    found = replay(past(*lost, repeat, again), pay(), pay())
    assert same(found)
    assert found.as_recorded


def test_a_repeat_after_the_window_is_not_sent_again() -> None:
    lost = entry(attempt(1, None, LOST, "reset"), at=1.0)
    repeat = entry(None, at=3600.0, events=(Event.RESEND_RECORDED,), action=Action.RETRY_SAME_OPERATION)
    found = replay(past(lost, repeat), pay(), pay(changed("window: 24h", "window: 30m")))
    assert found.divergence is not None
    assert found.divergence.when == "when it was repeated"
    assert (found.divergence.old.action, found.divergence.new.action) == (
        Action.RETRY_SAME_OPERATION,
        Action.STATUS_INQUIRY,
    )


def test_a_retry_that_the_budget_refused_is_refused_again() -> None:
    limited = read(429, ResultClass.RATE_LIMITED, "http_429", effect=Effect.NONE)
    ended: dict[str, Any] = {"action": Action.MARK_TERMINAL_FAILURE, "because": "no_effect_budget_exhausted"}
    found = replay(past(entry(attempt(1, 429, limited), **ended)), pay(), pay())
    assert found.as_recorded
    ended["because"] = "no_effect_tries_used_up"
    assert not replay(past(entry(attempt(1, 429, limited), **ended)), pay(), pay()).as_recorded


def test_what_was_never_sent_has_nothing_to_replay() -> None:
    with pytest.raises(NotReplayed, match=NOTHING_DECIDED):
        replay(past(entry(None)), pay(), pay())


def test_words_of_another_version_are_not_guessed_at() -> None:
    with pytest.raises(NotReplayed, match=UNKNOWN_VOCABULARY):
        replay(past(entry(attempt(1, None, LOST, "a fault of next year"))), pay(), pay())


def test_an_attempt_after_the_end_is_out_of_step() -> None:
    paid = entry(attempt(1, 200, read(200, ResultClass.SUCCEEDED, "answers.payment[0]")))
    again = entry(attempt(2, 200, read(200, ResultClass.SUCCEEDED, "answers.payment[0]")))
    with pytest.raises(NotReplayed, match=NOT_REACHABLE):
        replay(past(paid, again), pay(), pay())
