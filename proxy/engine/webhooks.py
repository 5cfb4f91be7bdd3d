"""Webhooks: a provider's events, checked, kept, acknowledged, and only then applied. Never the other way round.

    check      is it genuine, under a secret of the account in the address? If not, nothing of it is kept
    hint       what the provider does not sign is a reason to ask it, where the policy says so; nothing of it is kept
    keep       every event, sealed, once by its id: durable before the provider hears 2xx
    apply      in the background: find the operation, read the event under its pinned policy, conclude
    wait       what matches nothing yet, or must wait for an attempt under way, is tried again for seven days
    relay      to the service's own address, where the policy gives one

The journal is the queue: a crash at any point leaves the event where the next look finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.clock import Clock
from proxy.core.body import Tree
from proxy.core.call import Headers
from proxy.core.classify import evaluate
from proxy.core.errors import BodyError, JournalUnavailable, UnreadableSecret
from proxy.core.notice import Notice, NoticeRules, notices_in
from proxy.core.operation import Operation
from proxy.core.policy import Provider
from proxy.core.reply import end_to_end
from proxy.engine.applying import Applying
from proxy.engine.certificates import Certificates
from proxy.engine.checking import scheme_for, tree_told
from proxy.engine.delivery import Delivery, open_delivery, seal_delivery
from proxy.engine.hints import Hints
from proxy.engine.relay import LEASE_S, RELAYS_MAX, Relay, next_relay_at
from proxy.journal.base import Journal, KeptNotice, NoticeResult
from proxy.policy.book import PolicyBook
from proxy.schemes.base import Scheme, Verdict, Wrapped
from proxy.tasks import TaskRefused, Tasks
from proxy.telemetry.lines import place_of
from proxy.telemetry.names import OTHER
from proxy.telemetry.records import JournalCalled, NoticeReceived
from proxy.telemetry.telemetry import Telemetry
from proxy.vault import Vault

_log = logging.getLogger("paywitness.webhooks")

BATCH = 64  # notices taken from the journal at a time
APPLYING_MAX = 8  # applied at the same time
_LOOK_EVERY_S = 1.0
_LOOK_SOONEST_S = 0.05
_KEEP_WAITING_S = 7 * 86400.0
# An answer that crossed its own webhook is recorded within a second or two. After that it is somebody else's payment,
# or one whose reference we learn when its doubt is resolved: the steps of the resolver's schedule.
_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)


class Received(StrEnum):
    """What a delivery came to, beside the verdicts of the schemes; and what became of relaying it."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_ADDRESS = "unknown_address"
    NO_SECRET = "no_secret"
    NO_SCHEME = "no_scheme"
    NO_CERTIFICATE = "no_certificate"
    HINTED = "hinted"  # not signed, and not kept: what it names, if we know it, was asked about
    HELD_BACK = "held_back"  # not signed, and could not be asked about now
    UNREADABLE = "unreadable"
    NO_EVENT_ID = "no_event_id"
    IGNORED = "ignored"  # the policy's `events` leaves nothing of it
    NOT_KEPT = "not_kept"
    RELAYED = "relayed"
    RELAY_FAILED = "relay_failed"
    RELAY_GIVEN_UP = "relay_given_up"


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """What the provider is told. Beside a 2xx the status says everything: a stranger learns nothing from it."""

    status_code: int
    body: bytes = b""


_NOT_FOUND, _UNAVAILABLE = WebhookReply(404), WebhookReply(503)
_UNREADABLE, _NO_EVENT_ID = WebhookReply(400), WebhookReply(422)


