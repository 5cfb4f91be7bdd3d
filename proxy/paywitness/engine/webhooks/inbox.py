"""The inbox of a provider's webhooks: check, store, acknowledge, and only then apply. Never the other way round.

    check      is the webhook genuine, under a secret of the account in the address? If not, nothing of it is stored
    hint       an unsigned webhook is a reason to inquire, if the policy says so; nothing of it is stored
    store      every event, sealed, once by its id: durable before the provider gets a 2xx
    apply      in the background: find the operation, read the event under its pinned policy, conclude
    wait       an event that matches nothing yet, or must wait for an attempt under way, is tried again for seven days
    relay      to the service's own address, if the policy gives one

The journal is the queue: after a crash at any point, the next turn finds the event there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from paywitness.clock import Clock
from paywitness.core.bodies.bounds import UNVERIFIED_BOUNDS
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Headers
from paywitness.core.credential_and_hop_headers import end_to_end
from paywitness.core.errors import BodyError, JournalUnavailable, UnreadableSecret
from paywitness.core.operation import Operation
from paywitness.core.policy import Provider
from paywitness.core.webhook_event import (
    WebhookEvent,
    WebhookRules,
    delay_of_event,
    delay_since_send,
    rematch_delay_s,
    webhook_events_in,
)
from paywitness.engine.durability.due_times import DueTimes
from paywitness.engine.webhooks.applier import Hints, WebhookApplier
from paywitness.engine.webhooks.relay import RELAY_LEASE_S, RELAYS_MAX, Relay, next_relay_at
from paywitness.engine.webhooks.verification import (
    SignerCertificates,
    StoredWebhook,
    decode_payload,
    open_webhook,
    scheme_for,
    seal_webhook,
)
from paywitness.journal.base import Journal, StoredWebhookEvent, WebhookEventResult
from paywitness.policy.book import PolicyBook
from paywitness.repeated_lines import REPEATS, repeats
from paywitness.secrets import Vault
from paywitness.tasks import TaskRefused, Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import JournalCalled, WebhookDelayed, WebhookReceived
from paywitness.telemetry.logs import raised_at
from paywitness.telemetry.prometheus import OTHER
from paywitness.webhook_signatures.scheme import PayloadExtractor, SignatureScheme, SignatureVerdict

_log = logging.getLogger("paywitness.webhooks")

BATCH_SIZE = 64  # webhook events taken from the journal at a time
APPLYING_MAX = 8  # applied at the same time
_RETRY_AFTER_S = 1.0
_UNMATCHED_AFTER_S = 7 * 86400.0


class InboxResult(StrEnum):
    """The result of a webhook, beside the verdicts of the schemes; and the result of its relay."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_ADDRESS = "unknown_address"
    NO_SECRET = "no_secret"
    NO_SCHEME = "no_scheme"
    NO_CERTIFICATE = "no_certificate"
    HINTED = "hinted"  # not signed, and not stored: the operation that it names, if we know it, was inquired about
    HELD_BACK = "held_back"  # not signed, and the inquiry could not be made now
    UNREADABLE = "unreadable"
    NO_EVENT_ID = "no_event_id"
    IGNORED = "ignored"  # the policy's `events` selects no event of it
    NOT_KEPT = "not_kept"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"  # too many webhooks of one address were not genuine
    RELAYED = "relayed"
    RELAY_FAILED = "relay_failed"
    RELAY_GIVEN_UP = "relay_given_up"


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """Our reply to the provider. Without a 2xx there is only the status, so that a stranger learns nothing."""

    status_code: int
    body: bytes = b""
    genuine: bool = False  # its signature was good


_NOT_FOUND, _UNAVAILABLE = WebhookReply(404), WebhookReply(503)
_UNREADABLE, _NO_EVENT_ID = WebhookReply(400), WebhookReply(422)


