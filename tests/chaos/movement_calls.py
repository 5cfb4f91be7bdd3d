"""Captures and refunds of many payments at once, and the services that make them. What they are told is kept.

Every movement has a body of its own, by its number. So two movements are never the same call, and a movement that was
told as a success must have a ledger line of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

import aiohttp

from tests.chaos.world import Victim, World
from tests.e2e.callers import NOBODY_ANSWERED
from tests.e2e.sidecar import Answer

CALLS_AT_ONCE = 60
TRIES_MAX, PAUSE_S, PAUSE_MOST_S = 8, 0.2, 2.0
PATIENCE_MS = (1000, 2000, 3000)
START_PAUSE_S, STARTED_AFTER_PAUSES = 0.1, 600  # a start takes as long as the machine is busy
AT_ONCE = (1, 2, 4, 8)  # movements of one payment
AUTHORISED = (10_000, 40_000)  # as a payment takes some fifty captures of 500 on average, most end at their limit
MOVED = (1, 1000)
WITHOUT_AMOUNT = 0.005  # of all movements: they take all that is left
FAULTY = 0.1
# Those that are found out by an inquiry or by a re-send under the same key, and without a wait before the next try.
SOON_KNOWN = (
    *("drop_after_commit", "reset_after_commit", "close_before_commit", "reset_before_commit"),
    *("error_500_after_commit", "late_commit(late_s=1, hang_s=1)", "html_504_after_commit", "truncated_body"),
)
# After some of these it takes as long as "not found" must settle.
FAULTS = (
    *SOON_KNOWN,
    *("error_503", "error_500_before_commit", "late_commit(late_s=1, hang_s=4)", "late_commit(late_s=4, hang_s=1)"),
    *("black_hole(heal_s=3, hang_s=1)", "hang_after_commit(hang_s=4)", "hang_before_commit(hang_s=4)"),
    *("late_response(late_s=3)", "garbage", "wrong_length", "rate_limited(retry_after_s=0)", "slow(slow_s=0.5)"),
    *("drop_after_commit,drop_after_commit", "drop_after_commit*", "late_commit(late_s=4, hang_s=0),error_503"),
)
WEBHOOKS = ("never", "normal", "early", "late(delay_s=1)", "twice")


class Style(StrEnum):
    """What a service does if it is not told how its movement ended."""

    LEAVES = "leaves"
    SAME_KEY = "same key"
    FRESH_KEY = "fresh key"  # an equal call under a fresh key, after every answer that is no end
    DISTINCT = "distinct"  # another movement of the same amount, meant as such
    REPEATS = "repeats"  # under the same key, also after the end


_STYLES = (Style.LEAVES, *(Style.SAME_KEY,) * 4, *(Style.FRESH_KEY,) * 2, Style.DISTINCT, Style.REPEATS)


@dataclass(frozen=True)
class Told:
    """One call of a movement, and what it was told."""

    key: str
    answer: Answer
    sidecar: int = 0
    at_mono: float = 0.0

    @property
    def is_success(self) -> bool:
        return 200 <= self.answer.status_code < 300 and self.answer.outcome == "succeeded"

    @property
    def operation(self) -> str:
        return self.answer.headers.get("Paywitness-Operation", "")

    def __str__(self) -> str:
        detail = f", {self.answer.json.get('detail')}" if self.answer.problem else ""
        return f"{self.key}: {self.answer.status_code} {self.answer.outcome} {self.operation}{detail}"

    @property
    def moved(self) -> str:
        """The provider's name of the capture or refund that it shows."""
        shown = self.answer.json
        return str(shown.get("capture", shown).get("id"))


@dataclass(eq=False)
class Movement:
    number: int
    kind: str  # capture, refund
    amount: int | None
    script: str = ""
    webhook: str = "never"
    style: Style = Style.SAME_KEY
    keys: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    def __str__(self) -> str:
        told = "; ".join(map(str, self.told))
        return f"{self.name} ({self.style}, {self.script or 'no fault'}; told {told})"

    def body(self, number: int) -> dict[str, object]:
        """`number` counts those that are meant as movements of their own."""
        body: dict[str, object] = {"metadata": {"movement": self.name if not number else f"{self.name}-{number}"}}
        if self.amount is not None:
            body["amount"] = self.amount
        return body if self.kind == "refund" else {**body, "final": False}


@dataclass(eq=False)
class Charge:
    """A payment, authorised, and what is to follow."""

    number: int
    authorised: int
    id: str = ""
    operation: str = ""  # whose id is the payment's
    movements: list[Movement] = field(default_factory=list)

    @property
    def order(self) -> str:
        return f"order-{self.number}"


@dataclass(frozen=True)
class Plan:
    journal: str = "redis"
    payments: int = 100
    movements: int = 10_000
    kills: int = 20
    seed: int = 1
    faults: tuple[str, ...] = FAULTS
    faulty_refunds: bool = True
    captured_first: bool = False  # a half of each payment, so that few refunds count on captures that are open
    first_byte_s: int = 2
    calm_s: float = 240.0  # the longest wait until nothing is open


def drawn(plan: Plan) -> list[Charge]:
    dice = Random(plan.seed)
    charges = [Charge(number, dice.randint(*AUTHORISED)) for number in range(plan.payments)]
    for number in range(plan.movements):
        charges[number % len(charges)].movements.append(_movement(number, dice, plan))
    return charges


