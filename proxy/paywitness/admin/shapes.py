"""The admin's JSON. Times are ISO 8601 in UTC, amounts are major units as text, durations say their unit.

Only the fields named here leave: no hash of a key or credential, no lease token, no sealed data. The id of an account
is a keyed hash, as in events. An incident is shown with both pieces of evidence: the entry that it contradicts, and the
entry that opened it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from paywitness.admin.backend import Readiness
from paywitness.core.announcements import cloud_events, other_payment_json
from paywitness.core.fallback import FallbackChoice
from paywitness.core.inquiry import next_inquiry
from paywitness.core.operation import (
    Announcement,
    AnnouncementKind,
    AttemptSummary,
    DoubtCount,
    Finding,
    HistoryEntry,
    Operation,
    OtherPayment,
)
from paywitness.core.operator_actions import actions_for, proposal_for
from paywitness.core.payout import Approval, ApprovalStatus
from paywitness.core.policy import Policy, Provider
from paywitness.core.redact import redact
from paywitness.core.reply import operation_summary
from paywitness.core.result import Classification
from paywitness.core.template import TemplateValues, in_path
from paywitness.core.timeline_words import change_text, is_lease_only
from paywitness.core.was_it_charged import money_summary
from paywitness.engine.operator_commands import BulkResult
from paywitness.journal.base import AnnouncementRow
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.logs import iso

# --- Contradicting evidence


def find_contradicting_entry(history: Sequence[HistoryEntry]) -> HistoryEntry | None:
    """The entry that opened the incident that is open now: the last one that announced an incident."""
    for entry in reversed(history):
        if entry.announcement is not None and AnnouncementKind.INCIDENT_OPENED in entry.announcement.kinds:
            return entry
    # Entries of older releases hold no announcement. The last one is the nearest guess.
    return history[-1] if history else None


def find_contradicted_entry(history: Sequence[HistoryEntry], by: HistoryEntry | None) -> HistoryEntry | None:
    """The entry with which the operation reached the state that it had before the contradiction."""
    if by is None:
        return None
    earlier = [entry for entry in history if entry.version < by.version]
    if not earlier:
        return None
    stood = earlier[-1].state
    first = earlier[-1]
    for entry in reversed(earlier):
        if entry.state is not stood:
            break
        first = entry
    return first


# --- JSON shapes

_PROBLEMS_MAX = 50  # of a policy directory; a person starts with the first ones


def operations_page(
    operations: Sequence[Operation], following: str | None, book: PolicyBook | None, others: Mapping[str, Operation]
) -> dict[str, Any]:
    """A page of a listing. `following`: the id below which the next page begins, or None. `others`: by the id of an
    operation with an incident, the other operation of the incident."""
    rows = [operation_row(operation, book, others.get(operation.id)) for operation in operations]
    return {"operations": rows, "next": following}


def operation_row(operation: Operation, book: PolicyBook | None, other: Operation | None = None) -> dict[str, Any]:
    """An operation as lists show it. The words for callers and the words for operators are the same. `other`: the other
    operation of its incident."""
    known = operation_summary(operation)
    other_payment = _other_payment(operation, other)
    return {
        "id": operation.id,
        "provider": operation.provider,
        "operation": operation.operation,
        "kind": operation.kind,
        "verdict": money_summary(operation),
        "state": operation.state,
        "outcome": operation.outcome,
        "side_effect_may_exist": known["side_effect_may_exist"],
        "advice": known["advice"],
        "amount": known["amount"],
        "currency": known["currency"],
        "payment": operation.payment or None,
        "account": operation.account,
        "priority": operation.priority,
        "customer": None,  # no policy names one
        "client_key": operation.client_key,
        "key_source": operation.key_source,
        "provider_key": operation.provider_key,
        "reference": operation.reference,
        "generation": operation.generation,
        "attempts": operation.attempts,
        "attempt_under_way": operation.attempt_under_way,
        "doubt": sorted(operation.doubt),
        "reading": operation.result_class,
        "effect": operation.effect,
        "because": operation.because or None,
        "incident": operation.incident,
        "other_payment": other_payment_json(other_payment),
        "proposal": proposal_for(operation, other_payment),
        "dashboard": dashboard_link(operation, book),
        "released": operation.key_released,
        "guard": {"kind": operation.guard.kind, "shown": operation.guard.label} if operation.guard else None,
        "distinct": redact(operation.distinct) or None,
        "fallback_of": operation.fallback_of,
        "fallback_to": operation.fallback_to,
        "fallback_from": operation.fallback_from or None,
        "fallback_reason": operation.fallback_reason or None,
        "cancel_wanted": operation.cancel_wanted,
        "action_expired": operation.action_expired or operation.abandoned,
        "upstream": _without_userinfo(operation.upstream),
        "revision": operation.revision,
        "version": operation.version,
        "created_at": iso(operation.created_at),
        "updated_at": iso(operation.updated_at),
        "first_sent_at": _iso(operation.first_sent_at),
        "ended_at": _iso(operation.ended_at),
        "next_check_at": _iso(known["next_check_at"]),
        "held_until": _iso(operation.lease.until_at if operation.lease is not None else None),
    }


def operation_detail(
    operation: Operation,
    history: Sequence[HistoryEntry],
    *,
    book: PolicyBook | None,
    policy: Policy | None,
    other_payment: Operation | None = None,
    balance: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An operation with its timeline, oldest first, and the actions that are allowed. `policy` is the one that it is
    pinned to, `other_payment` the other operation of its incident, `balance` the balance of its payment."""
    return {
        **operation_row(operation, book, other_payment),
        "balance": balance,
        "actions": list(actions_for(operation, policy)),
        "inquiry": _inquiry(operation, policy),
        "contradiction": _contradiction(operation, history, book, other_payment)
        if operation.incident is not None
        else None,
        "timeline": [timeline_entry(entry) for entry in history],
    }


