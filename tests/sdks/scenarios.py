"""The scenarios that every SDK goes through, and what is demanded of each: one effect, and no surprise for its user."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from tests.sdks.double import Double, Fault
from tests.sdks.line import Line

DO_NOT_PAY_AGAIN = "Do not make another payment"  # of our `detail`, wherever the outcome is unknown
NOTHING_WAS_SENT = "Nothing was sent"

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Told:
    """What the SDK's user sees of one call: a payment, or an exception of the SDK's."""

    kind: str  # "paid", or the name of the exception's class
    facts: tuple[object, ...] = ()  # status, code, amount: what code branches on. No ids, no order
    text: str = field(default="", compare=False)  # all that a person would read

    @property
    def paid(self) -> bool:
        return self.kind == "paid"


@dataclass
class Stand:
    """A provider's double, and the two ways to it."""

    double: Double
    line: Line
    direct: str  # without us
    through: str  # through us by path prefix: http://127.0.0.1:PORT/stripe
    own_port: str  # through us by the provider's own port, for an SDK that drops a prefix: http://127.0.0.1:PORT

    def new_order(self) -> str:
        return f"order-{next(_numbers)}"


# (url, order, declined) -> Told. One call of the SDK, as a shop makes it; `declined`: by a card that has no money.
Pay = Callable[[str, str, bool], Told]


class Verdict(Enum):
    SAME = "the SDK's user sees what they would have seen without us, and as much money moved"
    PAID = "the SDK's user sees the payment as if nothing had happened, and it was paid once"
    UNKNOWN = "the SDK raises what it raises for a 503, with our words; it was paid once or not at all"


@dataclass(frozen=True)
class Scenario:
    name: str
    faults: tuple[Fault, ...] = ()
    declined: bool = False

    def __str__(self) -> str:
        return self.name


SUCCESS = Scenario("success")
DECLINE = Scenario("decline", declined=True)
LOST = Scenario("lost_response", (Fault.LOST,))
TIMEOUT = Scenario("timeout", (Fault.STALL,))
BUSY = Scenario("429_once", (Fault.BUSY,))
BUSY_ALWAYS = Scenario("429_always", (Fault.BUSY,) * 20)
RESET = Scenario("reset_before_commit", (Fault.RESET,))
BROKEN = Scenario("500_before_commit", (Fault.BROKEN,))
BROKEN_AFTER = Scenario("500_after_commit", (Fault.BROKEN_AFTER,))
UNAVAILABLE = Scenario("503_always", (Fault.UNAVAILABLE,) * 20)
GATEWAY = Scenario("html_502_after_commit", (Fault.GATEWAY,))
SCENARIOS = (
    SUCCESS,
    DECLINE,
    LOST,
    TIMEOUT,
    BUSY,
    BUSY_ALWAYS,
    RESET,
    BROKEN,
    BROKEN_AFTER,
    UNAVAILABLE,
    GATEWAY,
)

# What holds for a provider that stores its answers under a key, errors too, and cannot be asked what became of a call.
# A module overrides what its provider's contract makes different: VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}
# A 500 that is the only answer passes as it came; a 503 in doubt is our 504; an HTML 502 is a lost answer.
STORED = {
    SUCCESS: Verdict.SAME,
    DECLINE: Verdict.SAME,
    LOST: Verdict.PAID,
    TIMEOUT: Verdict.PAID,
    BUSY: Verdict.PAID,
    BUSY_ALWAYS: Verdict.SAME,
    RESET: Verdict.PAID,
    BROKEN: Verdict.UNKNOWN,
    BROKEN_AFTER: Verdict.UNKNOWN,
    UNAVAILABLE: Verdict.UNKNOWN,
    GATEWAY: Verdict.PAID,
}


def play(stand: Stand, scenario: Scenario, verdict: Verdict, pay: Pay, url: str = "") -> Told:
    """The scenario through us, judged; and what the SDK told. `url` where it is not `stand.through`."""
    order, control = stand.new_order(), stand.new_order()
    stand.double.befall(order, *scenario.faults)
    told = pay(url or stand.through, order, scenario.declined)
    effects = stand.double.effects(order)
    if verdict is Verdict.SAME:
        stand.double.befall(control, *scenario.faults)
        without_us = pay(stand.direct, control, scenario.declined)
        assert (told, effects) == (without_us, stand.double.effects(control)), (told.text, without_us.text)
        assert told.paid == (scenario is SUCCESS), told
    elif verdict is Verdict.PAID:
        assert told == pay(stand.direct, control, False), told.text
        assert (told.paid, effects) == (True, 1)
    else:
        stand.double.befall(control, *UNAVAILABLE.faults)
        assert told.kind == pay(stand.direct, control, False).kind, told
        assert DO_NOT_PAY_AGAIN in told.text, told.text
        assert effects <= 1
    return told


def repeat(stand: Stand, pay: Pay, *, by_itself: bool, url: str = "") -> None:
    """Our answer is lost on its way to the SDK. It asks again by itself, or raises and its user does: it is paid once
    and sent to the provider once, whether `pay` gives equal keys to equal orders or a fresh one each time."""
    order, control = stand.new_order(), stand.new_order()
    lost = stand.line.lost
    stand.line.lose_next()
    told = pay(url or stand.through, order, False)
    assert stand.line.lost == lost + 1
    assert told.paid == by_itself, told.text
    if not by_itself:
        told = pay(url or stand.through, order, False)
    assert told.paid, told.text
    assert told == pay(stand.direct, control, False)
    assert (stand.double.effects(order), len(stand.double.sent(order))) == (1, 1)


def pay_again(stand: Stand, first: Pay, second: Pay) -> None:
    """An order that is paid is paid anew, the same call under another key: told the first payment, and paid once."""
    order = stand.new_order()
    told = first(stand.through, order, False)
    assert told.paid, told.text
    assert second(stand.through, order, False) == told
    assert (stand.double.effects(order), len(stand.double.sent(order))) == (1, 1)


def pay_at_once(stand: Stand, pay: Pay, callers: int = 4) -> None:
    """Several callers pay one order in the same moment, and the first answer is lost: all are told of one payment."""
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    with ThreadPoolExecutor(callers) as pool:
        told = list(pool.map(lambda _: pay(stand.through, order, False), range(callers)))
    assert [one.paid for one in told] == [True] * callers, told
    assert stand.double.effects(order) == 1
