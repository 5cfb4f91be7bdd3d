"""What becomes of operations that ended long ago, pure: tombstones, which answer 410, so that an old key never executes
again silently.

An operation whose customer never acted goes in the same way, as long after its last inquiry, unless it holds its
intent. It may still be paid: the ledger keeps its names, so that a later webhook event of it is noticed.

An operation that fell back goes together with its fallback, under that one's outcome: its key answers so for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from paywitness.core.claim import Alias, AliasKind, Tombstone, maker_of
from paywitness.core.fallback import FALLBACKS_MAX
from paywitness.core.guard import is_abandoned_for_good
from paywitness.core.operation import Operation


def may_retire(operation: Operation, ended_before: float) -> bool:
    """Whether it is over for good, or abandoned by its customer: never what is open, disputed or held."""
    if operation.incident is not None or operation.lease is not None:
        return False
    if operation.state.ended:
        return operation.ended_at is not None and operation.ended_at <= ended_before
    return operation.updated_at <= ended_before and is_abandoned_for_good(operation)


def retired_together(
    operation: Operation, by_id: Callable[[str], Operation | None], may_go: Callable[[Operation], bool]
) -> list[Operation]:
    """The operation and those that it stands for as their fallback, as far as they may go too."""
    together = [operation]
    while (earlier := together[-1].fallback_of) is not None and len(together) <= FALLBACKS_MAX:
        first = by_id(earlier)
        if first is None or not may_go(first):
            break
        together.append(first)
    return together


def tombstones_of(operation: Operation, aliases: Iterable[Alias], last: Operation) -> list[Tombstone]:
    """What is left of an operation: of its key, and of every key that was given its answer. `last` is its fallback, or
    itself."""
    tombstone = Tombstone(
        key=operation.key,
        operation_id=operation.id,
        provider=operation.provider,
        operation=operation.operation,
        client_key=operation.client_key,
        outcome=last.outcome,
        reference=last.reference,
        ended_at=last.ended_at or last.updated_at,
        maker=maker_of(operation),
    )
    given = (alias for alias in aliases if alias.kind is not AliasKind.REFUSED)
    return [tombstone, *(replace(tombstone, key=alias.key, client_key=alias.client_key) for alias in given)]
