"""Lines that could repeat without end: one a minute of each, and what was left out is counted."""

from __future__ import annotations

import logging

import pytest

from paywitness.repeated_lines import REPEATS, DependencyOutage, OutageLine, OutageReport, RepeatedLines, repeats

DOWN, STILL_DOWN, BACK = OutageLine.DOWN, OutageLine.STILL_DOWN, OutageLine.BACK


class Lines:
    """What passes the filter, and what it says was left out."""

    def __init__(self) -> None:
        self.filter = RepeatedLines()

    def left_out(self, at: float, text: str, *key: str, marked: bool = True) -> int | None:
        """None: the line is held back."""
        record = logging.LogRecord("paywitness.test", logging.WARNING, "", 0, text, (), None)
        record.created = at
        if marked:
            record.__dict__.update(repeats(*key))
        return record.__dict__.get("left_out", 0) if self.filter.filter(record) else None


def test_a_marked_line_passes_once_a_minute_and_says_what_was_left_out() -> None:
    lines = Lines()
    assert [lines.left_out(at, "it fails") for at in (0.0, 0.25, 59.9, 60.0, 60.1, 121.0)] == [
        0,
        None,
        None,
        2,
        None,
        1,
    ]


def test_a_line_that_is_not_marked_always_passes() -> None:
    lines = Lines()
    assert [lines.left_out(0.0, "one payment", marked=False) for _ in range(3)] == [0, 0, 0]
    assert repeats() == REPEATS


def test_each_host_and_each_line_has_its_own_minute() -> None:
    lines = Lines()
    told = [
        lines.left_out(0.0, text, host) for text in ("refused", "unlisted") for host in ("a.test", "b.test", "a.test")
    ]
    assert told == [0, 0, None, 0, 0, None]


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    lines = Lines()
    assert [lines.left_out(at, "it fails") for at in (1_000_000.0, 10.0, 11.0)] == [0, 0, None]


def test_hosts_without_end_share_a_line_and_take_no_more_memory() -> None:
    lines = Lines()
    passed = [lines.left_out(0.001 * number, "unlisted", f"host-{number}.test") for number in range(10_000)]
    assert sum(each is not None for each in passed) == 257
    assert len(lines.filter._told) == 257
    later = [lines.left_out(100.0 + number, "unlisted", f"new-{number}.test") for number in range(300)]
    assert None not in later  # those of the minute before have left
    assert len(lines.filter._told) <= 258


class Watched(DependencyOutage):
    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(lambda: self.seconds)

    def failed_at(self, seconds: float) -> OutageReport | None:
        self.seconds = seconds
        return self.failed()

    def worked_at(self, seconds: float) -> OutageReport | None:
        self.seconds = seconds
        return self.worked()


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over() -> None:
    outage = Watched()
    told = []
    for quarter in range(4 * 130):  # of a second: as often as a resolver looks
        told.append(outage.failed_at(quarter / 4))
        if quarter % 8 == 0:
            outage.refused()
    told.append(outage.worked_at(130.0))
    assert [each for each in told if each is not None] == [
        OutageReport(DOWN, 0.0, 1, 0),
        OutageReport(STILL_DOWN, 60.0, 241, 30),
        OutageReport(STILL_DOWN, 120.0, 481, 60),
        OutageReport(BACK, 130.0, 520, 65),
    ]
    assert outage.worked_at(131.0) is None


def test_what_comes_and_goes_is_two_lines_a_minute() -> None:
    outage = Watched()
    told = [report for second in range(120) for report in (outage.failed_at(second), outage.worked_at(second + 0.5))]
    assert [each for each in told if each is not None] == [
        OutageReport(DOWN, 0.0, 1, 0),
        OutageReport(BACK, 0.5, 1, 0),
        OutageReport(DOWN, 0.0, 60, 0),
        OutageReport(BACK, 0.5, 60, 0),
    ]


def test_nobody_is_counted_as_refused_while_it_is_up() -> None:
    outage = Watched()
    outage.refused()
    assert outage.failed_at(1.0) == OutageReport(DOWN, 0.0, 1, 0)


@pytest.mark.parametrize("use", ["failed", "worked"])
def test_an_outage_that_is_not_is_not_down(use: str) -> None:
    outage = Watched()
    getattr(outage, use)()
    assert outage.is_down is (use == "failed")
