"""Log lines that could repeat without end: a loop fails, a dependency is down, callers request one host again and
again.

The rule, kept here alone: at most one line a minute of each, with the number of lines left out. There are two ways:

- A line is marked, `_log.error(text, extra=REPEATS)`, or `extra=repeats(host)` for one line a minute for each host. The
  filter of the process's log, `RepeatedLines`, holds lines back and counts them: `left_out` of the next one.
- A dependency that may be down for a while has a `DependencyOutage`: one line when it goes down, one a minute with how
  long it has been down, and one when it is back.

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
_KEYS_MAX = 256  # different lines in one minute, because strangers may name any number of hosts
_MARK = "repeats"


def repeats(*key: str) -> dict[str, Any]:
    """The mark of a line that may appear once a minute for each `key`."""
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
            key = key[:2]  # all keys beyond the bound share a line
        told = self._told.get(key)
        if told is not None and 0 <= at - told.at < LINE_EVERY_S:  # not if the clock was set back
            told.left_out += 1
            return None
        self._told[key] = _ToldLine(at)
        self._told.move_to_end(key)
        return told.left_out if told is not None else 0

    def _is_full(self, at: float) -> bool:
        """Whether there is no room for another key. Drops the key of the oldest line first, if its minute is over."""
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
    """The log line that is due for an outage now."""

    line: OutageLine
    down_s: float
    failures: int
    refused: int  # how many calls were refused for it


class DependencyOutage:
    """A dependency that is up or down. Its user reports the result of each use, and logs the report that it gets
    back."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self.is_down = False
        self._began_mono = 0.0  # when it went down
        self._told_mono: float | None = None  # when a line last said that it is down
        self._is_told = False  # a line has said that it is down
        self._failures = self._refused = 0

    def failed(self) -> OutageReport | None:
        now_mono = self._mono()
        if not self.is_down:
            self.is_down, self._began_mono = True, now_mono
        self._failures += 1
        # An outage that comes and goes within a minute is one line too: the next line has its failures.
        if self._told_mono is not None and now_mono - self._told_mono < LINE_EVERY_S:
            return None
        line = OutageLine.STILL_DOWN if self._is_told else OutageLine.DOWN
        self._told_mono, self._is_told = now_mono, True
        return self._report(line, now_mono - self._began_mono)

    def refused(self) -> None:
        """Count a call that was refused because of the outage."""
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
