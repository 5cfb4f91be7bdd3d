"""`policy diff --against JOURNAL`: which recorded operations an edit would have treated otherwise, and how much money.

It goes through the operations page by page, and holds only totals and the first examples. It counts an operation once,
at the first difference between the policies. Nobody knows what would have followed after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.call import Call, CallerOptions
from paywitness.core.classify import ClassifyRules
from paywitness.core.decide import Action
from paywitness.core.errors import PolicyError
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.policy.book import load_content
from paywitness.tools.policy_diff.comparison import ProviderDiff
from paywitness.tools.policy_diff.journal_reader import ReadOnlyJournal
from paywitness.tools.policy_diff.replay import RESPONSE_NOT_STORED, Divergence, NotReplayed, RecordedOperation, replay
from paywitness.tools.policy_test.recognition import recognise_call

_SLOW_S = 2.0  # then a progress line is printed
_REVISIONS_MAX = 64
NOT_COMPARED = "its provider is in neither of the two"
NO_SUCH_OPERATION = "neither policy has its operation"
NOT_DECRYPTED = "what is kept of it is encrypted, and there is no key here that opens it"

_ACTION_TEXTS = {
    Action.RETRY_SAME_OPERATION: "retried",
    Action.SCHEDULE_RETRY: "retried later",
    Action.STATUS_INQUIRY: "asked about",
    Action.WAIT_FOR_WEBHOOK: "left to a webhook",
    Action.SEND_TO_REVIEW: "put in review",
    Action.MARK_TERMINAL_FAILURE: "ended as failed",
    Action.ASK_CUSTOMER_ACTION: "left to the customer",
    Action.FALLBACK_NEW_ATTEMPT: "paid elsewhere",
    Action.CANCEL: "cancelled",
    Action.STOP: "settled",
}
_IDENTITY_FACTS = ("client_key", "key_from", "provider_key", "account", "guard", "amount")


@dataclass(frozen=True, slots=True)
class OperationDifference:
    """One operation that would have been treated otherwise."""

    operation: Operation
    kind: str  # the difference: "asked about instead of retried"
    when: str
    old: str
    new: str


@dataclass(slots=True)
class DifferenceTotal:
    count: int = 0
    money: Counter[str] = field(default_factory=Counter)  # minor units by currency


@dataclass(slots=True)
class BacktestReport:
    """The totals of a backtest."""

    examined: int = 0
    same: int = 0
    complete: bool = True  # False: older operations were not examined
    totals: dict[str, DifferenceTotal] = field(default_factory=dict)
    examples: list[OperationDifference] = field(default_factory=list)
    not_replayed: Counter[str] = field(default_factory=Counter)
    requests_erased: int = 0  # replayed, but it is unknown whether they would be recognised under the same key
    decided_differently: int = 0  # replayed, but recorded with another decision than the old policy makes

    @property
    def differing(self) -> int:
        return sum(total.count for total in self.totals.values())

    def add(self, difference: OperationDifference, examples_max: int) -> None:
        total = self.totals.setdefault(difference.kind, DifferenceTotal())
        total.count += 1
        money = difference.operation.money
        if money is not None:
            total.money[money.currency] += money.minor_units
        if len(self.examples) < examples_max:
            self.examples.append(difference)


class Backtest:
    """Replays a journal's operations under each pair of policies."""

    def __init__(
        self, diffs: list[ProviderDiff], journal: ReadOnlyJournal, clock: Clock, progress: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._progress = progress
        self._diffs = {provider.name: one for one in diffs for provider in (one.new, one.old) if provider is not None}
        self._rules: dict[tuple[str, str], Provider | None] = {}

    async def run(self, *, newest: int, examples: int) -> BacktestReport:
        """Replay at most the `newest` operations. Raises JournalUnavailable if the journal fails meanwhile."""
        found = BacktestReport()
        progress_at_mono = self._clock.mono() + _SLOW_S
        async for operation in self._journal.operations(newest + 1):
            if found.examined == newest:
                found.complete = False
                break
            found.examined += 1
            await self._replay(operation, found, examples)
            if self._clock.mono() >= progress_at_mono:
                self._progress(f"examined {found.examined:,} operations, {found.differing:,} differ ...")
                progress_at_mono = self._clock.mono() + _SLOW_S
        return found

    async def _replay(self, operation: Operation, found: BacktestReport, examples: int) -> None:
        one = self._diffs.get(operation.provider)
        try:
            if one is None:
                raise NotReplayed(NOT_COMPARED)
            difference = await self._difference(operation, one, found)
        except NotReplayed as reason:
            found.not_replayed[str(reason)] += 1
            return
        if difference is None:
            found.same += 1
        else:
            found.add(difference, examples)

    async def _difference(
        self, operation: Operation, one: ProviderDiff, found: BacktestReport
    ) -> OperationDifference | None:
        """The difference between the two policies for this operation, if there is one."""
        old, new = _policy_of(one.old, operation), _policy_of(one.new, operation)
        if old is None and new is None:
            raise NotReplayed(NO_SUCH_OPERATION)
        request, response, sealed = await self._journal.stored_messages(operation)
        if operation.request_hash:
            request = None  # its body was never stored
        if old is None or new is None:
            kind = "recognised" if old is None else "not recognised"
            return OperationDifference(operation, kind, "at first", _operation_name(old), _operation_name(new))
        same_identity = not one.identity and old.amount == new.amount and old.currency == new.currency
        if not same_identity and request is not None and one.old is not None and one.new is not None:
            difference = _identity_difference(operation, request, one.old, one.new)
            if difference is not None:
                return difference
        recorded_operation = RecordedOperation(
            operation,
            await self._journal.queries.history(operation.id),
            response,
            await self._rules_then(operation, one),
        )
        try:
            replayed = replay(recorded_operation, old, new)
        except NotReplayed as reason:
            raise NotReplayed(NOT_DECRYPTED if sealed and str(reason) == RESPONSE_NOT_STORED else str(reason)) from None
        found.requests_erased += not same_identity and request is None
        found.decided_differently += not replayed.as_recorded
        return _difference_of(operation, replayed.divergence)

    async def _rules_then(self, operation: Operation, one: ProviderDiff) -> ClassifyRules | None:
        """The rules that classified its responses. None if the revision is gone or cannot be read any more."""
        for provider in (one.old, one.new):
            if provider is not None and provider.revision == operation.revision:
                policy = _policy_of(provider, operation)
                return policy.classify if policy is not None else None
        named = (operation.provider, operation.revision)
        if named not in self._rules:
            if len(self._rules) >= _REVISIONS_MAX:
                self._rules.clear()
            self._rules[named] = await self._load_revision(*named)
        policy = _policy_of(self._rules[named], operation)
        return policy.classify if policy is not None else None

    async def _load_revision(self, provider: str, revision: str) -> Provider | None:
        stored = await self._journal.queries.revision(provider, revision)
        try:
            return load_content(stored.content.encode(), f"revision {revision}") if stored is not None else None
        except PolicyError:
            return None  # written by a version with another file format


def _policy_of(provider: Provider | None, operation: Operation) -> Policy | None:
    """The policy of the operation, by its name or by its name in keys."""
    policies = provider.policies if provider is not None else ()
    for name in ("operation", "key"):
        for policy in policies:
            if operation.operation == (policy.operation if name == "operation" else policy.names[1]):
                return policy
    return None


def _operation_name(policy: Policy | None) -> str:
    return policy.operation if policy is not None else "no operation"


def _identity_difference(
    operation: Operation, request: StoredRequest, old: Provider, new: Provider
) -> OperationDifference | None:
    was, now = _facts(operation, request, old), _facts(operation, request, new)
    for kind, names in (("recognised", ("operation",)), ("refused", ("problem",)), ("keyed", _IDENTITY_FACTS)):
        differing = [name for name in names if was.get(name) != now.get(name)]
        if differing:
            old_facts, new_facts = (_redacted_facts(facts, differing) for facts in (was, now))
            return OperationDifference(operation, f"{kind} otherwise", "at first", old_facts, new_facts)
    return None


def _facts(operation: Operation, request: StoredRequest, provider: Provider) -> dict[str, str]:
    path, _, query = request.target.partition("?")
    key = operation.client_key if operation.key_source == "paywitness-key" else None
    call = Call(
        provider.name,
        request.method,
        path,
        query,
        request.segments,
        request.headers,
        request.body,
        CallerOptions(key=key),
    )
    return recognise_call(call, provider)[1]


def _redacted_facts(facts: dict[str, str], names: list[str]) -> str:
    """The facts without keys and orders, which are the callers' data."""
    redacted = {name: facts.get(name, "none") for name in names}
    redacted |= {name: "another" for name in ("client_key", "account") if name in redacted}
    return ", ".join(
        f"{name} {value.partition(':')[0] if name == 'guard' else value}" for name, value in redacted.items()
    )


def _difference_of(operation: Operation, divergence: Divergence | None) -> OperationDifference | None:
    if divergence is None:
        return None
    old, new = divergence.old, divergence.new
    if old.action is not new.action:
        kind = f"{_ACTION_TEXTS[new.action]} instead of {_ACTION_TEXTS[old.action]}"
    elif (old.result_class, old.effect) != (new.result_class, new.effect):
        kind = f"read as {new.result_class} instead of {old.result_class}"
        kind += f" (effect {new.effect} instead of {old.effect})" if new.effect != old.effect else ""
    else:
        kind = f"decided by {new.because} instead of {old.because}"
    return OperationDifference(operation, kind, divergence.when, str(old), str(new))
