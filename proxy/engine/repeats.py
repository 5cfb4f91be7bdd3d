"""Repeats: what a call is answered with when its key is already known. Nothing here sends anything."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from proxy.clock import Clock
from proxy.core.claim import AliasKind, Claim, Verdict
from proxy.core.errors import JournalUnavailable, StaleWrite, UnreadableSecret
from proxy.core.identity import request_hash_of
from proxy.core.operation import Operation, Outcome, State
from proxy.core.policy import Policy
from proxy.core.reply import Problem, Reply, closed, expired, guarded, pass_through, problem, unknown
from proxy.engine.errand import Errand
from proxy.engine.keeping import KeptRequest, open_request, open_response
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.watch import Watch
from proxy.journal.base import Change, Journal
from proxy.vault import Vault

_FIRST_LOOK_S = 0.05
_LONGEST_LOOK_S = 0.5
_LONGEST_WATCH_S = 1.0  # another process may find out, and cannot tell us


@dataclass(frozen=True, slots=True)
class Repeats:
    journal: Journal
    vault: Vault
    clock: Clock
    pinned: PinnedPolicies
    under_way: dict[str, Errand]  # by operation id: what this process carries itself
    watch: Watch

    def holder(self, claim: Claim) -> Operation:
        if claim.operation is None:
            raise ValueError(f"a claim that is {claim.verdict} names its operation")
        return claim.operation

    async def answer(self, errand: Errand, claim: Claim) -> Reply:
        """The answer to a claim that is not owned, and for whose sake nothing is sent."""
        match claim.verdict:
            case Verdict.IN_DOUBT:
                return unknown(self.holder(claim), errand.shape, sent=False)
            case Verdict.REPLAY:
                operation = await self._given_back(errand, claim)
                return self.replay(errand, operation, claim.sealed_response, seen=claim.credential_accepted)
            case Verdict.IN_FLIGHT:
                return await self.wait(errand, self.holder(claim))
            case Verdict.MISMATCH:
                return self._reused(errand, self.holder(claim))
            case Verdict.ABSENT:
                return problem(
                    Problem.NOT_SENT, errand.refusal, shape=errand.shape, provider=errand.policy.provider, sent=False
                )
            case Verdict.EXPIRED:
                return expired(claim.tombstone, errand.shape, errand.policy.provider)
            case _:
                return guarded(self.holder(claim), errand.shape)

    async def _given_back(self, errand: Errand, claim: Claim) -> Operation:
        """The claim was given an answer that had reached nobody. Where it may not be told it, or has gone as well, the
        answer still waits for whoever comes next."""
        operation = self.holder(claim)
        if not claim.heard or (claim.credential_accepted and not errand.nobody_hears):
            return operation
        taken = "" if claim.alias is AliasKind.TAKEN else operation.taken
        return await self._noted(operation.changed(unheard=True, taken=taken), "answer_given_back")

    async def _noted(self, operation: Operation, event: str) -> Operation:
        """Who heard it, written down. Where somebody was faster, or the journal is silent, it stands as it was."""
        with suppress(JournalUnavailable, StaleWrite):
            return await self.journal.record(Change(operation, (event,)))
        return operation

    def replay(self, errand: Errand, operation: Operation, sealed: bytes | None, *, seen: bool) -> Reply:
        """What is kept of an operation that has ended or stands."""
        if operation.incident is not None:
            return unknown(operation, errand.shape, sent=False)
        if not seen:
            detail = "The provider has not yet accepted this credential for the account that made the payment."
            return problem(Problem.CREDENTIAL_NOT_RECOGNISED, detail, shape=errand.shape, provider=operation.provider)
        if not sealed:
            return closed(operation, errand.shape)
        try:
            response = open_response(self.vault, sealed, operation.id)
        except UnreadableSecret:
            return closed(operation, errand.shape)
        return pass_through(operation, response, replayed=True)

    def _reused(self, errand: Errand, operation: Operation) -> Reply:
        detail = (
            f"The key was used for another payload at {operation.provider} before. Nothing was sent. "
            "Use a new key for a new payment, or repeat the first call unchanged."
        )
        return problem(Problem.KEY_REUSED, detail, operation=operation, shape=errand.shape)

    async def wait(self, errand: Errand, operation: Operation) -> Reply:
        """Wait for whoever carries it, to our own deadline: then 504 if a byte may have left, else 409."""
        carrier = self.under_way.get(operation.id)
        left_s = errand.deadline_mono - self.clock.mono()
        if carrier is not None and carrier is not errand:
            with self.watch.awaited(operation.id, lambda: not errand.nobody_hears):
                done, _ = await asyncio.wait({carrier.over}, timeout=max(0.0, left_s))
            operation = carrier.operation or operation
            if done and not carrier.over.cancelled():
                errand.operation = operation
                return await self.evidence_or(self._same_answer(errand, carrier), errand)
            may_have_sent = carrier.may_have_sent
        else:
            operation = await self._look_until_over(errand, operation)
            if operation.lease is None:
                errand.operation = operation
                return await self.evidence_or(await self._as_it_stands(errand, operation), errand)
            may_have_sent = operation.state is not State.BACKOFF
        if may_have_sent:
            return unknown(operation, errand.shape, sent=False, detail=_STILL_UNDER_WAY)
        return problem(Problem.IN_FLIGHT, NOT_YET_SENT, operation=operation, shape=errand.shape)

    def _same_answer(self, errand: Errand, carrier: Errand) -> Reply:
        """What the first call came to, told to one that waited for it."""
        reply, operation = carrier.over.result(), carrier.operation
        if reply.problem is None and operation is not None and operation.credential != errand.identity.credential:
            detail = "The provider has not yet accepted this credential for the account that made the payment."
            return problem(Problem.CREDENTIAL_NOT_RECOGNISED, detail, shape=errand.shape, provider=operation.provider)
        if reply.problem is Problem.UNKNOWN and operation is not None:
            reply = unknown(operation, errand.shape, sent=False)  # what this call did: it sent nothing itself
        return replace(reply, headers=(*reply.headers, (b"Paywitness-Replayed", b"true")), replayed=True)

    async def evidence_or(self, reply: Reply, errand: Errand) -> Reply:
        """Where somebody works on the doubt, wait to the caller's deadline for what it finds; else the reply."""
        operation = errand.operation = await self.unheard_or(errand.operation, errand)
        if operation is None:
            return reply
        if reply.problem is Problem.CLOSED_WITHOUT_RESPONSE:
            return await self._as_it_stands(errand, operation)  # an event or inquiry ended it, and showed an answer
        if operation.state is not State.UNKNOWN or not self.watch.resolving:
            return reply
        while operation.state.in_doubt and operation.incident is None and errand.still_there():
            left_s = errand.deadline_mono - self.clock.mono()
            if left_s <= 0 or self._rests_for(operation) > left_s:
                break  # nobody will look at it before the caller's time is up: it may know that now
            await self.watch.change_of(operation.id, min(left_s, _LONGEST_WATCH_S), lambda: not errand.nobody_hears)
            operation = await self.journal.read(operation.id) or operation
            if operation.state is State.REQUIRES_REVIEW:
                break
        errand.operation = operation
        if operation.state.in_doubt or operation.incident is not None:
            return reply
        return await self._as_it_stands(errand, operation)

    def _rests_for(self, operation: Operation) -> float:
        """How long nobody will look at it: it is neither held nor due before then."""
        if operation.lease is not None or operation.due_at is None:
            return 0.0
        return operation.due_at - self.clock.now()

    async def unheard_or(self, operation: Operation | None, errand: Errand) -> Operation | None:
        """What this errand saw paid or accepted, noted as unheard where its caller has gone and nobody else waits. An
        event that overtook the answer left this to whoever carries it."""
        if operation is None or operation.guard is None or operation.unheard or operation.taken:
            return operation
        if operation.lease is not None or not (operation.state is State.SUCCEEDED or operation.state is State.PENDING):
            return operation
        if not errand.nobody_hears or self.watch.is_awaited(operation.id):
            return operation
        return await self._noted(operation.changed(unheard=True), "answer_not_heard")

    async def _look_until_over(self, errand: Errand, operation: Operation) -> Operation:
        """Another process carries it: look from time to time."""
        pause_s = _FIRST_LOOK_S
        while operation.lease is not None and self.clock.mono() + pause_s < errand.deadline_mono:
            await self.clock.sleep(pause_s)
            pause_s = min(_LONGEST_LOOK_S, pause_s * 2)
            operation = await self.journal.read(operation.id) or operation
        return operation

    async def _as_it_stands(self, errand: Errand, operation: Operation) -> Reply:
        if operation.state.in_doubt or operation.incident is not None:
            return unknown(operation, errand.shape, sent=False)
        if operation.outcome is Outcome.NOT_SENT:
            detail = "The same call was under way, and the provider never executed it. It is safe to try again."
            return problem(Problem.NOT_SENT, detail, operation=operation, shape=errand.shape)
        _, sealed = await self.journal.sealed(operation.id)
        seen = operation.credential == errand.identity.credential
        if seen and operation.unheard and not errand.nobody_hears:
            operation = await self._noted(operation.changed(unheard=False), "answer_heard")
        return self.replay(errand, operation, sealed, seen=seen)

    async def kept_policy_and_request(self, errand: Errand, claim: Claim) -> tuple[Policy, KeptRequest] | None:
        """What a re-send must go by: the policy pinned to the operation, and the bytes of its first send."""
        operation = self.holder(claim)
        policy = await self.pinned.policy_of(operation, errand.policy)
        if policy is None:
            return None
        if claim.sealed_request is not None and not operation.request_hash:
            try:
                kept = open_request(self.vault, claim.sealed_request, operation.id)
            except UnreadableSecret:
                return None
            return policy, kept.with_credentials_of(errand.call.headers)
        request = errand.request
        repeated = request_hash_of(request.method, request.target, request.body, self.vault.identity_secret)
        return (policy, request) if repeated == operation.request_hash else None


_STILL_UNDER_WAY = (
    "The same call is still under way, and the provider may already have it. Repeat with the same key, or wait. "
    "Do not make another payment."
)
NOT_YET_SENT = "The same call is under way and has not been sent yet. Repeat with the same key."
