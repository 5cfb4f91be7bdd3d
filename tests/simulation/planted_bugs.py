"""The bugs that are planted, one at a time. Each says in one sentence what it does, and which promises it breaks.

Each changes the product at a place that a rule of the product has its name from, so that the same wrong behaviour can
be had however the code around it is arranged.
"""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from paywitness.core.budget import RetryRequest
from paywitness.core.claim import Claim, ClaimJudgement, ClaimRequest, ClaimVerdict, lookup_verdict
from paywitness.core.classify import ClassifyRules, ExpectedPayment, ResponseMatcher
from paywitness.core.decide import DecisionContext
from paywitness.core.evidence import Evidence, WireFault
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.guard import is_reply_under_way
from paywitness.core.inquiry import AbsenceProof, settled_at
from paywitness.core.lifecycle import EXTERNAL_DENIALS, Event, Transition, advance
from paywitness.core.operation import Lease, Operation, State
from paywitness.core.policy_defaults import WINDOW_SHARE_FOR_RESEND
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import (
    ErrorsUnderKey,
    FieldKind,
    FieldRef,
    ProviderContract,
)
from paywitness.core.reply import problem_reply
from paywitness.core.result import DENIALS, Classification, Effect, ResultClass
from paywitness.limits.budgets import Grant
from tests.simulation.planted_enemy_bugs import ENEMY_BUGS
from tests.simulation.planted_fallback_bugs import FALLBACK_BUGS
from tests.simulation.planted_money_bugs import MONEY_BUGS
from tests.simulation.planting import Bug, CannotPlantError, Change, Function, Patched, Replaced, Valued

PAID_TWICE = ("one effect", "no re-send in doubt", "no re-send past the window")  # or as good as
UNTRUE = (
    *("no means none, for ever", "succeeded is one effect", "the right amount", "nobody else's answer"),
    "doubt not guessed away",
)

_CORE, _ENGINE = "paywitness.core.", "paywitness.engine."
_NO_DOUBT: frozenset[int] = frozenset()


def bug(
    name: str, what: str, *changes: Change, breaks: tuple[str, ...] = (*PAID_TWICE, *UNTRUE), focus: str = ""
) -> Bug:
    return Bug(name, what, changes, breaks, focus=focus)


# --- the journal and the leases


def _taken_for_granted(right: Function) -> Function:
    async def wrong(self: Any, request: ClaimRequest, began_mono: float) -> Claim:
        """What would be asked again is answered from here."""
        sending = advance(request.fresh, Event.SEND_RECORDED)
        sending = sending.changed(lease=Lease(request.token, self.clock.now() + 30.0))
        return Claim(ClaimVerdict.OWNED, sending, self.clock.now())

    return wrong


def _always_outlasts(right: Function) -> Function:
    def wrong(self: Any, operation_id: str, token: str, seconds: float) -> bool:
        return True

    return wrong


def _outlasts_suspension(right: Function) -> Function:
    def wrong(self: Any, operation_id: str, token: str, seconds: float) -> bool:
        outlasts: bool = right(self, operation_id, token, seconds - self._clock.suspended_s)
        return outlasts

    return wrong


class _NeverExpires:
    """A journal that ends nobody's lease."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def expire_leases(self, **_: Any) -> tuple[Operation, ...]:
        return ()


def _recovers_nothing_at_start(right: Function) -> Function:
    async def wrong(self: Any, *, only_holder: bool) -> int:
        recovered: int = await right(replace(self, journal=_NeverExpires(self.journal)), only_holder=only_holder)
        return recovered

    return wrong


def _recovers_nothing(right: Function) -> Function:
    async def wrong(self: Any) -> None:
        await right(replace(self, journal=_NeverExpires(self.journal)))

    return wrong


class _NoTombstones:
    """A journal's look-ups, to which retired operations are unknown."""

    def __init__(self, lookups: Any) -> None:
        self._lookups = lookups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookups, name)

    def tombstone(self, key: str) -> None:
        return None


