"""The network of a world: what stands in the place of `UpstreamClient`. Every exchange gets its latencies and, where
the seed wills it, its fault; the evidence is what the real client would have given.

From the write on an exchange belongs to the world: a sidecar that is killed takes back nothing. A request that is not
delivered by `first_byte` never is (TCP_USER_TIMEOUT), and a reset ends what was not delivered.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from paywitness.core.call import Headers
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.engine.failpoints import UPSTREAM_CONNECTED, UPSTREAM_WRITTEN, Failpoints
from paywitness.upstream.client import always
from paywitness.upstream.late_responses import OnLateResponse
from paywitness.upstream.request import Origin, StreamRequest, WireRequest
from paywitness_sandbox.messages import SandboxResponse, reason_phrase
from tests.simulation.history import Detail, History
from tests.simulation.loop import Life, SimLoop
from tests.simulation.provider import WISH_HEADER, SimProvider
from tests.simulation.swarm import PROVIDER, UNSENT, Mix

HARVESTS_MAX = 64
CUT_OFF_S = 45.0  # longer than a lease
PAGES_LAST_S = 90.0  # beyond `settle` and the misses that follow it
INQUIRY_PAGES = ("page_400", "page_403", "page_404", "page_404", "page_200")
CONNECTING_S = 0.4  # so long before it a payment may be connecting
CAUGHT_MAX = 4
_HEAD_BYTES = 220  # about what a request's head has
_STAMP = re.compile(rb'"paywitness":\s*"([^"]+)"')
ACCOUNT_TARGET = b"/v1/account"
_SAYS_NOTHING = frozenset({*UNSENT, "black_hole", "answer_lost", "reset_before_answer", "truncated", "garbage"})
_WISH = WISH_HEADER.encode().lower()
_HTML = Response(502, b"Bad Gateway", ((b"Content-Type", b"text/html"),), b"<html><h1>502 Bad Gateway</h1></html>")
# What something in front of the provider answers in its place.
_PAGES = {
    "page_400": replace(_HTML, status_code=400, reason=b"Bad Request", body=b"<html><h1>400 Bad Request</h1></html>"),
    "page_403": replace(_HTML, status_code=403, reason=b"Forbidden", body=b"<html><h1>Access denied</h1></html>"),
    "page_404": replace(_HTML, status_code=404, reason=b"Not Found", body=b"<html><h1>404 Not Found</h1></html>"),
    "page_200": replace(_HTML, status_code=200, reason=b"OK", body=b"<html><h1>Please wait</h1></html>"),
    "redirect": Response(302, b"Found", ((b"Location", b"https://login.gateway.test/"),), b""),
    "gateway_502": _HTML,
    "gateway_504": replace(_HTML, status_code=504, reason=b"Gateway Timeout"),
}
_UNSENT = {
    "dns_failure": (NetworkPhase.RESOLVING, WireFault.DNS_FAILURE),
    "refused": (NetworkPhase.CONNECTING, WireFault.CONNECT_REFUSED),
    "connect_timeout": (NetworkPhase.CONNECTING, WireFault.CONNECT_TIMEOUT),
    "tls_failure": (NetworkPhase.HANDSHAKING, WireFault.TLS_FAILURE),
    "closed_at_once": (NetworkPhase.CONNECTING, WireFault.CLOSED),
}
_NO_ANSWER_OF_ITS_OWN = frozenset({"answer_lost", *_PAGES})
# Of answers that do not come whole: how far it got, why, and whether we end it by a reset.
_BROKEN = {
    "reset_before_answer": (NetworkPhase.AWAITING, WireFault.RESET, False),
    "truncated": (NetworkPhase.RECEIVING, WireFault.CLOSED, False),
    "garbage": (NetworkPhase.RECEIVING, WireFault.MALFORMED, True),
    "oversized": (NetworkPhase.RECEIVING, WireFault.OVERSIZED, True),
}


@dataclass(slots=True)
class Sent:
    """One request whose first byte has left."""

    at_mono: float
    sidecar: str
    host: str
    about: str
    stamp: str | None
    key: str | None
    request: WireRequest


@dataclass(slots=True)
class Plan:
    """What will become of one exchange."""

    fault: str | None
    connects_s: float
    delivered_s: float | None  # after the write; None: never
    commits_s: float
    answers_s: float  # after the work
    again_s: float | None = None  # a second delivery, after the first

    @property
    def may_be_late(self) -> bool:
        delivered_s = self.delivered_s if self.delivered_s is not None else 1e9
        return delivered_s + self.commits_s + self.answers_s >= 0.9 or self.fault == "answer_lost"


class Network:
    def __init__(
        self, loop: SimLoop, mix: Mix, dice: Random, history: History, providers: Mapping[str, SimProvider]
    ) -> None:
        self.loop = loop
        self.history = history
        self.providers = providers  # by their hosts
        self.exchanges = self.faults = 0
        self.provider_of: Callable[[Sent], SimProvider] = lambda sent: self.providers[sent.host]
        self.confused: set[str] = set()  # stamps of what was given somebody else's answer
        self.on_sent: Callable[[Sent], None] = lambda sent: None
        self.sink: Callable[[WireRequest], int] | None = None
        self._mix = mix
        self._dice = dice
        self._main = next(iter(providers))  # an outage is one route's
        self._began_mono = loop.now_mono
        self._names = tuple(mix.faults)
        self._rates = tuple(mix.faults.values())
        self._any = sum(self._rates)
        self._latest: deque[Response] = deque(maxlen=2)
        self._page_dice = Random(f"{mix.seed} pages for inquiries")
        self._calm_mono = 0.0

    @property
    def calm(self) -> bool:
        return self._calm_mono > 0.0

    def be_calm(self) -> None:
        self._calm_mono = self.loop.now_mono

    def plan(self, host: str, request: WireRequest) -> Plan:
        dice = self._dice
        usual_s = 0.005 + 0.05 * dice.random()
        fault = self._fault(host)
        if fault is None and request.method == "GET":
            fault = self._page_instead()
        if request.target == ACCOUNT_TARGET and fault is not None and fault not in _SAYS_NOTHING:
            fault = None  # who asks whose a credential is believes what he is told for an hour
        self.exchanges += 1
        self.faults += fault is not None
        if fault is None:
            opens = dice.random() < self._mix.new_connections
            return Plan(None, dice.uniform(0.0, self._mix.connects_s) if opens else 0.0, usual_s, 0.0, usual_s)
        return self._bad(fault, usual_s, writes=request.method == "POST")

    def _bad(self, fault: str, usual_s: float, *, writes: bool) -> Plan:
        dice = self._dice
        connects_s = dice.uniform(0, 0.3)
        plan = Plan(fault, connects_s, usual_s, 0.0, usual_s)
        match fault:
            case "black_hole":
                return replace(plan, delivered_s=None)
            case "reset_while_writing":
                return replace(plan, delivered_s=dice.choice((None, usual_s)))
            case "delayed":
                return replace(plan, delivered_s=dice.uniform(0.2, 0.98))
            case "slow":
                return replace(plan, answers_s=dice.uniform(0.2, 0.95))
            case "late_answer" | "late_refusal":
                return replace(plan, answers_s=dice.uniform(0.9, 24.0 if fault == "late_answer" else 8.0))
            case "late_commit" if writes:
                # Up to the end of `settle`, so that what a search shows a moment later matters.
                return replace(plan, commits_s=dice.choice((dice.uniform(0.3, 25.0), dice.uniform(36.0, 38.5))))
            case "gateway_502" | "page_400" | "page_403" | "page_404" | "page_200" | "redirect":
                return replace(plan, delivered_s=dice.choice((None, usual_s)), commits_s=dice.choice((0.0, 2.0)))
            case "gateway_504":
                return replace(plan, commits_s=dice.choice((0.0, 3.0, 20.0, 38.0)))
            case "duplicated":
                return replace(plan, again_s=dice.choice((0.001, 0.05, 1.0, 3.0)))
        return plan

    def _fault(self, host: str) -> str | None:
        if self.calm:
            return None
        at_s = self.loop.now_mono - self._began_mono
        for outage in self._mix.outages if host == self._main else ():
            if outage.begins_s <= at_s < outage.begins_s + outage.lasts_s and self._dice.random() < outage.share:
                return outage.fault
        draw = self._dice.random()
        if draw >= self._any:
            return None
        for name, rate in zip(self._names, self._rates, strict=True):
            draw -= rate
            if draw < 0:
                return name
        return None

    def _page_instead(self) -> str | None:
        """A gateway that answers inquiries goes on with it for a while after all is calm: until then nothing that is
        missed counts."""
        mix = self._mix
        if not mix.inquiry_pages or (self.calm and self.loop.now_mono > self._calm_mono + PAGES_LAST_S):
            return None
        return self._page_dice.choice(INQUIRY_PAGES) if self._page_dice.random() < mix.inquiry_pages else None

    # -- the way there and back

    def carry(self, plan: Plan, sent: Sent, exchange: Exchange) -> None:
        """The bytes have left."""
        if plan.fault == "reset_while_writing":
            whole = plan.delivered_s is not None
            evidence = exchange.evidence(NetworkPhase.SENDING, WireFault.RESET, detail="reset while writing")
            if not whole:
                evidence = replace(evidence, bytes_written=evidence.bytes_written // 2)
            self.loop.after(0.001, exchange.ends, evidence)
        if plan.fault in _PAGES:
            self.loop.after(plan.answers_s + 0.1, self._answered, exchange, sent, _PAGES[plan.fault])
        if plan.delivered_s is not None:
            self.loop.after(plan.delivered_s, self._delivered, plan, sent, exchange)
            if plan.again_s is not None:
                once_more = replace(plan, again_s=None, fault="duplicate")
                self.loop.after(plan.delivered_s + plan.again_s, self._delivered, once_more, sent, None)

    def _delivered(self, plan: Plan, sent: Sent, exchange: Exchange | None) -> None:
        if exchange is not None:
            if exchange.is_reset:
                return
            exchange.delivered = True

        def respond(answer: SandboxResponse) -> None:
            if exchange is not None and plan.fault not in _NO_ANSWER_OF_ITS_OWN:
                self.loop.after(plan.answers_s, self._comes_back, plan, sent, exchange, answer)

        fault = plan.fault if plan.fault in PROVIDER else None
        if plan.fault == "late_refusal":
            fault = self._dice.choice(("rate_limited", "declined_once"))
        troubled = plan.fault is not None
        provider = self.provider_of(sent)
        provider.arrive(sent.request, fault, plan.commits_s, respond, troubled=troubled, sent_mono=sent.at_mono)

    def _comes_back(self, plan: Plan, sent: Sent, exchange: Exchange, answer: SandboxResponse) -> None:
        fault = plan.fault
        if fault == "reset_while_writing":
            return
        if fault in _BROKEN:
            phase, why, by_us = _BROKEN[fault]
            exchange.ends(replace(exchange.evidence(phase, why, detail=fault), reset_by_us=by_us))
            return
        response = _response(answer)
        if fault == "foreign" and self._latest and (sent.stamp is not None or not _is_payment(sent)):
            response = self._latest[0]
            self.confused.add(sent.stamp or "")
        elif fault == "empty_200":
            response = replace(response, status_code=200, reason=b"OK", body=b"{}")
        elif sent.request.method == "POST" and fault is None and response.status_code == 200:
            # A refusal shows nobody's payment: whose it is cannot be told from it, and a foreign one would be believed.
            self._latest.append(response)
        self._answered(exchange, sent, response)

    def _answered(self, exchange: Exchange, sent: Sent, response: Response) -> None:
        exchange.answered(response)


def _is_payment(sent: Sent) -> bool:
    """A step or follow-up of a payment that bears no stamp: from its answer nobody could tell whose it is."""
    return sent.request.target.startswith(b"/v2/")


def _response(answer: SandboxResponse) -> Response:
    reason, headers = _head(answer.status_code, answer.content_type)
    if answer.headers:
        headers += tuple((name.encode(), value.encode()) for name, value in answer.headers)
    return Response(answer.status_code, reason, headers, answer.body)


@lru_cache
def _head(status_code: int, content_type: str) -> tuple[bytes, Headers]:
    return reason_phrase(status_code).encode(), ((b"Content-Type", content_type.encode()),)


def header_of(request: WireRequest, wanted: bytes) -> str | None:
    for name, value in request.headers:
        if name.lower() == wanted:
            return value.decode()
    return None


class Exchange:
    """One exchange under way, between the sidecar that waits and the world."""

    __slots__ = ("_began_mono", "_on_late", "_total", "_upstream", "delivered", "done", "is_reset", "listening")

    def __init__(self, upstream: SimUpstream, total: int, began_mono: float, on_late: OnLateResponse | None) -> None:
        self.done: asyncio.Future[Evidence] = upstream.loop.create_future()
        self.delivered = False
        self.is_reset = False
        self.listening = False
        self._upstream = upstream
        self._total = total
        self._began_mono = began_mono
        self._on_late = on_late

    def evidence(
        self, phase: NetworkPhase, fault: WireFault | None, response: Response | None = None, detail: str = ""
    ) -> Evidence:
        duration_s = self._upstream.loop.now_mono - self._began_mono
        return Evidence(phase, self._total, fault, response, detail, duration_s)

    def ends(self, evidence: Evidence) -> None:
        """The world tells how it ended. Nobody listens to half an answer that is late."""
        if self.listening:
            self.stop_listening()
        elif not self.done.done() and not self.is_reset:
            self.is_reset = evidence.reset_by_us
            self.done.set_result(evidence)

    def answered(self, response: Response) -> None:
        if self.listening and not self.is_reset and self._on_late is not None:
            self.stop_listening()
            detail = f"answered {response.status_code}, after the attempt had timed out"
            late = self.evidence(NetworkPhase.COMPLETE, None, response, detail)
            self._upstream.loop.call_soon(self._on_late, late, context=self._upstream.life.context)
        elif not self.done.done() and not self.is_reset:
            detail = f"answered {response.status_code}"
            self.done.set_result(self.evidence(NetworkPhase.COMPLETE, None, response, detail))

    def times_out(self) -> None:
        """Our own timer. What the provider's kernel has is listened to for a while; the rest is reset."""
        if self.done.done():
            return
        listens_s = self._upstream.listens_s if self.delivered and self._on_late is not None else 0.0
        timed_out = self.evidence(NetworkPhase.AWAITING, WireFault.FIRST_BYTE_TIMEOUT, detail="no answer came in time")
        if listens_s > 0 and self._upstream.listening < HARVESTS_MAX:
            self._upstream.listening += 1
            self.listening = True
            self._upstream.loop.call_later(listens_s, self.stop_listening)
            self.done.set_result(replace(timed_out, late_response_window_s=listens_s))
        else:
            self.is_reset = True
            self.done.set_result(replace(timed_out, reset_by_us=True))

    def stop_listening(self) -> None:
        if self.listening:
            self.listening = False
            self.is_reset = True
            self._upstream.listening -= 1


