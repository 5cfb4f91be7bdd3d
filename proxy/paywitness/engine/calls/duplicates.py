"""Duplicate calls: the reply to a call whose key is already known. Nothing here sends anything.

`DuplicateCalls` replays a recorded reply, joins a call that is in flight, waits for the resolver, or refuses.
`SingleFlight` is in front of it: of the calls under one key that this process runs at once, only the leader waits for
a slot at the provider. The others wait until its claim has a result, and then get the reply from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from paywitness.clock import Clock
from paywitness.core.claim import Claim, ClaimVerdict
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import ATTEMPT_TIME_MIN_S
from paywitness.core.errors import JournalUnavailable, StaleWrite, UnreadableSecret
from paywitness.core.guard import GIVEN_BACK_BY_TAKER, is_reply_under_way, may_be_taken, names_its_purchase
from paywitness.core.identity import request_hash_of
from paywitness.core.inquiry import quiet_since
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.payment import payment_key
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.payout import PayoutRefusal
from paywitness.core.policy import Policy
from paywitness.core.problems import STILL_IN_FLIGHT, Problem
from paywitness.core.reply import (
    Reply,
    absent_reply,
    blocks_replay,
    closed_reply,
    expired_reply,
    guarded_reply,
    limit_reply,
    paid_before_reply,
    pass_through,
    payout_refused_reply,
    problem_reply,
    refunded_reply,
    unknown_reply,
)
from paywitness.engine.calls.context import AttemptContext, CallContext, CallProgress, account_unknown, another_owner
from paywitness.engine.calls.stored_messages import StoredRequest, open_request, open_response
from paywitness.engine.calls.waiters import OperationWaiters
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.policy_revisions import PinnedPolicies
from paywitness.journal.base import Journal, OperationChange
from paywitness.journal.ledger import payment_from_row
from paywitness.secrets import Vault

_NEW_KEY_OR_UNCHANGED = "Nothing was sent. Use a new key for a new payment, or repeat the first call unchanged."
_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 0.5
_LONGEST_WAIT_S = 1.0  # another process may resolve the operation, and cannot notify us
_DELIVERY_TRIES = 5  # events and inquiries may write at the same time
_WITH_EFFECT_OUTCOMES = frozenset({Outcome.SUCCEEDED, Outcome.PENDING})


@dataclass(frozen=True, slots=True)
class DuplicateCalls:
    journal: Journal
    vault: Vault
    clock: Clock
    pinned: PinnedPolicies
    in_flight: dict[str, CallProgress]  # by operation id: the calls of this process
    waiters: OperationWaiters

    def holder(self, claim: Claim) -> Operation:
        if claim.operation is None:
            raise ValueError(f"a claim that is {claim.verdict} names its operation")
        return claim.operation

    async def reply_to(self, context: CallContext, claim: Claim, refusal: str) -> Reply:
        """The reply to a claim that is not owned and that sends nothing. `refusal`: why the gate let no new operation
        start, if it did not."""
        match claim.verdict:
            case ClaimVerdict.IN_DOUBT:
                return unknown_reply(self.holder(claim), context.shape, sent=False)
            case ClaimVerdict.REPLAY:
                operation = await self._keep_undelivered(context, claim)
                return self.replay(
                    context, operation, claim.sealed_response, credential_matches=claim.credential_accepted
                )
            case ClaimVerdict.IN_FLIGHT:
                return await self.join(context, self.holder(claim))
            case ClaimVerdict.MISMATCH:
                return self._key_reused(context, self.holder(claim))
            case ClaimVerdict.ABSENT:
                detail, provider = claim.refusal or refusal, context.policy.provider
                return problem_reply(Problem.NOT_SENT, detail, shape=context.shape, provider=provider, sent=False)
            case _:
                return self._refused_reply(context, claim)

    def _refused_reply(self, context: CallContext, claim: Claim) -> Reply:
        """The reply to a claim that the intent, the payment or the rules of payouts did not let start."""
        match claim.verdict:
            case ClaimVerdict.PAID_BEFORE:
                return paid_before_reply(claim.paid_by, context.shape, context.policy.provider)
            case ClaimVerdict.REFUNDED:
                return refunded_reply(self.holder(claim), context.shape)
            case ClaimVerdict.EXCEEDS | ClaimVerdict.RESERVED:
                return limit_reply(context.policy.kind, claim.payment, claim.limit, claim.operation, context.shape)
            case ClaimVerdict.OVER_CAP | ClaimVerdict.NEEDS_APPROVAL | ClaimVerdict.CHECK_REFUSED:
                refusal = claim.payout or PayoutRefusal()
                return payout_refused_reply(refusal, context.shape, context.policy.provider)
            case ClaimVerdict.ACCOUNT_UNKNOWN:
                return account_unknown(context)
            case ClaimVerdict.ANOTHER_OWNER:
                return another_owner(context)
            case ClaimVerdict.EXPIRED:
                tombstone = claim.tombstone if claim.credential_accepted else None
                return expired_reply(tombstone, context.shape, context.policy.provider)
            case _:
                return guarded_reply(self.holder(claim), context.shape)

    async def _keep_undelivered(self, context: CallContext, claim: Claim) -> Operation:
        """The claim was given a reply that had reached nobody. If this caller may not see it, or has left too, the
        reply still waits, for the keys that it was given to: a duplicate under one of them may have got it."""
        operation = self.holder(claim)
        if not claim.took_undelivered or (claim.credential_accepted and not context.caller_gone):
            return operation
        after = operation.changed(undelivered=True, takeover=GIVEN_BACK_BY_TAKER)
        return await self._record_delivery(operation, after, "answer_given_back")

    async def _record_delivery(self, before: Operation, after: Operation, event: str) -> Operation:
        """Record who got the reply. If another writer was faster, or the journal does not reply, the call goes on with
        the operation that it has."""
        change = change_of(before, after, (event,), WriteContext(self.clock.now()))
        with suppress(JournalUnavailable, StaleWrite):
            return await self.journal.record(change)
        return after

    def replay(
        self, context: CallContext, operation: Operation, sealed: bytes | None, *, credential_matches: bool
    ) -> Reply:
        """The reply from the stored response of an operation that has ended, or whose state is settled for now."""
        if blocks_replay(operation):
            return unknown_reply(operation, context.shape, sent=False)
        if not credential_matches:
            return account_unknown(context)
        if not sealed:
            return closed_reply(operation, context.shape)
        try:
            response = open_response(self.vault, sealed, operation.id)
        except UnreadableSecret:
            return closed_reply(operation, context.shape)
        return pass_through(operation, response, replayed=True)

    def _key_reused(self, context: CallContext, operation: Operation) -> Reply:
        detail = f"The key was used for another payload at {operation.provider} before. {_NEW_KEY_OR_UNCHANGED}"
        return problem_reply(Problem.KEY_REUSED, detail, operation=operation, shape=context.shape)

    async def join(self, context: CallContext, operation: Operation) -> Reply:
        """Wait for the call that carries it, until our own deadline: then 504 if a byte may have left, else 409."""
        owner = self.in_flight.get(operation.id)
        time_left_s = context.deadline_mono - self.clock.mono()
        if owner is not None and owner is not context.progress:
            with self.waiters.waiting_for(operation.id, self._outlasts_record(context)):
                done, _ = await asyncio.wait({owner.finished}, timeout=max(0.0, time_left_s))
            operation = owner.operation
            if done and not owner.finished.cancelled():
                context.progress.stands_at(operation)
                context.progress.record_delivery(pending=operation.delivery_unknown)
                return await self.wait_for_resolution(self._joined_reply(context, owner), context)
            may_have_sent = owner.may_have_sent
        else:
            operation = await self._poll_until_finished(context, operation)
            if operation.lease is None:
                context.progress.stands_at(operation)
                reply = await self._reply_as_recorded(context, operation)
                return await self.wait_for_resolution(reply, context, recorded_elsewhere=True)
            may_have_sent = operation.state is not State.BACKOFF
        if may_have_sent:
            return unknown_reply(operation, context.shape, sent=False, detail=STILL_IN_FLIGHT)
        return problem_reply(Problem.IN_FLIGHT, NOT_YET_SENT, operation=operation, shape=context.shape)

    def _joined_reply(self, context: CallContext, owner: CallProgress) -> Reply:
        """The first call's result as the reply to a duplicate that waited for it."""
        reply, operation = owner.finished.result(), owner.operation
        if reply.problem is None and not context.credential_accepted:
            return account_unknown(context)
        if reply.problem is Problem.UNKNOWN:
            reply = unknown_reply(operation, context.shape, sent=False)  # this call itself sent nothing
        return replace(reply, headers=(*reply.headers, (b"Paywitness-Replayed", b"true")), replayed=True)

    async def wait_for_resolution(
        self,
        reply: Reply,
        context: CallContext,
        *,
        recorded_elsewhere: bool = False,
        pays_elsewhere_if_absent: bool = False,
    ) -> Reply:
        """If the resolver works on the doubt, wait for its finding, at most until the caller's deadline; otherwise
        reply now. A whole response of the provider that no row matches is passed on at once: its caller may understand
        it. If another process recorded the end, that one has noted whether anybody got the reply.
        `pays_elsewhere_if_absent`: the call made the operation, and takes another route once the operation is known to
        be absent."""
        if not recorded_elsewhere:
            await self.mark_undelivered(context)
        operation = context.progress.operation
        if reply.problem is Problem.CLOSED_WITHOUT_RESPONSE:
            return await self._reply_as_recorded(
                context, operation
            )  # a webhook event or inquiry ended it, and showed a response
        if operation.state is not State.UNKNOWN or not self.waiters.resolver_running or reply.problem is None:
            return reply
        with self.waiters.waiting_for(operation.id, self._outlasts_record(context)):
            return await self._wait_while_in_doubt(
                reply, context, operation, pays_elsewhere_if_absent=pays_elsewhere_if_absent
            )

    async def _wait_while_in_doubt(
        self, reply: Reply, context: CallContext, operation: Operation, *, pays_elsewhere_if_absent: bool
    ) -> Reply:
        """Wait until the operation is resolved, or the caller's time is up. If a webhook event ended it during a
        re-send, wait for the re-send too, because that call notes whether the reply reached anybody."""
        recorded_here = False
        while _is_unresolved(operation) and operation.incident is None and context.still_there():
            time_left_s = context.deadline_mono - self.clock.mono()
            if pays_elsewhere_if_absent and operation.absence_shown:
                break  # this call itself must end it
            if time_left_s <= 0 or self._idle_s(operation) > time_left_s:
                break  # the resolver will not take it before the caller's time is up, so reply now
            settle_s = context.policy.resolve.settle_s if pays_elsewhere_if_absent else None
            if self._has_told_all(context, operation, time_left_s, settle_s):
                break
            wait_s = min(time_left_s, _LONGEST_WAIT_S)
            recorded_here = await self.waiters.wait_for_change(operation.id, wait_s, self._outlasts_record(context))
            operation = await self.journal.read(operation.id) or operation
            if operation.state is State.REQUIRES_REVIEW:
                break
        context.progress.stands_at(operation)
        if _is_unresolved(operation) or blocks_replay(operation):
            return reply
        reply = await self._reply_as_recorded(context, operation)
        if recorded_here:
            # The journal may have taken longer than it ever should, and the caller has got its 504.
            await self.mark_undelivered(context)
        return reply

    def _outlasts_record(self, context: CallContext) -> Callable[[], bool]:
        """Whether the caller gets the reply if its record begins now. A credential that may not see it never does."""
        return lambda: context.credential_accepted and context.outlasts_record(self.clock.mono())

    def _idle_s(self, operation: Operation) -> float:
        """How long nobody will work on the operation: until then it is neither held nor due."""
        if operation.lease is not None or operation.due_at is None:
            return 0.0
        return operation.due_at - self.clock.now()

    def _has_told_all(
        self, context: CallContext, operation: Operation, time_left_s: float, settle_s: float | None
    ) -> bool:
        """Whether waiting longer brings no new evidence. The provider's error came whole, so no request is still on its
        way. An inquiry found nothing, either late enough to be trusted or with no time left for a later one.
        `settle_s`: of a call that pays elsewhere if nothing was executed; None for any other."""
        if operation.lease is not None or not operation.checks_done:
            return False
        if not operation.doubt or not operation.doubt <= operation.answered_attempts:
            return False
        lags_s = [
            inquiry.lag_s
            for inquiry in context.policy.inquiries
            if operation.reference is not None or not (inquiry.needs_reference or inquiry.names_in_path("reference"))
        ]
        if not lags_s:
            return False  # no inquiry is possible: a webhook event may still bring the outcome
        trusted_at, until_at = quiet_since(operation) + max(lags_s), self.clock.now() + time_left_s
        if settle_s is not None and trusted_at + settle_s <= until_at:
            return False  # by then it may be proven that nothing was executed, and the call may pay elsewhere
        return operation.updated_at >= trusted_at or trusted_at > until_at

    async def mark_undelivered(self, context: AttemptContext) -> None:
        """Note a paid or accepted operation as undelivered if its caller has left or may not see it, and nobody else
        got the reply or waits. A webhook event that came before the response left this to the call."""
        operation = context.progress.operation
        if operation.guard is None or operation.undelivered or operation.takeover:
            return
        if operation.lease is not None or not (operation.state is State.SUCCEEDED or operation.state is State.PENDING):
            return
        if context.may_see_reply and not context.caller_gone:
            self.waiters.note_heard(operation.id)
            return
        if self.waiters.was_heard(operation.id) or self.waiters.has_waiter(operation.id):
            return
        after = operation.changed(undelivered=True)
        context.progress.stands_at(await self._record_delivery(operation, after, "answer_not_heard"))

    async def record_whether_delivered(self, context: CallContext, reply: Reply, *, is_delivered: bool) -> None:
        """The call has ended. If its end was recorded as undelivered, because its caller's time was nearly up, record
        now whether the caller got the reply. It is too early before, because the deadline could pass during that write
        too. If duplicates of the call still wait, the last of them records that nobody got it."""
        operation = context.progress.operation
        if operation.guard is None or not operation.undelivered:
            return
        if self.waiters.was_heard(operation.id):
            return
        tells_it = reply.operation_id == operation.id and reply.outcome in _WITH_EFFECT_OUTCOMES
        if is_delivered and tells_it:
            self.waiters.note_heard(operation.id)
        elif not (context.progress.delivery_pending and operation.delivery_unknown) or self.waiters.is_awaited(
            operation.id
        ):
            return
        await self._write_delivery(operation, is_delivered=is_delivered and tells_it)

    async def _write_delivery(self, operation: Operation, *, is_delivered: bool) -> Operation:
        """Record whether the reply was delivered, even if others change the operation meanwhile."""
        with suppress(JournalUnavailable):
            for _ in range(_DELIVERY_TRIES):
                try:
                    return await self.journal.record(self._delivery_change(operation, is_delivered=is_delivered))
                except StaleWrite:
                    operation = await self.journal.read(operation.id) or operation
                if not operation.undelivered:
                    break  # an equal call took the reply, or another caller was recorded
        return operation

    async def note_described(self, operation: Operation) -> Operation:
        """A request for the operation by its id is about to get the result that it was paid or accepted, and its reply
        reached nobody. The sender may be the operation's caller, who then knows the result. So an equal call no longer
        gets that reply as its own. Raises JournalUnavailable: a result that cannot be noted must not be shown."""
        for _ in range(_DELIVERY_TRIES):
            if not operation.undelivered or operation.delivery_unknown or not may_be_taken(operation):
                return operation
            if names_its_purchase(operation):
                return operation  # an equal call means the same purchase, whoever got the reply
            after = operation.changed(delivery_unknown=True)
            try:
                return await self.journal.record(
                    change_of(operation, after, ("answer_asked_for",), WriteContext(self.clock.now()))
                )
            except StaleWrite:
                operation = await self.journal.read(operation.id) or operation
        return operation

    def _delivery_change(self, operation: Operation, *, is_delivered: bool) -> OperationChange:
        after = operation.changed(undelivered=not is_delivered, delivery_unknown=False)
        event = "answer_heard" if is_delivered else "answer_not_heard"
        return change_of(operation, after, (event,), WriteContext(self.clock.now()))

    async def wait_while_in_flight(self, context: CallContext, operation: Operation) -> bool:
        """Wait for another movement of the same payment, as long as the caller waits. Whether it may be tried again."""
        owner = self.in_flight.get(operation.id)
        time_left_s = context.deadline_mono - self.clock.mono() - ATTEMPT_TIME_MIN_S
        if time_left_s <= 0 or context.caller_gone:
            return False
        if owner is not None and owner is not context.progress:
            done, _ = await asyncio.wait({owner.finished}, timeout=time_left_s)
            return bool(done) and context.still_there()
        operation = await self._poll_until_finished(context, operation)
        return operation.lease is None and context.still_there()

    async def _poll_until_finished(self, context: CallContext, operation: Operation) -> Operation:
        """Another process carries the operation: read it from time to time."""
        pause_s = _FIRST_POLL_S
        while operation.lease is not None and self.clock.mono() + pause_s < context.deadline_mono:
            await self.clock.sleep(pause_s)
            pause_s = min(_LONGEST_POLL_S, pause_s * 2)
            operation = await self.journal.read(operation.id) or operation
        return operation

    async def _reply_as_recorded(self, context: CallContext, operation: Operation) -> Reply:
        if operation.fallback_to is not None:
            return await self._reply_of_fallback(context, operation, operation.fallback_to)
        if operation.state.in_doubt or blocks_replay(operation):
            return unknown_reply(operation, context.shape, sent=False)
        if operation.outcome is Outcome.ABSENT:
            return absent_reply(operation, context.shape)
        if operation.outcome is Outcome.NOT_SENT:
            detail = "The same call was under way, and the provider never executed it. It is safe to try again."
            return problem_reply(Problem.NOT_SENT, detail, operation=operation, shape=context.shape)
        if await self._is_given_back(context, operation):
            return refunded_reply(operation, context.shape)
        _, sealed = await self.journal.sealed(operation.id)
        credential_matches = context.credential_accepted
        if credential_matches and operation.undelivered and self._waits_for_record(context):
            operation = await self._write_delivery(operation, is_delivered=True)
            context.progress.stands_at(operation)
            self.waiters.note_heard(operation.id)
        elif credential_matches and operation.undelivered and not context.caller_gone:
            # The caller's time is nearly up. Until it is recorded whether it got the reply, nobody else gets it.
            pending = operation.changed(delivery_unknown=True)
            context.progress.record_delivery(pending=True)
            operation = await self._record_delivery(operation, pending, "answer_under_way")
            context.progress.stands_at(operation)
        elif credential_matches and not context.caller_gone:
            self.waiters.note_heard(operation.id)
        return self.replay(context, operation, sealed, credential_matches=credential_matches)

    async def _reply_of_fallback(self, context: CallContext, first: Operation, fallback_id: str) -> Reply:
        """While this call waited, another call of its key fell back to another route: reply with that outcome."""
        second = await self.journal.read(fallback_id)
        if second is None:
            return unknown_reply(first, context.shape, sent=False)
        context.progress.stands_at(second)
        return await self.join(context, second)

    async def _is_given_back(self, context: CallContext, operation: Operation) -> bool:
        """Whether the payment that a call under another key has waited for was refunded before its success was
        recorded. Then that call gets the reply of a call that comes now."""
        is_own_key = operation.key == context.identity.key
        if is_own_key or operation.state is not State.SUCCEEDED or not operation.kind.pays or not operation.payment:
            return False
        [row] = await self.journal.ledger_rows((payment_key(operation.payment),))
        return row is not None and hold_of_payment(payment_from_row(row)) is IntentHold.REFUNDED

    def _waits_for_record(self, context: CallContext) -> bool:
        """Whether the caller gets the reply after one more write. If its call sent nothing, it gets no 504 at its
        deadline, but the reply a little later."""
        return context.outlasts_record(self.clock.mono()) or not (context.caller_gone or context.progress.may_have_sent)

    async def stored_policy_and_request(
        self, context: CallContext, claim: Claim
    ) -> tuple[Policy, StoredRequest] | None:
        """The input of a re-send: the policy pinned to the operation, and the bytes of its first send."""
        operation = self.holder(claim)
        policy = await self.pinned.policy_of(operation, context.policy)
        if policy is None:
            return None
        if claim.sealed_request is not None and not operation.request_hash:
            try:
                stored = open_request(self.vault, claim.sealed_request, operation.id)
            except UnreadableSecret:
                return None
            return policy, stored.with_credentials_of(context.call.headers)
        request = context.request
        repeated = request_hash_of(request.method, request.target, request.body, self.vault.identity_secret)
        return (policy, request) if repeated == operation.request_hash else None


