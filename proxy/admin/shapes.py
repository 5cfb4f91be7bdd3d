"""The admin's JSON. Times are ISO 8601 in UTC, amounts are major units as text, durations say their unit.

What is not named here does not leave: no hash of a key, account or credential, no lease token, nothing that is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from proxy.admin.verdict import verdict
from proxy.admin.view import Readiness
from proxy.core.operation import AttemptSummary, HistoryEntry, Operation
from proxy.core.policy import Policy, Provider
from proxy.core.redact import redact
from proxy.core.reply import described
from proxy.policy.book import PolicyBook
from proxy.telemetry.doubt import DoubtCounted
from proxy.telemetry.lines import iso

_PROBLEMS_MAX = 50  # of a policy directory: the first ones are what a person mends first


def operations_page(operations: Sequence[Operation], limit: int) -> dict[str, Any]:
    """A page of a listing that was asked for one more than `limit`: that one tells that there is a next page."""
    shown = operations[:limit]
    more = len(operations) > limit
    return {"operations": [operation_row(operation) for operation in shown], "next": shown[-1].id if more else None}


def operation_row(operation: Operation) -> dict[str, Any]:
    """An operation as lists show it. The words for callers and the words for operators are the same."""
    known = described(operation)
    return {
        "id": operation.id,
        "provider": operation.provider,
        "operation": operation.operation,
        "kind": operation.kind,
        "verdict": verdict(operation),
        "state": operation.state,
        "outcome": operation.outcome,
        "side_effect_may_exist": known["side_effect_may_exist"],
        "advice": known["advice"],
        "amount": known["amount"],
        "currency": known["currency"],
        "client_key": operation.client_key,
        "key_source": operation.key_source,
        "provider_key": operation.provider_key,
        "reference": operation.reference,
        "generation": operation.generation,
        "attempts": operation.attempts,
        "attempt_under_way": operation.attempt_under_way,
        "doubt": sorted(operation.doubt),
        "reading": operation.reading,
        "effect": operation.effect,
        "because": operation.because or None,
        "incident": operation.incident,
        "released": operation.released,
        "guard": {"kind": operation.guard.kind, "shown": operation.guard.shown} if operation.guard else None,
        "upstream": _without_userinfo(operation.upstream),
        "revision": operation.revision,
        "created_at": iso(operation.created_at),
        "updated_at": iso(operation.updated_at),
        "first_sent_at": _iso(operation.first_sent_at),
        "ended_at": _iso(operation.ended_at),
        "next_check_at": _iso(known["next_check_at"]),
        "held_until": _iso(operation.lease.until_at if operation.lease is not None else None),
    }


def operation_whole(operation: Operation, history: Iterable[HistoryEntry]) -> dict[str, Any]:
    """An operation with its timeline, oldest first."""
    return {**operation_row(operation), "timeline": [timeline_entry(entry) for entry in history]}


def timeline_entry(entry: HistoryEntry) -> dict[str, Any]:
    decided = {"action": entry.action, "because": entry.because, "delay_s": entry.delay_s} if entry.action else None
    return {
        "at": iso(entry.at),
        "version": entry.version,
        "source": entry.source,
        "events": list(entry.events),
        "state": entry.state,
        "doubt": sorted(entry.doubt),
        "attempt": attempt_evidence(entry.attempt) if entry.attempt is not None else None,
        "decision": decided,
        "note": redact(entry.note) or None,
    }


def attempt_evidence(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "reading": attempt.classification.reading,
        "effect": attempt.classification.effect,
        "rule": attempt.classification.rule,
        "duration_ms": round(attempt.duration_s * 1000, 3),
        "reset_by_us": attempt.reset_by_us,
        "detail": redact(attempt.detail) or None,
    }


def policies(book: PolicyBook | None, readiness: Readiness) -> dict[str, Any]:
    """The book in force, and what was wrong with the files when they were last read."""
    return {
        "revision": book.revision if book is not None else None,
        "providers": [_provider(provider) for provider in book.providers.values()] if book is not None else [],
        "reload": _reload(readiness),
    }


def _provider(provider: Provider) -> dict[str, Any]:
    return {
        "name": provider.name,
        "revision": provider.revision,
        "source": provider.source,
        "upstream": _without_userinfo(provider.upstream),
        "hosts": list(provider.hosts),
        "listen": provider.listen,
        "unmatched": provider.unmatched,
        "operations": [_operation(policy) for policy in provider.policies],
        "not_in_force": list(provider.not_in_force),
    }


def _operation(policy: Policy) -> dict[str, Any]:
    contract = policy.contract
    return {
        "name": policy.operation,
        "kind": policy.kind,
        "match": [str(route) for route in policy.routes],
        "observe": policy.observe,
        "contract": {
            "send_as": str(contract.send_as) if contract.send_as is not None else None,
            "window_s": contract.window_s,
            "errors_under_key": contract.errors_under_key,
            "dedupes": contract.dedupes,
            "can_be_asked": contract.can_be_asked,
            "webhook_expected": contract.webhook_expected,
            "assumed": sorted(contract.assumed),
        },
    }


def ready(
    readiness: Readiness, book: PolicyBook | None, counts: Iterable[DoubtCounted], *, journal_healthy: bool
) -> dict[str, Any]:
    """Whether calls should come here, and the detail beside it. Only the first two keep it from being ready."""
    return {
        "ready": book is not None and not readiness.draining,
        "draining": readiness.draining,
        "journal_healthy": journal_healthy,
        "policy_revision": book.revision if book is not None else None,
        "reload": _reload(readiness),
        "in_doubt": _in_doubt(counts),
    }


def _reload(readiness: Readiness) -> dict[str, Any]:
    problems = readiness.reload_problems
    return {"ok": not problems, "problems": [redact(problem) for problem in problems[:_PROBLEMS_MAX]]}


def _in_doubt(counts: Iterable[DoubtCounted]) -> list[dict[str, Any]]:
    totals: dict[tuple[str, str], int] = {}
    for count in counts:
        key = (count.provider, count.operation)
        totals[key] = totals.get(key, 0) + count.count
    return [{"provider": key[0], "operation": key[1], "count": total} for key, total in sorted(totals.items())]


def _iso(at: float | None) -> str | None:
    return iso(at) if at is not None else None


def _without_userinfo(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