class SimUpstream:
    """What one sidecar has in the place of its `UpstreamClient`."""

    def __init__(self, network: Network, life: Life, harvest_s: float) -> None:
        self.network = network
        self.loop = network.loop
        self.life = life
        self.listens_s = harvest_s
        self.listening = 0
        self.caught_left = 0  # payments that are still to be caught connecting when the network goes
        self.on_cut_off: Callable[[float], None] = lambda lasts_s: None
        self.stops_connecting = False
        self.on_connecting: Callable[[], None] = lambda: None
        self.steps: Failpoints | None = None
        self._cut_off_from_mono = self._cut_off_until_mono = 0.0

    async def send(
        self,
        origin: Origin,
        request: WireRequest,
        timeouts: UpstreamTimeouts,
        *,
        may_send: Callable[[], bool] = always,
        reuse: bool = True,
        on_late: OnLateResponse | None = None,
    ) -> Evidence:
        network, began_mono = self.network, self.loop.now_mono
        if origin.host.startswith("events."):
            return await self._to_sink(request)
        plan = network.plan(origin.host, request)
        about = header_of(request, _WISH) or ""
        if plan.connects_s > 0 or self.stops_connecting or self.caught_left:
            await self._connect(plan, timeouts, writes=request.method == "POST")
        unsent = plan.fault if self.loop.now_mono >= self._cut_off_until_mono else "connect_timeout"
        if unsent in UNSENT:
            phase, fault = _UNSENT[unsent]
            network.history.say(self.life.name, "could not connect", about, unsent)
            return Evidence(phase, 0, fault, None, unsent, self.loop.now_mono - began_mono)
        if self.steps is not None:
            await self.steps.hit(UPSTREAM_CONNECTED)
        if not may_send():
            network.history.say(self.life.name, "may not send", about)
            detail = "the right to send had run out"
            phase, fault = NetworkPhase.CONNECTING, WireFault.LEASE_OVER
            return Evidence(phase, 0, fault, None, detail, self.loop.now_mono - began_mono)
        exchange = Exchange(self, len(request.body) + _HEAD_BYTES, began_mono, on_late)
        sent = self._sent(origin.host, request, about)
        network.history.say(self.life.name, f"sends {request.method}", about, self._told(sent, plan))
        network.on_sent(sent)
        network.carry(plan, sent, exchange)
        if self.steps is not None:
            await self.steps.hit(UPSTREAM_WRITTEN)
        timer = self.loop.call_later(timeouts.first_byte_s, exchange.times_out) if plan.may_be_late else None
        try:
            evidence = await exchange.done
        except BaseException:  # cancelled
            exchange.is_reset = True
            raise
        finally:
            if timer is not None:
                timer.cancel()
        network.history.say(self.life.name, "sees", about, (evidence.phase.label, evidence.fault or evidence.detail))
        return evidence

    def cut_off(self) -> None:
        """Its network goes, in a moment. Whoever connects for a payment until then does not get through any more."""
        self.caught_left = CAUGHT_MAX
        self._cut_off_from_mono = self.loop.now_mono + CONNECTING_S
        self.loop.after(CONNECTING_S, self._is_cut_off)

    def _is_cut_off(self) -> None:
        self.caught_left = 0
        self._cut_off_until_mono = self.loop.now_mono + CUT_OFF_S
        self.on_cut_off(CUT_OFF_S)

    async def _connect(self, plan: Plan, timeouts: UpstreamTimeouts, *, writes: bool) -> None:
        if self.stops_connecting and writes:
            self.stops_connecting = False
            self.on_connecting()
        waits_s = timeouts.connect_s if plan.fault == "connect_timeout" else plan.connects_s
        if self.caught_left and writes:
            self.caught_left -= 1
            waits_s = self._cut_off_from_mono - self.loop.now_mono + 0.01
        await asyncio.sleep(min(waits_s, timeouts.connect_s))

    async def _to_sink(self, request: WireRequest) -> Evidence:
        """Where events go."""
        await asyncio.sleep(0.01)
        assert self.network.sink is not None
        status = self.network.sink(request)
        phase = NetworkPhase.COMPLETE
        if status == 0:
            return Evidence(phase.AWAITING, 1, WireFault.FIRST_BYTE_TIMEOUT, None, "", 0.01, reset_by_us=True)
        return Evidence(phase, 1, None, Response(status, b"", (), b""), f"answered {status}", 0.01)

    async def stream(
        self, origin: Origin, request: StreamRequest, body: AsyncIterable[bytes] | None, timeouts: UpstreamTimeouts
    ) -> Evidence:
        raise AssertionError("what is no operation is not simulated")

    async def close(self) -> None:
        return None

    def _sent(self, host: str, request: WireRequest, about: str) -> Sent:
        key = None
        stamp = None
        if request.method == "POST":
            key = header_of(request, b"idempotency-key")
            found = _STAMP.search(request.body)
            stamp = found.group(1).decode() if found else None
        return Sent(self.loop.now_mono, self.life.name, host, about, stamp, key, request)

    def _told(self, sent: Sent, plan: Plan) -> Detail:
        what = ("fault:", plan.fault) if plan.fault else ()
        if sent.request.method != "POST":
            return (sent.request.target.decode()[:60], *what)
        return ("key", sent.key, "stamp", sent.stamp, *what)
