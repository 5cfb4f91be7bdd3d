"""Hot reload: a directory watched by content, and the next book only if it is whole and keeps the meaning of keys.

Kubernetes swaps symbolic links and editors write new files, so the paths are read again and their content is compared;
inodes and times say nothing. The last good book stays in force whatever happens to the files. No task and no clock
lives here: the caller polls, every second and on SIGHUP.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from paywitness.core.errors import PolicyError
from paywitness.core.policy import Provider
from paywitness.policy.book import PolicyBook, load_contents, policy_files, read_policy_file
from paywitness.policy.identity_rules import identity_changes


@dataclass(frozen=True, slots=True)
class BookUnchanged:
    """Nothing new: the content is as it was, good or bad."""


@dataclass(frozen=True, slots=True)
class BookReloaded:
    """A book is to be put in force. `changes` tells a person what is new, one line each.

    No changes: the files are again as they were before an edit that was rejected.
    """

    book: PolicyBook
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BookRejected:
    """The new content cannot be put in force; the last good book stays. Said once for the same content."""

    problems: tuple[str, ...]


class PolicyWatch:
    """Watches a directory for its owner, who holds the book in force and asks `poll` whether there is another."""

    def __init__(self, directory: Path, book: PolicyBook) -> None:
        self._directory = directory
        self._book = book
        # Not read here: what changed between the load and the first poll must not be missed.
        self._last_digest: str | None = None
        self._rejected_last = False

    @property
    def book(self) -> PolicyBook:
        """The last good book."""
        return self._book

    def poll(self) -> BookUnchanged | BookReloaded | BookRejected:
        """Look once. Reads the files; never raises for their sake."""
        try:
            contents = {str(path): read_policy_file(path) for path in policy_files(self._directory)}
        except PolicyError as error:
            return self._reject(_digest({"": str(error).encode()}), error.problems)
        digest = _digest(contents)
        if digest == self._last_digest:
            return BookUnchanged()
        try:
            book = load_contents(contents, str(self._directory))
        except PolicyError as error:
            return self._reject(digest, error.problems)
        unaccepted = unaccepted_identity_changes(self._book, book)
        if unaccepted:
            return self._reject(digest, unaccepted)
        self._last_digest = digest
        recovered, self._rejected_last = self._rejected_last, False
        if book.revision == self._book.revision and not recovered:
            return BookUnchanged()
        changes = book_changes(self._book, book)
        self._book = book
        return BookReloaded(book, changes)

    def _reject(self, digest: str, problems: tuple[str, ...]) -> BookUnchanged | BookRejected:
        if digest == self._last_digest:
            return BookUnchanged()
        self._last_digest = digest
        self._rejected_last = True
        return BookRejected(problems)


def _digest(contents: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()


def _key_name(provider: Provider) -> str:
    return str(provider.identity["provider"])


def unaccepted_identity_changes(old: PolicyBook, new: PolicyBook) -> tuple[str, ...]:
    """Changes of identity that nobody accepted, one line each; empty where the new book may follow the old one."""
    successors = {_key_name(provider): provider for provider in new.providers.values()}
    lines: list[str] = []
    for provider in old.providers.values():
        successor = successors.get(_key_name(provider))
        if successor is None:
            if not any(other.identity_change_accepted for other in new.providers.values()):
                lines.append(
                    f"{provider.source}: provider {provider.name} is gone; {_REMEDY} (in any file), or restart"
                )
        elif not successor.identity_change_accepted:
            lines += [f"{successor.source}: {change}; {_REMEDY}" for change in identity_changes(provider, successor)]
    return tuple(lines)


_REMEDY = "calls would change their identity: to mean it, write 'identity_change: accepted'"


def book_changes(old: PolicyBook, new: PolicyBook) -> tuple[str, ...]:
    """What a person is told of a reload."""
    lines: list[str] = []
    before = {_key_name(provider): provider for provider in old.providers.values()}
    for provider in new.providers.values():
        earlier = before.pop(_key_name(provider), None)
        if earlier is None:
            lines.append(f"{provider.name}: new, revision {provider.revision}")
        elif earlier.revision != provider.revision:
            lines.append(f"{provider.name}: revision {earlier.revision} -> {provider.revision}")
            lines += [f"{provider.name}: identity changed: {change}" for change in identity_changes(earlier, provider)]
            lines += _operation_changes(earlier, provider)
            if provider.observe != earlier.observe:
                lines.append(
                    f"{provider.name}: {'only observed from now on' if provider.observe else 'in force again'}"
                )
    lines += [f"{provider.name}: gone" for provider in before.values()]
    return tuple(lines)


def _operation_changes(old: Provider, new: Provider) -> list[str]:
    before = {policy.operation for policy in old.policies}
    return [
        f"{new.name}: new operation {policy.operation}" for policy in new.policies if policy.operation not in before
    ]
