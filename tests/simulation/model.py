"""The lifecycle as a model: every interleaving of two sidecars, a caller's repeat, webhooks and a crash over one
operation, breadth first, under each kind of contract. No state may lie outside the promises.

    python -m tests.simulation.model            the bounds that the tests use
    python -m tests.simulation.model --large    every scenario under each of the larger bounds

What is checked at every state stands in `broken_promise`; that nothing is lost, in `nobody_sees_to` and `lost`. A fault
is told as the shortest list of steps that leads to it. What the model leaves out: the spool, fallbacks, cancels,
operators, a journal that fails, limits. They are the simulator's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from paywitness.core.operation import Operation, State
from tests.simulation.model_engine import Bounds, Core
from tests.simulation.model_provider import ERRORS, Scenario, scenario
from tests.simulation.model_state import IDLE, World
from tests.simulation.model_world import BrokenStep, Model

STATES_MAX = 5_000_000
LARGE = (
    Bounds(generations=2),
    Bounds(late_answers=True, rare_answers=True),
    Bounds(askers=2, looks=2, slow_inquiries=True),
    Bounds(attempts=3, crashes=0),
    Bounds(repeats=2, crashes=2),
    Bounds(sidecars=3, repeats=1, crashes=0),
)

SCENARIOS: tuple[Scenario, ...] = (
    *(
        scenario(errors, asked=asked, webhook=webhook)
        for errors in ERRORS
        for asked in (True, False)
        for webhook in (True, False)
    ),
    *(
        scenario(errors, asked=True, webhook=True, outcomes=(outcome,))
        for errors in ERRORS
        for outcome in ("pending", "action")
    ),
)

# What the tests run: each kind of contract, each kind of interruption. All of them at once are the larger run's.
QUICK: tuple[tuple[Scenario, Bounds], ...] = (
    (scenario("none", asked=False, webhook=True), Bounds(generations=2)),
    (scenario("none", asked=True, webhook=False), Bounds(repeats=0)),
    (scenario("not_stored", asked=False, webhook=True), Bounds()),
    (scenario("replayed", asked=False, webhook=True), Bounds(crashes=0)),
    (scenario("reexecuted", asked=False, webhook=True), Bounds(repeats=0)),
    (scenario("reexecuted", asked=True, webhook=False), Bounds(repeats=0, crashes=0)),
)


@dataclass(frozen=True)
class Counterexample:
    """A promise that does not hold, and the steps that lead there."""

    broken: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([f"broken: {self.broken}", *lines])


@dataclass
class Explored:
    scenario: Scenario
    states: int = 0
    steps: int = 0
    ends: dict[str, int] = field(default_factory=dict)  # of the newest operation, by its state
    counterexample: Counterexample | None = None


def explore(scenario: Scenario, core: Core | None = None, bounds: Bounds = Bounds()) -> Explored:
    """Every state that can be reached, or the shortest way to one that breaks a promise."""
    model = Model(scenario, core, bounds)
    reached = Reached(model)
    explored = Explored(scenario)
    while reached.waiting:
        place = reached.waiting.popleft()
        world = reached.worlds[place]
        broken = broken_promise(model, world) or nobody_sees_to(model, world)
        try:
            following = list(model.steps(world)) if broken is None else []
        except BrokenStep as error:
            broken, following = str(error), []
        if broken is not None:
            explored.states = len(reached.worlds)
            explored.counterexample = Counterexample(broken, reached.steps_to(place))
            return explored
        explored.steps += len(following)
        for said, after in following:
            reached.add(after, place, said)
        if len(reached.worlds) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states: {scenario.name}")
    explored.states = len(reached.worlds)
    for world in reached.worlds:
        state = model.stands(world.operations[-1]).state
        explored.ends[state] = explored.ends.get(state, 0) + 1
    stuck = lost(model, reached)
    if stuck is not None:
        explored.counterexample = Counterexample("it can never end any more", reached.steps_to(stuck))
    return explored


class Reached:
    """The states that were reached, by number, and from where."""

    def __init__(self, model: Model) -> None:
        self._model = model
        first = model.start()
        self._places: dict[World, int] = {first: 0}
        self.worlds = [first]
        self.came_from: list[tuple[int, str]] = [(-1, "sidecar 0 claims the call")]
        self.before: list[list[int]] = [[]]  # all that lead to it
        self.waiting = deque([0])

    def add(self, world: World, before: int, said: str) -> None:
        place = self._places.setdefault(world, len(self.worlds))
        if place < len(self.worlds):
            self.before[place].append(before)
            return
        self.worlds.append(world)
        self.came_from.append((before, said))
        self.before.append([before])
        self.waiting.append(place)

    def steps_to(self, place: int) -> tuple[str, ...]:
        steps: list[str] = []
        while place >= 0:
            before, said = self.came_from[place]
            steps.append(f"{said}  [{self._shown(self.worlds[place])}]")
            place = before
        return tuple(reversed(steps))

    def _shown(self, world: World) -> str:
        stands = self._model.stands(world.operations[-1])
        doubt = f", doubt {sorted(stands.doubt)}" if stands.doubt else ""
        return f"{stands.state}{doubt}, effects {sum(world.truth.effects)}"


def broken_promise(model: Model, world: World) -> str | None:
    """Which promise this state breaks. The judge is the provider's truth and what callers were told."""
    if sum(world.truth.effects) > 1:
        return f"{sum(world.truth.effects)} effects under one key"
    for generation, number in enumerate(world.operations):
        stands = model.stands(number)
        effects = world.truth.effects[generation]
        # What arrives while an answer is kept under its key is given that answer, and not executed.
        executes = not world.truth.stored
        in_air = frozenset(place for place, wire in enumerate(world.wires[generation], 1) if wire.in_air and executes)
        told = world.told[generation]
        if told.paid and effects != 1:
            return f"a caller was told succeeded, and there are {effects} effects"
        if told.without_effect and (effects or in_air):
            return f"a caller was told that nothing was done: {effects} effects, in the air: {sorted(in_air)}"
        broken = _lies(stands, effects, in_air) or _doubt_is_wrong(model, stands, in_air)
        if broken is not None:
            return broken
    return None


