"""Writing to the journal: claims that are repeated with their token, records over the version that was read, and the
retry of a write whose reply was lost.

`change_of` makes every change that is written. A writer names the event, and `core.consequences` adds its consequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from paywitness.clock import Clock, JournalClock
from paywitness.core.claim import Claim, ClaimRequest, ClaimVerdict
from paywitness.core.consequences import WriteContext, consequences
from paywitness.core.errors import IllegalTransition, JournalUnavailable, StaleWrite
from paywitness.core.fallback import FallbackChoice
from paywitness.core.identity import credential_claim, fingerprint_of
from paywitness.core.lifecycle import Event, IncidentKind, advance, conclude
from paywitness.core.operation import AttemptSummary, Finding, Operation, State
from paywitness.core.payment import ShownBalance
from paywitness.core.payment_changes import touches_payment
from paywitness.core.payment_claims import LimitVerdict
from paywitness.core.payout import spent_change
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.engine.calls.context import AttemptContext, CallContext
from paywitness.engine.calls.stored_messages import seal_credential, seal_request
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.leases import Leases, is_forgotten
from paywitness.engine.durability.levels import Levels
from paywitness.engine.durability.rollback import RollbackMonitor
from paywitness.journal.base import Journal, OperationChange
from paywitness.secrets import Vault
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import JournalCalled, LimitChecked, OperationStarted

_CREDENTIALS_REMEMBERED = 10_000
_SEALED_AGAIN_AFTER_S = 60.0  # as often as the acceptance of a credential is refreshed
_WRITE_TRIES = 5
_PAUSE_S = 0.2
_ABANDONED = Classification.of(ResultClass.UNKNOWN_OUTCOME, "abandoned", lost=True)


class ChangeDetails(TypedDict, total=False):
    """The fields of a change beside the operation: see `OperationChange`."""

    source: str
    attempt: AttemptSummary | None
    action: str
    because: str
    delay_s: float | None
    note: str
    sealed_response: bytes | None
    accepted_credential: bool
    sealed_credential: bytes | None
    finding: Finding | None
    actor: str
    fallback: FallbackChoice | None


_SHOWS_NOTHING = ShownBalance()


def change_of(
    before: Operation,
    after: Operation,
    events: tuple[str, ...],
    context: WriteContext,
    *,
    lease_s: float | None = None,
    shown: ShownBalance | None = None,
    **details: Unpack[ChangeDetails],
) -> OperationChange:
    """The change from `before` to `after`, with all its consequences. `lease_s`: how long the lease runs from now on,
    if the writer sends next and holds it. `shown`: the balance of the operation's payment that the evidence shows."""
    implied = consequences(before, after, context)
    touched = touches_payment(before, implied.operation, shown)
    return OperationChange(
        implied.operation,
        events,
        lease_s=lease_s if implied.renews_lease else None,
        erase_request=implied.erase_request,
        announcement=implied.announcement,
        shown=(shown or _SHOWS_NOTHING) if touched else None,
        spent_change=spent_change(before, implied.operation) if before.caps else 0,
        **details,
    )