@dataclass(slots=True)
class WebhookInbox:
    journal: Journal
    vault: Vault
    clock: Clock
    telemetry: Telemetry
    applier: WebhookApplier
    relay: Relay
    book: Callable[[], PolicyBook]
    environment: Mapping[str, str]
    due_times: DueTimes
    _relays: Tasks = field(default_factory=lambda: Tasks(RELAYS_MAX))
    _relaying: set[int] = field(default_factory=set)  # numbers of webhook events
    _signer_certificates: SignerCertificates = field(init=False)
    _hints: Hints = field(init=False)

    def __post_init__(self) -> None:
        self._signer_certificates = SignerCertificates(self.relay.upstream, self.clock)
        self._hints = Hints(self.applier, self.clock)

    # -- the provider's request

    async def receive(self, provider: str, account: str, headers: Headers, body: bytes) -> WebhookReply:
        """Check a webhook and store its events. `account` is the one in the address; "" is the main one."""
        entry = self.book().providers.get(provider)
        rules = entry.webhook_rules if entry is not None else None
        if entry is None or rules is None or account not in rules.secrets:
            label = provider if entry is not None else OTHER  # a stranger's text is not repeated, not even in a log
            return self._report(label, InboxResult.UNKNOWN_ADDRESS, _NOT_FOUND)
        scheme = scheme_for(rules, self.environment)
        if scheme is None:
            return self._report(provider, InboxResult.NO_SCHEME, _UNAVAILABLE)
        secrets = self._secrets(rules.secrets[account])
        if rules.secrets[account] and not secrets:
            return self._report(provider, InboxResult.NO_SECRET, _UNAVAILABLE)
        ready_scheme = await self._signer_certificates.scheme_with_certificate(scheme, headers)
        if ready_scheme is None:
            return self._report(provider, InboxResult.NO_CERTIFICATE, _UNAVAILABLE)
        check = ready_scheme.check(headers, body, secrets, self.clock.now(), rules.tolerance_s)
        if check.verdict is SignatureVerdict.UNSIGNED and rules.hint:
            return await self._receive_hint(entry, account, rules, scheme, headers, body)
        if check.verdict is not SignatureVerdict.GENUINE:
            return self._report(provider, check.verdict, WebhookReply(rules.refuse_with))
        return await self._receive_genuine(provider, account, rules, scheme, headers, body)

    async def _receive_hint(
        self, entry: Provider, account: str, rules: WebhookRules, scheme: SignatureScheme, headers: Headers, body: bytes
    ) -> WebhookReply:
        try:
            tree = decode_payload(scheme, headers, body, UNVERIFIED_BOUNDS)
            webhook_events = webhook_events_in(rules, tree, end_to_end(headers))
            done = await self._hints.inquire(webhook_events, account, entry, rules, self.book())
        except BodyError:
            return self._report(entry.name, InboxResult.UNREADABLE, _UNREADABLE)
        except JournalUnavailable:
            return self._report(entry.name, InboxResult.NOT_KEPT, _UNAVAILABLE)
        if not done:
            return self._report(entry.name, InboxResult.HELD_BACK, _UNAVAILABLE)
        return self._report(entry.name, InboxResult.HINTED, WebhookReply(200, rules.reply.encode()))

    async def _receive_genuine(
        self, provider: str, account: str, rules: WebhookRules, scheme: SignatureScheme, headers: Headers, body: bytes
    ) -> WebhookReply:
        """Store the events of a genuine webhook. If they cannot be stored, it is not acknowledged, or they would be
        lost silently."""
        webhook_events: tuple[WebhookEvent, ...] = ()
        end_to_end_headers = end_to_end(headers)
        reply, refusal = WebhookReply(200, rules.reply.encode()), ""
        try:
            tree = decode_payload(scheme, headers, body)
            webhook_events, event_count = webhook_events_in(rules, tree, end_to_end_headers), _event_count(rules, tree)
            if len(webhook_events) < event_count:
                reply, refusal = _NO_EVENT_ID, InboxResult.NO_EVENT_ID
            elif not event_count:
                refusal = InboxResult.IGNORED
        except BodyError:
            reply, refusal = _UNREADABLE, InboxResult.UNREADABLE
        try:
            if webhook_events:
                is_whole = rules.events is None and not isinstance(scheme, PayloadExtractor)
                await self._store(provider, account, rules, webhook_events, end_to_end_headers, body, is_whole=is_whole)
            elif rules.relay is not None:
                await self._store_unread(provider, account, end_to_end_headers, body)
        except JournalUnavailable:
            return self._report(provider, InboxResult.NOT_KEPT, replace(_UNAVAILABLE, genuine=True))
        finally:
            self.due_times.webhook_events.set()
        reply = replace(reply, genuine=True)
        return self._report(provider, refusal, reply) if refusal else reply

    def refuse(self, provider: str, result: InboxResult, status_code: int) -> WebhookReply:
        """Count a webhook that was refused unread."""
        label = provider if provider in self.book().providers else OTHER
        return self._report(label, result, WebhookReply(status_code))

    def _report(self, provider: str, result: str, reply: WebhookReply) -> WebhookReply:
        self.telemetry.emit(WebhookReceived(provider, result))
        return reply

    def _secrets(self, names: tuple[str, ...]) -> list[bytes]:
        """The secrets of one list that are set. A list has two while one replaces the other; otherwise one is
        enough."""
        found = [value.encode() for name in names if (value := self.environment.get(name))]
        if names and not found:
            text = "no secret of these webhooks is set, so they are refused: set %s"
            _log.error(text, " or ".join(names), extra=repeats(*names))
        return found

    async def _store(
        self,
        provider: str,
        account: str,
        rules: WebhookRules,
        webhook_events: tuple[WebhookEvent, ...],
        headers: Headers,
        raw: bytes,
        *,
        is_whole: bool,
    ) -> None:
        """Store every event. The first new event carries the raw webhook for the relay. Raises JournalUnavailable."""

        async def store(webhook_event: WebhookEvent, *, carries_raw: bool) -> bool:
            now = self.clock.now()
            webhook = StoredWebhook(headers, webhook_event.payload, raw if carries_raw else b"")
            bound_to = _bound_to(provider, account, webhook_event.event_id)
            sealed = seal_webhook(self.vault, webhook, bound_to, is_whole=is_whole)
            relay_due_at = now if carries_raw else None
            is_new = await self._write(
                StoredWebhookEvent(
                    0, provider, account, webhook_event.event_id, now, sealed, due_at=now, relay_due_at=relay_due_at
                )
            )
            self.telemetry.emit(WebhookReceived(provider, InboxResult.ACCEPTED if is_new else InboxResult.DUPLICATE))
            delay_s = delay_of_event(rules, webhook_event.payload, now)
            if is_new and delay_s is not None:
                self.telemetry.emit(WebhookDelayed(provider, delay_s))
            return is_new

        rest = list(webhook_events)
        if rules.relay is not None:
            while rest and not await store(rest.pop(0), carries_raw=True):
                pass
        # Store all of them, even if one fails: those that are stored now are duplicates when the provider tries again.
        outcomes = await asyncio.gather(
            *(store(webhook_event, carries_raw=False) for webhook_event in rest), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _store_unread(self, provider: str, account: str, headers: Headers, raw: bytes) -> None:
        """Store a webhook without events of ours for the relay alone, because the service may need it. Raises
        JournalUnavailable."""
        now = self.clock.now()
        name = f"delivery:{hashlib.sha256(raw).hexdigest()}"  # it has no id; a duplicate has the same bytes
        bound_to = _bound_to(provider, account, name)
        sealed = seal_webhook(self.vault, StoredWebhook(headers, None, raw), bound_to, is_whole=True)
        result = WebhookEventResult.NOTHING_NEW
        await self._write(StoredWebhookEvent(0, provider, account, name, now, sealed, result, relay_due_at=now))

    async def _write(self, webhook_event: StoredWebhookEvent) -> bool:
        """Store an event; whether it is new. Either way it is durable now. Raises JournalUnavailable."""
        began_mono = self.clock.mono()
        failed = True
        try:
            new = await self.journal.store_webhook_event(webhook_event)
            failed = False
        finally:
            self.telemetry.emit(JournalCalled("keep_notice", self.clock.mono() - began_mono, failed))
        return new

    # -- in the background

    async def keep_applying(self) -> None:
        """Apply and relay due events for as long as the sidecar runs."""
        while True:
            try:
                processed = await self.apply_due()
                await self.due_times.wait(self.due_times.webhook_events, did_something=processed > 0)
            except JournalUnavailable:
                await self.clock.sleep(_RETRY_AFTER_S)  # others that need the journal report the outage

    async def apply_due(self) -> int:
        """Apply and relay the events that are due now, at most a batch. Returns how many. Raises JournalUnavailable."""
        due = await self.journal.due_webhook_events(limit=BATCH_SIZE)
        free = [webhook_event for webhook_event in due if webhook_event.number not in self._relaying]
        slots = asyncio.Semaphore(APPLYING_MAX)

        async def process(webhook_event: StoredWebhookEvent) -> StoredWebhookEvent:
            async with slots:
                return await self._process(webhook_event)

        outcomes = await asyncio.gather(*(process(webhook_event) for webhook_event in free), return_exceptions=True)
        processed = 0
        for outcome in outcomes:
            if isinstance(outcome, JournalUnavailable):
                raise outcome
            if isinstance(outcome, BaseException):  # an event that fails must not stop the others
                name, place = type(outcome).__name__, raised_at(outcome)
                _log.error("processing a webhook failed by %s at %s", name, place, extra=repeats(place))
                continue
            processed += 1
        return processed

    async def close(self) -> None:
        """Stop the relays that are under way: they are tried again after the next start."""
        await self._relays.stop()

    async def _process(self, webhook_event: StoredWebhookEvent) -> StoredWebhookEvent:
        """Process one due event: apply it, record the result, and relay it. Raises JournalUnavailable."""
        # The journal gave the event as due by its own clock; ours may be behind.
        now = max(
            self.clock.now(), min(at for at in (webhook_event.due_at, webhook_event.relay_due_at) if at is not None)
        )
        provider = self.book().providers.get(webhook_event.provider)
        rules = provider.webhook_rules if provider is not None else None
        after, operation, webhook = webhook_event, None, None
        try:
            bound_to = _bound_to(webhook_event.provider, webhook_event.account, webhook_event.event_id)
            webhook = open_webhook(self.vault, webhook_event.sealed, bound_to)
        except UnreadableSecret:
            text = "a stored webhook of %s cannot be opened: is a key of the ring missing?"
            _log.error(text, webhook_event.provider, extra=REPEATS)
        if webhook_event.result is WebhookEventResult.WAITING and _is_due(webhook_event.due_at, now):
            after, operation = await self._apply(webhook_event, provider, webhook)
        url = rules.relay if rules is not None and webhook is not None else None
        begins = False
        if _is_due(webhook_event.relay_due_at, now):
            begins = url is not None and len(self._relaying) < RELAYS_MAX
            relay_due_at = now + RELAY_LEASE_S if begins else next_relay_at(webhook_event.received_at, now)
            after = replace(after, relay_due_at=relay_due_at)
        if begins:
            self._relaying.add(webhook_event.number)
        try:
            if after != webhook_event:
                await self.journal.update_webhook_event(after)
        except BaseException:
            self._relaying.discard(webhook_event.number)
            raise
        if after.result is not webhook_event.result:
            self.telemetry.emit(WebhookReceived(webhook_event.provider, after.result))
            self._emit_delay_since_send(webhook_event, rules, webhook, operation)
        if begins and url is not None and webhook is not None:
            self._start_relay(after, url, webhook, operation)
        return after

    def _emit_delay_since_send(
        self,
        webhook_event: StoredWebhookEvent,
        rules: WebhookRules | None,
        webhook: StoredWebhook | None,
        operation: Operation | None,
    ) -> None:
        """Report the delay of an event that does not say when it happened, since its arrival could not show it."""
        received_at = webhook_event.received_at
        if rules is None or webhook is None or operation is None:
            return
        delay_s = delay_since_send(operation, received_at)
        if delay_s is not None and delay_of_event(rules, webhook.event, received_at) is None:
            self.telemetry.emit(WebhookDelayed(webhook_event.provider, delay_s))

    async def _apply(
        self, webhook_event: StoredWebhookEvent, provider: Provider | None, webhook: StoredWebhook | None
    ) -> tuple[StoredWebhookEvent, Operation | None]:
        result, operation = WebhookEventResult.WAITING, None
        if provider is not None and provider.webhook_rules is not None and webhook is not None:
            try:
                result, operation = await self.applier.apply(webhook_event, webhook, provider, self.book())
            except JournalUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  # one event that we cannot cope with must not stop the others
                name, place = type(error).__name__, raised_at(error)
                _log.error("applying a webhook failed by %s at %s", name, place, extra=repeats(place))
        operation_id = operation.id if operation is not None else webhook_event.operation_id
        updated = replace(webhook_event, operation_id=operation_id, attempts=webhook_event.attempts + 1)
        if result is not WebhookEventResult.WAITING:
            return replace(updated, result=result, due_at=None), operation
        now = self.clock.now()
        due_at = now + rematch_delay_s(webhook_event.attempts)
        if due_at - webhook_event.received_at > _UNMATCHED_AFTER_S:
            return replace(updated, result=WebhookEventResult.UNMATCHED, due_at=None), operation
        return replace(updated, due_at=due_at), operation

    # -- the relay

    def _start_relay(
        self, webhook_event: StoredWebhookEvent, url: str, webhook: StoredWebhook, operation: Operation | None
    ) -> None:
        try:
            self._relays.start(self._run_relay(webhook_event, url, webhook, operation), "webhook-relay")
        except TaskRefused:
            self._relaying.discard(webhook_event.number)  # its lease runs out, and it is tried again

    async def _run_relay(
        self, webhook_event: StoredWebhookEvent, url: str, webhook: StoredWebhook, operation: Operation | None
    ) -> None:
        try:
            if operation is None and webhook_event.operation_id is not None:
                operation = await self.journal.read(webhook_event.operation_id)
            acknowledged = await self.relay.deliver(url, webhook, operation)
            retry_at = None if acknowledged else next_relay_at(webhook_event.received_at, self.clock.now())
            result = InboxResult.RELAYED if acknowledged else InboxResult.RELAY_FAILED
            if not acknowledged and retry_at is None:
                result = InboxResult.RELAY_GIVEN_UP
            self.telemetry.emit(WebhookReceived(webhook_event.provider, result))
            await self.journal.update_webhook_event(replace(webhook_event, relay_due_at=retry_at))
        except JournalUnavailable:
            return  # better relayed twice than never: its lease runs out
        finally:
            self._relaying.discard(webhook_event.number)
            self.due_times.webhook_events.set()


def _bound_to(provider: str, account: str, event_id: str) -> str:
    return f"notice:{provider}:{account}:{event_id}"


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _event_count(rules: WebhookRules, tree: Tree) -> int:
    found = rules.events(tree) if rules.events is not None else None
    return len(found) if isinstance(found, list) else 1
