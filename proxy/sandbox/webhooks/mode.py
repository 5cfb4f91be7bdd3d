"""How the telling of an event goes wrong: the table a person chooses from, by PUT or by the Sandbox-Webhook header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proxy.sandbox.calling import BadCall, Parameters, read_parameters, split_call, written_call

DEFAULTS: Mapping[str, Parameters] = {
    "normal": {},
    "early": {},
    "late": {"delay_s": 2.0},
    "twice": {},
    "ten_times": {},
    "never": {},
    "reversed": {"delay_s": 0.0},
    "forged": {},
    "old_timestamp": {"age_s": 3600.0},
    "wrong_amount": {"by_minor": 1},
    "other_account": {},
    "out_of_order": {},
}
MEANINGS = {
    "normal": "told after the change, in order, until it is received",
    "early": "told before the answer to the call is sent, also when that answer is then lost; waits 2 s at most",
    "late": "told after delay_s",
    "twice": "the same event two times, one after the other",
    "ten_times": "the same event ten times, all at once",
    "never": "not told; it is kept, and /_sandbox/webhooks/{event}/resend tells it",
    "reversed": "told; delay_s later the charge (payout) is reversed, and that is told too",
    "forged": "signed with a wrong secret",
    "old_timestamp": "correctly signed, age_s ago",
    "wrong_amount": "correctly signed, the amount is by_minor more",
    "other_account": 'correctly signed, of the account "acct_other"',
    "out_of_order": "after a final event, an older one that says it is not final yet (processing, pending)",
}


class UnknownMode(ValueError):
    """Not the name of a mode, or not a parameter of it."""

    code: ClassVar[str] = "unknown_webhook_mode"


class NobodyToTell(UnknownMode):
    """A mode was asked for, and there is no endpoint."""

    code = "webhook_endpoint_missing"


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    parameters: Mapping[str, float | int]

    def number(self, parameter: str, default: float = 0.0) -> float | int:
        return self.parameters.get(parameter, default)

    def __str__(self) -> str:
        return written_call(self.name, self.parameters)


def mode_called(text: str) -> Mode:
    """`late(delay_s=2)` -> the mode."""
    call = split_call(text)
    if call is None or call[0] not in DEFAULTS:
        raise UnknownMode(f"unknown webhook mode {text.strip()!r}; known: {', '.join(DEFAULTS)}")
    known = DEFAULTS[call[0]]
    try:
        return Mode(call[0], known | read_parameters(*call, known))
    except BadCall as error:
        raise UnknownMode(str(error)) from None


def describe_modes() -> dict[str, str]:
    return {written_call(name, DEFAULTS[name]): meaning for name, meaning in MEANINGS.items()}