def _plans_without_tombstones(right: Function) -> Function:
    def wrong(request: ClaimRequest, now: float, lookups: Any) -> Any:
        return right(request, now, _NoTombstones(lookups))

    return wrong


def _ended_for_the_reply(node: ast.AST) -> ast.AST | None:
    """`if held.state is State.BACKOFF or ...: raise ...` no longer raises: `held` is ended, for the reply alone."""
    if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
        return None
    for test in ast.walk(node.test):
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Attribute)
            and isinstance(test.left.value, ast.Name)
            and test.left.attr == "state"
            and ast.unparse(test.comparators[0]) == "State.BACKOFF"
        ):
            held = test.left.value.id
            ended = f"{held} = {held}.changed(state=_planted_state, key_released=True)"
            return ast.If(node.test, ast.parse(ended).body, node.orelse)
    return None


# --- what is sent


def _key_per_attempt(right: Function) -> Function:
    def wrong(request: Any, operation: Operation, policy: Any, path_prefix: str) -> Any:
        key = operation.provider_key and f"{operation.provider_key}-{operation.attempts}"
        return right(request, operation.changed(provider_key=key), policy, path_prefix)

    return wrong


def _cannot_be_written(right: Function) -> Function:
    def wrong(request: Any, operation: Operation, policy: Any, path_prefix: str) -> Any:
        raise ValueError("no room")

    return wrong


def _always_granted(right: Function) -> Function:
    async def wrong(self: Any, priority: Any, operation: Operation, policy: Any, last: Classification) -> Grant:
        found = await right(self, priority, operation, policy, last)
        if isinstance(found, Grant):
            return found
        request = RetryRequest(self._origin(operation, policy), last.result_class, 0, priority)
        return Grant("planted", request, 0, 0.0, fleet=False)

    return wrong


# --- what an answer is read as


def _garbage_is_a_refusal(right: Function) -> Function:
    def wrong(
        evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()
    ) -> tuple[Classification, Any]:
        if evidence.sent and evidence.response is None and evidence.fault is WireFault.MALFORMED:
            return Classification.of(ResultClass.VALIDATION_ERROR, "garbage"), None
        classification, tree = right(evidence, rules, expected)
        return classification, tree

    return wrong


def _gateway_timeout_is_a_refusal(right: Function) -> Function:
    def wrong(
        evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()
    ) -> tuple[Classification, Any]:
        found, tree = right(evidence, rules, expected)
        by_status = evidence.response is not None and found.rule == f"http_{evidence.response.status_code}"
        if by_status and found.result_class is ResultClass.PROVIDER_TIMEOUT:
            refused = Classification.of(ResultClass.VALIDATION_ERROR, found.rule)
            return replace(refused, shadow_match=found.shadow_match), tree
        return found, tree

    return wrong


def _always_matches(right: Function) -> Function:
    def wrong(fit: ResponseMatcher, tree: Any, expected: ExpectedPayment) -> bool:
        return True

    return wrong


# --- the lifecycle


def _refusal_speaks_for_all(right: Function) -> Function:
    def wrong(operation: Operation, attempt: int, classification: Classification, contract: ProviderContract) -> Event:
        said_no = classification.result_class in DENIALS or classification.result_class is ResultClass.REQUIRES_ACTION
        if operation.doubt and classification.effect is Effect.NONE and not said_no:
            operation = operation.changed(doubt=frozenset({attempt}))
        event: Event = right(operation, attempt, classification, contract)
        return event

    return wrong


_OF_ONE_ATTEMPT = frozenset(
    {
        *(Event.NO_EFFECT_SEEN, Event.ACTION_SEEN_IN_DOUBT, Event.DENIAL_SEEN_IN_DOUBT, Event.DOUBT_CLEARED),
        Event.ACTION_STANDS,
    }
)


def _one_attempt_empties_doubt(right: Function) -> Function:
    def wrong(operation: Operation, event: Event, attempt: int | None, to: State) -> frozenset[int]:
        doubt: frozenset[int] = right(operation, event, attempt, to)
        return _NO_DOUBT if event in _OF_ONE_ATTEMPT else doubt

    return wrong


