"""The provider of a world: the sandbox's own bank, ledger, key book and dialect, driven without sockets.

It keeps the contract that the seed chose, answers late, commits after it said "not found", forgets keys after their
window, and tells of its changes by signed webhooks: early, late, twice, in the wrong order, never.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from email.utils import formatdate
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from random import Random

from paywitness.core.call import Headers
from paywitness.upstream.request import WireRequest
from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import Ledger, LedgerEntry
from paywitness_sandbox.bank.objects import BankRefused, Charge, ChargeStatus, Payout, PayoutStatus
from paywitness_sandbox.contract import Contract, KeyStore, stored_response
from paywitness_sandbox.dialects.acme import charge_json, charge_terms_from, create_charge
from paywitness_sandbox.dialects.base import PathNames, RouteAction
from paywitness_sandbox.messages import (
    Request,
    SandboxResponse,
    card_declined,
    error_response,
    internal_error,
    json_response,
)
from paywitness_sandbox.provider import find_route
from paywitness_sandbox.webhooks.events import (
    FINAL_TRANSITIONS,
    SigningScheme,
    event_for,
    older_event,
    signature_headers,
)
from tests.simulation.history import History
from tests.simulation.loop import EPOCH_AT, SimLoop
from tests.simulation.merchants import ACCOUNT_PATH, UNAUTHORIZED, Merchant
from tests.simulation.payment_routes import answer_payment, is_capture, is_payment_path, is_void
from tests.simulation.payments import (
    BROWSER,
    DASHBOARD,
    US,
    MoneyBook,
    Object,
    Origin,
    Part,
    PartStatus,
    Payment,
    Payments,
    PaymentStatus,
    Refused,
    Thing,
    Transfer,
)
from tests.simulation.policy import WEBHOOK_SECRET
from tests.simulation.strange_objects import OddStatuses, StrangeObjects
from tests.simulation.swarm import Mix

WISH_HEADER = "X-Wish"
STALE_LOOKS_MAX = 2  # at one thing: one less than the misses that the policy asks for
_TELLS_MAX = 4  # times that an event is offered until it is taken
PENDING_REFUNDS = 0.1  # of the refunds of payments with numbers
FAILS_LATER = 0.1  # of their refunds and transfers that had succeeded
Respond = Callable[[SandboxResponse], None]
Deliver = Callable[[Headers, bytes, Callable[[bool], None]], None]


class JudgedLedger(Ledger):
    """The ledger, with somebody looking at each line as it is written."""

    def __init__(self, look: Callable[[LedgerEntry], None]) -> None:
        super().__init__()
        self._look = look

    def write(self, *args: object, **values: object) -> LedgerEntry:
        entry = super().write(*args, **values)  # type: ignore[arg-type]
        self._look(entry)
        return entry

    def named(self, name: str, value: str) -> list[LedgerEntry]:
        """As `find`, by one name."""
        return self._by[name].get(value, [])


class SimProvider:
    """One route of the provider. Routes share no keys and find nothing of each other's."""

    def __init__(self, loop: SimLoop, mix: Mix, dice: Random, history: History, ledger: Ledger, name: str) -> None:
        self._loop = loop
        self._mix = mix
        self._dice = dice
        self._history = history
        self._contract = Contract(mix.contract)
        self.ledger = ledger  # one for all routes: an order is paid once, wherever
        self.bank = Bank(ledger, self.now, salt=f"{mix.seed} {name}", search_lag_s=mix.lag_s)
        self._keys = KeyStore(self.now, mix.window_s)
        self.stored_errors: set[str] = set()  # keys under which every repeat is answered 500
        self.sent_mono: dict[str, float] = {}  # by charges and payments: when the request left that pays by them
        self._confirmed: dict[str, Origin] = {}  # by payments: the confirm that was noted last
        self._missed: Counter[str] = Counter()  # looks at what had been made and was not shown, by stamps
        self._strange = StrangeObjects(mix.foreign_objects, Random(f"{mix.seed} strange objects of {name}"))
        self._events = 0
        self._copy_dice = Random(f"{mix.seed} copied events of {name}")
        self.payments: Payments | None = None  # with numbers: see `keep_payments`
        self._older: dict[str, bytes] = {}  # what was last told of each of their things
        self._captures_at_work: dict[str, str] = {}  # by payments: whose capture is not committed yet
        self.on_void_beside: Callable[[str, str], None] = lambda void, capture: None
        self.heard: dict[str, int] = {}  # by payments: up to which of its changes somebody took the events
        self.deliver: Deliver | None = None
        self.calm = False
        self.merchant = Merchant()
        self._dates = mix.reboots or mix.shows_dates
        self._odd = OddStatuses(mix.odd_statuses, Random(f"{mix.seed} odd statuses of {name}"))

    def now(self) -> float:
        return EPOCH_AT + self._loop.now_mono

    def share_keys_with(self, other: SimProvider) -> None:
        """Both are one account of the provider, and equal keys of theirs are one key."""
        self._keys, self.stored_errors = other._keys, other.stored_errors

    def keep_payments(self, book: MoneyBook, salt: str) -> None:
        """From here on it has payments with numbers: the world has the money between operations."""
        mix = self._mix
        self.payments = Payments(book, self.now, f"{salt}, payments", lenient=mix.lenient, search_lag_s=mix.lag_s)
        self.payments.is_pending = lambda: self._dice.random() < PENDING_REFUNDS

    # -- what arrives

    def arrive(
        self,
        wire: WireRequest,
        fault: str | None,
        commits_after_s: float,
        respond: Respond,
        *,
        troubled: bool = True,
        sent_mono: float = math.inf,
    ) -> None:
        """One arrival of a request, which left at `sent_mono`. `respond` is called once, unless the work is never done.
        `troubled`: it does not go well, so that what is told of it matters."""
        request = _request_of(wire)
        about = request.headers.get(WISH_HEADER.lower(), "")
        if self._dates:
            respond = self._dated(respond)
        instead = self.merchant.refusal(request, self._loop.now_mono) or self._refusal(fault)
        if instead is None and request.path == ACCOUNT_PATH:
            instead = json_response(200, {"account_id": self.merchant.name})
        key = request.key if self._contract is not Contract.NONE else None
        if instead is None and key is not None:
            instead = self._keys.claim(key, request.fingerprint)
        if instead is not None:
            self._history.say("provider", "answers", about, (instead.status_code, _brief(request, instead)))
            respond(instead)
        elif commits_after_s > 0 and request.writes:
            self._history.say("provider", "works on it", about, f"for {commits_after_s:.3f} s")
            if is_capture(request):
                self._captures_at_work[request.segments[2]] = about
            self._loop.after(commits_after_s, self._execute, request, key, fault, about, respond, troubled, sent_mono)
        else:
            self._execute(request, key, fault, about, respond, troubled, sent_mono)

    def _dated(self, respond: Respond) -> Respond:
        """With a `Date`, which tells a sidecar how long it was away."""
        return lambda answer: respond(answer.with_headers(("Date", formatdate(self._shown_now(), usegmt=True))))

    def _shown_now(self) -> float:
        """What its own clock shows. Everything that is judged goes by the right time."""
        return self.now() + self._mix.provider_ahead_s

    def _refusal(self, fault: str | None) -> SandboxResponse | None:
        """What is said before any work."""
        match fault:
            case "overloaded":
                return error_response(503, "api_error", "Too much to do.", code="overloaded")
            case "rate_limited":
                answer = error_response(429, "rate_limit_error", "Too many requests.", code="rate_limited")
                return answer.with_headers(("Retry-After", str(self._dice.choice((0, 1, 3)))))
            case "unauthorized":
                return UNAUTHORIZED
        return None

    def _execute(
        self,
        request: Request,
        key: str | None,
        fault: str | None,
        about: str,
        respond: Respond,
        troubled: bool,
        sent_mono: float,
    ) -> None:
        committed: SandboxResponse | None = None
        effects_before = self._effects()
        if fault != "error_500_before" or not request.writes:
            if fault == "declined_once":  # the issuer says no, this time
                request = _with_body(request, bytes(request.body).replace(b'"tok_ok"', b'"tok_insufficient_funds"'))
            committed = self._do(request, about)
            if request.writes:
                self._note_sent(request, sent_mono)
        if committed is not None:
            committed = self._strange.instead(request, committed, calm=self.calm)
            committed = self._odd.instead(request, committed)
        broken = fault in {"error_500_before", "error_500_after"}
        answer = internal_error() if broken or committed is None else committed
        if key is not None:
            stored = stored_response(self._contract, committed, answer)
            self._keys.finish(key, stored)
            if stored is not None and broken:
                self.stored_errors.add(key)
        if request.writes:
            effects = self._effects() - effects_before
            self._history.say("provider", "answers", about, (answer.status_code, "effects:", effects))
        else:
            self._history.say("provider", "answers", about, (answer.status_code, _brief(request, answer)))
        self._tell_changes(request, troubled=troubled)
        self._tell_payments(troubled=troubled)
        respond(answer)

    def _do(self, request: Request, about: str) -> SandboxResponse:
        overlooked = not request.writes and (self._is_overlooked(request) or self._is_before_the_list(request))
        if self.payments is not None and is_payment_path(request):
            self._look_beside(request, about)
            stale = not request.writes and self._is_stale(self.payments, request)
            return answer_payment(self.payments, request, about, overlooks=overlooked, stale=stale)
        act, names = _route(request.method, request.segments)
        return act(self.bank, _finding_nothing(request) if overlooked else request, names)

    def _note_sent(self, request: Request, sent_mono: float) -> None:
        """Which payments this request pays by, if it does."""
        metadata = request.tree.get("metadata")
        stamp = str(metadata.get("paywitness", "")) if isinstance(metadata, dict) else ""
        names = [made.id for made in self.made_by(stamp)] if stamp else []
        if self.payments is not None and is_payment_path(request):
            things = self.payments.made_by(stamp) if stamp else []
            if len(request.segments) == 4 and self.payments.has(request.segments[2]):
                things = [self.payments.thing(request.segments[2])]
            for thing in things:
                by = thing.confirmed_by if isinstance(thing, Payment) else None
                if by is not None and by.by == US and self._confirmed.get(thing.id) is not by:
                    self._confirmed[thing.id] = by
                    self.sent_mono[thing.id] = sent_mono
        for name in names:
            self.sent_mono.setdefault(name, sent_mono)

    def _look_beside(self, request: Request, about: str) -> None:
        """Whether a void comes while a capture of the same payment is being worked on."""
        if is_capture(request) and self._captures_at_work.get(request.segments[2]) == about:
            del self._captures_at_work[request.segments[2]]
        elif is_void(request) and (capture := self._captures_at_work.get(request.segments[2])) is not None:
            self.on_void_beside(about, capture)

    def _effects(self) -> int:
        return len(self.ledger) + (len(self.payments.book) if self.payments is not None else 0)

    def _is_overlooked(self, request: Request) -> bool:
        """Whether a search is served by a replica that does not have the thing yet. Looks that came before the index
        had caught up count as well: more than the policy knows of are never in vain."""
        stamp = request.query.get("paywitness")
        made_at = self.executed_at(stamp) if stamp is not None and self._mix.stale_looks else None
        if stamp is None or made_at is None or self._missed[stamp] >= STALE_LOOKS_MAX:
            return False
        indexed = self.now() - made_at >= self._mix.lag_s
        missed = not indexed or self._dice.random() < self._mix.stale_looks
        self._missed[stamp] += missed
        return missed

    def _is_before_the_list(self, request: Request) -> bool:
        """Whether all that is searched for was made before the list begins, by the provider's clock."""
        begins, stamp = request.query.get("created_from"), request.query.get("paywitness")
        if begins is None or stamp is None:
            return False
        begins_at = datetime.fromisoformat(begins).timestamp() - self._mix.provider_ahead_s
        return all(one.created_at < begins_at for one in self.made_by(stamp))

    def _is_stale(self, payments: Payments, request: Request) -> bool:
        """Whether a replica shows a payment as it was before its last change. Never more often than misses count."""
        if len(request.segments) != 3 or not payments.has(request.segments[2]):
            return False
        payment = payments.thing(request.segments[2])
        if not isinstance(payment, Payment) or payment.shown_stale >= STALE_LOOKS_MAX or not self._mix.stale_looks:
            return False
        stale = self._dice.random() < self._mix.stale_looks
        payment.shown_stale += stale
        return stale

    def executed_at(self, stamp: str) -> float | None:
        """When what bears this stamp was made, if it was."""
        made: list[Charge | Payout | Thing] = [*self.made_by(stamp)]
        if self.payments is not None:
            made += self.payments.made_by(stamp)
        return next((one.created_at for one in made), None)

    def made_by(self, stamp: str) -> list[Charge | Payout]:
        """The payments and payouts that bear this stamp."""
        label, bank = ("metadata.paywitness", stamp), self.bank
        charges, payouts = bank._charges._by_label.get(label, ()), bank.payouts._payouts._by_label.get(label, ())
        return [*charges, *payouts]

    # -- what it tells unasked

    def _tell_changes(self, request: Request, *, troubled: bool) -> None:
        for change in self.bank.changes.take():
            thing = change.subject
            if isinstance(thing, Charge) and thing.status in {ChargeStatus.PROCESSING, ChargeStatus.REQUIRES_ACTION}:
                self._loop.after(self._dice.uniform(1, 25), self._settle, thing, request)
            if isinstance(thing, Payout) and thing.status is PayoutStatus.PENDING:
                self._loop.after(self._dice.uniform(1, 25), self._settle_payout, thing, request)
            if self.deliver is None or (not troubled and self._dice.random() >= self._mix.tells):
                continue
            mode = "normal" if self.calm else self._dice.choice(self._mix.webhook_modes)
            if mode == "never":
                continue
            event = event_for(change, request, id=self._event_id(), created=int(self.now()))
            delay_s = {"early": 0.0, "late": self._dice.uniform(2, 40)}.get(mode, self._dice.uniform(0.01, 1))
            self._offer(event.body, delay_s)
            self._offer_copy(event.body, delay_s)
            if mode == "twice":
                self._offer(event.body, delay_s + self._dice.choice((0.0, 0.1, 5.0)))
            if (
                mode == "out_of_order"
                and change.transition in FINAL_TRANSITIONS
                and self._contract is not Contract.REEXECUTED
            ):
                self._offer(older_event(event, change, id=self._event_id()).body, delay_s + self._dice.uniform(0, 3))

    def _tell_payments(self, *, troubled: bool) -> None:
        """What changed of payments with numbers, and what will become of it later."""
        if self.payments is None:
            return
        changed, self.payments.changed = self.payments.changed, []
        for thing in changed:
            self._foresee(thing)
            event = {"id": self._event_id(), "type": "changed", "created": int(self.now()), "account": None}
            body = json.dumps(event | {"data": thing.shown()}, separators=(",", ":")).encode()
            older, self._older[thing.id] = self._older.get(thing.id), body
            if self.deliver is None or (not troubled and self._dice.random() >= self._mix.tells):
                continue
            mode = "normal" if self.calm else self._dice.choice(self._mix.webhook_modes)
            if mode == "never":
                continue
            delay_s = {"early": 0.0, "late": self._dice.uniform(2, 40)}.get(mode, self._dice.uniform(0.01, 1))
            self._offer(body, delay_s, changes=self._changes_of(thing))
            if mode == "twice":
                self._offer(body, delay_s + self._dice.choice((0.0, 0.1, 5.0)))
            if mode == "out_of_order" and older is not None:
                self._offer(older, delay_s + self._dice.uniform(0, 3))  # it comes again, last

    def _changes_of(self, thing: Thing) -> tuple[str, int] | None:
        if isinstance(thing, Payment):
            return thing.id, thing.changes
        return (thing.id, 1) if isinstance(thing, Transfer) and thing.status is PartStatus.FAILED else None

    def _foresee(self, thing: Thing) -> None:
        """What is open ends later, either way. Some refunds and transfers that had succeeded fail after all."""
        dice = self._dice
        if isinstance(thing, Payment) and thing.status is PaymentStatus.PROCESSING:
            self._loop.after(dice.uniform(1, 25), self._settle_payment, thing)
        elif isinstance(thing, (Part, Transfer)) and thing.object != "payment_capture" and thing.id not in self._older:
            if thing.status is PartStatus.PENDING:
                self._loop.after(dice.uniform(1, 25), self._end_part, thing, dice.random() < 0.7)
            elif thing.status is PartStatus.SUCCEEDED and dice.random() < FAILS_LATER:
                self._loop.after(dice.uniform(1, 25), self._end_part, thing, False)

    def _settle_payment(self, payment: Payment) -> None:
        assert self.payments is not None
        paid = self._dice.random() < 0.7
        if self.payments.settle(payment, paid=paid):
            self._history.say("provider", f"settles as {payment.status}", payment.order, payment.id)
            self._tell_payments(troubled=True)

    def _end_part(self, thing: Part | Transfer, succeeded: bool) -> None:
        assert self.payments is not None
        self.payments.end_part(thing, succeeded=succeeded)
        self._history.say("provider", f"ends it as {thing.status}", thing.order, thing.id)
        self._tell_payments(troubled=True)

    def confirm_by_browser(self, payment: Payment) -> None:
        """The customer's browser confirms a payment here, past everybody."""
        assert self.payments is not None
        try:
            self.payments.confirm(payment, "tok_ok", Origin(f"{payment.order}.browser", by=BROWSER))
        except Refused as refused:
            self._history.say("browser", "is refused", payment.order, refused.code)
            return
        self._history.say("browser", "confirms", payment.order, payment.id)
        self._tell_payments(troubled=True)

    def refund_by_dashboard(self, payment: Payment, amount: int) -> None:
        """Somebody of the shop refunds here, past everybody."""
        assert self.payments is not None
        metadata: Object = {}
        try:
            self.payments.refund(payment, amount, metadata, Origin(f"{payment.order}.dashboard", by=DASHBOARD))
        except Refused as refused:
            self._history.say("dashboard", "is refused", payment.order, refused.code)
            return
        self._history.say("dashboard", "refunds", payment.order, (payment.id, amount))
        self._tell_payments(troubled=True)

    def _offer_copy(self, body: bytes, delay_s: float) -> None:
        """Somebody has copied the object at the provider, its metadata with our stamp among the rest, for another
        amount. Its events come a moment before those of the first, or after them, and say either."""
        if self._copy_dice.random() >= self._mix.copied_events:
            return
        event = json.loads(body)
        thing = event["data"]
        thing["id"], thing["amount"] = f"{thing['id']}copy", thing["amount"] + 1
        done = "paid" if thing["object"] == "payout" else "succeeded"
        thing["status"] = self._copy_dice.choice((done, "failed"))
        thing["idempotency_key"] = None
        event["id"] = f"{event['id']}copy"
        copied = json.dumps(event, separators=(",", ":")).encode()
        self._offer(copied, max(0.0, delay_s + self._copy_dice.choice((-0.005, 0.005, 2.0))))

    def _event_id(self) -> str:
        self._events += 1
        return f"evt_{self._events}"

    def _offer(self, body: bytes, delay_s: float, tries: int = 1, changes: tuple[str, int] | None = None) -> None:
        """`changes`: of which thing, and up to which of its changes, this tells."""
        if delay_s <= 0:
            self._hand_over(body, tries, changes)
        else:
            self._loop.after(delay_s, self._hand_over, body, tries, changes)

    def _hand_over(self, body: bytes, tries: int, changes: tuple[str, int] | None) -> None:
        assert self.deliver is not None
        signed = signature_headers(SigningScheme.HMAC_SHA256, WEBHOOK_SECRET, body, int(self.now()))
        headers = tuple((name.encode(), value.encode()) for name, value in signed.items())

        def taken(ok: bool) -> None:
            if not ok and tries < _TELLS_MAX:
                self._offer(body, 2.0 * tries, tries + 1, changes)
            elif ok and changes is not None:
                self.heard[changes[0]] = max(changes[1], self.heard.get(changes[0], 0))

        self.deliver(((b"Content-Type", b"application/json"), *headers), body, taken)

    def _settle(self, charge: Charge, request: Request) -> None:
        """The issuer's or the customer's later word. A customer authenticates one payment of an order, whatever cards
        it tried."""
        status = ChargeStatus.SUCCEEDED if self._dice.random() < 0.7 else ChargeStatus.FAILED
        if charge.status is ChargeStatus.REQUIRES_ACTION and self.ledger.find(order=charge.terms.order):
            status = ChargeStatus.FAILED
        try:
            self.bank.settle(charge, status)
        except BankRefused:
            return
        self._history.say("provider", f"settles as {status}", charge.terms.order or "", charge.id)
        self._tell_changes(request, troubled=True)

    def _settle_payout(self, payout: Payout, request: Request) -> None:
        """The receiving bank's later word."""
        status = PayoutStatus.PAID if self._dice.random() < 0.7 else PayoutStatus.FAILED
        self.bank.payouts.settle(payout, status)
        self._history.say("provider", f"settles as {status}", payout.terms.order or "", payout.id)
        self._tell_changes(request, troubled=True)