def _movement(number: int, dice: Random, plan: Plan) -> Movement:
    kind = dice.choice(("capture", "refund"))
    amount = None if dice.random() < WITHOUT_AMOUNT else dice.randint(*MOVED)
    is_faulty = dice.random() < FAULTY and (plan.faulty_refunds or kind == "capture")
    script = dice.choice(plan.faults) if is_faulty else ""
    return Movement(number, kind, amount, script, dice.choice(WEBHOOKS), dice.choice(_STYLES))


@dataclass
class Services:
    world: World
    session: aiohttp.ClientSession
    dice: Random
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and what was told
    done: int = 0
    show: Callable[[int], None] = lambda done: None
    _one_done: asyncio.Event = field(default_factory=asyncio.Event)
    _at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))

    async def authorise(self, charge: Charge) -> None:
        body: dict[str, object] = {
            "amount": charge.authorised,
            "currency": "EUR",
            "capture": False,
            "metadata": {"order_id": charge.order},
        }
        answer = await self._succeed("authorization", "/v1/charges", f"key-{charge.order}", body)
        charge.id, charge.operation = answer.json["id"], answer.headers["Paywitness-Operation"]

    async def capture_half(self, charge: Charge) -> None:
        path = f"/v1/charges/{charge.id}/capture"
        body: dict[str, object] = {"amount": charge.authorised // 2, "final": False}
        await self._succeed("first capture", path, f"half-{charge.order}", body)

    async def _succeed(self, kind: str, path: str, key: str, body: dict[str, object]) -> Answer:
        """Repeat a call that meets no fault until it has succeeded: the machine may be busy."""
        for _ in range(TRIES_MAX):
            async with self._at_once:
                answer, _ = await self._post(kind, path, key, body, {})
            if answer is not None and answer.status_code == 200:
                return answer
            await asyncio.sleep(PAUSE_MOST_S)
        raise AssertionError(f"{key} did not succeed: {answer}")

    async def move(self, charge: Charge) -> None:
        """All movements of one payment, so many at once."""
        ahead = iter(charge.movements)

        async def take() -> None:
            for movement in ahead:
                await self._insist(charge, movement)
                self.done += 1
                self._one_done.set()
                self.show(self.done)

        await asyncio.gather(*(take() for _ in range(self.dice.choice(AT_ONCE))))

    async def has_done(self, count: float) -> None:
        """Until so many movements are done with."""
        while self.done < count:
            self._one_done.clear()
            await self._one_done.wait()

    async def _insist(self, charge: Charge, movement: Movement) -> None:
        """Call until it is known how it ended, or the service has had enough."""
        key, number, pause_s = f"key-{movement.name}", 0, PAUSE_S
        for tried in range(1, TRIES_MAX + 1):
            async with self._at_once:
                told = await self.call(charge, movement, key, number)
            if told is not None and _is_end(told.answer):
                if movement.style is not Style.REPEATS or tried > 2:
                    return
            elif movement.style is Style.LEAVES:
                return
            elif told is None:
                pass  # killed perhaps between the record and the reply: only the same key finds out
            elif movement.style is Style.FRESH_KEY:
                key = f"key-{movement.name}-{tried}"
            elif movement.style is Style.DISTINCT and told.answer.status_code == 504:
                key, number = f"key-{movement.name}-{tried}", tried
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MOST_S, pause_s * 1.5)

    async def call(self, charge: Charge, movement: Movement, key: str, number: int = 0) -> Told | None:
        """One call. None: nobody answered, which says nothing about the money."""
        headers = {"Sandbox-Webhook": movement.webhook}
        if key not in movement.keys:
            movement.keys.append(key)
        if movement.script and key == movement.keys[0]:
            headers["Sandbox-Fault"] = movement.script
        if number:
            headers["Paywitness-Distinct"] = "another movement of the same amount"
        path = f"/v1/charges/{charge.id}/{'capture' if movement.kind == 'capture' else 'refunds'}"
        answer, sidecar = await self._post(movement.kind, path, key, movement.body(number), headers)
        if answer is None:
            return None
        movement.told.append(Told(key, answer, self.world.sidecars.index(sidecar), time.monotonic()))
        return movement.told[-1]

    async def _post(
        self, kind: str, path: str, key: str, body: dict[str, object], headers: dict[str, str]
    ) -> tuple[Answer | None, Victim]:
        patience_ms = str(self.dice.choice(PATIENCE_MS))
        given = {"Authorization": "Bearer test", "Idempotency-Key": key, "Paywitness-Timeout-Ms": patience_ms}
        for _ in range(STARTED_AFTER_PAUSES):
            sidecar = self.dice.choice(self.world.sidecars)
            try:
                async with self.session.post(f"{sidecar.url}{path}", json=body, headers=given | headers) as response:
                    answer = Answer(response.status, dict(response.headers), await response.read())
                break
            except aiohttp.ClientConnectorError:  # it was killed, and nothing was said to it: the next one, perhaps
                await asyncio.sleep(START_PAUSE_S)
            except NOBODY_ANSWERED:
                self.counted[kind, "nobody answered"] += 1
                return None, sidecar
        else:
            raise AssertionError("no sidecar was back")
        limited_by = answer.headers.get("Paywitness-Limited-By", "").partition(";")[0]
        said = (str(answer.status_code), answer.problem or answer.outcome, limited_by)
        self.counted[kind, " ".join(filter(None, said))] += 1
        return answer, sidecar


def _is_end(answer: Answer) -> bool:
    """Whether the movement is done, or was refused for good."""
    if answer.problem:
        return answer.problem in {"exceeds-remaining", "closed-without-response"}
    return answer.status_code < 500 and answer.status_code != 429
