"""The PolicyBook: all policies at one revision, immutable. And how a directory of files becomes one.

Matching is by provider, method and number of path segments first, then template by template in the order of the file.
The matches of a path without parameters are computed when the book is made. `recognise` evaluates an operation's
`where`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paywitness.core.circuit import CircuitRules
from paywitness.core.errors import PolicyError
from paywitness.core.policy import Candidates, Policy, Provider, Route
from paywitness.policy.block_parsers.fallback import fallback_problems
from paywitness.policy.compile import CompiledFile, compile_file
from paywitness.policy.reading.document import FILE_BYTES_MAX, read_document
from paywitness.policy.reading.locations import FileProblems
from paywitness.policy.shipped_policies import resolve_extends

_SUFFIXES = (".yaml", ".yml")
_FILES_MAX = 200  # ten times the providers that a large shop talks to; all of them are read every second

_Index = Mapping[tuple[str, str, int], tuple[tuple[Policy, Route], ...]]


@dataclass(frozen=True, slots=True)
class PolicyBook:
    """All providers of a directory at one revision. It never changes: a reload makes another one."""

    providers: Mapping[str, Provider]
    revision: str
    _index: _Index = field(repr=False, compare=False)
    _by_literal_path: Mapping[tuple[str, str, tuple[str, ...]], Candidates] = field(repr=False, compare=False)
    providers_with_fallback: frozenset[str] = (
        frozenset()
    )  # a payment that a call to one of these providers names may have been made by another route

    @classmethod
    def of(cls, providers: Iterable[Provider]) -> PolicyBook:
        by_name = {provider.name: provider for provider in sorted(providers, key=lambda provider: provider.name)}
        listing = "".join(f"{name} {provider.revision}\n" for name, provider in by_name.items())
        falling_back = frozenset(name for name, provider in by_name.items() if provider.falls_back)
        revision = hashlib.sha256(listing.encode()).hexdigest()[:16]
        index = _index_of(by_name.values())
        literal_paths = {
            (provider, method, route.segments): _with_route(routes, method, route.segments)
            for (provider, method, _), routes in index.items()
            for _, route in routes
            if route.literal
        }
        return cls(by_name, revision, index, literal_paths, falling_back)

    def candidates(self, provider: str, method: str, segments: tuple[str, ...]) -> Candidates:
        """The operations that have this route, in the order of the file, whatever their `where` says of the body."""
        found = self._by_literal_path.get((provider, method, segments))
        if found is not None:
            return found
        return _with_route(self._index.get((provider, method, len(segments)), ()), method, segments)

    def provider_for_host(self, host: str) -> Provider | None:
        """The provider whose policy names the host, exactly or by `*.` or `*-`; an exact name wins."""
        wanted = host.lower().rstrip(".")
        by_wildcard: Provider | None = None
        for provider in self.providers.values():
            for pattern in provider.hosts:
                if pattern == wanted:
                    return provider
                if by_wildcard is None and _matches_wildcard(pattern, wanted):
                    by_wildcard = provider
        return by_wildcard


@dataclass(slots=True)
class CurrentPolicies:
    """The policies in force. A reload replaces the book as a whole."""

    book: PolicyBook

    def __call__(self) -> PolicyBook:
        return self.book

    def circuit_rules(self) -> Mapping[str, CircuitRules]:
        return {name: provider.circuit for name, provider in self.book.providers.items()}


def _matches_wildcard(pattern: str, host: str) -> bool:
    """Whether the host matches. The star stands for one label or the beginning of one, never for several."""
    covered = host[: len(host) - len(pattern) + 1]
    return pattern.startswith("*") and host.endswith(pattern[1:]) and bool(covered) and "." not in covered


def _index_of(providers: Iterable[Provider]) -> _Index:
    index: dict[tuple[str, str, int], list[tuple[Policy, Route]]] = {}
    for provider in providers:
        for policy in provider.policies:
            for route in policy.routes:
                index.setdefault((provider.name, route.method, len(route.segments)), []).append((policy, route))
    return {key: tuple(found) for key, found in index.items()}


def _with_route(routes: tuple[tuple[Policy, Route], ...], method: str, segments: tuple[str, ...]) -> Candidates:
    found = ((policy, route.match(method, segments)) for policy, route in routes)
    return tuple((policy, parameters) for policy, parameters in found if parameters is not None)


def compile_content(content: bytes, source: str) -> CompiledFile:
    """One file's provider. Raises PolicyError with every problem of the file."""
    problems = FileProblems()
    document = read_document(content, source, problems)
    resolved = resolve_extends(document, problems) if document is not None else None
    compiled = compile_file(resolved, source, problems) if resolved is not None else None
    if compiled is None:
        raise PolicyError(problems.errors)
    return compiled


