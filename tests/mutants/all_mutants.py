"""All mutants, and those of them that every run of the tests plants."""

from __future__ import annotations

from tests.mutants.call_mutants import CALLS
from tests.mutants.core_mutants import CORE
from tests.mutants.durability_mutants import DURABILITY
from tests.mutants.edge_mutants import EDGES
from tests.mutants.money_mutants import MONEY
from tests.mutants.resolution_mutants import RESOLUTION
from tests.simulation.planting import Bug

MUTANTS: tuple[Bug, ...] = (*CALLS, *RESOLUTION, *DURABILITY, *CORE, *MONEY, *EDGES)


def mutant_named(name: str) -> Bug:
    """The mutant of this name. Raises KeyError."""
    return {planted.name: planted for planted in MUTANTS}[name]