class _Arrived(Request):
    """A request that is all here. What makes two of them the same are their bytes: nobody keeps a digest."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = self.complete = True
        self.body = bytearray(body)
        self.path, self.segments, self._query = _split(target)
        if method == "POST":
            self.fingerprint = f"{target} {body!r}"
            self.tree = json.loads(body) if body else {}

    @property
    def writes(self) -> bool:
        return self.method == "POST"


def _request_of(wire: WireRequest) -> Request:
    headers = {_lowered(name): value.decode("latin-1") for name, value in wire.headers}
    return _Arrived(wire.method, wire.target.decode("latin-1"), headers, wire.body)


@lru_cache
def _lowered(name: bytes) -> str:
    return name.decode("latin-1").lower()


@lru_cache(maxsize=1024)
def _split(target: str) -> tuple[str, tuple[str, ...], str]:
    request = Request("", target, {}, True)
    return request.path, request.segments, request._query


@lru_cache(maxsize=1024)
def _route(method: str, segments: tuple[str, ...]) -> tuple[RouteAction, dict[str, str]]:
    found = find_route(method, segments)
    assert found is not None, segments
    act = found[0].action
    return (_create_charge if act is create_charge else act), found[1]


# `json.dumps` makes one of these for each answer.
_encoded = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, str, encode_basestring_ascii, None, ":", ",", False, False, True
)


def _create_charge(bank: Bank, request: Request, names: PathNames) -> SandboxResponse:
    """What most requests are, as `create_charge` does it; what goes well is put into words in less time."""
    charge = bank.open(charge_terms_from(request, None), request.key)
    bank.pay(charge, request.key)
    if charge.status is ChargeStatus.FAILED and not charge.failed_with_200:
        return card_declined(charge.failure_code or "generic_decline", charge=charge.id)
    body = "".join(_encoded(charge_json(charge, request), 0))
    return SandboxResponse(200, body.encode(), failed=charge.status is ChargeStatus.FAILED)


def _with_body(request: Request, body: bytes) -> Request:
    return _Arrived(request.method, request.target, request.headers, body)


def _finding_nothing(search: Request) -> Request:
    return _Arrived(search.method, f"{search.target}&key=nobodys", search.headers, b"")


def _brief(request: Request, answer: SandboxResponse) -> str:
    if request.writes:
        return answer.body[:90].decode("utf-8", "replace")
    found = "nothing" if b'"data":[]' in answer.body else "something"
    return f"{request.target[:80]}: {found}" if answer.status_code == 200 else request.target[:80]
