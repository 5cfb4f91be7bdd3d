"""`fallback`: other routes for a payment that provably had no effect, and the rules that two files must keep together.

The guard of its intent prevents a second payment of one purchase. So both files must guard the same intents: they have
one `merchant`, and the same operation under the same name with the intent at the same place.

The other route has credentials of its own, or names the provider whose credentials it takes. No secret of one route is
sent to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paywitness.core.fallback import Fallback, FallbackCause
from paywitness.core.policy import Policy, Provider, Route
from paywitness.core.provider_contract import FieldKind
from paywitness.policy.reading.document import MapNode
from paywitness.policy.reading.locations import SourceLocation, listed, operation_names
from paywitness.policy.reading.section import Section
from paywitness.policy.reading.value_readers import duration_text, name, one_of, whole_number
from paywitness.policy.schema import FALLBACK


@dataclass(frozen=True, slots=True)
class FallbackEntry:
    """One fallback of a file, and its location in the file."""

    fallback: Fallback
    location: SourceLocation
    path: str
    when_location: SourceLocation
    when_path: str


def read_fallbacks(file: Section, *, own_name: str) -> tuple[FallbackEntry, ...]:
    """The entries of the file's `fallback`. Only a whole directory shows whether the other provider fits."""
    entries: list[FallbackEntry] = []
    for section in file.children("fallback", FALLBACK):
        target = section.read("to", name)
        when = section.read_list("when", one_of(FallbackCause))
        after = section.read("after", whole_number(1, 10))
        if target == own_name:
            section.add_problem("to", f"found '{target}', which is this provider, allowed: another one")
        elif target is not None and target in {entry.fallback.to for entry in entries}:
            section.add_problem("to", f"found '{target}' again, allowed: each provider once")
        elif target is not None:
            fallback = Fallback(target, frozenset(when), after)
            places = [(section.value_location(key), section.key_path(key)) for key in ("to", "when")]
            entries.append(FallbackEntry(fallback, *places[0], *places[1]))
        if FallbackCause.ABSENT in when and not _has_settle(file):
            section.add_problem(
                "when", "found 'absent', which needs 'resolve.settle': the time after which absence may be believed"
            )
    return tuple(entries)


def read_mirrored(file: Section, *, own_name: str) -> str:
    """`same_credentials_as`: the provider of which this one is a mirror, so that it takes the same credentials."""
    mirrored = file.read_or("same_credentials_as", name, "")
    if mirrored == own_name:
        file.add_problem("same_credentials_as", f"found '{mirrored}', which is this provider, allowed: another one")
    if mirrored and file.has("credentials"):
        why = "a mirror takes those of the other route"
        file.add_problem("same_credentials_as", f"found '{mirrored}' beside 'credentials', allowed: one of both: {why}")
    return mirrored


def check_fallbacks(file: Section, entries: tuple[FallbackEntry, ...], policies: tuple[Policy, ...]) -> None:
    """Check that the paying operations have what makes a fallback safe for them."""
    wants_absent = any(FallbackCause.ABSENT in entry.fallback.when for entry in entries)
    falling = [policy for policy in policies if policy.fallbacks]
    if policies and wants_absent and not any(policy.contract.supports_inquiry for policy in falling):
        file.add_problem(
            "fallback", "found 'absent', which needs an operation with 'ask': nobody could say that it is absent"
        )
    _check_rejected(file, entries, policies)
    for each in entries:
        if FallbackCause.ABSENT in each.fallback.when:
            _warn_if_never_absent(file, each, falling)
    operations = {entry.name: entry for entry in file.entries("operations")}
    for policy in falling:
        if policy.intent is None:
            entry = operations[policy.operation]
            why = "it is required if 'fallback' is given: a guard must prevent a second payment"
            file.problems.add(entry.location, f"{entry.path}.intent", f"found nothing, {why}")


def _check_rejected(file: Section, entries: tuple[FallbackEntry, ...], policies: tuple[Policy, ...]) -> None:
    """Check that `rejected` and rows with `fallback: true` are used together."""
    falling = [policy for policy in policies if policy.fallbacks]
    wanting = [entry for entry in entries if FallbackCause.REJECTED in entry.fallback.when]
    rows = {row.name: row for policy in falling for row in (*policy.classify.rows, *policy.classify.answers)}
    marked = [row.name for row in rows.values() if row.fallback and not row.observe]
    if policies and not marked:
        for entry in wanting:
            why = "needs a row of 'classify' or 'answers' in force that says 'fallback: true'"
            file.problems.add(entry.when_location, entry.when_path, f"found 'rejected', which {why}")
    if falling and entries and marked and not wanting:
        why = f"no 'fallback' lists 'rejected' in its 'when', so {listed(sorted(marked))} leads to no other route"
        file.problems.warn(entries[0].when_location, entries[0].when_path, why)


def absence_shown_after_s(policy: Policy) -> float:
    """How long after its last byte an operation can be known to be absent, at the earliest."""
    lags_s = [inquiry.lag_s for inquiry in policy.inquiries]
    return policy.resolve.settle_s + (max(lags_s) if lags_s else 0.0)


def why_never_absent(policy: Policy) -> str:
    """Why no caller can still wait when inquiries have proven absence; "" if a caller can."""
    deadline_s, after_s = policy.timeouts.deadline_s, absence_shown_after_s(policy)
    if not policy.inquiries or after_s < deadline_s:
        return ""
    lag_s, misses = after_s - policy.resolve.settle_s, max(inquiry.misses for inquiry in policy.inquiries)
    count = "1 miss" if misses == 1 else f"{misses} misses"
    parts = f"{duration_text(policy.resolve.settle_s)} of settle and {count} over {duration_text(lag_s)} of lag"
    waits = f"callers that do not ask for longer wait {duration_text(deadline_s)} (timeouts.deadline)"
    return f"absence is shown after {duration_text(after_s)} at the earliest ({parts}), and {waits}"