def _resend_forgets_doubt(right: Function) -> Function:
    def wrong(operation: Operation, event: Event, attempt: int | None = None, **other_changes: Any) -> Operation:
        after: Operation = right(operation, event, attempt, **other_changes)
        if event is not Event.RESEND_RECORDED:
            return after
        doubt = frozenset({after.attempts})
        return after.changed(doubt=doubt, answered_attempts=operation.answered_attempts & doubt)

    return wrong


_CHECKS_BEFORE_THE_TIMER = 4


def _schedule_of_four_checks(right: Function) -> Function:
    def wrong(
        operation: Operation,
        schedule_s: tuple[float, ...],
        now: float,
        jitter: float,
        *,
        proof: AbsenceProof | None = None,
    ) -> float | None:
        if operation.state is State.UNKNOWN and operation.checks_done >= _CHECKS_BEFORE_THE_TIMER:
            return None
        at: float | None = right(operation, schedule_s, now, jitter, proof=proof)
        return at

    return wrong


def _schedule_ends_doubt(right: Function) -> Function:
    def wrong(operation: Operation, event: Event, attempt: int | None = None, **other_changes: Any) -> Operation:
        if event is Event.SCHEDULE_RAN_OUT and operation.state is State.UNKNOWN:
            return operation.changed(**other_changes, state=State.FAILED, doubt=_NO_DOUBT, key_released=True)
        after: Operation = right(operation, event, attempt, **other_changes)
        return after

    return wrong


def _denial_after_success(table: dict[State, dict[Event, Transition]]) -> dict[State, dict[Event, Transition]]:
    succeeded = dict(table[State.SUCCEEDED])
    for event in (*EXTERNAL_DENIALS, Event.DENIAL_SEEN, Event.NO_EFFECT_SEEN):
        if event not in succeeded or succeeded[event].to is not State.SUCCEEDED:
            raise CannotPlantError(f"{event} does not leave a success as it is")
        succeeded[event] = Transition(State.FAILED)
    return {**table, State.SUCCEEDED: succeeded}


# --- inquiries


def _one_miss_proves(right: Function) -> Function:
    def wrong(operation: Operation, proof: AbsenceProof, now: float) -> tuple[Operation, bool]:
        after, _ = right(operation, proof, now)
        return after, after.misses > operation.misses

    return wrong


def _misses_at_once_prove(right: Function) -> Function:
    def wrong(operation: Operation, proof: AbsenceProof, now: float) -> tuple[Operation, bool]:
        after, absent = right(operation, replace(proof, lag_s=0.0), now)
        return after, absent

    return wrong


def _inquires_again_at_once(right: Function) -> Function:
    def wrong(
        operation: Operation,
        schedule_s: tuple[float, ...],
        now: float,
        jitter: float,
        *,
        proof: AbsenceProof | None = None,
    ) -> float | None:
        at: float | None
        if proof is None or now < settled_at(operation, proof.settle_s):
            at = right(operation, schedule_s, now, jitter, proof=proof)
            return at
        at = right(operation, schedule_s, now, jitter)
        return now + 0.05 if at is None else min(at, now + 0.05)

    return wrong


def _settled_when_nothing_is_under_way(right: Function) -> Function:
    def wrong(operation: Operation, settle_s: float, now: float) -> bool:
        return not operation.attempt_under_way

    return wrong


# --- keys and guards


def _sees_no_holder(right: Function) -> Function:
    def wrong(
        holders: Any,
        fresh: Operation,
        now: float,
        *,
        payment_holds: Any = None,
        once_per_target: bool = False,
        deliveries_known: bool = True,
    ) -> Any:
        return right((), fresh, now, payment_holds=payment_holds or {}, once_per_target=once_per_target)

    return wrong


def _payload_does_not_matter(right: Function) -> Function:
    def wrong(existing: Operation | None, request: ClaimRequest, now: float) -> ClaimJudgement:
        judgement: ClaimJudgement = right(existing, request, now)
        if judgement.verdict is ClaimVerdict.MISMATCH and judgement.existing is not None:
            return ClaimJudgement(lookup_verdict(judgement.existing), judgement.existing)
        return judgement

    return wrong


