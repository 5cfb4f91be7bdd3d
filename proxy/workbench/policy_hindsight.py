"""`policy diff --against JOURNAL`: which recorded operations an edit would have treated otherwise, and how much money.

One operation after the other, page by page; only totals and the first examples are held. An operation is told once, by
where the two policies first part: what would have come after that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.call import Call, Wishes
from proxy.core.classify import ClassifyRules
from proxy.core.decide import Action
from proxy.core.errors import PolicyError
from proxy.core.operation import Operation
from proxy.core.policy import Policy, Provider
from proxy.engine.keeping import KeptRequest
from proxy.policy.book import load_content
from proxy.workbench.hindsight import ANSWER_NOT_KEPT, NotReplayed, Parting, Past, replay
from proxy.workbench.policy_diff import ProviderDiff
from proxy.workbench.recognition import recognise_call
from proxy.workbench.recorded import Recorded

_SLOW_S = 2.0  # from then on a person wonders
_REVISIONS_MAX = 64
NOT_COMPARED = "its provider is in neither of the two"
NO_SUCH_OPERATION = "neither policy has its operation"
NOT_OPENED = "what is kept of it is encrypted, and there is no key here that opens it"

_DONE = {
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
_KEYED = ("client_key", "key_from", "provider_key", "account", "guard", "amount")


@dataclass(frozen=True, slots=True)
class Difference:
    """One operation that would have gone another way."""

    operation: Operation
    kind: str  # what would have been done: "asked about instead of retried"
    when: str
    old: str
    new: str


@dataclass(slots=True)
class Total:
    count: int = 0
    money: Counter[str] = field(default_factory=Counter)  # minor units by currency


@dataclass(slots=True)
class Hindsight:
    """What a look back came to."""

    looked_at: int = 0
    same: int = 0
    complete: bool = True  # False: there are older operations that were not looked at
    totals: dict[str, Total] = field(default_factory=dict)
    examples: list[Difference] = field(default_factory=list)
    not_replayed: Counter[str] = field(default_factory=Counter)
    requests_gone: int = 0  # replayed, but whether they would be recognised and keyed as before is not known
    unlike: int = 0  # replayed, but decided otherwise then than the old policy decides

    @property
    def differing(self) -> int:
        return sum(total.count for total in self.totals.values())

    def add(self, difference: Difference, examples_max: int) -> None:
        total = self.totals.setdefault(difference.kind, Total())
        total.count += 1
        money = difference.operation.money
        if money is not None:
            total.money[money.currency] += money.minor_units
        if len(self.examples) < examples_max:
            self.examples.append(difference)


class LookBack:
    """Replays a journal's operations under the pairs of policies."""

    def __init__(self, diffs: list[ProviderDiff], recorded: Recorded, clock: Clock, say: Callable[[str], None]) -> None:
        self._recorded = recorded
        self._clock = clock
        self._say = say
        self._diffs = {provider.name: one for one in diffs for provider in (one.new, one.old) if provider is not None}
        self._rules: dict[tuple[str, str], Provider | None] = {}

    async def look(self, *, newest: int, examples: int) -> Hindsight:
        """At most the `newest` operations. Raises JournalUnavailable where the journal goes away meanwhile."""
        found = Hindsight()
        say_at_mono = self._clock.mono() + _SLOW_S
        async for operation in self._recorded.operations(newest + 1):
            if found.looked_at == newest:
                found.complete = False
                break
            found.looked_at += 1
            await self._replay(operation, found, examples)
            if self._clock.mono() >= say_at_mono:
                self._say(f"looked at {found.looked_at:,} operations, {found.differing:,} differ ...")
                say_at_mono = self._clock.mono() + _SLOW_S
        return found

    async def _replay(self, operation: Operation, found: Hindsight, examples: int) -> None:
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

    async def _difference(self, operation: Operation, one: ProviderDiff, found: Hindsight) -> Difference | None:
        """How it would have gone otherwise, if it would."""
        old, new = _policy_of(one.old, operation), _policy_of(one.new, operation)
        if old is None and new is None:
            raise NotReplayed(NO_SUCH_OPERATION)
        request, response, sealed = await self._recorded.kept(operation)
        if operation.request_hash:
            request = None  # its body was never stored
        if old is None or new is None:
            kind = "recognised" if old is None else "not recognised"
            return Difference(operation, kind, "at first", _named(old), _named(new))
        same_identity = not one.identity and old.amount == new.amount and old.currency == new.currency
        if not same_identity and request is not None and one.old is not None and one.new is not None:
            difference = _recognised_otherwise(operation, request, one.old, one.new)
            if difference is not None:
                return difference
        past = Past(
            operation,
            await self._recorded.records.history(operation.id),
            response,
            await self._rules_then(operation, one),
        )
        try:
            replayed = replay(past, old, new)
        except NotReplayed as reason:
            raise NotReplayed(NOT_OPENED if sealed and str(reason) == ANSWER_NOT_KEPT else str(reason)) from None
        found.requests_gone += not same_identity and request is None
        found.unlike += not replayed.as_recorded
        return _told(operation, replayed.parting)

    async def _rules_then(self, operation: Operation, one: ProviderDiff) -> ClassifyRules | None:
        """The rules that its answers were read by; None where the revision is gone, or cannot be read any more."""
        for provider in (one.old, one.new):
            if provider is not None and provider.revision == operation.revision:
                policy = _policy_of(provider, operation)
                return policy.classify if policy is not None else None
        named = (operation.provider, operation.revision)
        if named not in self._rules:
            if len(self._rules) >= _REVISIONS_MAX:
                self._rules.clear()
            self._rules[named] = await self._loaded(*named)
        policy = _policy_of(self._rules[named], operation)
        return policy.classify if policy is not None else None

    async def _loaded(self, provider: str, revision: str) -> Provider | None:
        kept = await self._recorded.records.revision(provider, revision)
        try:
            return load_content(kept.content.encode(), f"revision {revision}") if kept is not None else None
        except PolicyError:
            return None  # written by a version that read other files


