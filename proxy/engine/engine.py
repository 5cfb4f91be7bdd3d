"""The engine's door: from a Call to a Reply. Recognises the operation, starts its errand, keeps the caller's deadline.

The errand runs in a task of its own, so that neither a caller that leaves nor its deadline stops an attempt whose first
byte has left. What is no operation is forwarded once, as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.body import Encoding, Tree, contains_any, decode, decompressed, written_in
from proxy.core.call import Call
from proxy.core.classify import Asked
from proxy.core.errors import BodyError, JournalUnavailable, MoneyError
from proxy.core.identity import identify, usable_key
from proxy.core.limited import limited_by
from proxy.core.operation import Outcome
from proxy.core.policy import Policy, Unmatched
from proxy.core.priority import priority_of
from proxy.core.reply import ErrorShape, Problem, Reply, described_reply, problem, unknown
from proxy.core.trace import trace_id_of
from proxy.engine.carry import Carry
from proxy.engine.deadlines import Deadlines
from proxy.engine.errand import Errand
from proxy.engine.fallback import Fallbacks
from proxy.engine.firsts import Firsts
from proxy.engine.forward import Forward, StreamedReply
from proxy.engine.gate import Gate
from proxy.engine.intents import Intents
from proxy.engine.keeping import KeptRequest, can_write
from proxy.engine.observing import Observing
from proxy.engine.records import fresh_operation
from proxy.journal.base import Journal
from proxy.policy.book import PolicyBook
from proxy.tasks import Tasks
from proxy.telemetry.records import CallAnswered, CallRefused
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

_DEADLINE_PASSED = (
    "The provider has the request and has not answered in time. The attempt goes on, and its outcome will be known. "
    "Repeat with the same key, or wait. Do not make another payment."
)
_JOURNAL_SILENT = (
    "The journal did not answer, so nothing was sent by this call; an earlier one under the same key may have been. "
    "Repeat with the same key."
)


@dataclass(slots=True)
class Engine:
    carry: Carry
    fallbacks: Fallbacks
    forwarding: Forward
    observing: Observing
    intents: Intents
    journal: Journal
    vault: Vault
    gate: Gate
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    tasks: Tasks
    book: PolicyBook
    under_way: dict[str, Errand] = field(default_factory=dict)
    firsts: Firsts = field(default_factory=Firsts)
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.clock, self._deadline)

    def knows(self, provider: str) -> bool:
        return provider in self.book.providers

    def provider_at(self, host: str) -> str | None:
        provider = self.book.provider_for_host(host)
        return provider.name if provider is not None else None

    def observes(self, provider: str) -> bool:
        return self.book.providers[provider].observe

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        return self.book.might_match(provider, method, segments)

    async def answer(self, call: Call, still_there: Callable[[], bool]) -> Reply:
        """Carry a call that may be an operation to its answer."""
        began_mono = self.clock.mono()
        reply, name = await self._answer(call, still_there)
        self.telemetry.tell(
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

    async def _answer(self, call: Call, still_there: Callable[[], bool]) -> tuple[Reply, str | None]:
        book = self.book  # one book for the whole call, whatever is loaded meanwhile
        provider = book.providers[call.provider]
        if provider.observe:
            return await self.observing.whole(call, book, still_there)
        if call.provider in book.falling_back:
            call = await self._where_it_was_made(call)
        tree_of = _TreeOnce(call, book)
        try:
            matched = book.match(call.provider, call.method, call.segments, tree_of)
        except BodyError as error:
            return self._refuse(Problem.BODY_UNREADABLE, f"{error}. Nothing was sent.", call), None
        if matched is None:
            return await self._unmatched(call), None
        policy, parameters = matched
        try:
            errand = self._errand(call, policy, tree_of(), parameters, still_there)
        except BodyError as error:
            detail = f"{error}. Nothing was sent."
            return self._refuse(Problem.BODY_UNREADABLE, detail, call, policy), policy.operation
        if isinstance(errand, Reply):
            return errand, policy.operation
        return await self._see_to(errand), policy.operation

    async def _where_it_was_made(self, call: Call) -> Call:
        """A follow-up on what a fallback made goes to the route that made it. The journal not answering, it goes where
        it was sent: there nobody knows the reference."""
        with suppress(JournalUnavailable):
            made_by = await self.fallbacks.made_elsewhere(call.provider, call.segments)
            if made_by is not None:
                return replace(call, provider=made_by)
        return call

    async def _see_to(self, errand: Errand) -> Reply:
        self.tasks.start(self._run(errand), name="carry")
        self.deadlines.keep(errand)
        try:
            return await errand.answer
        finally:
            self.deadlines.forget(errand)

    async def _run(self, errand: Errand) -> None:
        """The errand to its end, whether or not anybody still waits. Every way out tells those who wait."""
        try:
            behind = await self.firsts.answer_behind(errand, self.carry.look, self.clock)
            reply = behind or await self._carried(errand)
            if errand.limited is not None and reply.outcome is not Outcome.SUCCEEDED:
                reply = limited_by(reply, errand.limited)
        except JournalUnavailable:
            reply = self._without_a_record(errand)
        except BaseException:  # cancelled, or a fault of ours: whoever waits must hear the careful answer
            reply = self._without_a_record(errand)
            raise
        finally:
            errand.over.set_result(reply)
            errand.tell(reply)
            self.firsts.leave(errand)
            if errand.turn is not None:
                await self.gate.leave(errand)

    async def _carried(self, errand: Errand) -> Reply:
        """Through the gate. Where it would have to wait there, it looks first: what is known needs no place."""
        permit = await self.gate.permit(errand, len(self.under_way), waits=False)
        if permit.for_want_of_room:
            if (reply := await self.carry.look(errand)) is not None:
                return reply
            permit = await self.gate.permit(errand, len(self.under_way))
        errand.turn, errand.refusal = permit.turn, permit.detail
        reply = await self.carry.carry(errand, permitted=permit.granted)
        if reply.problem is Problem.NOT_SENT and not permit.granted:
            errand.limited = permit.limited
            self.telemetry.tell(CallRefused(errand.policy.provider, permit.refusal))
        return reply

    def _without_a_record(self, errand: Errand) -> Reply:
        """What can be said when no more is known: doubt if a byte may have left, else that this call did nothing."""
        if (errand.may_have_sent or errand.has_sent) and errand.operation is not None:
            return unknown(errand.operation, errand.shape, sent=errand.has_sent)
        return self._refuse(Problem.JOURNAL_UNAVAILABLE, _JOURNAL_SILENT, errand.call, errand.policy)

    def _deadline(self, errand: Errand) -> None:
        """The caller's time is up. If nothing can have left, nothing will: the errand ends by itself, at once."""
        if errand.may_have_sent and errand.operation is not None:
            errand.tell(unknown(errand.operation, errand.shape, sent=errand.has_sent, detail=_DEADLINE_PASSED))

    def _errand(
        self, call: Call, policy: Policy, tree: Tree, parameters: dict[str, str], still_there: Callable[[], bool]
    ) -> Errand | Reply:
        """Everything the errand will need, or the refusal: nothing has been written or sent so far."""
        send_as = policy.contract.send_as
        if send_as is not None and not can_write(call, policy, tree, send_as):
            raise BodyError(f"the body has no room for {send_as.name}")
        identity = identify(call, policy, tree, parameters, self.vault.identity_secret, self.chance.token)
        if policy.key_required and identity.key_source == "generated":
            detail = f"The policy of {policy.provider} demands a key: send Paywitness-Key, or the provider's own."
            return self._refuse(Problem.KEY_REQUIRED, detail, call, policy)
        if not usable_key(identity.client_key):
            detail = "A key has 1 to 255 printable characters. Nothing was sent."
            return self._refuse(Problem.KEY_INVALID, detail, call, policy)
        try:
            asked = Asked(policy.money_in(tree))
        except MoneyError:
            asked = Asked(None)  # the provider will refuse it better than we can
        loop = asyncio.get_running_loop()
        errand = Errand(
            call,
            policy,
            tree,
            identity,
            asked,
            ErrorShape(policy.problem, policy.give_up_headers, _reads_xml(call, (policy,))),
            self.chance.token(),
            self.clock.mono() + (call.wishes.timeout_s or policy.timeouts.deadline_s),
            still_there,
            KeptRequest.of(call),
            loop.create_future(),
            loop.create_future(),
        )
        errand.never_stored = contains_any(tree, policy.never_store)
        errand.priority = priority_of(call.wishes.priority, policy.priorities, tree, asked.money)
        now = self.clock.now()
        errand.operation = fresh_operation(errand, self.chance.operation_id(now), now, self.vault.identity_secret)
        return errand

    async def _unmatched(self, call: Call) -> Reply:
        """Its path may be an operation's, but its body says it is none."""
        if self.book.providers[call.provider].unmatched is Unmatched.REFUSE:
            return self._not_an_operation(call)
        return await self.forwarding.whole(call, self.book.providers[call.provider])

    async def forward(self, call: Call, body: AsyncIterator[bytes] | None, length: int | None) -> Reply | StreamedReply:
        """Forward what is no operation, streamed, once."""
        if self.book.providers[call.provider].observe:
            return await self.observing.stream(call, self.book.providers[call.provider], body, length)
        if call.provider in self.book.falling_back:
            call = await self._where_it_was_made(call)
        provider = self.book.providers[call.provider]
        if provider.unmatched is Unmatched.REFUSE:
            return self._not_an_operation(call)
        return await self.forwarding.stream(call, provider, body, length)

    def _not_an_operation(self, call: Call) -> Reply:
        detail = f"{call.method} {call.path} matches no operation of {call.provider}, and its policy refuses the rest."
        return self._refuse(Problem.OPERATION_NOT_ALLOWED, detail, call)

    def _refuse(self, kind: Problem, detail: str, call: Call, policy: Policy | None = None) -> Reply:
        self.telemetry.tell(CallRefused(call.provider, kind))
        provider = self.book.providers.get(call.provider)
        members = policy.problem if policy is not None else provider.problem if provider is not None else None
        reads_xml = _reads_xml(call, provider.policies if provider is not None else ())
        shape = ErrorShape(members, policy.give_up_headers if policy is not None else (), xml=reads_xml)
        return problem(kind, detail, shape=shape, provider=call.provider)

    async def describe_intent(self, intent: str, merchant: str | None, provider: str | None) -> Reply:
        """Whether a purchase may be paid."""
        return await self.intents.describe(intent, merchant, provider)

    async def describe(self, operation_id: str) -> Reply:
        """What a caller may know of an operation."""
        try:
            operation = await self.journal.read(operation_id)
        except JournalUnavailable:
            return problem(Problem.JOURNAL_UNAVAILABLE, "The journal did not answer. Ask again.")
        if operation is None:
            return problem(Problem.NOT_FOUND, "The journal knows no operation of this id.")
        return described_reply(operation)


class _TreeOnce:
    """The call's body as a tree, decoded when it is first asked for."""

    def __init__(self, call: Call, book: PolicyBook) -> None:
        self._call = call
        policies = book.providers[call.provider].policies
        self._encoding = policies[0].encoding if policies else Encoding.JSON
        self._tree: Tree = None
        self._decoded = False

    def __call__(self) -> Tree:
        if not self._decoded:
            plain = decompressed(self._call.body, self._call.header("Content-Encoding"))
            self._tree = decode(plain, self._encoding)
            self._decoded = True
        return self._tree


def _reads_xml(call: Call, policies: tuple[Policy, ...]) -> bool:
    if not policies or policies[0].encoding is not Encoding.XML:
        return False
    return written_in(call.body, Encoding.XML) is Encoding.XML