def _expired_was_never_sent(right: Function) -> Function:
    def wrong(held: Operation, now: float) -> Operation:
        if held.state is State.SENDING:
            undelivered = held.undelivered or is_reply_under_way(held)
            ended = held.changed(state=State.FAILED, attempt_under_way=False, key_released=True)
            return ended.changed(lease=None, due_at=None, undelivered=undelivered)
        dropped: Operation = right(held, now)
        return dropped

    return wrong


def _doubt_may_start_again(right: Function) -> Function:
    def wrong(existing: Operation, now: float, *, equal: bool) -> bool:
        if existing.state is State.UNKNOWN and existing.lease is None:
            return True
        may_start: bool = right(existing, now, equal=equal)
        return may_start

    return wrong


# --- re-sends


def _ten_windows(right: Function) -> Function:
    def wrong(self: ProviderContract) -> float:
        return self.window_s * 10 if self.dedupes and self.window_s is not None else 0.0

    return wrong


_KEYLESS_RESEND_S = 60.0


def _a_minute_without_a_key(right: Function) -> Function:
    def wrong(self: ProviderContract) -> float:
        until_s: float = right(self) if self.dedupes else _KEYLESS_RESEND_S
        return until_s

    return wrong


def _resends_without_a_key(right: Function) -> Function:
    def wrong(context: DecisionContext) -> bool:
        if not context.contract.dedupes:
            window_s = _KEYLESS_RESEND_S / WINDOW_SHARE_FOR_RESEND
            keyed = replace(context.contract, send_as=FieldRef(FieldKind.HEADER, "None"), window_s=window_s)
            context = replace(context, contract=replace(keyed, errors_under_key=ErrorsUnderKey.REEXECUTED))
        may_resend: bool = right(context)
        return may_resend

    return wrong


def _resends_after_unstored_errors(right: Function) -> Function:
    def wrong(context: DecisionContext) -> bool:
        if context.contract.errors_under_key in {ErrorsUnderKey.NOT_STORED, ErrorsUnderKey.UNKNOWN}:
            stored = replace(context.contract, errors_under_key=ErrorsUnderKey.REEXECUTED)
            context = replace(context, contract=stored)
        may_resend: bool = right(context)
        return may_resend

    return wrong


# --- replies, webhooks and announcements


def _says_not_sent(right: Function) -> Function:
    def wrong(self: Any, context: Any) -> None:
        if context.progress.may_have_sent:
            provider = context.policy.provider
            context.send_reply(problem_reply(Problem.NOT_SENT, "", shape=context.shape, provider=provider))

    return wrong


def _any_answer_takes_it(node: ast.AST) -> ast.AST | None:
    """`if response is not None and 200 <= status < 300: return True` returns True whatever the sink answered."""
    if not isinstance(node, ast.If) or [ast.unparse(statement) for statement in node.body] != ["return True"]:
        return None
    codes = {inner.value for inner in ast.walk(node.test) if isinstance(inner, ast.Constant)}
    return ast.If(ast.Constant(True), node.body, node.orelse) if {200, 300} <= codes else None


_source: ContextVar[EvidenceSource | None] = ContextVar("_source", default=None)  # of the evidence that is applied now


def _every_event_is_new(right: Function) -> Function:
    async def wrong(
        self: Any,
        provider: str,
        account: str,
        rules: Any,
        webhook_events: Any,
        headers: Any,
        raw: bytes,
        *,
        is_whole: bool,
    ) -> None:
        now = self.clock.now()
        events = tuple(replace(event, event_id=f"{event.event_id} at {now}") for event in webhook_events)
        await right(self, provider, account, rules, events, headers, raw, is_whole=is_whole)

    return wrong