def _lies(stands: Operation, effects: int, in_air: frozenset[int]) -> str | None:
    """Whether the state says something of the money that is not so, or may not stay so."""
    match stands.state:
        case State.SUCCEEDED if effects != 1:
            return f"succeeded with {effects} effects"
        case State.FAILED | State.BACKOFF | State.PREPARED if effects:
            return f"{stands.state} with {effects} effects"
        case State.FAILED | State.BACKOFF | State.PREPARED if in_air:
            return f"{stands.state} with attempts that may still be executed: {sorted(in_air)}"
        case State.SENDING if in_air - {stands.attempts}:
            return f"sending with earlier attempts that may still be executed: {sorted(in_air)}"
    return None


def _doubt_is_wrong(model: Model, stands: Operation, in_air: frozenset[int]) -> str | None:
    if stands.doubt and not stands.state.in_doubt:
        return f"{stands.state} with doubt {sorted(stands.doubt)}"
    if stands.state is State.UNKNOWN and not stands.doubt:
        return "unknown with nothing in doubt"
    if stands.state is State.UNKNOWN and in_air - stands.doubt:
        return f"attempts that may still be executed are not in doubt: {sorted(in_air - stands.doubt)}"
    if stands.doubt and not stands.attempt_under_way and stands.no_bytes_after_at is None:
        return "in doubt, and nobody knows since when nothing can arrive"
    if stands.attempt_under_way and not stands.state.ended and stands.lease is None:
        return "an attempt is under way, and nobody holds it"
    if not model.scenario.contract.dedupes and stands.doubt and len(stands.doubt) > 1:
        return "sent again in doubt to a provider that does not dedupe"
    return None


def nobody_sees_to(model: Model, world: World) -> str | None:
    """Whether an open operation is one that nobody will ever look at again. What the customer was asked to do waits for
    the customer, and review for a person."""
    for generation, number in enumerate(world.operations):
        stands = model.stands(number)
        if stands.state.ended or stands.state in {State.REQUIRES_REVIEW, State.REQUIRES_ACTION}:
            continue
        seen_to = any(hand is not IDLE and hand.generation == generation for hand in world.hands)
        if stands.lease is None and stands.due_at is None and not seen_to:
            return f"{stands.state}, and nobody will ever look at it"
    return None


def lost(model: Model, reached: Reached) -> int | None:
    """A state from which no end can be reached any more; None: from every state one can."""
    done = {State.SUCCEEDED, State.FAILED, State.REQUIRES_REVIEW, State.REQUIRES_ACTION}
    ends = [
        place
        for place, world in enumerate(reached.worlds)
        if all(model.stands(number).state in done for number in world.operations)
    ]
    can_end = set(ends)
    while ends:
        for before in reached.before[ends.pop()]:
            if before not in can_end:
                can_end.add(before)
                ends.append(before)
    return next((place for place in range(len(reached.worlds)) if place not in can_end), None)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.model")
    parser.add_argument("--large", action="store_true", help="every scenario under each of the larger bounds")
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    asked = parser.parse_args(arguments)
    runs = [(one, bounds) for bounds in LARGE for one in SCENARIOS] if asked.large else list(QUICK)
    total, faults = 0, 0
    for one, bounds in runs:
        if asked.only not in one.name:
            continue
        began = time.perf_counter()
        explored = explore(one, bounds=bounds)
        took_s = time.perf_counter() - began
        total += explored.states
        print(
            f"{one.name:40} {explored.states:9,} states {explored.steps:10,} steps {took_s:6.1f} s  {bounds}",
            flush=True,
        )
        if explored.counterexample is not None:
            faults += 1
            print(explored.counterexample, flush=True)
    print(f"{total:,} states, {faults} broken promise(s)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
