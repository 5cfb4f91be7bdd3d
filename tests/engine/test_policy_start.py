"""The book at start: a refused change of identity leaves the last accepted book in force."""

from __future__ import annotations

import pytest

from paywitness.core.errors import PolicyError
from paywitness.engine.policy_start import book_at_start, refused_changes, store_revisions
from paywitness.policy.book import PolicyBook, load_content
from tests.journal.memory import MemoryJournal
from tests.journal.samples import HandClock, owned
from tests.policy.texts import MINIMAL, changed


def book(text: str = MINIMAL, *more: str) -> PolicyBook:
    return PolicyBook.of(load_content(each.encode(), "bank.yaml") for each in (text, *more))


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal(clock=HandClock())


RENAMED = changed("provider: bank", "provider: bank2")
MOVED = changed("POST /v1/payments", "POST /v2/payments")


async def test_p29_a_refused_change_at_start_leaves_the_last_accepted_book_in_force(journal: MemoryJournal) -> None:
    first = book()
    await book_at_start(journal, first)
    again, problems = await book_at_start(journal, book(MOVED))
    assert again.revision == first.revision
    assert len(problems) == 1
    assert "operations.pay.match" in problems[0]
    assert (await book_at_start(journal, first))[1] == ()


async def test_m27_a_renamed_provider_is_refused_and_formerly_accepts_it(journal: MemoryJournal) -> None:
    first = book()
    await book_at_start(journal, first)
    kept, problems = await book_at_start(journal, book(RENAMED))
    assert problems == ("bank.yaml: provider: was bank, is bank2; 'formerly: bank' keeps its keys",)
    assert kept.revision == first.revision
    for text in ("formerly: bank\n" + RENAMED, "identity_change: accepted\n" + RENAMED):
        assert await refused_changes(journal, book(text)) == ()


async def test_m27_a_journal_without_a_list_of_books_knows_its_providers_by_their_operations(
    journal: MemoryJournal,
) -> None:
    provider = book().providers["bank"]
    await journal.keep_revision("bank", provider.revision, provider.content)
    await owned(journal, provider="bank")
    assert len(await refused_changes(journal, book(RENAMED))) == 1
    with pytest.raises(PolicyError, match="formerly"):
        await book_at_start(journal, book(RENAMED))


async def test_a_provider_that_is_gone_or_new_by_itself_is_no_rename(journal: MemoryJournal) -> None:
    elsewhere = changed("POST /v1/payments", "POST /orders", changed("provider: bank", "provider: other"))
    elsewhere = changed("http://127.0.0.1:9000", "https://other.test", elsewhere)
    await store_revisions(journal, book(MINIMAL, elsewhere))
    assert await refused_changes(journal, book()) == ()
    other = MemoryJournal(clock=HandClock())
    await store_revisions(other, book())
    assert await refused_changes(other, book(elsewhere)) == ()
