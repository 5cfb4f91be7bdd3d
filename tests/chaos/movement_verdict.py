"""The verdict on captures and refunds: the sandbox's ledger beside the journal and what the services were told."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paywitness.core.payment import (
    Payment,
    payment_key,
)
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import payment_from_row
from paywitness.journal.redis.journal import RedisJournal
from tests.chaos.movement_calls import Charge, Movement, Style
from tests.chaos.world import World
from tests.e2e.judge import NO_EFFECT, is_at_rest

MOVED = {"capture", "refund"}  # kinds of ledger lines, and of operations


@dataclass(frozen=True)
class Totals:
    """What the ledger has of one charge."""

    authorised: int = 0
    captured: int = 0
    refunded: int = 0

    @property
    def capturable(self) -> int:
        return self.authorised - self.captured

    @property
    def refundable(self) -> int:
        return self.captured - self.refunded


@dataclass(frozen=True)
class Kill:
    sidecar: int
    at_mono: float


# A sidecar tells 504 at the deadline. If the success is just being recorded, that nobody was told of it is recorded
# in a second step. Killed in between, the journal believes that the caller knows.
KILLED_WITHIN_S = 2.0


@dataclass
class Verdict:
    """What is wrong, by the promise that it breaks. Each is a line for a person to read."""

    over_limit: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)  # told or recorded otherwise than the ledger has it
    lost: list[str] = field(default_factory=list)  # a remainder that is not what the ledger leaves
    stuck: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)  # moved again under a fresh key, after a 504 and a kill

    @property
    def broken(self) -> list[str]:
        named = {"over the limit": self.over_limit, "untrue": self.untrue, "lost": self.lost, "stuck": self.stuck}
        return [f"{promise}: {line}" for promise, lines in named.items() for line in lines]


def totals_of(lines: Iterable[Mapping]) -> dict[str, Totals]:
    """By charge."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        sums[line["charge"]][line["kind"]] += line["amount"]
    return {charge: Totals(found["authorization"], found["capture"], found["refund"]) for charge, found in sums.items()}


def verdict_of(
    charges: Sequence[Charge],
    operations: Sequence[dict],
    lines: Sequence[dict],
    arrivals: Sequence[dict] = (),
    kills: Sequence[Kill] = (),
) -> Verdict:
    """All but the balances. `operations` are the journal's, `lines` the ledger's, in the order of their effects."""
    verdict = Verdict()
    _judge_limits(lines, verdict)
    _judge_arrivals(charges, arrivals, verdict)
    _judge_ends(operations, verdict)
    moved = [operation for operation in operations if operation["kind"] in MOVED]
    by_key = defaultdict(list)
    for operation in moved:
        by_key[operation["provider_key"]].append(operation)
    lines_by_key = defaultdict(list)
    for line in lines:
        if line["kind"] in MOVED:
            lines_by_key[line["key"]].append(line)
    _judge_lines(by_key, lines_by_key, verdict)
    by_id = {operation["id"]: operation for operation in moved}
    by_client_key = defaultdict(list)
    for operation in moved:
        by_client_key[operation["client_key"]].append(operation)
    for charge in charges:
        for movement in charge.movements:
            own = [operation for key in movement.keys for operation in by_client_key[key]]
            _judge_told(movement, own, by_id, lines_by_key, verdict)
            _judge_effects(movement, own, lines_by_key, kills, verdict)
    return verdict


def _judge_limits(lines: Sequence[dict], verdict: Verdict) -> None:
    """At no moment was more captured than authorised, nor more refunded than captured."""
    so_far: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        sums = so_far[line["charge"]]
        sums[line["kind"]] += line["amount"]
        if sums["capture"] > sums["authorization"] or sums["refund"] > sums["capture"]:
            verdict.over_limit.append(f"{line['charge']} by {line['id']}: {dict(sums)}")


def _judge_arrivals(charges: Sequence[Charge], arrivals: Sequence[dict], verdict: Verdict) -> None:
    """No capture was sent that the provider had to refuse. One without an amount may take what others have reserved.
    And a refund may be sent before the capture that it counts on has come."""
    limited = {
        f"/v1/charges/{charge.id}/capture"
        for charge in charges
        if all(movement.amount is not None for movement in charge.movements)
    }
    for arrival in arrivals:
        if arrival["path"] in limited and arrival["answered"] == 400:
            verdict.over_limit.append(f"{arrival['path']} under {arrival['key']} was too much for the provider")


def _judge_ends(operations: Sequence[dict], verdict: Verdict) -> None:
    for operation in operations:
        named = f"{operation['kind']} {operation['id']} under {operation['client_key']}"
        if not is_at_rest(operation) or operation["state"] == "requires_review":
            verdict.stuck.append(f"{named} is {operation['state']}, {operation['because']}")
        if operation["incident"]:
            verdict.untrue.append(f"{named} is an incident, {operation['incident']}")