@dataclass(slots=True)
class Webhooks:
    journal: Journal
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    applying: Applying
    relay: Relay
    book: Callable[[], PolicyBook]
    environment: Mapping[str, str]
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _relays: Tasks = field(default_factory=lambda: Tasks(RELAYS_MAX))
    _relaying: set[int] = field(default_factory=set)  # numbers of notices
    _unset: set[str] = field(default_factory=set)  # variables that were missed, told once each
    _certificates: Certificates = field(init=False)
    _hints: Hints = field(init=False)

    def __post_init__(self) -> None:
        self._certificates = Certificates(self.relay.upstream, self.clock)
        self._hints = Hints(self.applying, self.clock)

    # -- the provider's request

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply:
        """Check a delivery, keep its events, and say so. `account` is the one in the address; "" is the main one."""
        entry = self.book().providers.get(provider)
        rules = entry.notices if entry is not None else None
        if entry is None or rules is None or account not in rules.secrets:
            told_of = provider if entry is not None else OTHER  # a stranger's word is not repeated, not even in a log
            return self._told(told_of, Received.UNKNOWN_ADDRESS, _NOT_FOUND)
        scheme = scheme_for(rules, self.environment)
        if scheme is None:
            return self._told(provider, Received.NO_SCHEME, _UNAVAILABLE)
        secrets = self._secrets(rules.secrets[account])
        if rules.secrets[account] and not secrets:
            return self._told(provider, Received.NO_SECRET, _UNAVAILABLE)
        equipped = await self._certificates.equip(scheme, headers)
        if equipped is None:
            return self._told(provider, Received.NO_CERTIFICATE, _UNAVAILABLE)
        check = equipped.check(headers, body, secrets, self.clock.now(), rules.tolerance_s)
        if check.verdict is Verdict.UNSIGNED and rules.hint:
            return await self._hinted(entry, account, rules, scheme, headers, body)
        if check.verdict is not Verdict.GENUINE:
            return self._told(provider, check.verdict, WebhookReply(rules.refuse_with))
        return await self._genuine(provider, account, rules, scheme, headers, body)

    async def _hinted(
        self, entry: Provider, account: str, rules: NoticeRules, scheme: Scheme, headers: Headers, body: bytes
    ) -> WebhookReply:
        try:
            notices = notices_in(rules, tree_told(scheme, headers, body), end_to_end(headers))
            done = await self._hints.take(notices, account, entry, rules, self.book())
        except BodyError:
            return self._told(entry.name, Received.UNREADABLE, _UNREADABLE)
        except JournalUnavailable:
            return self._told(entry.name, Received.NOT_KEPT, _UNAVAILABLE)
        if not done:
            return self._told(entry.name, Received.HELD_BACK, _UNAVAILABLE)
        return self._told(entry.name, Received.HINTED, WebhookReply(200, rules.reply.encode()))

    async def _genuine(
        self, provider: str, account: str, rules: NoticeRules, scheme: Scheme, headers: Headers, body: bytes
    ) -> WebhookReply:
        """Keep what it tells. What cannot be kept is not acknowledged: that would lose it silently."""
        notices: tuple[Notice, ...] = ()
        theirs = end_to_end(headers)
        reply, refusal = WebhookReply(200, rules.reply.encode()), ""
        try:
            tree = tree_told(scheme, headers, body)
            notices, events = notices_in(rules, tree, theirs), _events_in(rules, tree)
            if len(notices) < events:
                reply, refusal = _NO_EVENT_ID, Received.NO_EVENT_ID
            elif not events:
                refusal = Received.IGNORED
        except BodyError:
            reply, refusal = _UNREADABLE, Received.UNREADABLE
        try:
            if notices:
                is_whole = rules.events is None and not isinstance(scheme, Wrapped)
                await self._keep(provider, account, rules, notices, theirs, body, is_whole=is_whole)
            elif rules.relay is not None:
                await self._keep_unread(provider, account, theirs, body)
        except JournalUnavailable:
            return self._told(provider, Received.NOT_KEPT, _UNAVAILABLE)
        finally:
            self._wake.set()
        return self._told(provider, refusal, reply) if refusal else reply

    def _told(self, provider: str, result: str, reply: WebhookReply) -> WebhookReply:
        self.telemetry.tell(NoticeReceived(provider, result))
        return reply

    def _secrets(self, names: tuple[str, ...]) -> list[bytes]:
        for name in names:
            if not self.environment.get(name) and name not in self._unset:
                self._unset.add(name)
                _log.error("a webhook's secret is not set: %s; deliveries signed with it are refused", name)
        return [value.encode() for name in names if (value := self.environment.get(name))]

    async def _keep(
        self,
        provider: str,
        account: str,
        rules: NoticeRules,
        notices: tuple[Notice, ...],
        headers: Headers,
        raw: bytes,
        *,
        is_whole: bool,
    ) -> None:
        """Keep every event. The first that is new carries the delivery to the relay. Raises JournalUnavailable."""

        async def keep(notice: Notice, *, carries: bool) -> bool:
            now = self.clock.now()
            delivery = Delivery(headers, notice.event, raw if carries else b"")
            bound_to = _bound_to(provider, account, notice.event_id)
            sealed = seal_delivery(self.vault, delivery, bound_to, is_whole=is_whole)
            relay_due_at = now if carries else None
            kept = await self._written(
                KeptNotice(0, provider, account, notice.event_id, now, sealed, due_at=now, relay_due_at=relay_due_at)
            )
            self.telemetry.tell(NoticeReceived(provider, Received.ACCEPTED if kept else Received.DUPLICATE))
            return kept

        rest = list(notices)
        if rules.relay is not None:
            while rest and not await keep(rest.pop(0), carries=True):
                pass
        # All of them, whatever becomes of one: what is kept now is a duplicate when the provider tries again.
        outcomes = await asyncio.gather(*(keep(notice, carries=False) for notice in rest), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _keep_unread(self, provider: str, account: str, headers: Headers, raw: bytes) -> None:
        """What tells us nothing may tell the service something: kept for the relay alone. Raises JournalUnavailable."""
        now = self.clock.now()
        name = f"delivery:{hashlib.sha256(raw).hexdigest()}"  # it has no id; a repetition has the same bytes
        bound_to = _bound_to(provider, account, name)
        sealed = seal_delivery(self.vault, Delivery(headers, None, raw), bound_to, is_whole=True)
        result = NoticeResult.NOTHING_NEW
        await self._written(KeptNotice(0, provider, account, name, now, sealed, result, relay_due_at=now))

    async def _written(self, notice: KeptNotice) -> bool:
        """Whether it is new; either way it is durable now. Raises JournalUnavailable."""
        began_mono = self.clock.mono()
        failed = True
        try:
            new = await self.journal.keep_notice(notice)
            failed = False
        finally:
            self.telemetry.tell(JournalCalled("keep_notice", self.clock.mono() - began_mono, failed))
        return new

    # -- in the background

    async def keep_applying(self) -> None:
        """Apply and relay what is due, for as long as the sidecar runs."""
        while True:
            self._wake.clear()
            try:
                pause_s = await self.apply_due()
            except JournalUnavailable:
                pause_s = _LOOK_EVERY_S  # whoever needs the journal next says so louder
            if pause_s > 0:
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: until Python 3.12 it forgets a cancellation that comes together with the event.
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()

    async def apply_due(self) -> float:
        """Apply and relay what is due now; how long to wait before the next look. Raises JournalUnavailable."""
        due = await self.journal.notices_due(limit=BATCH)
        free = [notice for notice in due if notice.number not in self._relaying]
        places = asyncio.Semaphore(APPLYING_MAX)

        async def see_to(notice: KeptNotice) -> KeptNotice:
            async with places:
                return await self._see_to(notice)

        outcomes = await asyncio.gather(*(see_to(notice) for notice in free), return_exceptions=True)
        pauses_s, seen_to = [_LOOK_EVERY_S], 0
        for outcome in outcomes:
            if isinstance(outcome, JournalUnavailable):
                raise outcome
            if isinstance(outcome, BaseException):  # one that we cannot cope with must not stop the others
                _log.error("a webhook was not seen to: %s at %s", type(outcome).__name__, place_of(outcome))
                continue
            seen_to += 1
            if outcome.due_at is not None:
                pauses_s.append(outcome.due_at - self.clock.now())
        return 0.0 if seen_to and len(due) == BATCH else max(_LOOK_SOONEST_S, min(pauses_s))

    def wake(self) -> None:
        """Look now: a notice may have become due."""
        self._wake.set()

    async def close(self) -> None:
        """Give up the relays that are under way: they are tried again after the next start."""
        await self._relays.stop()

    async def _see_to(self, notice: KeptNotice) -> KeptNotice:
        """One notice that is due: apply it, write down what became of it, and relay it. Raises JournalUnavailable."""
        # The journal says that it is due, by its own clock; ours may be behind.
        now = max(self.clock.now(), min(at for at in (notice.due_at, notice.relay_due_at) if at is not None))
        provider = self.book().providers.get(notice.provider)
        rules = provider.notices if provider is not None else None
        after, operation, delivery = notice, None, None
        try:
            bound_to = _bound_to(notice.provider, notice.account, notice.event_id)
            delivery = open_delivery(self.vault, notice.sealed, bound_to)
        except UnreadableSecret:
            _log.error("a kept webhook of %s cannot be opened: is a key of the ring missing?", notice.provider)
        if notice.result is NoticeResult.WAITING and _is_due(notice.due_at, now):
            after, operation = await self._applied(notice, provider, delivery)
        url = rules.relay if rules is not None and delivery is not None else None
        begins = False
        if _is_due(notice.relay_due_at, now):
            begins = url is not None and len(self._relaying) < RELAYS_MAX
            relay_due_at = now + LEASE_S if begins else next_relay_at(notice.received_at, now)
            after = replace(after, relay_due_at=relay_due_at)
        if begins:
            self._relaying.add(notice.number)
        try:
            if after != notice:
                await self.journal.move_notice(after)
        except BaseException:
            self._relaying.discard(notice.number)
            raise
        if after.result is not notice.result:
            self.telemetry.tell(NoticeReceived(notice.provider, after.result))
        if begins and url is not None and delivery is not None:
            self._start_relay(after, url, delivery, operation)
        return after

    async def _applied(
        self, notice: KeptNotice, provider: Provider | None, delivery: Delivery | None
    ) -> tuple[KeptNotice, Operation | None]:
        result, operation = NoticeResult.WAITING, None
        if provider is not None and provider.notices is not None and delivery is not None:
            try:
                result, operation = await self.applying.apply(notice, delivery, provider, self.book())
            except JournalUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  # one event that we cannot cope with must not stop the others
                _log.error("applying a webhook failed by %s at %s", type(error).__name__, place_of(error))
        operation_id = operation.id if operation is not None else notice.operation_id
        moved = replace(notice, operation_id=operation_id, tries=notice.tries + 1)
        if result is not NoticeResult.WAITING:
            return replace(moved, result=result, due_at=None), operation
        now = self.clock.now()
        due_at = now + _DELAYS_S[min(notice.tries, len(_DELAYS_S) - 1)]
        if due_at - notice.received_at > _KEEP_WAITING_S:
            return replace(moved, result=NoticeResult.UNMATCHED, due_at=None), operation
        return replace(moved, due_at=due_at), operation

    # -- the relay

    def _start_relay(self, notice: KeptNotice, url: str, delivery: Delivery, operation: Operation | None) -> None:
        try:
            self._relays.start(self._relay(notice, url, delivery, operation), "webhook-relay")
        except TaskRefused:
            self._relaying.discard(notice.number)  # its lease runs out, and it is tried again

    async def _relay(self, notice: KeptNotice, url: str, delivery: Delivery, operation: Operation | None) -> None:
        try:
            if operation is None and notice.operation_id is not None:
                operation = await self.journal.read(notice.operation_id)
            taken = await self.relay.deliver(url, delivery, operation)
            again_at = None if taken else next_relay_at(notice.received_at, self.clock.now())
            result = Received.RELAYED if taken else Received.RELAY_FAILED
            if not taken and again_at is None:
                result = Received.RELAY_GIVEN_UP
            self.telemetry.tell(NoticeReceived(notice.provider, result))
            await self.journal.move_notice(replace(notice, relay_due_at=again_at))
        except JournalUnavailable:
            return  # told twice rather than never: its lease runs out
        finally:
            self._relaying.discard(notice.number)
            self._wake.set()


def _bound_to(provider: str, account: str, event_id: str) -> str:
    return f"notice:{provider}:{account}:{event_id}"


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _events_in(rules: NoticeRules, tree: Tree) -> int:
    found = evaluate(rules.events, tree) if rules.events is not None else None
    return len(found) if isinstance(found, list) else 1
