"""Writing to the journal: claims asked again with their token, records over the version that was read, and what to do
when the journal is slow to say whether it took one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from proxy.clock import Clock
from proxy.core.claim import Claim, ClaimRequest, Verdict
from proxy.core.contract import Kind
from proxy.core.errors import IllegalTransition, JournalUnavailable, StaleWrite
from proxy.core.events import IncidentKind
from proxy.core.identity import fingerprint_of, request_hash_of
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import Operation, State
from proxy.core.outside import told_by
from proxy.core.reading import Classification, Effect, Reading
from proxy.engine.errand import Errand
from proxy.engine.heard_time import HeardTime
from proxy.engine.keeping import KeptRequest, can_write, seal_credential, seal_request
from proxy.engine.leases import Leases, is_forgotten
from proxy.engine.rollback import Rollback
from proxy.journal.base import Change, Journal
from proxy.telemetry.records import JournalCalled
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

_CREDENTIALS_REMEMBERED = 10_000
_WRITE_TRIES = 5
_PAUSE_S = 0.2
_ABANDONED = Classification.of(Reading.UNKNOWN_OUTCOME, "abandoned", lost=True)


@dataclass(frozen=True, slots=True)
class Records:
    journal: Journal
    leases: Leases
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    time: HeardTime
    kept_credentials: set[tuple[str, str]] = field(default_factory=set)  # account and credential, by their hashes
    rollback: Rollback | None = None  # of a journal that may come back without its last writes
    at_one_version: bool = False  # no step is taken again from another version: what was seen is what is decided upon

    async def claim(self, errand: Errand, *, permitted: bool) -> Claim:
        """Claim the errand's operation. Asked once more with the same token where the reply was lost."""
        request = self._claim_request(errand, permitted=permitted)
        claim = await self._ask(request)
        holder = claim.operation
        if claim.verdict is Verdict.MISMATCH and holder is not None and holder.ignore != errand.identity.ignore:
            # The policy ignores other fields than it did then: compare as it did then.
            then = fingerprint_of(errand.call, errand.tree, holder.ignore, self.vault.identity_secret)
            claim = await self._ask(replace(request, compare_fingerprint=then))
        errand.journal_at, errand.journal_boot = claim.now, self.clock.boot()
        if claim.verdict is Verdict.OWNED and claim.operation is not None and self._came_too_late(errand):
            return await self._taken_back(errand, claim.operation, claim)
        return claim

    def _came_too_late(self, errand: Errand) -> bool:
        """Whether the journal rolled back since the gate was asked, and the provider would execute it twice."""
        return self.rollback is not None and not errand.policy.contract.dedupes and self.rollback.cautious()

    async def _taken_back(self, errand: Errand, operation: Operation, claim: Claim) -> Claim:
        """Nothing was sent, and nothing will be: ended in the journal before anybody is told so."""

        def step_from(current: Operation) -> Change:
            waiting = advance(current, Event.NO_EFFECT_SEEN, current.attempts)
            waiting = waiting.changed(reading=Reading.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
            ended = advance(waiting, Event.GIVEN_UP).changed(lease=None, released=True, because="journal_rolled_back")
            return Change(ended, (Event.NO_EFFECT_SEEN, Event.GIVEN_UP), told=told_by(current, ended))

        await self.write(operation, step_from)
        self.leases.let_go(operation.id)
        errand.refusal = "The journal may have forgotten its last moments. Nothing was sent. Try again in a minute."
        return Claim(Verdict.ABSENT, None, claim.now)

    async def _ask(self, request: ClaimRequest) -> Claim:
        asked_boot = self.leases.asked_at()
        try:
            claim = await self._timed_claim(request)
        except JournalUnavailable:
            await self.clock.sleep(_PAUSE_S)
            asked_boot = self.leases.asked_at()  # regained or new, the lease is not older than this claim says
            claim = await self._timed_claim(request)
            if claim.operation is not None and claim.operation.lease is not None:
                asked_boot -= max(0.0, self.leases.lease_s - (claim.operation.lease.until_at - claim.now))
        if claim.verdict is Verdict.OWNED and claim.operation is not None:
            operation = claim.operation
            self.leases.hold(operation.id, request.token, asked_boot, operation, request.sealed_request)
            if self.rollback is not None:
                self.rollback.remember(operation, sealed_request=request.sealed_request)
        return claim

    async def _timed_claim(self, request: ClaimRequest) -> Claim:
        began_mono = self.clock.mono()
        try:
            claim = await self.journal.claim(request)
        except JournalUnavailable:
            self.telemetry.tell(JournalCalled("claim", self.clock.mono() - began_mono, failed=True))
            raise
        self.telemetry.tell(JournalCalled("claim", self.clock.mono() - began_mono))
        self.time.heard(claim.now)
        return claim

    async def write(self, operation: Operation, step_from: Callable[[Operation], Change]) -> Operation:
        """Write one step. Where somebody was faster, take the step again from where the operation now stands. A step
        whose reply was lost is asked again as it was: decided anew it might differ from what was written."""
        if self.at_one_version:
            return await self._write_once(step_from(operation))
        current, unsure = operation, False
        change = step_from(current)
        for _ in range(_WRITE_TRIES):
            try:
                return await self._record(change)
            except StaleWrite:
                now_stands = await self.current(current)
                if unsure and _landed(now_stands, change):
                    return now_stands
                if now_stands.attempts < current.attempts:
                    await self._overtaken(now_stands)
                current, unsure = now_stands, False
                change = step_from(current)
            except JournalUnavailable:
                unsure = True
                await self.clock.sleep(_PAUSE_S)
        raise JournalUnavailable("the journal did not take the record")

    async def _write_once(self, change: Change) -> Operation:
        recorded = await self.take(change)
        if recorded is None:
            raise StaleWrite(f"{change.operation.id} is no longer at version {change.operation.version}")
        return recorded

    async def _overtaken(self, stands: Operation) -> None:
        """The journal forgot our last attempt, and others went on from before it: a person must look. What we know does
        not fit into what it has; a spool keeps it."""
        incident = stands.incident or IncidentKind.JOURNAL_ROLLBACK
        note = "an attempt that the journal had forgotten was answered"
        await self.take(Change(stands.changed(incident=incident), (), source="recovery", note=note))
        raise JournalUnavailable(f"the journal has forgotten an attempt of {stands.id}")

    async def take(self, change: Change) -> Operation | None:
        """Write one step over exactly this version, or None where somebody was faster. Where the journal has forgotten
        that version, it is put back first."""
        try:
            return await self._record(change)
        except StaleWrite:
            found = await self.journal.read(change.operation.id)
        before = self.leases.known(change.operation.id)
        if before is None or before.version != change.operation.version or not is_forgotten(found, before):
            return None
        stands = await self.leases.put_back(before)
        if stands.version != before.version or stands.incident == IncidentKind.JOURNAL_ROLLBACK:
            return None  # others went on meanwhile
        try:
            return await self._record(change)
        except StaleWrite:
            return None

    async def current(self, operation: Operation) -> Operation:
        """The operation as it now stands. What the journal has lost, or has older than we know, is put back."""
        found = await self.journal.read(operation.id)
        if found is not None and not is_forgotten(found, operation):
            return found
        return await self.leases.put_back(operation)

    async def _record(self, change: Change) -> Operation:
        asked_boot = self.leases.asked_at()
        began_mono = self.clock.mono()
        try:
            recorded = await self.journal.record(change)
        except JournalUnavailable:
            self.telemetry.tell(JournalCalled("record", self.clock.mono() - began_mono, failed=True))
            raise
        self.telemetry.tell(JournalCalled("record", self.clock.mono() - began_mono))
        self.time.heard(recorded.updated_at)
        # Where others went on while it was forgotten, what we know is written down, and nothing more is sent by us.
        if (
            change.lease_s is not None
            and recorded.lease is not None
            and recorded.incident != IncidentKind.JOURNAL_ROLLBACK
        ):
            self.leases.hold(recorded.id, recorded.lease.token, asked_boot, recorded)
        if self.rollback is not None:
            self.rollback.remember(recorded, sealed_response=change.sealed_response)
        return recorded

    def credential_to_keep(self, errand: Errand) -> bytes | None:
        """The caller's credential, sealed, the first time that we see the provider accept it for the account."""
        pair = (errand.identity.account, errand.identity.credential)
        if pair in self.kept_credentials:
            return None
        if len(self.kept_credentials) >= _CREDENTIALS_REMEMBERED:
            self.kept_credentials.clear()
        self.kept_credentials.add(pair)
        return seal_credential(self.vault, errand.request, errand.identity.account)

    async def write_down_abandoned(self, errand: Errand, operation: Operation) -> None:
        """Nobody will see this attempt through: what may have left is doubt, what has not is given up."""
        if not operation.attempt_under_way and operation.state is not State.BACKOFF:
            return

        def step_from(current: Operation) -> Change:
            if current.lease is None or current.lease.token != errand.token:
                # Our last record was taken after all, or a sweep was faster: it stands where it shall.
                raise IllegalTransition(f"{current.id} is no longer ours to give up")
            if current.state is State.BACKOFF:
                after, event = advance(current, Event.GIVEN_UP), Event.GIVEN_UP
            elif errand.byte_started or current.doubt:
                after, event = conclude(current, current.attempts, _ABANDONED, errand.policy.contract)
                after = after.changed(due_at=self.time.now())
            else:
                waiting = advance(current, Event.NO_EFFECT_SEEN, current.attempts)
                waiting = waiting.changed(reading=Reading.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
                after, event = advance(waiting, Event.GIVEN_UP), Event.GIVEN_UP
            released = after.state is State.FAILED
            note = "the sidecar was shut down, or failed"
            if after.doubt:
                after = after.changed(quiet_at=max(current.quiet_at or 0.0, self.time.now()))
            after = after.changed(lease=None, released=released)
            return Change(after, (event,), note=note, told=told_by(current, after))

        try:
            await self.write(operation, step_from)
        except (JournalUnavailable, IllegalTransition):
            return  # its lease runs out, and then it is doubt all the same

    def _claim_request(self, errand: Errand, *, permitted: bool) -> ClaimRequest:
        fresh = errand.operation
        if fresh is None:
            raise ValueError("an errand claims the operation that it would start")
        # What must not be stored is in the body; without it the request can still be asked about, but not sent again.
        kept = errand.request.without_body() if errand.never_stored else errand.request
        sealed_request = seal_request(self.vault, kept, fresh.id) if permitted else None
        lease_s, key_stem = self.leases.lease_s, errand.identity.key_stem
        return ClaimRequest(fresh, errand.token, permitted, lease_s, sealed_request, key_stem)


def _landed(stands: Operation, change: Change) -> bool:
    """Whether a write whose reply was lost was taken after all."""
    wanted = change.operation
    return (
        stands.version == wanted.version + 1
        and stands.state is wanted.state
        and stands.doubt == wanted.doubt
        and stands.attempts == wanted.attempts
        and stands.because == wanted.because
        and _token(stands) == _token(wanted)
    )


def _hash_of(request: KeptRequest, secret: bytes) -> str:
    return request_hash_of(request.method, request.target, request.body, secret)


def _token(operation: Operation) -> str | None:
    return operation.lease.token if operation.lease is not None else None


# A copy with what is known of a call takes a quarter of the time that setting all fields would.
_BLANK = Operation(
    id="",
    key="",
    generation=1,
    provider="",
    operation="",
    kind=Kind.SALE,
    account="",
    client_key="",
    key_source="",
    names_purchase=False,
    provider_key=None,
    fingerprint="",
    ignore=(),
    request_hash="",
    credential="",
    revision="",
    upstream="",
    created_at=0.0,
    updated_at=0.0,
)


def fresh_operation(errand: Errand, operation_id: str, now: float, secret: bytes) -> Operation:
    """The operation that this errand would start, in its first generation."""
    identity, policy, request = errand.identity, errand.policy, errand.request
    return _BLANK.changed(
        id=operation_id,
        stamp=operation_id,
        unstamped=not can_write(errand.call, policy, errand.tree, policy.stamp),
        key=identity.key,
        provider=policy.provider,
        operation=policy.operation,
        kind=policy.kind,
        account=identity.account,
        client_key=identity.client_key,
        key_source=identity.key_source,
        names_purchase=identity.names_purchase,
        provider_key=identity.provider_key,
        fingerprint=identity.fingerprint,
        ignore=identity.ignore,
        # What is kept need not be recognised by its hash.
        request_hash=_hash_of(request, secret) if errand.never_stored else "",
        credential=identity.credential,
        revision=policy.revision,
        upstream=policy.upstream,
        created_at=now,
        updated_at=now,
        money=errand.asked.money,
        guard=identity.guard,
        distinct=errand.call.wishes.distinct or "",
    )
