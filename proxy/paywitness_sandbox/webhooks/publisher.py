"""Makes events of the bank's changes, and sends them as the mode of the request says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import LedgerFull
from paywitness_sandbox.bank.objects import BankChange, BankRefused, Charge, IdSequence, Payout
from paywitness_sandbox.clock import Clock
from paywitness_sandbox.messages import Request
from paywitness_sandbox.webhooks.events import (
    FINAL_TRANSITIONS,
    Endpoint,
    EndpointMissing,
    SandboxEvent,
    WebhookMode,
    event_for,
    older_event,
    parse_endpoint,
    parse_mode,
)
from paywitness_sandbox.webhooks.sender import EventRecord, ScheduledDelivery, WebhookSender

MODE_HEADER = "sandbox-webhook"
OTHER_ACCOUNT = "acct_other"
COPIES = {"twice": 2, "ten_times": 10}
REVERSIBLE = frozenset({"succeeded", "captured", "paid"})
NORMAL = parse_mode("normal")

logger = logging.getLogger("paywitness.sandbox")


class EventPublisher:
    def __init__(self, bank: Bank, clock: Clock, *, salt: str, source: Mapping[str, object] | None = None) -> None:
        self._bank = bank
        self._clock = clock
        self._ids = IdSequence(f"events:{salt}")
        self._source = source
        self._sender = WebhookSender(clock)
        self.set_endpoint(source)

    # -- reads and settings ---------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> Endpoint | None:
        return self._sender.endpoint

    @property
    def records(self) -> list[EventRecord]:
        return self._sender.records

    @property
    def dropped(self) -> int:
        """Events that were dropped for newer ones."""
        return self._sender.dropped

    @property
    def waiting(self) -> int:
        """Deliveries that have not ended."""
        return self._sender.waiting

    def set_endpoint(self, source: Mapping[str, object] | None) -> None:
        """None or empty: no events are sent. An invalid one raises and changes nothing."""
        self._sender.endpoint = parse_endpoint(source) if source else None

    def resend(self, event: str) -> EventRecord:
        """Send an event once more, properly signed, whatever the mode was."""
        record = self._sender.record(event)
        if self.endpoint is None:
            raise BankRefused("webhook_endpoint_missing", "there is no endpoint: set one with PUT /_sandbox/webhooks")
        self._sender.send(self._sender.new_delivery(record))
        return record

    def mode_of(self, request: Request) -> WebhookMode:
        """The header's mode, else the endpoint's. Raises UnknownMode."""
        header = request.headers.get(MODE_HEADER)
        if header is None:
            return NORMAL if self.endpoint is None else self.endpoint.mode
        mode = parse_mode(header)
        if self.endpoint is None:
            raise EndpointMissing("Sandbox-Webhook without an endpoint: set one with PUT /_sandbox/webhooks")
        return mode

    def clear(self) -> None:
        self._sender.clear()
        self.set_endpoint(self._source)

    async def close(self) -> None:
        await self._sender.close()

    # -- sending --------------------------------------------------------------------------------------------------

    async def publish(self, request: Request) -> None:
        """Send events for the changes of this request. Only the mode `early` makes the request wait for the
        receiver."""
        changes = self._bank.changes.take()
        if self.endpoint is None or not changes:
            return
        mode = self.mode_of(request)
        for change in changes:
            early = self._publish_change(change, request, mode)
            if early is not None:
                await self._sender.send_now(early)

    def _publish_change(
        self, change: BankChange, request: Request, mode: WebhookMode, delay_s: float | None = None
    ) -> ScheduledDelivery | None:
        """Hand the change's events to the sender. An `early` event is returned instead, for the caller to send at
        once."""
        event = event_for(change, request, id=self._ids.new("evt"), created=int(self._clock()))
        if self.endpoint is None or not self.endpoint.wants(event.type):
            return None
        record = self._sender.store(_altered(event, mode), str(mode))
        if mode.name == "never":
            return None
        if mode.name == "late":
            delay_s = mode.number("delay_s")
        delay_s = self.endpoint.delay_s if delay_s is None else delay_s
        delivery = self._sender.new_delivery(record, delay_s=0.0 if mode.name == "early" else delay_s)
        delivery.copies, delivery.concurrent = COPIES.get(mode.name, 1), mode.name == "ten_times"
        delivery.forged, delivery.age_s = mode.name == "forged", mode.number("age_s")
        if mode.name == "early":
            return delivery
        subject = change.subject
        if mode.name == "reversed" and change.transition in REVERSIBLE and isinstance(subject, Charge | Payout):
            pause_s = mode.number("delay_s")
            delivery.on_done = lambda: self._sender.call_later(pause_s, lambda: self._reverse(subject, request))
        self._sender.send(delivery)
        if mode.name == "out_of_order" and change.transition in FINAL_TRANSITIONS:
            older = self._sender.store(older_event(event, change, id=self._ids.new("evt")), str(mode))
            self._sender.send(self._sender.new_delivery(older, delay_s=delay_s))
        return None

    def _reverse(self, subject: Charge | Payout, request: Request) -> None:
        """Reverse the subject, after the event of its success was sent, and send the event of the reversal."""
        try:
            if isinstance(subject, Charge):
                self._bank.reverse(subject)
            else:
                self._bank.payouts.reverse(subject)
        except (BankRefused, LedgerFull) as refused:  # refunded meanwhile, for example
            logger.warning("%s was not reversed: %s", subject.id, refused)
        for change in self._bank.changes.take():
            self._publish_change(change, request, NORMAL, 0.0)


def _altered(event: SandboxEvent, mode: WebhookMode) -> SandboxEvent:
    if mode.name == "wrong_amount":
        return event.with_amount_more(int(mode.number("by_minor")))
    return replace(event, account=OTHER_ACCOUNT) if mode.name == "other_account" else event
