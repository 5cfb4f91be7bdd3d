"""Log lines that could repeat without end: of a loop that fails, a thing that is down, a host that is asked for again.

The rule, kept here alone: at most one line a minute of each, and it says what was left out. There are two ways to it:

- A line is marked, `_log.error(text, extra=REPEATS)`, or `extra=repeats(host)` if it has one minute for each host. The
  filter of the process's log, `RepeatedLines`, holds lines back and counts them: `left_out` of the next one.
- What is down for a while has a `DependencyOutage`: one line when it goes down, one a minute with how long it has been
  down, and one when it is back.

A line about one payment is never marked without its id: each of them counts.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paywitness.core.record import record

LINE_EVERY_S = 60.0
_KEYS_MAX = 256  # lines of one minute that are told apart: strangers may name hosts without end
_MARK = "repeats"


def repeats(*key: str) -> dict[str, Any]:
    """The mark of a line that has one minute for each `key`."""
    return {_MARK: key}


REPEATS = repeats()


@dataclass(slots=True)
class _ToldLine:
    at: float
    left_out: int = 0


class RepeatedLines(logging.Filter):
    """Lets one line of each kind pass a minute. Lines that are not marked pass."""

    def __init__(self) -> None:
        super().__init__()
        self._told: OrderedDict[tuple[str, ...], _ToldLine] = OrderedDict()  # the longest ago first
        self._lock = threading.Lock()  # journals log from threads of their own

    def filter(self, record: logging.LogRecord) -> bool:
        key = getattr(record, _MARK, None)
        if key is None:
            return True
        with self._lock:
            left_out = self._left_out_before((record.name, str(record.msg), *key), record.created)
        if left_out is None:
            return False
        if left_out:
            record.left_out = left_out
        return True

    def _left_out_before(self, key: tuple[str, ...], at: float) -> int | None:
        """How many were held back since the last line of this key; None if this one is held back too."""
        if key not in self._told and self._is_full(at):
            key = key[:2]  # all that are one too many share a line
        told = self._told.get(key)
        if told is not None and 0 <= at - told.at < LINE_EVERY_S:  # not if the clock was set back
            told.left_out += 1
            return None
        self._told[key] = _ToldLine(at)
        self._told.move_to_end(key)
        return told.left_out if told is not None else 0

    def _is_full(self, at: float) -> bool:
        """Whether there is no room for another key, after the one that was told the longest ago has left."""
        if len(self._told) < _KEYS_MAX:
            return False
        longest_ago = next(iter(self._told))
        if 0 <= at - self._told[longest_ago].at < LINE_EVERY_S:
            return True
        del self._told[longest_ago]
        return False


class OutageLine(StrEnum):
    DOWN = "down"
    STILL_DOWN = "still_down"
    BACK = "back"


@record
class OutageReport:
    """What is to be told of an outage now."""

    line: OutageLine
    down_s: float
    failures: int
    refused: int  # what callers were refused for it


class DependencyOutage:
    """Something that is up or down. Whoever uses it says how each use went, and tells what it is given back."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self.is_down = False
        self._began_mono = 0.0  # when it went down
        self._told_mono: float | None = None  # when it was last told that it is down
        self._is_told = False  # that it is down
        self._failures = self._refused = 0

    def failed(self) -> OutageReport | None:
        now_mono = self._mono()
        if not self.is_down:
            self.is_down, self._began_mono = True, now_mono
        self._failures += 1
        # What comes and goes within a minute is one line too: its failures stand in the next.
        if self._told_mono is not None and now_mono - self._told_mono < LINE_EVERY_S:
            return None
        line = OutageLine.STILL_DOWN if self._is_told else OutageLine.DOWN
        self._told_mono, self._is_told = now_mono, True
        return self._report(line, now_mono - self._began_mono)

    def refused(self) -> None:
        """Somebody was refused for it."""
        if self.is_down:
            self._refused += 1

    def worked(self) -> OutageReport | None:
        if not self.is_down:
            return None
        self.is_down, down_s = False, self._mono() - self._began_mono
        if not self._is_told:
            return None
        report = self._report(OutageLine.BACK, down_s)
        self._is_told, self._failures, self._refused = False, 0, 0
        return report

    def _report(self, line: OutageLine, down_s: float) -> OutageReport:
        return OutageReport(line, round(down_s, 1), self._failures, self._refused)
