"""Makes events of what has changed at the bank, and has them sent as the mode of the request says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from proxy.sandbox.bank import Bank
from proxy.sandbox.changes import Change
from proxy.sandbox.charge import Charge, Refund
from proxy.sandbox.clock import Clock
from proxy.sandbox.ledger import LedgerFull
from proxy.sandbox.naming import Naming
from proxy.sandbox.payout import Payout
from proxy.sandbox.refusals import Refused
from proxy.sandbox.request import Request
from proxy.sandbox.webhooks.courier import Courier, Errand, Record
from proxy.sandbox.webhooks.endpoint import Endpoint, parse_endpoint
from proxy.sandbox.webhooks.event import FINAL, Event, event_about, older_event
from proxy.sandbox.webhooks.mode import Mode, NobodyToTell, mode_called

MODE_HEADER = "sandbox-webhook"
OTHER_ACCOUNT = "acct_other"
COPIES = {"twice": 2, "ten_times": 10}
REVERSIBLE = frozenset({"succeeded", "captured", "paid"})
NORMAL = mode_called("normal")

logger = logging.getLogger("paywitness.sandbox")


class Announcer:
    def __init__(self, bank: Bank, clock: Clock, *, salt: str, source: Mapping[str, object] | None = None) -> None:
        self._bank = bank
        self._clock = clock
        self._naming = Naming(f"events:{salt}")
        self._source = source
        self._courier = Courier(clock)
        self.set_endpoint(source)

    # -- look and choose ------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> Endpoint | None:
        return self._courier.endpoint

    @property
    def records(self) -> list[Record]:
        return self._courier.records

    @property
    def dropped(self) -> int:
        """Events that were kept once and made room for newer ones."""
        return self._courier.dropped

    @property
    def waiting(self) -> int:
        """Tellings that have not ended."""
        return self._courier.waiting

    def set_endpoint(self, source: Mapping[str, object] | None) -> None:
        """None or empty: nobody is told. A bad one raises and changes nothing."""
        self._courier.endpoint = parse_endpoint(source) if source else None

    def resend(self, event: str) -> Record:
        """Once more, properly signed, whatever the mode was."""
        record = self._courier.record(event)
        if self.endpoint is None:
            raise Refused("webhook_endpoint_missing", "nobody is told: PUT /_sandbox/webhooks says where to")
        self._courier.send(self._courier.errand(record))
        return record

    def mode_of(self, request: Request) -> Mode:
        """The header's, else the endpoint's. Raises UnknownMode."""
        called = request.headers.get(MODE_HEADER)
        if called is None:
            return NORMAL if self.endpoint is None else self.endpoint.mode
        mode = mode_called(called)
        if self.endpoint is None:
            raise NobodyToTell("Sandbox-Webhook without an endpoint: PUT /_sandbox/webhooks says where events go")
        return mode

    def clear(self) -> None:
        self._courier.clear()
        self.set_endpoint(self._source)

    async def close(self) -> None:
        await self._courier.close()

    # -- telling --------------------------------------------------------------------------------------------------

    async def announce(self, request: Request) -> None:
        """Tell what this request has changed. Only the mode `early` makes it wait for the receiver."""
        changes = self._bank.changes.take()
        if self.endpoint is None or not changes:
            return
        mode = self.mode_of(request)
        for change in changes:
            early = self._tell(change, request, mode)
            if early is not None:
                await self._courier.send_now(early)

    def _tell(self, change: Change, request: Request, mode: Mode, delay_s: float | None = None) -> Errand | None:
        """Hand the change's events to the courier; the one that is to be told at once comes back."""
        event = event_about(change, request, id=self._naming.new("evt"), created=int(self._clock()))
        if self.endpoint is None or not self.endpoint.wants(event.type):
            return None
        record = self._courier.keep(_altered(event, mode), str(mode))
        if mode.name == "never":
            return None
        if mode.name == "late":
            delay_s = mode.number("delay_s")
        delay_s = self.endpoint.delay_s if delay_s is None else delay_s
        errand = self._courier.errand(record, delay_s=0.0 if mode.name == "early" else delay_s)
        errand.copies, errand.at_once = COPIES.get(mode.name, 1), mode.name == "ten_times"
        errand.forged, errand.age_s = mode.name == "forged", mode.number("age_s")
        if mode.name == "early":
            return errand
        thing = change.thing
        if mode.name == "reversed" and change.what in REVERSIBLE and not isinstance(thing, Refund):
            pause_s = mode.number("delay_s")
            errand.afterwards = lambda: self._courier.later(pause_s, lambda: self._reverse(thing, request))
        self._courier.send(errand)
        if mode.name == "out_of_order" and change.what in FINAL:
            older = self._courier.keep(older_event(event, change, id=self._naming.new("evt")), str(mode))
            self._courier.send(self._courier.errand(older, delay_s=delay_s))
        return None

    def _reverse(self, thing: Charge | Payout, request: Request) -> None:
        """The success has been told: now take it back, and tell that."""
        try:
            if isinstance(thing, Charge):
                self._bank.reverse(thing)
            else:
                self._bank.payouts.reverse(thing)
        except (Refused, LedgerFull) as refused:  # refunded meanwhile, for example
            logger.warning("%s was not reversed: %s", thing.id, refused)
        for change in self._bank.changes.take():
            self._tell(change, request, NORMAL, 0.0)


def _altered(event: Event, mode: Mode) -> Event:
    if mode.name == "wrong_amount":
        return event.with_amount_more(int(mode.number("by_minor")))
    return replace(event, account=OTHER_ACCOUNT) if mode.name == "other_account" else event