def _judge_lines(by_key: Mapping[str, list], lines_by_key: Mapping[str, list], verdict: Verdict) -> None:
    """One line for each success, and one success for each line."""
    for key, found in lines_by_key.items():
        if len(found) > 1:
            verdict.untrue.append(f"{key} moved money {len(found)} times: {[line['id'] for line in found]}")
        ends = Counter(operation["state"] for operation in by_key.get(key, ()))
        if ends["succeeded"] != 1 and set(ends) <= {"succeeded", "failed"}:
            ids = [operation["id"] for operation in by_key.get(key, ())]
            verdict.untrue.append(f"{key} moved {found[0]['id']} of {found[0]['charge']}, and ended as {ends}: {ids}")
    for key, operations in by_key.items():
        succeeded = [operation["id"] for operation in operations if operation["state"] == "succeeded"]
        if succeeded and not lines_by_key.get(key):
            verdict.untrue.append(f"{succeeded} under {key} succeeded, and moved nothing")


def _judge_told(
    movement: Movement,
    operations: Sequence[dict],
    by_id: Mapping[str, dict],
    lines_by_key: Mapping[str, list],
    verdict: Verdict,
) -> None:
    for told in movement.told:
        if not told.is_success:
            continue
        operation = by_id.get(told.operation)
        found = lines_by_key.get(operation["provider_key"], ()) if operation is not None else ()
        if [line["id"] for line in found] != [told.moved]:
            ids = [line["id"] for line in found]
            verdict.untrue.append(f"{movement.name} was told {told.moved} by {told.operation}, and its lines are {ids}")
        elif operation is not None and operation["client_key"] not in movement.keys:
            verdict.untrue.append(f"{movement.name} was told {told.operation}, which is not its own")
    last = movement.told[-1] if movement.told else None
    if last is not None and last.answer.outcome in NO_EFFECT and last.answer.problem != "guarded":
        own = [each for each in operations if each["client_key"] == last.key]
        if any(lines_by_key.get(each["provider_key"]) for each in own):
            verdict.untrue.append(f"{movement} was told {last.answer.outcome} at last, and moved money")


def _judge_effects(
    movement: Movement,
    operations: Sequence[dict],
    lines_by_key: Mapping[str, list],
    kills: Sequence[Kill],
    verdict: Verdict,
) -> None:
    """A movement moves money once, and once for each time that it was meant."""
    effects = {line["id"] for each in operations for line in lines_by_key.get(each["provider_key"], ())}
    meant = len(movement.keys) if movement.style is Style.DISTINCT else 1
    if len(effects) <= meant:
        return
    unheard = {
        told.key
        for told in movement.told
        for kill in kills
        if told.answer.status_code == 504
        and told.sidecar == kill.sidecar
        and 0 <= kill.at_mono - told.at_mono < KILLED_WITHIN_S
    }
    found = verdict.excused if len(effects) <= meant + len(unheard) else verdict.untrue
    found.append(f"{movement} moved money more than once: {sorted(effects)}")


# --- Balances


async def balances_of(world: World, charges: Sequence[Charge]) -> dict[str, Payment | None]:
    """The payments as the journal keeps them, by the charge's name."""
    keys = tuple(payment_key(charge.operation) for charge in charges)
    rows = await _redis_rows(world.redis.url, keys) if world.redis is not None else _sqlite_rows(world, keys)
    found = (None if row is None else payment_from_row(row) for row in rows)
    return dict(zip((charge.id for charge in charges), found, strict=True))


async def _redis_rows(url: str, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
    journal = await RedisJournal.open(url)
    try:
        return await journal.ledger_rows(keys)
    finally:
        await journal.close()


def _sqlite_rows(world: World, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
    """Read beside the sidecar that holds the journal."""
    file = world.sidecars[0].home / "journal.db"
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        read = "SELECT key, version, value, due_at FROM ledger WHERE key = ?"
        found = [connection.execute(read, (key,)).fetchone() for key in keys]
        return tuple(None if row is None else LedgerRow(*row) for row in found)
    finally:
        connection.close()


def _numbers(payment: Payment) -> tuple[int | None, ...]:
    return payment.authorised, payment.captured, payment.refunded


def judge_balances(
    charges: Sequence[Charge],
    balances: Mapping[str, Payment | None],
    totals: Mapping[str, Totals],
    operations: Sequence[dict],
    verdict: Verdict,
) -> None:
    """What is left of each payment is what the ledger leaves, and nothing is reserved by what has ended."""
    states = {operation["id"]: operation["state"] for operation in operations}
    for charge in charges:
        payment, sums = balances[charge.id], totals[charge.id]
        named = f"payment {charge.operation} ({charge.id})"
        if payment is None:
            verdict.lost.append(f"{named} has no row")
            continue
        known = Totals(*(-1 if known is None else known for known in _numbers(payment)))
        reserved = {movement.operation_id: states.get(movement.operation_id, "gone") for movement in payment.reserved()}
        if known != sums:
            verdict.lost.append(f"{named} is {known}, and the ledger has {sums}; reserved: {reserved}")
        elif reserved:
            verdict.lost.append(f"{named} still reserves {reserved}")
