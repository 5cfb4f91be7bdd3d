"""The `circuit` block as numbers: what is not said has a default, and what is said cannot contradict itself."""

from __future__ import annotations

import pytest

from paywitness.core.circuit import CircuitRules, CircuitThresholds
from paywitness.policy.block_parsers.limits import read_circuit
from paywitness.policy.reading.document import read_document
from paywitness.policy.reading.locations import FileProblems
from paywitness.policy.reading.section import Section
from paywitness.policy.schema import FILE
from tests.policy.texts import MINIMAL


def read(block: str) -> tuple[CircuitRules, tuple[str, ...]]:
    problems = FileProblems()
    document = read_document((MINIMAL + block).encode(), "bank.yaml", problems)
    assert document is not None
    return read_circuit(Section(document, "", FILE, problems)), problems.errors


def test_without_the_block_the_numbers_are_those_of_the_design():
    rules, problems = read("")
    assert not problems
    assert rules == CircuitRules(
        10.0, 20, 8.0, CircuitThresholds(0.85, 0.5, 0.9), CircuitThresholds(0.2, 0.05, 0.5, 0.1)
    )


def test_what_is_given_counts():
    rules, problems = read(
        "circuit: {window: 30s, minimum: 5, slow_after: 2s, open_at: {bad: 60%}, degrade_at: {throttled: 30%}}\n"
    )
    assert not problems
    assert rules == CircuitRules(30.0, 5, 2.0, CircuitThresholds(0.6, 0.5, 0.9), CircuitThresholds(0.2, 0.05, 0.5, 0.3))


def test_what_is_not_said_follows_what_is():
    rules, problems = read("circuit: {open_at: {bad: 10%}}\n")
    assert not problems
    assert rules.degrade_at.bad == 0.1


def test_degrading_later_than_opening_is_refused():
    _, problems = read("circuit: {open_at: {bad: 60%}, degrade_at: {bad: 70%}}\n")
    assert len(problems) == 1
    assert "found a higher 'bad' than in 'open_at'" in problems[0]


@pytest.mark.parametrize("wrong", ["window: 1ms", "minimum: 0", "slow_after: soon", "open_at: {bad: 85}", "open_at: 5"])
def test_what_cannot_be_read_is_reported(wrong):
    assert len(read(f"circuit: {{{wrong}}}\n")[1]) == 1