@dataclass(frozen=True, slots=True)
class JournalWriter:
    journal: Journal
    leases: Leases
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    journal_clock: JournalClock
    ages: Ages
    levels: Levels | None = None  # None: limits are enforced, whoever else holds the journal
    # Hashes of account and credential -> until when the credential need not be sealed again.
    stored_credentials: dict[tuple[str, str], float] = field(default_factory=dict)
    rollback: RollbackMonitor | None = None  # for a journal that may come back without its last writes
    fail_on_conflict: bool = False  # never repeat a step from another version: the decision holds for the one read

    async def claim(self, context: CallContext, *, permitted: bool) -> Claim:
        """Claim the call's operation. If the journal's reply is lost, claim once more with the same token."""
        request = self._claim_request(context, permitted=permitted)
        claim = await self._claim_with_retry(request)
        holder = claim.operation
        if claim.verdict is ClaimVerdict.MISMATCH and holder is not None and holder.ignore != context.identity.ignore:
            # The policy ignores other fields than when the holder was claimed. Compare by the fields of that time.
            earlier_fingerprint = fingerprint_of(context.call, context.tree, holder.ignore, self.vault.identity_secret)
            claim = await self._claim_with_retry(replace(request, compare_fingerprint=earlier_fingerprint))
        if claim.limit is not None and claim.limit.verdict is not LimitVerdict.FITS:
            self.telemetry.emit(LimitChecked(context.policy.provider, context.policy.operation, claim.limit.verdict))
        if claim.verdict is ClaimVerdict.OWNED and claim.operation is not None:
            if self.rollback is not None and self._rolled_back_since_admission(context):
                return await self._end_unsent(context, claim.operation, claim)
            self.telemetry.emit(OperationStarted(claim.operation))
        return claim

    def _rolled_back_since_admission(self, context: CallContext) -> bool:
        """Whether the journal rolled back since the gate admitted the call, so that the payment could be made twice.
        That is so if the forgotten operations were not put back before this claim, or if the provider does not
        dedupe."""
        rollback = self.rollback
        if rollback is None or not rollback.recently_rolled_back():
            return False
        return rollback.must_put_back() or not context.policy.contract.dedupes

    async def _end_unsent(self, context: CallContext, operation: Operation, claim: Claim) -> Claim:
        """End an operation of which nothing was sent. The end is in the journal before the caller gets its reply."""

        def change_from(current: Operation) -> OperationChange:
            waiting = advance(current, Event.NO_EFFECT_SEEN, current.attempts)
            waiting = waiting.changed(result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
            ended = advance(waiting, Event.GIVEN_UP).changed(because="journal_rolled_back")
            known = WriteContext(self.journal_clock.now(), gives_back=context.token)
            return change_of(current, ended, (Event.NO_EFFECT_SEEN, Event.GIVEN_UP), known)

        await self.write_with_retry(operation, change_from)
        self.leases.release(operation.id)
        refusal = "The journal may have forgotten its last moments. Nothing was sent. Try again in a minute."
        return Claim(ClaimVerdict.ABSENT, None, claim.now, refusal=refusal)

    async def _claim_with_retry(self, request: ClaimRequest) -> Claim:
        requested_boot, began_mono = self.clock.boot(), self.clock.mono()
        try:
            claim = await self.journal.claim(request)
        except JournalUnavailable:
            self.telemetry.emit(JournalCalled("claim", self.clock.mono() - began_mono, failed=True))
            await self.clock.sleep(_PAUSE_S)
            requested_boot, began_mono = self.clock.boot(), self.clock.mono()
            claim = await self._claim_again(request, began_mono)
            if claim.operation is not None and claim.operation.lease is not None:
                # The first claim may have got the lease. The time left on it shows how old the lease is.
                requested_boot -= max(0.0, self.leases.lease_s - (claim.operation.lease.until_at - claim.now))
        self.telemetry.emit(JournalCalled("claim", self.clock.mono() - began_mono))
        self.journal_clock.update(claim.now)
        if claim.verdict is ClaimVerdict.OWNED and claim.operation is not None:
            operation = claim.operation
            self.leases.hold(operation.id, request.token, requested_boot, operation, request.sealed_request)
            if self.rollback is not None:
                self.rollback.remember(operation, sealed_request=request.sealed_request)
        elif claim.took_undelivered and claim.operation is not None and self.rollback is not None:
            self.rollback.remember(claim.operation)  # no other call may get that reply
        return claim

    async def _claim_again(self, request: ClaimRequest, began_mono: float) -> Claim:
        try:
            return await self.journal.claim(request)
        except JournalUnavailable:
            self.telemetry.emit(JournalCalled("claim", self.clock.mono() - began_mono, failed=True))
            raise

    async def write_with_retry(
        self, operation: Operation, change_from: Callable[[Operation], OperationChange]
    ) -> Operation:
        """Write one step. If somebody else wrote first, make the step again from the operation's present version. If
        the journal's reply is lost, repeat the same step unchanged: a new decision could differ from the written
        one."""
        if self.fail_on_conflict:
            return await self._write_once(change_from(operation))
        current, reply_lost = operation, False
        change = change_from(current)
        for _ in range(_WRITE_TRIES):
            try:
                return await self._record(change)
            except StaleWrite:
                latest = await self.current(current)
                if reply_lost and _was_written(latest, change):
                    return latest
                if latest.attempts < current.attempts:
                    await self._open_rollback_incident(latest)
                current, reply_lost = latest, False
                change = change_from(current)
            except JournalUnavailable:
                reply_lost = True
                await self.clock.sleep(_PAUSE_S)
        raise JournalUnavailable("the journal did not take the record")

    async def _write_once(self, change: OperationChange) -> Operation:
        recorded = await self.try_write(change)
        if recorded is None:
            raise StaleWrite(f"{change.operation.id} is no longer at version {change.operation.version}")
        return recorded

    async def _open_rollback_incident(self, stored: Operation) -> None:
        """The journal forgot our last attempt, and another writer went on from the version before it. Open an incident,
        because a person must decide. Our record no longer fits the journal's version, so a spool keeps it."""
        incident = stored.incident or IncidentKind.JOURNAL_ROLLBACK
        note = "an attempt that the journal had forgotten was answered"
        disputed, known = stored.changed(incident=incident), WriteContext(self.journal_clock.now())
        await self.try_write(change_of(stored, disputed, (), known, source="recovery", note=note))
        raise JournalUnavailable(f"the journal has forgotten an attempt of {stored.id}")

    async def try_write(self, change: OperationChange) -> Operation | None:
        """Write one step over exactly this version. None if somebody else wrote first. If the journal has forgotten
        that version, it is put back first."""
        try:
            return await self._record(change)
        except StaleWrite:
            found = await self.journal.read(change.operation.id)
        before = self.leases.last_written(change.operation.id)
        if before is None or before.version != change.operation.version or not is_forgotten(found, before):
            return None
        stored = await self._restore(before)
        if stored.version != before.version or stored.incident == IncidentKind.JOURNAL_ROLLBACK:
            return None  # another writer went on meanwhile
        try:
            return await self._record(change)
        except StaleWrite:
            return None

    async def current(self, operation: Operation) -> Operation:
        """The operation as it now stands. If the journal lost it, or has an older version than ours, put ours back."""
        found = await self.journal.read(operation.id)
        if found is not None and not is_forgotten(found, operation):
            return found
        return await self._restore(operation)

    async def _restore(self, operation: Operation) -> Operation:
        """Put the operation back with its sealed messages, because without its request no inquiry is possible."""
        messages = self.rollback.messages_of(operation.id) if self.rollback is not None else (None, None)
        return await self.leases.restore(operation, *messages)

    async def _record(self, change: OperationChange) -> Operation:
        if change.operation.incident is None and self.leases.take_dispute(change.operation.id):
            raise StaleWrite(f"{change.operation.id} was restored with an incident")
        if change.shown is not None and self.rollback is not None and self.rollback.recently_rolled_back():
            change = replace(change, numbers_forgotten=True)
        requested_boot = self.clock.boot()
        began_mono = self.clock.mono()
        try:
            recorded = await self.journal.record(change)
        except JournalUnavailable:
            self.telemetry.emit(JournalCalled("record", self.clock.mono() - began_mono, failed=True))
            raise
        self.telemetry.emit(JournalCalled("record", self.clock.mono() - began_mono))
        self.journal_clock.update(recorded.updated_at)
        self.ages.due_times.note_written(change, recorded)
        # If another writer went on while the operation was forgotten, we record our facts and send nothing more.
        if (
            change.lease_s is not None
            and recorded.lease is not None
            and recorded.incident != IncidentKind.JOURNAL_ROLLBACK
        ):
            self.leases.hold(recorded.id, recorded.lease.token, requested_boot, recorded)
        if self.rollback is not None:
            self.rollback.remember(recorded, sealed_response=change.sealed_response)
        return recorded

    def credential_to_store(self, context: AttemptContext) -> bytes | None:
        """The sealed credential of the request, which the provider accepted for the account. None if it is stored
        already."""
        account, credential = context.account_and_credential
        if self.clock.mono() < self.stored_credentials.get((account, credential), 0.0):
            return None
        return seal_credential(self.vault, context.request, account)

    def note_credential_stored(self, context: AttemptContext) -> None:
        """Note that the journal has taken the credential. It is sealed again later, because retention may remove it."""
        if len(self.stored_credentials) >= _CREDENTIALS_REMEMBERED:
            self.stored_credentials.clear()
        self.stored_credentials[context.account_and_credential] = self.clock.mono() + _SEALED_AGAIN_AFTER_S

    async def record_abandoned(self, context: AttemptContext, operation: Operation) -> None:
        """Record an attempt that nobody will finish. If a byte may have left, it is doubt; otherwise it is given up."""
        if not operation.attempt_under_way and operation.state is not State.BACKOFF:
            return

        def change_from(current: Operation) -> OperationChange:
            if current.lease is None or current.lease.token != context.token:
                # The journal took our last record after all, or a sweep was faster: nothing is left to record.
                raise IllegalTransition(f"{current.id} is no longer ours to give up")
            if current.state is State.BACKOFF:
                after, event = advance(current, Event.GIVEN_UP), Event.GIVEN_UP
            elif context.progress.byte_started or current.doubt:
                after, event = conclude(current, current.attempts, _ABANDONED, context.policy.contract)
            else:
                waiting = advance(current, Event.NO_EFFECT_SEEN, current.attempts)
                waiting = waiting.changed(result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
                after, event = advance(waiting, Event.GIVEN_UP), Event.GIVEN_UP
            now = self.journal_clock.now()
            known = WriteContext(
                now, gives_back=context.token, check_doubt_now=True, no_bytes_after_at=now, reached=False
            )
            return change_of(current, after, (event,), known, note="the sidecar was shut down, or failed")

        try:
            await self.write_with_retry(operation, change_from)
        except (JournalUnavailable, IllegalTransition):
            return  # when its lease runs out, a sweep puts it in doubt all the same

    def _claim_request(self, context: CallContext, *, permitted: bool) -> ClaimRequest:
        fresh = context.fresh
        # Data that must not be stored is in the body. Without its body a request allows an inquiry, but no re-send.
        storable = context.request.without_body() if context.holds_unstorable_data else context.request
        sealed_request = seal_request(self.vault, storable, fresh.id) if permitted else None
        lease_s, key_stem = self.leases.lease_s, context.identity.key_stem
        return ClaimRequest(
            fresh,
            context.token,
            permitted,
            lease_s,
            sealed_request,
            key_stem,
            payment=context.payment_claim,
            payout=context.payout_claim,
            credential=credential_claim(context.policy, context.identity),
            limits_from=self.levels.limits_from if self.levels is not None else "",
            leases_over_at=self.ages.leases_over_at(lease_s),
            deliveries_known=self.rollback is None or not self.rollback.recently_rolled_back(),
        )


def _was_written(stored: Operation, change: OperationChange) -> bool:
    """Whether the journal took a write whose reply was lost."""
    wanted = change.operation
    return (
        stored.version == wanted.version + 1
        and stored.state is wanted.state
        and stored.doubt == wanted.doubt
        and stored.attempts == wanted.attempts
        and stored.because == wanted.because
        and _lease_token(stored) == _lease_token(wanted)
    )


def _lease_token(operation: Operation) -> str | None:
    return operation.lease.token if operation.lease is not None else None
