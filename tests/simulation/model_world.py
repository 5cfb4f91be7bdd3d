"""The model's world: one operation under one key, sidecars that carry it, the wire, and all that can happen next.

Sidecars share the journal alone. Each does one thing at a time, and may stop between any two steps of it: for good,
when it crashes, or for as long as the others like. A lease may run out at any time. Everything that is not a step of a
sidecar is a step of the world: deliveries, webhooks, sweeps, time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paywitness.core.claim import ClaimVerdict
from paywitness.core.decide import Action
from paywitness.core.errors import IllegalTransition
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import Lease, Operation, State
from paywitness.journal.transitions import LEASABLE_STATES
from tests.simulation.model_engine import NOTHING, NOW, Bounds, Core, ModelEngine, Promise, Settled, promise_of
from tests.simulation.model_provider import Scenario, Truth
from tests.simulation.model_state import AS_STORED, DAY_S, IDLE, OLDER, SILENT, TICK_S, Hand, Ledger, Wire, World, put

_HOLDING = frozenset({"waiting", "resuming", "asked"})
_ERRAND = frozenset({"sending", "awaiting", "answered", "waiting"})
Step = tuple[str, World]


class BrokenStep(Exception):
    """A step that the engine would take, and may not."""


class Model:
    """All that can happen in one scenario."""

    def __init__(self, scenario: Scenario, core: Core | None = None, bounds: Bounds = Bounds()) -> None:
        self.scenario = scenario
        self.core = core or Core()
        self.bounds = bounds
        self.engine = ModelEngine(scenario.contract, self.core, bounds)
        self.ledger = Ledger(bounds)
        self._done: dict[tuple[Any, ...], Any] = {}

    def start(self) -> World:
        """The first call is claimed by the first sidecar: SENDING is durable, and nothing was sent."""
        bounds = self.bounds
        started = self.engine.claim(None, "0").insert
        assert started is not None
        hands = (Hand("sending", 0, 1, caller=True), *[IDLE] * (bounds.sidecars - 1))
        number = self.ledger.number(started.operation)
        return World((number,), ((SILENT,),), Truth(), hands, (NOTHING,), bounds.repeats, bounds.crashes)

    def stands(self, number: int) -> Operation:
        return self.ledger.operations[number]

    def steps(self, world: World) -> Iterator[Step]:
        for place, hand in enumerate(world.hands):
            match hand.doing:
                case "idle":
                    yield from self._begin(world, place)
                case "sending":
                    yield from self._send(world, place, hand)
                case "awaiting":
                    yield from self._await(world, place, hand)
                case "answered":
                    yield from self._settle(world, place, hand)
                case "waiting":
                    yield from self._turn(world, place, hand)
                case "resuming":
                    yield self._resume(world, place, hand)
                case "asked":
                    yield self._found(world, place, hand)
            if hand is not IDLE and world.crashes:
                yield from self._crash(world, place, hand)
        yield from self._on_the_wire(world)
        yield from self._outside(world)
        yield from self._time(world)

    # -- what a step of the engine comes to, computed once

    def _engine(self, method: Callable[..., Any], number: int, *arguments: Any, **named: Any) -> Any:
        """The engine's method over an operation, its operations as numbers."""
        key = (method, number, arguments, *named.items())
        if key not in self._done:
            try:
                outcome = method(self.stands(number), *arguments, **named)
            except IllegalTransition as error:
                raise BrokenStep(f"{method.__name__}: illegal transition: {error}") from error
            if isinstance(outcome, Operation):
                outcome = self._moved(number, outcome)
            elif isinstance(outcome, tuple):  # of what was shown
                outcome = (self._moved(number, outcome[0]), outcome[1])
            elif isinstance(outcome, Settled):
                outcome = (self._moved(number, outcome.operation), outcome.action, outcome.promise)
            self._done[key] = outcome
        return self._done[key]

    def _changed(self, number: int, why: str, change: Callable[[Operation], Operation]) -> int:
        """The number of the operation with something changed that is no step of the engine: its age, its lease."""
        key = (why, number)
        if key not in self._done:
            self._done[key] = self.ledger.number(change(self.stands(number)))
        changed: int = self._done[key]
        return changed

    def _moved(self, number: int, after: Operation) -> int:
        """The number of the operation after a step that may lead there."""
        before = self.stands(number)
        if before.state.ended and (after.state, after.doubt) != (before.state, before.doubt):
            raise BrokenStep(f"{before.state} is final, and became {after.state}")
        if before.doubt and after.state in {State.PREPARED, State.BACKOFF, State.SENDING}:
            raise BrokenStep(f"from doubt back to {after.state}")
        return self.ledger.number(after)

    def _written(self, world: World, generation: int, number: int, by: int = -1) -> World:
        """The world after a write to the journal: what others hold is now older than it."""
        before = world.operations[generation]
        hands = world.hands
        if any(hand.doing in _HOLDING for hand in hands):
            hands = tuple(
                hand._replace(held=OLDER if self.core.compares else before)
                if place != by and hand.held == AS_STORED and hand.generation == generation and hand.doing in _HOLDING
                else hand
                for place, hand in enumerate(hands)
            )
        stands = self.stands(number)
        truth = world.truth
        if stands.state is State.REQUIRES_ACTION and truth.undecided == "action" and not truth.link:
            truth = truth._replace(link=True)
        wires = world.wires
        if len(wires[generation]) < stands.attempts:
            wires = put(wires, generation, (*wires[generation], SILENT))
        operations = put(world.operations, generation, number)
        return world._replace(operations=operations, hands=hands, wires=wires, truth=truth)

    def _hand(self, world: World, place: int, hand: Hand) -> World:
        """The world with the sidecar doing this. A lease that an idle one still has is nobody's: it will run out."""
        world = world._replace(hands=put(world.hands, place, hand))
        if hand is not IDLE:
            return world
        for generation, number in enumerate(world.operations):
            lease = self.stands(number).lease
            if lease is not None and lease.token == str(place):
                nobodys = self._changed(number, "gone", lambda held: held.changed(lease=_gone(held.lease)))
                operations = put(world.operations, generation, nobodys)
                world = world._replace(operations=operations)
        return world

    def _tell(self, world: World, hand: Hand, promise: Promise) -> World:
        if not hand.caller or promise == NOTHING:
            return world
        before = world.told[hand.generation]
        both = Promise(before.paid or promise.paid, before.without_effect or promise.without_effect)
        return world._replace(told=put(world.told, hand.generation, both))

    # -- a sidecar's steps

    def _begin(self, world: World, place: int) -> Iterator[Step]:
        newest = len(world.operations) - 1
        number = world.operations[newest]
        stands = self.stands(number)
        if world.repeats:
            said, after = self._repeat(world._replace(repeats=world.repeats - 1), place, newest, number)
            if len(after.operations) <= self.bounds.generations:
                yield said, after
        due = stands.due_at is not None and stands.lease is None and stands.state in LEASABLE_STATES
        if due and sum(hand.doing == "asked" for hand in world.hands) < self.bounds.askers:
            after = self._written(world, newest, self._engine(self.engine.taken, number, str(place)), place)
            yield from self._look(after, place, Hand("asked", newest))

    def _repeat(self, world: World, place: int, newest: int, number: int) -> Step:
        """The caller repeats its call under the same key."""
        lease = self.stands(number).lease
        if lease is not None and lease.until_at <= NOW:
            number = self._engine(self.engine.expired, number)
            world = self._written(world, newest, number, place)
        claim = self.engine.claim(self.stands(number), str(place))
        said = f"the caller repeats at sidecar {place}: {claim.verdict}"
        holder = claim.holder
        if claim.insert is not None:
            world = world._replace(
                operations=(*world.operations, self.ledger.number(claim.insert.operation)),
                wires=(*world.wires, (SILENT,)),
                told=(*world.told, NOTHING),
                truth=world.truth._replace(effects=(*world.truth.effects, 0)),
            )
            return f"{said}, next generation", self._hand(world, place, Hand("sending", newest + 1, 1, caller=True))
        assert holder is not None
        world = self._written(world, newest, self._moved(number, holder), place)
        hand = Hand("resuming", newest, caller=True)
        if (
            claim.verdict is ClaimVerdict.IN_DOUBT
            and holder.attempts < self.bounds.attempts
            and self.engine.may_resume(holder)
        ):
            return said, self._hand(world, place, hand)
        if claim.verdict is ClaimVerdict.REPLAY:
            world = self._tell(world, hand, promise_of(holder))
        return said, self._hand(world, place, IDLE)

    def _resume(self, world: World, place: int, hand: Hand) -> Step:
        number = world.operations[hand.generation] if hand.held == AS_STORED else hand.held
        if hand.held != AS_STORED and self.core.compares:
            return f"sidecar {place} finds that somebody was faster", self._hand(world, place, IDLE)
        return f"sidecar {place} records a re-send for the repeat", self._resent(world, place, hand, number)

    def _resent(self, world: World, place: int, hand: Hand, number: int, *, by_resolver: bool = False) -> World:
        after = self._engine(self.engine.resent, number, str(place), by_resolver=by_resolver)
        world = self._written(world, hand.generation, after, place)
        resent = self.stands(after)
        too_old = not self.core.in_window(resent, self.scenario.contract)
        sending = Hand("sending", hand.generation, resent.attempts, caller=hand.caller, too_old=too_old)
        return self._hand(world, place, sending)

    def _send(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        answered = hand._replace(doing="answered", word="not sent")
        yield f"sidecar {place} does not get attempt {hand.attempt} sent", self._hand(world, place, answered)
        stands = self.stands(world.operations[hand.generation])
        if not hand.too_old and self.core.lasts(stands, str(place), hand.lapsed):
            sent = self._wire(world, hand.generation, hand.attempt, Wire(in_air=True, heard_by=place))
            yield (
                f"sidecar {place} sends attempt {hand.attempt}",
                self._hand(sent, place, hand._replace(doing="awaiting")),
            )

    def _wire(self, world: World, generation: int, attempt: int, wire: Wire) -> World:
        wires = put(world.wires[generation], attempt - 1, wire)
        return world._replace(wires=put(world.wires, generation, wires))

    def _await(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        wire = world.wires[hand.generation][hand.attempt - 1]
        if wire.answer:
            after = self._wire(world, hand.generation, hand.attempt, Wire(wire.in_air))
            answered = hand._replace(doing="answered", word=wire.answer)
            yield f"sidecar {place} hears: {wire.answer}", self._hand(after, place, answered)
        lost = hand._replace(doing="answered", word="lost")
        said = f"sidecar {place} times out on attempt {hand.attempt}"
        if self.bounds.late_answers:
            yield f"{said}, and listens on", self._hand(world, place, lost)
        else:
            deaf = self._wire(world, hand.generation, hand.attempt, Wire(wire.in_air))
            yield said, self._hand(deaf, place, lost)

    def _settle(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        number = world.operations[hand.generation]
        for waits in (True, False) if hand.caller else (False,):
            settled, action, promise = self._engine(
                self.engine.settled, number, hand.attempt, hand.word, str(place), waits=waits
            )
            after = self._written(world, hand.generation, settled, place)
            said = f"sidecar {place} records {hand.word} of attempt {hand.attempt}"
            if action is not Action.RETRY_SAME_OPERATION:
                yield f"{said}: {action}", self._hand(self._tell(after, hand, promise), place, IDLE)
            elif self.stands(settled).state is State.BACKOFF:
                yield f"{said}, waits", self._hand(after, place, hand._replace(doing="waiting"))
            else:
                again = hand._replace(doing="sending", attempt=self.stands(settled).attempts, word="")
                yield f"{said}, and its re-send", self._hand(after, place, again)

    def _turn(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        number = world.operations[hand.generation] if hand.held == AS_STORED else hand.held
        if hand.held != AS_STORED and self.core.compares:
            told = self.engine.told(self.stands(world.operations[hand.generation]), hand.word)
            yield f"sidecar {place} finds it moved on", self._hand(self._tell(world, hand, told), place, IDLE)
            return
        after = self._engine(self.engine.next_turn, number)
        sending = Hand("sending", hand.generation, self.stands(after).attempts, caller=hand.caller)
        turned = self._written(world, hand.generation, after, place)
        yield f"sidecar {place} records the next attempt", self._hand(turned, place, sending)
        ended = self._engine(self.engine.given_up, number)
        after_end = self._written(world, hand.generation, ended, place)
        told = self.engine.told(self.stands(ended), hand.word)
        yield f"sidecar {place} gives up", self._hand(self._tell(after_end, hand, told), place, IDLE)

    def _look(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        """`resolver.resolve`, up to what is recorded at once or to the provider's answer."""
        number = world.operations[hand.generation]
        action = self._engine(self.engine.to_do, number)
        said = f"sidecar {place} looks at what is due: {action}"
        if action in {Action.SCHEDULE_RETRY, Action.RETRY_SAME_OPERATION}:
            yield said, self._resend_or_leave(world, place, hand)
        elif action is Action.SEND_TO_REVIEW:
            after = self._written(world, hand.generation, self._engine(self.engine.parked, number, str(place)), place)
            yield said, self._hand(after, place, IDLE)
        elif self.scenario.contract.supports_inquiry:
            for word in self.scenario.found(world.truth):
                asked = hand._replace(word=self._worth(number, word), attempt=self.stands(number).attempts)
                yield f"sidecar {place} asks, and finds: {word}", self._hand(world, place, asked)
        else:
            yield said, self._look_again(world, place, hand, None)

    def _worth(self, number: int, word: str) -> str:
        """What an answer is worth, for the operation as it is held by who asked: a miss may prove that it is absent, or
        allow a re-send."""
        held = self.stands(number)
        if word != "miss" or not self.engine.may_be_missed(held):
            return word
        if self.engine.is_absent(held, NOW):
            return "absent"
        return "vain" if self._sends_again(held) else "miss"

    def _sends_again(self, held: Operation) -> bool:
        vain = self.engine.to_do(held, asked_in_vain=True)
        return held.state is State.UNKNOWN and vain is Action.SCHEDULE_RETRY

    def _resend_or_leave(self, world: World, place: int, hand: Hand) -> World:
        number = world.operations[hand.generation] if hand.held == AS_STORED else hand.held
        if hand.held != AS_STORED and self.core.compares:
            return self._hand(world, place, IDLE)
        if self.stands(number).attempts >= self.bounds.attempts:  # the model's bound, as the budget would say it
            after = self._engine(self.engine.held_back, world.operations[hand.generation], str(place))
            return self._hand(self._written(world, hand.generation, after, place), place, IDLE)
        return self._resent(world, place, hand, number, by_resolver=True)

    def _look_again(self, world: World, place: int, hand: Hand, missed_at: float | None) -> World:
        after = self._engine(self.engine.looked, world.operations[hand.generation], str(place), missed_at, hand.attempt)
        return self._hand(self._written(world, hand.generation, after, place), place, IDLE)

    def _found(self, world: World, place: int, hand: Hand) -> Step:
        """`resolver._ask`, from the provider's answer on."""
        number = world.operations[hand.generation]
        missed_at = NOW - TICK_S if hand.asked_before else NOW
        said = f"sidecar {place} records what it found: {hand.word}"
        if hand.word == "no answer":
            return said, self._look_again(world, place, hand, None)
        if hand.word == "vain" and (hand.held != AS_STORED or self._sends_again(self.stands(number))):
            return f"{said}, and would send it again", self._resend_or_leave(world, place, hand)
        if hand.word in {"miss", "vain"}:
            return said, self._look_again(world, place, hand, missed_at)
        after, event = self._engine(
            self.engine.shown, number, EvidenceSource.INQUIRY, hand.word, str(place), hand.attempt
        )
        if event is not None:
            world = self._written(world, hand.generation, after, place)
        stands = self.stands(after)
        if event is None or (not stands.state.ended and stands.lease is not None):
            world = self._look_again(world, place, hand, missed_at if hand.word == "absent" else None)
        return said, self._hand(world, place, IDLE)

    def _crash(self, world: World, place: int, hand: Hand) -> Iterator[Step]:
        wires = tuple(
            tuple(Wire(wire.in_air) if wire.heard_by == place else wire for wire in one) for one in world.wires
        )
        world = world._replace(wires=wires, crashes=world.crashes - 1)
        yield f"sidecar {place} crashes", self._hand(world, place, IDLE)
        if hand.doing in _ERRAND:
            number = world.operations[hand.generation]
            byte_started = hand.doing in {"awaiting", "answered"} and hand.word != "not sent"
            after = self._engine(self.engine.abandoned, number, str(place), byte_started=byte_started)
            if after is not None:
                world = self._written(world, hand.generation, after, place)
                yield f"sidecar {place} is shut down", self._hand(world, place, IDLE)

    # -- the world's steps

    def _on_the_wire(self, world: World) -> Iterator[Step]:
        for generation, wires in enumerate(world.wires):
            for attempt, wire in enumerate(wires, 1):
                if wire.in_air:
                    yield from self._arrive(world, generation, attempt, wire)
                if wire.answer and not self._awaited(world, generation, attempt):
                    number = world.operations[generation]
                    after = self._engine(self.engine.harvested, number, attempt, wire.answer)
                    heard = self._written(world, generation, after)
                    silent = self._wire(heard, generation, attempt, Wire(wire.in_air))
                    yield f"a late answer of attempt {attempt} is recorded: {wire.answer}", silent

    def _awaited(self, world: World, generation: int, attempt: int) -> bool:
        return any(hand.doing == "awaiting" and hand[1:3] == (generation, attempt) for hand in world.hands)

    def _arrive(self, world: World, generation: int, attempt: int, wire: Wire) -> Iterator[Step]:
        answerable = wire.heard_by >= 0 and not wire.answer
        if answerable and self.bounds.rare_answers:
            broken = self._wire(world, generation, attempt, wire._replace(answer="gateway error"))
            yield f"a gateway answers attempt {attempt} with an error of its own", broken
        another = self.bounds.rare_answers and sum(one.in_air for one in world.wires[generation]) > 1
        for said, answer, truth in self.scenario.delivered(world.truth, generation, another_in_air=another):
            kept = wire._replace(in_air=False, answer=answer) if answerable else wire._replace(in_air=False)
            if not kept.answer:
                kept = SILENT
            after = self._wire(world._replace(truth=truth), generation, attempt, kept)
            yield f"attempt {attempt} arrives, {said}", after

    def _outside(self, world: World) -> Iterator[Step]:
        newest = len(world.operations) - 1
        number = world.operations[newest]
        for said, truth in self.scenario.decided(world.truth, newest):
            yield said, world._replace(truth=truth)
        if self.scenario.contract.webhook_expected:
            for word in world.truth.events:
                after, event = self._engine(self.engine.shown, number, EvidenceSource.WEBHOOK, word)
                if event is not None:
                    yield f"a webhook tells: {word}", self._written(world, newest, after)

    def _time(self, world: World) -> Iterator[Step]:
        for generation, number in enumerate(world.operations):
            lease = self.stands(number).lease
            if lease is None:
                continue
            if lease.until_at > NOW:
                over = self._changed(number, "over", lambda held: held.changed(lease=_over(held.lease)))
                operations = put(world.operations, generation, over)
                hands = tuple(map(_lapsed, world.hands)) if lease.token != "gone" else world.hands
                yield "the lease runs out", world._replace(operations=operations, hands=hands)
            else:
                swept = self._engine(self.engine.expired, number)
                yield "a sweep finds that the lease is over", self._written(world, generation, swept)
        asked = [hand for hand in world.hands if hand.doing == "asked"]
        if any(hand.asked_before or not self.bounds.slow_inquiries for hand in asked):
            return
        after = self._later(world, TICK_S)
        if after != world:
            yield "ten minutes pass", after
        if self.scenario.contract.dedupes and (self.bounds.long_pauses or not any(map(_is_deciding, world.hands))):
            after = self._later(world, DAY_S)
            if after != world:
                yield "a day passes, and the provider forgets the key", after

    def _later(self, world: World, seconds: float) -> World:
        """Nothing is in the air any more, nobody listens for what timed out, and no lease has lasted."""
        forgets = seconds == DAY_S and self.scenario.contract.dedupes
        truth = world.truth._replace(recent=False, stored="" if forgets else world.truth.stored)
        wires = tuple(
            tuple(
                Wire(False, wire.answer, wire.heard_by) if self._awaited(world, generation, attempt) else SILENT
                for attempt, wire in enumerate(one, 1)
            )
            for generation, one in enumerate(world.wires)
        )
        hands = tuple(
            hand._replace(
                held=hand.held if hand.held < 0 else self._aged(hand.held, seconds),
                asked_before=hand.doing == "asked",
                lapsed=hand.doing == "sending",
            )
            if hand is not IDLE
            else hand
            for hand in world.hands
        )
        operations = tuple(self._aged(number, seconds) for number in world.operations)
        return world._replace(operations=operations, wires=wires, truth=truth, hands=hands)

    def _aged(self, number: int, seconds: float) -> int:
        def older(stands: Operation) -> Operation:
            sent_at, quiet_at = stands.first_sent_at, stands.no_bytes_after_at
            return stands.changed(
                first_sent_at=None if sent_at is None else sent_at - seconds,
                no_bytes_after_at=None if quiet_at is None else quiet_at - TICK_S,
                lease=_over(stands.lease),
            )

        return self._changed(number, f"{seconds} s older", older)


def _over(lease: Lease | None) -> Lease | None:
    return None if lease is None else Lease(lease.token, NOW - 1.0)


def _gone(lease: Lease | None) -> Lease | None:
    return None if lease is None else Lease("gone", lease.until_at)


def _lapsed(hand: Hand) -> Hand:
    return hand._replace(lapsed=True) if hand.doing == "sending" else hand


def _is_deciding(hand: Hand) -> bool:
    """Whether it has decided to send again, and has not yet recorded it."""
    return hand.doing == "resuming"