def _is_unresolved(operation: Operation) -> bool:
    return operation.state.in_doubt or is_reply_under_way(operation)


NOT_YET_SENT = "The same call is under way and has not been sent yet. Repeat with the same key."


# --- Single flight


@dataclass(slots=True, eq=False)
class Leader:
    """The first of the calls under one key."""

    operation: Operation  # the operation that it would start
    claim_answered: bool = False  # its claim has a result, or will not be made
    _released: asyncio.Future[None] | None = None  # the calls behind it wait for this; most leaders have none

    def release_followers(self) -> None:
        self.claim_answered = True
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def wait_for_claim(self, within_s: float) -> bool:
        """Wait for the result of its claim. Returns whether it came in time."""
        if not self.claim_answered and within_s > 0:
            if self._released is None:
                self._released = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._released}, timeout=within_s)
        return self.claim_answered


# None: the journal has no reply for the call, and it may send.
ReplyFromJournal = Callable[[CallContext], Awaitable[Reply | None]]


@dataclass(frozen=True, slots=True)
class SingleFlight:
    _leaders: dict[str, Leader] = field(default_factory=dict)  # by key, until its call has its reply

    async def join_or_lead(
        self, context: CallContext, reply_from_journal: ReplyFromJournal, clock: Clock
    ) -> Reply | Leader:
        """The reply that follows from the leader under this key. Or a new Leader: the journal has no reply for this
        call, so it goes by itself, and leads the calls that come from now on."""
        key, finished_leader = context.identity.key, None
        while (leader := self._leaders.get(key)) is not None and leader is not finished_leader:
            in_time = await leader.wait_for_claim(context.deadline_mono - clock.mono())
            if (reply := await reply_from_journal(context)) is not None:
                return reply
            if not in_time:  # nothing was found, not even a doubt; but the leader may still send
                ahead = leader.operation
                if ahead.credential != context.identity.credential:
                    return account_unknown(context)
                return problem_reply(Problem.IN_FLIGHT, NOT_YET_SENT, operation=ahead, shape=context.shape)
            finished_leader = leader  # it was refused, ended without effect, or left a doubt
        leader = self._leaders[key] = Leader(context.fresh)
        return leader

    def leave(self, leader: Leader) -> None:
        """The leader's call has its reply."""
        leader.release_followers()
        key = leader.operation.key
        if self._leaders.get(key) is leader:
            del self._leaders[key]
