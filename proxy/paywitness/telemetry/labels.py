"""Names: which words may become labels. The rest, which a caller may have made up, is `other`.

A name of a provider or an operation becomes known by a policy book that was in force, or by an operation that was
journalled under one; it stays known, so that a series does not change its name when a policy file is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paywitness.core.admission import AdmissionRefusal
from paywitness.core.circuit import CircuitRefusal
from paywitness.core.problems import Problem

OTHER = "other"
NONE = "none"  # there is no such thing: a call that matched no operation

# Policies name dozens; a thousand keeps a mistake from growing without end.
_NAMES_MAX = 1000
# Rules, reasons and journal calls are words of our own code, a few dozen of each.
_LABELS_MAX = 100

# Why a call is turned away: an answer of ours, a limit, or this sidecar's own state. A reason that is missing here is
# counted as `other`.
REFUSAL_REASONS = frozenset(
    {*Problem, *CircuitRefusal, *AdmissionRefusal, "overloaded", "draining", "caller_left", "journal_rolled_back"},
)

# What the journal refuses for what it holds already. Nothing else is told of these than the answer.
JOURNAL_REFUSALS = frozenset(
    {
        Problem.CLOSED_WITHOUT_RESPONSE,
        Problem.CREDENTIAL_NOT_RECOGNISED,
        Problem.GUARDED,
        Problem.IN_FLIGHT,
        Problem.KEY_EXPIRED,
        Problem.KEY_REUSED,
    }
)


class KnownNames:
    """The names of providers and their operations."""

    def __init__(self) -> None:
        self._operations: dict[str, set[str]] = {}
        self._count = 0

    def learn(self, names: Mapping[str, Iterable[str]]) -> None:
        """Know a book's names: provider -> operations."""
        for provider, operations in names.items():
            self._learn_provider(provider)
            for operation in operations:
                self.learn_pair(provider, operation)

    def learn_pair(self, provider: str, operation: str) -> None:
        """Know the names of an operation that was journalled."""
        self._learn_provider(provider)
        known = self._operations.get(provider)
        if known is not None and operation not in known and self._count < _NAMES_MAX:
            known.add(operation)
            self._count += 1

    def _learn_provider(self, provider: str) -> None:
        if provider not in self._operations and self._count < _NAMES_MAX:
            self._operations[provider] = set()
            self._count += 1

    def provider(self, name: str | None) -> str:
        """The provider's label."""
        if name is None:
            return NONE
        return name if name in self._operations else OTHER

    def pair(self, provider: str | None, operation: str | None) -> tuple[str, str]:
        """The labels of a provider and one of its operations."""
        label = self.provider(provider)
        if operation is None:
            return label, NONE
        return label, operation if operation in self._operations.get(label, ()) else OTHER

    def providers(self) -> tuple[str, ...]:
        return tuple(self._operations)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        return tuple((provider, operation) for provider, known in self._operations.items() for operation in known)


class BoundedLabels:
    """Words that come from code and not from callers; bounded all the same. `only`: these, and no others."""

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self._known = set(only or ())
        self._learns = only is None

    def label(self, name: str) -> str:
        if name in self._known:
            return name
        if not name or not self._learns or len(self._known) >= _LABELS_MAX:
            return OTHER
        self._known.add(name)
        return name
