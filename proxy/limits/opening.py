"""Which limits a sidecar has: its own, or its fleet's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.budget import WEIGHT_OF_A_TIMEOUT
from proxy.core.circuit import Group
from proxy.core.observation import Health, Observation
from proxy.limits.admission import Admission
from proxy.limits.budgets import Budgets, LocalBudgets
from proxy.limits.circuits import Book, Circuits, Heard, LocalCircuits
from proxy.settings import LOCAL


async def _nothing_to_close() -> None:
    return


@dataclass(frozen=True, slots=True)
class Limits:
    circuits: Circuits
    budgets: Budgets
    admission: Admission  # a sidecar's own, always: a bound on calls in flight cannot wait for a store
    close: Callable[[], Awaitable[None]] = _nothing_to_close


OpenLimits = Callable[[Book, Clock, Chance], Limits]


def local_limits(book: Book, clock: Clock, chance: Chance) -> Limits:
    budgets = LocalBudgets(clock, chance)
    return Limits(LocalCircuits(book, clock, chance, heard_by(budgets)), budgets, Admission(clock, chance))


def heard_by(budgets: Budgets) -> Heard:
    """What attempts show the circuits, the budgets know as well: whether trying helps now."""

    def heard(provider: str, group: Group, observation: Observation) -> None:
        late = observation.health is Health.UNKNOWN and observation.overload
        weight = WEIGHT_OF_A_TIMEOUT if late else 1
        budgets.count_result(provider, group, well=observation.health is Health.OK, weight=weight)

    return heard


def limits_at(url: str) -> OpenLimits:
    """Those of a `--limits` setting. Raises SettingsError for a URL that cannot be used; connects when first asked."""
    if url == LOCAL:
        return local_limits
    from proxy.limits.redis_budgets import RedisBudgets  # a tenth of a second, which only a fleet's sidecars pay
    from proxy.limits.redis_circuits import RedisCircuits
    from proxy.limits.scripts import Scripts, connect

    client, prefix = connect(url)

    def shared(book: Book, clock: Clock, chance: Chance) -> Limits:
        scripts = Scripts(client, clock, chance)
        budgets = RedisBudgets(scripts, clock, chance, prefix)
        return Limits(
            RedisCircuits(scripts, prefix, book, clock, chance, heard_by(budgets)),
            budgets,
            Admission(clock, chance),
            scripts.close,
        )

    return shared
