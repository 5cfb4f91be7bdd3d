"""Operations that ended long ago become tombstones. A call with the key of a tombstone gets a 410, so that an old key
never silently executes again. Pure.

An operation whose customer never acted is retired in the same way, after the same time since its last inquiry, unless
it holds its intent. It may still be paid. So the ledger keeps its names, and a later webhook event about it is noticed.

An operation that fell back is retired together with its fallback, and its tombstone has the fallback's outcome. So its
key gives the same answer for ever.

The ledger also keeps, for each paid intent or payout reference, which retired operations have paid it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from paywitness.core.claim import Alias, AliasKind, Tombstone, maker_of
from paywitness.core.credential_owners import Maker
from paywitness.core.fallback import FALLBACKS_MAX
from paywitness.core.guard import is_abandoned_for_good, is_remembered
from paywitness.core.operation import GuardKind, Operation
from paywitness.core.payment import name_key
from paywitness.core.payment_changes import reconciled
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.record import record
from paywitness.core.webhook_event import MatchKey
from paywitness.journal.base import LedgerRow
from paywitness.journal.ledger import BehindPayment, RowLookups, intent_key, payment_by_id

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode

REMEMBERED_MAX = 20  # retired payments of one intent that the ledger keeps; the newest


def may_retire(operation: Operation, ended_before: float) -> bool:
    """Whether the operation may be retired: it is over for good, or its customer has abandoned it. An operation that is
    open, disputed or under a lease stays."""
    if operation.incident is not None or operation.lease is not None:
        return False
    if operation.state.ended:
        return operation.ended_at is not None and operation.ended_at <= ended_before
    return operation.updated_at <= ended_before and is_abandoned_for_good(operation)


def retired_together(
    operation: Operation, by_id: Callable[[str], Operation | None], may_go: Callable[[Operation], bool]
) -> list[Operation]:
    """The operation, and the operations that fell back to it, as far as they may be retired too."""
    together = [operation]
    while (earlier := together[-1].fallback_of) is not None and len(together) <= FALLBACKS_MAX:
        first = by_id(earlier)
        if first is None or not may_go(first):
            break
        together.append(first)
    return together


def tombstones_of(operation: Operation, aliases: Iterable[Alias], last: Operation) -> list[Tombstone]:
    """The tombstones of an operation: one for its key, and one for each key that got its reply. `last` is the
    operation's fallback, or the operation itself."""
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


# --- Ledger rows of retired operations


def keys_kept_of(operation: Operation) -> tuple[str, ...]:
    """The keys of the rows that are written when an operation is retired. There is one for its intent or payout
    reference if that must not be paid again. If its customer never acted there is one for each of its names, because it
    may still be paid."""
    guard = operation.guard
    if operation.abandoned:
        named = [(MatchKey.CLIENT_KEY, operation.client_key), (MatchKey.PROVIDER_KEY, operation.provider_key)]
        named += [(MatchKey.OPERATION_ID, operation.sent_stamp), (MatchKey.REFERENCE, operation.reference)]
        keys = [abandoned_key(kind, operation.provider, operation.account, name) for kind, name in named if name]
        if guard is not None and guard.kind is GuardKind.INTENT:
            keys.append(abandoned_key(MatchKey.INTENT, operation.provider, "", guard.value))
        return tuple(keys)
    return (intent_key(guard.value),) if guard is not None and is_remembered(operation) else ()


def row_kept_of(operation: Operation, key: str, before: LedgerRow | None) -> LedgerRow:
    """The new row under one of `keys_kept_of`, over the version before."""
    if operation.abandoned:
        return LedgerRow(key, 1 if before is None else before.version + 1, _encode([operation.id]))
    return remembered_row(operation, before)


def abandoned_key(kind: MatchKey, provider: str, account: str, name: str) -> str:
    """The key of the row for one name of a retired operation whose customer never acted. For an intent the name is the
    guard's value."""
    return f"w:{kind}:{name_key(provider, account, name).removeprefix('n:')}"


def abandoned_operation(row: LedgerRow) -> str:
    """The operation's id in a row under an `abandoned_key`."""
    return str(_decode(row.text)[0])


def remembered_row(operation: Operation, before: LedgerRow | None) -> LedgerRow:
    """The row that keeps an operation's intent or payout reference when the operation is retired."""
    entries = [] if before is None else _decode(before.text)
    if [operation.id, operation.payment] not in [entry[:2] for entry in entries]:
        entries = [*entries, [operation.id, operation.payment, *maker_to_value(maker_of(operation))]]
        entries = entries[-REMEMBERED_MAX:]
    guard = operation.guard.value if operation.guard is not None else ""
    return LedgerRow(intent_key(guard), 1 if before is None else before.version + 1, _encode(entries))


@record
class RememberedPayment:
    """A retired operation that paid an intent, and the id of its payment. Empty id: the payment is not kept."""

    operation_id: str
    payment_id: str
    maker: Maker = Maker()


def maker_to_value(maker: Maker) -> tuple[str, str, str, str]:
    """The maker's fields as rows store them. Rows of earlier releases have none."""
    return (maker.provider, maker.account, maker.credential, maker.named_account)


def remembered_payments(row: LedgerRow) -> tuple[RememberedPayment, ...]:
    """The retired payments of an intent that are kept, oldest first."""
    return tuple(RememberedPayment(entry[0], entry[1], Maker(*entry[2:6])) for entry in _decode(row.text))


def remembered_payer(row: LedgerRow, lookups: RowLookups, behind: BehindPayment) -> RememberedPayment | None:
    """The retired operation that paid the intent or the payout reference, and was not refunded. `row` is the one under
    the `intent_key`."""
    for remembered in reversed(remembered_payments(row)):
        found = payment_by_id(lookups, remembered.payment_id) if remembered.payment_id else None
        if found is None:
            return remembered
        current = reconciled(found.payment, behind(found.payment))
        if hold_of_payment(current) not in {IntentHold.FREE, IntentHold.REFUNDED}:
            return remembered
    return None
