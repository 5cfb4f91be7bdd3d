"""The policy book at start. An edit made while no sidecar ran must not give known calls a new identity: then the book
that was in force last stays in force, and the sidecar says so.

Only without such a book does it not start. What may change is how accounts and merchants are told: see `earlier_rules`.
"""

from __future__ import annotations

import json

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.engine.earlier_rules import with_earlier_rules
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.policy.identity_rules import identity_changes, routes_overlap

_BOOK = "@book"  # no provider's name: under it the journal keeps which revisions were in force together
_NEWEST_OPERATIONS = 200  # whose providers are known, also to a journal that keeps no list of them


async def book_at_start(journal: Journal, book: PolicyBook) -> tuple[PolicyBook, tuple[str, ...]]:
    """The book to go on with, and why it is not the one of the files; that is empty if it is. Raises PolicyError if
    there is none."""
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
    """What operations will be pinned to must outlive the file."""
    for provider in book.providers.values():
        await journal.keep_revision(provider.name, provider.revision, provider.content)
    listing = {name: provider.revision for name, provider in sorted(book.providers.items())}
    await journal.keep_revision(_BOOK, book.revision, json.dumps(listing))


async def last_accepted_book(journal: Journal) -> PolicyBook | None:
    """The book that was in force last; None if the journal does not have all of it, or cannot read it any more."""
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
    """What the book would change in the identity of known calls, and nobody accepted; one line each."""
    problems: list[str] = []
    new: list[Provider] = []
    for provider in book.providers.values():
        stored = await journal.latest_revision(provider.name)
        if stored is None:
            new.append(provider)
        if stored is None or stored.revision == provider.revision or provider.identity_change_accepted:
            continue
        before = _loaded(stored.content, stored.revision)
        if before is not None:  # else written by a version that read other files; it cannot be compared
            problems += [f"{provider.source}: {line}" for line in identity_changes(before, provider)]
    return (*problems, *await _renamed(journal, book, new))


async def _renamed(journal: Journal, book: PolicyBook, new: list[Provider]) -> list[str]:
    """Providers that are new, and take the calls of one that is gone: its keys would be forgotten, and every repeat be
    a new payment."""
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
    """Whether calls that went to the one may now come to the other: the same address, or the same paths."""
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
