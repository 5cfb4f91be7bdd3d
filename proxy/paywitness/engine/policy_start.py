"""The policy book at start. An edit that was made while no sidecar ran must not give known calls a new identity. If it
would, the book that was in force last stays in force, and the sidecar reports that.

The sidecar refuses to start only if there is no such book. An edit may change how accounts and merchants are found: see
`earlier_rules`.
"""

from __future__ import annotations

import json

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.engine.earlier_rules import with_earlier_rules
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.policy.identity_rules import identity_changes, routes_overlap

_BOOK = "@book"  # not a provider's name: the journal keeps under it the revisions that were in force together
_NEWEST_OPERATIONS = 200  # their providers are known too, even if the journal has no list of providers


async def book_at_start(journal: Journal, book: PolicyBook) -> tuple[PolicyBook, tuple[str, ...]]:
    """The book to use, and the reasons why it is not the one in the files; empty if it is. Raises PolicyError if there
    is none."""
    problems = await refused_changes(journal, book)
    if problems:
        accepted = await last_accepted_book(journal)
        if accepted is None:
            raise PolicyError(problems)
        book = accepted
    book = await with_earlier_rules(journal, book)
    await store_revisions(journal, book)
    return book, problems


async def store_revisions(journal: Journal, book: PolicyBook) -> None:
    """Store the revisions that operations will be pinned to, because they must outlive the files."""
    for provider in book.providers.values():
        await journal.keep_revision(provider.name, provider.revision, provider.content)
    listing = {name: provider.revision for name, provider in sorted(book.providers.items())}
    await journal.keep_revision(_BOOK, book.revision, json.dumps(listing))


async def last_accepted_book(journal: Journal) -> PolicyBook | None:
    """The book that was in force last; None if the journal no longer has all of it, or cannot read it."""
    stored = await journal.latest_revision(_BOOK)
    providers = []
    for name, revision in json.loads(stored.content).items() if stored is not None else ():
        kept = await journal.revision(name, revision)
        provider = _loaded(kept.content, revision) if kept is not None else None
        if provider is None:
            return None
        providers.append(provider)
    return PolicyBook.of(providers) if providers else None


async def refuse_changed_identity(journal: Journal, book: PolicyBook) -> None:
    """Raises PolicyError if the book would give known calls a new identity."""
    problems = await refused_changes(journal, book)
    if problems:
        raise PolicyError(problems)


async def refused_changes(journal: Journal, book: PolicyBook) -> tuple[str, ...]:
    """The changes that the book would make in the identity of known calls and that nobody accepted; one line each."""
    problems: list[str] = []
    new: list[Provider] = []
    for provider in book.providers.values():
        stored = await journal.latest_revision(provider.name)
        if stored is None:
            new.append(provider)
        if stored is None or stored.revision == provider.revision or provider.identity_change_accepted:
            continue
        before = _loaded(stored.content, stored.revision)
        if before is not None:  # otherwise a version with another file format wrote it, and it cannot be compared
            problems += [f"{provider.source}: {line}" for line in identity_changes(before, provider)]
    return (*problems, *await _renamed(journal, book, new))


async def _renamed(journal: Journal, book: PolicyBook, new: list[Provider]) -> list[str]:
    """New providers that take the calls of a provider that is gone. Its keys would be forgotten, and every duplicate
    would be a new payment."""
    if not new:
        return []
    keyed = {provider.key_name or provider.name for provider in book.providers.values()}
    lines = []
    for name in sorted(await _known_names(journal) - keyed - book.providers.keys()):
        stored = await journal.latest_revision(name)
        gone = _loaded(stored.content, stored.revision) if stored is not None else None
        for provider in new if gone is not None else ():
            if gone is not None and not provider.identity_change_accepted and _takes_calls_of(provider, gone):
                lines.append(
                    f"{provider.source}: provider: was {name}, is {provider.name}; 'formerly: {name}' keeps its keys"
                )
    return lines


async def _known_names(journal: Journal) -> set[str]:
    stored = await journal.latest_revision(_BOOK)
    newest = await journal.find_operations(OperationQuery(limit=_NEWEST_OPERATIONS))
    listed = json.loads(stored.content) if stored is not None else {}
    return {*listed, *(operation.provider for operation in newest)}


def _takes_calls_of(provider: Provider, gone: Provider) -> bool:
    """Whether calls to the one may now come to the other: the address is the same, or the paths are."""
    if provider.upstream == gone.upstream:
        return True
    mine = [route for policy in provider.policies for route in policy.routes]
    return all(
        any(routes_overlap(route, other) for other in mine) for policy in gone.policies for route in policy.routes
    )


def _loaded(content: str, revision: str) -> Provider | None:
    try:
        return load_content(content.encode(), f"revision {revision}")
    except PolicyError:
        return None
