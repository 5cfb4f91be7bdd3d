"""The engine's entry: from a Call to a Reply. Recognises the operation, starts the pipeline, keeps the caller's
deadline.

The pipeline runs in a task of its own, so that neither a caller that leaves nor its deadline stops an attempt whose
first byte has left. A call that is no operation is forwarded once, unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Encoding, encoding_of
from paywitness.core.call import Call
from paywitness.core.credential_and_hop_headers import trace_id_of
from paywitness.core.errors import JournalNotAsked, JournalUnavailable
from paywitness.core.limit_info import with_limit_info
from paywitness.core.operation import Outcome
from paywitness.core.policy import Policy, UnmatchedCalls
from paywitness.core.problems import DEADLINE_PASSED, JOURNAL_DID_NOT_ANSWER, Problem
from paywitness.core.recognise import RecognisedCall, RecognitionRefusal, recognise
from paywitness.core.reply import ErrorShape, Reply, operation_reply, problem_reply, unknown_reply
from paywitness.engine.account_access import AccountAccess
from paywitness.engine.calls.context import CallContext, CallProgress, account_unknown, caller_context
from paywitness.engine.calls.duplicates import Leader, SingleFlight
from paywitness.engine.calls.fallback import Fallbacks
from paywitness.engine.calls.gate import Gate
from paywitness.engine.calls.passthrough import Passthrough, StreamedReply
from paywitness.engine.calls.pipeline import CallPipeline
from paywitness.engine.calls.shadow import ShadowMode
from paywitness.engine.calls.waiters import Deadlines
from paywitness.engine.credential_owners import CredentialOwners
from paywitness.engine.earlier_rules import EarlierIdentities
from paywitness.engine.intents import Intents
from paywitness.engine.resolution.payments import IntentReader
from paywitness.engine.visibility import Visibility
from paywitness.journal.base import Journal
from paywitness.policy.book import CurrentPolicies, PolicyBook
from paywitness.randomness import Randomness
from paywitness.secrets import Vault
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import CallAnswered, CallRefused


@dataclass(slots=True)
class Engine:
    pipeline: CallPipeline
    fallbacks: Fallbacks
    passthrough: Passthrough
    shadow: ShadowMode
    intents: Intents
    intent_reader: IntentReader
    credential_owners: CredentialOwners
    account_access: AccountAccess
    earlier_identities: EarlierIdentities
    journal: Journal
    vault: Vault
    gate: Gate
    clock: Clock
    randomness: Randomness
    telemetry: Telemetry
    tasks: Tasks
    policies: CurrentPolicies
    in_flight: dict[str, CallProgress] = field(default_factory=dict)
    single_flight: SingleFlight = field(default_factory=SingleFlight)
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.clock, self._on_deadline)

    @property
    def book(self) -> PolicyBook:
        return self.policies.book

    def knows(self, provider: str) -> bool:
        return provider in self.policies.book.providers

    def provider_at(self, host: str) -> str | None:
        provider = self.policies.book.provider_for_host(host)
        return provider.name if provider is not None else None

    def in_shadow_mode(self, provider: str) -> bool:
        return self.policies.book.providers[provider].observe

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        return bool(self.policies.book.candidates(provider, method, segments))

    async def reply_to(self, call: Call, still_there: Callable[[], bool]) -> Reply:
        """Carry a call that may be an operation to its reply."""
        began_mono = self.clock.mono()
        reply, name = await self._recognise_and_run(call, still_there)
        self.telemetry.emit(
            CallAnswered(
                call.provider,
                name,
                reply.outcome,
                reply.status_code,
                reply.problem,
                self.clock.mono() - began_mono,
                reply.replayed,
                reply.operation_id,
                trace_id_of(call.header("traceparent")),
            )
        )
        return reply

    async def _recognise_and_run(self, call: Call, still_there: Callable[[], bool]) -> tuple[Reply, str | None]:
        book = self.policies.book  # one book for the whole call, even if another is loaded meanwhile
        provider = book.providers[call.provider]
        if provider.observe:
            return await self.shadow.forward_whole(call, book, still_there)
        if call.provider in book.providers_with_fallback:
            call = await self._route_follow_up(call)
        recognised = await self.pipeline.long_work.run(call.body, self._recognise, call, book)
        if recognised is None:
            return await self._forward_unmatched(call), None
        if isinstance(recognised, RecognitionRefusal):
            name = recognised.policy.operation if recognised.policy is not None else None
            return self._refuse(recognised.problem, recognised.detail, call, recognised.policy), name
        policy = recognised.policy
        shape = ErrorShape(policy.problem, policy.give_up_headers, _reads_xml(call, (policy,)))
        context = caller_context(recognised, shape, still_there, self.clock, self.randomness)
        return await self._start_and_wait(context), policy.operation

    def _recognise(self, call: Call, book: PolicyBook) -> RecognisedCall | RecognitionRefusal | None:
        secret = self.vault.identity_secret
        return recognise(call, book.providers[call.provider], book.candidates, secret, self.randomness.token)

    async def _route_follow_up(self, call: Call) -> Call:
        """Send a follow-up on a fallback's payment to the route that made it. If the journal does not reply, it goes to
        the provider that its caller named, which does not know the reference."""
        with suppress(JournalUnavailable):
            return await self.fallbacks.route_follow_up(call)
        return call

    async def _start_and_wait(self, context: CallContext) -> Reply:
        self.tasks.start(self._run(context), name="carry")
        self.deadlines.add(context)
        try:
            return await context.reply
        finally:
            self.deadlines.remove(context)

    async def _run(self, context: CallContext) -> None:
        """Run the call to its end, whether or not anybody still waits. On every exit the callers that wait get a
        reply."""
        progress, leader = context.progress, None
        try:
            if context.policy.asks_before_claim:
                entered = await self._enter(context)
                if isinstance(entered, Reply):
                    reply = entered
                    return
                context = entered
            joined = await self.single_flight.join_or_lead(context, self.pipeline.reply_from_journal, self.clock)
            if isinstance(joined, Reply):
                reply = joined
            else:
                leader = joined
                reply = await self._admit_and_run(context, leader)
            if reply.problem in _SAYS_NO_EFFECT:
                self.pipeline.check_journal_remembers()
        except JournalNotAsked as not_asked:
            reply = self._reply_without_journal(context, str(not_asked))
        except JournalUnavailable:
            reply = self._reply_without_journal(context)
        except BaseException:  # cancelled, or a fault of ours: callers that wait must get the careful reply
            reply = self._reply_without_journal(context)
            raise
        finally:
            progress.finished.set_result(reply)
            is_delivered = context.send_reply(reply)
            if leader is not None:
                self.single_flight.leave(leader)
        await self.pipeline.duplicates.record_whether_delivered(context, reply, is_delivered=is_delivered)

    async def _enter(self, context: CallContext) -> CallContext | Reply:
        """Complete the call with the facts that its claim needs. Returns a reply instead if it must not be claimed,
        because its credential belongs, or may belong, to another owner."""
        entered = await self.account_access.enter(context)
        if isinstance(entered, Reply):
            return entered
        adopted = await self.earlier_identities.adopt(entered)
        if adopted is None:
            return account_unknown(entered)
        if adopted.policy.payment.intent_at is None:
            return adopted
        return await self.intent_reader.complete(adopted)  # only now the owner of the order is known

    async def _admit_and_run(self, context: CallContext, leader: Leader) -> Reply:
        """Take the call through the gate. If it would have to wait there, look its key up first: a known key needs no
        slot."""
        decision = await self.gate.admit(context, len(self.in_flight), waits=False)
        if decision.queue_full:
            if (reply := await self.pipeline.reply_to_refused(context, decision.detail)) is not None:
                return reply
            decision = await self.gate.admit(context, len(self.in_flight))
        end = await self.pipeline.run(context, decision, leader)
        while end.waits_for is not None and await self.pipeline.duplicates.wait_while_in_flight(context, end.waits_for):
            decision = await self.gate.admit(context, len(self.in_flight))
            end = await self.pipeline.run(context, decision, leader)
        reply, limit_info = end.reply, end.limit_info
        if reply.problem is Problem.NOT_SENT and not decision.granted:
            limit_info = decision.limit_info
            self.telemetry.emit(CallRefused(context.policy.provider, decision.refusal))
        if limit_info is not None and reply.repeat_helps and reply.outcome is not Outcome.SUCCEEDED:
            return with_limit_info(reply, limit_info)
        return reply

    def _reply_without_journal(self, context: CallContext, detail: str = JOURNAL_DID_NOT_ANSWER) -> Reply:
        """The reply if the journal gave none: an unknown outcome if a byte may have left, otherwise that this call sent
        nothing."""
        progress = context.progress
        if progress.may_have_sent or progress.has_sent:
            return unknown_reply(progress.operation, context.shape, sent=progress.has_sent)
        return self._refuse(Problem.JOURNAL_UNAVAILABLE, detail, context.call, context.policy)

    def _on_deadline(self, context: CallContext) -> None:
        """Reply to a caller whose time is up. If no byte can have left, none will: the call ends by itself, at once."""
        progress = context.progress
        if progress.may_have_sent:
            context.send_reply(
                unknown_reply(progress.operation, context.shape, sent=progress.has_sent, detail=DEADLINE_PASSED)
            )

    async def _forward_unmatched(self, call: Call) -> Reply:
        """Its path may be an operation's, but its body says it is none."""
        if self.policies.book.providers[call.provider].unmatched is UnmatchedCalls.REFUSE:
            return self._refuse_unmatched(call)
        return await self.passthrough.forward_whole(call, self.policies.book.providers[call.provider])

    async def forward(self, call: Call, body: AsyncIterator[bytes] | None, length: int | None) -> Reply | StreamedReply:
        """Forward a call that is no operation, streamed, once."""
        if self.policies.book.providers[call.provider].observe:
            return await self.shadow.forward_stream(call, self.policies.book.providers[call.provider], body, length)
        if call.provider in self.policies.book.providers_with_fallback:
            call = await self._route_follow_up(call)
        provider = self.policies.book.providers[call.provider]
        if provider.unmatched is UnmatchedCalls.REFUSE:
            return self._refuse_unmatched(call)
        return await self.passthrough.forward_stream(call, provider, body, length)

    def _refuse_unmatched(self, call: Call) -> Reply:
        detail = f"{call.method} {call.path} matches no operation of {call.provider}, and its policy refuses the rest."
        return self._refuse(Problem.OPERATION_NOT_ALLOWED, detail, call)

    def _refuse(self, kind: Problem, detail: str, call: Call, policy: Policy | None = None) -> Reply:
        self.telemetry.emit(CallRefused(call.provider, kind))
        provider = self.policies.book.providers.get(call.provider)
        members = policy.problem if policy is not None else provider.problem if provider is not None else None
        reads_xml = _reads_xml(call, provider.policies if provider is not None else ())
        shape = ErrorShape(members, policy.give_up_headers if policy is not None else (), xml=reads_xml)
        return problem_reply(kind, detail, shape=shape, provider=call.provider)

    async def describe_intent(self, intent: str, merchant: str | None, provider: str | None, call: Call) -> Reply:
        """Whether a purchase may be paid, for the requesting credential."""
        visibility = Visibility(self.journal, self.policies.book, self.vault.identity_secret, call)
        return await self.intents.describe(intent, merchant, provider, visibility.guards_of)

    async def describe(self, operation_id: str, call: Call) -> Reply:
        """The facts of an operation that the requesting credential may see."""
        visibility = Visibility(self.journal, self.policies.book, self.vault.identity_secret, call)
        try:
            operation = await self.journal.read(operation_id)
            if operation is not None and not await visibility.sees(operation):
                operation = None
            if operation is not None:
                operation = await self.pipeline.duplicates.note_described(operation)
        except JournalUnavailable:
            return problem_reply(Problem.JOURNAL_UNAVAILABLE, "The journal did not answer. Ask again.")
        if operation is None:
            return problem_reply(Problem.NOT_FOUND, _NO_SUCH_OPERATION)
        return operation_reply(operation)


_SAYS_NO_EFFECT = frozenset({Problem.NOT_SENT, Problem.ABSENT})
_NO_SUCH_OPERATION = (
    "The journal knows no operation of this id that this credential may see. Send the credential headers of the call "
    "that made it."
)


def _reads_xml(call: Call, policies: tuple[Policy, ...]) -> bool:
    if not policies or policies[0].encoding is not Encoding.XML:
        return False
    return encoding_of(call.body, Encoding.XML) is Encoding.XML