def _policy_of(provider: Provider | None, operation: Operation) -> Policy | None:
    """By its name, or by the name that keys know it under."""
    policies = provider.policies if provider is not None else ()
    for name in ("operation", "key"):
        for policy in policies:
            if operation.operation == (policy.operation if name == "operation" else policy.names[1]):
                return policy
    return None


def _named(policy: Policy | None) -> str:
    return policy.operation if policy is not None else "no operation"


def _recognised_otherwise(
    operation: Operation, request: KeptRequest, old: Provider, new: Provider
) -> Difference | None:
    was, now = _facts(operation, request, old), _facts(operation, request, new)
    for kind, names in (("recognised", ("operation",)), ("refused", ("problem",)), ("keyed", _KEYED)):
        differing = [name for name in names if was.get(name) != now.get(name)]
        if differing:
            old_facts, new_facts = (_shown(facts, differing) for facts in (was, now))
            return Difference(operation, f"{kind} otherwise", "at first", old_facts, new_facts)
    return None


def _facts(operation: Operation, request: KeptRequest, provider: Provider) -> dict[str, str]:
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
        Wishes(key=key),
    )
    return recognise_call(call, provider)[1]


def _shown(facts: dict[str, str], names: list[str]) -> str:
    """Without the texts themselves: keys and orders are the callers'."""
    shown = {name: facts.get(name, "none") for name in names}
    shown |= {name: "another" for name in ("client_key", "account") if name in shown}
    return ", ".join(f"{name} {value.partition(':')[0] if name == 'guard' else value}" for name, value in shown.items())


def _told(operation: Operation, parting: Parting | None) -> Difference | None:
    if parting is None:
        return None
    old, new = parting.old, parting.new
    if old.action is not new.action:
        kind = f"{_DONE[new.action]} instead of {_DONE[old.action]}"
    elif (old.reading, old.effect) != (new.reading, new.effect):
        kind = f"read as {new.reading} instead of {old.reading}"
        kind += f" (effect {new.effect} instead of {old.effect})" if new.effect != old.effect else ""
    else:
        kind = f"decided by {new.because} instead of {old.because}"
    return Difference(operation, kind, parting.when, str(old), str(new))