def _warn_if_never_absent(file: Section, entry: FallbackEntry, falling: list[Policy]) -> None:
    for policy in falling:
        if why := why_never_absent(policy):
            text = f"found 'absent', which can never act in {{operations}}: {why}"
            file.problems.warn(entry.when_location, entry.when_path, text, operation=policy.operation)


def can_fall_back(policy: Policy) -> bool:
    """A payment of a purchase can be made elsewhere. An operation on an object of this provider cannot, because no
    other provider has the object."""
    acts_on_a_thing = policy.target is not None and policy.target.kind is FieldKind.PATH
    return policy.kind.pays and not acts_on_a_thing


def _has_settle(file: Section) -> bool:
    resolve = file.node("resolve")
    return isinstance(resolve, MapNode) and "settle" in resolve.entries


# -- between files ----------------------------------------------------------------------------------------------------


def fallback_problems(
    entries: Mapping[str, tuple[FallbackEntry, ...]], providers: Mapping[str, Provider], *, complete: bool
) -> Iterator[str]:
    """The problems with the fallbacks of these providers. `complete`: there is no other provider."""
    for source, own_entries in entries.items():
        for entry in own_entries:
            to = entry.fallback.to
            target = providers.get(to)
            if target is None:
                if complete:
                    yield f"{entry.location}: {entry.path}: found '{to}', allowed: a provider of this directory"
                continue
            if target.observe:
                wrong = f"found '{to}', which is in shadow mode, allowed: one that is in force"
                yield f"{entry.location}: {entry.path}: {wrong}"
            if _gets_foreign_credentials(providers[source], target, providers):
                yield f"{entry.location}: {entry.path}: found '{to}', {_NO_CREDENTIALS.format(to=to, source=source)}"
            for found in _incompatibilities(providers[source], target):
                yield f"{entry.location}: {entry.path}: found '{to}', {found}"
            if _leads_back(source, to, entries):
                found = f"whose own fallback leads back to '{source}', allowed: a chain that ends"
                yield f"{entry.location}: {entry.path}: found '{to}', {found}"


_NO_CREDENTIALS = (
    "whose file has no 'credentials', so it would be sent those of '{source}', allowed: a provider with 'credentials' "
    "of its own, or, in the file of '{to}', 'same_credentials_as: {source}' if it is a mirror that takes the same"
)


def _gets_foreign_credentials(provider: Provider, target: Provider, providers: Mapping[str, Provider]) -> bool:
    """Whether a fallback would send the credentials of one route to another route that does not declare that it takes
    them."""
    has_own = any(
        policy.credentials is not None
        or (policy.accounts.named and all(each.credentials for each in policy.accounts.named))
        for policy in target.policies
    )
    return not has_own and _mirrored(target, providers) != _mirrored(provider, providers)


def _mirrored(provider: Provider, providers: Mapping[str, Provider]) -> str:
    """The provider whose credentials it takes in the end. If several providers name one another, the first by name."""
    seen = [provider.name]
    while (following := providers.get(seen[-1])) is not None and following.same_credentials_as:
        if following.same_credentials_as in seen:
            return min(seen[seen.index(following.same_credentials_as) :])
        seen.append(following.same_credentials_as)
    return seen[-1]


def _incompatibilities(provider: Provider, target: Provider) -> Iterator[str]:
    own, theirs = provider.merchants, target.merchants
    if not own:
        yield "without 'merchant' in this file, it is required: the purchases of both must be one scope"
    elif not own & theirs:
        found, allowed = ", ".join(sorted(theirs)), ", ".join(sorted(own))
        yield f"of the merchant '{found}', allowed: one of '{allowed}': the purchases of both must be one scope"
    by_name = {policy.operation: policy for policy in target.policies}
    differing: dict[str, dict[str, None]] = {}  # each difference, with the operations that have it
    for policy in provider.policies:
        for found in _differences(policy, by_name.get(policy.operation)) if policy.fallbacks else ():
            differing.setdefault(found, {})[policy.operation] = None
    for found, operations in differing.items():
        yield found.format(operations=operation_names(operations))


_SAME_API = "allowed: a provider that speaks the same API"


def _differences(policy: Policy, other: Policy | None) -> Iterator[str]:
    """The differences between the operation and that of the other provider."""
    if other is None:
        yield f"which has no operation {{operations}}, {_SAME_API}"
        return
    if (other.kind, other.encoding) != (policy.kind, policy.encoding):
        yield f"whose {{operations}} is another kind or body, {_SAME_API}"
    if str(other.intent) != str(policy.intent):
        yield f"whose {{operations}} has another 'intent', allowed: {_unformatted(policy.intent)}, as here"
    for route in policy.routes:
        if not any(covers(their_route, route) for their_route in other.routes):
            yield f"whose {{operations}} does not match {_unformatted(route)}, {_SAME_API}"


def _unformatted(value: object) -> str:
    return str(value).replace("{", "{{").replace("}", "}}")


def _leads_back(source: str, to: str, entries: Mapping[str, tuple[FallbackEntry, ...]]) -> bool:
    seen: set[str] = set()
    waiting = [to]
    while waiting:
        current = waiting.pop()
        if current == source:
            return True
        if current not in seen:
            seen.add(current)
            waiting += [entry.fallback.to for entry in entries.get(current, ())]
    return False


def covers(general: Route, special: Route) -> bool:
    """Whether every call that matches the special route matches the general one."""
    return (
        general.method == special.method
        and len(general.segments) == len(special.segments)
        and all(a.startswith("{") or a == b for a, b in zip(general.segments, special.segments, strict=True))
    )
