"""Lines: how what is logged is written, and where to. One line an event; JSON for machines, text for a terminal.

Every line of the process passes here, also those of libraries, and is redacted here: the last line of defence. An
exception is told by its class and its place, never by its message, which may carry a caller's data.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePath
from typing import TextIO

from proxy.core.redact import redact, redact_tree

LOGGER_NAME = "paywitness"

_FRAMES_MAX = 5  # of an exception's place: enough to find it, short enough for a line
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


class LineFormat(StrEnum):
    AUTO = "auto"  # text on a terminal, else JSON
    JSON = "json"
    TEXT = "text"


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `event`, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": iso(record.created), "level": record.levelname.lower(), **_told(record)}
        return json.dumps(redact_tree(line), ensure_ascii=False, default=str, separators=(",", ":"))


class TextLines(logging.Formatter):
    """For a person: time, level, the event in words, then `name=value`. Control characters are made visible."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        level = record.levelname.lower()
        told = _told(record)
        event = str(told.pop("event")).replace("_", " ")
        fields = " ".join(f"{name}={_shown(value)}" for name, value in told.items())
        text = printable(redact(f"{event}  {fields}" if fields else event))
        if not self._colour:
            return f"{at} {level:<7} {text}"
        return f"{_DIM}{at}{_PLAIN} {_COLOURS.get(level, '')}{level:<7}{_PLAIN} {text}"


def _told(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    if isinstance(fields, dict):
        return {"event": record.getMessage(), **fields}
    told: dict[str, object] = {"event": "note", "message": record.getMessage(), "logger": record.name}
    if record.exc_info and record.exc_info[1] is not None:
        told["error"] = type(record.exc_info[1]).__name__
        told["place"] = place_of(record.exc_info[1])
    return told


def place_of(error: BaseException) -> str:
    """Where an exception was raised: file, line and function, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
    return " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(str(item) for item in value) + "]"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def printable(text: str) -> str:
    """The text without what could command a terminal or begin another line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def iso(at: float) -> str:
    """Wall time in ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def install(stream: TextIO, level: int, line_format: LineFormat = LineFormat.AUTO) -> Callable[[], None]:
    """Send every line of the process to the stream: ours from `level` on, those of libraries from WARNING. Returns what
    undoes it."""
    text = line_format is LineFormat.TEXT or (line_format is LineFormat.AUTO and stream.isatty())
    root, ours = logging.getLogger(), logging.getLogger(LOGGER_NAME)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines(colour=stream.isatty()) if text else JsonLines())
    earlier = list(root.handlers), root.level, ours.level
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    ours.setLevel(level)

    def undo() -> None:
        root.handlers, root_level, our_level = earlier
        root.setLevel(root_level)
        ours.setLevel(our_level)

    return undo