def _inquiry(operation: Operation, policy: Policy | None) -> dict[str, Any] | None:
    """The number of the next inquiry, of how many, and when the inquiries end. None if none is planned."""
    found = next_inquiry(operation, policy.resolve.schedule_s) if policy is not None else None
    if found is None:
        return None
    return {"next": found.number, "of": found.of, "gives_up_at": iso(found.gives_up_at)}


def _contradiction(
    operation: Operation, history: Sequence[HistoryEntry], book: PolicyBook | None, other_payment: Operation | None
) -> dict[str, Any]:
    """Both pieces of evidence, and the proposal for a person."""
    contradicting_entry = find_contradicting_entry(history)
    contradicted_entry = find_contradicted_entry(history, contradicting_entry)
    return {
        "kind": operation.incident,
        "proposal": proposal_for(operation, _other_payment(operation, other_payment)),
        "dashboard": dashboard_link(operation, book),
        "stood_by": timeline_entry(contradicted_entry) if contradicted_entry is not None else None,
        "contradicted_by": timeline_entry(contradicting_entry) if contradicting_entry is not None else None,
        "other_payment": operation_row(other_payment, book) if other_payment is not None else None,
    }


def _other_payment(operation: Operation, other: Operation | None) -> OtherPayment | None:
    """The other side of the incident: as recorded when it opened, completed by what the journal knows of it now."""
    known = operation.other_payment if operation.incident is not None else None
    if known is None:
        return other.as_other_payment if other is not None else None
    if other is None:
        return known
    return replace(known, reference=known.reference or other.reference, money=known.money or other.money)


def dashboard_link(operation: Operation, book: PolicyBook | None) -> str | None:
    """The provider's page about the payment, by today's policy. None if the policy gives none, or a part of it is not
    known."""
    provider = book.providers.get(operation.provider) if book is not None else None
    for policy in provider.policies if provider is not None else ():
        if policy.operation == operation.operation and policy.dashboard is not None:
            return policy.dashboard.filled(TemplateValues(operation, {}), in_path)
    return None


def timeline_entry(entry: HistoryEntry) -> dict[str, Any]:
    decided = {"action": entry.action, "because": entry.because, "delay_s": entry.delay_s} if entry.action else None
    return {
        "at": iso(entry.at),
        "version": entry.version,
        "source": entry.source,
        "actor": entry.actor or None,
        "events": list(entry.events),
        "summary": change_text(entry),
        "lease_only": is_lease_only(entry),
        "state": entry.state,
        "doubt": sorted(entry.doubt),
        "attempt": attempt_evidence(entry.attempt) if entry.attempt is not None else None,
        "finding": finding_evidence(entry.finding) if entry.finding is not None else None,
        "decision": decided,
        "told": _told(entry.announcement),
        "fallback": _fallback_choice(entry.fallback) if entry.fallback is not None else None,
        "note": redact(entry.note) or None,
    }


def _fallback_choice(choice: FallbackChoice) -> dict[str, Any]:
    """The routes that were considered after an end without effect, each with its verdict."""
    return {
        "cause": choice.cause,
        "revision": choice.revision,
        "attempts": choice.attempts,
        "candidates": [
            {"to": each.to, "verdict": each.verdict, "detail": each.detail or None} for each in choice.candidates
        ],
    }


def _told(announcement: Announcement | None) -> list[str]:
    if announcement is None:
        return []
    return [*announcement.kinds, *([f"payout_{announcement.payout}"] if announcement.payout is not None else [])]


