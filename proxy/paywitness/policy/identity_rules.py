"""The part of a policy that keys, fingerprints and guards are made from, and what changed in it between two revisions.

A changed rule here gives the same call another identity: a retry would look like a new payment. So such an edit is
refused unless the file says `identity_change: accepted`. Operations are compared under the names that keys know them by
(`formerly:`), so that a renamed one is still itself. How accounts and merchants are told may change: claims look under
the earlier rules as well (`engine.earlier_rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paywitness.core.account_rules import NamedAccount
from paywitness.core.policy import Policy, Provider, Route


def identity_of(
    key_name: str, merchant: str, accounts: tuple[NamedAccount, ...], policies: tuple[Policy, ...]
) -> dict[str, Any]:
    """Everything identity rests on, as plain JSON values."""
    return {
        "provider": key_name,
        "merchant": merchant,
        "accounts": {each.name: _account_identity(each) for each in accounts},
        "operations": {policy.names[1]: _operation_identity(policy) for policy in policies},
    }


def _account_identity(account: NamedAccount) -> dict[str, Any]:
    return {
        "owner": account.owner,
        "selectors": [f"{place}={value}" for place, value in sorted(account.selectors, key=str)],
        "credentials": [f"env:{variable}" for variable in account.variables],
    }


def _operation_identity(policy: Policy) -> dict[str, Any]:
    return {
        "match": [str(route) for route in policy.routes],
        "where": _text(policy.where),
        "body": str(policy.encoding),
        "account": [str(place) for place in policy.account],
        "take_from": [str(place) for place in policy.take_from],
        "send_as": _text(policy.contract.send_as),
        "ignore": sorted(policy.ignore),
        "intent": _text(policy.intent) if policy.kind.moves_money else None,  # a create only carries it to later steps
        "target": _text(policy.target)
        if not policy.target_also
        else [str(policy.target), *map(str, policy.target_also)],
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def identity_changes(old: Provider, new: Provider) -> list[str]:
    """What an edit would change in the identity of calls, one line each; empty where keys keep their meaning."""
    return identity_changes_between(old.identity, new.identity)


# Calls are looked for under the earlier rules too, so a change of these is none of what a call is.
_TOLD_BY_EARLIER_RULES = frozenset({"account"})


def identity_changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """As `identity_changes`, over `Provider.identity` itself: what a journal can keep."""
    lines = []
    if old["provider"] != new["provider"]:
        was = old["provider"]
        lines.append(f"provider: was {was}, is {new['provider']}; 'formerly: {was}' keeps its keys")
    lines += _account_changes(old.get("accounts", {}), new.get("accounts", {}))
    for name, before in old["operations"].items():
        after = new["operations"].get(name)
        if after is None:
            lines.append(f"operations.{name}: is gone; where it has a new name, 'formerly: {name}' keeps its keys")
        else:
            lines += [
                f"operations.{name}.{key}: was {_value_text(before[key])}, is {_value_text(after[key])}"
                for key in before
                if key not in _TOLD_BY_EARLIER_RULES and before[key] != after.get(key)
            ]
    lines += _new_operation_overlaps(old["operations"], new["operations"])
    return lines


def _account_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    """What would give the calls of an account to another one, or to none. What is added is looked for under the earlier
    rules, as a new merchant is; a credential that is listed no more was rotated."""
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            yield f"accounts.{name}: is gone; its payments would not be found under another name"
            continue
        for key in ("owner", "selectors"):
            if before[key] and before[key] != after[key]:
                yield f"accounts.{name}.{key}: was {_value_text(before[key])}, is {_value_text(after[key])}"
        for other, theirs in new.items():
            moved = [each for each in before["credentials"] if each in theirs["credentials"]]
            if other != name and moved and not set(moved) <= set(after["credentials"]):
                yield f"accounts.{other}.credentials: has {moved[0]}, which was that of {name} until now"


def _new_operation_overlaps(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    """A new operation may take calls that another one had until now."""
    for name, added in new.items():
        if name in old:
            continue
        for other, before in old.items():
            shared = [a for a in added["match"] for b in before["match"] if routes_overlap(_route(a), _route(b))]
            if shared:
                yield f"operations.{name}: is new and matches {shared[0]}, which {other} matched until now"


def routes_overlap(one: Route, other: Route) -> bool:
    """Whether a call could match both routes."""
    return (
        one.method == other.method
        and len(one.segments) == len(other.segments)
        and all(
            a == b or a.startswith("{") or b.startswith("{") for a, b in zip(one.segments, other.segments, strict=True)
        )
    )


def _route(text: str) -> Route:
    method, _, path = text.partition(" ")
    return Route(method, tuple(path[1:].split("/")))


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value) if value not in (None, "") else "nothing"
