"""What a colour means, on every panel: an outcome has the same one everywhere.

Green: it succeeded. Grey: it had no effect. Blue: the issuer or the customer has the word. Amber: the outcome is not
known. Red: an incident. Names of one family have shades of one colour, so that they can be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

GREEN, GREY, BLUE, AMBER, RED = "#56A64B", "#8E8E8E", "#3274D9", "#E5A50A", "#E02F44"
_LIGHT_GREY, _PALE_GREY, _DARK_GREY, _BLACK = "#B4B4B4", "#D2D2D2", "#666666", "#3F3F3F"
_LIGHT_BLUE, _PALE_BLUE, _DARK_BLUE = "#7EB0F5", "#B4D2FA", "#1B4FA0"
_LIGHT_AMBER, _DARK_AMBER, _BROWN = "#F2CC60", "#C07F00", "#8F5E00"

_OUTCOMES = {
    "succeeded": GREEN,
    "failed": GREY,
    "not_sent": _LIGHT_GREY,
    "absent": _DARK_GREY,
    "declined": BLUE,
    "pending": _LIGHT_BLUE,
    "requires_action": _PALE_BLUE,
    "unknown": AMBER,
}
# The labels whose values have a colour. A label's values are the last word of a line's name.
_COLOURS_BY_LABEL = {
    "outcome": {**_OUTCOMES, "hit": GREEN, "missed": _LIGHT_GREY, "not_ours": _DARK_AMBER},  # also of an inquiry
    "failure_class": {
        **_OUTCOMES,
        "issuer_soft_decline": BLUE,
        "issuer_hard_decline": _DARK_BLUE,
        "risk_decline": _DARK_BLUE,
        "unknown_outcome": AMBER,
        "network_read_timeout": _LIGHT_AMBER,
        "provider_timeout": _DARK_AMBER,
        "already_done": _BROWN,
        "temporary_provider_error": _BROWN,
        "network_connect_failure": GREY,
        "rate_limited": _LIGHT_GREY,
        "validation_error": _DARK_GREY,
        "authentication_error": _BLACK,
        "idempotency_in_flight": _PALE_GREY,
        "idempotency_conflict": _DARK_GREY,
    },
}
_COLOURS_OF_WORDS = {"opened": AMBER, "closed": GREEN}


def colours_by_word(legends: Sequence[str]) -> dict[str, str]:
    """The last words of lines that mean something under these legends, and the colour of each."""
    found: dict[str, str] = {}
    for legend in legends:
        last = legend.split()[-1]
        label = re.fullmatch(r"\{\{(\w+)\}\}", last)
        if label is not None:
            found |= _COLOURS_BY_LABEL.get(label[1], {})
        elif last in _COLOURS_OF_WORDS:
            found[last] = _COLOURS_OF_WORDS[last]
    return found