def finding_evidence(finding: Finding) -> dict[str, Any]:
    classification = finding.classification
    return {
        "source": redact(finding.source),
        "found": finding.kind,
        "status_code": finding.status_code,
        "reading": classification.result_class if classification is not None else None,
        "effect": classification.effect if classification is not None else None,
        "rule": classification.rule if classification is not None else None,
        "reference": classification.reference if classification is not None else None,
        "shown_amount": _shown_amount(classification),
        "detail": redact(finding.detail) or None,
    }


def outcomes(rows: Sequence[AnnouncementRow], after: int) -> dict[str, Any]:
    """A page of the feed: every announced change, as the sink gets it."""
    announced = [row for row in rows if row.entry.announcement is not None]
    return {
        "outcomes": [
            {"seq": row.seq, "event": event} for row in announced for event in cloud_events(row.operation, row.entry)
        ],
        "next": rows[-1].seq if rows else after,
    }


def approvals(found: Sequence[tuple[Approval, ApprovalStatus]]) -> dict[str, Any]:
    """Payouts that need a person's approval, oldest first."""
    return {"approvals": [approval_json(approval, status) for approval, status in found]}


def approval_json(approval: Approval, status: ApprovalStatus) -> dict[str, Any]:
    terms, money = approval.terms, approval.terms.money
    approved_at = approval.approved_at
    return {
        "id": terms.id,
        "status": status,
        "provider": terms.provider,
        "operation": terms.operation,
        "reference": redact(terms.reference) or None,
        "amount": str(money.major) if money is not None else None,
        "currency": money.currency if money is not None else None,
        "minor_units": money.minor_units if money is not None else None,
        "requested_at": iso(approval.requested_at),
        "approved_at": _iso(approved_at),
        "approved_by": approval.approved_by or None,
        "reason": redact(approval.reason) or None,
        "valid_until": _iso(approved_at + approval.valid_s if approved_at is not None else None),
        "used_by": approval.used_by or None,
    }


def bulk(found: BulkResult, *, dry_run: bool) -> dict[str, Any]:
    """The result of a bulk action, or of its dry run."""
    return {
        "dry_run": dry_run,
        "count": len(found.operations),
        "money": {currency: str(money.major) for currency, money in found.money.items()},
        "operations": [operation.id for operation in found.operations],
        "done": found.done,
        "refused": [{"id": refusal.operation_id, "why": refusal.why} for refusal in found.refused],
        "more": found.has_more,
    }


def attempt_evidence(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": attempt.phase,
        "bytes_written": attempt.bytes_written,
        "fault": attempt.fault,
        "status_code": attempt.status_code,
        "request_id": redact(attempt.request_id) if attempt.request_id is not None else None,
        "reading": attempt.classification.result_class,
        "effect": attempt.classification.effect,
        "rule": attempt.classification.rule,
        "shown_amount": _shown_amount(attempt.classification),
        "duration_ms": round(attempt.duration_s * 1000, 3),
        "reset_by_us": attempt.reset_by_us,
        "detail": redact(attempt.detail) or None,
    }


def _shown_amount(classification: Classification | None) -> str | None:
    """The amount in the response, if it differs from the requested one."""
    money = classification.shown_money if classification is not None else None
    return str(money) if money is not None else None


def policies(book: PolicyBook | None, readiness: Readiness) -> dict[str, Any]:
    """The book in force, and the problems of the last reading of the policy files."""
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
            "can_be_asked": contract.supports_inquiry,
            "webhook_expected": contract.webhook_expected,
            "assumed": sorted(contract.assumed),
        },
    }


def readiness_json(
    readiness: Readiness,
    book: PolicyBook | None,
    counts: Iterable[DoubtCount],
    *,
    journal_healthy: bool,
    rolled_back_s: float | None = None,
) -> dict[str, Any]:
    """Whether calls should come here, and details. Only the reasons in `why_not` make the sidecar unready."""
    reasons = {"starting": readiness.starting, "draining": readiness.draining, "no_policies": book is None}
    why_not = [reason for reason, holds in reasons.items() if holds]
    return {
        "ready": not why_not,
        "why_not": why_not,
        "draining": readiness.draining,
        "journal_healthy": journal_healthy,
        "journal_rolled_back_s": None if rolled_back_s is None else round(rolled_back_s, 1),
        "policy_revision": book.revision if book is not None else None,
        "reload": _reload(readiness),
        "clocks": {"jumps": readiness.clock_jumps, "awaits_dates": readiness.awaits_dates},
        "in_doubt": _in_doubt(counts),
    }


def _reload(readiness: Readiness) -> dict[str, Any]:
    problems = readiness.reload_problems
    return {"ok": not problems, "problems": [redact(problem) for problem in problems[:_PROBLEMS_MAX]]}


def _in_doubt(counts: Iterable[DoubtCount]) -> list[dict[str, Any]]:
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