def _knows_its_source(right: Callable[..., Awaitable[Any]]) -> Function:
    """Right as it is; it only says where the evidence is from."""

    async def wrong(
        self: Any,
        operation: Operation,
        policy: Any,
        source: EvidenceSource,
        finding: Any,
        *,
        provider_object: Any = None,
        may_be_stale: bool = False,
        lease_token: str | None = None,
        actor: str = "",
        note: str = "",
    ) -> Any:
        before = _source.set(source)
        given = {"provider_object": provider_object, "may_be_stale": may_be_stale, "lease_token": lease_token}
        try:
            return await right(self, operation, policy, source, finding, **given, actor=actor, note=note)
        finally:
            _source.reset(before)

    return wrong


def _event_always_changes(right: Function) -> Function:
    def wrong(before: Operation, after: Operation) -> bool:
        unchanged: bool = _source.get() is not EvidenceSource.WEBHOOK and right(before, after)
        return unchanged

    return wrong


def _event_announces_anew(right: Function) -> Function:
    def wrong(before: Operation | None, after: Operation) -> Any:
        return right(None if _source.get() is EvidenceSource.WEBHOOK else before, after)

    return wrong


BUGS = (
    bug(
        "sent_without_the_journal",
        "a sidecar sends although the journal did not confirm its claim",
        Replaced(_ENGINE + "durability.journal_writer.JournalWriter._claim_again", _taken_for_granted),
    ),
    bug(
        "new_key_per_retry",
        "each attempt has a provider key of its own",
        Replaced(_ENGINE + "calls.stored_messages.wire_request", _key_per_attempt),
        breaks=("constant key", *PAID_TWICE),
    ),
    bug(
        "doubt_closed_by_a_timer",
        "after a few inquiries without a result an operation in doubt ends as failed",
        Replaced(_CORE + "inquiry.next_inquiry_at", _schedule_of_four_checks),
        Replaced(_CORE + "lifecycle.advance", _schedule_ends_doubt),
    ),
    bug(
        "refusal_closes_the_doubt",
        "a refused re-send counts as the response to the attempts before it",
        Replaced(_CORE + "lifecycle.event_of_response", _refusal_speaks_for_all),
        Replaced(_CORE + "lifecycle._doubt_after", _one_attempt_empties_doubt),
    ),
    bug(
        "garbage_read_as_a_400",
        "bytes that are no HTTP are read as a refusal",
        Replaced(_CORE + "classify.read_response", _garbage_is_a_refusal),
    ),
    bug(
        "one_miss_is_absent",
        "one inquiry that finds nothing proves absence",
        Replaced(_CORE + "inquiry.after_miss", _one_miss_proves),
    ),
    bug(
        "absent_before_it_settled",
        "misses count while a request may still arrive",
        Replaced(_CORE + "inquiry.is_settled", _settled_when_nothing_is_under_way),
    ),
    bug(
        "lease_without_fencing",
        "the right to send is not checked before the first byte",
        Replaced(_ENGINE + "durability.leases.Leases.outlasts", _always_outlasts),
        breaks=("no send without a lease", *PAID_TWICE),
    ),
    bug(
        "doubt_forgotten_by_a_resend",
        "a re-send puts only itself in doubt",
        Replaced(_CORE + "lifecycle.advance", _resend_forgets_doubt),
    ),
    bug(
        "success_overwritten",
        "a later denial overwrites a payment that was made",
        Valued(_CORE + "lifecycle.TABLE", _denial_after_success),
    ),
    bug(
        "guard_asleep",
        "another key may pay an intent that is open",
        Replaced(_CORE + "claim.judge_guard", _sees_no_holder),
    ),
    bug(
        "resend_past_the_window",
        "a re-send counts as safe for ten times as long as the provider keeps the key",
        Replaced(_CORE + "provider_contract.ProviderContract.resend_until_s", _ten_windows),
    ),
    bug(
        "resend_though_errors_are_not_stored",
        "a re-send fetches a lost response, although it may have been an unstored error",
        Replaced(_CORE + "decide.may_resend", _resends_after_unstored_errors),
    ),
    bug(
        "resend_without_a_key",
        "a provider that does not dedupe is sent the same payment again",
        Replaced(_CORE + "decide.may_resend", _resends_without_a_key),
        # The right to send is held against this once more.
        Replaced(_CORE + "provider_contract.ProviderContract.resend_until_s", _a_minute_without_a_key),
    ),
    bug(
        "foreign_answer_believed",
        "a response is not compared with its request",
        Replaced(_CORE + "classify.matches_expected", _always_matches),
    ),
    bug(
        "deadline_says_not_sent",
        "a caller whose deadline has passed gets not_sent",
        Replaced(_ENGINE + "engine.Engine._on_deadline", _says_not_sent),
    ),
    bug(
        "answered_before_it_is_recorded",
        "a caller gets not_sent although the journal did not take it",
        Patched(_ENGINE + "calls.attempts.AttemptRecorder", _ended_for_the_reply, {"_planted_state": State.FAILED}),
    ),
    bug(
        "retries_without_a_budget",
        "a retry takes nothing from the budget",
        Replaced(_ENGINE + "calls.gate.RetryBudget.acquire", _always_granted),
        breaks=("budget",),
    ),
    bug(
        "event_dropped",
        "an event that the sink did not take is not sent again",
        Patched(_ENGINE + "outbox.Outbox", _any_answer_takes_it),
        breaks=("every event delivered",),
    ),
    bug(
        "another_payload_replayed",
        "a key that comes with another payload gets the reply to the first one",
        Replaced(_CORE + "claim.judge", _payload_does_not_matter),
    ),
    bug(
        "gateway_timeout_is_a_failure",
        "a gateway's 504 is read as without effect",
        Replaced(_CORE + "classify.read_response", _gateway_timeout_is_a_refusal),
    ),
    bug(
        "expired_lease_was_never_sent",
        "an operation whose holder died while sending counts as not sent",
        Replaced(_CORE + "claim.drop_lease", _expired_was_never_sent),
    ),
    bug(
        "webhook_applied_twice",
        "an event is applied each time that it comes, and announced again",
        Replaced(_ENGINE + "webhooks.inbox.WebhookInbox._store", _every_event_is_new),
        Replaced(_ENGINE + "resolution.external_evidence.ExternalEvidenceRecorder.apply", _knows_its_source),
        Replaced(_CORE + "external_evidence.changes_nothing", _event_always_changes),
        Replaced(_CORE + "consequences.announcement_of", _event_announces_anew),
        breaks=("an end is told once",),
    ),
    bug(
        "nothing_is_ever_sent",
        "every request counts as one that cannot be written, and its caller gets that reply",
        Replaced(_ENGINE + "calls.stored_messages.wire_request", _cannot_be_written),
        breaks=("somebody is paid",),
    ),
    bug(
        "misses_at_once_are_absence",
        "misses prove absence however fast they follow each other",
        Replaced(_CORE + "inquiry.after_miss", _misses_at_once_prove),
        Replaced(_CORE + "inquiry.next_inquiry_at", _inquires_again_at_once),
        focus="absence",
    ),
    bug(
        "tombstone_ignored",
        "a key whose operation was retired starts anew",
        Replaced("paywitness.journal.claim_plan.plan_claim", _plans_without_tombstones),
        breaks=("an old key is not executed", *PAID_TWICE),
    ),
    bug(
        "the_dead_left_lying",
        "no sidecar recovers leases that ran out",
        Replaced(_ENGINE + "durability.recovery.Recovery.at_start", _recovers_nothing_at_start),
        Replaced(_ENGINE + "durability.recovery.Recovery.keep_expiring_leases", _recovers_nothing),
        breaks=("nothing stuck",),
    ),
    bug(
        "doubt_released",
        "the key of an operation in doubt may start anew",
        Replaced(_CORE + "claim.may_start_again", _doubt_may_start_again),
    ),
    bug(
        "a_clock_that_stops_in_suspension",
        "leases are counted on a clock that does not count suspension",
        Replaced(_ENGINE + "durability.leases.Leases.outlasts", _outlasts_suspension),
        breaks=("no send without a lease", *PAID_TWICE),
    ),
    *MONEY_BUGS,
    *ENEMY_BUGS,
    *FALLBACK_BUGS,
)
