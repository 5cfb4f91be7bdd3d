"""Claims under another credential than the one that made the operation: what each store lets it hear, join and send."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from paywitness.core.claim import AliasKind, Claim, ClaimRequest, ClaimVerdict
from paywitness.core.credential_owners import AccountSource, CredentialClaim, credential_key, marks_to_text
from paywitness.core.operation import RepeatPaymentRule
from paywitness.core.provider_contract import OperationKind
from paywitness.journal.base import Journal, LedgerRow
from paywitness.journal.ledger import intent_key
from tests.journal.conftest import Store
from tests.journal.samples import asking, declining, doubting, intent, owned, succeeding, unheard

SEPARATES = CredentialClaim("acme", separates=True)
ASSUMES = CredentialClaim("acme")
PLATFORM = CredentialClaim("acme", separates=True, account=AccountSource.SELECTOR)
BLOCKING = intent(after_success=RepeatPaymentRule.BLOCK)
DAY_S = 86_400.0
TOLD = CredentialClaim("acme", account=AccountSource.HEADER)


def asked(known: CredentialClaim, key: str = "key-1", **changes: Any) -> ClaimRequest:
    return replace(asking(key, **{"credential": "credential-2", **changes}), credential=known)


async def mark(journal: Journal, credential: str, **marks: str) -> None:
    named = {name.replace("owner_", "=").replace("peer_", "~"): source for name, source in marks.items()}
    key = credential_key("acme", credential)
    assert await journal.write_ledger_rows((LedgerRow(key, 1, marks_to_text(named)),))


async def paid(journal: Journal, **changes: Any) -> None:
    operation = await owned(journal, **changes)
    await journal.record(succeeding(operation, accepted_credential=True, sealed_response=b"sealed response"))


def tells_of_nothing(claim: Claim, verdict: ClaimVerdict) -> bool:
    return claim == Claim(verdict, None, claim.now)


async def test_m2b_a_credential_of_unknown_owner_is_told_of_nothing_that_another_made(journal: Journal) -> None:
    await paid(journal, guard=intent())
    await owned(journal, "key-open", guard=intent("open"))
    unknown = ClaimVerdict.ACCOUNT_UNKNOWN
    assert tells_of_nothing(await journal.claim(asked(SEPARATES)), unknown)
    assert tells_of_nothing(await journal.claim(asked(SEPARATES, fingerprint="another")), unknown)
    assert tells_of_nothing(await journal.claim(asked(SEPARATES, "key-open")), unknown)
    assert tells_of_nothing(await journal.claim(asked(SEPARATES, "key-2", guard=intent("open"))), unknown)
    assert (await journal.claim(asking("key-2", guard=intent("open")))).verdict is ClaimVerdict.IN_FLIGHT


async def test_a_refusal_of_an_unknown_credential_leaves_no_alias_behind(journal: Journal) -> None:
    await owned(journal, guard=intent())
    await journal.claim(asked(SEPARATES, "key-2", guard=intent()))
    mine = await journal.claim(asking("key-2", guard=intent("mine")))
    assert mine.verdict is ClaimVerdict.OWNED


async def test_n6_a_credential_of_unknown_owner_may_claim_fresh_keys_and_intents(journal: Journal) -> None:
    await paid(journal, guard=intent())
    claim = await journal.claim(asked(SEPARATES, "fresh", guard=intent("fresh")))
    assert claim.verdict is ClaimVerdict.OWNED


async def test_a_key_that_another_owner_used_in_vain_is_not_taken_up_by_a_next_generation(journal: Journal) -> None:
    """It would have the stamp of the first: two accounts at the provider would each have an object under it."""
    await journal.record(declining(await owned(journal), released=True))
    await mark(journal, "credential-1", owner_alice="provider")
    await mark(journal, "credential-2", owner_bob="provider")
    await mark(journal, "credential-3", owner_alice="provider")
    assert tells_of_nothing(await journal.claim(asked(SEPARATES)), ClaimVerdict.ANOTHER_OWNER)
    stranger = await journal.claim(asked(SEPARATES, credential="credential-4"))
    assert tells_of_nothing(stranger, ClaimVerdict.ACCOUNT_UNKNOWN)
    rotated = await journal.claim(asked(SEPARATES, credential="credential-3"))
    assert (rotated.verdict, rotated.operation and rotated.operation.generation) == (ClaimVerdict.OWNED, 2)


async def test_a_reply_that_nobody_heard_is_not_taken_by_a_credential_that_may_not_be_shown_it(
    journal: Journal,
) -> None:
    """Its key stood for the payment from then on. When another key had been told of it, so was this one."""
    first = await owned(journal, guard=intent())
    await journal.record(unheard(succeeding(first, accepted_credential=True)))
    assert tells_of_nothing(await journal.claim(asked(ASSUMES, "key-2", guard=intent())), ClaimVerdict.ACCOUNT_UNKNOWN)
    taken = await journal.claim(asking("key-3", guard=intent()))
    assert (taken.verdict, taken.alias) == (ClaimVerdict.REPLAY, AliasKind.TAKEN)
    late = await journal.claim(asking("key-2", guard=intent()))
    assert (late.verdict, late.alias) == (ClaimVerdict.OWNED, None)  # its key is still a fresh one


async def test_m2a_a_rotated_credential_of_the_same_owner_is_shown_the_reply_and_may_send(journal: Journal) -> None:
    await paid(journal)
    await journal.record(doubting(await owned(journal, "key-lost")))
    await mark(journal, "credential-1", owner_alice="provider")
    await mark(journal, "credential-2", owner_alice="provider")
    shown = await journal.claim(asked(SEPARATES))
    assert (shown.verdict, shown.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")
    assert (shown.credential_accepted, shown.credential_mapped) == (True, True)
    assert (await journal.claim(asked(SEPARATES, "key-lost"))).credential_mapped


async def test_a_credential_of_another_owner_is_refused_and_told_of_nothing(journal: Journal) -> None:
    await paid(journal, guard=intent())
    await mark(journal, "credential-1", owner_alice="provider")
    await mark(journal, "credential-2", owner_bob="provider")
    another = ClaimVerdict.ANOTHER_OWNER
    assert tells_of_nothing(await journal.claim(asked(SEPARATES)), another)
    assert tells_of_nothing(await journal.claim(asked(ASSUMES)), another)


async def test_p8_acceptance_for_a_constant_account_shows_and_never_sends(journal: Journal) -> None:
    await journal.record(doubting(await owned(journal)))
    await paid(journal, key="key-2", credential="credential-2")
    claim = await journal.claim(asked(ASSUMES))
    assert (claim.verdict, claim.credential_accepted, claim.credential_mapped) == (ClaimVerdict.IN_DOUBT, True, False)


async def test_n16_a_call_that_was_executed_maps_its_credential_to_the_account_that_a_selector_named(
    journal: Journal,
) -> None:
    await journal.record(doubting(await owned(journal)))
    assert (await journal.claim(asked(PLATFORM))).verdict is ClaimVerdict.ACCOUNT_UNKNOWN
    await paid(journal, key="key-2", credential="credential-2")
    claim = await journal.claim(asked(PLATFORM))
    assert (claim.verdict, claim.credential_mapped) == (ClaimVerdict.IN_DOUBT, True)


async def test_n5_an_account_that_only_our_header_named_maps_nothing(journal: Journal) -> None:
    await paid(journal)
    await paid(journal, key="key-2", credential="credential-2")
    claim = await journal.claim(asked(TOLD))
    assert (claim.verdict, claim.credential_accepted, claim.credential_mapped) == (ClaimVerdict.REPLAY, False, False)


async def test_n22_an_operators_word_maps_a_credential_to_another(journal: Journal) -> None:
    await paid(journal)
    await mark(journal, "credential-2", **{"peer_credential-1": "operator"})
    assert (await journal.claim(asked(SEPARATES))).credential_mapped


# --- What is no longer kept


async def retired(store: Store) -> None:
    """A paid intent, and a key, of which nothing but what is kept longest is left."""
    await paid(store.journal, guard=BLOCKING, operation="sale", kind=OperationKind.SALE)
    store.clock.move(31 * DAY_S)
    assert await store.journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=100) >= 1


def of_intent(known: CredentialClaim, key: str = "key-2", **changes: Any) -> ClaimRequest:
    return asked(known, key, guard=BLOCKING, operation="sale", kind=OperationKind.SALE, **changes)


async def test_what_another_owner_paid_long_ago_refuses_nobody_by_name(store: Store) -> None:
    """The intent and the key of a retired operation were told to whoever asked, with its id, its outcome and its
    reference at the provider."""
    journal = store.journal
    await retired(store)
    claims = [of_intent(SEPARATES), of_intent(SEPARATES, "key-1")]
    for claim in claims:
        assert tells_of_nothing(await journal.claim(claim), ClaimVerdict.ACCOUNT_UNKNOWN)
    await mark(journal, "credential-1", owner_alice="provider")
    await mark(journal, "credential-2", owner_bob="provider")
    for claim in claims:
        assert tells_of_nothing(await journal.claim(claim), ClaimVerdict.ANOTHER_OWNER)


async def test_a_rotated_credential_is_told_what_its_owner_paid_long_ago(store: Store) -> None:
    journal = store.journal
    await retired(store)
    await mark(journal, "credential-1", owner_alice="provider")
    await mark(journal, "credential-2", owner_alice="provider")
    before = await journal.claim(of_intent(SEPARATES))
    assert (before.verdict, bool(before.paid_by)) == (ClaimVerdict.PAID_BEFORE, True)
    expired = await journal.claim(of_intent(SEPARATES, "key-1"))
    assert (expired.verdict, expired.credential_accepted) == (ClaimVerdict.EXPIRED, True)
    own = await journal.claim(of_intent(SEPARATES, "key-1", credential="credential-1"))
    assert (own.verdict, own.credential_accepted) == (ClaimVerdict.EXPIRED, True)


async def test_a_retired_key_is_not_described_to_a_credential_that_only_our_header_placed(store: Store) -> None:
    await retired(store)
    claim = await store.journal.claim(of_intent(TOLD, "key-1"))
    assert (claim.verdict, claim.credential_accepted) == (ClaimVerdict.EXPIRED, False)


async def test_what_an_earlier_release_retired_is_told_to_whoever_is_known(store: Store) -> None:
    """It kept no credential of it. A credential that is known has been told apart from other owners before."""
    journal = store.journal
    await retired(store)
    key = intent_key(BLOCKING.value)
    [row] = await journal.ledger_rows((key,))
    assert row is not None
    entries = [entry[:2] for entry in json.loads(row.text)]
    assert await journal.write_ledger_rows((LedgerRow(key, row.version + 1, json.dumps(entries)),))
    assert tells_of_nothing(await journal.claim(of_intent(SEPARATES)), ClaimVerdict.ACCOUNT_UNKNOWN)
    assert (await journal.claim(of_intent(ASSUMES))).verdict is ClaimVerdict.PAID_BEFORE
    await mark(journal, "credential-2", owner_alice="provider")
    assert (await journal.claim(of_intent(SEPARATES))).verdict is ClaimVerdict.PAID_BEFORE