def load_content(content: bytes, source: str) -> Provider:
    """As `compile_content`, but only the provider: for a policy revision that the journal kept."""
    return compile_content(content, source).provider


def read_policy_file(path: Path) -> bytes:
    """The file's bytes, at most one more than the bound. Raises PolicyError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PolicyError((f"{path}:1:1: the file cannot be read: {error.strerror or type(error).__name__}",)) from None


def policy_files(directory: Path) -> list[Path]:
    """The policy files of a directory by name: *.yaml and *.yml, none hidden (Kubernetes keeps `..data` there)."""
    try:
        named = [path for path in directory.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")]
        # A broken link is kept: to read it is an error. If it were skipped, its provider would be missing silently.
        found = sorted(path for path in named if path.is_file() or path.is_symlink())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise PolicyError((f"{directory}: the policy directory cannot be read: {why}",)) from None
    if len(found) > _FILES_MAX:
        raise PolicyError((f"{directory}: found {len(found)} policy files, allowed: at most {_FILES_MAX}",))
    return found


def load_directory(directory: Path) -> PolicyBook:
    """The book of a directory. Raises PolicyError with every problem of every file."""
    return load_contents({str(path): read_policy_file(path) for path in policy_files(directory)}, str(directory))


def load_contents(contents: Mapping[str, bytes], directory: str) -> PolicyBook:
    """The book of files that are read already, by their paths."""
    if not contents:
        raise PolicyError(
            (
                f"{directory}: found no policy file (*.yaml, *.yml): put one there, for a start a copy of "
                "policies/acme.yaml, or name another directory with --policies",
            ),
        )
    problems: list[str] = []
    compiled: list[CompiledFile] = []
    for source, content in contents.items():
        try:
            compiled.append(compile_content(content, source))
        except PolicyError as error:
            problems += error.problems
    # A provider missing from a broken file must not be reported as unknown to the others.
    problems += cross_file_problems(compiled, complete=not problems)
    if problems:
        raise PolicyError(tuple(problems))
    return PolicyBook.of(found.provider for found in compiled)


def cross_file_problems(files: list[CompiledFile], *, complete: bool) -> list[str]:
    """The contradictions between files: names, hosts and ports given twice, fallbacks that do not fit."""
    problems = []
    seen: dict[tuple[str, str], str] = {}
    for found in files:
        provider = found.provider
        key_names = {policy.names[0] for policy in provider.policies}
        claims = [("provider", provider.name), *(("provider", name) for name in key_names - {provider.name})]
        claims += [("hosts", host) for host in provider.hosts]
        claims += [("listen", provider.listen)] if provider.listen else []
        for what, value in claims:
            first = seen.setdefault((what, value), provider.source)
            if first != provider.source:
                problems.append(
                    f"{found.location}: {what}: found {value!r}, which {first} has already, allowed: one file each"
                )
    providers = {found.provider.name: found.provider for found in files}
    fallbacks = {found.provider.name: found.fallbacks for found in files}
    return [*problems, *fallback_problems(fallbacks, providers, complete=complete)]
